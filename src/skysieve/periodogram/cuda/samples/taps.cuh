// What coefficients of interpolation are made of: the window's shape, where a harmonic's frequencies begin
// among the samples.
#pragma once

// I0(beta sqrt(q)) = sum (beta^2 q / 4)^k / k!^2: all terms above 0; enough for arguments up to 36.
__device__ __forceinline__ double bessel(double beta, double q) {
  const double z = 0.25 * beta * beta * q;
  double s = 1;
#pragma unroll
  for (int k = 64; k > 0; k--) s = fma(s * z, 1.0 / (k * k), 1.0);
  return s;
}

// Where h f0 lies among samples `spacing` df from each other: behind the n-th of them, by `at` of that distance.
struct Origin {
  double n, at;
};
__device__ __forceinline__ Origin origin_of(double f0, double df, int spacing, int h) {
  const double D = spacing * df, low = fma((double)spacing, df, -D), x = h * f0, rest = fma((double)h, f0, -x);
  Origin v;
  v.n = floor(x / D);
  v.at = ((fma(-v.n, D, x) + rest) - v.n * low) / D;
  return v;
}

// Parts of the interpolation coefficients: the window's shape, and the place among the samples where the
// frequencies of a harmonic begin.
#pragma once

// I0(beta sqrt(q)) = sum (beta^2 q / 4)^k / k!^2: all terms are positive; there are enough of them for arguments up
// to 36.
__device__ __forceinline__ double bessel(double beta, double q) {
  const double z = 0.25 * beta * beta * q;
  double s = 1;
#pragma unroll
  for (int k = 64; k > 0; k--) s = fma(s * z, 1.0 / (k * k), 1.0);
  return s;
}

// Position of h f0 among samples that are `spacing` df apart: a fraction `at` of this distance after the n-th.
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

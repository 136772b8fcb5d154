#pragma once

// Pairs of float64: a value and what is left of it.
__device__ __forceinline__ double rounded(double a, double b) {
#if ON_DEVICE
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ __forceinline__ double2 two_sum(double a, double b) { const double s = a + b, t = s - a; return make_double2(s, (a - (s - t)) + (b - t)); }
__device__ __forceinline__ double2 plus(double2 a, double high, double low) {
  double2 s = two_sum(a.x, high);
  s.y += a.y + low;
  return two_sum(s.x, s.y);
}
__device__ __forceinline__ double2 less_product(double2 a, double2 b, double2 c) {
  const double p = rounded(b.x, c.x);
  return plus(a, -p, -(fma(b.x, c.x, -p) + fma(b.x, c.y, rounded(b.y, c.x))));
}

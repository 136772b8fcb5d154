// Arithmetic with pairs of float64 (double-double: a value and its rounding error), and the indices of lower
// triangular matrices whose entries are distributed over the lanes.
#pragma once

__device__ __forceinline__ double rounded(double a, double b) {
#if ON_DEVICE
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ __forceinline__ double2 two_sum(double a, double b) {
  const double s = a + b, t = s - a;
  return make_double2(s, (a - (s - t)) + (b - t));
}
__device__ __forceinline__ double2 plus(double2 a, double high, double low) {
  double2 s = two_sum(a.x, high);
  s.y += a.y + low;
  return two_sum(s.x, s.y);
}
__device__ __forceinline__ double2 less_product(double2 a, double2 b, double2 c) {
  const double p = rounded(b.x, c.x);
  return plus(a, -p, -(fma(b.x, c.x, -p) + fma(b.x, c.y, rounded(b.y, c.x))));
}
__device__ __forceinline__ double2 ratio(double2 a, double2 b, double inverse) {  // inverse: 1 / b.x
  const double q = a.x * inverse;
  const double2 left = less_product(a, make_double2(q, 0), b);
  return two_sum(q, left.x * inverse);
}

// The product of the remaining parts of the columns' squares below which the equations are solved in pairs of
// float64.
#define NEAR_SINGULAR 1e-6
// Index of entry (i, j) of a triangle, and its inverse.
__device__ __forceinline__ int at_of(int i, int j) { return i * (i + 1) / 2 + j; }
__device__ __forceinline__ void place_of(int at, int& i, int& j) {
  i = 0;
  while (at > i) {
    at -= i + 1;
    i++;
  }
  j = at;
}

// Products of float64 matrices.
#pragma once

// c += a b by a warp, with a 16 x 4 and b 4 x 8. Lane (g, t) = (lane / 4, lane % 4) has a at rows g and g + 8,
// column t; b at row t, column g; c at rows g and g + 8, columns 2 t and 2 t + 1. The two rows of a may be real and
// imaginary parts.
struct Tile {
  double re0, re1, im0, im1;
};  // row g, row g + 8
#if HAS_TALL_DOUBLE_MATRICES
__device__ __forceinline__ void multiply(Tile& c, double2 s, double b) {
  ptx::multiply_doubles(c.re0, c.re1, c.im0, c.im1, s, b);
}
#elif HAS_DOUBLE_MATRICES
__device__ __forceinline__ void multiply(Tile& c, double2 s, double b) {
  ptx::multiply_doubles(c.re0, c.re1, s.x, b);
  ptx::multiply_doubles(c.im0, c.im1, s.y, b);
}
#else
// Not inlined: the loops around it are unrolled, and 300 copies of it take the compiler a minute.
__device__ __noinline__ Tile product(Tile c, double2 s, double b) {
  const int lane = threadIdx.x & 31, t = lane & 3;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const double x = __shfl_sync(FULL, s.x, (lane & 28) + k), y = __shfl_sync(FULL, s.y, (lane & 28) + k);
    const double u = __shfl_sync(FULL, b, 8 * t + k), v = __shfl_sync(FULL, b, 8 * t + 4 + k);
    c.re0 = fma(x, u, c.re0);
    c.re1 = fma(x, v, c.re1);
    c.im0 = fma(y, u, c.im0);
    c.im1 = fma(y, v, c.im1);
  }
  return c;
}
__device__ __forceinline__ void multiply(Tile& c, double2 s, double b) { c = product(c, s, b); }
#endif

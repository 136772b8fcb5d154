// Float32 numbers as pairs of half-precision numbers, and their products on the matrix units.
//
// x = high + low, each rounded to 11 bits: the relative error is 2^-23 as long as low is not subnormal. A
// product takes three products of halves; that of the two low ones is neglected. The samples of a sum lie in
// octets of 64 bytes: first the real parts of eight complex samples, then the imaginary ones, each as four
// pairs of neighbours, with the two high halves and then the two low ones (8 bytes a pair).
#pragma once

using ptx::half_of;
using ptx::halves_of;
using ptx::number_of_half;

// The halves of two words that `which` names, as the device's instruction does.
__device__ __forceinline__ unsigned bytes_of(unsigned a, unsigned b, unsigned which) {
#if ON_DEVICE
  return __byte_perm(a, b, which);
#else
  const unsigned long long all = (unsigned long long)b << 32 | a;
  unsigned v = 0;
  for (int i = 0; i < 4; i++) v |= (unsigned)(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
  return v;
#endif
}
// High half in the low 16 bits, low half above.
__device__ __forceinline__ unsigned split(float x) {
  const unsigned h = half_of(x);
  return h | half_of(x - number_of_half(h)) << 16;
}
// The high halves of two such numbers, and their low halves.
__device__ __forceinline__ uint2 pair_of(unsigned a, unsigned b) {
  uint2 v;
  v.x = (a & 0xffffu) | b << 16;
  v.y = a >> 16 | (b & 0xffff0000u);
  return v;
}

// c += a b by a warp in float32, with a 16 x 8 or 16 x 16 and b 8 x 8 or 16 x 8. Lane (g, t) has a at rows g and g
// + 8 (`at`, `below`), columns 2 t and 2 t + 1 of each eight; b at these rows, column g; c as a Tile: rows g and g
// + 8, columns 2 t and 2 t + 1.
struct Sum {
  float re0, re1, im0, im1;
};
struct Steps {
  unsigned at, below;
};
#if HAS_HALF_MATRICES
__device__ __forceinline__ void multiply(Sum& c, Steps a, unsigned b) {
  ptx::multiply_halves(c.re0, c.re1, c.im0, c.im1, a.at, a.below, b);
}
__device__ __forceinline__ void multiply(Sum& c, Steps a, unsigned b, Steps a2, unsigned b2) {
  ptx::multiply_halves(c.re0, c.re1, c.im0, c.im1, a.at, a.below, a2.at, a2.below, b, b2);
}
#else
__device__ __noinline__ Sum product(Sum c, Steps a, unsigned b) {
  const int lane = threadIdx.x & 31, t = lane & 3;
  for (int k = 0; k < 4; k++) {
    const unsigned x = __shfl_sync(FULL, a.at, (lane & 28) + k), y = __shfl_sync(FULL, a.below, (lane & 28) + k);
    const unsigned u = __shfl_sync(FULL, b, 8 * t + k), v = __shfl_sync(FULL, b, 8 * t + 4 + k);
    for (int half = 0; half < 32; half += 16) {
      const float p = number_of_half(x >> half & 0xffffu), q = number_of_half(y >> half & 0xffffu);
      const float r = number_of_half(u >> half & 0xffffu), s = number_of_half(v >> half & 0xffffu);
      c.re0 = fma(p, r, c.re0);
      c.re1 = fma(p, s, c.re1);
      c.im0 = fma(q, r, c.im0);
      c.im1 = fma(q, s, c.im1);
    }
  }
  return c;
}
__device__ __forceinline__ void multiply(Sum& c, Steps a, unsigned b) { c = product(c, a, b); }
__device__ __forceinline__ void multiply(Sum& c, Steps a, unsigned b, Steps a2, unsigned b2) {
  c = product(product(c, a, b), a2, b2);
}
#endif
// Three steps of eight. Products of a low and a high half are added first, because they are small. a: the low
// halves (x, y) and high halves (z, w) of each step; operands lie in registers in the order in which they were
// loaded.
__device__ __forceinline__ Sum product_of(const uint4 (&a)[3], uint2 b0, uint2 b1, uint2 b2) {
  const uint2 b[3] = {b0, b1, b2};
  Sum c = {0, 0, 0, 0};
#pragma unroll
  for (int k = 0; k < 3; k++) multiply(c, Steps{a[k].x, a[k].y}, b[k].x, Steps{a[k].z, a[k].w}, b[k].y);
#pragma unroll
  for (int k = 0; k < 3; k++) multiply(c, Steps{a[k].z, a[k].w}, b[k].x);
  return c;
}

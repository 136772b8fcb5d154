// The format of samples: float64 numbers, or with HALVES pairs of half-precision numbers
// (sinusoid/powers_half.cuh), for which the interpolation window is another.
#pragma once
#ifdef HALVES
#include "sinusoid/powers_half.cuh"
#define SHAPE 19  // coefficients of the window's shape in time
#endif

// Factor of the strengths: one over the shape of the interpolation window in time. With HALVES, the shape is a
// polynomial in the square of the place.
__device__ __forceinline__ double strength_at(double place, const double* c, double beta, double scale) {
#ifdef HALVES
  const double u = place * place * (1 / (102.4 * 102.4));
  double v = __ldg(c + SHAPE - 1);
#pragma unroll
  for (int k = SHAPE - 2; k >= 0; k--) v = fma(v, u, __ldg(c + k));
  return reciprocal(v);
#else
  const double z = REACH * 3.14159265358979323846 / 256 * place, s = sqrt(fma(beta, beta, -z * z));
  return scale * s / sinh(s);
#endif
}

// Storage of samples from `first` on, of which lane g has the g-th and every sixteenth after it. With HALVES, lanes
// of equal t have octets, and the even one of two neighbours stores the real parts of both. Integers of 2^-22 are
// converted to float32 faster than doubles are.
#ifdef HALVES
__device__ __forceinline__ uint2* place_of(double2* out, long long first, int g) {
  return (uint2*)out + first + 4 * (g & 1) + (g >> 1);
}
__device__ __forceinline__ void keep(uint2* to, double k, double2 v, bool wanted) {
  auto number = [&](double x) { return (float)__double2loint(fma(k, x, 0x1.8p30)) * 0x1p-22f; };
  const unsigned odd = threadIdx.x >> 2 & 1, mine = odd ? 0x7632 : 0x5410, yours = mine ^ 0x2222,
                 upper = odd ? 0x1054 : 0x5410;
  const float x = number(v.x), y = number(v.y);
  const unsigned high = halves_of(x, y),
                 low = halves_of(x - number_of_half(high & 0xffffu), y - number_of_half(high >> 16));
  const unsigned own = bytes_of(high, low, mine), other = __shfl_xor_sync(FULL, bytes_of(high, low, yours), 4);
  uint2 all;
  all.x = bytes_of(own, other, upper);
  all.y = bytes_of(own, other, upper ^ 0x2222);
  if (wanted) *to = all;
}
#else
__device__ __forceinline__ double2* place_of(double2* out, long long first, int g) { return out + first + g; }
__device__ __forceinline__ void keep(double2* to, double k, double2 v, bool wanted) {
  if (wanted) *to = make_double2(k * v.x, k * v.y);
}
#endif

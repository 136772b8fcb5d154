// Largest and smallest numbers of a warp, compared as integers.
#pragma once

typedef unsigned long long Key;
__device__ __forceinline__ Key key_from(double x) {
  const long long b = __double_as_longlong(x);
  return (Key)(b ^ (b >> 63 | (long long)0x8000000000000000ull));
}
__device__ __forceinline__ double number_from(Key k) {
  return __longlong_as_double((long long)(k >> 63 ? k ^ 0x8000000000000000ull : ~k));
}
__device__ __forceinline__ Key warp_greatest(Key k) {
  const unsigned high = warp_max((unsigned)(k >> 32)), low = warp_max((unsigned)(k >> 32) == high ? (unsigned)k : 0);
  return (Key)high << 32 | low;
}
__device__ __forceinline__ unsigned warp_greatest(unsigned k) { return warp_max(k); }
// The rank of a power: an integer above 0 with the order of the numbers, in which both zeros are equal.
__device__ __forceinline__ Key rank_of(double p) { return key_from(p + 0.0); }
__device__ __forceinline__ unsigned rank_of(float p) {
  const int b = __float_as_int(p + 0.0f);
  return (unsigned)(b ^ (b >> 31 | (int)0x80000000u));
}
__device__ __forceinline__ unsigned warp_count(unsigned v) {
#if HAS_WARP_REDUCTIONS
  return __reduce_add_sync(FULL, v);
#else
  for (int k = 16; k; k >>= 1) v += __shfl_xor_sync(FULL, v, k);
  return v;
#endif
}

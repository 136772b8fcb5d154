// Loads of a comb's tables and of streamed weights.
//
// With RELOAD, table constants are read again for each channel, because there are too few registers to hold
// them. Their address contains an offset that is always 0; the compiler does not know this and therefore cannot
// keep the constants. The streamed weights then bypass the first-level cache, which holds the tables.
#pragma once

template <typename X>
__device__ __forceinline__ X table(const X* p) {
#ifdef RELOAD
  return ptx::load_again(p);
#else
  return __ldg(p);
#endif
}
template <typename X>
__device__ __forceinline__ X stream(const X* p) {
#ifdef RELOAD
  return ptx::load_past(p);
#else
  return __ldg(p);
#endif
}

// What the transient F-statistic's kernels share: atoms, F of a cell, its exponential, the best cell.
#pragma once

#ifndef REAL
#define REAL float
#endif
typedef REAL T;
#if defined(__CUDA_ARCH__)
#define ON_DEVICE 1
#else
#define ON_DEVICE 0
#endif
#define FULL 0xffffffffu
#define FALLBACK ((T)2)
#define NONE ((T)-1e30)

// Antenna factors: a2, b2, ab and the distance to the next bin with data; data: Re Fa, Im Fa, Re Fb, Im Fb.
struct __align__(16) Quad { T x, y, z, w; };

// Sizes and places, the same for all threads. Bins are counted with `pad` empty ones before the data.
struct Shape {
  int n, columns, rows;          // bins with the padding, N_tau, N_t0
  int templates;                 // of this launch
  int shared;                    // whether all templates have the antenna factors of template 0
  int marginals, map;            // what is wanted
  int low, high;                 // bins (or places in the list of rows) to work on: low <= . < high
  int chunk;                     // of these, per blockIdx.z
  int row0;                      // row of the map = bin - row0, one row a bin
  int step;                      // by which the lengths rise, or 0; see Fine
  int fine;                      // places of a phase in the copies sorted by phase
  int length0;                   // length of the first column, where lengths rise by 1
  int skip;                      // columns too short
};

__device__ __forceinline__ T reciprocal(T x) {
#if ON_DEVICE
  if constexpr (sizeof(T) == 4) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"((float)x)); return (T)r; }
#endif
  return (T)1 / x;
}

// exp(F - ref) with `base` = ref log2(e).
__device__ __forceinline__ T weight_of(T F, T base) {
  T y = fma(F, (T)1.4426950408889634, -base);
#if ON_DEVICE
  if constexpr (sizeof(T) == 4) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"((float)y)); return (T)r; }
#endif
  return (T)exp2(y);
}

// What the templates of one point of the sky share in a cell: F = fma(inverse, numerator, base).
struct Cell { T A, B, C2, inverse, base; };
__device__ __forceinline__ Cell cell_of(T A, T B, T C, T bound) {
  T s = A + B, D = fma(A, B, -C * C);
  bool good = D > bound * s * s;                  // condition number below its limit; false for an empty window
  Cell c;
  c.A = A; c.B = B; c.C2 = (T)2 * C;
  c.inverse = good ? reciprocal(D) : (T)0;
  c.base = good ? (T)0 : FALLBACK;
  return c;
}
__device__ __forceinline__ T fstat(const Cell& c, const Quad& f) {
  T a = fma(f.x, f.x, f.y * f.y), b = fma(f.z, f.z, f.w * f.w), x = fma(f.x, f.z, f.y * f.w);
  return fma(c.inverse, fma(c.B, a, fma(c.A, b, -c.C2 * x)), c.base);
}

// S <- x + S - p S
__device__ __forceinline__ T decayed(T s, T p, T x) { return fma(-p, s, s) + x; }
__device__ __forceinline__ void decay(Quad& s, T p, const Quad& x) {
  s.x = decayed(s.x, p, x.x); s.y = decayed(s.y, p, x.y); s.z = decayed(s.z, p, x.z); s.w = decayed(s.w, p, x.w);
}
__device__ __forceinline__ void take(Quad& s, T w, const Quad& x) {
  s.x = fma(-w, x.x, s.x); s.y = fma(-w, x.y, s.y); s.z = fma(-w, x.z, s.z); s.w = fma(-w, x.w, s.w);
}
__device__ __forceinline__ void add(Quad& s, const Quad& x) { s.x += x.x; s.y += x.y; s.z += x.z; s.w += x.w; }
__device__ __forceinline__ Quad zero() { Quad q; q.x = q.y = q.z = q.w = 0; return q; }

__device__ __forceinline__ T warp_sum(T v) {
  for (int k = 16; k; k >>= 1) v += __shfl_xor_sync(FULL, v, k);
  return v;
}
// The best cell of a warp, the first in the order of the map where F is equal, to the warp's slot of template t.
__device__ __forceinline__ void warp_best(T* best_F, unsigned* best_cell, size_t slot, T F, unsigned cell, bool any) {
  if (!any) { F = NONE; cell = 0xffffffffu; }
  for (int k = 16; k; k >>= 1) {
    const T other = __shfl_xor_sync(FULL, F, k);
    const unsigned at = __shfl_xor_sync(FULL, cell, k);
    if (other > F || (other == F && at < cell)) { F = other; cell = at; }
  }
  if ((threadIdx.x & 31) == 0) { best_F[slot] = F; best_cell[slot] = cell; }
}
// Slots of a template: one a warp of its blocks.
__device__ __forceinline__ size_t slot_of(int t) {
  const size_t blocks = (size_t)gridDim.x * gridDim.z, block = blockIdx.x + (size_t)gridDim.x * blockIdx.z;
  return ((size_t)t * blocks + block) * (blockDim.x >> 5) + (threadIdx.x >> 5);
}
__device__ __forceinline__ void warp_count(unsigned long long* count, int mine) {
  for (int k = 16; k; k >>= 1) mine += __shfl_xor_sync(FULL, mine, k);
  if ((threadIdx.x & 31) == 0 && mine) atomicAdd(count, (unsigned long long)mine);
}

// The sum over the warp of each of four values, in four lanes: 0, 8, 16 and 24 hold those of v[0..3].
__device__ __forceinline__ T warp_sum4(const T (&v)[4]) {
  int lane = threadIdx.x & 31;
  bool high = lane & 16, odd = lane & 8;
  T a = (high ? v[2] : v[0]) + __shfl_xor_sync(FULL, high ? v[0] : v[2], 16);
  T b = (high ? v[3] : v[1]) + __shfl_xor_sync(FULL, high ? v[1] : v[3], 16);
  T c = (odd ? b : a) + __shfl_xor_sync(FULL, odd ? a : b, 8);
  for (int k = 4; k; k >>= 1) c += __shfl_xor_sync(FULL, c, k);
  return c;
}

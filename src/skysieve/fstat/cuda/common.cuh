// Parts of the kernels of the transient F-statistic: atoms, F of a cell, its exponential, the best cell.
#pragma once
#include "ptx.cuh"

#ifndef REAL
#define REAL float
#endif
typedef REAL T;
#define FULL 0xffffffffu
#define FALLBACK ((T)2)
#define NONE ((T) - 1e30)
#define NOWHERE 0xffffffffu
#define LOG2E ((T)1.4426950408889634)
#define FEWEST 16  // bins of a gap in which recurrences start anew
#define MANY 256

// Antenna factors: a2, b2, ab and the distance to the next bin with data; data: Re Fa, Im Fa, Re Fb, Im Fb.
struct __align__(16) Quad {
  T x, y, z, w;
};

// Best cell of a warp, its sum of exponentials and its fallback cells.  `row` and `column` say where to look again.
struct __align__(16) Slot {
  T top, sum;
  unsigned row, column;
  int lost, spare;
};

// Results of a template for the host; the flag says that it has loud bins.
struct __align__(16) Answer {
  double top, sum;
  unsigned long long lost;
  unsigned cell, flag;
};

// Sizes and positions, the same for all threads.  Bins are counted with `pad` empty ones before the data.
struct Shape {
  int n, columns, rows;  // bins with the padding, N_tau, N_t0
  int templates;         // of this launch
  int stored;            // bins of a row of storage: n and empty ones up to a whole block
  int pitch;             // cells from one row of the map to the next
  int marginals, map;    // whether these are computed
  int low, high;         // bins (or places in the list of rows) to work on: low <= . < high
  int chunk;             // of these, per blockIdx.z
  int row0;              // row of the map = bin - row0, one row a bin
  int step;              // by which the lengths rise, or 0
  int fine;              // blocks of 32 places of a phase in the copies sorted by phase
  int length0;           // length of the first column, where lengths rise by 1
  int skip;              // columns too short
  int slots;             // of a template
  int width;             // columns (rect: rows) of a thread, for the search of the best cell
  int stride;            // and the distance between them
};

__device__ __forceinline__ T reciprocal(T x) {
#if ON_DEVICE
  if constexpr (sizeof(T) == 4) return (T)ptx::reciprocal((float)x);
#endif
  return (T)1 / x;
}

__device__ __forceinline__ T power_of_two(T y) {
#if ON_DEVICE
  if constexpr (sizeof(T) == 4) return (T)ptx::power_of_two((float)y);
#endif
  return (T)exp2(y);
}

// Quantities that the templates of one point of the sky share in a cell: F = base + inverse |Fa|^2 + rest |Fb -
// slope Fa|^2, with inverse = 1 / A, slope = C / A, rest = A / D: two operations less than with D, and as stable as
// a Cholesky factor.
struct Cell {
  T inverse, slope, rest, base;
  bool good;
};
__device__ __forceinline__ Cell cell_of(T A, T B, T C, T bound, T base, T fallback) {
  const T inverse = reciprocal(A), slope = C * inverse, schur = fma(-slope, C, B), s = A + B;
  Cell c;
  c.good =
      fma(s * -bound, s, A * schur) > (T)0;  // condition number below its limit; false for an empty window, where A = 0
  c.inverse = c.good ? inverse : (T)0;
  c.slope = c.good ? slope : (T)0;
  c.rest = c.good ? reciprocal(schur) : (T)0;
  c.base = c.good ? base : fallback;
  return c;
}
__device__ __forceinline__ T fstat(const Cell& c, const Quad& f) {
  const T u = fma(-c.slope, f.x, f.z), v = fma(-c.slope, f.y, f.w);
  const T a = fma(f.x, f.x, f.y * f.y), b = fma(u, u, v * v);
  return fma(c.rest, b, fma(c.inverse, a, c.base));
}

__device__ __forceinline__ void weigh(Quad& s, T w, const Quad& x) {  // S <- S + w x
  s.x = fma(w, x.x, s.x);
  s.y = fma(w, x.y, s.y);
  s.z = fma(w, x.z, s.z);
  s.w = fma(w, x.w, s.w);
}
__device__ __forceinline__ void add(Quad& s, const Quad& x) {
  s.x += x.x;
  s.y += x.y;
  s.z += x.z;
  s.w += x.w;
}
__device__ __forceinline__ void scale(Quad& s, T f) {
  s.x *= f;
  s.y *= f;
  s.z *= f;
  s.w *= f;
}
__device__ __forceinline__ Quad zero() {
  Quad q;
  q.x = q.y = q.z = q.w = 0;
  return q;
}

__device__ __forceinline__ T warp_sum(T v) {
  for (int k = 16; k; k >>= 1) v += __shfl_xor_sync(FULL, v, k);
  return v;
}
__device__ __forceinline__ int warp_count(int v) {
  for (int k = 16; k; k >>= 1) v += __shfl_xor_sync(FULL, v, k);
  return v;
}
// Whether cell (row, column) of value F comes before another: higher, or first in the order of the map.
__device__ __forceinline__ bool before(T F, unsigned row, unsigned column, T other, unsigned r, unsigned c) {
  return F > other || (F == other && (row < r || (row == r && column < c)));
}
// The best of a warp, in every lane.
__device__ __forceinline__ void warp_best(T& F, unsigned& row, unsigned& column) {
  for (int k = 16; k; k >>= 1) {
    const T other = __shfl_xor_sync(FULL, F, k);
    const unsigned r = __shfl_xor_sync(FULL, row, k), c = __shfl_xor_sync(FULL, column, k);
    if (before(other, r, c, F, row, column)) {
      F = other;
      row = r;
      column = c;
    }
  }
}
// Writes the result of a warp to its slot.  A thread without any cell has top NONE.
__device__ __forceinline__ void put(Slot* slot, T top, unsigned row, unsigned column, T sum, int lost) {
  if (!(top > NONE)) {
    top = NONE;
    row = column = NOWHERE;
  }
  warp_best(top, row, column);
  sum = warp_sum(sum);
  lost = warp_count(lost);
  if ((threadIdx.x & 31) == 0) {
    Slot s;
    s.top = top;
    s.sum = sum;
    s.row = row;
    s.column = column;
    s.lost = lost;
    s.spare = 0;
    *slot = s;
  }
}
// Index of a warp's slot: each warp of the blocks of a template has one.
__device__ __forceinline__ int slot_number() {
  return (blockIdx.x + gridDim.x * blockIdx.z) * (blockDim.x >> 5) + (threadIdx.x >> 5);
}

// Prefetches `count` bytes from `at` on into the first-level cache, one line for each lane (at most 32); no
// register waits for them.
__device__ __forceinline__ void fetch(const Quad* at, int count) {
  const int offset = 128 * (int)(threadIdx.x & 31);
  if (offset < count + 127) ptx::prefetch((const char*)at + min(offset, count - 4));
}

// A block merges all slots of a template into one.
#define MOST_WARPS 32
struct Gather {
  T top;
  unsigned row, column;
  double sum;
  unsigned long long lost;
};
__device__ __forceinline__ void gather(const Slot* slots, int count, Gather* each, Gather& all) {
  Gather g;
  g.top = NONE;
  g.row = g.column = NOWHERE;
  g.sum = 0;
  g.lost = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const Slot s = slots[i];
    g.sum += (double)s.sum;
    g.lost += (unsigned long long)s.lost;
    if (before(s.top, s.row, s.column, g.top, g.row, g.column)) {
      g.top = s.top;
      g.row = s.row;
      g.column = s.column;
    }
  }
  for (int k = 16; k; k >>= 1) {
    g.sum += __shfl_xor_sync(FULL, g.sum, k);
    g.lost += __shfl_xor_sync(FULL, g.lost, k);
  }
  warp_best(g.top, g.row, g.column);
  if ((threadIdx.x & 31) == 0) each[threadIdx.x >> 5] = g;
  __syncthreads();
  if (threadIdx.x == 0) {
    all = each[0];
    for (int i = 1; i < (int)(blockDim.x >> 5); i++) {
      all.sum += each[i].sum;
      all.lost += each[i].lost;
      if (before(each[i].top, each[i].row, each[i].column, all.top, all.row, all.column)) {
        all.top = each[i].top;
        all.row = each[i].row;
        all.column = each[i].column;
      }
    }
  }
  __syncthreads();
}
// Writes the answer of a template: the best value from `all`, and as its cell that of the best candidate of all
// warps of the block.
__device__ __forceinline__ void answer(Answer* to, const Gather& all, T F, unsigned row, unsigned column,
                                       unsigned columns, unsigned flag, Gather* each) {
  Gather& mine = each[threadIdx.x >> 5];
  if ((threadIdx.x & 31) == 0) {
    mine.top = F;
    mine.row = row;
    mine.column = column;
  }
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < (int)(blockDim.x >> 5); i++)
    if (before(each[i].top, each[i].row, each[i].column, F, row, column)) {
      F = each[i].top;
      row = each[i].row;
      column = each[i].column;
    }
  Answer a;
  a.top = (double)all.top;
  a.sum = all.sum;
  a.lost = all.lost;
  a.flag = flag;
  a.cell = row == NOWHERE || all.row == NOWHERE ? NOWHERE : row * columns + column;
  *to = a;
}

// In a gap, an exponential window loses bin after bin and gains none, until the rounding errors of the bins that
// have left are no longer small compared with the remaining sum.  Therefore it is summed again when these numbers
// of bins are left; `away` is the distance to the next bin with data.
__device__ __forceinline__ bool renewed(int L, int away) {
  const int left = L - away;
  return left <= 4 || left == FEWEST || (left == MANY && away >= MANY);
}

// A window summed by a warp: lanes take bins by their index, so that equal windows have equal sums.
struct Window {
  T A, B, C;
  Quad S;
};
__device__ __forceinline__ void reduce(Window& w) {
  w.A = warp_sum(w.A);
  w.B = warp_sum(w.B);
  w.C = warp_sum(w.C);
  w.S.x = warp_sum(w.S.x);
  w.S.y = warp_sum(w.S.y);
  w.S.z = warp_sum(w.S.z);
  w.S.w = warp_sum(w.S.w);
}

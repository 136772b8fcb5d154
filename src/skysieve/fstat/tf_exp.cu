// Exponential windows: at each tau the sums obey S(c) = x_c + q S(c + 1) - q^L x_(c + L) in the first bin c.
//
// A thread is one tau and K templates; it marches the start down through a chunk of the data, after it has summed the
// first window of the chunk. Neighbouring threads are neighbouring taus: bins that enter are the same for a warp (one
// broadcast load), bins that leave lie side by side in a copy of the atoms sorted by phase (index modulo `step`, by which
// the lengths rise). Templates of one point of the sky share A, B, C and 1/D.
// A cell: 8 (sums) + 2 (half of the windows lose a bin) + 9 (F) + 3 (exponential) + 2 (maximum) operations, and about
// 20 / K shared ones. Bytes: none but 16 a template for the bin that leaves, from the first cache. Limit: instruction
// issue, then the first cache's loads.
// exp_unit: starts at every bin, lengths of one group. exp_any: starts anywhere, lengths that differ by one bin between
// rows, and loud bins summed apart (see workload.loud_bins), for one template.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// budget: f32 kernel=exp_unit4 regs<=128 smem<=0
// budget: f32 kernel=exp_unit1 regs<=96 smem<=0
#include "tf_common.cuh"

// Weights of a column: p and w = q^L for the data and for the antenna factors.
struct Decay { T p, w, p2, w2; };
__device__ __forceinline__ Decay decay_of(const T* weights, int columns, int n) {
  Decay d;
  d.p = weights[n]; d.w = weights[columns + n]; d.p2 = weights[2 * columns + n]; d.w2 = weights[3 * columns + n];
  return d;
}

// Where the bin that leaves lies in the copy sorted by phase: bin b = c + L(n) is at (b mod step) fine + b / step.
struct Tail {
  int phase, at;
  __device__ __forceinline__ void begin(int bin, int step) { phase = bin % step; at = bin / step; }
  __device__ __forceinline__ void back(int step) { if (phase-- == 0) { phase = step - 1; at--; } }
};

template <int K, bool MARGINALS>
__device__ __forceinline__ void unit(const Quad* antenna, const Quad* data, const Quad* fine_antenna, const Quad* fine_data,
                                     const int* length, const T* weights, const T* bases, T bound, const Shape& s, T* map,
                                     T* row_sums, T* column_sums, T* best_F, unsigned* best_cell, unsigned long long* missed) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x, t0 = blockIdx.y * K;
  const int low = s.low + blockIdx.z * s.chunk, high = min(s.high, low + s.chunk);
  if (low >= high) return;
  const bool active = n >= s.skip && n < s.columns;
  const int m = min(n, s.columns - 1), last_column = min((int)(blockIdx.x * blockDim.x + blockDim.x), s.columns) - 1;
  const int L = length[m], longest = length[last_column];
  const Decay d = decay_of(weights, s.columns, m);
  const size_t sky = s.shared ? 0 : t0;
  const size_t copies = (size_t)s.step * s.fine;
  const Quad* x = antenna + sky * s.n;
  const Quad* fx = fine_antenna + sky * copies;
  const Quad* y[K];
  const Quad* fy[K];
  T top[K], sum[K], base[K];
  int where[K];
  Quad S[K];
#pragma unroll
  for (int k = 0; k < K; k++) {
    const size_t t = min(t0 + k, s.templates - 1);
    y[k] = data + t * s.n; fy[k] = fine_data + t * copies; base[k] = bases[t];
    S[k] = zero(); top[k] = NONE; sum[k] = 0; where[k] = 0;
  }
  T A = 0, B = 0, C = 0;
  for (int c = min(s.n, high + longest) - 1; c >= high; c--)   // the window of the bin before the chunk
    if (c < high + L) {
      const Quad q = x[c];
      A = decayed(A, d.p2, q.x); B = decayed(B, d.p2, q.y); C = decayed(C, d.p2, q.z);
#pragma unroll
      for (int k = 0; k < K; k++) decay(S[k], d.p, y[k][c]);
    }
  Tail tail;
  tail.begin(high - 1 + length[0], s.step);
  int lost = 0;
  for (int start = high - 1; start >= low; start -= 4) {
    T e[K][4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int c = start - r;
      if (MARGINALS) {
#pragma unroll
        for (int k = 0; k < K; k++) e[k][r] = 0;
      }
      if (c < low) continue;
      const Quad q = x[c];
      A = decayed(A, d.p2, q.x); B = decayed(B, d.p2, q.y); C = decayed(C, d.p2, q.z);
#pragma unroll
      for (int k = 0; k < K; k++) decay(S[k], d.p, y[k][c]);
      if (c + L < s.n) {
        const size_t at = (size_t)tail.phase * s.fine + tail.at + m;
        const Quad z = fx[at];
        A = fma(-d.w2, z.x, A); B = fma(-d.w2, z.y, B); C = fma(-d.w2, z.z, C);
#pragma unroll
        for (int k = 0; k < K; k++) take(S[k], d.w, fy[k][at]);
      }
      tail.back(s.step);
      if (q.w >= (T)L) {                                       // no data in the window: leave no residue
        A = B = C = 0;
#pragma unroll
        for (int k = 0; k < K; k++) S[k] = zero();
      }
      const Cell cell = cell_of(A, B, C, bound);
      lost += cell.base != (T)0;
#pragma unroll
      for (int k = 0; k < K; k++) {
        const T F = fstat(cell, S[k]);
        if (F >= top[k]) { top[k] = F; where[k] = c; }
        const T g = weight_of(F, base[k]);
        sum[k] += g;
        if (MARGINALS) {
          e[k][r] = active && t0 + k < s.templates ? g : (T)0;
          if (map && active && t0 + k < s.templates) map[((size_t)(t0 + k) * s.rows + (c - s.row0)) * s.columns + n] = F;
        }
      }
    }
    if (MARGINALS && s.marginals) {
#pragma unroll
      for (int k = 0; k < K; k++) {
        const T part = warp_sum4(e[k]);
        const int r = (threadIdx.x & 31) >> 3, c = start - r;
        if ((threadIdx.x & 7) == 0 && c >= low && t0 + k < s.templates)
          atomicAdd(row_sums + (size_t)(t0 + k) * s.rows + (c - s.row0), part);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < K; k++) {
    const bool mine = active && t0 + k < s.templates;
    const int t = min(t0 + k, s.templates - 1);
    if (mine) atomicAdd(column_sums + (size_t)t * s.columns + n, sum[k]);
    if (t0 + k < s.templates)
      warp_best(best_F, best_cell, slot_of(t), top[k], (unsigned)(where[k] - s.row0) * (unsigned)s.columns + (unsigned)n, mine);
    warp_count(missed + t, mine ? lost : 0);
  }
}

#define EXP_ARGUMENTS                                                                                                     \
  const Quad *antenna, const Quad *data, const Quad *fine_antenna, const Quad *fine_data, const int *length,              \
      const T *weights, const T *bases, T bound, Shape s, T *map, T *row_sums, T *column_sums, T *best_F, unsigned *best_cell, \
      unsigned long long *missed
#define EXP_NAMES                                                                                                         \
  antenna, data, fine_antenna, fine_data, length, weights, bases, bound, s, map, row_sums, column_sums, best_F, best_cell, missed

extern "C" __global__ void __launch_bounds__(128) exp_unit1(EXP_ARGUMENTS) { unit<1, false>(EXP_NAMES); }
extern "C" __global__ void __launch_bounds__(128) exp_unit4(EXP_ARGUMENTS) { unit<4, false>(EXP_NAMES); }
extern "C" __global__ void __launch_bounds__(128) exp_unit1_all(EXP_ARGUMENTS) { unit<1, true>(EXP_NAMES); }
extern "C" __global__ void __launch_bounds__(128) exp_unit4_all(EXP_ARGUMENTS) { unit<4, true>(EXP_NAMES); }

// One stream of bins (quiet or loud) of one template at one tau.
struct Stream {
  const Quad* x;
  const Quad* y;
  T A, B, C;
  Quad S, z, u;   // sums; the bin that left: antenna factors, data
  __device__ __forceinline__ void clear() { A = B = C = 0; S = zero(); }
  __device__ __forceinline__ void warm(int from, int high, int L, const Decay& d) {
    clear();
    for (int c = from; c >= high; c--)
      if (c < high + L) {
        const Quad q = x[c];
        A = decayed(A, d.p2, q.x); B = decayed(B, d.p2, q.y); C = decayed(C, d.p2, q.z);
        decay(S, d.p, y[c]);
      }
  }
  __device__ __forceinline__ void march(int c, int n, int L, const Decay& d) {
    const Quad q = x[c];
    A = decayed(A, d.p2, q.x); B = decayed(B, d.p2, q.y); C = decayed(C, d.p2, q.z);
    decay(S, d.p, y[c]);
    z = u = zero();
    if (c + L < n) {
      z = x[c + L]; u = y[c + L];
      A = fma(-d.w2, z.x, A); B = fma(-d.w2, z.y, B); C = fma(-d.w2, z.z, C);
      take(S, d.w, u);
    }
    if (q.w >= (T)L) clear();
  }
};

// rows: the map's row, the first bin and the group of each, in falling order of the first bin.
extern "C" __global__ void __launch_bounds__(128)
exp_any(const Quad* antenna, const Quad* data, const Quad* loud_antenna, const Quad* loud_data, const int* length,
        const T* weights, const T* bases, T bound, Shape s, const int* row_of, const int* first_of, const int* group_of,
        const unsigned char* more, const int* skip, int with_loud, T* map, T* row_sums, T* column_sums,
        T* best_F, unsigned* best_cell, unsigned long long* missed) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
  const int low = s.low + blockIdx.z * s.chunk, high = min(s.high, low + s.chunk);
  if (low >= high) return;
  const int m = min(n, s.columns - 1), last_column = min((int)(blockIdx.x * blockDim.x + blockDim.x), s.columns) - 1;
  const int L = length[m], longest = length[last_column];
  const Decay d = decay_of(weights, s.columns, m);
  const size_t sky = s.shared ? 0 : t;
  const T base = bases[t];
  Stream quiet, loud;
  quiet.x = antenna + sky * s.n; quiet.y = data + (size_t)t * s.n;
  loud.x = loud_antenna + sky * s.n; loud.y = loud_data + (size_t)t * s.n;
  const int begin = first_of[low] + 1, end = first_of[high - 1];   // bins from begin - 1 down to end
  const int from = min(s.n, begin + longest) - 1;
  quiet.warm(from, begin, L, d);
  if (with_loud) loud.warm(from, begin, L, d);
  T top = NONE, sum = 0;
  unsigned where = 0;
  int lost = 0, at = low;
  for (int c = begin - 1; c >= end; c--) {
    quiet.march(c, s.n, L, d);
    if (with_loud) loud.march(c, s.n, L, d);
    for (; at < high && first_of[at] == c; at++) {
      const int row = row_of[at], group = group_of[at];
      const bool mine = n < s.columns && n >= skip[group];
      T A = quiet.A, B = quiet.B, C = quiet.C;
      Quad S = quiet.S;
      if (with_loud) { A += loud.A; B += loud.B; C += loud.C; add(S, loud.S); }
      if (more && more[(size_t)group * s.columns + m]) {
        A = fma(d.w2, quiet.z.x, A); B = fma(d.w2, quiet.z.y, B); C = fma(d.w2, quiet.z.z, C);
        take(S, -d.w, quiet.u);
        if (with_loud) {
          A = fma(d.w2, loud.z.x, A); B = fma(d.w2, loud.z.y, B); C = fma(d.w2, loud.z.z, C);
          take(S, -d.w, loud.u);
        }
      }
      const Cell cell = cell_of(A, B, C, bound);
      const T F = fstat(cell, S);
      const T e = mine ? weight_of(F, base) : (T)0;
      const unsigned here = (unsigned)row * (unsigned)s.columns + (unsigned)n;
      if (mine) {
        if (F > top || (F == top && here < where)) { top = F; where = here; }
        lost += cell.base != (T)0;
        if (map) map[((size_t)t * s.rows + row) * s.columns + n] = F;
      }
      sum += e;
      if (s.marginals) {
        const T part = warp_sum(e);
        if ((threadIdx.x & 31) == 0) atomicAdd(row_sums + (size_t)t * s.rows + row, part);
      }
    }
  }
  const bool any = top > NONE;
  if (any) atomicAdd(column_sums + (size_t)t * s.columns + n, sum);
  warp_best(best_F, best_cell, slot_of(t), top, where, any);
  warp_count(missed + t, lost);
}

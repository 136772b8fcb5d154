// Exponential windows on every bin: the weighted sums of all starts by a recurrence, with one multiply-add per sum.
//
// F does not change if the weights of a window are multiplied by a number, and the antenna factors by its square.  So a
// bin has the weight w = 2^(a (reference - bin)), a = log2(e) / tau, for all starts: S <- S + w x where it enters, and
// S <- S - q^L w x where it leaves.  Before w becomes too large the sums are divided by it (for long tau at most once
// while a bin is in the window), so that rounding errors do not accumulate.
//
// Layout: a thread for J taus and K templates of one point of the sky, which share A, B, C and their inverse.  The
//   taus of a thread are adjacent for a map, and every 32nd one otherwise.  It sums the first window of a chunk of
//   the data and moves the start down in blocks of 16 rows.  The rows of a group of templates are contiguous,
//   antenna factors first, so that all loads are broadcasts of one address.  Bins that leave (a sixth of the cells
//   of a full grid) are contiguous in a copy sorted by phase (index modulo `step`, the increment of the lengths).
//   Sums over the taus of one start go through shared memory, 16 starts at a time.
// Cost: per cell 4 operations (sums) + 8 (F) + 2 (exponential) + 1 (maximum), about 19 / K shared ones, (K + 1) / (J K)
//   loads; no bytes but 16 for a bin that leaves, from the first cache; two operations per row of a thread for the
//   sums.
// Limit: instruction issue; a broadcast of four numbers takes four cycles of the first cache, which J = 2 hides.
// Data are multiplied by sqrt(log2 e) if no map is wanted, so that the sums need 2^F.
// The best cell is known up to a block of 16 rows and J columns, in which exp_best finds it.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double -DSHARED=2
// budget: f32 kernel=exp_lean regs<=168 smem<=0
// budget: f32 kernel=exp_lean_shared regs<=248 smem<=0
// budget: f32 kernel=exp_sums_shared regs<=255 smem<=18432 spills<=16
// budget: f32 kernel=exp_map_shared regs<=255 smem<=0
// budget: f32 kernel=exp_both_shared regs<=255 smem<=18432 spills<=16
// budget: f64 kernel=exp_best spills<=256
#include "common.cuh"

#ifndef SHARED
#define SHARED 4  // templates of a thread where they share their antenna factors
#endif
#ifndef TAUS
#define TAUS 2  // columns of a thread
#endif
#ifndef THREADS
#define THREADS 64
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#define ROWS 16                  // of a block of rows
#define GROUP 4                  // of an unrolled group
#define LARGEST ((T)8)           // exponent of the weights from which sums are divided, where more than a block fits
enum { LEAN, SUMS, MAP, BOTH };  // sums over rows and columns, the map, both
enum { FAST, TAIL, SLOW };
#define PAD 36  // lanes, and enough to keep the banks apart

// Position of the bin that leaves in the copy sorted by phase: bin b = c + L(n) is at phase b mod step, place b /
// step; 32 places of a phase lie together, for the antenna factors and then for each template.
struct Tail {
  int phase, at;
  __device__ __forceinline__ void begin(int bin, int step) {
    at = bin / step;
    phase = bin - at * step;
  }
  __device__ __forceinline__ void back(int step) {
    if (phase-- == 0) {
      phase = step - 1;
      at--;
    }
  }
};

template <class V>
struct __align__(16) Quads {
  V v[16 / sizeof(V)];
};
template <class V, int J>
struct __align__(J * sizeof(V)) Vector {
  V v[J];
};
// A map is written past the first-level cache: its lines would push out the atoms that are loaded next.
__device__ __forceinline__ void store(T* at, const Vector<T, 2>& v) { ptx::write_past(at, v.v[0], v.v[1]); }
__device__ __forceinline__ void store(T* at, const Vector<T, 1>& v) { ptx::write_past(at, v.v[0]); }

template <int K, int J, int MODE>
struct March {
  static constexpr bool KEEP = MODE >= MAP, EACH = MODE == SUMS || MODE == BOTH;
  static constexpr int STRIDE = KEEP ? 1 : 32;  // between the columns of a thread: a map is written in pairs
  const Shape& s;
  const Quad *mine, *tails;                       // rows of this group, its copy sorted by phase
  int t0, n0, low, high, reference, alone, lane;  // alone: a gap from which some windows hold little or nothing
  T base, bound, *row_sums;
  T (*part)[ROWS][PAD];  // sums over the columns of a thread, one set a template
  T* out[KEEP ? K : 1];  // position of the row above the next one; a missing template repeats the last one
  bool inside;           // columns within a line of the map, wanted or not (others are filled in later)
  T A[J], B[J], C[J];
  Quad S[K][J];
  T most[K];  // of the block of rows
  T sum[K][EACH ? J : 1];
  T rate[J], once[J], twice[J], lose[J];  // a, 2^a, 4^a, q^L
  T other[J];                             // the fallback's value, NONE where the column is not wanted
  int L[J], lost[J];

  __device__ __forceinline__ March(const Shape& shape) : s(shape) {}
  __device__ __forceinline__ void clear(int j) {
    A[j] = B[j] = C[j] = 0;
#pragma unroll
    for (int k = 0; k < K; k++) S[k][j] = zero();
  }
  __device__ __forceinline__ void enter(int j, T w, const Quad& x, const Quad (&y)[K]) {
    const T w2 = w * w;
    A[j] = fma(w2, x.x, A[j]);
    B[j] = fma(w2, x.y, B[j]);
    C[j] = fma(w2, x.z, C[j]);
#pragma unroll
    for (int k = 0; k < K; k++) weigh(S[k][j], w, y[k]);
  }

  // Adds a bin of the first window, `since` bins after the window's first.
  __device__ __forceinline__ void warm(int c, int since) {
    const Quad* const p = mine + (size_t)c * (K + 1);
    Quad y[K];
#pragma unroll
    for (int k = 0; k < K; k++) y[k] = p[1 + k];
#pragma unroll
    for (int j = 0; j < J; j++)
      enter(j, other[j] > NONE && since < L[j] ? power_of_two(rate[j] * (T)(reference - c)) : (T)0, p[0], y);
  }
  // Sums a window from its last bins alone; there are no data in the `away` bins before them.
  __device__ __forceinline__ void renew(int j, int c, int away) {
    clear(j);
    const int end = min(s.n, c + L[j]);
#pragma unroll 1
    for (int b = c + away; b < end; b++) {
      const Quad* const p = mine + (size_t)b * (K + 1);
      Quad y[K];
#pragma unroll
      for (int k = 0; k < K; k++) y[k] = p[1 + k];
      enter(j, other[j] > NONE ? power_of_two(rate[j] * (T)(reference - b)) : (T)0, p[0], y);
    }
  }
  // Adds four bins of the first window, from c0 down, which the windows of all columns contain.
  __device__ __forceinline__ void warm_group(int c0) {
    T w0[J];
#pragma unroll
    for (int j = 0; j < J; j++) w0[j] = other[j] > NONE ? power_of_two(rate[j] * (T)(reference - c0)) : (T)0;
    const Quad* const p0 = mine + (size_t)c0 * (K + 1);
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
      const Quad* const p = p0 - i * (K + 1);
      const Quad x = p[0];
      Quad y[K];
#pragma unroll
      for (int k = 0; k < K; k++) y[k] = p[1 + k];
#pragma unroll
      for (int j = 0; j < J; j++)
        enter(j,
              i == 0   ? w0[j]
              : i == 1 ? w0[j] * once[j]
              : i == 2 ? w0[j] * twice[j]
                       : w0[j] * once[j] * twice[j],
              x, y);
    }
  }

  // Computes four rows from c0 down.  FAST: no bin leaves a window; TAIL: bins leave some windows; SLOW: in
  // addition some rows do not belong to this chunk, or windows may contain no data.
  template <int WAY>
  __device__ __forceinline__ void group(int c0) {
    T e[K], w0[J];
#pragma unroll
    for (int j = 0; j < J; j++)  // zero where no column is wanted
      w0[j] = other[j] > NONE ? power_of_two(rate[j] * (T)(reference - c0)) : (T)0;
    const Quad* const p0 = mine + (size_t)c0 * (K + 1);
    Tail tail;
    if (WAY != FAST) tail.begin(c0 + s.length0, s.step);
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
      const int c = c0 - i;
      if (EACH) {
#pragma unroll
        for (int k = 0; k < K; k++) e[k] = 0;
      }
      if (WAY != FAST && i) tail.back(s.step);
      if (WAY == SLOW && (c >= high || c < low)) continue;
      const Quad* const p = p0 - i * (K + 1);
      const Quad x = p[0];
      Quad y[K];
#pragma unroll
      for (int k = 0; k < K; k++) y[k] = p[1 + k];
#pragma unroll
      for (int j = 0; j < J; j++) {
        const T w = i == 0 ? w0[j] : i == 1 ? w0[j] * once[j] : i == 2 ? w0[j] * twice[j] : w0[j] * once[j] * twice[j];
        enter(j, w, x, y);
        if (WAY != FAST) {
          const int place = min(tail.at + min(n0 + STRIDE * j, s.columns - 1), 32 * s.fine - 1);
          const Quad* q = tails + ((size_t)((tail.phase * s.fine + (place >> 5)) * (K + 1)) * 32 + (place & 31));
          const T u = c + L[j] < s.n ? -w * lose[j] : (T)0, u2 = -u * u;
          const Quad z = q[0];
          A[j] = fma(u2, z.x, A[j]);
          B[j] = fma(u2, z.y, B[j]);
          C[j] = fma(u2, z.z, C[j]);
#pragma unroll
          for (int k = 0; k < K; k++) weigh(S[k][j], u, q[32 * (k + 1)]);
        }
      }
      if (WAY == SLOW && x.w >= (T)alone) {  // no data in the window, or few: remove the rounding residue
#pragma unroll
        for (int j = 0; j < J; j++) {
          if (x.w >= (T)L[j])
            clear(j);
          else if (x.w >= (T)FEWEST && renewed(L[j], (int)x.w))
            renew(j, c, (int)x.w);
        }
      }
      Vector<T, J> values[KEEP ? K : 1];
#pragma unroll
      for (int j = 0; j < J; j++) {
        const Cell cell = cell_of(A[j], B[j], C[j], bound, KEEP ? (T)0 : -base, other[j]);
        lost[j] += !cell.good;
#pragma unroll
        for (int k = 0; k < K; k++) {
          const T F = fstat(cell, S[k][j]);
          most[k] = fmax(most[k], F);
          const T v = power_of_two(KEEP ? fma(F, LOG2E, -base) : F);
          sum[k][EACH ? j : 0] += v;
          if (EACH) e[k] += v;
          if (KEEP) values[k].v[j] = F;
        }
      }
      if (KEEP) {
#pragma unroll
        for (int k = 0; k < K; k++) {
          out[k] -= s.pitch;
          if (inside) store(out[k], values[k]);
        }
      }
      if (EACH) {
#pragma unroll
        for (int k = 0; k < K; k++) part[k][c & (ROWS - 1)][lane] = e[k];
      }
    }
  }
  // Copies the sums of rows c0 .. c0 + 15 to the place where they are added over the columns.
  __device__ __forceinline__ void flush(int c0) {
    __syncwarp();
    const int row = lane & (ROWS - 1), c = c0 + row;
#pragma unroll
    for (int k = 0; k < K; k++) {
      T v = 0;
#pragma unroll
      for (int i = 0; i < 16; i += 16 / (int)sizeof(T)) {
        const Quads<T> q = *(const Quads<T>*)&part[k][row][(lane & 16) + i];
#pragma unroll
        for (int h = 0; h < 16 / (int)sizeof(T); h++) v += q.v[h];
      }
      v += __shfl_down_sync(FULL, v, 16);
      if (lane < ROWS && c >= low && c < high && t0 + k < s.templates)
        atomicAdd(row_sums + (size_t)(t0 + k) * s.rows + (c - s.row0), v);
    }
    __syncwarp();
  }
};

template <int K, int J, int MODE>
__device__ __forceinline__ void unit(const Quad* rows, const Quad* fine, const int* gaps, const int* length,
                                     const T* weights, const T* bases, T bound, const Shape& s, T* map, T* row_sums,
                                     T* column_sums, Slot* slots, T (*part)[ROWS][PAD]) {
  const int lane = threadIdx.x & 31, g = blockIdx.y,
            block0 = (blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5)) * 32 * J;
  constexpr bool KEEP = March<K, J, MODE>::KEEP, EACH = March<K, J, MODE>::EACH;
  constexpr int STRIDE = March<K, J, MODE>::STRIDE;
  const int n0 = block0 + (KEEP ? J : 1) * lane;
  const int cut = s.low / ROWS * ROWS + blockIdx.z * s.chunk, t0 = g * K;
  const int low = max(s.low, cut), high = min(s.high, cut + s.chunk);
  const T base = bases[t0];
  March<K, J, MODE> m(s);
  m.t0 = t0;
  m.n0 = n0;
  m.lane = lane;
  m.part = part;
  m.low = low;
  m.high = high;
  m.base = base;
  m.bound = bound;
  m.row_sums = row_sums;
  T top[K];
  int where[K];
#pragma unroll
  for (int j = 0; j < J; j++) {
    const int n = n0 + STRIDE * j, at = min(n, s.columns - 1);
    const bool active = n >= s.skip && n < s.columns;
    m.L[j] = length[at];
    m.rate[j] = weights[at];
    m.lose[j] = weights[s.columns + at];
    m.once[j] = power_of_two(m.rate[j]);
    m.twice[j] = power_of_two((T)2 * m.rate[j]);
    m.other[j] = !active ? NONE : KEEP ? FALLBACK : fma(FALLBACK, LOG2E, -base);
    m.lost[j] = 0;
    m.clear(j);
  }
#pragma unroll
  for (int k = 0; k < K; k++) {
    top[k] = NONE;
    where[k] = -1;
    m.most[k] = NONE;
#pragma unroll
    for (int j = 0; j < (EACH ? J : 1); j++) m.sum[k][j] = 0;
  }
  const int shortest = __shfl_sync(FULL, m.L[0], 0), longest = length[min(block0 + 32 * J, s.columns) - 1];
  const T fastest = __shfl_sync(FULL, m.rate[0], 0);
  const int period = max(ROWS, (int)fmin(LARGEST / fastest, (T)1e6));
  m.alone = min(shortest, max(FEWEST, shortest - MANY));
  m.mine = rows + (size_t)g * s.stored * (K + 1);
  m.tails = fine + (size_t)g * s.step * (K + 1) * s.fine * 32;
  m.inside = n0 < s.pitch;
  if (KEEP) {
#pragma unroll
    for (int k = 0; k < K; k++)
      m.out[k] = map + ((size_t)min(t0 + k, s.templates - 1) * s.rows + (high - s.row0)) * s.pitch + n0;
  }

  m.reference = high;  // weights are 1 there
  // The window of the bin before the chunk, from its end: first the bins that the windows of some columns
  // contain, then those that all contain.
  int c = min(s.n, high + longest) - 1;
  const int common = min(s.n, high + shortest);
  for (; c >= common || (c >= high && (c - high) % GROUP != GROUP - 1); c--) m.warm(c, c - high);
  for (; c >= high; c -= GROUP) {
    if ((c - high) % ROWS == ROWS - 1 && c >= 2 * ROWS)
      fetch(m.mine + (size_t)(c - 2 * ROWS + 1) * (K + 1), ROWS * (K + 1) * (int)sizeof(Quad));
    m.warm_group(c);
  }

  for (int b = (high - 1) / ROWS; b >= low / ROWS; b--) {
    const int last = b * ROWS + ROWS - 1;
    if (m.reference - (last + 1) >= period) {  // the weights restart at 1
#pragma unroll
      for (int j = 0; j < J; j++) {
        const T f = power_of_two(-m.rate[j] * (T)(m.reference - (last + 1))), f2 = f * f;
        m.A[j] *= f2;
        m.B[j] *= f2;
        m.C[j] *= f2;
#pragma unroll
        for (int k = 0; k < K; k++) scale(m.S[k][j], f);
      }
      m.reference = last + 1;
    }
    if (b) fetch(m.mine + (size_t)(b - 1) * ROWS * (K + 1), ROWS * (K + 1) * (int)sizeof(Quad));
    const bool edge = last >= high || b * ROWS < low || gaps[b] >= m.alone;
    if (!edge && b * ROWS + shortest >= s.n) {
#pragma unroll 1
      for (int i = 0; i < ROWS; i += GROUP) m.template group<FAST>(last - i);
    } else if (!edge) {
#pragma unroll 1
      for (int i = 0; i < ROWS; i += GROUP) m.template group<TAIL>(last - i);
    } else {
#pragma unroll 1
      for (int i = 0; i < ROWS; i += GROUP) m.template group<SLOW>(last - i);
    }
    if (EACH) m.flush(b * ROWS);
#pragma unroll
    for (int k = 0; k < K; k++) {
      if (m.most[k] >= top[k]) {
        top[k] = m.most[k];
        where[k] = b;
      }  // the last block is the first in the map
      m.most[k] = NONE;
    }
  }
  int lost = 0;
#pragma unroll
  for (int j = 0; j < J; j++) lost += m.other[j] > NONE ? m.lost[j] : 0;
#pragma unroll
  for (int k = 0; k < K; k++) {
    const int t = t0 + k;
    if (t >= s.templates) continue;
    T sum = m.sum[k][0];
    if (EACH) {
#pragma unroll
      for (int j = 0; j < J; j++) {
        if (j) sum += m.sum[k][j];
        if (m.other[j] > NONE) atomicAdd(column_sums + (size_t)t * s.columns + n0 + STRIDE * j, m.sum[k][j]);
      }
    }
    put(slots + (size_t)t * s.slots + slot_number(), top[k], (unsigned)(where[k] * ROWS), (unsigned)n0, sum, lost);
  }
}

#define EXP_ARGUMENTS                                                                                                \
  const Quad *rows, const Quad *fine, const int *gaps, const int *length, const T *weights, const T *bases, T bound, \
      Shape s, T *map, T *row_sums, T *column_sums, Slot *slots
#define EXP_NAMES rows, fine, gaps, length, weights, bases, bound, s, map, row_sums, column_sums, slots

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exp_small(EXP_ARGUMENTS) {
  unit<1, 1, LEAN>(EXP_NAMES, nullptr);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exp_lean(EXP_ARGUMENTS) {
  unit<1, TAUS, LEAN>(EXP_NAMES, nullptr);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exp_lean_shared(EXP_ARGUMENTS) {
  unit<SHARED, TAUS, LEAN>(EXP_NAMES, nullptr);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exp_sums(EXP_ARGUMENTS) {
  __shared__ __align__(16) T part[THREADS / 32][1][ROWS][PAD];
  unit<1, TAUS, SUMS>(EXP_NAMES, part[threadIdx.x >> 5]);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exp_sums_shared(EXP_ARGUMENTS) {
  __shared__ __align__(16) T part[THREADS / 32][SHARED][ROWS][PAD];
  unit<SHARED, TAUS, SUMS>(EXP_NAMES, part[threadIdx.x >> 5]);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exp_map(EXP_ARGUMENTS) {
  unit<1, TAUS, MAP>(EXP_NAMES, nullptr);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exp_map_shared(EXP_ARGUMENTS) {
  unit<SHARED, TAUS, MAP>(EXP_NAMES, nullptr);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exp_both(EXP_ARGUMENTS) {
  __shared__ __align__(16) T part[THREADS / 32][1][ROWS][PAD];
  unit<1, TAUS, BOTH>(EXP_NAMES, part[threadIdx.x >> 5]);
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) exp_both_shared(EXP_ARGUMENTS) {
  __shared__ __align__(16) T part[THREADS / 32][SHARED][ROWS][PAD];
  unit<SHARED, TAUS, BOTH>(EXP_NAMES, part[threadIdx.x >> 5]);
}

// A block finds the cell of the best value of a template: among 16 rows and s.width columns, summed anew.
extern "C" __global__ void __launch_bounds__(1024) exp_best(const Quad* rows, const int* length, const T* weights,
                                                            T bound, Shape s, int together, const Slot* slots,
                                                            const int* flags, Answer* answers) {
  __shared__ Gather each[MOST_WARPS];
  __shared__ Gather all;
  const int t = blockIdx.x, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  gather(slots + (size_t)t * s.slots, s.slots, each, all);
  const Quad* x = rows + (size_t)(t / together) * s.stored * (together + 1);
  const int data = 1 + t % together;
  T best = NONE;
  unsigned row = NOWHERE, column = NOWHERE;
  if (all.row != NOWHERE)
    for (int i = threadIdx.x >> 5; i < ROWS * s.width; i += warps) {
      const int c = (int)all.row + i / s.width, n = (int)all.column + i % s.width * s.stride;
      if (c < s.low || c >= s.high || n < s.skip || n >= s.columns) continue;
      const int end = min(s.n, c + length[n]);
      const T rate = weights[n];
      Window w;
      w.A = w.B = w.C = 0;
      w.S = zero();
      const int from = (c & ~31) + lane;
#pragma unroll 4
      for (int b = from < c ? from + 32 : from; b < end; b += 32) {
        const Quad* p = x + (size_t)b * (together + 1);
        const Quad q = p[0];
        const T v = power_of_two(-rate * (T)(b - c)), v2 = v * v;
        w.A = fma(v2, q.x, w.A);
        w.B = fma(v2, q.y, w.B);
        w.C = fma(v2, q.z, w.C);
        weigh(w.S, v, p[data]);
      }
      reduce(w);
      const T F = fstat(cell_of(w.A, w.B, w.C, bound, (T)0, FALLBACK), w.S);
      if (before(F, c - s.row0, n, best, row, column)) {
        best = F;
        row = c - s.row0;
        column = n;
      }
    }
  __syncthreads();
  answer(answers + t, all, best, row, column, s.columns, flags ? (unsigned)flags[t] : 0u, each);
}

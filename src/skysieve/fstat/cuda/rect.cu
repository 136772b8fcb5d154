// Rectangular windows on every bin: running sums from each start, never a subtraction.
//
// Layout: a lane for R neighbouring starts and K templates of one point of the sky, which share A, B, C and their
//   inverse.  A warp moves the end of its windows through the data, so that the bin that enters is one broadcast load
//   for 32 R starts.  Windows past the end of the data equal the last one; they are counted, not computed.  The first
//   starts take longest, so blocks of all templates begin with them (blockIdx.y).  The sums over the starts of one tau
//   are passed from start to start, with one addition per cell and a shuffle for R of them.  A map goes through a tile
//   of shared memory, so that rows are written in whole lines.
// Cost: per cell 4 operations (sums) + 8 (F) + 2 (exponential) + 1 (maximum), 17 / K shared ones, (K + 1) / (R K)
//   loads.
// Limit: instruction issue.
// Data are multiplied by sqrt(log2 e) if no map is wanted, so that the sums need 2^F.
// The best cell is known up to a block of 8 ends and R starts, in which rect_best finds it.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double -DSHARED=2
// budget: f32 kernel=rect_lean regs<=88 smem<=0
// budget: f32 kernel=rect_lean_shared regs<=152 smem<=0
// budget: f32 kernel=rect_sums_shared regs<=200 smem<=1024
// budget: f32 kernel=rect_map regs<=104 smem<=16896
// budget: f32 kernel=rect_best spills<=32
#include "common.cuh"

#ifndef SHARED
#define SHARED 4  // templates of a thread where they share their antenna factors
#endif
#ifndef STARTS
#define STARTS 2  // rows of a lane
#endif
#ifndef WARPS
#define WARPS 2
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#define ENDS 8
#define TILE 32
#define RING 64
enum { LEAN, SUMS, MAP, BOTH };  // sums over rows and columns, the map, both

template <int K, int R, int MODE>
struct March {
  static constexpr bool KEEP = MODE >= MAP, EACH = MODE == SUMS || MODE == BOTH;
  const Shape& s;
  const Quad* mine;                                     // rows of this group
  int t0, lane, begin, first0;                          // first bin of the warp's first row, of this lane's
  T base, plain, fallback, bound, inner, *column_sums;  // inner: 0 for the first lane, 1 for the others
  T (*tile)[RING + 1];                                  // the last 64 ends of each start
  T (*done)[TILE];
  T A[R], B[R], C[R], most[K], sum[K][EACH ? R : 1], flow[EACH ? K : 1][R];
  Quad S[K][R];
  int lost[R];

  __device__ __forceinline__ March(const Shape& shape) : s(shape) {}
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int k = 0; k < K; k++) {
      most[k] = NONE;
#pragma unroll
      for (int r = 0; r < R; r++) {
        S[k][r] = zero();
        if (EACH || r == 0) sum[k][r] = 0;
        if (EACH) flow[k][r] = 0;
      }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      A[r] = B[r] = C[r] = 0;
      lost[r] = 0;
    }
  }

  // Computes the windows that end with bin e.  SLOW: some have not begun, or are in columns that are not wanted.
  template <bool SLOW>
  __device__ __forceinline__ void step(int e, T (&full)[EACH ? K : 1]) {
    const Quad* const p = mine + (size_t)e * (K + 1);
    const Quad x = p[0];
    Quad y[K];
    T v[EACH ? K : 1][R];
#pragma unroll
    for (int k = 0; k < K; k++) y[k] = p[1 + k];
#pragma unroll
    for (int r = 0; r < R; r++) {
      const int first = first0 + r, n = e - first + 1 - s.length0;
      if (!SLOW || e >= first) {
        A[r] += x.x;
        B[r] += x.y;
        C[r] += x.z;
#pragma unroll
        for (int k = 0; k < K; k++) add(S[k][r], y[k]);
      }
      const bool valid = !SLOW || (n >= s.skip && n < s.columns && first < s.high);
      const Cell cell = cell_of(A[r], B[r], C[r], bound, plain, valid ? fallback : NONE);
      lost[r] += valid && !cell.good;
#pragma unroll
      for (int k = 0; k < K; k++) {
        const T F = fstat(cell, S[k][r]);
        if (valid) most[k] = fmax(most[k], F);
        T q = power_of_two(KEEP ? fma(F, LOG2E, -base) : F);
        if (SLOW && !valid) q = 0;
        sum[k][EACH ? r : 0] += q;
        if (EACH) v[k][r] = q;
        if (KEEP) tile[lane][e & (RING - 1)] = F;
      }
    }
    if (EACH) {  // the sum of a column goes from start to start
#pragma unroll
      for (int k = 0; k < K; k++) {
        const T up = __shfl_up_sync(FULL, flow[k][R - 1], 1);
#pragma unroll
        for (int r = R - 1; r > 0; r--) flow[k][r] = flow[k][r - 1] + v[k][r];
        flow[k][0] = fma(up, inner, v[k][0]);
        full[k] = flow[k][R - 1];
      }
    }
  }

  // The sums of columns that this warp has completed wait in `done`, each at its end's place in a tile, until end e.
  __device__ __forceinline__ void flush(int e) {
    __syncwarp();
    const int at = (e & ~(TILE - 1)) + lane, n = at - (begin + 32 * R - 1) + 1 - s.length0;
    if (at <= e && at >= begin && n >= s.skip && n < s.columns)
      for (int k = 0; k < K; k++)
        if (t0 + k < s.templates) atomicAdd(column_sums + (size_t)(t0 + k) * s.columns + n, done[k][lane]);
    __syncwarp();
  }
  // Writes the columns of the map that the tile holds and that are not written yet, until end e: whole lines,
  // except for the last.
  __device__ __forceinline__ void write(int e, bool last, T* out) {
    __syncwarp();
#pragma unroll 1
    for (int row = 0; row < 32; row++) {
      const int first = begin + row, newest = e - first + 1 - s.length0;  // column of this end
      const int before = (newest - TILE + 1) & ~31, until = last ? newest + 1 : (newest + 1) & ~31;
      for (int n = before + lane; n < until; n += 32)
        if (first < s.high && n >= s.skip && n < s.columns)
          out[(size_t)row * s.pitch + n] = tile[row][(n + first - 1 + s.length0) & (RING - 1)];
    }
    __syncwarp();
  }
};

template <int K, int R, int MODE>
__device__ __forceinline__ void unit(const Quad* rows, const T* bases, T bound, const Shape& s, T* map, T* row_sums,
                                     T* column_sums, T* after, Slot* slots, T (*tile)[RING + 1], T (*done)[TILE]) {
  constexpr bool KEEP = March<K, R, MODE>::KEEP, EACH = March<K, R, MODE>::EACH;
  const int lane = threadIdx.x & 31, warp = blockIdx.y * WARPS + (threadIdx.x >> 5), g = blockIdx.x, t0 = g * K;
  const int begin = s.low + warp * 32 * R, first0 = begin + lane * R;
  if (begin >= s.high) {
    for (int k = 0; k < K; k++)
      if (t0 + k < s.templates) put(slots + (size_t)(t0 + k) * s.slots + warp, NONE, 0, 0, (T)0, 0);
    return;
  }
  March<K, R, MODE> m(s);
  m.mine = rows + (size_t)g * s.stored * (K + 1);
  m.t0 = t0;
  m.lane = lane;
  m.begin = begin;
  m.first0 = first0;
  m.column_sums = column_sums;
  m.tile = tile;
  m.done = done;
  m.base = bases[t0];
  m.bound = bound;
  m.inner = (T)(lane ? 1 : 0);
  m.plain = KEEP ? (T)0 : -m.base;
  m.fallback = KEEP ? FALLBACK : fma(FALLBACK, LOG2E, -m.base);
  m.clear();
  T top[K];
  int where[K];
#pragma unroll
  for (int k = 0; k < K; k++) {
    top[k] = NONE;
    where[k] = 0;
  }
  T* const out = KEEP ? map + ((size_t)t0 * s.rows + (begin - s.row0)) * s.pitch : nullptr;
  const int end = min(s.n, begin + 32 * R - 1 + s.length0 + s.columns - 1);  // the last window of the last row
  const int settled = begin + 32 * R - 1 + s.length0 - 1 + s.skip;  // from here on every row has a column wanted
  const int until = min(end, begin + s.length0 - 1 + s.columns);    // until here
  constexpr int UNIT = KEEP || EACH ? TILE : ENDS;
  int from = (settled + UNIT - 1) / UNIT * UNIT, to = until / UNIT * UNIT;
  if (KEEP) from += 2 * TILE;  // lines before this one are whole and wanted
  if (begin + 32 * R > s.high || from >= to || (KEEP && s.skip > TILE)) from = to = end;

  for (int e = begin; e < end;) {
    int size = 1;
    if (e >= from && e < to) {
      size = ENDS;
      fetch(m.mine + (size_t)min(e + ENDS, s.stored - ENDS) * (K + 1), ENDS * (K + 1) * (int)sizeof(Quad));
#pragma unroll 1
      for (int i = 0; i < ENDS; i += 4) {
        T full[4][EACH ? K : 1];
#pragma unroll
        for (int h = 0; h < 4; h++) m.template step<false>(e + i + h, full[h]);
        if (EACH && lane == 31) {  // columns that leave the last start are complete for these starts
#pragma unroll
          for (int k = 0; k < (EACH ? K : 1); k++) {
            Quad q;
            q.x = full[0][k];
            q.y = full[1][k];
            q.z = full[2][k];
            q.w = full[3][k];
            *(Quad*)&m.done[k][(e + i) & (TILE - 1)] = q;
          }
        }
      }
    } else {
      T full[EACH ? K : 1];
      m.template step<true>(e, full);
      if (EACH && lane == 31) {
#pragma unroll
        for (int k = 0; k < (EACH ? K : 1); k++) m.done[k][e & (TILE - 1)] = full[k];
      }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {  // the block of ends with the highest value, of equal ones the first in the map
      if (m.most[k] > top[k]) {
        top[k] = m.most[k];
        where[k] = e / ENDS;
      }
      m.most[k] = NONE;
    }
    e += size;
    if ((KEEP || EACH) && ((e & (TILE - 1)) == 0 || e == end)) {
      if (EACH) m.flush(e - 1);
      if (KEEP && (size == 1 || e == end)) m.write(e - 1, e == end, out);
      if (KEEP && size > 1 && e < end) {  // one line of each row has become whole, d columns ago
        __syncwarp();
        const int shift = begin - 1 + s.length0;
        T* to_row = out + (e - shift - TILE + lane);
#pragma unroll 8
        for (int row = 0; row < 32; row++) {
          const int d = -(shift + row) & (TILE - 1);
          to_row[-d] = tile[row][(e - TILE - d + lane) & (RING - 1)];
          to_row += s.pitch - 1;
        }
        __syncwarp();
      }
    }
  }

  if (EACH) {  // columns that were not complete when the data ended
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int r = 0; r < R; r++) {
        const int n = end - (first0 + r) - s.length0;
        if (lane * R + r < 32 * R - 1 && n >= s.skip && n < s.columns && t0 + k < s.templates)
          atomicAdd(column_sums + (size_t)(t0 + k) * s.columns + n, m.flow[k][r]);
      }
  }
  int missed = 0;
  T last = 0;
#pragma unroll
  for (int r = 0; r < R; r++) {  // windows past the end of the data
    const int first = first0 + r, row = first - s.row0;
    const int next = max(end - first - s.length0 + 1, s.skip);
    const bool here = first < s.high;
    const int more = here ? max(0, s.columns - next) : 0;
    const Cell cell = cell_of(m.A[r], m.B[r], m.C[r], bound, m.plain, m.fallback);
    missed += m.lost[r] + (cell.good ? 0 : more);
#pragma unroll
    for (int k = 0; k < K; k++) {
      if (more) {
        const T F = fstat(cell, m.S[k][r]), q = power_of_two(KEEP ? fma(F, LOG2E, -m.base) : F);
        last = F;
        m.sum[k][EACH ? r : 0] += (T)more * q;
        if (F > top[k]) {
          top[k] = F;
          where[k] = (end - 1) / ENDS;
        }
        if (EACH && t0 + k < s.templates) atomicAdd(after + (size_t)(t0 + k) * s.columns + next, q);
      }
      if (EACH && here && t0 + k < s.templates) row_sums[(size_t)(t0 + k) * s.rows + row] = m.sum[k][EACH ? r : 0];
    }
  }
#pragma unroll
  for (int k = 0; k < K; k++) {
    T total = m.sum[k][0];
    if (EACH) {
#pragma unroll
      for (int r = 1; r < R; r++) total += m.sum[k][EACH ? r : 0];
    }
    if (t0 + k < s.templates)
      put(slots + (size_t)(t0 + k) * s.slots + warp, top[k], (unsigned)first0, (unsigned)(where[k] * ENDS), total,
          missed);
  }
  if (KEEP)
    for (int row = 0; row < 32; row++) {
      const int first = begin + row, next = max(end - first - s.length0 + 1, s.skip);
      const T F = __shfl_sync(FULL, last, row);
      if (first < s.high)
        for (int c = (next & ~31) + lane; c < s.columns; c += 32)
          if (c >= next) out[(size_t)row * s.pitch + c] = F;
    }
}

#define RECT_ARGUMENTS \
  const Quad *rows, const T *bases, T bound, Shape s, T *map, T *row_sums, T *column_sums, T *after, Slot *slots
#define RECT_NAMES rows, bases, bound, s, map, row_sums, column_sums, after, slots

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) rect_small(RECT_ARGUMENTS) {
  unit<1, 1, LEAN>(RECT_NAMES, nullptr, nullptr);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) rect_lean(RECT_ARGUMENTS) {
  unit<1, STARTS, LEAN>(RECT_NAMES, nullptr, nullptr);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) rect_lean_shared(RECT_ARGUMENTS) {
  unit<SHARED, STARTS, LEAN>(RECT_NAMES, nullptr, nullptr);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) rect_sums(RECT_ARGUMENTS) {
  __shared__ __align__(16) T done[WARPS][1][TILE];
  unit<1, STARTS, SUMS>(RECT_NAMES, nullptr, done[threadIdx.x >> 5]);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) rect_sums_shared(RECT_ARGUMENTS) {
  __shared__ __align__(16) T done[WARPS][SHARED][TILE];
  unit<SHARED, STARTS, SUMS>(RECT_NAMES, nullptr, done[threadIdx.x >> 5]);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) rect_map(RECT_ARGUMENTS) {
  __shared__ T tile[WARPS][32][RING + 1];
  unit<1, 1, MAP>(RECT_NAMES, tile[threadIdx.x >> 5], nullptr);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) rect_both(RECT_ARGUMENTS) {
  __shared__ __align__(16) T done[WARPS][1][TILE];
  __shared__ T tile[WARPS][32][RING + 1];
  unit<1, 1, BOTH>(RECT_NAMES, tile[threadIdx.x >> 5], done[threadIdx.x >> 5]);
}

// To the sum of every column all those that windows past the end of the data add from an earlier one on; by the block.
__device__ __forceinline__ void add_after(T* columns, const T* after, int count, double* totals) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, each = (count + blockDim.x - 1) / blockDim.x;
  const int from = threadIdx.x * each, to = min(count, from + each);
  double mine = 0;
  for (int i = from; i < to; i++) mine += (double)after[i];
  double upto = mine;
  for (int k = 1; k < 32; k <<= 1) {
    const double other = __shfl_up_sync(FULL, upto, k);
    if (lane >= k) upto += other;
  }
  if (lane == 31) totals[warp] = upto;
  __syncthreads();
  double sum = upto - mine;
  for (int w = 0; w < warp; w++) sum += totals[w];
  for (int i = from; i < to; i++) {
    sum += (double)after[i];
    columns[i] = (T)((double)columns[i] + sum);
  }
}

// A block finds the cell of the best value of a template: among s.width starts and 8 ends, summed anew.
extern "C" __global__ void __launch_bounds__(1024) rect_best(const Quad* rows, T bound, Shape s, int together,
                                                             const Slot* slots, T* column_sums, const T* after,
                                                             Answer* answers) {
  __shared__ Gather each[MOST_WARPS];
  __shared__ Gather all;
  __shared__ double totals[MOST_WARPS];
  if (s.marginals)
    add_after(column_sums + (size_t)blockIdx.x * s.columns, after + (size_t)blockIdx.x * s.columns, s.columns, totals);
  const int t = blockIdx.x, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  gather(slots + (size_t)t * s.slots, s.slots, each, all);
  const Quad* x = rows + (size_t)(t / together) * s.stored * (together + 1);
  const int data = 1 + t % together;
  T best = NONE;
  unsigned row = NOWHERE, column = NOWHERE;
  if (all.row != NOWHERE)
    for (int i = threadIdx.x >> 5; i < (ENDS + 1) * s.width; i += warps) {
      const int first = (int)all.row + i % s.width, at = i / s.width;
      // the last of them: the first of the windows past the end of the data
      const int last = at < ENDS ? (int)all.column + at : s.n - 1;
      const int n = at < ENDS ? last - first + 1 - s.length0 : max(s.n - first - s.length0 + 1, s.skip);
      if (first >= s.high || last >= s.n || n < s.skip || n >= s.columns) continue;
      Window w;
      w.A = w.B = w.C = 0;
      w.S = zero();
      const int from = (first & ~31) + lane;
#pragma unroll 4
      for (int b = from < first ? from + 32 : from; b <= last; b += 32) {
        const Quad* p = x + (size_t)b * (together + 1);
        const Quad q = p[0];
        w.A += q.x;
        w.B += q.y;
        w.C += q.z;
        add(w.S, p[data]);
      }
      reduce(w);
      const T F = fstat(cell_of(w.A, w.B, w.C, bound, (T)0, FALLBACK), w.S);
      if (before(F, first - s.row0, n, best, row, column)) {
        best = F;
        row = first - s.row0;
        column = n;
      }
    }
  __syncthreads();
  answer(answers + t, all, best, row, column, s.columns, 0u, each);
}

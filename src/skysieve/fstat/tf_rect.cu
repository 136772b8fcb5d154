// Rectangular windows: running sums from each start, never a subtraction; in float32 the order of LALPulsar's sums.
//
// rect_unit: starts at every bin, lengths that rise by one bin. A lane is one start (R of them, 32 apart) and K templates; the
// warp marches the end of its windows through the data, so that the bin that enters is one broadcast load for 32 R starts.
// All windows past the end of the data are equal to the last one and are counted, not computed. A cell: 4 (sums) + 9 (F) +
// 3 (exponential) + 2 (maximum) operations and about 13 / K shared ones; limit: instruction issue. Sums over the starts of one
// tau travel from lane to lane with it, one shuffle a cell. The map goes through a tile of shared memory, so that rows are
// written in whole lines.
// rect_any: any starts and lengths, one start a thread, columns in step.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// budget: f32 kernel=rect_unit4 regs<=128 smem<=0
// budget: f32 kernel=rect_unit1 regs<=96 smem<=0
// budget: f64 kernel=rect_any regs<=96 smem<=0 spills<=16
#include "tf_common.cuh"

#define WARPS 4
#define TILE 32

// MODE 0: maximum and sums; 1: and the sums of each column; 2: and the map.
template <int K, int R, int MODE>
__device__ __forceinline__ void unit(const Quad* antenna, const Quad* data, const T* bases, T bound, const Shape& s, T* map,
                                     T* row_sums, T* column_sums, T* after, T* best_F, unsigned* best_cell,
                                     unsigned long long* missed, T (*tile)[TILE + 1]) {
  const int lane = threadIdx.x & 31, warp = blockIdx.x * WARPS + (threadIdx.x >> 5), t0 = blockIdx.y * K;
  const int begin = s.low + warp * 32 * R;      // first bin of the warp's first row
  if (begin >= s.high) return;
  const Quad* x = antenna + (s.shared ? (size_t)0 : (size_t)t0) * s.n;
  const Quad* y[K];
  T top[K][R], sum[K][R], base[K], flow[K], kept[K][R];
  int where[K][R], lost[R];
  Quad S[K][R];
  T A[R], B[R], C[R];
#pragma unroll
  for (int k = 0; k < K; k++) {
    const int t = min(t0 + k, s.templates - 1);
    y[k] = data + (size_t)t * s.n; base[k] = bases[t]; flow[k] = 0;
#pragma unroll
    for (int r = 0; r < R; r++) { S[k][r] = zero(); top[k][r] = NONE; sum[k][r] = 0; where[k][r] = 0; kept[k][r] = 0; }
  }
#pragma unroll
  for (int r = 0; r < R; r++) { A[r] = B[r] = C[r] = 0; lost[r] = 0; }
  const int end = min(s.n, begin + 32 * R - 1 + s.length0 + s.columns - 1);   // the last window of the last row
  for (int e = begin; e < end; e++) {
    const Quad q = x[e];
    Quad v[K];
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = y[k][e];
    const bool entering = e < begin + 32 * R;
#pragma unroll
    for (int r = 0; r < R; r++) {
      const int first = begin + lane + 32 * r, n = e - first + 1 - s.length0;
      if (!entering || e >= first) {
        A[r] += q.x; B[r] += q.y; C[r] += q.z;
#pragma unroll
        for (int k = 0; k < K; k++) add(S[k][r], v[k]);
      }
      const bool mine = n >= s.skip && n < s.columns && first < s.high;
      const Cell cell = cell_of(A[r], B[r], C[r], bound);
      lost[r] += mine && cell.base != (T)0;
#pragma unroll
      for (int k = 0; k < K; k++) {
        const T F = fstat(cell, S[k][r]);
        T g = 0;
        if (mine) {
          g = weight_of(F, base[k]);
          sum[k][r] += g;
          if (F > top[k][r]) { top[k][r] = F; where[k][r] = n; }
        }
        if (MODE == 2) tile[lane][e & (TILE - 1)] = F;
        if (MODE >= 1 && s.marginals) {          // the sum of column n leaves lane 31 complete for these 32 rows
          flow[k] = __shfl_up_sync(FULL, flow[k], 1);
          flow[k] = lane ? flow[k] + g : g;
          if (lane == 31 && n >= s.skip && n < s.columns && t0 + k < s.templates)
            atomicAdd(column_sums + (size_t)(t0 + k) * s.columns + n, flow[k]);
        }
      }
    }
    if (MODE == 2 && ((e & (TILE - 1)) == TILE - 1 || e == end - 1)) {
      __syncwarp();
      for (int row = 0; row < 32; row++) {
        const int first = begin + row, at = (e & ~(TILE - 1)) + lane, n = at - first + 1 - s.length0;
        if (first < s.high && at <= e && at >= first && n >= s.skip && n < s.columns)
          map[((size_t)t0 * s.rows + (first - s.row0)) * s.columns + n] = tile[row][lane];
      }
      __syncwarp();
    }
  }
  if (MODE >= 1 && s.marginals)                   // columns that were still on their way when the data ended
#pragma unroll
    for (int k = 0; k < K; k++) {
      const int n = end - 1 - (begin + lane) + 1 - s.length0;
      if (lane < 31 && n >= s.skip && n < s.columns && t0 + k < s.templates)
        atomicAdd(column_sums + (size_t)(t0 + k) * s.columns + n, flow[k]);
    }
  T high[K];
  unsigned at[K];
#pragma unroll
  for (int k = 0; k < K; k++) { high[k] = NONE; at[k] = 0xffffffffu; }
#pragma unroll
  for (int r = 0; r < R; r++) {
    const int first = begin + lane + 32 * r, row = first - s.row0;
    const int next = max(end - first - s.length0 + 1, s.skip);   // first column that was not computed: past the data all are equal
    const bool mine = first < s.high;
    const int more = mine ? max(0, s.columns - next) : 0;
    const Cell cell = cell_of(A[r], B[r], C[r], bound);
#pragma unroll
    for (int k = 0; k < K; k++) {
      const int t = min(t0 + k, s.templates - 1);
      const bool here = mine && t0 + k < s.templates;
      if (more) {
        const T F = fstat(cell, S[k][r]), g = weight_of(F, base[k]);
        kept[k][r] = F;
        sum[k][r] += more * g;
        if (F > top[k][r]) { top[k][r] = F; where[k][r] = next; }
        if (here) atomicAdd(after + (size_t)t * s.columns + next, g);
      }
      if (here) row_sums[(size_t)t * s.rows + row] = sum[k][r];
      const unsigned here_is = (unsigned)row * (unsigned)s.columns + (unsigned)where[k][r];
      if (here && (top[k][r] > high[k] || (top[k][r] == high[k] && here_is < at[k]))) { high[k] = top[k][r]; at[k] = here_is; }
      warp_count(missed + t, here ? lost[r] + (cell.base != (T)0 ? more : 0) : 0);
    }
  }
#pragma unroll
  for (int k = 0; k < K; k++)
    if (t0 + k < s.templates) warp_best(best_F, best_cell, slot_of(t0 + k), high[k], at[k], high[k] > NONE);
  if (MODE == 2)
    for (int row = 0; row < 32; row++) {
      const int first = begin + row, next = max(end - first - s.length0 + 1, s.skip);
      const T F = __shfl_sync(FULL, kept[0][0], row);
      if (first < s.high)
        for (int c = next + lane; c < s.columns; c += 32) map[((size_t)t0 * s.rows + (first - s.row0)) * s.columns + c] = F;
    }
}

#define RECT_ARGUMENTS                                                                                                    \
  const Quad *antenna, const Quad *data, const T *bases, T bound, Shape s, T *map, T *row_sums, T *column_sums, T *after, \
      T *best_F, unsigned *best_cell, unsigned long long *missed
#define RECT_NAMES antenna, data, bases, bound, s, map, row_sums, column_sums, after, best_F, best_cell, missed

extern "C" __global__ void __launch_bounds__(128) rect_unit1(RECT_ARGUMENTS) { unit<1, 4, 0>(RECT_NAMES, nullptr); }
extern "C" __global__ void __launch_bounds__(128) rect_unit4(RECT_ARGUMENTS) { unit<4, 2, 0>(RECT_NAMES, nullptr); }
extern "C" __global__ void __launch_bounds__(128) rect_unit1_columns(RECT_ARGUMENTS) { unit<1, 1, 1>(RECT_NAMES, nullptr); }
extern "C" __global__ void __launch_bounds__(128) rect_unit4_columns(RECT_ARGUMENTS) { unit<4, 1, 1>(RECT_NAMES, nullptr); }
extern "C" __global__ void __launch_bounds__(128) rect_unit1_map(RECT_ARGUMENTS) {
  __shared__ T tile[WARPS][32][TILE + 1];
  unit<1, 1, 2>(RECT_NAMES, tile[threadIdx.x >> 5]);
}

// length[group][n], rising; rows as in exp_any but in any order; s.low..s.high are places in the list of rows.
extern "C" __global__ void __launch_bounds__(128)
rect_any(const Quad* antenna, const Quad* data, const int* length, const T* bases, T bound, Shape s, const int* row_of,
         const int* first_of, const int* group_of, const int* skip, T* map, T* row_sums, T* column_sums,
         T* best_F, unsigned* best_cell, unsigned long long* missed) {
  const int at = s.low + blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
  const bool active = at < s.high;
  const int i = min(at, s.high - 1), row = row_of[i], first = first_of[i], group = group_of[i];
  const Quad* x = antenna + (s.shared ? (size_t)0 : (size_t)t) * s.n + first;
  const Quad* y = data + (size_t)t * s.n + first;
  const int* wanted = length + (size_t)group * s.columns;
  const int most = s.n - first, from = skip[group];
  const T base = bases[t];
  T A = 0, B = 0, C = 0, top = NONE, sum = 0;
  Quad S = zero();
  int done = 0, where = 0, lost = 0;
  for (int n = 0; n < s.columns; n++) {
    const int until = min(wanted[n], most);
    for (; done < until; done++) {
      const Quad q = x[done];
      A += q.x; B += q.y; C += q.z;
      add(S, y[done]);
    }
    const bool mine = active && n >= from;
    const Cell cell = cell_of(A, B, C, bound);
    const T F = fstat(cell, S), e = mine ? weight_of(F, base) : (T)0;
    if (mine) {
      if (F > top) { top = F; where = n; }
      lost += cell.base != (T)0;
      if (map) map[((size_t)t * s.rows + row) * s.columns + n] = F;
    }
    sum += e;
    if (s.marginals) {
      const T part = warp_sum(e);
      if ((threadIdx.x & 31) == 0) atomicAdd(column_sums + (size_t)t * s.columns + n, part);
    }
  }
  const bool any = top > NONE;
  if (any) row_sums[(size_t)t * s.rows + row] = sum;
  warp_best(best_F, best_cell, slot_of(t), top, (unsigned)row * (unsigned)s.columns + (unsigned)where, any);
  warp_count(missed + t, lost);
}

// Windows of any shape: sums bin by bin, or from correlations made by Fourier transforms; of any number of detectors.
//
// direct: sums bin by bin.
//   Layout: a thread for 2 starts and 4 taus at distances of 32.  The weights of a tile of taus, weights[j][tau], zero
//   past the end of each window, are read in whole lines, atoms as broadcasts.
//   Cost: per cell and bin 7 operations and an eighth of 12 loads and products.
//   Limit: instruction issue; the weights (4 bytes per tau and bin for 2 starts) come from the first and second cache.
// cells: F from sums that exist already, `sums[tau][bank][sum][bin]`, float64.
//   Layout: a thread for one start; it loops over a few taus.
//   Cost: 56 bytes per cell.
//   Limit: memory.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// build: lines -DREAL=float -DBANKS=3
// budget: f32 kernel=direct regs<=168 smem<=0
// budget: f32 kernel=cells regs<=96 smem<=0
#include "common.cuh"
#include "lines.cuh"

#ifndef BANKS
#define BANKS 1  // all detectors together, and each
#endif
#define TAUS 4
#define STARTS 2
#define WARPS 4
#define COLUMNS 8  // of a thread of `cells`

struct Tile {
  int column0, width, slot0, each, skip;
};  // columns of the map; slots before; rows of a warp

#define OUT_ARGUMENTS                                                                                                  \
  const int *length, const T *bases, T bound, Lines lines, Shape s, Tile tile, const int *row_of, const int *first_of, \
      T *map, T *row_sums, T *column_sums, Slot *slots, Slot *line_slots

// length: of the columns of the map, of this group; s.low..s.high: the group's places in the list of rows, rising.
extern "C" __global__ void __launch_bounds__(32 * WARPS) direct(const Quad* rows, const T* weights, OUT_ARGUMENTS) {
  const int lane = threadIdx.x & 31, t = blockIdx.y, place = blockIdx.x * 32 * TAUS + lane;
  const int from = s.low + (blockIdx.z * WARPS + (int)(threadIdx.x >> 5)) * tile.each,
            to = min(s.high, from + tile.each);
  const int longest = length[tile.column0 + min((int)(blockIdx.x + 1) * 32 * TAUS, tile.width) - 1];
  const size_t bank = (size_t)s.templates * 2 * s.stored;
  const Quad* const mine = rows + (size_t)t * 2 * s.stored;
  const T base = bases[t];
  int at[TAUS];
  bool here[TAUS];
  T column[TAUS];
#pragma unroll
  for (int j = 0; j < TAUS; j++) {
    at[j] = min(place + 32 * j, tile.width - 1);
    here[j] = place + 32 * j < tile.width && tile.column0 + place + 32 * j >= tile.skip;
    column[j] = 0;
  }
  Found<BANKS - 1> found;
  found.begin();
  for (int i = from; i < to; i += STARTS) {
    int first[STARTS];
#pragma unroll
    for (int r = 0; r < STARTS; r++) first[r] = first_of[min(i + r, to - 1)];
    const int limit = min(longest, s.n - first[0]);
    T F[STARTS][TAUS];
    bool good[STARTS][TAUS];
    Against against[STARTS][TAUS];
#pragma unroll
    for (int b = 0; b < BANKS; b++) {
      Sums sums[STARTS][TAUS];
#pragma unroll
      for (int r = 0; r < STARTS; r++)
#pragma unroll
        for (int j = 0; j < TAUS; j++) sums[r][j].clear();
      const Quad* const x = mine + b * bank;
#pragma unroll 2
      for (int d = 0; d < limit; d++) {
        T w[TAUS], w2[TAUS];
#pragma unroll
        for (int j = 0; j < TAUS; j++) {
          w[j] = weights[(size_t)d * tile.width + at[j]];
          w2[j] = w[j] * w[j];
        }
#pragma unroll
        for (int r = 0; r < STARTS; r++) {
          const int c = min(first[r] + d, s.n);  // bin n is empty
          const Quad p = x[2 * (size_t)c], y = x[2 * (size_t)c + 1];
#pragma unroll
          for (int j = 0; j < TAUS; j++) {
            Sums& o = sums[r][j];
            o.A = fma(w2[j], p.x, o.A);
            o.B = fma(w2[j], p.y, o.B);
            o.C = fma(w2[j], p.z, o.C);
            weigh(o.S, w[j], y);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < STARTS; r++)
#pragma unroll
        for (int j = 0; j < TAUS; j++) {
          const Sums& q = sums[r][j];
          const Sums o = normalised(q.A, q.B, q.C, q.S.x, q.S.y, q.S.z, q.S.w);
          const Cell cell = cell_of(o, bound);
          const T value = fstat(cell, o.S);
          if (b == 0) {
            F[r][j] = value;
            good[r][j] = cell.good;
            against[r][j].begin(lines.gauss);
          } else
            against[r][j].take(value, lines.line[b - 1]);
        }
    }
#pragma unroll
    for (int r = 0; r < STARTS; r++) {
      if (i + r >= to) break;
      const int row = row_of[i + r];
      T part = 0;
#pragma unroll
      for (int j = 0; j < TAUS; j++) {
        const int n = tile.column0 + place + 32 * j;
        T e = 0;
        if (here[j]) {
          e = power_of_two(fma(F[r][j], LOG2E, -base));
          found.take(F[r][j], BANKS > 1 ? against[r][j].of(F[r][j]) : (T)0, good[r][j], row, n);
          if (map) map[((size_t)t * s.rows + row) * s.pitch + n] = F[r][j];
        }
        column[j] += e;
        part += e;
      }
      found.sum += part;
      if (s.marginals) {
        part = warp_sum(part);
        if (lane == 0) atomicAdd(row_sums + (size_t)t * s.rows + row, part);
      }
    }
  }
  if (s.marginals) {
#pragma unroll
    for (int j = 0; j < TAUS; j++)
      if (here[j]) atomicAdd(column_sums + (size_t)t * s.columns + tile.column0 + place + 32 * j, column[j]);
  }
  found.finish(slots, line_slots, (size_t)t * s.slots + tile.slot0 + slot_number());
}

// Of template t; sums[column of the tile][bank][7][size].
extern "C" __global__ void __launch_bounds__(32 * WARPS) cells(const Quad* rows, const double* sums, int size, int t,
                                                               OUT_ARGUMENTS) {
  const int i = s.low + blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
  const bool active = i < s.high;
  const int place = min(i, s.high - 1), row = row_of[place], first = first_of[place];
  const int from = blockIdx.y * COLUMNS, to = min(tile.width, from + COLUMNS);
  const size_t bank = (size_t)s.templates * 2 * s.stored;
  const Quad* const x = rows + (size_t)t * 2 * s.stored + 2 * (size_t)first;
  const T base = bases[t];
  Found<BANKS - 1> found;
  found.begin();
  for (int k = from; k < to; k++) {
    const int n = tile.column0 + k, L = length[n];
    T F = 0;
    bool good = false;
    Against against;
    against.begin(lines.gauss);
#pragma unroll
    for (int b = 0; b < BANKS; b++) {
      const double* const q = sums + ((size_t)k * BANKS + b) * 7 * size + first;
      Sums o;
      o.clear();
      if (x[b * bank].w < (T)L)  // else there are no data in the window, and q is a rounding residue
        o = normalised(q[0], q[size], q[2 * (size_t)size], q[3 * (size_t)size], q[4 * (size_t)size],
                       q[5 * (size_t)size], q[6 * (size_t)size]);
      const Cell cell = cell_of(o, bound);
      if (b == 0) {
        F = fstat(cell, o.S);
        good = cell.good;
      } else
        against.take(fstat(cell, o.S), lines.line[b - 1]);
    }
    T e = 0;
    if (active && n >= tile.skip) {
      e = power_of_two(fma(F, LOG2E, -base));
      found.take(F, BANKS > 1 ? against.of(F) : (T)0, good, row, n);
      if (map) map[((size_t)t * s.rows + row) * s.pitch + n] = F;
    }
    found.sum += e;
    if (s.marginals) {
      const T part = warp_sum(e);
      if (lane == 0) atomicAdd(column_sums + (size_t)t * s.columns + n, part);
    }
  }
  if (s.marginals && active) atomicAdd(row_sums + (size_t)t * s.rows + row, found.sum);
  const int number = (blockIdx.x + gridDim.x * blockIdx.y) * WARPS + (int)(threadIdx.x >> 5);
  found.finish(slots, line_slots, (size_t)t * s.slots + tile.slot0 + number);
}

// The pixel sum where all rings within the support have one length: a stencil that is the same along a ring.
//
// A thread holds PIXELS neighbouring pixels of 2 W + 1 output rings and marches over input rings: a ring is read once
// (with a window of neighbours), sums of pixels left and right are formed once for all output rings, and after each
// ring one output is done and all sums move on by one (in the multiply-adds, at no cost).  NEED lists how many
// distances each of the W + 1 differences of rings needs.
// Rows and their weights come ahead into the warp's own shared memory (cp.async where there is one).
// Bytes: the map once (segments overlap by 2 W rings) and the result; operations for the four pixels of a thread, W = 9,
// J = 6: 312 multiply-adds, 48 sums, 20 reads of weights (the same for the block, from the first-level cache).
// Limited by instructions issued.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float -DW=9 -DJ=6 -DNEED=6,5,6,5,5,4,4,3,3,1 -DSHIFTED=1
// build: f64 -DREAL=double -DW=9 -DJ=6 -DNEED=6,5,6,5,5,4,4,3,3,1 -DSHIFTED=1
// build: f32_aligned -DREAL=float -DW=4 -DJ=5 -DNEED=5,5,4,4,3 -DSHIFTED=0
// build: f64_aligned -DREAL=double -DW=4 -DJ=5 -DNEED=5,5,4,4,3 -DSHIFTED=0
// budget: f32 kernel=belt regs<=128 spills<=0 arch=90
// budget: f64 kernel=belt regs<=168 spills<=64
#include "direct/stencil.cuh"

#define PIXELS (16 / (int)sizeof(REAL))
#define HALO ((J + PIXELS - 1) / PIXELS * PIXELS)
#define WINDOW (2 * HALO + PIXELS)
#ifndef BLOCKS
#define BLOCKS (W > 10 ? 4 : SINGLE ? 8 : 5)
#endif

#define VECTORS (32 + WINDOW / PIXELS - 1)      // of a row that a warp reads
#define SLOT (VECTORS + STRIDE / PIXELS)
#define LOADS ((SLOT + 31) / 32)

constexpr int COUNT = distances_of_a_row(), STRIDE = (COUNT + PIXELS - 1) / PIXELS * PIXELS;

// One input row; with PARITY 1 its pixels are off by half a pixel, with 0 they are not.
template <int PARITY> DI void row(const Vector* x, const Vector* w, REAL scale, REAL (*acc)[PIXELS]) {
  constexpr Needs need = NEEDS;
  REAL v[WINDOW];
#pragma unroll
  for (int c = 0; c < WINDOW / PIXELS; c++) {
    Vector t = x[c];
#pragma unroll
    for (int p = 0; p < PIXELS; p++) v[PIXELS * c + p] = t.v[p] * scale;
  }
  int used = 0;
  Vector t;
#pragma unroll
  for (int e = 0; e < J; e++) {
    REAL s0[PIXELS], s1[PIXELS];
#pragma unroll
    for (int p = 0; p < PIXELS; p++) {
      s0[p] = e ? v[HALO + p + e] + v[HALO + p - e] : v[HALO + p];
      if (SHIFTED) s1[p] = PARITY ? v[HALO + p + e] + v[HALO + p - 1 - e] : v[HALO + p + 1 + e] + v[HALO + p - e];
    }
#pragma unroll
    for (int k = 0; k < TALL; k++) {
      if (e < need.of[k < W ? W - k : k - W]) {
        if (used % PIXELS == 0) t = w[used / PIXELS];
        REAL weight = t.v[used % PIXELS];
        used++;
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
          REAL s = SHIFTED && ((k - W) & 1) ? s1[p] : s0[p];
          if (e) acc[k][p] += weight * s;
          else if (k < TALL - 1) acc[k][p] = acc[k + 1][p] + weight * s;
          else acc[k][p] = weight * s;
        }
      }
    }
  }
}

// Rows low .. high - 1 are wanted of `rows` ones of n pixels, the first of which begins at `start`; weights begin with
// row low - W - 1, one more than is needed at both ends.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) belt(const REAL* __restrict__ in, REAL* __restrict__ out,
    const REAL* __restrict__ weights, const REAL* __restrict__ w_in, const REAL* __restrict__ w_out,
    int* __restrict__ flag, i64 start, int n, int rows, int low, int high, int segment, int parity) {
  __shared__ Vector buffer[THREADS / 32][SLOTS * SLOT];
  int lane = threadIdx.x % 32, j = PIXELS * (blockIdx.x * THREADS + threadIdx.x);
  Vector* slots = buffer[threadIdx.x / 32];
  int o0 = low + blockIdx.y * segment, o1 = o0 + segment < high ? o0 + segment : high;
  int at[LOADS];  // what this lane brings: pixels of the row, or weights
#pragma unroll
  for (int c = 0; c < LOADS; c++) {
    int k = 32 * c + lane, p = (j - PIXELS * lane - HALO + PIXELS * k) % n;
    at[c] = k >= VECTORS ? PIXELS * (k - VECTORS) : p < 0 ? p + n : p;
  }
  REAL acc[TALL][PIXELS];
#pragma unroll
  for (int k = 0; k < TALL; k++)
#pragma unroll
    for (int p = 0; p < PIXELS; p++) acc[k][p] = 0;
  bool bad = false;
  // two rows at a time, the first one of parity 0: it may be one before those needed, as the last may be one beyond;
  // what they add belongs to rows of other segments, and is dropped
  int i = o0 - W;
  if (SHIFTED && ((i ^ parity) & 1)) i--;
  auto bring = [&](int r, int slot) {
    if (r <= o1 + W) {
      int safe = r < 0 ? 0 : r < rows ? r : rows - 1;
      const REAL* x = in + start + (i64)safe * n;
      const REAL* w = weights + (i64)(r - low + W + 1) * STRIDE;
#pragma unroll
      for (int c = 0; c < LOADS; c++) {
        int k = 32 * c + lane;
        if (k < SLOT) fetch(slots + slot * SLOT + k, (const Vector*)((k < VECTORS ? x : w) + at[c]));
      }
    }
    fetched();
  };
#pragma unroll
  for (int k = 0; k < SLOTS - 1; k++) bring(i + k, k);
  int slot = 0;
#pragma unroll 1
  for (; i < o1 + W; i += 2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int r = i + half, o = r - W, safe = r < 0 ? 0 : r < rows ? r : rows - 1;
      wait_for<SLOTS - 2>();
      __syncwarp();
      bring(r + SLOTS - 1, slot == 0 ? SLOTS - 1 : slot - 1);
      const Vector* held = slots + slot * SLOT;
      slot = slot == SLOTS - 1 ? 0 : slot + 1;
      if (half) row<1>(held + lane, held + VECTORS, w_in[safe], acc);
      else row<0>(held + lane, held + VECTORS, w_in[safe], acc);
      if (o >= o0 && o < o1 && j < n) {
        Vector t;
        REAL scale = w_out[o];
#pragma unroll
        for (int p = 0; p < PIXELS; p++) { t.v[p] = acc[0][p] * scale; bad |= strange(t.v[p]); }
        *(Vector*)(out + start + (i64)o * n + j) = t;
      }
    }
  }
  if (bad) *flag = 1;
}

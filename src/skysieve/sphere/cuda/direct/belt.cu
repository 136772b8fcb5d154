// The pixel sum where all rings within the support have one length: a stencil that is the same along a ring.
//
// Layout: a thread computes PIXELS neighbouring pixels of 2 WIDTH + 1 output rings and marches over the input rings.
//   It reads a window of each input ring once, forms the sums of pixels to the left and right once for all output
//   rings, and finishes one output ring per input ring.  NEED lists the number of distances for each of the WIDTH + 1
//   differences of ring numbers.  Rows and weights are copied ahead into shared memory of the warp.
// Cost: the map is read once (segments overlap by 2 WIDTH rings), the result written once.  For the four pixels of a
//   thread, WIDTH = 9 and FARTHEST = 6: 312 multiply-adds, 48 sums, 20 reads of weights from the first-level cache.
// Limit: instructions issued.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float -DWIDTH=9 -DFARTHEST=6 -DNEED=6,5,6,5,5,4,4,3,3,1 -DSHIFTED=1
// build: f64 -DREAL=double -DWIDTH=9 -DFARTHEST=6 -DNEED=6,5,6,5,5,4,4,3,3,1 -DSHIFTED=1
// build: f32_aligned -DREAL=float -DWIDTH=4 -DFARTHEST=5 -DNEED=5,5,4,4,3 -DSHIFTED=0
// build: f64_aligned -DREAL=double -DWIDTH=4 -DFARTHEST=5 -DNEED=5,5,4,4,3 -DSHIFTED=0
// budget: f32 kernel=belt regs<=128 spills<=0 arch=90
// budget: f64 kernel=belt regs<=168 spills<=64
#include "direct/stencil.cuh"

#define PIXELS (16 / (int)sizeof(REAL))
#define HALO ((FARTHEST + PIXELS - 1) / PIXELS * PIXELS)
#define WINDOW (2 * HALO + PIXELS)
#ifndef BLOCKS
#define BLOCKS (WIDTH > 10 ? 4 : SINGLE ? 8 : 5)
#endif

#define VECTORS (32 + WINDOW / PIXELS - 1)  // of a row that a warp reads
#define SLOT (VECTORS + STRIDE / PIXELS)
#define LOADS ((SLOT + 31) / 32)

constexpr int COUNT = distances_of_a_row(), STRIDE = (COUNT + PIXELS - 1) / PIXELS * PIXELS;

// One input row; with PARITY 1 its pixels are off by half a pixel, with 0 they are not.
template <int PARITY>
DI void row(const Vector* x, const Vector* w, REAL scale, REAL (*acc)[PIXELS]) {
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
  for (int e = 0; e < FARTHEST; e++) {
    REAL s0[PIXELS], s1[PIXELS];
#pragma unroll
    for (int p = 0; p < PIXELS; p++) {
      s0[p] = e ? v[HALO + p + e] + v[HALO + p - e] : v[HALO + p];
      if (SHIFTED) s1[p] = PARITY ? v[HALO + p + e] + v[HALO + p - 1 - e] : v[HALO + p + 1 + e] + v[HALO + p - e];
    }
#pragma unroll
    for (int k = 0; k < TALL; k++) {
      if (e < need.of[k < WIDTH ? WIDTH - k : k - WIDTH]) {
        if (used % PIXELS == 0) t = w[used / PIXELS];
        REAL weight = t.v[used % PIXELS];
        used++;
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
          REAL s = SHIFTED && ((k - WIDTH) & 1) ? s1[p] : s0[p];
          if (e)
            acc[k][p] += weight * s;
          else if (k < TALL - 1)
            acc[k][p] = acc[k + 1][p] + weight * s;
          else
            acc[k][p] = weight * s;
        }
      }
    }
  }
}

// Rows low .. high - 1 are wanted of `rows` ones of n pixels, the first of which begins at `start`; weights begin with
// row low - WIDTH - 1, one more than is needed at both ends.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) belt(const REAL* __restrict__ in, REAL* __restrict__ out,
                                                                   const REAL* __restrict__ weights,
                                                                   const REAL* __restrict__ w_in,
                                                                   const REAL* __restrict__ w_out,
                                                                   int* __restrict__ flag, i64 start, int n, int rows,
                                                                   int low, int high, int segment, int parity) {
  __shared__ Vector buffer[THREADS / 32][SLOTS * SLOT];
  int lane = threadIdx.x % 32, j = PIXELS * (blockIdx.x * THREADS + threadIdx.x);
  Vector* slots = buffer[threadIdx.x / 32];
  int o0 = low + blockIdx.y * segment, o1 = o0 + segment < high ? o0 + segment : high;
  int at[LOADS];  // elements that this lane copies: pixels of the row, or weights
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
  // Two rows are read at a time, the first one of parity 0.  This may be one row before those needed, and the
  // last may be one row beyond; their contributions belong to rows of other segments and are dropped.
  int i = o0 - WIDTH;
  if (SHIFTED && ((i ^ parity) & 1)) i--;
  auto bring = [&](int r, int slot) {
    if (r <= o1 + WIDTH) {
      int safe = r < 0 ? 0 : r < rows ? r : rows - 1;
      const REAL* x = in + start + (i64)safe * n;
      const REAL* w = weights + (i64)(r - low + WIDTH + 1) * STRIDE;
#pragma unroll
      for (int c = 0; c < LOADS; c++) {
        int k = 32 * c + lane;
        if (k < SLOT) ptx::copy16(slots + slot * SLOT + k, (const Vector*)((k < VECTORS ? x : w) + at[c]));
      }
    }
    ptx::commit_copies();
  };
#pragma unroll
  for (int k = 0; k < SLOTS - 1; k++) bring(i + k, k);
  int slot = 0;
#pragma unroll 1
  for (; i < o1 + WIDTH; i += 2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int r = i + half, o = r - WIDTH, safe = r < 0 ? 0 : r < rows ? r : rows - 1;
      ptx::wait_copies<SLOTS - 2>();
      __syncwarp();
      bring(r + SLOTS - 1, slot == 0 ? SLOTS - 1 : slot - 1);
      const Vector* held = slots + slot * SLOT;
      slot = slot == SLOTS - 1 ? 0 : slot + 1;
      if (half)
        row<1>(held + lane, held + VECTORS, w_in[safe], acc);
      else
        row<0>(held + lane, held + VECTORS, w_in[safe], acc);
      if (o >= o0 && o < o1 && j < n) {
        Vector t;
        REAL scale = w_out[o];
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
          t.v[p] = acc[0][p] * scale;
          bad |= strange(t.v[p]);
        }
        *(Vector*)(out + start + (i64)o * n + j) = t;
      }
    }
  }
  if (bad) *flag = 1;
}

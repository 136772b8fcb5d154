// The pixel sum of Q and U where all rings within the support have one length: `direct/belt.cu` with the kernel of
// spin 2.
//
// The kernel's even part weighs sums of pixels to the left and right, its odd part differences of the other map.  With
// EXACT both have their own weights.  Otherwise the odd part is the even part times the tangent of the angle by which
// the frame rotates along the input ring (see `turning` in `direct/spin.py`): sums are rotated once for all output
// rings, which halves the operations.
// Layout: a thread computes PIXELS pixels of both maps.
// Cost: for two pixels of float32, WIDTH = 9 and FARTHEST = 6: 312 multiply-adds (624 with EXACT), 144 (96) operations
//   for the sums, 23 (39) reads of weights.
// Limit: instructions issued.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float -DWIDTH=9 -DFARTHEST=6 -DNEED=6,5,6,5,5,4,4,3,3,1 -DSHIFTED=1 -DEXACT=0
// build: f32_exact -DREAL=float -DWIDTH=9 -DFARTHEST=6 -DNEED=6,5,6,5,5,4,4,3,3,1 -DSHIFTED=1 -DEXACT=1
// build: f64_aligned -DREAL=double -DWIDTH=4 -DFARTHEST=5 -DNEED=5,5,4,4,3 -DSHIFTED=0 -DEXACT=1
// budget: f32 kernel=belt regs<=168 spills<=0 arch=90
// budget: f32_exact kernel=belt regs<=168 spills<=0 arch=90
#include "direct/stencil.cuh"

#define LINE (16 / (int)sizeof(REAL))
#define PIXELS (LINE / 2)
#define HALO ((FARTHEST + PIXELS - 1) / PIXELS * PIXELS)
#define EDGE ((FARTHEST + LINE - 1) / LINE * LINE)  // a warp's halo, in whole vectors
#define WINDOW (2 * HALO + PIXELS)
#ifndef BLOCKS
#define BLOCKS (WIDTH > 10 ? 4 : 6)
#endif

#define VECTORS ((32 * PIXELS + 2 * EDGE) / LINE)  // of a row of one map that a warp reads
#define SLOT (2 * VECTORS + STRIDE / LINE)
#define LOADS ((SLOT + 31) / 32)

constexpr int COUNT = EXACT ? 2 * distances_of_a_row() : distances_of_a_row() + 2 * FARTHEST;
constexpr int STRIDE = (COUNT + LINE - 1) / LINE * LINE;

struct Pair {
  REAL q[PIXELS], u[PIXELS];
};

// Sum and difference of the pixels `right` and `left` of the window, which begin there.
DI void both(const REAL* q, const REAL* u, int right, int left, Pair& sum, Pair& difference) {
#pragma unroll
  for (int p = 0; p < PIXELS; p++) {
    sum.q[p] = q[right + p] + q[left + p];
    difference.q[p] = q[right + p] - q[left + p];
    sum.u[p] = u[right + p] + u[left + p];
    difference.u[p] = u[right + p] - u[left + p];
  }
}
// to += i weight from
DI void turn(REAL weight, const Pair& from, Pair& to) {
#pragma unroll
  for (int p = 0; p < PIXELS; p++) {
    to.q[p] -= weight * from.u[p];
    to.u[p] += weight * from.q[p];
  }
}

// One input row; with PARITY 1 its pixels are off by half a pixel, with 0 they are not.
template <int PARITY>
DI void row(const REAL* in_q, const REAL* in_u, const Vector* w, REAL scale, Pair* acc) {
  constexpr Needs need = NEEDS;
  REAL q[WINDOW], u[WINDOW];
#pragma unroll
  for (int c = 0; c < WINDOW; c++) {
    q[c] = in_q[c] * scale;
    u[c] = in_u[c] * scale;
  }
  int used = 0;
  Vector t;
  auto next = [&]() {
    if (used % LINE == 0) t = w[used / LINE];
    return t.v[used++ % LINE];
  };
#pragma unroll
  for (int e = 0; e < FARTHEST; e++) {
    Pair sum[2], difference[2];
    if (e) {
      both(q, u, HALO + e, HALO - e, sum[0], difference[0]);
    } else {
#pragma unroll
      for (int p = 0; p < PIXELS; p++) {
        sum[0].q[p] = q[HALO + p];
        sum[0].u[p] = u[HALO + p];
      }
    }
    if (SHIFTED) both(q, u, HALO + e + 1 - PARITY, HALO - e - PARITY, sum[1], difference[1]);
    if (!EXACT) {
      REAL t0 = next(), t1 = next();
      if (e) turn(t0, difference[0], sum[0]);
      if (SHIFTED) turn(t1, difference[1], sum[1]);
    }
#pragma unroll
    for (int k = 0; k < TALL; k++) {
      if (e < need.of[k < WIDTH ? WIDTH - k : k - WIDTH]) {
        const int off = SHIFTED && ((k - WIDTH) & 1);
        REAL weight = next();
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
          if (e == 0) {
            acc[k].q[p] = weight * sum[off].q[p] + (k < TALL - 1 ? acc[k + 1].q[p] : 0);
            acc[k].u[p] = weight * sum[off].u[p] + (k < TALL - 1 ? acc[k + 1].u[p] : 0);
          } else {
            acc[k].q[p] += weight * sum[off].q[p];
            acc[k].u[p] += weight * sum[off].u[p];
          }
        }
        if (EXACT) {
          REAL odd = next();
          if (e || off) turn(odd, difference[off], acc[k]);
        }
      }
    }
  }
}

// As `belt` of `direct/belt.cu`; U follows Q by npix.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) belt(
    const REAL* __restrict__ in, REAL* __restrict__ out, const REAL* __restrict__ weights,
    const REAL* __restrict__ w_in, const REAL* __restrict__ w_out, int* __restrict__ flag, i64 start, i64 npix, int n,
    int rows, int low, int high, int segment, int parity) {
  __shared__ Vector buffer[THREADS / 32][SLOTS * SLOT];
  int lane = threadIdx.x % 32, j = PIXELS * (blockIdx.x * THREADS + threadIdx.x);
  Vector* slots = buffer[threadIdx.x / 32];
  int o0 = low + blockIdx.y * segment, o1 = o0 + segment < high ? o0 + segment : high;
  int at[LOADS];  // elements that this lane copies: pixels of the row, or weights
#pragma unroll
  for (int c = 0; c < LOADS; c++) {
    int k = 32 * c + lane, p = (j - PIXELS * lane - EDGE + LINE * (k % VECTORS)) % n;
    at[c] = k >= 2 * VECTORS ? LINE * (k - 2 * VECTORS) : p < 0 ? p + n : p;
  }
  Pair acc[TALL];
#pragma unroll
  for (int k = 0; k < TALL; k++)
#pragma unroll
    for (int p = 0; p < PIXELS; p++) acc[k].q[p] = acc[k].u[p] = 0;
  bool bad = false;
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
        const REAL* from = k < VECTORS ? x : k < 2 * VECTORS ? x + npix : w;
        if (k < SLOT) ptx::copy16(slots + slot * SLOT + k, (const Vector*)(from + at[c]));
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
      const REAL* q = (const REAL*)held + PIXELS * lane + (EDGE - HALO);
      const REAL* u = q + LINE * VECTORS;
      if (half)
        row<1>(q, u, held + 2 * VECTORS, w_in[safe], acc);
      else
        row<0>(q, u, held + 2 * VECTORS, w_in[safe], acc);
      if (o >= o0 && o < o1 && j < n) {
        REAL scale = w_out[o];
        REAL* to = out + start + (i64)o * n + j;
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
          REAL a = acc[0].q[p] * scale, b = acc[0].u[p] * scale;
          bad |= strange(a) || strange(b);
          to[p] = a;
          to[npix + p] = b;
        }
      }
    }
  }
  if (bad) *flag = 1;
}

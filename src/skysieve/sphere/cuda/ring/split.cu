// Sums over rings, mode by mode, as in `ring/band.cu`, for kernels exp(-x / (2 sigma^2)) of the squared chord x; float32,
// spin 0.
//
// k_m of rings o and i is exp(-a / (2 sigma^2) - z) I_m(z), with the squared distance a of the rings and z = sin sin / sigma^2.
// At large z this is nearly a factor of the two rings times a factor of each ring and m: with the geometric mean of the
// values for (o, o) and (i, i) in place of exp(-z) I_m(z), the error is 3/16 (sigma cot)^2 of the kernel's rms.
// Layout: a block computes TALL output rows and 128 modes, a thread one of them with both signs.  Modes are copied ahead into
//   shared memory of the thread.
// Cost: with rings within W of the output row, F is read once from memory and (TALL + 2 W) / TALL times through the
//   second-level cache, S is written once; 4 multiply-adds for one output row, ring and m.
// Limit: memory and multiply-adds.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// budget: f32 kernel=band regs<=168 spills<=0
#include "common.cuh"

#define SUBS 4
#define TALL (8 * SUBS)
#define BLOCK 128
#ifndef BLOCKS
#define BLOCKS 3
#endif
#ifndef AHEAD
#define AHEAD 6
#endif

struct __align__(8) Two {
  REAL x, y;
};
// Where a ring's modes begin, its highest one, and which rows of a tile it counts for.
struct __align__(16) Ring {
  const Two* plus;
  int most, active;
};
// Output rows o0 .. o0 + rows - 1; rings i0 .. i1 - 1 within their supports; factors from `place` on: [ring][TALL];
// modes 0 .. most.
struct Tile {
  i64 place, counts;
  int o0, rows, i0, i1, nphi, terms, most, spare;
};

// What rings have in common with the rows of a tile, `inverse` being 1 / sigma^2, and which rows they count for.
extern "C" __global__ void __launch_bounds__(128) samples(const double* __restrict__ theta,
                                                          const Tile* __restrict__ tiles, REAL* __restrict__ out,
                                                          int* __restrict__ active, double xmax, double inverse,
                                                          double amplitude) {
  const Tile t = tiles[blockIdx.x];
  for (int k = threadIdx.x; k < (t.i1 - t.i0) * TALL; k += 128) {
    int at = k / TALL, r = k % TALL;
    double v = 0;
    if (r < t.rows) {
      double a = theta[t.i0 + at], b = theta[t.o0 + r], x = chord(a, b);
      if (x <= xmax) {
        double y = inverse * sin(a) * sin(a), z = inverse * sin(b) * sin(b);
        v = amplitude * exp(-0.5 * inverse * x + (1 / y + 1 / z) / 16) / sqrt(2 * PI * sqrt(y * z));
        atomicOr(active + t.counts + at, 1 << r / 8);
      }
    }
    out[t.place + k] = (REAL)v;
  }
}

DI REAL factor(REAL squared, REAL a, REAL b) { return power_of_two(squared * (squared * b - a)); }

// grid: blocks of modes, tiles from `first` on; see `ring/band.cu`.  Shared memory: of the tile's rings.
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) band(
    const Two* __restrict__ modes, const i64* __restrict__ place, const int* __restrict__ top,
    const Tile* __restrict__ tiles, const REAL* __restrict__ weights, const int* __restrict__ active,
    Two* __restrict__ sums, i64 from, i64 to, int first, int rows, int rings, const Two* __restrict__ width) {
  extern __shared__ Four shared[];
  const Tile t = tiles[first + blockIdx.y];
  int m0 = blockIdx.x * BLOCK, m = m0 + threadIdx.x, count = t.i1 - t.i0;
  if (m0 > t.most) return;
  Four* weight = shared;
  Ring* ring = (Ring*)(weight + count * (TALL / 4));
  Two* wide = (Two*)(ring + count);
  Two* slots = wide + count + threadIdx.x;  // [AHEAD][2][BLOCK]
  for (int k = threadIdx.x; k < count * (TALL / 4); k += BLOCK) weight[k] = ((const Four*)(weights + t.place))[k];
  for (int k = threadIdx.x; k < count; k += BLOCK) {
    int i = t.i0 + k, r = i < rows ? i : rings - 1 - i;
    Ring q;
    q.most = top[r];
    q.plus = modes + (place[r] - from);
    q.active = q.most < m0 ? 0 : active[t.counts + k];
    ring[k] = q;
    wide[k] = width[i];
  }
  __syncthreads();
  REAL squared = (REAL)m * (REAL)m;
  Two plus[TALL], minus[TALL];
#pragma unroll
  for (int r = 0; r < TALL; r++) plus[r].x = plus[r].y = minus[r].x = minus[r].y = 0;
  auto ahead = [&](int k, int slot) {
    if (k < count) {
      Ring q = ring[k];
      bool some = m <= q.most;
      const Two* p = q.plus + (some ? m : 0);
      ptx::copy8(slots + slot * 2 * BLOCK, p, some);
      ptx::copy8(slots + slot * 2 * BLOCK + BLOCK, p + (q.most + 1), some);
    }
    ptx::commit_copies();
  };
#pragma unroll
  for (int k = 0; k < AHEAD - 1; k++) ahead(k, k);
  ptx::wait_copies<AHEAD - 2>();
  Two next_a = slots[0], next_b = slots[BLOCK], w = wide[0];
  int next = ring[0].active, slot = 0;
#pragma unroll 1
  for (int k = 0; k < count; k++) {
    Two a = next_a, b = next_b;
    int some = next;
    REAL h = factor(squared, w.x, w.y);
    ahead(k + AHEAD - 1, slot == 0 ? AHEAD - 1 : slot - 1);
    slot = slot == AHEAD - 1 ? 0 : slot + 1;
    if (k + 1 < count) {
      ptx::wait_copies<AHEAD - 2>();
      next_a = slots[slot * 2 * BLOCK];
      next_b = slots[slot * 2 * BLOCK + BLOCK];
      w = wide[k + 1];
      next = ring[k + 1].active;
    }
    if (t.i0 + k >= rows) {
      Two x = a;
      a.x = b.y;
      a.y = b.x;
      b.x = x.y;
      b.y = x.x;
    }
    a.x *= h;
    a.y *= h;
    b.x *= h;
    b.y *= h;
    const Four* g = weight + k * (TALL / 4);
#pragma unroll
    for (int s = 0; s < SUBS; s++) {
      if (!(some >> s & 1)) continue;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        Four v = g[2 * s + e];
        REAL c[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int r = 0; r < 4; r++) {
          Two &x = plus[8 * s + 4 * e + r], &y = minus[8 * s + 4 * e + r];
          x.x += c[r] * a.x;
          x.y += c[r] * a.y;
          y.x += c[r] * b.x;
          y.y += c[r] * b.y;
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < TALL; r++) {
    if (r >= t.rows) break;
    int o = t.o0 + r, most = top[o];
    if (m > most) continue;
    Two v = width[o];
    REAL h = factor(squared, v.x, v.y);
    Two* out = sums + (place[o] - to) + m;
    Two a = {plus[r].x * h, plus[r].y * h}, b = {minus[r].x * h, minus[r].y * h};
    out[0] = a;
    out[most + 1] = b;
  }
}

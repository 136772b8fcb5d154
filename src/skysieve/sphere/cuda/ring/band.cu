// Sums over rings, mode by mode: S_o(m) = sum_i k_m(o, i) F_i(m).
//
// Layout: a block computes TILE output rows and 128 EACH modes, a thread EACH of them, with both signs.  k_m is
//   computed from about ten samples of the kernel at azimuths 2 pi j / nphi, which the tile shares in shared memory,
//   and cosines of the thread (CACHED at a time in registers), and is used for four (spin 2: eight) multiply-adds.
// Cost: with rings within W of the output row and J samples, F is read once from memory and (TILE + 2 W) / TILE times
//   through the second-level cache, S is written once; J + 4 multiply-adds for one output row, ring and m.
// Limit: multiply-adds.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float -DSPIN=0 -DTILE=8 -DEACH=2 -DAHEAD=2 -DCACHED=12
// build: f64 -DREAL=double -DSPIN=0 -DTILE=8 -DEACH=1 -DAHEAD=2 -DCACHED=12
// build: f32_spin -DREAL=float -DSPIN=2 -DTILE=8 -DEACH=1 -DAHEAD=2 -DCACHED=8
// build: f64_spin -DREAL=double -DSPIN=2 -DTILE=8 -DEACH=1 -DAHEAD=1 -DCACHED=6
// budget: f32 kernel=band regs<=168 spills<=64
// budget: f32_spin kernel=band regs<=168 spills<=64
// budget: f64_spin kernel=band regs<=255 spills<=64
#include "common.cuh"

#define WAVES (SPIN ? 2 : 1)
#define PARTS (SPIN ? 2 : 1)
#define BLOCK 128
#ifndef BLOCKS
#define BLOCKS (SINGLE ? 3 : 2)
#endif

struct __align__(2 * sizeof(REAL)) Two {
  REAL x, y;
};
// Position of the modes of a ring, its highest mode, and the number of samples within the support.
struct __align__(16) Ring {
  i64 at;
  int most, terms;
};

// Output rows o0 .. o0 + rows - 1; rings i0 .. i1 - 1 within their supports; samples from `place` on:
// [ring][terms][WAVES][TILE]; modes 0 .. most.
struct Tile {
  i64 place, counts;
  int o0, rows, i0, i1, nphi, terms, most, spare;
};

// Samples of the kernel for one ring of a tile, and how many of them are within the support.
extern "C" __global__ void __launch_bounds__(128) samples(const double* __restrict__ theta,
                                                          const double* __restrict__ cells,
                                                          const Tile* __restrict__ tiles, REAL* __restrict__ out,
                                                          int* __restrict__ counts, double xmax, double floor,
                                                          int n_cells, int skipped) {
  const Tile t = tiles[blockIdx.x];
  int at = skipped + blockIdx.y, i = t.i0 + at;
  if (i >= t.i1) return;
  int most = 0;
  for (int k = threadIdx.x; k < t.terms * TILE; k += 128) {
    int j = k / TILE, r = k % TILE;
    double even = 0, odd = 0;
    if (r < t.rows && 2 * j <= t.nphi) {
      double a = theta[i], b = theta[t.o0 + r], half = (double)j / t.nphi, s = sinpi(half);
      double x = chord(a, b) + spread(a, b) * s * s;
      if (x <= xmax) {
        double v = quintic(cells, sqrt(x / xmax) * n_cells, n_cells);
        v = (v > floor ? v : floor) * (j == 0 || 2 * j == t.nphi ? 1.0 : 2.0) / t.nphi;
        even = v;
        most = j + 1;
        if (SPIN) {  // times the fourth power of cos(phi/2) cos((a - b)/2) - i sin(phi/2) cos((a + b)/2)
          double re = cospi(half) * cos(0.5 * (a - b)), im = -s * cos(0.5 * (a + b)), h;
          for (int e = 0; e < 2; e++) {
            h = re * re - im * im;
            im = 2 * re * im;
            re = h;
          }
          even = v * re;
          odd = v * im;
        }
      }
    }
    REAL* w = out + t.place + ((i64)at * t.terms + j) * (WAVES * TILE) + r;
    w[0] = (REAL)even;
    if (SPIN) w[(WAVES - 1) * TILE] = (REAL)odd;
  }
  if (most) atomicMax(counts + t.counts + at, most);
}

// F of a ring at m >= 0 and -m; rings beyond the stored rows are `mirrored` images.
DI void fetch(const Two* __restrict__ modes, const Ring& r, int m, bool mirrored, int part, i64 size, Two& a, Two& b) {
  a.x = a.y = b.x = b.y = 0;
  if (m > r.most) return;
  const Two* p = modes + (SPIN && mirrored ? 1 - part : part) * size + r.at + m;
  Two u = p[0], v = p[r.most + 1];
  if (!mirrored) {
    a = u;
    b = v;
    return;
  }
  if (SPIN) {
    a.x = v.x;
    a.y = -v.y;
    b.x = u.x;
    b.y = -u.y;
  } else {
    a.x = v.y;
    a.y = v.x;
    b.x = u.y;
    b.y = u.x;
  }
}

// grid: blocks of modes, which share the samples; tiles from `first` on.  `rows` of `rings` rings are stored.
// `from` and `to` are the positions at which the given modes and sums begin; `many` and `size` are the numbers of
// modes and sums in a part.
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) band(
    const Two* __restrict__ modes, const i64* __restrict__ place, const int* __restrict__ top,
    const Tile* __restrict__ tiles, const REAL* __restrict__ weights, const int* __restrict__ counts,
    Two* __restrict__ sums, i64 from, i64 to, i64 many, i64 size, int first, int rows, int rings, int parts) {
  constexpr int MOST = AHEAD * CACHED * WAVES * TILE / 4;
  static_assert(MOST <= BLOCK - AHEAD, "a thread brings one vector of samples");
  __shared__ Four held[2][MOST];
  __shared__ Ring rings_held[2][AHEAD];
  const Tile t = tiles[first + blockIdx.y];
  int m0 = blockIdx.x * BLOCK * EACH + threadIdx.x;
  if ((int)(blockIdx.x * BLOCK * EACH) > t.most) return;
  Two sa[PARTS][EACH][TILE], sb[PARTS][EACH][TILE];
#pragma unroll
  for (int r = 0; r < PARTS * EACH * TILE; r++) {
    (&sa[0][0][0])[r].x = (&sa[0][0][0])[r].y = 0;
    (&sb[0][0][0])[r].x = (&sb[0][0][0])[r].y = 0;
  }
  int row = t.terms * WAVES * TILE;
  for (int j0 = 0; j0 < t.terms; j0 += CACHED) {
    int some = t.terms - j0 < CACHED ? t.terms - j0 : CACHED, each = some * WAVES * TILE / 4;
    REAL c[CACHED][EACH], s[SPIN ? CACHED : 1][EACH], step = (REAL)2 / t.nphi;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int m = (m0 + e * BLOCK) % t.nphi, turn = (int)((i64)j0 * m % t.nphi);
#pragma unroll
      for (int j = 0; j < CACHED; j++) {
        REAL y;
        if (j < some)
          sincospi((REAL)turn * step, &y, &c[j][e]);
        else
          c[j][e] = y = 0;
        if (SPIN) s[j][e] = y;
        turn += m;
        if (turn >= t.nphi) turn -= t.nphi;
      }
    }
    // copies the data of rings i .. i + AHEAD - 1 into `slot`, a part by each thread
    Four sample;
    Ring ring;
    auto look = [&](int i) {
      int k = threadIdx.x, u = k / each;
      if (u < AHEAD && i + u < t.i1)
        sample = ((const Four*)(weights + t.place + (i64)(i + u - t.i0) * row + j0 * WAVES * TILE))[k - u * each];
      u = BLOCK - 1 - k;
      if (u < AHEAD && i + u < t.i1) {
        int r = i + u < rows ? i + u : rings - 1 - (i + u), n = counts[t.counts + i + u - t.i0] - j0;
        ring.at = place[r] - from;
        ring.most = top[r];
        ring.terms = n < some ? n : some;
      }
    };
    auto keep = [&](int slot) {
      int k = threadIdx.x;
      if (k < AHEAD * each) held[slot][k] = sample;
      if (BLOCK - 1 - k < AHEAD) rings_held[slot][BLOCK - 1 - k] = ring;
    };
    look(t.i0);
    __syncthreads();
    keep(0);
    __syncthreads();
    int slot = 0;
#pragma unroll 1
    for (int i0 = t.i0; i0 < t.i1; i0 += AHEAD) {
      Two a[AHEAD][PARTS][EACH], b[AHEAD][PARTS][EACH];
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
          for (int e = 0; e < EACH; e++) {
            Two &x = a[u][p][e], &y = b[u][p][e];
            x.x = x.y = y.x = y.y = 0;
            if (i0 + u < t.i1 && p < parts)
              fetch(modes, rings_held[slot][u], m0 + e * BLOCK, i0 + u >= rows, p, many, x, y);
          }
      look(i0 + AHEAD);
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        if (i0 + u >= t.i1) break;
        int terms = rings_held[slot][u].terms;
        REAL even[EACH][TILE], odd[EACH][SPIN ? TILE : 1];
#pragma unroll
        for (int e = 0; e < EACH; e++)
#pragma unroll
          for (int r = 0; r < TILE; r++) {
            even[e][r] = 0;
            if (SPIN) odd[e][r] = 0;
          }
        const Four* w = held[slot] + u * each;
#pragma unroll
        for (int j = 0; j < CACHED; j++) {
          if (j % 2 == 0 && j >= terms) break;  // samples beyond are 0
#pragma unroll
          for (int r = 0; r < TILE / 4; r++) {
            Four v = w[j * WAVES * TILE / 4 + r];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
              even[e][4 * r] += v.x * c[j][e];
              even[e][4 * r + 1] += v.y * c[j][e];
              even[e][4 * r + 2] += v.z * c[j][e];
              even[e][4 * r + 3] += v.w * c[j][e];
            }
            if (SPIN) {
              Four o = w[j * WAVES * TILE / 4 + TILE / 4 + r];
#pragma unroll
              for (int e = 0; e < EACH; e++) {
                odd[e][4 * r] += o.x * s[j][e];
                odd[e][4 * r + 1] += o.y * s[j][e];
                odd[e][4 * r + 2] += o.z * s[j][e];
                odd[e][4 * r + 3] += o.w * s[j][e];
              }
            }
          }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++)
#pragma unroll
          for (int r = 0; r < TILE; r++) {
            REAL plus = even[e][r], minus = plus;
            if (SPIN) {
              REAL l = odd[e][SPIN ? r : 0];
              plus += l;
              minus -= l;
            }
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
              sa[p][e][r].x += plus * a[u][p][e].x;
              sa[p][e][r].y += plus * a[u][p][e].y;
              sb[p][e][r].x += minus * b[u][p][e].x;
              sb[p][e][r].y += minus * b[u][p][e].y;
            }
          }
      }
      keep(1 - slot);
      __syncthreads();
      slot = 1 - slot;
    }
  }
#pragma unroll
  for (int r = 0; r < TILE; r++) {
    if (r >= t.rows) break;
    int o = t.o0 + r, most = top[o];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int m = m0 + e * BLOCK;
      if (m > most) continue;
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        if (p >= parts) break;
        Two* out = sums + p * size + place[o] - to + m;
        out[0] = sa[p][e][r];
        out[most + 1] = sb[p][e][r];
      }
    }
  }
}

// Sums over rings, mode by mode: S_o(m) = sum_i k_m(o, i) F_i(m).
//
// A block takes TILE output rows and 128 EACH modes, a thread EACH of them, with both signs.  k_m is formed on the way, from about
// ten samples of the kernel at azimuths 2 pi j / nphi that the tile shares and cosines of its thread (in shared
// memory), and used for four (spin 2: eight) multiply-adds: to store it would cost more traffic than to form it.
// Bytes: F once from memory, (TILE + 2 W) / TILE times through the second-level cache, S once; operations for one
// output row, ring and m: J + 4 multiply-adds.  Limited by them for wide kernels, by the caches for narrow ones.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float -DSPIN=0 -DTILE=8 -DEACH=2 -DAHEAD=2
// build: f64 -DREAL=double -DSPIN=0 -DTILE=8 -DEACH=2 -DAHEAD=2
// build: f32_spin -DREAL=float -DSPIN=2 -DTILE=8 -DEACH=1 -DAHEAD=2
// build: f64_spin -DREAL=double -DSPIN=2 -DTILE=8 -DEACH=1 -DAHEAD=2
#include "sp_common.cuh"

#define WAVES (SPIN ? 2 : 1)
#define PARTS (SPIN ? 2 : 1)
#define BLOCK 128
#ifndef BLOCKS
#define BLOCKS (!SINGLE ? 2 : SPIN ? 4 : TILE * EACH <= 16 ? 4 : 2)
#endif

struct __align__(2 * sizeof(REAL)) Two { REAL x, y; };

// Output rows o0 .. o0 + rows - 1; rings i0 .. i1 - 1 within their supports; samples from `place` on:
// [ring][terms][WAVES][TILE]; modes 0 .. most.
struct Tile { i64 place, counts; int o0, rows, i0, i1, nphi, terms, most, spare; };

// Samples of the kernel for one ring of a tile, and how many of them are within the support.
extern "C" __global__ void __launch_bounds__(128) samples(const double* __restrict__ theta,
    const double* __restrict__ cells, const Tile* __restrict__ tiles, REAL* __restrict__ out, int* __restrict__ counts,
    double xmax, double floor, int n_cells, int skipped) {
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
          for (int e = 0; e < 2; e++) { h = re * re - im * im; im = 2 * re * im; re = h; }
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

// F of ring i at m >= 0 and -m; rings beyond the stored rows are mirror images.
DI void fetch(const Two* __restrict__ modes, const i64* __restrict__ place, const int* __restrict__ top, int i, int m,
    int rows, int rings, int part, i64 size, Two& a, Two& b) {
  int r = i < rows ? i : rings - 1 - i;
  a.x = a.y = b.x = b.y = 0;
  int most = top[r];
  if (m > most) return;
  const Two* p = modes + (SPIN && i >= rows ? 1 - part : part) * size + place[r] + m;
  Two u = p[0], v = p[most + 1];
  if (i < rows) { a = u; b = v; return; }
  if (SPIN) { a.x = v.x; a.y = -v.y; b.x = u.x; b.y = -u.y; }
  else { a.x = v.y; a.y = v.x; b.x = u.y; b.y = u.x; }
}

// grid: tiles, blocks of modes.  `rows` are stored of `rings` rings; `longest` samples at a time.
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) band(const Two* __restrict__ modes,
    const i64* __restrict__ place, const int* __restrict__ top, const Tile* __restrict__ tiles,
    const REAL* __restrict__ weights, const int* __restrict__ counts, Two* __restrict__ sums, i64 size, int rows,
    int rings, int parts, int longest) {
  extern __shared__ REAL shared[];
  const Tile t = tiles[blockIdx.x];
  int m0 = blockIdx.y * BLOCK * EACH + threadIdx.x;
  if ((int)(blockIdx.y * BLOCK * EACH) > t.most) return;
  REAL* waves = shared;                                   // [terms][WAVES][EACH][BLOCK]
  REAL* held = shared + longest * WAVES * EACH * BLOCK;   // [AHEAD][terms][WAVES][TILE]
  Two sa[PARTS][EACH][TILE], sb[PARTS][EACH][TILE];
#pragma unroll
  for (int r = 0; r < PARTS * EACH * TILE; r++) {
    (&sa[0][0][0])[r].x = (&sa[0][0][0])[r].y = 0;
    (&sb[0][0][0])[r].x = (&sb[0][0][0])[r].y = 0;
  }
  int row = t.terms * WAVES * TILE;
  for (int j0 = 0; j0 < t.terms; j0 += longest) {
    int some = t.terms - j0 < longest ? t.terms - j0 : longest, part_of_row = some * WAVES * TILE / 4;
    for (int j = 0; j < some; j++)
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        REAL s, c;
        sincospi((REAL)2 * (REAL)((i64)(j0 + j) * (m0 + e * BLOCK) % t.nphi) / t.nphi, &s, &c);
        waves[(j * WAVES * EACH + e) * BLOCK + threadIdx.x] = c;
        if (SPIN) waves[((j * WAVES + WAVES - 1) * EACH + e) * BLOCK + threadIdx.x] = s;
      }
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
              fetch(modes, place, top, i0 + u, m0 + e * BLOCK, rows, rings, p, size, x, y);
          }
      int many = t.i1 - i0 < AHEAD ? t.i1 - i0 : AHEAD;
      __syncthreads();
      for (int k = threadIdx.x; k < many * part_of_row; k += BLOCK) {
        int u = k / part_of_row;
        const Four* from = (const Four*)(weights + t.place + (i64)(i0 + u - t.i0) * row + j0 * WAVES * TILE);
        ((Four*)held)[k] = from[k - u * part_of_row];
      }
      __syncthreads();
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        if (i0 + u >= t.i1) break;
        int terms = counts[t.counts + i0 + u - t.i0] - j0;
        if (terms > some) terms = some;
        REAL even[EACH][TILE], odd[EACH][SPIN ? TILE : 1];
#pragma unroll
        for (int e = 0; e < EACH; e++)
#pragma unroll
          for (int r = 0; r < TILE; r++) { even[e][r] = 0; if (SPIN) odd[e][r] = 0; }
        const REAL* w = held + 4 * u * part_of_row;
        const REAL* c = waves + threadIdx.x;
#pragma unroll 2
        for (int j = 0; j < terms; j++) {
          REAL x[EACH], y[EACH];
#pragma unroll
          for (int e = 0; e < EACH; e++) {
            x[e] = c[(j * WAVES * EACH + e) * BLOCK];
            y[e] = SPIN ? c[((j * WAVES + WAVES - 1) * EACH + e) * BLOCK] : 0;
          }
          const Four* f = (const Four*)(w + j * WAVES * TILE);
#pragma unroll
          for (int r = 0; r < TILE / 4; r++) {
            Four v = f[r];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
              even[e][4 * r] += v.x * x[e]; even[e][4 * r + 1] += v.y * x[e];
              even[e][4 * r + 2] += v.z * x[e]; even[e][4 * r + 3] += v.w * x[e];
            }
            if (SPIN) {
              Four o = f[TILE / 4 + r];
#pragma unroll
              for (int e = 0; e < EACH; e++) {
                odd[e][4 * r] += o.x * y[e]; odd[e][4 * r + 1] += o.y * y[e];
                odd[e][4 * r + 2] += o.z * y[e]; odd[e][4 * r + 3] += o.w * y[e];
              }
            }
          }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++)
#pragma unroll
          for (int r = 0; r < TILE; r++) {
            REAL k = even[e][r], l = SPIN ? odd[e][SPIN ? r : 0] : 0, plus = k + l, minus = k - l;
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
              sa[p][e][r].x += plus * a[u][p][e].x; sa[p][e][r].y += plus * a[u][p][e].y;
              sb[p][e][r].x += minus * b[u][p][e].x; sb[p][e][r].y += minus * b[u][p][e].y;
            }
          }
      }
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
        Two* to = sums + p * size + place[o] + m;
        to[0] = sa[p][e][r];
        to[most + 1] = sb[p][e][r];
      }
    }
  }
}

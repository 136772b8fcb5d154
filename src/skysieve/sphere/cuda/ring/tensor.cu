// Sums over rings, mode by mode, as in `ring/band.cu`, with k_m computed by the matrix units; float32, spin 0.
//
// Layout: a block computes TALL output rows and 128 modes, a warp 16 of them.  k_m of 8 rows is the product of the
//   cosines of 16 modes and 16 azimuths with the samples of 8 rows.  Both are sums of two halves, of whose four
//   products three are computed: the fourth is 2^-22 of the sum of the samples' moduli.  A thread has two modes of each
//   second row of four, and sums their products with F for both signs.
// Cost: with rings within W of the output row, F is read once from memory and (TALL + 2 W) / TALL times through the
//   second-level cache; 4 multiply-adds for one output row, ring and m, and 3 x 16 of the matrix units.
// Limit: reads of samples from shared memory, and multiply-adds.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// budget: f32 kernel=band spills<=16
#include "common.cuh"

#define SUBS 4
#define TALL (8 * SUBS)
#define BLOCK 256
#define TERMS 16
#define AHEAD 2
#if HAS_HALF_MATRICES
#define BLOCKS 2
#else
#define BLOCKS 1
#endif

struct __align__(8) Two {
  REAL x, y;
};
// Pointers to modes 0 and -0 of a ring, its highest mode (-1: no ring), and the rows of a tile for which the ring
// counts.
struct __align__(16) Ring {
  const Two *plus, *minus;
  int most, active;
};
// Output rows o0 .. o0 + rows - 1; rings i0 .. i1 - 1 within their supports; samples from `place` on:
// [ring][terms / 16] [SUBS][lane]; modes 0 .. most.
struct Tile {
  i64 place, counts;
  int o0, rows, i0, i1, nphi, terms, most, spare;
};
// A lane's part of the samples at 16 azimuths of 8 rows, or of the cosines of 16 modes at 16 azimuths: half floats.
struct __align__(16) Piece {
  unsigned high[2], low[2];
};

DI unsigned half_of(float x) {
  union {
    float f;
    unsigned u;
  } a;
  a.f = fabsf(x);
  unsigned sign = x < 0 ? 0x8000u : 0u;
  if (a.f < 6.103515625e-5f) return sign | (unsigned)rintf(a.f * 16777216.0f);
  a.u += 0xfffu + (a.u >> 13 & 1u);
  return sign | ((a.u >> 13) - (112u << 10));
}
DI float of_half(unsigned h) {
  union {
    float f;
    unsigned u;
  } a;
  unsigned e = h >> 10 & 31u, f = h & 1023u;
  if (e)
    a.u = (e + 112u) << 23 | f << 13;
  else
    a.f = f * 5.9604644775390625e-8f;
  return h & 0x8000u ? -a.f : a.f;
}
DI void split(float x, float y, unsigned& high, unsigned& low) {
  unsigned a = half_of(x), b = half_of(y);
  high = a | b << 16;
  low = half_of(x - of_half(a)) | half_of(y - of_half(b)) << 16;
}

// Samples of the kernel for one ring of a tile, over `peak`, and which rows have any within their supports.
extern "C" __global__ void __launch_bounds__(128) samples(const double* __restrict__ theta,
                                                          const double* __restrict__ cells,
                                                          const Tile* __restrict__ tiles, Piece* __restrict__ out,
                                                          int* __restrict__ active, double xmax, double floor,
                                                          double peak, int n_cells, int skipped) {
  const Tile t = tiles[blockIdx.x];
  int at = skipped + blockIdx.y, i = t.i0 + at;
  if (i >= t.i1) return;
  int pieces = t.terms / TERMS * SUBS * 32;
  for (int k = threadIdx.x; k < pieces; k += 128) {
    int lane = k % 32, sub = k / 32 % SUBS, r = 8 * sub + lane / 4;
    float v[4];
    bool any = false;
    for (int e = 0; e < 4; e++) {
      int j = k / (32 * SUBS) * TERMS + 2 * (lane % 4) + (e & 1) + (e & 2) * 4;
      v[e] = 0;
      if (r < t.rows && 2 * j <= t.nphi) {
        double s = sinpi((double)j / t.nphi);
        double x = chord(theta[i], theta[t.o0 + r]) + spread(theta[i], theta[t.o0 + r]) * s * s;
        if (x <= xmax) {
          double value = quintic(cells, sqrt(x / xmax) * n_cells, n_cells);
          v[e] = (float)((value > floor ? value : floor) * (j == 0 || 2 * j == t.nphi ? 1.0 : 2.0) / peak);
          any = true;
        }
      }
    }
    Piece p;
    split(v[0], v[1], p.high[0], p.low[0]);
    split(v[2], v[3], p.high[1], p.low[1]);
    out[t.place + (i64)at * pieces + k] = p;
    if (any) atomicOr(active + t.counts + at, 1 << sub);
  }
}

// k_m of a thread's two modes (d[0], d[1] and d[2], d[3]) and two rows of eight.
struct Cosines {
#if HAS_HALF_MATRICES
  unsigned high[4], low[4];
#else
  float c[2][TERMS];
#endif
};

DI float cosine(i64 j, int m, int nphi) {
  int turn = (int)(j * m % nphi);
  if (2 * turn > nphi) turn = nphi - turn;
  return cospif((float)(2 * turn) / nphi);
}

DI void prepare(Cosines& c, int j0, int m, int nphi, int lane) {
#if HAS_HALF_MATRICES
#pragma unroll
  for (int k = 0; k < 4; k++) {
    int j = j0 + 2 * (lane % 4) + k / 2 * 8;
    split(cosine(j, m + k % 2, nphi), cosine(j + 1, m + k % 2, nphi), c.high[k], c.low[k]);
  }
#else
  for (int k = 0; k < 2; k++)
    for (int j = 0; j < TERMS; j++) c.c[k][j] = cosine(j0 + j, m + k, nphi);
#endif
}

DI void coefficients(float* d, const Cosines& c, const Piece* held, int lane) {
#if HAS_HALF_MATRICES
  Piece p = held[lane];
  const float none[4] = {0, 0, 0, 0};
  ptx::multiply_halves(d, c.high, p.low, none);
  ptx::multiply_halves(d, c.low, p.high, d);
  ptx::multiply_halves(d, c.high, p.high, d);
#else
  for (int q = 0; q < 2; q++) {
    d[q] = d[2 + q] = 0;
    for (int j = 0; j < TERMS; j++) {
      const Piece& p = held[4 * (2 * (lane % 4) + q) + j % 8 / 2];
      int shift = j % 2 * 16;
      float w = of_half(p.high[j / 8] >> shift & 0xffffu) + of_half(p.low[j / 8] >> shift & 0xffffu);
      d[q] += w * c.c[0][j];
      d[2 + q] += w * c.c[1][j];
    }
  }
#endif
}

// grid: blocks of modes, tiles from `first` on; see `ring/band.cu`.  Highest modes are odd, so that pairs of modes are
// read at once.
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) band(
    const Two* __restrict__ modes, const i64* __restrict__ place, const int* __restrict__ top,
    const Tile* __restrict__ tiles, const Piece* __restrict__ weights, const int* __restrict__ active,
    Two* __restrict__ sums, i64 from, i64 to, i64 many, i64 size, int first, int rows, int rings, int parts,
    float peak) {
  __shared__ Piece held[2][AHEAD][SUBS][32];
  __shared__ Ring rings_held[8];
  const Tile t = tiles[first + blockIdx.y];
  int lane = threadIdx.x % 32, m0 = blockIdx.x * (BLOCK / 2) + threadIdx.x / 32 * 16 + 2 * (lane / 4);
  if ((int)(blockIdx.x * (BLOCK / 2)) > t.most) return;
  float acc[SUBS][2][2][4];
#pragma unroll
  for (int k = 0; k < SUBS * 16; k++) (&acc[0][0][0][0])[k] = 0;
  for (int j0 = 0; j0 < t.terms; j0 += TERMS) {
    Cosines c;
    prepare(c, j0, m0 < t.most ? m0 : 0, t.nphi, lane);
    Piece piece;
    Ring ring;
    // copies the data of the rings from i on, a ring by several threads, and their samples, a piece by each
    // thread
    auto look = [&](int i, int count) {
      int u = threadIdx.x;
      if (u >= count) return;
      ring.plus = ring.minus = modes;
      ring.most = -1;
      ring.active = 0;
      if (i + u >= t.i1) return;
      int r = i + u < rows ? i + u : rings - 1 - (i + u);
      ring.most = top[r];
      ring.plus = modes + (place[r] - from);
      ring.minus = ring.plus + ring.most + 1;
      ring.active = active[t.counts + i + u - t.i0];
    };
    auto note = [&](int at, int count) {
      if ((int)threadIdx.x < count) rings_held[(at + threadIdx.x) & 7] = ring;
    };
    auto bring = [&](int i) {
      int u = threadIdx.x / (32 * SUBS);
      if (i + u < t.i1)
        piece = weights[t.place + ((i64)(i + u - t.i0) * (t.terms / TERMS) + j0 / TERMS) * (32 * SUBS) +
                        threadIdx.x % (32 * SUBS)];
    };
    auto keep = [&](int slot) { (&held[slot][0][0][0])[threadIdx.x] = piece; };
    auto fetch = [&](const Ring& r, Four& a, Four& b) {
      a.x = a.y = a.z = a.w = b.x = b.y = b.z = b.w = 0;
      if (m0 > r.most) return;
      a = *(const Four*)(r.plus + m0);
      b = *(const Four*)(r.minus + m0);
    };
    auto add_up = [&](int some, const Piece(*samples)[32], Four a, Four b, bool mirrored) {
      if (mirrored) {
        Four x = a;
        a.x = b.y;
        a.y = b.x;
        a.z = b.w;
        a.w = b.z;
        b.x = x.y;
        b.y = x.x;
        b.z = x.w;
        b.w = x.z;
      }
#pragma unroll
      for (int s = 0; s < SUBS; s += 2) {
        if (!(some >> s & 3)) continue;
        float d[2][4];
        coefficients(d[0], c, samples[s], lane);
        coefficients(d[1], c, samples[s + 1], lane);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          if (!(some >> (s + e) & 1)) continue;
#pragma unroll
          for (int q = 0; q < 2; q++) {
            float* x = acc[s + e][q][0];
            float k = d[e][q], l = d[e][2 + q];
            x[0] += k * a.x;
            x[1] += k * a.y;
            x[2] += k * b.x;
            x[3] += k * b.y;
            x[4] += l * a.z;
            x[5] += l * a.w;
            x[6] += l * b.z;
            x[7] += l * b.w;
          }
        }
      }
    };
    look(t.i0, 2 * AHEAD);
    bring(t.i0);
    __syncthreads();
    note(0, 2 * AHEAD);
    keep(0);
    __syncthreads();
    int slot = 0, at = 0;
    Four a, b, next_a, next_b;
    fetch(rings_held[0], a, b);
#pragma unroll 1
    for (int i = t.i0; i < t.i1; i += AHEAD) {  // AHEAD is 2
      bring(i + AHEAD);
      look(i + 2 * AHEAD, AHEAD);
      fetch(rings_held[at + 1], next_a, next_b);
      add_up(rings_held[at].active, held[slot][0], a, b, i >= rows);
      fetch(rings_held[(at + 2) & 7], a, b);
      add_up(rings_held[at + 1].active, held[slot][1], next_a, next_b, i + 1 >= rows);
      keep(1 - slot);
      note(at + 2 * AHEAD, AHEAD);
      __syncthreads();
      slot = 1 - slot;
      at = (at + AHEAD) & 7;
    }
  }
  float scale = peak / t.nphi;
#pragma unroll
  for (int s = 0; s < SUBS; s++)
#pragma unroll
    for (int q = 0; q < 2; q++) {
      int r = 8 * s + 2 * (lane % 4) + q;
      if (r >= t.rows) continue;
      int most = top[t.o0 + r];
      if (m0 > most) continue;
      const float* x = acc[s][q][0];
      Two* out = sums + place[t.o0 + r] - to + m0;
      Four a = {x[0] * scale, x[1] * scale, x[4] * scale, x[5] * scale};
      Four b = {x[2] * scale, x[3] * scale, x[6] * scale, x[7] * scale};
      *(Four*)out = a;
      *(Four*)(out + most + 1) = b;
    }
}

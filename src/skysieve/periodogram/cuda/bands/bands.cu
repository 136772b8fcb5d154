// Periodogram of light curves in several photometric bands: one sinusoid that all bands share, and a mean for
// each band. The sums come from banded combs (see sinusoid/comb.cu).
//
// Layout: one block (4 warps) computes S of the P combs of one object in one band of 200 P frequencies, 8 combs
// at a time, one for each half warp.
//
// Channels: w of each photometric band at f; w of all bands at 2 f; w y of all bands at f. As soon as the sums
// of one photometric band are transformed, their squares, divided by the weight of the band, are subtracted
// from CC, SS and CS. A thread therefore holds no more numbers than for a single band.
//
// Cost: for one frequency (bands + 2) x 384 FMA x 16 / 200, plus about 8 for each band and 30 others.
// Limit: as in ls_comb, the latency of the transforms at 168 registers a thread (12 warps on a multiprocessor).
// The first-level cache is 68% busy, the float64 pipe 38%.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double -DTERMS=1 -DBAND_TERMS=0 -DRELOAD
// budget: f64 kernel=bands_offset regs<=168 smem<=64 spills<=160
#include "common.cuh"
#include "samples/dft.cuh"
#include "samples/loads.cuh"
#include "bands/bands.cuh"

// ---------------------------------------------------------------- one term, a mean for each band
#define WIDTH 200  // modes used of 256
#define ND 13      // outputs a thread
#define THREADS 128
#define PAD (16 * 17 + 8)  // of a half warp's exchange area: the two of a warp lie on different banks
#define CHUNK 256
struct Offset {
  const double* tp;
  const double2* wv;
  const int2* cell;
  const double* at_f;
  const double* at_2f;
  Bands rows;
  const int* offsets;
  const Info* info;
  const int* order;
  const int2* tasks;
  const double2* first;
  const double2* second;
  const double2* fold;
  const double* deconvolve;
  const double* f0;
  const double* df;
  const int* nf;
  const long long* start;
  double* power;
  int* odd;
  double limit;
  int P, S, blocks, stretches, circles, grid_stride, zero;
};

extern "C" __global__ void __launch_bounds__(THREADS, 3) bands_offset(const __grid_constant__ Offset A) {
  extern __shared__ __align__(16) unsigned char raw[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, h = lane & 1,
            a = lane >> 1;  // half warps are lanes of one parity
  const int part = blockIdx.x % A.blocks, task = blockIdx.x / A.blocks;
  int o, band;
  if (A.tasks) {
    const int2 t = A.tasks[task];
    o = t.x;
    band = t.y;
  } else {
    o = A.order[task / A.stretches];
    band = task % A.stretches;
  }
  const Info info = A.info[o];
  const int lo = A.offsets[o], n = info.n, gi = o * A.grid_stride, nf = A.nf[gi], P = A.P, B = A.rows.bands,
            circles = A.circles;
  const int base = band * WIDTH * P, r0 = part * A.S, stop = min(P, r0 + A.S);
  double* out = A.power + A.start[o] + base;
  if (info.status != 0) {
    for (int i = tid; i < WIDTH * (stop - r0); i += THREADS) {
      const int k = i / (stop - r0) * P + r0 + i % (stop - r0);
      if (base + k < nf) out[k] = missing64();
    }
    return;
  }
  const int round = 256 * circles, total = round * (B + 3);  // w of each band, w y, w at 2 f (twice as many circles)
  double2* cells = (double2*)raw;
  double2* exchange = cells + total;
  const int* first = A.rows.first + (size_t)o * (B + 1);
  const double* share = A.rows.share + (size_t)o * B;
  for (int i = tid; i < total; i += THREADS) cells[i] = make_double2(0, 0);

  // ---- spreading. Rows are in order of time. Warp 0 spreads w y and warp 1 w at 2 f, each half warp a half of
  // the chunk; lane a keeps the sum of the one cell of the window that is a modulo 16, and adds it to the cells
  // when the window leaves this cell. Warps 2 and 3 spread w of the bands, one after another.
  {
    double2* strength = exchange;  // of w, w y, w at 2 f, [3][CHUNK]
    int* cells1 = (int*)(strength + 3 * CHUNK);
    int* cells2 = cells1 + CHUNK;
    int* order = cells2 + CHUNK;  // rows band after band, if there is one chunk
    const Frequency centre = frequency_of(A.f0[gi], (double)base + (WIDTH / 2) * P, A.df[gi]);
    for (int c0 = 0; c0 < n; c0 += CHUNK) {
      const int count = min(CHUNK, n - c0), padded = (count + 7) & ~7;
      __syncthreads();
      for (int i = tid; i < padded; i += THREADS) {
        const int p = lo + c0 + min(i, count - 1);
        const double2 wv = i < count ? A.wv[p] : make_double2(0, 0);
        const int2 c = A.cell[p];
        cells1[i] = c.x;
        cells2[i] = c.y;
        double s, x;
        sincos_cycles(cycles(centre, A.tp[p]), s, x);
        const double half = 0.5 * wv.x;  // CC, SS, CS want w / 2
        strength[i] = make_double2(wv.x * x, wv.x * s);
        strength[CHUNK + i] = make_double2(wv.y * x, wv.y * s);
        strength[2 * CHUNK + i] = make_double2(half * (x * x - s * s), 2 * half * x * s);
      }
      if (n <= CHUNK)
        for (int i = tid; i < n; i += THREADS) order[i] = A.rows.pick[lo + i];
      __syncthreads();
      if (warp < 2) {
        const int middle = ((padded >> 1) + 7) & ~7, begin = h ? min(middle, padded) : 0,
                  mine = h ? padded - begin : min(middle, padded);
        const double* weight =
            (warp ? A.at_2f : A.at_f) + (size_t)(lo + c0 + begin) * 16 + a;  // rows past the end are readable
        const int* in_cell = (warp ? cells2 : cells1) + begin;
        const double2* in = strength + (1 + warp) * CHUNK + begin;
        double2* G = cells + (B + warp) * round;
        double2 acc = make_double2(0, 0);
        int now = mine > 0 ? in_cell[0] + ((a - in_cell[0]) & 15) : 0;
        double next[8];
        if (mine > 0)
#pragma unroll
          for (int u = 0; u < 8; u++) next[u] = stream(weight + u * 16);
        for (int i0 = 0; i0 < mine; i0 += 8) {
          double k[8];
#pragma unroll
          for (int u = 0; u < 8; u++) {
            k[u] = next[u];
            next[u] = stream(weight + (i0 + 8 + u) * 16);
          }
#pragma unroll
          for (int u = 0; u < 8; u++) {
            const int c = in_cell[i0 + u], to = c + ((a - c) & 15);
            if (to != now) {
              const double2 g = G[now];
              G[now] = make_double2(g.x + acc.x, g.y + acc.y);
              acc = make_double2(0, 0);
              now = to;
            }
            const double2 s = in[i0 + u];
            acc.x = fma(k[u], s.x, acc.x);
            acc.y = fma(k[u], s.y, acc.y);
          }
        }
        // the later half's last window, then the earlier one's, which the later half may have begun in
        for (int who = 1; who >= 0; who--) {
          __syncwarp();
          if (h == who && mine > 0) {
            const double2 g = G[now];
            G[now] = make_double2(g.x + acc.x, g.y + acc.y);
          }
        }
      } else {
        for (int b = (warp - 2) * 2 + h; b < B; b += 4) {
          const int* list = n <= CHUNK ? order : A.rows.pick + lo;
          int j = first[b], end = first[b + 1];
          if (c0)  // the first row of the chunk
            for (int high = end; j < high;) {
              const int middle = (j + high) >> 1;
              if (list[middle] < c0)
                j = middle + 1;
              else
                high = middle;
            }
          double2* G = cells + b * round;
          const double root = sqrt(share[b]);  // makes the squares of these sums those divided by the band's weight
          const double* weight = A.at_f + (size_t)(lo + c0) * 16 + a;
          auto fetch = [&](int (&i)[4], double (&k)[4]) {  // four rows of the chunk, or `count` for missing rows
#pragma unroll
            for (int u = 0; u < 4; u++) {
              i[u] = j + u < end ? min(list[j + u] - c0, count) : count;
              k[u] = i[u] < count ? stream(weight + i[u] * 16) : 0;
            }
            j += 4;
          };
          int i[4], ahead[4];
          double k[4], next[4];
          fetch(i, k);
          while (i[0] < count) {
            fetch(ahead, next);
#pragma unroll
            for (int u = 0; u < 4; u++)
              if (i[u] < count) {
                const int c = cells1[i[u]], to = c + ((a - c) & 15);
                const double2 s = strength[i[u]], g = G[to];
                const double w = root * k[u];
                G[to] = make_double2(fma(w, s.x, g.x), fma(w, s.y, g.y));
              }
#pragma unroll
            for (int u = 0; u < 4; u++) {
              i[u] = ahead[u];
              k[u] = next[u];
            }
          }
        }
      }
    }
  }
  __syncthreads();

  // ---- transforms: w at 2 f, w of each band, w y
  double* ex = (double*)exchange + (warp * 2 + h) * PAD;
  int nonzero = 0;
  for (int b = 0; b < B; b++) nonzero += share[b] > 0;
  const double limit = n < 2 + nonzero ? 0 : A.limit * sqrt((double)n);  // 0: with too few points no power is trusted
  bool odd = false;
#pragma unroll 1
  for (int s0 = r0; s0 < stop; s0 += 8) {
    const int mine = s0 + (warp * 2 + h), comb = min(mine, P - 1);
    const double2* Us = A.first + comb * 8;
    const double2* Vs = A.second + comb * 128 + a;
    const double* D = A.deconvolve + comb * (16 * ND) + a;
    double cc[ND], ss[ND], cs[ND];
#pragma unroll 1
    for (int ch = 0; ch < B + 2; ch++) {
      if (ch && ch <= B && !(share[ch - 1] > 0)) continue;  // the object has no such band: the whole block skips it
      const int zo = ch * A.zero;
      const double2* from = cells + (ch == 0 ? B + 1 : ch - 1) * round + a;
      const int many = ch == 0 ? 2 * circles : circles;
      double2 v[16];
#pragma unroll
      for (int j = 0; j < 16; j++) v[j] = from[16 * j];
      if (many > 1) {
        const double2 turn = table(A.fold + comb + zo);
        double2 k = turn;
#pragma unroll 1
        for (int m = 1; m < many; m++) {
#pragma unroll
          for (int j = 0; j < 16; j++) {
            const double2 z = from[256 * m + 16 * j];
            v[j] = make_double2(fma(-k.y, z.y, fma(k.x, z.x, v[j].x)), fma(k.y, z.x, fma(k.x, z.y, v[j].y)));
          }
          k = make_double2(k.x * turn.x - k.y * turn.y, k.x * turn.y + k.y * turn.x);
        }
      }
      dft16<2>(v, [&](int i) { return table(Us + zo + i); });
      transpose_parts(ex, v, a);
      dft16<2>(v, [&](int i) { return table(Vs + zo + 16 * i); });
      if (ch == 0) {
#pragma unroll
        for (int d = 0; d < ND; d++) {
          const double k = table(D + zo + 16 * d), x = k * v[place(d)].x;
          cc[d] = 0.5 + x;
          ss[d] = 0.5 - x;
          cs[d] = k * v[place(d)].y;
        }
      } else if (ch <= B) {
#pragma unroll
        for (int d = 0; d < ND; d++) {
          const double k = table(D + zo + 16 * d), x = k * v[place(d)].x, y = k * v[place(d)].y;
          cc[d] = fma(-x, x, cc[d]);
          cs[d] = fma(-x, y, cs[d]);
          ss[d] = fma(-y, y, ss[d]);
        }
      } else {
#pragma unroll
        for (int d = 0; d < ND; d++) {
          const double k = table(D + zo + 16 * d), x = k * v[place(d)].x, y = k * v[place(d)].y;
          const double det = fma(cc[d], ss[d], -cs[d] * cs[d]), inverse = reciprocal(det);
          const double p = fma(ss[d], x, -cs[d] * y) * inverse,
                       q = fma(cc[d], y, -cs[d] * x) * inverse;  // the parameters
          const bool sound = det > PIVOT && fma(p, p, q * q) < limit;
          const int k0 = (a + 16 * d) * P + mine;
          if (a + 16 * d < WIDTH && mine < stop && base + k0 < nf) {
            out[k0] = sound ? fma(p, x, q * y) : missing64();
            odd |= !sound;
          }
        }
      }
    }
  }
  if (odd) A.odd[o] = 1;
}

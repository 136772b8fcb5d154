// Light curves in several bands: rows made ready, sums by banded combs, powers; and exact fits of single frequencies.
//
// A model has BAND_TERMS terms and a constant for each band, and TERMS terms (and, with CONSTANT, a constant) that all bands share;
// columns of the bands come first, so that a band touches the others through the common columns alone: bands are eliminated one
// after another (a front of their own columns and the common ones), then the common columns. The number of bands is known at run
// time.
//
// bands_rows: one block = one object; leaves out bands with too few rows, by a copy of the times. bands_centre: one block = one
// object, after ls_prepare: rows of each band in order, y centred on the band's own mean. Both: latency, microseconds a block.
// bands_offset: one term, a mean for each band. One block (4 warps) = one object and one band of 200 P frequencies, 8 of its P combs
// at a time, one a half warp (see ls_comb.cu for the comb). Channels: w of each band at f, w at 2 f, w y at f. Squares over the
// bands' weights are taken away as the bands' transforms come, so that a thread holds no more than with one band. For a frequency:
// (bands + 2) x 384 FMA x 16 / 200, some 10 a band and 30. Limit: as in ls_comb, the latency of the transforms at 168 registers.
// bands_comb: every other model. One block = one object and one band of P combs of 192 modes; a half warp a transform, sums meet in
// shared memory, a thread solves the equations of a frequency. Limit: latency of 12 warps a multiprocessor.
// bands_exact: one block = 256 powers of an object. Those that are not trusted (NaN), or all, are fitted by a warp each, in float64
// and, where the matrix is next to singular, in pairs of float64. Limit: some 20 operations a point and entry of the front.
//
// archs: 75 80 86 89 90 100 120
// build: offsets -DREAL=double -DTERMS=1 -DBAND_TERMS=0
// build: offsets2 -DREAL=double -DTERMS=2 -DBAND_TERMS=0
// build: separate -DREAL=double -DTERMS=0 -DBAND_TERMS=1
// build: flexible -DREAL=double -DTERMS=1 -DBAND_TERMS=1 -DCONSTANT=1
// budget: offsets kernel=bands_rows regs<=64 smem<=64
// budget: offsets kernel=bands_centre regs<=128 smem<=1024 spills<=16
// budget: offsets kernel=bands_offset regs<=168 smem<=64 spills<=160
// budget: offsets kernel=bands_exact regs<=168 smem<=2048 spills<=64
// budget: offsets2 kernel=bands_comb regs<=168 smem<=1024 spills<=64
// budget: separate kernel=bands_comb regs<=168 smem<=1024 spills<=64
// budget: separate kernel=bands_exact regs<=168 smem<=2048 spills<=64
// budget: flexible kernel=bands_comb regs<=168 smem<=1024 spills<=256
// budget: flexible kernel=bands_exact regs<=168 smem<=2048 spills<=64
// budget: flexible kernel=bands_weights regs<=96
#include "ls_common.cuh"
#include "ls_dft.cuh"

#ifndef TERMS
#define TERMS 1
#endif
#ifndef BAND_TERMS
#define BAND_TERMS 0
#endif
#ifndef CONSTANT
#define CONSTANT 0
#endif
#define OWN (1 + 2 * BAND_TERMS)                       // columns of a band
#define COMMON (CONSTANT + 2 * TERMS)                  // columns of all bands
#define MOST(a, b) ((a) > (b) ? (a) : (b))
#define AT_LEAST_ONE(x) MOST(x, 1)
#define BAND_W MOST(2 * BAND_TERMS, TERMS ? BAND_TERMS + TERMS : 0)      // w of each band at f, 2 f, ... as in chi2.tables
#define ALL_W MOST(2 * TERMS - BAND_W, 0)              // w of all bands at the harmonics beyond
#define BAND_Y BAND_TERMS                              // w y of each band
#define ALL_Y MOST(TERMS - BAND_TERMS, 0)
#define BAND_CHANNELS (BAND_W + BAND_Y)
#define ALL_CHANNELS (ALL_W + ALL_Y)
#define HARMONICS MOST(BAND_W, 2 * TERMS)
#define PIVOT 1e-8                    // pivots under this part of the weight are not trusted
#if TERMS + BAND_TERMS <= 4
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("unroll 1")
#endif
#define TRACE ((double)(CONSTANT + TERMS + 1 + BAND_TERMS))      // a cosine's and a sine's squares add up to the weight, which is 1

// Rows of an object, band after band: row pick[first[b] .. first[b + 1]) in order of time; share: 1 over the band's weight, or 0.
struct Bands { const int* pick; const int* first; const double* share; int bands; };

// ---------------------------------------------------------------- rows
struct Rows {
  const double* t; const double* y; const double* dy; const int* code; const int* offsets;
  double* kept; int* row; int bands, fewest;
};
#define FEWEST 4                      // rows of an object that has a status of its own: as in ls_prepare
extern "C" __global__ void __launch_bounds__(256) bands_rows(const Rows A) {
  extern __shared__ int count[];
  const int lo = A.offsets[blockIdx.x], n = A.offsets[blockIdx.x + 1] - lo, lane = threadIdx.x & 31;
  for (int i = threadIdx.x; i < n; i += blockDim.x) A.row[lo + i] = i;      // ls_prepare writes the order only where it sorts
  if (!A.kept) return;
  auto usable = [&](int i) { return isfinite(A.t[lo + i]) && isfinite(A.y[lo + i]) && (!A.dy || isfinite(A.dy[lo + i])); };
  for (int b = threadIdx.x >> 5; b < A.bands; b += blockDim.x >> 5) {
    int many = 0;
    for (int i = lane; i < n; i += 32) many += A.code[lo + i] == b && usable(i);
    for (int k = 16; k; k >>= 1) many += __shfl_xor_sync(FULL, many, k);
    if (!lane) count[b] = many;
  }
  int wrong = 0;                                          // an error that is not positive tells in any band
  for (int i = threadIdx.x; i < n; i += blockDim.x) wrong |= A.dy && A.dy[lo + i] <= 0;
  wrong = __syncthreads_or(wrong);
  int total = 0;
  for (int b = 0; b < A.bands; b++) total += count[b];
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    A.kept[lo + i] = wrong || total < FEWEST || count[A.code[lo + i]] >= A.fewest ? A.t[lo + i] : missing64();
}

struct Centre {
  const double* y; const double* dy; const int* code; const int* offsets; const int* row; double2* wv; Info* info;
  int* pick; int* first; double* share; int bands, scale_kind;
};
#define WARPS_CENTRE 8
// Sum or greatest over the block, the same in every thread; part: a number for each warp.
template <bool GREATEST> __device__ __forceinline__ double over_block(double v, double* part) {
  for (int k = 16; k; k >>= 1) { const double o = __shfl_xor_sync(FULL, v, k); v = GREATEST ? fmax(v, o) : v + o; }
  __syncthreads();
  if (!(threadIdx.x & 31)) part[threadIdx.x >> 5] = v;
  __syncthreads();
  v = part[0];
  for (int k = 1; k < WARPS_CENTRE; k++) v = GREATEST ? fmax(v, part[k]) : v + part[k];
  return v;
}
extern "C" __global__ void __launch_bounds__(32 * WARPS_CENTRE) bands_centre(const Centre A) {
  extern __shared__ double held[];                      // of each band: its first y, then its mean
  __shared__ double part[WARPS_CENTRE];
  const int o = blockIdx.x, lo = A.offsets[o], tid = threadIdx.x, lane = tid & 31, B = A.bands;
  Info info = A.info[o];
  if (info.status != 0) return;
  const int n = info.n;
  int* first = A.first + (size_t)o * (B + 1);
  double* share = A.share + (size_t)o * B;
  auto raw = [&](int i) { return A.y[lo + A.row[lo + i]]; };
  auto band = [&](int i) { return A.code[lo + A.row[lo + i]]; };
  double v = 0;
  for (int i = tid; i < n; i += blockDim.x) v = fmax(v, fabs(raw(i)));
  const double shrink = over_block<true>(v, part) > 1e150 ? 0x1p-600 : 1.0;
  for (int b = tid >> 5; b < B; b += WARPS_CENTRE) {    // numbers of rows, and the first one's y
    int many = 0, early = n;
    for (int i = lane; i < n; i += 32) if (band(i) == b) { many++; early = min(early, i); }
    for (int k = 16; k; k >>= 1) { many += __shfl_xor_sync(FULL, many, k); early = min(early, __shfl_xor_sync(FULL, early, k)); }
    if (!lane) { first[b + 1] = many; held[b] = early < n ? raw(early) * shrink : 0; }
  }
  __syncthreads();
  if (!tid) { first[0] = 0; for (int b = 0; b < B; b++) first[b + 1] += first[b]; }
  __syncthreads();
  v = 0;
  for (int i = tid; i < n; i += blockDim.x) v = fmax(v, fabs(raw(i) * shrink - held[band(i)]));
  v = over_block<true>(v, part);
  int exponent; frexp(v, &exponent);
  const double unit = v > 0 ? ldexp(1.0, exponent < -1000 ? 1000 : -exponent) : 1.0;      // a power of two: nothing is rounded
  for (int b = tid >> 5; b < B; b += WARPS_CENTRE) {
    int at = first[b];
    double own = 0, sum = 0;
    for (int i0 = 0; i0 < n; i0 += 32) {
      const int i = i0 + lane;
      const bool mine = i < n && band(i) == b;
      const unsigned who = __ballot_sync(FULL, mine);
      if (mine) {
        A.pick[lo + at + __popc(who & ((1u << lane) - 1))] = i;
        const double w = A.wv[lo + i].x;
        own += w; sum += w * ((raw(i) * shrink - held[b]) * unit);
      }
      at += __popc(who);
    }
    own = warp_sum(own); sum = warp_sum(sum);
    __syncwarp();
    if (!lane) { share[b] = own > 0 ? 1 / own : 0; held[B + b] = own > 0 ? sum / own : 0; }
  }
  __syncthreads();
  v = 0;
  for (int i = tid; i < n; i += blockDim.x) {
    const int b = band(i);
    const double w = A.wv[lo + i].x, d = (raw(i) * shrink - held[b]) * unit - held[B + b];
    A.wv[lo + i].y = w * d;
    v += w * d * d;
  }
  const double yy = over_block<false>(v, part), root = 1 / sqrt(yy);
  if (!(yy > 0)) { if (!tid) A.info[o].status = 4; return; }
  for (int i = tid; i < n; i += blockDim.x) A.wv[lo + i].y *= root;
  double weight = n;
  if (A.scale_kind == 1 && A.dy) {                      // the sum of dy^-2, relative to the smallest error: no unit overflows
    v = 0;
    for (int i = tid; i < n; i += blockDim.x) v = fmax(v, 1 / A.dy[lo + A.row[lo + i]]);
    const double best = over_block<true>(v, part);
    v = 0;
    for (int i = tid; i < n; i += blockDim.x) { const double r = 1 / A.dy[lo + A.row[lo + i]] / best; v += r * r; }
    weight = over_block<false>(v, part) * best * best;
  }
  if (!tid) {
    const double back = 1 / unit / shrink;
    A.info[o].scale = A.scale_kind ? 0.5 * weight * (yy * back * back) : 1.0;
  }
}

// ---------------------------------------------------------------- one term, a mean for each band
#define WIDTH 200                     // modes used of 256
#define ND 13                         // outputs a thread
#define THREADS_OFFSET 128
#define PAD (16 * 17 + 8)             // of a half warp's exchange: the two of a warp on different banks
#define CHUNK_OFFSET 256
struct Offset {
  const double* tp; const double2* wv; const int2* cell; const double* at_f; const double* at_2f; Bands rows;
  const int* offsets; const Info* info; const int* order; const int2* tasks;
  const double2* first; const double2* second; const double2* fold; const double* deconvolve;
  const double* f0; const double* df; const int* nf; const long long* start; double* power;
  double limit;
  int P, S, blocks, stretches, circles, grid_stride, zero;
};
// The table constants are read anew for each channel, the streamed weights past the first-level cache: as in ls_comb.
#if ON_DEVICE
__device__ __forceinline__ double stream(const double* p) { double v; asm("ld.global.nc.L1::no_allocate.f64 %0, [%1];" : "=d"(v) : "l"(p)); return v; }
__device__ __forceinline__ double2 table(const double2* p) { double2 v; asm volatile("ld.global.nc.v2.f64 {%0,%1}, [%2];" : "=d"(v.x), "=d"(v.y) : "l"(p)); return v; }
__device__ __forceinline__ double table(const double* p) { double v; asm volatile("ld.global.nc.f64 %0, [%1];" : "=d"(v) : "l"(p)); return v; }
#else
__device__ __forceinline__ double stream(const double* p) { return *p; }
template <typename X> __device__ __forceinline__ X table(const X* p) { return *p; }
#endif

#define ONE_SINUSOID (TERMS == 1 && BAND_TERMS == 0 && !CONSTANT)
extern "C" __global__ void __launch_bounds__(THREADS_OFFSET, 3) bands_offset(const __grid_constant__ Offset A) {
#if ONE_SINUSOID
  extern __shared__ __align__(16) unsigned char raw[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, h = lane & 1, a = lane >> 1;      // half warps are lanes of one parity
  const int part = blockIdx.x % A.blocks, task = blockIdx.x / A.blocks;
  int o, band;
  if (A.tasks) { const int2 t = A.tasks[task]; o = t.x; band = t.y; }
  else { o = A.order[task / A.stretches]; band = task % A.stretches; }
  const Info info = A.info[o];
  const int lo = A.offsets[o], n = info.n, gi = o * A.grid_stride, nf = A.nf[gi], P = A.P, B = A.rows.bands, circles = A.circles;
  const int base = band * WIDTH * P, r0 = part * A.S, stop = min(P, r0 + A.S);
  double* out = A.power + A.start[o] + base;
  if (info.status != 0) {
    for (int i = tid; i < WIDTH * (stop - r0); i += THREADS_OFFSET) {
      const int k = i / (stop - r0) * P + r0 + i % (stop - r0);
      if (base + k < nf) out[k] = missing64();
    }
    return;
  }
  const int round = 256 * circles, total = round * (B + 3);             // w of the bands, w y, w at 2 f (twice as many circles)
  double2* cells = (double2*)raw;
  double2* exchange = cells + total;
  const int* first = A.rows.first + (size_t)o * (B + 1);
  const double* share = A.rows.share + (size_t)o * B;
  for (int i = tid; i < total; i += THREADS_OFFSET) cells[i] = make_double2(0, 0);

  // ---- spreading. Rows are in order of time. Warp 0: w y, warp 1: w at 2 f, a half of the chunk each half warp; lane a keeps the
  // one cell of the window that is a modulo 16, and adds it when the window leaves it. Warps 2, 3: w of the bands, one after another.
  {
    double2* strength = exchange;                                       // of w, w y, w at 2 f, [3][CHUNK_OFFSET]
    int* cells1 = (int*)(strength + 3 * CHUNK_OFFSET);
    int* cells2 = cells1 + CHUNK_OFFSET;
    const Frequency centre = frequency_of(A.f0[gi], (double)base + (WIDTH / 2) * P, A.df[gi]);
    for (int c0 = 0; c0 < n; c0 += CHUNK_OFFSET) {
      const int count = min(CHUNK_OFFSET, n - c0), padded = (count + 7) & ~7;
      __syncthreads();
      for (int i = tid; i < padded; i += THREADS_OFFSET) {
        const int p = lo + c0 + min(i, count - 1);
        const double2 wv = i < count ? A.wv[p] : make_double2(0, 0);
        const int2 c = A.cell[p];
        cells1[i] = c.x; cells2[i] = c.y;
        double s, x; sincos_cycles(cycles(centre, A.tp[p]), s, x);
        const double half = 0.5 * wv.x;                                 // CC, SS, CS want w / 2
        strength[i] = make_double2(wv.x * x, wv.x * s);
        strength[CHUNK_OFFSET + i] = make_double2(wv.y * x, wv.y * s);
        strength[2 * CHUNK_OFFSET + i] = make_double2(half * (x * x - s * s), 2 * half * x * s);
      }
      __syncthreads();
      if (warp < 2) {
        const int middle = ((padded >> 1) + 7) & ~7, begin = h ? min(middle, padded) : 0, mine = h ? padded - begin : min(middle, padded);
        const double* weight = (warp ? A.at_2f : A.at_f) + (size_t)(lo + c0 + begin) * 16 + a;      // rows past the end are readable
        const int* in_cell = (warp ? cells2 : cells1) + begin;
        const double2* in = strength + (1 + warp) * CHUNK_OFFSET + begin;
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
          for (int u = 0; u < 8; u++) { k[u] = next[u]; next[u] = stream(weight + (i0 + 8 + u) * 16); }
#pragma unroll
          for (int u = 0; u < 8; u++) {
            const int c = in_cell[i0 + u], to = c + ((a - c) & 15);
            if (to != now) { const double2 g = G[now]; G[now] = make_double2(g.x + acc.x, g.y + acc.y); acc = make_double2(0, 0); now = to; }
            const double2 s = in[i0 + u];
            acc.x = fma(k[u], s.x, acc.x); acc.y = fma(k[u], s.y, acc.y);
          }
        }
        // the later half's last window, then the earlier one's, which the later half may have begun in
        for (int who = 1; who >= 0; who--) {
          __syncwarp();
          if (h == who && mine > 0) { const double2 g = G[now]; G[now] = make_double2(g.x + acc.x, g.y + acc.y); }
        }
      } else {
        for (int b = (warp - 2) * 2 + h; b < B; b += 4) {
          const int* list = A.rows.pick + lo;
          int j = first[b], end = first[b + 1];
          if (c0)                                                       // the first row of the chunk
            for (int high = end; j < high;) { const int middle = (j + high) >> 1; if (list[middle] < c0) j = middle + 1; else high = middle; }
          double2* G = cells + b * round;
          const double* weight = A.at_f + (size_t)(lo + c0) * 16 + a;
          for (; j < end; j += 4) {
            int i[4]; double k[4];
#pragma unroll
            for (int u = 0; u < 4; u++) { i[u] = j + u < end ? list[j + u] - c0 : count; if (i[u] > count) i[u] = count; }
#pragma unroll
            for (int u = 0; u < 4; u++) k[u] = i[u] < count ? stream(weight + i[u] * 16) : 0;
#pragma unroll
            for (int u = 0; u < 4; u++)
              if (i[u] < count) {
                const int c = cells1[i[u]], to = c + ((a - c) & 15);
                const double2 s = strength[i[u]], g = G[to];
                G[to] = make_double2(fma(k[u], s.x, g.x), fma(k[u], s.y, g.y));
              }
            if (i[3] >= count) break;
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
  const double limit = n < 2 + nonzero ? 0 : A.limit * sqrt((double)n);        // too few points are no matter of rounding
#pragma unroll 1
  for (int s0 = r0; s0 < stop; s0 += 8) {
    const int mine = s0 + (warp * 2 + h), comb = min(mine, P - 1);
    const double2* Us = A.first + comb * 8; const double2* Vs = A.second + comb * 128 + a; const double* D = A.deconvolve + comb * (16 * ND) + a;
    double cc[ND], ss[ND], cs[ND];
#pragma unroll 1
    for (int ch = 0; ch < B + 2; ch++) {
      const double scale = ch == 0 || ch > B ? 1.0 : share[ch - 1];
      if (!(scale > 0)) continue;                          // the object has no such band: the whole block goes on
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
          for (int j = 0; j < 16; j++) { const double2 z = from[256 * m + 16 * j];
            v[j] = make_double2(fma(-k.y, z.y, fma(k.x, z.x, v[j].x)), fma(k.y, z.x, fma(k.x, z.y, v[j].y))); }
          k = make_double2(k.x * turn.x - k.y * turn.y, k.x * turn.y + k.y * turn.x);
        }
      }
      dft16<true>(v, [&](int i) { return table(Us + zo + i); });
      double re[16];
      __syncwarp();
#pragma unroll
      for (int b = 0; b < 16; b++) ex[b * 17 + a] = v[place(b)].x;
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 16; j++) re[j] = ex[a * 17 + j];
      __syncwarp();
#pragma unroll
      for (int b = 0; b < 16; b++) ex[b * 17 + a] = v[place(b)].y;
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 16; j++) v[j] = make_double2(re[j], ex[a * 17 + j]);
      dft16<true>(v, [&](int i) { return table(Vs + zo + 16 * i); });
      if (ch == 0) {
#pragma unroll
        for (int d = 0; d < ND; d++) {
          const double k = table(D + zo + 16 * d), x = k * v[place(d)].x;
          cc[d] = 0.5 + x; ss[d] = 0.5 - x; cs[d] = k * v[place(d)].y;
        }
      } else if (ch <= B) {
#pragma unroll
        for (int d = 0; d < ND; d++) {
          const double k = table(D + zo + 16 * d), x = k * v[place(d)].x, y = k * v[place(d)].y, u = scale * x;
          cc[d] = fma(-u, x, cc[d]); cs[d] = fma(-u, y, cs[d]); ss[d] = fma(-scale * y, y, ss[d]);
        }
      } else {
#pragma unroll
        for (int d = 0; d < ND; d++) {
          const double k = table(D + zo + 16 * d), x = k * v[place(d)].x, y = k * v[place(d)].y;
          const double det = fma(cc[d], ss[d], -cs[d] * cs[d]), inverse = reciprocal(det);
          const double p = fma(ss[d], x, -cs[d] * y) * inverse, q = fma(cc[d], y, -cs[d] * x) * inverse;      // the parameters
          const bool sound = det > PIVOT && fma(p, p, q * q) < limit;
          const int k0 = (a + 16 * d) * P + mine;
          if (a + 16 * d < WIDTH && mine < stop && base + k0 < nf) out[k0] = sound ? fma(p, x, q * y) : missing64();
        }
      }
    }
  }
#endif
}

// ---------------------------------------------------------------- other models: weights of every harmonic
struct Weights {
  const double* tp; const int* owner; const double* taps; const double* df; const Limit* limit; int* cell; double* weight;
  int rows, stride, grid_stride;       // stride: rows of a harmonic in cell and weight
};
extern "C" __global__ void __launch_bounds__(256) bands_weights(const Weights A) {
  const int a = threadIdx.x & 15;
  const long long p = (long long)blockIdx.x * 16 + (threadIdx.x >> 4);
  double c[16];
#pragma unroll
  for (int k = 0; k < 16; k++) c[k] = A.taps[k * 16 + a];
  const int owner = p < A.rows ? A.owner[p] : -1;
  const double circle = owner < 0 ? 0 : A.limit[owner].circle;
  if (!(circle > 0)) return;
  const double place = fma(A.tp[p], circle * A.df[owner * A.grid_stride], 8.0);      // 8: every tap falls on a cell >= 0
#pragma unroll 1
  for (int m = 0; m < HARMONICS; m++) {
    const double x = (m + 1) * place - 8.0, start = ceil(x), u = 2 * (start - x) - 1;
    double v = c[15];
#pragma unroll
    for (int k = 14; k >= 0; k--) v = fma(v, u, c[k]);
    const size_t at = (size_t)m * A.stride + p;
    A.weight[at * 16 + ((a + (int)start) & 15)] = v;          // lane order: the lane is the cell modulo 16
    if (!a) A.cell[at] = (int)start;
  }
}

// ---------------------------------------------------------------- other models: combs
struct Comb {
  const double* tp; const double2* wv; const int* cell; const double* weight; Bands rows;
  const int* offsets; const Info* info; const int* order; const int2* tasks;
  const double2* first; const double2* second; const double2* fold; const double* deconvolve;
  const double* f0; const double* df; const int* nf; const long long* start; double* power;
  double limit, penalty, band_penalty;
  int P, G, stretches, stride, grid_stride, room, slots, regularised;      // room: complex cells of all channels that the block was given
};
#define MODES 192
#define OUT 12
#define THREADS 384
#define HALVES (THREADS / 16)
#define CHUNK 64
#define SLOT MODES                    // complex numbers of one transform's slot: outputs, and before that its exchange

// Column i of a band, or of all: harmonic, and whether it is a sine. Without a constant the first column is the cosine at f.
__device__ __forceinline__ int harmonic_of(int i, bool constant) { return constant ? (i + 1) >> 1 : (i >> 1) + 1; }
__device__ __forceinline__ bool sine_of(int i, bool constant) { return constant ? i && !(i & 1) : i & 1; }
// Sum of w times two columns, from h, g: half the sums of w cos and w sin at 0, f, 2 f, ...
__device__ __forceinline__ double entry(const double* h, const double* g, int k, bool odd, int l, bool also) {
  const int low = k > l ? k - l : l - k;
  const double turn = k >= l ? g[low] : -g[low];
  if (odd == also) return odd ? h[low] - h[k + l] : h[low] + h[k + l];
  return odd ? g[k + l] + turn : g[k + l] - turn;
}

// The power from the sums of one frequency, S[channel * SLOT]; missing where it is not trusted.
__device__ __forceinline__ double solved(const double2* S, int B, const double* share, double penalty, double band_penalty, double limit) {
  constexpr int K = AT_LEAST_ONE(COMMON);
  double R[K][K], right[K], beta[K], power = 0, squares = 0;
  bool sound = true;
  if (COMMON > 0) {                    // the common columns' own equations
    double h[2 * TERMS + 1], g[2 * TERMS + 1];
    h[0] = 0.5; g[0] = 0;
UNROLL
    for (int m = 1; m <= 2 * TERMS; m++) {
      double x = 0, y = 0;
      if (m <= BAND_W) for (int b = 0; b < B; b++) { const double2 v = S[(b * BAND_CHANNELS + m - 1) * SLOT]; x += v.x; y += v.y; }
      else { const double2 v = S[(B * BAND_CHANNELS + m - 1 - BAND_W) * SLOT]; x = v.x; y = v.y; }
      h[m] = 0.5 * x; g[m] = 0.5 * y;
    }
UNROLL
    for (int i = 0; i < COMMON; i++) {
      right[i] = 0;
UNROLL
      for (int j = 0; j <= i; j++)
        R[i][j] = entry(h, g, harmonic_of(i, CONSTANT), sine_of(i, CONSTANT), harmonic_of(j, CONSTANT), sine_of(j, CONSTANT));
      R[i][i] += penalty * TRACE;
    }
UNROLL
    for (int k = 1; k <= TERMS; k++) {
      double x = 0, y = 0;
      if (k <= BAND_Y) for (int b = 0; b < B; b++) { const double2 v = S[(b * BAND_CHANNELS + BAND_W + k - 1) * SLOT]; x += v.x; y += v.y; }
      else { const double2 v = S[(B * BAND_CHANNELS + ALL_W + k - 1 - BAND_Y) * SLOT]; x = v.x; y = v.y; }
      right[CONSTANT + 2 * k - 2] = x; right[CONSTANT + 2 * k - 1] = y;
    }
  }
  // first pass: bands out of the common equations; second, where bands have terms: their parameters, once the common are known
#pragma unroll 1
  for (int pass = 0; pass < (COMMON > 0 && BAND_TERMS > 0 ? 2 : 1); pass++) {
#pragma unroll 1
    for (int b = 0; b < B; b++) {
      if (!(share[b] > 0)) continue;
      const double weight = 1 / share[b];
      const double2* own = S + b * BAND_CHANNELS * SLOT;
      double h[AT_LEAST_ONE(BAND_W) + 1], g[AT_LEAST_ONE(BAND_W) + 1], L[OWN + COMMON][OWN], inverse[OWN], z[OWN];
      h[0] = 0.5 * weight; g[0] = 0;
UNROLL
      for (int m = 1; m <= BAND_W; m++) { const double2 v = own[(m - 1) * SLOT]; h[m] = 0.5 * v.x; g[m] = 0.5 * v.y; }
UNROLL
      for (int i = 0; i < OWN + COMMON; i++) {
        const int k = i < OWN ? harmonic_of(i, true) : harmonic_of(i - OWN, CONSTANT);
        const bool odd = i < OWN ? sine_of(i, true) : sine_of(i - OWN, CONSTANT);
        double u[OWN];
UNROLL
        for (int j = 0; j < (i < OWN ? i + 1 : OWN); j++) {
          double e = entry(h, g, k, odd, harmonic_of(j, true), sine_of(j, true));
          if (i == j) e += band_penalty * TRACE;
UNROLL
          for (int q = 0; q < j; q++) e = fma(-u[q], j == i ? L[i][q] : L[j][q], e);
          u[j] = e;
          if (j < i) L[i][j] = e * inverse[j];
        }
        if (i < OWN) {
          sound = sound && u[i] > PIVOT * weight;
          inverse[i] = reciprocal(u[i]);
          double e = 0;                                          // y is centred: nothing stands on the constant's right
          if (i) { const double2 v = own[(BAND_W + k - 1) * SLOT]; e = odd ? v.y : v.x; }
UNROLL
          for (int q = 0; q < i; q++) e = fma(-L[i][q], z[q], e);
          z[i] = e;
          if (!pass) power = fma(e * inverse[i], e, power);
        } else if (!pass) {
UNROLL
          for (int q = 0; q < OWN; q++) {
            right[i - OWN] = fma(-L[i][q], z[q], right[i - OWN]);
UNROLL
            for (int j = 0; j <= i - OWN; j++) R[i - OWN][j] = fma(-u[q], L[OWN + j][q], R[i - OWN][j]);
          }
        }
      }
      if (BAND_TERMS > 0 && (pass || !COMMON)) {
UNROLL
        for (int i = OWN - 1; i >= 0; i--) {
          double e = z[i] * inverse[i];
UNROLL
          for (int q = i + 1; q < OWN; q++) e = fma(-L[q][i], z[q], e);       // z[q]: already the parameter
UNROLL
          for (int q = 0; q < COMMON; q++) e = fma(-L[OWN + q][i], beta[q], e);
          z[i] = e;
          squares = fma(e, e, squares);
        }
      }
    }
    if (COMMON > 0 && !pass) {
      double inverse[K];
UNROLL
      for (int i = 0; i < COMMON; i++) {
        double u[K];
UNROLL
        for (int j = 0; j <= i; j++) {
          double e = R[i][j];
UNROLL
          for (int q = 0; q < j; q++) e = fma(-u[q], j == i ? R[i][q] : R[j][q], e);
          u[j] = e;
          if (j < i) R[i][j] = e * inverse[j];
        }
        sound = sound && u[i] > PIVOT;
        inverse[i] = reciprocal(u[i]);
        double e = right[i];
UNROLL
        for (int q = 0; q < i; q++) e = fma(-R[i][q], right[q], e);
        right[i] = e;
        power = fma(e * inverse[i], e, power);
      }
UNROLL
      for (int i = COMMON - 1; i >= 0; i--) {
        double e = right[i] * inverse[i];
UNROLL
        for (int q = i + 1; q < COMMON; q++) e = fma(-R[q][i], beta[q], e);
        beta[i] = e;
        squares = fma(e, e, squares);
      }
    }
  }
  return sound && squares < limit ? power : missing64();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) bands_comb(const __grid_constant__ Comb A) {
#if !ONE_SINUSOID
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int circles[HARMONICS];
  const int tid = threadIdx.x, half = tid >> 4, a = tid & 15;
  int o, stretch;
  if (A.tasks) { const int2 t = A.tasks[blockIdx.x]; o = t.x; stretch = t.y; }
  else { o = A.order[blockIdx.x / A.stretches]; stretch = blockIdx.x % A.stretches; }
  const Info info = A.info[o];
  const int lo = A.offsets[o], n = info.n, gi = o * A.grid_stride, nf = A.nf[gi], P = A.P, G = A.G, B = A.rows.bands;
  const int base = stretch * MODES * P, channels = B * BAND_CHANNELS + ALL_CHANNELS;
  double* out = A.power + A.start[o];
  if (info.status != 0) {
    for (int i = base + tid; i < min(nf, base + MODES * P); i += THREADS) out[i] = missing64();
    return;
  }
  const double f0 = A.f0[gi], df = A.df[gi];
  const int* pick = A.rows.pick + lo;
  const int* first = A.rows.first + (size_t)o * (B + 1);
  const double* share = A.rows.share + (size_t)o * B;
  double2* cells = (double2*)raw;
  double2* slots = cells + A.room;
  int* from = (int*)(slots + (size_t)A.slots * SLOT);          // first cell of each channel
  // harmonic of a channel, and its rows
  auto of_w = [&](int c) { return c < B * BAND_CHANNELS ? c % BAND_CHANNELS < BAND_W : c - B * BAND_CHANNELS < ALL_W; };
  auto harmonic = [&](int c) {
    if (c < B * BAND_CHANNELS) { const int m = c % BAND_CHANNELS; return m < BAND_W ? m : m - BAND_W; }
    c -= B * BAND_CHANNELS;
    return c < ALL_W ? BAND_W + c : BAND_Y + c - ALL_W;
  };
  for (int m = tid; m < HARMONICS; m += THREADS) {             // the last point in time is that of the largest cell
    int last = 0;
    for (int b = 0; b < B; b++)
      if (first[b] < first[b + 1]) last = max(last, A.cell[(size_t)m * A.stride + lo + pick[first[b + 1] - 1]]);
    circles[m] = ((last + 15) >> 8) + 1;
  }
  __syncthreads();
  if (!tid) {
    int at = 0;
    for (int c = 0; c < channels; c++) { from[c] = at; at += 256 * circles[harmonic(c)]; }
    from[channels] = at;
  }
  __syncthreads();
  for (int i = tid; i < from[channels]; i += THREADS) cells[i] = make_double2(0, 0);

  // ---- spreading: points band after band, a half warp a channel; lane a adds to the one cell that is a modulo 16
  {
    double2* turn = slots;                                              // cos, sin of every harmonic, [harmonic][CHUNK]
    double2* strength = turn + HARMONICS * CHUNK;
    int* row = (int*)(strength + CHUNK);
    const Frequency centre = frequency_of(f0, ((double)stretch * MODES + MODES / 2) * P, df);
    for (int c0 = 0; c0 < n; c0 += CHUNK) {
      const int count = min(CHUNK, n - c0);
      __syncthreads();
      for (int i = tid; i < count; i += THREADS) {
        const int p = lo + pick[c0 + i];
        row[i] = p; strength[i] = A.wv[p];
        double s, c; sincos_cycles(cycles(centre, A.tp[p]), s, c);
        double x = c, y = s;
        for (int k = 0; k < HARMONICS; k++) {
          turn[k * CHUNK + i] = make_double2(x, y);
          const double next = x * c - y * s; y = x * s + y * c; x = next;
        }
      }
      __syncthreads();
      for (int ch = channels - 1 - half; ch >= 0; ch -= HALVES) {       // those of all rows first
        const int m = harmonic(ch), b = ch / AT_LEAST_ONE(BAND_CHANNELS);
        const bool whole = ch >= B * BAND_CHANNELS, w = of_w(ch);
        const int begin = whole ? 0 : max(0, first[b] - c0), end = whole ? count : min(count, first[b + 1] - c0);
        double2* W = cells + from[ch];
        const double* weight = A.weight + (size_t)m * A.stride * 16 + a;
        const int* cell = A.cell + (size_t)m * A.stride;
        const double2* e = turn + m * CHUNK;
        for (int i0 = begin; i0 < end; i0 += 4) {
          double k[4]; int to[4];
#pragma unroll
          for (int u = 0; u < 4; u++) {
            const int i = min(i0 + u, end - 1), p = row[i], c = cell[p];
            k[u] = i0 + u < end ? __ldg(weight + (size_t)p * 16) * (w ? strength[i].x : strength[i].y) : 0;
            to[u] = c + ((a - c) & 15);
          }
#pragma unroll
          for (int u = 0; u < 4; u++) {
            const double2 g = W[to[u]], s = e[min(i0 + u, end - 1)];
            W[to[u]] = make_double2(fma(k[u], s.x, g.x), fma(k[u], s.y, g.y));
          }
        }
      }
    }
  }
  __syncthreads();

  int columns = COMMON;
  for (int b = 0; b < B; b++) columns += first[b] < first[b + 1] ? OWN : 0;
  const double limit = n < columns && !A.regularised ? 0 : A.limit * sqrt((double)n);      // too few points are no matter of rounding
  const int items = G * channels;
  for (int r0 = 0; r0 < P; r0 += G) {
    for (int item0 = half & ~1; item0 < items; item0 += HALVES) {
      const int mine = item0 + (half & 1), item = min(mine, items - 1), ch = item % channels, comb = r0 + item / channels;
      double2* slot = slots + mine * SLOT;                     // an even number of them: a half warp without work has its own
      double* ex = (double*)slot;
      const double2* g = cells + from[ch] + a;
      double2 v[16];
#pragma unroll
      for (int j = 0; j < 16; j++) v[j] = g[16 * j];
      const int many = circles[harmonic(ch)];
      if (many > 1) {
        const double2 step = A.fold[comb];
        double2 k = step;
        for (int c = 1; c < many; c++) {
          g += 256;
#pragma unroll
          for (int j = 0; j < 16; j++) {
            const double2 x = g[16 * j];
            v[j] = make_double2(fma(-k.y, x.y, fma(k.x, x.x, v[j].x)), fma(k.y, x.x, fma(k.x, x.y, v[j].y)));
          }
          k = make_double2(k.x * step.x - k.y * step.y, k.x * step.y + k.y * step.x);
        }
      }
      const double2* U = A.first + comb * 8; const double2* V = A.second + comb * 128 + a;
      dft16<true>(v, [&](int i) { return __ldg(U + i); });
      double re[16];
#pragma unroll
      for (int b = 0; b < 16; b++) ex[b * 17 + a] = v[place(b)].x;
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 16; j++) re[j] = ex[a * 17 + j];
      __syncwarp();
#pragma unroll
      for (int b = 0; b < 16; b++) ex[b * 17 + a] = v[place(b)].y;
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 16; j++) v[j] = make_double2(re[j], ex[a * 17 + j]);
      dft16<true>(v, [&](int i) { return __ldg(V + 16 * i); });
      __syncwarp();
      const double* D = A.deconvolve + comb * MODES + a;
#pragma unroll
      for (int d = 0; d < OUT; d++) { const double k = __ldg(D + 16 * d); slot[a + 16 * d] = make_double2(k * v[place(d)].x, k * v[place(d)].y); }
      __syncwarp();
    }
    __syncthreads();
    for (int i = tid; i < G * MODES; i += THREADS) {
      const int q = i % MODES, k = base + q * P + r0 + i / MODES;
      const double p = solved(slots + (size_t)(i / MODES) * channels * SLOT + q, B, share, A.penalty, A.band_penalty, limit);
      if (k < nf) out[k] = p;
    }
    __syncthreads();
  }
#endif
}

// ---------------------------------------------------------------- exact fits
struct Exact {
  const double* tp; const double2* wv; Bands rows; const int* offsets; const Info* info; const int* order; const int2* tasks;
  const double* f0; const double* df; const int* nf; const double* frequencies; const long long* start; double* power;
  double penalty, band_penalty;
  int members, blocks, grid_stride, all, regularised;
};
#define SPAN 256
#define FRONT (OWN + COMMON)                                    // columns of a band's front; the right-hand side is its last row
#define WARPS (FRONT <= 18 ? 4 : 1)
#define TRIANGLE(columns) (((columns) + 1) * ((columns) + 2) / 2 - 1)
#define ENTRIES TRIANGLE(FRONT)
#define BASE TRIANGLE(COMMON)
#define PER_LANE ((ENTRIES + 31) / 32)
#define ROW (FRONT + 1)
#define NEAR_SINGULAR 1e-6      // parts of the columns' squares that are left, multiplied: below, pairs of float64 are needed

// Pairs of float64: a value and what is left of it.
__device__ __forceinline__ double rounded(double a, double b) {
#if ON_DEVICE
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ __forceinline__ double2 two_sum(double a, double b) { const double s = a + b, t = s - a; return make_double2(s, (a - (s - t)) + (b - t)); }
__device__ __forceinline__ double2 plus(double2 a, double high, double low) {
  double2 s = two_sum(a.x, high);
  s.y += a.y + low;
  return two_sum(s.x, s.y);
}
__device__ __forceinline__ double2 less_product(double2 a, double2 b, double2 c) {
  const double p = rounded(b.x, c.x);
  return plus(a, -p, -(fma(b.x, c.x, -p) + fma(b.x, c.y, rounded(b.y, c.x))));
}
__device__ __forceinline__ double2 ratio(double2 a, double2 b) {
  const double q = a.x / b.x;
  const double2 left = less_product(a, make_double2(q, 0), b);
  return two_sum(q, left.x / b.x);
}
__device__ __forceinline__ void place_of(int at, int& i, int& j) { i = 0; while (at > i) { at -= i + 1; i++; } j = at; }
__device__ __forceinline__ int at_of(int i, int j) { return i * (i + 1) / 2 + j; }

// Takes the first `pivots` columns out of a matrix of `columns` and a right-hand side, by one warp; false where one of them is
// nearly a combination of those before it. own: squares of the columns; left: the product of the parts that remain of them.
template <bool PAIRS> __device__ __forceinline__ bool eliminate(double2* matrix, int columns, int pivots, const double* own, double& left, double& power) {
  const int lane = threadIdx.x & 31, entries = TRIANGLE(columns);
  for (int j = 0; j < pivots; j++) {
    const double2 pivot = matrix[at_of(j, j)], z = matrix[at_of(columns, j)];
    if (!(pivot.x > SINGULAR * own[j] + COLUMN_NOISE * TRACE)) return false;      // all lanes alike
    left *= pivot.x / own[j];
    if (!PAIRS && !(left > NEAR_SINGULAR)) return false;
    power = fma(z.x / pivot.x, z.x, power);
    __syncwarp();
    for (int e = lane; e < entries; e += 32) {
      int i, k; place_of(e, i, k);
      if (k <= j) continue;
      const double2 x = matrix[at_of(i, j)], y = matrix[at_of(k, j)];
      if constexpr (PAIRS) matrix[e] = less_product(matrix[e], ratio(x, pivot), y);
      else matrix[e].x = fma(-x.x / pivot.x, y.x, matrix[e].x);
    }
    __syncwarp();
  }
  return true;
}

// Standard power by one warp; missing where a column is too near the ones before it. rows: 32 x ROW; front: ENTRIES, base: BASE
// pairs; own: FRONT squares of a band's columns, then COMMON of the common ones.
template <bool PAIRS> __device__ __noinline__ double exact_fit(const double* t, const double2* wv, Bands by, Frequency f, double penalty, double band_penalty, double* rows, double2* front, double2* base, double* own) {
  const int lane = threadIdx.x & 31;
  double* squares = own + FRONT;
  for (int e = lane; e < BASE; e += 32) base[e] = make_double2(0, 0);
  for (int i = lane; i < COMMON; i += 32) squares[i] = 0;
  double power = 0, left = 1;
  for (int b = 0; b < by.bands; b++) {
    const int begin = by.first[b], end = by.first[b + 1];
    if (begin == end) continue;        // its columns are nought
    double2 sum[PER_LANE];
    for (int e = 0; e < PER_LANE; e++) sum[e] = make_double2(0, 0);
    for (int p0 = begin; p0 < end; p0 += 32) {
      double* mine = rows + lane * ROW;
      double root = 0, y = 0, c = 1, s = 0;
      if (p0 + lane < end) {
        const int p = by.pick[p0 + lane];
        const double2 v = wv[p];
        root = sqrt(v.x); y = root > 0 ? v.y / root : 0;
        sincos_cycles(cycles(f, t[p]), s, c);
      }
      __syncwarp();
      mine[0] = root;
      if (CONSTANT) mine[OWN] = root;
      double u = c, v = s;
      for (int k = 0; k < MOST(TERMS, BAND_TERMS); k++) {
        if (k < BAND_TERMS) { mine[1 + 2 * k] = root * u; mine[2 + 2 * k] = root * v; }
        if (k < TERMS) { mine[OWN + CONSTANT + 2 * k] = root * u; mine[OWN + CONSTANT + 2 * k + 1] = root * v; }
        const double next = u * c - v * s; v = u * s + v * c; u = next;
      }
      mine[FRONT] = y;
      __syncwarp();
      const int many = min(32, end - p0);
      for (int e = 0; e < PER_LANE; e++) {
        if (lane + 32 * e >= ENTRIES) continue;
        int i, j; place_of(lane + 32 * e, i, j);
        const double* x = rows + i; const double* z = rows + j;
        double2 total = sum[e];
        for (int q = 0; q < many; q++) {
          if constexpr (PAIRS) { const double r = rounded(x[q * ROW], z[q * ROW]); total = plus(total, r, fma(x[q * ROW], z[q * ROW], -r)); }
          else total.x = fma(x[q * ROW], z[q * ROW], total.x);
        }
        sum[e] = total;
      }
    }
    __syncwarp();
    for (int e = 0; e < PER_LANE; e++) {
      if (lane + 32 * e >= ENTRIES) continue;
      int i, j; place_of(lane + 32 * e, i, j);
      if (i == j && i < OWN) { sum[e] = plus(sum[e], band_penalty * TRACE, 0); own[i] = sum[e].x; }
      if (i == j && i >= OWN) squares[i - OWN] += sum[e].x;
      front[lane + 32 * e] = sum[e];
    }
    __syncwarp();
    if (!eliminate<PAIRS>(front, FRONT, OWN, own, left, power)) return missing64();
    for (int e = lane; e < BASE; e += 32) {
      int i, j; place_of(e, i, j);
      const double2 x = front[at_of(i + OWN, j + OWN)];
      base[e] = plus(base[e], x.x, x.y);
    }
    __syncwarp();
  }
  for (int i = lane; i < COMMON; i += 32) { base[at_of(i, i)] = plus(base[at_of(i, i)], penalty * TRACE, 0); squares[i] += penalty * TRACE; }
  __syncwarp();
  return eliminate<PAIRS>(base, COMMON, COMMON, squares, left, power) ? power : missing64();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) bands_exact(const Exact A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int list[SPAN];
  __shared__ int many;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, B = A.rows.bands;
  double2* front = (double2*)raw + warp * (ENTRIES + BASE);
  double* rows = (double*)((double2*)raw + WARPS * (ENTRIES + BASE)) + warp * (32 * ROW + FRONT + COMMON);
  int o, block;                        // the shortest objects first: theirs are the most fits
  if (A.tasks) { const int2 t = A.tasks[gridDim.x - 1 - blockIdx.x]; o = t.x; block = t.y; }
  else { o = A.order[A.members - 1 - blockIdx.x / A.blocks]; block = blockIdx.x % A.blocks; }
  const Info info = A.info[o];
  const int gi = o * A.grid_stride, nf = A.nf[gi], begin = block * SPAN, total = min(SPAN, nf - begin), lo = A.offsets[o];
  double* out = A.power + A.start[o] + begin;
  const Bands by = {A.rows.pick + lo, A.rows.first + (size_t)o * (B + 1), A.rows.share + (size_t)o * B, B};
  bool hopeless = info.status != 0;
  if (!hopeless && !A.regularised) {   // fewer points than columns
    int columns = COMMON;
    for (int b = 0; b < B; b++) columns += by.first[b] < by.first[b + 1] ? OWN : 0;
    hopeless = info.n < columns;
  }
  if (hopeless) {
    if (A.all) for (int i = tid; i < total; i += 32 * WARPS) out[i] = missing64();
    return;
  }
  if (!tid) many = 0;
  __syncthreads();
  for (int i = tid; i < total; i += 32 * WARPS) {
    const double p = A.all ? missing64() : out[i];
    if (!(p == p)) list[atomicAdd(&many, 1)] = i;
  }
  __syncthreads();
  for (int k = warp; k < many; k += WARPS) {
    const int i = list[k];
    const Frequency f = A.frequencies ? Frequency{A.frequencies[begin + i], 0} : frequency_of(A.f0[gi], (double)(begin + i), A.df[gi]);
    double p = exact_fit<false>(A.tp + lo, A.wv + lo, by, f, A.penalty, A.band_penalty, rows, front, front + ENTRIES, rows + 32 * ROW);
    __syncwarp();
    if (!(p == p)) p = exact_fit<true>(A.tp + lo, A.wv + lo, by, f, A.penalty, A.band_penalty, rows, front, front + ENTRIES, rows + 32 * ROW);
    if (!lane) out[i] = p;
    __syncwarp();
  }
}

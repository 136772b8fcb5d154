// Series of several Fourier terms: sums at m f by banded combs, normal equations, powers; and exact fits of single frequencies.
//
// chi2_comb: one block = one object and one band of P combs of 192 modes (see ls_comb.cu for the comb). A sum at m f is the comb's
// transform with positions and phases m times as large: its cells wind round m times as many circles. All harmonics are spread
// once (a half warp = a harmonic and a third or so of the points), then G combs at a time are transformed (a half warp = one
// transform), their sums meet in shared memory, and a thread solves the normal equations of a frequency in registers. For n terms
// and a frequency: 3 n x 32 multiply-adds of transforms, about (2 n)^3 / 6 + 4 (2 n)^2 of equations, 2 n x 128 B of weights a point
// and band from the second-level cache. Limit: latency of one block of 12 warps a multiprocessor (registers of the transforms, shared
// memory of the cells).
// chi2_exact: one block = 256 powers of an object. Those that are not trusted (NaN), or all, are fitted by a warp each from sums over
// all points; where that matrix is next to singular too, from sums in pairs of float64, so that what the squaring loses is there.
// chi2_find: one block = 2048 powers, normalised and searched for peaks. Both are limited by memory (8 bytes a power read) where
// few are fitted.
//
// archs: 75 80 86 89 90 100 120
// build: t0 -DREAL=double -DTERMS=0
// build: t2 -DREAL=double -DTERMS=2
// build: t4 -DREAL=double -DTERMS=4
// budget: t2 kernel=chi2_comb regs<=168 smem<=1024 spills<=0
// budget: t4 kernel=chi2_comb regs<=168 smem<=1024 spills<=256
// budget: t0 kernel=chi2_exact regs<=168 smem<=2048 spills<=64
// budget: t2 kernel=chi2_exact regs<=168 smem<=2048 spills<=64
// budget: t4 kernel=chi2_exact regs<=168 smem<=2048 spills<=64
// budget: t4 kernel=chi2_find regs<=64 smem<=17408
// budget: t4 kernel=chi2_weights regs<=96
#include "ls_common.cuh"
#include "ls_dft.cuh"

#ifndef TERMS
#define TERMS 4
#endif
#define HARMONICS (2 * TERMS)
#define CHANNELS (3 * TERMS)         // w at f, 2 f, ..., then w y at f, 2 f, ...
#define AT_LEAST_ONE(x) ((x) > 0 ? (x) : 1)
#define MODES 192
#define OUT 12
#define THREADS 384
#define HALVES (THREADS / 16)
#define SEGMENTS (HARMONICS > 0 && HARMONICS < HALVES ? HALVES / HARMONICS : 1)
#define CHUNK 64
#define SLOT MODES                    // complex numbers of one transform's slot: outputs, and before that its exchange
#define COEFFICIENTS 16
#define PIVOT 1e-8                    // pivots under this part of the weight are not trusted
#if TERMS <= 6
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("unroll 1")
#endif

// ---------------------------------------------------------------- weights of the spreading kernel
struct Weights {
  const double* tp; const int* owner; const double* taps; const double* df; const Limit* limit; int* cell; double* weight;
  int rows, stride, grid_stride;       // stride: rows of a harmonic in cell and weight
};
extern "C" __global__ void __launch_bounds__(256) chi2_weights(const Weights A) {
  const int a = threadIdx.x & 15;
  const long long p = (long long)blockIdx.x * 16 + (threadIdx.x >> 4);
  double c[COEFFICIENTS];
#pragma unroll
  for (int k = 0; k < COEFFICIENTS; k++) c[k] = A.taps[k * 16 + a];
  if (p >= A.stride) return;
  const int owner = p < A.rows ? A.owner[p] : -1;
  const double circle = owner < 0 ? 0 : A.limit[owner].circle;
  if (!(circle > 0)) {                 // rows that nobody owns are read past the end of those before: they must be numbers
    for (int m = 0; m < HARMONICS; m++) A.weight[((size_t)m * A.stride + p) * 16 + a] = 0;
    return;
  }
  const double place = fma(A.tp[p], circle * A.df[owner * A.grid_stride], 8.0);
#pragma unroll 1
  for (int m = 0; m < HARMONICS; m++) {
    const double x = (m + 1) * place - 8.0, first = ceil(x), u = 2 * (first - x) - 1;
    double v = c[COEFFICIENTS - 1];
#pragma unroll
    for (int k = COEFFICIENTS - 2; k >= 0; k--) v = fma(v, u, c[k]);
    const size_t at = (size_t)m * A.stride + p;
    A.weight[at * 16 + ((a + (int)first) & 15)] = v;          // lane order: the lane is the cell modulo 16
    if (!a) A.cell[at] = (int)first;
  }
}

// ---------------------------------------------------------------- combs
struct Comb {
  const double* tp; const double2* wv; const int* cell; const double* weight;
  const int* offsets; const Info* info; const int* order; const int2* tasks;
  const double2* first; const double2* second; const double2* fold; const double* deconvolve;
  const double* f0; const double* df; const int* nf; const long long* start; double* power;
  double limit, mean;
  int P, G, bands, stride, grid_stride, room;                  // room: complex cells of all channels that the block was given
};

// The power from the sums of one frequency, S[channel * SLOT]; missing where it is not trusted.
__device__ __forceinline__ double solved(const double2* S, double limit, double mean) {
  double h[HARMONICS + 1], g[HARMONICS + 1], z[AT_LEAST_ONE(HARMONICS)];
  h[0] = 0.5; g[0] = 0;
UNROLL
  for (int m = 0; m < HARMONICS; m++) { const double2 v = S[m * SLOT]; h[m + 1] = 0.5 * v.x; g[m + 1] = 0.5 * v.y; }
UNROLL
  for (int k = 0; k < TERMS; k++) { const double2 v = S[(HARMONICS + k) * SLOT]; z[2 * k] = v.x; z[2 * k + 1] = v.y; }
  const double twice = 2 * mean;
  double L[AT_LEAST_ONE(HARMONICS)][AT_LEAST_ONE(HARMONICS)], inv[AT_LEAST_ONE(HARMONICS)], power = 0;
  bool sound = true;
UNROLL
  for (int i = 0; i < HARMONICS; i++) {
    const int k = (i >> 1) + 1;
    const double own = -twice * (i & 1 ? g[k] : h[k]);
    double u[AT_LEAST_ONE(HARMONICS)], d = 0;
UNROLL
    for (int j = 0; j <= i; j++) {
      const int l = (j >> 1) + 1;
      const double other = twice * (j & 1 ? g[l] : h[l]);
      double e;
      if (!(i & 1) && !(j & 1)) e = h[k - l] + h[k + l];
      else if ((i & 1) && (j & 1)) e = h[k - l] - h[k + l];
      else if (i & 1) e = g[k + l] + g[k - l];
      else e = g[k + l] - g[k - l];
      e = fma(own, other, e);
UNROLL
      for (int q = 0; q < j; q++) e = fma(-u[q], j == i ? L[i][q] : L[j][q], e);
      if (j < i) { u[j] = e; L[i][j] = e * inv[j]; }
      else d = e;
    }
    sound = sound && d > PIVOT;
    inv[i] = reciprocal(d);
    double e = z[i];
UNROLL
    for (int q = 0; q < i; q++) e = fma(-L[i][q], z[q], e);
    z[i] = e;
    power = fma(e * inv[i], e, power);
  }
  double squares = 0;
UNROLL
  for (int i = HARMONICS - 1; i >= 0; i--) {
    double b = z[i] * inv[i];
UNROLL
    for (int q = i + 1; q < HARMONICS; q++) b = fma(-L[q][i], z[q], b);       // z[q]: already the parameter
    z[i] = b;
    squares = fma(b, b, squares);
  }
  return sound && squares < limit ? power : missing64();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) chi2_comb(const __grid_constant__ Comb A) {
#if TERMS > 0
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int from[CHANNELS + 1], circles[HARMONICS];
  const int tid = threadIdx.x, half = tid >> 4, a = tid & 15;
  int o, band;
  if (A.tasks) { const int2 t = A.tasks[blockIdx.x]; o = t.x; band = t.y; }
  else { o = A.order[blockIdx.x / A.bands]; band = blockIdx.x % A.bands; }
  const Info info = A.info[o];
  const int lo = A.offsets[o], n = info.n, gi = o * A.grid_stride, nf = A.nf[gi], P = A.P, G = A.G;
  const int base = band * MODES * P;
  double* out = A.power + A.start[o];
  if (info.status != 0) {
    for (int i = base + tid; i < min(nf, base + MODES * P); i += THREADS) out[i] = missing64();
    return;
  }
  const double f0 = A.f0[gi], df = A.df[gi];
  for (int m = tid; m < HARMONICS; m += THREADS) circles[m] = ((A.cell[(size_t)m * A.stride + lo + n - 1] + 15) >> 8) + 1;
  __syncthreads();
  if (!tid) {
    int at = 0;
    for (int c = 0; c < CHANNELS; c++) { from[c] = at; at += 256 * circles[c < HARMONICS ? c : c - HARMONICS]; }
    from[CHANNELS] = at;
  }
  __syncthreads();
  double2* cells = (double2*)raw;
  double2* slots = cells + A.room;
  for (int i = tid; i < from[CHANNELS]; i += THREADS) cells[i] = make_double2(0, 0);

  // ---- spreading: as in ls_comb, lane a keeps the one cell of the window that is a modulo 16; the last windows of the
  // segments are added in order at the end
  {
    double2* strength = slots;                                          // of w, [segment][harmonic][CHUNK]
    double2* strength2 = strength + SEGMENTS * HARMONICS * CHUNK;       // of w y, [segment][term][CHUNK]
    int* window = (int*)(strength2 + SEGMENTS * TERMS * CHUNK);         // [segment][harmonic][CHUNK]
    const int each = ((n + SEGMENTS - 1) / SEGMENTS + 7) & ~7;
    const Frequency centre = frequency_of(f0, ((double)band * MODES + MODES / 2) * P, df);
    for (int job0 = 0; job0 < SEGMENTS * HARMONICS; job0 += HALVES) {
      const int job = job0 + half, seg = job / HARMONICS, m = (job + 2 * seg) % HARMONICS;      // turned: a scheduler gets all sorts
      const bool live = job < SEGMENTS * HARMONICS;
      const int begin = live ? min(n, seg * each) : 0, mine = live ? min(each, n - begin) : 0;
      double2 acc = make_double2(0, 0), acc2 = make_double2(0, 0);
      int now = -1;
      double2* W = cells + from[live ? m : 0];
      double2* Y = cells + from[live && m < TERMS ? HARMONICS + m : 0];
      const bool both = live && m < TERMS;
      for (int c0 = 0; c0 < min(n, each); c0 += CHUNK) {
        __syncthreads();
        for (int e = tid; e < SEGMENTS * CHUNK; e += THREADS) {
          const int sg = e / CHUNK, i = e % CHUNK, b = min(n, sg * each), left = min(each, n - b) - c0;
          if (left <= 0) continue;
          const int p = lo + b + c0 + min(i, left - 1);
          const double2 wv = i < left ? A.wv[p] : make_double2(0, 0);
          double s, c; sincos_cycles(cycles(centre, A.tp[p]), s, c);
          double x = c, y = s;
UNROLL
          for (int k = 0; k < HARMONICS; k++) {
            const int at = (sg * HARMONICS + k) * CHUNK + i;
            window[at] = A.cell[(size_t)k * A.stride + p];
            strength[at] = make_double2(wv.x * x, wv.x * y);
            if (k < TERMS) strength2[(sg * TERMS + k) * CHUNK + i] = make_double2(wv.y * x, wv.y * y);
            const double next = x * c - y * s; y = x * s + y * c; x = next;
          }
        }
        __syncthreads();
        const int many = min(CHUNK, mine - c0);
        const double* weight = A.weight + ((size_t)m * A.stride + lo + begin + c0) * 16 + a;      // rows past the end are readable
        if (many > 0) {
          const double2* in = strength + (seg * HARMONICS + m) * CHUNK;
          const double2* in2 = strength2 + (seg * TERMS + (both ? m : 0)) * CHUNK;
          const int4* windows = (const int4*)(window + (seg * HARMONICS + m) * CHUNK);
          double next[8];
#pragma unroll
          for (int u = 0; u < 8; u++) next[u] = __ldg(weight + u * 16);
          if (now < 0) { const int c = windows[0].x; now = c + ((a - c) & 15); }
#define POINT(C, U) \
          { const int to = C + ((a - C) & 15); \
            if (to != now) { W[now] = acc; acc = make_double2(0, 0); if (BOTH) { Y[now] = acc2; acc2 = make_double2(0, 0); } now = to; } \
            const double2 s = in[i0 + U]; acc.x = fma(k[U], s.x, acc.x); acc.y = fma(k[U], s.y, acc.y); \
            if (BOTH) { const double2 v = in2[i0 + U]; acc2.x = fma(k[U], v.x, acc2.x); acc2.y = fma(k[U], v.y, acc2.y); } }
#define POINTS \
          for (int i0 = 0; i0 < many; i0 += 8) { \
            double k[8]; \
            _Pragma("unroll") for (int u = 0; u < 8; u++) { k[u] = next[u]; next[u] = __ldg(weight + (i0 + 8 + u) * 16); } \
            const int4 c = windows[i0 >> 2], d = windows[(i0 >> 2) + 1]; \
            POINT(c.x, 0) POINT(c.y, 1) POINT(c.z, 2) POINT(c.w, 3) POINT(d.x, 4) POINT(d.y, 5) POINT(d.z, 6) POINT(d.w, 7) }
          if (both) { constexpr bool BOTH = true; POINTS } else { constexpr bool BOTH = false; POINTS }
        }
      }
      for (int s = SEGMENTS - 1; s >= 0; s--) {
        __syncthreads();
        if (live && seg == s && now >= 0) {
          W[now] = make_double2(W[now].x + acc.x, W[now].y + acc.y);
          if (both) Y[now] = make_double2(Y[now].x + acc2.x, Y[now].y + acc2.y);
        }
      }
    }
  }
  __syncthreads();

  const double limit = n < HARMONICS + (A.mean != 0) ? 0 : A.limit * sqrt((double)n);      // too few points are no matter of rounding
  const int items = G * CHANNELS;
  for (int r0 = 0; r0 < P; r0 += G) {
    for (int item0 = half & ~1; item0 < items; item0 += HALVES) {
      const int mine = item0 + (half & 1), item = min(mine, items - 1), ch = item % CHANNELS, comb = r0 + item / CHANNELS;
      double2* slot = slots + mine * SLOT;                     // an even number of them: a half warp without work has its own
      double* ex = (double*)slot;
      const double2* g = cells + from[ch] + a;
      double2 v[16];
#pragma unroll
      for (int j = 0; j < 16; j++) v[j] = g[16 * j];
      const int many = circles[ch < HARMONICS ? ch : ch - HARMONICS];
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
    }
    __syncthreads();
    for (int i = tid; i < G * MODES; i += THREADS) {
      const int q = i % MODES, k = base + q * P + r0 + i / MODES;
      const double p = solved(slots + (i / MODES) * CHANNELS * SLOT + q, limit, A.mean);
      if (k < nf) out[k] = p;
    }
    __syncthreads();
  }
#endif
}

// ---------------------------------------------------------------- exact fits
struct Exact {
  const double* tp; const double2* wv; const int* offsets; const Info* info; const int* order; const int2* tasks;
  const double* f0; const double* df; const int* nf; const double* frequencies; const long long* start; double* power;
  int members, blocks, grid_stride, mean, all;
};
#define SPAN 256
#define WARPS (TERMS <= 8 ? 4 : 1)
#define COLUMNS (HARMONICS + 1)
#define ENTRIES ((COLUMNS + 1) * (COLUMNS + 2) / 2 - 1)        // lower triangle with the right-hand side as a last row
#define PER_LANE ((ENTRIES + 31) / 32)
#define ROW (COLUMNS + 1)
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

// Standard power by one warp; missing where a column is too near the ones before it. rows: 32 x ROW, matrix: ENTRIES pairs, own:
// COLUMNS squares of the columns.
template <bool PAIRS> __device__ __noinline__ double exact_fit(const double* t, const double2* wv, int n, Frequency f, bool mean, double* rows, double2* matrix, double* own) {
  const int lane = threadIdx.x & 31, columns = HARMONICS + mean;
  const int entries = (columns + 1) * (columns + 2) / 2 - 1;
  double2 sum[PER_LANE];
  int place[PER_LANE];                                         // row and column of each entry
  for (int e = 0; e < PER_LANE; e++) {
    sum[e] = make_double2(0, 0);
    int i = 0, at = lane + 32 * e;
    while (at > i) { at -= i + 1; i++; }
    place[e] = i << 8 | at;
  }
  for (int p0 = 0; p0 < n; p0 += 32) {
    const int p = p0 + lane;
    double* mine = rows + lane * ROW;
    double root = 0, y = 0, c = 1, s = 0;
    if (p < n) {
      const double2 v = wv[p];
      root = sqrt(v.x); y = root > 0 ? v.y / root : 0;
      sincos_cycles(cycles(f, t[p]), s, c);
    }
    double u = c, v = s;
    if (mean) mine[0] = root;
    for (int k = 0; k < TERMS; k++) {
      mine[mean + 2 * k] = root * u; mine[mean + 2 * k + 1] = root * v;
      const double next = u * c - v * s; v = u * s + v * c; u = next;
    }
    mine[columns] = y;
    __syncwarp();
    const int many = min(32, n - p0);
    for (int e = 0; e < PER_LANE; e++)
      if (lane + 32 * e < entries) {
        const double* a = rows + (place[e] >> 8); const double* b = rows + (place[e] & 255);
        double2 total = sum[e];
        for (int i = 0; i < many; i++) {
          const double x = a[i * ROW], z = b[i * ROW];
          if constexpr (PAIRS) { const double q = rounded(x, z); total = plus(total, q, fma(x, z, -q)); }
          else total.x = fma(x, z, total.x);
        }
        sum[e] = total;
      }
    __syncwarp();
  }
  for (int e = 0; e < PER_LANE; e++)
    if (lane + 32 * e < entries) {
      matrix[lane + 32 * e] = sum[e];
      if (place[e] >> 8 == (place[e] & 255)) own[place[e] & 255] = sum[e].x;
    }
  __syncwarp();
  double trace = 0, power = 0, left = 1;
  for (int j = 0; j < columns; j++) trace += own[j];
  const double2* right = matrix + columns * (columns + 1) / 2;
  for (int j = 0; j < columns; j++) {
    const double2 pivot = matrix[j * (j + 1) / 2 + j], z = right[j];
    if (!(pivot.x > SINGULAR * own[j] + COLUMN_NOISE * trace)) return missing64();      // all lanes alike
    left *= pivot.x / own[j];
    if (!PAIRS && !(left > NEAR_SINGULAR)) return missing64();
    power = fma(z.x / pivot.x, z.x, power);
    for (int e = 0; e < PER_LANE; e++) {
      const int i = place[e] >> 8, k = place[e] & 255;
      if (lane + 32 * e < entries && k > j) {
        double2& entry = matrix[lane + 32 * e];
        const double2 x = matrix[i * (i + 1) / 2 + j], z = matrix[k * (k + 1) / 2 + j];
        if constexpr (PAIRS) entry = less_product(entry, ratio(x, pivot), z);
        else entry.x = fma(-x.x / pivot.x, z.x, entry.x);
      }
    }
    __syncwarp();
  }
  return power;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) chi2_exact(const Exact A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int list[SPAN];
  __shared__ int many;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  double2* matrix = (double2*)raw + warp * ENTRIES;
  double* rows = (double*)((double2*)raw + WARPS * ENTRIES) + warp * (32 * ROW + COLUMNS);
  int o, block;                        // the shortest objects first: theirs are the most fits
  if (A.tasks) { const int2 t = A.tasks[gridDim.x - 1 - blockIdx.x]; o = t.x; block = t.y; }
  else { o = A.order[A.members - 1 - blockIdx.x / A.blocks]; block = blockIdx.x % A.blocks; }
  const Info info = A.info[o];
  const int gi = o * A.grid_stride, nf = A.nf[gi], base = block * SPAN, total = min(SPAN, nf - base), lo = A.offsets[o];
  double* out = A.power + A.start[o] + base;
  const bool mean = A.mean != 0, hopeless = info.status != 0 || info.n < HARMONICS + mean;      // fewer points than columns
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
    const Frequency f = A.frequencies ? Frequency{A.frequencies[base + i], 0} : frequency_of(A.f0[gi], (double)(base + i), A.df[gi]);
    double p = exact_fit<false>(A.tp + lo, A.wv + lo, info.n, f, mean, rows, matrix, rows + 32 * ROW);
    __syncwarp();
    if (!(p == p)) p = exact_fit<true>(A.tp + lo, A.wv + lo, info.n, f, mean, rows, matrix, rows + 32 * ROW);
    if (!lane) out[i] = p;
    __syncwarp();
  }
}

// ---------------------------------------------------------------- normalised powers and their peaks
struct Find {
  const Info* info; const int* order; const int2* tasks; const int* nf; const long long* start; double* power; Peaks peaks;
  int members, grid_stride, norm, scaled, edges;
};
#define FIND 2048
#define RUN (FIND / 256)               // neighbouring powers that a thread looks at

// The first stretches of all objects come first, so that the floor under the best peaks is known when others are searched.
extern "C" __global__ void __launch_bounds__(256) chi2_find(const Find A) {
  __shared__ double staged[FIND];
  const int tid = threadIdx.x;
  int o, block;
  if (A.tasks) { const int2 t = A.tasks[blockIdx.x]; o = t.x; block = t.y; }
  else { o = A.order[blockIdx.x % A.members]; block = blockIdx.x / A.members; }
  const Info info = A.info[o];
  const int nf = A.nf[o * A.grid_stride], base = block * FIND, total = min(FIND, nf - base);
  if (info.status != 0) return;
  double* out = A.power + A.start[o] + base;
  const unsigned known = floor_now(A.peaks, o);
  for (int i = tid; i < total; i += 256) {
    const double p = out[i];
    staged[i] = A.scaled ? normalise(p, info.scale, A.norm) : p;
    if (A.scaled) out[i] = staged[i];
  }
  __syncthreads();
  // as in ls_direct: bits of `found` are powers that may be peaks, by their high halves
  auto staged_at = [&](int i) { return staged[i]; };
  leave_edges(A.peaks.edge + ((size_t)o * A.edges + block) * 2, total, staged_at);
  const int i0 = tid * RUN, least = known ? (int)known : -0x7fffffff, none = -0x7fffffff;
  unsigned found = 0;
  if (i0 < total) {
    int x = i0 ? high_at(staged + i0 - 1) : none, y = high_at(staged + i0);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
      const int z = i0 + i + 1 < total ? high_at(staged + i0 + i + 1) : none;
      if (i0 + i < total && y >= x && y >= z && y >= least) found |= 1u << i;
      x = y; y = z;
    }
  }
  give_stretch(A.peaks, o, base, i0, total, found, 1 + (2 * min(info.apart, 100000) + RUN - 1) / RUN, known, staged_at);
}

// Periodogram of light curves in several bands, for all models but that of bands/bands.cu (one sinusoid and
// means): sums by banded combs, normal equations, powers.
//
// bands_weights: the spreading weights of every harmonic. One thread computes one of the 16 taps of a row, for
// all harmonics. Limit: the stores (132 bytes for each row and harmonic).
// bands_comb: one block computes one stretch of P combs of 192 modes of one object. It spreads the points (a
// half warp for each channel), transforms G combs at a time (a half warp for each transform), collects their
// sums in shared memory, and solves the equations (a thread for each frequency). Limit: latency, because a
// multiprocessor holds one block of 12 warps.
//
// archs: 75 80 86 89 90 100 120
// build: offsets2 -DREAL=double -DTERMS=2 -DBAND_TERMS=0
// build: separate -DREAL=double -DTERMS=0 -DBAND_TERMS=1
// build: flexible -DREAL=double -DTERMS=1 -DBAND_TERMS=1 -DCONSTANT=1
// budget: offsets2 kernel=bands_comb regs<=168 smem<=1024 spills<=64
// budget: separate kernel=bands_comb regs<=168 smem<=1024 spills<=64
// budget: flexible kernel=bands_comb regs<=168 smem<=1024 spills<=256
// budget: flexible kernel=bands_weights regs<=96
#include "common.cuh"
#include "samples/dft.cuh"
#include "bands/bands.cuh"

// ---------------------------------------------------------------- other models: weights of every harmonic
struct Weights {
  const double* tp;
  const int* owner;
  const double* taps;
  const double* df;
  const Limit* limit;
  int* cell;
  double* weight;
  int rows, stride, grid_stride;  // stride: rows of a harmonic in cell and weight
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
  const double place = fma(A.tp[p], circle * A.df[owner * A.grid_stride], 8.0);  // 8: every tap falls on a cell >= 0
#pragma unroll 1
  for (int m = 0; m < HARMONICS; m++) {
    const double x = (m + 1) * place - 8.0, start = ceil(x), u = 2 * (start - x) - 1;
    double v = c[15];
#pragma unroll
    for (int k = 14; k >= 0; k--) v = fma(v, u, c[k]);
    const size_t at = (size_t)m * A.stride + p;
    A.weight[at * 16 + ((a + (int)start) & 15)] = v;  // lane order: the lane is the cell modulo 16
    if (!a) A.cell[at] = (int)start;
  }
}

// ---------------------------------------------------------------- other models: combs
struct Comb {
  const double* tp;
  const double2* wv;
  const int* cell;
  const double* weight;
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
  double limit, penalty, band_penalty;
  int P, G, stretches, stride, grid_stride, room, slots,
      regularised;  // room: number of complex cells of all channels that fit in the block's memory
};
#define MODES 192
#define OUT 12
#define THREADS 384
#define HALVES (THREADS / 16)
#define CHUNK 64
#define SLOT MODES  // complex numbers of one transform's slot: outputs, and before that its exchange

// Column i of a band, or of the common part: its harmonic, and whether it is a sine. Without a constant the first
// column is the cosine at f.
__device__ __forceinline__ int harmonic_of(int i, bool constant) { return constant ? (i + 1) >> 1 : (i >> 1) + 1; }
__device__ __forceinline__ bool sine_of(int i, bool constant) { return constant ? i && !(i & 1) : i & 1; }
// Sum of w times two columns, from h, g: half the sums of w cos and w sin at 0, f, 2 f, ...
__device__ __forceinline__ double entry(const double* h, const double* g, int k, bool odd, int l, bool also) {
  const int low = k > l ? k - l : l - k;
  const double turn = k >= l ? g[low] : -g[low];
  if (odd == also) return odd ? h[low] - h[k + l] : h[low] + h[k + l];
  return odd ? g[k + l] + turn : g[k + l] - turn;
}

// The power from the sums of one frequency, S[channel * SLOT]; missing if it is not trusted.
__device__ __forceinline__ double solved(const double2* S, int B, const double* share, double penalty,
                                         double band_penalty, double limit) {
  constexpr int K = AT_LEAST_ONE(COMMON);
  double R[K][K], right[K], beta[K], power = 0, squares = 0;
  bool sound = true;
  if (COMMON > 0) {  // the common columns' own equations
    double h[2 * TERMS + 1], g[2 * TERMS + 1];
    h[0] = 0.5;
    g[0] = 0;
    UNROLL
    for (int m = 1; m <= 2 * TERMS; m++) {
      double x = 0, y = 0;
      if (m <= BAND_W)
        for (int b = 0; b < B; b++) {
          const double2 v = S[(b * BAND_CHANNELS + m - 1) * SLOT];
          x += v.x;
          y += v.y;
        }
      else {
        const double2 v = S[(B * BAND_CHANNELS + m - 1 - BAND_W) * SLOT];
        x = v.x;
        y = v.y;
      }
      h[m] = 0.5 * x;
      g[m] = 0.5 * y;
    }
    UNROLL
    for (int i = 0; i < COMMON; i++) {
      right[i] = 0;
      UNROLL
      for (int j = 0; j <= i; j++)
        R[i][j] =
            entry(h, g, harmonic_of(i, CONSTANT), sine_of(i, CONSTANT), harmonic_of(j, CONSTANT), sine_of(j, CONSTANT));
      if (i >= FREE) R[i][i] += penalty * TRACE;
    }
    UNROLL
    for (int k = 1; k <= TERMS; k++) {
      double x = 0, y = 0;
      if (k <= BAND_Y)
        for (int b = 0; b < B; b++) {
          const double2 v = S[(b * BAND_CHANNELS + BAND_W + k - 1) * SLOT];
          x += v.x;
          y += v.y;
        }
      else {
        const double2 v = S[(B * BAND_CHANNELS + ALL_W + k - 1 - BAND_Y) * SLOT];
        x = v.x;
        y = v.y;
      }
      right[CONSTANT + 2 * k - 2] = x;
      right[CONSTANT + 2 * k - 1] = y;
    }
  }
  // The first pass eliminates the bands from the common equations. The second, if bands have terms, computes
  // their parameters from the common ones.
#pragma unroll 1
  for (int pass = 0; pass < (COMMON > 0 && BAND_TERMS > 0 ? 2 : 1); pass++) {
#pragma unroll 1
    for (int b = 0; b < B; b++) {
      if (!(share[b] > 0)) continue;
      const double weight = 1 / share[b];
      const double2* own = S + b * BAND_CHANNELS * SLOT;
      double h[AT_LEAST_ONE(BAND_W) + 1], g[AT_LEAST_ONE(BAND_W) + 1], L[OWN + COMMON][OWN], inverse[OWN], z[OWN];
      h[0] = 0.5 * weight;
      g[0] = 0;
      UNROLL
      for (int m = 1; m <= BAND_W; m++) {
        const double2 v = own[(m - 1) * SLOT];
        h[m] = 0.5 * v.x;
        g[m] = 0.5 * v.y;
      }
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
          double e = 0;  // y is centred: the right-hand side of the constant is 0
          if (i) {
            const double2 v = own[(BAND_W + k - 1) * SLOT];
            e = odd ? v.y : v.x;
          }
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
          for (int q = i + 1; q < OWN; q++) e = fma(-L[q][i], z[q], e);  // z[q]: already the parameter
          UNROLL
          for (int q = 0; q < COMMON; q++) e = fma(-L[OWN + q][i], beta[q], e);
          z[i] = e;
          squares = fma(weight * e, e, squares);  // errors of a band's sums are proportional to its weight
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
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int circles[HARMONICS];
  const int tid = threadIdx.x, half = tid >> 4, a = tid & 15;
  int o, stretch;
  if (A.tasks) {
    const int2 t = A.tasks[blockIdx.x];
    o = t.x;
    stretch = t.y;
  } else {
    o = A.order[blockIdx.x / A.stretches];
    stretch = blockIdx.x % A.stretches;
  }
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
  int* from = (int*)(slots + (size_t)A.slots * SLOT);  // first cell of each channel
  // harmonic of a channel, and its rows
  auto of_w = [&](int c) { return c < B * BAND_CHANNELS ? c % BAND_CHANNELS < BAND_W : c - B * BAND_CHANNELS < ALL_W; };
  auto harmonic = [&](int c) {
    if (c < B * BAND_CHANNELS) {
      const int m = c % BAND_CHANNELS;
      return m < BAND_W ? m : m - BAND_W;
    }
    c -= B * BAND_CHANNELS;
    return c < ALL_W ? BAND_W + c : BAND_Y + c - ALL_W;
  };
  for (int m = tid; m < HARMONICS; m += THREADS) {  // the last point in time has the largest cell
    int last = 0;
    for (int b = 0; b < B; b++)
      if (first[b] < first[b + 1]) last = max(last, A.cell[(size_t)m * A.stride + lo + pick[first[b + 1] - 1]]);
    circles[m] = ((last + 15) >> 8) + 1;
  }
  __syncthreads();
  if (!tid) {
    int at = 0;
    for (int c = 0; c < channels; c++) {
      from[c] = at;
      at += 256 * circles[harmonic(c)];
    }
    from[channels] = at;
  }
  __syncthreads();
  for (int i = tid; i < from[channels]; i += THREADS) cells[i] = make_double2(0, 0);

  // ---- spreading: points band after band, a half warp a channel; lane a adds to the one cell that is a modulo 16
  {
    double2* turn = slots;  // cos, sin of every harmonic, [harmonic][CHUNK]
    double2* strength = turn + HARMONICS * CHUNK;
    int* row = (int*)(strength + CHUNK);
    const Frequency centre = frequency_of(f0, ((double)stretch * MODES + MODES / 2) * P, df);
    for (int c0 = 0; c0 < n; c0 += CHUNK) {
      const int count = min(CHUNK, n - c0);
      __syncthreads();
      for (int i = tid; i < count; i += THREADS) {
        const int p = lo + pick[c0 + i];
        row[i] = p;
        strength[i] = A.wv[p];
        double s, c;
        sincos_cycles(cycles(centre, A.tp[p]), s, c);
        double x = c, y = s;
        for (int k = 0; k < HARMONICS; k++) {
          turn[k * CHUNK + i] = make_double2(x, y);
          const double next = x * c - y * s;
          y = x * s + y * c;
          x = next;
        }
      }
      __syncthreads();
      for (int ch = channels - 1 - half; ch >= 0; ch -= HALVES) {  // channels of all rows first
        const int m = harmonic(ch), b = ch / AT_LEAST_ONE(BAND_CHANNELS);
        const bool whole = ch >= B * BAND_CHANNELS, w = of_w(ch);
        const int begin = whole ? 0 : max(0, first[b] - c0), end = whole ? count : min(count, first[b + 1] - c0);
        double2* W = cells + from[ch];
        const double* weight = A.weight + (size_t)m * A.stride * 16 + a;
        const int* cell = A.cell + (size_t)m * A.stride;
        const double2* e = turn + m * CHUNK;
        if (begin >= end) continue;
        auto fetch = [&](int i0, int (&c)[4], double (&k)[4]) {
#pragma unroll
          for (int u = 0; u < 4; u++) {
            const int p = row[min(i0 + u, end - 1)];
            c[u] = __ldg(cell + p);
            k[u] = __ldg(weight + (size_t)p * 16);
          }
        };
        int c[4], ahead[4];
        double k[4], next[4];
        fetch(begin, c, k);
        for (int i0 = begin; i0 < end; i0 += 4) {
          fetch(i0 + 4, ahead, next);
#pragma unroll
          for (int u = 0; u < 4; u++)
            if (i0 + u < end) {
              const double v = k[u] * (w ? strength[i0 + u].x : strength[i0 + u].y);
              const int to = c[u] + ((a - c[u]) & 15);
              const double2 g = W[to], s = e[i0 + u];
              W[to] = make_double2(fma(v, s.x, g.x), fma(v, s.y, g.y));
            }
#pragma unroll
          for (int u = 0; u < 4; u++) {
            c[u] = ahead[u];
            k[u] = next[u];
          }
        }
      }
    }
  }
  __syncthreads();

  int columns = COMMON;
  for (int b = 0; b < B; b++) columns += first[b] < first[b + 1] ? OWN : 0;
  const double limit =
      n < columns && !A.regularised ? 0 : A.limit * sqrt((double)n);  // 0: with too few points no power is trusted
  const int items = G * channels;
  for (int r0 = 0; r0 < P; r0 += G) {
    for (int item0 = half & ~1; item0 < items; item0 += HALVES) {
      const int mine = item0 + (half & 1), item = min(mine, items - 1), ch = item % channels,
                comb = r0 + item / channels;
      double2* slot = slots + mine * SLOT;  // an even number of them: a half warp without work has its own
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
      const double2* U = A.first + comb * 8;
      const double2* V = A.second + comb * 128 + a;
      dft16<2>(v, [&](int i) { return __ldg(U + i); });
      transpose_parts(ex, v, a);
      dft16<2>(v, [&](int i) { return __ldg(V + 16 * i); });
      __syncwarp();
      const double* D = A.deconvolve + comb * MODES + a;
#pragma unroll
      for (int d = 0; d < OUT; d++) {
        const double k = __ldg(D + 16 * d);
        slot[a + 16 * d] = make_double2(k * v[place(d)].x, k * v[place(d)].y);
      }
      __syncwarp();
    }
    __syncthreads();
    for (int i = tid; i < G * MODES; i += THREADS) {
      const int q = i % MODES, k = base + q * P + r0 + i / MODES;
      const double p =
          solved(slots + (size_t)(i / MODES) * channels * SLOT + q, B, share, A.penalty, A.band_penalty, limit);
      if (k < nf) {
        out[k] = p;
        if (!(p == p)) A.odd[o] = 1;
      }
    }
    __syncthreads();
  }
}

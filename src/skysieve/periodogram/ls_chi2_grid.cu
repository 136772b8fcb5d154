// Series of several Fourier terms from samples: W(nu) = sum w exp(2 pi i nu t) and the same of w y on one coarse regular grid for
// all harmonics, then interpolated to every m f, equations and powers.
//
// With times about the middle of the span T, W is limited to |t| <= T/2, so that samples L df <= 0.8 / T apart say all of it. Weights
// that make the interpolation short (17 samples) are divided out of the strengths beforehand, as a NUFFT of type 2 does. At L df every
// L-th frequency lies alike between the samples, at every harmonic: the coefficients are one small table a grid, and interpolation
// is a product of matrices, rows of samples (m L / 8 further on each) by 8 frequencies. Combs of every harmonic, which this replaced,
// took 12 transforms a frequency (n = 4) and their folds: 1.5 times the time.
//
// chi2_points: half a warp = one point: its 16 spreading weights, lane order, strengths with the interpolation's shape divided out, and
// how far it turns in half a band of samples.
// chi2_samples: one block = 8 bands of 160 samples, w and, where terms reach, w y. Points are spread on 256 cells of each band by matrix
// instructions (16 cells by 4 points by 8 numbers of four bands); half a warp does a band's 256-point FFT (16 x 16).
// chi2_taps: interpolation coefficients and where samples begin, of each grid.
// chi2_powers: one block = 8 * tiles rows of 8 * octets frequencies, several in turn. Samples come to shared memory ahead of time,
// a warp interpolates a channel (matrix instructions), a thread solves the equations of a frequency.
//
// For n = 4 and a frequency: samples 1.5 transforms' outputs of 38 multiply-adds, interpolation 264 x 2 in matrix instructions (twice
// the plain rate), equations 326. Limit of chi2_powers on an H100, n = 4: no unit alone; shared memory's pipe 59% busy (of its 9
// wavefronts a frequency half are rows of samples, a third sums on their way to the equations), float64 and matrix units 57%, 16
// warps a multiprocessor (shared memory). Of chi2_samples: latency between barriers at 12 warps; transforms are a third of it.
// Tried: float32 factors and a float64 residual for the equations (25% slower: registers and conversions), one buffer and
// more blocks (5% slower), a window of cells in registers instead of matrix instructions (5% slower, 50% more instructions).
//
// archs: 75 80 86 89 90 100 120
// build: t2 -DREAL=double -DTERMS=2
// build: t4 -DREAL=double -DTERMS=4
// budget: t2 kernel=chi2_powers regs<=84 smem<=1024 spills<=64
// budget: t4 kernel=chi2_samples regs<=168 smem<=0 spills<=64
// budget: t4 kernel=chi2_powers regs<=128 smem<=1024 spills<=64
#include "ls_common.cuh"
#include "ls_dft.cuh"
#include "ls_chi2_solve.cuh"

#define MODES 160
#define OUT (MODES / 16)
#define COEFFICIENTS 16
#define REACH 17                      // samples that an interpolated value is made of
#define TILES (TERMS <= 6 ? 2 : 1)
#define MINB (TERMS <= 2 ? 6 : TERMS == 3 ? 5 : TERMS == 4 ? 4 : TERMS <= 6 ? 2 : 4)
#define THREADS (64 * TILES)
#define WARPS (2 * TILES)

// ---------------------------------------------------------------- points
struct Points {
  const double* tp; const double2* wv; const int* owner; const Info* info; const double* taps; const double* df; const Limit* limit;
  int* cell; double* weight; double2* strength; double2* spin; unsigned* counts;
  double beta, scale;
  int rows, padded, grid_stride, counters;
};
extern "C" __global__ void __launch_bounds__(256) chi2_points(const Points A) {
  const int a = threadIdx.x & 15;
  const long long p = (long long)blockIdx.x * 16 + (threadIdx.x >> 4);
  if (!blockIdx.x) for (int i = threadIdx.x; i < A.counters; i += 256) A.counts[i] = 0;
  double c[COEFFICIENTS];
#pragma unroll
  for (int k = 0; k < COEFFICIENTS; k++) c[k] = A.taps[k * 16 + a];
  if (p >= A.padded) return;
  const int owner = p < A.rows ? A.owner[p] : -1;
  const double circle = owner < 0 ? 0 : A.limit[owner].circle;
  if (!(circle > 0)) {                 // rows that nobody owns are read past the end of those before: they must be numbers
    A.weight[p * 16 + a] = 0;
    return;
  }
  const double place = (A.tp[p] - 0.5 * A.info[owner].span) * (circle * A.df[owner * A.grid_stride]);
  const double x = place - 8, first = ceil(x), u = 2 * (first - x) - 1;
  double v = c[COEFFICIENTS - 1];
#pragma unroll
  for (int k = COEFFICIENTS - 2; k >= 0; k--) v = fma(v, u, c[k]);
  A.weight[p * 16 + ((a + (int)first) & 15)] = v;              // lane order: the lane is the cell modulo 16
  if (!a) {
    const double z = REACH * 3.14159265358979323846 / 256 * place, s = sqrt(fma(A.beta, A.beta, -z * z)), q = A.scale * s / sinh(s);
    const double2 wv = A.wv[p];
    double sine, cosine; sincos_cycles(place * (0.5 * MODES / 256), sine, cosine);
    A.cell[p] = (int)first;
    A.spin[p] = make_double2(cosine, sine);
    A.strength[p] = make_double2(q * wv.x, q * wv.y);
  }
}

// ---------------------------------------------------------------- samples
struct Samples {
  const double* tp; const double2* strength; const double2* spin; const int* cell; const double* weight; const int* offsets; const Info* info;
  const int* order; const int2* tasks; const double* lead; const int* at; const int2* bands; const long long* place;
  const double2* first; const double2* second; const double* deconvolve; const double* df; double2* out;
  double step;                         // frequencies between samples
  int member, blocks, grid_stride;
};
#define HELD 32                        // points whose turns are held: one a lane
struct Band { double2 w[256], y[256], apart[2]; };

// c += a b by a warp, a 16 x 4 and b 4 x 8: lane (g, t) = (lane / 4, lane % 4) has a at rows g and g + 8, column t; b at row t, column
// g; c at rows g and g + 8, columns 2 t and 2 t + 1. Two rows of a may be real and imaginary parts.
struct Tile { double re0, re1, im0, im1; };     // row g, row g + 8
#if ON_DEVICE && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void multiply(Tile& c, double2 s, double b) {
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+d"(c.re0), "+d"(c.re1), "+d"(c.im0), "+d"(c.im1) : "d"(s.x), "d"(s.y), "d"(b));
}
#elif ON_DEVICE && __CUDA_ARCH__ >= 800
__device__ __forceinline__ void multiply(Tile& c, double2 s, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"(c.re0), "+d"(c.re1) : "d"(s.x), "d"(b));
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+d"(c.im0), "+d"(c.im1) : "d"(s.y), "d"(b));
}
#else
__device__ __forceinline__ void multiply(Tile& c, double2 s, double b) {
  const int lane = threadIdx.x & 31, t = lane & 3;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const double x = __shfl_sync(FULL, s.x, (lane & 28) + k), y = __shfl_sync(FULL, s.y, (lane & 28) + k);
    const double u = __shfl_sync(FULL, b, 8 * t + k), v = __shfl_sync(FULL, b, 8 * t + 4 + k);
    c.re0 = fma(x, u, c.re0); c.re1 = fma(x, v, c.re1); c.im0 = fma(y, u, c.im0); c.im1 = fma(y, v, c.im1);
  }
}
#endif

extern "C" __global__ void __launch_bounds__(128, 3) chi2_samples(const __grid_constant__ Samples A) {
  extern __shared__ __align__(16) unsigned char raw[];
  const int tid = threadIdx.x, half = tid >> 4, a = tid & 15, warp = tid >> 5, lane = tid & 31;
  Band* all = (Band*)raw;
  Band& mine = all[half];
  double* strength = (double*)(all + 8);                               // [w 2, w y 2][HELD][8]: of four bands, real and imaginary
  int pos, block;
  if (A.tasks) { const int2 t = A.tasks[blockIdx.x]; pos = t.x; block = t.y; }
  else { pos = A.member + blockIdx.x / A.blocks; block = blockIdx.x % A.blocks; }
  const int o = A.order[pos], gp = A.grid_stride ? pos : 0;
  const Info info = A.info[o];
  const int2 bands = A.bands[gp];
  const int band = block * 8 + half;
  if (info.status != 0 || block * 8 >= bands.x) return;
  const bool both = block * 8 < bands.y;
  const int lo = A.offsets[o], n = info.n;
  const double df = A.df[o * A.grid_stride], middle = 0.5 * info.span;
  int part = 0;
  for (int h = 1; h < HARMONICS; h++) if (A.at[gp * HARMONICS + h] <= band * MODES) part = h;
  const double number = A.lead[gp * HARMONICS + part] + ((band | 1) * MODES - A.at[gp * HARMONICS + part]);     // between the warp's two
  const Frequency centre = frequency_of(0, number * A.step, df);
  const double back = cycles(centre, middle);
  for (int i = a; i < 256; i += 16) { mine.w[i] = make_double2(0, 0); if (both) mine.y[i] = make_double2(0, 0); }

  // Spreading, HELD points at a time: 16 cells by 8 numbers (four bands) += weights by strengths, where points reach those cells.
  const int g = lane >> 2, t = lane & 3, tiles = both ? 4 : 2;
  int p = lo + min(lane, n - 1), later = A.cell[p];                   // of the next points, asked for early
  double2 held = A.strength[p], spin = A.spin[p];
  double time = A.tp[p];
  for (int c0 = 0; c0 < n; c0 += HELD) {
    const int many = min(HELD, n - c0), cell = later;
    __syncthreads();
    {
      const double2 wv = lane < many ? held : make_double2(0, 0);
      double s, c; sincos_cycles(cycles(centre, time) - back, s, c);
      const double cc = c * spin.x, ss = s * spin.y, sc = s * spin.x, cs = c * spin.y;
      double2* to = (double2*)(strength + ((warp >> 1) * HELD + lane) * 8 + 4 * (warp & 1));
      to[0] = make_double2(wv.x * (cc + ss), wv.x * (sc - cs));
      to[1] = make_double2(wv.x * (cc - ss), wv.x * (sc + cs));
      if (both) {
        to += 2 * HELD * 4;
        to[0] = make_double2(wv.y * (cc + ss), wv.y * (sc - cs));
        to[1] = make_double2(wv.y * (cc - ss), wv.y * (sc + cs));
      }
    }
    __syncthreads();
    p = lo + min(c0 + HELD + lane, n - 1); later = A.cell[p]; held = A.strength[p]; spin = A.spin[p]; time = A.tp[p];
    const int from = __shfl_sync(FULL, cell, 0) >> 4, to = (__shfl_sync(FULL, cell, many - 1) + 15) >> 4;
    for (int j = from + ((warp - from) & 3); j <= to; j += 4) {
      const unsigned hit = __ballot_sync(FULL, lane < many && cell + 15 >= 16 * j && cell <= 16 * j + 15);
      if (!hit) continue;
      const int begin = __ffs(hit) - 1, end = 32 - __clz(hit), at = (16 * j + g) & 255;
      Tile sum[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        if (k < tiles) {
          const double2* w = (k < 2 ? all[4 * (k & 1) + t].w : all[4 * (k & 1) + t].y) + at;
          const double2 x = w[0], y = w[8];
          sum[k] = Tile{x.x, x.y, y.x, y.y};
        }
      double2 x[HELD / 4];             // weights of all, under way together
#pragma unroll
      for (int u = 0; u < HELD / 4; u++) {
        const int i = min(begin + 4 * u + t, HELD - 1), first = __shfl_sync(FULL, cell, i);
        const bool in = begin + 4 * u + t < end;
        const double* weight = A.weight + (size_t)(lo + c0 + i) * 16 + g;
        const bool here = in && (first + ((g - first) & 15)) >> 4 == j, there = in && (first + ((g + 8 - first) & 15)) >> 4 == j;
        x[u] = make_double2(here ? __ldg(weight) : 0, there ? __ldg(weight + 8) : 0);
      }
#pragma unroll
      for (int u = 0; u < HELD / 4; u++)
        if (begin + 4 * u < end) {
          const int i = min(begin + 4 * u + t, HELD - 1);
#pragma unroll
          for (int k = 0; k < 4; k++) if (k < tiles) multiply(sum[k], x[u], strength[(k * HELD + i) * 8 + g]);
        }
#pragma unroll
      for (int k = 0; k < 4; k++)
        if (k < tiles) {
          double2* w = (k < 2 ? all[4 * (k & 1) + t].w : all[4 * (k & 1) + t].y) + at;
          w[0] = make_double2(sum[k].re0, sum[k].re1); w[8] = make_double2(sum[k].im0, sum[k].im1);
        }
    }
  }
  __syncthreads();

#pragma unroll 1
  for (int ch = 0; ch < (both ? 2 : 1); ch++) {
    double2* g = ch ? mine.y : mine.w;
    double* ex = (double*)g;
    double2 v[16];
#pragma unroll
    for (int j = 0; j < 16; j++) v[j] = g[a + 16 * j];
    dft16<true>(v, [&](int i) { return __ldg(A.first + i); });
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
    dft16<true>(v, [&](int i) { return __ldg(A.second + 16 * i + a); });
    double2* out = A.out + A.place[pos] + (size_t)(ch ? bands.x : 0) * MODES + (size_t)band * MODES + a;
    const bool wanted = band < (ch ? bands.y : bands.x);
#pragma unroll
    for (int d = 0; d < OUT; d++) {
      const double k = __ldg(A.deconvolve + a + 16 * d);
      if (wanted) out[16 * d] = make_double2(k * v[place(d)].x, k * v[place(d)].y);
    }
  }
}

// ---------------------------------------------------------------- coefficients
// Matrix steps (of four samples) of harmonic h where samples are L frequencies apart.
__device__ __forceinline__ int steps_of(int h, int L) { return (REACH * L + 7 * h + 4 * L - 1) / (4 * L); }

struct Taps {
  const double* f0; const double* df; const int* order; const double* lead; const int* at;
  double* taps; int* origin; int* shift;       // [grid][octet][step][lane]; [grid][harmonic]; [grid][octet][harmonic]
  double beta, inverse;                        // 1 / I0(beta)
  int L, octets, steps, member, grid_stride;   // steps: of all harmonics
};
// I0(sqrt(4 q)) = sum q^k / k!^2: all terms above 0; enough for arguments up to 36.
__device__ __forceinline__ double bessel(double q) {
  double s = 1;
#pragma unroll
  for (int k = 64; k > 0; k--) s = fma(s * q, 1.0 / (k * k), 1.0);
  return s;
}
extern "C" __global__ void __launch_bounds__(256) chi2_taps(const Taps A) {
  const int local = blockIdx.x, gp = A.grid_stride ? A.member + local : 0, gi = A.grid_stride ? A.order[gp] : 0;
  const double f0 = A.f0[gi], df = A.df[gi], D = A.L * df, low = fma((double)A.L, df, -D);
  for (int e = threadIdx.x; e < A.octets * A.steps * 32; e += 256) {
    const int lane = e & 31, j = e / (32 * A.steps);
    int k = (e >> 5) % A.steps, h = 1;
    while (k >= steps_of(h, A.L)) k -= steps_of(h++, A.L);
    const double x = h * f0, rest = fma((double)h, f0, -x), n = floor(x / D);
    const int whole = h * j / A.octets;
    const double at = ((fma(-n, D, x) + rest) - n * low) / D;                  // place of the first frequency after sample n
    const double start0 = ceil(at - 0.5 * REACH), place = at + (double)(h * j % A.octets) / A.octets, start = ceil(place - 0.5 * REACH);
    const double d = (2.0 / REACH) * ((start + (4 * k + (lane & 3))) - place - (double)(h * (lane >> 2)) / A.L);
    const double q = 1 - d * d;
    A.taps[(size_t)local * A.octets * A.steps * 32 + e] = q > 0 ? A.inverse * bessel(0.25 * A.beta * A.beta * q) : 0;
    if (!k && !lane) {
      A.shift[(local * A.octets + j) * HARMONICS + h - 1] = whole + (int)(start - start0);
      if (!j) A.origin[local * HARMONICS + h - 1] = A.at[gp * HARMONICS + h - 1] + (int)((n - A.lead[gp * HARMONICS + h - 1]) + start0);
    }
  }
}

// ---------------------------------------------------------------- powers
struct Powers {
  const double2* samples; const long long* place; const double* taps; const int* origin; const int* shift; const int2* bands;
  const Info* info; const int* order; const int2* tasks; const int* nf; const long long* start; double* power;
  Doubts doubts;
  double limit, mean;
  int L, octets, steps, stride, tiles, buffers, turns, room, member, blocks, grid_stride;
  // stride: samples from one row to the next at f; turns: rows of tiles that a block does; room: samples of a buffer
};

// Copies of samples to shared memory, under way while others are worked on: by the copy engine where there is one. `done` counts
// the bytes that have come; a block waits for the turn-th filling of one buffer by its parity.
#if ON_DEVICE && __CUDA_ARCH__ >= 900
#define ENGINE 1
__device__ __forceinline__ unsigned shared_at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void expect(unsigned long long* done, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(done)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void fetch(double2* to, const double2* from, int n, unsigned long long* done) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_at(to)), "l"(from), "r"(16 * n), "r"(shared_at(done)) : "memory");
}
__device__ __forceinline__ void fetched(unsigned long long* done, int parity) {
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }"
               ::"r"(shared_at(done)), "r"(parity) : "memory");
}
#else
#define ENGINE 0
__device__ __forceinline__ void fetch(double2* to, const double2* from) {
#if ON_DEVICE && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
#else
  *to = *from;
#endif
}
__device__ __forceinline__ void fetched() {
#if ON_DEVICE && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
#endif

// The row of a tile that lanes 4 g to 4 g + 3 take where rows are `each` samples apart: two neighbours' samples lie on other banks.
// Sums then go to place 16 (row / 2) + 8 (an odd number of ones in row) + column, again on other banks; row_of finds back.
__device__ __forceinline__ int row_for(int g, int each) {
  return each & 1 ? (g >> 1) + 4 * (g & 1) : each & 2 ? (g & 4) + (g >> 1 & 1) + 2 * (g & 1) : g;
}
__device__ __forceinline__ int place_of(int row) { return 16 * (row >> 1) + 8 * ((row ^ row >> 1 ^ row >> 2) & 1); }
__device__ __forceinline__ int row_of(int place) { const int pair = place >> 4 & 3; return 2 * pair + ((place >> 3 ^ pair ^ pair >> 1) & 1); }

// STEPS steps of all tiles at once, addresses known but for the first ones.
template <int STEPS> __device__ __forceinline__ void multiply_all(Tile (&sum)[TILES], const double2* s, int each, const double* b) {
  double x[STEPS];
#pragma unroll
  for (int k = 0; k < STEPS; k++) x[k] = __ldg(b + 32 * k);
#pragma unroll
  for (int k = 0; k < STEPS; k++)
#pragma unroll
    for (int m = 0; m < TILES; m++) multiply(sum[m], (s + 8 * m * each)[4 * k], x[k]);
}

extern "C" __global__ void __launch_bounds__(THREADS, MINB) chi2_powers(const __grid_constant__ Powers A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int from[CHANNELS], length[CHANNELS], first[HARMONICS], steps0[HARMONICS + 1];
#if ENGINE
  __shared__ unsigned long long done[2];
#endif
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  int pos, block;
  if (A.tasks) { const int2 t = A.tasks[blockIdx.x]; pos = t.x; block = t.y; }
  else { pos = A.member + blockIdx.x / A.blocks; block = blockIdx.x % A.blocks; }
  const int o = A.order[pos], gp = A.grid_stride ? pos : 0, local = A.grid_stride ? pos - A.member : 0;
  const Info info = A.info[o];
  const int nf = A.nf[o * A.grid_stride], period = 8 * A.octets, rows = 8 * A.tiles, points = 64 * A.tiles;
  double* out = A.power + A.start[o];
  const int row0 = block * A.turns * rows;
  if (info.status != 0) {
    const long long begin = (long long)row0 * period, end = begin + (long long)A.turns * rows * period;
    for (long long i = begin + tid; i < min((long long)nf, end); i += THREADS) out[i] = missing64();
    return;
  }
  if (!tid) {
    int at = 0, step = 0;
    for (int c = 0; c < CHANNELS; c++) {
      const int h = c < HARMONICS ? c + 1 : c - HARMONICS + 1;
      from[c] = at;
      length[c] = (rows - 1) * h * A.stride + (A.octets > 1 ? h + 1 : 0) + 4 * steps_of(h, A.L);
      at += length[c];
      if (c < HARMONICS) { first[c] = A.origin[local * HARMONICS + c]; steps0[c] = step; step += steps_of(h, A.L); steps0[c + 1] = step; }
    }
#if ENGINE
    for (int i = 0; i < 2; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_at(done + i)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }
  __syncthreads();
  const double2* W = A.samples + A.place[pos];
  const double2* Y = W + (size_t)A.bands[gp].x * MODES;
  double2* buffers = (double2*)raw;
  double* slots = (double*)(buffers + A.buffers * A.room);      // [channel][real, imaginary][64 tiles]
  auto load = [&](int buffer, int row) {
    double2* to = buffers + buffer * A.room;
#if ENGINE
    if (!tid) expect(done + buffer, 16 * A.room);
    if (warp == 0) {
      __syncwarp();
      for (int c = lane; c < CHANNELS; c += 32) {
        const int h = c < HARMONICS ? c + 1 : c - HARMONICS + 1;
        fetch(to + from[c], (c < HARMONICS ? W : Y) + first[h - 1] + (size_t)row * (h * A.stride), length[c], done + buffer);
      }
    }
#else
    for (int c = warp; c < CHANNELS; c += WARPS) {
      const int h = c < HARMONICS ? c + 1 : c - HARMONICS + 1, n = length[c];
      const double2* source = (c < HARMONICS ? W : Y) + first[h - 1] + (size_t)row * (h * A.stride);
      double2* target = to + from[c];
      for (int i = lane; i < n; i += 32) fetch(target + i, source + i);
    }
#endif
  };
  const double limit = info.n < HARMONICS + (A.mean != 0) ? 0 : A.limit * sqrt((double)info.n);      // too few points are no matter of rounding
  const int g = lane >> 2, t = lane & 3;
  for (int turn = 0; turn < A.turns; turn++) {
    const int row = row0 + turn * rows;
    if ((long long)row * period >= nf) break;
    const int buffer = A.buffers > 1 ? turn & 1 : 0;
    const double2* here = buffers + buffer * A.room;
    if (A.buffers == 1 || turn == 0) load(buffer, row);
#if ENGINE
    fetched(done + buffer, (A.buffers > 1 ? turn >> 1 : turn) & 1);
#else
    fetched();
#endif
    __syncthreads();
    if (A.buffers > 1 && turn + 1 < A.turns && (long long)(row + rows) * period < nf) load(~turn & 1, row + rows);
#pragma unroll 1
    for (int j = 0; j < A.octets; j++) {
      if (j) __syncthreads();
#pragma unroll 1
      for (int c = warp; c < CHANNELS; c += WARPS) {
        const int h = c < HARMONICS ? c + 1 : c - HARMONICS + 1, each = h * A.stride, many = steps0[h] - steps0[h - 1];
        const double2* s = here + from[c] + (A.octets > 1 ? A.shift[(local * A.octets + j) * HARMONICS + h - 1] : 0) + row_for(g, each) * each + t;
        const double* b = A.taps + ((size_t)(local * A.octets + j) * A.steps + steps0[h - 1]) * 32 + lane;
        Tile sum[TILES];
#pragma unroll
        for (int m = 0; m < TILES; m++) sum[m] = Tile{0, 0, 0, 0};
        if (A.tiles == TILES && many == 5) multiply_all<5>(sum, s, each, b);
        else if (A.tiles == TILES && many == 6) multiply_all<6>(sum, s, each, b);
        else {
          for (int k = 0; k < many; k++) {
            const double x = __ldg(b + 32 * k);
#pragma unroll
            for (int m = 0; m < TILES; m++) if (m < A.tiles) multiply(sum[m], s[4 * k + 8 * m * each], x);
          }
        }
        double* slot = slots + 2 * c * points + place_of(row_for(g, each)) + 2 * t;
#pragma unroll
        for (int m = 0; m < TILES; m++)
          if (m < A.tiles) {
            *(double2*)(slot + 64 * m) = make_double2(sum[m].re0, sum[m].re1);
            *(double2*)(slot + 64 * m + points) = make_double2(sum[m].im0, sum[m].im1);
          }
      }
      __syncthreads();
      const long long k = (long long)(row + 8 * (tid >> 6) + row_of(tid)) * period + 8 * j + (tid & 7);
      if (tid < points) {              // a warp alike
        const double p = solved([&](int c) { return make_double2(slots[2 * c * points + tid], slots[(2 * c + 1) * points + tid]); }, limit, A.mean, PIVOT);
        if (k < nf) out[k] = p;
        doubt(A.doubts, k < nf && !(p == p) && limit > 0, o, (int)k);
      }
    }
  }
}

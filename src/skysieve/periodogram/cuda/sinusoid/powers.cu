// Powers of one sinusoid in float64 from samples of its sums: interpolation, power, search for peaks (float32:
// sinusoid/powers_half.cu).
//
// chi2_samples (fourier/grid.cu) writes W(nu) = sum w exp(2 pi i nu t) and the same sum of w y on a regular
// grid, SPACING frequencies apart (SPACING df T <= 0.8). That is 3/8 of a number for each frequency, where a
// comb takes three transforms. Between the samples, sums are interpolated from REACH samples, as for series of
// several terms: every SPACING-th frequency has the same place between samples, at f and at 2f. Therefore 16
// frequencies in a row (rows) of 4 such rows, real and imaginary (columns), are a product of matrices with one
// small table.
//
// Layout: ls_taps computes this table for each grid, and the place where its samples begin. In ls_powers one
// block (4 warps) computes 2048 frequencies in a row of one object, as 32 tiles of 4 rows of 16; a thread has
// two frequencies of a tile. The copy engine brings the samples to shared memory. Powers are staged for the
// search for peaks, which a warp skips if none of its 512 powers reaches the floor under the best peaks
// (sinusoid/powers.cuh).
//
// Cost for one frequency: 128 multiply-adds of the matrix unit and 30 others of the same pipe. For 1,000 x
// 28,608 frequencies these need 0.17 ms on an H100, which takes 0.20 ms. Device memory: 3/8 of 16 bytes read.
// Limit: that pipe, 65% busy at 24 warps on a multiprocessor.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double -DMINB=6
// build: f64s16 -DREAL=double -DMINB=5 -DSPACING=16
// build: f64s32 -DREAL=double -DMINB=5 -DSPACING=32
// budget: f64 kernel=ls_taps regs<=64 smem<=0
// budget: f64 kernel=ls_powers regs<=80 smem<=64 spills<=128
// budget: f64s16 kernel=ls_powers regs<=96 smem<=64 spills<=32
// budget: f64s32 kernel=ls_powers regs<=96 smem<=64 spills<=32
#include "common.cuh"
#include "samples/tiles.cuh"
#include "sinusoid/powers.cuh"
#include "samples/taps.cuh"

#ifndef SPACING
#define SPACING 8  // frequencies between samples
#endif
#ifndef MINB
#define MINB 5  // blocks a multiprocessor
#endif
#define REACH 18                                  // samples that an interpolated value is made of
#define PARTS (SPACING > 16 ? SPACING / 16 : 1)   // of 16 frequencies in a row
#define STRIDE (SPACING > 16 ? 1 : 16 / SPACING)  // samples from one row to the next at f
#define PERIOD (16 * PARTS)
#define ROWS (SPAN / PERIOD)
#define STEPS(h) \
  ((REACH * SPACING + 15 * (h) + 4 * SPACING - 1) / (4 * SPACING))  // matrix steps (of four samples) of harmonic h
#define ALL_STEPS (STEPS(1) + STEPS(2))
#define LENGTH(h) ((ROWS - 1) * (h) * STRIDE + (PARTS > 1 ? (h) + 1 : 0) + 4 * STEPS(h))  // samples of a block
#define ALL_SAMPLES (LENGTH(2) + 2 * LENGTH(1))
#define HEAD                            \
  (ALL_SAMPLES > SPAN / 4 ? ALL_SAMPLES \
                          : SPAN / 4)  // before the powers: samples, later a list of all of these (16 bytes)

// ---------------------------------------------------------------- coefficients
struct Taps {
  const double* f0;
  const double* df;
  const int* order;
  const double* lead;
  const int* at;
  double2* taps;
  int* origin;
  int* shift;            // [grid][part][step at f, then at 2f][lane]; [grid][harmonic]; [grid][part][harmonic]
  double beta, inverse;  // 1 / I0(beta)
  int member, blocks, grid_stride;  // blocks: of a grid
};
extern "C" __global__ void __launch_bounds__(256) ls_taps(const Taps A) {
  const int local = blockIdx.x / A.blocks, gp = A.grid_stride ? A.member + local : 0,
            gi = A.grid_stride ? A.order[gp] : 0;
  const double f0 = A.f0[gi], df = A.df[gi];
  for (int e = blockIdx.x % A.blocks * 256 + threadIdx.x; e < PARTS * ALL_STEPS * 32; e += 256 * A.blocks) {
    const int lane = e & 31, j = e / (32 * ALL_STEPS), step = (e >> 5) % ALL_STEPS, h = step < STEPS(1) ? 1 : 2,
              k = h == 1 ? step : step - STEPS(1);
    const Origin first = origin_of(f0, df, SPACING, h);
    const int whole = h * j / PARTS;
    const double start0 = ceil(first.at - 0.5 * REACH), place = first.at + (double)(h * j % PARTS) / PARTS,
                 start = ceil(place - 0.5 * REACH);
    double v[2];
    for (int i = 0; i < 2; i++) {
      const double d = (2.0 / REACH) *
                       ((start + (4 * k + (lane & 3))) - place - (double)(h * ((lane >> 2) + 8 * i)) / SPACING),
                   q = 1 - d * d;
      v[i] = q > 0 ? A.inverse * bessel(A.beta, q) : 0;
    }
    A.taps[(size_t)local * PARTS * ALL_STEPS * 32 + e] = make_double2(v[0], v[1]);
    if (!k && !lane) {
      A.shift[(local * PARTS + j) * 2 + h - 1] = whole + (int)(start - start0);
      if (!j) A.origin[local * 2 + h - 1] = A.at[gp * 2 + h - 1] + (int)((first.n - A.lead[gp * 2 + h - 1]) + start0);
    }
  }
}

// ---------------------------------------------------------------- powers
// Matrix products with an inner dimension of sixteen, or eight, if the GPU has such instructions.
template <int N>
__device__ __forceinline__ void multiply_all(Tile& c, const double2* a, const double* b) {
#if HAS_TALL_DOUBLE_MATRICES
  if constexpr (N >= 4) {
    ptx::multiply_doubles(c.re0, c.re1, c.im0, c.im1, a, b[0], b[8], b[16], b[24]);
    multiply_all<N - 4>(c, a + 4, b + 32);
  } else if constexpr (N >= 2) {
    ptx::multiply_doubles(c.re0, c.re1, c.im0, c.im1, a[0], a[1], b[0], b[8]);
    multiply_all<N - 2>(c, a + 2, b + 16);
  } else if constexpr (N == 1)
    multiply(c, a[0], b[0]);
#else
#pragma unroll
  for (int k = 0; k < N; k++) multiply(c, a[k], b[8 * k]);
#endif
}

// The power; NaN if it is suspicious.
__device__ __forceinline__ double power_from(double c, double s, double yc, double ys, double c2, double s2,
                                             double mean, double guard) {
  c *= mean;
  s *= mean;
  const double cc = fma(-c, c, fma(0.5, c2, 0.5)), ss = fma(-s, s, fma(-0.5, c2, 0.5)), cs = fma(-c, s, 0.5 * s2);
  const double det = fma(cc, ss, -cs * cs);
  const double p = fma(yc, fma(ss, yc, -2 * cs * ys), cc * ys * ys) * reciprocal(det);
  return det > guard ? p : missing64();
}
// Finds the peaks of a warp's region of staged powers that reach the floor; a thread tests EACH powers from `mine`
// on.
template <typename Get>
__device__ __forceinline__ void search(const Sampled& A, int o, int block, int total, unsigned known, const T* mine,
                                       const Get& staged) {
  const int tid = threadIdx.x;
  // By their high halves: which may be peaks, not below a neighbour nor the floor; the best of those that surely are.
  const int i0 = tid * EACH, left = total - i0, least = known ? (int)known : -0x7fffffff, none = -0x7fffffff;
  unsigned found = 0, keep = 0;
  int best = 0, before = tid > 0 ? high_at(mine - 2) : none, here = high_at(mine);
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int after = i + 1 < EACH        ? high_at(mine + i + 1)
                      : tid + 1 < THREADS ? high_at(mine + EACH + 1)
                                          : none,
              side = max(before, after);
    if (here >= side && here >= least) found |= 1u << i;
    if (here > side && (i > 0 || tid > 0) && (i + 1 < EACH || tid + 1 < THREADS)) best = max(best, here);
    before = here;
    here = after;
  }
  if (left <= EACH) {  // the end: there are no powers beyond it
    found = left > 0 ? (found & ((1u << left) - 1)) | 1u << (left - 1) : 0;
    best = 0;
  }
  known = raised_by(A, o, block, warp_max((unsigned)best), known);
#pragma unroll 1
  for (; found; found &= found - 1) {
    const int bit = __ffs(found) - 1, i = i0 + bit;
    const T p = staged(i);
    if (key_of(p) >= known && is_peak(i > 0 ? staged(i - 1) : missing(), p, i + 1 < total ? staged(i + 1) : missing()))
      keep |= 1u << bit;
  }
  give_peaks(A.peaks, o, block * SPAN, i0, total, keep, staged);
}

extern "C" __global__ void __launch_bounds__(THREADS, MINB) ls_powers(const __grid_constant__ Sampled A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ unsigned long long done;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int2 task = task_of(A);
  const int pos = task.x, block = task.y;
  const int o = A.order[pos], gp = A.grid_stride ? pos : 0, local = A.grid_stride ? pos - A.member : 0;
  double2* twice = (double2*)raw;
  double2* w = twice + LENGTH(2);
  T* stage = (T*)(twice + HEAD);
  auto staged = [&](int k) -> T& { return stage[k + (k >> 4)]; };  // padding against bank conflicts
  {
    const double2* W = (const double2*)A.samples + A.place[pos];
    const double2* Y = W + (size_t)A.bands[gp].x * A.modes;
    const int first = A.origin[2 * local] + block * (ROWS * STRIDE),
              first2 = A.origin[2 * local + 1] + block * (ROWS * STRIDE * 2);
    bring(twice, W + first2, LENGTH(2), W + first, Y + first, LENGTH(1), &done);
  }
  double2 taps[ALL_STEPS];
  auto coefficients = [&](int part) {
    const double2* b = (const double2*)A.taps + (size_t)(local * PARTS + part) * (ALL_STEPS * 32) + lane;
#pragma unroll
    for (int k = 0; k < ALL_STEPS; k++) taps[k] = __ldg(b + 32 * k);
  };
  if (PARTS == 1) coefficients(0);
  const int status = A.info[o].status, n = A.info[o].n, total = min(SPAN, A.nf[o * A.grid_stride] - block * SPAN);
  const T guard = guard_of(A.guard, n), mean = A.mean;
  brought(&done);
  if (status != 0) {
    leave_none(A, o, block, total);
    return;
  }

  bool odd = false;
  int top = -0x7fffffff;
#pragma unroll 1
  for (int it = 8 * warp; it < 8 * warp + 8; it++) {
    const int part = it % PARTS, row = it / PARTS * 4, k0 = (row + t) * PERIOD + 16 * part + g;
    if (row * PERIOD + 16 * part >= total) break;
    const int column = 2 * ((row + (g >> 1)) * STRIDE + t) + (g & 1), column2 = column + 2 * (row + (g >> 1)) * STRIDE;
    const double* at_w = (const double*)w + column;
    const double* at_z = (const double*)twice + column2;
    if (PARTS > 1) {
      coefficients(part);
      const int* shift = A.shift + 2 * (local * PARTS + part);
      at_w += 2 * shift[0];
      at_z += 2 * shift[1];
    }
    const double* at_y = at_w + 2 * LENGTH(1);
    Tile sw = {0, 0, 0, 0}, sy = sw, s2 = sw;
    multiply_all<STEPS(2)>(s2, taps + STEPS(1), at_z);
    multiply_all<STEPS(1)>(sw, taps, at_w);
    multiply_all<STEPS(1)>(sy, taps, at_y);
    const T p0 = power_from(sw.re0, sw.re1, sy.re0, sy.re1, s2.re0, s2.re1, mean, guard);
    const T p1 = power_from(sw.im0, sw.im1, sy.im0, sy.im1, s2.im0, s2.im1, mean, guard);
    odd |= (!(p0 == p0) && k0 < total) | (!(p1 == p1) && k0 + 8 < total);
    top = max(top, max(high_of(p0), high_of(p1)));
    staged(k0) = p0;
    staged(k0 + 8) = p1;
  }
  const unsigned known = floor_now(A.peaks, o);
  const bool changed = settle(A, o, n, block, total, odd, raw, staged);
  if (__any_sync(FULL, changed || top >= (int)known))
    search(A, o, block, total, known, &staged(tid * EACH), staged);  // a warp looks at the powers that it made
}

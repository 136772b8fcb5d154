// Powers of one sinusoid in float32, as in sinusoid/powers.cu but from samples that are pairs of half-precision
// numbers (sinusoid/powers_half.cuh).
//
// Samples and coefficients are x = high + low. Of a product, high high + high low + low high are added in
// float32. A window whose shape in time is flat (cuda.samples.half_window) makes samples as small as the sums.
// Errors on 1,000 light curves x 28,608 frequencies: 8.4e-7 from 30 points on, 1.3e-6 from 17 on. 16
// frequencies in a row, at f and at 2f, are interpolated from 24 samples that begin at an even place, so that
// two neighbours are one word of an operand; where SPACING > 8, parts of a row begin at even places of their
// own. From one tile to the next, samples move on by an octet (two at 2f), so that only four of a tile's nine
// operands have to be read.
//
// Layout: a block of ls_powers computes 512 frequencies a warp of one object, in 8 tiles of 4 rows of 16.
// Suspicious powers (by the guard of the determinant) are NaN until the block computes them again. The search
// compares a thread's sixteen powers as integers.
//
// Cost for one frequency of a lane: 9 matrix instructions, 24 others and 29 around them (beginning, search,
// exact powers).
// Limit: for 1,000 x 28,608 frequencies on an H100, the matrix pipe alone would take 45 us (measured: 6.2
// cycles for an instruction of sixteen samples, 4.25 for one of eight), the instructions alone 58 us, and
// memory alone 38 us. The kernel takes 0.12 ms (0.17 with samples in float64; 0.08 without search and exact
// powers), so that these overlap by half. An instruction is issued in 53% of cycles at 28 warps, and more warps
// do not help.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float -DMINB=8
// build: f32s16 -DREAL=float -DMINB=8 -DSPACING=16
// build: f32s32 -DREAL=float -DMINB=8 -DSPACING=32
// budget: f32 kernel=ls_taps regs<=64 smem<=0 spills<=32
// budget: f32s16 kernel=ls_taps regs<=64 smem<=0 spills<=32
// budget: f32s32 kernel=ls_taps regs<=64 smem<=0 spills<=32
// budget: f32 kernel=ls_powers regs<=64 smem<=64 spills<=256
// budget: f32s16 kernel=ls_powers regs<=64 smem<=64 spills<=256
// budget: f32s32 kernel=ls_powers regs<=64 smem<=64 spills<=256
// split: no
#include "common.cuh"
#include "samples/tiles.cuh"
#include "sinusoid/powers_half.cuh"
#include "sinusoid/powers.cuh"
#include "samples/taps.cuh"

#ifndef SPACING
#define SPACING 8  // frequencies between samples
#endif
#ifndef MINB
#define MINB 8  // blocks a multiprocessor
#endif
#define REACH 19             // samples that an interpolated value is made of
#define PARTS (SPACING / 8)  // of 16 frequencies in a row
#define STRIDE 2             // samples from one row to the next at f
#define PERIOD (16 * PARTS)
#define ROWS (SPAN / PERIOD)
#define TILES (8 / PARTS)  // of four rows, of a warp and part
#define STEPS 3            // matrix steps (of eight samples)
#define OCTETS(h)                                                                 \
  (((ROWS - 1) * (h) * STRIDE + (PARTS > 1 ? 2 * (h) + 2 : 0) + 8 * STEPS + 13) / \
   8)  // of a block, from an even place on
#define ALL_OCTETS (OCTETS(2) + 2 * OCTETS(1))
#define BUFFER (64 * ALL_OCTETS > 4 * SPAN ? 64 * ALL_OCTETS : 4 * SPAN)  // bytes: samples, later a list of all powers
#define PAD 4                                                             // numbers between every sixteen staged powers
#define UNIT 0x1p16f                                                      // of squares

// ---------------------------------------------------------------- coefficients
struct Taps {
  const double* f0;
  const double* df;
  const int* order;
  const double* lead;
  const int* at;
  uint4* taps;
  int* origin;
  int* shift;  // [grid][part][harmonic][step][lane]; [grid][harmonic]; [grid][part][harmonic]
  double beta, inverse, twice,
      shape[4];                     // the window: Kaiser-Bessel, times inverse, at 2f times twice, times a polynomial
  int member, blocks, grid_stride;  // blocks: of a grid
};
extern "C" __global__ void __launch_bounds__(256) ls_taps(const Taps A) {
  const int local = blockIdx.x / A.blocks, gp = A.grid_stride ? A.member + local : 0,
            gi = A.grid_stride ? A.order[gp] : 0;
  const double f0 = A.f0[gi], df = A.df[gi];
  for (int e = blockIdx.x % A.blocks * 256 + threadIdx.x; e < PARTS * 2 * STEPS * 32; e += 256 * A.blocks) {
    const int lane = e & 31, k = (e >> 5) % STEPS, h = (e >> 5) / STEPS % 2 + 1, j = e / (64 * STEPS);
    const Origin first = origin_of(f0, df, SPACING, h);
    const double place = first.at + h * j * 16.0 / SPACING;
    const int before = A.at[gp * 2 + h - 1] + (int)(first.n - A.lead[gp * 2 + h - 1]);  // where sample n lies
    int start0 = (int)ceil(first.at - 0.5 * REACH), start = (int)ceil(place - 0.5 * REACH);
    start0 -= (before + start0) & 1;
    start -= (before + start) & 1;  // pairs begin at even places
    unsigned v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const double d = (2.0 / REACH) * ((start + 8 * k + 2 * (lane & 3) + (i & 1)) - place -
                                        (double)(h * ((lane >> 2) + 4 * (i & 2))) / SPACING),
                   q = 1 - d * d;
      const double shape =
          fma(q, fma(q, fma(q, A.shape[3], A.shape[2]), A.shape[1]), A.shape[0]) * A.inverse * (h == 1 ? 1 : A.twice);
      v[i] = split(q > 0 ? (float)(shape * bessel(A.beta, q)) : 0.0f);
    }
    const uint2 row = pair_of(v[0], v[1]), other = pair_of(v[2], v[3]);
    uint4 all;
    all.x = row.y;
    all.y = other.y;
    all.z = row.x;
    all.w = other.x;
    A.taps[(size_t)local * PARTS * 2 * STEPS * 32 + e] = all;
    if (!k && !lane) {
      A.shift[(local * PARTS + j) * 2 + h - 1] = start - start0;
      if (!j) A.origin[local * 2 + h - 1] = before + start0;
    }
  }
}

// ---------------------------------------------------------------- powers
// The power from sums at f in units of 2^-8, and half the sums at 2f in units of 2^-16: the determinant is in units
// of 2^-32. NaN if it is suspicious.
__device__ __forceinline__ float power_from(float c, float s, float yc, float ys, float c2, float s2, float guard) {
  const float cc = fma(-c, c, 0.5f * UNIT + c2), ss = fma(-s, s, 0.5f * UNIT - c2), cs = fma(-c, s, s2);
  const float det = fma(cc, ss, -cs * cs);
  const float p = fma(yc, fma(ss, yc, -cs * ys), ys * fma(cc, ys, -cs * yc)) * reciprocal(det);
  return det > guard ? p : (float)missing();
}

// Finds the peaks of a warp's region of staged powers that are not below `known`, the floor under the best ones; a
// thread tests sixteen powers from `mine` on.
template <typename Get>
__device__ __forceinline__ void search(const Sampled& A, int o, int block, int total, unsigned known, const float* mine,
                                       const Get& staged) {
  const int tid = threadIdx.x, none = -0x7fffffff, i0 = tid * EACH;
  int v[EACH + 2];
#pragma unroll
  for (int i = 0; i < EACH; i += 4) {
    const float4 x = *(const float4*)(mine + i);
    v[i + 1] = high_of(x.x);
    v[i + 2] = high_of(x.y);
    v[i + 3] = high_of(x.z);
    v[i + 4] = high_of(x.w);
  }
  v[0] = tid > 0 ? high_at(mine - 1 - PAD) : none;
  v[EACH + 1] = tid + 1 < THREADS ? high_at(mine + EACH + PAD) : none;
  unsigned up = 0, keep = 0;
#pragma unroll
  for (int i = 0; i <= EACH; i++)
    if (v[i + 1] > v[i]) up |= 1u << i;
  auto reach = [&](unsigned found, int& best) {  // those of `found` that reach the floor
    unsigned keep = 0;
#pragma unroll 1
    for (; found; found &= found - 1) {
      const int bit = __ffs(found) - 1, here = high_at(mine + bit), i = i0 + bit;
      if (here < (int)known || here < 0) continue;
      keep |= 1u << bit;
      if (i > 0 && i + 1 < total) best = max(best, here);
    }
    return keep;
  };
  int best = 0;
  keep = reach(up & ~(up >> 1) & ((1u << EACH) - 1), best);
  if (!__any_sync(FULL, keep != 0)) return;
  const unsigned raised = raised_by(A, o, block, warp_max((unsigned)best), known);
  if (raised > known) {
    known = raised;
    keep = reach(keep, best);
  }
  give_peaks(A.peaks, o, block * SPAN, i0, total, keep, staged);
}

extern "C" __global__ void __launch_bounds__(THREADS, MINB) ls_powers(const __grid_constant__ Sampled A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ unsigned long long done;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  int pos = A.member + blockIdx.z * gridDim.x + blockIdx.x, block = blockIdx.y;
  if (gridDim.y > 1) {
    if (pos >= A.member + A.members) return;
  }  // the same as task_of, without divisions
  else {
    const int2 task = task_of(A);
    pos = task.x;
    block = task.y;
  }
  const int local = A.grid_stride ? pos - A.member : 0, gp = A.grid_stride ? pos : 0;
  const int first = A.origin[2 * local] + block * (ROWS * STRIDE),
            first2 = A.origin[2 * local + 1] + block * (ROWS * STRIDE * 2);
  {  // samples: at 2f, then at f of w and of y
    const uint2* samples = (const uint2*)A.samples + A.place[pos];
    const uint2* further = samples + (size_t)A.bands[gp].x * A.modes;
    const double2* W2 = (const double2*)(samples + (first2 & ~7));
    const double2* W = (const double2*)(samples + (first & ~7));
    const double2* Y = (const double2*)(further + (first & ~7));
    bring((double2*)raw, W2, 4 * OCTETS(2), W, Y, 4 * OCTETS(1), &done);
  }
  T* stage = (T*)(raw + BUFFER);
  auto staged = [&](int k) -> T& { return stage[k + (k >> 4) * PAD]; };  // padding against bank conflicts
  const int o = A.order[pos], n = A.info[o].n, status = A.info[o].status,
            total = min(SPAN, A.nf[o * A.grid_stride] - block * SPAN);
  uint4 taps[STEPS], taps2[STEPS];
  auto coefficients = [&](int part) {
    const uint4* b = (const uint4*)A.taps + (size_t)(local * PARTS + part) * (2 * STEPS * 32) + lane;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      taps[k] = __ldg(b + 32 * k);
      taps2[k] = __ldg(b + 32 * (k + STEPS));
    }
  };
  if (PARTS == 1) coefficients(0);
  const T guard = guard_of(A.guard, n) * (UNIT * UNIT);
  brought(&done);
  if (status != 0) {
    leave_none(A, o, block, total);
    return;
  }
  if (A.mean == 0) {  // no constant: no sums of w at f
    double2* w = (double2*)raw + 4 * OCTETS(2);
    for (int i = tid; i < 4 * OCTETS(1); i += THREADS) w[i] = make_double2(0, 0);
    __syncthreads();
  }

  int top = -0x7fffffff;
  unsigned worst = 0;  // the largest bits; missing powers have the largest of all
#pragma unroll 1
  for (int part = 0; part < PARTS; part++) {
    int p1 = ((first & 7) >> 1) + (g >> 1) + t, p2 = ((first2 & 7) >> 1) + (g >> 1) * 2 + t;  // pairs of samples
    if (PARTS > 1) {
      coefficients(part);
      const int* shift = A.shift + 2 * (local * PARTS + part);
      p1 += shift[0] >> 1;
      p2 += shift[1] >> 1;
    }
    const uint2* at_z = (const uint2*)raw + 8 * ((p2 >> 2) + 2 * warp * TILES) + 4 * (g & 1) + (p2 & 3);
    const uint2* at_w = (const uint2*)raw + 8 * OCTETS(2) + 8 * ((p1 >> 2) + warp * TILES) + 4 * (g & 1) +
                        (p1 & 3);  // an octet further with every tile
    const uint2* at_y = at_w + 8 * OCTETS(1);
    T* to = &staged((4 * warp * TILES + t) * PERIOD + 16 * part + g);
    uint2 w0 = at_w[0], w1 = at_w[8], y0 = at_y[0], y1 = at_y[8], z0 = at_z[0];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      const uint2 w2 = at_w[8 * m + 16], y2 = at_y[8 * m + 16], z1 = at_z[16 * m + 8], z2 = at_z[16 * m + 16];
      const Sum s2 = product_of(taps2, z0, z1, z2), sw = product_of(taps, w0, w1, w2),
                sy = product_of(taps, y0, y1, y2);
      const T pa = power_from(sw.re0, sw.re1, sy.re0, sy.re1, s2.re0, s2.re1, guard),
              pb = power_from(sw.im0, sw.im1, sy.im0, sy.im1, s2.im0, s2.im1, guard);
      to[m * (PERIOD / 4 * (16 + PAD))] = pa;
      to[m * (PERIOD / 4 * (16 + PAD)) + 8] = pb;
      top = max(top, max(high_of(pa), high_of(pb)));
      worst = max(worst, max((unsigned)high_of(pa), (unsigned)high_of(pb)));
      w0 = w1;
      w1 = w2;
      y0 = y1;
      y1 = y2;
      z0 = z2;
    }
  }
  bool odd = worst > 0xff800000u;
  if ((warp + 1) * REGION > total) {  // there are no powers beyond the end
    odd = false;
    __syncwarp();
    for (int i = warp * REGION + lane; i < (warp + 1) * REGION; i += 32)
      if (i >= total)
        staged(i) = missing();
      else
        odd |= !(staged(i) == staged(i));
  }
  const unsigned known = floor_now(A.peaks, o);
  const bool changed = settle(A, o, n, block, total, odd, raw, staged);
  if (__any_sync(FULL, changed || top >= (int)known))
    search(A, o, block, total, known, &staged(tid * EACH), staged);  // a warp looks at the powers that it made
}

// Series of several Fourier terms: periodogram from samples of the sums. W(nu) = sum w exp(2 pi i nu t) and the
// same sum of w y are computed on one coarse regular grid for all harmonics and interpolated to every m f. Then
// the normal equations are solved.
//
// If times are counted from the middle of the span T, W is limited to |t| <= T/2, so that samples L df <= 0.8 /
// T apart determine it. The strengths of the points are divided beforehand by the shape of the interpolation
// window in time, as in a NUFFT of type 2, so that 17 samples are enough for an interpolated value. Every L-th
// frequency lies at the same place between two samples, at every harmonic. The coefficients of a grid are
// therefore one small table, and the interpolation is a product of matrices: rows of samples (each begins m L /
// 8 further on) by 8 frequencies.
//
// Layout:
// chi2_points: one warp for 32 points. A lane computes the strengths of one point, divided by the window's
// shape, and the phase by which the point turns within half a band of samples. Then eight lanes compute the 16
// spreading weights of one point, two each: the polynomials of taps a and 15 - a are the same polynomial, at u
// and -u, and follow from its even and odd parts. Weights of cells 8 apart are stored next to each other. The
// sign of a weight says whether its cell is one of the next sixteen.
// chi2_samples: one warp computes two bands of 160 samples of w and of w y, or four bands of w alone, and waits
// for no other warp. Matrix instructions (16 cells by 4 points by 8 numbers of the four series) spread the
// points on 224 cells that stay in registers. A lane then holds all cells of a series whose indices are equal
// modulo 16, so that half of a 256-point FFT (16 x 16) needs no exchange.
// chi2_taps: the interpolation coefficients of each grid, and the place where its samples begin.
// chi2_powers: one block computes 8 * tiles rows of 8 * octets frequencies, several times in turn; a warp has 8
// rows. The samples of the next turn are copied to shared memory while equations are solved. A warp
// interpolates all channels at 64 frequencies by matrix instructions. The sums stay in registers, and a thread
// solves the equations of two frequencies, one after the other. From 6 terms on, sums pass through shared
// memory. With 8 and 9 terms two lanes solve one system together, because the registers of one thread cannot
// hold the matrix.
//
// Cost for one frequency at 4 terms: 1.5 outputs of the samples' transforms, of 38 multiply-adds each; 264 x 2
// in matrix instructions (at twice the plain rate) for the interpolation; 254 for the equations.
// Limit on an H100 at 4 terms: for chi2_powers the float64 and matrix units, which are one pipe, 66% busy at 12
// warps on a multiprocessor (registers allow no more). For chi2_samples latency at 12 warps, with about 36% of
// issue slots and half of the shared memory's cycles in use.
//
// archs: 75 80 86 89 90 100 120
// build: t2 -DREAL=double -DTERMS=2
// build: t4 -DREAL=double -DTERMS=4
// build: halves -DREAL=double -DTERMS=1 -DMODES=208 -DREACH=19 -DHALVES
// budget: t4 kernel=chi2_points regs<=72 smem<=0
// budget: t2 kernel=chi2_powers regs<=96 smem<=1024 spills<=96
// budget: t2 kernel=chi2_samples regs<=168 smem<=0 spills<=144
// budget: halves kernel=chi2_powers regs<=96 smem<=1024 spills<=128
// budget: halves kernel=chi2_points regs<=72 smem<=0
// budget: halves kernel=chi2_samples regs<=168 smem<=0 spills<=144
// budget: t4 kernel=chi2_samples regs<=168 smem<=0 spills<=144
// budget: t4 kernel=chi2_powers regs<=168 smem<=1024 spills<=64
#include "common.cuh"
#include "samples/dft.cuh"
#include "samples/dft14.cuh"
#include "fourier/solve.cuh"
#include "samples/tiles.cuh"

#ifndef MODES
#define MODES 160
#endif
#define OUT (MODES / 16)
#define COEFFICIENTS 16
#ifndef REACH
#define REACH 17  // samples that an interpolated value is made of
#endif
#include "samples/form.cuh"
#include "samples/spread.cuh"
#include "samples/taps.cuh"
#define TILES 2  // of a block, one for each warp
#define MINB (TERMS <= 2 ? 10 : TERMS == 3 ? 8 : TERMS == 4 ? 6 : 4)
#define PASSED \
  (TERMS <= 5 ? 0 : TERMS <= 7 ? 1 : 2)  // how many of a thread's two frequencies pass through shared memory

// From a kernel's arguments: the object's place in the order, and the index of this block among those of the
// object.
template <typename Arguments>
__device__ __forceinline__ int2 task_of(const Arguments& A) {
  if (A.tasks) return A.tasks[blockIdx.x];
  int2 v;
  v.x = A.member + blockIdx.x / A.blocks;
  v.y = blockIdx.x % A.blocks;
  return v;
}

// ---------------------------------------------------------------- points
struct Points {
  const double* tp;
  const double2* wv;
  const int* owner;
  const Info* info;
  const double* taps;
  const double* df;
  const Limit* limit;
  int* cell;
  double* weight;
  double2* strength;
  double2* spin;
  unsigned* counts;
  double beta, scale;
  int rows, padded, grid_stride, counters;
};
extern "C" __global__ void __launch_bounds__(128) chi2_points(const Points A) {
  const int lane = threadIdx.x & 31, a = lane & 7;
  const long long p0 = ((long long)blockIdx.x * 4 + (threadIdx.x >> 5)) * 32, q = p0 + lane;
  const int owner = q < A.rows ? A.owner[q] : -1;
  const double tp = q < A.rows ? A.tp[q] : 0;
  const double2 wv = q < A.rows ? A.wv[q] : make_double2(0, 0);
  double c[COEFFICIENTS];
#pragma unroll
  for (int k = 0; k < COEFFICIENTS; k++) c[k] = A.taps[k * 16 + a];
  if (!blockIdx.x)
    for (int i = threadIdx.x; i < A.counters; i += 128) A.counts[i] = 0;
  if (p0 >= A.padded) return;
  const double circle = owner < 0 ? 0 : A.limit[owner].circle;
  const bool own = circle > 0;
  double place = 0;
  if (own) {
    place = (tp - 0.5 * A.info[owner].span) * (circle * A.df[owner * A.grid_stride]);
    const double w = strength_at(place, A.taps + 16 * COEFFICIENTS, A.beta, A.scale);
    double sine, cosine;
    sincos_cycles(place * (0.5 * MODES / 256), sine, cosine);
    A.cell[q] = (int)ceil(place - 8);
    A.spin[q] = make_double2(cosine, sine);
    A.strength[q] = make_double2(w * wv.x, w * wv.y);
  }
  const double x = place - 8, first = ceil(x), u = 2 * (first - x) - 1;
  const int nobody = 0x7fffffff, mine = own ? (int)first : nobody;
#pragma unroll 4
  for (int i = 0; i < 32; i += 4) {
    const int from = i + (lane >> 3), at = __shfl_sync(FULL, mine, from);
    const double v = __shfl_sync(FULL, u, from), vv = v * v;
    double even = c[COEFFICIENTS - 2], odd = c[COEFFICIENTS - 1];
#pragma unroll
    for (int k = COEFFICIENTS - 4; k >= 0; k -= 2) {
      even = fma(even, vv, c[k]);
      odd = fma(odd, vv, c[k + 1]);
    }
    double w = fma(odd, v, even),
           later = __shfl_xor_sync(FULL, fma(-odd, v, even), 7);  // of taps a and 15 - a, then of a and a + 8
    const int b = at & 15, here = (a + b) & 15, beyond = (a + 8 + b) & 15;
    w = __hiloint2double(__double2hiint(w) & 0x7fffffff | (here < b) << 31, __double2loint(w));
    later = __hiloint2double(__double2hiint(later) & 0x7fffffff | (beyond < b) << 31, __double2loint(later));
    if (at == nobody) w = later = 0;  // these are read past the end of the previous object: they must be finite
    if (p0 + from < A.padded)
      ((double2*)A.weight)[(p0 + from) * 8 + (here & 7)] = here < 8 ? make_double2(w, later) : make_double2(later, w);
  }
}
// ---------------------------------------------------------------- samples
struct Samples {
  const double* tp;
  const double2* strength;
  const double2* spin;
  const int* cell;
  const double* weight;
  const int* offsets;
  const Info* info;
  const int* order;
  const int2* tasks;
  const double* lead;
  const int* at;
  const int2* bands;
  const long long* place;
  const double2* first;
  const double2* second;
  const double* deconvolve;
  const double* df;
  double2* out;
  double step;  // frequencies between samples
  int member, blocks, grid_stride;
};
#define SEGMENT0 (-7)  // cells begin here, in sixteens: points lie within 0.4 of a circle, and reach 8 cells further
#define SEGMENTS 13
#define WARPS 2               // of a block: so few that hardly one is idle
#define STRENGTH 12           // numbers between points: lanes of four points lie on different banks
#define WEIGHT 20             // likewise
#define BUFFER (35 * WEIGHT)  // weights of 32 points, and of three that a step may read
#define HELD (2 * BUFFER + 35 * STRENGTH)
#define EXCHANGE 276  // numbers of a series' exchange: lanes of four series on different banks
// Loads from global memory are under way from here on.
#if ON_DEVICE
#define NOW(constraint, x) asm volatile("" : constraint(x))
#else
#define NOW(constraint, x)
#endif
__device__ __host__ constexpr int shifted(int b) {
  return place((b + 256 - MODES / 2) & 15);
}  // outputs begin at -MODES / 2
extern "C" __global__ void __launch_bounds__(32 * WARPS, 12 / WARPS) chi2_samples(const __grid_constant__ Samples A) {
  extern __shared__ __align__(16) unsigned char raw[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
  const int2 task = task_of(A);
  const int pos = task.x, block = task.y;
  const int o = A.order[pos], gp = A.grid_stride ? pos : 0;
  int n = A.info[o].n, status = A.info[o].status, lo = A.offsets[o];
  int2 bands = A.bands[gp];
  double df = A.df[o * A.grid_stride], span = A.info[o].span;
  NOW("+r", n);
  NOW("+r", status);
  NOW("+r", lo);
  NOW("+r", bands.x);
  NOW("+r", bands.y);
  NOW("+d", df);
  NOW("+d", span);
  // A unit is the four series of a warp: w and w y of one pair of bands in the first units, then w of two pairs
  // of bands.
  const int twos = (bands.y + 1) >> 1, unit = block * WARPS + warp, pair = unit < twos ? unit : 2 * unit - twos;
  const bool both = unit < twos;
  if (status != 0 || 2 * pair >= bands.x) return;
  const double middle = 0.5 * span;
  auto lead_of = [&](int pair) {  // position of the sample at place 0 of a pair's stretch
    double lead = A.lead[gp * HARMONICS] - A.at[gp * HARMONICS];
    for (int h = 1; h < HARMONICS; h++) {
      const int at = A.at[gp * HARMONICS + h];
      if (at <= pair * 2 * MODES) lead = A.lead[gp * HARMONICS + h] - at;
    }
    return lead;
  };
  auto centre_of = [&](int pair, double lead) { return frequency_of(0, (lead + (2 * pair + 1) * MODES) * A.step, df); };
  const double lead = lead_of(pair), lead2 = both ? lead : lead_of(pair + 1);
  const Frequency centre = centre_of(pair, lead), other = centre_of(pair + 1, lead2);
  const bool elsewhere = lead2 != lead;        // the second pair is of another stretch
  double* space = (double*)raw + warp * HELD;  // weights of 32 points and of the next ones, strengths
  double* strengths = space + 2 * BUFFER;
  auto prefetch = [&](int c0) {  // weights of 32 points; past the end those of other objects or unused ones
    const double2* from = (const double2*)(A.weight + (size_t)(lo + c0) * 16) + lane;
    double* to = space + (c0 & 32 ? BUFFER : 0) + WEIGHT * (lane >> 3) + 2 * (lane & 7);
#pragma unroll
    for (int i = 0; i < 8; i++) ptx::copy16_past(to + 4 * WEIGHT * i, from + 32 * i);
  };
  const int* cells = A.cell + lo;
  const double* times_at = A.tp + lo;
  const double2* known = A.strength + lo;
  const double2* spins = A.spin + lo;
  NOW("+l", cells);
  NOW("+l", times_at);
  NOW("+l", known);
  NOW("+l", spins);

  for (int i = lane; i < 3 * WEIGHT; i += 32)
    space[32 * WEIGHT + i] = space[BUFFER + 32 * WEIGHT + i] = 0;  // values read past the end must be finite
  __syncwarp();
  prefetch(0);
  Tile sum[SEGMENTS + 1];
#pragma unroll
  for (int j = 0; j <= SEGMENTS; j++) sum[j] = Tile{0, 0, 0, 0};
  int p = min(lane, n - 1), later = __ldg(cells + p);  // cells of the next points, loaded early
  double2 held = __ldg(known + p), next = __ldg(spins + p);
  double time = __ldg(times_at + p);
#pragma unroll 1
  for (int c0 = 0; c0 < n; c0 += 32) {
    const int many = min(32, n - c0);
    NOW("+r", later);  // not waited for before
    const int segment = lane < many ? (later >> 4) - SEGMENT0 : 99;
    ptx::wait_all_copies();
    __syncwarp();
    if (c0 + 32 < n) prefetch(c0 + 32);
    {
      const double2 wv = held, spin = next;  // also loaded past the end, where it is not used
      const double2 e = turned_by(centre, time - middle);
      double2 f;
      if (!both) {
        const double2 twice = times(spin, spin);
        f = times(e, times(twice, twice));  // turned by the distance from one pair of bands to the next
        if (elsewhere) f = turned_by(other, time - middle);
      }
      double2* to = (double2*)(strengths + STRENGTH * lane);
      double cc = e.x * spin.x, ss = e.y * spin.y, sc = e.y * spin.x, cs = e.x * spin.y;
      to[0] = make_double2(wv.x * (cc + ss), wv.x * (sc - cs));
      to[1] = make_double2(wv.x * (cc - ss), wv.x * (sc + cs));
      if (!both) {
        cc = f.x * spin.x;
        ss = f.y * spin.y;
        sc = f.y * spin.x;
        cs = f.x * spin.y;
      }
      const double v = both ? wv.y : wv.x;
      to[2] = make_double2(v * (cc + ss), v * (sc - cs));
      to[3] = make_double2(v * (cc - ss), v * (sc + cs));
    }
    __syncwarp();
    p = min(c0 + 32 + lane, n - 1);
    later = __ldg(cells + p);
    held = __ldg(known + p);
    next = __ldg(spins + p);
    time = __ldg(times_at + p);
    const ptx::SharedAddress of = ptx::shared_address(space + (c0 & 32 ? BUFFER : 0) + WEIGHT * t + 2 * g),
                             at = ptx::shared_address(strengths + STRENGTH * t + g);
    int i = 0;
#pragma unroll
    for (int four = 0; four < SEGMENTS; four += 4) {
      if (!__any_sync(FULL, segment >> 2 == four >> 2)) continue;
#pragma unroll
      for (int j = four; j < min(four + 4, SEGMENTS); j++) {
        const int end = __popc(__ballot_sync(FULL, segment <= j));
#pragma unroll 1
        for (; i < end; i += 4) {
          const double2 here = ptx::load_double2(of + 8 * WEIGHT * i);
          const double b = i + t < end ? ptx::load_double(at + 8 * STRENGTH * i) : 0;
          multiply(sum[j], some_of(here, THIS), b);
          multiply(sum[j + 1], some_of(here, NEXT), b);
        }
        i = end;
      }
    }
  }

  double2 v[16], u[16];
#pragma unroll
  for (int j = 0; j < 16; j++) {
    const int from = (j - SEGMENT0) & 15;
    v[j] = from <= SEGMENTS ? make_double2(sum[from].re0, sum[from].re1) : make_double2(0, 0);
    u[j] = from <= SEGMENTS ? make_double2(sum[from].im0, sum[from].im1) : make_double2(0, 0);
  }
  dft14(v);
  dft14(u);
  {
    double* ex = space + t * EXCHANGE;
    double x[16], y[16];
    __syncwarp();
#pragma unroll
    for (int b = 0; b < 16; b++) {
      ex[b * 17 + g] = v[shifted(b)].x;
      ex[b * 17 + g + 8] = u[shifted(b)].x;
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) {
      x[j] = ex[g * 17 + j];
      y[j] = ex[(g + 8) * 17 + j];
    }
    __syncwarp();
#pragma unroll
    for (int b = 0; b < 16; b++) {
      ex[b * 17 + g] = v[shifted(b)].y;
      ex[b * 17 + g + 8] = u[shifted(b)].y;
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) {
      v[j] = make_double2(x[j], ex[g * 17 + j]);
      u[j] = make_double2(y[j], ex[(g + 8) * 17 + j]);
    }
    __syncwarp();
  }
  const bool of_y = both && t > 1;
  const int band = 2 * pair + (both ? t & 1 : t);
  const bool wanted = band < (of_y ? bands.y : bands.x);
  auto* out = place_of(A.out, A.place[pos] + ((size_t)(of_y ? bands.x : 0) + band) * MODES, g);
  dft16<1>(v, [&](int i) { return __ldg(A.second + 16 * i + g); });
#pragma unroll
  for (int d = 0; d < OUT; d++) {
    const double k = __ldg(A.deconvolve + 16 * d + g);
    keep(out + 16 * d, k, v[place(d)], wanted);
  }
  dft16<1>(u, [&](int i) { return __ldg(A.second + 16 * i + g + 8); });
#pragma unroll
  for (int d = 0; d < OUT; d++) {
    const double k = __ldg(A.deconvolve + 16 * d + g + 8);
    keep(out + 16 * d + 8, k, u[place(d)], wanted);
  }
}

// ---------------------------------------------------------------- coefficients
// Matrix steps (of four samples) of harmonic h where samples are L frequencies apart.
__device__ __forceinline__ int steps_of(int h, int L) { return (REACH * L + 7 * h + 4 * L - 1) / (4 * L); }

struct Taps {
  const double* f0;
  const double* df;
  const int* order;
  const double* lead;
  const int* at;
  double* taps;
  int* origin;
  int* shift;            // [grid][octet][step][lane]; [grid][harmonic]; [grid][octet][harmonic]
  double beta, inverse;  // 1 / I0(beta)
  int L, octets, steps, member, blocks, grid_stride;  // steps: of all harmonics; blocks: of a grid
};
extern "C" __global__ void __launch_bounds__(256) chi2_taps(const Taps A) {
  const int local = blockIdx.x / A.blocks, gp = A.grid_stride ? A.member + local : 0,
            gi = A.grid_stride ? A.order[gp] : 0;
  const double f0 = A.f0[gi], df = A.df[gi];
  for (int e = blockIdx.x % A.blocks * 256 + threadIdx.x; e < A.octets * A.steps * 32; e += 256 * A.blocks) {
    const int lane = e & 31, j = e / (32 * A.steps);
    int k = (e >> 5) % A.steps, h = 1;
    while (k >= steps_of(h, A.L)) k -= steps_of(h++, A.L);
    const Origin first = origin_of(f0, df, A.L, h);
    const int whole = h * j / A.octets;
    const double start0 = ceil(first.at - 0.5 * REACH), place = first.at + (double)(h * j % A.octets) / A.octets,
                 start = ceil(place - 0.5 * REACH);
    const double d = (2.0 / REACH) * ((start + (4 * k + (lane & 3))) - place - (double)(h * (lane >> 2)) / A.L);
    const double q = 1 - d * d;
    A.taps[(size_t)local * A.octets * A.steps * 32 + e] = q > 0 ? A.inverse * bessel(A.beta, q) : 0;
    if (!k && !lane) {
      A.shift[(local * A.octets + j) * HARMONICS + h - 1] = whole + (int)(start - start0);
      if (!j)
        A.origin[local * HARMONICS + h - 1] =
            A.at[gp * HARMONICS + h - 1] + (int)((first.n - A.lead[gp * HARMONICS + h - 1]) + start0);
    }
  }
}

// ---------------------------------------------------------------- powers
struct Powers {
  const double2* samples;
  const long long* place;
  const double* taps;
  const int* origin;
  const int* shift;
  const int2* bands;
  const Info* info;
  const int* order;
  const int2* tasks;
  const int* nf;
  const long long* start;
  double* power;
  Tops tops;
  Doubts doubts;
  double limit, mean;
  int L, octets, steps, stride, tiles, turns, room, member, blocks, grid_stride;
  // stride: samples from one row to the next at f; turns: rows of tiles that a block does; room: samples of a buffer
};

// STEPS matrix steps of one channel, or of two channels that share coefficients: all loads are issued before the
// first product.
template <int STEPS>
__device__ __forceinline__ void multiply_all(Tile& w, Tile* y, const double2* s, const double2* r, const double* b) {
  double x[STEPS];
#pragma unroll
  for (int k = 0; k < STEPS; k++) x[k] = __ldg(b + 32 * k);
#pragma unroll
  for (int k = 0; k < STEPS; k++) {
    multiply(w, s[4 * k], x[k]);
    if (y) multiply(*y, r[4 * k], x[k]);
  }
}
__device__ __forceinline__ void multiply_some(Tile& w, Tile* y, const double2* s, const double2* r, const double* b,
                                              int many) {
  if (many == 5)
    multiply_all<5>(w, y, s, r, b);
  else if (many == 6)
    multiply_all<6>(w, y, s, r, b);
  else if (many == 7)
    multiply_all<7>(w, y, s, r, b);
  else
    for (int k = 0; k < many; k++) {
      const double x = __ldg(b + 32 * k);
      multiply(w, s[4 * k], x);
      if (y) multiply(*y, r[4 * k], x);
    }
}
// Sums of all channels at 8 frequencies of each of 8 rows; the samples of this thread's row begin at here[from +
// row * harmonic * stride]. AT: L if the compiler is to know it, so that all loops are unrolled; else 0.
template <int AT>
__device__ __forceinline__ void interpolate(Tile (&sum)[CHANNELS], const double2* here, const int* from,
                                            const int* shift, const int* steps0, int row, int stride, const double* b) {
  const int t = threadIdx.x & 3;
  int step = 0;
#pragma unroll
  for (int h = 1; h <= HARMONICS; h++) {
    const int k = h - 1,
              each = h * (!AT      ? stride
                          : AT < 8 ? 8 / AT
                                   : 1),
              many = AT ? steps_of(h, AT) : steps0[h] - steps0[k];
    const double2* s = here + from[k] + (shift ? shift[k] : 0) + row * each + t;
    const bool both = k < TERMS;
    Tile* y = both ? &sum[HARMONICS + (both ? k : 0)] : nullptr;
    const double2* r = both ? s + (from[HARMONICS + (both ? k : 0)] - from[k]) : nullptr;
    sum[k] = Tile{0, 0, 0, 0};
    if (both) *y = Tile{0, 0, 0, 0};
    multiply_some(sum[k], y, s, r, b + 32 * step, many);
    step += many;
  }
}

extern "C" __global__ void __launch_bounds__(32 * TILES, MINB) chi2_powers(const __grid_constant__ Powers A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int from[CHANNELS], length[CHANNELS], first[HARMONICS], steps0[HARMONICS + 1];
#if HAS_COPY_ENGINE
  __shared__ unsigned long long filled;
  const unsigned done = ptx::shared_address(&filled);
#endif
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int2 task = task_of(A);
  const int pos = task.x, block = task.y;
  const int o = A.order[pos], gp = A.grid_stride ? pos : 0, local = A.grid_stride ? pos - A.member : 0;
  const Info info = A.info[o];
  const int nf = A.nf[o * A.grid_stride], period = 8 * A.octets, rows = 8 * A.tiles;
  double* out = A.power + A.start[o];
  const int row0 = block * A.turns * rows;
  if (info.status != 0) {
    const long long begin = (long long)row0 * period, end = begin + (long long)A.turns * rows * period;
    for (long long i = begin + tid; i < min((long long)nf, end); i += blockDim.x) out[i] = missing64();
    return;
  }
  if (!tid) {
    int at = 0, step = 0;
    for (int c = 0; c < CHANNELS; c++) {
      const int h = c < HARMONICS ? c + 1 : c - HARMONICS + 1;
      from[c] = at;
      length[c] = (rows - 1) * h * A.stride + (A.octets > 1 ? h + 1 : 0) + 4 * steps_of(h, A.L);
      at += length[c];
      if (c < HARMONICS) {
        first[c] = A.origin[local * HARMONICS + c];
        steps0[c] = step;
        step += steps_of(h, A.L);
        steps0[c + 1] = step;
      }
    }
#if HAS_COPY_ENGINE
    ptx::barrier_init(done, 1);
    ptx::publish_shared();
#endif
  }
  __syncthreads();
  const double2* W = A.samples + A.place[pos];
  const double2* Y = W + (size_t)A.bands[gp].x * MODES;
  double2* here = (double2*)raw;
  // [channel][real, imaginary][64]: of all frequencies of a tile, if no other octet needs the samples that it
  // overwrites; or [32]
  double* passed = (double*)(here + (PASSED == 2 && A.octets == 1 ? 0 : A.room)) + warp * (64 * PASSED * CHANNELS);
  auto load = [&](int row) {
#if HAS_COPY_ENGINE
    if (!tid) ptx::barrier_expect(done, 16 * A.room);
    if (warp == 0) {
      __syncwarp();
      for (int c = lane; c < CHANNELS; c += 32) {
        const int h = c < HARMONICS ? c + 1 : c - HARMONICS + 1;
        ptx::copy_bulk(ptx::shared_address(here + from[c]),
                       (c < HARMONICS ? W : Y) + first[h - 1] + (size_t)row * (h * A.stride), 16 * length[c], done);
      }
    }
#else
    for (int c = warp; c < CHANNELS; c += A.tiles) {
      const int h = c < HARMONICS ? c + 1 : c - HARMONICS + 1, n = length[c];
      const double2* source = (c < HARMONICS ? W : Y) + first[h - 1] + (size_t)row * (h * A.stride);
      double2* target = here + from[c];
      for (int i = lane; i < n; i += 32) ptx::copy16_past(target + i, source + i);
    }
#endif
  };
  const double limit = info.n < HARMONICS + (A.mean != 0)
                           ? 0
                           : A.limit * sqrt((double)info.n);  // 0: with too few points no power is trusted
  load(row0);
#pragma unroll 1
  for (int turn = 0; turn < A.turns; turn++) {
    const int row = row0 + turn * rows;
    if ((long long)row * period >= nf) break;
#if HAS_COPY_ENGINE
    ptx::barrier_wait(done, turn & 1);  // the turn-th filling
#else
    ptx::wait_all_copies();
    __syncthreads();
#endif
#pragma unroll 1
    for (int j = 0; j < A.octets; j++) {
      Tile sum[CHANNELS];
      const double* b = A.taps + (size_t)(local * A.octets + j) * A.steps * 32 + lane;
      const int mine = 8 * warp + g;
      if (TERMS <= 9 && A.L == 8)
        interpolate<8>(sum, here, from, nullptr, steps0, mine, 1, b);
      else if (TERMS <= 9 && A.L == 4)
        interpolate<4>(sum, here, from, nullptr, steps0, mine, 2, b);
      else
        interpolate<0>(sum, here, from, A.octets > 1 ? A.shift + (local * A.octets + j) * HARMONICS : nullptr, steps0,
                       mine, A.stride, b);
      const bool last = j + 1 == A.octets, more = turn + 1 < A.turns && (long long)(row + rows) * period < nf;
      if (last) {
        __syncthreads();  // the samples are no longer read
        if (PASSED < 2 && more) load(row + rows);
      }
      const long long k0 = (long long)(row + mine) * period + 8 * j + 2 * t;
      auto give = [&](double p, int i, bool known) {
        const long long k = k0 + i;
        if (known && k < nf) out[k] = p;
        doubt(A.doubts, known && k < nf && !(p == p) && limit > 0, o, (int)k);
      };
#if PASSED < 2
#if PASSED
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) {
        passed[64 * c + lane] = sum[c].re1;
        passed[64 * c + 32 + lane] = sum[c].im1;
      }
#endif
      const double p0 = solved([&](int c) { return make_double2(sum[c].re0, sum[c].im0); }, limit, A.mean, PIVOT);
      give(p0, 0, true);
#if PASSED
      const double p1 = solved([&](int c) { return make_double2(passed[64 * c + lane], passed[64 * c + 32 + lane]); },
                               limit, A.mean, PIVOT);
#else
      const double p1 = solved([&](int c) { return make_double2(sum[c].re1, sum[c].im1); }, limit, A.mean, PIVOT);
#endif
      give(p1, 1, true);
      if (A.tops.list) keep_tops(A.tops, o, k0, nf, p0, p1);
#else
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) {
        *(double2*)(passed + 128 * c + 2 * lane) = make_double2(sum[c].re0, sum[c].re1);
        *(double2*)(passed + 128 * c + 64 + 2 * lane) = make_double2(sum[c].im0, sum[c].im1);
      }
      __syncwarp();
#if TERMS <= 9
#pragma unroll 1
      for (int i = 0; i < 4; i++) {  // of two lanes' four frequencies
        const double* from = passed + 4 * (lane >> 1) + i;
        give(solved_by_two([&](int c, int part) { return from[128 * c + 64 * part]; }, limit, A.mean, PIVOT), i & 1,
             (lane & 1) == i >> 1);
      }
#else
#pragma unroll 1
      for (int i = 0; i < 2; i++) {
        const double* from = passed + 2 * lane + i;
        give(solved([&](int c) { return make_double2(from[128 * c], from[128 * c + 64]); }, limit, A.mean, PIVOT), i,
             true);
      }
#endif
      __syncwarp();
      if (last) {
        __syncthreads();
        if (more) load(row + rows);
      }
#endif
    }
  }
}

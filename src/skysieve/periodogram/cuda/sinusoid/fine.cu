// Powers of one sinusoid on grids much finer than 1/T: coarse transforms, from which every frequency is
// interpolated by matrix products.
//
// Bands and combs are those of sinusoid/comb.cu, but only four of the P >= 64 combs are transformed. They give
// samples of every sum P/4 frequencies apart, at least four in 1/T at f and two at 2f. Frequency k of a band
// lies in interval s = k / (P/4) at place r = k % (P/4), and
//     sum(k) = sum over taps i of h(r / (P/4) - i) sample(s + i),     8 taps at f (i = -3..4), 12 at 2f (i = -5..6),
// with a Kaiser-Bessel window h; ls_weights has divided the strengths by its transform in time. The
// coefficients depend on r alone: 16 places r times 8 intervals is a matrix product of the tensor cores'
// float64 shape, of which there are six (three sums, real and imaginary).
//
// Layout: one block (8 warps) computes `tiles` x 8 intervals of one band of one object. It gathers the
// strengths in cells (or reads the cells that ls_spread wrote). A half warp does one of the twelve 256-point
// FFTs (sums times combs), and the samples go to shared memory. Then each warp follows the powers of 8
// intervals along r. A thread has rows g and g + 8 and columns 2 q and 2 q + 1 of each product (lane = 4 g +
// q). Maxima are searched only if some power reaches the floor under the best peaks. The first and last two
// powers of each interval are kept in shared memory for tests across intervals; the first and last power of the
// block go to the neighbouring blocks through device memory.
//
// Cost for one frequency: 56 multiply-adds of the matrix unit and 18 others (ls_comb: 122), plus the transforms
// divided by P/4. Memory: the points' times and weights (288 bytes a point) once for each block, from the
// second-level cache, and the powers.
// Limit: latency at 128 registers a thread; for long series the gathering of strengths, which every block of an
// object repeats.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// budget: f64 kernel=ls_fine regs<=128 smem<=64 spills<=64
#include "common.cuh"
#include "samples/dft.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define STRANDS (2 * WARPS)  // half warps
#define ND 13
#define CELLS 1024  // w 256, wy 256, w at 2f 512
#define PAD (16 * 17 + 8)
#define ROOM 784  // samples of one sum: index of coarse sample s is s + 5
#define STRIPS (48 / STRANDS)
#define CHUNK 256  // points whose strengths are held at once
#define COARSE 4

struct Coarse {
  const double* tp;
  const double2* wv;
  const int2* cell;
  const T* at_f;
  const T* at_2f;
  const int* offsets;
  const Info* info;
  const int* order;
  const int2* tasks;
  const C* spread;
  const C* first;
  const C* second;
  const C* fold;
  const C* deconvolve;
  const double2* taps;
  const double* f0;
  const double* df;
  const int* nf;
  const long long* start;
  T* power;
  Peaks peaks;
  Guard guard;
  double mean;
  int modes, P, tiles, pairs, members, group, blocks, grid_stride, norm, scaled, edges;
};

#if HAS_TALL_DOUBLE_MATRICES
#define MATRIX 1
__device__ __forceinline__ void multiply(double (&c)[4], double2 a, double b) {
  ptx::multiply_doubles(c[0], c[1], c[2], c[3], a, b);
}
// Two steps of 4, one after the other.
__device__ __forceinline__ void multiply(double (&c)[4], double2 a, double2 a2, double b, double b2) {
  ptx::multiply_doubles(c[0], c[1], c[2], c[3], a, a2, b, b2);
}
#else
#define MATRIX 0
#endif

// The power from the sums of w at 2f (halved), of w at f and of w y at f. NaN if it is suspicious.
__device__ __forceinline__ T power_from(T c2, T s2, T c, T s, T yc, T ys, T guard) {
  const T cc = fma(-c, c, (T)0.5 + c2), ss = fma(-s, s, (T)0.5 - c2), cs = fma(-c, s, s2), det = fma(cc, ss, -cs * cs);
  const T p = fma(yc, fma(ss, yc, (T)-2 * cs * ys), cc * ys * ys) * reciprocal(det);
  return det > guard ? p : missing();
}

// First of the sorted `cells` above `limit`.
__device__ __forceinline__ int above(const int* cells, int n, int limit) {
  int lo = 0, hi = n;
  while (lo < hi) {
    const int m = (lo + hi) >> 1;
    if (cells[m] > limit)
      hi = m;
    else
      lo = m + 1;
  }
  return lo;
}

// Spreads the strengths of a band on cells. Half warp = 16 cells, of 256 at f (w and w y) or of 512 at 2f; points
// are in order of time.
__device__ __forceinline__ void gather(const Coarse& A, C* grid, C* strength, int lo, int n, Frequency centre) {
  int* cells1 = (int*)(strength + 3 * CHUNK);
  int* cells2 = cells1 + CHUNK;
  const int tid = threadIdx.x, lane = tid & 31, h = lane >> 4, a = lane & 15, strand = (tid >> 5) * 2 + h;
  C s1[STRIPS], s2[STRIPS];
#pragma unroll
  for (int j = 0; j < STRIPS; j++) s1[j] = s2[j] = mk(0, 0);
  for (int p0 = 0; p0 < n; p0 += CHUNK) {
    const int m = min(CHUNK, n - p0);
    __syncthreads();
    for (int i = tid; i < m; i += THREADS) {
      const int p = lo + p0 + i;
      const double2 wv = A.wv[p];
      const int2 c = A.cell[p];
      cells1[i] = c.x;
      cells2[i] = c.y;
      T s, k;
      sincos_cycles(cycles(centre, A.tp[p]), s, k);
      const T w = (T)wv.x, v = (T)wv.y, wm = w * (T)A.mean;  // without a floating mean its channel is empty
      strength[i] = mk(wm * k, wm * s);
      strength[CHUNK + i] = mk(v * k, v * s);
      strength[2 * CHUNK + i] = mk((T)0.5 * w * (k * k - s * s), w * k * s);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < STRIPS; j++) {
      const int strip = strand + STRANDS * j;
      const bool two = strip >= 16;
      const int c0 = 16 * (two ? strip - 16 : strip);
      const int* cells = two ? cells2 : cells1;
      const int b1 = above(cells, m, c0 + 15);
      const T* weights = (two ? A.at_2f : A.at_f) + (size_t)(lo + p0) * 16 + a;
      for (int i = above(cells, m, c0 - 16); i < b1; i++) {
        const T k = (unsigned)(c0 + a - cells[i]) < 16u ? weights[i * 16] : (T)0;
        const C x = strength[(two ? 2 * CHUNK : 0) + i];
        s1[j].x = fma(k, x.x, s1[j].x);
        s1[j].y = fma(k, x.y, s1[j].y);
        if (!two) {
          const C z = strength[CHUNK + i];
          s2[j].x = fma(k, z.x, s2[j].x);
          s2[j].y = fma(k, z.y, s2[j].y);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < STRIPS; j++) {
    const int strip = strand + STRANDS * j;
    if (strip < 16) {
      grid[16 * strip + a] = s1[j];
      grid[256 + 16 * strip + a] = s2[j];
    } else
      grid[512 + 16 * (strip - 16) + a] = s1[j];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) ls_fine(const __grid_constant__ Coarse A) {
  extern __shared__ __align__(16) unsigned char raw[];
  C* sample = (C*)raw;  // [3 sums: 2f, f w, f wy][ROOM]; before that: cells, and the FFT's exchange or strengths
  C* grid = (C*)raw;
  T* ends = (T*)(sample + 3 * ROOM);  // of each interval: first two and last two powers
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  int block = blockIdx.x % A.blocks, task = blockIdx.x / A.blocks, pair, o;
  if (A.tasks) {
    const int2 t = A.tasks[task];
    o = t.x;
    pair = t.y;
  } else {
    const int2 t = member_and_stretch(task, A.group, A.pairs, A.members);
    o = A.order[t.x];
    pair = t.y;
    task = t.x * A.pairs + pair;
  }
  const int slices = A.blocks >> 1, side = block / slices, slice = block % slices;
  const int lo = A.offsets[o], n = A.info[o].n, gi = o * A.grid_stride, nf = A.nf[gi];
  const int P = A.P, width = P >> 2, stretch = 8 * A.tiles * width;  // frequencies of an interval, of the block
  const int base = (2 * pair + side) * A.modes * P, start = base + slice * stretch;
  if (start >= nf) return;
  const int total = min(stretch, nf - start);
  if (A.info[o].status != 0) {  // no answer: NaN, where powers are written
    if (A.power)
      for (int i = tid; i < total; i += THREADS) A.power[A.start[o] + start + i] = missing();
    return;
  }
  if (n > LONG) {
    const C* in = A.spread + ((size_t)task * 2 + side) * CELLS;
    for (int i = tid; i < CELLS; i += THREADS) grid[i] = in[i];
  } else
    gather(A, grid, grid + CELLS, lo, n, frequency_of(A.f0[gi], (double)(base + (A.modes >> 1) * P), A.df[gi]));
  __syncthreads();
  const int h = lane & 1, a = lane >> 1, sum = warp >> 1, comb = (warp & 1) * 2 + h;
  C v[16];
  if (sum < 3) {
    const C* from = grid + (sum == 0 ? 512 : 256 * (sum - 1)) + a;
#pragma unroll
    for (int j = 0; j < 16; j++) v[j] = from[16 * j];
    if (sum == 0) {  // cell c + 256 folds on cell c
      const C k = __ldg(A.fold + comb);
#pragma unroll
      for (int j = 0; j < 16; j++) v[j] = plus_times(v[j], k, from[256 + 16 * j]);
    }
    const C* u = A.first + comb * 8;
    const C* w = A.second + comb * 128 + a;
    dft16<0>(v, [&](int i) { return __ldg(u + i); });
    transpose_parts((T*)(grid + CELLS) + (warp * 2 + h) * PAD, v, a);
    dft16<0>(v, [&](int i) { return __ldg(w + i * 16); });
  }
  __syncthreads();  // samples lie over the cells
  if (sum < 3) {
    const C* D = A.deconvolve + ((sum != 0) * COARSE + comb) * (16 * ND) + a;
#pragma unroll
    for (int d = 0; d < ND; d++) {
      const C k = __ldg(D + 16 * d), x = v[place(d)];
      const int at = 4 * (a + 16 * d) + comb - 3;
      if (at >= 0 && at < ROOM) sample[sum * ROOM + at] = mk(k.x * x.x - k.y * x.y, k.x * x.y + k.y * x.x);
    }
  }
  __syncthreads();

  const int g = lane >> 2, q = lane & 3, rows = width >> 4, unfit = 0x7fffffff;
  const T guard = guard_of(A.guard, n);
  const double scale = A.info[o].scale;
  const long long exclusion = min(A.info[o].exclusion, 100000000);
  // Best peaks of the warp's tiles, one a lane: those of lanes `stride` apart are two exclusion lengths apart.
  const int stride = (int)min(33ll, (2 * exclusion + 8ll * width + 8ll * WARPS * width - 1) / (8ll * WARPS * width));
  unsigned best = 0;
  for (int it = warp; it < A.tiles; it += WARPS) {
    const int s0 = 8 * (slice * A.tiles + it), k0 = base + s0 * width;  // first interval and frequency of the tile
    if (k0 >= nf) {
      ends[32 * it + lane] = missing();
      continue;
    }
    unsigned known = floor_now(A.peaks, o), highest = 0;
    bool pending = false;
    T old[2] = {missing(), missing()};
    double bx[7], by[7];  // samples: w at 2f (3 steps of 4 taps), w at f (2), wy at f (2)
#if MATRIX
    const C* from = sample + s0 + g + q;
#pragma unroll
    for (int i = 0; i < 7; i++) {
      const C x = from[i < 3 ? 4 * i : i < 5 ? ROOM + 2 + 4 * (i - 3) : 2 * ROOM + 2 + 4 * (i - 5)];
      bx[i] = x.x;
      by[i] = x.y;
    }
#endif
    for (int rt = 0; rt < rows; rt++) {
      double c2[4] = {0, 0, 0, 0}, s2[4] = {0, 0, 0, 0}, cw[4] = {0, 0, 0, 0}, sw[4] = {0, 0, 0, 0},
             cy[4] = {0, 0, 0, 0}, sy[4] = {0, 0, 0, 0};
      const double2* taps = A.taps + (size_t)rt * 160 + lane;
#if MATRIX
      double2 t[5];
#pragma unroll
      for (int i = 0; i < 5; i++) t[i] = __ldg(taps + 32 * i);
      multiply(c2, t[0], t[1], bx[0], bx[1]);
      multiply(s2, t[0], t[1], by[0], by[1]);
      multiply(cw, t[3], t[4], bx[3], bx[4]);
      multiply(sw, t[3], t[4], by[3], by[4]);
      multiply(cy, t[3], t[4], bx[5], bx[6]);
      multiply(sy, t[3], t[4], by[5], by[6]);
      multiply(c2, t[2], bx[2]);
      multiply(s2, t[2], by[2]);
#else
      for (int i = 0; i < 20; i++) {
        const double2 t = taps[32 * (i >> 2) - q + (i & 3)];  // rows g and g + 8
        const C* from = sample + s0 + 2 * q + (i < 12 ? i : ROOM + 2 + i - 12);
        auto add = [&](double (&c)[4], double x0, double x1) {
          c[0] = fma(t.x, x0, c[0]);
          c[1] = fma(t.x, x1, c[1]);
          c[2] = fma(t.y, x0, c[2]);
          c[3] = fma(t.y, x1, c[3]);
        };
        if (i < 12) {
          add(c2, from[0].x, from[1].x);
          add(s2, from[0].y, from[1].y);
        } else {
          add(cw, from[0].x, from[1].x);
          add(sw, from[0].y, from[1].y);
          add(cy, from[ROOM].x, from[ROOM + 1].x);
          add(sy, from[ROOM].y, from[ROOM + 1].y);
        }
      }
#endif
      T p[4];
      bool odd = false;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        p[e] = power_from(c2[e], s2[e], cw[e], sw[e], cy[e], sy[e], guard);
        odd |= !(p[e] == p[e]);
      }
      const int k = k0 + 2 * q * width + 16 * rt + g;  // numbers of the four: k, k + width, and 8 more each
      auto number = [&](int e) { return k + (e & 1) * width + (e & 2) * 4; };
      if (__any_sync(FULL, odd)) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const unsigned todo = __ballot_sync(FULL, !(p[e] == p[e]) && number(e) < nf);
          if (todo) p[e] = mend_lanes(A, lo, n, gi, number(e), todo, p[e]);
        }
      }
      if (k0 + 8 * width > nf) {
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (number(e) >= nf) p[e] = missing();
      }
      if (A.power) {
        T* out = A.power + A.start[o];
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (number(e) < nf) out[number(e)] = A.scaled ? normalise(p[e], scale, A.norm) : p[e];
      }
      const int top = max(max(high_of(p[0]), high_of(p[1])), max(high_of(p[2]), high_of(p[3])));
      const bool hot = __any_sync(FULL, top >= (int)known);
      if (hot || pending) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const int up = (lane + 4) & 31, down = (lane - 4) & 31;
          const T next0 = __shfl_sync(FULL, lane < 4 ? p[2 + c] : p[c], up),
                  prev0 = __shfl_sync(FULL, lane >= 28 ? old[c] : p[c], down);
          const T next1 = __shfl_sync(FULL, p[2 + c], up),
                  prev1 = __shfl_sync(FULL, lane >= 28 ? p[c] : p[2 + c], down);
          const T after = __shfl_sync(FULL, p[c], up), before = __shfl_sync(FULL, old[c], down);
          auto test = [&](bool mine, int index, T x, T y, T z) {
            const unsigned key = key_of(y);
            if (mine && key && key >= known && is_peak(x, y, z)) {
              emit(A.peaks, o, index, x, y, z);
              highest = max(highest, key);
            }
          };
          test(rt > 0 || g > 0, number(c), prev0, p[c], next0);
          test(g < 7, number(2 + c), prev1, p[2 + c], next1);
          test(rt > 0 && g == 7, number(c) - 8, before, old[c],
               after);  // the last row of the tile before: number(2 + c) - 16
        }
      }
      old[0] = p[2];
      old[1] = p[3];
      pending = __any_sync(FULL, g == 7 && max(high_of(p[2]), high_of(p[3])) >= (int)known);
      T* end = ends + 4 * (8 * it + 2 * q);
      if (rt == 0 && g < 2) {
        end[g] = p[0];
        end[4 + g] = p[1];
      }
      if (rt == rows - 1 && g >= 6) {
        end[g - 4] = p[2];
        end[g] = p[3];
      }
    }
    const unsigned v = warp_max(highest);
    if (lane == ((it / WARPS) & 31)) best = max(best, v);
    if (v > known) raise_floor(A.peaks, o, best, 0, stride);
  }
  __syncthreads();
  const unsigned known = floor_now(A.peaks, o);
  for (int i = tid; i < 16 * A.tiles; i += THREADS) {  // first and last power of every interval
    const int e = i >> 1, last = i & 1, index = start + e * width + (last ? width - 1 : 0);
    const T here = ends[4 * e + 3 * last];
    const T x = last ? ends[4 * e + 2]
                : e  ? ends[4 * e - 1]
                     : missing(),
            z = !last                 ? ends[4 * e + 1]
                : e + 1 < 8 * A.tiles ? ends[4 * e + 4]
                                      : missing();
    const unsigned key = key_of(here);
    if (key && key >= known && is_peak(x, here, z)) emit(A.peaks, o, index, x, here, z);
    if (i == 0 || i == 16 * A.tiles - 1) A.peaks.edge[((size_t)o * A.edges + start / stretch) * 2 + last] = here;
  }
}

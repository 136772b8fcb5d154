// Noise of series by anchored blocks, boxcars, peaks: the rules and the bits of the CPU's detector.
//
// noise: a block of threads a (block of samples, series): level and scale = 64 / sigma.  Quartiles of integers by counts in
// up to 8192 bins, made finer around the quartiles; of floats by ranks, 11 bits at a time; means and variances by sums of
// 64 samples in order.  Everything that rounds is written with the rounding operations, in the CPU's order.
//
// detect: a block of threads a piece of a series: fixed-point samples and their prefix sums in shared memory (32 bits that
// wrap: differences are exact), the best S/N over the widths of every sample, then peaks above the threshold.  Nothing
// but events leaves the chip.  4 bytes read a sample; 2 loads from shared memory and 6 instructions a (sample, width),
// which are the limit.
//
// archs: 75 80 86 89 90 100 120
// build: u32 -DSUM=u32
// build: i32 -DSUM=int
// build: f32 -DSUM=float -DREAL
#include "dd_common.cuh"

#define THREADS 256
#define BINS 8192
#define PART 64
#define CLIP 262144.0
#define UNIT 64.0
#define IQR 1.3489795003921634
#define CLIPPED_SIGMA 0.98657826
#define CLIPS 5
#define CLIP_AT 3.0
#define AHEAD 6  // samples of a thread that are looked at together
enum { ROBUST = 0, MOMENTS = 1, CLIPPED = 2 };

struct Job {
  i64 pitch;              // sums from series to series
  int rows, columns;      // series; sums of each
  int block, blocks;      // samples of a block, blocks of a series
  int noise, every;
  int low, high;          // windows are centred on these samples
  int segment, look;      // samples of a piece, and how far a peak is compared
  int widths, widest, room;
  float threshold;
};

__device__ __forceinline__ int valid_of(const Job& j, const int* valid, int row) { return min(valid[row], j.columns); }

// Inclusive sums of v over the threads; `part` has room for 8.
__device__ __forceinline__ int scan(int v, int* part) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int o = 1; o < 32; o <<= 1) {
    const int other = __shfl_up_sync(~0u, v, o);
    if (lane >= o) v += other;
  }
  __syncthreads();
  if (lane == 31) part[warp] = v;
  __syncthreads();
  for (int w = 0; w < warp; w++) v += part[w];
  return v;
}

#ifndef REAL
// Quartiles of n integers into out[3]: see cpu_search.quartiles, whose arithmetic this is.
__device__ void quartiles(const SUM* y, int n, int* counts, int* part, double* out) {
  __shared__ i64 ends[2];
  __shared__ int found[3], before[3];
  i64 low = y[0], high = y[0];
  for (int i = threadIdx.x; i < n; i += THREADS) {
    const i64 v = y[i];
    low = min(low, v);
    high = max(high, v);
  }
  // extremes over the block
  for (int o = 16; o; o >>= 1) {
    const i64 a = __shfl_xor_sync(~0u, low, o), b = __shfl_xor_sync(~0u, high, o);
    low = min(low, a);
    high = max(high, b);
  }
  __shared__ i64 lows[8], highs[8];
  __syncthreads();
  if ((threadIdx.x & 31) == 0) {
    lows[threadIdx.x >> 5] = low;
    highs[threadIdx.x >> 5] = high;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < THREADS / 32; w++) {
      lows[0] = min(lows[0], lows[w]);
      highs[0] = max(highs[0], highs[w]);
    }
    ends[0] = lows[0];
    ends[1] = highs[0];
  }
  int below = 0;
  while (true) {
    __syncthreads();
    low = ends[0];
    high = ends[1];
    int shift = 0;
    while (((high - low) >> shift) >= BINS) shift++;
    const int bins = (int)((high - low) >> shift) + 1;
    for (int b = threadIdx.x; b < BINS; b += THREADS) counts[b] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) {
      const i64 b = ((i64)y[i] - low) >> shift;
      if (b >= 0 && b < bins) atomicAdd(&counts[b], 1);
    }
    __syncthreads();
    const int each = BINS / THREADS, from = threadIdx.x * each;
    int mine = 0;
    for (int b = 0; b < each; b++) mine += counts[from + b];
    int total = below + scan(mine, part) - mine;
    for (int b = 0; b < each; b++) {  // the first bin whose end reaches a quartile
      const int here = counts[from + b];
      for (int q = 0; q < 3; q++) {
        const double wanted = __dmul_rn(__dmul_rn((double)n, 0.25), (double)(q + 1));
        if ((double)total < wanted && (double)(total + here) >= wanted) {
          found[q] = from + b;
          before[q] = total;
        }
      }
      total += here;
    }
    __syncthreads();
    const i64 width = (i64)1 << shift;
    const bool done = shift == 0 || found[2] - found[0] >= 4096;
    if (threadIdx.x == 0) {
      for (int q = 0; q < 3; q++) {
        const double wanted = __dmul_rn(__dmul_rn((double)n, 0.25), (double)(q + 1));
        const double share = __ddiv_rn(__dsub_rn(wanted, (double)before[q]), (double)counts[found[q]]);
        const double at = __dsub_rn((double)(low + found[q] * width), 0.5);
        out[q] = __dadd_rn(at, __dmul_rn((double)width, share));
      }
      ends[1] = low + ((i64)(found[2] + 1) << shift) - 1;
      ends[0] = low + ((i64)found[0] << shift);
    }
    below = before[0];
    __syncthreads();
    if (done) return;
  }
}
#else
__device__ __forceinline__ u32 key_of(float v) {
  const u32 b = __float_as_uint(v);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

// The sample of some rank, counted from 0.
__device__ float ranked(const float* y, int n, int rank, int* counts, int* part) {
  __shared__ u32 prefix;
  __shared__ int left;
  __syncthreads();
  if (threadIdx.x == 0) {
    prefix = 0;
    left = rank;
  }
  for (int turn = 0; turn < 3; turn++) {
    const int shift = turn == 0 ? 21 : turn == 1 ? 10 : 0, bits = turn == 2 ? 10 : 11;
    for (int b = threadIdx.x; b < 2048; b += THREADS) counts[b] = 0;
    __syncthreads();
    const u32 known = prefix;
    const int wanted = left;
    for (int i = threadIdx.x; i < n; i += THREADS) {
      const u32 k = key_of(y[i]);
      if (turn == 0 || k >> (shift + bits) == known) atomicAdd(&counts[k >> shift & ((1u << bits) - 1)], 1);
    }
    __syncthreads();
    int mine = 0;
    for (int b = 0; b < 8; b++) mine += counts[8 * threadIdx.x + b];
    int total = scan(mine, part) - mine;
    for (int b = 0; b < 8; b++) {
      const int here = counts[8 * threadIdx.x + b];
      if (total <= wanted && wanted < total + here) {
        prefix = known << bits | (u32)(8 * threadIdx.x + b);
        left = wanted - total;
      }
      total += here;
    }
    __syncthreads();
  }
  const u32 k = prefix;
  return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k);
}
#endif

// Count, mean and variance of the samples within `most` of `level`; sums of 64 samples, added in order.
__device__ void moments(const SUM* y, int n, double level, double most, double* sums, double* out) {
  __shared__ int number;
  const double origin = (double)y[0];
  double total = 0, square = 0;  // of thread 0
  __syncthreads();
  if (threadIdx.x == 0) number = 0;
  for (int base = 0; base < n; base += PART * THREADS) {
    const int from = base + PART * threadIdx.x;
    double t = 0, s = 0;
    int mine = 0;
    for (int i = from; i < min(from + PART, n); i++) {
      const double v = (double)y[i];
      if (fabs(__dsub_rn(v, level)) <= most) {
        const double d = __dsub_rn(v, origin);
        t = __dadd_rn(t, d);
        s = __dadd_rn(s, __dmul_rn(d, d));
        mine++;
      }
    }
    __syncthreads();
    sums[2 * threadIdx.x] = t;
    sums[2 * threadIdx.x + 1] = s;
    if (mine) atomicAdd(&number, mine);
    __syncthreads();
    if (threadIdx.x == 0)
      for (int i = 0; i < THREADS && base + PART * i < n; i++) {
        total = __dadd_rn(total, sums[2 * i]);
        square = __dadd_rn(square, sums[2 * i + 1]);
      }
  }
  if (threadIdx.x == 0) {
    const double count = number > 1 ? (double)number : 1.0;
    const double mean = __ddiv_rn(total, count);
    out[0] = number;
    out[1] = __dadd_rn(origin, mean);
    out[2] = fmax(0.0, __dsub_rn(__ddiv_rn(square, count), __dmul_rn(mean, mean)));
  }
  __syncthreads();
}

// Level and scale of every block of every series: levels[row][block][2].
extern "C" __global__ void __launch_bounds__(THREADS) noise(const SUM* sums, const int* valid, double* levels, Job j) {
  extern __shared__ int counts[];  // BINS, or the sums of parts
  __shared__ int part[8];
  __shared__ double out[3];
  const int row = blockIdx.y, block = blockIdx.x, first = block * j.block;
  const int n = min(j.block, valid_of(j, valid, row) - first);
  if (n <= 0 || (block && 4 * n < j.block)) return;  // a short last block takes the noise of the one before
  const SUM* const y = sums + row * j.pitch + first;
  double level, sigma;
  if (j.noise == ROBUST) {
#ifdef REAL
    const float low = ranked(y, n, n / 4, counts, part), middle = ranked(y, n, n / 2, counts, part);
    const float high = ranked(y, n, (int)(3 * (i64)n / 4), counts, part);
    level = middle;
    sigma = __ddiv_rn(__dsub_rn((double)high, (double)low), IQR);
#else
    quartiles(y, n, counts, part, out);
    level = out[1];
    sigma = __ddiv_rn(__dsub_rn(out[2], out[0]), IQR);
#endif
  } else {
    double* const space = reinterpret_cast<double*>(counts);
    moments(y, n, 0.0, __longlong_as_double(0x7ff0000000000000ll), space, out);
    level = out[1];
    sigma = __dsqrt_rn(out[2]);
    if (j.noise == CLIPPED)
      for (int i = 0; i < CLIPS; i++) {
        moments(y, n, level, __dmul_rn(CLIP_AT, sigma), space, out);
        if (out[0] < 2) break;
        level = out[1];
        sigma = __ddiv_rn(__dsqrt_rn(out[2]), CLIPPED_SIGMA);
      }
  }
  if (threadIdx.x == 0) {
    double* const to = levels + 2 * ((i64)row * j.blocks + block);
    to[0] = level;
    to[1] = sigma > 0 ? __ddiv_rn(UNIT, sigma) : 0.0;
  }
}

struct Event { int row, column, width; float snr; };

// Best S/N over the widths for the window centred on a sample, and which; p[i] is the sum of the samples before
// origin + i.
__device__ float best_of(const int* p, int origin, int t, int count, const Job& j, const int* widths, const float* scales,
                         int* which) {
  float best = 0.0f;
  *which = 0;
  for (int k = 0; k < j.widths; k++) {
    const int w = widths[k], half = w / 2;
    if (t < half || t - half + w > count) continue;
    const int at = t - half - origin;
    const float f = __fmul_rn((float)(p[at + w] - p[at]), scales[k]);
    if (f > best) {
      best = f;
      *which = k;
    }
  }
  return best;
}

// Events of the series: `found` has room for j.room of them, `number` counts all.
extern "C" __global__ void __launch_bounds__(THREADS)
    detect(const SUM* sums, const int* valid, const double* levels, const int* widths, const float* scales, Event* found,
           u32* number, Job j) {
  extern __shared__ int sm[];
  __shared__ int part[8];
  const int row = blockIdx.y, count = valid_of(j, valid, row);
  const int from = j.low + blockIdx.x * j.segment, to = min(min(j.high, count), from + j.segment);
  if (count < 2 || from >= to) return;
  const int left = j.widest / 2, right = j.widest - left;
  const int a = max(0, from - j.look), b = min(count, to + j.look);  // samples whose best window is wanted
  const int origin = max(0, a - left), end = min(count, b + right);  // samples whose sums are
  int* const p = sm;                                                 // end - origin + 1 prefix sums
  float* const best = reinterpret_cast<float*>(sm + j.segment + 2 * j.look + j.widest + 1);
  const SUM* const y = sums + row * j.pitch;
  const double* const mine = levels + 2 * (i64)row * j.blocks;
  const int n = end - origin;
  for (int i = threadIdx.x; i < n; i += THREADS) {
    int block = (origin + i) / j.block;
    if (block && 4 * min(j.block, count - block * j.block) < j.block) block--;
    double q = rint(__dmul_rn(__dsub_rn((double)y[origin + i], mine[2 * block]), mine[2 * block + 1]));
    q = q < -CLIP ? -CLIP : q > CLIP ? CLIP : q;
    p[i + 1] = (int)q;
  }
  if (threadIdx.x == 0) p[0] = 0;
  __syncthreads();
  const int each = ((n + THREADS - 1) / THREADS) | 1, low = min(n, (int)threadIdx.x * each), high = min(n, low + each);
  int sum = 0;
  for (int i = low; i < high; i++) sum += p[i + 1];
  sum = scan(sum, part) - sum;
  for (int i = low; i < high; i++) {
    sum += p[i + 1];
    p[i + 1] = sum;
  }
  __syncthreads();
  int which;
  bool some = false;
  const bool inside = a >= left && b + right <= count;  // every window fits
  for (int t0 = a + (int)threadIdx.x; t0 < b; t0 += AHEAD * THREADS) {
    float f[AHEAD];
    for (int i = 0; i < AHEAD; i++) f[i] = 0.0f;
    if (inside && t0 + (AHEAD - 1) * THREADS < b) {
      for (int k = 0; k < j.widths; k++) {
        const int w = __ldg(widths + k);
        const float scale = __ldg(scales + k);
        const int* const q = p + (t0 - w / 2 - origin);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) f[i] = fmaxf(f[i], __fmul_rn((float)(q[i * THREADS + w] - q[i * THREADS]), scale));
      }
    } else {
      for (int i = 0; i < AHEAD; i++)
        if (t0 + i * THREADS < b) f[i] = best_of(p, origin, t0 + i * THREADS, count, j, widths, scales, &which);
    }
    for (int i = 0; i < AHEAD; i++) {
      const int t = t0 + i * THREADS;
      if (t >= b) break;
      best[t - a] = f[i];
      some = some || (f[i] >= j.threshold && t >= from && t < to);
    }
  }
  if (!__syncthreads_or(some)) return;
  for (int t = from + (int)threadIdx.x; t < to; t += THREADS) {
    const float f = best[t - a];
    if (f < j.threshold) continue;
    best_of(p, origin, t, count, j, widths, scales, &which);
    bool top = true;
    if (!j.every) {
      const int r = max(1, widths[which] / 2);
      for (int u = max(a, t - r); top && u < t; u++) top = best[u - a] < f;
      for (int u = t + 1; top && u < min(b, t + r + 1); u++) top = best[u - a] <= f;
    }
    if (top) {
      const u32 at = atomicAdd(number, 1u);
      if (at < (u32)j.room) found[at] = Event{row, t, which, f};
    }
  }
}

// The running baseline of series: the rules of cpu/baseline.py, operation for operation, with the same bits.
//
// parts: the mean of every part of every block.
//   Layout: a warp for a part; lane k sums samples k, k + 32, ...
// baseline: from the means of a block and its neighbours, the level of the block; where it drifts, a line is fitted and
//   subtracted from the samples in place.
//   Layout: a block of threads for a block of samples of a series; a thread for a mean; a warp for a piece of the line.
//
// Cost: per sample 4 bytes read; where the level drifts 8 bytes more.  Per block some 10 instructions for a mean, and
//   200 for a mean of a block that drifts.
// Limit: memory.
//
// archs: 75 80 86 89 90 100 120
// build: u32 -DSUM=u32 -DFLAT=1073741824u
// build: i32 -DSUM=int -DFLAT=0
// build: f32 -DSUM=float -DFLAT=0 -DREAL
// budget: u32 kernel=baseline spills<=4
// budget: i32 kernel=baseline spills<=4
// budget: f32 kernel=baseline spills<=4
#include "detect.cuh"

#define PARTS_THREADS 256
#define THREADS 128
#define GROUPS 8
#define DRIFTS 2.0
#define OUTLIER 3.5
#define REACH 11
#define ROUNDS 4
#define LEAST_STEPS 12
#define TO_SIGMA 1.4826022185056018
#define DIFFERENCE 3.5682482323055424
#define SECOND 1012.0
#define FOURTH 79948.0
#define SIXTH 7499932.0
#define CUBIC ((2 * REACH + 1) * FOURTH - SECOND * SECOND)
#define ODD (SECOND * SIXTH - FOURTH * FOURTH)
#define GOLDEN 2654435769u
#define FRACTION 2.3283064365386963e-10  // 2^-32

// Sum of n values in interleaved parts, a lane each; the same in every lane.
template <class V>
__device__ double strided_sum(const V* y, int n) {
  const int lane = threadIdx.x & 31;
  double t = 0;
  for (int i = lane; i < n; i += 32) t = __dadd_rn(t, (double)y[i]);
  for (int o = 16; o; o >>= 1) t = __dadd_rn(t, __shfl_xor_sync(~0u, t, o));
  return t;
}

// First sample of part k, counted from the start of block 0.
__device__ __forceinline__ i64 part_start(int k, const Job& j) {
  const int b = k >= 0 ? k / j.parts : -((j.parts - 1 - k) / j.parts);
  return (i64)b * j.block + (i64)(k - b * j.parts) * j.block / j.parts;
}

// means[row][block][part] of parts that are whole.
extern "C" __global__ void __launch_bounds__(PARTS_THREADS) parts(const SUM* sums, const int* valid, double* means,
                                                                  Job j) {
  const int row = blockIdx.y, part = blockIdx.x * (PARTS_THREADS / 32) + (threadIdx.x >> 5);
  if (part >= j.blocks * j.parts) return;
  const i64 low = part_start(part, j), high = part_start(part + 1, j);
  if (high > valid_of(j, valid, row)) return;
  const double total = strided_sum(sums + row * j.pitch + low, (int)(high - low));
  if ((threadIdx.x & 31) == 0) means[(i64)row * j.blocks * j.parts + part] = __ddiv_rn(total, (double)(high - low));
}

// Median of n values; `space` has room for them.
__device__ double median(const double* v, int n, double* space) {
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += THREADS) {
    int before = 0;
    for (int k = 0; k < n; k++) before += v[k] < v[i] || (v[k] == v[i] && k < i);
    space[before] = v[i];
  }
  __syncthreads();
  const double found = __dmul_rn(0.5, __dadd_rn(space[(n - 1) / 2], space[n / 2]));
  __syncthreads();
  return found;
}

// Value at middle + t of the cubic around x[middle].
__device__ double end_of_cubic(const double* x, int middle, int t) {
  double even = 0, odd = 0;
  for (int k = -REACH; k <= REACH; k++) {  // the weights are whole numbers
    const double kk = k * k, tt = t * t;
    const double a = (FOURTH - SECOND * kk) + tt * ((2.0 * REACH + 1.0) * kk - SECOND);
    const double b = (double)(k * t) * ((SIXTH - FOURTH * kk) + tt * (SECOND * kk - FOURTH));
    even = __dadd_rn(even, __dmul_rn(a, x[middle + k]));
    odd = __dadd_rn(odd, __dmul_rn(b, x[middle + k]));
  }
  return __dadd_rn(__ddiv_rn(even, CUBIC), __ddiv_rn(odd, ODD));
}

// The middle of the cubic around each of x[low : high]; near an end, the outer part of the cubic there.
__device__ void fit_cubics(const double* x, int low, int high, double* out) {
  __syncthreads();
  for (int i = low + threadIdx.x; i < high; i += THREADS) {
    const int middle = min(max(i, low + REACH), high - 1 - REACH);
    if (i != middle) {
      out[i] = end_of_cubic(x, middle, i - middle);
      continue;
    }
    double total = 0;
    for (int t = 0; t < 2 * REACH + 1; t++)
      total = __dadd_rn(total, __dmul_rn(FOURTH - SECOND * ((t - REACH) * (t - REACH)), x[i - REACH + t]));
    out[i] = __ddiv_rn(total, CUBIC);
  }
  __syncthreads();
}

// levels[row][block][0]; samples of blocks whose level drifts change.
extern "C" __global__ void __launch_bounds__(THREADS) baseline(SUM* sums, const int* valid, const double* means,
                                                               double* levels, Job j) {
  extern __shared__ double space[];
  const int row = blockIdx.y, block = blockIdx.x, tid = threadIdx.x, parts = j.parts;
  const int count = valid_of(j, valid, row), first = block * j.block, length = min(j.block, count - first);
  if (length <= 0) return;
  SUM* const y = sums + row * j.pitch + first;
  double* const level = levels + 2 * ((i64)row * j.blocks + block);
  double *const m = space, *const fit = m + 3 * parts, *const q = fit + 3 * parts, *const x = q + 3 * parts;
  double* const scratch = x + 3 * parts;  // for medians
  const i64 known = (i64)(count / j.block) * parts +
                    min((i64)parts, ((i64)(count % j.block + 1) * parts - 1) / j.block) - (i64)(block - 1) * parts;
  const int low = block ? 0 : parts, high = (int)min((i64)(3 * parts), known), n = high - low;
  if (n <= 0) {
    const double total = strided_sum(y, length);
    if (tid == 0) level[0] = __ddiv_rn(total, (double)length);
    return;
  }
  for (int k = low + tid; k < high; k += THREADS) m[k] = means[((i64)row * j.blocks + block - 1) * parts + k];
  __syncthreads();
  const int group = parts / GROUPS, groups = n / group;
  if (groups < GROUPS) {
    const double total = strided_sum(m + low, n);
    if (tid == 0) level[0] = __ddiv_rn(total, (double)n);
    return;
  }
  // The scatter of white noise
  const int differences = n - 3;
  for (int i = tid; i < differences; i += THREADS) {
    const int k = low + i;
    q[i] = fabs(__dadd_rn(__dsub_rn(m[k + 3], m[k]), __dmul_rn(3.0, __dsub_rn(m[k + 1], m[k + 2]))));
  }
  __syncthreads();
  const double most_of = __dmul_rn(3.0, __ddiv_rn(strided_sum(q, differences), (double)differences));
  __syncthreads();
  for (int i = tid; i < differences; i += THREADS) q[i] = q[i] > most_of ? most_of : q[i];
  __syncthreads();
  const double sigma = __ddiv_rn(__ddiv_rn(strided_sum(q, differences), (double)differences), DIFFERENCE);
  // The scatter of the groups
  for (int g = tid; g < groups; g += THREADS) {
    double total = 0;
    for (int i = 0; i < group; i++) total = __dadd_rn(total, m[low + g * group + i]);
    fit[g] = __ddiv_rn(total, (double)group);
  }
  double middle = median(fit, groups, x);
  for (int g = tid; g < groups; g += THREADS) fit[g] = fabs(__dsub_rn(fit[g], middle));
  const double spread = __dmul_rn(TO_SIGMA, median(fit, groups, x));
  if (!(spread > __ddiv_rn(__dmul_rn(DRIFTS, sigma), __dsqrt_rn((double)group)))) {
    for (int turn = 0; turn < 2; turn++) {
      int kept = 0;
      for (int base = 0; base < n; base += THREADS) {
        const int i = base + tid;
        const bool near = i < n && fabs(__dsub_rn(m[low + min(i, n - 1)], middle)) <= __dmul_rn(OUTLIER, sigma);
        if (i < n) q[i] = near ? m[low + i] : 0.0;
        kept += __syncthreads_count(near);
      }
      if (kept == 0) break;
      middle = __ddiv_rn(strided_sum(q, n), (double)kept);
      __syncthreads();
    }
    if (tid == 0) level[0] = middle;
    return;
  }
  int d = 0;
  for (int step = 16; step; step /= 4) {
    const int from = low / step, stop = high / step;
    if (LEAST_STEPS * step > parts || stop - from < 2 * REACH + 2) continue;
    d = step;
    for (int k = from + tid; k < stop; k += THREADS) {
      double total = 0;
      for (int i = 0; i < d; i++) total = __dadd_rn(total, m[k * d + i]);
      q[k] = x[k] = __ddiv_rn(total, (double)d);
    }
    const double noise = __ddiv_rn(sigma, __dsqrt_rn((double)d)), most = __dmul_rn(OUTLIER, noise);
    fit_cubics(x, from, stop, fit);
    for (int turn = 0; turn < ROUNDS; turn++) {
      for (int k = from + tid; k < stop; k += THREADS) x[k] = fabs(__dsub_rn(q[k], fit[k])) <= most ? q[k] : fit[k];
      fit_cubics(x, from, stop, fit);
    }
    if (d == 1) break;
    const int a = max(from, parts / d), b = min(stop, 2 * parts / d);
    for (int k = a + tid; k < b; k += THREADS) x[k - a] = fabs(__dsub_rn(q[k], fit[k]));
    if (b > a && !(__dmul_rn(TO_SIGMA, median(x, b - a, scratch)) > __dmul_rn(DRIFTS, noise))) break;
  }
  if (d == 0) {
    if (tid == 0) level[0] = middle;
    return;
  }
  // Subtract the line, a warp a piece between the middles of two means
  const int last = high / d - 2, begin = min(max(low / d, parts / d - 1), last);
  for (int k = begin + (tid >> 5); k <= last; k += THREADS / 32) {
    const int at_part = k * d - parts;
    const i64 a = part_start(at_part, j), b = part_start(at_part + d, j), c = part_start(at_part + 2 * d, j);
    const int from = k == begin ? 0 : (int)min((i64)length, (a + b) / 2);
    const int to = k == last ? length : (int)min((i64)length, (b + c) / 2);
    const double at = __dmul_rn(0.5, (double)(a + b)), after = __dmul_rn(0.5, (double)(b + c)), value = fit[k];
    const double slope = __ddiv_rn(__dsub_rn(fit[k + 1], fit[k]), __dsub_rn(after, at));
    for (int i = from + (tid & 31); i < to; i += 32) {
      const double line = __dadd_rn(value, __dmul_rn(slope, __dsub_rn(__dadd_rn((double)i, 0.5), at)));
#ifdef REAL
      y[i] = __double2float_rn(__dsub_rn((double)y[i], line));
#else
      const double fraction = __dmul_rn((double)((u32)i * GOLDEN), FRACTION);
      const u32 whole = (u32)__double2ll_rd(__dadd_rn(line, fraction));
      y[i] = (SUM)((u32)y[i] - whole + FLAT);
#endif
    }
  }
  if (tid == 0) level[0] = FLAT;
}

// Sums of a candidate's cut-out by channel and by sub-band, as in single_pulse/cpu_vetting.py, in a fixed order.
//
// beside: number, sum and sum of squares of the samples of each channel beside the candidate.
//   Layout: a block of threads for 32 channels; a warp takes every 16th sample and a lane a channel, or in rows of
//   channels a warp every 16th channel and a lane every 32nd sample.
// bands: series of the sub-bands, as observed and de-dispersed, and the variances of the channels.
//   Layout: a grid row for a sub-band; a warp for a bin of a series, a lane for every 32nd channel.
//
// Cost: three reads of each sample.  Limit: sectors of the L2 cache, 32 bytes for a byte of the de-dispersed series.
//
// archs: 75 80 86 89 90 100 120
// build: bytes -DBYTES
// build: f32
// budget: bytes kernel=beside regs<=64 spills<=16
// budget: bytes kernel=bands regs<=64 spills<=16
// budget: f32 kernel=beside regs<=64 spills<=16
// budget: f32 kernel=bands regs<=64 spills<=16
typedef unsigned char u8;
typedef long long i64;
#ifdef BYTES
typedef u8 Sample;
#else
typedef float Sample;
#endif

#define WARPS 16        // of a block of threads
#define LEAST_KNOWN 32  // samples of a channel beside the candidate, from which its level and sigma are known
#define ROUNDING 1e-11  // as in single_pulse/cpu_vetting.py

struct Job {
  const Sample* x;   // samples x channels; or the first sample of the first row of channels, if there is a stride
  const u8* gone;    // which of them do not count; one row if it is the same at all times
  const i64* start;  // bins by which the candidate arrives later in a channel than at the top of the band
  double *sums, *var, *flat, *lined;
  i64 stride, samples;  // bytes from a row of channels to the next, but for 4 bytes by which rows are shifted
  int same, size, first, side, width, guard, count, length;
};

__device__ __forceinline__ i64 place(const Job& j, int channels, int c, i64 i) {
  return j.stride ? c * j.stride + 4 * (c & 3) + i : i * channels + c;
}

struct Beside {  // sums of the samples of a channel beside the candidate
  double number, total, square;

  __device__ __forceinline__ void add(const Job& j, int channels, int c, i64 first, int step) {
    // Samples from `low` to `high` belong to the candidate or are close to it.
    const i64 begin = j.start[c] + j.side - j.first;
    const i64 low = (begin - j.guard) * j.size, high = (begin + j.width + j.guard) * j.size;
#pragma unroll 4
    for (i64 i = first; i < j.samples; i += step) {
      const bool counts = (i < low || i >= high) && !j.gone[(j.same ? 0 : i) * channels + c];
      const double v = counts ? (double)j.x[place(j, channels, c, i)] : 0.0;
      number += counts;
      total += v;
      square += v * v;
    }
  }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS) beside(const Job* jobs, int channels) {
  __shared__ double parts[3][WARPS][32];
  const Job j = jobs[blockIdx.z];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, c = 32 * blockIdx.x + lane;
  if (j.stride) {
    for (int k = 32 * blockIdx.x + warp; k < min(channels, 32 * (int)blockIdx.x + 32); k += WARPS) {
      Beside sum = {0, 0, 0};
      sum.add(j, channels, k, lane, 32);
      for (int step = 16; step; step >>= 1) {
        sum.number += __shfl_down_sync(~0u, sum.number, step);
        sum.total += __shfl_down_sync(~0u, sum.total, step);
        sum.square += __shfl_down_sync(~0u, sum.square, step);
      }
      if (lane) continue;
      j.sums[k] += sum.number;
      j.sums[channels + k] += sum.total;
      j.sums[2 * channels + k] += sum.square;
    }
    return;
  }
  Beside mine = {0, 0, 0};
  if (c < channels) mine.add(j, channels, c, warp, WARPS);
  parts[0][warp][lane] = mine.number;
  parts[1][warp][lane] = mine.total;
  parts[2][warp][lane] = mine.square;
  __syncthreads();
  if (warp >= 3 || c >= channels) return;
  double sum = 0;
  for (int i = 0; i < WARPS; i++) sum += parts[warp][i][lane];
  j.sums[(i64)warp * channels + c] += sum;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) bands(const Job* jobs, const int* edges, int channels,
                                                               int bands) {
  const Job j = jobs[blockIdx.z];
  const int lane = threadIdx.x & 31, band = blockIdx.y, bins = (int)(j.samples / j.size);
  const int item = blockIdx.x * WARPS + (threadIdx.x >> 5), at = item - bins;
  if (item >= bins + j.length) return;
  double excess = 0, power = 0;
  for (int c = edges[band] + lane; c < edges[band + 1]; c += 32) {
    const double known = j.sums[c], many = known > 1 ? known : 1.0, level = j.sums[channels + c] / many;
    const double square = level * level, var = j.sums[2 * channels + c] / many - square;
    const bool left_out = known < LEAST_KNOWN || var <= ROUNDING * square;
    if (item == 0) j.var[c] = left_out ? 0 : var;
    const i64 bin = item < bins ? item : at + j.start[c] - j.first;  // of the samples that are given
    if (bin < 0 || bin >= bins || left_out) continue;
    int number = 0;
    double total = 0;
    for (i64 i = bin * j.size; i < (bin + 1) * j.size; i++) {
      const bool counts = !j.gone[(j.same ? 0 : i) * channels + c];
      number += counts;
      total += counts ? (double)j.x[place(j, channels, c, i)] : 0.0;
    }
    excess += total - number * level;
    power += number * var;
  }
  for (int step = 16; step; step >>= 1) {
    excess += __shfl_down_sync(~0u, excess, step);
    power += __shfl_down_sync(~0u, power, step);
  }
  if (lane) return;
  const i64 row = item < bins ? j.count : j.length, column = item < bins ? j.first + item : at;
  double* out = (item < bins ? j.flat : j.lined) + band * row + column;
  *out += excess;
  out[bands * row] += power;
}

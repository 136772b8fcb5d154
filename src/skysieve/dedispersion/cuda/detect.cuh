// Parts of the kernels of a search: the job, sums over threads, quartiles of integers.
#pragma once
#include "common.cuh"

#ifndef NOISE_THREADS
#define NOISE_THREADS 512
#endif
#define STRETCH 16  // sums whose extremes are taken together
#define BINS 8192
#define BIN_AT(b) ((b) + ((b) >> 4))  // counts of 16 neighbouring bins lie in banks of their own
#define PART 64
#define CLIP 262144
#define UNIT 64.0
#define IQR 1.3489795003921634
#define CLIPPED_SIGMA 0.98657826
#define CLIPS 5
#define CLIP_AT 3.0
enum { ROBUST = 0, MOMENTS = 1, CLIPPED = 2 };

struct Job {
  i64 pitch;          // sums from series to series
  int rows, columns;  // series; sums of each
  int block, blocks;  // samples of a block, blocks of a series
  int noise, every;
  int low, high;      // windows are centred on these samples
  int segment, look;  // samples of a piece, and how far a peak is compared
  int widths, widest, room;
  int shorter, dense;  // widths that are examined one by one; whether they are 1, 2, 3, 4, 5, 6, 8, 10
  int kept;            // whether a block of samples is kept in shared memory
  int subs;            // most pieces of a block, with its edge, of which a first pass lists some; 0: all are examined
  int smaller, pairs,
      region;  // of glance.cu: windows below two stretches, room for pairs of those, bytes before samples
  int parts;   // of a block, from which baseline.cu takes its level; 0: the level is that of the noise
  float threshold;
  float dip;  // fall of the S/N between two peaks of a window from which on they are two events
};

__device__ __forceinline__ int valid_of(const Job& j, const int* valid, int row) { return min(valid[row], j.columns); }

// Inclusive sums of v over the threads; `part` has room for 16.
__device__ __forceinline__ int scan(int mine, int* part) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 v = (u32)mine;
  for (int o = 1; o < 32; o <<= 1) {
    const u32 other = __shfl_up_sync(~0u, v, o);
    if (lane >= o) v += other;
  }
  __syncthreads();
  if (lane == 31) part[warp] = (int)v;
  __syncthreads();
  for (int w = 0; w < warp; w++) v += (u32)part[w];
  return (int)v;
}

#ifndef REAL
// Quartiles of n integers into out[3]: as `quartiles` in cpu/detect.py, operation for operation.  `keep`, where given,
// is room in shared memory for the samples.
__device__ void quartiles(const SUM* y, SUM* keep, int n, int* counts, int* part, double* out) {
  __shared__ i64 ends[2];
  __shared__ int found[3], before[3];
  SUM least = y[0], most = y[0];
#pragma unroll 4
  for (int i = threadIdx.x; i < n; i += NOISE_THREADS) {
    const SUM v = y[i];
    if (keep) keep[i] = v;
    least = min(least, v);
    most = max(most, v);
  }
  if (keep) y = keep;
  for (int o = 16; o; o >>= 1) {
    const SUM a = __shfl_xor_sync(~0u, least, o), b = __shfl_xor_sync(~0u, most, o);
    least = min(least, a);
    most = max(most, b);
  }
  __shared__ SUM lows[NOISE_THREADS / 32], highs[NOISE_THREADS / 32];
  __syncthreads();
  if ((threadIdx.x & 31) == 0) {
    lows[threadIdx.x >> 5] = least;
    highs[threadIdx.x >> 5] = most;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < NOISE_THREADS / 32; w++) {
      lows[0] = min(lows[0], lows[w]);
      highs[0] = max(highs[0], highs[w]);
    }
    ends[0] = lows[0];
    ends[1] = highs[0];
  }
  int below = 0;
  while (true) {
    __syncthreads();
    const i64 low = ends[0], high = ends[1];
    int shift = 0;
    while (((high - low) >> shift) >= BINS) shift++;
    const int bins = (int)((high - low) >> shift) + 1;
    for (int b = threadIdx.x; b < BIN_AT(BINS); b += NOISE_THREADS) counts[b] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += NOISE_THREADS) {  // sums of 32 bits: so are differences that count
      const u32 b = ((u32)y[i] - (u32)low) >> shift;
      if (b < (u32)bins && y[i] >= (SUM)low) atomicAdd(&counts[BIN_AT(b)], 1);
    }
    __syncthreads();
    const int each = BINS / NOISE_THREADS, from = threadIdx.x * each;
    int mine = 0;
    for (int b = 0; b < each; b++) mine += counts[BIN_AT(from + b)];
    int total = below + scan(mine, part) - mine;
    for (int q = 0; q < 3; q++) {  // the first bin whose end reaches a quartile
      const int wanted = (int)(((i64)n * (q + 1) + 3) / 4);
      if (total >= wanted || total + mine < wanted) continue;
      int before_it = total, b = from;
      for (; before_it + counts[BIN_AT(b)] < wanted; b++) before_it += counts[BIN_AT(b)];
      found[q] = b;
      before[q] = before_it;
    }
    __syncthreads();
    const i64 width = (i64)1 << shift;
    const bool done = shift == 0 || found[2] - found[0] >= 4096;
    if (threadIdx.x == 0) {
      for (int q = 0; q < 3; q++) {
        const double wanted = __dmul_rn(__dmul_rn((double)n, 0.25), (double)(q + 1));
        const double share = __ddiv_rn(__dsub_rn(wanted, (double)before[q]), (double)counts[BIN_AT(found[q])]);
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
#endif

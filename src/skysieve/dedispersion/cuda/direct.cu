// Sums along the delays of many DMs without tensor cores.
//
// packed: bytes, for GPUs without sparse integer tensor cores.
//   Layout: a block sums 32 DMs x 512 samples.  Rows are staged as pairs of samples of 16 bits, once from even and once
//   from odd samples on, so that every delay is an aligned word.
//   Cost: a warp adds 8 DMs x 256 samples of a channel by 32 loads and 32 additions of two samples; sums are widened
//   every 257 channels.
//   Limit: shared memory (2 bytes for a sample that is added), then instructions.
// direct: bytes with any delays, also those that differ so much that no row fits shared memory.
//   Layout: a thread sums 4 DMs of a sample.
//   Limit: the caches.
// floats: float32, added in the order that contract.py states: pairs, pairs of pairs, ... of 16 channels, then these
//   sums one by one.
//   Layout: a block sums 32 DMs x 256 samples.  Samples of 16 channels are staged from the least delay on; if the
//   delays of a channel differ too much, the channels are read from the caches.
//   Cost: a warp adds 4 DMs x 256 samples of a channel by 36 loads.
//   Limit: shared memory (4 bytes for a sample that is added).
//
// archs: 75 80 86 89 90 100 120
// build: default
// budget: default kernel=packed regs<=168 smem<=512
// budget: default kernel=floats regs<=128 smem<=35008
#include "common.cuh"

#define DMS 32
#define SPAN 512
#define MOST_ADDED 257  // 257 * 255 = 65535
#define GROUP 16        // channels whose sum is a tree
#define FLOAT_DMS 32
#define FLOAT_SPAN 256
#define FLOAT_EACH (FLOAT_SPAN / 32)
#define FLOAT_ROOM 512  // staged samples of a channel

struct Shape {
  i64 stride, ypitch;
  int nchan, ndm, first, count, row0, rows, words, chunk;
  u32 weight, start;
  int fresh, spare;
};

__device__ __forceinline__ void store(const Shape& s, u32* y, int m, int t, u32 sum) {
  if (m >= s.row0 + s.rows || t >= s.count) return;
  u32* const to = y + (i64)(m - s.row0) * s.ypitch + t;
  *to = (s.fresh ? s.start : *to) + s.weight * sum;
}

// `words` of a staged copy of a row hold 512 samples and the spread of the block's delays; `chunk` rows at a time.
extern "C" __global__ void __launch_bounds__(256) packed(const u8* __restrict__ x, const int* __restrict__ delays,
                                                         u32* __restrict__ y, Shape s) {
  extern __shared__ u32 sm[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp >> 1, piece = warp & 1;
  const int m0 = s.row0 + blockIdx.x * DMS, t0 = blockIdx.y * SPAN;
  u32* const rows = sm;                                                     // [chunk][2][words]
  u16* const offsets = reinterpret_cast<u16*>(sm + s.chunk * 2 * s.words);  // [chunk][32]
  u32 acc[8][4], low[8][4], high[8][4];
#pragma unroll
  for (int d = 0; d < 8; d++)
#pragma unroll
    for (int k = 0; k < 4; k++) acc[d][k] = low[d][k] = high[d][k] = 0;
  int added = 0;
  for (int c0 = 0; c0 < s.nchan; c0 += s.chunk) {
    const int n = min(s.chunk, s.nchan - c0);
    __syncthreads();
    for (int r = warp; r < n; r += 8) {
      const int c = c0 + r, mine = __ldg(delays + (i64)min(m0 + lane, s.ndm - 1) * s.nchan + c);
      int least = mine;
      for (int o = 16; o; o >>= 1) least = min(least, __shfl_xor_sync(~0u, least, o));
      const int from = mine - least;
      offsets[r * DMS + lane] = (u16)((r * 2 + (from & 1)) * s.words + (from >> 1));
      const u8* src = x + (i64)c * s.stride + skew_of(c) + s.first + t0 + least;
      u32* const even = rows + r * 2 * s.words;
      for (int i = lane; i < s.words; i += 32) {
        const u32 a = src[2 * i], b = src[2 * i + 1], e = src[2 * i + 2];
        even[i] = a | b << 16;
        even[s.words + i] = b | e << 16;
      }
    }
    __syncthreads();
    for (int r = 0; r < n; r++) {
      const uint4 o = *reinterpret_cast<const uint4*>(offsets + r * DMS + 8 * group);
      const u32 both[4] = {o.x, o.y, o.z, o.w};
      const u32* const base = rows + piece * 128 + lane;
#pragma unroll
      for (int d = 0; d < 8; d++) {
        const u32* const p = base + (d & 1 ? both[d >> 1] >> 16 : both[d >> 1] & 0xffff);
#pragma unroll
        for (int k = 0; k < 4; k++) acc[d][k] += p[32 * k];
      }
      if (++added == MOST_ADDED || (r == n - 1 && c0 + n == s.nchan)) {
        added = 0;
#pragma unroll
        for (int d = 0; d < 8; d++)
#pragma unroll
          for (int k = 0; k < 4; k++) {
            low[d][k] += acc[d][k] & 0xffff;
            high[d][k] += acc[d][k] >> 16;
            acc[d][k] = 0;
          }
      }
    }
  }
#pragma unroll
  for (int d = 0; d < 8; d++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int t = t0 + 256 * piece + 2 * (lane + 32 * k), m = m0 + 8 * group + d;
      store(s, y, m, t, low[d][k]);
      store(s, y, m, t + 1, high[d][k]);
    }
}

extern "C" __global__ void __launch_bounds__(256) direct(const u8* __restrict__ x, const int* __restrict__ delays,
                                                         u32* __restrict__ y, Shape s) {
  const int t = blockIdx.x * 256 + threadIdx.x, m = s.row0 + blockIdx.y * 4;
  const int here = min(t, s.count - 1);
  u32 sum[4] = {0, 0, 0, 0};
  for (int c = 0; c < s.nchan; c++) {
    const u8* const src = x + (i64)c * s.stride + skew_of(c) + s.first + here;
#pragma unroll
    for (int d = 0; d < 4; d++) sum[d] += __ldg(src + __ldg(delays + (i64)min(m + d, s.ndm - 1) * s.nchan + c));
  }
#pragma unroll
  for (int d = 0; d < 4; d++) store(s, y, m + d, t, sum[d]);
}

// The samples of a lane, less those beyond `last`.
__device__ __forceinline__ void take(float (&v)[FLOAT_EACH], const float* row, int last) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < FLOAT_EACH; k++) v[k] = row[min(lane + 32 * k, last)];
}
__device__ __forceinline__ void add_to(float (&v)[FLOAT_EACH], const float (&w)[FLOAT_EACH]) {
#pragma unroll
  for (int k = 0; k < FLOAT_EACH; k++) v[k] = __fadd_rn(v[k], w[k]);
}
// Sums of neighbouring channels from number i on: that of the first half plus that of the second half.  row(i): where
// the samples of channel i begin.
template <int CHANNELS, typename Row>
__device__ __forceinline__ void add_halves(float (&v)[FLOAT_EACH], const Row& row, int i, int last) {
  if constexpr (CHANNELS == 1) {
    take(v, row(i), last);
  } else {
    float w[FLOAT_EACH];
    add_halves<CHANNELS / 2>(v, row, i, last);
    add_halves<CHANNELS / 2>(w, row, i + CHANNELS / 2, last);
    add_to(v, w);
  }
}

extern "C" __global__ void __launch_bounds__(256, 2) floats(const float* __restrict__ x, const int* __restrict__ delays,
                                                            float* __restrict__ y, Shape s) {
  __shared__ float held[GROUP][FLOAT_ROOM];
  __shared__ int offset[GROUP][FLOAT_DMS + 1], least[GROUP];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int t0 = blockIdx.x * FLOAT_SPAN, m0 = s.row0 + blockIdx.y * FLOAT_DMS, last = s.count - 1 - t0;
  float total[FLOAT_DMS / 8][FLOAT_EACH];
#pragma unroll
  for (int d = 0; d < FLOAT_DMS / 8; d++)
#pragma unroll
    for (int k = 0; k < FLOAT_EACH; k++) total[d][k] = 0.0f;
  for (int c0 = 0; c0 < s.nchan; c0 += GROUP) {
    const int n = min(GROUP, s.nchan - c0);
    __syncthreads();
    for (int e = tid; e < GROUP * FLOAT_DMS; e += 256) {
      const int m = e / GROUP, i = e % GROUP;
      offset[i][m] = i < n ? __ldg(delays + (i64)min(m0 + m, s.ndm - 1) * s.nchan + c0 + i) : 0;
    }
    __syncthreads();
    int wide = 0;
    for (int i = warp; i < GROUP; i += 8) {
      const int mine = offset[i][lane];
      int low = mine, high = mine;
      for (int o = 16; o; o >>= 1) {
        low = min(low, __shfl_xor_sync(~0u, low, o));
        high = max(high, __shfl_xor_sync(~0u, high, o));
      }
      const int spread = high - low, room = min(FLOAT_ROOM, FLOAT_SPAN + spread);
      offset[i][lane] = mine - low;
      if (!lane) least[i] = low;
      wide |= spread > FLOAT_ROOM - FLOAT_SPAN;
      const float* const from = x + (i64)(c0 + i) * s.stride + s.first + t0 + low;
      for (int k = lane; k < room; k += 32) held[i][k] = i < n ? __ldg(from + min(k, last + spread)) : 0.0f;
    }
    wide = __syncthreads_or(wide);
#pragma unroll
    for (int d = 0; d < FLOAT_DMS / 8; d++) {
      const int m = warp * (FLOAT_DMS / 8) + d;
      float sum[FLOAT_EACH];
      if (wide) {  // some channel has no room for the delays of all DMs
        const float* const from = x + (i64)c0 * s.stride + s.first + t0;
        add_halves<GROUP>(
            sum, [&](int i) { return i < n ? from + i * s.stride + least[i] + offset[i][m] : held[i]; }, 0, last);
      } else
        add_halves<GROUP>(sum, [&](int i) { return held[i] + offset[i][m]; }, 0, FLOAT_SPAN);
      add_to(total[d], sum);
    }
  }
#pragma unroll
  for (int d = 0; d < FLOAT_DMS / 8; d++) {
    const int m = m0 + warp * (FLOAT_DMS / 8) + d;
    if (m >= s.row0 + s.rows) continue;
    float* const to = y + (i64)(m - s.row0) * s.ypitch + t0;
#pragma unroll
    for (int k = 0; k < FLOAT_EACH; k++)
      if (lane + 32 * k <= last) to[lane + 32 * k] = __fadd_rn(0.0f, total[d][k]);
  }
}

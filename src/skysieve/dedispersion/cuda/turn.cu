// Time-major bytes, and samples of 1, 2 and 4 bits, into rows of channels.
//
// turn4: a thread transposes 4 samples x 4 channels in registers, a block its tile in shared memory.
//   Cost: each byte is read and written once.
//   Limit: memory.
// unpack: a block has 32 bytes of 32 samples; a warp writes 32 samples of a channel.
//   Cost: each byte of the file is read once.
//   Limit: memory.
//
// archs: 75 80 86 89 90 100 120
// build: default
#include "common.cuh"

// Rows of `planes` planes of bytes.
struct Rows {
  u8* x;
  i64 stride, plane;
  int planes;
};

// Bytes of four words turned: out[j] holds byte j of each.
__device__ __forceinline__ void turn_bytes(const u32 (&a)[4], u32 (&out)[4]) {
  const u32 x = (a[0] & 0x00ff00ffu) | (a[1] & 0x00ff00ffu) << 8, y = (a[0] & 0xff00ff00u) >> 8 | (a[1] & 0xff00ff00u);
  const u32 z = (a[2] & 0x00ff00ffu) | (a[3] & 0x00ff00ffu) << 8, w = (a[2] & 0xff00ff00u) >> 8 | (a[3] & 0xff00ff00u);
  out[0] = (x & 0xffffu) | z << 16;
  out[1] = (y & 0xffffu) | w << 16;
  out[2] = x >> 16 | (z & 0xffff0000u);
  out[3] = y >> 16 | (w & 0xffff0000u);
}

// Bytes, time-major: channels and column are multiples of 4, src is 4 aligned; 128 channels x 128 samples a block.
extern "C" __global__ void __launch_bounds__(256) turn4(const u8* src, int samples, int channels, const int* inverse,
                                                        i64 column, u32 flip, Rows to) {
  __shared__ u32 tile[128][33];
  const int t0 = blockIdx.x * 128, c0 = blockIdx.y * 128, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32* words = reinterpret_cast<const u32*>(src);
  const int row = channels / 4, cw = c0 / 4 + lane;
  u32 a[4][4], b[4];
#pragma unroll
  for (int u = 0; u < 4; u++)  // a warp reads 128 channels of a sample; all loads before their use
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int t = t0 + 4 * (warp + 8 * u) + j;
      a[u][j] = t < samples && cw < row ? __ldg(words + (i64)t * row + cw) : 0;
    }
#pragma unroll
  for (int u = 0; u < 4; u++) {
    turn_bytes(a[u], b);
    for (int j = 0; j < 4; j++)
      tile[4 * lane + j][(warp + 8 * u) ^ (lane >> 3)] = b[j] ^ flip;  // no two lanes in a bank
  }
  __syncthreads();
  for (int i = warp; i < 128 && c0 + i < channels; i += 8) {
    const int r = __ldg(inverse + c0 + i), t = t0 + 4 * lane;
    u8* const out = to.x + (i64)r * to.stride + FRONT + skew_of(r) + column + t;
    const u32 v = tile[i][lane ^ (i >> 5)];
    if (t + 4 <= samples)
      *reinterpret_cast<u32*>(out) = v;
    else
      for (int j = 0; t + j < samples && j < 4; j++) out[j] = (u8)(v >> (8 * j));
  }
}

// n samples of `stride` bytes; the first row is the file's last channel where `down`.
extern "C" __global__ void __launch_bounds__(256) unpack(const u8* src, int n, int stride, int channels, int bits,
                                                         int high_first, int down, i64 column, Rows to) {
  __shared__ u8 tile[32][33];
  const int t0 = blockIdx.x * 32, b0 = blockIdx.y * 32, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int i = warp; i < 32; i += 8)
    if (t0 + i < n && b0 + lane < stride) tile[lane][i] = src[(i64)(t0 + i) * stride + b0 + lane];
  __syncthreads();
  const int per = 8 / bits;
  for (int i = warp; i < 32 * per; i += 8) {
    const int k = b0 * per + i, at = i % per;
    if (k >= channels || t0 + lane >= n) continue;
    const int shift = high_first ? 8 - bits * (at + 1) : bits * at, r = down ? channels - 1 - k : k;
    to.x[(i64)r * to.stride + FRONT + skew_of(r) + column + t0 + lane] =
        tile[i / per][lane] >> shift & ((1 << bits) - 1);
  }
}

// Time-major bytes, and samples of 1, 2 and 4 bits, into rows of channels.
//
// turn4: a thread takes 4 samples x 4 channels, turns them in registers, and the tile through shared memory.  2 bytes of
// device memory a sample, which is the limit.
//
// unpack: 32 bytes of 32 samples a block; each byte of the file is read once, a warp writes 32 samples of a channel.
//
// archs: 75 80 86 89 90 100 120
// build: default
#include "dd_common.cuh"

// Rows of `planes` planes of bytes.
struct Rows { u8* x; i64 stride, plane; int planes; };

// Bytes of four words turned: out[j] holds byte j of each.
__device__ __forceinline__ void turn_bytes(const u32 (&a)[4], u32 (&out)[4]) {
  const u32 x = (a[0] & 0x00ff00ffu) | (a[1] & 0x00ff00ffu) << 8, y = (a[0] & 0xff00ff00u) >> 8 | (a[1] & 0xff00ff00u);
  const u32 z = (a[2] & 0x00ff00ffu) | (a[3] & 0x00ff00ffu) << 8, w = (a[2] & 0xff00ff00u) >> 8 | (a[3] & 0xff00ff00u);
  out[0] = (x & 0xffffu) | z << 16;
  out[1] = (y & 0xffffu) | w << 16;
  out[2] = x >> 16 | (z & 0xffff0000u);
  out[3] = y >> 16 | (w & 0xffff0000u);
}

// Bytes, time-major: channels and column are multiples of 4, src is 4 aligned; 64 channels x 128 samples a block.
extern "C" __global__ void __launch_bounds__(256)
    turn4(const u8* src, int samples, int channels, const int* inverse, i64 column, u32 flip, Rows to) {
  __shared__ u32 tile[64][33];
  const int t0 = blockIdx.x * 128, c0 = blockIdx.y * 64, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32* words = reinterpret_cast<const u32*>(src);
  const int row = channels / 4;
  for (int unit = warp; unit < 16; unit += 8) {  // 8 words of 4 channels x 4 words of 4 samples
    const int cw = 8 * (unit & 1) + (lane & 7), tq = 4 * (unit >> 1) + (lane >> 3);
    u32 a[4], b[4];
    for (int j = 0; j < 4; j++) {
      const int t = t0 + 4 * tq + j;
      a[j] = t < samples && c0 / 4 + cw < row ? words[(i64)t * row + c0 / 4 + cw] ^ flip : 0;
    }
    turn_bytes(a, b);
    for (int j = 0; j < 4; j++) tile[4 * cw + j][tq] = b[j];
  }
  __syncthreads();
  for (int i = warp; i < 64; i += 8) {
    if (c0 + i >= channels) break;
    const int r = inverse[c0 + i], t = t0 + 4 * lane;
    u8* const out = to.x + (i64)r * to.stride + FRONT + skew_of(r) + column + t;
    const u32 v = tile[i][lane];
    if (t + 4 <= samples) *reinterpret_cast<u32*>(out) = v;
    else
      for (int j = 0; t + j < samples && j < 4; j++) out[j] = (u8)(v >> (8 * j));
  }
}

// n samples of `stride` bytes; the first row is the file's last channel where `down`.
extern "C" __global__ void __launch_bounds__(256)
    unpack(const u8* src, int n, int stride, int channels, int bits, int high_first, int down, i64 column, Rows to) {
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
    to.x[(i64)r * to.stride + FRONT + skew_of(r) + column + t0 + lane] = tile[i / per][lane] >> shift & ((1 << bits) - 1);
  }
}

// Bytes of a stream that stay on the GPU, samples x channels: statistics, and values in place of missing samples, with
// the same bits as clean/cpu_missing.py and clean/missing.py.
//
// Sums of bytes and of their squares are integers, so that their order does not matter; operations that round are
// written as rounding operations, in the CPU's order.
// Layout: statistics: a thread for a channel of up to 64 samples.
// Cost: a byte and three instructions for a sample.
// Limit: memory.
//
// archs: 75 80 86 89 90 100 120
// build: default
typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define THREADS 256
#define PIECE 64  // samples of a thread

struct Rect {
  i64 first, last, low, high;
};  // samples, channels

// Zeros where samples are missing.
extern "C" __global__ void __launch_bounds__(THREADS) blank(u8* rows, i64 start, int n, int channels, const Rect* rects,
                                                            int count) {
  for (int k = blockIdx.x; k < count; k += gridDim.x) {
    const Rect r = rects[k];
    const i64 from = max((i64)0, r.first - start), to = min((i64)n, r.last - start), wide = r.high - r.low;
    for (i64 i = threadIdx.x; i < (to - from) * wide; i += THREADS)
      rows[(from + i / wide) * channels + r.low + i % wide] = 0;
  }
}

// Sums of a block by channel.
extern "C" __global__ void __launch_bounds__(THREADS) statistics(const u8* rows, i64 start, int n, int channels,
                                                                 const Rect* rects, int count, u64* number, u64* total,
                                                                 u64* square) {
  const int c = blockIdx.x * THREADS + threadIdx.x;
  if (c >= channels) return;
  const int from = blockIdx.y * PIECE, to = min(n, from + PIECE);
  u32 sum = 0, squares = 0;
  for (int t = from; t < to; t++) {
    const u32 v = rows[(i64)t * channels + c];
    sum += v;
    squares += v * v;
  }
  atomicAdd(total + c, (u64)sum);
  atomicAdd(square + c, (u64)squares);
  if (blockIdx.y) return;
  i64 came = n;
  for (int k = 0; k < count; k++) {
    const Rect r = rects[k];
    const i64 gone = min((i64)n, r.last - start) - max((i64)0, r.first - start);
    if (gone > 0 && c >= r.low && c < r.high) came -= gone;
  }
  number[c] += (u64)came;
}

// The end of a block: at least a quarter of it must have arrived if its mean and scatter are to hold for the next.
extern "C" __global__ void __launch_bounds__(THREADS) end_block(u64* number, u64* total, u64* square, double* mean,
                                                                double* sigma, u32* known, int channels, i64 block) {
  const int c = blockIdx.x * THREADS + threadIdx.x;
  if (c >= channels) return;
  const u64 came = number[c];
  if (came * 4 >= (u64)block || (!known[c] && came)) {
    const double n = came ? (double)came : 1.0, level = __ddiv_rn((double)total[c], n);
    mean[c] = level;
    sigma[c] = __dsqrt_rn(fmax(0.0, __dsub_rn(__ddiv_rn((double)square[c], n), __dmul_rn(level, level))));
    known[c] = 1;
  }
  number[c] = total[c] = square[c] = 0;
}

// Missing samples take noise of their channel's mean and scatter, made from channel and sample number.
extern "C" __global__ void __launch_bounds__(THREADS) fill(u8* rows, i64 start, int n, int channels, const Rect* rects,
                                                           int count, const double* mean, const double* sigma,
                                                           double spread, double most) {
  for (int k = blockIdx.x; k < count; k += gridDim.x) {
    const Rect r = rects[k];
    const i64 from = max((i64)0, r.first - start), to = min((i64)n, r.last - start), wide = r.high - r.low;
    for (i64 i = threadIdx.x; i < (to - from) * wide; i += THREADS) {
      const i64 t = from + i / wide, c = r.low + i % wide;
      u64 z = (u64)(start + t) * 0x9E3779B97F4A7C15ull + (u64)(c + 1) * 0xD1B54A32D192ED03ull;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
      z ^= z >> 31;
      u64 s = 0;
      for (int part = 0; part < 4; part++) s += z >> (16 * part) & 0xFFFF;
      const double noise = __dmul_rn(__dmul_rn(sigma[c], __dsub_rn((double)s, 131070.0)), spread);
      rows[t * channels + c] = (u8)fmin(fmax(rint(__dadd_rn(mean[c], noise)), 0.0), most);
    }
  }
}

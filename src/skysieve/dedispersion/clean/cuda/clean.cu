// Cleaning of blocks of samples: the rules of clean/blocks/cpu_cleaner.py, operation for operation, with the same bits.
// Blocks that may have a step of the gain or an impulse are flagged, and the host examines their series.
//
// moments: mean and variance by piece, and their medians over the pieces of a block, by channel.
//   Layout: a warp for a channel of a block; a lane for a piece.
// judge: bad cells and bad channels of a block.
//   Layout: a block of threads for a block of samples; a thread for a channel.
// follow: decisions that depend on earlier blocks.
//   Layout: a thread for a channel, which goes through the blocks in order.
// weigh: weights of the channels, and sizes of the groups.  Layout: a block of threads for a block of samples.
// series: sums of groups of channels.  Layout: a thread for four samples of a group.
// lines: the running median of these series.  Layout: a block of threads for a group of a block; a thread for a piece.
// flatten: sums over the groups of the series less their running median.  Layout: a thread for a sample.
// level: the same series for a block that the host examines.  Layout: a thread for a sample of a group.
// steps, impulses: flags of blocks that the host examines.
//   Layout: a block of threads for a block of samples, or for a band of one.
// regain: samples after a step of the gain, as they are before it.  Layout: as `moments`.
// replace, cut: noise in place of cells and of impulses.  Layout: a warp for a channel of a block, or of a window.
//
// Cost: per sample 2 bytes and 20 instructions, for 32 groups of 32 channels or more.
// Limit: memory.
//
// archs: 75 80 86 89 90 100 120
// build: bytes -DBYTES
// build: times -DBYTES -DTIMES
// build: words
// build: f32 -DREAL
// budget: bytes kernel=judge regs<=64 spills<=128
// budget: bytes kernel=steps spills<=8
// budget: bytes kernel=weigh spills<=16
// budget: times kernel=judge regs<=64 spills<=128
// budget: times kernel=steps spills<=8
// budget: times kernel=weigh spills<=16
// budget: words kernel=judge regs<=64 spills<=128
// budget: words kernel=steps spills<=8
// budget: words kernel=weigh spills<=16
// budget: f32 kernel=judge regs<=64 spills<=128
// budget: f32 kernel=steps spills<=8
// budget: f32 kernel=weigh spills<=16
// budget: bytes kernel=moments regs<=56
// budget: bytes kernel=series regs<=48
// budget: words kernel=moments spills<=32
typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define PIECES 32        // of a block
#define LEAST_PIECES 8   // a block of fewer is cleaned as the one before it
#define NEIGHBOURS 8     // channels on each side with which a channel is compared
#define SAMPLED 49       // channels whose median is the part common to all
#define LIT 3.0          // standard errors from which on a cell may be part of a track
#define TRACK 8          // a track fills at least one in this number of channels
#define LEAST_TRACK 8    // and at least this number of channels
#define STEEP 2          // pieces by which it moves from channel to channel
#define MOST_CELLS 0.3   // fraction of bad cells from which a channel is bad
#define REACH 2          // pieces on each side whose median is the baseline
#define LEAST 10         // pieces on each side of a step
#define LATE 2           // pieces before a block in which a step is sought
#define STEP_ERROR 10.0  // standard errors of a step
#define ROUGHLY 0.594    // fraction of it in a difference of means: a little below the host's 0.6
#define STEP_BANDS 11    // bands in which steps are sought
#define WIDE_BANDS 4     // of these, bands of half of the channels or more
#define ROUGH 4.0        // integers with a sigma below are rounded at random
#define SPREAD 2.6428997918226276e-05
#define SEGMENT 2048  // samples of a band that a block of threads examines at a time
#define MOST_PIECE 512
#define THREADS 256
#define WIDE 512                                           // threads of the kernels of one block of samples
#define FRONT 256                                          // bytes of a row before its first sample: common.cuh
enum { CHANNELS = 1, CELLS = 2, IMPULSES = 4, GAIN = 8 };  // steps of the cleaning
enum { ALIVE = 1, STILL = 2, ODD = 4 };                    // channels: never constant, always; bad by its noise
enum { GOOD = 1, BAD = 2, FRESH = 4 };                     // after `follow`; FRESH: bad, and not replaced yet
enum { KNOWN = 1, BEGUN = 2, WAS_BAD = 4 };                // state of a channel after earlier blocks
enum { MAY_STEP = 1, MAY_IMPULSE = 2, NONE_GOOD = 4, BEFORE = 8 };  // flags of blocks; BEFORE: has series

struct Block {
  i64 start, column;  // index of the first sample; its column in the rows
  int count, total;   // samples; the same with those after it that are examined with it
};

struct Job {
  u8* x;  // rows of channels, in planes of bytes, or of float32; or samples x channels
  i64 stride, plane;
  const Block* blocks;
  const u8* use;
  const int *edges, *group, *bands;
  const double* thresholds;
  double *mean, *var, *level, *sigma, *rho, *fill, *scratch;
  int *listed, *tracks;
  u8 *marks, *states;
  u32* cells;
  int* weights;
  double *means, *scales, *used, *whole, *base, *sums;
  float *series, *prefix;
  u32* flags;
  double *held, *held_sigma;
  u8* memory;
  const double *factor, *shift;  // gain of each channel, which is undone in all samples that are read if it changed
  const u8* rough;
  i64 pitch;  // samples of a series
  double limit, fair, low, high;
  int planes, offset, channels, groups, piece, room, count, band_count, widths, wanted, changed;
};

// In every array by block, the first part is for the block before the batch: block b of a batch has part b + 1.
__device__ __forceinline__ int pieces_of(const Job& j, const Block& b) { return max(1, b.count / j.piece); }
__device__ __forceinline__ int all_pieces(const Job& j, const Block& b) {
  return max(pieces_of(j, b), b.total / j.piece);
}
__device__ __forceinline__ int piece_end(const Job& j, int p, int pieces, int count) {
  return p == pieces - 1 ? count : (p + 1) * j.piece;
}

#ifdef BYTES
typedef int Sum;
#else
typedef double Sum;
#endif

__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double sub(double a, double b) { return __dsub_rn(a, b); }
__device__ __forceinline__ double mul(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double quotient(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ double root(double a) { return __dsqrt_rn(a); }
__device__ __forceinline__ double larger(double a, double b) { return a > b ? a : b; }

__device__ __forceinline__ u64 random_bits(i64 t, i64 c) {
  u64 z = (u64)t * 0x9E3779B97F4A7C15ull + (u64)(c + 1) * 0xD1B54A32D192ED03ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// From 0 to below 1.
__device__ __forceinline__ double uniform(i64 t, i64 c) {
  return quotient((double)(random_bits(t, c) >> 11), 9007199254740992.0);
}

__device__ __forceinline__ double limited(const Job& j, double v) {
  v = v > j.low ? v : j.low;
  return v < j.high ? v : j.high;
}

// ---------------------------------------------------------------- samples

#ifndef REAL
__device__ __forceinline__ u8* place(const Job& j, int c, i64 t) {
#ifdef TIMES
  return j.x + t * j.channels + c;
#else
  return j.x + c * j.stride + FRONT + 4 * (c & 3) + t;
#endif
}
#endif

__device__ __forceinline__ Sum recorded(const Job& j, int c, i64 t) {
#ifdef REAL
  return reinterpret_cast<const float*>(j.x)[c * j.stride + t];
#elif defined BYTES
  return (int)*place(j, c, t) - j.offset;
#else
  const u8* p = place(j, c, t);
  u32 v = 0;
  for (int i = 0; i < j.planes; i++, p += j.plane) v |= (u32)*p << (8 * i);
  return (double)((i64)v - j.offset);
#endif
}

__device__ __forceinline__ void put(const Job& j, int c, i64 t, double v) {
#ifdef REAL
  reinterpret_cast<float*>(j.x)[c * j.stride + t] = (float)v;
#else
  u32 u = (u32)((i64)v + j.offset);
  u8* p = place(j, c, t);
  for (int i = 0; i < j.planes; i++, p += j.plane, u >>= 8) *p = (u8)u;
#endif
}

// A sample with the gain that its channel had at the beginning.
__device__ __forceinline__ Sum at_gain(const Job& j, int c, i64 number, Sum recorded) {
  const double factor = j.factor[c], shift = j.shift[c];
  if (factor == 1 && shift == 0) return recorded;
  double v = sub(mul((double)recorded, factor), shift);
#ifdef REAL
  return (double)(float)v;
#else
  if (j.rough[c]) v = add(v, sub(uniform(number, c + 0x20000000ll), 0.5));
  return (Sum)limited(j, rint(v));
#endif
}

// Four samples of a block from t on; those from `total` on are undefined.
__device__ __forceinline__ void four(const Job& j, const Block& b, int c, int t, int total, Sum* v) {
#if defined BYTES && !defined TIMES
  const u8* p = place(j, c, b.column + t);
  const int shift = 8 * (int)((u64)p & 3);
  const u32* words = reinterpret_cast<const u32*>(p - (shift >> 3));
  u32 w = words[0];
  if (shift) w = (w >> shift) | (words[1] << (32 - shift));
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = (int)(w >> (8 * k) & 255) - j.offset;
#else
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = t + k < total ? recorded(j, c, b.column + t + k) : (Sum)0;
#endif
  if (j.changed)
    for (int k = 0; k < 4; k++) v[k] = at_gain(j, c, b.start + t + k, v[k]);
}

__device__ __forceinline__ Sum first_of(const Job& j, const Block& b, int c) {
  const Sum v = recorded(j, c, b.column);
  return j.changed ? at_gain(j, c, b.start, v) : v;
}

// ---------------------------------------------------------------- statistics of channels

// Median of the values of the first n lanes, in every lane.
__device__ double warp_median(double v, int n) {
  const int lane = threadIdx.x & 31;
  int before = 0;
  for (int i = 0; i < n; i++) {
    const double other = __shfl_sync(~0u, v, i);
    before += other < v || (other == v && i < lane);
  }
  const u32 low = __ballot_sync(~0u, lane < n && before == (n - 1) / 2);
  const u32 high = __ballot_sync(~0u, lane < n && before == n / 2);
  return mul(0.5, add(__shfl_sync(~0u, v, __ffs(low) - 1), __shfl_sync(~0u, v, __ffs(high) - 1)));
}

extern "C" __global__ void __launch_bounds__(THREADS) moments(Job j) {
  const int c = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (c >= j.channels) return;
  const int part = blockIdx.y + 1;
  const Block b = j.blocks[blockIdx.y];
  const int pieces = pieces_of(j, b);
  if (pieces < LEAST_PIECES) return;
  const i64 at = (i64)part * j.channels + c;
  const bool mine = lane < pieces;
  const int first = lane * j.piece, last = mine ? piece_end(j, lane, pieces, b.count) : first;
  Sum total = 0, square = 0, lag = 0, before = 0, begun = 0;
  for (int t = first; t < last; t += 4) {
    Sum v[4];
    four(j, b, c, t, b.count, v);
    if (t == first) begun = v[0];
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (t + k < last) {
#ifdef BYTES
        total += v[k];
        square += v[k] * v[k];
        lag += v[k] * before;
#else
        total = add(total, v[k]);
        square = add(square, mul(v[k], v[k]));
        if (t + k > first) lag = add(lag, mul(v[k], before));
#endif
        before = v[k];
      }
  }
  const double n = mine ? last - first : j.piece, one = quotient(1.0, n);
  const double m = mul((double)total, one), squared = mul(m, m);
  const double v = larger(0.0, sub(mul((double)square, one), squared)), less = sub(n, 1.0);
  const double ends = mul(m, add((double)begun, (double)before));  // `before` is the last sample
  const double up = add(add(sub((double)lag, mul(squared, add(n, 1.0))), ends), v), down = mul(v, less);
  if (mine) {
    const i64 cell = ((i64)part * PIECES + lane) * j.channels + c;
    j.mean[cell] = m;
    j.var[cell] = v;
  }
  double ups = 0, downs = 0;
  for (int p = 0; p < pieces; p++) {
    ups = add(ups, __shfl_sync(~0u, up, p));
    downs = add(downs, __shfl_sync(~0u, down, p));
  }
  const double level = warp_median(m, pieces), scatter = warp_median(mul(v, quotient(n, less)), pieces);
  const double begin = (double)first_of(j, b, c);
  const bool alive = __all_sync(~0u, !mine || v > 0);
  const bool still = __all_sync(~0u, !mine || (v == 0 && (double)total == mul(begin, n)));
  if (lane == 0) {
    j.level[at] = level;
    j.sigma[at] = root(quotient(scatter, j.fair));
    j.rho[at] = downs > 0 ? quotient(ups, downs) : 0.0;
    j.marks[at] = (alive ? ALIVE : 0) | (still ? STILL : 0);
    j.cells[at] = 0;
  }
}

// Value number k, counted from 0, of n values that are not negative; by all threads.
__device__ double ranked(const double* v, int n, int k) {
  u64 found = 0;
  for (int bit = 62; bit >= 0; bit--) {
    const u64 trial = found | 1ull << bit;
    int below = 0;
    for (int i = 0; i < n; i += WIDE) {
      const int mine = i + threadIdx.x;
      below += __syncthreads_count(mine < n && (u64)__double_as_longlong(v[min(mine, n - 1)]) < trial);
    }
    if (below <= k) found = trial;
  }
  return __longlong_as_double((i64)found);
}

__device__ double median(const double* v, int n) {
  const double low = ranked(v, n, (n - 1) / 2);
  return n & 1 ? low : mul(0.5, add(low, ranked(v, n, n / 2)));
}

// Writes to out[], for each of n values, the median of the values around it, without itself.
__device__ void around(const double* v, int n, double* out) {
  for (int i = threadIdx.x; i < n; i += WIDE) {
    if (n <= 2 * NEIGHBOURS) {
      const int k = n - 1;
      double low = 0, high = 0;
      for (int a = 0; a < n; a++) {
        if (a == i) continue;
        int before = 0;
        for (int o = 0; o < n; o++) before += o != i && (v[o] < v[a] || (v[o] == v[a] && o < a));
        if (before == (k - 1) / 2) low = v[a];
        if (before == k / 2) high = v[a];
      }
      out[i] = k == 0 ? v[i] : mul(0.5, add(low, high));
      continue;
    }
    const int first = max(0, min(i - NEIGHBOURS, n - 1 - 2 * NEIGHBOURS));
    double a[2 * NEIGHBOURS];
#pragma unroll
    for (int k = 0; k < 2 * NEIGHBOURS; k++) a[k] = v[first + k + (first + k >= i)];
#pragma unroll
    for (int turn = 0; turn < 2 * NEIGHBOURS; turn++)
#pragma unroll
      for (int k = turn & 1; k < 2 * NEIGHBOURS - 1; k += 2) {
        const double low = a[k] < a[k + 1] ? a[k] : a[k + 1], high = a[k] < a[k + 1] ? a[k + 1] : a[k];
        a[k] = low;
        a[k + 1] = high;
      }
    out[i] = mul(0.5, add(a[NEIGHBOURS - 1], a[NEIGHBOURS]));
  }
  __syncthreads();
}

// Robust standard deviation of n values about 0; `room` is for n values.
__device__ double spread(const double* v, int n, double* room) {
  for (int i = threadIdx.x; i < n; i += WIDE) room[i] = fabs(v[i]);
  __syncthreads();
  return n ? mul(1.4826, median(room, n)) : 0.0;
}

__device__ double log_of(double x) {
  int e;
  double m = frexp(x, &e);
  if (m < 0.7071067811865476) {
    m = mul(2.0, m);
    e--;
  }
  const double y = quotient(sub(m, 1.0), add(m, 1.0)), square = mul(y, y);
  double sum = 0;
  for (int k = 10; k >= 0; k--) sum = add(mul(sum, square), quotient(1.0, 2.0 * k + 1.0));
  return add(mul((double)e, 0.6931471805599453), mul(mul(2.0, y), sum));
}

// Numbers of the channels for which `wanted` holds, in order, into listed[]; returns their number.
template <class F>
__device__ int list(int channels, int* listed, F wanted) {
  __shared__ int counts[WIDE / 32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int n = 0;
  for (int base = 0; base < channels; base += WIDE) {
    const int c = base + threadIdx.x;
    const bool yes = c < channels && wanted(c);
    const u32 votes = __ballot_sync(~0u, yes);
    __syncthreads();
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int at = n;
    for (int w = 0; w < WIDE / 32; w++) {
      if (w < warp) at += counts[w];
      n += counts[w];
    }
    if (yes) listed[at + __popc(votes & ((1u << lane) - 1))] = c;
  }
  __syncthreads();
  return n;
}

// A warp keeps in the masks lit[] of n channels, in order of falling frequency, only the pieces that are on a
// track.  `score` has room for n * PIECES numbers.
__device__ void find_tracks(u32* lit, int n, int pieces, int* score) {
  const int lane = threadIdx.x & 31, need = max(LEAST_TRACK, n / TRACK);
  const int begun = need - max(LEAST_TRACK / 2, n / (4 * TRACK));
  int row = 0;
  u32 masks = 0;
  for (int i = 0; i < n; i++) {
    if ((i & 31) == 0) masks = i + lane < n ? lit[i + lane] : 0;
    const bool on = __shfl_sync(~0u, masks, i & 31) >> lane & 1;
    int s = row;
#pragma unroll
    for (int k = 1; k <= STEEP; k++) {
      const int before = __shfl_up_sync(~0u, row, k);
      s = max(s, lane >= k ? before : 0);
    }
    if (on && lane == 0) s = max(s, begun);
    row = on ? s + 1 : max(0, s - 1);
    score[i * PIECES + lane] = row;
  }
  row = 0;
  for (int i = n - 1; i >= 0; i--) {
    if (i == n - 1 || (i & 31) == 31) masks = (i & ~31) + lane < n ? lit[(i & ~31) + lane] : 0;
    const bool on = __shfl_sync(~0u, masks, i & 31) >> lane & 1;
    int s = row;
#pragma unroll
    for (int k = 1; k <= STEEP; k++) {
      const int after = __shfl_down_sync(~0u, row, k);
      s = max(s, lane + k < 32 ? after : 0);
    }
    if (on && lane == pieces - 1) s = max(s, begun);
    row = on ? s + 1 : max(0, s - 1);
    const u32 kept = __ballot_sync(~0u, on && score[i * PIECES + lane] + row > need);
    if (lane == 0) lit[i] = kept;
  }
}

extern "C" __global__ void __launch_bounds__(WIDE) judge(Job j) {
  __shared__ double common[PIECES], some[PIECES * SAMPLED];
  const Block b = j.blocks[blockIdx.x];
  const int part = blockIdx.x + 1, pieces = pieces_of(j, b), C = j.channels;
  if (pieces < LEAST_PIECES) return;
  const double *mean = j.mean + (i64)part * PIECES * C, *var = j.var + (i64)part * PIECES * C;
  const double *level = j.level + (i64)part * C, *sigma = j.sigma + (i64)part * C, *rho = j.rho + (i64)part * C;
  double *slow = j.scratch + (i64)part * 4 * C, *burst = slow + C, *value = burst + C, *near = value + C;
  int* where = j.listed + (i64)part * C;
  u8* marks = j.marks + (i64)part * C;
  u32* cells = j.cells + (i64)part * C;
  const int n = list(C, where, [&](int c) { return j.use[c] && sigma[c] > 0; });
  const int few = min(SAMPLED, n);
  if (n == 0) return;
  for (int i = threadIdx.x; i < pieces * few; i += WIDE) {
    const int p = i / few, c = where[(int)((i64)(i % few) * n / few)];
    some[p * SAMPLED + i % few] = quotient(sub(mean[(i64)p * C + c], level[c]), sigma[c]);
  }
  __syncthreads();
  __shared__ double lows[PIECES], highs[PIECES];
  for (int i = threadIdx.x; i < pieces * few; i += WIDE) {
    const int p = i / few, own = i % few;
    const double* v = some + p * SAMPLED;
    int before = 0;
    for (int k = 0; k < few; k++) before += v[k] < v[own] || (v[k] == v[own] && k < own);
    if (before == (few - 1) / 2) lows[p] = v[own];
    if (before == few / 2) highs[p] = v[own];
  }
  __syncthreads();
  if (threadIdx.x < pieces) common[threadIdx.x] = mul(0.5, add(lows[threadIdx.x], highs[threadIdx.x]));
  __syncthreads();
  const double usual = j.piece, rest = b.count - (pieces - 1) * j.piece;
  const double errors[2] = {root(usual), root(rest)};
  const double halves[2] = {root(mul(0.5, sub(usual, 1.0))), root(mul(0.5, sub(rest, 1.0)))};
  const auto of_mean = [&](int p, int c) {
    const double z = quotient(sub(mean[(i64)p * C + c], level[c]), sigma[c]);
    return mul(sub(z, common[p]), errors[p == pieces - 1]);
  };
  const auto of_variance = [&](int p, int c) {
    return mul(sub(quotient(var[(i64)p * C + c], mul(sigma[c], sigma[c])), 1.0), halves[p == pieces - 1]);
  };
  int* score = j.tracks + (i64)part * (PIECES + 1) * C;
  u32* lit = reinterpret_cast<u32*>(score + PIECES * C);
  const double most = add(j.limit, mul(mul(0.1, j.limit), j.limit));
  bool high = false;
  for (int i = threadIdx.x; i < n; i += WIDE) {
    const int c = where[i];
    u32 over = 0, some_over = 0;
    for (int p = 0; p < pieces; p++) {
      const double z = fabs(of_mean(p, c)), u = of_variance(p, c);
      if (z > j.limit || u > most) over |= 1u << p;
      if (z > LIT || u > LIT) some_over |= 1u << p;
    }
    cells[c] = over;
    lit[i] = some_over;
    high = high || over;
  }
  const bool any = __syncthreads_or(high);
  if (any && threadIdx.x < 32) find_tracks(lit, n, pieces, score);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += WIDE) {
    const int c = where[i];
    const u32 on = any ? lit[i] : 0, left_out = 4 * __popc(on) <= pieces ? on : 0;
    double s = 0, r = 0;
    for (int p = 0; p < pieces; p++) {
      if (left_out >> p & 1) continue;
      const double z = of_mean(p, c), u = of_variance(p, c), squared = mul(u, u);
      s = add(s, mul(z, z));
      r = add(r, squared < 1e6 ? squared : 1e6);
    }
    const double used = pieces - __popc(left_out);
    slow[i] = quotient(s, used);
    burst[i] = quotient(r, used);
    u32 found = cells[c] & ~on;
    found |= found << 1 | found >> 1;
    cells[c] = pieces < 32 ? found & ((1u << pieces) - 1) : found;
  }
  if (j.wanted & CHANNELS) {
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += WIDE) value[i] = rho[where[i]];
    __syncthreads();
    around(value, n, near);
    for (int i = threadIdx.x; i < n; i += WIDE) value[i] = sub(value[i], near[i]);
    __syncthreads();
    double* room = j.fill + (i64)part * C;  // not needed yet
    double scatter = larger(quotient(1.0, root((double)b.count)), spread(value, n, room));
    for (int i = threadIdx.x; i < n; i += WIDE)
      if (fabs(value[i]) > add(mul(6.0, scatter), mul(0.5, fabs(near[i])))) marks[where[i]] |= ODD;
    const double over = add(1.0, mul(7.0, root(quotient(2.0, (double)pieces))));
    for (int k = 0; k < 2; k++) {
      const double* v = k ? burst : slow;
      __syncthreads();
      around(v, n, near);
      for (int i = threadIdx.x; i < n; i += WIDE)
        if (v[i] > mul(over, larger(1.0, mul(2.0, near[i])))) marks[where[i]] |= ODD;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += WIDE) value[i] = log_of(sigma[where[i]]);
    __syncthreads();
    around(value, n, near);
    for (int i = threadIdx.x; i < n; i += WIDE) value[i] = sub(value[i], near[i]);
    __syncthreads();
    scatter = larger(0.025, spread(value, n, room));
    for (int i = threadIdx.x; i < n; i += WIDE)
      if (value[i] > mul(6.0, scatter)) marks[where[i]] |= ODD;
    for (int i = threadIdx.x; i < n; i += WIDE) {
      const int c = where[i];
      if ((double)__popc(cells[c]) > mul(MOST_CELLS, (double)pieces)) marks[c] |= ODD;
      if (marks[c] & ODD) cells[c] = 0;
    }
  }
  if (!(j.wanted & CELLS))
    for (int i = threadIdx.x; i < n; i += WIDE) cells[where[i]] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS) follow(Job j) {
  const int c = blockIdx.x * THREADS + threadIdx.x, C = j.channels;
  if (c >= C) return;
  double held = j.held[c], held_sigma = j.held_sigma[c];
  u8 memory = j.memory[c];
  const bool use = j.use[c];
  for (int b = 0; b < j.count; b++) {
    const Block block = j.blocks[b];
    const i64 at = (i64)(b + 1) * C + c;
    if (pieces_of(j, block) < LEAST_PIECES) {
      j.states[at] = (memory & WAS_BAD) && use ? BAD | FRESH : 0;
      j.level[at] = j.fill[at] = held;
      j.sigma[at] = held_sigma;
      j.cells[at] = 0;
      continue;
    }
    const double level = j.level[at], sigma = j.sigma[at];
    const u8 marks = j.marks[at];
    const bool begun = memory & BEGUN, known = memory & KNOWN, alive = marks & ALIVE, live = use && sigma > 0;
    const bool hidden = !(begun || alive) && (known ? held : level) == 0;
    if (hidden) j.cells[at] = 0;
    bool bad = (marks & ODD) && !hidden;
    const bool good = live && !bad && !hidden;
    if (j.wanted & CHANNELS) bad = bad || (use && !live && !hidden);
    if (good || !known) {
      held = level;
      held_sigma = sigma;
    }
    const double value = bad ? held : level;
    const bool fresh = bad && !((marks & STILL) && (double)first_of(j, block, c) == rint(value));
    memory = KNOWN | (begun || alive ? BEGUN : 0) | (bad ? WAS_BAD : 0);
    j.fill[at] = value;
    j.states[at] = (good ? GOOD : 0) | (bad ? BAD : 0) | (fresh ? FRESH : 0);
  }
  j.held[c] = held;
  j.held_sigma[c] = held_sigma;
  j.memory[c] = memory;
}

// ---------------------------------------------------------------- series of groups

extern "C" __global__ void __launch_bounds__(WIDE) weigh(Job j) {
  const Block b = j.blocks[blockIdx.x];
  const int part = blockIdx.x + 1, C = j.channels, G = j.groups;
  if (threadIdx.x == 0) j.flags[part] = 0;
  if (pieces_of(j, b) < LEAST_PIECES) return;
  const u8* states = j.states + (i64)part * C;
  const double *sigma = j.sigma + (i64)part * C, *level = j.level + (i64)part * C;
  double *values = j.scratch + (i64)part * 4 * C, *power = values + C;
  int *where = j.listed + (i64)part * C, *weights = j.weights + (i64)part * C;
  const int n = list(C, where, [&](int c) { return states[c] & GOOD; });
  if (threadIdx.x == 0) j.flags[part] = n ? BEFORE : NONE_GOOD;
  if (n == 0) return;
  for (int i = threadIdx.x; i < n; i += WIDE) values[i] = sigma[where[i]];
  __syncthreads();
  const double unit = mul(16.0, median(values, n));
  for (int c = threadIdx.x; c < C; c += WIDE) {
    const double w = states[c] & GOOD ? rint(quotient(unit, sigma[c])) : 0.0;
    const int weight = states[c] & GOOD ? (int)(w < 1 ? 1.0 : w > 64 ? 64.0 : w) : 0;
    const double scaled = mul((double)weight, sigma[c]);
    weights[c] = weight;
    power[c] = mul(scaled, scaled);
  }
  __syncthreads();
  const int pieces = all_pieces(j, b), own = pieces_of(j, b);
  const u32* cells = j.cells + (i64)part * C;
  for (int i = threadIdx.x; i < pieces * G; i += WIDE) {
    const int p = i / G, g = i % G;
    double size = 0, total = 0, all = 0, count = 0;
    for (int c = j.edges[g]; c < j.edges[g + 1]; c++) {
      const bool gone = p < own && (cells[c] >> p & 1);
      size = add(size, gone ? 0.0 : power[c]);
      total = add(total, mul(gone ? 0.0 : (double)weights[c], level[c]));
      all = add(all, power[c]);
      count += weights[c] > 0;
    }
    size = root(size);
    j.means[((i64)part * j.room + p) * G + g] = total;
    j.scales[((i64)part * j.room + p) * G + g] = size > 0 ? quotient(1.0, size) : 0.0;
    if (p == 0) {
      j.used[(i64)part * G + g] = count;
      j.whole[(i64)part * G + g] = root(all);
    }
  }
}

// Blocks that have series.
__device__ __forceinline__ bool grouped(const Job& j, int part) { return j.flags[part] & BEFORE; }

extern "C" __global__ void __launch_bounds__(128) series(Job j) {
  const int part = blockIdx.z + 1, g = blockIdx.y, t = 4 * (blockIdx.x * 128 + threadIdx.x);
  const Block b = j.blocks[blockIdx.z];
  if (t >= b.total || !grouped(j, part)) return;
  const int pieces = all_pieces(j, b), own = pieces_of(j, b), p = min(pieces - 1, t / j.piece);
  const int* weights = j.weights + (i64)part * j.channels;
  const u32* cells = j.cells + (i64)part * j.channels;
  Sum sums[4] = {};
  for (int c = j.edges[g]; c < j.edges[g + 1]; c++) {
    const int w = weights[c];
    if (w == 0 || (p < own && (cells[c] >> p & 1))) continue;
    Sum v[4];
    four(j, b, c, t, b.total, v);
#pragma unroll
    for (int k = 0; k < 4; k++) {
#ifdef BYTES
      sums[k] += w * v[k];
#else
      sums[k] = add(sums[k], mul((double)w, v[k]));
#endif
    }
  }
  const double mean = j.means[((i64)part * j.room + p) * j.groups + g];
  const double scale = j.scales[((i64)part * j.room + p) * j.groups + g];
  float* out = j.series + ((i64)part * j.groups + g) * j.pitch;
  for (int k = 0; k < 4 && t + k < b.total; k++) out[t + k] = (float)mul(sub((double)(float)sums[k], mean), scale);
}

// base: medians of the means of the pieces around each; sums: those of the first `piece` samples of each.
extern "C" __global__ void __launch_bounds__(64) lines(Job j) {
  __shared__ double means[64];
  const int part = blockIdx.y + 1, g = blockIdx.x, p = threadIdx.x;
  const Block b = j.blocks[blockIdx.y];
  if (!grouped(j, part)) return;
  const int pieces = all_pieces(j, b);
  const float* y = j.series + ((i64)part * j.groups + g) * j.pitch;
  if (p < pieces) {
    const int end = piece_end(j, p, pieces, b.total);
    double s = 0;
    for (int t = p * j.piece; t < end; t++) {
      s = add(s, (double)y[t]);
      if (t == (p + 1) * j.piece - 1) j.sums[((i64)part * j.groups + g) * j.room + p] = s;
    }
    means[p] = quotient(s, (double)(end - p * j.piece));
  }
  __syncthreads();
  if (p >= pieces) return;
  const int first = max(0, p - REACH), n = min(pieces, p + REACH + 1) - first;
  double low = 0, high = 0;
  for (int i = 0; i < n; i++) {
    const double v = means[first + i];
    int before = 0;
    for (int k = 0; k < n; k++) before += means[first + k] < v || (means[first + k] == v && k < i);
    if (before == (n - 1) / 2) low = v;
    if (before == n / 2) high = v;
  }
  j.base[((i64)part * j.groups + g) * j.room + p] = mul(0.5, add(low, high));
}

// A sample of a series less the line between the medians of the pieces beside it.
__device__ __forceinline__ float flat_at(const Job& j, i64 group, int pieces, int t) {
  const int q = j.piece, half = q / 2, p = min(pieces - 1, (t + half) / q - 1);
  const double low = j.base[group * j.room + max(0, p)], high = j.base[group * j.room + min(pieces - 1, p + 1)];
  const double slope = quotient(sub(high, low), (double)q);
  const double shift = add(low, mul(slope, 0.5 - p * q - half));
  return __fsub_rn(j.series[group * j.pitch + t], __double2float_rn(add(shift, mul(slope, (double)t))));
}

// prefix[g]: weighted sums of the groups up to g, without their lines.
extern "C" __global__ void __launch_bounds__(THREADS) flatten(Job j) {
  const int part = blockIdx.y + 1, t = blockIdx.x * THREADS + threadIdx.x;
  const Block b = j.blocks[blockIdx.y];
  if (t >= b.count || !grouped(j, part)) return;
  const int pieces = all_pieces(j, b);
  float sum = 0;
  for (int g = 0; g < j.groups; g++) {
    const i64 at = (i64)part * j.groups + g;
    sum = __fadd_rn(sum, __fmul_rn(__double2float_rn(root(j.used[at])), flat_at(j, at, pieces, t)));
    j.prefix[at * j.pitch + t] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) level(Job j, int part, int pieces, int total, float* out) {
  const int t = blockIdx.x * THREADS + threadIdx.x, g = blockIdx.y;
  if (t < total) out[(i64)g * total + t] = flat_at(j, (i64)part * j.groups + g, pieces, t);
}

// Whether a window of a band reaches its threshold.
extern "C" __global__ void __launch_bounds__(THREADS) impulses(Job j) {
  __shared__ float lines[SEGMENT + MOST_PIECE + (SEGMENT + MOST_PIECE) / 2];
  const int part = blockIdx.y + 1, band = blockIdx.x, low = j.bands[2 * band], high = j.bands[2 * band + 1];
  const Block b = j.blocks[blockIdx.y];
  if (!grouped(j, part) || !(j.wanted & IMPULSES)) return;
  double total = 0;
  for (int g = low; g < high; g++) total += j.used[(i64)part * j.groups + g];
  if (total == 0) return;
  const float scale = __double2float_rn(quotient(1.0, root(total)));
  const float *after = j.prefix + ((i64)part * j.groups + high - 1) * j.pitch, *before = after - (high - low) * j.pitch;
  bool found = false;
  for (int first = 0; first < b.count; first += SEGMENT) {
    int n = min(b.count - first, SEGMENT + j.piece);
    float *y = lines, *halved = lines + SEGMENT + MOST_PIECE;
    for (int i = threadIdx.x; i < n; i += THREADS) {
      const float from = low ? before[first + i] : 0.0f;
      y[i] = __fmul_rn(__fsub_rn(after[first + i], from), scale);
    }
    for (int k = 0; k < j.widths; k++) {
      __syncthreads();
      const double step = 1 << max(0, k - 1);
      const float least = __double2float_rn(mul(j.thresholds[band], root(k ? 2 * step : step)));
      for (int i = threadIdx.x; i < n - (k > 0); i += THREADS)
        found = found || (k ? __fadd_rn(y[i], y[i + 1]) : y[i]) >= least;
      if (k == 0) continue;
      n /= 2;
      for (int i = threadIdx.x; i < n; i += THREADS) halved[i] = __fadd_rn(y[2 * i], y[2 * i + 1]);
      float* other = y;
      y = halved;
      halved = other;
    }
    __syncthreads();
  }
  if (found) atomicOr(&j.flags[part], MAY_IMPULSE);
}

// Median of n values, n <= 16.
__device__ double middle(const double* v, int n) {
  double low = 0, high = 0;
  for (int i = 0; i < n; i++) {
    int before = 0;
    for (int k = 0; k < n; k++) before += v[k] < v[i] || (v[k] == v[i] && k < i);
    if (before == (n - 1) / 2) low = v[i];
    if (before == n / 2) high = v[i];
  }
  return 0.5 * (low + high);
}

// Subtract from the means of groups, by piece, the part common to most groups, as `subtract_common` does in
// clean/blocks/gain.py.  The mean of the joined line over a piece is 3/4 of the median in that piece and 1/8 of the
// median in each neighbouring piece.
__device__ void against_rest(double* sums, const double* used, int groups, int pieces, double* common) {
  const int lane = threadIdx.x & 31;
  int n = 0, mine = 0;
  for (int g = 0; g < groups; g++)
    if (used[g] > 0 && n++ == lane) mine = g;
  if (n == 0) return;
  for (int p = threadIdx.x >> 5; p < pieces; p += THREADS / 32) {
    const double m = warp_median(lane < n ? sums[mine * pieces + p] / used[mine] : 0.0, n);
    if (lane == 0) common[p] = m;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < groups * pieces; i += THREADS) {
    const int p = i % pieces, last = pieces - 1;
    sums[i] -= used[i / pieces] * (0.75 * common[p] + 0.125 * (common[max(p - 1, 0)] + common[min(p + 1, last)]));
  }
  __syncthreads();
}

// Whether the level of a band changes from the pieces before to those after, at once: the first conditions of
// `find_step` in clean/blocks/cpu_impulses.py, a little below its limits, since the host decides.  The narrow bands are
// also compared with the rest of the band.
extern "C" __global__ void __launch_bounds__(THREADS) steps(Job j) {
  extern __shared__ double sums[];  // by group and piece; then by band and piece
  const int part = blockIdx.x + 1, G = j.groups, C = j.channels;
  const Block b = j.blocks[blockIdx.x];
  if (!grouped(j, part) || !(j.wanted & GAIN)) return;
  const bool joined = j.flags[part - 1] & BEFORE;
  // Pieces of the block before, which the host keeps: half a block
  const int earlier = joined ? PIECES / 2 : 0, own = b.total / j.piece, all = earlier + own;
  double* means = sums + G * all;
  const u8* states = j.states + (i64)(part - 1) * C;
  const double *level = j.level + (i64)part * C, *past = level - C, *used = j.used + (i64)part * G;
  const int* weights = j.weights + (i64)part * C;
  for (int g = threadIdx.x; g < G; g += THREADS) {
    double shift = 0;
    for (int c = j.edges[g]; c < j.edges[g + 1] && joined; c++)
      if (states[c] & GOOD) shift += (past[c] - level[c]) * weights[c];
    const double whole = j.whole[(i64)part * G + g];
    if (whole > 0) shift /= whole;
    const double *mine = j.sums + ((i64)part * G + g) * j.room, *last = mine - (i64)G * j.room;
    for (int p = 0; p < all; p++)
      sums[g * all + p] =
          sqrt(used[g]) / j.piece * (p < earlier ? last[PIECES - earlier + p] + j.piece * shift : mine[p - earlier]);
  }
  __syncthreads();
  const int bands = min(STEP_BANDS, j.band_count);
  const int from = max(LEAST, earlier - LATE), to = min(all - LEAST, earlier + b.count / j.piece);
  for (int first = 0; first < bands; first = WIDE_BANDS) {
    if (first) against_rest(sums, used, G, all, means + STEP_BANDS * all);
    for (int i = first * all + threadIdx.x; i < bands * all; i += THREADS) {
      const int low = j.bands[2 * (i / all)], high = j.bands[2 * (i / all) + 1];
      double s = 0, total = 0;
      for (int g = low; g < high; g++) {
        s += sums[g * all + i % all];
        total += used[g];
      }
      means[i] = total > 0 ? s / sqrt(total) : 0.0;
    }
    __syncthreads();
    int seen = 0;
    for (int i = threadIdx.x; i < (bands - first) * max(0, to - from + 1); i += THREADS) {
      const int p = from + i % (to - from + 1), size = min(p, 16), later = min(all - p, 16);
      const double* m = means + (first + i / (to - from + 1)) * all;
      double before = 0, after = 0;
      for (int k = p - size; k < p; k++) before += m[k];
      for (int k = p; k < p + later; k++) after += m[k];
      const double noise = sqrt((1.0 / later + 1.0 / size) / j.piece);
      if (fabs(after / later - before / size) < ROUGHLY * STEP_ERROR * noise) continue;
      seen |= 1;
      const double jump = middle(m + p, later) - middle(m + p - size, size);
      const double now = middle(m + p, 8) - middle(m + p - 8, 8);
      if (fabs(jump) >= 0.99 * STEP_ERROR * 1.25 * noise && now * jump >= 0.79 * jump * jump) seen |= 2;
    }
    if (seen & 2) atomicOr(&j.flags[part], MAY_STEP);
    if (first || __syncthreads_or(seen & 2) || !__syncthreads_or(seen)) return;
  }
}

// ---------------------------------------------------------------- replacement

// Noise of a channel in samples first : last of a block, by a warp.
__device__ void noise(const Job& j, const Block& b, int part, int c, int first, int last) {
  const i64 at = (i64)part * j.channels + c, line = (i64)part * j.groups + j.group[c];
  const double level = j.fill[at], sigma = j.sigma[at];
  const bool lined = grouped(j, part) && (j.wanted & IMPULSES);
  const double used = lined ? j.used[line] : 0.0, size = quotient(1.0, root(used > 1 ? used : 1.0));
  const double* base = j.base + line * j.room;
  const int pieces = all_pieces(j, b);
  for (int t = first + (threadIdx.x & 31); t < last; t += 32) {
    const u64 z = random_bits(b.start + t, c);
    double above = 0;
    if (lined) {
      const double place = sub(quotient(t + 0.5, (double)j.piece), 0.5), whole = floor(place), rest = sub(place, whole);
      const int p = (int)whole;
      above = p < 0             ? base[0]
              : p >= pieces - 1 ? base[pieces - 1]
                                : add(mul(base[p], sub(1.0, rest)), mul(base[p + 1], rest));
    }
    const u32 s = (u32)(z & 65535) + (u32)(z >> 16 & 65535) + (u32)(z >> 32 & 65535) + (u32)(z >> 48);
    double v = add(level, mul(sigma, add(mul(size, above), mul(sub((double)s, 131070.0), SPREAD))));
#ifndef REAL
    if (sigma < ROUGH) v = add(v, sub(uniform(b.start + t, c + 0x40000000ll), 0.5));
    v = limited(j, rint(v));
#endif
    put(j, c, b.column + t, v);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) regain(Job j) {
  const int c = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5);
  if (c >= j.channels || (j.factor[c] == 1 && j.shift[c] == 0)) return;
  const Block b = j.blocks[blockIdx.y];
  for (int t = threadIdx.x & 31; t < b.count; t += 32)
    put(j, c, b.column + t, (double)at_gain(j, c, b.start + t, recorded(j, c, b.column + t)));
}

extern "C" __global__ void __launch_bounds__(THREADS) replace(Job j) {
  const int c = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5), part = blockIdx.y + 1;
  if (c >= j.channels) return;
  const i64 at = (i64)part * j.channels + c;
  const Block b = j.blocks[blockIdx.y];
  if (j.states[at] & FRESH) {
    const double level = j.fill[at];
    for (int t = threadIdx.x & 31; t < b.count; t += 32) {
#ifdef REAL
      put(j, c, b.column + t, level);
#else
      put(j, c, b.column + t, limited(j, floor(add(level, uniform(b.start + t, c + 0x40000000ll)))));
#endif
    }
    return;
  }
  const u32 cells = j.cells[at];
  const int pieces = pieces_of(j, b);
  for (int p = 0; p < pieces && cells >> p; p++)
    if (cells >> p & 1) noise(j, b, part, c, p * j.piece, piece_end(j, p, pieces, b.count));
}

struct Window {
  int block, first, last, low, high;
};

extern "C" __global__ void __launch_bounds__(THREADS) cut(Job j, const Window* windows) {
  const Window w = windows[blockIdx.y];
  const int c = w.low + blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5), part = w.block + 1;
  if (c >= w.high || (j.states[(i64)part * j.channels + c] & FRESH)) return;
  noise(j, j.blocks[w.block], part, c, w.first, w.last);
}

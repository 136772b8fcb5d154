// Samples in the order of a file (samples x channels, or channels x samples) into rows of channels.
//
// Integers become planes of bytes: one for values up to 255, two up to 65535, three beyond; the sums of the planes are
// added with the weights 1, 256, 65536.  To signed samples 128 or 32768 is added.  Rows of bytes begin at byte FRONT
// and are skewed (common.cuh); rows of float32 begin at once.
//
// turn: any type, order and alignment (bytes: turn.cu is faster).
//   Layout: a thread for an element.
//   Cost: each sample is read and written once.
//   Limit: memory.
// runs: a block counts the equal pairs of one or several rows, a warp those of an eighth of their length.
//   Cost: two samples of every `stride` are read once.
//   Limit: the latency of reading.
//
// archs: 75 80 86 89 90 100 120
// build: u8 -DSRC=u8
// build: i8 -DSRC=i8
// build: u16 -DSRC=u16
// build: i16 -DSRC=short
// build: f32 -DSRC=float -DREAL
#include "common.cuh"

#ifdef REAL
typedef float Value;
#define STEP 4
#define AT(row, stride, t) ((i64)(row) * (stride) + (t))
#else
typedef u32 Value;
#define STEP 1
#define AT(row, stride, t) ((i64)(row) * (stride) + FRONT + skew_of(row) + (t))
#endif

// Rows of `planes` planes; `stride` is in elements.
struct Rows {
  u8* x;
  i64 stride, plane;
  int planes;
};

__device__ __forceinline__ void put(const Rows& to, int row, i64 t, Value v) {
#ifdef REAL
  reinterpret_cast<float*>(to.x)[AT(row, to.stride, t)] = v;
#else
  u8* p = to.x + AT(row, to.stride, t);
  for (int i = 0; i < to.planes; i++, p += to.plane, v >>= 8) *p = (u8)v;
#endif
}

__device__ __forceinline__ Value get(const Rows& from, int row, i64 t) {
#ifdef REAL
  return reinterpret_cast<const float*>(from.x)[AT(row, from.stride, t)];
#else
  const u8* p = from.x + AT(row, from.stride, t);
  Value v = 0;
  for (int i = 0; i < from.planes; i++, p += from.plane) v |= (u32)*p << (8 * i);
  return v;
#endif
}

// The bits of a sample: equal ones are compared, also of values that are not numbers.
__device__ __forceinline__ u32 bits_of(const Rows& from, int row, i64 t) {
#ifdef REAL
  return reinterpret_cast<const u32*>(from.x)[AT(row, from.stride, t)];
#else
  return get(from, row, t);
#endif
}

// Row order[i] of the source (sample t at src[t * ts + row * cs]) becomes row inverse[row], from sample `column` on.
extern "C" __global__ void __launch_bounds__(256) turn(const SRC* src, i64 ts, i64 cs, int samples, int channels,
                                                       const int* inverse, i64 column, int offset, Rows to) {
  __shared__ SRC tile[32][33];
  const int t0 = blockIdx.x * 32, c0 = blockIdx.y * 32, fast = threadIdx.x & 31, slow = threadIdx.x >> 5;
  for (int i = slow; i < 32; i += 8) {
    const int t = t0 + (ts == 1 ? fast : i), c = c0 + (ts == 1 ? i : fast);
    if (t < samples && c < channels) tile[c - c0][t - t0] = src[t * ts + c * cs];
  }
  __syncthreads();
  for (int i = slow; i < 32; i += 8)
    if (c0 + i < channels && t0 + fast < samples) {
#ifdef REAL
      put(to, inverse[c0 + i], column + t0 + fast, tile[i][fast]);
#else
      put(to, inverse[c0 + i], column + t0 + fast, (u32)((int)tile[i][fast] + offset));
#endif
    }
}

struct Cell {
  int row, first, last;
  Value value;
};

// Masked cells: samples first to last - 1 of a row take a value.
extern "C" __global__ void __launch_bounds__(256) fill(const Cell* cells, int count, i64 column, Rows to) {
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const Cell c = cells[i];
    for (int t = c.first + threadIdx.x; t < c.last; t += blockDim.x) put(to, c.row, column + t, c.value);
  }
}

// Samples further back are moved to the front: `count` from `from` on, in steps that do not overlap (a row a block).
extern "C" __global__ void __launch_bounds__(256) keep(i64 from, i64 count, Rows rows) {
  for (i64 at = 0; at < count; at += blockDim.x) {
    const i64 t = at + threadIdx.x;
    Value v = 0;
    if (t < count) v = get(rows, blockIdx.x, from + t);
    __syncthreads();
    if (t < count) put(rows, blockIdx.x, t, v);
    __syncthreads();
  }
}

// Sums of b neighbouring samples, one after the other, from sample `first` on.
extern "C" __global__ void __launch_bounds__(256) bin(Rows from, i64 first, int b, i64 count, Rows to) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
    Value sum = get(from, blockIdx.y, first + b * i);
    for (int j = 1; j < b; j++) sum += get(from, blockIdx.y, first + b * i + j);
    put(to, blockIdx.y, i, sum);
  }
}

// Of the pairs of a stretch: equal ones before the first that differs (all, if none does), after the last that differs,
// in the longest run between these, and in all.
struct Runs {
  int before, after, longest, equal;
};

__device__ __forceinline__ void append(Runs& to, int& pairs, const Runs& more, int count) {
  const bool whole = to.equal == pairs, all = more.equal == count;
  if (!whole) to.longest = max(to.longest, max(more.longest, all ? 0 : to.after + more.before));
  if (whole) {
    to.before += more.before;
    to.longest = more.longest;
  }
  to.after = all ? to.after + count : more.after;
  to.equal += more.equal;
  pairs += count;
}

// The pairs of a warp's ballot.
__device__ __forceinline__ Runs runs_of(u32 equal, int count) {
  const u32 all = count == 32 ? 0xffffffffu : (1u << count) - 1, differ = ~equal & all;
  Runs r = {count, count, 0, __popc(equal)};
  if (differ) {
    const int last = 31 - __clz((int)differ);
    r.before = __ffs((int)differ) - 1;
    r.after = count - 1 - last;
    u32 between = equal & ((1u << last) - 1) & ~((1u << r.before) - 1);
    for (; between; between &= between << 1) r.longest++;
  }
  return r;
}

// Pairs of samples (t, t + 1) at t = first + i stride, equal if their bits are so in all rows of a unit of `per` rows;
// many[i] counts the units in which pair i is equal.
extern "C" __global__ void __launch_bounds__(256) runs(Rows rows, int per, i64 first, int stride, int pairs,
                                                       Runs* found, u32* many) {
  __shared__ Runs part[8];
  __shared__ int counts[8];
  const int row = blockIdx.x * per, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int each = (pairs + 255) / 256 * 32, from = warp * each, to = min(pairs, from + each);
  Runs own = {0, 0, 0, 0};
  int count = 0;
  for (int at = from; at < to; at += 32) {
    bool same = false;
    if (at + lane < to) {
      const i64 t = first + (i64)(at + lane) * stride;
      same = true;
      for (int k = 0; k < per; k++) same = same && bits_of(rows, row + k, t) == bits_of(rows, row + k, t + 1);
      if (same) atomicAdd(many + at + lane, 1u);
    }
    const int some = min(32, to - at);
    append(own, count, runs_of(__ballot_sync(0xffffffffu, same), some), some);
  }
  if (lane == 0) {
    part[warp] = own;
    counts[warp] = count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < 8; i++) append(part[0], counts[0], part[i], counts[i]);
    found[blockIdx.x] = part[0];
  }
}

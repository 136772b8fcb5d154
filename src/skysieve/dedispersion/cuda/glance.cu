// First pass over series of integers: the noise of every block, and the pieces that may contain a window above
// the threshold.
//
// glance: a block of threads reads a block of samples of a series once and stores it in shared memory, in 16 bits.
//   The quartiles are exact.  They come from counts of single values in a window of 8192 around the mean, as in
//   search.cu; if the values spread further, the method of search.cu is used.  From then on the kernel works
//   with integers.  Samples z are cut to 12 bits and therefore never exceed their values.  The threshold is
//   lowered by what was cut, and by the rounding of the fixed-point samples, so that no event is missed.
//   The largest sums of 1, 2 and 4 samples, two samples in a register, bound those of up to 10; the extremes of
//   prefix sums of stretches of 16 or 32 bound longer windows.  Short windows that may reach the threshold are
//   summed one by one.
// edges: examines all windows across the edge between two blocks, by the exact rules.
//
// Pieces that may contain an event go on a list, which `detect` (search.cu) examines exactly: the events have
// the same bits as without this pass.  Series without events need this file only.
//
// Layout: a block of threads for a block of samples.
// Cost: per sample 4 bytes read once, 16 at a time; about 50 instructions, 12 / 32 accesses to shared memory,
// of which 4 / 32 count values.
// Limit: memory, and waits of warps between the steps (an H100, blocks of 12,000 samples, 5 blocks of threads
// on a multiprocessor: 2.3 ps per sample; the bytes alone need 1.3 ps).  Registers are spilled for the running
// baseline; with it a search of noise takes 2 to 3% longer (an H200).
//
// archs: 75 80 86 89 90 100 120
// build: u32 -DSUM=u32 -DNOISE_THREADS=256 -DMINB=5
// build: i32 -DSUM=int -DNOISE_THREADS=256 -DMINB=5
// build: u32-long -DSUM=u32 -DNOISE_THREADS=512 -DMINB=2
// budget: u32 kernel=glance regs<=48 spills<=184 arch=90
// budget: i32 kernel=glance regs<=48 spills<=184 arch=90
// budget: u32 kernel=glance spills<=184
// budget: i32 kernel=glance spills<=184
// budget: u32-long kernel=glance spills<=64
// split: no
#include "detect.cuh"
#include "ptx.cuh"

#define AHEAD 3  // quads of samples that a thread loads ahead
#define CENTRE 32768
#define WORDS (BINS / 2)              // a word counts value v in its low half and v + WORDS in its high half
#define EACH (WORDS / NOISE_THREADS)  // words of a thread
#define MOST_Z 4095                   // sixteen of them fit in 16 bits
#define DENSE 8                       // short windows, which the header of Job names
#define MOST_WIDTHS 64
#define NEVER (1 << 29)
#define LEFT (1u << 30)  // bits of a block's marks; lower bits: its pieces
#define RIGHT (1u << 31)
#define EDGE_THREADS 128
enum { LOOK = 0, ALL = 1, QUARTILES = 2 };
#define RECHECKED 64  // windows shorter than this are summed one by one

// The low halves of two words, or the high ones.
__device__ __forceinline__ u32 join(u32 a, u32 b, bool high) {
  return high ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
}

__device__ __forceinline__ u32 twice(u32 v) { return v | v << 16; }

// A block of samples in shared memory, and its properties.
struct Samples {
  const u16* u;       // sums less `base`
  u32 least, most;    // of them
  int shift, centre;  // z = (u - least) >> shift; value at which prefix sums of z are level
  __device__ __forceinline__ u32 pair(u32 words) const {
    return (words - twice(least)) >> shift & twice(0xffffu >> shift);
  }
  __device__ __forceinline__ int z(int i) const { return (int)((u[i] - least) >> shift); }
};

// Whether a window of w samples that begins in a stretch reaches `wanted`.
__device__ bool again(const Samples& s, int stretch, int n, int w, int wanted) {
  const int from = STRETCH * stretch, to = min(from + STRETCH - 1, n - w);
  int sum = 0;
  if (to < from) return false;
  for (int i = from; i < from + w; i++) sum += s.z(i) - s.centre;
  for (int i = from;; i++) {
    if (sum >= wanted) return true;
    if (i == to) return false;
    sum += s.z(i + w) - s.z(i);
  }
}

// levels[row][block][2].  `flagged` gets (row j.blocks + block) j.subs + piece, and number[1] is their count.
// Possible events around the edges of the block are noted in `marks`.
extern "C" __global__ void __launch_bounds__(NOISE_THREADS, MINB) glance(const SUM* sums, const int* valid,
                                                                         double* levels, const int* widths,
                                                                         const int* reached, const double* needed,
                                                                         u32* flagged, u32* marks, u32* number, Job j) {
  extern __shared__ uint4 sm4[];
  __shared__ int part[16];
  __shared__ u32 least, most, mean, bits;
  __shared__ int found[3], before[3], held[3];
  __shared__ u32 shorts[DENSE];
  __shared__ int2 longs[MOST_WIDTHS];  // length of a window in pairs of stretches; sum that it must reach
  __shared__ double need[MOST_WIDTHS], out[3];
  __shared__ int wide[MOST_WIDTHS];
  __shared__ int flat[3];  // shift, centre, next step
  __shared__ int
      small[2];  // sums wanted of windows from DENSE on that end in the next stretch at most, or the one after
  int* const counts = reinterpret_cast<int*>(sm4);
  u16* const u = reinterpret_cast<u16*>(counts) + j.region / 2;
  const int row = blockIdx.y, block = blockIdx.x, tid = threadIdx.x, lane = tid & 31;
  const int count = valid_of(j, valid, row), first = block * j.block, n = min(j.block, count - first);
  if (n <= 0) return;
  const int inner = block ? j.widest / 2 : 0;  // windows centred on inner : outer belong to this block alone
  const int outer = first + n == count ? n : j.block - (j.widest - j.widest / 2);
  const i64 here = (i64)row * j.blocks + block;
  const auto mark = [&](int s) {
    const int from = max(j.low, first + inner + s * j.segment);
    const int to = min(min(j.high, first + outer), first + inner + (s + 1) * j.segment);
    if (from < to) flagged[atomicAdd(number + 1, 1u)] = (u32)here * j.subs + s;
  };
  const auto everything = [&] {
    for (int s = tid; s < j.subs - 1; s += NOISE_THREADS) mark(s);
    if (tid == 0) marks[here] = LEFT | RIGHT;
  };
  if (block && 4 * n < j.block) {  // a short last block takes the noise of the one before
    everything();
    return;
  }
  const SUM* const y = sums + row * j.pitch + first;
  // Samples less a base that makes them positive, their extremes and mean.  They are read 4 at a time, from `pad`
  // samples before the first one to a whole quad at the end; the first and the last sample are repeated there.
  const int pad = (int)((u64)y >> 2 & 3), length = n + pad, quads = (length + 3) / 4;
  const uint4* const y4 = reinterpret_cast<const uint4*>(y - pad);
  const int full = max(quads - 2, 0) / (AHEAD * NOISE_THREADS);  // rounds in which every thread has samples
  uint4 ahead[AHEAD];
  const auto quad_of = [&](int round, int k) { return 1 + (round * AHEAD + k) * NOISE_THREADS + tid; };
  const auto fetch = [&](int round, int k) { ahead[k] = y4[min(quad_of(round, k), quads - 1)]; };
#pragma unroll
  for (int k = 0; k < AHEAD; k++) fetch(0, k);
  const int end = tid < 4 ? tid : 4 * quads - 8 + (tid & 7);  // of both ends
  const u32 ending = (u32)y[min(max(end - pad, 0), n - 1)];
  u32 base = (u32)(y[(int)((i64)lane * n >> 5)] >> 5);
  for (int i = tid; i < WORDS / 4 + 2; i += NOISE_THREADS) reinterpret_cast<int4*>(counts)[i] = make_int4(0, 0, 0, 0);
  if (tid == 0) least = ~0u, most = mean = bits = 0;
  if (tid < 3) found[tid] = -1;
  if (tid < 2) small[tid] = NEVER;
  for (int k = tid; k < j.widths; k += NOISE_THREADS) {
    need[k] = needed[k];
    wide[k] = widths[k];
  }
  __syncthreads();
  for (int o = 16; o; o >>= 1) base += __shfl_xor_sync(~0u, base, o);
  base -= CENTRE;
  u32 low = ~0u, high = 0, total = 0;
  const auto one = [&](u32 v) {
    low = min(low, v);
    high = max(high, v);
    total += v;
    return v;
  };
  const auto take = [&](int k, int to) {
    const uint4 v = ahead[k];
    const u32 v0 = one(v.x - base), v1 = one(v.y - base), v2 = one(v.z - base), v3 = one(v.w - base);
    reinterpret_cast<uint2*>(u)[to] = make_uint2(v0 & 0xffff | v1 << 16, v2 & 0xffff | v3 << 16);
  };
  for (int round = 0; round < full; round++) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      take(k, quad_of(round, k));
      fetch(round + 1, k);
    }
  }
#pragma unroll
  for (int k = 0; k < AHEAD; k++)
    if (quad_of(full, k) < quads - 1) take(k, quad_of(full, k));
  if (tid < 8) u[end] = (u16)one(ending - base);
  total >>= 8;
  for (int o = 16; o; o >>= 1) {
    low = min(low, __shfl_xor_sync(~0u, low, o));
    high = max(high, __shfl_xor_sync(~0u, high, o));
    total += __shfl_xor_sync(~0u, total, o);
  }
  if (lane == 0) {
    atomicMin(&least, low);
    atomicMax(&most, high);
    atomicAdd(&mean, total);
  }
  __syncthreads();
  Samples s{u, least, most, 0, 0};
  const bool narrow = s.most <= 0xffff;
  if (narrow) {  // counts of single values
    const u32 reach = s.most - s.least + 1;
    const u32 middle = min(max((u32)__fmul_rn((float)mean, 256.0f / (float)n), s.least), s.most);
    const int from =
        (int)(reach <= BINS ? s.least : min(max(middle, s.least + BINS / 2) - BINS / 2, s.most + 1 - BINS));
    const auto add = [&](u32 v, int times) {  // values outside the window are counted before or behind it
      const int d = min(max((int)v - from, -1), BINS);
      const bool upper = d >= WORDS;
      atomicAdd(&counts[4 + d - (upper ? WORDS : 0)], upper ? 65536 * times : times);
    };
#pragma unroll 2
    for (int i = tid; i < quads; i += NOISE_THREADS) {
      const uint2 w = reinterpret_cast<const uint2*>(u)[i];
      add(w.x & 0xffff, 1);
      add(w.x >> 16, 1);
      add(w.y & 0xffff, 1);
      add(w.y >> 16, 1);
    }
    if (tid < 2) add(u[tid ? 4 * quads - 1 : 0], tid ? length - 4 * quads : -pad);  // the repeated samples
    for (int i = 4 * quads + tid; i < 2 * STRETCH * (length / (2 * STRETCH) + 2); i += NOISE_THREADS)
      u[i] = (u16)middle;
    __syncthreads();
    const int under = counts[3] & 0xffff;
    const int4* const own = reinterpret_cast<const int4*>(counts + 4) + EACH / 4 * tid;
    u32 mine = 0, whole = 0;
#pragma unroll
    for (int k = 0; k < EACH / 4; k++) {  // neighbours begin at different places: fewer bank conflicts
      const int4 c = own[k + tid & EACH / 4 - 1];
      mine += (u32)(c.x + c.y + c.z + c.w);
    }
    const u32 sum = (u32)scan((int)mine, part) - mine;  // of both halves: neither passes 16 bits
#pragma unroll
    for (int w = 0; w < NOISE_THREADS / 32; w++) whole += (u32)part[w];
    for (int q = 0; q < 3; q++) {  // the first value whose end reaches a quartile
      const int wanted = (n * (q + 1) + 3) / 4;
      const int low_sum = under + (int)(sum & 0xffff), high_sum = under + (int)(whole & 0xffff) + (int)(sum >> 16);
      const bool lower = low_sum < wanted && wanted <= low_sum + (int)(mine & 0xffff);
      const bool upper = high_sum < wanted && wanted <= high_sum + (int)(mine >> 16);
      if (!lower && !upper) continue;
      int at = upper ? high_sum : low_sum, value = -1, its = 0, ahead_of = 0;
#pragma unroll
      for (int k = 0; k < EACH; k++) {
        const int word = reinterpret_cast<const int*>(own)[k], c = upper ? (int)((u32)word >> 16) : word & 0xffff;
        if (value < 0 && at + c >= wanted) value = k, its = c, ahead_of = at;
        at += c;
      }
      found[q] = from + EACH * tid + value + (upper ? WORDS : 0);
      before[q] = ahead_of;
      held[q] = its;
    }
    __syncthreads();
    if (tid < 32 || tid >= NOISE_THREADS - 32) {  // the first finds the least sums, the last writes the noise
      const int q = min(lane, 2);
      const double wanted = __dmul_rn(__dmul_rn((double)n, 0.25), (double)(q + 1));
      const double share = __ddiv_rn(__dsub_rn(wanted, (double)before[q]), (double)held[q]);
      const double mine_is = __dadd_rn(__dsub_rn((double)(SUM)(base + (u32)found[q]), 0.5), share);
      const double level = __shfl_sync(~0u, mine_is, 1);
      const double spread = __dsub_rn(__shfl_sync(~0u, mine_is, 2), __shfl_sync(~0u, mine_is, 0));
      if (tid < 32) {
        int todo = found[0] < 0 || found[1] < 0 || found[2] < 0 ? QUARTILES : LOOK;
        for (u32 a = s.least, b = s.most;
             todo == LOOK && b - a >= BINS;) {  // whether ever finer bins end at single values
          int shift = 0;
          while (b - a >> shift >= BINS) shift++;
          const u32 lower = (u32)found[0] - a >> shift, upper = (u32)found[2] - a >> shift;
          if (upper - lower >= BINS / 2) todo = QUARTILES;
          b = a + (upper + 1 << shift) - 1;
          a += lower << shift;
        }
        const double sigma = spread * (1 / IQR),
                     above = (j.parts ? levels[2 * here] : level) - (double)(SUM)(base + s.least);
        int shift = 0;
        while ((s.most - s.least) >> shift > MOST_Z) shift++;
        const double unit = (double)(1 << shift), parts = 1 / unit;
        const int centre = (int)fmin(fmax(rint(above * parts), 0.0), (double)MOST_Z);
        bool all = !(sigma > 0) || above * UNIT > (CLIP - 2.0) * sigma;
        for (int k = lane; k < j.widths; k += 32) {
          const double w = (double)wide[k];
          const double z = floor((need[k] * sigma + w * (above - (unit - 1.0))) * parts) - 1.0;
          if (k < DENSE) {
            all |= z < 1;
            shorts[k] = twice((u32)fmin(fmax(z - 1.0, 0.0), 65535.0));
          }
          longs[k] = make_int2(wide[k] / (2 * STRETCH), (int)fmin(fmax(z - w * centre, -(double)NEVER), (double)NEVER));
          if (k >= DENSE && k < j.smaller) atomicMin(&small[wide[k] > STRETCH], longs[k].y);
        }
        all = __any_sync(~0u, all);
        if (lane == 0) flat[0] = shift, flat[1] = centre, flat[2] = todo == LOOK && all ? ALL : todo;
      } else if (lane == 0) {
        const double sigma = __ddiv_rn(spread, IQR);
        if (!j.parts) levels[2 * here] = level;
        levels[2 * here + 1] = sigma > 0 ? __ddiv_rn(UNIT, sigma) : 0.0;
      }
    }
    __syncthreads();
  }
  if (!narrow || flat[2] == QUARTILES) {  // the plain way
    __syncthreads();
    quartiles(y, nullptr, n, counts, part, out);
    if (tid == 0) {
      const double sigma = __ddiv_rn(__dsub_rn(out[2], out[0]), IQR);
      if (!j.parts) levels[2 * here] = out[1];
      levels[2 * here + 1] = sigma > 0 ? __ddiv_rn(UNIT, sigma) : 0.0;
    }
    everything();
    return;
  }
  if (flat[2] == ALL) {
    everything();
    return;
  }
  s.shift = flat[0];
  s.centre = flat[1];
  const int pairs = length / (2 * STRETCH) + 1;  // of stretches; the last prefix sum is in the last of them
  int2 *const top = reinterpret_cast<int2*>(counts), *const bottom =
                                                         top + j.pairs;  // extremes of both stretches of a pair
  int *const begin = reinterpret_cast<int*>(bottom + j.pairs), *const ends = begin + j.pairs;
  const auto flag = [&](int from, int to) {  // windows centred on from : to + 1 may reach the threshold
    from -= pad;
    to -= pad;
    if (from < inner) atomicOr(&bits, LEFT);
    if (to >= outer) atomicOr(&bits, RIGHT);
    from = max(from, inner);
    to = min(to, outer - 1);
    if (from <= to) atomicOr(&bits, 1u << (from - inner) / j.segment | 1u << (to - inner) / j.segment);
  };
  const auto check = [&](int stretch, int k) {  // windows of a width that begin in a stretch
    const int w = wide[k];
    if (w < RECHECKED && !again(s, stretch, length, w, longs[k].y)) return;
    flag(STRETCH * stretch + w / 2, STRETCH * stretch + STRETCH - 1 + w / 2);
  };
  for (int g = tid; g < pairs; g += NOISE_THREADS) {
    const uint4* const from = reinterpret_cast<const uint4*>(u + 2 * STRETCH * g);
    u32 z[25];  // of both stretches: sample k of the first, and of the second; from 16 on those of the next ones
    {
      u32 w[21];
#pragma unroll
      for (int k = 0; k < 5; k++) {
        const uint4 v = from[k];
        w[4 * k] = s.pair(v.x), w[4 * k + 1] = s.pair(v.y), w[4 * k + 2] = s.pair(v.z), w[4 * k + 3] = s.pair(v.w);
      }
      w[20] = s.pair(reinterpret_cast<const u32*>(from)[20]);
#pragma unroll
      for (int k = 0; k < 25; k++) z[k] = join(w[k / 2], w[8 + k / 2], k & 1);
    }
    u32 one = z[0], two = 0, four = 0, sums2[24];
#pragma unroll
    for (int k = 1; k < 20; k++) one = ptx::max_pair(one, z[k]);
#pragma unroll
    for (int k = 0; k < 24; k++) sums2[k] = z[k] + z[k + 1], two = ptx::max_pair(two, sums2[k]);
#pragma unroll
    for (int k = 0; k < 20; k++) four = ptx::max_pair(four, sums2[k] + sums2[k + 2]);
    const u32 most_of[DENSE] = {one, two, two + one, four, four + one, four + two, four + four, four + four + two};
    u32 more = 0;
#pragma unroll
    for (int k = 0; k < DENSE; k++) more |= ptx::max_pair(most_of[k], shorts[k]) ^ shorts[k];
    if (more) {  // widths that may reach the threshold, two bits for each
      u32 which = 0;
#pragma unroll
      for (int k = 0; k < DENSE; k++) {
        const u32 over = ptx::max_pair(most_of[k], shorts[k]) ^ shorts[k];
        which |= (over & 0xffff ? 1u : 0u) << 2 * k | (over >> 16 ? 2u : 0u) << 2 * k;
      }
      for (int k = 0; which; k++, which >>= 1)
        if (which & 1) check(2 * g + (k & 1), k / 2);
    }
    const u32 centre = twice((u32)s.centre);
    u32 p = STRETCH * centre, up = p, down = p;  // prefix sums less the level, plus 16 times the level
#pragma unroll
    for (int k = 0; k < STRETCH - 1; k++) {
      p += z[k] - centre;
      up = ptx::max_pair(up, p);
      down = ptx::min_pair(down, p);
    }
    p += z[STRETCH - 1] - centre;
    const int level = STRETCH * s.centre, first_sum = (int)(p & 0xffff) - level, both = first_sum - level;
    top[g] = make_int2((int)(up & 0xffff) - level, (int)(up >> 16) + both);
    bottom[g] = make_int2((int)(down & 0xffff) - level, (int)(down >> 16) + both);
    begin[g] = (int)(p >> 16) + both;
  }
  __syncthreads();
  {  // prefix sums where pairs begin, 4 a thread
    const int g = 4 * tid;
    int4 t = make_int4(0, 0, 0, 0);
    if (g < pairs) t = *reinterpret_cast<const int4*>(begin + g);
    if (g + 1 >= pairs) t.y = 0;
    if (g + 2 >= pairs) t.z = 0;
    if (g + 3 >= pairs) t.w = 0;
    const int mine = t.x + t.y + t.z + t.w, at = scan(mine, part) - mine;
    if (g < pairs) *reinterpret_cast<int4*>(begin + g) = make_int4(at, at + t.x, at + t.x + t.y, at + t.x + t.y + t.z);
  }
  __syncthreads();
  const auto consider = [&](int stretch, int best, int after) {  // largest sums of windows that begin in a stretch
    if (best >= small[0] || max(best, after) >= small[1])
      for (int k = DENSE; k < j.smaller; k++) check(stretch, k);
  };
  for (int g = tid; g < j.pairs;
       g += NOISE_THREADS) {  // largest of two neighbouring pairs; windows of less than two stretches
    if (g >= pairs) {
      ends[g] = -2 * NEVER;
      continue;
    }
    const int at = begin[g];
    const int2 up = top[g], down = bottom[g];
    int2 next = make_int2(-2 * NEVER, -2 * NEVER);
    if (g + 1 < pairs) {
      next = top[g + 1];
      const int on = begin[g + 1] - at;
      next.x += on;
      next.y += on;
    }
    ends[g] = at + max(max(up.x, up.y), max(next.x, next.y));
    bottom[g].x = at + min(down.x, down.y);
    consider(2 * g, max(up.x, up.y) - down.x, next.x - down.x);
    consider(2 * g + 1, max(up.y, next.x) - down.y, next.y - down.y);
  }
  __syncthreads();
  for (int g = tid; g < pairs; g += NOISE_THREADS) {
    const int down = bottom[g].x;
    int best = -4 * NEVER;
#pragma unroll 4
    for (int k = j.smaller; k < j.widths; k++) best = max(best, ends[g + longs[k].x] - longs[k].y);
    if (best < down) continue;
    for (int k = j.smaller; k < j.widths; k++)
      if (ends[g + longs[k].x] - longs[k].y >= down) check(2 * g, k), check(2 * g + 1, k);
  }
  __syncthreads();
  for (int p = tid; p < j.subs - 1; p += NOISE_THREADS)
    if (bits >> p & 1) mark(p);
  if (tid == 0) marks[here] = bits;
}

// Pieces around the edges of blocks go on the list if `glance` noted something there, or if a window across the
// edge reaches the threshold. A warp examines all windows of all widths across one edge.
extern "C" __global__ void __launch_bounds__(EDGE_THREADS) edges(const SUM* sums, const int* valid,
                                                                 const double* levels, const int* widths,
                                                                 const int* reached, const double* needed, u32* flagged,
                                                                 const u32* marks, u32* number, Job j) {
  extern __shared__ uint4 sm4[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const i64 edge = blockIdx.x * (i64)(EDGE_THREADS / 32) + warp;
  const int row = (int)(edge / (j.blocks - 1)), block = (int)(edge % (j.blocks - 1)) + 1;
  if (row >= j.rows) return;
  const int count = valid_of(j, valid, row);
  const i64 there = (i64)block * j.block;
  if (there >= count) return;
  const int at = (int)there, from = at - j.widest + 1, n = min(count, at + j.widest - 1) - from;
  const i64 mine = (i64)row * j.blocks + block;
  bool over = (marks[mine - 1] & RIGHT) != 0 || (marks[mine] & LEFT) != 0;
  if (!over) {  // the same in every lane
    const bool short_one = 4 * (i64)(count - at) < j.block;
    const double level[2] = {levels[2 * mine - 2], short_one && !j.parts ? levels[2 * mine - 2] : levels[2 * mine]};
    const double scale[2] = {levels[2 * mine - 1], short_one ? levels[2 * mine - 1] : levels[2 * mine + 1]};
    int* const p = reinterpret_cast<int*>(sm4) + warp * 2 * j.widest;
    const SUM* const y = sums + row * j.pitch + from;
    if (lane == 0) p[0] = 0;
#pragma unroll 4
    for (int i = lane; i < n; i += 32) {
      const bool right = from + i >= at;
      const double v = __dsub_rn((double)y[i], right ? level[1] : level[0]);
      p[i + 1] = min(max(__double2int_rn(__dmul_rn(v, right ? scale[1] : scale[0])), -CLIP), CLIP);
    }
    __syncwarp();
    const int each = ((n + 31) / 32) | 1, low = min(n, lane * each), high = min(n, low + each);
    u32 sum = 0;
    for (int i = low; i < high; i++) sum += (u32)p[i + 1];
    const u32 own = sum;
    for (int o = 1; o < 32; o <<= 1) {
      const u32 other = __shfl_up_sync(~0u, sum, o);
      if (lane >= o) sum += other;
    }
    sum -= own;
    for (int i = low; i < high; i++) {
      sum += (u32)p[i + 1];
      p[i + 1] = (int)sum;
    }
    __syncwarp();
    for (int k = 0; k < j.widths; k++) {
      const int w = widths[k], wanted = reached[k], last = min(at - 1, count - w) - from;
      for (int i = at - w + 1 - from + lane; i <= last; i += 32) over |= (int)((u32)p[i + w] - (u32)p[i]) >= wanted;
    }
    over = __any_sync(~0u, over);
  }
  if (over && lane == 0) flagged[atomicAdd(number + 1, 1u)] = (u32)(mine * j.subs + j.subs - 1);
}

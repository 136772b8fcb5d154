// The plan of the tensor cores: which words of which channels a tile of 8 DMs needs, and which bytes of them are added.
//
// Of channel c a tile needs the 4-byte words that contain bytes n(c, m) + s of its DMs m and of 4 sample phases s: up
// to 16, mostly 2 or 3.  They are loaded as pairs of neighbours where that saves loads (the two quads of 4 DMs need the
// same pair, or the second quad needs the next one), and otherwise one by one.  8 pairs or 16 words of one kind make a
// block: one sparse product of 16 rows (4 DMs x 4 phases) and 64 bytes for each quad.  Words that are loaded together
// lie in different bank classes (word number mod 4) if possible.  A block has 72 words: two for each lane (one for each
// quad; in every nibble 2 bits of position and 2 ones), then two for each of 4 lanes with the offsets of the words in
// the staged rows.  With groups of channels (GROUPS) the delays of a DM are relative to that of the group's first
// channel.
//
// Layout: a block of threads for a tile and a chunk of channels; a thread for a channel, then for a lane of a product.
// Cost: 32 bytes read for a tile and channel, 416 written for a block: milliseconds.
// Limit: the local lists of words.
//
// archs: 75 80 86 89 90 100 120
// build: default
// budget: default kernel=plan_fill spills<=192
// budget: default kernel=plan_count spills<=80
#include "common.cuh"

struct Chunk {
  int first, count, pitch, group;
};

#define SINGLE 2  // kind of a single word; smaller kinds are pairs

struct Words {
  int n, w[MOST_WORDS];
};

__device__ __forceinline__ int floor4(int v) { return v & ~3; }

// Shift of a DM in a group of channels: the delay of the group's first channel; 0 without groups.
__device__ __forceinline__ int shift_of(const int* delays, int nchan, int m, int origin) {
  return origin < 0 ? 0 : __ldg(delays + (i64)m * nchan + origin);
}

// The base of a tile: its smallest shift, rounded down to a multiple of 4.
__device__ int base_of(const int* delays, int nchan, int ndm, int tile, int origin) {
  if (origin < 0) return 0;
  int low = 0x7fffffff;
  for (int i = 0; i < TILE; i++) low = min(low, shift_of(delays, nchan, min(tile * TILE + i, ndm - 1), origin));
  return floor4(low);
}

// The words that a tile needs of a channel, in rising order, counted from the tile's base.
__device__ void words_of(const int* delays, int nchan, int ndm, int tile, int c, int origin, Words& out) {
  out.n = 0;
  for (int i = 0; i < TILE; i++) {
    const int m = min(tile * TILE + i, ndm - 1);
    const int r = __ldg(delays + (i64)m * nchan + c) - shift_of(delays, nchan, m, origin);
    for (int k = 0; k < 2; k++) {
      const int w = (r + 3 * k) >> 2;
      int at = out.n;
      bool there = false;
      for (int j = 0; j < out.n; j++) there = there || out.w[j] == w;
      if (there) continue;
      while (at > 0 && out.w[at - 1] > w) {
        out.w[at] = out.w[at - 1];
        at--;
      }
      out.w[at] = w;
      out.n++;
    }
  }
}

// First and last word that a tile needs of a channel, and the words of its two quads, counted from the first; false
// where the span is too long for that.
__device__ __forceinline__ bool needs(const int* delays, int nchan, int ndm, int tile, int c, int origin, int& low,
                                      int& high, u64 (&need)[2]) {
  int r[TILE];
  low = 0x7fffffff, high = -0x7fffffff;
#pragma unroll
  for (int i = 0; i < TILE; i++) {
    const int m = min(tile * TILE + i, ndm - 1);
    r[i] = __ldg(delays + (i64)m * nchan + c) - shift_of(delays, nchan, m, origin);
    low = min(low, r[i] >> 2);
    high = max(high, (r[i] + 3) >> 2);
  }
  need[0] = need[1] = 0;
  if (high - low > 60) return false;
#pragma unroll
  for (int i = 0; i < TILE; i++) need[i / 4] |= 1ull << ((r[i] >> 2) - low) | 1ull << (((r[i] + 3) >> 2) - low);
  return true;
}

// Visits the words of a channel that a tile needs: f(kind, word, quads, quads of the next word) is called for every
// pair of neighbouring words (kind 0: the same for both quads of DMs, 1: one word on for the second quad) and for
// every remaining word.  `quads` has a bit for each quad that takes a word from there: every word that a quad needs
// is taken once.
template <typename F>
__device__ __forceinline__ void cover(const int* delays, int nchan, int ndm, int tile, int c, int origin, F f) {
  int low, high;
  u64 need[2];
  if (!needs(delays, nchan, ndm, tile, c, origin, low, high, need)) {
    Words words;
    words_of(delays, nchan, ndm, tile, c, origin, words);
    for (int j = 0; j < words.n; j++) f(SINGLE, words.w[j], 3, 0);
    return;
  }
  while (true) {
    const u64 all = need[0] | need[1];
    const int left = __popcll(all);
    int most = 1, at = 0, kind = 0;
    for (u64 rest = all; rest; rest &= rest - 1) {
      const int p = __ffsll((i64)rest) - 1;
      for (int k = 0; k < SINGLE; k++) {
        const int gain = left - __popcll((need[0] & ~(3ull << p)) | (need[1] & ~(3ull << (p + k))));
        if (gain > most) most = gain, at = p, kind = k;
      }
    }
    if (most < 2) break;
    const int taken[2] = {(int)(need[0] >> at) & 3, (int)(need[1] >> (at + kind)) & 3};
    f(kind, low + at, (taken[0] & 1) | (taken[1] & 1) << 1, taken[0] >> 1 | (taken[1] & 2));
    need[0] &= ~(3ull << at);
    need[1] &= ~(3ull << (at + kind));
  }
  for (u64 rest = need[0] | need[1]; rest; rest &= rest - 1) {
    const int p = __ffsll((i64)rest) - 1;
    f(SINGLE, low + p, (int)(need[0] >> p & 1) | (int)(need[1] >> p & 1) << 1, 0);
  }
}

// Largest spread of the delays of 8, 16, 32 and 64 neighbouring DMs, by channel: out[4][nchan], zeroed before.
extern "C" __global__ void __launch_bounds__(128) plan_spread(const int* delays, int nchan, int ndm, int* out) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= nchan) return;
  int low[4], high[4];
  for (int i = 0; i < 64; i++) {
    const int m = min((int)blockIdx.y * 64 + i, ndm - 1);
    const int n = __ldg(delays + (i64)m * nchan + c);
    for (int k = 0; k < 4; k++) {
      const int span = TILE << k;
      if (i % span == 0) low[k] = high[k] = n;
      low[k] = min(low[k], n);
      high[k] = max(high[k], n);
      if (i % span == span - 1) atomicMax(out + k * nchan + c, high[k] - low[k]);
    }
  }
}

// First byte (a multiple of 16, with the skew) of each row that a block of WD tiles stages, and the number of
// 16-byte pieces.
extern "C" __global__ void __launch_bounds__(128) plan_rows(const int* delays, int nchan, int ndm, const Chunk* chunks,
                                                            const int* origins, int WD, int tiles, int samples,
                                                            int* row0, int* pieces, int* lowest) {
  __shared__ int most;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  const Chunk k = chunks[blockIdx.y];
  const int origin = origins[k.group];
  for (int i = threadIdx.x; i < k.count; i += blockDim.x) {
    const int c = k.first + i;
    int low = 0x7fffffff, high = -0x7fffffff;
    for (int j = 0; j < WD; j++) {
      const int tile = min((int)blockIdx.x * WD + j, tiles - 1);
      const int base = base_of(delays, nchan, ndm, tile, origin);
      int first, last;
      u64 need[2];
      needs(delays, nchan, ndm, tile, c, origin, first, last, need);
      low = min(low, base + 4 * first - 4);  // a word before it may be read, but is not used
      high = max(high, base + 4 * last);
    }
    const int start = (skew_of(c) + low) & ~15;
    row0[(i64)blockIdx.x * nchan + c] = start;
    atomicMax(&most, (skew_of(c) + high - start + samples + 15) / 16);
    atomicMin(lowest, low);
  }
  __syncthreads();
  if (threadIdx.x == 0) pieces[blockIdx.x * gridDim.y + blockIdx.y] = most;
}

// Number of blocks of a (tile, chunk), by kind; single words fill the places that pairs leave free.
struct Blocks {
  int of[SINGLE + 1], spare[SINGLE];
  __device__ __forceinline__ Blocks(const int* parts) {
    int alone = parts[SINGLE];
    for (int k = 0; k < SINGLE; k++) {
      of[k] = (parts[k] + 7) / 8;
      spare[k] = min(alone, 8 * of[k] - parts[k]);
      alone -= spare[k];
    }
    of[SINGLE] = (alone + 15) / 16;
  }
};

// Blocks of each (tile, chunk), and how many of them are of kind 0, of kind 1 (from bit 8 on) and of single words (bit
// 16).
extern "C" __global__ void __launch_bounds__(128) plan_count(const int* delays, int nchan, int ndm, const Chunk* chunks,
                                                             const int* origins, int* counts, int* kinds) {
  __shared__ int all[SINGLE + 1];
  if (threadIdx.x <= SINGLE) all[threadIdx.x] = 0;
  __syncthreads();
  const Chunk k = chunks[blockIdx.y];
  for (int i = threadIdx.x; i < k.count; i += blockDim.x)
    cover(delays, nchan, ndm, blockIdx.x, k.first + i, origins[k.group],
          [&](int kind, int, int, int) { atomicAdd(&all[kind], 1); });
  __syncthreads();
  if (threadIdx.x == 0) {
    const Blocks blocks(all);
    counts[(i64)blockIdx.x * gridDim.y + blockIdx.y] = blocks.of[0] + blocks.of[1] + blocks.of[SINGLE];
    kinds[(i64)blockIdx.x * gridDim.y + blockIdx.y] = blocks.of[0] | blocks.of[1] << 8 | blocks.of[SINGLE] << 16;
  }
}

// Where the blocks of each (tile, chunk) begin; one more entry ends the list.
extern "C" __global__ void __launch_bounds__(1024) plan_scan(const int* counts, int n, int* ranges) {
  __shared__ int part[32];
  __shared__ int carry;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (threadIdx.x == 0) carry = 0;
  __syncthreads();
  for (int base = 0; base <= n; base += 1024) {
    const int i = base + threadIdx.x;
    const int mine = i < n ? counts[i] : 0;
    int sum = mine;
    for (int o = 1; o < 32; o <<= 1) {
      const int other = __shfl_up_sync(~0u, sum, o);
      if (lane >= o) sum += other;
    }
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    if (warp == 0) {
      int all = part[lane];
      for (int o = 1; o < 32; o <<= 1) {
        const int other = __shfl_up_sync(~0u, all, o);
        if (lane >= o) all += other;
      }
      part[lane] = all;
    }
    __syncthreads();
    const int before = carry + (warp ? part[warp - 1] : 0) + sum - mine;
    if (i <= n) ranges[i] = before;
    __syncthreads();
    if (threadIdx.x == 0) carry += part[31];
    __syncthreads();
  }
}

// Position of the item of some rank in a class, in an order by rank and then by class.
__device__ __forceinline__ int place(const int* count, int cls, int rank) {
  int at = 0;
  for (int k = 0; k < 4; k++) at += min(count[k], rank + (k < cls ? 1 : 0));
  return at;
}

// Patterns and offsets of the blocks.  `items` has room for 16 items of every block: (channel in chunk, word).
extern "C" __global__ void __launch_bounds__(128) plan_fill(const int* delays, int nchan, int ndm, const Chunk* chunks,
                                                            const int* origins, const int* ranges, const int* row0,
                                                            int WD, int2* items, u32* table) {
  __shared__ int count[SINGLE + 1][4];
  const Chunk k = chunks[blockIdx.y];
  const int tile = blockIdx.x, origin = origins[k.group];
  const i64 at = (i64)tile * gridDim.y + blockIdx.y;
  const int first = ranges[at], blocks = ranges[at + 1] - first;
  int2* mine = items + 16 * (i64)first;
  const int base = base_of(delays, nchan, ndm, tile, origin);
  for (int i = threadIdx.x; i < 16 * blocks; i += blockDim.x) mine[i] = make_int2(-1, 0);
  if (threadIdx.x < 4 * SINGLE + 4) count[threadIdx.x / 4][threadIdx.x % 4] = 0;
  __syncthreads();
  // ranks in the classes first, then places: a chunk has at most as many channels as there are threads
  const int channel = threadIdx.x, c = k.first + channel;
  const int skewed = channel < k.count ? (skew_of(c) + base) / 4 : 0;
  int rank[SINGLE + 1][4] = {};
  if (channel < k.count) {
    cover(delays, nchan, ndm, tile, c, origin, [&](int kind, int w, int, int) { rank[kind][(skewed + w) & 3]++; });
    for (int j = 0; j < 4 * SINGLE + 4; j++) rank[j / 4][j % 4] = atomicAdd(&count[j / 4][j % 4], rank[j / 4][j % 4]);
  }
  __syncthreads();
  int parts[SINGLE + 1], begin[SINGLE + 2] = {0};  // first block of each kind
  for (int j = 0; j <= SINGLE; j++) parts[j] = count[j][0] + count[j][1] + count[j][2] + count[j][3];
  const Blocks kinds(parts);
  for (int j = 0; j <= SINGLE; j++) begin[j + 1] = begin[j] + kinds.of[j];
  if (channel < k.count)
    cover(delays, nchan, ndm, tile, c, origin, [&](int kind, int w, int quads, int next) {
      const int cls = (skewed + w) & 3;
      int at = place(count[kind], cls, rank[kind][cls]++);
      if (kind == SINGLE) {
        for (kind = 0; kind < SINGLE && at >= kinds.spare[kind]; kind++) at -= kinds.spare[kind];
        if (kind == SINGLE) {
          mine[16 * begin[SINGLE] + at] = make_int2(channel | quads << 8, w);
          return;
        }
        at += parts[kind];
        if (kind == 1) w--, next = quads & 1, quads &= 2;  // the second quad's first word, the first quad's second one
      }
      int2* const to = mine + 16 * (begin[kind] + at / 8) + 8 * (at % 8 / 4) + at % 4;
      to[0] = make_int2(channel | quads << 8, w);
      to[4] = make_int2(channel | next << 8, w + 1);
    });
  __syncthreads();
  const int pitch = k.pitch;
  for (int i = threadIdx.x; i < 32 * blocks; i += blockDim.x) {
    const int lane = i & 31, g = lane >> 2, q = lane & 3;
    const int2* b = mine + 16 * (i >> 5);
    const int on = i >> 5 >= begin[1] && i >> 5 < begin[2];  // offset of the second quad's words
    u32 bits[2] = {0, 0};
    for (int quad = 0; quad < 2; quad++)
      for (int half = 0; half < 2; half++) {
        const int row = g + 8 * half, m = min(tile * TILE + quad * 4 + (row >> 2), ndm - 1);
        const int shift = shift_of(delays, nchan, m, origin);
        for (int item = 0; item < 16; item++) {
          const bool value = (item & 7) >> 1 == q, index = q == 2 * (item >> 3) + half;
          if (!value && !index) continue;
          const int2 it = b[item];
          int byte = -1;
          if (it.x >= 0 && it.x >> (8 + quad) & 1)
            byte = __ldg(delays + (i64)m * nchan + k.first + (it.x & 255)) - shift + (row & 3) -
                   4 * (it.y + (quad ? on : 0));
          const bool hit = byte >= 0 && byte < 4;
          // bytes of a register: two values of an even item, two of the odd one after it
          if (value && hit) bits[quad] |= 4u << (8 * (2 * (item & 1) + (byte == 3)) + half + 4 * (item >> 3));
          if (index && hit && byte < 3) bits[quad] |= (u32)byte << (4 * (item & 7));
        }
      }
    u32* const to = table + BLOCK_WORDS * (i64)(first + (i >> 5));
    to[2 * lane] = bits[0];
    to[2 * lane + 1] = bits[1];
    if (g == 0) {
      u32 o[4];
      for (int r = 0; r < 4; r++) {
        const int2 it = b[4 * r + q];
        const int c = k.first + (it.x & 255);
        o[r] = it.x < 0
                   ? 0
                   : (it.x & 255) * pitch + (skew_of(c) + base + 4 * it.y - row0[(i64)(tile / WD) * nchan + c]) / 4;
      }
      const bool alone = i >> 5 >= begin[SINGLE];
      to[64 + 2 * q] = alone ? o[0] | o[1] << 16 : o[0];
      to[65 + 2 * q] = alone ? o[2] | o[3] << 16 : o[2];
    }
  }
}

// Shift of every DM in every group, from the tile's base: shifts[tile][group][8].
extern "C" __global__ void __launch_bounds__(128) plan_shifts(const int* delays, int nchan, int ndm, const int* origins,
                                                              int groups, int tiles, int* shifts) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= tiles * groups) return;
  const int tile = i / groups, origin = origins[i % groups];
  const int base = base_of(delays, nchan, ndm, tile, origin);
  for (int j = 0; j < TILE; j++)
    shifts[(i64)i * TILE + j] = shift_of(delays, nchan, min(tile * TILE + j, ndm - 1), origin) - base;
}

// Exact sums of 8-bit rows along the delays of many DMs, on the sparse integer tensor cores.
//
//   y[m][t] = start + weight * (sum over c of x[c][t + n(c, m)])          all sums exact, 32 bits
//
// One mma.sp.m16n8k64 (u8 x u8 -> s32) makes 16 x 8 sums over 64 bytes, of which each row takes at most one in four:
//   A (16 x 64, 2:4 sparse): row = (DM 0..3 of a quad, sample phase 0..3), with a one for the byte that the DM needs at
//     that phase in each of 16 words; the plan (plan.cu) holds ones and positions;
//   B (64 x 8): 16 words of the input (channel, word) for 8 columns; column j of tile e is the word + 4 j + e, with the
//     bytes as they are stored;
//   C (16 x 8): y of 4 DMs, 32 samples.
// A warp sums 8 DMs (2 quads) x 256 samples: 64 accumulators.  A block of the plan is 16 words, 16 products.  Most
// words come as pairs of neighbours, of which tile e + 1 shares one with tile e: 20 loads for a block if both quads
// need the same pairs, 24 if the second quad needs the next ones, 32 for single words.
//
// Layout: a block of threads computes wd tiles x nc pieces of 256 samples.  The bytes of a chunk of channels are staged
//   in two buffers; from Hopper on by the copy engine, one copy for a row, without a barrier for all warps: the next
//   chunk is requested when all warps have used the one before.  On older GPUs a thread copies 16 bytes at a time, with
//   a barrier for each chunk.  GROUPS: channels are divided into groups, in which the delays of a DM are relative to
//   those of the group's first channel, so that coarse DM steps need few words; the sums of a group are added to y with
//   that shift.
//
// Cost: for 8 DMs x 256 samples and a channel that needs w words (2.3 for fine DM steps): w products, 1.4 w loads of
//   128 bytes from shared memory, 18 w bytes of plan.
// Limit (H100): products (877e12 multiply-adds per second: 2.2 cycles of a multiprocessor each), of which 60% is
//   reached; shared memory (1.7 cycles for a product).
//
// archs: 75 80 86 89 90 100 120
// build: plain -DUNROLL=2 -DEARLY=4
// build: groups -DGROUPS -DUNROLL=1 -DEARLY=2
// budget: plain kernel=tensor regs<=128 spills<=0 arch=90
// budget: groups kernel=tensor regs<=128 spills<=0 arch=90
// budget: plain kernel=tensor regs<=128 spills<=4096 arch=75
// budget: groups kernel=tensor regs<=128 spills<=4096 arch=75
#include "common.cuh"
#include "ptx.cuh"

#define WARPS 16
#define THREADS (32 * WARPS)
#define ROW 164  // words of a row of 128 samples that is turned through shared memory: 8 more after 32 each

// EARLY: blocks of a chunk after which the next one is staged; with 1, warps wait for the slowest.
constexpr int kUnroll = UNROLL;  // a pragma takes no macro

struct Chunk {
  int first, count, pitch, group;
};

struct Shape {
  i64 stride, ypitch;  // bytes from row to row of x, sums from row to row of y
  int chunks, groups, nchan, ndm, tiles;
  int first, count;          // first sample of x (from FRONT on; a multiple of 16), columns of y
  int samples, stage;        // samples a block advances by, words of a staging buffer (rows, then blocks of the plan)
  int rows, most;            // words of the rows in it, blocks of the plan a tile has in a chunk at most
  int wd, nc, block0, row0;  // tiles and pieces of a block, first block of DMs, DM of the first row of y
  u32 weight, start;
  int fresh, offset, list;  // whether y begins here; where sums are turned and chunks are listed (words)
};

// d += A B for 16 x 8 sums over 64 bytes
__device__ __forceinline__ void product(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 b2, u32 b3, u32 meta) {
#if HAS_SPARSE_MATRICES
  ptx::multiply_sparse(d, a, b0, b1, b2, b3, meta);
#else
  __shared__ u32 given[WARPS][32][9];
  u32(*const all)[9] = given[threadIdx.x >> 5];
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
  const u32 mine[9] = {a[0], a[1], a[2], a[3], b0, b1, b2, b3, meta};
  for (int i = 0; i < 9; i++) all[lane][i] = mine[i];
  __syncwarp();
  for (int item = 0; item < 16; item++)
    for (int half = 0; half < 2; half++) {
      const u32 value = all[4 * g + ((item & 7) >> 1)][2 * (item >> 3) + half] >> (16 * (item & 1));
      const u32 index = all[4 * g + 2 * (item >> 3) + half][8] >> (4 * (item & 7));
      for (int j = 0; j < 2; j++) {
        const u32 word = all[4 * (2 * q + j) + (item & 3)][4 + (item >> 2)];
        d[2 * half + j] += int((value & 255) * (word >> (8 * (index & 3)) & 255) +
                               (value >> 8 & 255) * (word >> (8 * (index >> 2 & 3)) & 255));
      }
    }
  __syncwarp();
#endif
}

// Registers of A and their positions from a word of the plan.  A one is stored as 4 in rows 0 to 7 and as 8 in rows
// 8 to 15: this saves shifts here, and the factors are removed from the sums at the end.
__device__ __forceinline__ u32 decode(u32 (&a)[4], u32 bits) {
  const u32 meta = (bits & 0x33333333u) | 0xccccccccu;
  a[0] = bits & 0x04040404u;
  a[1] = bits & 0x08080808u;
  bits >>= 4;
  a[2] = bits & 0x04040404u;
  a[3] = bits & 0x08080808u;
  return meta;
}

// Products of a block of pairs: lane q has words p[0], p[1] and r[0], r[1], and the second quad those SKEW on.
template <int SKEW>
__device__ __forceinline__ void pairs(int (&acc)[2][PIECE / 32][4], const u32* p, const u32* r, uint2 bits) {
  u32 A0[4], A1[4];
  const u32 meta0 = decode(A0, bits.x), meta1 = decode(A1, bits.y);
#pragma unroll
  for (int h = 0; h < PIECE / 128; h++) {
    u32 a[5 + SKEW], b[5 + SKEW];
#pragma unroll
    for (int e = 0; e < 5 + SKEW; e++) a[e] = p[32 * h + e], b[e] = r[32 * h + e];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      product(acc[0][4 * h + e], A0, a[e], a[e + 1], b[e], b[e + 1], meta0);
      product(acc[1][4 * h + e], A1, a[e + SKEW], a[e + 1 + SKEW], b[e + SKEW], b[e + 1 + SKEW], meta1);
    }
  }
}

// Sets all sums to `value`.
extern "C" __global__ void __launch_bounds__(256) clear(u32* y, i64 n, u32 value) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) y[i] = value;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) tensor(
    const u8* __restrict__ x, const u32* __restrict__ table, const int* __restrict__ ranges,
    const int* __restrict__ kinds, const int* __restrict__ row0, const int* __restrict__ pieces,
    const Chunk* __restrict__ chunks, const int* __restrict__ shifts, u32* __restrict__ y, Shape s) {
  extern __shared__ uint4 shared4[];
  u32* const sm = reinterpret_cast<u32*>(shared4);
  const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), g = lane >> 2, q = lane & 3;
  const int block = blockIdx.x + s.block0, wd = warp / s.nc, piece = warp - wd * s.nc;
  const int tile = min(block * s.wd + wd, s.tiles - 1), t0 = blockIdx.y * s.samples;
  const bool idle = block * s.wd + wd >= s.tiles;
  int acc[2][PIECE / 32][4];  // [quad][tile of columns][fragment]
#pragma unroll
  for (int j = 0; j < PIECE / 16; j++)
#pragma unroll
    for (int z = 0; z < 4; z++) acc[j & 1][j / 2][z] = 0;

  const u8* const xb = x + s.first + t0;
  const int* const rows = row0 + (i64)block * s.nchan;
  Chunk* const list =
      reinterpret_cast<Chunk*>(sm + s.list);  // chunks, with pieces of 16 bytes of a row for the first row
  for (int i = threadIdx.x; i < s.chunks; i += THREADS) {
    Chunk c = chunks[i];
    c.group |= __ldg(pieces + block * s.chunks + i) << 16;
    list[i] = c;
  }
  // after them barriers (two of staged chunks, two of chunks done with), and how many blocks of each kind tiles have
  int* const kinds_of = reinterpret_cast<int*>(list + s.chunks) + 8 + wd * s.chunks;
  if (piece == 0)
    for (int i = lane; i < s.chunks; i += 32) kinds_of[i] = __ldg(kinds + (i64)tile * s.chunks + i);
#if HAS_COPY_ENGINE  // rows are staged by the copy engine
  const u32 bars = (u32)__cvta_generic_to_shared(list + s.chunks);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; i++) ptx::barrier_init(bars + 8 * i, WARPS);
    ptx::publish_shared();
  }
#endif
  __syncthreads();
  // the data needed to stage a chunk are fetched one chunk earlier: starts of rows (one for each lane), blocks of
  // the plan
  auto starts = [&](int k) {
    const int r = warp + WARPS * lane;
    return k < s.chunks && r < list[k].count ? __ldg(rows + list[k].first + r) : 0;
  };
  const auto blocks_of = [](int kind) { return (kind & 255) + (kind >> 8 & 255) + (kind >> 16); };
  int begin = __ldg(ranges + (i64)tile * s.chunks);  // first block of the chunk that is staged next
  auto stage = [&](int k, int start) {
    const int number = blocks_of(kinds_of[k]);
    const Chunk c = list[k];
    const int n = c.group >> 16;
    u32* const to = sm + (k & 1) * s.stage;
#if HAS_COPY_ENGINE
    const u32 bar = bars + 8 * (k & 1), there = (u32)__cvta_generic_to_shared(to);
    const int r = warp + WARPS * lane, mine = (c.count - warp + WARPS - 1) / WARPS;
    const u32 plan_bytes = piece == 0 ? number * (4 * BLOCK_WORDS) : 0;
    if (lane == 0) ptx::barrier_expect(bar, mine * 16 * n + plan_bytes);
    __syncwarp();
    if (lane < mine) ptx::copy_bulk(there + 4 * r * c.pitch, xb + (i64)(c.first + r) * s.stride + start, 16 * n, bar);
    if (lane == 31 && plan_bytes)
      ptx::copy_bulk(there + 4 * (s.rows + wd * s.most * BLOCK_WORDS), table + BLOCK_WORDS * (i64)begin, plan_bytes,
                     bar);
#else
    for (int j = 0; warp + WARPS * j < c.count; j++) {
      const int r = warp + WARPS * j;
      const u8* from = xb + (i64)(c.first + r) * s.stride + __shfl_sync(~0u, start, j) + 16 * lane;
      u32* d = to + r * c.pitch + 4 * lane;
      for (int i = lane; i < n; i += 32, d += 128, from += 512) ptx::copy16_past(d, from);
    }
    const u8* const plan = reinterpret_cast<const u8*>(table + BLOCK_WORDS * (i64)begin);
    u32* const blocks = to + s.rows + wd * s.most * BLOCK_WORDS;
    for (int i = lane + 32 * piece; i < number * (BLOCK_WORDS / 4); i += 32 * s.nc)
      ptx::copy16_past(blocks + 4 * i, plan + 16 * i);
    ptx::commit_copies();
#endif
    begin += number;
  };
  int start = starts(0);
  stage(0, start);
  start = starts(1);
#ifdef GROUPS
  u32* const turn = sm + s.offset + warp * 2 * ROW;
#endif
  for (int k = 0; k < s.chunks; k++) {
    const auto next = [&] {
      if (k + 1 < s.chunks) stage(k + 1, start);
      start = starts(k + 2);
    };
#if HAS_COPY_ENGINE
    ptx::barrier_wait(bars + 8 * (k & 1), k >> 1 & 1);  // chunk k has arrived
    const auto turn_over = [&] {                        // the buffer of chunk k + 1 is no longer read
      if (k) ptx::barrier_wait(bars + 16 + 8 * (k + 1 & 1), (k - 1) >> 1 & 1);
      next();
    };
#else
    ptx::wait_copies<0>();
    __syncthreads();  // chunk k has arrived, and the buffer of chunk k + 1 is no longer read
    next();
#endif
    const u32* const base = sm + (k & 1) * s.stage + piece * (PIECE / 4) + 4 * g;
    const u32* plan = sm + (k & 1) * s.stage + s.rows + wd * s.most * BLOCK_WORDS + 2 * lane;
    const int to_offsets = 64 + 2 * q - 2 * lane;
    uint2 bits = *reinterpret_cast<const uint2*>(plan), at = *reinterpret_cast<const uint2*>(plan + to_offsets);
    const int kind = __shfl_sync(~0u, kinds_of[k], 0);  // the same in every lane, which the compiler now knows
    const int same = kind & 255, both = same + (kind >> 8 & 255), blocks = both + (kind >> 16);
    int i = 0;
#pragma unroll kUnroll
    for (; i < same; i++) {
#if HAS_COPY_ENGINE
      if (i == EARLY) turn_over();
#endif
      const uint2 now = bits;
      const u32 *p = base + at.x, *r = base + at.y;
      plan += BLOCK_WORDS;
      bits = *reinterpret_cast<const uint2*>(plan);
      at = *reinterpret_cast<const uint2*>(plan + to_offsets);
      pairs<0>(acc, p, r, now);
    }
#pragma unroll kUnroll
    for (; i < both; i++) {
      const uint2 now = bits;
      const u32 *p = base + at.x, *r = base + at.y;
      plan += BLOCK_WORDS;
      bits = *reinterpret_cast<const uint2*>(plan);
      at = *reinterpret_cast<const uint2*>(plan + to_offsets);
      pairs<1>(acc, p, r, now);
    }
#pragma unroll 1
    for (; i < blocks; i++) {
      u32 A0[4], A1[4];
      const u32 meta0 = decode(A0, bits.x), meta1 = decode(A1, bits.y);
      const u32 *p0 = base + (at.x & 0xffff), *p1 = base + (at.x >> 16);
      const u32 *p2 = base + (at.y & 0xffff), *p3 = base + (at.y >> 16);
      plan += BLOCK_WORDS;
      bits = *reinterpret_cast<const uint2*>(plan);
      at = *reinterpret_cast<const uint2*>(plan + to_offsets);
#pragma unroll
      for (int e = 0; e < PIECE / 32; e++) {
        const int word = 32 * (e >> 2) + (e & 3);
        const u32 b0 = p0[word], b1 = p1[word], b2 = p2[word], b3 = p3[word];
        product(acc[0][e], A0, b0, b1, b2, b3, meta0);
        product(acc[1][e], A1, b0, b1, b2, b3, meta1);
      }
    }
#if HAS_COPY_ENGINE
    if (same <= EARLY) turn_over();
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(bars + 16 + 8 * (k & 1));
#endif
#ifdef GROUPS
    const int group = list[k].group & 0xffff;
    if (k + 1 == s.chunks || (list[k + 1].group & 0xffff) != group) {  // add the group's sums to y
      const int* const shift = shifts + ((i64)tile * s.groups + group) * TILE;
#pragma unroll
      for (int d = 0; d < 4; d++)
#pragma unroll
        for (int f = 0; f < PIECE / 128; f++) {
          __syncwarp();
#pragma unroll
          for (int z = 0; z < 8; z++)
            turn[(g >> 2) * ROW + 40 * q + 4 * z + (g & 3)] =
                (u32)acc[d >> 1][4 * f + (z & 3)][2 * (d & 1) + (z >> 2)] >> (2 + (d & 1));
          __syncwarp();
          for (int r = 0; r < 2; r++) {
            const int m = tile * TILE + 2 * d + r;
            const int t = t0 + piece * PIECE + 128 * f - __ldg(shift + 2 * d + r) + lane;
            u32* const row = y + (i64)(m - s.row0) * s.ypitch + t;
            if (m < s.ndm && !idle)
#pragma unroll
              for (int i = 0; i < 4; i++)
                if ((u32)(t + 32 * i) < (u32)s.count) atomicAdd(row + 32 * i, s.weight * turn[r * ROW + 40 * i + lane]);
          }
        }
#pragma unroll
      for (int j = 0; j < PIECE / 16; j++)
#pragma unroll
        for (int z = 0; z < 4; z++) acc[j & 1][j / 2][z] = 0;
    }
#endif
  }
#ifndef GROUPS
  __syncthreads();
  u32* const turn = sm + warp * TILE * ROW;
#pragma unroll
  for (int f = 0; f < PIECE / 128; f++) {
#pragma unroll
    for (int d = 0; d < 4; d++)
#pragma unroll
      for (int z = 0; z < 8; z++)
        turn[(2 * d + (g >> 2)) * ROW + 40 * q + 4 * z + (g & 3)] =
            (u32)acc[d >> 1][4 * f + (z & 3)][2 * (d & 1) + (z >> 2)] >> (2 + (d & 1));
    __syncwarp();
    for (int r = 0; r < TILE; r++) {
      const int m = tile * TILE + r, t = t0 + piece * PIECE + 128 * f + 4 * lane;
      uint4 v = *reinterpret_cast<const uint4*>(turn + r * ROW + 4 * lane + 8 * (lane >> 3));
      if (m >= s.ndm || idle || t >= s.count) continue;
      uint4* const to = reinterpret_cast<uint4*>(y + (i64)(m - s.row0) * s.ypitch + t);
      const uint4 old = s.fresh ? make_uint4(s.start, s.start, s.start, s.start) : *to;
      *to = make_uint4(old.x + s.weight * v.x, old.y + s.weight * v.y, old.z + s.weight * v.z, old.w + s.weight * v.w);
    }
    __syncwarp();
  }
#endif
}

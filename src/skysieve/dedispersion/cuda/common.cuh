// Types and sizes of the de-dispersion kernels.
#pragma once
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define TILE 8          // DMs of a tile: what a warp of the tensor kernel sums
#define PIECE 256       // samples that a warp sums
#define FRONT 256       // bytes of a row before its first sample
#define BLOCK_WORDS 72  // of the plan, for 16 words of the input
#define MOST_WORDS 16   // words of a channel that 8 DMs can touch: two each

// Each row is skewed by one word more than the row before, up to 3, so that equal words of neighbouring channels
// lie in different banks.
__host__ __device__ inline int skew_of(int channel) { return 4 * (channel & 3); }

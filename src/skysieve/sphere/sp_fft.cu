// Transforms of rows whose length is a power of two, L, and what is around them in one kernel, float32: a block a row.
//
// Bytes: a map and its modes once; operations: 5 L log2 L.  Limited by memory.
// archs: 75 80 86 89 90 100 120
// build: f32_512 -DREAL=float -DL=512
// build: f32_8192 -DREAL=float -DL=8192
// build: f32_16384 -DREAL=float -DL=16384
#include "sp_fft.cuh"

extern "C" __global__ void __launch_bounds__(T, BLOCKS) forward_plain(const REAL* __restrict__ map,
    const REAL* __restrict__ w, const Row* __restrict__ rows, const Two* __restrict__ turns, Two* __restrict__ modes,
    i64 npix, int rings, int first, int spin, int part) {
  extern __shared__ REAL shared[];
  int t = threadIdx.x, row = first + blockIdx.x;
  const Row r = rows[row];
  Two v[16];
#pragma unroll
  for (int k = 0; k < 16; k++) v[k] = pixel(map, w, r, row, rings, t + T * k, spin, npix, part);
  transform(v, shared, turns, t);
#pragma unroll
  for (int k = 0; k < 16; k++) spread_modes(modes, r, t + T * k, v[k]);
}

extern "C" __global__ void __launch_bounds__(T, BLOCKS) back_plain(const Two* __restrict__ sums,
    const REAL* __restrict__ w, const Row* __restrict__ rows, const Two* __restrict__ turns, REAL* __restrict__ map,
    int* __restrict__ flag, i64 npix, int rings, int first, int spin, int part) {
  extern __shared__ REAL shared[];
  int t = threadIdx.x, row = first + blockIdx.x;
  const Row r = rows[row];
  Two v[16];
#pragma unroll
  for (int k = 0; k < 16; k++) v[k] = folded(sums, r, t + T * k);
  transform(v, shared, turns, t);
  bool bad = false;
#pragma unroll
  for (int k = 0; k < 16; k++) bad |= put(map, w, r, row, rings, t + T * k, spin, npix, part, conj(v[k]));
  if (bad) *flag = 1;
}

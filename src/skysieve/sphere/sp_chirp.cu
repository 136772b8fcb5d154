// Transforms of rows of any length up to 2 L, by chirps, and what is around them in one kernel, float32: a block a residue
// of a row, all in registers and shared memory (see `sp_ring.cu`, `sp_fft.cuh`).
//
// Bytes: a map or its modes once, and the chirps' spectrum, which four residues share; operations: 10 L log2 L.  Limited
// by the latency of the exchanges, and by loads.
// archs: 75 80 86 89 90 100 120
// build: f32_512 -DREAL=float -DL=512
// build: f32_4096 -DREAL=float -DL=4096
// build: f32_16384 -DREAL=float -DL=16384
// budget: f32_512 kernel=forward_chirped regs<=128 spills<=32
// budget: f32_4096 kernel=forward_chirped regs<=128 spills<=512
// budget: f32_4096 kernel=back_chirped regs<=128 spills<=512
// budget: f32_16384 kernel=forward_chirped regs<=64 spills<=1024
// budget: f32_16384 kernel=back_chirped regs<=64 spills<=1024
#include "sp_fft.cuh"

// Convolution with the chirp, of which `spectrum` is the transform.
DI void convolve(Two* v, REAL* shared, const Two* turns, const Two* __restrict__ spectrum, int t) {
  transform(v, shared, turns, t);
#pragma unroll
  for (int k = 0; k < 16; k++) v[k] = conj(times(v[k], spectrum[t + T * k]));
  transform(v, shared, turns, t);
#pragma unroll
  for (int k = 0; k < 16; k++) v[k].y = -v[k].y;
}

// grid: residues, rows.
extern "C" __global__ void __launch_bounds__(T, BLOCKS) forward_chirped(const REAL* __restrict__ map,
    const REAL* __restrict__ w, const Row* __restrict__ rows, const Two* __restrict__ turns,
    const Two* __restrict__ spectra, Two* __restrict__ modes, i64 npix, int rings, int first, int spin, int part) {
  extern __shared__ REAL shared[];
  int t = threadIdx.x, e = blockIdx.x, row = first + blockIdx.y;
  const Row r = rows[row];
  Two v[16];
#pragma unroll
  for (int k = 0; k < 16; k++) {
    int j = t + T * k;
    v[k].x = v[k].y = 0;
    if (k < 8 && j < r.m) {
      Two s = pixel(map, w, r, row, rings, j, spin, npix, part);
      if (r.residues == 4) {
#pragma unroll
        for (int q = 1; q < 4; q++)
          s = add(s, quarter_turns(pixel(map, w, r, row, rings, (i64)q * r.m + j, spin, npix, part), q * e));
      }
      v[k] = times(s, r.residues == 1 ? chirp((i64)j * j, r.m) : chirp(2LL * e * j + 4LL * j * j, 4 * r.m));
    }
  }
  convolve(v, shared, turns, spectra + (i64)blockIdx.y * L, t);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    int q = t + T * k;
    if (q < r.m) spread_modes(modes, r, r.residues * q + e, times(v[k], chirp((i64)q * q, r.m)));
  }
}

// Residues of output rows into [row][residue][L / 2], for `store_chirped`.
extern "C" __global__ void __launch_bounds__(T, BLOCKS) back_chirped(const Two* __restrict__ sums,
    const Row* __restrict__ rows, const Two* __restrict__ turns, const Two* __restrict__ spectra,
    Two* __restrict__ buffer, int first) {
  extern __shared__ REAL shared[];
  int t = threadIdx.x, e = blockIdx.x;
  const Row r = rows[first + blockIdx.y];
  Two v[16];
#pragma unroll
  for (int k = 0; k < 16; k++) {
    int q = t + T * k;
    v[k].x = v[k].y = 0;
    if (k < 8 && q < r.m) v[k] = times(folded(sums, r, r.residues * q + e), chirp((i64)q * q, r.m));
  }
  convolve(v, shared, turns, spectra + (i64)blockIdx.y * L, t);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    int j = t + T * k;
    if (j < r.m)
      buffer[((i64)blockIdx.y * r.residues + e) * (L / 2) + j] =
          times(v[k], r.residues == 1 ? chirp((i64)j * j, r.m) : chirp(2LL * e * j + 4LL * j * j, 4 * r.m));
  }
}

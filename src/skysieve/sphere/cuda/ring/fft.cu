// Transforms of rows of LENGTH or 2 LENGTH pixels, LENGTH a power of two, with the scaling before and after them.
//
// Layout: a block computes a row, or the even or odd modes of a row.
// Cost: a map and its modes are read or written once; with 2 LENGTH pixels the map is read twice, and a result is read
//   once more on the way back; 5 LENGTH log2 LENGTH operations.
// Limit: memory.
// archs: 75 80 86 89 90 100 120
// build: f32_512 -DREAL=float -DLENGTH=512
// build: f32_8192 -DREAL=float -DLENGTH=8192
// build: f32_16384 -DREAL=float -DLENGTH=16384
// build: f64_8192 -DREAL=double -DLENGTH=8192
// budget: f32_8192 kernel=forward_plain regs<=64 spills<=64
// budget: f32_8192 kernel=back_plain regs<=64 spills<=64
// budget: f32_16384 kernel=forward_plain regs<=64 spills<=64
// budget: f32_16384 kernel=back_plain regs<=64 spills<=64
#include "ring/fft.cuh"

#ifdef WHOLE  // a build for rows of length LENGTH alone
#define PARTS_OF_ROW 1
#else
#define PARTS_OF_ROW ((int)gridDim.x)
#endif

// exp(-i m phi) of a row, from a table of modes 0 .. for the rows whose phi is not 0
DI Two phase_of(const Row& r, int m, const Two* __restrict__ phases) {
  Two p = {1, 0};
  if (r.phi == 0) return p;
  p = phases[m < 0 ? -m : m];
  if (m < 0) p.y = -p.y;
  return p;
}

// grid: residues (1 or 2), rows.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) forward_plain(
    const REAL* __restrict__ map, const REAL* __restrict__ w, const Row* __restrict__ rows,
    const Two* __restrict__ turns, const Two* __restrict__ phases, Two* __restrict__ modes, i64 npix, int rings,
    int first, int spin, int part) {
  extern __shared__ REAL shared[];
  int t = threadIdx.x, e = blockIdx.x, residues = PARTS_OF_ROW, row = first + blockIdx.y;
  const Row r = rows[row];
  REAL here = w[row], there = w[rings - 1 - row];
  Two v[16];
#pragma unroll
  for (int k = 0; k < 16; k++) v[k] = scaled_pixel(map, here, there, r, t + THREADS * k, spin, npix, part);
  if (residues == 2) {
    Two turn = turned(-(REAL)t / LENGTH);
#pragma unroll
    for (int k = 0; k < 16; k++) {
      Two z = scaled_pixel(map, here, there, r, t + THREADS * k + LENGTH, spin, npix, part);
      v[k] = e ? times(sub(v[k], z), times(turn, turns[k * (LENGTH / 32)])) : add(v[k], z);
    }
  }
  transform(v, shared, turns, t);
#pragma unroll
  for (int k = 0; k < 16; k++) {
    if (2 * r.most >= r.n) break;
    int at = residues * (t + THREADS * k) + e, m = at <= r.most ? at : at - r.n;
    if (m >= -r.most) modes[r.place + (m >= 0 ? m : r.most + 1 - m)] = times(v[k], phase_of(r, m, phases));
    if (at == 0) modes[r.place + r.most + 1] = v[k];  // mode 0 has two places
  }
  if (2 * r.most < r.n) return;
  // modes beyond n / 2 repeat those below
  Two* held = (Two*)shared;
#pragma unroll
  for (int k = 0; k < 16; k++) held[t + THREADS * k] = v[k];
  __syncthreads();
#pragma unroll 4
  for (int k = t; k < 2 * (r.most + 1); k += THREADS) {
    int m = k <= r.most ? k : r.most + 1 - k, at = m & (r.n - 1);
    if (residues == 1 || (at & 1) == e) modes[r.place + k] = times(held[at / residues], phase_of(r, m, phases));
  }
}

// With two residues, `join` combines the parts that are left in the map.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) back_plain(
    const Two* __restrict__ sums, const REAL* __restrict__ w, const Row* __restrict__ rows,
    const Two* __restrict__ turns, const Two* __restrict__ phases, REAL* __restrict__ map, int* __restrict__ flag,
    i64 npix, int rings, int first, int spin, int part) {
  extern __shared__ REAL shared[];
  int t = threadIdx.x, e = blockIdx.x, residues = PARTS_OF_ROW, row = first + blockIdx.y;
  const Row r = rows[row];
  Two v[16];
  if (r.most < r.n) {
    // each element is mode `at`, at - n or the sum of both, if there are such modes
    const Two* from = sums + r.place;
#pragma unroll
    for (int k = 0; k < 16; k++) {
      v[k].x = v[k].y = 0;
      int at = residues * (t + THREADS * k) + e, below = r.n - at;
      if (at <= r.most) v[k] = times(conj(from[at]), phase_of(r, at, phases));
      if (below <= r.most) v[k] = add(v[k], times(conj(from[r.most + 1 + below]), phase_of(r, -below, phases)));
    }
  } else {
    Two* held = (Two*)shared;
#pragma unroll 4
    for (int k = t; k < LENGTH; k += THREADS) {
      int at = residues * k + e, m = at - ((at + r.most) & -r.n);  // n is a power of two
      Two s = times(conj(sums[r.place + (m >= 0 ? m : r.most + 1 - m)]), phase_of(r, m, phases));
      for (m += r.n; m <= r.most; m += r.n)
        s = add(s, times(conj(sums[r.place + (m >= 0 ? m : r.most + 1 - m)]), phase_of(r, m, phases)));
      held[k] = s;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; k++) v[k] = held[t + THREADS * k];
    __syncthreads();
  }
  transform(v, shared, turns, t);
  if (residues == 2) {
    Two turn = turned(-(REAL)t / LENGTH);
#pragma unroll
    for (int k = 0; k < 16; k++) {
      Two z = e ? times(v[k], times(turn, turns[k * (LENGTH / 32)])) : v[k];
      put_plain(map, r, t + THREADS * k + e * LENGTH, spin, npix, part, 1, 1, conj(z));
    }
    return;
  }
  REAL here = w[row], there = w[rings - 1 - row];
  bool bad = false;
#pragma unroll
  for (int k = 0; k < 16; k++) {
    put_plain(map, r, t + THREADS * k, spin, npix, part, here, there, conj(v[k]));
    bad |= strange(v[k].x) || strange(v[k].y);
  }
  if (bad) *flag = 1;
}

// grid: LENGTH / 256, rows: the halves of rows from their even and odd modes.
extern "C" __global__ void __launch_bounds__(256) join(const REAL* __restrict__ w, const Row* __restrict__ rows,
                                                       REAL* __restrict__ map, int* __restrict__ flag, i64 npix,
                                                       int rings, int first, int spin, int part) {
  int j = blockIdx.x * 256 + threadIdx.x, row = first + blockIdx.y;
  const Row r = rows[row];
  if (j >= LENGTH || (part && r.south == r.north)) return;
  Two a = scaled_pixel(map, 1, 1, r, j, spin, npix, part), b = scaled_pixel(map, 1, 1, r, j + LENGTH, spin, npix, part);
  bool bad = put(map, w, r, row, rings, j, spin, npix, part, add(a, b));
  if (put(map, w, r, row, rings, j + LENGTH, spin, npix, part, sub(a, b)) || bad) *flag = 1;
}

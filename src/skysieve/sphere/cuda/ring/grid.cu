// Transforms of rows of any length through a grid of LENGTH azimuths, a power of two: pixels are spread on the grid
// with a window of TAPS cells and transformed, and their modes are divided by those of the window; and the inverse.
//
// Layout: a block for a row, a thread for 16 points of the grid (`ring/fft.cuh`).  A value of the window serves the
//   four quarters of a ring and its mirror image.
// Cost: a map and its modes once; for a point of the grid 5 log2 LENGTH operations of the transform and TAPS (DEGREE +
//   16) / 4 multiply-adds, n / LENGTH times as many where the n pixels of a row are denser than the grid.
// Limit: latency of the exchanges, and memory.
// archs: 75 80 86 89 90 100 120
// build: f32_512 -DREAL=float -DLENGTH=512 -DTAPS=8 -DDEGREE=12
// build: f32_4096 -DREAL=float -DLENGTH=4096 -DTAPS=8 -DDEGREE=12
// build: f32_16384 -DREAL=float -DLENGTH=16384 -DTAPS=8 -DDEGREE=12
// build: f64_2048 -DREAL=double -DLENGTH=2048 -DTAPS=10 -DDEGREE=14
// budget: f32_512 kernel=forward_grid regs<=128 spills<=32
// budget: f32_4096 kernel=forward_grid regs<=96 spills<=64
// budget: f32_4096 kernel=back_grid regs<=96 spills<=64
// budget: f32_16384 kernel=forward_grid regs<=64 spills<=256
// budget: f32_16384 kernel=back_grid regs<=64 spills<=256
#include "ring/fft.cuh"

// The window over its width: a polynomial in y = scale d^2 - 1, d the distance from its centre, -1 there and 1 at the
// end.
struct Window {
  REAL scale, c[DEGREE + 1];
};

DI REAL value(const Window& w, REAL d) {
  REAL y = d * d * w.scale - 1, z = y * y, even = w.c[DEGREE], odd = w.c[DEGREE - 1];  // DEGREE is even
#pragma unroll
  for (int k = DEGREE - 2; k >= 0; k -= 2) {
    even = even * z + w.c[k];
    if (k > 0) odd = odd * z + w.c[k - 1];
  }
  return even + y * odd;
}

DI int wrapped(int j, int n) {
  j %= n;
  return j < 0 ? j + n : j;
}
// of j below 3 n: a division each would cost a sixth of the kernel
DI int wrapped_once_or_twice(int j, int n) {
  j -= j >= n ? n : 0;
  return j - (j >= n ? n : 0);
}

// grid: rows.  `factors`: what modes 0 .. are to be multiplied by.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) forward_grid(
    const REAL* __restrict__ map, const REAL* __restrict__ w, const Row* __restrict__ rows,
    const Two* __restrict__ turns, const REAL* __restrict__ factors, Two* __restrict__ modes, i64 npix, int rings,
    int first, int spin, int part, Window window) {
  extern __shared__ REAL shared[];
  Two* held = (Two*)shared;
  int t = threadIdx.x, row = first + blockIdx.x;
  const Row r = rows[row];
  const double ratio = (double)r.n / LENGTH, cell = (double)LENGTH / r.n, shift = 0.5 * r.phi * r.n;
  const REAL here = w[row], there = w[rings - 1 - row];
  int quarter = r.n / 4;
  Two v[16];
#pragma unroll
  for (int c = 0; c < 4; c++) {
    // points c THREADS .. c THREADS + THREADS - 1 of each quarter, and the pixels within their windows
    int j0 = (int)ceil((c * THREADS - TAPS / 2) * ratio - shift);
    int many = (int)floor((c * THREADS + THREADS - 1 + TAPS / 2) * ratio - shift) - j0 + 1;
    int from = wrapped(j0, r.n);
    if (c) __syncthreads();
    for (int k = t; k < many; k += THREADS) {
#pragma unroll
      for (int q = 0; q < 4; q++)
        held[q * many + k] =
            scaled_pixel(map, here, there, r, wrapped_once_or_twice(from + k + q * quarter, r.n), spin, npix, part);
    }
    __syncthreads();
    int g = c * THREADS + t;
    int low = (int)ceil((g - TAPS / 2) * ratio - shift), high = (int)floor((g + TAPS / 2) * ratio - shift);
    REAL d = (REAL)(g - (low + shift) * cell), step = (REAL)cell;
    Two s[4];
#pragma unroll
    for (int q = 0; q < 4; q++) s[q].x = s[q].y = 0;
    const Two* x = held + (low - j0);
#pragma unroll 2
    for (int k = 0; k <= high - low; k++) {
      REAL p = value(window, d - k * step);
#pragma unroll
      for (int q = 0; q < 4; q++) {
        Two z = x[q * many + k];
        s[q].x += p * z.x;
        s[q].y += p * z.y;
      }
    }
#pragma unroll
    for (int q = 0; q < 4; q++) v[c + 4 * q] = s[q];
  }
  __syncthreads();
  transform(v, shared, turns, t);
#pragma unroll
  for (int k = 0; k < 16; k++) {
    int at = t + THREADS * k, m = at < LENGTH / 2 ? at : LENGTH - at;
    if (m > r.most) continue;
    REAL f = factors[m];
    Two z = {v[k].x * f, v[k].y * f};
    modes[r.place + (at < LENGTH / 2 ? m : r.most + 1 + m)] = z;
    if (at == 0) modes[r.place + r.most + 1] = z;  // mode 0 has two places
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) back_grid(
    const Two* __restrict__ sums, const REAL* __restrict__ w, const Row* __restrict__ rows,
    const Two* __restrict__ turns, const REAL* __restrict__ factors, REAL* __restrict__ map, int* __restrict__ flag,
    i64 npix, int rings, int first, int spin, int part, Window window) {
  extern __shared__ REAL shared[];
  Two* held = (Two*)shared;
  int t = threadIdx.x, row = first + blockIdx.x;
  const Row r = rows[row];
  const double cell = (double)LENGTH / r.n, shift = 0.5 * r.phi * r.n;
  const REAL here = w[row], there = w[rings - 1 - row];
  int quarter = r.n / 4;
  Two v[16];
#pragma unroll
  for (int k = 0; k < 16; k++) {
    int at = t + THREADS * k, m = at < LENGTH / 2 ? at : LENGTH - at;
    v[k].x = v[k].y = 0;
    if (m <= r.most) {
      Two z = sums[r.place + (at < LENGTH / 2 ? m : r.most + 1 + m)];
      REAL f = factors[m];
      v[k].x = z.x * f;
      v[k].y = -z.y * f;
    }
  }
  transform(v, shared, turns, t);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 16; k++) held[t + THREADS * k] = v[k];
  __syncthreads();
  bool bad = false;
  for (int j = t; j < quarter; j += THREADS) {
    double u = (j + shift) * cell;
    int g = (int)ceil(u - TAPS / 2);
    REAL d = (REAL)(g - u);
    Two s[4];
#pragma unroll
    for (int q = 0; q < 4; q++) s[q].x = s[q].y = 0;
#pragma unroll 2
    for (int k = 0; k < TAPS; k++) {
      REAL p = value(window, d + k);
#pragma unroll
      for (int q = 0; q < 4; q++) {
        Two z = held[(g + k + q * (LENGTH / 4)) & (LENGTH - 1)];
        s[q].x += p * z.x;
        s[q].y += p * z.y;
      }
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
      put_plain(map, r, j + q * quarter, spin, npix, part, here, there, conj(s[q]));
      bad |= strange(s[q].x) || strange(s[q].y);
    }
  }
  if (bad) *flag = 1;
}

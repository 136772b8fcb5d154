// The correction around HEALPix's poles of quadrature "band" (see grids/polar_correction.py), for a map in RING order.
//
// Layout: forward, backward: a block computes the correction of one pixel around a pole from the pixels there; its
//   threads share the sum.  add: one thread adds one correction to its pixel.
// The pixels around the poles are listed four times, rotated by quarters of a turn, for both poles: list j = 2 k + pole
//   for k quarters.  Q + i U is summed in axes that do not rotate with the azimuth; sums are float64.
// Cost: for each of 1088 results, 1200 pixels and a row of the matrix (136 x 1200, from the second-level cache); a
//   multiply-add for each.
// Limit: latency, a few microseconds for maps of any size.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// budget: f32 kernel=forward regs<=64 smem<=4096 spills<=0
#include "common.cuh"

struct __align__(16) Turn {
  double x, y;
};

// One pixel times a weight; Q and U (npix later) are rotated into axes that do not rotate with the azimuth.
DI void add_pixel(double* sum, const REAL* __restrict__ map, const i64* __restrict__ at, const Turn* __restrict__ turn,
                  int k, double weight, i64 npix, int spin) {
  i64 p = at[k];
  double q = map[p];
  if (!spin) {
    sum[0] += weight * q;
    return;
  }
  double u = map[npix + p];
  Turn t = turn[k];
  sum[0] += weight * (q * t.x - u * t.y);
  sum[1] += weight * (q * t.y + u * t.x);
}

// The block's sums into change[place] and, for Q and U, change[count + place].
DI void store(const double* sum, double* __restrict__ change, int place, int count, int spin) {
  __shared__ double held[2][128];
  held[0][threadIdx.x] = sum[0];
  held[1][threadIdx.x] = sum[1];
  for (int h = 64; h; h >>= 1) {
    __syncthreads();
    if (threadIdx.x < h) {
      held[0][threadIdx.x] += held[0][threadIdx.x + h];
      held[1][threadIdx.x] += held[1][threadIdx.x + h];
    }
  }
  if (threadIdx.x) return;
  change[place] = held[0][0];
  if (spin) change[count + place] = held[1][0];
}

// grid: pixels of a quarter that change, 8 lists; `read` pixels (columns of the matrix) enter.
extern "C" __global__ void __launch_bounds__(128) forward(const REAL* __restrict__ map, const i64* __restrict__ at,
                                                          const Turn* __restrict__ turn,
                                                          const double* __restrict__ matrix,
                                                          double* __restrict__ change, int read, i64 npix, int spin) {
  int a = blockIdx.x, j = blockIdx.y;
  double sum[2] = {0, 0};
  for (int b = threadIdx.x; b < read; b += 128)
    add_pixel(sum, map, at, turn, j * read + b, matrix[a * read + b], npix, spin);
  store(sum, change, j * gridDim.x + a, 8 * gridDim.x, spin);
}

// The transposed operator.  grid: pixels that `forward` reads, both poles; `quarter` pixels of each of the 8 lists
// enter.  before[k * gridDim.x + p] is the pixel that comes to p after k quarters of a turn.
extern "C" __global__ void __launch_bounds__(128) backward(const REAL* __restrict__ map, const i64* __restrict__ at,
                                                           const Turn* __restrict__ turn,
                                                           const double* __restrict__ matrix,
                                                           const int* __restrict__ before, double* __restrict__ change,
                                                           int quarter, i64 npix, int spin) {
  int p = blockIdx.x, read = gridDim.x, pole = blockIdx.y;
  double sum[2] = {0, 0};
#pragma unroll 1
  for (int t = threadIdx.x; t < 4 * quarter; t += 128) {
    int k = t / quarter, a = t % quarter;
    double weight = matrix[a * read + before[k * read + p]];
    add_pixel(sum, map, at, turn, (2 * k + pole) * quarter + a, weight, npix, spin);
  }
  store(sum, change, pole * read + p, 2 * read, spin);
}

// Changes of `count` different pixels, added to them.
extern "C" __global__ void add(REAL* __restrict__ map, const i64* __restrict__ at, const Turn* __restrict__ turn,
                               const double* __restrict__ change, int count, i64 npix, int spin) {
  int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= count) return;
  i64 p = at[k];
  double q = change[k];
  if (!spin) {
    map[p] += (REAL)q;
    return;
  }
  double u = change[count + k];
  Turn t = turn[k];
  map[p] += (REAL)(q * t.x + u * t.y);
  map[npix + p] += (REAL)(u * t.x - q * t.y);
}

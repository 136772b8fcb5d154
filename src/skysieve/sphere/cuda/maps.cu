// Means, deviations, bad pixels and the order of maps.
//
// Layout: look: blocks share some pixels; add_up, less_mean, add_mean: blocks share the map, 16 bytes per thread at a
//   time; clean, restore_bad: the same, one pixel per thread at a time; reorder: one thread per pixel.
// Cost: the map is read once and, except by `look` and `add_up`, written once; a few operations per pixel.
// Limit: memory.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
#include "common.cuh"

// Sums of `count` pixels, `stride` apart, less the first one, and of their squares: one pair for each
// block, and the first pixel.
extern "C" __global__ void __launch_bounds__(256) look(const REAL* __restrict__ in, double* __restrict__ found,
                                                       i64 count, i64 stride) {
  __shared__ double a[256], b[256];
  double s = 0, t = 0;
  for (i64 k = (i64)blockIdx.x * 256 + threadIdx.x; k < count; k += (i64)gridDim.x * 256) {
    double v = (double)in[k * stride] - (double)in[0];
    s += v;
    t += v * v;
  }
  a[threadIdx.x] = s;
  b[threadIdx.x] = t;
  for (int h = 128; h; h >>= 1) {
    __syncthreads();
    if (threadIdx.x < h) {
      a[threadIdx.x] += a[threadIdx.x + h];
      b[threadIdx.x] += b[threadIdx.x + h];
    }
  }
  if (threadIdx.x == 0) {
    found[2 * blockIdx.x] = a[0];
    found[2 * blockIdx.x + 1] = b[0];
    if (blockIdx.x == 0) found[2 * gridDim.x] = (double)in[0];
  }
}

struct __align__(16) Vector {
  REAL v[16 / sizeof(REAL)];
};
#define PIXELS ((int)(16 / sizeof(REAL)))

// The sum of a block's 256 threads, in all of them.
DI double block_sum(double s) {
  __shared__ double held[256];
  held[threadIdx.x] = s;
  for (int h = 128; h; h >>= 1) {
    __syncthreads();
    if (threadIdx.x < h) held[threadIdx.x] += held[threadIdx.x + h];
  }
  __syncthreads();
  s = held[0];
  __syncthreads();
  return s;
}
DI double total(const double* __restrict__ sums, int count) {
  double s = 0;
  for (int k = threadIdx.x; k < count; k += 256) s += sums[k];
  return block_sum(s);
}

// Sums of all pixels of grid.y maps, one for each block; npix is a multiple of PIXELS.
extern "C" __global__ void __launch_bounds__(256) add_up(const Vector* __restrict__ in, double* __restrict__ sums,
                                                         i64 npix) {
  double s = 0;
  in += blockIdx.y * (npix / PIXELS);
#pragma unroll 2
  for (i64 k = (i64)blockIdx.x * 256 + threadIdx.x; k < npix / PIXELS; k += (i64)gridDim.x * 256) {
    Vector t = in[k];
#pragma unroll
    for (int p = 0; p < PIXELS; p++) s += t.v[p];
  }
  s = block_sum(s);
  if (threadIdx.x == 0) sums[blockIdx.y * gridDim.x + blockIdx.x] = s;
}

// A map less its mean, of `count` sums of `add_up`; `out` may be `in`.
extern "C" __global__ void __launch_bounds__(256) less_mean(const Vector* in, Vector* out,
                                                            const double* __restrict__ sums, int count, i64 npix) {
  double mean = total(sums, count) / npix;
#pragma unroll 2
  for (i64 k = (i64)blockIdx.x * 256 + threadIdx.x; k < npix / PIXELS; k += (i64)gridDim.x * 256) {
    Vector t = in[k];
#pragma unroll
    for (int p = 0; p < PIXELS; p++) t.v[p] = (REAL)(t.v[p] - mean);
    out[k] = t;
  }
}

// Results (grid.y kernels) plus the map's mean times each kernel's integral.  `own`: sums of the results, whose own
// means are taken off, or null.
extern "C" __global__ void __launch_bounds__(256) add_mean(Vector* __restrict__ out, const double* __restrict__ sums,
                                                           const double* __restrict__ integral,
                                                           const double* __restrict__ own, int count, i64 npix) {
  __shared__ REAL held;  // rounded before it is added
  double mean = total(sums, count) / npix;
  double less = own ? total(own + blockIdx.y * count, count) / npix : 0;
  if (threadIdx.x == 0) held = (REAL)(mean * integral[blockIdx.y] - less);
  __syncthreads();
  REAL plus = held;
  out += blockIdx.y * (npix / PIXELS);
#pragma unroll 2
  for (i64 k = (i64)blockIdx.x * 256 + threadIdx.x; k < npix / PIXELS; k += (i64)gridDim.x * 256) {
    Vector t = out[k];
#pragma unroll
    for (int p = 0; p < PIXELS; p++) t.v[p] += plus;
    out[k] = t;
  }
}

// Whether a pixel is UNSEEN, NaN or infinite.
DI bool is_bad(REAL v) {
  REAL shifted = v + (REAL)1.6375e30;
  return !(v - v == 0) || (shifted <= (REAL)1.6375e25 && shifted >= (REAL)-1.6375e25);
}

// A map with bad pixels set to 0; `bad` becomes 1 if there are any.
extern "C" __global__ void __launch_bounds__(256) clean(const REAL* __restrict__ in, REAL* __restrict__ out,
                                                        int* __restrict__ bad, i64 npix) {
#pragma unroll 4
  for (i64 k = (i64)blockIdx.x * 256 + threadIdx.x; k < npix; k += (i64)gridDim.x * 256) {
    REAL v = in[k];
    bool wrong = is_bad(v);
    if (wrong) *bad = 1;
    out[k] = wrong ? (REAL)0 : v;
  }
}

// Bad pixels of a map, copied into its result; nothing if `clean` found none.
extern "C" __global__ void __launch_bounds__(256) restore_bad(const REAL* __restrict__ in, REAL* __restrict__ out,
                                                              const int* __restrict__ bad, i64 npix) {
  if (!*bad) return;
  for (i64 k = (i64)blockIdx.x * 256 + threadIdx.x; k < npix; k += (i64)gridDim.x * 256) {
    REAL v = in[k];
    if (is_bad(v)) out[k] = v;
  }
}

// Even bits of a number, moved together.
DI i64 even_bits(i64 v) {
  v &= 0x5555555555555555LL;
  v = (v | (v >> 1)) & 0x3333333333333333LL;
  v = (v | (v >> 2)) & 0x0F0F0F0F0F0F0F0FLL;
  v = (v | (v >> 4)) & 0x00FF00FF00FF00FFLL;
  v = (v | (v >> 8)) & 0x0000FFFF0000FFFFLL;
  return (v | (v >> 16)) & 0x00000000FFFFFFFFLL;
}

// From NESTED to RING order (`back` the other way); one thread a nested pixel.
extern "C" __global__ void __launch_bounds__(256) reorder(const REAL* __restrict__ in, REAL* __restrict__ out,
                                                          int nside, int back) {
  i64 p = (i64)blockIdx.x * 256 + threadIdx.x, face_size = (i64)nside * nside;
  if (p >= 12 * face_size) return;
  int face = (int)(p / face_size);
  i64 inside = p % face_size, x = even_bits(inside), y = even_bits(inside >> 1);
  i64 i = (2 + face / 4) * (i64)nside - x - y - 1;
  i64 m = i < nside ? i : i > 3LL * nside ? 4LL * nside - i : nside;
  i64 unshifted = i >= nside && i <= 3LL * nside ? (i - nside) & 1 : 0;
  int column = face / 4 == 1 ? 2 * (face & 3) : 2 * (face & 3) + 1;
  i64 c = (column * m + x - y + 1 + unshifted) / 2 - 1;
  if (column * m + x - y + 1 + unshifted < 0) c = -1 - (-(column * m + x - y + 1 + unshifted) + 1) / 2;
  c = (c + 4 * m) % (4 * m);
  i64 first = i < nside         ? 2 * i * (i - 1)
              : i > 3LL * nside ? 12 * face_size - 2 * m * (m + 1)
                                : 2LL * nside * (nside - 1) + (i - nside) * 4LL * nside;
  if (back)
    out[p] = in[first + c];
  else
    out[first + c] = in[p];
}

// From raw light curves to what the periodogram's kernels read.
//
// ls_prepare: one block = one object. Counts usable rows, finds the time span and the status, sorts by time where needed
// (a bitonic network over the object's own rows in device memory; rows that are not finite go to the end), then writes
// relative times, normalised weights w and w (y - mean) / sqrt(YY). 24 bytes a row read (four times, from shared memory where
// they fit), 28 written: limited by latency (a few microseconds a block), not by bandwidth.
// ls_weights: one thread = one tap of 16 and four rows. Two polynomials of degree 15 a row, 16 bytes (float64) written: limited
// by the stores. Where sums are interpolated the weights are divided by the window's transform, another polynomial.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=ls_prepare regs<=128 smem<=20480 spills<=64
// budget: f32 kernel=ls_prepare regs<=128 smem<=20480 spills<=64
// budget: f64 kernel=ls_weights regs<=96
// budget: f32 kernel=ls_weights regs<=96
#include "ls_common.cuh"

#define MAX_WARPS 8
#define COEFFICIENTS 16
#define SHORTEST_SPAN 1e-290     // not even the reciprocal of a shorter one can be worked with
#define HELD 640            // rows kept in shared memory between the passes
#define EACH 4              // rows of one thread of ls_weights

struct Prepare {
  const double* t; const double* y; const double* dy; const int* offsets;
  const double* df; const Limit* limit;
  double* tp; double2* wv; int* owner; int* row; Info* info;
  unsigned* count; unsigned* floor; unsigned* bins;      // of the candidates: cleared here; bins, where there are any: 32 an object
  int centre, scale_kind, grid_stride, scan_only;
};

// Folds N numbers over the block at once, each by its operation (0 sum, 1 least, 2 greatest); every thread gets the results.
__device__ __forceinline__ double join(double a, double b, int op) { return op == 0 ? a + b : op == 1 ? fmin(a, b) : fmax(a, b); }
template <int N> __device__ void block_fold(double (&v)[N], const int (&op)[N], double* part) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int i = 0; i < N; i++)
    for (int k = 16; k; k >>= 1) v[i] = join(v[i], __shfl_xor_sync(FULL, v[i], k), op[i]);
  __syncthreads();
  if (!lane)
#pragma unroll
    for (int i = 0; i < N; i++) part[i * MAX_WARPS + warp] = v[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; i++) {           // every warp adds up the eight, in pairs
    v[i] = part[i * MAX_WARPS + (lane & (MAX_WARPS - 1))];
    for (int k = MAX_WARPS / 2; k; k >>= 1) v[i] = join(v[i], __shfl_xor_sync(FULL, v[i], k), op[i]);
  }
}

// Sorts rows by time, then y, then dy: one order whatever order they came in. Bitonic with the first step of each merge
// reflected, so that every comparison puts the smaller first and an n that is no power of two needs no padding.
__device__ void block_sort(double* key, int* row, int n, const double* y, const double* dy) {
  for (int size = 2; size < 2 * n; size <<= 1) {
    for (int step = size >> 1; step; step >>= 1) {
      __syncthreads();
      for (int p = threadIdx.x; p < ((n + size - 1) / size) * (size >> 1); p += blockDim.x) {
        const int i = ((p & ~(step - 1)) << 1) | (p & (step - 1));
        const int j = step == size >> 1 ? i ^ (size - 1) : i + step;
        const int lo = i < j ? i : j, hi = i < j ? j : i;
        if (hi < n) {
          const double a = key[lo], b = key[hi];
          const int ra = row[lo], rb = row[hi];
          if (a > b || (a == b && (y[ra] > y[rb] || (y[ra] == y[rb] && dy && dy[ra] > dy[rb])))) {
            key[lo] = b; key[hi] = a; row[lo] = rb; row[hi] = ra;
          }
        }
      }
    }
  }
  __syncthreads();
}
// 2^-e for a positive number in [2^(e-1), 2^e): scaling by it rounds nothing. Numbers under 2^-1000 stay small.
__device__ __forceinline__ double unit_of(double x) {
  int e; frexp(x, &e);
  return ldexp(1.0, e < -1000 ? 1000 : -e);
}

extern "C" __global__ void __launch_bounds__(256) ls_prepare(const Prepare A) {
  __shared__ double part[8 * MAX_WARPS], rows[3 * HELD];
  const int o = blockIdx.x, lo = A.offsets[o], n = A.offsets[o + 1] - lo;
  const double* t = A.t + lo; const double* y = A.y + lo; const double* dy = A.dy ? A.dy + lo : 0;
  const double huge = __longlong_as_double(0x7ff0000000000000ll);
  const bool held = n <= HELD;
  double v[8] = {0, huge, -huge, huge, -huge, huge, 0, 0};      // used; t, y: least, greatest; least error; bad error; not in order
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const double ti = t[i], yi = y[i], e = dy ? dy[i] : 1.0, earlier = i ? t[i - 1] : -huge;
    const bool ok = isfinite(ti) && isfinite(yi) && isfinite(e);
    if (ok) {
      v[0] += 1; v[1] = fmin(v[1], ti); v[2] = fmax(v[2], ti); v[3] = fmin(v[3], yi); v[4] = fmax(v[4], yi);
      v[5] = fmin(v[5], e); if (!(e > 0)) v[6] = 1;
    }
    if (!ok || ti <= earlier) v[7] = 1;        // equal times too: they are ordered by value
    if (held) { rows[i] = ti; rows[HELD + i] = yi; rows[2 * HELD + i] = e; }
  }
  const int ops[8] = {0, 1, 2, 1, 2, 1, 2, 2};
  block_fold(v, ops, part);
  const double tmin = v[1], tmax = v[2], ymin = v[3], ymax = v[4], emin = v[5], span = tmax - tmin;
  const int m = (int)v[0];
  const bool dirty = v[7] > 0;
  Info info;
  info.n = m; info.dropped = n - m; info.apart = 1; info.t_min = tmin; info.span = span; info.scale = 1;
  info.status = m == 0 ? 1 : v[6] > 0 ? 3 : m < 4 ? 2 : !(span >= SHORTEST_SPAN) ? 5 : !isfinite(span) ? 6 : ymax == ymin ? 4 : 0;
  if (m == 0) { info.t_min = missing64(); info.span = missing64(); }
  if (A.scan_only) { if (!threadIdx.x) A.info[o] = info; return; }
  if (!threadIdx.x) { A.count[o] = 0; A.floor[o] = 0; }
  if (A.bins && threadIdx.x < 32) A.bins[o * 32 + threadIdx.x] = 0;
  const double df = A.df[o * A.grid_stride];
  // The origin of times is the first one rounded down to the spacing of the largest: t - origin is then exact for times of one sign.
  const double largest = fmax(fabs(tmin), fabs(tmax)), step = nextafter(largest, huge) - largest;
  if (info.status == 0) {
    const Limit limit = A.limit[o];
    const double cycles = df * (span + 2 * step);
    if (!(cycles > limit.least && cycles <= limit.most) || m < limit.few || m > limit.many) info.status = 100;
    const double apart = ceil(1 / (span * df) - 1e-9);
    info.apart = apart < 1 ? 1 : apart > 1e9 ? 1000000000 : (int)apart;
  }
  if (info.status != 0) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) A.owner[lo + i] = -1;
    if (!threadIdx.x) A.info[o] = info;
    return;
  }
  if (dirty) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      const bool ok = isfinite(t[i]) && isfinite(y[i]) && (!dy || isfinite(dy[i]));
      A.tp[lo + i] = ok ? t[i] : huge; A.row[lo + i] = i;
    }
    block_sort(A.tp + lo, A.row + lo, n, y, dy);
  }
  // y is scaled by powers of two (nothing is rounded) before anything is added or squared
  const double shrink = fmax(fabs(ymin), fabs(ymax)) > 1e150 ? 0x1p-600 : 1.0;
  const double base = A.centre ? ymin * shrink : 0.0;
  const double unit = unit_of(A.centre ? ymax * shrink - base : fmax(fabs(ymin), fabs(ymax)) * shrink);
  auto row = [&](int i) { return dirty ? A.row[lo + i] : i; };
  auto value = [&](int r) { return ((held ? rows[HELD + r] : y[r]) * shrink - base) * unit; };
  auto weight = [&](int r) { const double e = dy ? emin / (held ? rows[2 * HELD + r] : dy[r]) : 1.0; return e * e; };   // relative to the smallest error: no unit overflows
  const int sums[3] = {0, 0, 0};
  double a[3] = {0, 0, 0};              // weights; times y; how many there are
  for (int i = threadIdx.x; i < m; i += blockDim.x) { const int r = row(i); const double w = weight(r); a[0] += w; a[1] += w * value(r); a[2] += w > 0; }
  block_fold(a, sums, part);
  const double sw = a[0];
  double mean = A.centre ? a[1] / sw : 0.0, b[2] = {0, 0};
  for (int i = threadIdx.x; i < m; i += blockDim.x) { const int r = row(i); const double w = weight(r), d = value(r) - mean; b[0] += w * d * d; b[1] += w * d; }
  block_fold(b, {0, 0}, part);
  double yy = b[0] / sw;
  if (A.centre) { const double rest = b[1] / sw; mean += rest; yy -= rest * rest; }
  const double root = 1 / sqrt(yy), norm = 1 / sw;
  double origin = floor(tmin / step) * step;
  if (!isfinite(origin)) origin = tmin;
  if (a[2] < 2) info.status = 8;         // the errors leave weight to one point alone
  else if (!(yy > 0)) info.status = 4;   // y differs only where they leave none
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (i < m) {
      const int r = row(i);
      double2 w; w.x = weight(r) * norm; w.y = w.x * ((value(r) - mean) * root);
      A.wv[lo + i] = w;
      A.tp[lo + i] = (held ? rows[r] : t[r]) - origin;             // after the sort the key has done its work
    }
    A.owner[lo + i] = i < m && info.status == 0 ? o : -1;
  }
  if (!threadIdx.x) {
    const double inverse = dy ? sw / (emin * emin) : sw, back = 1 / unit / shrink, square = yy * back * back;
    info.scale = A.scale_kind == 1 ? 0.5 * inverse * square : A.scale_kind == 2 ? 0.5 * m * square : 1.0;
    A.info[o] = info;
  }
}

// ---------------------------------------------------------------- weights of the spreading kernel
struct Weights {
  const double* tp; const int* owner; const double* taps; const double* df; const Limit* limit;
  int2* cell; T* at_f; T* at_2f; const double* correction;
  int rows, grid_stride;
};
// Where sums are interpolated between frequencies, strengths are divided by the window's transform in time: polynomials in the
// square of the distance from the circle's middle, at f and at 2f.
#define CORRECTION 14
__device__ __forceinline__ double correct(const double* k, double z) {
  double v = k[CORRECTION - 1];
#pragma unroll
  for (int i = CORRECTION - 2; i >= 0; i--) v = fma(v, z, k[i]);
  return v;
}

extern "C" __global__ void __launch_bounds__(256) ls_weights(const Weights A) {
  const int a = threadIdx.x & 15;
  double c[COEFFICIENTS];
#pragma unroll
  for (int k = 0; k < COEFFICIENTS; k++) c[k] = A.taps[k * 16 + a];
  const long long first = (long long)blockIdx.x * (16 * EACH) + (threadIdx.x >> 4);
  double x[EACH];
  int owner[EACH];
  int window[EACH];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const long long p = first + 16 * e;
    owner[e] = p < A.rows ? A.owner[p] : -1;
    x[e] = p < A.rows ? A.tp[p] : 0;
  }
#pragma unroll
  for (int e = 0; e < EACH; e++)
    if (owner[e] >= 0) {
      const double circle = A.limit[owner[e]].circle;
      window[e] = (int)A.limit[owner[e]].window;
      if (circle > 0 && window[e] >= 0) x[e] = fma(x[e], circle * A.df[owner[e] * A.grid_stride], 8.0);      // 8: every tap falls on a cell >= 0
      else owner[e] = -1;
    }
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const long long p = first + 16 * e;
    const double x1 = x[e], x2 = 2 * x1, c1 = ceil(x1 - 8.0), c2 = ceil(x2 - 8.0);
    const double u1 = 2 * (c1 - (x1 - 8.0)) - 1, u2 = 2 * (c2 - (x2 - 8.0)) - 1;
    double p1 = c[COEFFICIENTS - 1], p2 = p1;
#pragma unroll
    for (int k = COEFFICIENTS - 2; k >= 0; k--) { p1 = fma(p1, u1, c[k]); p2 = fma(p2, u2, c[k]); }
    const int w = owner[e] < 0 ? 0 : window[e];
    if (__any_sync(FULL, w != 0)) {      // half of a row's lanes correct for f, half for 2f
      const double z = (x1 - 128) * 0x1p-7, v = w ? correct(A.correction + (2 * w - 2 + (a >> 3)) * CORRECTION, z * z) : 1.0;
      p1 *= __shfl_sync(FULL, v, threadIdx.x & 16); p2 *= __shfl_sync(FULL, v, (threadIdx.x & 16) + 8);
    }
    if (owner[e] < 0) continue;
    A.at_f[p * 16 + ((a + (int)c1) & 15)] = (T)p1;               // lane order: the lane is the cell modulo 16
    A.at_2f[p * 16 + ((a + (int)c2) & 15)] = (T)p2;
    if (!a) { int2 cell; cell.x = (int)c1; cell.y = (int)c2; A.cell[p] = cell; }
  }
}

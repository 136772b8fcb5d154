// From raw light curves to what the periodogram's kernels read.
//
// ls_prepare: one block = one object. Counts usable rows, finds the time span and the status, sorts by time where needed
// (a bitonic network over the object's own rows in device memory; rows that are not finite go to the end), then writes
// relative times, normalised weights w and w (y - mean) / sqrt(YY). Four passes over 24 bytes a row, 28 bytes written:
// limited by latency (a few microseconds a block), not by bandwidth.
// ls_weights: one thread = (row, tap of 16). Two polynomials of degree 15 a thread, 16 bytes (float64) written: limited by
// the stores.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=ls_prepare regs<=128 smem<=1024
// budget: f64 kernel=ls_weights regs<=64 smem<=2048
// budget: f32 kernel=ls_weights regs<=64 smem<=2048
#include "ls_common.cuh"

#define MAX_WARPS 32
#define COEFFICIENTS 16

struct Prepare {
  const double* t; const double* y; const double* dy; const int* offsets;
  const double* df;
  double* tp; double2* wv; int* owner; int* row; Info* info;
  unsigned* count; unsigned* floor;        // of the candidates: cleared here
  double most_cycles;          // df * span that the tables of this plan allow
  int centre, scale_kind, grid_stride, scan_only;
};

// Sums (or extremes) over the block; every thread gets the result.
template <int OP> __device__ double block_fold(double v, double* part) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  for (int k = 16; k; k >>= 1) {
    const double o = __shfl_xor_sync(FULL, v, k);
    v = OP == 0 ? v + o : OP == 1 ? fmin(v, o) : fmax(v, o);
  }
  __syncthreads();
  if (!lane) part[warp] = v;
  __syncthreads();
  v = part[0];
  for (int k = 1; k < warps; k++) v = OP == 0 ? v + part[k] : OP == 1 ? fmin(v, part[k]) : fmax(v, part[k]);
  return v;
}

// Sorts key[0..n) and its companion; ties by companion. Bitonic with the first step of each merge reflected, so that every
// comparison puts the smaller first and an n that is no power of two needs no padding.
__device__ void block_sort(double* key, int* row, int n) {
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
          if (a > b || (a == b && ra > rb)) { key[lo] = b; key[hi] = a; row[lo] = rb; row[hi] = ra; }
        }
      }
    }
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(512) ls_prepare(const Prepare A) {
  __shared__ double part[MAX_WARPS];
  const int o = blockIdx.x, lo = A.offsets[o], n = A.offsets[o + 1] - lo;
  const double* t = A.t + lo; const double* y = A.y + lo; const double* dy = A.dy ? A.dy + lo : 0;
  const double huge = __longlong_as_double(0x7ff0000000000000ll);
  double used = 0, tmin = huge, tmax = -huge, ymin = huge, ymax = -huge, emin = huge, bad = 0, dirty = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const double ti = t[i], yi = y[i], e = dy ? dy[i] : 1.0;
    const bool ok = isfinite(ti) && isfinite(yi) && isfinite(e);
    if (ok) {
      used += 1; tmin = fmin(tmin, ti); tmax = fmax(tmax, ti); ymin = fmin(ymin, yi); ymax = fmax(ymax, yi);
      emin = fmin(emin, e); if (!(e > 0)) bad = 1;
    }
    if (!ok || (i && ti < t[i - 1])) dirty = 1;
  }
  used = block_fold<0>(used, part); tmin = block_fold<1>(tmin, part); tmax = block_fold<2>(tmax, part);
  ymin = block_fold<1>(ymin, part); ymax = block_fold<2>(ymax, part); emin = block_fold<1>(emin, part);
  bad = block_fold<2>(bad, part); dirty = block_fold<2>(dirty, part);
  const int m = (int)used;
  Info info;
  info.n = m; info.dropped = n - m; info.apart = 1; info.t_min = tmin; info.span = tmax - tmin; info.scale = 1;
  info.status = m == 0 ? 1 : bad > 0 ? 3 : m < 4 ? 2 : tmax == tmin ? 5 : ymax == ymin ? 4 : 0;
  if (m == 0) { info.t_min = missing64(); info.span = missing64(); }
  if (A.scan_only) { if (!threadIdx.x) A.info[o] = info; return; }
  if (!threadIdx.x) { A.count[o] = 0; A.floor[o] = 0; }
  const double df = A.df[o * A.grid_stride];
  if (info.status == 0) {
    if (df * info.span > A.most_cycles) info.status = 100;      // the plan's tables are too small: the host tries again
    const double apart = ceil(1 / (info.span * df) - 1e-9);
    info.apart = apart < 1 ? 1 : apart > 1e9 ? 1000000000 : (int)apart;
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (dirty > 0) {
      const bool ok = isfinite(t[i]) && isfinite(y[i]) && (!dy || isfinite(dy[i]));
      A.tp[lo + i] = ok ? t[i] : huge; A.row[lo + i] = i;
    }
    A.owner[lo + i] = -1;
  }
  if (info.status != 0) { if (!threadIdx.x) A.info[o] = info; return; }
  if (dirty > 0) block_sort(A.tp + lo, A.row + lo, n);
  __syncthreads();
  // weights relative to the smallest error, so that no unit overflows
  double sw = 0, sy = 0;
  const double anchor = ymin;
  for (int i = threadIdx.x; i < m; i += blockDim.x) {
    const int r = dirty > 0 ? A.row[lo + i] : i;
    const double e = dy ? emin / dy[r] : 1.0, w = e * e;
    sw += w; sy += w * (y[r] - anchor);
  }
  sw = block_fold<0>(sw, part); sy = block_fold<0>(sy, part);
  double mean = A.centre ? anchor + sy / sw : 0.0, yy = 0, rest = 0;
  for (int i = threadIdx.x; i < m; i += blockDim.x) {
    const int r = dirty > 0 ? A.row[lo + i] : i;
    const double e = dy ? emin / dy[r] : 1.0, w = e * e, d = y[r] - mean;
    yy += w * d * d; rest += w * d;
  }
  yy = block_fold<0>(yy, part) / sw; rest = block_fold<0>(rest, part) / sw;
  if (A.centre) { mean += rest; yy -= rest * rest; }
  const double root = 1 / sqrt(yy);
  for (int i = threadIdx.x; i < m; i += blockDim.x) {
    const int r = dirty > 0 ? A.row[lo + i] : i;
    const double e = dy ? emin / dy[r] : 1.0, w = e * e / sw;
    const double time = t[r] - tmin;
    double2 v; v.x = w; v.y = w * ((y[r] - mean) * root);
    A.wv[lo + i] = v;
    A.tp[lo + i] = time;                 // after the sort the key has done its work
    A.owner[lo + i] = o;
  }
  if (!threadIdx.x) {
    const double inverse = dy ? sw / (emin * emin) : sw;
    info.scale = A.scale_kind == 1 ? 0.5 * inverse * yy : A.scale_kind == 2 ? 0.5 * m * yy : 1.0;
    A.info[o] = info;
  }
}

// ---------------------------------------------------------------- weights of the spreading kernel
struct Weights {
  const double* tp; const int* owner; const double* taps; const double* df;
  int2* cell; T* at_f; T* at_2f;
  double cells;                 // cells of one circle times combs: cells a unit of time is this times df
  int rows, grid_stride;
};

extern "C" __global__ void __launch_bounds__(256) ls_weights(const Weights A) {
  __shared__ double taps[COEFFICIENTS * 16];
  for (int i = threadIdx.x; i < COEFFICIENTS * 16; i += 256) taps[i] = A.taps[i];
  __syncthreads();
  const long long g = (long long)blockIdx.x * 256 + threadIdx.x;
  const long long p = g >> 4;
  const int a = (int)g & 15;
  if (p >= A.rows) return;
  const int o = A.owner[p];
  if (o < 0) return;
  const double rate = A.cells * A.df[o * A.grid_stride];
  const double x = A.tp[p] * rate + 8.0, x2 = 2 * x;           // 8 cells of margin: every tap falls on a cell >= 0
  const double c1 = ceil(x - 8.0), c2 = ceil(x2 - 8.0);
  const double u1 = 2 * (c1 - (x - 8.0)) - 1, u2 = 2 * (c2 - (x2 - 8.0)) - 1;
  double p1 = 0, p2 = 0;
#pragma unroll
  for (int k = COEFFICIENTS - 1; k >= 0; k--) { const double c = taps[k * 16 + a]; p1 = fma(p1, u1, c); p2 = fma(p2, u2, c); }
  const long long b = g & ~15ll;                               // lane order: the lane is the cell modulo 16
  A.at_f[b + ((a + (int)c1) & 15)] = (T)p1;
  A.at_2f[b + ((a + (int)c2) & 15)] = (T)p2;
  if (!a) { int2 c; c.x = (int)c1; c.y = (int)c2; A.cell[p] = c; }
}

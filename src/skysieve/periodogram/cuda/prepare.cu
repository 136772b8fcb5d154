// From raw light curves to the arrays that the periodogram's kernels read.
//
// ls_prepare: one block for each object. It counts usable rows, finds the time span and the status, sorts by
// time where needed (a bitonic network over the object's own rows in device memory; rows that are not finite go
// to the end), then writes relative times, normalised weights w and w (y - mean) / sqrt(YY). Cost: 24 bytes of
// each row are read (some of them again) and 28 written. Limit: latency, of memory and of instructions that are
// in no cache yet. Therefore loops are not unrolled, minima and maxima are found as integers, and 1,000 objects
// of a batch are processed at once. An H100 takes about 15 us for 1,000 objects of 165 rows.
// ls_weights: one thread computes one of the 16 spreading weights of four rows. Cost: two polynomials of degree
// 15 for each weight, 16 bytes (float64) written. Limit: the stores. If sums are interpolated, the weights are
// divided by the window's transform, another polynomial.
// ls_cycles: one thread for each object. It writes df T, from the object's first and last time, to the host,
// which chooses methods by this number. Limit: the latency of the bus, over which 16 bytes are read and 8
// written.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=ls_prepare regs<=64 smem<=18432 spills<=224
// budget: f32 kernel=ls_prepare regs<=64 smem<=18432 spills<=224
// budget: f64 kernel=ls_weights regs<=96
// budget: f32 kernel=ls_weights regs<=96
// budget: f64 kernel=ls_cycles regs<=32 smem<=0
// budget: f32 kernel=ls_cycles regs<=32 smem<=0
#include "common.cuh"
#include "fourier/order.cuh"

#define VIRTUAL 512  // sums are added as by this number of threads, so that an answer depends on its object alone
#define THREADS 128
#define MAX_WARPS (VIRTUAL / 32)
#define COEFFICIENTS 16
#define SHORTEST_SPAN 1e-290  // not even the reciprocal of a shorter one can be worked with
#define HELD 1024             // rows kept in shared memory between the passes
#define EACH 4                // rows of one thread of ls_weights

// Forces all of these loads to be issued before the first is waited for.
__device__ __forceinline__ void at_once(double (&a)[4]) {
#if ON_DEVICE
  asm volatile("" : "+d"(a[0]), "+d"(a[1]), "+d"(a[2]), "+d"(a[3]));
#endif
}

struct Prepare {
  const double* t;
  const double* y;
  const double* dy;
  const int* offsets;
  const double* df;
  const Limit* limit;
  double* tp;
  double2* wv;
  int* owner;
  int* row;
  Info* info;
  unsigned* count;
  unsigned* floor;
  unsigned* bins;  // count, floor, bins: of the candidates, cleared here; bins, if there are any: 32 for each object
  double* share;
  unsigned* tried;  // share: of the candidates; tried: number of peaks to refine
  int centre, scale_kind, grid_stride, harmonics, scan_only,
      fewest;  // harmonics: highest multiple of the frequency in the model
};

// Distance from a number to the next larger one.
__device__ __forceinline__ double spacing(double x) { return __longlong_as_double(__double_as_longlong(x) + 1) - x; }

// df times the span plus two units in the last place, because the origin of times may lie one unit before the first
// time.
__device__ __forceinline__ double bounded_cycles(double df, double span, double step) { return df * (span + 2 * step); }

// Two sums over a warp at once: the first is left in lanes 0 to 15, the second in the others.
__device__ __forceinline__ double warp_sums(double a, double b) {
  const bool upper = threadIdx.x & 16;
  double v = (upper ? b : a) + __shfl_xor_sync(FULL, upper ? a : b, 16);
  for (int k = 8; k; k >>= 1) v += __shfl_xor_sync(FULL, v, k);
  return v;
}

// Summary of an object's rows: number of usable ones, minimum and maximum of t and of y, least error; flags: an
// error is not above 0, rows are not in order.
#define BAD_ERROR 1
#define DISORDER 2
struct Seen {
  Key t_least, t_greatest, y_least, y_greatest, e_least;  // *_least: complements of the keys
  unsigned used, flags;
  __device__ __forceinline__ void clear() {
    t_least = t_greatest = y_least = y_greatest = e_least = 0;
    used = flags = 0;
  }
  __device__ __forceinline__ void add(double t, double y, double e, double earlier) {
    const bool ok = isfinite(t) & isfinite(y) & isfinite(e);
    if (ok) {
      const Key kt = key_from(t), ky = key_from(y), ke = ~key_from(e);
      used++;
      if (~kt > t_least) t_least = ~kt;
      if (kt > t_greatest) t_greatest = kt;
      if (~ky > y_least) y_least = ~ky;
      if (ky > y_greatest) y_greatest = ky;
      if (ke > e_least) e_least = ke;
      if (!(e > 0)) flags |= BAD_ERROR;
    }
    if (!ok || t <= earlier) flags |= DISORDER;  // also for equal times, which are ordered by value
  }
  __device__ __forceinline__ void fold() {  // over the warp
    t_least = warp_greatest(t_least);
    t_greatest = warp_greatest(t_greatest);
    y_least = warp_greatest(y_least);
    y_greatest = warp_greatest(y_greatest);
    e_least = warp_greatest(e_least);
    used = warp_count(used);
    flags = warp_or(flags);
  }
};

// Sorts rows by time, then y, then dy, so that the result does not depend on their original order. The first step
// of each merge of the bitonic network is reflected, so that every comparison puts the smaller first and an n that
// is no power of two needs no padding.
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
            key[lo] = b;
            key[hi] = a;
            row[lo] = rb;
            row[hi] = ra;
          }
        }
      }
    }
  }
  __syncthreads();
}
// 2^-e for a positive number in [2^(e-1), 2^e): scaling by it rounds nothing. Numbers under 2^-1000 stay small.
__device__ __forceinline__ double unit_of(double x) {
  const int e = (__double2hiint(x) >> 20 & 0x7ff) - 1022;
  return __hiloint2double(1023 + (e < -1000 ? 1000 : -e) << 20, 0);
}

// Two sums over the block. In a block of THREADS threads each does the work of four virtual threads, those of rows
// i, i + THREADS and so on. part: 8 numbers, for this call alone; room: 2 * VIRTUAL numbers, used by a block of
// VIRTUAL threads.
struct Adder {
  double a[4], b[4];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int e = 0; e < 4; e++) a[e] = b[e] = 0;
  }
  __device__ __forceinline__ void add(bool wide, int e, double x, double y) {  // of a thread's e-th row of four
    if (wide) {
      a[0] += x;
      b[0] += y;
    } else {
      a[e] += x;
      b[e] += y;
    }
  }
  __device__ __forceinline__ double2 total(bool wide, double* part, double* room) {
    const int tid = threadIdx.x;
    if (wide) {
      room[tid] = a[0];
      room[VIRTUAL + tid] = b[0];
      __syncthreads();
      const double* at = room + (tid & (THREADS - 1));
#pragma unroll
      for (int e = 0; e < 4; e++) {
        a[e] = at[e * THREADS];
        b[e] = at[VIRTUAL + e * THREADS];
      }
    }
    const double v = warp_sums((a[0] + a[1]) + (a[2] + a[3]), (b[0] + b[1]) + (b[2] + b[3]));
    if (tid < THREADS && !(tid & 15)) part[tid >> 4] = v;
    __syncthreads();
    return make_double2((part[0] + part[2]) + (part[4] + part[6]), (part[1] + part[3]) + (part[5] + part[7]));
  }
};

// A block has THREADS threads if there are many objects, VIRTUAL threads if there are few; the sums are the same.
// The code is kept small because few blocks run it at a time.
extern "C" __global__ void __launch_bounds__(VIRTUAL, 2) ls_prepare(const Prepare A) {
  __shared__ double2 near[HELD];
  __shared__ double part[2][8];
  __shared__ Key keys[5][MAX_WARPS];
  __shared__ unsigned counts[2][MAX_WARPS], weighty[MAX_WARPS];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, threads = blockDim.x, warps = threads >> 5;
  const bool wide = threads > THREADS;
  const int o = blockIdx.x, lo = A.offsets[o], n = A.offsets[o + 1] - lo;
  const double* t = A.t + lo;
  const double* y = A.y + lo;
  const double* dy = A.dy ? A.dy + lo : 0;
  const double huge = __longlong_as_double(0x7ff0000000000000ll);
  double df = 0;
  Limit limit = {};
  if (!A.scan_only) {
    df = A.df[o * A.grid_stride];
    limit = A.limit[o];
  }
  if (n > 4 * threads)  // prefetch the rows that are not loaded at once below
    for (int i = 16 * tid; i < n; i += 16 * threads) {
      ptx::prefetch(t + i);
      ptx::prefetch(y + i);
      if (dy) ptx::prefetch(dy + i);
    }
  Seen s;
  s.clear();
#pragma unroll 1
  for (int i0 = tid; i0 < n; i0 += 4 * threads) {  // four rows at a time
    double a[4], b[4], c[4], earlier[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = min(i0 + e * threads, n - 1);
      a[e] = t[i];
      b[e] = y[i];
      c[e] = dy ? dy[i] : 1.0;
      earlier[e] = i ? t[i - 1] : -huge;
    }
    at_once(a);
    at_once(b);
    at_once(c);
    at_once(earlier);
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (i0 + e * threads < n) s.add(a[e], b[e], c[e], earlier[e]);
  }
#pragma unroll 1
  for (int pass = 0; pass < 2; pass++) {  // over the warp, then over the results of all warps
    s.fold();
    if (pass) break;
    if (!lane) {
      keys[0][warp] = s.t_least;
      keys[1][warp] = s.t_greatest;
      keys[2][warp] = s.y_least;
      keys[3][warp] = s.y_greatest;
      keys[4][warp] = s.e_least;
      counts[0][warp] = s.used;
      counts[1][warp] = s.flags;
    }
    __syncthreads();
    const int w = lane & (warps - 1);
    s.t_least = keys[0][w];
    s.t_greatest = keys[1][w];
    s.y_least = keys[2][w];
    s.y_greatest = keys[3][w];
    s.e_least = keys[4][w];
    s.used = lane < warps ? counts[0][w] : 0;
    s.flags = counts[1][w];
  }
  const double tmin = number_from(~s.t_least), tmax = number_from(s.t_greatest), span = tmax - tmin;
  const double ymin = number_from(~s.y_least), ymax = number_from(s.y_greatest), emin = number_from(~s.e_least);
  const int m = (int)s.used;
  const bool dirty = s.flags & DISORDER;
  Info info;
  info.n = m;
  info.dropped = n - m;
  info.exclusion = 1;
  info.t_min = tmin;
  info.span = span;
  info.scale = 1;
  info.mean_square = info.weight = missing64();
  info.share = 0;
  const bool flat = ymax == ymin && (A.centre || ymax == 0);  // nothing is left to fit
  info.status = m == 0                     ? 1
                : s.flags & BAD_ERROR      ? 3
                : m < A.fewest             ? 2
                : !(span >= SHORTEST_SPAN) ? 5
                : !isfinite(span)          ? 6
                : flat                     ? 4
                                           : 0;
  if (m == 0) {
    info.t_min = missing64();
    info.span = missing64();
  }
  if (A.scan_only) {
    if (!tid) A.info[o] = info;
    return;
  }
  if (!tid) {
    A.count[o] = 0;
    A.floor[o] = 0;
  }
  if (!o && !tid) *A.tried = 0;
  if (A.bins && tid < 32) A.bins[o * 32 + tid] = 0;
  // The origin of times is the first time, rounded down to the spacing of the largest: t - origin is then exact
  // for times of one sign.
  const double step = spacing(fmax(fabs(tmin), fabs(tmax)));
  if (info.status == 0) {
    const double cycles = bounded_cycles(df, span, step);
    if (!(cycles > limit.least && cycles <= limit.most) || m < limit.few || m > limit.many) info.status = 100;
    if (!warp) {
      const double exclusion = ceil(1 / (span * df) - 1e-9);
      info.exclusion = exclusion < 1 ? 1 : exclusion > 1e9 ? 1000000000 : (int)exclusion;
      const double turns = df * span * A.harmonics, c = df > 0 && turns < 1 ? cospi(0.5 * turns) : 0;
      info.share = c * c;
    }
  }
  if (info.status != 0) {
#pragma unroll 1
    for (int i = tid; i < n; i += threads) A.owner[lo + i] = -1;
    if (!tid) A.info[o] = info;
    return;
  }
  if (dirty) {
#pragma unroll 1
    for (int i = tid; i < n; i += threads) {
      const bool ok = isfinite(t[i]) && isfinite(y[i]) && (!dy || isfinite(dy[i]));
      A.tp[lo + i] = ok ? t[i] : huge;
      A.row[lo + i] = i;
    }
    block_sort(A.tp + lo, A.row + lo, n, y, dy);
  }
  // y is scaled by powers of two (nothing is rounded) before anything is added or squared
  const double shrink = fmax(fabs(ymin), fabs(ymax)) > 1e150 ? 0x1p-600 : 1.0;
  const double base = A.centre ? ymin * shrink : 0.0;
  const double unit = unit_of(A.centre ? ymax * shrink - base : fmax(fabs(ymin), fabs(ymax)) * shrink);
  // Weight and value of a row, kept between the passes of its thread: in shared memory if there is room.
  double2* mine = !wide && n <= HELD ? near : A.wv + lo;
  unsigned positive = 0;
  Adder sum;
  sum.clear();
#pragma unroll 1
  for (int i0 = tid; i0 < m; i0 += 4 * threads) {
    double error[4], value[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = min(i0 + e * threads, m - 1), r = dirty ? A.row[lo + i] : i;
      error[e] = dy ? dy[r] : 1.0;
      value[e] = y[r];
    }
    at_once(error);
    at_once(value);
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (i0 + e * threads < m) {
        const double q = emin / error[e];  // relative to the smallest error: no unit overflows
        const double2 v = make_double2(q * q, (value[e] * shrink - base) * unit);
        mine[i0 + e * threads] = v;
        positive += v.x > 0;
        sum.add(wide, e, v.x, v.x * v.y);
      }
  }
  positive = warp_count(positive);
  if (!lane) weighty[warp] = positive;
  const double2 first = sum.total(wide, part[0], (double*)near);
  positive = warp_count(lane < warps ? weighty[lane] : 0);
  const double sw = first.x, norm = 1 / sw;
  double mean = A.centre ? first.y * norm : 0.0;
  sum.clear();
#pragma unroll 1
  for (int i0 = tid; i0 < m; i0 += 4 * threads) {
    double2 v[4];
#pragma unroll
    for (int e = 0; e < 4; e++) v[e] = mine[min(i0 + e * threads, m - 1)];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const double d = v[e].y - mean, wd = v[e].x * d;
      if (i0 + e * threads < m) sum.add(wide, e, wd * d, wd);
    }
  }
  const double2 second = sum.total(wide, part[1], (double*)near);
  double yy = second.x * norm;
  if (A.centre) {
    const double rest = second.y * norm;
    mean += rest;
    yy -= rest * rest;
  }
  const double root = 1 / sqrt(yy);
  // the spacing is a power of two, so that its reciprocal is one, and exact
  double origin = floor(tmin * __hiloint2double(2046 - (__double2hiint(step) >> 20) << 20, 0)) * step;
  if (!isfinite(origin)) origin = tmin;
  if (positive < 2)
    info.status = 8;  // because of the errors a single point has all the weight
  else if (!(yy > 0))
    info.status = 4;  // y differs only at points without weight
  const int owner = info.status == 0 ? o : -1;
#pragma unroll 1
  for (int i0 = tid; i0 < n; i0 += 4 * threads) {
    double2 v[4];
    double time[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = min(i0 + e * threads, m - 1);
      v[e] = mine[i];
      time[e] = t[dirty ? A.row[lo + i] : i];
    }
    at_once(time);
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = i0 + e * threads;
      if (i < m) {
        const double w = v[e].x * norm;
        A.wv[lo + i] = make_double2(w, w * ((v[e].y - mean) * root));
        A.tp[lo + i] = time[e] - origin;  // the key is no longer needed after the sort
      }
      if (i < n) A.owner[lo + i] = i < m ? owner : -1;
    }
  }
  if (!tid) {
    const double back = 1 / unit / shrink;
    info.mean_square = yy * back * back;
    info.weight = dy ? sw / emin / emin : (double)m;
    if (A.scale_kind == 1) info.scale = 0.5 * (dy ? sw / (emin * emin) : sw) * info.mean_square;
    if (A.scale_kind == 2) info.scale = 0.5 * m * info.mean_square;
    A.share[o] = info.share;
    A.info[o] = info;
  }
}

// ---------------------------------------------------------------- weights of the spreading kernel
struct Weights {
  const double* tp;
  const int* owner;
  const double* taps;
  const double* df;
  const Limit* limit;
  int2* cell;
  T* at_f;
  T* at_2f;
  const double* correction;
  int rows, grid_stride;
};
// If sums are interpolated between frequencies, strengths are divided by the window's transform in time:
// polynomials in the square of the distance from the circle's middle, at f and at 2f.
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
      if (circle > 0 && window[e] >= 0)
        x[e] = fma(x[e], circle * A.df[owner[e] * A.grid_stride], 8.0);  // 8: every tap falls on a cell >= 0
      else
        owner[e] = -1;
    }
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const long long p = first + 16 * e;
    const double x1 = x[e], x2 = 2 * x1, c1 = ceil(x1 - 8.0), c2 = ceil(x2 - 8.0);
    const double u1 = 2 * (c1 - (x1 - 8.0)) - 1, u2 = 2 * (c2 - (x2 - 8.0)) - 1;
    double p1 = c[COEFFICIENTS - 1], p2 = p1;
#pragma unroll
    for (int k = COEFFICIENTS - 2; k >= 0; k--) {
      p1 = fma(p1, u1, c[k]);
      p2 = fma(p2, u2, c[k]);
    }
    const int w = owner[e] < 0 ? 0 : window[e];
    if (__any_sync(FULL, w != 0)) {  // half of a row's lanes correct for f, half for 2f
      const double z = (x1 - 128) * 0x1p-7,
                   v = w ? correct(A.correction + (2 * w - 2 + (a >> 3)) * CORRECTION, z * z) : 1.0;
      p1 *= __shfl_sync(FULL, v, threadIdx.x & 16);
      p2 *= __shfl_sync(FULL, v, (threadIdx.x & 16) + 8);
    }
    if (owner[e] < 0) continue;
    A.at_f[p * 16 + ((a + (int)c1) & 15)] = (T)p1;  // lane order: the lane is the cell modulo 16
    A.at_2f[p * 16 + ((a + (int)c2) & 15)] = (T)p2;
    if (!a) {
      int2 cell;
      cell.x = (int)c1;
      cell.y = (int)c2;
      A.cell[p] = cell;
    }
  }
}

struct Cycles {
  const double* t;
  const long long* offsets;
  const double* df;
  double* cycles;  // all but t: in host memory
  int n, grid_stride;
};
extern "C" __global__ void __launch_bounds__(256) ls_cycles(const Cycles A) {
  const int o = blockIdx.x * 256 + threadIdx.x;
  if (o >= A.n) return;
  const double first = A.t[A.offsets[o]], last = A.t[A.offsets[o + 1] - 1];
  const double cycles = bounded_cycles(A.df[o * A.grid_stride], last - first, spacing(fmax(fabs(first), fabs(last))));
  A.cycles[o] = cycles > 0 && cycles < __longlong_as_double(0x7ff0000000000000ll) ? cycles : 0;
}

// Direct sums. ls_direct: regular grids, by factorised phases; ls_list: any list of frequencies.
//
// ls_direct: f = f0 + (32 k1 + 15.5 +- (k2 + 1/2)) df, k1 coarse, k2 = 0..15 fine: exp(i f t) is a product of two table
// entries, and four real products give both signs of k2. One block (8 warps) = one object x 64 coarse x 16 fine = 2048
// frequencies; a warp = 16 x 8 pairs = 256 frequencies. 12 products (24 operations) a pair of frequencies and point in three
// channels, 80 table entries a point and block, on float64 matrix units where the card has them (sm_90), multiply-adds elsewhere.
// Limit (H100, 20 points an object): latency at two blocks a multiprocessor, which 128 registers a thread allow; the matrix unit is
// busy for a quarter of the time, instructions are issued in 40% of the cycles (63% in float32).
// ls_list: one thread = one frequency, points in shared memory, a sine and cosine a pair with the phase reduced in float64:
// limited by the sincos (3e11 pairs/s in float64 on an H100).
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=ls_direct regs<=128 smem<=46080 spills<=96
// budget: f64 kernel=ls_list regs<=128 smem<=8192
// budget: f32 kernel=ls_direct regs<=128 smem<=23040 spills<=128
// budget: f32 kernel=ls_list regs<=128 smem<=8192 spills<=32
#include "ls_common.cuh"

#define SPAN 2048
#define POINTS 32
#define ROW_A 66
#define ROW_B 18
#if ON_DEVICE && __CUDA_ARCH__ >= 900
#define MATRIX (sizeof(T) == 8)
#else
#define MATRIX false
#endif

struct Direct {
  const double* tp; const double2* wv; const int* offsets; const Info* info; const int* order; const int2* tasks;
  const double* f0; const double* df; const int* nf; const double* frequencies; const long long* start;
  T* power; Peaks peaks; Guard guard;
  int blocks, grid_stride, norm, scaled, fit_mean, edges;
};

__device__ __forceinline__ void multiply(T (&c)[4], double a0, double a1, double b) {
#if ON_DEVICE && __CUDA_ARCH__ >= 900
  if constexpr (sizeof(T) == 8)
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+d"((double&)c[0]), "+d"((double&)c[1]), "+d"((double&)c[2]), "+d"((double&)c[3]) : "d"(a0), "d"(a1), "d"(b));
#endif
}
// 2 x 2 products of the plain branch, in the places where the matrix unit leaves them
__device__ __forceinline__ void tile(T (&c)[4], T a0, T a1, T b0, T b1) {
  c[0] = fma(a0, b0, c[0]); c[1] = fma(a0, b1, c[1]); c[2] = fma(a1, b0, c[2]); c[3] = fma(a1, b1, c[3]);
}
__device__ __forceinline__ C product(C a, C b) { return mk(fma(-a.y, b.y, a.x * b.x), fma(a.y, b.x, a.x * b.y)); }
__device__ __forceinline__ C circle(double x) { T s, c; sincos_cycles(x, s, c); return mk(c, s); }

__device__ __forceinline__ T reduced(T ch, T sh, T c, T s, T c2, T s2, T mean, T guard) {
  c *= mean; s *= mean;
  const T cc = fma(-c, c, fma((T)0.5, c2, (T)0.5)), ss = fma(-s, s, fma((T)-0.5, c2, (T)0.5)), cs = fma(-c, s, (T)0.5 * s2);
  const T det = fma(cc, ss, -cs * cs);
  return det > guard ? (ss * ch * ch + cc * sh * sh - 2 * cs * ch * sh) * reciprocal(det) : missing();
}

extern "C" __global__ void __launch_bounds__(256, 2) ls_direct(const Direct A) {
  __shared__ C tA[POINTS * ROW_A], tB[POINTS * ROW_B];
  __shared__ C strength[POINTS];
  __shared__ int many;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q = lane & 3;
  int block, o;
  if (A.tasks) { const int2 t = A.tasks[blockIdx.x]; o = t.x; block = t.y; }
  else { block = blockIdx.x % A.blocks; o = A.order[blockIdx.x / A.blocks]; }
  const Info info = A.info[o];
  const int lo = A.offsets[o], n = info.n, gi = o * A.grid_stride, nf = A.nf[gi];
  const long long base = (long long)block * SPAN;
  const int total = (int)min((long long)SPAN, nf - base);
  if (info.status != 0) {
    if (A.power) for (int i = tid; i < total; i += 256) A.power[A.start[o] + base + i] = missing();
    return;
  }
  const double f0 = A.f0[gi], df = A.df[gi];
  const int wc = (warp & 3) * 16, wf = (warp >> 2) * 8;
  T acc[12][4];
#pragma unroll
  for (int i = 0; i < 12; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) acc[i][j] = 0;
  for (int c0 = 0; c0 < n; c0 += POINTS) {
    const int m = min(POINTS, n - c0), padded = (m + 3) & ~3;
    __syncthreads();
    { // thread = (point, 8 coarse entries, 2 fine ones), entries 8 apart: neighbouring threads write neighbouring ones
      const int p = tid >> 3, part = tid & 7;
      if (p < padded) {
        C e = mk(0, 0), step = e, b0 = e, b1 = e;
        double t = 0;
        if (p < m) {
          t = A.tp[lo + c0 + p];
          if (!part) { const double2 v = A.wv[lo + c0 + p]; strength[p] = mk((T)v.x, (T)v.y); }
          b0 = circle(cycles(frequency_of(0, part + 0.5, df), t)); b1 = circle(cycles(frequency_of(0, part + 8.5, df), t));
        } else if (!part) strength[p] = mk(0, 0);
        tB[p * ROW_B + part] = b0; tB[p * ROW_B + part + 8] = b1;
        const double k = (double)base + 32.0 * part + 15.5;
        if (p < m) step = circle(cycles(frequency_of(0, 32 * 8, df), t));
#pragma unroll
        for (int j = 0; j < 8; j++) {      // in float32 a fresh phase now and then: products lose a bit each
          if (p < m && j % (sizeof(T) == 8 ? 8 : 4) == 0) e = circle(cycles(frequency_of(f0, k + 32.0 * 8 * j, df), t));
          tA[p * ROW_A + part + 8 * j] = e;
          e = product(e, step);
        }
      }
    }
    __syncthreads();
    if constexpr (MATRIX) {
#pragma unroll 1
      for (int k = 0; k < padded; k += 4) {
        const int kk = k + q;
        const C w = strength[kk], a = tA[kk * ROW_A + wc + g], z = tA[kk * ROW_A + wc + 8 + g], b = tB[kk * ROW_B + wf + g];
        T x0 = w.y * a.x, y0 = w.y * a.y, x1 = w.y * z.x, y1 = w.y * z.y;
        multiply(acc[0], x0, x1, b.x); multiply(acc[1], y0, y1, b.y); multiply(acc[2], y0, y1, b.x); multiply(acc[3], x0, x1, b.y);
        x0 = w.x * a.x; y0 = w.x * a.y; x1 = w.x * z.x; y1 = w.x * z.y;
        multiply(acc[4], x0, x1, b.x); multiply(acc[5], y0, y1, b.y); multiply(acc[6], y0, y1, b.x); multiply(acc[7], x0, x1, b.y);
        const T bx = fma((T)-2 * b.y, b.y, (T)1), by = 2 * b.x * b.y;
        x0 = fma((T)-2 * y0, a.y, w.x); y0 = 2 * y0 * a.x; x1 = fma((T)-2 * y1, z.y, w.x); y1 = 2 * y1 * z.x;
        multiply(acc[8], x0, x1, bx); multiply(acc[9], y0, y1, by); multiply(acc[10], y0, y1, bx); multiply(acc[11], x0, x1, by);
      }
    } else {
#pragma unroll 1
      for (int k = 0; k < m; k++) {
        const C w = strength[k], a = tA[k * ROW_A + wc + g], z = tA[k * ROW_A + wc + 8 + g];
        const C b = tB[k * ROW_B + wf + 2 * q], d = tB[k * ROW_B + wf + 2 * q + 1];
        T x0 = w.y * a.x, y0 = w.y * a.y, x1 = w.y * z.x, y1 = w.y * z.y;
        tile(acc[0], x0, x1, b.x, d.x); tile(acc[1], y0, y1, b.y, d.y); tile(acc[2], y0, y1, b.x, d.x); tile(acc[3], x0, x1, b.y, d.y);
        x0 = w.x * a.x; y0 = w.x * a.y; x1 = w.x * z.x; y1 = w.x * z.y;
        tile(acc[4], x0, x1, b.x, d.x); tile(acc[5], y0, y1, b.y, d.y); tile(acc[6], y0, y1, b.x, d.x); tile(acc[7], x0, x1, b.y, d.y);
        const T bx = fma((T)-2 * b.y, b.y, (T)1), by = 2 * b.x * b.y, dx = fma((T)-2 * d.y, d.y, (T)1), dy = 2 * d.x * d.y;
        x0 = fma((T)-2 * y0, a.y, w.x); y0 = 2 * y0 * a.x; x1 = fma((T)-2 * y1, z.y, w.x); y1 = 2 * y1 * z.x;
        tile(acc[8], x0, x1, bx, dx); tile(acc[9], y0, y1, by, dy); tile(acc[10], y0, y1, bx, dx); tile(acc[11], x0, x1, by, dy);
      }
    }
  }
  __syncthreads();
  T* table = (T*)tA;                     // the tables have done their work
  auto staged = [&](int k) -> T& { return table[k + (k >> 5)]; };      // one place of padding a coarse step: other banks
  bool odd = false;
  const T guard = guard_of(A.guard, n);
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int side = 0; side < 2; side++) {
      const T e = side ? (T)1 : (T)-1;   // side 0: + (k2 + 1/2), 1: -
      const T p = reduced(acc[0][i] + e * acc[1][i], acc[2][i] - e * acc[3][i], acc[4][i] + e * acc[5][i], acc[6][i] - e * acc[7][i],
                          acc[8][i] + e * acc[9][i], acc[10][i] - e * acc[11][i], A.fit_mean ? (T)1 : (T)0, guard);
      const int kc = wc + g + (i >> 1) * 8, kf = wf + 2 * q + (i & 1), k = 32 * kc + (side ? 15 - kf : 16 + kf);
      staged(k) = p;
      odd |= !(p == p) && k < total;
    }
  if (__syncthreads_or(odd))
    mend(total, (int*)(table + SPAN + SPAN / 32), &many, A.tp + lo, A.wv + lo, n, f0, df, A.fit_mean != 0,
         staged, [&](int i) { return base + i; }, [](int) { return true; });
  if (A.scaled) {                        // another normalisation than the standard one
    for (int i = tid; i < total; i += 256) staged(i) = normalise(staged(i), info.scale, A.norm);
    __syncthreads();
  }
  if (A.power) for (int i = tid; i < total; i += 256) A.power[A.start[o] + base + i] = staged(i);
  auto staged_at = [&](int i) { return staged(i); };
  leave_edges(A.peaks.edge + ((size_t)o * A.edges + block) * 2, total, staged_at);
  const unsigned known = floor_now(A.peaks, o);
  const int i0 = tid * (SPAN / 256), least = known ? (int)known : -0x7fffffff, none = -0x7fffffff;
  unsigned found = 0;
  if (i0 < total) {
    int x = i0 ? high_at(&staged(i0 - 1)) : none, y = high_at(&staged(i0));
#pragma unroll
    for (int i = 0; i < SPAN / 256; i++) {
      const int z = i0 + i + 1 < total ? high_at(&staged(i0 + i + 1)) : none;
      if (i0 + i < total && y >= x && y >= z && y >= least) found |= 1u << i;
      x = y; y = z;
    }
  }
  give_stretch(A.peaks, o, base, i0, total, found, 1 + (2 * min(info.apart, 100000) + SPAN / 256 - 1) / (SPAN / 256), known, staged_at);
}

extern "C" __global__ void __launch_bounds__(128) ls_list(const Direct A) {
  __shared__ double time[256];
  __shared__ C strength[256];
  const int tid = threadIdx.x, lane = tid & 31, block = blockIdx.x % A.blocks, o = A.order[blockIdx.x / A.blocks];
  const Info info = A.info[o];
  const int lo = A.offsets[o], n = info.n, nf = A.nf[o * A.grid_stride];
  const long long j = (long long)block * 128 + tid;
  T* out = A.power + A.start[o];
  if (info.status != 0) { if (j < nf) out[j] = missing(); return; }
  const double f = A.frequencies[j < nf ? j : nf - 1];
  T ch = 0, sh = 0, c1 = 0, s1 = 0, c2 = 0, s2 = 0;
  for (int c0 = 0; c0 < n; c0 += 256) {
    const int m = min(256, n - c0);
    __syncthreads();
    for (int i = tid; i < m; i += 128) { time[i] = A.tp[lo + c0 + i]; const double2 v = A.wv[lo + c0 + i]; strength[i] = mk((T)v.x, (T)v.y); }
    __syncthreads();
#pragma unroll 2
    for (int i = 0; i < m; i++) {
      T s, c; sincos_cycles(cycles(Frequency{f, 0}, time[i]), s, c);
      const C w = strength[i];
      const T wc = w.x * c, ws = w.x * s;
      ch = fma(w.y, c, ch); sh = fma(w.y, s, sh); c1 += wc; s1 += ws;
      c2 = fma(wc, c, fma(-ws, s, c2)); s2 = fma(2 * wc, s, s2);
    }
  }
  T p = reduced(ch, sh, c1, s1, c2, s2, A.fit_mean ? (T)1 : (T)0, guard_of(A.guard, n));
  p = normalise(p, info.scale, A.norm);
  unsigned todo = __ballot_sync(FULL, !(p == p));
  while (todo) {
    const int bit = __ffs(todo) - 1; todo &= todo - 1;
    const double exact = better_power<32>(A.tp + lo, A.wv + lo, n, Frequency{__shfl_sync(FULL, f, bit), 0}, A.fit_mean != 0);
    if (lane == bit) p = (T)normalise(exact, info.scale, A.norm);
  }
  if (j < nf) out[j] = p;
}

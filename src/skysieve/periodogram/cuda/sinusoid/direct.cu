// Direct sums over all points for one sinusoid. ls_direct: regular grids, by factorised phases; ls_list: any
// list of frequencies.
//
// ls_direct: one warp sums 256 neighbouring frequencies, f = f0 + (first + 124 + k2 +- (8 k1 + 4)) df, with k1
// = 0..15 (coarse) and k2 = 0..7 (fine). exp(i f t) is the product of an entry of a coarse table and an entry
// of a fine one that is turned to the warp's first frequency; four real products give both signs of k1. One
// block (8 warps) computes up to RUN tiles of 8 x 256 frequencies of one object. All tiles share the table
// entries (24 for each point). A warp computes the phases of its first frequencies itself (a sine and cosine
// for each point) and goes from tile to tile without waiting for others, so that tables, sums and powers of
// different warps overlap.
// Cost: 12 products (24 operations) for each point and pair of frequencies, in three channels, by float64
// matrix units where the GPU has them (sm_90) and by multiply-adds elsewhere. Sums for float32 are float64 too
// if the matrix units are faster than plain float32 arithmetic.
// Peaks: powers stay in registers. They are staged in shared memory and searched only if one of them reaches
// the floor under the best peaks, which the best peaks of all stripes of a block raise. The first tiles of many
// objects are computed first, so that floors are known early.
// Limit (H100): from 16 points on, the matrix unit (0.42 ns of the whole GPU for a point and 2048 frequencies,
// 0.5 measured). About 15 ns for 2048 frequencies are added by powers and phases (60 float64 instructions each,
// on the same pipe), peaks, and their latencies at two blocks on a multiprocessor, as many as 128 registers a
// thread allow.
//
// ls_list: one thread for each frequency, with the points in shared memory, and a sine and cosine for each pair
// of point and frequency, with the phase reduced in float64. Limit: the sincos (3e11 pairs/s in float64 on an
// H100).
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=ls_direct regs<=128 smem<=48128 spills<=224
// budget: f64 kernel=ls_list regs<=128 smem<=8192
// budget: f32 kernel=ls_direct regs<=128 smem<=47616 spills<=224
// budget: f32 kernel=ls_list regs<=128 smem<=8192 spills<=32
#include "common.cuh"

#define SPAN 2048
#define STRIPE 256  // frequencies of a warp's sums
#define POINTS 40   // points for which the tables are filled at a time
#define ROW 42      // pairs of a point, and room: lanes 4 g + q read rows q at g without conflicts
#define SIN 8       // coarse ones k1 and k1 + 8: cosines, from here sines, from there those of twice the phase
#define COS2 16
#define SIN2 24
#define FINE 32
#define ROOM 136   // of a warp: phase of its first frequency and strengths of each point, then staged powers
#define RUN 4      // most tiles of a block
#define WAVES 3    // least number of blocks for each resident block that must remain if blocks do more tiles
#define GROUP 256  // objects whose first tiles come first
#define FAST_DOUBLE (FAST_DOUBLE_MATRICES && HAS_TALL_DOUBLE_MATRICES)
template <bool DOUBLE>
struct Sum {
  typedef T type;
};
template <>
struct Sum<true> {
  typedef double type;
};
typedef Sum<FAST_DOUBLE>::type W;
typedef Pair<W>::type CW;
#if HAS_TALL_DOUBLE_MATRICES
#define MATRIX (sizeof(W) == 8)
#else
#define MATRIX false
#endif
#define DOUBLE_GUARD \
  1e-6  // of determinants of sums in float64 behind float32 powers: errors of 1e-15 are divided by them

struct Direct {
  const double* tp;
  const double2* wv;
  const int* offsets;
  const Info* info;
  const int* order;
  const int2* tasks;
  const double* f0;
  const double* df;
  const int* nf;
  const double* frequencies;
  const long long* start;
  T* power;
  Peaks peaks;
  Guard guard;
  int blocks, grid_stride, norm, scaled, fit_mean, edges,
      each;  // each: tiles of a block; 0: as many as leave enough blocks
};

__device__ __forceinline__ CW mkw(W x, W y) {
  CW c;
  c.x = x;
  c.y = y;
  return c;
}
__device__ __forceinline__ void multiply(W (&c)[4], double a0, double a1, double b) {
#if HAS_TALL_DOUBLE_MATRICES
  if constexpr (MATRIX)
    ptx::multiply_doubles((double&)c[0], (double&)c[1], (double&)c[2], (double&)c[3], make_double2(a0, a1), b);
#endif
}
// 2 x 2 products without matrix units, placed in registers as the matrix unit does.
__device__ __forceinline__ void tile(W (&c)[4], W a0, W a1, W b0, W b1) {
  c[0] = fma(a0, b0, c[0]);
  c[1] = fma(a0, b1, c[1]);
  c[2] = fma(a1, b0, c[2]);
  c[3] = fma(a1, b1, c[3]);
}
__device__ __forceinline__ CW product(CW a, CW b) { return mkw(fma(-a.y, b.y, a.x * b.x), fma(a.y, b.x, a.x * b.y)); }
__device__ __forceinline__ CW circle(double x) {
  W s, c;
  sincos_cycles(x, s, c);
  return mkw(c, s);
}

// The power from the sums of w at 2f (halved), of w at f and of w y at f. Returns false if it is suspicious. R:
// type of the sums.
template <typename R>
__device__ __forceinline__ bool power_from(R c2, R s2, R c, R s, R yc, R ys, R guard, T& p) {
  const R cc = fma(-c, c, (R)0.5 + c2), ss = fma(-s, s, (R)0.5 - c2), cs = fma(-c, s, s2), det = fma(cc, ss, -cs * cs);
  p = (T)(fma(yc, fma(ss, yc, -cs * ys), ys * fma(cc, ys, -cs * yc)) * reciprocal(det));
  return det > guard;
}

// A warp computes exact powers for the frequencies in `list`.
template <int LANES, typename Power>
__device__ __forceinline__ void mend_stripe(int count, const unsigned char* list, const double* t, const double2* wv,
                                            int n, double f0, double df, long long base, bool mean,
                                            const Power& power) {
  const int lane = threadIdx.x & 31, group = lane / LANES;
#pragma unroll 1
  for (int first = 0; first < count; first += 32 / LANES) {  // groups without a frequency repeat the last one
    const int j = first + group, i = list[min(j, count - 1)];
    const double exact = better_power<LANES>(t, wv, n, frequency_of(f0, (double)(base + i), df), mean);
    if (j < count && !(lane & (LANES - 1))) power(i) = number_of(exact);
  }
}

// Number of tiles of a block, up to RUN. More tiles share the tables and the start of a block; but enough blocks
// must remain to fill the GPU several times.
__device__ __forceinline__ int tiles_each(int tiles) {
  const int places = ptx::multiprocessors() * 2 * WAVES;
  int each = 1;
#pragma unroll
  for (int k = 2; k <= RUN; k++) each += tiles >= k * places;
  return each;
}

extern "C" __global__ void __launch_bounds__(256, 2) ls_direct(const Direct A) {
  __shared__ CW table[POINTS * ROW], room[8 * ROOM];
  __shared__ double when[POINTS];
  __shared__ T ends[RUN * 8 * 4];  // of each stripe: first two and last two powers
  __shared__ unsigned char doubtful[8 * STRIPE];
  __shared__ unsigned highest[RUN * 8], finished;  // for each stripe the key of its best peak; number of stripes done
  __shared__ bool cold;                            // whether the object had no floor when the block began
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q = lane & 3;
  int first, tiles = 1, o;
  if (A.tasks) {
    const int2 t = A.tasks[blockIdx.x];
    o = t.x;
    first = t.y;
  } else {  // the first runs of a group of objects, then their second ones
    const unsigned blocks = A.blocks, each = A.each ? A.each : tiles_each(gridDim.x), runs = (blocks + each - 1) / each,
                   members = gridDim.x / blocks;
    unsigned task = blockIdx.x, start = 0, size = members;
    if (task >= members * runs) return;
    if (members > GROUP) {
      start = task / (GROUP * runs) * GROUP;
      size = min(GROUP, members - start);
      task -= start * runs;
    }
    const unsigned turn = task / size;
    o = A.order[start + task - turn * size];
    first = turn * each;
    tiles = min(each, blocks - first);
  }
  const Info info = A.info[o];
  const int lo = A.offsets[o], n = info.n, gi = o * A.grid_stride, nf = A.nf[gi];
  if (info.status != 0) {
    const long long end = min((long long)nf, (long long)(first + tiles) * SPAN);
    if (A.power)
      for (long long i = (long long)first * SPAN + tid; i < end; i += 256) A.power[A.start[o] + i] = missing();
    return;
  }
  if (tid < RUN * 8) highest[tid] = 0;  // before the tables' barrier
  if (!tid) {
    finished = 0;
    cold = !floor_now(A.peaks, o);
  }
  const double f0 = A.f0[gi], df = A.df[gi];
  const int none = -0x7fffffff;
  CW* own = room + warp * ROOM;
  auto staged = [&](int k) -> T& { return ((T*)own)[k + (k >> 5)]; };  // one place of padding for 32: other banks
  auto fill = [&](int c0, int m, int padded) {
    for (int i = tid >> 3; i < padded;
         i += 32) {  // a thread: a fine entry, two coarse ones and those of twice their phases
      const int e = tid & 7;
      const double t = i < m ? A.tp[lo + c0 + i] : 0;
      CW x = circle(cycles(frequency_of(0, 8.0 * e + 4, df), t)), y;
      if (sizeof(W) == 8) {
        auto other = [&](int k) {
          const int at = (lane & 24) + k;
          return mkw(__shfl_sync(FULL, x.x, at), __shfl_sync(FULL, x.y, at));
        };
        y = product(x, product(other(3), other(4)));
      } else
        y = circle(cycles(frequency_of(0, 8.0 * e + 68, df), t));  // products lose a bit each
      CW* row = table + i * ROW + e;
      row[FINE] = circle(cycles(frequency_of(0, e, df), t));
      row[0] = mkw(x.x, y.x);
      row[SIN] = mkw(x.y, y.y);
      x = product(x, x);
      y = product(y, y);
      row[COS2] = mkw(x.x, y.x);
      row[SIN2] = mkw(x.y, y.y);
      if (!e) when[i] = t;
    }
  };
  if (n <= POINTS) {
    fill(0, n, (n + 3) & ~3);
    __syncthreads();
  }
#pragma unroll 1
  for (int r = 0; r < tiles; r++) {
    const long long base = (long long)(first + r) * SPAN + warp * STRIPE;
    const int total = (int)max(0ll, min((long long)STRIPE, nf - base));
    const unsigned seen = floor_now(A.peaks, o);  // loaded long before it is needed
    W acc[12][4];
#pragma unroll
    for (int i = 0; i < 12; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) acc[i][j] = 0;
#pragma unroll 1
    for (int c0 = 0; c0 < n; c0 += POINTS) {
      const int m = min(POINTS, n - c0), padded = (m + 3) & ~3;
      if (n > POINTS) {
        __syncthreads();
        fill(c0, m, padded);
        __syncthreads();
      }
      if (!total) continue;
      __syncwarp();
      for (int p = lane; p < padded; p += 32) {
        CW x = mkw(0, 0), w = x;
        if (p < m) {
          const double2 v = A.wv[lo + c0 + p];
          w = mkw((W)v.x, (W)v.y);
          x = circle(cycles(frequency_of(f0, base + 124.0, df), when[p]));
        }
        own[2 * p] = x;
        own[2 * p + 1] = w;
      }
      __syncwarp();
      if constexpr (MATRIX) {
        const CW* row = table + q * ROW + g;  // of this lane's point
        const CW* from = room + warp * ROOM + 2 * q;
#pragma unroll 1
        for (int left = padded; left > 0; left -= 4, from += 8, row += 4 * ROW) {
          const CW b = product(from[0], row[FINE]), w = from[1];
          W bx = w.y * b.x, by = w.y * b.y;
          CW x = row[0], y = row[SIN];
          multiply(acc[0], x.x, x.y, bx);
          multiply(acc[1], y.x, y.y, by);
          multiply(acc[2], x.x, x.y, by);
          multiply(acc[3], y.x, y.y, bx);
          bx = w.x * b.x;
          by = w.x * b.y;
          multiply(acc[4], x.x, x.y, bx);
          multiply(acc[5], y.x, y.y, by);
          multiply(acc[6], x.x, x.y, by);
          multiply(acc[7], y.x, y.y, bx);
          x = row[COS2];
          y = row[SIN2];
          bx = fma(-by, b.y, (W)0.5 * w.x);
          by *= b.x;
          multiply(acc[8], x.x, x.y, bx);
          multiply(acc[9], y.x, y.y, by);
          multiply(acc[10], x.x, x.y, by);
          multiply(acc[11], y.x, y.y, bx);
        }
      } else {
#pragma unroll 1
        for (int k = 0; k < m; k++) {
          const CW* row = table + k * ROW + g;
          const CW s = own[2 * k], w = own[2 * k + 1], b = product(s, table[k * ROW + FINE + 2 * q]),
                   d = product(s, table[k * ROW + FINE + 2 * q + 1]);
          W bx = w.y * b.x, by = w.y * b.y, dx = w.y * d.x, dy = w.y * d.y;
          CW x = row[0], y = row[SIN];
          tile(acc[0], x.x, x.y, bx, dx);
          tile(acc[1], y.x, y.y, by, dy);
          tile(acc[2], x.x, x.y, by, dy);
          tile(acc[3], y.x, y.y, bx, dx);
          bx = w.x * b.x;
          by = w.x * b.y;
          dx = w.x * d.x;
          dy = w.x * d.y;
          tile(acc[4], x.x, x.y, bx, dx);
          tile(acc[5], y.x, y.y, by, dy);
          tile(acc[6], x.x, x.y, by, dy);
          tile(acc[7], y.x, y.y, bx, dx);
          x = row[COS2];
          y = row[SIN2];
          bx = fma(-by, b.y, (W)0.5 * w.x);
          by *= b.x;
          dx = fma(-dy, d.y, (W)0.5 * w.x);
          dy *= d.x;
          tile(acc[8], x.x, x.y, bx, dx);
          tile(acc[9], y.x, y.y, by, dy);
          tile(acc[10], x.x, x.y, by, dy);
          tile(acc[11], y.x, y.y, bx, dx);
        }
      }
    }
    T* end = ends + 4 * (8 * r + warp);
    if (!total) {
      if (lane < 4) end[lane] = missing();
      if (!r && cold) __syncthreads();
      continue;
    }
    if (!A.fit_mean) {
#pragma unroll
      for (int i = 4; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] = 0;
    }
    T p[8];  // [i][sign]: rows g, g + 8, columns 2 q, 2 q + 1 of the products; above and below the middle
    auto number = [&](int j) {
      const int k = 8 * g + (j >> 2) * 64;
      return (j & 1 ? 120 - k : 128 + k) + 2 * q + (j >> 1 & 1);
    };
    bool odd = false;
    const W guard = sizeof(W) > sizeof(T) ? (W)DOUBLE_GUARD : (W)guard_of(A.guard, n);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int side = 0; side < 2; side++) {
        const W e = side ? (W)1 : (W)-1;
        const bool sound = power_from<W>(acc[8][i] + e * acc[9][i], acc[10][i] - e * acc[11][i],
                                         acc[4][i] + e * acc[5][i], acc[6][i] - e * acc[7][i],
                                         acc[0][i] + e * acc[1][i], acc[2][i] - e * acc[3][i], guard, p[2 * i + side]);
        if (!sound) p[2 * i + side] = missing();
        odd |= !sound;
      }
    auto stage = [&]() {
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 8; j++) staged(number(j)) = p[j];
      __syncwarp();
    };
    if (__any_sync(FULL, odd)) {
      stage();
      unsigned char* list = doubtful + warp * STRIPE;
      int count = 0;
#pragma unroll 1
      for (int i = lane; i < STRIPE; i += 32) {
        const bool bad = i < total && !(staged(i) == staged(i));
        const unsigned all = __ballot_sync(FULL, bad);
        if (bad) list[count + __popc(all & ((1u << lane) - 1))] = (unsigned char)i;
        count += __popc(all);
      }
      __syncwarp();
      if (n <= FEW_POINTS)
        mend_stripe<8>(count, list, A.tp + lo, A.wv + lo, n, f0, df, base, A.fit_mean != 0, staged);
      else
        mend_stripe<32>(count, list, A.tp + lo, A.wv + lo, n, f0, df, base, A.fit_mean != 0, staged);
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 8; j++) p[j] = staged(number(j));
    }
    if (total < STRIPE) {
#pragma unroll
      for (int j = 0; j < 8; j++)
        if (number(j) >= total) p[j] = missing();
    }
    if (lane == 28) {
      end[0] = p[5];
      end[1] = p[7];
    }
    if (lane == 31) {
      end[2] = p[4];
      end[3] = p[6];
    }
    int top = none;
#pragma unroll
    for (int j = 0; j < 8; j++) top = max(top, high_of(p[j]));
    unsigned known = __shfl_sync(FULL, seen, 0);
    const int least = known ? (int)known : none;
    const bool hot = __any_sync(FULL, top >= least);
    unsigned best = 0,
             keep = 0;  // highest peak that no accepted one can shade together with another stripe's best; all peaks
    if (hot || A.power) stage();
    if (A.power)
      for (int i = lane; i < total; i += 32)
        A.power[A.start[o] + base + i] = A.scaled ? normalise(staged(i), A.info[o].scale, A.norm) : staged(i);
    if (hot) {  // the first and last power of a stripe are tested at the end
      const int reach = STRIPE - 2 * min(info.exclusion, STRIPE);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const int k = number(j);
        if (high_of(p[j]) >= least && k > 0 && k < STRIPE - 1 && is_peak(staged(k - 1), p[j], staged(k + 1))) {
          keep |= 1u << j;
          if (k < reach && k + 1 < total) best = max(best, key_of(p[j]));
        }
      }
      best = warp_max(best);
      if (!lane && best) atomicMax(highest + 8 * r + warp, best);
    }
    if (!r && cold) {  // a first floor, from the best of this tile's stripes
      __syncthreads();
      const unsigned raised = raise_floor(A.peaks, o, lane < 8 ? atomicMax(highest + lane, 0u) : 0, 0, 1);
      if (raised > known) {
        known = raised;
#pragma unroll
        for (int j = 0; j < 8; j++)
          if (key_of(p[j]) < known) keep &= ~(1u << j);
      }
    }
    if (known)
      for (; keep; keep &= keep - 1) {
        const int k = number(__ffs(keep) - 1);
        emit(A.peaks, o, base + k, staged(k - 1), staged(k), staged(k + 1));
      }
    else if (hot) {  // too few stripes for a floor: one from this stripe alone
      const int i0 = 8 * lane;
      unsigned found = 0;
      int x = lane ? high_at(&staged(i0 - 1)) : none, y = high_at(&staged(i0));
#pragma unroll 1
      for (int i = 0; i < 8; i++) {
        const int z = i0 + i + 1 < STRIPE ? high_at(&staged(i0 + i + 1)) : none;
        if (i0 + i > 0 && i0 + i < STRIPE - 1 && y >= x && y >= z) found |= 1u << i;
        x = y;
        y = z;
      }
      give_stretch(A.peaks, o, base, i0, total, found, 1 + (2 * min(info.exclusion, 100000) + 7) / 8, known, staged);
    }
    unsigned turn = 0;
    if (!lane) turn = atomicAdd(&finished, 1u);
    if ((r || !cold) &&
        (__shfl_sync(FULL, turn, 0) & 7) == 7) {  // as many stripes as a tile's are done: a floor from the best of all
      raise_floor(A.peaks, o, lane < 8 * tiles ? atomicMax(highest + lane, 0u) : 0, 0, 1);
    }
  }
  __syncthreads();
  const unsigned known = floor_now(A.peaks, o);
  const int least = known ? (int)known : none;
  for (int i = tid; i < 16 * tiles; i += 256) {
    const int e = i >> 1, last = i & 1;
    const T here = ends[4 * e + 3 * last];
    const T x = last ? ends[4 * e + 2]
                : e  ? ends[4 * e - 1]
                     : missing(),
            z = !last               ? ends[4 * e + 1]
                : e + 1 < 8 * tiles ? ends[4 * e + 4]
                                    : missing();
    if (high_of(here) >= least && is_peak(x, here, z))
      emit(A.peaks, o, (long long)first * SPAN + e * STRIPE + last * (STRIPE - 1), x, here, z);
    if ((i & 15) % 15 == 0) A.peaks.edge[((size_t)o * A.edges + first) * 2 + (i >> 4) * 2 + last] = here;
  }
}

extern "C" __global__ void __launch_bounds__(128) ls_list(const Direct A) {
  __shared__ double time[256];
  __shared__ C strength[256];
  const int tid = threadIdx.x, lane = tid & 31, block = blockIdx.x % A.blocks, o = A.order[blockIdx.x / A.blocks];
  const Info info = A.info[o];
  const int lo = A.offsets[o], n = info.n, nf = A.nf[o * A.grid_stride];
  const long long j = (long long)block * 128 + tid;
  T* out = A.power + A.start[o];
  if (info.status != 0) {
    if (j < nf) out[j] = missing();
    return;
  }
  const double f = A.frequencies[j < nf ? j : nf - 1];
  T ch = 0, sh = 0, c1 = 0, s1 = 0, c2 = 0, s2 = 0;
  for (int c0 = 0; c0 < n; c0 += 256) {
    const int m = min(256, n - c0);
    __syncthreads();
    for (int i = tid; i < m; i += 128) {
      time[i] = A.tp[lo + c0 + i];
      const double2 v = A.wv[lo + c0 + i];
      strength[i] = mk((T)v.x, (T)v.y);
    }
    __syncthreads();
#pragma unroll 2
    for (int i = 0; i < m; i++) {
      T s, c;
      sincos_cycles(cycles(Frequency{f, 0}, time[i]), s, c);
      const C w = strength[i];
      const T wc = w.x * c, ws = w.x * s;
      ch = fma(w.y, c, ch);
      sh = fma(w.y, s, sh);
      c1 += wc;
      s1 += ws;
      c2 = fma(wc, c, fma(-ws, s, c2));
      s2 = fma(2 * wc, s, s2);
    }
  }
  if (!A.fit_mean) c1 = s1 = 0;
  T p;
  if (!power_from((T)0.5 * c2, (T)0.5 * s2, c1, s1, ch, sh, guard_of(A.guard, n), p)) p = missing();
  unsigned todo = __ballot_sync(FULL, !(p == p));
  while (todo) {
    const int bit = __ffs(todo) - 1;
    todo &= todo - 1;
    const double exact =
        better_power<32>(A.tp + lo, A.wv + lo, n, Frequency{__shfl_sync(FULL, f, bit), 0}, A.fit_mean != 0);
    if (lane == bit) p = (T)exact;
  }
  if (j < nf) out[j] = p;
}

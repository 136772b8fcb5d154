// Series of several Fourier terms: exact fits of single frequencies, peaks, and normalised powers. Frequencies
// are fitted again if fourier/grid.cu did not trust their powers.
//
// Layout:
// chi2_refit: one thread fits one frequency of a series of few points, from sums over all points, by normal
// equations as in fourier/grid.cu. Frequencies whose powers are still not trusted, and those of longer series,
// go to a second list. Limit: float64 arithmetic; a batch of 1,000 light curves has 820,000 such fits at 4
// terms.
// chi2_exact: one warp does one fit: of the frequencies on a list, or (one block for 256 powers) of all
// frequencies, or of those whose power is NaN. Up to 32 points, the columns are made orthogonal, with one point
// per lane; half a warp does a fit of up to 16 points. Longer series are fitted from sums over all points. If
// their matrix is nearly singular, the sums are formed in pairs of float64 (double-double arithmetic), which
// keep the digits that squaring loses.
// chi2_find: one block looks at 16 stretches of 2048 powers, and reads only those powers again that may include
// one of the best peaks. It looks at one stretch, and reads all of it, if no highest powers were recorded (see
// Tops) or if the powers are written in another normalisation.
//
// archs: 75 80 86 89 90 100 120
// build: t0 -DREAL=double -DTERMS=0
// build: t2 -DREAL=double -DTERMS=2
// build: t4 -DREAL=double -DTERMS=4
// budget: t4 kernel=chi2_refit regs<=168 smem<=64 spills<=128
// budget: t0 kernel=chi2_exact regs<=168 smem<=2048 spills<=64
// budget: t2 kernel=chi2_exact regs<=168 smem<=2048 spills<=64
// budget: t4 kernel=chi2_exact regs<=168 smem<=2048 spills<=96
// budget: t4 kernel=chi2_find regs<=64 smem<=19456
// split: no
#include "common.cuh"
#include "fourier/solve.cuh"
#include "fourier/pairs.cuh"

// ---------------------------------------------------------------- fits again, of few points
#define EXACT_PIVOT 1e-12  // as PIVOT, where sums are over all points
struct Refit {
  const double* tp;
  const double2* wv;
  const int* offsets;
  const Info* info;
  const double* f0;
  const double* df;
  const long long* start;
  double* power;
  Tops tops;
  Doubts first;
  Doubts second;
  double limit, mean;
  int grid_stride, few;
};
// Adds a point to the sums of one frequency, from its cosine and sine.
__device__ __forceinline__ void add_point(double2 (&S)[AT_LEAST_ONE(CHANNELS)], double2 wv, double c, double s) {
  double x[AT_LEAST_ONE(HARMONICS)],
      y[AT_LEAST_ONE(HARMONICS)];  // power k is made of powers k / 2: short chains of operations
  UNROLL
  for (int k = 0; k < HARMONICS; k++) {
    const int a = (k - 1) / 2, b = k / 2;
    x[k] = k ? fma(x[a], x[b], -y[a] * y[b]) : c;
    y[k] = k ? fma(x[a], y[b], y[a] * x[b]) : s;
    S[k].x = fma(wv.x, x[k], S[k].x);
    S[k].y = fma(wv.x, y[k], S[k].y);
    if (k < TERMS) {
      S[HARMONICS + k].x = fma(wv.y, x[k], S[HARMONICS + k].x);
      S[HARMONICS + k].y = fma(wv.y, y[k], S[HARMONICS + k].y);
    }
  }
}
extern "C" __global__ void __launch_bounds__(128, TERMS <= 4   ? 4
                                                  : TERMS <= 6 ? 2
                                                               : 1)
chi2_refit(const __grid_constant__ Refit A) {
#if TERMS > 0
  const unsigned count = *A.first.count;
  if (count > (unsigned)A.first.room) return;  // the list is too short: chi2_exact searches the powers for NaNs
  for (unsigned i0 = blockIdx.x * 128 + (threadIdx.x & ~31); i0 < count;
       i0 += gridDim.x * 128) {  // the same for a warp
    const unsigned i = i0 + (threadIdx.x & 31);
    const int2 what = i < count ? A.first.list[i] : make_int2(-1, 0);
    bool left = what.x >= 0;
    if (left) {
      const int o = what.x, gi = o * A.grid_stride, lo = A.offsets[o], n = A.info[o].n;
      if (n <= A.few) {
        const Frequency f = frequency_of(A.f0[gi], (double)what.y, A.df[gi]);
        double2 S[AT_LEAST_ONE(CHANNELS)];
        UNROLL
        for (int c = 0; c < CHANNELS; c++) S[c] = make_double2(0, 0);
        for (int p = lo; p < lo + n; p += 2) {  // two at a time: the chain of operations of one is long
          const int q = min(p + 1, lo + n - 1);
          double s, c, sine, cosine;
          sincos_cycles(cycles(f, A.tp[p]), s, c);
          sincos_cycles(cycles(f, A.tp[q]), sine, cosine);
          add_point(S, A.wv[p], c, s);
          add_point(S, q > p ? A.wv[q] : make_double2(0, 0), cosine, sine);
        }
        const double p = solved([&](int c) { return S[c]; }, A.limit * sqrt((double)n), A.mean, EXACT_PIVOT);
        left = !(p == p);
        if (!left) {
          A.power[A.start[o] + what.y] = p;
          raise_top(A.tops, o, what.y, p);
        }
      }
    }
    doubt(A.second, left, what.x, what.y);
  }
#endif
}

// ---------------------------------------------------------------- exact fits
struct Exact {
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
  double* power;
  Tops tops;
  Doubts some;              // the only frequencies to be fitted; its list is null if there are others
  const unsigned* doubted;  // number of fits for chi2_refit, which does nothing if they exceed the room
  const unsigned* tried;    // number of objects, at most `members`; null: all
  double limit;             // as in chi2_refit
  int members, blocks, total, grid_stride, mean, all, few;  // few: most points of a series for chi2_refit
};
#define SPAN 256
#define MANY 128  // points from which on all warps of a block fit together
#define WARPS (TERMS <= 8 ? 4 : 1)
#define COLUMNS (HARMONICS + 1)
#define ENTRIES ((COLUMNS + 1) * (COLUMNS + 2) / 2 - 1)  // lower triangle with the right-hand side as a last row
#define PER_LANE ((ENTRIES + 31) / 32)
#define ROW (COLUMNS + 1)

// The standard power by one warp, or (ALL, many points) by all warps of the block, of which the first gets the
// result; missing if a column is too close to the linear span of those before it. rows: 32 x ROW; matrix: ENTRIES pairs
// (followed by those of the other warps); own: COLUMNS squares of the columns.
template <bool PAIRS, bool ALL>
__device__ __noinline__ double exact_fit(const double* t, const double2* wv, int n, Frequency f, bool mean,
                                         double* rows, double2* matrix, double* own) {
  const int lane = threadIdx.x & 31, columns = HARMONICS + mean;
  const int entries = (columns + 1) * (columns + 2) / 2 - 1;
  double2 sum[PER_LANE];
  int place[PER_LANE];  // row and column of each entry
  for (int e = 0; e < PER_LANE; e++) {
    sum[e] = make_double2(0, 0);
    int i, j;
    place_of(lane + 32 * e, i, j);
    place[e] = i << 8 | j;
  }
  const int warp = threadIdx.x >> 5;
  for (int p0 = ALL ? 32 * warp : 0; p0 < n; p0 += ALL ? 32 * WARPS : 32) {
    const int p = p0 + lane;
    double* mine = rows + lane * ROW;
    double root = 0, y = 0, c = 1, s = 0;
    if (p < n) {
      const double2 v = wv[p];
      root = sqrt(v.x);
      y = root > 0 ? v.y / root : 0;
      sincos_cycles(cycles(f, t[p]), s, c);
    }
    double u = c, v = s;
    if (mean) mine[0] = root;
    for (int k = 0; k < TERMS; k++) {
      mine[mean + 2 * k] = root * u;
      mine[mean + 2 * k + 1] = root * v;
      const double next = u * c - v * s;
      v = u * s + v * c;
      u = next;
    }
    mine[columns] = y;
    __syncwarp();
    const int many = min(32, n - p0);
    for (int e = 0; e < PER_LANE; e++)
      if (lane + 32 * e < entries) {
        const double* a = rows + (place[e] >> 8);
        const double* b = rows + (place[e] & 255);
        double2 total[4];  // four chains of sums, because a single one is bound by latency
#pragma unroll
        for (int c = 0; c < 4; c++) total[c] = make_double2(0, 0);
        for (int i = 0; i < many; i += 4)  // rows past the end are zero
#pragma unroll
          for (int c = 0; c < 4; c++) {
            const double x = a[(i + c) * ROW], z = b[(i + c) * ROW];
            if constexpr (PAIRS) {
              const double q = rounded(x, z);
              total[c] = plus(total[c], q, fma(x, z, -q));
            } else
              total[c].x = fma(x, z, total[c].x);
          }
        for (int c = 0; c < 4; c++)
          if constexpr (PAIRS)
            sum[e] = plus(sum[e], total[c].x, total[c].y);
          else
            sum[e].x += total[c].x;
      }
    __syncwarp();
  }
  if (ALL) {
    if (warp)
      for (int e = 0; e < PER_LANE; e++)
        if (lane + 32 * e < entries) matrix[lane + 32 * e] = sum[e];
    __syncthreads();
    if (warp) return missing64();
    for (int e = 0; e < PER_LANE; e++)
      if (lane + 32 * e < entries)
        for (int k = 1; k < WARPS; k++) {
          const double2 more = matrix[k * ENTRIES + lane + 32 * e];
          if constexpr (PAIRS)
            sum[e] = plus(sum[e], more.x, more.y);
          else
            sum[e].x += more.x;
        }
  }
  for (int e = 0; e < PER_LANE; e++)
    if (lane + 32 * e < entries) {
      matrix[lane + 32 * e] = sum[e];
      if (place[e] >> 8 == (place[e] & 255)) own[place[e] & 255] = sum[e].x;
    }
  __syncwarp();
  double trace = 0, power = 0, left = 1;
  for (int j = 0; j < columns; j++) trace += own[j];
  const double2* right = matrix + at_of(columns, 0);
  for (int j = 0; j < columns; j++) {
    const double2 pivot = matrix[at_of(j, j)], z = right[j];
    if (!(pivot.x > SINGULAR * own[j] + COLUMN_NOISE * trace)) return missing64();  // the same in all lanes
    left *= pivot.x / own[j];
    if (!PAIRS && !(left > NEAR_SINGULAR)) return missing64();
    const double inverse = 1 / pivot.x;
    power = fma(z.x * inverse, z.x, power);
    for (int e = 0; e < PER_LANE; e++) {
      const int i = place[e] >> 8, k = place[e] & 255;
      if (lane + 32 * e < entries && k > j) {
        double2& entry = matrix[lane + 32 * e];
        const double2 x = matrix[at_of(i, j)], z = matrix[at_of(k, j)];
        if constexpr (PAIRS)
          entry = less_product(entry, ratio(x, pivot, inverse), z);
        else
          entry.x = fma(-x.x * inverse, z.x, entry.x);
      }
    }
    __syncwarp();
  }
  return power;
}

// Fit of up to LANES points by each group of LANES lanes, one point for each lane. Every column, and the right-hand
// side, is made orthogonal to the columns before it (modified Gram-Schmidt). The error grows with the condition
// number of the columns, not with its square.
template <int LANES>
__device__ __noinline__ double orthogonal_fit(const double* t, const double2* wv, int n, Frequency f, bool mean) {
  const int p = threadIdx.x & (LANES - 1);
  double q[COLUMNS + 1], gone[COLUMNS], root = 0, y = 0, c = 1, s = 0;
  if (p < n) {
    const double2 v = wv[p];
    root = sqrt(v.x);
    y = root > 0 ? v.y / root : 0;
    sincos_cycles(cycles(f, t[p]), s, c);
  }
  q[0] = mean ? root : 0;
  double u = c, v = s;
  UNROLL
  for (int k = 0; k < TERMS; k++) {
    q[2 * k + 1] = root * u;
    q[2 * k + 2] = root * v;
    const double next = u * c - v * s;
    v = u * s + v * c;
    u = next;
  }
  q[COLUMNS] = y;
  UNROLL
  for (int k = 0; k < COLUMNS; k++) gone[k] = 0;
  double power = 0;
  bool sound = true;
  UNROLL
  for (int j = 0; j < COLUMNS; j++) {
    if (j == 0 && !mean) continue;
    double dot[COLUMNS + 1];
    UNROLL
    for (int k = j; k <= COLUMNS; k++) dot[k] = warp_sum<LANES>(q[j] * q[k]);
    const double d = dot[j], inverse = 1 / d;
    sound = sound &&
            d > SINGULAR * (gone[j] + d) + COLUMN_NOISE * (TERMS + mean);  // TERMS + mean: sum of the columns' squares
    power = fma(dot[COLUMNS] * inverse, dot[COLUMNS], power);
    UNROLL
    for (int k = j + 1; k <= COLUMNS; k++) {
      const double part = dot[k] * inverse;
      q[k] = fma(-part, q[j], q[k]);
      if (k < COLUMNS) gone[k] = fma(part, dot[k], gone[k]);
    }
  }
  return sound ? power : missing64();
}
// Fit of many points: sums by a warp, normal equations as in chi2_refit.
#define SUMMED (TERMS > 0 && TERMS <= 5)
#if SUMMED
__device__
__noinline__ double summed_fit(const double* t, const double2* wv, int n, Frequency f, double limit, double mean) {
  double2 S[CHANNELS];
  UNROLL
  for (int c = 0; c < CHANNELS; c++) S[c] = make_double2(0, 0);
  for (int p = threadIdx.x & 31; p < n; p += 32) {
    double s, c;
    sincos_cycles(cycles(f, t[p]), s, c);
    add_point(S, wv[p], c, s);
  }
  UNROLL
  for (int c = 0; c < CHANNELS; c++) S[c] = make_double2(warp_sum(S[c].x), warp_sum(S[c].y));
  return solved([&](int c) { return S[c]; }, limit * sqrt((double)n), mean, EXACT_PIVOT);
}
#endif
#define A_HALF 16  // points up to which half a warp does a fit, and up to which a warp does so
#define A_WARP (TERMS <= 8 ? 32 : 0)
__device__ __forceinline__ Frequency frequency_at(const Exact& A, int o, int k) {
  const int gi = o * A.grid_stride;
  return A.frequencies ? Frequency{A.frequencies[k], 0} : frequency_of(A.f0[gi], (double)k, A.df[gi]);
}

__device__ __forceinline__ void give(const Exact& A, int o, int k, double p) {
  A.power[A.start[o] + k] = p;
  raise_top(A.tops, o, k, p);
}

// The fit of frequency k of object o, by a warp or by all of them.
template <bool ALL>
__device__ __forceinline__ void fit_one(const Exact& A, int o, int k, int n, double* rows, double2* matrix) {
  const int lo = A.offsets[o];
  const bool mean = A.mean != 0;
  const Frequency f = frequency_at(A, o, k);
  if (!ALL && n <= A_WARP) {
    const double p = n <= A_HALF ? orthogonal_fit<A_HALF>(A.tp + lo, A.wv + lo, n, f, mean)
                                 : orthogonal_fit<32>(A.tp + lo, A.wv + lo, n, f, mean);
    if (!(threadIdx.x & 31)) give(A, o, k, p);
    return;
  }
  double p = n > A.few && !(ALL && SUMMED)
                 ? exact_fit<false, ALL>(A.tp + lo, A.wv + lo, n, f, mean, rows, matrix, rows + 32 * ROW)
                 : missing64();
  bool again = !(p == p);
  if (ALL) again = __syncthreads_or(threadIdx.x < 32 && again);
  __syncwarp();
  if (again) p = exact_fit<true, ALL>(A.tp + lo, A.wv + lo, n, f, mean, rows, matrix, rows + 32 * ROW);
  if (ALL ? threadIdx.x == 0 : !(threadIdx.x & 31)) give(A, o, k, p);
  if (ALL)
    __syncthreads();
  else
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, TERMS <= 4   ? 4
                                                         : TERMS == 5 ? 2
                                                                      : 3)
chi2_exact(const __grid_constant__ Exact A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int list[SPAN];
  __shared__ int many;
  const int tid = threadIdx.x, warp = tid >> 5;
  double2* matrix = (double2*)raw + warp * ENTRIES;
  double* rows = (double*)((double2*)raw + WARPS * ENTRIES) + warp * (32 * ROW + COLUMNS);
  if (A.some.list) {
    const unsigned count = *A.some.count;
    if (count <= (unsigned)A.some.room && *A.doubted <= (unsigned)A.some.room) {
      const unsigned blocks =
          gridDim.x;      // neighbours in the list go to different blocks, because fits of long series are adjacent
      bool left = false;  // whether a fit is left for the whole block
      for (unsigned i0 = blockIdx.x; i0 < count; i0 += 2 * WARPS * blocks) {
        const unsigned mine = i0 + (2 * warp + (tid >> 4 & 1)) * blocks;  // two a warp
        const int2 what = mine < count ? A.some.list[mine] : make_int2(-1, 0);
        const int n = what.x < 0 ? 0 : A.info[what.x].n;
        const bool half = n > 0 && n <= min(A_HALF, A_WARP);
        if (__any_sync(FULL, half)) {
          const int o = half ? what.x : 0, lo = A.offsets[o];
          const double p =
              orthogonal_fit<A_HALF>(A.tp + lo, A.wv + lo, half ? n : 0, frequency_at(A, o, what.y), A.mean != 0);
          if (half && !(tid & 15)) give(A, o, what.y, p);
        }
        for (int k = 0; k < 2; k++) {
          const int m = __shfl_sync(FULL, n, 16 * k), o = __shfl_sync(FULL, what.x, 16 * k),
                    number = __shfl_sync(FULL, what.y, 16 * k);
          if (m > min(A_HALF, A_WARP) && m <= (SUMMED ? A.few : MANY))
            fit_one<false>(A, o, number, m, rows, matrix);
          else if (m > min(A_HALF, A_WARP)) {
#if SUMMED
            const double p =
                summed_fit(A.tp + A.offsets[o], A.wv + A.offsets[o], m, frequency_at(A, o, number), A.limit, A.mean);
            if (p == p) {
              if (!(tid & 31)) give(A, o, number, p);
            } else if (m > MANY)
              left = true;
            else
              fit_one<false>(A, o, number, m, rows, matrix);
#else
            left = true;
#endif
          }
        }
      }
      if (!__syncthreads_or(left)) return;
      for (unsigned i = blockIdx.x; i < count; i += blocks) {
        const int2 what = A.some.list[i];
        const int n = A.info[what.x].n;
        const double p = A.power[A.start[what.x] + what.y];  // the same in all threads: no other block has this fit
        if (n > MANY && !(p == p)) fit_one<true>(A, what.x, what.y, n, rows, matrix);
      }
      return;
    }
  }
  const int tasks = A.tried ? min(A.total, (int)*A.tried * A.blocks) : A.total;
  for (int task = blockIdx.x; task < tasks; task += gridDim.x) {
    int o, block;  // the shortest objects come first, because they need the most fits
    if (A.tasks) {
      const int2 t = A.tasks[A.total - 1 - task];
      o = t.x;
      block = t.y;
    } else {
      o = A.order[A.members - 1 - task / A.blocks];
      block = task % A.blocks;
    }
    const Info info = A.info[o];
    const int nf = A.nf[o * A.grid_stride], base = block * SPAN, total = min(SPAN, nf - base);
    double* out = A.power + A.start[o] + base;
    if (info.status != 0 || info.n < HARMONICS + (A.mean != 0)) {  // fewer points than columns
      if (A.all)
        for (int i = tid; i < total; i += 32 * WARPS) out[i] = missing64();
      continue;
    }
    __syncthreads();
    if (!tid) many = 0;
    __syncthreads();
    for (int i = tid; i < total; i += 32 * WARPS) {
      const double p = A.all ? missing64() : out[i];
      if (!(p == p)) list[atomicAdd(&many, 1)] = i;
    }
    __syncthreads();
    for (int k = warp; k < many; k += WARPS) {
#if SUMMED
      if (A.tried && info.n > MANY) {  // faster
        const double p = summed_fit(A.tp + A.offsets[o], A.wv + A.offsets[o], info.n,
                                    frequency_at(A, o, base + list[k]), A.limit, A.mean);
        if (!(tid & 31) && p == p) give(A, o, base + list[k], p);
        if (p == p) continue;
      }
#endif
      fit_one<false>(A, o, base + list[k], info.n, rows, matrix);
    }
  }
}

// ---------------------------------------------------------------- peaks, and normalised powers
struct Find {
  const Info* info;
  const int* order;
  const int2* tasks;
  const int* nf;
  const long long* start;
  double* power;
  Tops tops;
  Peaks peaks;
  int members, many, grid_stride, norm, scaled, edges;
};
#define FIND 2048
#define RUN (FIND / 256)  // neighbouring powers that a thread looks at
#define OWN (32 * RUN)    // of a warp
#define PLACES \
  (OWN + 2 +   \
   (OWN + 1) / RUN)  // powers of a warp and their neighbours; a free place after each RUN avoids bank conflicts

// A block looks at `many` stretches. A warp searches OWN powers in a row at a time, only those that may include one
// of the best peaks, and waits for no other warp. If no highest powers were recorded, the block searches all of one
// stretch. The first stretches of all objects come first, so that the floor under the best peaks is known when the
// others are searched.
extern "C" __global__ void __launch_bounds__(256) chi2_find(const Find A) {
  __shared__ double staged[256 / 32 * PLACES];
  auto at = [](int i) { return i + i / RUN; };
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  int o, block;
  if (A.tasks) {
    const int2 t = A.tasks[blockIdx.x];
    o = t.x;
    block = t.y;
  } else {
    o = A.order[blockIdx.x % A.members];
    block = blockIdx.x / A.members * A.many;
  }
  const Info info = A.info[o];
  const int nf = A.nf[o * A.grid_stride];
  if (info.status != 0 || block % A.many) return;
  double* out = A.power + A.start[o];
  unsigned known = floor_now(A.peaks, o);
  for (int i = tid; i < 2 * A.many; i += 256) {
    const int base = (block + i / 2) * FIND;
    if (base < nf) A.peaks.edge[((size_t)o * A.edges + block) * 2 + i] = out[i & 1 ? min(base + FIND, nf) - 1 : base];
  }
  const int mine = block * FIND + (warp + 8 * lane) * OWN;  // of OWN powers, for which this lane decides
  bool wanted = lane < A.many && mine < nf;
  if (A.tops.list) {
    if (2 * info.exclusion <= REGION) {
      const unsigned raised =
          floor_from(A.peaks, o, A.tops.bins[(size_t)o * BINS + lane], 0);  // each is a peak of its own
      if (raised > known) {
        if (!tid) atomicMax(A.peaks.floor + o, raised);
        known = raised;
      }
    }
    if (wanted) {
      const uint4 v =
          *(const uint4*)(A.tops.list + (size_t)o * A.tops.width + mine / TOP);  // those past the end are not searched
      const int left = nf - mine;
      wanted = max(max(v.x, left > TOP ? v.y : 0), max(left > 2 * TOP ? v.z : 0, left > 3 * TOP ? v.w : 0)) >= known;
    }
  }
  double* held = staged + warp * PLACES;  // begins with the power before the first one
  auto stage = [&](int first) {
    for (int i = lane; i < OWN + 2; i += 32) {
      const int k = first + i - 1;
      if (k >= max(0, first / FIND * FIND) && k < min(nf, first / FIND * FIND + FIND)) held[at(i)] = out[k];
    }
  };
  unsigned all = __ballot_sync(FULL, wanted);
  if (A.scaled) {  // one stretch: written once all have read it
    const int first = block * FIND + warp * OWN;
    if (all) stage(first);
    __syncthreads();
    if (all)
      for (int i = lane; i < min(OWN, nf - first); i += 32)
        out[first + i] = normalise(held[at(i + 1)], info.scale, A.norm);
  }
  for (; all; all &= all - 1) {
    const int first = block * FIND + (warp + 8 * (__ffs(all) - 1)) * OWN, base = first / FIND * FIND,
              total = min(FIND, nf - base);
    __syncwarp();
    if (!A.scaled) stage(first);
    __syncwarp();
    auto place = [&](int i) { return at(base + i - first + 1); };
    auto high = [&](int i) { return high_at(held + place(i)); };
    // as in ls_direct: bits of `found` are powers that may be peaks, by their high halves
    const int i0 = first - base + lane * RUN, least = known ? (int)known : -0x7fffffff, none = -0x7fffffff;
    unsigned found = 0;
    if (i0 < total) {
      int x = i0 ? high(i0 - 1) : none, y = high(i0);
#pragma unroll
      for (int i = 0; i < RUN; i++) {
        const int z = i0 + i + 1 < total ? high(i0 + i + 1) : none;
        if (i0 + i < total && y >= x && y >= z && y >= least) found |= 1u << i;
        x = y;
        y = z;
      }
    }
    give_stretch(A.peaks, o, base, i0, total, found, 1 + (2 * min(info.exclusion, 100000) + RUN - 1) / RUN, known,
                 [&](int i) { return held[place(i)]; });
  }
}

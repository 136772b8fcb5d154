// Exact fits of single frequencies for light curves in several bands, from sums over all points.
//
// Layout: one block reads 256 powers of an object at a time, and fits those that were not trusted (NaN), or
// all. The model of one sinusoid and means is fitted from sums that are centred in each band, by a thread, or
// by a warp if there are more points. Of the other models, those with a small front (see bands/bands.cuh) are
// fitted by a thread, the rest by a warp. Nearly singular fits are done by a warp in pairs of float64
// (double-double arithmetic).
//
// Cost: for each point 40 operations, and about 4 for each entry of the front.
// Limit: these operations; if no frequency is fitted, the launch.
//
// archs: 75 80 86 89 90 100 120
// build: offsets -DREAL=double -DTERMS=1 -DBAND_TERMS=0
// build: offsets2 -DREAL=double -DTERMS=2 -DBAND_TERMS=0
// build: separate -DREAL=double -DTERMS=0 -DBAND_TERMS=1
// build: flexible -DREAL=double -DTERMS=1 -DBAND_TERMS=1 -DCONSTANT=1
// budget: offsets kernel=bands_exact regs<=168 smem<=2048 spills<=64
// budget: offsets2 kernel=bands_exact regs<=168 smem<=2048 spills<=128
// budget: separate kernel=bands_exact regs<=168 smem<=2048 spills<=128
// budget: flexible kernel=bands_exact regs<=168 smem<=2048 spills<=128
// split: no
#include "common.cuh"
#include "bands/bands.cuh"
#include "fourier/pairs.cuh"

// ---------------------------------------------------------------- exact fits
// spans: stretches of a block. owner: the object whose rows an object uses; null: its own. tried: number of
// objects; null: all.
struct Exact {
  const double* tp;
  const double2* wv;
  Bands rows;
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
  const int* odd;
  const int* owner;
  const unsigned* tried;
  double penalty, band_penalty;
  int members, blocks, spans, grid_stride, all, regularised;
};
#define SPAN 256
#define FRONT (OWN + COMMON)  // columns of a band's front; the right-hand side is its last row
#define WARPS (FRONT <= 18 ? 4 : 1)
#define TRIANGLE(columns) (((columns) + 1) * ((columns) + 2) / 2 - 1)
#define ENTRIES TRIANGLE(FRONT)
#define BASE TRIANGLE(COMMON)
#define PER_LANE ((ENTRIES + 31) / 32)
#define ROW (FRONT + 1)

// A warp eliminates the first `pivots` columns of a matrix of `columns` columns and a right-hand side. Returns
// false if one of them is nearly a linear combination of those before it. own: squares of the columns. Without
// pairs of float64 there is also a limit on what remains of the squares: on the product of these parts, or, if a
// penalty bounds the parameters, on each of them.
template <bool PAIRS>
__device__ __forceinline__ bool eliminate(double2* matrix, int columns, int pivots, const double* own, bool regularised,
                                          double& power) {
  double left = 1;
  const int lane = threadIdx.x & 31, entries = TRIANGLE(columns);
  for (int j = 0; j < pivots; j++) {
    const double2 pivot = matrix[at_of(j, j)], z = matrix[at_of(columns, j)];
    if (!(pivot.x > SINGULAR * own[j] + COLUMN_NOISE * TRACE)) return false;  // the same in all lanes
    left = (regularised ? 1 : left) * (pivot.x / own[j]);
    if (!PAIRS && !(left > NEAR_SINGULAR)) return false;
    const double inverse = 1 / pivot.x;
    power = fma(z.x * inverse, z.x, power);
    __syncwarp();
    for (int e = lane; e < entries; e += 32) {
      int i, k;
      place_of(e, i, k);
      if (k <= j) continue;
      const double2 x = matrix[at_of(i, j)], y = matrix[at_of(k, j)];
      if constexpr (PAIRS)
        matrix[e] = less_product(matrix[e], ratio(x, pivot, inverse), y);
      else
        matrix[e].x = fma(-x.x * inverse, y.x, matrix[e].x);
    }
    __syncwarp();
  }
  return true;
}

// A warp computes the standard power; missing if a column is too close to the linear span of those before it. rows: 32
// x ROW; front: ENTRIES pairs, base: BASE pairs; own: FRONT squares of a band's columns, then COMMON squares of the
// common ones.
template <bool PAIRS>
__device__ __noinline__ double exact_fit(const double* t, const double2* wv, Bands by, Frequency f, double penalty,
                                         double band_penalty, bool regularised, double* rows, double2* front,
                                         double2* base, double* own) {
  const int lane = threadIdx.x & 31;
  double* squares = own + FRONT;
  for (int e = lane; e < BASE; e += 32) base[e] = make_double2(0, 0);
  for (int i = lane; i < COMMON; i += 32) squares[i] = 0;
  double power = 0;
  for (int b = 0; b < by.bands; b++) {
    const int begin = by.first[b], end = by.first[b + 1];
    if (begin == end) continue;  // its columns are zero
    double2 sum[PER_LANE];
    for (int e = 0; e < PER_LANE; e++) sum[e] = make_double2(0, 0);
    for (int p0 = begin; p0 < end; p0 += 32) {
      double* mine = rows + lane * ROW;
      double root = 0, y = 0, c = 1, s = 0;
      if (p0 + lane < end) {
        const int p = by.pick[p0 + lane];
        const double2 v = wv[p];
        root = sqrt(v.x);
        y = root > 0 ? v.y / root : 0;
        sincos_cycles(cycles(f, t[p]), s, c);
      }
      __syncwarp();
      mine[0] = root;
      if (CONSTANT) mine[OWN] = root;
      double u = c, v = s;
      for (int k = 0; k < MOST(TERMS, BAND_TERMS); k++) {
        if (k < BAND_TERMS) {
          mine[1 + 2 * k] = root * u;
          mine[2 + 2 * k] = root * v;
        }
        if (k < TERMS) {
          mine[OWN + CONSTANT + 2 * k] = root * u;
          mine[OWN + CONSTANT + 2 * k + 1] = root * v;
        }
        const double next = u * c - v * s;
        v = u * s + v * c;
        u = next;
      }
      mine[FRONT] = y;
      __syncwarp();
      const int many = min(32, end - p0);
      for (int e = 0; e < PER_LANE; e++) {
        if (lane + 32 * e >= ENTRIES) continue;
        int i, j;
        place_of(lane + 32 * e, i, j);
        const double* x = rows + i;
        const double* z = rows + j;
        double2 total = sum[e];
        for (int q = 0; q < many; q++) {
          if constexpr (PAIRS) {
            const double r = rounded(x[q * ROW], z[q * ROW]);
            total = plus(total, r, fma(x[q * ROW], z[q * ROW], -r));
          } else
            total.x = fma(x[q * ROW], z[q * ROW], total.x);
        }
        sum[e] = total;
      }
    }
    __syncwarp();
    for (int e = 0; e < PER_LANE; e++) {
      if (lane + 32 * e >= ENTRIES) continue;
      int i, j;
      place_of(lane + 32 * e, i, j);
      if (i == j && i < OWN) {
        sum[e] = plus(sum[e], band_penalty * TRACE, 0);
        own[i] = sum[e].x;
      }
      if (i == j && i >= OWN) squares[i - OWN] += sum[e].x;
      front[lane + 32 * e] = sum[e];
    }
    __syncwarp();
    if (!eliminate<PAIRS>(front, FRONT, OWN, own, regularised, power)) return missing64();
    for (int e = lane; e < BASE; e += 32) {
      int i, j;
      place_of(e, i, j);
      const double2 x = front[at_of(i + OWN, j + OWN)];
      base[e] = plus(base[e], x.x, x.y);
    }
    __syncwarp();
  }
  for (int i = FREE + lane; i < COMMON; i += 32) {
    base[at_of(i, i)] = plus(base[at_of(i, i)], penalty * TRACE, 0);
    squares[i] += penalty * TRACE;
  }
  __syncwarp();
  return eliminate<PAIRS>(base, COMMON, COMMON, squares, regularised, power) ? power : missing64();
}

// The same by one thread, in float64 alone, for small fronts; missing also if pairs of float64 are needed.
#define SMALL_FRONT (!ONE_SINUSOID && FRONT <= 7)
#define FEW_ROWS 1024  // the object alone must decide between the two, which add in different orders
#if SMALL_FRONT
__device__ __noinline__ double small_fit(const double* t, const double2* wv, Bands by, Frequency f, double penalty,
                                         double band_penalty, bool regularised) {
  double base[AT_LEAST_ONE(BASE)], squares[AT_LEAST_ONE(COMMON)], power = 0;
  bool sound = true;
#pragma unroll
  for (int e = 0; e < BASE; e++) base[e] = 0;
#pragma unroll
  for (int i = 0; i < COMMON; i++) squares[i] = 0;
  for (int b = 0; b < by.bands; b++) {
    const int begin = by.first[b], end = by.first[b + 1];
    if (begin == end) continue;
    double m[ENTRIES];
#pragma unroll
    for (int e = 0; e < ENTRIES; e++) m[e] = 0;
    for (int i = begin; i < end; i++) {
      const int p = by.pick[i];
      const double2 v = wv[p];
      double s, c;
      sincos_cycles(cycles(f, t[p]), s, c);
      double column[FRONT], x = c, y = s;
      column[0] = 1;
      if (CONSTANT) column[OWN] = 1;
#pragma unroll
      for (int k = 0; k < MOST(TERMS, BAND_TERMS); k++) {
        if (k < BAND_TERMS) {
          column[1 + 2 * k] = x;
          column[2 + 2 * k] = y;
        }
        if (k < TERMS) {
          column[OWN + CONSTANT + 2 * k] = x;
          column[OWN + CONSTANT + 2 * k + 1] = y;
        }
        const double next = x * c - y * s;
        y = x * s + y * c;
        x = next;
      }
#pragma unroll
      for (int r = 0; r < FRONT; r++) {
        const double weighted = v.x * column[r];
#pragma unroll
        for (int q = 0; q <= r; q++) m[at_of(r, q)] = fma(weighted, column[q], m[at_of(r, q)]);
        m[at_of(FRONT, r)] = fma(v.y, column[r], m[at_of(FRONT, r)]);
      }
    }
#pragma unroll
    for (int i = 0; i < COMMON; i++) squares[i] += m[at_of(OWN + i, OWN + i)];
    double left = 1, own[OWN];
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      m[at_of(j, j)] += band_penalty * TRACE;
      own[j] = m[at_of(j, j)];
    }
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      const double pivot = m[at_of(j, j)], inverse = 1 / pivot, z = m[at_of(FRONT, j)];
      left = (regularised ? 1 : left) * (pivot / own[j]);
      sound = sound && pivot > SINGULAR * own[j] + COLUMN_NOISE * TRACE && left > NEAR_SINGULAR;
      power = fma(z * inverse, z, power);
#pragma unroll
      for (int r = j + 1; r <= FRONT; r++) {
        const double u = m[at_of(r, j)] * inverse;
#pragma unroll
        for (int q = j + 1; q <= (r < FRONT ? r : FRONT - 1); q++)
          m[at_of(r, q)] = fma(-u, m[at_of(q, j)], m[at_of(r, q)]);
      }
    }
#pragma unroll
    for (int r = 0; r <= COMMON; r++)
#pragma unroll
      for (int q = 0; q <= (r < COMMON ? r : COMMON - 1); q++) base[at_of(r, q)] += m[at_of(r + OWN, q + OWN)];
  }
  double left = 1;
#pragma unroll
  for (int j = FREE; j < COMMON; j++) {
    base[at_of(j, j)] += penalty * TRACE;
    squares[j] += penalty * TRACE;
  }
#pragma unroll
  for (int j = 0; j < COMMON; j++) {
    const double pivot = base[at_of(j, j)], inverse = 1 / pivot, z = base[at_of(COMMON, j)];
    left = (regularised ? 1 : left) * (pivot / squares[j]);
    sound = sound && pivot > SINGULAR * squares[j] + COLUMN_NOISE * TRACE && left > NEAR_SINGULAR;
    power = fma(z * inverse, z, power);
#pragma unroll
    for (int r = j + 1; r <= COMMON; r++) {
      const double u = base[at_of(r, j)] * inverse;
#pragma unroll
      for (int q = j + 1; q <= (r < COMMON ? r : COMMON - 1); q++)
        base[at_of(r, q)] = fma(-u, base[at_of(q, j)], base[at_of(r, q)]);
    }
  }
  return sound ? power : missing64();
}
#endif

#if ONE_SINUSOID
// The same from sums centred in each band before they are squared, by a whole warp (WIDE) or by one thread.
#define FEW 30  // the object alone must decide between the two, which add in different orders
template <bool WIDE>
__device__ __noinline__ double centred(const double* t, const double2* wv, Bands by, Frequency f) {
  const int start = WIDE ? threadIdx.x & 31 : 0, step = WIDE ? 32 : 1;
  Sums q = {0, 0, 0, 0, 0};
  for (int b = 0; b < by.bands; b++) {
    const int begin = by.first[b], end = by.first[b + 1];
    const double share = by.share[b];
    double mc = 0, ms = 0;
    for (int i = begin + start; i < end; i += step) {
      const int p = by.pick[i];
      double s, c;
      sincos_cycles(cycles(f, t[p]), s, c);
      mc = fma(wv[p].x, c, mc);
      ms = fma(wv[p].x, s, ms);
    }
    if (WIDE) {
      mc = warp_sum(mc);
      ms = warp_sum(ms);
    }
    mc *= share;
    ms *= share;
    for (int i = begin + start; i < end; i += step) {
      const int p = by.pick[i];
      const double2 v = wv[p];
      double s, c;
      sincos_cycles(cycles(f, t[p]), s, c);
      c -= mc;
      s -= ms;
      q.cc = fma(v.x * c, c, q.cc);
      q.ss = fma(v.x * s, s, q.ss);
      q.cs = fma(v.x * c, s, q.cs);
      q.yc = fma(v.y, c, q.yc);
      q.ys = fma(v.y, s, q.ys);
    }
  }
  if (WIDE) {
    q.cc = warp_sum(q.cc);
    q.ss = warp_sum(q.ss);
    q.cs = warp_sum(q.cs);
    q.yc = warp_sum(q.yc);
    q.ys = warp_sum(q.ys);
  }
  return power_of(q);
}
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS) bands_exact(const Exact A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ int list[SPAN];
  __shared__ int many;
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, B = A.rows.bands;
  if (A.tried && blockIdx.x / A.blocks >= *A.tried) return;
  int o, block;  // the shortest objects come first, because they need the most fits
  if (A.tasks) {
    const int2 t = A.tasks[gridDim.x - 1 - blockIdx.x];
    o = t.x;
    block = t.y;
    if (block % A.spans) return;
  } else {
    o = A.order[A.members - 1 - blockIdx.x / A.blocks];
    block = blockIdx.x % A.blocks * A.spans;
  }
  if (!A.all && !A.odd[o]) return;
  const Info info = A.info[o];
  const int gi = o * A.grid_stride, nf = A.nf[gi], lo = A.offsets[o];
  const size_t whose = A.owner ? A.owner[o] : o;
  const Bands by = {A.rows.pick + lo, A.rows.first + whose * (B + 1), A.rows.share + whose * B, B};
  const double* t = A.tp + lo;
  const double2* wv = A.wv + lo;
  bool hopeless = info.status != 0;
  if (!hopeless && !A.regularised) {  // fewer points than columns
    int columns = COMMON;
    for (int b = 0; b < B; b++) columns += by.first[b] < by.first[b + 1] ? OWN : 0;
    hopeless = info.n < columns;
  }
  if (hopeless && !A.all) return;
  for (int span = 0; span < A.spans; span++) {
    const int begin = (block + span) * SPAN, total = min(SPAN, nf - begin);
    double* out = A.power + A.start[o] + begin;
    if (hopeless) {
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
    auto frequency = [&](int i) {
      return A.frequencies ? Frequency{A.frequencies[begin + i], 0}
                           : frequency_of(A.f0[gi], (double)(begin + i), A.df[gi]);
    };
#if ONE_SINUSOID
    if (info.n <= FEW) {
      for (int k = tid; k < many; k += 32 * WARPS) out[list[k]] = centred<false>(t, wv, by, frequency(list[k]));
    } else {
      for (int k = warp; k < many; k += WARPS) {
        const double p = centred<true>(t, wv, by, frequency(list[k]));
        if (!lane) out[list[k]] = p;
      }
    }
#else
    double2* front = (double2*)raw + warp * (ENTRIES + BASE);
    double* rows = (double*)((double2*)raw + WARPS * (ENTRIES + BASE)) + warp * (32 * ROW + FRONT + COMMON);
    bool again = false;  // whether the list is of fits that one thread could not do
#if SMALL_FRONT
    if (info.n <= FEW_ROWS) {
      for (int k = tid; k < many; k += 32 * WARPS) {
        const double p = small_fit(t, wv, by, frequency(list[k]), A.penalty, A.band_penalty, A.regularised);
        out[list[k]] = p;
        if (p == p) list[k] = -1;
      }
      again = true;
      __syncthreads();
    }
#endif
    for (int k = warp; k < many; k += WARPS) {
      if (list[k] < 0) continue;
      const Frequency f = frequency(list[k]);
      double p = missing64();
      if (!again)
        p = exact_fit<false>(t, wv, by, f, A.penalty, A.band_penalty, A.regularised, rows, front, front + ENTRIES,
                             rows + 32 * ROW);
      __syncwarp();
      if (!(p == p))
        p = exact_fit<true>(t, wv, by, f, A.penalty, A.band_penalty, A.regularised, rows, front, front + ENTRIES,
                            rows + 32 * ROW);
      if (!lane) out[list[k]] = p;
      __syncwarp();
    }
#endif
  }
}

// Shared parts of the periodogram's kernels: precisions, phases, sums, peak candidates, the exact power.
#pragma once
#include "ptx.cuh"

#ifndef REAL
#define REAL double
#endif
typedef REAL T;
template <typename X>
struct Pair;
template <>
struct Pair<double> {
  typedef double2 type;
};
template <>
struct Pair<float> {
  typedef float2 type;
};
typedef Pair<T>::type C;

#define FULL 0xffffffffu

__device__ __forceinline__ C mk(T x, T y) {
  C c;
  c.x = x;
  c.y = y;
  return c;
}
// A missing power: a NaN whose sign is set, so that its high half, taken as an integer, lies below that of every
// number above 0.
__device__ __forceinline__ double missing64() { return __longlong_as_double((long long)0xfff8000000000000ull); }
__device__ __forceinline__ T missing() { return sizeof(T) == 8 ? (T)missing64() : (T)__int_as_float((int)0xffc00000u); }
// Conversion to working precision. A cast alone would lose the sign of a missing power.
__device__ __forceinline__ T number_of(double p) { return p == p ? (T)p : missing(); }

using ptx::reciprocal;

// f0 + k df for exact f0 and df, without rounding: the nearest float64 and the remainder.
struct Frequency {
  double f, rest;
};
__device__ __forceinline__ Frequency frequency_of(double f0, double k, double df) {
  const double step = k * df, left = fma(k, df, -step);
  Frequency q;
  q.f = f0 + step;
  const double part = q.f - f0;
  q.rest = ((f0 - (q.f - part)) + (step - part)) + left;
  return q;
}
// f t modulo 1, in (-1, 1): the product carries its rounding error along.
__device__ __forceinline__ double cycles(Frequency q, double t) {
  const double a = q.f * t, low = fma(q.rest, t, fma(q.f, t, -a));
  return (a - rint(a)) + low;
}
__device__ __forceinline__ void sincos_cycles(double x, double& s, double& c) { sincospi(2 * x, &s, &c); }
__device__ __forceinline__ void sincos_cycles(double x, float& s, float& c) { sincospif(2 * (float)x, &s, &c); }

// The high 32 bits, which order positive numbers. key_of: the same, but 0 for everything that is not positive.
__device__ __forceinline__ int high_of(double p) { return __double2hiint(p); }
__device__ __forceinline__ int high_of(float p) { return __float_as_int(p); }
__device__ __forceinline__ unsigned key_of(T p) { return p > 0 ? (unsigned)high_of(p) : 0u; }

// The same as key_of, by integer operations alone.
__device__ __forceinline__ unsigned key_bits(double p) {
  const unsigned k = (unsigned)__double2hiint(p);
  return k <= 0x7ff00000u ? k : 0;
}
__device__ __forceinline__ unsigned key_bits(float p) {
  const unsigned k = (unsigned)__float_as_int(p);
  return k <= 0x7f800000u ? k : 0;
}

// The same for a number in memory, of which only the high half is read.
__device__ __forceinline__ int high_at(const double* p) { return ((const int*)p)[1]; }
__device__ __forceinline__ int high_at(const float* p) { return ((const int*)p)[0]; }
__device__ __forceinline__ unsigned key_at(const T* p) { return (unsigned)max(high_at(p), 0); }
__device__ __forceinline__ unsigned warp_max(unsigned v) {
#if HAS_WARP_REDUCTIONS
  return __reduce_max_sync(FULL, v);
#else
  for (int k = 16; k; k >>= 1) {
    unsigned o = __shfl_xor_sync(FULL, v, k);
    v = o > v ? o : v;
  }
  return v;
#endif
}
__device__ __forceinline__ unsigned warp_or(unsigned v) {
#if HAS_WARP_REDUCTIONS
  return __reduce_or_sync(FULL, v);
#else
  for (int k = 16; k; k >>= 1) v |= __shfl_xor_sync(FULL, v, k);
  return v;
#endif
}
template <int LANES = 32>
__device__ __forceinline__ double warp_sum(double v) {  // over each group of LANES lanes
  for (int k = LANES / 2; k; k >>= 1) v += __shfl_xor_sync(FULL, v, k);
  return v;
}

#define LONG 1024  // series of more points are spread by ls_spread where several blocks share their cells

// Results of ls_prepare for one object; n is 0 unless status is 0.
// mean_square: of y about its constant model; weight: the sum of 1 / dy^2; both in the user's units. share: the
// least power of the sample nearest to a maximum, as a fraction of the maximum.
struct Info {
  int n, dropped, status, exclusion;
  double t_min, span, scale, mean_square, weight, share;
};

// Conditions on the objects of a part: df * span in (least, most], and from `few` to `many` points. circle: cells
// of one circle times the number of combs, so that a unit of time is circle * df cells; 0 for direct sums. stretch:
// number of neighbouring indices between edge values; 0 if there are none. window: of sums that are interpolated
// between frequencies; 0 if none are.
struct Limit {
  double least, most, circle;
  int few, many;
  long long stretch, window;
};

// Normalisations: 0 = times scale (standard 1, psd, scargle), 1 = p/(1-p), 2 = -ln(1-p). The last two have their
// pole at 1, which rounding can reach or pass: p is limited to the largest number below 1.
__device__ __forceinline__ double normalise(double p, double scale, int norm) {
  if (!(p == p)) return missing64();
  if (norm == 0) return p * scale;
  const double q = p > 1 - 0x1p-53 ? 1 - 0x1p-53 : p;
  return norm == 1 ? q / (1 - q) : -log1p(-q);
}
__device__ __forceinline__ float normalise(float p, double scale, int norm) {
  if (!(p == p)) return __int_as_float((int)0xffc00000u);
  if (norm == 0) return p * (float)scale;
  const float q = p > 1 - 0x1p-24f ? 1 - 0x1p-24f : p;
  return norm == 1 ? q / (1 - q) : -log1pf(-q);
}
// The member and the stretch that a block computes, in a launch over all stretches of all members of a part. The
// first stretches of `group` members come first, then their second ones, so that floors under their peaks are known
// early.
__device__ __forceinline__ int2 member_and_stretch(int block, int group, int stretches, int members) {
  const int start = block / (group * stretches) * group, size = min(group, members - start),
            task = block - start * stretches;
  int2 v;
  v.x = start + task % size;
  v.y = task / size;
  return v;
}
// Determinants at or below `least` are not trusted. With up to `few` points no determinant is trusted.
struct Guard {
  double least;
  long long few;
};
__device__ __forceinline__ T guard_of(Guard g, int n) { return n <= g.few ? (T)1 : (T)g.least; }

// ---------------------------------------------------------------- the exact power
// Standard power from sums centred before they are squared (Zechmeister & Kuerster 2009, eqs. 5-15), by one warp,
// in float64.
// A determinant below these is no more than rounding: of the products, and, if a column is nearly constant, of the
// cosines themselves (about 1e-16 each, squared). Cosine and sine are then one column at these times.
#define SINGULAR 1e-14
#define COLUMN_NOISE 1e-30
struct Sums {
  double cc, ss, cs, yc, ys;
};
__device__ __forceinline__ double power_of(const Sums& s) {
  double det = s.cc * s.ss - s.cs * s.cs;
  if (!(det > SINGULAR * s.cc * s.ss + COLUMN_NOISE * (s.cc + s.ss))) return missing64();
  return (s.yc * (s.ss * s.yc - s.cs * s.ys) + s.ys * (s.cc * s.ys - s.cs * s.yc)) / det;
}
// Each group of LANES lanes of a warp computes the power of its own frequency. t: relative times; wv: (w, wy); n
// rows.
template <int LANES>
__device__ __noinline__ double exact_power(const double* t, const double2* wv, int n, Frequency f, bool mean) {
  const int first = threadIdx.x & (LANES - 1);
  double mc = 0, ms = 0;
  if (mean) {
    for (int i = first; i < n; i += LANES) {
      double s, c;
      sincos_cycles(cycles(f, t[i]), s, c);
      mc = fma(wv[i].x, c, mc);
      ms = fma(wv[i].x, s, ms);
    }
    mc = warp_sum<LANES>(mc);
    ms = warp_sum<LANES>(ms);
  }
  Sums q = {0, 0, 0, 0, 0};
  for (int i = first; i < n; i += LANES) {
    double s, c;
    sincos_cycles(cycles(f, t[i]), s, c);
    const double2 v = wv[i];
    c -= mc;
    s -= ms;
    q.cc = fma(v.x * c, c, q.cc);
    q.ss = fma(v.x * s, s, q.ss);
    q.cs = fma(v.x * c, s, q.cs);
    q.yc = fma(v.y, c, q.yc);
    q.ys = fma(v.y, s, q.ys);
  }
  q.cc = warp_sum<LANES>(q.cc);
  q.ss = warp_sum<LANES>(q.ss);
  q.cs = warp_sum<LANES>(q.cs);
  q.yc = warp_sum<LANES>(q.yc);
  q.ys = warp_sum<LANES>(q.ys);
  return power_of(q);
}
// The same in one pass, from sums that are not centred. This replaces sums in float32, whose suspicious
// determinants are mostly large enough for float64. If one is not, all groups of the warp also compute the power
// above.
#define ENOUGH 1e-3
template <int LANES>
__device__ __noinline__ double finer_power(const double* t, const double2* wv, int n, Frequency f, bool mean) {
  double mc = 0, ms = 0, c2 = 0, s2 = 0;
  Sums q = {0, 0, 0, 0, 0};
  for (int i = threadIdx.x & (LANES - 1); i < n; i += LANES) {
    double s, c;
    sincos_cycles(cycles(f, t[i]), s, c);
    const double2 v = wv[i];
    const double wc = v.x * c, ws = v.x * s;
    mc += wc;
    ms += ws;
    c2 = fma(wc, c, fma(-ws, s, c2));
    s2 = fma(wc, s, s2);
    q.yc = fma(v.y, c, q.yc);
    q.ys = fma(v.y, s, q.ys);
  }
  mc = warp_sum<LANES>(mc);
  ms = warp_sum<LANES>(ms);
  c2 = warp_sum<LANES>(c2);
  s2 = warp_sum<LANES>(s2);
  q.yc = warp_sum<LANES>(q.yc);
  q.ys = warp_sum<LANES>(q.ys);
  if (!mean) mc = ms = 0;
  q.cc = fma(-mc, mc, fma(0.5, c2, 0.5));
  q.ss = fma(-ms, ms, fma(-0.5, c2, 0.5));
  q.cs = fma(-mc, ms, s2);
  const bool sound = q.cc * q.ss - q.cs * q.cs > ENOUGH;
  if (__all_sync(FULL, sound)) return power_of(q);
  const double exact = exact_power<LANES>(t, wv, n, f, mean);
  return sound ? power_of(q) : exact;
}
// The power that replaces a suspicious power of the working precision.
template <int LANES>
__device__ __forceinline__ double better_power(const double* t, const double2* wv, int n, Frequency f, bool mean) {
  return sizeof(T) == 4 ? finer_power<LANES>(t, wv, n, f, mean) : exact_power<LANES>(t, wv, n, f, mean);
}
// Up to this number of points eight lanes compute a frequency, beyond it a warp. The choice must depend on the
// object alone, because the two add in different orders.
#define FEW_POINTS 64
// Computes exact powers for the lanes of a warp in the mask `todo`, one or four of them at a time. Returns this
// lane's power, or `here` if the lane is not in the mask. A: arguments of a kernel; lo: first point of the object;
// gi: index of its grid; k: index of the lane's frequency.
template <typename Arguments>
__device__ __noinline__ T mend_lanes(const Arguments& A, int lo, int n, int gi, int k, unsigned todo, T here) {
  const int lane = threadIdx.x & 31, size = n <= FEW_POINTS ? 8 : 32, group = lane / size;
  while (todo) {
    const int turn = todo >> lane & 1 ? __popc(todo & ((1u << lane) - 1)) : 32;  // how many come before this lane
    int who = __ffs(todo) - 1;
    for (int g = 0; g < 32 / size && todo; g++) {
      const int next = __ffs(todo) - 1;
      if (g <= group) who = next;
      todo &= todo - 1;
    }
    const Frequency f = frequency_of(A.f0[gi], (double)__shfl_sync(FULL, k, who), A.df[gi]);
    const double exact = n <= FEW_POINTS ? better_power<8>(A.tp + lo, A.wv + lo, n, f, A.mean != 0)
                                         : better_power<32>(A.tp + lo, A.wv + lo, n, f, A.mean != 0);
    const double mine = __shfl_sync(FULL, exact, min(turn * size, 31));
    if (turn < 32 / size) here = number_of(mine);
  }
  return here;
}
// The whole block replaces the NaNs among `total` staged powers. Their indices are gathered in `list` (unused
// memory with room for all). Then a warp computes one at a time, or four if there are few points: one thread alone
// would keep its block waiting (this once took a third of ls_direct's time).
// power(i): the staged value, in the standard normalisation; index(i): index of its frequency; wanted(i): whether
// there is such a frequency.
template <int LANES, typename Power, typename Index>
__device__ __forceinline__ void mend_list(int count, const int* list, const double* t, const double2* wv, int n,
                                          double f0, double df, bool mean, const Power& power, const Index& index) {
  const int groups = blockDim.x / LANES, group = threadIdx.x / LANES;
  for (int first = 0; first < count; first += groups) {  // whole warps: groups without a frequency repeat the last one
    const int j = first + group, i = list[min(j, count - 1)];
    const double p = better_power<LANES>(t, wv, n, frequency_of(f0, (double)index(i), df), mean);
    if (j < count && !(threadIdx.x & (LANES - 1))) power(i) = number_of(p);
  }
}
template <typename Power, typename Index, typename Wanted>
__device__ __forceinline__ void mend(int total, int* list, int* many, const double* t, const double2* wv, int n,
                                     double f0, double df, bool mean, const Power& power, const Index& index,
                                     const Wanted& wanted) {
  if (!threadIdx.x) *many = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < total; i += blockDim.x)
    if (wanted(i) && !(power(i) == power(i))) list[atomicAdd(many, 1)] = i;
  __syncthreads();
  const int count = *many;
  if (n <= FEW_POINTS)
    mend_list<8>(count, list, t, wv, n, f0, df, mean, power, index);
  else
    mend_list<32>(count, list, t, wv, n, f0, df, mean, power, index);
  __syncthreads();
}

// ---------------------------------------------------------------- peak candidates
// A candidate is a sample above the one before and not below the one after; a neighbour that is NaN or absent is below
// all. before/after are NaN where the neighbour belongs to another block: ls_peaks fills them in from the edge values.
struct Candidate {
  int index, pick;
  T here, before, after;
};  // pick: place in the list of the peak of this rank (ls_peaks)
struct Peaks {  // where candidates of object o go: list[o * cap ...], counted in count[o]
  Candidate* list;
  unsigned* count;
  unsigned* floor;
  T* edge;
  const double* share;
  int cap, wanted;
};  // share: fraction of the highest power below which a peak beyond the k highest does not count
__device__ __forceinline__ bool is_peak(T before, T here, T after) {
  return here == here && !(before >= here) && !(after > here);
}
__device__ __forceinline__ void put(const Peaks& k, int o, unsigned slot, long long index, T before, T here, T after) {
  if (slot < (unsigned)k.cap) {
    Candidate c;
    c.index = (int)index;
    c.pick = 0;
    c.here = here;
    c.before = before;
    c.after = after;
    k.list[(size_t)o * k.cap + slot] = c;
  }
}
__device__ __forceinline__ void emit(const Peaks& k, int o, long long index, T before, T here, T after) {
  put(k, o, atomicAdd(k.count + o, 1u), index, before, here, after);
}
// The k-th highest of the numbers of a warp, two in each lane (top >= next); 0 if fewer than k are above 0.
// highest: the highest of all.
__device__ __forceinline__ unsigned kth_highest(unsigned top, unsigned next, int k, unsigned& highest) {
  unsigned v = 0;
  for (int r = 0; r < k; r++) {
    v = warp_max(top);
    if (!r) highest = v;
    if (!v) break;
    const unsigned who = __ballot_sync(FULL, top == v);
    if ((threadIdx.x & 31) == __ffs(who) - 1) {
      top = next;
      next = 0;
    }
  }
  return v;
}
// The floor that follows from the highest power: the highest maximum cannot lie beside a sample below this floor.
__device__ __forceinline__ unsigned lowered(unsigned floor, double share) {
  const double v = (sizeof(T) == 8 ? __hiloint2double((int)floor, 0) : (double)__int_as_float((int)floor)) * share;
  const unsigned key = sizeof(T) == 8 ? (unsigned)__double2hiint(v) : (unsigned)__float_as_int((float)v);
  return key ? key - 1 : 0;
}
// The floor that follows from the powers of a warp, two in each lane (top >= next), all of different peaks; 0: no
// floor yet.
__device__ __forceinline__ unsigned floor_from(const Peaks& k, int o, unsigned top, unsigned next) {
  unsigned highest = 0;
  const unsigned v = kth_highest(top, next, k.wanted, highest);
  return v ? min(v, lowered(highest, k.share[o])) : 0;
}
// Raises the floor under the k-th accepted peak of object o and under the samples that may be beside the highest
// maximum. best, other: this lane's highest peaks in two places (0: none). The peaks of lanes whose `place` is a
// multiple of `stride`, and the two of a lane, are at least two exclusion lengths apart, so that no accepted peak
// can shade two of them: the k-th highest is a valid floor.
__device__ __forceinline__ unsigned raise_floor(const Peaks& k, int o, unsigned best, unsigned other, int stride,
                                                int place = threadIdx.x & 31) {
  if (64 / stride < k.wanted || stride > 32) return 0;
  const unsigned v = floor_from(k, o, place % stride ? 0 : max(best, other), place % stride ? 0 : min(best, other));
  if (v && !(threadIdx.x & 31)) atomicMax(k.floor + o, v);  // the result is not used, so that no thread waits for it
  return v;
}
__device__ __forceinline__ unsigned floor_now(const Peaks& k, int o) { return *(volatile unsigned*)(k.floor + o); }

// Appends the peaks of a warp to the list. Bit b of a lane's `peaks` stands for power i0 + b; get(i) reads one of
// `total` neighbouring powers.
template <typename Get>
__device__ __forceinline__ void give_peaks(const Peaks& k, int o, long long base, int i0, int total, unsigned peaks,
                                           const Get& get) {
  if (!__any_sync(FULL, peaks != 0)) return;
  const int lane = threadIdx.x & 31, mine = __popc(peaks);
  int before = mine;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const int v = __shfl_up_sync(FULL, before, step);
    if (lane >= step) before += v;
  }
  unsigned slot = 0;
  if (lane == 31) slot = atomicAdd(k.count + o, (unsigned)before);
  slot = __shfl_sync(FULL, slot, 31) + before - mine;
#pragma unroll 1
  for (; peaks; peaks &= peaks - 1) {
    const int i = i0 + __ffs(peaks) - 1;
    put(k, o, slot++, base + i, i > 0 ? get(i - 1) : missing(), get(i), i + 1 < total ? get(i + 1) : missing());
  }
}

// Writes the first and last power of a stretch, which the neighbouring blocks read.
template <typename Get>
__device__ __forceinline__ void leave_edges(T* edge, int total, const Get& get) {
  if (!threadIdx.x && total > 0) {
    edge[0] = get(0);
    edge[1] = get(total - 1);
  }
}

// The whole block finds the candidates of a stretch of `total` neighbouring powers in shared memory; get(i) reads
// one. A thread has tested some of them, from index i0 on: set bits of `found` mark those that may be peaks,
// because their high halves are neither below a neighbour nor below `known`, an older floor. Lanes `stride` apart
// are independent. A warp tests them exactly, raises the floor by those that are certainly peaks, and appends those
// that reach the floor to the list. Powers outside the stretch belong to other blocks, for which leave_edges writes
// the first and last value.
template <typename Get>
__device__ __forceinline__ void give_stretch(const Peaks& k, int o, long long base, int i0, int total, unsigned found,
                                             int stride, unsigned known, const Get& get) {
  if (!__any_sync(FULL, found != 0)) return;
  unsigned keep = 0, best = 0;
  for (unsigned left = found; left; left &= left - 1) {
    const int bit = __ffs(left) - 1, i = i0 + bit;
    const T here = get(i);
    if (!is_peak(i > 0 ? get(i - 1) : missing(), here, i + 1 < total ? get(i + 1) : missing())) continue;
    keep |= 1u << bit;
    if (i > 0 && i + 1 < total) best = max(best, key_of(here));
  }
  const unsigned raised = raise_floor(k, o, best > known ? best : 0, 0, stride);
  if (raised > known)
    for (unsigned left = keep; left; left &= left - 1) {
      const int bit = __ffs(left) - 1;
      if (key_of(get(i0 + bit)) < raised) keep &= ~(1u << bit);
    }
  give_peaks(k, o, base, i0, total, keep, get);
}

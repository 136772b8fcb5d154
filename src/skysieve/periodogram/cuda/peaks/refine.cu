// From peaks of the grid to maxima of the exact periodogram, for one sinusoid by Newton's steps on exact
// float64 sums.
//
// At a trial frequency, one pass over the points gives the sums of cosines and sines of once and twice the
// frequency, with powers of the time up to the fourth. They give the Taylor series of the power about the trial
// frequency to fourth order, which usually ends the climb. If cosine and sine hardly differ (less than a cycle
// in the span, few points), another pass gives the sums of the normal equations with two derivatives. Its
// columns are taken less their values at the middle point, so that no digits are lost where all cosines are
// nearly equal.
//
// ls_refine: GROUP lanes refine one peak of a series of up to `few` points, a warp one of up to `middle`
// points, and a block one of up to `many` points, whose sums are centred. Peaks of series of more than `few`
// points come first. Cost for each point and trial: about 40 operations in float64 for cosine, sine and their
// products with the weights, and 34 for the 30 sums. A peak takes 1.1 trials at 10 samples a peak (1.4 at 5);
// the first trial is at the vertex of the parabola through the samples. 1,000 objects of 165 points and 5 peaks
// make 0.9e6 points, of 24 bytes each from the cache. Limit: latency. Several peaks share a warp, so that the
// work of each trial (the sums over lanes, the series) is done for all of them at the same time. When the last
// peak of an object is refined, the best are selected and written to the host in falling order.
// ls_refine_long: one block sums SLICE points of one peak of a longer series. The last block of a peak adds the
// sums of all blocks and takes the step. The kernel is launched once for each trial; blocks return at once if
// their peak is done.
// ls_probe: one thread for each peak of another model, whose exact powers come from that model's own kernel.
// That kernel sees a peak as an object with a grid of up to PROBES frequencies: first a scan of its window,
// then five around the maximum, which give two derivatives and from them the next frequencies. Limit: the
// launch, because a thread does few operations.
// ls_select: one warp for each object of another model. It selects the best of the refined peaks and writes
// them to the host in falling order.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// budget: f64 kernel=ls_refine regs<=128 smem<=7680
// budget: f64 kernel=ls_refine_long regs<=128 smem<=2304
// budget: f64 kernel=ls_probe regs<=128 smem<=0
// budget: f64 kernel=ls_select regs<=72
#include "common.cuh"
#include "peaks/answers.cuh"
#include "peaks/refine.cuh"

#define THREADS 128  // of a block of ls_refine
#define WARPS (THREADS / 32)
#define GROUP 8  // lanes of a peak of a short series
#define GROUPS (32 / GROUP)
#define LONG_THREADS 256  // of ls_refine_long
#define VERY_LONG 16384   // points of a series that one block sums
#define SLICE 4096        // points of a block of a longer one
#define SUMS 21           // of add_up
#define ROOM 24           // of a group, rounded up to a multiple of GROUP
#define ORDER 4           // of the series of a power
#define TERMS (ORDER + 1)
#define SERIES_SUMS (6 * TERMS)
#define SERIES_ROOM 32
#define MOST_TRIALS 40
#define NONE -1.0  // no power yet

// ---------------------------------------------------------------- the best
struct Ranks {
  int* rank;
  unsigned* left;
  Answers answers;
};  // rank: scratch memory; left: peaks of an object that are not refined yet
// Whether the j-th peak, of power q at g, precedes the i-th, of power p at f.
__device__ __forceinline__ bool above(double q, double g, int j, double p, double f, int i) {
  return q > p || (q == p && (g < f || (g == f && j < i)));
}
// A warp writes the answers of an object from its refined peaks, which other blocks may have written. There are at
// most 32, one for each lane.
__device__ __noinline__ void select_few(const Picks& A, const Ranks& R, int o) {
  const int lane = threadIdx.x & 31, found = A.found[o], first = A.first[o];
  const size_t slot = (size_t)o * A.tries + min(lane, found - 1);
  const volatile double* refined = A.refined + 3 * slot;
  const int index = A.index[slot];
  const double f = refined[0], p = refined[1], curvature = refined[2], same = SAME / A.info[o].span;
  bool mine = lane < first && p == p;
  double top = NONE, further = NONE, where = 0;
  int which = -1;
#pragma unroll 1
  for (int j = 0; j < found; j++) {
    const double q = __shfl_sync(FULL, p, j), g = __shfl_sync(FULL, f, j);
    if (j < first) {
      top = fmax(top, q);
      if (fabs(f - g) < same && above(q, g, j, p, f, lane)) mine = false;  // nearly the same maximum as a higher one
    } else if (q > further || (q == further && g < where)) {
      further = q;
      where = g;
      which = j;
    }
  }
  const bool ahead = further > top + HIGHER;  // is a further one the highest?
  if (ahead) {                                // it takes the place of the nearest of the others, if one is within 1/T
    const double gap = lane < first && p == p ? fabs(f - where) * A.info[o].span : 1;
    double least = gap;
    for (int k = 16; k; k >>= 1) least = fmin(least, __shfl_xor_sync(FULL, least, k));
    if (least < 1 && lane == __ffs(__ballot_sync(FULL, gap == least)) - 1) mine = false;
  }
  const unsigned kept = __ballot_sync(FULL, mine);
  int place = ahead;
#pragma unroll 1
  for (int j = 0; j < first; j++) {
    const double q = __shfl_sync(FULL, p, j), g = __shfl_sync(FULL, f, j);
    if ((kept >> j & 1) && above(q, g, j, p, f, lane)) place++;
  }
  if (ahead && lane == which) {
    mine = true;
    place = 0;
  }
  const size_t out = (size_t)o * A.wanted;
  if (mine && place < A.wanted) {
    R.answers.index[out + place] = index;
    R.answers.frequency[out + place] = f;
    R.answers.best[out + place] = p;
    R.answers.curvature[out + place] = curvature;
  }
#pragma unroll 1
  for (int r = __popc(kept) + ahead + lane; r < A.wanted; r += 32) no_answer(R.answers, out + r);
}
// The same for any number of peaks.
__device__ __noinline__ void select(const Picks& A, const Ranks& R, int o) {
  const int lane = threadIdx.x & 31, found = A.found[o], first = A.first[o];
  const volatile double* refined = A.refined + 3 * (size_t)o * A.tries;
  volatile int* rank = R.rank + (size_t)o * A.tries;
  const int* picked = A.index + (size_t)o * A.tries;
  const double same = SAME / A.info[o].span;
  auto write = [&](int place, int i) {
    const size_t out = (size_t)o * A.wanted + place;
    R.answers.index[out] = picked[i];
    R.answers.frequency[out] = refined[3 * i];
    R.answers.best[out] = refined[3 * i + 1];
    R.answers.curvature[out] = refined[3 * i + 2];
  };
  double top = NONE, further = NONE;
  int which = -1;
#pragma unroll 1
  for (int i = lane; i < first; i += 32) top = fmax(top, refined[3 * i + 1]);
#pragma unroll 1
  for (int i = first + lane; i < found; i += 32) {
    const double p = refined[3 * i + 1];
    if (p > further || (p == further && refined[3 * i] < refined[3 * which])) {
      further = p;
      which = i;
    }
  }
  for (int k = 16; k; k >>= 1) top = fmax(top, __shfl_xor_sync(FULL, top, k));
  int ahead = 0;  // is a further one the highest?
  if (found > first) {
    for (int k = 16; k; k >>= 1) {
      const double p = __shfl_xor_sync(FULL, further, k);
      const int w = __shfl_xor_sync(FULL, which, k);
      if (w >= 0 && (p > further || (p == further && (which < 0 || refined[3 * w] < refined[3 * which])))) {
        further = p;
        which = w;
      }
    }
    ahead = which >= 0 && further > top + HIGHER;
  }
  int nearest = -1;  // of the others, if it is within 1/T: a further one takes its place
  if (ahead) {
    if (!lane) write(0, which);
    const double where = refined[3 * which];
    double least = 1 / A.info[o].span;
    for (int i = lane; i < first; i += 32) {
      const double gap = refined[3 * i + 1] == refined[3 * i + 1] ? fabs(refined[3 * i] - where) : least;
      if (gap < least) {
        least = gap;
        nearest = i;
      }
    }
    for (int k = 16; k; k >>= 1) {
      const double gap = __shfl_xor_sync(FULL, least, k);
      const int i = __shfl_xor_sync(FULL, nearest, k);
      if (i >= 0 && (gap < least || (gap == least && (nearest < 0 || i < nearest)))) {
        least = gap;
        nearest = i;
      }
    }
  }
  // Every lane compares its peak with all others, which are passed round the lanes: 32 are read at a time.
  auto power_of = [&](int i) { return i < first ? refined[3 * i + 1] : missing64(); };
  auto place_of = [&](int i) { return i < first ? refined[3 * i] : 0.0; };
  int kept = ahead;
#pragma unroll 1
  for (int i0 = 0; i0 < first; i0 += 32) {  // -1: nearly the same maximum as a higher one
    const int i = i0 + lane;
    const double p = power_of(i), f = place_of(i);
    bool mine = p == p && i != nearest;
#pragma unroll 1
    for (int j0 = 0; j0 < first; j0 += 32) {
      const double others = j0 == i0 ? p : power_of(j0 + lane), at = j0 == i0 ? f : place_of(j0 + lane);
#pragma unroll 1
      for (int j = j0; j < min(j0 + 32, first); j++) {
        const double q = __shfl_sync(FULL, others, j - j0), g = __shfl_sync(FULL, at, j - j0);
        mine = mine && (j == i || !(fabs(f - g) < same && above(q, g, j, p, f, i)));
      }
    }
    if (i < first) rank[i] = mine ? 0 : -1;
    kept += __popc(__ballot_sync(FULL, mine));
  }
  __syncwarp();
#pragma unroll 1
  for (int i0 = 0; i0 < first; i0 += 32) {
    const int i = i0 + lane;
    const double p = power_of(i), f = place_of(i);
    int place = ahead;
#pragma unroll 1
    for (int j0 = 0; j0 < first; j0 += 32) {
      const double others = j0 == i0 ? p : power_of(j0 + lane), at = j0 == i0 ? f : place_of(j0 + lane);
      const unsigned counts = __ballot_sync(FULL, j0 + lane < first && rank[j0 + lane] >= 0);
#pragma unroll 1
      for (int j = j0; j < min(j0 + 32, first); j++) {
        const double q = __shfl_sync(FULL, others, j - j0), g = __shfl_sync(FULL, at, j - j0);
        place += j != i && (counts >> (j - j0) & 1) && above(q, g, j, p, f, i);
      }
    }
    if (i < first && rank[i] >= 0 && place < A.wanted) write(place, i);
  }
#pragma unroll 1
  for (int r = kept + lane; r < A.wanted; r += 32) no_answer(R.answers, (size_t)o * A.wanted + r);
}
// Called by a warp when peaks are refined; a lane with `leads` set stands for one peak of object o. If it is the
// last of the object, the warp selects the answers.
__device__ __forceinline__ void settle(const Picks& A, const Ranks& R, int o, bool leads) {
  bool last = false;
  __syncwarp();
  if (leads) {
    __threadfence();
    last = atomicSub(R.left + o, 1u) == 1u;
  }
  unsigned ready = __ballot_sync(FULL, last);
  if (ready) __threadfence();
#pragma unroll 1
  for (; ready; ready &= ready - 1) {
    const int object = __shfl_sync(FULL, o, __ffs(ready) - 1);
    if (A.found[object] <= 32)
      select_few(A, R, object);
    else
      select(A, R, object);
  }
}

// list: the peaks (`tried` of them), each as index of the object times `tries` plus number of the peak. order:
// objects of longer series, which come first in `longer` blocks, `each` for one object. counters: for long series.
// few, middle, many: most points of a series for a group, a warp and a block. turns: launches of ls_refine_long.
struct Refine {
  Picks picks;
  Ranks ranks;
  const double* tp;
  const double2* wv;
  const int* offsets;
  const unsigned* tried;
  const int* list;
  const int* order;
  struct Climb* climbs;
  double* sums;
  unsigned* counters;
  int longer, each, mean, few, middle, many, slices, turns;
};

// ---------------------------------------------------------------- the power at one frequency
// A number that depends on the frequency, with its first and second derivatives.
struct Jet {
  double v, d, e;
};
__device__ __forceinline__ Jet operator-(Jet a, Jet b) { return Jet{a.v - b.v, a.d - b.d, a.e - b.e}; }
__device__ __forceinline__ Jet operator+(Jet a, Jet b) { return Jet{a.v + b.v, a.d + b.d, a.e + b.e}; }
__device__ __forceinline__ Jet operator*(Jet a, Jet b) {
  return Jet{a.v * b.v, fma(a.d, b.v, a.v * b.d), fma(a.e, b.v, fma(2 * a.d, b.d, a.v * b.e))};
}
__device__ __forceinline__ Jet operator/(Jet a, Jet b) {
  const double inverse = 1 / b.v, v = a.v * inverse, d = fma(-v, b.d, a.d) * inverse;
  return Jet{v, d, fma(-v, b.e, fma(-2 * d, b.d, a.e)) * inverse};
}

// Cosine and sine of a phase, and their first and second derivatives if the phase changes at rate u.
struct Column {
  double c, c1, c2, s, s1, s2;
};
__device__ __forceinline__ Column column_at(Frequency f, double t, double u) {
  double s, c;
  sincos_cycles(cycles(f, t), s, c);
  return Column{c, -u * s, -u * u * c, s, u * c, -u * u * s};
}
// Adds a point to the sums of add_up. base: columns at the middle point, or zeros.
__device__ __forceinline__ void add_point(double (&m)[32], Column p, const Column& base, double2 wv) {
  p.c -= base.c;
  p.c1 -= base.c1;
  p.c2 -= base.c2;
  p.s -= base.s;
  p.s1 -= base.s1;
  p.s2 -= base.s2;
  const double wc = wv.x * p.c, ws = wv.x * p.s, wc1 = wv.x * p.c1, ws1 = wv.x * p.s1, wc2 = wv.x * p.c2,
               ws2 = wv.x * p.s2;
  m[0] += wc;
  m[1] += wc1;
  m[2] += wc2;
  m[3] += ws;
  m[4] += ws1;
  m[5] += ws2;
  m[6] = fma(wc, p.c, m[6]);
  m[7] = fma(wc1, p.c, m[7]);
  m[8] = fma(wc1, p.c1, fma(wc2, p.c, m[8]));
  m[9] = fma(ws, p.s, m[9]);
  m[10] = fma(ws1, p.s, m[10]);
  m[11] = fma(ws1, p.s1, fma(ws2, p.s, m[11]));
  m[12] = fma(wc, p.s, m[12]);
  m[13] = fma(wc1, p.s, fma(wc, p.s1, m[13]));
  m[14] = fma(wc2, p.s, fma(2 * wc1, p.s1, fma(wc, p.s2, m[14])));
  m[15] = fma(wv.y, p.c, m[15]);
  m[16] = fma(wv.y, p.c1, m[16]);
  m[17] = fma(wv.y, p.c2, m[17]);
  m[18] = fma(wv.y, p.s, m[18]);
  m[19] = fma(wv.y, p.s1, m[19]);
  m[20] = fma(wv.y, p.s2, m[20]);
}
// A power and its four derivatives with respect to the place.
struct Power {
  double v, d, e, t, q;
};
// The power from the sums of add_up, without the third and the fourth derivative; missing if the exact power is
// (power_of).
__device__ __forceinline__ Power power_at(const double* m, bool mean) {
  const double one = 6.283185307179586, two = one * one;
  auto jet = [&](int k, double f) { return Jet{m[k], f * one * m[k + 1], f * two * m[k + 2]}; };
  Jet cc = jet(6, 2), ss = jet(9, 2), cs = jet(12, 1);
  cc.v = m[6];
  ss.v = m[9];
  if (mean) {
    const Jet c = jet(0, 1), s = jet(3, 1);
    cc = cc - c * c;
    ss = ss - s * s;
    cs = cs - c * s;
  }
  const Jet yc = jet(15, 1), ys = jet(18, 1), det = cc * ss - cs * cs;
  if (!(det.v > SINGULAR * cc.v * ss.v + COLUMN_NOISE * (cc.v + ss.v))) return Power{missing64(), 0, 0, 0, 0};
  const Jet p = (yc * (ss * yc - cs * ys) + ys * (cc * ys - cs * yc)) / det;
  return Power{p.v, p.d, p.e, 0, 0};
}

// A function near the trial frequency: coefficients of its series in the change of phase at the end of the span.
struct Series {
  double c[TERMS];
};
__device__ __forceinline__ Series operator+(const Series& a, const Series& b) {
  Series r;
#pragma unroll
  for (int k = 0; k < TERMS; k++) r.c[k] = a.c[k] + b.c[k];
  return r;
}
__device__ __forceinline__ Series operator-(const Series& a, const Series& b) {
  Series r;
#pragma unroll
  for (int k = 0; k < TERMS; k++) r.c[k] = a.c[k] - b.c[k];
  return r;
}
__device__ __forceinline__ Series operator*(const Series& a, const Series& b) {
  Series r;
#pragma unroll
  for (int k = 0; k < TERMS; k++) {
    r.c[k] = a.c[0] * b.c[k];
#pragma unroll
    for (int j = 1; j <= k; j++) r.c[k] = fma(a.c[j], b.c[k - j], r.c[k]);
  }
  return r;
}
__device__ __forceinline__ Series squared(const Series& a) {
  Series r;
#pragma unroll
  for (int k = 0; k < TERMS; k++) {
    double both = 0;
#pragma unroll
    for (int j = 0; 2 * j < k; j++) both = fma(a.c[j], a.c[k - j], both);
    r.c[k] = k % 2 ? 2 * both : fma(a.c[k / 2], a.c[k / 2], 2 * both);
  }
  return r;
}
// Real and imaginary parts of the sums of w exp(i (p + x s)), from the sums of w cos(p) s^k and w sin(p) s^k. rate:
// rate at which the phase changes.
__device__ __forceinline__ void series_of(const double* cosines, const double* sines, double rate, Series& re,
                                          Series& im) {
  double factor = 1;
#pragma unroll
  for (int k = 0; k < TERMS; k++) {
    if (k) factor *= rate / k;
    const double c = factor * cosines[k], s = factor * sines[k];
    re.c[k] = k % 4 == 0 ? c : k % 4 == 1 ? -s : k % 4 == 2 ? -c : s;
    im.c[k] = k % 4 == 0 ? s : k % 4 == 1 ? c : k % 4 == 2 ? -s : -c;
  }
}
// Cosine and sine at a time: equal to sincos_cycles(cycles()) to 3e-16, with two thirds of the instructions. Adding
// 1.5 * 2^52 rounds to quarters of a cycle, and the last bits of the sum say which quarter. The polynomials in the
// square of the remainder interpolate at the Chebyshev points of 1/8 of a cycle.
__device__ __forceinline__ void sincos_at(Frequency f, double t, double& s, double& c) {
  const double a = f.f * t, low = fma(f.rest, t, fma(f.f, t, -a)), rounded = fma(4.0, a, 6755399441055744.0),
               quarters = rounded - 6755399441055744.0, x = fma(-0.25, quarters, a) + low, z = x * x;
  const int quarter = __double2loint(rounded);
  double sine = 3.7808689593022957, cosine = 7.810290968144191;
  sine = fma(sine, z, -15.093804209987114);
  cosine = fma(cosine, z, -26.42425703488269);
  sine = fma(sine, z, 42.058685020160894);
  cosine = fma(cosine, z, 60.24462008593029);
  sine = fma(sine, z, -76.70585970427454);
  cosine = fma(cosine, z, -85.45681709034115);
  sine = fma(sine, z, 81.60524927594804);
  cosine = fma(cosine, z, 64.93939402236538);
  sine = fma(sine, z, -41.341702240399634);
  cosine = fma(cosine, z, -19.73920880217842);
  sine = fma(sine, z, 6.283185307179586) * x;
  cosine = fma(cosine, z, 1.0);
  auto negated = [](double v, int bit) {  // if bit 1 is set
    return __hiloint2double(__double2hiint(v) ^ (int)((unsigned)(bit & 2) << 30), __double2loint(v));
  };
  s = negated(quarter & 1 ? cosine : sine, quarter);
  c = negated(quarter & 1 ? sine : cosine, quarter + 1);
}
// Adds a point to the sums of add_series, times powers of s: w cos(p), w sin(p), y cos(p), y sin(p), w cos(2p), w
// sin(2p) / 2.
__device__ __forceinline__ void add_moments(double (&m)[32], double c, double s, double place, double2 wv) {
  const double wc = wv.x * c, ws = wv.x * s;
  const double of[6] = {wc, ws, wv.y * c, wv.y * s, fma(wc, c, -ws * s), wc * s};
  double power = place;
#pragma unroll
  for (int k = 0; k < TERMS; k++) {
#pragma unroll
    for (int j = 0; j < 6; j++) m[TERMS * j + k] = k ? fma(of[j], power, m[TERMS * j + k]) : m[TERMS * j] + of[j];
    if (k) power *= place;
  }
}
// With Z, Y and Q, the sums of w exp(ip), y exp(ip) and w exp(2ip), A = 1 - |Z|^2 and D = Q - Z^2, the power is 2
// (A |Y|^2 - Re(D conj(Y)^2)) / (A^2 - |D|^2). It is missing if this formula loses digits that centred sums keep,
// because cosine and sine hardly differ.
__device__ __forceinline__ Power power_near(const double* m, bool mean) {
  Series zc, zs, yc, ys, dc, ds;
  series_of(m, m + TERMS, 1, zc, zs);
  series_of(m + 2 * TERMS, m + 3 * TERMS, 1, yc, ys);
  double twice[TERMS];
#pragma unroll
  for (int k = 0; k < TERMS; k++) twice[k] = 2 * m[5 * TERMS + k];
  series_of(m + 4 * TERMS, twice, 2, dc, ds);
  Series a = {};
  a.c[0] = 1;
  if (mean) {
    const Series cc = squared(zc), ss = squared(zs), cs = zc * zs;
    a = a - (cc + ss);
    dc = dc - (cc - ss);
    ds = ds - (cs + cs);
  }
  const Series cc = squared(yc), ss = squared(ys), cs = yc * ys;
  const Series above = a * (cc + ss) - dc * (cc - ss) - ds * (cs + cs);
  const Series below = squared(a) - squared(dc) - squared(ds);
  if (!(below.c[0] > 4 * DISTINCT)) return Power{missing64(), 0, 0, 0, 0};
  const double inverse = reciprocal(below.c[0]), one = 6.283185307179586, two = one * one;
  Series p;
#pragma unroll
  for (int k = 0; k < TERMS; k++) {
    double left = above.c[k];
#pragma unroll
    for (int j = 0; j < k; j++) left = fma(-p.c[j], below.c[k - j], left);
    p.c[k] = left * inverse;
  }
  return Power{2 * p.c[0], 2 * one * p.c[1], 4 * two * p.c[2], 12 * one * two * p.c[3], 48 * two * two * p.c[4]};
}

// ---------------------------------------------------------------- the climb
struct Climb {
  Frequency x;
  Window window;
  double at, trial;    // the best place so far, and the next one
  double step;         // from the previous best place
  Power best;          // the power at the best place
  Power last, summit;  // for a wide window: the power at the previous place, and the highest that no neighbour
                       // exceeds; otherwise last.v is the power of the sample
  Places places;       // of a wide window
  int tried, highest, top,
      rising;  // places done; the highest place; the place of the summit; whether the power rises to the last place
  int turn, done, centred;  // centred: whether the sums are those of add_up
  int object, number;       // of the peak; object: below 0 if there is none
};
static_assert(sizeof(Climb) == 224, "cuda_refine.CLIMB_BYTES");
__device__ __forceinline__ Climb climb_from(const Picks& A, int o, int r, int centred) {
  Climb k = {};
  k.centred = centred;
  k.object = o;
  k.number = r;
  k.done = !window_of(A, o, r, 1, k.x, k.window);
  if (k.done) return k;
  k.best.v = k.summit.v = NONE;
  k.places = places_of(k.window, 1);
  const double df = A.frequencies ? 0 : A.df[o * A.grid_stride] * A.info[o].span,
               start = A.vertex[(size_t)o * A.tries + r] * df;
  k.trial = k.places.all() ? k.window.lo : fmin(fmax(start, k.window.lo), k.window.hi);
  k.last.v = A.here[(size_t)o * A.tries + r];
  return k;
}
// Length of a step after which the power is not evaluated again. Where columns are nearly dependent, a power can
// change much faster than others.
__device__ __forceinline__ double close_to(const Power& p) {
  return p.e < 0 ? CLOSE * fmin(1.0, SHARP * rsqrt(-p.e)) : CLOSE;
}
// Uses the power at the trial place; either chooses the next place or marks the climb as done.
__device__ __forceinline__ void advance(Climb& k, const Power& p) {
  const bool higher = p.v >= k.best.v - (k.best.v == NONE ? 0
                                         : k.centred      ? 1e-15
                                                          : 1e-14);  // rounding of two powers at the top
  k.turn++;
  const int all = k.places.all();
  if (k.tried < all) {
    const int i = k.tried++;
    const bool falls = !(p.v > k.last.v);
    if (i && k.rising && falls && k.last.v > k.summit.v) {
      k.summit = k.last;
      k.top = i - 1;
    }
    k.rising = i ? !(k.last.v > p.v) : k.window.lo == 0;
    k.last = p;
    if (p.v > k.best.v) {
      k.best = p;
      k.highest = i;
    }
    if (k.tried < all) {
      k.trial = k.places.at(k.window, k.tried);
      return;
    }
    if (k.best.v == NONE) {
      k.done = 1;
      return;
    }
    if (k.rising && k.window.hi == 0 && p.v > k.summit.v) {
      k.summit = p;
      k.top = i;
    }
    if (k.summit.v > NONE) {
      k.best = k.summit;
      k.highest = k.top;
    }
    const Window whole = k.window;
    k.at = k.places.at(whole, k.highest);
    k.window.lo = k.places.at(whole, max(k.highest - 1, 0));
    k.window.hi = k.places.at(whole, min(k.highest + 1, all - 1));
  } else if (higher) {
    k.step = k.best.v == NONE ? 0 : k.trial - k.at;
    const double third = k.centred && k.step != 0 ? (p.e - k.best.e) / k.step : p.t;
    k.best = p;
    k.best.t = third;
    k.at = k.trial;
  } else if (k.best.v == NONE) {
    k.done = 1;
    return;
  }  // nothing to climb: the sample's power is missing
  else {
    k.trial = fma(0.25, k.trial - k.at, k.at);
    k.done = fabs(k.trial - k.at) < close_to(k.best) || k.turn >= MOST_TRIALS;
    return;
  }
  const double d = k.best.d, e = k.best.e, t = k.best.t, q = k.best.q;
  const double inverse = -1 / e;
  double wish = e < 0 ? d * inverse : d > 0 ? LEAP : d < 0 ? -LEAP : 0.0;
  if (!k.centred && e < 0 && fabs(wish) <= NEAR) {  // Newton's steps on the series of the slope
    double root = wish;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const double slope = fma(root, fma(root, fma(root, q / 6, 0.5 * t), e), d),
                   bend = fma(root, fma(root, 0.5 * q, t), e);
      if (bend < 0.5 * e) root = fma(slope, reciprocal(-bend), root);
    }
    if (root * wish > 0 && fabs(root) <= 2 * fabs(wish)) wish = root;  // uphill
  }
  const double length = fabs(wish);
  const bool inside = length <= LEAP && k.at + wish >= k.window.lo && k.at + wish <= k.window.hi;
  const double to = fmin(fmax(k.at + fmin(fmax(wish, -LEAP), LEAP), k.window.lo), k.window.hi);
  bool sure = inside;
  if (k.centred)
    sure = sure && k.step != 0 && length * (length + fabs(k.step)) <= SURE && fabs(t * wish) <= -0.01 * e;
  else if (e < 0) {  // each term of the series is a small part of the one before it, and so are the neglected ones
    const double square = wish * wish, odd = t * inverse * (1.0 / 3),
                 ratio = square * fmax(fmax(1.44, odd * odd), fabs(q) * inverse * (1.0 / 12)), lost = square * e;
    sure = sure && ratio <= RATIO * RATIO && ratio * ratio * ratio * lost * lost <= 4 * LOST * LOST;
  } else
    sure = false;
  const double close = close_to(k.best);
  k.done = sure || fabs(to - k.at) <= close || k.turn >= MOST_TRIALS;
  if (!k.done)
    k.trial = to;
  else if (!inside)
    k.best.e = 0;  // an end of the window, beyond which the power rises
  else if (sure || length <= close) {
    if (k.centred) wish = -d / fma(0.5 * t, wish, e);
    wish = fmin(fmax(wish, k.window.lo - k.at), k.window.hi - k.at);
    k.best.v = fma(wish, fma(wish, fma(wish, fma(wish, q / 24, t / 6), 0.5 * e), d), k.best.v);
    k.at += wish;
    k.best.e = fma(wish, fma(wish, 0.5 * q, t), e);
  }
}
__device__ __forceinline__ void conclude(const Picks& A, const Climb& k) {
  const int o = k.object, r = k.number;
  const bool none = k.best.v == NONE;
  keep(A, o, r, k.x, none ? 0.0 : k.at, none ? A.here[(size_t)o * A.tries + r] : k.best.v, none ? 0.0 : k.best.e);
}

// `begin` and `take` are run by one thread. They are not inlined: a warp executes each of their instructions only
// once or twice, so that the time to fetch instructions matters.
__device__ __noinline__ void begin(const Refine& A, Climb& k, int o, int r, int centred) {
  k = climb_from(A.picks, o, r, centred);
  if (k.done) keep_none(A.picks, o, r);
}
// m: sums at the trial place.
__device__ __noinline__ void take(const Refine& A, Climb& k, const double* m, bool last) {
  const bool mean = A.mean != 0;
  const Power p = k.centred ? power_at(m, mean) : power_near(m, mean);
  if (!k.centred && !(p.v == p.v)) {
    k.centred = 1;  // repeat the trial at the same place
    return;
  }
  advance(k, p);
  if (k.done && !k.places.all() && k.best.v < k.last.v - LOWER) {
    // the parabola misses the maximum: begin again, at the sample
    k.best.v = k.last.v = NONE;
    k.trial = 0;
    k.done = 0;
  }
  if (last) k.done = 1;
  if (k.done) conclude(A.picks, k);
}

// Adds MANY sums over lanes K apart, K / 2 apart, and so on. Each lane is left with a part of the sums, which
// begins at sum `first`. A loop over K would put the sums in local memory.
template <int K, int MANY>
__device__ __forceinline__ void sum_halves(double (&m)[32], int& first) {
  if constexpr (K > 0) {
    constexpr int HALF = MANY / 2;
    const bool upper = threadIdx.x & K;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
      const double given = upper ? m[i] : m[i + HALF], kept = upper ? m[i + HALF] : m[i];
      m[i] = kept + __shfl_xor_sync(FULL, given, K);
    }
    first += upper ? HALF : 0;
    sum_halves<K / 2, HALF>(m, first);
  }
}
// Adds MANY sums over the lanes of each group of G and writes them to `to`, which belongs to the group.
template <int G, int MANY>
__device__ __forceinline__ void sum_lanes(double (&m)[32], double* to) {
  static_assert(MANY % G == 0, "halves of the sums");
  int first = 0;
  sum_halves<G / 2, MANY>(m, first);
  __syncwarp();  // the previous sums are no longer read
#pragma unroll
  for (int i = 0; i < MANY / G; i++) to[first + i] = m[i];
  __syncwarp();
}
// Each group of G lanes sums over the points at one frequency; a lane has points first, first + step, ... AT_ONCE:
// points of a thread that are processed together.
template <int G, int AT_ONCE>
__device__ __forceinline__ void add_up(const double* t, const double2* wv, int first, int n, int step, Frequency f,
                                       double inverse, double middle, bool mean, double* to) {
  static_assert(ROOM >= SUMS, "sums of a group");
  double m[32];
#pragma unroll
  for (int i = 0; i < 32; i++) m[i] = 0;
  Column base = {0, 0, 0, 0, 0, 0};
  if (mean) base = column_at(f, middle, middle * inverse);
#pragma unroll AT_ONCE
  for (int i = first; i < n; i += step) add_point(m, column_at(f, t[i], t[i] * inverse), base, wv[i]);
  sum_lanes<G, G == 32 ? 32 : ROOM>(m, to);
}
// The same, not inlined, so that the code exists once.
template <int G>
__device__ __noinline__ void add_centred(const double* t, const double2* wv, int first, int n, int step, Frequency f,
                                         double inverse, double middle, bool mean, double* to) {
  add_up<G, 2>(t, wv, first, n, step, f, inverse, middle, mean, to);
}
// The sums for the series of the power; s counts from the middle, in spans.
template <int G, int AT_ONCE>
__device__ __forceinline__ void add_series(const double* t, const double2* wv, int lo, int first, int n, Frequency f,
                                           double inverse, double offset, double* to) {
  static_assert(SERIES_ROOM >= SERIES_SUMS, "sums of a group");
  double m[32];
#pragma unroll
  for (int i = 0; i < 32; i++) m[i] = 0;
#pragma unroll AT_ONCE
  for (int i = lo + first; i < lo + n; i += G) {
    double s, c;
    const double at = t[i];
    sincos_at(f, at, s, c);
    add_moments(m, c, s, fma(at, inverse, offset), wv[i]);
  }
  sum_lanes<G, SERIES_ROOM>(m, to);
}
// A block adds the sums of its warps and leaves the result in part[0].
__device__ __forceinline__ void add_warps(double (*part)[32]) {
  const int lane = threadIdx.x & 31;
  double all = 0;
  __syncthreads();
  if (threadIdx.x < 32)
    for (int w = 0; w < (int)blockDim.x / 32; w++) all += part[w][lane];
  __syncthreads();
  if (threadIdx.x < 32) part[0][lane] = all;
  __syncthreads();
}
// Refines peaks from their samples to their maxima, one by each group of G lanes; o: below 0 if a group has none.
template <int G>
__device__ __forceinline__ void refine_groups(const Refine& A, int o, int r, double* sums, Climb* climbs) {
  const int own = threadIdx.x & (G - 1), group = (threadIdx.x & 31) / G;
  Climb& k = climbs[group];
  double* to = sums + group * SERIES_ROOM;
  const int n = A.picks.info[max(o, 0)].n, lo = A.offsets[max(o, 0)];
  const double inverse = 1 / A.picks.info[max(o, 0)].span, offset = -A.tp[lo + n / 2] * inverse;
  __syncwarp();
  if (!own) {
    k.done = 1;
    k.object = o;
    if (o >= 0) begin(A, k, o, r, 0);
  }
  __syncwarp();
  bool done = k.done;
  while (__any_sync(FULL, !done)) {  // groups that are done wait for the others
    const bool centred = k.centred != 0;
    const Frequency f = done ? Frequency{0, 0} : moved(k.x, k.trial * inverse);
    if (__any_sync(FULL, !done && !centred)) {
      const bool mine = !done && !centred;
      add_series<G, 2>(A.tp, A.wv, lo, own, mine ? n : 0, f, inverse, offset, to);
      if (!own && mine) take(A, k, to, false);
    }
    if (__any_sync(FULL, !done && centred)) {
      const bool mine = !done && centred;
      add_centred<G>(A.tp + lo, A.wv + lo, own, mine ? n : 0, G, f, inverse, A.tp[lo + n / 2], A.mean != 0, to);
      if (!own && mine) take(A, k, to, false);
    }
    __syncwarp();
    done = k.done;
  }
  const int object = k.object;
  settle(A.picks, A.ranks, object, !own && object >= 0);
}
// The same for one peak by a whole block.
__device__ __forceinline__ void refine_block(const Refine& A, int o, int r, double (*part)[32], Climb& k) {
  const int n = A.picks.info[o].n, lo = A.offsets[o], tid = threadIdx.x;
  const double inverse = 1 / A.picks.info[o].span, middle = A.tp[lo + n / 2];
  const bool mean = A.mean != 0;
  __syncthreads();
  if (!tid) begin(A, k, o, r, 1);
  __syncthreads();
  while (!k.done) {
    add_centred<32>(A.tp + lo, A.wv + lo, tid, n, THREADS, moved(k.x, k.trial * inverse), inverse, middle, mean,
                    part[tid >> 5]);
    add_warps(part);
    if (!tid) take(A, k, part[0], false);
    __syncthreads();
  }
  if (tid < 32) settle(A.picks, A.ranks, o, !tid);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4) ls_refine(const __grid_constant__ Refine A) {
  __shared__ double sums[WARPS][GROUPS * SERIES_ROOM];
  __shared__ Climb climbs[WARPS][GROUPS];
  const int warp = threadIdx.x >> 5;
  if ((int)blockIdx.x < A.longer) {
    const int o = A.order[blockIdx.x / A.each], n = A.picks.info[o].n, found = A.picks.found[o],
              place = blockIdx.x % A.each;
    if (n <= A.few || n > A.many) return;
    if (n > A.middle) {
#pragma unroll 1
      for (int r = place; r < found; r += A.each) refine_block(A, o, r, (double (*)[32])sums, climbs[0][0]);
    } else {
#pragma unroll 1
      for (int r = place * WARPS + warp; r < found; r += A.each * WARPS)
        refine_groups<32>(A, o, r, sums[warp], climbs[warp]);
    }
    return;
  }
  const unsigned count = *A.tried, group = (threadIdx.x & 31) / GROUP;
#pragma unroll 1
  for (unsigned i0 = ((blockIdx.x - A.longer) * WARPS + warp) * GROUPS; i0 < count;
       i0 += (gridDim.x - A.longer) * WARPS * GROUPS) {
    const unsigned i = i0 + group;
    int o = -1, r = 0;
    if (i < count) {
      o = A.list[i] / A.picks.tries;
      r = A.list[i] % A.picks.tries;
    }
    if (o >= 0 && A.picks.info[o].n > A.few) o = -1;
    if (__any_sync(FULL, o >= 0)) refine_groups<GROUP>(A, o, r, sums[warp], climbs[warp]);
  }
}

// Blocks of (object of `order`, try, slice). turn: of the launch, from 0 on.
extern "C" __global__ void __launch_bounds__(LONG_THREADS, 2) ls_refine_long(const __grid_constant__ Refine A,
                                                                             int turn) {
  __shared__ double part[LONG_THREADS / 32][32];
  __shared__ bool last;
  __shared__ Climb k;
  const int slot = blockIdx.x / A.slices, slice = blockIdx.x % A.slices, tid = threadIdx.x, lane = tid & 31,
            warp = tid >> 5;
  const int o = A.order[slot / A.each], r = slot % A.each, n = A.picks.info[o].n, lo = A.offsets[o];
  if (A.picks.info[o].status || n <= A.many || r >= A.picks.found[o]) return;
  const int slices = (n + SLICE - 1) / SLICE;
  if (slice >= slices) return;
  if (!tid) k = turn ? A.climbs[slot] : climb_from(A.picks, o, r, 1);
  __syncthreads();
  if (k.done) {
    if (!turn && !slice) {
      if (!tid) {
        keep_none(A.picks, o, r);
        A.climbs[slot] = k;
      }
      if (!warp) settle(A.picks, A.ranks, o, !lane);
    }
    return;
  }
  const double inverse = 1 / A.picks.info[o].span;
  add_up<32, 1>(A.tp + lo, A.wv + lo, slice * SLICE + tid, min(n, (slice + 1) * SLICE), LONG_THREADS,
                moved(k.x, k.trial * inverse), inverse, A.tp[lo + n / 2], A.mean != 0, part[warp]);
  add_warps(part);
  double* mine = A.sums + (size_t)slot * A.slices * 32;
  if (!warp) {
    mine[slice * 32 + lane] = part[0][lane];
    __threadfence();
    __syncwarp();
    if (!lane) last = atomicInc(A.counters + slot, slices - 1) == (unsigned)slices - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  double all = 0;
  for (int i = warp; i < slices; i += LONG_THREADS / 32) all += *(volatile double*)(mine + i * 32 + lane);
  part[warp][lane] = all;
  __syncthreads();
  if (warp) return;
  if (!lane) {
    for (int i = 0; i < SUMS; i++)
      for (int w = 1; w < LONG_THREADS / 32; w++) part[0][i] += part[w][i];
    take(A, k, part[0], turn + 1 == A.turns);
    A.climbs[slot] = k;
  }
  __syncwarp();
  if (k.done) settle(A.picks, A.ranks, o, !lane);
}

// ---------------------------------------------------------------- other models
#define PROBES 12
#define WIDEST 0.05      // step of five probes in the turn after the scan, divided by the harmonics
#define NARROWEST 0.004  // in the last turns: rounding of powers (1e-15) over its square is 1e-10 of a curvature
#define FINEST 1e-4      // if the power changes faster than is usual for this number of harmonics
#define NEXT 1e-5        // a step so short needs no further probes
#define FLAT 1e-12       // a curvature that is no more than rounding
struct Search {
  Frequency x;
  Window window;
  double at, best;              // the highest power so far, and where
  double first, step;           // of the probes
  int many, scan, left, right;  // left, right: whether the window ends with the grid
};
static_assert(sizeof(Search) == 80, "cuda_refine.SEARCH_BYTES");
struct Probe {
  Picks picks;
  const unsigned* tried;
  const int* list;
  const int* offsets;
  Search* searches;
  int* order;
  int* owner;
  int* lo;
  Info* info;
  double* f0;
  double* df;
  int* nf;
  long long* start;
  const double* power;  // of the probes
  int slots, turn, turns;
};
__device__ __forceinline__ void ask(const Probe& A, int i, int o, const Search& s) {
  const double span = A.picks.info[o].span;
  const Frequency f = moved(s.x, s.first / span);
  A.f0[i] = f.f + f.rest;
  A.df[i] = s.step / span;
  A.nf[i] = s.many;
}
// Chooses the next five probes, around a place of the window.
__device__ __forceinline__ void look_around(Search& s, double place, double step) {
  s.first = fmin(fmax(place, s.window.lo), s.window.hi) - 2 * step;
  s.step = step;
  s.many = 5;
  s.scan = 0;
}
extern "C" __global__ void __launch_bounds__(128) ls_probe(const __grid_constant__ Probe A) {
  const int number = blockIdx.x * 128 + threadIdx.x;
  if (number >= A.slots || (unsigned)number >= *A.tried) return;
  const int o = A.list[number] / A.picks.tries, r = A.list[number] % A.picks.tries;
  const double narrowest = NARROWEST / A.picks.harmonics;
  if (!A.turn) {
    Search s = {};
    A.order[A.slots - 1 - number] = number;  // the kernels of exact fits begin with the last
    A.owner[number] = o;
    A.lo[number] = A.offsets[o];
    A.start[number] = (long long)number * PROBES;
    Info info = A.picks.info[o];
    const bool none = info.status || !window_of(A.picks, o, r, A.picks.harmonics, s.x, s.window);
    if (none) {
      info.status = 1;
      keep_none(A.picks, o, r);
    }
    A.info[number] = info;
    s.left = s.window.lo == 0;
    s.right = s.window.hi == 0;
    const Places k = places_of(s.window, A.picks.harmonics);
    s.scan = 1 + (k.all() > 0);  // 2: of a wide window
    s.many = k.all() ? k.all() : s.window.lo < s.window.hi ? 5 : 1;
    s.first = s.window.lo;
    s.step = (s.window.hi - s.window.lo) / max(1, s.many - 1);
    if (k.all()) {  // equal steps through the sample; places past an end do not count
      s.step = fmax(k.below ? -s.window.lo / k.below : 0, k.above ? s.window.hi / k.above : 0);
      s.first = -k.below * s.step;
    }
    s.best = -1;
    if (!k.all() &&
        s.many == 5) {  // a window of one maximum: probe around the vertex of the parabola through the samples at once
      const double df = A.picks.frequencies ? 0 : A.picks.df[o * A.picks.grid_stride] * info.span;
      look_around(s, A.picks.vertex[(size_t)o * A.picks.tries + r] * df,
                  fmax(fmin(0.25 * s.step, WIDEST / A.picks.harmonics), narrowest));
    }
    A.searches[number] = s;
    if (none) {
      A.f0[number] = A.df[number] = 0;
      A.nf[number] = 0;
    } else
      ask(A, number, o, s);
    return;
  }
  if (A.info[number].status) return;
  Search s = A.searches[number];
  const double* p = A.power + (size_t)number * PROBES;
  const double here = A.picks.here[(size_t)o * A.picks.tries + r];
  auto place = [&](int i) { return fma((double)i, s.step, s.first); };
  bool done = A.turn == A.turns;
  double curvature = 0;
  if (s.scan) {
    int best = -1, summit = -1;
    auto counts = [&](int i) {
      return i >= 0 && i < s.many && place(i) >= s.window.lo - 1e-9 && place(i) <= s.window.hi + 1e-9;
    };
    for (int i = 0; i < s.many; i++) {
      if (!(p[i] == p[i]) || !counts(i)) continue;
      if (best < 0 || p[i] > p[best]) best = i;
      const bool rises = counts(i - 1) ? !(p[i - 1] > p[i]) : s.left,
                 falls = counts(i + 1) ? !(p[i + 1] > p[i]) : s.right;
      if (rises && falls && (summit < 0 || p[i] > p[summit])) summit = i;
    }
    const int i = s.scan > 1 && summit >= 0 ? summit : best;
    if (i < 0 || s.many == 1) {  // there is no power anywhere, or no window
      keep(A.picks, o, r, s.x, 0, i < 0 ? here : p[0], 0);
      A.info[number].status = 1;
      return;
    }
    s.at = fmin(fmax(place(i), s.window.lo), s.window.hi);
    s.best = p[i];
    s.window.lo = fmax(s.window.lo, s.at - s.step);
    s.window.hi = fmin(s.window.hi, s.at + s.step);
    double to = s.at;
    if (i > 0 && i + 1 < s.many && p[i - 1] == p[i - 1] && p[i + 1] == p[i + 1]) {
      const double bend = p[i - 1] - 2 * p[i] + p[i + 1];
      if (bend < 0) to += 0.5 * s.step * (p[i - 1] - p[i + 1]) / bend;
    }
    look_around(s, to, fmax(fmin(0.25 * s.step, WIDEST / A.picks.harmonics), narrowest));
  } else {
    const double middle = place(2), h = s.step, before = s.best;
    bool sound = true;
    for (int i = 0; i < 5; i++) {
      sound = sound && p[i] == p[i];
      if (!(p[i] > s.best) || place(i) < s.window.lo || place(i) > s.window.hi) continue;
      s.best = p[i];
      s.at = place(i);
    }
    const double slope = (8 * (p[3] - p[1]) - (p[4] - p[0])) / (12 * h),
                 bend = (16 * (p[1] + p[3]) - 30 * p[2] - (p[0] + p[4])) / (12 * h * h);
    const bool curved = sound && bend < -FLAT;
    const double wish = curved ? middle - slope / bend : middle;
    const bool inside = wish >= s.window.lo && wish <= s.window.hi;
    if (before < 0 && middle != 0 && s.best < here - LOWER) {  // the parabola misses the maximum: begin at the sample
      s.best = -1;
      look_around(s, 0, fmax(0.25 * h, FINEST / A.picks.harmonics));
    } else if (curved && inside && fabs(wish - middle) <= NEXT / A.picks.harmonics && p[2] >= before - 1e-13) {
      const double by = wish - middle;
      done = true;
      s.at = wish;
      s.best = fma(by, fma(0.5 * by, bend, slope), p[2]);
      curvature = bend;
    } else if (!sound || p[2] < before - 1e-13)
      look_around(s, s.at, fmax(0.25 * h, FINEST / A.picks.harmonics));  // too far, or too coarse
    else if (!curved || fabs(wish - middle) > 4 * h)
      look_around(s, s.at, h);
    else
      look_around(s, wish, fabs(wish - middle) <= 2 * h ? fmax(0.2 * h, fmin(h, narrowest)) : h);
  }
  if (done) {
    keep(A.picks, o, r, s.x, s.best < 0 ? 0.0 : s.at, s.best < 0 ? here : s.best, curvature);
    A.info[number].status = 1;
  } else {
    A.searches[number] = s;
    ask(A, number, o, s);
  }
}

// ---------------------------------------------------------------- the best peaks of other models
struct Select {
  Picks picks;
  Ranks ranks;
};
extern "C" __global__ void __launch_bounds__(32) ls_select(const __grid_constant__ Select A) {
  if (A.picks.found[blockIdx.x]) select(A.picks, A.ranks, blockIdx.x);
}

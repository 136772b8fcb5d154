// The normal equations of one frequency of a series of TERMS terms, in the registers of one thread.
#pragma once

#ifndef TERMS
#define TERMS 4
#endif
#define HARMONICS (2 * TERMS)
#define CHANNELS (3 * TERMS)  // w at f, 2 f, ..., then w y at f, 2 f, ...
#define AT_LEAST_ONE(x) ((x) > 0 ? (x) : 1)
#define PIVOT 1e-8  // pivots below this fraction of the weight are not trusted
#if TERMS <= 9
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("unroll 1")
#endif

// A list of frequencies whose powers were not trusted, as (object, index); those beyond `room` are only counted.
struct Doubts {
  int2* list;
  unsigned* count;
  long long room;
};
// Summary of the highest powers, by which a search can skip most of them. list: the highest of each TOP powers in a
// row by its high half, `width` of them for each object; null if no summary is wanted. bins: for every other REGION
// powers in a row, the highest that is certainly a peak, in BINS places for each object. The k-th highest of these
// is a floor under the k-th peak.
#define TOP 64
#define REGION 512
#define BINS 32
struct Tops {
  unsigned* list;
  unsigned* bins;
  long long width;
};
__device__ __forceinline__ void raise_top(const Tops& t, int object, int number, double p) {
  if (t.list) atomicMax(t.list + object * t.width + number / TOP, key_bits(p));
}
// Adds TOP powers in a row to the summary, by a warp: each lane has two, of frequencies k and k + 1. They are
// compared by their high halves. Read as an unsigned number, a missing power is larger than all others, so that its
// neighbours are not certainly peaks.
__device__ __forceinline__ void keep_tops(const Tops& t, int object, long long k, int nf, double p, double q) {
  const int lane = threadIdx.x & 31;
  const unsigned x = k < nf ? __double2hiint(p) : FULL, y = k + 1 < nf ? __double2hiint(q) : FULL;
  const unsigned before = __shfl_up_sync(FULL, y, 1), after = __shfl_down_sync(FULL, x, 1);
  auto key = [](unsigned v) { return v <= 0x7ff00000u ? v : 0; };
  const unsigned sure = max(lane > 0 && x > before && x > y ? key(x) : 0, lane < 31 && y > x && y > after ? key(y) : 0);
  const unsigned top = warp_max(max(key(x), key(y))), best = warp_max(sure);
  if (lane || k >= nf) return;
  t.list[object * t.width + k / TOP] = top;
  if (!(k / REGION & 1)) atomicMax(t.bins + (size_t)object * BINS + k / (2 * REGION) % BINS, best);
}
// Appends the frequencies of the lanes of a warp that have `mine` set.
__device__ __forceinline__ void doubt(const Doubts& d, bool mine, int object, int number) {
  const unsigned all = __ballot_sync(FULL, mine), lane = threadIdx.x & 31;
  if (!all) return;
  unsigned at = 0;
  if (!lane) at = atomicAdd(d.count, (unsigned)__popc(all));
  at = __shfl_sync(FULL, at, 0) + __popc(all & ((1u << lane) - 1));
  if (mine && at < d.room) d.list[at] = make_int2(object, number);
}

// The power from the sums of one frequency, at(channel); missing if it is not trusted: because a pivot is small, or
// the sum of squares of the parameters exceeds `limit`.
template <typename At>
__device__ __forceinline__ double solved(const At& at, double limit, double mean, double pivot) {
  double h[HARMONICS + 1], g[HARMONICS + 1], z[AT_LEAST_ONE(HARMONICS)];  // twice the matrix: no sum has to be halved
  h[0] = 1;
  g[0] = 0;
  UNROLL
  for (int m = 0; m < HARMONICS; m++) {
    const double2 v = at(m);
    h[m + 1] = v.x;
    g[m + 1] = v.y;
  }
  UNROLL
  for (int k = 0; k < TERMS; k++) {
    const double2 v = at(HARMONICS + k);
    z[2 * k] = v.x;
    z[2 * k + 1] = v.y;
  }
  const double twice = -2 * mean;
  const int least = __double2hiint(2 * pivot);
  double L[AT_LEAST_ONE(HARMONICS)][AT_LEAST_ONE(HARMONICS)], inv[AT_LEAST_ONE(HARMONICS)], power = 0, determinant = 1;
  int smallest = 0x7fffffff;  // of the pivots, by their high halves
  UNROLL
  for (int i = 0; i < HARMONICS; i++) {
    const int k = (i >> 1) + 1;
    const double own = twice * (i & 1 ? g[k] : h[k]);
    double u[AT_LEAST_ONE(HARMONICS)], d = 0;
    UNROLL
    for (int j = 0; j <= i; j++) {
      const int l = (j >> 1) + 1;
      double e;
      if (!(i & 1) && !(j & 1))
        e = h[k - l] + h[k + l];
      else if ((i & 1) && (j & 1))
        e = h[k - l] - h[k + l];
      else if (i & 1)
        e = g[k + l] + g[k - l];
      else
        e = g[k + l] - g[k - l];
      e = fma(own, j & 1 ? g[l] : h[l], e);
      UNROLL
      for (int q = 0; q < j; q++) e = fma(-u[q], j == i ? L[i][q] : L[j][q], e);
      if (j < i) {
        u[j] = e;
        L[i][j] = e * inv[j];
      } else
        d = e;
    }
    smallest = min(smallest, __double2hiint(d));
    inv[i] = reciprocal(d);
    determinant *= d;
    double e = z[i];
    UNROLL
    for (int q = 0; q < i; q++) e = fma(-L[i][q], z[q], e);
    z[i] = e;
    power = fma(e * inv[i], e, power);
  }
  // The diagonal adds up to HARMONICS at most, so that no eigenvalue is below determinant / e. This bound on the
  // parameters is mostly sufficient.
  bool sound = smallest > least;
  if (sound && !(11 * power < limit * determinant)) {
    double squares = 0;
    UNROLL
    for (int i = HARMONICS - 1; i >= 0; i--) {
      double b = z[i] * inv[i];
      UNROLL
      for (int q = i + 1; q < HARMONICS; q++) b = fma(-L[q][i], z[q], b);  // z[q]: already half the parameter
      z[i] = b;
      squares = fma(b, b, squares);
    }
    sound = 4 * squares < limit;
  }
  return sound ? 2 * power : missing64();
}

// The same by two neighbouring lanes, for matrices that the registers of one thread cannot hold: the even lane has
// the rows of cosines, the odd one those of sines. Columns are "own" (of the lane's kind) or "other", and the two
// of a term are eliminated together. at(c, sine) is the real or the imaginary part of channel c; both lanes get the
// power.
#if TERMS > 7 && TERMS <= 9
template <typename At>
__device__ __forceinline__ double solved_by_two(const At& at, double limit, double mean, double pivot) {
  const int sine = threadIdx.x & 1, even = threadIdx.x & 30;
  const double sign = sine ? -1 : 1, twice = -2 * mean, least = 2 * pivot;
  auto partner = [](double v) { return __shfl_xor_sync(FULL, v, 1); };
  double own[TERMS][TERMS], other[TERMS][TERMS], z[TERMS], w[TERMS], power = 0;
  bool sound = true;
  UNROLL
  for (int k = 1; k <= TERMS; k++) {
    z[k - 1] = at(HARMONICS + k - 1, sine);
    const double moment = twice * at(k - 1, sine);
    UNROLL
    for (int l = 1; l <= k; l++) {
      own[k - 1][l - 1] = fma(moment, at(l - 1, sine), fma(sign, at(k + l - 1, 0), k == l ? 1 : at(k - l - 1, 0)));
      other[k - 1][l - 1] =
          fma(moment, at(l - 1, !sine), k == l ? at(k + l - 1, 1) : fma(-sign, at(k - l - 1, 1), at(k + l - 1, 1)));
    }
  }
  UNROLL
  for (int m = 0; m < TERMS; m++) {
    const double a = own[m][m], b = __shfl_sync(FULL, other[m][m], even), c = partner(a), right = z[m],
                 theirs = partner(right);
    const double determinant = fma(a, c, -b * b), inverse = reciprocal(determinant), ours = c * inverse,
                 its = a * inverse, cross = -b * inverse;
    sound = sound && a > least && c > least && determinant > least * fmax(a, c);
    w[m] = fma(cross, theirs, ours * right);
    const double v = fma(cross, right, its * theirs);
    power += fma(right, w[m], theirs * v);
    double x[TERMS], y[TERMS];
    UNROLL
    for (int k = m + 1; k < TERMS; k++) {
      const double p = own[k][m], q = other[k][m];
      z[k] -= fma(p, w[m], q * v);
      const double l = fma(p, ours, q * cross), r = fma(p, cross, q * its);
      x[k] = partner(r);
      y[k] = partner(l);
      own[k][m] = l;
      other[k][m] = r;
      UNROLL
      for (int j = m + 1; j <= k; j++) {
        own[k][j] -= fma(p, own[j][m], q * other[j][m]);
        other[k][j] -= fma(p, x[j], q * y[j]);
      }
    }
  }
  double squares = 0;
  UNROLL
  for (int m = TERMS - 1; m >= 0; m--) {
    double mine = 0, its = 0;
    UNROLL
    for (int k = m + 1; k < TERMS; k++) {
      mine = fma(own[k][m], w[k], mine);
      its = fma(other[k][m], w[k], its);
    }
    w[m] -= mine + partner(its);  // already half the parameter
    squares = fma(w[m], w[m], squares);
  }
  squares += partner(squares);
  return sound && 4 * squares < limit ? 2 * power : missing64();
}
#endif

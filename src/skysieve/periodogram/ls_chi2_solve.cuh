// The normal equations of one frequency of a series of TERMS terms, in registers of one thread.
#pragma once

#ifndef TERMS
#define TERMS 4
#endif
#define HARMONICS (2 * TERMS)
#define CHANNELS (3 * TERMS)         // w at f, 2 f, ..., then w y at f, 2 f, ...
#define AT_LEAST_ONE(x) ((x) > 0 ? (x) : 1)
#define PIVOT 1e-8                    // pivots under this part of the weight are not trusted
#if TERMS <= 9
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("unroll 1")
#endif

// Frequencies that were not trusted, (object, number); those past `room` are counted alone.
struct Doubts { int2* list; unsigned* count; long long room; };
// Adds one of each lane of a whole warp that has one.
__device__ __forceinline__ void doubt(const Doubts& d, bool mine, int object, int number) {
  const unsigned all = __ballot_sync(FULL, mine), lane = threadIdx.x & 31;
  if (!all) return;
  unsigned at = 0;
  if (!lane) at = atomicAdd(d.count, (unsigned)__popc(all));
  at = __shfl_sync(FULL, at, 0) + __popc(all & ((1u << lane) - 1));
  if (mine && at < d.room) d.list[at] = make_int2(object, number);
}

// The power from the sums of one frequency, at(channel); missing where it is not trusted: where a pivot is small, or parameters
// are large (limit: their square sum).
template <typename At> __device__ __forceinline__ double solved(const At& at, double limit, double mean, double pivot) {
  double h[HARMONICS + 1], g[HARMONICS + 1], z[AT_LEAST_ONE(HARMONICS)];
  h[0] = 0.5; g[0] = 0;
UNROLL
  for (int m = 0; m < HARMONICS; m++) { const double2 v = at(m); h[m + 1] = 0.5 * v.x; g[m + 1] = 0.5 * v.y; }
UNROLL
  for (int k = 0; k < TERMS; k++) { const double2 v = at(HARMONICS + k); z[2 * k] = v.x; z[2 * k + 1] = v.y; }
  const double twice = 2 * mean;
  double L[AT_LEAST_ONE(HARMONICS)][AT_LEAST_ONE(HARMONICS)], inv[AT_LEAST_ONE(HARMONICS)], power = 0;
  bool sound = true;
UNROLL
  for (int i = 0; i < HARMONICS; i++) {
    const int k = (i >> 1) + 1;
    const double own = -twice * (i & 1 ? g[k] : h[k]);
    double u[AT_LEAST_ONE(HARMONICS)], d = 0;
UNROLL
    for (int j = 0; j <= i; j++) {
      const int l = (j >> 1) + 1;
      const double other = twice * (j & 1 ? g[l] : h[l]);
      double e;
      if (!(i & 1) && !(j & 1)) e = h[k - l] + h[k + l];
      else if ((i & 1) && (j & 1)) e = h[k - l] - h[k + l];
      else if (i & 1) e = g[k + l] + g[k - l];
      else e = g[k + l] - g[k - l];
      e = fma(own, other, e);
UNROLL
      for (int q = 0; q < j; q++) e = fma(-u[q], j == i ? L[i][q] : L[j][q], e);
      if (j < i) { u[j] = e; L[i][j] = e * inv[j]; }
      else d = e;
    }
    sound = sound && d > pivot;
    inv[i] = reciprocal(d);
    double e = z[i];
UNROLL
    for (int q = 0; q < i; q++) e = fma(-L[i][q], z[q], e);
    z[i] = e;
    power = fma(e * inv[i], e, power);
  }
  double squares = 0;
UNROLL
  for (int i = HARMONICS - 1; i >= 0; i--) {
    double b = z[i] * inv[i];
UNROLL
    for (int q = i + 1; q < HARMONICS; q++) b = fma(-L[q][i], z[q], b);       // z[q]: already the parameter
    z[i] = b;
    squares = fma(b, b, squares);
  }
  return sound && squares < limit ? power : missing64();
}

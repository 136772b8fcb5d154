// Values of the radial kernels, and distances of rings.
#pragma once
#include "ptx.cuh"

#ifndef REAL
#define REAL float
#endif
#ifndef MODE
#define MODE 1
#endif
#ifndef DEGREE
#define DEGREE 1
#endif
typedef long long i64;
#define DI __device__ __forceinline__
#define PI 3.14159265358979323846
#define SINGLE (sizeof(REAL) == 4)
#define MOST_TERMS 100

struct __align__(4 * sizeof(REAL)) Four {
  REAL x, y, z, w;
};

// K as a function of the squared chord x, zero above `top`.  MODE 0: 2 to the power of a polynomial of DEGREE in x;
// MODE 1: a polynomial of `terms` coefficients in 2 x / top - 1; MODE 2: the quintics of `Radial` (kernels/radial.py).
struct Profile {
  REAL top, scale, floor;  // scale: 2 / top of a polynomial, cells / sqrt(top) of quintics; floor: least value
  int terms;               // coefficients, or cells
  REAL c[MOST_TERMS];
};

DI REAL power_of_two(REAL e) {
#if PTX_ARCH
  if constexpr (SINGLE) return (REAL)ptx::power_of_two((float)e);
#endif
  return (REAL)exp2(e);
}

template <class R>
DI R quintic(const R* __restrict__ cells, R t, int n) {
  int k = (int)t;
  if (k > n - 1) k = n - 1;
  R u = 2 * (t - k) - 1;
  const R* c = cells + 6 * k;
  R v = c[5];
#pragma unroll
  for (int e = 4; e >= 0; e--) v = v * u + c[e];
  return v;
}

// Values at N squared chords.
template <int N>
DI void values(const Profile& p, const REAL* __restrict__ cells, const REAL* x, REAL* v) {
  if (MODE == 0) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      REAL e = p.c[DEGREE];
#pragma unroll
      for (int d = DEGREE - 1; d >= 0; d--) e = e * x[k] + p.c[d];
      v[k] = power_of_two(e);
    }
  } else if (MODE == 1) {
    REAL t[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
      t[k] = x[k] * p.scale - 1;
      v[k] = p.c[p.terms - 1];
    }
    for (int d = p.terms - 2; d >= 0; d--) {
#pragma unroll
      for (int k = 0; k < N; k++) v[k] = v[k] * t[k] + p.c[d];
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = quintic(cells, (REAL)(sqrt(x[k] > 0 ? x[k] : 0) * p.scale), p.terms);
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    if (MODE) v[k] = v[k] > p.floor ? v[k] : p.floor;
    v[k] = x[k] <= p.top ? v[k] : 0;
  }
}

// If the logarithm of the kernel is linear in the chord, it is a cubic in the square of half the difference of
// azimuth (with the error given at `square_sine`), and the end of the support is a value of this square.
#define CUBIC (MODE == 0 && DEGREE == 1 && SINGLE)

// A result that is not finite shows that the map contains such values.
DI bool strange(REAL v) { return !(fabs(v) <= (SINGLE ? (REAL)3.4028234e38 : (REAL)1.7976931348623157e308)); }

// sin^2 of a small angle whose square is y: to 1e-8 in float and 1e-15 in double for y < 0.0098
DI REAL square_sine(REAL y) {
  if (SINGLE) return y * (1 + y * ((REAL)(-1.0 / 3) + y * (REAL)(2.0 / 45)));
  REAL s = (REAL)(2.0 / 14175) - y * (REAL)(2.0 / 467775);
  s = (REAL)(2.0 / 45) + y * ((REAL)(-1.0 / 315) + y * s);
  return y * (1 + y * ((REAL)(-1.0 / 3) + y * s));
}

// Squared chord of points of two rings at the same azimuth, and its increase by sin^2 of half the azimuths' difference.
DI double chord(double t, double u) {
  double s = 2 * sin(0.5 * (t - u));
  return s * s;
}
DI double spread(double t, double u) { return 4 * sin(t) * sin(u); }

// Parts of the direct sums in HEALPix's caps (`direct/direct.cu`, `direct/spin.cu`): the outputs of a thread, which
// pixels of a ring lie within their support, and where these begin.
#pragma once
#include "common.cuh"
#include "healpix.cuh"

// Pixel p of a ring of n, counted on beyond both ends.
DI int around(int p, int n) {
  while (p < 0) p += n;
  while (p >= n) p -= n;
  return p;
}

// For rings o and i (counted from 1): their chord, its increase, and half the width of the support in pixels of
// ring i (below 0: none).
DI Four pair(const double* __restrict__ theta, int o, int i, double xmax, int nside) {
  Four r = {0, 0, -1, 0};
  if (i < 1) return r;
  double a = chord(theta[i - 1], theta[o - 1]), b = spread(theta[i - 1], theta[o - 1]);
  if (a > xmax) return r;
  double s = (xmax - a) / b;
  r.x = (REAL)a;
  r.y = (REAL)b;
  r.z = s < 1 ? (REAL)(asin(sqrt(s)) * 4 * quarter(nside, i) / PI) : (REAL)1e9;
  return r;
}

// Pixel j of the quarters of rings o .. o + ROWS - 1: m, the pixels of a quarter; s, its shift; r = 1 / m.
struct Outputs {
  int m[ROWS], s[ROWS];
  REAL r[ROWS];
};

// Returns false if none of these rings has pixel j in the first half of its quarter; the second half is the mirror
// image.
DI bool find(Outputs& out, int nside, int o, int j) {
  bool any = false;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    out.m[r] = quarter(nside, o + r);
    out.s[r] = shifted(nside, o + r);
    out.r[r] = (REAL)1 / out.m[r];
    any |= 2 * j <= out.m[r] - out.s[r];
  }
  return any;
}

// One input ring relative to the outputs: for each output the coefficients in the square of half the difference of
// azimuth (a, b, b2, b3), the end of the support (most) and the half difference at pixel `first` (h); its increase
// from pixel to pixel (step); and the pixels within any support.
struct Seen {
  REAL a[ROWS], b[ROWS], b2[ROWS], b3[ROWS], most[ROWS], h[ROWS], step;
  int first, last;
};

// `t`: the result of `pair` for each output; mi, si: pixels of a quarter of the ring, and its shift; eighth: an
// eighth of pi over mi.
DI bool see(Seen& seen, const Four* t, const Outputs& out, const Profile& profile, int j, int mi, int si, REAL eighth) {
  seen.first = 1 << 30;
  seen.last = -(1 << 30);
  seen.step = 2 * eighth;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    REAL reach = t[r].z, end = reach * seen.step;
    seen.a[r] = CUBIC ? profile.c[1] * t[r].x : reach >= 0 ? t[r].x : (REAL)1e30;
    seen.b[r] = CUBIC ? profile.c[1] * t[r].y : t[r].y;
    seen.b2[r] = seen.b[r] * (REAL)(-1.0 / 3);
    seen.b3[r] = seen.b[r] * (REAL)(2.0 / 45);
    seen.most[r] = reach >= 0 ? end * end : -1;
    if (reach >= 0) {
      REAL u = (j + (REAL)0.5 * out.s[r]) * out.r[r] * mi - (REAL)0.5 * si;
      int f = (int)ceil(u - reach - (REAL)2e-3), l = (int)floor(u + reach + (REAL)2e-3);
      seen.first = f < seen.first ? f : seen.first;
      seen.last = l > seen.last ? l : seen.last;
    }
  }
  if (seen.first > seen.last) return false;
  // computed from an exact integer (its overflow cancels)
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    unsigned diff = (unsigned)(2 * seen.first + si) * (unsigned)out.m[r] - (unsigned)(2 * j + out.s[r]) * (unsigned)mi;
    seen.h[r] = (REAL)(int)diff * (out.r[r] * eighth);
  }
  return true;
}

// Value of a kernel whose logarithm is linear in the chord, at y, the square of half the difference of azimuth.
DI REAL near_value(const Seen& seen, int r, REAL y) {
  if (y > seen.most[r]) return 0;
  return power_of_two(seen.a[r] + y * (seen.b[r] + y * (seen.b2[r] + y * seen.b3[r])));
}

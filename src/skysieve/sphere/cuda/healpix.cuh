// Rings of HEALPix by their number, from 1, and rings of any grid by a table.
#pragma once

// `quarter` is the number of pixels of a quarter of a ring, `shifted` 1 where the first one is off by half a pixel.
DI int quarter(int nside, int i) { return i < nside ? i : nside; }
DI int shifted(int nside, int i) { return i < nside || ((i - nside) & 1) == 0 ? 1 : 0; }
DI i64 north(int nside, int i) {
  return i < nside ? 2LL * i * (i - 1) : 2LL * nside * (nside - 1) + (i64)(i - nside) * 4 * nside;
}
DI i64 south(int nside, int i) { return 12LL * nside * nside - north(nside, i) - 4LL * quarter(nside, i); }

// Any ring; first .. last - 1 are those within the support.
struct Ring {
  double theta, phi0;
  i64 start;
  int n, first, last, used;
};

// Returns the index a, of `count`, with before[a] <= p < before[a + 1].
DI int ring_of(const i64* __restrict__ before, int count, i64 p) {
  int a = 0, b = count;
  while (b - a > 1) {
    int c = (a + b) / 2;
    if (before[c] <= p)
      a = c;
    else
      b = c;
  }
  return a;
}
// Pixels q0 .. q1 of a ring within the support around its pixel u (not whole, brought to within a turn), where sin^2 of
// half the difference of azimuth is at most s; negative ones and those from n on are a turn away.
DI void near(const Ring& there, double s, double& u, int& q0, int& q1) {
  q0 = 0;
  q1 = there.n - 1;
  if (s >= 1) return;
  double reach = asin(sqrt(s)) * there.n / PI + 1e-6;
  u -= there.n * floor(u / there.n);
  q0 = (int)ceil(u - reach);
  q1 = (int)floor(u + reach);
  if (q1 - q0 >= there.n) {
    q0 = 0;
    q1 = there.n - 1;
  }
}

// A group of threads that share the rings within a pixel's support, and the sum of their results.
#define SHARE 8
DI REAL shared_sum(REAL v) {
#pragma unroll
  for (int k = SHARE / 2; k; k >>= 1) v += __shfl_xor_sync(0xffffffffu, v, k);
  return v;
}

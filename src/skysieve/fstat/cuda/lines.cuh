// Parts of the kernels for any grid and any window: sums of a window, results of a thread, the line-robust statistic.
#pragma once
#include "common.cuh"

#ifndef MOST_DETECTORS
#define MOST_DETECTORS 3
#endif
struct Lines {
  T gauss, line[MOST_DETECTORS];
};  // in units of log2

struct Sums {
  T A, B, C;
  Quad S;
  __device__ __forceinline__ void clear() {
    A = B = C = 0;
    S = zero();
  }
};
__device__ __forceinline__ Cell cell_of(const Sums& s, T bound) {
  return cell_of(s.A, s.B, s.C, bound, (T)0, FALLBACK);
}

// Results of a thread.
template <int D>
struct Found {
  T top, line_top, sum;
  unsigned row, column, line_row, line_column;
  int lost;
  __device__ __forceinline__ void begin() {
    top = line_top = NONE;
    sum = 0;
    row = column = line_row = line_column = NOWHERE;
    lost = 0;
  }
  __device__ __forceinline__ void take(T F, T line, bool good, unsigned r, unsigned c) {
    if (before(F, r, c, top, row, column)) {
      top = F;
      row = r;
      column = c;
    }
    if (D && before(line, r, c, line_top, line_row, line_column)) {
      line_top = line;
      line_row = r;
      line_column = c;
    }
    lost += !good;
  }
  __device__ __forceinline__ void finish(Slot* slots, Slot* line_slots, size_t at) {
    put(slots + at, top, row, column, sum, lost);
    if (D) put(line_slots + at, line_top, line_row, line_column, (T)0, 0);
  }
};

// ln B of a signal against noise and lines, a detector at a time: log2 of the sum of 2^prior and of all 2^(line + F_X).
struct Against {
  T most, sum;
  __device__ __forceinline__ void begin(T gauss) {
    most = gauss;
    sum = 1;
  }
  __device__ __forceinline__ void take(T F, T prior) {
    const T y = fma(F, LOG2E, prior), high = fmax(most, y);
    sum = fma(sum, power_of_two(most - high), power_of_two(y - high));
    most = high;
  }
  __device__ __forceinline__ T of(T F) const { return fma((T)-0.6931471805599453, most + log2(sum), F); }
};

// Sums in the units of their own cell: F does not change when A, B, C are multiplied by 4^k and the data by 2^k.
__device__ __forceinline__ Sums normalised(double A, double B, double C, double x, double y, double z, double w) {
  const double s = A + B;
  Sums o;
  o.clear();
  if (!(s > 0)) return o;
  const int k = -(ilogb(s) >> 1);
  const double once = ldexp(1.0, k), twice = once * once;
  o.A = (T)(twice * A);
  o.B = (T)(twice * B);
  o.C = (T)(twice * C);
  o.S.x = (T)(once * x);
  o.S.y = (T)(once * y);
  o.S.z = (T)(once * z);
  o.S.w = (T)(once * w);
  return o;
}

// Shared parts of the refinement of a peak of the grid to a maximum of the exact periodogram: the window of the
// peak, its climb, and its results.
//
// Places are offsets from the frequency of the peak's sample, times the span. A window ends at the neighbouring
// samples, but no nearer than LEAST and no farther than FARTHEST from the sample (both divided by the number of
// harmonics of the model), and at the ends of the grid. Rules and numbers: peaks.py.
#pragma once

#define WIDE 0.6  // divided by the harmonics: a window up to this width has one maximum
#define STEP 0.2  // between trial places in a wider one
#define LEAST 0.1
#define FARTHEST 1.0
#define SAME 0.1    // maxima nearer than this are one
#define LEAP 0.25   // longest step of a climb
#define CLOSE 1e-6  // a step so short needs no further evaluation, up to a curvature of SHARP squared
#define SHARP 6.0   // for sharper peaks the step is shorter in proportion
#define SURE \
  2e-7  // product of the last two steps, over the harmonics squared, after which the third derivative gives the rest
#define NEAR 0.1       // distance up to which the series of a power is used
#define RATIO 0.009    // of successive terms of a power's series, up to which the series ends a climb
#define LOST 3e-11     // expected size of the first neglected term; the largest of many was 8 times as large
#define DISTINCT 0.01  // determinants, of 1/4 at most, from which sums need not be centred
#define HIGHER 1e-12   // difference of two powers that is more than rounding
#define LOWER 1e-4     // the same for a power and that of a sample, also in float32

// Inputs and results for every peak that is refined: `tries` for each object, of which `wanted` are kept.
// index, here, vertex, found, first: from ls_peaks (index of the sample, its power, vertex of the parabola in
// samples; number of peaks of an object, and of those that are not further ones). refined: frequency, power, curvature. columns: number of columns of the model,
// which fits as many points exactly at every frequency.
struct Picks {
  const Info* info;
  const double* f0;
  const double* df;
  const int* nf;
  const double* frequencies;
  const int* index;
  const double* here;
  const double* vertex;
  const int* found;
  const int* first;
  double* refined;
  int tries, wanted, grid_stride, harmonics, columns;
};
struct Window {
  double lo, hi;
};
// Whether there is a peak to refine, and its window. x: frequency of its sample.
__device__ __forceinline__ bool window_of(const Picks& A, int o, int r, int harmonics, Frequency& x, Window& w) {
  const size_t slot = (size_t)o * A.tries + r;
  if (A.info[o].status || r >= A.found[o]) return false;
  const int j = A.index[slot], gi = o * A.grid_stride, nf = A.nf[gi];
  const double span = A.info[o].span, least = LEAST / harmonics, most = FARTHEST / harmonics;
  double below, above;
  if (A.frequencies) {
    const double* f = A.frequencies + j;
    x = Frequency{*f, 0};
    below = j ? (f[0] - f[-1]) * span : 0;
    above = j + 1 < nf ? (f[1] - f[0]) * span : 0;
    if (r >= A.first[o]) {  // for regular grids ls_peaks has dropped peaks that are too low
      const double turns = fmax(below, above) * harmonics, c = turns < 1 ? cospi(0.5 * turns) : 0;
      if (A.here[slot] < c * c * A.here[slot - r]) return false;
    }
    w.lo = -fmin(fmin(fmax(below, least), most), (*f - A.frequencies[0]) * span);
    w.hi = fmin(fmin(fmax(above, least), most), (A.frequencies[nf - 1] - *f) * span);
    if (A.info[o].n <= A.columns) w.lo = w.hi = 0;
    return true;
  }
  x = frequency_of(A.f0[gi], (double)j, A.df[gi]);
  below = above = A.df[gi] * span;
  w.lo = -fmin(fmin(fmax(below, least), most), j * below);
  w.hi = fmin(fmin(fmax(above, least), most), (nf - 1 - j) * above);
  if (A.info[o].n <= A.columns) w.lo = w.hi = 0;
  return true;
}
// Trial places of a window: both ends, the sample, and places in between. There are none if the window has a single
// maximum; the climb then begins at the sample. Otherwise it begins at the highest place that no neighbour exceeds;
// an end of the window counts only if it is an end of the grid.
struct Places {
  int below, above;
  __device__ __forceinline__ int all() const { return below + above ? below + above + 1 : 0; }
  __device__ __forceinline__ double at(const Window& w, int i) const {
    return i < below ? w.lo * (below - i) / below : i > below ? w.hi * (i - below) / above : 0.0;
  }
};
__device__ __forceinline__ Places places_of(const Window& w, int harmonics) {
  if ((w.hi - w.lo) * harmonics <= WIDE * (1 + 1e-9)) return Places{0, 0};
  const double step = STEP / harmonics * (1 + 1e-9);
  return Places{(int)ceil(-w.lo / step), (int)ceil(w.hi / step)};
}
__device__ __forceinline__ Frequency moved(Frequency x, double by) {
  const double f = x.f + by, part = f - x.f;
  return Frequency{f, ((x.f - (f - part)) + (by - part)) + x.rest};
}
// Writes the results of a peak. at: its place; curvature: in units of the span squared.
__device__ __forceinline__ void keep(const Picks& A, int o, int r, Frequency x, double at, double power,
                                     double curvature) {
  double* to = A.refined + 3 * ((size_t)o * A.tries + r);
  const double span = A.info[o].span;
  const Frequency f = moved(x, at / span);
  to[0] = f.f + f.rest;
  to[1] = fmin(power, 1.0);
  to[2] = curvature < 0 ? curvature * span * span : missing64();
}
__device__ __forceinline__ void keep_none(const Picks& A, int o, int r) {
  for (int k = 0; k < 3; k++) A.refined[3 * ((size_t)o * A.tries + r) + k] = missing64();
}

// What the kernels of light curves in several bands share: the columns of a model, and the rows of each band.
//
// A model has BAND_TERMS terms and a constant for each band, and TERMS terms (and, with CONSTANT, a constant)
// that all bands share; columns of the bands come first, so that a band touches the others through the common
// columns alone: bands are eliminated one after another (a front of their own columns and the common ones),
// then the common columns. The number of bands is known at run time.
#pragma once

#ifndef TERMS
#define TERMS 1
#endif
#ifndef BAND_TERMS
#define BAND_TERMS 0
#endif
#ifndef CONSTANT
#define CONSTANT 0
#endif
#define OWN (1 + 2 * BAND_TERMS)  // columns of a band
#ifndef FREE
#define FREE 0  // common columns, the first, without a penalty
#endif
#define COMMON (CONSTANT + 2 * TERMS)  // columns of all bands
#define MOST(a, b) ((a) > (b) ? (a) : (b))
#define AT_LEAST_ONE(x) MOST(x, 1)
#define BAND_W MOST(2 * BAND_TERMS, TERMS ? BAND_TERMS + TERMS : 0)  // w of each band at f, 2 f, ... as in chi2.tables
#define ALL_W MOST(2 * TERMS - BAND_W, 0)                            // w of all bands at the harmonics beyond
#define BAND_Y BAND_TERMS                                            // w y of each band
#define ALL_Y MOST(TERMS - BAND_TERMS, 0)
#define BAND_CHANNELS (BAND_W + BAND_Y)
#define ALL_CHANNELS (ALL_W + ALL_Y)
#define HARMONICS MOST(BAND_W, 2 * TERMS)
#define PIVOT 1e-8  // pivots under this part of the weight are not trusted
#if TERMS + BAND_TERMS <= 4
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("unroll 1")
#endif
#define TRACE \
  ((double)(CONSTANT + TERMS + 1 + BAND_TERMS))  // a cosine's and a sine's squares add up to the weight, which is 1

#define ONE_SINUSOID (TERMS == 1 && BAND_TERMS == 0 && !CONSTANT)

// Rows of an object, band after band: row pick[first[b] .. first[b + 1]) in order of time; share: 1 over the band's weight, or 0.
struct Bands {
  const int* pick;
  const int* first;
  const double* share;
  int bands;
};

// Shared parts of the kernels for light curves in several bands: the columns of a model, and the rows of each
// band.
//
// A model has a constant and BAND_TERMS Fourier terms for each band, and TERMS terms (with CONSTANT also a
// constant) that all bands share. The columns of the bands come first. Different bands are coupled only through
// the common columns. The bands are therefore eliminated one after another, each from a matrix of the band's
// columns and the common ones, which is called its front. Then the common columns are eliminated. The number of
// bands is known at run time only.
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
#define PIVOT 1e-8  // pivots below this fraction of the weight are not trusted
#if TERMS + BAND_TERMS <= 4
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("unroll 1")
#endif
#define TRACE \
  ((double)(CONSTANT + TERMS + 1 + BAND_TERMS))  // a cosine's and a sine's squares add up to the weight, which is 1

#define ONE_SINUSOID (TERMS == 1 && BAND_TERMS == 0 && !CONSTANT)

// The rows of an object, band after band: rows pick[first[b] .. first[b + 1]) are those of band b in order of time.
// share: 1 / weight of the band, or 0.
struct Bands {
  const int* pick;
  const int* first;
  const double* share;
  int bands;
};

// Parts of the spreading of points on cells: phases of points, the weights that belong to a strip of cells, and
// accesses to shared memory by address.
#pragma once

// sin(2 pi r) / r and cos(2 pi r) for |r| <= 1/8 as polynomials in r^2, from Chebyshev interpolation: errors of
// 5e-11 if powers are float32, otherwise of 3e-16.
#if MODES > 192
#define SINE(z)                                                                                                \
  fma(fma(fma(fma(41.472832732378684, z, -76.6978665617806), z, 81.60520471533377), z, -41.34170215341525), z, \
      6.283185307152413)
#define COSINE(z)                                                                                             \
  fma(fma(fma(fma(59.22018648728935, z, -85.4428456181763), z, 64.93931614882044), z, -19.73920865018371), z, \
      0.9999999999525213)
#else
#define SINE(z)                                                                                                       \
  fma(fma(fma(fma(fma(fma(3.780789840661149, z, -15.093800441124541), z, 42.058684952590276), z, -76.70585970371454), \
              z, 81.60524927594594),                                                                                  \
          z, -41.341702240399634),                                                                                    \
      z, 6.283185307179586)
#define COSINE(z)                                                                                                      \
  fma(fma(fma(fma(fma(fma(7.81027290587707, z, -26.424256211055816), z, 60.244620071843606), z, -85.4568170902304), z, \
              64.93939402236498),                                                                                      \
          z, -19.73920880217842),                                                                                      \
      z, 1.0)
#endif
// exp(2 pi i f t) in fewer instructions than sincospi takes: the low bits of a sum give the quarter of a turn, and
// infinities are not handled.
__device__ __forceinline__ double2 turned_by(Frequency f, double t) {
  const double a = f.f * t, magic = 0x1.8p52, k = fma(a, 4.0, magic);
  const double r = fma(k - magic, -0.25, a) + fma(f.rest, t, fma(f.f, t, -a)), z = r * r, s = SINE(z) * r,
               c = COSINE(z);
  const int q = __double2loint(k);
  const double x = q & 1 ? s : c, y = q & 1 ? c : s;
  return make_double2(__hiloint2double(__double2hiint(x) ^ (q + 1 & 2) << 30, __double2loint(x)),
                      __hiloint2double(__double2hiint(y) ^ (q & 2) << 30, __double2loint(y)));
}

// Weights are positive; those of cells of the next strip are stored with a minus sign. A weight whose sign is not
// the wanted one becomes almost 0 (a multiple of 5e-324), because its low half is kept.
__device__ __forceinline__ int above(int high, int flip) {
#if ON_DEVICE
  return __viaddmax_s32_relu(high, flip, 0);
#else
  return max((int)((unsigned)high + (unsigned)flip), 0);
#endif
}
__device__ __forceinline__ double2 some_of(double2 w, int flip) {
  return make_double2(__hiloint2double(above(__double2hiint(w.x), flip), __double2loint(w.x)),
                      __hiloint2double(above(__double2hiint(w.y), flip), __double2loint(w.y)));
}
#define THIS 0
#define NEXT ((int)0x80000000u)

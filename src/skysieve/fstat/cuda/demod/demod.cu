// Demodulation: SFTs of one detector are projected on templates and multiplied by the antenna factors.
//
// Layout: one block computes TILE templates x TILE SFTs, and one thread ROWS SFTs of one template, so that the
// threads of a warp read the same bins.  Results are transposed in shared memory and written along the SFTs.
// Cost for one SFT and template: 12 float64 operations for the phases (those of a year need 40 bits), about 110
// float32 operations for the sum over 2 DTERMS bins with one division for four bins, 128 bytes read from the
// cache, 16 bytes written.  The build f64 sums in float64.
// Limit: float32 arithmetic, and writing.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// budget: f32 kernel=demod regs<=64 smem<=16896
// budget: f64 kernel=demod regs<=128 smem<=16896
#define TILE 32
#define ROWS 4    // SFTs of a thread
#define DTERMS 8  // bins to either side of the frequency; cpu/demod.py has the same

#ifndef REAL
#define REAL float
#endif
typedef REAL T;
struct __align__(2 * sizeof(T)) Complex {
  T x, y;
};
// Distance to a bin below which that bin alone counts; cpu/demod.py has the same.
#define NEAR (sizeof(T) == 4 ? (T)2e-4 : (T)1e-15)

struct Demod {
  const Complex* data;
  const double* delay;
  const double* rate;
  const T* a;
  const T* b;  // rate: in bins per Hz
  const double* f0;
  const double* f1;
  const double* f2;
  Complex* Fa;
  Complex* Fb;
  unsigned* failed;  // failed: lowest index of a template that needs a missing bin
  int sfts, bins, first_bin, templates;
};
// Sine and cosine of a phase of x cycles.
__device__ __forceinline__ void sincos_cycles(T x, T& s, T& c) { sincospi(2 * x, &s, &c); }

// The projection of an SFT.  x: its bins from the lowest that counts on; kappa: distance of the frequency above bin
// DTERMS - 1 of these, in bins.
__device__ __forceinline__ Complex projected(const Complex* x, T kappa, T phase) {
  const T k = fmin(fmax(kappa, NEAR), 1 - NEAR);
  Complex sum = {0, 0};
#pragma unroll
  for (int m = 0; m < 2 * DTERMS; m += 4) {
    const T d = k + (DTERMS - 1 - m), d1 = k + (DTERMS - 2 - m), d2 = k + (DTERMS - 3 - m),
            d3 = k + (DTERMS - 4 - m);  // each is computed from k: k + 3 - 3 would lose digits
    const T p = d * d1, q = d2 * d3, inverse = 1 / (p * q);
    const Complex u = x[m], v = x[m + 1], w = x[m + 2], z = x[m + 3];
    sum.x = fma(inverse, fma(q, fma(u.x, d1, v.x * d), p * fma(w.x, d3, z.x * d2)), sum.x);
    sum.y = fma(inverse, fma(q, fma(u.y, d1, v.y * d), p * fma(w.y, d3, z.y * d2)), sum.y);
  }
  // sin(2 pi k) and cos(2 pi k) - 1 from half the angle: exact to rounding beside a bin
  T half_s, half_c, s, c;
  sincos_cycles((T)0.5 * (k > (T)0.5 ? k - 1 : k), half_s, half_c);
  const T scale = (T)0.31830988618379067, up = half_s * half_c * scale, rest = -half_s * half_s * scale;
  Complex found = {fma(up, sum.x, -rest * sum.y), fma(up, sum.y, rest * sum.x)};
  if (kappa < NEAR) found = x[DTERMS - 1];
  if (kappa > 1 - NEAR) found = x[DTERMS];
  sincos_cycles(phase, s, c);
  return Complex{fma(c, found.x, -s * found.y), fma(c, found.y, s * found.x)};
}
extern "C" __global__ void __launch_bounds__(TILE* TILE / ROWS) demod(const Demod A) {
  __shared__ Complex tile[TILE][TILE + 1];
  const int own = threadIdx.x % TILE, row = threadIdx.x / TILE, i = blockIdx.x * TILE + own;
  const bool inside = i < A.templates;
  const double f0 = inside ? A.f0[i] : 0, f1 = inside ? A.f1[i] : 0, f2 = inside ? A.f2[i] : 0;
#pragma unroll 1
  for (int e = 0; e < ROWS; e++) {
    const int j = blockIdx.y * TILE + row + e * (TILE / ROWS);
    if (!inside || j >= A.sfts) continue;
    const double d = A.delay[j], half = 0.5 * d * d;
    const double phase = fma(f2, half * d * (1.0 / 3), fma(f1, half, f0 * d)),
                 cycles = A.rate[j] * fma(f2, half, fma(f1, d, f0));
    const double whole = floor(cycles), turn = fma(0.5, cycles, -phase);
    const long long low = (long long)whole - (DTERMS - 1) - A.first_bin;
    Complex found = {0, 0};
    if (low < 0 || low + 2 * DTERMS > A.bins)
      atomicMin(A.failed, (unsigned)i);
    else
      found = projected(A.data + (size_t)j * A.bins + low, (T)(cycles - whole), (T)(turn - rint(turn)));
    tile[row + e * (TILE / ROWS)][own] = found;
  }
  __syncthreads();
  const int j = blockIdx.y * TILE + own;
  if (j >= A.sfts) return;
  const T a = A.a[j], b = A.b[j];
#pragma unroll
  for (int e = 0; e < ROWS; e++) {
    const int of = row + e * (TILE / ROWS), to = blockIdx.x * TILE + of;
    if (to >= A.templates) break;
    const Complex r = tile[own][of];
    const size_t at = (size_t)to * A.sfts + j;
    A.Fa[at] = Complex{a * r.x, a * r.y};
    A.Fb[at] = Complex{b * r.x, b * r.y};
  }
}

// Demodulation: SFTs of one detector projected on templates, times the antenna factors.
//
// demod: one block = TILE templates x TILE SFTs, one thread = one template of ROWS SFTs, so that the threads of a warp read the same bins;
// results are turned in shared memory, and written along the SFTs. An SFT and template: 12 float64 operations for its phases (those of
// a year need 40 bits), some 110 float32 operations for the sum over 2 DTERMS bins with one division for four bins, 128 bytes from the
// cache, 16 bytes written. Limit: float32 arithmetic, and writing.
//
// archs: 75 80 86 89 90 100 120
// build: f32
// budget: f32 kernel=demod regs<=64 smem<=16896
#define TILE 32
#define ROWS 4      // SFTs of a thread
#define DTERMS 8    // bins to either side of the frequency; cpu/demod.py has the same
#define NEAR 2e-4f  // distance to a bin below which that bin alone counts

struct Demod {
  const float2* data;
  const double* delay;
  const double* rate;
  const float* a;
  const float* b;  // rate: in bins for each Hz
  const double* f0;
  const double* f1;
  const double* f2;
  float2* Fa;
  float2* Fb;
  unsigned* failed;  // failed: least number of a template that needs a bin that is not there
  int sfts, bins, first_bin, templates;
};
// Sine and cosine of a phase of x cycles.
__device__ __forceinline__ void sincos_cycles(float x, float& s, float& c) { sincospif(2 * x, &s, &c); }

// The projection of an SFT; x: its bins from the lowest that counts on. kappa: of the frequency in bins, what is above the bin DTERMS - 1.
__device__ __forceinline__ float2 projected(const float2* x, float kappa, float phase) {
  const float k = fminf(fmaxf(kappa, NEAR), 1 - NEAR);
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (int m = 0; m < 2 * DTERMS; m += 4) {
    const float d = k + (DTERMS - 1 - m), d1 = k + (DTERMS - 2 - m), d2 = k + (DTERMS - 3 - m),
                d3 = k + (DTERMS - 4 - m);  // each from k itself: k + 3 - 3 would lose digits
    const float p = d * d1, q = d2 * d3, inverse = 1 / (p * q);
    const float2 u = x[m], v = x[m + 1], w = x[m + 2], z = x[m + 3];
    sum.x = fmaf(inverse, fmaf(q, fmaf(u.x, d1, v.x * d), p * fmaf(w.x, d3, z.x * d2)), sum.x);
    sum.y = fmaf(inverse, fmaf(q, fmaf(u.y, d1, v.y * d), p * fmaf(w.y, d3, z.y * d2)), sum.y);
  }
  // sin(2 pi k) and cos(2 pi k) - 1 from half the angle: exact to rounding beside a bin
  float half_s, half_c, s, c;
  sincos_cycles(0.5f * (k > 0.5f ? k - 1 : k), half_s, half_c);
  const float scale = 0.318309886f, up = half_s * half_c * scale, rest = -half_s * half_s * scale;
  float2 found = make_float2(fmaf(up, sum.x, -rest * sum.y), fmaf(up, sum.y, rest * sum.x));
  if (kappa < NEAR) found = x[DTERMS - 1];
  if (kappa > 1 - NEAR) found = x[DTERMS];
  sincos_cycles(phase, s, c);
  return make_float2(fmaf(c, found.x, -s * found.y), fmaf(c, found.y, s * found.x));
}
extern "C" __global__ void __launch_bounds__(TILE* TILE / ROWS) demod(const Demod A) {
  __shared__ float2 tile[TILE][TILE + 1];
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
    float2 found = make_float2(0, 0);
    if (low < 0 || low + 2 * DTERMS > A.bins)
      atomicMin(A.failed, (unsigned)i);
    else
      found = projected(A.data + (size_t)j * A.bins + low, (float)(cycles - whole), (float)(turn - rint(turn)));
    tile[row + e * (TILE / ROWS)][own] = found;
  }
  __syncthreads();
  const int j = blockIdx.y * TILE + own;
  if (j >= A.sfts) return;
  const float a = A.a[j], b = A.b[j];
#pragma unroll
  for (int e = 0; e < ROWS; e++) {
    const int of = row + e * (TILE / ROWS), to = blockIdx.x * TILE + of;
    if (to >= A.templates) break;
    const float2 r = tile[own][of];
    const size_t at = (size_t)to * A.sfts + j;
    A.Fa[at] = make_float2(a * r.x, a * r.y);
    A.Fb[at] = make_float2(b * r.x, b * r.y);
  }
}

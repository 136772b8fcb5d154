// CUDA's mathematical functions and intrinsics, for the host.  Included by cuda_shim.h.
#pragma once

using std::abs;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
  typedef std::common_type_t<A, B> C;
  if constexpr (std::is_floating_point_v<C>) return C(std::fmin(C(a), C(b))); else return C(b) < C(a) ? C(b) : C(a);
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
  typedef std::common_type_t<A, B> C;
  if constexpr (std::is_floating_point_v<C>) return C(std::fmax(C(a), C(b))); else return C(a) < C(b) ? C(b) : C(a);
}

// ---------------------------------------------------------------- sin(pi x), exact reduction
namespace shim {
inline void sincos_pi(double x, double* s, double* c) {
  const double r = x - 2 * std::rint(x / 2);                 // in [-1, 1], exact
  const double q = std::rint(2 * r), d = r - q / 2;          // quarter turns and the rest, exact
  const long double a = 3.14159265358979323846264338327950288L * d;
  const double sd = double(sinl(a)), cd = double(cosl(a));
  switch (int(q) & 3) {
    case 0: *s = sd; *c = cd; break;
    case 1: *s = cd; *c = -sd; break;
    case 2: *s = -sd; *c = -cd; break;
    default: *s = -cd; *c = sd;
  }
}
}  // namespace shim
inline void sincospi(double x, double* s, double* c) { shim::sincos_pi(x, s, c); }
inline void sincospif(float x, float* s, float* c) { double a, b; shim::sincos_pi(x, &a, &b); *s = float(a); *c = float(b); }
inline void sincospi(float x, float* s, float* c) { sincospif(x, s, c); }
inline double sinpi(double x) { double s, c; shim::sincos_pi(x, &s, &c); return s; }
inline double cospi(double x) { double s, c; shim::sincos_pi(x, &s, &c); return c; }
inline float sinpif(float x) { return float(sinpi(double(x))); }
inline float cospif(float x) { return float(cospi(double(x))); }
inline float sinpi(float x) { return sinpif(x); }
inline float cospi(float x) { return cospif(x); }
inline void sincos(float x, float* s, float* c) { *s = std::sin(x); *c = std::cos(x); }

inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrtf(float x) { return float(1 / std::sqrt(double(x))); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rcbrt(double x) { return 1 / std::cbrt(x); }

// ---------------------------------------------------------------- intrinsics
inline float __frcp_rn(float x) { return 1 / x; }
inline double __drcp_rn(double x) { return 1 / x; }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline void __sincosf(float x, float* s, float* c) { sincos(x, s, c); }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

// Conversions saturate and give 0 for NaN, as on the device.
namespace shim {
template <class I, class F> I clamp_to(F x) {
  if (std::isnan(x)) return 0;
  if (x >= std::ldexp(F(1), int(sizeof(I) * 8) - (std::is_signed_v<I> ? 1 : 0))) return std::numeric_limits<I>::max();
  if (x <= F(std::numeric_limits<I>::min())) return std::numeric_limits<I>::min();
  return I(x);
}
}  // namespace shim
#define SHIM_CONVERT(from, F, to, I)                                                             \
  inline I __##from##2##to##_rn(F x) { return shim::clamp_to<I>(std::nearbyint(x)); }            \
  inline I __##from##2##to##_rd(F x) { return shim::clamp_to<I>(std::floor(x)); }                \
  inline I __##from##2##to##_ru(F x) { return shim::clamp_to<I>(std::ceil(x)); }                 \
  inline I __##from##2##to##_rz(F x) { return shim::clamp_to<I>(std::trunc(x)); }
SHIM_CONVERT(float, float, int, int)
SHIM_CONVERT(float, float, uint, unsigned)
SHIM_CONVERT(float, float, ll, long long)
SHIM_CONVERT(float, float, ull, unsigned long long)
SHIM_CONVERT(double, double, int, int)
SHIM_CONVERT(double, double, uint, unsigned)
SHIM_CONVERT(double, double, ll, long long)
SHIM_CONVERT(double, double, ull, unsigned long long)
inline float __double2float_rn(double x) { return float(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return double(x); }
inline double __ull2double_rn(unsigned long long x) { return double(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }

template <class To, class From> To shim_bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  std::memcpy(&to, &x, sizeof to);
  return to;
}
inline long long __double_as_longlong(double x) { return shim_bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return shim_bit_cast<double>(x); }
inline int __float_as_int(float x) { return shim_bit_cast<int>(x); }
inline float __int_as_float(int x) { return shim_bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return shim_bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return shim_bit_cast<float>(x); }
inline int __double2hiint(double x) { return int(uint64_t(__double_as_longlong(x)) >> 32); }
inline int __double2loint(double x) { return int(uint64_t(__double_as_longlong(x)) & 0xffffffffu); }
inline double __hiloint2double(int hi, int lo) {
  return shim_bit_cast<double>(uint64_t(unsigned(hi)) << 32 | unsigned(lo));
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline int __mul24(int a, int b) { return int(unsigned(a << 8 >> 8) * unsigned(b << 8 >> 8)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// Loads and stores with a cache hint.
#define SHIM_LOAD(name) template <class V> V name(const V* p) { return *p; }
#define SHIM_STORE(name) template <class V> void name(V* p, shim::same<V> v) { *p = v; }
SHIM_LOAD(__ldg) SHIM_LOAD(__ldca) SHIM_LOAD(__ldcg) SHIM_LOAD(__ldcs) SHIM_LOAD(__ldlu) SHIM_LOAD(__ldcv)
SHIM_STORE(__stwb) SHIM_STORE(__stcg) SHIM_STORE(__stcs) SHIM_STORE(__stwt)
inline size_t __cvta_generic_to_shared(const void* p) { return size_t(p); }
inline long long clock64() { return 0; }

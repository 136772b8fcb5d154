// CUDA's qualifiers and vector types, for the host.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__ static
#define __forceinline__ inline
#undef __noinline__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(condition) ((void)0)

#define SHIM_VECTOR2(T, name, a)                           \
  struct __attribute__((aligned(a))) name##2 { T x, y; };  \
  inline name##2 make_##name##2(T x, T y) { name##2 v; v.x = x; v.y = y; return v; }
#define SHIM_VECTOR3(T, name)      \
  struct name##3 { T x, y, z; };   \
  inline name##3 make_##name##3(T x, T y, T z) { name##3 v; v.x = x; v.y = y; v.z = z; return v; }
#define SHIM_VECTOR4(T, name, a)                                \
  struct __attribute__((aligned(a))) name##4 { T x, y, z, w; }; \
  inline name##4 make_##name##4(T x, T y, T z, T w) { name##4 v; v.x = x; v.y = y; v.z = z; v.w = w; return v; }
#define SHIM_VECTORS(T, name, a2, a4) SHIM_VECTOR2(T, name, a2) SHIM_VECTOR3(T, name) SHIM_VECTOR4(T, name, a4)

SHIM_VECTORS(signed char, char, 2, 4)
SHIM_VECTORS(unsigned char, uchar, 2, 4)
SHIM_VECTORS(short, short, 4, 8)
SHIM_VECTORS(unsigned short, ushort, 4, 8)
SHIM_VECTORS(int, int, 8, 16)
SHIM_VECTORS(unsigned, uint, 8, 16)
SHIM_VECTORS(long long, longlong, 16, 16)
SHIM_VECTORS(unsigned long long, ulonglong, 16, 16)
SHIM_VECTORS(float, float, 8, 16)
SHIM_VECTORS(double, double, 16, 16)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

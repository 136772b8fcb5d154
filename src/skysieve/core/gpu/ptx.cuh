// Functions for instructions that C++ has no names for, each with a plain form for GPUs without them and for
// the host.
#pragma once

#if defined(__CUDA_ARCH__)
#define PTX_ARCH __CUDA_ARCH__
#else
#define PTX_ARCH 0
#endif
#define ON_DEVICE (PTX_ARCH > 0)
// Features of the architecture that is compiled for: 0 or 1.
#define HAS_WARP_REDUCTIONS (PTX_ARCH >= 800)       // __reduce_add_sync and the like
#define HAS_ASYNC_COPIES (PTX_ARCH >= 800)          // cp.async
#define HAS_COPY_ENGINE (PTX_ARCH >= 900)           // cp.async.bulk, mbarrier
#define HAS_HALF_MATRICES (PTX_ARCH >= 800)         // m16n8k16 of halves
#define HAS_SPARSE_MATRICES (PTX_ARCH >= 800)       // m16n8k64 of bytes, two of four zero
#define HAS_DOUBLE_MATRICES (PTX_ARCH >= 800)       // m8n8k4 of float64
#define HAS_TALL_DOUBLE_MATRICES (PTX_ARCH >= 900)  // m16n8k4, k8 and k16 of float64
#define FAST_DOUBLE_MATRICES (PTX_ARCH == 800 || PTX_ARCH == 900 || PTX_ARCH == 1000)  // GPUs of data centres
#if defined(__CUDACC_VER_MAJOR__) && \
    (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 5))
#define SPARSE_PRODUCT "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.u8.u8.s32"
#else
#define SPARSE_PRODUCT "mma.sp.sync.aligned.m16n8k64.row.col.s32.u8.u8.s32"
#endif

namespace ptx {

// ---------------------------------------------------------------- functions and conversions

// 1 / x of a positive number: the special-function unit's estimate and one cubic step (20 -> 60 bits).
__device__ __forceinline__ double reciprocal(double x) {
#if PTX_ARCH
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(x));
  double e = fma(-x, r, 1.0);
  e = fma(e, e, e);
  return fma(e, r, r);
#else
  return 1.0 / x;
#endif
}
// 1 / x and 2^x by the special-function unit: relative errors of 1 and 2 units in the last place; denormals are 0.
__device__ __forceinline__ float reciprocal(float x) {
#if PTX_ARCH
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
#else
  return 1.0f / x;
#endif
}
__device__ __forceinline__ float power_of_two(float x) {
#if PTX_ARCH
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
#else
  return exp2f(x);
#endif
}

// The nearest half-precision number, as its bits, and the number of such bits.
__device__ __forceinline__ unsigned half_of(float x) {
#if PTX_ARCH
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
#else
  const unsigned b = (unsigned)__float_as_int(x), sign = b >> 16 & 0x8000u, a = b & 0x7fffffffu, r = a - 0x38000000u;
  if (a >= 0x477ff000u) return sign | 0x7c00u | (a > 0x7f800000u ? 0x200u : 0u);
  if (a < 0x38800000u) return sign | (unsigned)rintf(__int_as_float((int)a) * 0x1p24f);
  return sign | (r + 0xfffu + (r >> 13 & 1u)) >> 13;
#endif
}
__device__ __forceinline__ float number_of_half(unsigned h) {
#if PTX_ARCH
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)h));
  return x;
#else
  const unsigned sign = (h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 1023u;
  if (!e) {
    const float x = (float)m * 0x1p-24f;
    return sign ? -x : x;
  }
  return __int_as_float((int)(sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13));
#endif
}
// x, y as halves in one word.
__device__ __forceinline__ unsigned halves_of(float x, float y) {
#if HAS_HALF_MATRICES
  unsigned h;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(y), "f"(x));
  return h;
#else
  return half_of(x) | half_of(y) << 16;
#endif
}

// Number of multiprocessors of the GPU.
__device__ __forceinline__ int multiprocessors() {
#if PTX_ARCH
  int count;
  asm("mov.u32 %0, %%nsmid;" : "=r"(count));
  return count;
#else
  return 1;
#endif
}

// ---------------------------------------------------------------- pairs of 16-bit numbers in a word

__device__ __forceinline__ unsigned max_pair(unsigned a, unsigned b) {
#if PTX_ARCH >= 900
  unsigned m;
  asm("max.u16x2 %0,%1,%2;" : "=r"(m) : "r"(a), "r"(b));
  return m;
#else
  return max(a & 0xffff0000u, b & 0xffff0000u) | max(a & 0xffffu, b & 0xffffu);
#endif
}
__device__ __forceinline__ unsigned min_pair(unsigned a, unsigned b) {
#if PTX_ARCH >= 900
  unsigned m;
  asm("min.u16x2 %0,%1,%2;" : "=r"(m) : "r"(a), "r"(b));
  return m;
#else
  return min(a & 0xffff0000u, b & 0xffff0000u) | min(a & 0xffffu, b & 0xffffu);
#endif
}

// ---------------------------------------------------------------- loads, stores, caches

// Loads of numbers that no kernel writes meanwhile. `load_again` reads at every call: the compiler does not use what
// an earlier call has read. `load_past` leaves nothing in the first-level cache.
#if PTX_ARCH
__device__ __forceinline__ float load_again(const float* at) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(at));
  return v;
}
__device__ __forceinline__ double load_again(const double* at) {
  double v;
  asm volatile("ld.global.nc.f64 %0, [%1];" : "=d"(v) : "l"(at));
  return v;
}
__device__ __forceinline__ float2 load_again(const float2* at) {
  float2 v;
  asm volatile("ld.global.nc.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(at));
  return v;
}
__device__ __forceinline__ double2 load_again(const double2* at) {
  double2 v;
  asm volatile("ld.global.nc.v2.f64 {%0,%1}, [%2];" : "=d"(v.x), "=d"(v.y) : "l"(at));
  return v;
}
__device__ __forceinline__ float load_past(const float* at) {
  float v;
  asm("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(v) : "l"(at));
  return v;
}
__device__ __forceinline__ double load_past(const double* at) {
  double v;
  asm("ld.global.nc.L1::no_allocate.f64 %0, [%1];" : "=d"(v) : "l"(at));
  return v;
}
__device__ __forceinline__ float2 load_past(const float2* at) {
  float2 v;
  asm("ld.global.nc.L1::no_allocate.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(at));
  return v;
}
__device__ __forceinline__ double2 load_past(const double2* at) {
  double2 v;
  asm("ld.global.nc.L1::no_allocate.v2.f64 {%0,%1}, [%2];" : "=d"(v.x), "=d"(v.y) : "l"(at));
  return v;
}
#else
template <class V>
__device__ __forceinline__ V load_again(const V* at) {
  return *at;
}
template <class V>
__device__ __forceinline__ V load_past(const V* at) {
  return *at;
}
#endif

// Addresses in shared memory, and loads from them, for which the compiler would otherwise compute each address anew.
#if PTX_ARCH
typedef unsigned SharedAddress;
__device__ __forceinline__ SharedAddress shared_address(const void* at) {
  return (unsigned)__cvta_generic_to_shared(at);
}
__device__ __forceinline__ double load_double(SharedAddress at) {
  double v;
  asm volatile("ld.shared.f64 %0, [%1];" : "=d"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ double2 load_double2(SharedAddress at) {
  double2 v;
  asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(v.x), "=d"(v.y) : "r"(at));
  return v;
}
#else
typedef const unsigned char* SharedAddress;
__device__ __forceinline__ SharedAddress shared_address(const void* at) { return (SharedAddress)at; }
__device__ __forceinline__ double load_double(SharedAddress at) { return *(const double*)at; }
__device__ __forceinline__ double2 load_double2(SharedAddress at) { return *(const double2*)at; }
#endif

// Prefetches the line at an address into the first-level cache; no register waits for it.
__device__ __forceinline__ void prefetch(const void* at) {
#if PTX_ARCH
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
#else
  (void)at;
#endif
}

// Write past the first-level cache; a pair must be aligned to its size.
__device__ __forceinline__ void write_past(float* at, float v) {
#if PTX_ARCH
  asm volatile("st.global.L1::no_allocate.f32 [%0], %1;" ::"l"(at), "f"(v) : "memory");
#else
  *at = v;
#endif
}
__device__ __forceinline__ void write_past(double* at, double v) {
#if PTX_ARCH
  asm volatile("st.global.L1::no_allocate.f64 [%0], %1;" ::"l"(at), "d"(v) : "memory");
#else
  *at = v;
#endif
}
__device__ __forceinline__ void write_past(float* at, float v, float w) {
#if PTX_ARCH
  asm volatile("st.global.L1::no_allocate.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(v), "f"(w) : "memory");
#else
  at[0] = v, at[1] = w;
#endif
}
__device__ __forceinline__ void write_past(double* at, double v, double w) {
#if PTX_ARCH
  asm volatile("st.global.L1::no_allocate.v2.f64 [%0], {%1, %2};" ::"l"(at), "d"(v), "d"(w) : "memory");
#else
  at[0] = v, at[1] = w;
#endif
}

// ---------------------------------------------------------------- asynchronous copies from global to shared memory
//
// From sm_80 on a copy is asynchronous until `wait_copies`; on older GPUs it is done at once.

// 16 bytes, through the first-level cache.
template <class V>
__device__ __forceinline__ void copy16(V* shared, const V* global) {
  static_assert(sizeof(V) == 16, "copy16 takes 16 bytes");
#if HAS_ASYNC_COPIES
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
               "l"(global)
               : "memory");
#else
  *shared = *global;
#endif
}

// 16 bytes, past the first-level cache.
__device__ __forceinline__ void copy16_past(void* shared, const void* global) {
#if HAS_ASYNC_COPIES
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global)
               : "memory");
#else
  *reinterpret_cast<uint4*>(shared) = *reinterpret_cast<const uint4*>(global);
#endif
}

// 8 bytes, or zeros where they are not wanted.
template <class V>
__device__ __forceinline__ void copy8(V* shared, const V* global, bool wanted) {
  static_assert(sizeof(V) == 8, "copy8 takes 8 bytes");
#if HAS_ASYNC_COPIES
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
               "l"(global), "r"(wanted ? 8 : 0)
               : "memory");
#else
  const V none = {};
  *shared = wanted ? *global : none;
#endif
}

// End a group of copies.
__device__ __forceinline__ void commit_copies() {
#if HAS_ASYNC_COPIES
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most LEFT of the thread's groups are under way, the newest ones.
template <int LEFT>
__device__ __forceinline__ void wait_copies() {
#if HAS_ASYNC_COPIES
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// End a group of copies, and wait for all groups.
__device__ __forceinline__ void wait_all_copies() {
#if HAS_ASYNC_COPIES
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// ---------------------------------------------------------------- barriers

// Waits until THREADS threads of the block have come to the barrier of this number, also from different places in the code.
template <int NUMBER, int THREADS>
__device__ __forceinline__ void meet() {
#if PTX_ARCH
  asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
#else
  __syncthreads();
#endif
}

// ---------------------------------------------------------------- copies by the copy engine, and their barriers

#if HAS_COPY_ENGINE
__device__ __forceinline__ void barrier_init(unsigned at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(at), "r"(count) : "memory");
}
// Arrive at the barrier, which then also waits for this number of bytes.
__device__ __forceinline__ void barrier_expect(unsigned at, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned at, int phase) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1;\n@p bra done;\nbra "
      "again;\ndone:\n}" ::"r"(at),
      "r"(phase)
      : "memory");
}
__device__ __forceinline__ void copy_bulk(unsigned shared, const void* global, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
// Make the writes of the threads to shared memory visible to the copy engine.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

// ---------------------------------------------------------------- products of matrices, by a warp
//
// Lane 4 g + t has of a the rows g and g + 8 and column t of each four (of halves: columns 2 t and 2 t + 1 of each
// eight, in one word), of b the same rows and column g, and of c the rows g and g + 8, columns 2 t and 2 t + 1.

#if HAS_TALL_DOUBLE_MATRICES
// c += a b of float64: 16 x 4 by 4 x 8, 16 x 8 by 8 x 8, and 16 x 16 by 16 x 8.
__device__ __forceinline__ void multiply_doubles(double& c0, double& c1, double& c2, double& c3, double2 a, double b) {
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+d"(c0), "+d"(c1), "+d"(c2), "+d"(c3)
      : "d"(a.x), "d"(a.y), "d"(b));
}
__device__ __forceinline__ void multiply_doubles(double& c0, double& c1, double& c2, double& c3, double2 a, double2 a2,
                                                 double b, double b2) {
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+d"(c0), "+d"(c1), "+d"(c2), "+d"(c3)
      : "d"(a.x), "d"(a.y), "d"(a2.x), "d"(a2.y), "d"(b), "d"(b2));
}
__device__ __forceinline__ void multiply_doubles(double& c0, double& c1, double& c2, double& c3, const double2* a,
                                                 double b, double b2, double b3, double b4) {
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, "
      "{%12,%13,%14,%15}, {%0,%1,%2,%3};"
      : "+d"(c0), "+d"(c1), "+d"(c2), "+d"(c3)
      : "d"(a[0].x), "d"(a[0].y), "d"(a[1].x), "d"(a[1].y), "d"(a[2].x), "d"(a[2].y), "d"(a[3].x), "d"(a[3].y), "d"(b),
        "d"(b2), "d"(b3), "d"(b4));
}
#endif
#if HAS_DOUBLE_MATRICES
// c += a b of float64: 8 x 4 by 4 x 8, of which a lane has row g alone.
__device__ __forceinline__ void multiply_doubles(double& c0, double& c1, double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+d"(c0), "+d"(c1)
      : "d"(a), "d"(b));
}
#endif
#if HAS_HALF_MATRICES
// c += a b of halves, sums in float32: 16 x 8 by 8 x 8, and 16 x 16 by 16 x 8.
__device__ __forceinline__ void multiply_halves(float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1,
                                                unsigned b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ void multiply_halves(float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1,
                                                unsigned a2, unsigned a3, unsigned b, unsigned b2) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "r"(b2));
}
// d = a b + c: 16 x 16 by 16 x 8, halves, sums in float32.
__device__ __forceinline__ void multiply_halves(float* d, const unsigned* a, const unsigned* b, const float* c) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
#endif
#if HAS_SPARSE_MATRICES
// d += a b: 16 x 64 (two of four are 0, `meta` says which) by 64 x 8, bytes, sums of 32 bits.
__device__ __forceinline__ void multiply_sparse(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                                unsigned b2, unsigned b3, unsigned meta) {
  asm volatile(SPARSE_PRODUCT " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9,%10,%11},{%0,%1,%2,%3},%12,0x0;"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(b2), "r"(b3), "r"(meta));
}
#endif

}  // namespace ptx

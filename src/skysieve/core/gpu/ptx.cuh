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

// ---------------------------------------------------------------- functions of float32

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

// ---------------------------------------------------------------- caches

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

#if HAS_HALF_MATRICES
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

// Float64 matrix instructions, and asynchronous copies to shared memory.
#pragma once

// c += a b by a warp, with a 16 x 4 and b 4 x 8. Lane (g, t) = (lane / 4, lane % 4) has a at rows g and g + 8,
// column t; b at row t, column g; c at rows g and g + 8, columns 2 t and 2 t + 1. The two rows of a may be real and
// imaginary parts.
struct Tile {
  double re0, re1, im0, im1;
};  // row g, row g + 8
#if HAS_TALL_DOUBLE_MATRICES
__device__ __forceinline__ void multiply(Tile& c, double2 s, double b) {
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+d"(c.re0), "+d"(c.re1), "+d"(c.im0), "+d"(c.im1)
      : "d"(s.x), "d"(s.y), "d"(b));
}
#elif HAS_DOUBLE_MATRICES
__device__ __forceinline__ void multiply(Tile& c, double2 s, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+d"(c.re0), "+d"(c.re1)
      : "d"(s.x), "d"(b));
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+d"(c.im0), "+d"(c.im1)
      : "d"(s.y), "d"(b));
}
#else
// Not inlined: the loops around it are unrolled, and 300 copies of it take the compiler a minute.
__device__ __noinline__ Tile product(Tile c, double2 s, double b) {
  const int lane = threadIdx.x & 31, t = lane & 3;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const double x = __shfl_sync(FULL, s.x, (lane & 28) + k), y = __shfl_sync(FULL, s.y, (lane & 28) + k);
    const double u = __shfl_sync(FULL, b, 8 * t + k), v = __shfl_sync(FULL, b, 8 * t + 4 + k);
    c.re0 = fma(x, u, c.re0);
    c.re1 = fma(x, v, c.re1);
    c.im0 = fma(y, u, c.im0);
    c.im1 = fma(y, v, c.im1);
  }
  return c;
}
__device__ __forceinline__ void multiply(Tile& c, double2 s, double b) { c = product(c, s, b); }
#endif

// Starts a copy of 16 bytes to shared memory, which fetched() completes for the lane that started it; other lanes
// wait for that lane.
__device__ __forceinline__ void fetch(double2* to, const double2* from) {
#if HAS_ASYNC_COPIES
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from)
               : "memory");
#else
  *to = *from;
#endif
}
__device__ __forceinline__ void fetched() {
#if HAS_ASYNC_COPIES
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Starts a longer copy, by the copy engine if there is one. `done` counts the bytes that have arrived; a block
// waits for the n-th filling of a buffer by the parity of n.
#if HAS_COPY_ENGINE
#define ENGINE 1
__device__ __forceinline__ unsigned shared_at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void expect(unsigned long long* done, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(done)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void fetch(double2* to, const double2* from, int n, unsigned long long* done) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
      "l"(from), "r"(16 * n), "r"(shared_at(done))
      : "memory");
}
__device__ __forceinline__ void fetched(unsigned long long* done, int parity) {
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(
                   shared_at(done)),
               "r"(parity)
               : "memory");
}
#else
#define ENGINE 0
#endif

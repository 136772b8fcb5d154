// Copies from global to shared memory that a warp starts ahead of their use.
#pragma once

struct __align__(16) Vector { REAL v[16 / sizeof(REAL)]; };

// 16 bytes, ahead where the GPU can
DI void fetch(Vector* to, const Vector* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from)
               : "memory");
#else
  *to = *from;
#endif
}
DI void fetched() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT> DI void wait_for() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

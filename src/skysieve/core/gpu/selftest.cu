// Sum of n doubles: the self-test of a device, and the smallest example of a kernel file.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=block_sum regs<=40 smem<=64
// budget: f32 kernel=block_sum regs<=40 smem<=64
//
// Layout: blocks of 256 threads stride over the input; a warp adds by shuffles, the eight warps through
// shared memory, blocks through one atomic addition each.
// Cost: one read and one addition an element.  Limit: memory bandwidth.

#ifndef REAL
#define REAL double
#endif

extern "C" __global__ void __launch_bounds__(256) block_sum(const double* __restrict__ x, int n, REAL scale,
                                                            REAL* total) {
  __shared__ REAL part[8];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  REAL sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += scale * (REAL)x[i];
  for (int step = 16; step; step >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (lane == 0) part[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = lane < (blockDim.x >> 5) ? part[lane] : 0;
    for (int step = 4; step; step >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (lane == 0) atomicAdd(total, sum);
  }
}

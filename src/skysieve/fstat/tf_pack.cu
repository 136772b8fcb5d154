// What goes before and after the other kernels: planar atoms into the rows that they read; which templates have loud bins;
// the best of what the warps of the kernels of any grid and window have found.
//
// pack: a thread is one bin of one group of K templates; 28 bytes a bin and template in, 16 (K + 1) / K out, twice for
// exponential windows.  Limit: memory, far below the time of the maps.
// loud: a block is a template; its median comes from a histogram of floating-point exponents and three bits more.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// budget: f32 kernel=pack regs<=64
// budget: f32 kernel=loud regs<=64 smem<=8400
#include "tf_common.cuh"

// antenna[shared ? 0 : t][3][bins], data[t][4][bins]; away[t * away_step + c]: distance to the next bin with data.
extern "C" __global__ void __launch_bounds__(128)
pack(const T* antenna, const T* data, const int* away, int away_step, int bins, int pad, int shared, int together, T factor,
     Shape s, Quad* rows, Quad* fine) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, g = blockIdx.y, at = c - pad;
  const bool kept = c < s.stored, again = fine && c < 32 * s.step * s.fine;   // what lies past the data is zero
  if (!kept && !again) return;
  const bool some = at >= 0 && at < bins;
  const int t0 = min(g * together, s.templates - 1);
  Quad* to = rows + ((size_t)g * s.stored + c) * (together + 1);
  Quad* sorted = nullptr;
  if (again) {
    const int place = c / s.step, block = (g * s.step + c % s.step) * s.fine + (place >> 5);
    sorted = fine + ((size_t)block * (together + 1) * 32 + (place & 31));
  }
  const T* a = antenna + (size_t)(shared ? 0 : t0) * 3 * bins + at;
  Quad x = zero();
  if (some) { x.x = a[0]; x.y = a[bins]; x.z = a[2 * (size_t)bins]; }
  x.w = (T)(c < s.n ? away[(size_t)t0 * away_step + c] : 1 << 24);
  if (kept) to[0] = x;
  if (sorted) sorted[0] = x;
  for (int k = 0; k < together; k++) {           // a missing template is the last one again
    const T* d = data + (size_t)min(t0 + k, s.templates - 1) * 4 * bins + at;
    Quad y = zero();
    if (some) { y.x = factor * d[0]; y.y = factor * d[bins]; y.z = factor * d[2 * (size_t)bins]; y.w = factor * d[3 * (size_t)bins]; }
    if (kept) to[1 + k] = y;
    if (sorted) sorted[32 * (1 + k)] = y;
  }
}

#define KEYS 2048
#define KEY_BITS 20
__device__ __forceinline__ int key_of(T v) { return min(KEYS - 1, __float_as_int((float)v) >> KEY_BITS); }

// Power of a bin's data, and its antenna factors.
struct Power {
  const T* d;
  int bins;
  __device__ __forceinline__ T operator()(int i) const {
    const T x = d[i], y = d[bins + i], z = d[2 * (size_t)bins + i], w = d[3 * (size_t)bins + i];
    return fma(x, x, fma(y, y, fma(z, z, w * w)));
  }
};
struct Factor {
  const T* a;
  int bins;
  __device__ __forceinline__ T operator()(int i) const { return a[i] + a[bins + i]; }
};

// Whether v exceeds `ratio` times its median over the bins where it is positive, which is known to an eighth from below;
// by the whole block, the answer of a thread's own bins.
template <class V> __device__ __forceinline__ bool above_median(const V& v, int bins, T ratio, int* counts, float* median) {
  for (int i = threadIdx.x; i < KEYS; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < bins; i += blockDim.x) {
    const T p = v(i);
    if (p > (T)0) atomicAdd(counts + key_of(p), 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int mine = 0, upto, total;
    for (int i = 0; i < KEYS / 32; i++) mine += counts[lane * (KEYS / 32) + i];
    upto = mine;
    for (int k = 1; k < 32; k <<= 1) {
      const int other = __shfl_up_sync(FULL, upto, k);
      if (lane >= k) upto += other;
    }
    total = __shfl_sync(FULL, upto, 31);
    const int half = (total + 1) / 2;
    if (lane == 0) *median = 0;
    __syncwarp();
    if (total && upto >= half && upto - mine < half) {
      int key = lane * (KEYS / 32), below = upto - mine;
      while (below + counts[key] < half) below += counts[key++];
      *median = __int_as_float(key << KEY_BITS);
    }
  }
  __syncthreads();
  const T limit = ratio * (T)*median;
  bool found = false;
  for (int i = threadIdx.x; i < bins; i += blockDim.x) found |= v(i) > limit;
  __syncthreads();
  return found;
}

extern "C" __global__ void __launch_bounds__(1024)
loud(const T* antenna, const T* data, int bins, int shared, T ratio, int again, int* flags) {
  __shared__ int counts[KEYS];
  __shared__ float median;
  __shared__ int found;
  const int t = blockIdx.x;
  Power power;
  power.d = data + (size_t)t * 4 * bins; power.bins = bins;
  Factor factor;
  factor.a = antenna + (size_t)(shared ? 0 : t) * 3 * bins; factor.bins = bins;
  if (threadIdx.x == 0) found = 0;
  const bool data_loud = above_median(power, bins, ratio * ratio, counts, &median);
  const bool antenna_loud = above_median(factor, bins, ratio, counts, &median);
  if (data_loud || antenna_loud) found = 1;
  __syncthreads();
  if (threadIdx.x == 0) flags[t] = found | (again ? flags[t] : 0);
}

// A block joins the slots of a template.
extern "C" __global__ void __launch_bounds__(1024)
best_slot(Shape s, const Slot* slots, const int* flags, Answer* answers) {
  __shared__ Gather each[MOST_WARPS];
  __shared__ Gather all;
  const int t = blockIdx.x;
  gather(slots + (size_t)t * s.slots, s.slots, each, all);
  if (threadIdx.x == 0) {
    Answer a;
    a.top = (double)all.top; a.sum = all.sum; a.lost = all.lost; a.flag = flags ? (unsigned)flags[t] : 0u;
    a.cell = all.row == NOWHERE ? NOWHERE : all.row * (unsigned)s.columns + all.column;
    answers[t] = a;
  }
}

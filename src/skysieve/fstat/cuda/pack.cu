// Steps before and after the other kernels: atoms are packed into the rows that these read; templates that are too
// loud are found; the best cell of a template is selected from those of its warps (any grid, any window).
//
// pack: Layout: a thread for one bin of one group of K templates.
//   Cost: 28 bytes read and 16 (K + 1) / K written per bin and template, twice for exponential windows.
//   Limit: memory; far less time than the maps.
// loud: Layout: a block for a template.
//   Cost: 24 bytes per bin.
//   Limit: memory.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// budget: f32 kernel=pack regs<=64
// budget: f32 kernel=loud regs<=64 smem<=16
#include "common.cuh"

// antenna[shared ? 0 : t][3][bins], data[t][4][bins]; away[t * away_step + c]: distance to the next bin with data.
extern "C" __global__ void __launch_bounds__(128) pack(const T* antenna, const T* data, const int* away, int away_step,
                                                       int bins, int pad, int shared, int together, T factor, Shape s,
                                                       Quad* rows, Quad* fine) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, g = blockIdx.y, at = c - pad;
  const bool kept = c < s.stored, again = fine && c < 32 * s.step * s.fine;  // bins past the data are zero
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
  if (some) {
    x.x = a[0];
    x.y = a[bins];
    x.z = a[2 * (size_t)bins];
  }
  x.w = (T)(c < s.n ? away[(size_t)t0 * away_step + c] : 1 << 24);
  if (kept) to[0] = x;
  if (sorted) sorted[0] = x;
  for (int k = 0; k < together; k++) {  // a missing template repeats the last one
    const T* d = data + (size_t)min(t0 + k, s.templates - 1) * 4 * bins + at;
    Quad y = zero();
    if (some) {
      y.x = factor * d[0];
      y.y = factor * d[bins];
      y.z = factor * d[2 * (size_t)bins];
      y.w = factor * d[3 * (size_t)bins];
    }
    if (kept) to[1 + k] = y;
    if (sorted) sorted[32 * (1 + k)] = y;
  }
}

// Whether a template has numbers above `limit` in its data, or data where it has no weight.
extern "C" __global__ void __launch_bounds__(1024) loud(const T* antenna, const T* data, int bins, int shared, T limit,
                                                        int again, int* flags) {
  __shared__ int found;
  const int t = blockIdx.x;
  const T* const a = antenna + (size_t)(shared ? 0 : t) * 3 * bins;
  const T* const d = data + (size_t)t * 4 * bins;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  bool some = false;
  for (int i = threadIdx.x; i < bins; i += blockDim.x) {
    const T x = fmax(fabs(d[i]), fabs(d[bins + i])),
            y = fmax(fabs(d[2 * (size_t)bins + i]), fabs(d[3 * (size_t)bins + i]));
    const T most = fmax(x, y);
    some |= most > limit || (most > (T)0 && a[i] + a[bins + i] == (T)0);
  }
  if (some) found = 1;
  __syncthreads();
  if (threadIdx.x == 0) flags[t] = found | (again ? flags[t] : 0);
}

// A block merges the slots of a template.
extern "C" __global__ void __launch_bounds__(1024) best_slot(Shape s, const Slot* slots, const int* flags,
                                                             Answer* answers) {
  __shared__ Gather each[MOST_WARPS];
  __shared__ Gather all;
  const int t = blockIdx.x;
  gather(slots + (size_t)t * s.slots, s.slots, each, all);
  if (threadIdx.x == 0) {
    Answer a;
    a.top = (double)all.top;
    a.sum = all.sum;
    a.lost = all.lost;
    a.flag = flags ? (unsigned)flags[t] : 0u;
    a.cell = all.row == NOWHERE ? NOWHERE : all.row * (unsigned)s.columns + all.column;
    answers[t] = a;
  }
}

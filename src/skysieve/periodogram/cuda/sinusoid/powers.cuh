// Shared parts of sinusoid/powers.cu and sinusoid/powers_half.cu: the order of blocks, the copy of samples to
// shared memory, and the use of staged powers.
//
// A warp searches the 512 powers that it computed. The best peaks of every other 512 frequencies are kept in 32
// places for each object. The k-th highest of these is a floor, far higher than one that a warp finds among its
// own powers.
#pragma once

#define WARPS 4
#define THREADS (32 * WARPS)
#define SPAN 2048
#define REGION (SPAN / WARPS)  // powers of a warp
#define EACH (SPAN / THREADS)  // of a thread
#define BINS 32

struct Sampled {
  const void* samples;
  const long long* place;
  const void* taps;
  const int* origin;
  const int* shift;
  const int2* bands;
  const double* tp;
  const double2* wv;
  const int* offsets;
  const Info* info;
  const int* order;
  const int2* tasks;
  const double* f0;
  const double* df;
  const int* nf;
  const long long* start;
  T* power;
  Peaks peaks;
  unsigned* bins;
  Guard guard;
  double mean;
  int modes, member, members, group, blocks, grid_stride, norm, scaled, edges;
  // modes: samples of a band; members from `member` on, `group` of them at a time
};
// (Place in the order, stretch) of a block.
__device__ __forceinline__ int2 task_of(const Sampled& A) {
  if (A.tasks) return A.tasks[blockIdx.x];
  int2 v = member_and_stretch(blockIdx.x, A.group, A.blocks, A.members);
  v.x += A.member;
  return v;
}

// The floor under the k-th accepted peak (`known` so far), after a warp has found the best peak of its region: the
// k-th highest of the places.
__device__ __forceinline__ unsigned raised_by(const Sampled& A, int o, int block, unsigned best, unsigned known) {
  const int lane = threadIdx.x & 31, region = block * WARPS + (threadIdx.x >> 5);
  if (best <= known || region & 1 || 2 * (long long)A.info[o].exclusion > REGION)
    return known;  // the exclusion length is longer than a region
  unsigned* place = A.bins + ((size_t)o * BINS + lane);
  unsigned top = *(volatile unsigned*)place;
  if (lane == region / 2 % BINS && best > top) {
    top = best;
    atomicMax(place, best);
  }
  const unsigned raised = floor_from(A.peaks, o, top, 0);
  if (raised <= known) return known;
  if (!lane) atomicMax(A.peaks.floor + o, raised);
  return raised;
}

// No answer: NaN, where powers are written.
__device__ __forceinline__ void leave_none(const Sampled& A, int o, int block, int total) {
  if (A.power)
    for (int i = threadIdx.x; i < total; i += THREADS) A.power[A.start[o] + block * SPAN + i] = missing();
}

// Starts the copies of samples to shared memory, one after another: at 2f, then of w and of w y at f; lengths in
// units of 16 bytes. They are complete when `brought` returns. done: the barrier of the copies.
__device__ __forceinline__ void bring(double2* to, const double2* twice, int length2, const double2* w,
                                      const double2* y, int length, unsigned long long* done) {
  double2* to_w = to + length2;
  double2* to_y = to_w + length;
#if HAS_COPY_ENGINE
  if (threadIdx.x) return;
  const unsigned at = ptx::shared_address(done);
  ptx::barrier_init(at, 1);
  ptx::publish_shared();
  ptx::barrier_expect(at, 16 * (length2 + 2 * length));
  ptx::copy_bulk(ptx::shared_address(to), twice, 16 * length2, at);
  ptx::copy_bulk(ptx::shared_address(to_w), w, 16 * length, at);
  ptx::copy_bulk(ptx::shared_address(to_y), y, 16 * length, at);
#else
  for (int i = threadIdx.x; i < length2; i += THREADS) ptx::copy16_past(to + i, twice + i);
  for (int i = threadIdx.x; i < length; i += THREADS) {
    ptx::copy16_past(to_w + i, w + i);
    ptx::copy16_past(to_y + i, y + i);
  }
#endif
}
__device__ __forceinline__ void brought(unsigned long long* done) {
#if HAS_COPY_ENGINE
  __syncthreads();
  ptx::barrier_wait(ptx::shared_address(done), 0);
#else
  ptx::wait_all_copies();
  __syncthreads();
#endif
}

// Processes a block's staged powers before the search for peaks: suspicious powers (NaN) are computed again, if any
// is `odd`; powers are converted to the wanted normalisation and written; the first and last value are left for the
// neighbouring blocks. list: unused memory with room for all powers.
// Returns whether some powers have changed.
template <typename Staged>
__device__ __forceinline__ bool settle(const Sampled& A, int o, int n, int block, int total, bool odd, void* list,
                                       const Staged& staged) {
  __shared__ int many;
  const int base = block * SPAN;
  bool changed = false;
  if (__syncthreads_or(odd)) {
    const int lo = A.offsets[o], gi = o * A.grid_stride;
    mend(
        total, (int*)list, &many, A.tp + lo, A.wv + lo, n, A.f0[gi], A.df[gi], A.mean != 0, staged,
        [&](int i) { return base + i; }, [](int) { return true; });
    changed = true;
  }
  if (A.power) {
    T* out = A.power + (A.start[o] + base);
    const double scale = A.info[o].scale;
    for (int i = threadIdx.x; i < total; i += THREADS)
      out[i] = A.scaled ? normalise(staged(i), scale, A.norm) : staged(i);
  }
  leave_edges(A.peaks.edge + ((size_t)o * A.edges + block) * 2, total, staged);
  return changed;
}

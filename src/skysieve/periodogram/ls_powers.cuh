// Powers from samples (ls_powers.cu, ls_halves.cu): blocks, the window's shape, the search for peaks in staged powers.
//
// A warp searches the 512 powers that it made. Best peaks of every other 512 frequencies are kept in 32 places an object: the k-th
// highest of these is a floor, a far higher one than a warp finds among its own.
#pragma once

#define WARPS 4
#define THREADS (32 * WARPS)
#define SPAN 2048
#define REGION (SPAN / WARPS)         // powers of a warp
#define EACH (SPAN / THREADS)         // of a thread
#define BINS 32

// I0(sqrt(4 q)) = sum q^k / k!^2: all terms above 0; enough for arguments up to 36.
__device__ __forceinline__ double bessel(double q) {
  double s = 1;
#pragma unroll
  for (int k = 64; k > 0; k--) s = fma(s * q, 1.0 / (k * k), 1.0);
  return s;
}

struct Sampled {
  const void* samples; const long long* place; const void* taps; const int* origin; const int* shift; const int2* bands;
  const double* tp; const double2* wv; const int* offsets; const Info* info; const int* order; const int2* tasks;
  const double* f0; const double* df; const int* nf; const long long* start; T* power; Peaks peaks; unsigned* bins; Guard guard; double mean;
  int modes, member, members, group, blocks, grid_stride, norm, scaled, edges;
  // modes: samples of a band; members from `member` on, `group` of them at a time
};
// (Place in the order, stretch): the first stretches of a group of objects, then their second ones: floors are known soon.
__device__ __forceinline__ int2 task_of(const Sampled& A, int i) {
  if (A.tasks) return A.tasks[i];
  const int start = i / (A.group * A.blocks) * A.group, size = min(A.group, A.members - start), task = i - start * A.blocks;
  int2 v; v.y = task / size; v.x = A.member + start + task % size;
  return v;
}
__device__ __forceinline__ int high_of(double x) { return __double2hiint(x); }
__device__ __forceinline__ int high_of(float x) { return __float_as_int(x); }

// A floor under the k-th accepted peak: the k-th highest of the places, of which `mine` may rise to `best`. Peaks of places are of
// regions with another one between them.
__device__ __forceinline__ unsigned floor_of_places(unsigned* bins, int mine, unsigned best, int wanted) {
  const int lane = threadIdx.x & 31;
  unsigned top = *(volatile unsigned*)(bins + lane), v = 0;
  if (lane == mine && best > top) { top = best; atomicMax(bins + lane, best); }
  for (int r = 0; r < wanted; r++) {
    v = warp_max(top);
    if (!v) return 0;
    const unsigned who = __ballot_sync(FULL, top == v);
    if (lane == __ffs(who) - 1) top = 0;
  }
  return v;
}

// Of what may be peaks (bits of `found`, from number i0 on), those that are and reach the floor.
template <typename Get> __device__ __forceinline__ void give_found(const Peaks& k, int o, int base, int i0, int total, unsigned found, unsigned known, const Get& get) {
  const int lane = threadIdx.x & 31;
  unsigned keep = 0;
#pragma unroll 1
  for (; found; found &= found - 1) {
    const int bit = __ffs(found) - 1, i = i0 + bit;
    const T here = get(i);
    if (key_of(here) >= known && is_peak(i > 0 ? get(i - 1) : missing(), here, i + 1 < total ? get(i + 1) : missing())) keep |= 1u << bit;
  }
  if (!__any_sync(FULL, keep != 0)) return;
  const int mine = __popc(keep);
  int before = mine;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) { const int v = __shfl_up_sync(FULL, before, step); if (lane >= step) before += v; }
  unsigned slot = 0;
  if (lane == 31) slot = atomicAdd(k.count + o, (unsigned)before);
  slot = __shfl_sync(FULL, slot, 31) + before - mine;
#pragma unroll 1
  for (; keep; keep &= keep - 1) {
    const int i = i0 + __ffs(keep) - 1;
    put(k, o, slot++, base + i, i > 0 ? get(i - 1) : missing(), get(i), i + 1 < total ? get(i + 1) : missing());
  }
}

// The peaks of a warp's region of staged powers, a thread EACH from `mine` on: those that reach the floor.
template <typename Get> __device__ __forceinline__ void search(const Sampled& A, int o, int block, int base, int total, unsigned known, const T* mine, const Get& staged) {
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  // By their high halves: which may be peaks, not below a neighbour nor the floor; the best of those that surely are.
  const int i0 = tid * EACH, left = total - i0, least = known ? (int)known : -0x7fffffff, none = -0x7fffffff;
  unsigned found = 0;
  int best = 0;
    int before = tid > 0 ? high_at(mine - 2) : none, here = high_at(mine);
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int after = i + 1 < EACH ? high_at(mine + i + 1) : tid + 1 < THREADS ? high_at(mine + EACH + 1) : none, side = max(before, after);
    if (here >= side && here >= least) found |= 1u << i;
    if (here > side && (i > 0 || tid > 0) && (i + 1 < EACH || tid + 1 < THREADS)) best = max(best, here);
    before = here; here = after;
  }
  if (left <= EACH) {                   // the end: what lies beyond is no power
    found = left > 0 ? (found & ((1u << left) - 1)) | 1u << (left - 1) : 0;
    best = 0;
  }
  const unsigned highest = warp_max((unsigned)best);
  if (highest > known && 2 * (long long)A.info[o].apart <= REGION) {
    const int region = block * WARPS + warp;
    const unsigned raised = floor_of_places(A.bins + (size_t)o * BINS, region & 1 ? -1 : region / 2 % BINS, highest, A.peaks.wanted);
    if (raised > known) {
      if (!lane) atomicMax(A.peaks.floor + o, raised);
      known = raised;
    }
  }
  give_found(A.peaks, o, base, i0, total, found, known, staged);
}

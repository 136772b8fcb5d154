// From candidates to the k best peaks of each object, and candidates of powers that lie in device memory.
//
// ls_peaks: one block = one object. Candidates below the final floor fall away at once (of hundreds some tens are left); missing
// neighbours of those at the ends of a block's stretch come from the edge values. Then k rounds of: drop what is nearer than 1/T to
// the last accepted, take the highest (ties to the lower frequency). Where what is left is little, one warp does, whose lanes hold it
// all: limited by latency (11 us for 1,000 objects, at some 350 candidates each, on an H100).
// ls_candidates: one thread = one power, read with its neighbours; limited by memory (4 or 8 bytes a power).
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=ls_peaks regs<=64 smem<=5632
// budget: f32 kernel=ls_peaks regs<=64 smem<=3584
// budget: f64 kernel=ls_candidates regs<=64 smem<=0
#include "ls_common.cuh"
#include "ls_order.cuh"

#define FEW 256              // candidates that one warp takes
#define LANES_EACH (FEW / 32)
struct Best {
  const Info* info; const Limit* limit; const double* f0; const double* df; const int* nf; const double* frequencies; const int* order;
  Peaks peaks; int* index; double* frequency; double* best; int* flags;
  int grid_stride, edges, held;          // held: candidates that fit in shared memory
};

// The frequency and height of a peak: the vertex of a parabola, where it has both neighbours.
__device__ __forceinline__ void refine(const double* frequencies, double f0, double df, int nf, int j, T before, T here_, T after, double& f, double& best) {
  const double x0 = frequencies ? frequencies[j] : f0 + j * df, here = here_;
  f = x0; best = here;
  if (j > 0 && j + 1 < nf && isfinite((double)before) && isfinite((double)after)) {
    const double h0 = frequencies ? x0 - frequencies[j - 1] : df, h1 = frequencies ? frequencies[j + 1] - x0 : df;
    const double d0 = here - before, d1 = (double)after - here;
    const double bend = (d1 / h1 - d0 / h0) / (h0 + h1), slope = (d0 / h0 * h1 + d1 / h1 * h0) / (h0 + h1);
    if (bend < 0) {
      const double step = fmin(fmax(-slope / (2 * bend), -h0 / 2), h1 / 2);
      f = x0 + step; best = here + slope * step + bend * step * step;
    }
  }
}

extern "C" __global__ void __launch_bounds__(1024) ls_peaks(const Best A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ double top[32]; __shared__ int where[32], slot[32]; __shared__ int chosen, kept;
  __shared__ T sides[2][FEW];
  const int o = A.order[blockIdx.x], tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int k = A.peaks.wanted;
  // All that follows from the object alone is asked for at once, with the first candidates, of which some may not be any.
  Candidate* list = A.peaks.list + (size_t)o * A.peaks.cap;
  T here[4];
#pragma unroll
  for (int e = 0; e < 4; e++) here[e] = list[min(tid + e * (int)blockDim.x, A.peaks.cap - 1)].here;
  const Info info = A.info[o];
  const int gi = o * A.grid_stride, nf = A.nf[gi], stretch = (int)A.limit[o].stretch;
  const unsigned counted = A.peaks.count[o], lowest = A.peaks.floor[o];
  const double f0 = A.frequencies ? 0 : A.f0[gi], df = A.frequencies ? 0 : A.df[gi];
  const unsigned count = info.status ? 0 : counted, floor = info.status ? 0 : lowest;
  const int n = (int)min(count, (unsigned)A.peaks.cap);
  if (!tid) { A.flags[o] = count > (unsigned)A.peaks.cap ? 1 : 0; kept = 0; }
  const int room = A.held * (int)(sizeof(T) + 4) / (int)(sizeof(T) + 8);       // memory is for held heights and numbers
  T* heights = (T*)raw; int* numbers = (int*)(heights + room); int* places = numbers + room;
  auto complete = [&](Candidate& c) {  // with the neighbours that other blocks had
    if (!stretch) return;
    const T* edge = A.peaks.edge + ((size_t)o * A.edges + c.index / stretch) * 2;
    const int place = c.index % stretch;
    if (place == 0 && c.index > 0) c.before = edge[-1];
    if (place == stretch - 1 && c.index + 1 < nf) c.after = edge[2];
  };
  auto whole = [&](int i) { Candidate c = list[i]; complete(c); return c; };
  __syncthreads();
#pragma unroll 1
  for (int i0 = 0; i0 < n; i0 += 4 * blockDim.x) {
    unsigned which = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = i0 + tid + e * blockDim.x;
      if (i0) here[e] = list[min(i, n - 1)].here;
      if (i < n && key_of(here[e]) >= floor) which |= 1u << e;
    }
#pragma unroll 1
    for (; which; which &= which - 1) {
      const int i = i0 + tid + (__ffs(which) - 1) * blockDim.x;
      const Candidate c = whole(i);
      if (!is_peak(c.before, c.here, c.after)) continue;
      const int s = atomicAdd(&kept, 1);
      if (s < room) { heights[s] = c.here; numbers[s] = c.index; places[s] = i; }
      if (s < FEW) { sides[0][s] = c.before; sides[1][s] = c.after; }
    }
  }
  __syncthreads();
  const bool held = kept <= room;
  if (held && kept <= FEW && k <= 32) {       // one warp, whose lanes hold them
    if (warp) return;
    const int m = kept;
    double height[LANES_EACH];
    int number[LANES_EACH];
#pragma unroll
    for (int e = 0; e < LANES_EACH; e++) {
      const int i = lane + 32 * e;
      number[e] = i < m ? numbers[i] : -1;
      height[e] = i < m ? (double)heights[i] + 0.0 : 0;      // no -0
    }
    int mine = -1, last = -1;          // where this lane's peak is
    for (int r = 0; r < k; r++) {
      double p = 0; int j = -1, s = -1;
#pragma unroll
      for (int e = 0; e < LANES_EACH; e++) {
        if (32 * e >= m) break;
        if (number[e] >= 0) {
          bool near = false;
          if (last >= 0) near = A.frequencies ? fabs(A.frequencies[number[e]] - A.frequencies[last]) * info.span < 1 - 1e-9 : abs(number[e] - last) < info.apart;
          if (near) number[e] = -1;
          else if (j < 0 || height[e] > p || (height[e] == p && number[e] < j)) { p = height[e]; j = number[e]; s = lane + 32 * e; }
        }
      }
      const Key key = j < 0 ? 0 : key_from(p), best = warp_greatest(key);
      if (!best) break;
      last = (int)~warp_max(key == best ? ~(unsigned)j : 0);
      const unsigned who = __ballot_sync(FULL, key == best && j == last);
      s = __shfl_sync(FULL, s, __ffs(who) - 1);
      if (lane == r) mine = s;
    }
    if (lane < k) {
      const size_t out = (size_t)o * k + lane;
      double f = missing64(), best = missing64();
      if (mine >= 0) refine(A.frequencies, f0, df, nf, numbers[mine], sides[0][mine], heights[mine], sides[1][mine], f, best);
      A.index[out] = mine >= 0 ? numbers[mine] : -1; A.frequency[out] = f; A.best[out] = best;
    }
    return;
  }
  const int m = held ? kept : n;
  if (!held) {                         // they do not fit: marked in the list itself
    for (int i = tid; i < n; i += blockDim.x) {
      const Candidate c = whole(i);
      if (key_of(c.here) < floor || !is_peak(c.before, c.here, c.after)) list[i].here = missing();
    }
    __syncthreads();
  }
  const int step = blockDim.x;
  int last = -1;
  for (int r = 0; r < k; r++) {
    double p = 0; int j = -1, s = -1;
    for (int i = tid; i < m; i += step) {
      const T here = held ? heights[i] : list[i].here;
      if (here != here) continue;
      const int index = held ? numbers[i] : list[i].index;
      if (last >= 0) {
        bool near;
        if (A.frequencies) near = fabs(A.frequencies[index] - A.frequencies[last]) * info.span < 1 - 1e-9;
        else near = abs(index - last) < info.apart;
        if (near) { if (held) heights[i] = missing(); else list[i].here = missing(); continue; }
      }
      if (j < 0 || here > p || (here == p && index < j)) { p = here; j = index; s = held ? places[i] : i; }
    }
    for (int k2 = 16; k2; k2 >>= 1) {
      const double q = __shfl_xor_sync(FULL, p, k2);
      const int jj = __shfl_xor_sync(FULL, j, k2), ss = __shfl_xor_sync(FULL, s, k2);
      if (jj >= 0 && (j < 0 || q > p || (q == p && jj < j))) { p = q; j = jj; s = ss; }
    }
    if (!lane) { top[warp] = p; where[warp] = j; slot[warp] = s; }
    __syncthreads();
    if (!tid) {
      for (int w = 1; w < step >> 5; w++)
        if (where[w] >= 0 && (j < 0 || top[w] > p || (top[w] == p && where[w] < j))) { p = top[w]; j = where[w]; s = slot[w]; }
      chosen = j;
      const size_t out = (size_t)o * k + r;
      A.index[out] = j; A.frequency[out] = s; A.best[out] = p;      // frequency: the slot, until all are found
    }
    __syncthreads();
    last = chosen;
    if (last < 0) {
      if (!tid) for (int q = r + 1; q < k; q++) { A.index[(size_t)o * k + q] = -1; A.frequency[(size_t)o * k + q] = -1; }
      break;
    }
  }
  __syncthreads();
  for (int r = tid; r < k; r += step) {
    const size_t out = (size_t)o * k + r;
    const int j = A.index[out], s = (int)A.frequency[out];
    double f = missing64(), best = missing64();
    if (j >= 0) {                      // its height is no longer in the list, where it was marked as near itself
      const Candidate c = whole(s);
      refine(A.frequencies, f0, df, nf, j, c.before, (T)A.best[out], c.after, f, best);
    }
    A.frequency[out] = f; A.best[out] = best;
  }
}

// Candidates of powers in device memory: block = (object, 256 powers).
struct Search { const T* power; const long long* start; const Info* info; const int* nf; const int* order; Peaks peaks; int blocks, grid_stride; };
extern "C" __global__ void __launch_bounds__(256) ls_candidates(const Search A) {
  const int o = A.order[blockIdx.x / A.blocks], nf = A.nf[o * A.grid_stride];
  if (A.info[o].status) return;
  const T* p = A.power + A.start[o];
  const long long j = (long long)(blockIdx.x % A.blocks) * 256 + threadIdx.x;
  if (j >= nf) return;
  const T x = j ? p[j - 1] : missing(), y = p[j], z = j + 1 < nf ? p[j + 1] : missing();
  if (is_peak(x, y, z)) emit(A.peaks, o, j, x, y, z);
}

// From candidates to the k best peaks of each object, and candidates of powers that lie in device memory.
//
// ls_peaks: one block = one object. Candidates below the final floor fall away at once (of hundreds some tens are left); missing
// neighbours of those at the ends of a block's stretch come from the edge values. Then k rounds of: drop what is nearer than 1/T to
// the last accepted, take the highest (ties to the lower frequency), by one warp where what is left is little: limited by latency.
// ls_candidates: one thread = one power, read with its neighbours; limited by memory (4 or 8 bytes a power).
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=ls_peaks regs<=64 smem<=1024
// budget: f64 kernel=ls_candidates regs<=64 smem<=0
#include "ls_common.cuh"

#define FEW 256              // candidates that one warp takes

struct Best {
  const Info* info; const Limit* limit; const double* f0; const double* df; const int* nf; const double* frequencies; const int* order;
  Peaks peaks; int* index; double* frequency; double* best; int* flags;
  int grid_stride, edges, held;          // held: candidates that fit in shared memory
};

extern "C" __global__ void __launch_bounds__(1024) ls_peaks(const Best A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ double top[32]; __shared__ int where[32], slot[32]; __shared__ int chosen, kept;
  const int o = A.order[blockIdx.x], tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int k = A.peaks.wanted;
  const Info info = A.info[o];
  const int gi = o * A.grid_stride, nf = A.nf[gi];
  const unsigned count = info.status ? 0 : A.peaks.count[o];
  const int n = (int)min(count, (unsigned)A.peaks.cap);
  if (!tid) { A.flags[o] = count > (unsigned)A.peaks.cap ? 1 : 0; kept = 0; }
  const int stretch = (int)A.limit[o].stretch;
  Candidate* list = A.peaks.list + (size_t)o * A.peaks.cap;
  const unsigned floor = info.status ? 0 : A.peaks.floor[o];
  const int room = A.held * (int)(sizeof(T) + 4) / (int)(sizeof(T) + 8);       // memory is for held heights and numbers
  T* heights = (T*)raw; int* numbers = (int*)(heights + room); int* places = numbers + room;
  auto whole = [&](int i) {            // with the neighbours that other blocks had
    Candidate c = list[i];
    if (stretch) {
      const T* edge = A.peaks.edge + ((size_t)o * A.edges + c.index / stretch) * 2;
      const int place = c.index % stretch;
      if (place == 0 && c.index > 0) c.before = edge[-1];
      if (place == stretch - 1 && c.index + 1 < nf) c.after = edge[2];
    }
    return c;
  };
  __syncthreads();
  for (int i = tid; i < n; i += blockDim.x) {
    if (key_of(list[i].here) < floor) continue;
    const Candidate c = whole(i);
    if (!is_peak(c.before, c.here, c.after)) continue;
    const int s = atomicAdd(&kept, 1);
    if (s < room) { heights[s] = c.here; numbers[s] = c.index; places[s] = i; }
  }
  __syncthreads();
  const bool held = kept <= room;
  const int m = held ? kept : n;
  if (!held) {                         // they do not fit: marked in the list itself
    for (int i = tid; i < n; i += blockDim.x) {
      const Candidate c = whole(i);
      if (key_of(c.here) < floor || !is_peak(c.before, c.here, c.after)) list[i].here = missing();
    }
    __syncthreads();
  }
  const bool few = m <= FEW;
  if (few && warp) return;             // nobody waits for the others from here on
  const int step = few ? 32 : blockDim.x;
  auto join = [&] { if (few) __syncwarp(); else __syncthreads(); };
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
    join();
    if (!tid) {
      for (int w = 1; w < step >> 5; w++)
        if (where[w] >= 0 && (j < 0 || top[w] > p || (top[w] == p && where[w] < j))) { p = top[w]; j = where[w]; s = slot[w]; }
      chosen = j;
      const size_t out = (size_t)o * k + r;
      A.index[out] = j; A.frequency[out] = s; A.best[out] = p;      // frequency: the slot, until all are found
    }
    join();
    last = chosen;
    if (last < 0) {
      if (!tid) for (int q = r + 1; q < k; q++) { A.index[(size_t)o * k + q] = -1; A.frequency[(size_t)o * k + q] = -1; }
      break;
    }
  }
  join();
  for (int r = tid; r < k; r += step) {
    const size_t out = (size_t)o * k + r;
    const int j = A.index[out], s = (int)A.frequency[out];
    double f = missing64(), best = missing64();
    if (j >= 0) {
      const Candidate c = whole(s);
      const double x0 = A.frequencies ? A.frequencies[j] : A.f0[gi] + j * A.df[gi], here = A.best[out];
      f = x0; best = here;
      if (j > 0 && j + 1 < nf && isfinite((double)c.before) && isfinite((double)c.after)) {     // the vertex of a parabola
        const double h0 = A.frequencies ? x0 - A.frequencies[j - 1] : A.df[gi], h1 = A.frequencies ? A.frequencies[j + 1] - x0 : A.df[gi];
        const double d0 = here - c.before, d1 = (double)c.after - here;
        const double bend = (d1 / h1 - d0 / h0) / (h0 + h1), slope = (d0 / h0 * h1 + d1 / h1 * h0) / (h0 + h1);
        if (bend < 0) {
          const double step = fmin(fmax(-slope / (2 * bend), -h0 / 2), h1 / 2);
          f = x0 + step; best = here + slope * step + bend * step * step;
        }
      }
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

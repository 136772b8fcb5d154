// From candidates to the k best peaks of each object, and candidates among powers in device memory.
//
// ls_peaks: one block for each object. Candidates below the final floor are dropped at once (of hundreds some
// tens remain). A candidate at the end of a block's stretch gets its missing neighbour from the edge values.
// Then follow k rounds: pass over the candidates nearer than 1/T to the last accepted peak, then accept the
// highest of the others (of equal ones, that of the lower frequency). Further peaks, beside which the highest
// maximum of all may lie, are the highest of all that were not accepted. They are taken all at once, since their
// order does not matter. If few candidates remain, one warp does all of this, with the candidates in its lanes. The kernel writes the object's Info and flags to host
// memory itself: they are few bytes, and a copy after the kernel would take longer. Limit: latency (11 us for
// 1,000 objects with about 350 candidates each, on an H100). The peaks are refined in peaks/refine.cu.
// ls_candidates: one thread reads one power with its neighbours. Limit: memory (4 or 8 bytes a power).
// ls_scale: one thread converts one power from the standard normalisation to another. Limit: memory (twice 4 or
// 8 bytes a power).
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=ls_peaks regs<=64 smem<=10336
// budget: f64 kernel=ls_peaks regs<=64 smem<=10336 spills<=4 arch=80
// budget: f32 kernel=ls_peaks regs<=64 smem<=8000
// budget: f64 kernel=ls_candidates regs<=64 smem<=0
// budget: f64 kernel=ls_scale regs<=64 smem<=0
#include "common.cuh"
#include "fourier/order.cuh"
#include "peaks/answers.cuh"

#define FEW 192  // candidates that one warp takes
#define LANES_EACH (FEW / 32)
#define GOOD 512                // further candidates that a block orders at once
#define BINS 256                // of their heights
#define GONE (-2147483647 - 1)  // index of a candidate that does not count any more
typedef decltype(rank_of(T())) Rank;
// host_info, flags: in host memory. index, here: samples and powers of the peaks, up to `tries` of an object
// (`fewer` if it has more than `few` points); vertex: that of the parabola through the peak and its neighbours, in
// samples; found: number of peaks; first: number of those that are at least 1/T from one another. left: peaks of an object that are to be refined; answers: written here if none
// is refined; tried, list: number of all peaks to be refined, and their slots. held: candidates that fit in shared
// memory.
struct Best {
  const Info* info;
  const Limit* limit;
  const int* nf;
  const double* frequencies;
  Peaks peaks;
  Info* host_info;
  int* flags;
  int* index;
  double* here;
  double* vertex;
  int* found;
  int* first;
  unsigned* left;
  Answers answers;
  unsigned* tried;
  int* list;
  int tries, fewer, few, grid_stride, edges, held;
};

// The lane with the highest rank, or of several the one with the lowest frequency index; -1 if no lane has a rank.
template <typename Rank>
__device__ __forceinline__ int winner(Rank rank, int number) {
  const Rank top = warp_greatest(rank);
  if (!top) return -1;
  unsigned who = __ballot_sync(FULL, rank == top);
  if (who & (who - 1)) {
    const unsigned least = warp_max(rank == top ? ~(unsigned)number : 0);
    who = __ballot_sync(FULL, rank == top && ~(unsigned)number == least);
  }
  return __ffs(who) - 1;
}

extern "C" __global__ void __launch_bounds__(1024) ls_peaks(const Best A) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ Rank tops[2][32];
  __shared__ int where[2][32], slots[2][32], kept, good, lowest_bin;
  __shared__ T good_heights[GOOD];
  __shared__ int good_numbers[GOOD], good_slots[GOOD], bins[BINS];
  const int o = blockIdx.x, tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, step = blockDim.x, k = A.peaks.wanted;
  // All values that depend on the object alone are loaded at once, together with the first four slots of each
  // thread, of which some may be unused.
  Candidate* list = A.peaks.list + (size_t)o * A.peaks.cap;
  int number[4];
  T here[4];  // of a thread's candidates, four at a time
  auto fetch = [&](int i) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const Candidate* c = list + min(i + e * step, A.peaks.cap - 1);
      number[e] = c->index;
      here[e] = c->here;
    }
  };
  fetch(tid);
  const Info info = A.info[o];
  const int gi = o * A.grid_stride, nf = A.nf[gi], stretch = (int)A.limit[o].stretch;
  const int tries = info.n <= A.few ? A.tries : A.fewer;
  const unsigned counted = A.peaks.count[o], lowest = A.peaks.floor[o];
  const unsigned count = info.status ? 0 : counted, floor = info.status ? 0 : lowest;
  const int n = (int)min(count, (unsigned)A.peaks.cap);
  if (tid < (int)(sizeof(Info) / 4)) ((int*)(A.host_info + o))[tid] = ((const int*)(A.info + o))[tid];
  if (!tid) {
    A.flags[o] = count > (unsigned)A.peaks.cap ? 1 : 0;
    kept = 0;
  }
  const int room = A.held * (int)(sizeof(T) + 4) / (int)(sizeof(T) + 8);  // `held` counts heights and indices alone
  T* heights = (T*)raw;
  int* numbers = (int*)(heights + room);
  int* places = numbers + room;
  // Reads the neighbours of a candidate at the end of a stretch, which other blocks computed.
  auto complete = [&](int index, T& before, T& after) {
    if (!stretch) return;
    const int part = (unsigned)index / (unsigned)stretch, place = index - part * stretch;
    const T* edge = A.peaks.edge + ((size_t)o * A.edges + part) * 2;
    if (place == 0 && index > 0) before = edge[-1];
    if (place == stretch - 1 && index + 1 < nf) after = edge[2];
  };
  // Whether a candidate, which is a peak among the neighbours in its own block, reaches the floor and is a peak.
  auto fits = [&](int index, T here) {
    T before = missing(), after = missing();
    if (key_of(here) < floor) return false;
    complete(index, before, after);
    return is_peak(before, here, after);
  };
  auto near = [&](int i, int j) {
    return A.frequencies ? fabs(A.frequencies[i] - A.frequencies[j]) * info.span < 1 - 1e-9
                         : abs(i - j) < info.exclusion;
  };
  __syncthreads();
  // Candidates that pass go to shared memory. If there is no room for all of them, a second pass marks those that
  // fail in the list itself, by the index GONE.
  bool held = false;
#pragma unroll 1
  for (int pass = 0; pass < 2 && !held; pass++) {
#pragma unroll 1
    for (int i0 = tid; i0 < n; i0 += 4 * step) {
      if (i0 >= step || pass) fetch(i0);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int i = i0 + e * step;
        if (i >= n) break;
        const bool good = fits(number[e], here[e]);
        if (pass) {
          if (!good) list[i].index = GONE;
          continue;
        }
        if (!good) continue;
        const int s = atomicAdd(&kept, 1);
        if (s < room) {
          heights[s] = here[e];
          numbers[s] = number[e];
          places[s] = i;
        }
      }
    }
    __syncthreads();
    held = kept <= room;
  }
  const bool few = held && kept <= FEW;
  int last = -1, found = 0, first = 0;
  double least = 0;         // least power of further peaks
  int* picks = good_slots;  // if one warp does all: places of its peaks in the list
  if (few) {                // one warp, whose lanes hold them
    if (warp) return;
    const int m = kept;
    Rank rank[LANES_EACH];  // 0: none, or dropped
    int own[LANES_EACH];
#pragma unroll
    for (int e = 0; e < LANES_EACH; e++) {
      const int i = lane + 32 * e;
      own[e] = i < m ? numbers[i] : 0;
      rank[e] = i < m ? rank_of(heights[i]) : 0;
    }
    __syncwarp();
#pragma unroll 1
    for (; found < k; found++) {
      Rank best = 0;
      int j = 0, s = 0;
#pragma unroll
      for (int e = 0; e < LANES_EACH; e++) {
        if (32 * e >= m) break;
        if (last >= 0 && rank[e] && near(own[e], last)) rank[e] = 0;
        if (rank[e] > best || (rank[e] == best && own[e] < j)) {
          best = rank[e];
          j = own[e];
          s = lane + 32 * e;
        }
      }
      const int who = winner(best, j);
      if (who < 0) break;
      if (!found) {
        least = A.peaks.share[o] * heights[__shfl_sync(FULL, s, who)];
        __syncwarp();  // the lane that holds it may drop it in the next turn
      }
      last = __shfl_sync(FULL, j, who);
      if (lane == who) {
        picks[found] = places[s];
        heights[s] = missing();
      }
    }
    first = found;
    if (m > first) {  // further peaks that are high enough: all of them, if there is room
      int many = 0;
      __syncwarp();
#pragma unroll 1
      for (int i = lane; i - lane < m; i += 32) many += __popc(__ballot_sync(FULL, i < m && heights[i] >= least));
      if (many <= tries - first) {
#pragma unroll 1
        for (int i = lane; i - lane < m && many; i += 32) {
          const bool mine = i < m && heights[i] >= least;
          const unsigned all = __ballot_sync(FULL, mine);
          if (mine) picks[found + __popc(all & ((1u << lane) - 1))] = places[i];
          found += __popc(all);
        }
      } else {  // only the highest of these: the place of each is the number of higher ones
        __syncwarp();
#pragma unroll 1
        for (int i = lane; i < m; i += 32) {
          const T mine = heights[i];
          if (!(mine >= least)) continue;
          int higher = 0;
#pragma unroll 4
          for (int j = 0; j < m; j++) {
            const T other = heights[j];
            higher += (int)(other > mine) | ((int)(other == mine) & (int)(numbers[j] < numbers[i]));
          }
          if (higher < tries - first) picks[first + higher] = places[i];
        }
        found = tries;
      }
    }
    __syncwarp();
  } else {  // the whole block: peaks, and candidates near one, get the complement of their index
    const int m = held ? kept : n, warps = step >> 5;
    bool none = false;  // whether all candidates left are near a peak
    first = -1;         // while candidates are compared for their distance from peaks
    while (found < tries) {
      if (first < 0 && (found == k || none)) {  // further peaks at once, if there is room for all that are high enough
        first = found;
        // Candidates near a peak count again.
#pragma unroll 1
        for (int i = tid; i < m; i += step) {
          int& index = held ? numbers[i] : list[i].index;
          if (index == last) {
            if (held) index = GONE;
          } else if (index < 0 && index != GONE)
            index = ~index;
        }
        if (!held) {
          __syncthreads();
#pragma unroll 1
          for (int r = tid; r < first; r += step) {
            int& index = list[list[r].pick].index;
            index = ~index;
          }
        }
        last = -1;
        if (!tid) good = 0;
        for (int i = tid; i < BINS; i += step) bins[i] = 0;
        __syncthreads();
        const float bins_each = BINS / (float)fmax(1 - least, 1e-6);  // of powers from `least` to 1
        auto bin_of = [&](double height) { return min((int)((float)(height - least) * bins_each), BINS - 1); };
        // The first pass makes a histogram of heights, which gives the lowest bin that matters. The second
        // pass collects the candidates in this bin and in higher ones.
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
          const int lowest = pass ? lowest_bin : 0;
#pragma unroll 1
          for (int i0 = tid; i0 < m; i0 += 4 * step) {
            if (!held) fetch(i0);
#pragma unroll
            for (int e = 0; e < 4; e++) {
              const int i = i0 + e * step;
              if (i >= m) break;
              if (held) {
                number[e] = numbers[i];
                here[e] = heights[i];
              }
              if (number[e] < 0 || !(here[e] >= least)) continue;
              const int bin = bin_of(here[e]);
              if (!pass) {
                atomicAdd(bins + bin, 1);
                continue;
              }
              if (bin < lowest) continue;
              const int s = atomicAdd(&good, 1);
              if (s < GOOD) {
                good_heights[s] = here[e];
                good_numbers[s] = number[e];
                good_slots[s] = held ? places[i] : i;
              }
            }
          }
          __syncthreads();
          if (pass) break;
          if (warp == 0) {  // a lane adds BINS / 32 bins, from the highest on
            int own = 0;
            for (int b = 0; b < BINS / 32; b++) own += bins[BINS - 1 - lane * (BINS / 32) - b];
            int before = own;  // with all higher ones
            for (int d = 1; d < 32; d <<= 1) {
              const int other = __shfl_up_sync(FULL, before, d);
              if (lane >= d) before += other;
            }
            const unsigned enough = __ballot_sync(FULL, before >= tries - first);
            if (!lane && !enough) lowest_bin = 0;
            if (enough && lane == __ffs(enough) - 1) {
              int b = BINS - lane * (BINS / 32), higher = before - own;
              while (higher < tries - first) higher += bins[--b];
              lowest_bin = b;
            }
          }
          __syncthreads();
        }
        if (good <= GOOD) {
          for (int i = tid; i < good; i += step) {
            int higher = 0;
            for (int j = 0; j < good; j++)
              higher += good_heights[j] > good_heights[i] ||
                        (good_heights[j] == good_heights[i] && good_numbers[j] < good_numbers[i]);
            if (first + higher < tries) list[first + higher].pick = good_slots[i];
          }
          found = min(tries, first + good);
          break;
        }
      }
      Rank best = 0;
      int j = 0, s = 0;
      for (int i0 = tid; i0 < m; i0 += 4 * step) {
        if (!held) fetch(i0);
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int i = i0 + e * step;
          if (i >= m) break;
          if (held) {
            number[e] = numbers[i];
            here[e] = heights[i];
          }
          const int index = number[e];
          if (index < 0) continue;
          if (last >= 0 && (first < 0 ? near(index, last) : index == last)) {
            if (held)
              numbers[i] = index == last ? GONE : ~index;
            else
              list[i].index = ~index;
            continue;
          }
          const Rank rank = rank_of(here[e]);
          if (rank > best || (rank == best && index < j)) {
            best = rank;
            j = index;
            s = held ? places[i] : i;
          }
        }
      }
      const int turn = found & 1;  // two buffers alternate, so that no warp overwrites values that another still reads
      if (lane == max(winner(best, j), 0)) {
        tops[turn][warp] = best;
        where[turn][warp] = j;
        slots[turn][warp] = s;
      }
      __syncthreads();
      const int w = min(lane, warps - 1), who = winner(tops[turn][w], where[turn][w]);
      if (who < 0) {
        if (first >= 0) break;
        none = true;
        continue;
      }
      const double height = list[slots[turn][who]].here;
      if (!found) least = A.peaks.share[o] * height;
      if (first >= 0 && height < least) break;
      last = where[turn][who];
      if (!tid) list[found].pick = slots[turn][who];
      found++;
    }
    __syncthreads();
  }
  __shared__ unsigned at;
  if (!tid) {
    A.found[o] = found;
    A.first[o] = first;
    A.left[o] = found;
    if (found) at = atomicAdd(A.tried, (unsigned)found);
  }
  if (few)
    __syncwarp();
  else
    __syncthreads();
  if (!found)
    for (int r = tid; r < k; r += few ? 32 : step) no_answer(A.answers, (size_t)o * k + r);
  for (int r = tid; r < found; r += few ? 32 : step) {
    const size_t out = (size_t)o * A.tries + r;
    const Candidate& c = list[few ? picks[r] : list[r].pick];
    const int index = c.index < 0 ? ~c.index : c.index;
    T before = c.before, after = c.after;
    complete(index, before, after);
    const double up = (double)c.here - (double)before, down = (double)c.here - (double)after,
                 by = up + down > 0 ? 0.5 * (up - down) / (up + down) : 0;
    A.index[out] = index;
    A.here[out] = c.here;
    A.vertex[out] = fmin(fmax(by, -0.5), 0.5);
    A.list[at + r] = (int)out;
  }
}

// Candidates of powers in device memory: block = (object, 256 powers).
struct Search {
  const T* power;
  const long long* start;
  const Info* info;
  const int* nf;
  const int* order;
  Peaks peaks;
  int blocks, grid_stride;
};
extern "C" __global__ void __launch_bounds__(256) ls_candidates(const Search A) {
  const int o = A.order[blockIdx.x / A.blocks], nf = A.nf[o * A.grid_stride];
  if (A.info[o].status) return;
  const T* p = A.power + A.start[o];
  const long long j = (long long)(blockIdx.x % A.blocks) * 256 + threadIdx.x;
  if (j >= nf) return;
  const T x = j ? p[j - 1] : missing(), y = p[j], z = j + 1 < nf ? p[j + 1] : missing();
  if (is_peak(x, y, z)) emit(A.peaks, o, j, x, y, z);
}

// Powers in device memory as they are written: block = (object, 256 powers).
struct Scale {
  T* power;
  const long long* start;
  const Info* info;
  const int* nf;
  const int* order;
  int blocks, grid_stride, norm;
};
extern "C" __global__ void __launch_bounds__(256) ls_scale(const Scale A) {
  const int o = A.order[blockIdx.x / A.blocks];
  const long long j = (long long)(blockIdx.x % A.blocks) * 256 + threadIdx.x;
  if (A.info[o].status || j >= A.nf[o * A.grid_stride]) return;
  T& p = A.power[A.start[o] + j];
  p = normalise(p, A.info[o].scale, A.norm);
}

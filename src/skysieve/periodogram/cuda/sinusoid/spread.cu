// Cells of long series, spread once for each pair of bands and shared by all blocks that need them.
//
// Layout: one block computes 16 of the 256 cells at f, or of the 512 at 2f, of one pair of bands of one object.
// A half warp is a band and a lane a cell. Cell c receives the points whose first tap lies in (c - 16, c]. They
// are found by a 33-way search, shared by 8 warps, and summed in a fixed order (the same answer every time).
// ls_comb itself spreads shorter series, in its own order; the choice between the two must therefore follow
// from the number of points alone.
// Cost: 4 FMA and 8-16 bytes of weights for a point and cell.
// Limit: latency, a few microseconds for each block.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// build: f32 -DREAL=float
// budget: f64 kernel=ls_spread regs<=96 smem<=28672 spills<=16
// budget: f32 kernel=ls_spread regs<=96 smem<=14336 spills<=16
#include "common.cuh"

struct Spread {
  const double* tp;
  const double2* wv;
  const int2* cell;
  const T* at_f;
  const T* at_2f;
  const int* offsets;
  const Info* info;
  const int* order;
  const int2* tasks;
  const double* f0;
  const double* df;
  C* out;
  double mean;
  int modes, P, pairs, grid_stride;
};
// A warp counts the cells (every other int, in rising order) that are at most `limit`, by a 33-way search.
__device__ __forceinline__ int first_above(const int* cells, int n, int limit) {
  const int lane = threadIdx.x & 31;
  int lo = 0, hi = n;
  while (lo < hi) {
    const int step = (hi - lo + 32) / 33, at = lo + (lane + 1) * step - 1;
    const unsigned above = __ballot_sync(FULL, at >= hi || cells[2 * at] > limit);
    const int k = above ? __ffs(above) - 1 : 32;
    const int from = lo;
    lo = from + k * step;
    hi = min(hi, k < 32 ? from + (k + 1) * step - 1 : hi);
  }
  return lo;
}
extern "C" __global__ void __launch_bounds__(256) ls_spread(const Spread A) {
  __shared__ C part[8][32][2];
  __shared__ C strength[8][2][2][32];
  __shared__ int first[8][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, h = lane >> 4, a = lane & 15;
  const int task = blockIdx.x / 48, strip = blockIdx.x % 48;
  int o, pair;
  if (A.tasks) {
    const int2 t = A.tasks[task];
    o = t.x;
    pair = t.y;
  } else {
    pair = task % A.pairs;
    o = A.order[task / A.pairs];
  }
  const int n = A.info[o].n, lo = A.offsets[o];
  if (n <= LONG || A.info[o].status != 0) return;
  const bool twice = strip >= 16;
  const int c0 = 16 * (twice ? strip - 16 : strip), mine = c0 + a;
  const double f0 = A.f0[o * A.grid_stride], df = A.df[o * A.grid_stride];
  // points with first cell in (c0 - 16, c0 + 16): cells rise with time
  const int* cells = (const int*)(A.cell + lo) + twice;
  const int b0 = first_above(cells, n, c0 - 16), b1 = first_above(cells, n, c0 + 15);
  Frequency centre[2];
  for (int b = 0; b < 2; b++)
    centre[b] = frequency_of(f0, ((double)(2 * pair + b) * A.modes + (A.modes >> 1)) * A.P, df);
  C s1 = mk(0, 0), s2 = mk(0, 0);
  const T* weights = twice ? A.at_2f : A.at_f;
  for (int p0 = b0 + warp * 32; p0 < b1; p0 += 256) {
    const int m = min(32, b1 - p0), p = lo + p0 + min(lane, m - 1);
    const double2 wv = A.wv[p];
    const double time = A.tp[p];
    __syncwarp();
    first[warp][lane] = twice ? A.cell[p].y : A.cell[p].x;
    for (int b = 0; b < 2; b++) {
      T s, c;
      sincos_cycles(cycles(centre[b], time), s, c);
      const T w = (T)wv.x, v = (T)wv.y, wm = w * (T)A.mean;
      strength[warp][b][0][lane] =
          twice ? mk((T)0.5 * w * (c * c - s * s), w * c * s) : mk(wm * c, wm * s);  // as in ls_comb
      strength[warp][b][1][lane] = mk(v * c, v * s);
    }
    __syncwarp();
    for (int i = 0; i < m; i++) {
      const unsigned tap = (unsigned)(mine - first[warp][i]);
      if (tap < 16u) {
        const T k = weights[(size_t)(lo + p0 + i) * 16 + a];
        const C x = strength[warp][h][0][i], z = strength[warp][h][1][i];
        s1.x = fma(k, x.x, s1.x);
        s1.y = fma(k, x.y, s1.y);
        s2.x = fma(k, z.x, s2.x);
        s2.y = fma(k, z.y, s2.y);
      }
    }
  }
  C* out = A.out + ((size_t)task * 2 + h) * 1024 + (twice ? 512 : 0) + mine;
  part[warp][lane][0] = s1;
  part[warp][lane][1] = s2;
  __syncthreads();
  if (warp < 2 && !(twice && warp)) {
    C x = part[0][lane][warp];
    for (int k = 1; k < 8; k++) {
      x.x += part[k][lane][warp].x;
      x.y += part[k][lane][warp].y;
    }
    out[256 * warp] = x;
  }
}

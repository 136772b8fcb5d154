// Preparation of the rows of light curves in several bands.
//
// bands_rows: one block for each object. It excludes bands with too few rows by a copy of the times, in which
// the times of these rows are NaN.
// bands_centre: one block for each object, after ls_prepare. It lists the rows of each band in order (a warp
// for each band) and centres y on the mean of the band.
// Limit of both: latency, microseconds for each block.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double
// budget: f64 kernel=bands_rows regs<=64 smem<=64
// budget: f64 kernel=bands_centre regs<=128 smem<=1024 spills<=16
#include "common.cuh"

// ---------------------------------------------------------------- rows
struct Rows {
  const double* t;
  const double* y;
  const double* dy;
  const int* code;
  const int* offsets;
  double* kept;
  int* row;
  int bands, fewest;
};
#define FEWEST 4  // fewest rows of an object that can be fitted: `contract.BAND_POINTS`
extern "C" __global__ void __launch_bounds__(256) bands_rows(const Rows A) {
  extern __shared__ int count[];
  const int lo = A.offsets[blockIdx.x], n = A.offsets[blockIdx.x + 1] - lo, lane = threadIdx.x & 31;
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    A.row[lo + i] = i;  // ls_prepare writes the order only where it sorts
  if (!A.kept) return;
  auto usable = [&](int i) {
    return isfinite(A.t[lo + i]) && isfinite(A.y[lo + i]) && (!A.dy || isfinite(A.dy[lo + i]));
  };
  for (int b = threadIdx.x >> 5; b < A.bands; b += blockDim.x >> 5) {
    int many = 0;
    for (int i = lane; i < n; i += 32) many += A.code[lo + i] == b && usable(i);
    for (int k = 16; k; k >>= 1) many += __shfl_xor_sync(FULL, many, k);
    if (!lane) count[b] = many;
  }
  int wrong = 0;  // an error that is not positive counts in any band
  for (int i = threadIdx.x; i < n; i += blockDim.x) wrong |= A.dy && A.dy[lo + i] <= 0;
  wrong = __syncthreads_or(wrong);
  int total = 0;
  for (int b = 0; b < A.bands; b++) total += count[b];
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    A.kept[lo + i] = wrong || total < FEWEST || count[A.code[lo + i]] >= A.fewest ? A.t[lo + i] : missing64();
}

struct Centre {
  const double* y;
  const int* code;
  const int* offsets;
  const int* row;
  double2* wv;
  Info* info;
  int* pick;
  int* first;
  double* share;
  int* odd;
  int bands, scale_kind;
};
#define WARPS_CENTRE 8
// Sum or maximum over the block, the same in every thread; part: a number for each warp.
template <bool GREATEST>
__device__ __forceinline__ double over_block(double v, double* part) {
  for (int k = 16; k; k >>= 1) {
    const double o = __shfl_xor_sync(FULL, v, k);
    v = GREATEST ? fmax(v, o) : v + o;
  }
  __syncthreads();
  if (!(threadIdx.x & 31)) part[threadIdx.x >> 5] = v;
  __syncthreads();
  v = part[0];
  for (int k = 1; k < WARPS_CENTRE; k++) v = GREATEST ? fmax(v, part[k]) : v + part[k];
  return v;
}
extern "C" __global__ void __launch_bounds__(32 * WARPS_CENTRE) bands_centre(const Centre A) {
  extern __shared__ double held[];  // of each band: its first y, then its mean
  __shared__ double part[WARPS_CENTRE];
  const int o = blockIdx.x, lo = A.offsets[o], tid = threadIdx.x, lane = tid & 31, B = A.bands;
  const Info info = A.info[o];
  if (!tid) A.odd[o] = 0;  // set where a power of the object is not trusted
  if (info.status != 0) return;
  const int n = info.n;
  int* first = A.first + (size_t)o * (B + 1);
  double* share = A.share + (size_t)o * B;
  auto raw = [&](int i) { return A.y[lo + A.row[lo + i]]; };
  auto band = [&](int i) { return A.code[lo + A.row[lo + i]]; };
  double v = 0;
  for (int i = tid; i < n; i += blockDim.x) v = fmax(v, fabs(raw(i)));
  const double shrink = over_block<true>(v, part) > 1e150 ? 0x1p-600 : 1.0;
  for (int b = tid >> 5; b < B; b += WARPS_CENTRE) {  // numbers of rows, and the first one's y
    int many = 0, early = n;
    for (int i = lane; i < n; i += 32)
      if (band(i) == b) {
        many++;
        early = min(early, i);
      }
    for (int k = 16; k; k >>= 1) {
      many += __shfl_xor_sync(FULL, many, k);
      early = min(early, __shfl_xor_sync(FULL, early, k));
    }
    if (!lane) {
      first[b + 1] = many;
      held[b] = early < n ? raw(early) * shrink : 0;
    }
  }
  __syncthreads();
  if (!tid) {
    first[0] = 0;
    for (int b = 0; b < B; b++) first[b + 1] += first[b];
  }
  __syncthreads();
  v = 0;
  for (int i = tid; i < n; i += blockDim.x) v = fmax(v, fabs(raw(i) * shrink - held[band(i)]));
  v = over_block<true>(v, part);
  int exponent;
  frexp(v, &exponent);
  const double unit =
      v > 0 ? ldexp(1.0, exponent < -1000 ? 1000 : -exponent) : 1.0;  // a power of two: nothing is rounded
  for (int b = tid >> 5; b < B; b += WARPS_CENTRE) {
    int at = first[b];
    double own = 0, sum = 0;
    for (int i0 = 0; i0 < n; i0 += 32) {
      const int i = i0 + lane;
      const bool mine = i < n && band(i) == b;
      const unsigned who = __ballot_sync(FULL, mine);
      if (mine) {
        A.pick[lo + at + __popc(who & ((1u << lane) - 1))] = i;
        const double w = A.wv[lo + i].x;
        own += w;
        sum += w * ((raw(i) * shrink - held[b]) * unit);
      }
      at += __popc(who);
    }
    own = warp_sum(own);
    sum = warp_sum(sum);
    __syncwarp();
    if (!lane) {
      share[b] = own > 0 ? 1 / own : 0;
      held[B + b] = own > 0 ? sum / own : 0;
    }
  }
  __syncthreads();
  v = 0;
  for (int i = tid; i < n; i += blockDim.x) {
    const int b = band(i);
    const double w = A.wv[lo + i].x, d = (raw(i) * shrink - held[b]) * unit - held[B + b];
    A.wv[lo + i].y = w * d;
    v += w * d * d;
  }
  const double yy = over_block<false>(v, part), root = 1 / sqrt(yy);
  if (!(yy > 0)) {
    if (!tid) A.info[o].status = 4;
    return;
  }
  for (int i = tid; i < n; i += blockDim.x) A.wv[lo + i].y *= root;
  if (tid) return;
  const double back = 1 / unit / shrink, square = yy * back * back;
  A.info[o].mean_square = square;
  A.info[o].scale = A.scale_kind == 1 ? 0.5 * A.info[o].weight * square : A.scale_kind ? 0.5 * n * square : 1.0;
}

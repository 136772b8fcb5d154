// The pixel sum within a kernel's support, where rings differ in length.
//
// caps: the HEALPix rings of both caps.
//   Layout: a thread computes ROWS neighbouring rings at one azimuth, in the four quadrants, at the mirror image of the
//   azimuth within each quadrant, and in both hemispheres: 16 ROWS sums.  A value of the kernel serves 16 pixels, and a
//   pixel that is read serves ROWS sums.  `pack` arranges the pixels so that four quadrants are read together.  The
//   warps of a block work on rings above each other and so read the same input rings.
//   Cost: 32 multiply-adds for two values of the kernel (7 to 10 operations each) and four reads of 16 bytes.
//   Limit: instructions issued, then the first-level cache.
// any: the rings next to the poles, and grids of any rings; angles are float64.
//   Layout: SHARE threads for a pixel, one input ring each.
//   Limit: latency, because few pixels with long sums lie next to the poles.
// archs: 75 80 86 89 90 100 120
// build: f32_exp1 -DREAL=float -DMODE=0 -DDEGREE=1
// build: f32_exp -DREAL=float -DMODE=0 -DDEGREE=3
// build: f32_series -DREAL=float -DMODE=1
// build: f32_table -DREAL=float -DMODE=2
// build: f64_exp -DREAL=double -DMODE=0 -DDEGREE=6
// build: f64_series -DREAL=double -DMODE=1
// build: f64_table -DREAL=double -DMODE=2
// budget: f32_exp1 kernel=caps regs<=80 spills<=16
// budget: f32_exp kernel=caps regs<=80 spills<=16
// budget: f64_exp kernel=caps regs<=168 spills<=48
// budget: f64_series kernel=any spills<=32
// budget: f32_exp1 kernel=any spills<=32
// budget: f32_exp kernel=any spills<=32
// budget: f32_series kernel=any spills<=32
// budget: f32_table kernel=any spills<=32
// budget: f64_exp kernel=any spills<=32
// budget: f64_table kernel=any spills<=32
// budget: f64_table kernel=caps regs<=168 spills<=48
#define ROWS 2
#include "direct/caps.cuh"

#define CAPS_BLOCKS (SINGLE ? (MODE ? 5 : 6) : 3)

// Rings low .. (grid.y of them): weighted pixels at place[i - low]: two planes (north, its mirror image in the south)
// of [m + 2 halo][4 quadrants].
extern "C" __global__ void __launch_bounds__(128) pack(const REAL* __restrict__ in, Four* __restrict__ packed,
                                                       const i64* __restrict__ place, const REAL* __restrict__ weight,
                                                       int nside, int low, int halo) {
  int i = low + blockIdx.y, m = quarter(nside, i), q = blockIdx.x * blockDim.x + threadIdx.x - halo;
  if (q >= m + halo) return;
  REAL wn = weight[i - 1], ws = weight[4 * nside - 1 - i];
  const REAL *n = in + north(nside, i), *s = in + south(nside, i);
  int k[4];
#pragma unroll
  for (int a = 0; a < 4; a++) k[a] = around(a * m + q, 4 * m);
  Four* to = packed + place[i - low] + q + halo;
  Four v = {n[k[0]] * wn, n[k[1]] * wn, n[k[2]] * wn, n[k[3]] * wn};
  to[0] = v;
  Four u = {s[k[0]] * ws, s[k[1]] * ws, s[k[2]] * ws, s[k[3]] * ws};
  to[m + 2 * halo] = u;
}

// `pair` of rings o from `low` on and i = o + d - width, and an eighth of pi over the number of pixels of a quarter
// of ring i.
extern "C" __global__ void caps_plan(const double* __restrict__ theta, Four* __restrict__ table, double xmax, int nside,
                                     int low, int count, int width) {
  int id = blockIdx.x * blockDim.x + threadIdx.x, row = 2 * width + 1;
  if (id >= count * row) return;
  int o = low + id / row, i = o + id % row - width;
  Four r = pair(theta, o, i, xmax, nside);
  if (r.z >= 0) r.w = (REAL)(PI / 8 / quarter(nside, i));
  table[id] = r;
}

DI void sums(const Four& v, REAL w, REAL* acc) {
  acc[0] += w * v.x;
  acc[1] += w * v.y;
  acc[2] += w * v.z;
  acc[3] += w * v.w;
}

// Outputs: rings low <= o < high, `wide` rows of the table (which begins at ring low); inputs from ring packed_low on.
extern "C" __global__ void __launch_bounds__(128, CAPS_BLOCKS) caps(
    const Four* __restrict__ packed, const i64* __restrict__ place, const Four* __restrict__ table,
    const REAL* __restrict__ cells, const REAL* __restrict__ weight, REAL* __restrict__ out, int* __restrict__ flag,
    const __grid_constant__ Profile profile, int nside, int low, int high, int width, int packed_low, int halo) {
  int o = high - ROWS * (1 + (int)(blockIdx.y * blockDim.y + threadIdx.y)), j = blockIdx.x * blockDim.x + threadIdx.x;
  if (o + ROWS <= low) return;
  Outputs to;
  if (!find(to, nside, o, j)) return;
  REAL acc[ROWS][16];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int k = 0; k < 16; k++) acc[r][k] = 0;
  int row = 2 * width + 1;
#pragma unroll 1
  for (int i = o - width; i < o + ROWS + width; i++) {
    if (i < packed_low) continue;
    int mi = quarter(nside, i), si = shifted(nside, i);
    Four t[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      int d = i - o - r + width;
      Four none = {0, 0, -1, 0};
      t[r] = d >= 0 && d < row && o + r >= low ? table[(o + r - low) * row + d] : none;
    }
    Seen seen;
    if (!see(seen, t, to, profile, j, mi, si, t[0].z >= 0 ? t[0].w : t[ROWS - 1].w)) continue;
    const Four* n = packed + place[i - packed_low] + halo;
    const Four* s = n + mi + 2 * halo;
    const Four *nm = n + (mi - si), *sm = s + (mi - si);
#pragma unroll 1
    for (int q = seen.first; q <= seen.last; q++) {
      Four v0 = n[q], v1 = s[q], v2 = nm[-q], v3 = sm[-q];
      REAL x[ROWS], w[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        REAL y = seen.h[r] * seen.h[r];
        seen.h[r] += seen.step;
        if (CUBIC)
          w[r] = near_value(seen, r, y);
        else
          x[r] = seen.a[r] + seen.b[r] * square_sine(y);
      }
      if (!CUBIC) values<ROWS>(profile, cells, x, w);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        sums(v0, w[r], acc[r]);
        sums(v1, w[r], acc[r] + 4);
        sums(v2, w[r], acc[r] + 8);
        sums(v3, w[r], acc[r] + 12);
      }
    }
  }
  bool bad = false;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    int ring = o + r, m = to.m[r], k = m - to.s[r] - j;
    if (ring < low || ring >= high || 2 * j > m - to.s[r]) continue;
    REAL wn = weight[ring - 1], ws = weight[4 * nside - 1 - ring];
    REAL *n = out + north(nside, ring), *s = out + south(nside, ring);
#pragma unroll
    for (int a = 0; a < 4; a++) {
      REAL p = acc[r][a] * wn, t = acc[r][4 + a] * ws;
      bad |= strange(p) || strange(t);
      n[a * m + j] = p;
      if (2 * ring != 4 * nside) s[a * m + j] = t;
      if (k != j && k < m) {
        p = acc[r][8 + a] * wn;
        t = acc[r][12 + a] * ws;
        bad |= strange(p) || strange(t);
        n[a * m + k] = p;
        if (2 * ring != 4 * nside) s[a * m + k] = t;
      }
    }
  }
  if (bad) *flag = 1;
}

// Weights of the stencils of `direct/belt.cu`: weight id % stride of row low - width - 1 + id / stride.  It is for
// the output ring terms[].x - width above, at a distance of terms[].y / 2 pixels; angles and values in float64.
extern "C" __global__ void belt_plan(const double* __restrict__ theta, const double* __restrict__ cells,
                                     const int2* __restrict__ terms, REAL* __restrict__ weights, double xmax,
                                     double floor, int n, int low, int high, int width, int count, int stride,
                                     int n_cells) {
  int id = blockIdx.x * blockDim.x + threadIdx.x, k = id % stride;
  if (id >= (high - low + 2 * width + 2) * stride) return;
  double value = 0;
  if (k < count) {
    int r = low - width - 1 + id / stride, o = r - width + terms[k].x;
    if (o >= low && o < high) {
      double s = sinpi(0.5 * terms[k].y / n), x = chord(theta[r], theta[o]) + spread(theta[r], theta[o]) * s * s;
      if (x <= xmax) {
        value = quintic(cells, sqrt(x / xmax) * n_cells, n_cells);
        value = value > floor ? value : floor;
      }
    }
  }
  weights[id] = (REAL)value;
}

// Any rings (counted from 0).  `rings` lists those wanted, `before` the pixels of the ones listed earlier.
extern "C" __global__ void __launch_bounds__(128) any(const REAL* __restrict__ in, REAL* __restrict__ out,
                                                      const Ring* __restrict__ ring, const int* __restrict__ rings,
                                                      const i64* __restrict__ before, const REAL* __restrict__ cells,
                                                      const REAL* __restrict__ w_in, const REAL* __restrict__ w_out,
                                                      int* __restrict__ flag, const __grid_constant__ Profile profile,
                                                      double xmax, int count, i64 offset) {
  i64 p = offset + ((i64)blockIdx.x * blockDim.x + threadIdx.x) / SHARE;
  bool beyond = p >= before[count];
  if (beyond) p = 0;
  int listed = ring_of(before, count, p), o = rings[listed];
  const Ring here = ring[o];
  i64 j = p - before[listed];
  double phi = here.phi0 + 2 * PI * j / here.n;
  REAL total = 0;
  for (int i = here.first + (int)threadIdx.x % SHARE; i < here.last; i += SHARE) {
    const Ring there = ring[i];
    if (!there.used) continue;
    double c = chord(there.theta, here.theta), d = spread(there.theta, here.theta);
    if (c > xmax) continue;
    double u = (phi - there.phi0) * there.n / (2 * PI);
    int q0, q1;
    near(there, (xmax - c) / d, u, q0, q1);
    const REAL* x = in + there.start;
    REAL sum = 0;
    for (int q = q0; q <= q1; q++) {
      int k = q < 0 ? q + there.n : q >= there.n ? q - there.n : q;
      double half = (q - u) / there.n;  // in turns, times two
      REAL t = sinpi((REAL)half);
      REAL chords[1] = {(REAL)c + (REAL)d * t * t}, w[1];
      values<1>(profile, cells, chords, w);
      sum += w[0] * x[k];
    }
    total += sum * w_in[i];
  }
  total = shared_sum(total) * w_out[o];
  if (beyond || threadIdx.x % SHARE) return;
  out[here.start + j] = total;
  if (strange(total)) *flag = 1;
}

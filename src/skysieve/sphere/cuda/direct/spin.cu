// The pixel sum of Q and U within a kernel's support, where rings differ in length; layout as in `direct/direct.cu`.
//
// caps, EXACT: each value of G becomes p^4 G, with an even part and an odd part, which changes sign in the mirror image
//   within the quarter and in the south.
//   Cost: 64 multiply-adds for each value, and 24 operations to form it.
// caps, not EXACT: the maps are given in frames that rotate against the meridians along a ring, by 2 cos(theta) per
//   unit of azimuth from the quarter's middle.  The kernel between such frames is the scalar |p|^4 G, with the error
//   that `turning` in `direct/spin.py` bounds.  All sums are rotated from one input ring to the next.
//   Cost: 32 multiply-adds for each value, 64 for each input ring.
// any: SHARE threads for a pixel; angles are float64.  Values are those of G, with |p|^4 unless EXACT.
// Limit: instructions issued (caps), latency (any).
// archs: 75 80 86 89 90 100 120
// build: f32_exp1 -DREAL=float -DMODE=0 -DDEGREE=1
// build: f32_exp -DREAL=float -DMODE=0 -DDEGREE=3
// build: f32_series -DREAL=float -DMODE=1
// build: f32_table -DREAL=float -DMODE=2
// build: f64_exp -DREAL=double -DMODE=0 -DDEGREE=6
// build: f64_series -DREAL=double -DMODE=1
// build: f64_table -DREAL=double -DMODE=2
// build: f32_turned -DREAL=float -DMODE=0 -DDEGREE=1 -DEXACT=0
// budget: f32_exp1 kernel=caps regs<=128 spills<=0
// budget: f32_turned kernel=caps regs<=168 spills<=0
// budget: f32_exp1 kernel=any spills<=32
// budget: f32_exp kernel=any spills<=32
// budget: f32_series kernel=any spills<=32
// budget: f32_table kernel=any spills<=32
// budget: f64_exp kernel=any spills<=32
// budget: f64_series kernel=any spills<=32
// budget: f64_table kernel=any spills<=32
// budget: f32_turned kernel=any spills<=32
#ifndef EXACT
#define EXACT 1
#endif
#define ROWS (EXACT ? 1 : 2)
#include "direct/caps.cuh"

#define CAPS_BLOCKS (SINGLE ? (EXACT ? 4 : 3) : 2)

// Rings low .. (grid.y of them): weighted pixels at place[i - low]: four planes (Q north, its mirror image in the
// south, U likewise) of [m + 2 halo][4 quadrants], turned unless EXACT; `height` is cos(theta).
extern "C" __global__ void __launch_bounds__(128) pack(const REAL* __restrict__ in, Four* __restrict__ packed,
                                                       const i64* __restrict__ place, const REAL* __restrict__ weight,
                                                       const REAL* __restrict__ height, i64 npix, int nside, int low,
                                                       int halo) {
  int i = low + blockIdx.y, m = quarter(nside, i), q = blockIdx.x * blockDim.x + threadIdx.x - halo;
  if (q >= m + halo) return;
  REAL c = 1, s = 0;
  if (!EXACT) sincospi(height[i - 1] * (2 * q + shifted(nside, i) - m) / (2 * m), &s, &c);
  Four* to = packed + place[i - low] + q + halo;
#pragma unroll
  for (int side = 0; side < 2; side++) {
    int ring = side ? 4 * nside - i : i;
    REAL w = weight[ring - 1], wc = w * c, ws = side ? -w * s : w * s;
    const REAL* x = in + (side ? south(nside, i) : north(nside, i));
    REAL a[4], b[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int p = around(k * m + q, 4 * m);
      REAL v = x[p], u = x[npix + p];
      a[k] = v * wc - u * ws;
      b[k] = v * ws + u * wc;
    }
    Four f = {a[0], a[1], a[2], a[3]}, g = {b[0], b[1], b[2], b[3]};
    to[side * (m + 2 * halo)] = f;
    to[(2 + side) * (m + 2 * halo)] = g;
  }
}

// `pair` of rings o from low and i = o + d - width, and the mean of both rings' cos(theta).
extern "C" __global__ void caps_plan(const double* __restrict__ theta, Four* __restrict__ table, double xmax, int nside,
                                     int low, int count, int width) {
  int id = blockIdx.x * blockDim.x + threadIdx.x, row = 2 * width + 1;
  if (id >= count * row) return;
  int o = low + id / row, i = o + id % row - width;
  Four r = pair(theta, o, i, xmax, nside);
  if (r.z >= 0) r.w = (REAL)(0.5 * (cos(theta[i - 1]) + cos(theta[o - 1])));
  table[id] = r;
}

struct Both {
  REAL q[4], u[4];
};  // of the four quadrants

DI void sums(const Four& q, const Four& u, REAL w, Both& acc) {
  acc.q[0] += w * q.x;
  acc.q[1] += w * q.y;
  acc.q[2] += w * q.z;
  acc.q[3] += w * q.w;
  acc.u[0] += w * u.x;
  acc.u[1] += w * u.y;
  acc.u[2] += w * u.z;
  acc.u[3] += w * u.w;
}
DI void turned(const Four& q, const Four& u, REAL odd, Both& acc) {
  acc.q[0] -= odd * u.x;
  acc.q[1] -= odd * u.y;
  acc.q[2] -= odd * u.z;
  acc.q[3] -= odd * u.w;
  acc.u[0] += odd * q.x;
  acc.u[1] += odd * q.y;
  acc.u[2] += odd * q.z;
  acc.u[3] += odd * q.w;
}
// acc times c + i s
DI void turn(REAL c, REAL s, Both& acc) {
#pragma unroll
  for (int a = 0; a < 4; a++) {
    REAL q = acc.q[a], u = acc.u[a];
    acc.q[a] = q * c - u * s;
    acc.u[a] = q * s + u * c;
  }
}

// sin(2 h) for y = h^2 < 0.0098
DI REAL double_sine(REAL h, REAL y) {
  if (SINGLE) return h * (2 + y * ((REAL)(-4.0 / 3) + y * ((REAL)(4.0 / 15) - y * (REAL)(8.0 / 315))));
  REAL s = (REAL)(4.0 / 2835) - y * (REAL)(8.0 / 155925);
  s = (REAL)(4.0 / 15) + y * ((REAL)(-8.0 / 315) + y * s);
  return h * (2 + y * ((REAL)(-4.0 / 3) + y * s));
}

// Outputs: rings low <= o < high, `wide` rows of the table (which begins at ring low); inputs from ring packed_low on.
extern "C" __global__ void __launch_bounds__(128, CAPS_BLOCKS) caps(
    const Four* __restrict__ packed, const i64* __restrict__ place, const Four* __restrict__ table,
    const REAL* __restrict__ cells, const REAL* __restrict__ weight, const REAL* __restrict__ height,
    REAL* __restrict__ out, int* __restrict__ flag, const __grid_constant__ Profile profile, i64 npix, int nside,
    int low, int high, int width, int packed_low, int halo) {
  int o = high - ROWS * (1 + (int)(blockIdx.y * blockDim.y + threadIdx.y)), j = blockIdx.x * blockDim.x + threadIdx.x;
  if (o + ROWS <= low) return;
  Outputs to;
  if (!find(to, nside, o, j)) return;
  Both acc[ROWS][4];  // north, south, and both mirror images within the quarter
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int a = 0; a < 4; a++) acc[r][k].q[a] = acc[r][k].u[a] = 0;
  int row = 2 * width + 1;
  REAL now = 0;  // height of the ring whose frames the sums are in
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
    if (!see(seen, t, to, profile, j, mi, si, (REAL)(PI / 8) / mi)) continue;
    if (!EXACT) {
      REAL next = height[i - 1], difference = next - now;
      if (now != 0) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          REAL t = difference * (REAL)(PI / 2) * (2 * j + to.s[r] - to.m[r]) * to.r[r], y = t * t;  // below 0.1
          REAL s = t * (1 + y * ((REAL)(-1.0 / 6) + y * ((REAL)(1.0 / 120) - y * (REAL)(1.0 / 5040))));
          REAL c = 1 + y * ((REAL)-0.5 + y * ((REAL)(1.0 / 24) + y * ((REAL)(-1.0 / 720) + y * (REAL)(1.0 / 40320))));
          turn(c, s, acc[r][0]);
          turn(c, -s, acc[r][1]);
          turn(c, -s, acc[r][2]);
          turn(c, s, acc[r][3]);
        }
      }
      now = next;
    }
    int plane = mi + 2 * halo;
    const Four *n = packed + place[i - packed_low] + halo, *nm = n + (mi - si);
#pragma unroll 1
    for (int q = seen.first; q <= seen.last; q++) {
      REAL x[ROWS], w[ROWS], y[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        y[r] = seen.h[r] * seen.h[r];
        if (CUBIC)
          w[r] = near_value(seen, r, y[r]);
        else
          x[r] = seen.a[r] + seen.b[r] * square_sine(y[r]);
      }
      if (!CUBIC) values<ROWS>(profile, cells, x, w);
      REAL odd[ROWS];
      if (EXACT) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          // p^2 = c0^2 - (c0^2 + c1^2) sin^2 h + i c0 c1 sin 2 h
          const REAL near = 1 - t[r].x / 4, mean = t[r].w;
          REAL re = near - (near + mean * mean / near) * square_sine(y[r]);
          REAL im = mean * double_sine(seen.h[r], y[r]);
          odd[r] = w[r] * 2 * re * im;
          w[r] *= re * re - im * im;
        }
      }
#pragma unroll
      for (int k = 0; k < 4; k++) {
        int at = (k & 1) * plane;
        const Four* from = k < 2 ? n + at + q : nm + at - q;
        Four vq = from[0], vu = from[2 * plane];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          sums(vq, vu, w[r], acc[r][k]);
          if (EXACT) turned(vq, vu, k == 0 || k == 3 ? odd[r] : -odd[r], acc[r][k]);
        }
      }
#pragma unroll
      for (int r = 0; r < ROWS; r++) seen.h[r] += seen.step;
    }
  }
  bool bad = false;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    int ring = o + r, m = to.m[r], k = m - to.s[r] - j;
    if (ring < low || ring >= high || 2 * j > m - to.s[r]) continue;
    if (!EXACT) {
      REAL s, c;
      sincospi(-now * (2 * j + to.s[r] - m) / (2 * m), &s, &c);
      turn(c, s, acc[r][0]);
      turn(c, -s, acc[r][1]);
      turn(c, -s, acc[r][2]);
      turn(c, s, acc[r][3]);
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
      int side = part & 1, column = part < 2 ? j : k;
      if (part >= 2 && (k == j || k >= m)) continue;
      if (side && 2 * ring == 4 * nside) continue;
      REAL w = weight[(side ? 4 * nside - ring : ring) - 1];
      REAL* there = out + (side ? south(nside, ring) : north(nside, ring)) + column;
#pragma unroll
      for (int a = 0; a < 4; a++) {
        REAL p = acc[r][part].q[a] * w, t = acc[r][part].u[a] * w;
        bad |= strange(p) || strange(t);
        there[a * m] = p;
        there[npix + a * m] = t;
      }
    }
  }
  if (bad) *flag = 1;
}

// Weights of the stencils of `direct/spin_belt.cu`, as `belt_plan` of `direct/direct.cu`: terms[].x is a number of
// rings plus 64 times a kind: 0 the even part of the kernel, 1 the odd one, 2 the tangent by which the input's own ring
// turns.
extern "C" __global__ void belt_plan(const double* __restrict__ theta, const double* __restrict__ cells,
                                     const int2* __restrict__ terms, REAL* __restrict__ weights, double xmax, int n,
                                     int low, int high, int width, int count, int stride, int n_cells) {
  int id = blockIdx.x * blockDim.x + threadIdx.x, k = id % stride;
  if (id >= (high - low + 2 * width + 2) * stride) return;
  double value = 0;
  if (k < count) {
    int kind = terms[k].x / 64, r = low - width - 1 + id / stride, o = kind == 2 ? r : r - width + terms[k].x % 64;
    bool inside = r >= low - width && r < high + width;
    if (inside && (kind == 2 || (o >= low && o < high))) {
      double s, c;
      sincospi(0.5 * terms[k].y / n, &s, &c);
      double re = c * cos(0.5 * (theta[r] - theta[o])), im = s * cos(0.5 * (theta[r] + theta[o])),
             t = re * re - im * im;
      im *= 2 * re;
      re = t * t - im * im;
      im *= 2 * t;
      double x = chord(theta[r], theta[o]) + spread(theta[r], theta[o]) * s * s;
      if (kind == 2)
        value = im / re;
      else if (x <= xmax)
        value = quintic(cells, sqrt(x / xmax) * n_cells, n_cells) * (kind ? im : re);
    }
  }
  weights[id] = (REAL)value;
}

extern "C" __global__ void __launch_bounds__(128) any(const REAL* __restrict__ in, REAL* __restrict__ out,
                                                      const Ring* __restrict__ ring, const int* __restrict__ rings,
                                                      const i64* __restrict__ before, const REAL* __restrict__ cells,
                                                      const REAL* __restrict__ w_in, const REAL* __restrict__ w_out,
                                                      int* __restrict__ flag, const __grid_constant__ Profile profile,
                                                      i64 npix, double xmax, int count, i64 offset) {
  i64 p = offset + ((i64)blockIdx.x * blockDim.x + threadIdx.x) / SHARE;
  bool beyond = p >= before[count];
  if (beyond) p = 0;
  int listed = ring_of(before, count, p), o = rings[listed];
  const Ring here = ring[o];
  i64 j = p - before[listed];
  double phi = here.phi0 + 2 * PI * j / here.n;
  REAL q_total = 0, u_total = 0;
  for (int i = here.first + (int)threadIdx.x % SHARE; i < here.last; i += SHARE) {
    const Ring there = ring[i];
    double c = chord(there.theta, here.theta), d = spread(there.theta, here.theta);
    if (!there.used || c > xmax) continue;
    double u = (phi - there.phi0) * there.n / (2 * PI);
    int q0, q1;
    near(there, (xmax - c) / d, u, q0, q1);
    REAL c0 = (REAL)cos(0.5 * (there.theta - here.theta)), c1 = (REAL)cos(0.5 * (there.theta + here.theta));
    const REAL* x = in + there.start;
    REAL q_sum = 0, u_sum = 0;
    for (int q = q0; q <= q1; q++) {
      int k = q < 0 ? q + there.n : q >= there.n ? q - there.n : q;
      REAL s, t;
      sincospi((REAL)((q - u) / there.n), &s, &t);
      REAL chords[1] = {(REAL)c + (REAL)d * s * s}, w[1];
      values<1>(profile, cells, chords, w);
      t *= c0;
      s *= c1;
      REAL re = t * t - s * s, im = 2 * t * s;
      if (!EXACT) {
        REAL f = 1 - chords[0] / 4;
        w[0] /= f * f;
      }
      s = 2 * re * im * w[0];
      t = (re * re - im * im) * w[0];
      q_sum += t * x[k] - s * x[npix + k];
      u_sum += s * x[k] + t * x[npix + k];
    }
    q_total += q_sum * w_in[i];
    u_total += u_sum * w_in[i];
  }
  q_total = shared_sum(q_total) * w_out[o];
  u_total = shared_sum(u_total) * w_out[o];
  if (beyond || threadIdx.x % SHARE) return;
  out[here.start + j] = q_total;
  out[npix + here.start + j] = u_total;
  if (strange(q_total) || strange(u_total)) *flag = 1;
}

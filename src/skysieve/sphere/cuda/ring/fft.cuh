// A transform of length LENGTH by THREADS = LENGTH / 16 threads with 16 elements each; thread t has the elements
// t + k THREADS.  Passes of radix 16 and 8 (Stockham: natural order in and out) exchange values through shared memory,
// with a word of padding for every 32.
#pragma once
#include "ring/rows.cuh"

#define THREADS (LENGTH / 16)
#define PADDED(i) ((i) + ((i) >> 5))
#define PLANE PADDED(LENGTH)
#define MANY (SINGLE ? (THREADS >= 512 ? 1024 : 768) : 512)  // threads that a multiprocessor is to hold
#define BLOCKS (MANY / THREADS < 1 ? 1 : MANY / THREADS > 16 ? 16 : MANY / THREADS)

DI Two add(Two a, Two b) {
  Two c = {a.x + b.x, a.y + b.y};
  return c;
}
DI Two sub(Two a, Two b) {
  Two c = {a.x - b.x, a.y - b.y};
  return c;
}
DI Two down(Two a) {
  Two c = {a.y, -a.x};
  return c;
}  // times -i
DI Two by(Two a, REAL c, REAL s) {
  Two z = {a.x * c + a.y * s, a.y * c - a.x * s};
  return z;
}  // times c - i s

// Discrete Fourier transforms of a few elements in registers, natural order.
DI void dft4(Two& a, Two& b, Two& c, Two& d) {
  Two p = add(a, c), q = sub(a, c), r = add(b, d), s = down(sub(b, d));
  a = add(p, r);
  b = add(q, s);
  c = sub(p, r);
  d = sub(q, s);
}
DI void dft8(Two* v) {
  const REAL h = (REAL)0.70710678118654752;
  Two e[4] = {v[0], v[2], v[4], v[6]}, o[4] = {v[1], v[3], v[5], v[7]};
  dft4(e[0], e[1], e[2], e[3]);
  dft4(o[0], o[1], o[2], o[3]);
  o[1] = by(o[1], h, h);
  o[2] = down(o[2]);
  o[3] = by(o[3], -h, h);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    v[k] = add(e[k], o[k]);
    v[k + 4] = sub(e[k], o[k]);
  }
}
DI void dft16(Two* v) {
  const REAL h = (REAL)0.70710678118654752, c = (REAL)0.92387953251128674, s = (REAL)0.38268343236508977;
#pragma unroll
  for (int b = 0; b < 4; b++) dft4(v[b], v[b + 4], v[b + 8], v[b + 12]);
  v[5] = by(v[5], c, s);
  v[6] = by(v[6], h, h);
  v[7] = by(v[7], s, c);
  v[9] = by(v[9], h, h);
  v[10] = down(v[10]);
  v[11] = by(v[11], -h, h);
  v[13] = by(v[13], s, c);
  v[14] = by(v[14], -h, h);
  v[15] = by(v[15], -c, -s);
  Two o[16];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    dft4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
#pragma unroll
    for (int d = 0; d < 4; d++) o[k + 4 * d] = v[4 * k + d];
  }
#pragma unroll
  for (int k = 0; k < 16; k++) v[k] = o[k];
}

// One pass: radix R, after passes whose radices have the product N.  `turns`: exp(-2 pi i k / LENGTH).
template <int R, int N>
DI void pass(Two* v, REAL* shared, const Two* __restrict__ turns, int t) {
#pragma unroll
  for (int b = 0; b < 16 / R; b++) {
    Two u[R];
#pragma unroll
    for (int k = 0; k < R; k++) u[k] = v[b + k * (16 / R)];
    int j = t + b * THREADS;
    if (N > 1) {
      Two p[R];
      p[1] = turns[j % N * (LENGTH / (N * R))];
#pragma unroll
      for (int k = 2; k < R; k++) p[k] = times(p[k / 2], p[k - k / 2]);
#pragma unroll
      for (int k = 1; k < R; k++) u[k] = times(u[k], p[k]);
    }
    if (R == 16)
      dft16(u);
    else
      dft8(u);
    if (N * R < LENGTH) {
      int base = PADDED(j / N * (N * R) + j % N);  // padding of the parts adds up
#pragma unroll
      for (int k = 0; k < R; k++) {
        shared[base + PADDED(k * N)] = u[k].x;
        shared[PLANE + base + PADDED(k * N)] = u[k].y;
      }
    } else {
#pragma unroll
      for (int k = 0; k < R; k++) v[b + k * (16 / R)] = u[k];
    }
  }
  if (N * R < LENGTH) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; k++) {
      v[k].x = shared[PADDED(t) + PADDED(THREADS * k)];
      v[k].y = shared[PLANE + PADDED(t) + PADDED(THREADS * k)];
    }
    __syncthreads();
  }
}

DI void transform(Two* v, REAL* shared, const Two* turns, int t) {
#if LENGTH == 512
  pass<8, 1>(v, shared, turns, t);
  pass<8, 8>(v, shared, turns, t);
  pass<8, 64>(v, shared, turns, t);
#elif LENGTH == 1024
  pass<16, 1>(v, shared, turns, t);
  pass<8, 16>(v, shared, turns, t);
  pass<8, 128>(v, shared, turns, t);
#elif LENGTH == 2048
  pass<16, 1>(v, shared, turns, t);
  pass<16, 16>(v, shared, turns, t);
  pass<8, 256>(v, shared, turns, t);
#elif LENGTH == 4096
  pass<16, 1>(v, shared, turns, t);
  pass<16, 16>(v, shared, turns, t);
  pass<16, 256>(v, shared, turns, t);
#elif LENGTH == 8192
  pass<16, 1>(v, shared, turns, t);
  pass<8, 16>(v, shared, turns, t);
  pass<8, 128>(v, shared, turns, t);
  pass<8, 1024>(v, shared, turns, t);
#else
  pass<16, 1>(v, shared, turns, t);
  pass<16, 16>(v, shared, turns, t);
  pass<8, 256>(v, shared, turns, t);
  pass<8, 2048>(v, shared, turns, t);
#endif
}

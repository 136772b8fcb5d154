// What ls_fine is given, the float64 matrix product, the power from the sums.
#pragma once

struct Coarse {
  const double* tp; const double2* wv; const int2* cell; const T* at_f; const T* at_2f;
  const int* offsets; const Info* info; const int* order; const int2* tasks; const C* spread;
  const C* first; const C* second; const C* fold; const C* deconvolve; const double2* taps;
  const double* f0; const double* df; const int* nf; const long long* start;
  T* power; Peaks peaks; Guard guard; double mean;
  int modes, P, tiles, pairs, members, group, blocks, grid_stride, norm, scaled, edges;
};

#if ON_DEVICE && __CUDA_ARCH__ >= 900
#define MATRIX 1
#else
#define MATRIX 0
#endif
// c += a b for 16 x 4 by 4 x 8. Lane 4 g + q has rows g and g + 8 of a at column q, row q of b at column g, and of c rows g (two
// columns: 2 q, 2 q + 1) and g + 8.
__device__ __forceinline__ void multiply(double (&c)[4], double2 a, double b) {
#if MATRIX
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3]) : "d"(a.x), "d"(a.y), "d"(b));
#endif
}
// The same for two steps of 4, one after the other.
__device__ __forceinline__ void multiply(double (&c)[4], double2 a, double2 a2, double b, double b2) {
#if MATRIX && defined(K8)
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3]) : "d"(a.x), "d"(a.y), "d"(a2.x), "d"(a2.y), "d"(b), "d"(b2));
#else
  multiply(c, a, b); multiply(c, a2, b2);
#endif
}

// Object and band pair of a block's task: the first bands of a group of objects, then their second ones.
__device__ __forceinline__ void find_task(const Coarse& A, int& task, int& o, int& pair) {
  if (A.tasks) { const int2 t = A.tasks[task]; o = t.x; pair = t.y; return; }
  const int group = task / (A.group * A.pairs), start = group * A.group, size = min(A.group, A.members - start);
  task -= start * A.pairs;
  pair = task / size;
  const int member = start + task % size;
  o = A.order[member]; task = member * A.pairs + pair;
}

// The power from the sums: of w at 2f (halved), of w and of w y at f. NaN where it is suspicious.
__device__ __forceinline__ T power_from(T c2, T s2, T c, T s, T yc, T ys, T guard) {
  const T cc = fma(-c, c, (T)0.5 + c2), ss = fma(-s, s, (T)0.5 - c2), cs = fma(-c, s, s2), det = fma(cc, ss, -cs * cs);
  const T p = fma(yc, fma(ss, yc, (T)-2 * cs * ys), cc * ys * ys) * reciprocal(det);
  return det > guard ? p : missing();
}

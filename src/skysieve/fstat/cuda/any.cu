// Windows with arbitrary starts and durations (off the bins, lists, coarse grids), or with the line-robust
// statistic of several detectors.  A thread computes one template.
//
// exp_any: S(c) = x_c + q S(c + 1) - q^L x_(c + L); rows of another group have at most one bin more.  In a gap, where
//   windows only lose bins, they are summed again when few bins are left (see `renewed` in common.cuh).
//   Layout: a thread for one tau; it moves the start down through the bins and stops at every row.
// rect_any: rectangular windows by running sums.
//   Layout: a thread for one start; it moves the end up through the columns.
// With D detectors the value of a cell is F of all detectors less ln(exp g + sum exp(l_X + F_X)), with sums for each
// F_X. The row of every bin contains the antenna factors and the data of its template.  For more than 3 detectors the
// kernels "most" are compiled at their first use, with MOST_DETECTORS defined.
// Cost: per cell about 45 operations for each set of sums (exponential), or 33 and 7 per bin (rectangular).
// Limit: instruction issue.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// budget: f32 kernel=rect_any0 regs<=72 smem<=0
// budget: f32 kernel=exp_any0 regs<=72 smem<=0
// budget: f64 kernel=exp_any1 spills<=32
// budget: f64 kernel=exp_any2 spills<=32
#include "common.cuh"
#include "lines.cuh"

struct Banks {
  const Quad* rows[1 + MOST_DETECTORS];
};

// ln B of a signal against noise and lines.
template <int D>
__device__ __forceinline__ T robust(T F, const T (&each)[D ? D : 1], const Lines& lines) {
  T most = lines.gauss, y[D ? D : 1], sum = 0;
#pragma unroll
  for (int i = 0; i < D; i++) {
    y[i] = fma(each[i], LOG2E, lines.line[i]);
    most = fmax(most, y[i]);
  }
  sum = power_of_two(lines.gauss - most);
#pragma unroll
  for (int i = 0; i < D; i++) sum += power_of_two(y[i] - most);
  return fma((T)-0.6931471805599453, most + log2(sum), F);
}

struct Decay {
  T p, w, p2, w2;
};  // p = 1 - q, w = q^L, and of q^2
__device__ __forceinline__ T decayed(T s, T p, T x) { return fma(-p, s, s) + x; }

// One series of bins of one template at one tau, and the bin that has left the window.
struct Stream {
  Sums s;
  Quad x, y;
  __device__ __forceinline__ void enter(const Quad* p, const Decay& d) {
    const Quad a = p[0], b = p[1];
    s.A = decayed(s.A, d.p2, a.x);
    s.B = decayed(s.B, d.p2, a.y);
    s.C = decayed(s.C, d.p2, a.z);
    s.S.x = decayed(s.S.x, d.p, b.x);
    s.S.y = decayed(s.S.y, d.p, b.y);
    s.S.z = decayed(s.S.z, d.p, b.z);
    s.S.w = decayed(s.S.w, d.p, b.w);
  }
  __device__ __forceinline__ void warm(const Quad* rows, int from, int high, int L, const Decay& d) {
    s.clear();
    x = y = zero();
    for (int c = from; c >= high; c--)
      if (c < high + L) enter(rows + 2 * (size_t)c, d);
  }
  __device__ __forceinline__ void march(const Quad* rows, int c, int n, int L, const Decay& d) {
    enter(rows + 2 * (size_t)c, d);
    x = y = zero();
    if (c + L < n) {
      const Quad* p = rows + 2 * (size_t)(c + L);
      x = p[0];
      y = p[1];
      s.A = fma(-d.w2, x.x, s.A);
      s.B = fma(-d.w2, x.y, s.B);
      s.C = fma(-d.w2, x.z, s.C);
      weigh(s.S, -d.w, y);
    }
    const T away = rows[2 * (size_t)c].w;
    if (away >= (T)L)
      s.clear();  // no data in the window: remove the rounding residue
    else if (away >= (T)FEWEST && renewed(L, (int)away))
      renew(rows, c, n, L, (int)away, d);
  }
  // Sums the last bins of the window; there are no data before them.
  __device__ __forceinline__ void renew(const Quad* rows, int c, int n, int L, int away, const Decay& d) {
    T once = 1, twice = 1;  // powers of q and q^2
    s.clear();
    for (int b = c + L - 1; b >= c + away; b--) {
      if (b < n) enter(rows + 2 * (size_t)b, d);
      once = fma(-d.p, once, once);
      twice = fma(-d.p2, twice, twice);
    }
    const T f = d.w / once, f2 = d.w2 / twice;
    s.A *= f2;
    s.B *= f2;
    s.C *= f2;
    scale(s.S, f);
  }
  __device__ __forceinline__ Sums with_one_more(bool more, const Decay& d) const {
    Sums o = s;
    if (more) {
      o.A = fma(d.w2, x.x, o.A);
      o.B = fma(d.w2, x.y, o.B);
      o.C = fma(d.w2, x.z, o.C);
      weigh(o.S, d.w, y);
    }
    return o;
  }
};
// rows: the map's row, the first bin and the group of each, in falling order of the first bin.
template <int D>
__device__ __forceinline__ void exp_any(const Banks& banks, const int* length, const T* weights, const T* bases,
                                        T bound, const Lines& lines, const Shape& s, const int* row_of,
                                        const int* first_of, const int* group_of, const unsigned char* more,
                                        const int* skip, T* map, T* row_sums, T* column_sums, Slot* slots,
                                        Slot* line_slots) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
  const int low = s.low + blockIdx.z * s.chunk, high = min(s.high, low + s.chunk);
  const int m = min(n, s.columns - 1), last_column = min((int)(blockIdx.x * blockDim.x + blockDim.x), s.columns) - 1;
  const int L = length[m], longest = length[last_column];
  Decay d;
  d.p = weights[m];
  d.w = weights[s.columns + m];
  d.p2 = weights[2 * s.columns + m];
  d.w2 = weights[3 * s.columns + m];
  const T base = bases[t];
  const size_t mine = 2 * (size_t)t * s.stored;
  Stream stream[1 + D];
  Found<D> found;
  found.begin();
  const int begin = first_of[low] + 1, end = first_of[high - 1];  // bins from begin - 1 down to end
  const int from = min(s.n, begin + longest) - 1;
#pragma unroll
  for (int i = 0; i <= D; i++) stream[i].warm(banks.rows[i] + mine, from, begin, L, d);
  int at = low;
  for (int c = begin - 1; c >= end; c--) {
#pragma unroll
    for (int i = 0; i <= D; i++) stream[i].march(banks.rows[i] + mine, c, s.n, L, d);
    for (; at < high && first_of[at] == c; at++) {
      const int row = row_of[at], group = group_of[at];
      const bool wanted = n < s.columns && n >= skip[group], longer = more && more[(size_t)group * s.columns + m];
      T F = 0, each[D ? D : 1];
      bool good = false;
#pragma unroll
      for (int i = 0; i <= D; i++) {
        const Sums o = stream[i].with_one_more(longer, d);
        const Cell cell = cell_of(o, bound);
        if (i == 0) {
          F = fstat(cell, o.S);
          good = cell.good;
        } else
          each[i - 1] = fstat(cell, o.S);
      }
      T e = 0;
      if (wanted) {
        e = power_of_two(fma(F, LOG2E, -base));
        found.take(F, D ? robust<D>(F, each, lines) : (T)0, good, row, n);
        if (map) map[((size_t)t * s.rows + row) * s.pitch + n] = F;
      }
      found.sum += e;
      if (s.marginals) {
        const T part = warp_sum(e);
        if ((threadIdx.x & 31) == 0) atomicAdd(row_sums + (size_t)t * s.rows + row, part);
      }
    }
  }
  if (s.marginals && n < s.columns) atomicAdd(column_sums + (size_t)t * s.columns + n, found.sum);
  found.finish(slots, line_slots, (size_t)t * s.slots + slot_number());
}

// length[group][n], rising; rows in any order; s.low..s.high are places in the list of rows.
template <int D>
__device__ __forceinline__ void rect_any(const Banks& banks, const int* length, const T* bases, T bound,
                                         const Lines& lines, const Shape& s, const int* row_of, const int* first_of,
                                         const int* group_of, const int* skip, T* map, T* row_sums, T* column_sums,
                                         Slot* slots, Slot* line_slots) {
  const int at = s.low + blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
  const bool active = at < s.high;
  const int i0 = min(at, s.high - 1), row = row_of[i0], first = first_of[i0], group = group_of[i0];
  const int* wanted = length + (size_t)group * s.columns;
  const int most = s.n - first, from = skip[group];
  const T base = bases[t];
  const size_t mine = 2 * ((size_t)t * s.stored + first);
  Sums sums[1 + D];
  Cell cell[1 + D];
#pragma unroll
  for (int i = 0; i <= D; i++) sums[i].clear();
  Found<D> found;
  found.begin();
  int done = 0;
  for (int n = 0; n < s.columns; n++) {
    const int until = min(wanted[n], most);
    for (; done < until; done++) {
#pragma unroll
      for (int i = 0; i <= D; i++) {
        const Quad* p = banks.rows[i] + mine + 2 * done;
        const Quad q = p[0];
        sums[i].A += q.x;
        sums[i].B += q.y;
        sums[i].C += q.z;
        add(sums[i].S, p[1]);
      }
    }
    T F = 0, each[D ? D : 1];
#pragma unroll
    for (int i = 0; i <= D; i++) {
      cell[i] = cell_of(sums[i], bound);
      if (i == 0)
        F = fstat(cell[0], sums[0].S);
      else
        each[i - 1] = fstat(cell[i], sums[i].S);
    }
    T e = 0;
    if (active && n >= from) {
      e = power_of_two(fma(F, LOG2E, -base));
      found.take(F, D ? robust<D>(F, each, lines) : (T)0, cell[0].good, row, n);
      if (map) map[((size_t)t * s.rows + row) * s.pitch + n] = F;
    }
    found.sum += e;
    if (s.marginals) {
      const T part = warp_sum(e);
      if ((threadIdx.x & 31) == 0) atomicAdd(column_sums + (size_t)t * s.columns + n, part);
    }
  }
  if (s.marginals && active) row_sums[(size_t)t * s.rows + row] = found.sum;
  found.finish(slots, line_slots, (size_t)t * s.slots + slot_number());
}

#define EXP_ARGUMENTS                                                                                                 \
  Banks banks, const int *length, const T *weights, const T *bases, T bound, Lines lines, Shape s, const int *row_of, \
      const int *first_of, const int *group_of, const unsigned char *more, const int *skip, T *map, T *row_sums,      \
      T *column_sums, Slot *slots, Slot *line_slots
#define EXP_NAMES                                                                                                     \
  banks, length, weights, bases, bound, lines, s, row_of, first_of, group_of, more, skip, map, row_sums, column_sums, \
      slots, line_slots
extern "C" __global__ void __launch_bounds__(128) exp_any0(EXP_ARGUMENTS) { exp_any<0>(EXP_NAMES); }
extern "C" __global__ void __launch_bounds__(128) exp_any1(EXP_ARGUMENTS) { exp_any<1>(EXP_NAMES); }
extern "C" __global__ void __launch_bounds__(128) exp_any2(EXP_ARGUMENTS) { exp_any<2>(EXP_NAMES); }
extern "C" __global__ void __launch_bounds__(128) exp_any_most(EXP_ARGUMENTS) { exp_any<MOST_DETECTORS>(EXP_NAMES); }

#define RECT_ARGUMENTS                                                                                             \
  Banks banks, const int *length, const T *bases, T bound, Lines lines, Shape s, const int *row_of,                \
      const int *first_of, const int *group_of, const int *skip, T *map, T *row_sums, T *column_sums, Slot *slots, \
      Slot *line_slots
#define RECT_NAMES \
  banks, length, bases, bound, lines, s, row_of, first_of, group_of, skip, map, row_sums, column_sums, slots, line_slots
extern "C" __global__ void __launch_bounds__(128) rect_any0(RECT_ARGUMENTS) { rect_any<0>(RECT_NAMES); }
extern "C" __global__ void __launch_bounds__(128) rect_any1(RECT_ARGUMENTS) { rect_any<1>(RECT_NAMES); }
extern "C" __global__ void __launch_bounds__(128) rect_any2(RECT_ARGUMENTS) { rect_any<2>(RECT_NAMES); }
extern "C" __global__ void __launch_bounds__(128) rect_any_most(RECT_ARGUMENTS) {
  rect_any<MOST_DETECTORS>(RECT_NAMES);
}

// Windows that are sums of polynomials times exponentials, on any grid, of any number of detectors: recurrences in
// float64.
//
// With y_j = j h, h = T / tau, the moments m_d(c) = sum_j y_j^d / d! exp(-r y_j) x_(c + j) of one rate r obey
//   m_d(c) = exp(-r h) sum_(i <= d) h^i / i! m_(d - i)(c + 1) + [d = 0] x_c - leave_d x_(c + L),
// leave_d = (L h)^d / d! exp(-r L h).  The window is a sum of such moments, and its square another one.  Of two
// conjugate rates only one is computed, with twice its coefficients, and the real part is used.  A start `offset`
// seconds before its first bin has other coefficients of the same moments.
// Layout: a block has 7 warps, one for each sum (those of the squares first), and 32 taus.  It moves the start down, 7
//   rows at a time: each warp writes its sums of 7 rows to shared memory and then evaluates one of the rows.  To bound
//   rounding errors where nothing decays, the sums are computed again after 4 times the longest window of the block.
// Cost: 2 float64 operations per moment, set of sums and bin; 30 operations per cell in REAL.
// Limit: float64 multiply-adds, or their latency.
//
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// build: tone -DREAL=float -DCOMPLEX=1 -DRATES=1 -DDEGREES=1 -DRATES2=2 -DDEGREES2=1 -DBANKS=3
// build: poly -DREAL=float -DRATES=1 -DDEGREES=4 -DRATES2=1 -DDEGREES2=7
// budget: f32 kernel=sum_march regs<=136
// budget: tone kernel=sum_march spills<=64
// split: no
#include "common.cuh"
#include "lines.cuh"

#ifndef COMPLEX
#define COMPLEX 0
#endif
#ifndef RATES
#define RATES 2
#define DEGREES 1  // coefficients of a polynomial
#define RATES2 3
#define DEGREES2 1
#endif
#ifndef BANKS
#define BANKS 1  // all detectors together, and each
#endif
#define TILE 7
#define RENEW 4
#define SOONEST 64

#if COMPLEX
struct Num {
  double re, im;
};
__device__ __forceinline__ Num number(double re, double im) {
  Num a;
  a.re = re;
  a.im = im;
  return a;
}
__device__ __forceinline__ Num times(Num a, Num b) {
  return number(fma(a.re, b.re, -a.im * b.im), fma(a.re, b.im, a.im * b.re));
}
__device__ __forceinline__ Num enlarge(Num s, double f, Num a) {
  return number(fma(f, a.re, s.re), fma(f, a.im, s.im));
}
__device__ __forceinline__ double real_product(Num a, Num b) { return fma(a.re, b.re, -a.im * b.im); }
__device__ __forceinline__ Num decay(Num rate, double y) {
  const double size = exp(-rate.re * y);
  return number(size * cos(rate.im * y), -size * sin(rate.im * y));
}
#else
typedef double Num;
__device__ __forceinline__ Num number(double re, double) { return re; }
__device__ __forceinline__ Num times(Num a, Num b) { return a * b; }
__device__ __forceinline__ Num enlarge(Num s, double f, Num a) { return fma(f, a, s); }
__device__ __forceinline__ double real_product(Num a, Num b) { return a * b; }
__device__ __forceinline__ Num decay(Num rate, double y) { return exp(-rate * y); }
#endif

// Moments of one of the seven sums, of every bank, at one tau.
template <int K, int D>
struct Moments {
  Num m[BANKS][K][D], q[K], leave[K][D], out[K][D];
  double shift[D];
  const Num* terms;  // K rates, then K times D coefficients times d!
  __device__ __forceinline__ void begin(const Num* given, double h, int L) {
    terms = given;
    const double end = L * h;
    shift[0] = 1;
#pragma unroll
    for (int d = 1; d < D; d++) shift[d] = shift[d - 1] * h / d;
#pragma unroll
    for (int k = 0; k < K; k++) {
      q[k] = decay(terms[k], h);
      Num at = decay(terms[k], end);
#pragma unroll
      for (int d = 0; d < D; d++) {
        leave[k][d] = at;
        at = times(at, number(end / (d + 1), 0));
      }
    }
  }
  // Coefficients for starts `offset` (in tau) before their first bin.
  __device__ __forceinline__ void offset_by(double offset) {
#pragma unroll
    for (int k = 0; k < K; k++) {
      const Num size = decay(terms[k], offset);
#pragma unroll
      for (int l = 0; l < D; l++) {
        Num sum = number(0, 0);
        double power = 1;
#pragma unroll
        for (int d = l; d < D; d++) {
          sum = enlarge(sum, power, terms[K + k * D + d]);
          power *= offset / (d - l + 1);
        }
        out[k][l] = times(size, sum);
      }
    }
  }
  __device__ __forceinline__ void clear(int b) {
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int d = 0; d < D; d++) m[b][k][d] = number(0, 0);
  }
  __device__ __forceinline__ void enter(int b, double x) {
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
      for (int d = D - 1; d >= 0; d--) {
        Num t = m[b][k][d];
#pragma unroll
        for (int i = 1; i <= d; i++) t = enlarge(t, shift[i], m[b][k][d - i]);
        m[b][k][d] = times(q[k], t);
      }
      m[b][k][0] = enlarge(m[b][k][0], x, number(1, 0));
    }
  }
  __device__ __forceinline__ void lose(int b, double x) {
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int d = 0; d < D; d++) m[b][k][d] = enlarge(m[b][k][d], -x, leave[k][d]);
  }
  // The sum, with an additional bin of value `more` at the end.
  __device__ __forceinline__ double value(int b, double more) const {
    double total = 0;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int d = 0; d < D; d++) total += real_product(out[k][d], enlarge(m[b][k][d], more, leave[k][d]));
    return total;
  }
};

#define SUM_ARGUMENTS                                                                                             \
  const Quad *rows, const int *length, const double *taus, int tatom, const Num *terms, const int *offsets,       \
      const T *bases, T bound, Lines lines, Shape s, const int *row_of, const int *first_of, const int *group_of, \
      const unsigned char *more, const int *skip, T *map, T *row_sums, T *column_sums, Slot *slots, Slot *line_slots
#define SUM_NAMES                                                                                                 \
  rows, length, taus, tatom, terms, offsets, bases, bound, lines, s, row_of, first_of, group_of, more, skip, map, \
      row_sums, column_sums, slots, line_slots

// rows[bank][template][bin][2]; rows of the map in falling order of their first bin, as for exp_any.
template <int K, int D>
__device__ __forceinline__ void march(SUM_ARGUMENTS, double (*sums)[7][TILE][32]) {
  const int lane = threadIdx.x & 31, stream = threadIdx.x >> 5, n = blockIdx.x * 32 + lane, t = blockIdx.y;
  const int m = min(n, s.columns - 1), last = min((int)(blockIdx.x * 32 + 32), s.columns) - 1;
  const int low = s.low + blockIdx.z * s.chunk, high = min(s.high, low + s.chunk);
  const int L = length[m], longest = length[last], period = max(SOONEST, RENEW * min(longest, s.n));
  const double tau = taus[m];
  const T base = bases[t];
  const size_t bank = (size_t)s.templates * 8 * s.stored;
  const T* const bins = (const T*)rows + (size_t)t * 8 * s.stored;
  const T* const mine = bins + (stream < 3 ? stream : stream + 1);
  Moments<K, D> v;
  v.begin(terms, tatom / tau, L);
  Found<BANKS - 1> found;
  found.begin();
  int c = 0, fresh = period, group = -1;
  for (int at = low; at < high; at += TILE) {
    const int top = first_of[at];
    if (!more && c == top + 1 && fresh + TILE < period && at + TILE <= high &&
        first_of[at + TILE - 1] == top - (TILE - 1) && group_of[at] == group && group_of[at + TILE - 1] == group) {
      // a row each bin, of one group: all loads at once
#pragma unroll
      for (int b = 0; b < BANKS; b++) {
        const T* const x = mine + b * bank + 8 * (size_t)top;
        const T* const away = bins + b * bank + 8 * (size_t)top + 3;
        T in[TILE], gone[TILE];
        bool none[TILE];
#pragma unroll
        for (int i = 0; i < TILE; i++) {
          in[i] = x[-8 * i];
          gone[i] = top - i + L < s.n ? x[8 * (L - i)] : (T)0;
          none[i] = away[-8 * i] >= (T)L;
        }
#pragma unroll
        for (int i = 0; i < TILE; i++) {
          v.enter(b, (double)in[i]);
          v.lose(b, (double)gone[i]);
          if (none[i]) v.clear(b);
          sums[b][stream][i][lane] = v.value(b, 0.0);
        }
      }
      c -= TILE;
      fresh += TILE;
    } else
      for (int i = 0; i < TILE && at + i < high; i++) {
        const int first = first_of[at + i];
        if (fresh >= period || c - first > longest) {
#pragma unroll
          for (int b = 0; b < BANKS; b++) v.clear(b);
#pragma unroll 4
          for (c = min(first + min(longest, s.n), s.n) - 1; c >= first; c--) {
#pragma unroll
            for (int b = 0; b < BANKS; b++) {
              const T x = mine[b * bank + 8 * (size_t)c];
              if (c < first + L) v.enter(b, (double)x);
            }
          }
          c = first;
          fresh = 0;
        }
        for (; c > first; fresh++) {
          c--;
#pragma unroll
          for (int b = 0; b < BANKS; b++) {
            const T* const x = mine + b * bank;
            v.enter(b, (double)x[8 * (size_t)c]);
            if (c + L < s.n) v.lose(b, (double)x[8 * (size_t)(c + L)]);
            if (bins[b * bank + 8 * (size_t)c + 3] >= (T)L) v.clear(b);  // no data in the window: clear the residue
          }
        }
        if (group_of[at + i] != group) {
          group = group_of[at + i];
          v.offset_by(offsets[group] / tau);
        }
        const bool longer = more && more[(size_t)group * s.columns + m] && c + L < s.n;
#pragma unroll
        for (int b = 0; b < BANKS; b++)
          sums[b][stream][i][lane] = v.value(b, longer ? (double)mine[b * bank + 8 * (size_t)(c + L)] : 0.0);
      }
    ptx::meet<1, 224>();
    if (at + stream < high) {
      const int row = row_of[at + stream];
      const bool wanted = n < s.columns && n >= skip[group_of[at + stream]];
      T F = 0;
      bool good = false;
      Against against;
      against.begin(lines.gauss);
#pragma unroll
      for (int b = 0; b < BANKS; b++) {
        double x[7];
#pragma unroll
        for (int i = 0; i < 7; i++) x[i] = sums[b][i][stream][lane];
        const Sums o = normalised(x[0], x[1], x[2], x[3], x[4], x[5], x[6]);
        const Cell cell = cell_of(o, bound);
        if (b == 0) {
          F = fstat(cell, o.S);
          good = cell.good;
        } else
          against.take(fstat(cell, o.S), lines.line[b - 1]);
      }
      T e = 0;
      if (wanted) {
        e = power_of_two(fma(F, LOG2E, -base));
        found.take(F, BANKS > 1 ? against.of(F) : (T)0, good, row, n);
        if (map) map[((size_t)t * s.rows + row) * s.pitch + n] = F;
      }
      found.sum += e;
      if (s.marginals) {
        const T part = warp_sum(e);
        if (lane == 0) atomicAdd(row_sums + (size_t)t * s.rows + row, part);
      }
    }
    ptx::meet<1, 224>();
  }
  if (s.marginals && n < s.columns) atomicAdd(column_sums + (size_t)t * s.columns + n, found.sum);
  found.finish(slots, line_slots, (size_t)t * s.slots + slot_number());
}

extern "C" __global__ void __launch_bounds__(224, 2) sum_march(SUM_ARGUMENTS) {
  extern __shared__ double pool[];
  double (*sums)[7][TILE][32] = (double (*)[7][TILE][32])pool;
  if (threadIdx.x < 96)
    march<RATES2, DEGREES2>(rows, length, taus, tatom, terms + RATES * (1 + DEGREES), offsets, bases, bound, lines, s,
                            row_of, first_of, group_of, more, skip, map, row_sums, column_sums, slots, line_slots,
                            sums);
  else
    march<RATES, DEGREES>(SUM_NAMES, sums);
}

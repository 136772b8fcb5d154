// Spreading of the points of a pair of bands over its cells, by the block that transforms them.
//
// The cells of a channel are divided into strips of 16. Points come in order of time; the 16 cells of a point
// begin in one strip and end in it or in the next. Two warps take the first half of the points, the other two
// the second half. Of each two, one spreads w and w y at f, the other w at 2f.
//
// Cost for 4 points of a warp: 30 instructions on the matrix units, and 25 more when points leave a strip.
// Without matrix units 64 (2f) and 88 (f).
#pragma once

// Points are spread by the matrix units if these are fast in float64. In float32 this is faster only if cells do
// not wind round the circle.
#if ON_DEVICE
constexpr bool MATRIX = (sizeof(T) == 8 || FOLD == 1) && FAST_DOUBLE_MATRICES;
#else
constexpr bool MATRIX = sizeof(T) == 8;
#endif
template <bool WIDE>
struct Strength {
  typedef T Number;
};
template <>
struct Strength<true> {
  typedef double Number;
};
typedef Strength<MATRIX>::Number S;

// The record of a point: w and w y of each band at f, w of each band at 2f (12 numbers), and two first cells.
// Records lie in the exchange area of the transforms and, with 8 combs, also where powers are staged later (a plane
// has 17 values for each 2 modes; there are 182 modes or more).
constexpr int RECORD = 12;
constexpr int ROOM = EXCHANGE * (int)sizeof(C) + (GROUP == 8 ? 17 * 91 * (int)sizeof(T) : 0);
constexpr int CHUNK = ROOM / (2 * (RECORD * (int)sizeof(S) + 8)) & ~7;  // points of a segment that are spread together

// Cells of a channel are stored with this bit of their index flipped, so that the stores of all channels fall on
// different banks.
__device__ __forceinline__ int flipped(int band, bool wy) { return MATRIX ? band * (sizeof(T) == 8 ? 4 : 8) + wy : 0; }
__device__ __forceinline__ int place_of(int i) {
  const int c = i % CELLS;
  return i ^ flipped(i / CELLS, c >= 256 * FOLD && c < 512 * FOLD);
}

struct Part {
  int seg, two, n0, mine;  // half of the points; whether at 2f; points of the first half, of this half
  int strips, own;         // strips of the channel; first strip of the second half
};

// Spreading by the matrix units, in float64: 16 cells x 4 points times 4 points x 8 columns (band, channel, real
// and imaginary part; at 2f half of them are idle), for the strip in which points begin and for the next one. A
// strip is stored once, when all points are beyond it; strips without points are stored as zeros. Row g of a
// product is cell 2 g, row g + 8 cell 2 g + 1, so that a lane's two weights are one load.
struct MatrixForm {
#ifdef RUNS
  static constexpr int AHEAD = 4;
#else
  static constexpr int AHEAD = 8;  // groups of 4 points whose weights are being loaded
#endif
  Tile sum, next;
  C* G;
  const C* weight;
  C ahead[AHEAD];
  int edge, at, q, g;
  bool stores;
  Part s;  // edge: first cell of the next strip
  __device__ __forceinline__ MatrixForm(C* grid, const Part& part) {
    const int lane = threadIdx.x & 31;
    s = part;
    q = lane & 3;
    g = lane >> 2;
    edge = 16 + (s.seg ? 16 * s.own : 0);
    stores = q < 2 || !s.two;
    sum = {0, 0, 0, 0};
    next = {0, 0, 0, 0};
    const int band = s.two ? q & 1 : q >> 1, wy = s.two ? 0 : q & 1;
    G = grid;
    at = band * CELLS + (s.two ? 512 : 256 * wy) * FOLD + edge - 16 + (2 * g ^ flipped(band, wy));
  }
  __device__ __forceinline__ void look_ahead(const T* weights, int m) {
    weight = (const C*)(weights + q * 16) + g;  // rows past the end are readable
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
      if (4 * (u & ~1) < m) ahead[u] = stream(weight + u * 32);
  }
  __device__ __forceinline__ void store() {
    if (stores) {
      G[at] = mk((T)sum.re0, (T)sum.re1);
      G[at ^ 1] = mk((T)sum.im0, (T)sum.im1);
    }
    at += 16;
    edge += 16;
    sum = next;
  }
  __device__ __forceinline__ void points(const S* record, const int* cells, int m) {
    const S* from = record + q * RECORD + (s.two ? 8 + (g & 3) : g);
    cells += q;
    const C* more = weight + 32 * AHEAD;
    int coming = cells[0];
    double value = from[0];
    for (int i0 = 0; i0 < m; i0 += 4 * AHEAD) {  // records of up to 7 points past the last one are zeros
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        const int cell = coming;
        const double z = value;
        coming = cells[4 * u + 4];
        value = from[(4 * u + 4) * RECORD];  // past the end: read, not used
        const double k0 = ahead[u].x, k1 = ahead[u].y;
        int x = edge + 2 * g - 16 - cell;  // taps 0 to 15 of the point fall on cells of this strip
        double2 part;
        part.x = (unsigned)x < 16u ? k0 : 0.0;
        part.y = (unsigned)(x + 1) < 16u ? k1 : 0.0;
        multiply(sum, part, z);
        while (__any_sync(FULL, cell >= edge)) {
          store();
          x += 16;
          part.x = (unsigned)x < 16u ? k0 : 0.0;
          part.y = (unsigned)(x + 1) < 16u ? k1 : 0.0;
          multiply(sum, part, z);
          next = {0, 0, 0, 0};
        }
        part.x = x < 0 ? k0 : 0.0;
        part.y = x < -1 ? k1 : 0.0;
        multiply(next, part, z);
        if (i0 + 4 * (AHEAD + (u & ~1)) < m) ahead[u] = stream(more + u * 32);
        if ((u & 1) && u < AHEAD - 1 && i0 + 4 * u + 4 >= m) break;
      }
      cells += 4 * AHEAD;
      from += 4 * AHEAD * RECORD;
      more += 32 * AHEAD;
    }
  }
  __device__ __forceinline__ void end() {
    for (int last = 16 * (s.seg ? s.strips : s.own); edge <= last;) {
      store();
      next = {0, 0, 0, 0};
    }
    __syncthreads();
    if (s.seg || s.own == s.strips || !stores) return;
    add(sum);  // sums of the first half for strips of the second half
    at += 16;
    if (s.own + 1 < s.strips) add(next);
  }
  __device__ __forceinline__ void add(const Tile& t) {
    const C x = G[at], y = G[at ^ 1];
    G[at] = mk(x.x + (T)t.re0, x.y + (T)t.re1);
    G[at ^ 1] = mk(y.x + (T)t.im0, y.y + (T)t.im1);
  }
};

// Spreading without matrix units: half a warp is a band. Lane a keeps the sum of the one cell with (cell mod 16) =
// a within reach of the current point, and stores it when the points move beyond this cell.
struct PlainForm {
  C acc, acc2;
  C* G;
  const T* weight;
  int now, a, h;
  Part s;
  T ahead[8];
  __device__ __forceinline__ PlainForm(C* grid, const Part& part) {
    const int lane = threadIdx.x & 31;
    s = part;
    a = lane >> 1;
    h = lane & 1;
    now = -1;
    acc = acc2 = mk(0, 0);
    for (int i = threadIdx.x; i < 2 * CELLS; i += THREADS) grid[i] = mk(0, 0);
    G = grid + h * CELLS + s.two * (512 * FOLD);
  }
  __device__ __forceinline__ void look_ahead(const T* weights, int m) {
    weight = weights + a;  // rows past the end are readable
    if (m <= 0) return;
#pragma unroll
    for (int u = 0; u < 8; u++) ahead[u] = stream(weight + u * 16);
  }
  template <bool TWO>
  __device__ __forceinline__ void all(const S* record, const int* cells, int m) {
    record += TWO ? 8 + 2 * h : 4 * h;
    if (now < 0) now = cells[0] + ((a - cells[0]) & 15);
    for (int i0 = 0; i0 < m; i0 += 8) {
      T k[8];
#pragma unroll
      for (int u = 0; u < 8; u++) {
        k[u] = ahead[u];
        ahead[u] = stream(weight + (i0 + 8 + u) * 16);
      }
#pragma unroll
      for (int u = 0; u < 8; u += 4) {
        const int4 four = *(const int4*)(cells + i0 + u);
        const int c[4] = {four.x, four.y, four.z, four.w};
        C s1[4], s2[4];
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const C* z = (const C*)(record + (i0 + u + v) * RECORD);
          s1[v] = z[0];
          s2[v] = TWO ? mk(0, 0) : z[1];
        }
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const int to = c[v] + ((a - c[v]) & 15);
          if (to != now) {
            G[now] = acc;
            acc = mk(0, 0);
            if (!TWO) {
              G[now + 256 * FOLD] = acc2;
              acc2 = mk(0, 0);
            }
            now = to;
          }
          acc.x = fma(k[u + v], s1[v].x, acc.x);
          acc.y = fma(k[u + v], s1[v].y, acc.y);
          if (!TWO) {
            acc2.x = fma(k[u + v], s2[v].x, acc2.x);
            acc2.y = fma(k[u + v], s2[v].y, acc2.y);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void points(const S* record, const int* cells, int m) {
    if (m <= 0) return;
    if (s.two)
      all<true>(record, cells, m);
    else
      all<false>(record, cells, m);
  }
  __device__ __forceinline__ void end() {
    if (s.seg && s.mine > 0) {
      G[now] = acc;
      if (!s.two) G[now + 256 * FOLD] = acc2;
    }
    __syncthreads();
    if (s.seg) return;
    C g = G[now];
    G[now] = mk(g.x + acc.x, g.y + acc.y);
    if (!s.two) {
      g = G[now + 256 * FOLD];
      G[now + 256 * FOLD] = mk(g.x + acc2.x, g.y + acc2.y);
    }
  }
};
template <bool>
struct FormOf {
  typedef PlainForm Form;
};
template <>
struct FormOf<true> {
  typedef MatrixForm Form;
};

// Spreads the n > 0 points from lo on for two bands; `centre` is the centre of the band of this lane's parity.
// Weights are requested before strengths are computed.
__device__ __forceinline__ void spread_points(const Comb& A, C* grid, void* room, int lo, int n, Frequency centre) {
  S* record = (S*)room;                              // [half][CHUNK][RECORD]
  int* cells = (int*)(record + 2 * CHUNK * RECORD);  // at f, then at 2f; [half][CHUNK] each
  const int warp = threadIdx.x >> 5, b = threadIdx.x & 1;
  Part s;
  s.seg = warp >> 1;
  s.n0 = min(n, (((n + 1) >> 1) + 7) & ~7);
  s.mine = s.seg ? n - s.n0 : s.n0;
  s.two = (warp ^ blockIdx.x) & 1;  // by turns: a warp's number decides on its quarter of the multiprocessor
  s.strips = s.own = (s.two ? 32 : 16) * FOLD;
  if (n > s.n0) {
    const int2 c = A.cell[lo + s.n0];
    s.own = (s.two ? c.y : c.x) >> 4;
  }
  FormOf<MATRIX>::Form form(grid, s);
  for (int c0 = 0; c0 < s.n0; c0 += CHUNK) {
    const int left0 = s.n0 - c0, left1 = n - s.n0 - c0, m = min(CHUNK, s.mine - c0);
    const int count0 = min(CHUNK, (left0 + 7) & ~7), count = count0 + max(0, min(CHUNK, (left1 + 7) & ~7));
    form.look_ahead((s.two ? A.at_2f : A.at_f) + (size_t)(lo + (s.seg ? s.n0 : 0) + c0) * 16, m);
    if (c0) __syncthreads();
    for (int e = threadIdx.x >> 1; e < count; e += THREADS / 2) {
      const bool second = e >= count0;
      const int i = second ? e - count0 : e, left = second ? left1 : left0, slot = second ? CHUNK + i : i;
      const int p = lo + (second ? s.n0 : 0) + c0 + min(i, left - 1);
      const double2 wv = A.wv[p];
      const T w = i < left ? (T)wv.x : (T)0, v = i < left ? (T)wv.y : (T)0;
      if (!b) {
        const int2 c = A.cell[p];
        cells[slot] = c.x;
        cells[2 * CHUNK + slot] = c.y;
      }
      T si, co;
      sincos_cycles(cycles(centre, A.tp[p]), si, co);
      const T wm = w * (T)A.mean,
              half = (T)0.5 * w;  // without a floating mean its channel is empty; CC, SS, CS want w / 2
      S* to = record + slot * RECORD + 4 * b;
      to[0] = wm * co;
      to[1] = wm * si;
      to[2] = v * co;
      to[3] = v * si;
      to += 8 - 2 * b;
      to[0] = half * (co * co - si * si);
      to[1] = 2 * half * co * si;
    }
    __syncthreads();
    form.points(record + s.seg * CHUNK * RECORD, cells + (2 * s.two + s.seg) * CHUNK, m);
  }
  form.end();
}

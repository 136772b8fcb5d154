// Banded comb NUFFT for one sinusoid, fused from prepared light curves to normalised powers and peak
// candidates.
//
// Frequencies of an object: f0 + (band * MP + P q + r) df, where MP = modes * P. Comb r = 0..P-1 has spacing P
// df, with which the series fills the circle of a 256-point FFT. FOLD: number of circles round which the cells
// at f wind, for time spans that would otherwise leave too few combs.
//
// Layout: one block (4 warps) computes S of the P combs of two neighbouring bands of one object. Half a warp
// (the lanes of one parity) does one 256-point FFT as 16 x 16, with 16 elements a thread; the two half warps of
// a warp read the same cells. Strengths (w and w y at f, w at 2f) are spread once for all combs
// (sinusoid/strips.cuh): the offset of a comb is a shift of the DFT's output index, which its twiddle factors
// absorb. A power depends only on its object and on the tables of its comb, not on how combs are divided among
// blocks or objects among launches.
//
// Peaks are found in one of three ways. Flat (P = GROUP): all combs are staged at once, so that a block holds
// the powers of neighbouring frequencies. It passes its first and last power to the neighbouring blocks through
// device memory. COLUMNS: combs are staged 8 at a time, and a thread follows the powers of its columns from
// comb to comb. RUNS (if no power is written): half a warp does neighbouring combs one after another, and every
// lane compares its own powers, without a barrier. COLUMNS and RUNS exist in float32 only. Their blocks compute
// two more combs than they own, so that every power has its neighbours, and ls_spread spreads their long
// series.
//
// Cost for one frequency: 3 channels x 384 FMA x 16 / modes, and about 30 for folding and the power: 122 in
// float64. Spreading takes 192 FMA for a point and pair of bands. Device memory: the inputs are read once
// (64-130 bytes for a point and pair of bands, from the second-level cache), the powers written once.
// Limit: latency at 168 to 255 registers a thread, 8 to 12 warps on a multiprocessor. In float64 (flat) the
// FFTs take 60% of the time, spreading 15%, strengths 8%, peaks 9%.
//
// archs: 75 80 86 89 90 100 120
// build: f64 -DREAL=double -DMINB=3 -DSPLIT -DRELOAD -DDERIVE=2 -DROLLED
// build: f64p4 -DREAL=double -DMINB=3 -DSPLIT -DRELOAD -DDERIVE=2 -DROLLED -DGROUP=4
// build: f64x2 -DREAL=double -DMINB=2 -DSPLIT -DRELOAD -DROLLED -DFOLD=2
// build: f64x4p4 -DREAL=double -DMINB=1 -DSPLIT -DRELOAD -DDERIVE=2 -DROLLED -DFOLD=4 -DGROUP=4
// build: f32 -DREAL=float -DMINB=4 -DROLLED -DRELOAD
// build: f32p4 -DREAL=float -DMINB=4 -DROLLED -DGROUP=4
// build: f32columns -DREAL=float -DMINB=4 -DCOLUMNS
// build: f32runs -DREAL=float -DMINB=4 -DRUNS
// build: f32x2 -DREAL=float -DMINB=3 -DFOLD=2
// build: f32x4p4 -DREAL=float -DMINB=2 -DFOLD=4 -DGROUP=4
// budget: f64 kernel=ls_comb regs<=168 smem<=64 spills<=160
// budget: f64p4 kernel=ls_comb regs<=168 smem<=64 spills<=160
// budget: f64x2 kernel=ls_comb regs<=255 smem<=64
// budget: f64x4p4 kernel=ls_comb regs<=255 smem<=64
// budget: f32 kernel=ls_comb regs<=128 smem<=64 spills<=32
// budget: f32p4 kernel=ls_comb regs<=128 smem<=64 spills<=32
// budget: f32columns kernel=ls_comb regs<=128 smem<=64 spills<=128
// budget: f32runs kernel=ls_comb regs<=128 smem<=0 spills<=64
// budget: f32x2 kernel=ls_comb regs<=168 smem<=64 spills<=32
// budget: f32x4p4 kernel=ls_comb regs<=255 smem<=64
#include "common.cuh"
#include "samples/dft.cuh"
#include "samples/loads.cuh"
#include "samples/tiles.cuh"

#ifndef MINB
#define MINB 3  // blocks a multiprocessor
#endif
#ifndef DERIVE
#define DERIVE 0  // constants of a DFT: 0 all loaded, 1 half, 2 one
#endif
#ifndef FOLD
#define FOLD 1  // circles round which the cells at f wind; at 2f twice as many
#endif
#define ND 13  // outputs a thread: at most 208 modes of 256
#define NW 4
#ifndef GROUP
#define GROUP 8  // combs staged together: 8, or 4 if no more fit
#endif
#define LG (GROUP == 8 ? 3 : 2)
#define THREADS (32 * NW)
#define CELLS (1024 * FOLD)  // of one band: w 256, wy 256, w at 2f 512, each times FOLD
// Size of a half warp's exchange area. Lanes 2 a and 2 a + 1 are thread a of the two half warps: the odd part of
// the stride puts them, and their neighbours, on different banks, whether elements have 16 bytes or 8.
#define PAD (16 * 17 + (sizeof(Exchange) == 16 ? 4 : 8))
#ifdef SPLIT  // exchange real parts, then imaginary parts: half the space
#define EXCHANGE (NW * PAD)
#else
#define EXCHANGE (2 * NW * PAD)
#endif

struct Comb {
  const double* tp;
  const double2* wv;
  const int2* cell;
  const T* at_f;
  const T* at_2f;
  const int* offsets;
  const Info* info;
  const int* order;
  const int2* tasks;
  const C* spread;
  const C* first;
  const C* second;
  const C* fold;
  const T* deconvolve;
  const double* f0;
  const double* df;
  const int* nf;
  const long long* start;
  T* power;
  Peaks peaks;
  Guard guard;
  double mean;
  int modes, P, S, pairs, members, group, blocks, grid_stride, norm, scaled, zero, edges;
};

#ifdef SPLIT
typedef T Exchange;
#else
typedef C Exchange;
#endif
#include "sinusoid/strips.cuh"

// Staged powers: four combs make a plane, and a column of a plane has 4 values. One value of padding after every 4
// columns puts the 16 values that a half warp stores on different banks. The last plane of the flat form overlaps
// the cells, which are no longer needed then.
struct Stage {
  T* first;
  T* last;
  __device__ __forceinline__ T* row(int column, int plane) const {
    return (GROUP == 4 || plane ? last : first) + 4 * column + (column >> 2);
  }
  __device__ __forceinline__ T& operator()(int column, int g) const { return row(column, g >> 2)[g & 3]; }
  __device__ __forceinline__ T& flat(int i) const { return (*this)(i >> LG, i & (GROUP - 1)); }
};
#define PLANE(columns) (17 * (((columns) + 3) / 4))

// Half a warp computes the powers of one comb of the band whose cells begin at g0; thread a of 16 gets outputs a +
// 16 d. The other half warp does another comb from the same cells: if pairs of lanes read one address, the load
// costs half as much (measured; only for lanes 2 or 1 apart). odd: whether some powers are suspicious; with RUNS, a
// mask of the suspicious ones (bit d).
#ifdef RUNS
typedef unsigned Odd;
#else
typedef bool Odd;
#endif
__device__ __forceinline__ void comb_powers(const Comb& A, const C* g0, Exchange* ex, int comb, int a, T guard,
                                            T (&p)[ND], Odd& odd) {
  const C* Us = A.first + comb * 8;
  const C* Vs = A.second + comb * 128 + a;
  const T* D = A.deconvolve + comb * (16 * ND) + a;
  C v[16];
  T q2[ND], q3[ND];
  int zo = 0;
  auto ku = [&](int i) { return table(Us + zo + i); };
  auto kv = [&](int i) { return table(Vs + zo + i * 16); };
#ifdef ROLLED
#pragma unroll 1
#else
#pragma unroll
#endif
  for (int ch = 0; ch < 3; ch++) {
#ifdef RELOAD
    zo = ch * A.zero;
#endif
    const C* from = g0 +
                    (ch == 0   ? 512 * FOLD
                     : ch == 1 ? 0
                               : 256 * FOLD) +
                    (a ^ flipped(threadIdx.x >> 5 & 1, ch == 2));
    const int circles = ch == 0 ? 2 * FOLD : FOLD;  // cell c + 256 m folds on cell c with fold^m
#pragma unroll
    for (int j = 0; j < 16; j++) v[j] = from[16 * j];
    if (circles > 1) {
      const C turn = table(A.fold + comb + zo);
      C k = turn;
      for (int m = 1; m < circles; m++) {
#pragma unroll
        for (int j = 0; j < 16; j++) v[j] = plus_times(v[j], k, from[256 * m + 16 * j]);
        k = mk(k.x * turn.x - k.y * turn.y, k.x * turn.y + k.y * turn.x);
      }
    }
    dft16<DERIVE == 2 ? 1 : DERIVE>(v, ku);
#ifdef SPLIT
    transpose_parts(ex, v, a);
#else
    transpose_whole(ex, v, a);
#endif
    dft16<DERIVE>(v, kv);
    if (ch == 0) {
#pragma unroll
      for (int d = 0; d < ND; d++) {
        const T k = table(D + zo + 16 * d);
        p[d] = k * v[place(d)].x;
        q2[d] = k * v[place(d)].y;
      }
    } else if (ch == 1) {
#pragma unroll
      for (int d = 0; d < ND; d++) {
        const T k = table(D + zo + 16 * d), c = k * v[place(d)].x, z = k * v[place(d)].y;
        const T cc = fma(-c, c, (T)0.5 + p[d]), ss = fma(-z, z, (T)0.5 - p[d]), cs = fma(-c, z, q2[d]);
        const T det = fma(cc, ss, -cs * cs);
        const bool sound = det > guard;
        const T r = sound ? k * k * reciprocal(det) : missing();  // suspicious powers are computed exactly later
        const bool again = !sound && (d < ND - 1 || a + 16 * d < A.modes);
#ifdef RUNS
        odd |= again ? 1u << d : 0u;
#else
        odd |= again;
#endif
        p[d] = ss * r;
        q2[d] = cc * r;
        q3[d] = (T)-2 * cs * r;
      }
    } else {
#pragma unroll
      for (int d = 0; d < ND; d++) {
        const T c = v[place(d)].x, z = v[place(d)].y;
        p[d] = fma(fma(p[d], c, q3[d] * z), c, q2[d] * z * z);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MINB) ls_comb(const __grid_constant__ Comb A) {
  extern __shared__ __align__(16) unsigned char raw[];
  C* grid = (C*)raw;               // two bands of CELLS
  C* exchange = grid + 2 * CELLS;  // FFT exchange; strengths and first cells during the spreading
  T* staged = (T*)(exchange + EXCHANGE);
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, h = lane & 1,
            a = lane >> 1;  // half warps are lanes of one parity
#if defined(COLUMNS) || defined(RUNS)
  const int block = blockIdx.x % A.blocks;
  int task = blockIdx.x / A.blocks, pair, o;
#else  // all P = GROUP combs
  int task = blockIdx.x, pair, o;
#endif
  if (A.tasks) {
    const int2 t = A.tasks[task];
    o = t.x;
    pair = t.y;
  } else {
    const int2 t = member_and_stretch(task, A.group, A.pairs, A.members);
    o = A.order[t.x];
    pair = t.y;
    task = t.x * A.pairs + pair;
  }
  const int lo = A.offsets[o], n = A.info[o].n, gi = o * A.grid_stride, nf = A.nf[gi];
  const double f0 = A.f0[gi], df = A.df[gi];
#if defined(COLUMNS) || defined(RUNS)
  const int P = A.P, modes = A.modes, r0 = block * A.S, send = min(A.S, P - r0);
#else
  const int P = GROUP, modes = A.modes, r0 = 0, send = P;
#endif
  const int band = modes * P, base = 2 * pair * band,
            columns = 2 * modes;  // no more than 2^30 frequencies, so int will do
  if (A.info[o].status != 0) {    // no answer: NaN, where powers are written
    if (A.power)
      for (int i = tid; i < columns * send; i += THREADS) {
        const int k = base + (i / send) * P + r0 + i % send;
        if (k < nf) A.power[A.start[o] + k] = missing();
      }
    return;
  }

#if defined(COLUMNS) || defined(RUNS)
  if (n > LONG) {  // from ls_spread
    const C* in = A.spread + (size_t)task * 2 * CELLS;
    for (int i = tid; i < 2 * CELLS; i += THREADS) grid[place_of(i)] = in[i];
  } else
#endif
  {
    const Frequency centre = frequency_of(f0, (double)(base + (tid & 1) * band + (modes >> 1) * P), df);
    spread_points(A, grid, exchange, lo, n, centre);
  }
  __syncthreads();

  Exchange* ex = (Exchange*)exchange + (warp * 2 + h) * PAD;
  const C* g0 = grid + (warp & 1) * CELLS;  // a warp has one band
  const T guard = guard_of(A.guard, n);

#ifdef RUNS
  // A half warp computes the run of combs that it searches and one more on either side: combs s0 .. s1 + 1 for
  // peaks at s0 + 1 .. s1. Powers are compared by their keys. The powers of the last two combs are kept in shared
  // memory, for the few of them that may be peaks.
  const int each = (send + NW - 1) / NW, s0 = (warp & ~1 | h) * each, s1 = min(s0 + each, send);
  T* ring = staged + warp * (2 * 2 * 16 * ND) + lane;  // this lane's powers of the last two combs, [2][ND][32]
  const int k0 = base + ((warp & 1) * modes + a) * P + r0 + s0;  // index of the frequency of output a at comb s0
  // Columns that are multiples of `stride` (it divides 16) have peaks two exclusion lengths apart.
  const int least = 1 + (int)((2ll * min(A.info[o].exclusion, 100000000) + each) / P);
  const int stride = least <= 2 ? 2 : least <= 4 ? 4 : least <= 8 ? 8 : 33;
  unsigned known = floor_now(A.peaks, o), rising = 0, best[4] = {0, 0, 0, 0};  // best peaks of quarters of the outputs
  for (int s = 0; s < each + 2; s++) {
    const bool mine = s0 + s < s1 + 2 && s0 < s1;  // the other half may have more to do
    T p[ND];
    Odd odd = 0;
    comb_powers(A, g0, ex, min(r0 + s0 + s, P + 1), a, guard, p, odd);
#pragma unroll 1
    for (unsigned left = warp_or(mine ? odd : 0u); left; left &= left - 1) {
      const int d = __ffs(left) - 1;
      T here = 0;
#pragma unroll
      for (int e = 0; e < ND; e++)
        if (e == d) here = p[e];
      const int k = k0 + 16 * d * P + s;
      const bool missed = !(here == here) && mine && a + 16 * d < modes && k < nf;
      here = mend_lanes(A, lo, n, gi, k, __ballot_sync(FULL, missed), here);
#pragma unroll
      for (int e = 0; e < ND; e++)
        if (e == d) p[e] = here;
    }
    const bool inside = base + 2 * band + P <= nf;  // all powers here exist
    T* now = ring + (s & 1) * (32 * ND);
    T* old = ring + (~s & 1) * (32 * ND);
    if (s == 0) rising = k0 == 0 ? 1u : 0u;  // only the very first power has no neighbour on its left
#pragma unroll
    for (int d = 0; d < ND; d++) {
      if (a + 16 * d >= modes || !mine || (!inside && k0 + 16 * d * P + s >= nf)) p[d] = missing();
      const unsigned bit = 1u << d, z = key_bits(p[d]), y = key_at(old + 32 * d);
      if ((rising & bit) && y && y >= z && y >= known && s && mine) {  // keys are rounded: the test proper last
        const T before = s > 1 ? now[32 * d] : missing(), held = old[32 * d];
        if (is_peak(before, held, p[d])) {
          emit(A.peaks, o, k0 + 16 * d * P + s - 1, before, held, p[d]);
          best[4 * d / ND] = max(best[4 * d / ND], y);
        }
      }
      rising = z >= y && s ? rising | bit : s ? rising & ~bit : rising;
      now[32 * d] = p[d];
    }
    if ((s & 7) == 7) {  // the higher of a column's two runs; a lane does half of the outputs
      unsigned q[4];
#pragma unroll
      for (int i = 0; i < 4; i++) q[i] = max(best[i], __shfl_xor_sync(FULL, best[i], 1));
      const unsigned x = h ? q[2] : q[0], y = h ? q[3] : q[1];
      if (__any_sync(FULL, max(x, y) > known)) known = max(known, raise_floor(A.peaks, o, x, y, stride, a));
    }
  }
#else
  __shared__ int many;
  const int exclusion = A.info[o].exclusion;
#ifdef COLUMNS
  const Stage stage = {staged, staged + PLANE(columns)};
  T* kept = staged + 2 * PLANE(columns);  // of each column: the last power and the one before it, between groups
  for (int i = tid; i < 2 * columns; i += THREADS) kept[i] = missing();
  const int combs = send + 2;  // the combs that it searches (1 .. send) and one more on either side
#else
  const Stage stage = {staged, (T*)grid};
  const int combs = send;
#endif
  for (int done = 0; done < combs; done += GROUP) {
    const int count = min(GROUP, combs - done);
    bool odd = false;
    const unsigned known = floor_now(A.peaks, o);  // loaded early: this takes as long as a stage of a transform
#pragma unroll 1
    for (int pass = 0; pass < count;
         pass += NW) {  // two warps do the bands of combs pass and pass + 1, two those of the next
      const int g = pass + (warp & ~1 | h);
      T p[ND];
      comb_powers(A, g0, ex, min(r0 + done + g, P + 1), a, guard, p, odd);
#ifndef COLUMNS
      if (pass + NW >= count) __syncthreads();  // powers of the last combs overwrite the cells
#endif
      T* const to = &stage((warp & 1) * modes + a, g);  // 16 columns further on: 68 values
#pragma unroll
      for (int d = 0; d < ND; d++)
        if (a + 16 * d < modes && g < count) to[68 * d] = p[d];
    }
    if (__syncthreads_or(odd)) {  // compute the suspicious powers again
      const int first = base + r0 + done;
      auto index = [&](int i) { return first + (i >> LG) * P + (i & (GROUP - 1)); };
      mend(
          columns << LG, (int*)exchange, &many, A.tp + lo, A.wv + lo, n, A.f0[gi], A.df[gi], A.mean != 0,
          [&](int i) -> T& { return stage.flat(i); }, index,
          [&](int i) { return (i & (GROUP - 1)) < count && index(i) < nf; });
    }
    const double scale = A.info[o].scale;
    auto written = [&](int i) { return A.scaled ? normalise(stage.flat(i), scale, A.norm) : stage.flat(i); };
    // ---- staged powers: write them, look for local maxima
#ifndef COLUMNS
    const int total = min(columns << LG, nf - base);
    if (A.power) {
      T* out = A.power + (A.start[o] + base);
      for (int i = tid; i < total; i += THREADS) out[i] = written(i);
    }
    auto staged_at = [&](int i) { return stage.flat(i); };
    leave_edges(A.peaks.edge + ((size_t)o * A.edges + pair) * 2, total, staged_at);
    // A thread tests four columns. Set bits of `found`: the power is neither below a neighbour, nor below the
    // floor known when the block began.
    const int c0 = 4 * tid, i0 = c0 << LG, least = known ? (int)known : -0x7fffffff, none = -0x7fffffff;
    unsigned found = 0;
    if (i0 < total) {
      int x = i0 ? high_at(&stage.flat(i0 - 1)) : none, y = high_at(&stage(c0, 0)), z = 0;
#pragma unroll
      for (int u = 0; u < 4; u++) {
        const T* low = stage.row(c0, 0) + 4 * u;
        const T* high = stage.row(c0, 1) + 4 * u;
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
          const int i = (u << LG) + g;
          if (i + 1 < 4 * GROUP)
            z = high_at(g + 1 < GROUP ? (g + 1 < 4 ? low + g + 1 : high + g - 3) : low + 4);
          else
            z = i0 + i + 1 < total ? high_at(&stage.flat(i0 + i + 1)) : none;
          if (y >= x && y >= z && y >= least) found |= 1u << i;
          x = y;
          y = z;
        }
      }
      if (i0 + 4 * GROUP > total) {  // the end: there are no powers beyond it
        const int left = total - i0;
        found = (found & ((1u << left) - 1)) | 1u << (left - 1);
      }
    }
    give_stretch(A.peaks, o, base, i0, total, found, 1 + (2 * min(exclusion, 100000) + 4 * GROUP - 1) / (4 * GROUP),
                 known, staged_at);
#else
    if (A.power) {
      T* out = A.power + A.start[o];
      for (int i = tid; i < columns << LG; i += THREADS) {
        const int g = i & (GROUP - 1), k = base + (i >> LG) * P + r0 + done + g;
        if (done + g < send && k < nf) out[k] = written(i);
      }
    }
    unsigned best = 0;
    for (int col = tid; col < columns; col += THREADS) {
      const int k = base + col * P + r0 + done;  // index of the group's first frequency
      T before = kept[2 * col], held = kept[2 * col + 1];
      unsigned x = key_of(before), y = key_of(held);
#pragma unroll
      for (int g = 0; g < GROUP; g++) {
        if (g >= count) break;
        const T p = k + g < nf ? stage(col, g) : missing();
        const unsigned z = key_of(p);
        if (y && y >= x && y >= z && y >= known && (done + g > 1 || k + g == 1) &&
            is_peak(before, held, p)) {  // keys are rounded: the test proper last
          best = y > best ? y : best;
          emit(A.peaks, o, k + g - 1, before, held, p);
        }
        before = held;
        held = p;
        x = y;
        y = z;
      }
      kept[2 * col] = before;
      kept[2 * col + 1] = held;
    }
    const int stride = min(33, 1 + (int)((2ll * min(exclusion, 100000000) + GROUP) / P));
    if (__popc(__ballot_sync(FULL, best > known)) >= A.peaks.wanted) raise_floor(A.peaks, o, best, 0, stride);
    if (done + count < combs) __syncthreads();
#endif
  }
#endif
}

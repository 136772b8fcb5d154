// Noise of series by anchored blocks, boxcars, peaks: the rules of the CPU's detector, with the same bits.
//
// noise: level and scale = 64 / sigma.  Quartiles of integers by counts in up to 8192 bins, with finer bins around the
//   quartiles; of floats by ranks, 11 bits at a time, and equal samples are spread; means and variances by sums of 64
//   samples in order.  Operations that round are written as rounding operations, in the CPU's order.
//   Layout: a block of threads for a block of samples of a series, in shared memory if it fits.
// detect: fixed-point samples and their prefix sums in shared memory (32 bits that wrap: differences are exact).  First
//   it finds whether any window reaches the threshold: short ones one by one; for longer ones, the largest and smallest
//   prefix sums of stretches of 16 bound them, and the few stretches that may are examined.  Only where a window does,
//   it computes the best S/N over the widths of every sample, and the peaks; a warp looks whether a peak's window has
//   several, a lane for each width.  Only events are written to memory.
//   Layout: a block of threads for a piece of a series (all pieces, or those that glance.cu listed).
//
// Cost: per sample, where all pieces are examined, 4 bytes read twice; about 40 instructions for the noise, 40 for
//   prefix sums and their extremes, 20 for short windows, 1 for each longer one.
// Limit: instructions.
//
// archs: 75 80 86 89 90 100 120
// build: u32 -DSUM=u32
// build: i32 -DSUM=int
// build: f32 -DSUM=float -DREAL
// budget: u32 kernel=noise spills<=64
// budget: i32 kernel=noise spills<=64
// budget: u32 kernel=detect regs<=96 spills<=40
// budget: i32 kernel=detect regs<=96 spills<=40
// budget: f32 kernel=detect regs<=96 spills<=40
#include "detect.cuh"

#define THREADS 256
#define LIST 1024  // stretches that may hold a window over the threshold
#define INF __int_as_float(0x7f800000)
#define VALLEY 0.2f
#define POINTED 1.75f

#ifdef REAL
// A number that rises with v; that of -0 is that of 0.
__device__ __forceinline__ u32 key_of(float v) {
  const u32 b = __float_as_uint(__fadd_rn(v, 0.f));
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

__device__ __forceinline__ float value_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Quartile k of 0, 1, 2: the sample of rank n (k + 1) / 4, counted from 0.  Samples of the same value are spread as
// `spread` in cpu/detect.py does, operation for operation.
__device__ double quartile(const float* y, int n, int k, int* counts, int* part) {
  __shared__ u32 prefix, lower, higher;
  __shared__ int left;
  const int rank = (int)((i64)n * (k + 1) / 4);
  __syncthreads();
  if (threadIdx.x == 0) {
    prefix = 0;
    left = rank;
    lower = key_of(-INF);
    higher = key_of(INF);
  }
  for (int turn = 0; turn < 3; turn++) {
    const int shift = turn == 0 ? 21 : turn == 1 ? 10 : 0, bits = turn == 2 ? 10 : 11;
    for (int b = threadIdx.x; b < 2048; b += NOISE_THREADS) counts[b] = 0;
    __syncthreads();
    const u32 known = prefix;
    const int wanted = left;
    for (int i = threadIdx.x; i < n; i += NOISE_THREADS) {
      const u32 key = key_of(y[i]);
      if (turn == 0 || key >> (shift + bits) == known) atomicAdd(&counts[key >> shift & ((1u << bits) - 1)], 1);
    }
    __syncthreads();
    int mine = 0;
    for (int b = 0; b < 4; b++) mine += counts[4 * threadIdx.x + b];
    int total = scan(mine, part) - mine;
    for (int b = 0; b < 4; b++) {
      const int here = counts[4 * threadIdx.x + b];
      if (total <= wanted && wanted < total + here) {
        prefix = known << bits | (u32)(4 * threadIdx.x + b);
        left = wanted - total;
      }
      total += here;
    }
    __syncthreads();
  }
  const float v = value_of(prefix);
  const int equal = counts[prefix & 1023u];
  if (equal == 1) return v;
  float low = -INF, high = INF;
  for (int i = threadIdx.x; i < n; i += NOISE_THREADS) {
    const float x = y[i];
    if (x < v) low = fmaxf(low, x);
    if (x > v) high = fminf(high, x);
  }
  atomicMax(&lower, key_of(low));
  atomicMin(&higher, key_of(high));
  __syncthreads();
  double below = __dmul_rn(0.5, __dsub_rn(v, value_of(lower))), above = __dmul_rn(0.5, __dsub_rn(value_of(higher), v));
  if (!isfinite(below)) below = above;
  if (!isfinite(above)) above = below;
  if (!isfinite(above)) return v;
  const double wanted = __dmul_rn(__dmul_rn((double)n, 0.25), (double)(k + 1));
  const double share = __ddiv_rn(__dsub_rn(wanted, (double)(rank - left)), (double)equal);
  return __dadd_rn(__dsub_rn(v, below), __dmul_rn(__dadd_rn(below, above), share));
}
#endif

// Count, mean and variance of the samples within `most` of `level`; sums of 64 samples, added in order.
__device__ void moments(const SUM* y, int n, double level, double most, double* sums, double* out) {
  __shared__ int number;
  const double origin = (double)y[0];
  double total = 0, square = 0;  // of thread 0
  __syncthreads();
  if (threadIdx.x == 0) number = 0;
  for (int base = 0; base < n; base += PART * NOISE_THREADS) {
    const int from = base + PART * threadIdx.x;
    double t = 0, s = 0;
    int mine = 0;
    for (int i = from; i < min(from + PART, n); i++) {
      const double v = (double)y[i];
      if (fabs(__dsub_rn(v, level)) <= most) {
        const double d = __dsub_rn(v, origin);
        t = __dadd_rn(t, d);
        s = __dadd_rn(s, __dmul_rn(d, d));
        mine++;
      }
    }
    __syncthreads();
    sums[2 * threadIdx.x] = t;
    sums[2 * threadIdx.x + 1] = s;
    if (mine) atomicAdd(&number, mine);
    __syncthreads();
    if (threadIdx.x == 0)
      for (int i = 0; i < NOISE_THREADS && base + PART * i < n; i++) {
        total = __dadd_rn(total, sums[2 * i]);
        square = __dadd_rn(square, sums[2 * i + 1]);
      }
  }
  if (threadIdx.x == 0) {
    const double count = number > 1 ? (double)number : 1.0;
    const double mean = __ddiv_rn(total, count);
    out[0] = number;
    out[1] = __dadd_rn(origin, mean);
    out[2] = fmax(0.0, __dsub_rn(__ddiv_rn(square, count), __dmul_rn(mean, mean)));
  }
  __syncthreads();
}

// Level and scale of every block of every series: levels[row][block][2].
extern "C" __global__ void __launch_bounds__(NOISE_THREADS) noise(const SUM* sums, const int* valid, double* levels,
                                                                  Job j) {
  extern __shared__ int counts[];  // BINS, or the sums of parts
  __shared__ int part[16];
  __shared__ double out[3];
  const int row = blockIdx.y, block = blockIdx.x, first = block * j.block;
  const int n = min(j.block, valid_of(j, valid, row) - first);
  if (n <= 0 || (block && 4 * n < j.block)) return;  // a short last block takes the noise of the one before
  const SUM* y = sums + row * j.pitch + first;
  SUM* const keep = j.kept ? reinterpret_cast<SUM*>(counts + BIN_AT(BINS)) : nullptr;
#ifdef REAL
  const bool fetch = true;
#else
  const bool fetch = j.noise != ROBUST;
#endif
  if (keep && fetch) {
    for (int i = threadIdx.x; i < n; i += NOISE_THREADS) keep[i] = y[i];
    y = keep;
    __syncthreads();
  }
  double level, sigma;
  if (j.noise == ROBUST) {
#ifdef REAL
    const double low = quartile(y, n, 0, counts, part);
    level = quartile(y, n, 1, counts, part);
    sigma = __ddiv_rn(__dsub_rn(quartile(y, n, 2, counts, part), low), IQR);
#else
    quartiles(y, keep, n, counts, part, out);
    level = out[1];
    sigma = __ddiv_rn(__dsub_rn(out[2], out[0]), IQR);
#endif
  } else {
    double* const space = reinterpret_cast<double*>(counts);
    moments(y, n, 0.0, __longlong_as_double(0x7ff0000000000000ll), space, out);
    level = out[1];
    sigma = __dsqrt_rn(out[2]);
    if (j.noise == CLIPPED)
      for (int i = 0; i < CLIPS; i++) {
        moments(y, n, level, __dmul_rn(CLIP_AT, sigma), space, out);
        if (out[0] < 2) break;
        level = out[1];
        sigma = __ddiv_rn(__dsqrt_rn(out[2]), CLIPPED_SIGMA);
      }
  }
  if (threadIdx.x == 0) {
    double* const to = levels + 2 * ((i64)row * j.blocks + block);
    if (!j.parts) to[0] = level;
    to[1] = sigma > 0 ? __ddiv_rn(UNIT, sigma) : 0.0;
  }
}

// Sum of w samples from prefix sums that may wrap.
__device__ __forceinline__ int window(const int* p, int w) { return (int)((u32)p[w] - (u32)p[0]); }

struct Event {
  int row, column, width;
  float snr;
};

// Best S/N over the widths for the window centred on a sample, and which; p[i] is the sum of the samples before
// origin + i.
__device__ float best_of(const int* p, int origin, int t, int count, const Job& j, const int* widths,
                         const float* scales, int* which) {
  float best = 0.0f;
  *which = 0;
  for (int k = 0; k < j.widths; k++) {
    const int w = widths[k], half = w / 2;
    if (t < half || t - half + w > count) continue;
    const int at = t - half - origin;
    const float f = __fmul_rn((float)window(p + at, w), scales[k]);
    if (f > best) {
      best = f;
      *which = k;
    }
  }
  return best;
}

// Whether windows of w samples from s : stop have a peak, as `next_crest` in cpu/detect.py; *end gets the middle of the
// fall after it, *next the sample from which to look on.  Samples are those of p.
__device__ __noinline__ bool next_crest(const int* p, int s, int stop, int w, float scale, float threshold, float dip,
                                        int* end, int* next) {
  bool rising = true, high = false;
  float top = -INF, bottom = INF;
  int cut = s;
  for (int u = s; u <= stop - w; u++) {
    const float f = __fmul_rn((float)window(p + u, w), scale);
    if (rising) {
      if (f > top) {
        top = f;
      } else if (f < __fsub_rn(top, dip) && f < __fmul_rn(VALLEY, top)) {
        rising = false;
        bottom = f;
        cut = u;
        high = top >= threshold;
      }
    } else if (f < bottom) {
      bottom = f;
      cut = u;
    } else if (f > __fadd_rn(bottom, dip) && __fmul_rn(VALLEY, f) > bottom) {
      if (high) {
        *end = cut + w / 2;
        *next = u;
        return true;
      }
      rising = true;
      top = f;
    }
  }
  *end = *next = stop;
  return rising ? top >= threshold : high;
}

// How many peaks `next_crest` finds from s : stop, one after the other.
__device__ __forceinline__ int crests(const int* p, int s, int stop, int w, float scale, float threshold, float dip) {
  int n = 0, end, next;
  for (; s + w <= stop; s = next) n += next_crest(p, s, stop, w, scale, threshold, dip, &end, &next);
  return n;
}

// The window of the first n widths within samples begin : end of p whose S/N is the highest above even / scale, which
// is *above; `best_within` in cpu/detect.py.  By a warp: of equal ones the first.
__device__ __noinline__ Event best_within(const int* p, int origin, int row, int begin, int end, int n,
                                          const int* widths, const float* scales, float even, float* above) {
  float most = -INF, snr = 0.0f;
  int which = n, at = 0;
  for (int i = 0; i < n; i++) {
    const float expected = __fdiv_rn(even, scales[i]);
    for (int u = begin + (int)(threadIdx.x & 31); u <= end - widths[i]; u += 32) {
      const float f = __fmul_rn((float)window(p + u, widths[i]), scales[i]), more = __fsub_rn(f, expected);
      if (more > most) {
        most = more;
        snr = f;
        which = i;
        at = u;
      }
    }
  }
  for (int o = 1; o < 32; o <<= 1) {
    const float more = __shfl_xor_sync(~0u, most, o), f = __shfl_xor_sync(~0u, snr, o);
    const int i = __shfl_xor_sync(~0u, which, o), u = __shfl_xor_sync(~0u, at, o);
    if (more > most || (more == most && (i < which || (i == which && u < at)))) {
      most = more;
      snr = f;
      which = i;
      at = u;
    }
  }
  *above = most;
  return which < n ? Event{row, origin + at + widths[which] / 2, which, snr} : Event{row, 0, 0, 0.0f};
}

// By one lane of a warp.
__device__ __forceinline__ void put(const Event& e, Event* found, u32* number, const Job& j) {
  if (threadIdx.x & 31) return;
  const u32 at = atomicAdd(number, 1u);
  if (at < (u32)j.room) found[at] = e;
}

// Writes a narrow pulse on top of a wide one as an event beside that of width k that begins at p[begin]: `pointed`
// in cpu/detect.py.
__device__ __noinline__ void pointed(const int* p, int origin, int row, int begin, int k, const int* widths,
                                     const float* scales, Event* found, u32* number, const Job& j) {
  const int w = widths[k];
  int few = 0;
  while (3 * widths[few] <= w) few++;
  if (few == 0) return;
  const float whole = __fmul_rn((float)window(p + begin, w), scales[k]);
  const float even = __fmul_rn(__fmul_rn(POINTED, whole), scales[k]);
  float above;
  const Event e = best_within(p, origin, row, begin, begin + w, few, widths, scales, even, &above);
  if (above > j.dip && e.snr >= j.threshold) put(e, found, number, j);
}

// Number of samples beside a window of w samples where a wider window, which contains it, outdoes a weak burst:
// `hidden` in cpu/detect.py.
__device__ __forceinline__ int hidden(int w, float snr, float threshold) {
  const float more = __fadd_rn(1.0f, __fdiv_rn(snr, threshold));
  return (int)fminf(__fmul_rn(__fmul_rn(0.5f, (float)w), __fmul_rn(more, more)), 1e6f);
}

// A warp writes the events of the window of width k and S/N f around sample t, if it holds peaks that are resolved,
// or hides weaker bursts beside it: `split` in cpu/detect.py.  Returns whether they take the place of the window.
__device__ __noinline__ bool split(const int* p, int origin, int count, int row, int t, int k, float f,
                                   const int* widths, const float* scales, Event* found, u32* number, const Job& j) {
  const int w = widths[k], start = t - w / 2;
  const bool loud = f >= __fadd_rn(j.threshold, j.dip);
  int beside = w / 4;
  if (loud) beside = max(beside, min(hidden(w, f, j.threshold), j.widest / 2 + j.widest / 4 - (w - w / 2)));
  const int first = max(0, start - beside) - origin, stop = min(count, start + w + beside) - origin;
  int most = 1, which = 0, end, next;
  for (int wide = k; wide >= 0 && 16 * widths[wide] >= w; wide -= 32) {  // a lane for each width
    const int i = wide - (int)(threadIdx.x & 31);
    int n = 0, own = i;
    if (i >= 0 && 16 * widths[i] >= w && (3 * widths[i] <= w || loud))
      n = crests(p, first, stop, widths[i], scales[i], j.threshold, j.dip);
    for (int o = 1; o < 32; o <<= 1) {
      const int more = __shfl_xor_sync(~0u, n, o), of = __shfl_xor_sync(~0u, own, o);
      if (more > n || (more == n && of > own)) {
        n = more;
        own = of;
      }
    }
    if (n > most) {
      most = n;
      which = own;
    }
  }
  const int low = start - origin;
  int n = 0;
  for (int turn = 0; most > 1 && (turn == 0 || (turn == 1 && n > 1)); turn++) {  // two events?  Then write them
    int begin = first;
    for (int s = first; s + widths[which] <= stop; s = next) {
      if (next_crest(p, s, stop, widths[which], scales[which], j.threshold, j.dip, &end, &next)) {
        const bool own = loud && begin <= low && end >= low + w;
        const bool away = loud && (end <= low || begin >= low + w);
        float best;
        Event e = {row, t, k, f};
        if (!own) e = best_within(p, origin, row, begin, end, j.widths, widths, scales, 0.0f, &best);
        const bool wanted = e.snr >= j.threshold && !(away && e.snr > f);
        if (wanted && turn == 0) {
          n++;
        } else if (wanted) {
          put(e, found, number, j);
          pointed(p, origin, row, e.column - widths[e.width] / 2 - origin, e.width, widths, scales, found, number, j);
        }
      }
      begin = end;
    }
  }
  if (n < 2) pointed(p, origin, row, low, k, widths, scales, found, number, j);
  return n > 1;
}

// Peaks of the best S/N among samples from : to; best[0] is that of sample a, and b is the last + 1.
__device__ __noinline__ void peaks(const int* p, const float* best, int origin, int a, int b, int from, int to,
                                   int count, int row, const int* widths, const float* scales, Event* found,
                                   u32* number, const Job& j) {
  for (int base = from + (int)(threadIdx.x & ~31); base < to; base += THREADS) {
    const int lane = threadIdx.x & 31, t = base + lane;
    const float f = t < to ? best[t - a] : -INF;
    bool peak = f >= j.threshold;
    int which = 0;
    if (peak) best_of(p, origin, t, count, j, widths, scales, &which);
    if (peak && !j.every) {
      const int r = max(1, widths[which] / 2);
      for (int u = max(a, t - r); peak && u < t; u++) peak = best[u - a] < f;
      for (int u = t + 1; peak && u < min(b, t + r + 1); u++) peak = best[u - a] <= f;
    }
    const bool divisible = peak && !j.every && (widths[which] > 2 || f >= __fadd_rn(j.threshold, j.dip));
    for (u32 others = __ballot_sync(~0u, divisible); others; others &= others - 1) {
      const int l = __ffs(others) - 1, k = __shfl_sync(~0u, which, l);
      const float snr = __shfl_sync(~0u, f, l);
      if (split(p, origin, count, row, base + l, k, snr, widths, scales, found, number, j) && l == lane) peak = false;
    }
    if (peak) {
      const u32 at = atomicAdd(number, 1u);
      if (at < (u32)j.room) found[at] = Event{row, t, which, f};
    }
  }
}

// Events of a series around the samples from : to.  `reached`: sums from which a window of each width reaches the
// threshold.
__device__ void look(const SUM* sums, int count, const double* levels, const int* widths, const float* scales,
                     const int* reached, Event* found, u32* number, const Job& j, int row, int from, int to) {
  extern __shared__ uint4 sm4[];
  __shared__ int part[16];
  __shared__ int list[LIST];
  __shared__ int listed;
  const int left = j.widest / 2, right = j.widest - left;
  const int a = max(0, from - j.look), b = min(count, to + j.look);  // samples whose best window may be wanted
  const int origin = max(0, a - left), end = min(count, b + right);  // samples whose sums are
  const int n = end - origin;
  const int length = (j.segment + 2 * j.look + j.widest + 1 + 2 * STRETCH + 3) & ~3;
  int* const p = reinterpret_cast<int*>(sm4);                // n + 1 prefix sums, the last one repeated
  float* const best = reinterpret_cast<float*>(p + length);  // S/N, and before that in the same place
  const int room = length / STRETCH + 2;                     // the extremes of stretches of prefix sums,
  int *const top = p + length, *const bottom = top + room;   // and of two neighbouring ones
  int *const top2 = bottom + room, *const bottom2 = top2 + room;
  const SUM* const y = sums + row * j.pitch + origin;
  const double* const mine = levels + 2 * (i64)row * j.blocks;
  if (threadIdx.x == 0) listed = p[0] = 0;
  for (int block = origin / j.block; (i64)block * j.block < end; block++) {
    const int low = max(0, block * j.block - origin), high = (int)min((i64)n, (block + 1) * (i64)j.block - origin);
    const int held = block && 4 * (i64)min(j.block, count - block * j.block) < j.block ? block - 1 : block;
    const double level = mine[2 * (j.parts ? block : held)], scale = mine[2 * held + 1];
#pragma unroll 4
    for (int i = low + (int)threadIdx.x; i < high; i += THREADS) {
      const int q = __double2int_rn(__dmul_rn(__dsub_rn((double)y[i], level), scale));
      p[i + 1] = min(max(q, -CLIP), CLIP);
    }
  }
  __syncthreads();
  const int each = ((n + THREADS - 1) / THREADS) | 1, low = min(n, (int)threadIdx.x * each), high = min(n, low + each);
  u32 sum = 0;
  for (int i = low; i < high; i++) sum += (u32)p[i + 1];
  sum = (u32)scan((int)sum, part) - sum;
  for (int i = low; i < high; i++) {
    sum += (u32)p[i + 1];
    p[i + 1] = (int)sum;
  }
  __syncthreads();
  if (threadIdx.x < 2 * STRETCH) p[n + 1 + threadIdx.x] = p[n];
  __syncthreads();
  // Does any window centred on from : to reach the threshold?  Extremes of stretches first: a thread 4 sums
  const int stretches = n / STRETCH + 1;
  bool wild = false;
  for (int base = threadIdx.x & ~31; base < 4 * stretches; base += THREADS) {
    const int quad = min(base + (int)(threadIdx.x & 31), 4 * stretches - 1);
    const int4 v = *reinterpret_cast<const int4*>(p + 4 * quad);
    int t = max(max(v.x, v.y), max(v.z, v.w)), u = min(min(v.x, v.y), min(v.z, v.w));
    for (int o = 1; o < 4; o <<= 1) {
      t = max(t, __shfl_xor_sync(~0u, t, o));
      u = min(u, __shfl_xor_sync(~0u, u, o));
    }
    wild |= t > (1 << 30) || u < -(1 << 30);  // where sums could wrap, extremes mean nothing
    if ((quad & 3) == 0) {
      top[quad / 4] = t;
      bottom[quad / 4] = u;
    }
  }
  __syncthreads();
  for (int k = threadIdx.x; k < stretches; k += THREADS) {
    const int after = min(k + 1, stretches - 1);
    top2[k] = max(top[k], top[after]);
    bottom2[k] = min(bottom[k], bottom[after]);
  }
  bool over = wild;
  const int f0 = from - origin, f1 = to - origin;
  const bool inside = from >= left && to + right <= count;  // every window fits
  if (inside && j.dense) {  // windows of 1, 2, 3, 4, 5, 6, 8, 10 samples around 4 neighbours, from registers
    int wanted[8];
#pragma unroll
    for (int k = 0; k < 8; k++) wanted[k] = __ldg(reached + k);
    for (int i = (f0 & ~3) + 4 * (int)threadIdx.x; i < f1; i += 4 * THREADS) {
      int v[20];
#pragma unroll
      for (int k = 0; k < 5; k++) {
        const int4 q = *reinterpret_cast<const int4*>(p + i - 8 + 4 * k);
        v[4 * k] = q.x, v[4 * k + 1] = q.y, v[4 * k + 2] = q.z, v[4 * k + 3] = q.w;
      }
#pragma unroll
      for (int k = 0; k < 8; k++) {
        const int w = k < 6 ? k + 1 : 2 * k - 4, at = 8 - w / 2;
#pragma unroll
        for (int e = 0; e < 4; e++) over |= window(v + at + e, w) >= wanted[k];
      }
    }
  } else {
    for (int k = 0; k < j.shorter; k++) {
      const int w = __ldg(widths + k), wanted = __ldg(reached + k);
      const int* const q = p - w / 2;
      for (int i = f0 + (int)threadIdx.x; i < f1; i += THREADS)
        if (origin + i >= w / 2 && origin + i - w / 2 + w <= count) over |= window(q + i, w) >= wanted;
    }
  }
  __syncthreads();
  for (int g = f0 / STRETCH + (int)threadIdx.x; STRETCH * g < f1; g += THREADS)
    for (int k = j.shorter; k < j.widths; k++) {  // windows of 16 neighbours begin and end in two stretches each
      const int w = __ldg(widths + k), half = w / 2;
      const int e = min(g + (w - half) / STRETCH, stretches - 1), s = max(g - (half + STRETCH - 1) / STRETCH, 0);
      if ((int)((u32)top2[e] - (u32)bottom2[s]) < __ldg(reached + k)) continue;
      const int place = atomicAdd(&listed, 1);
      if (place < LIST) list[place] = g << 16 | k;
    }
  __syncthreads();
  if (listed > LIST)
    over = true;
  else
    for (int i = threadIdx.x; i < STRETCH * listed; i += THREADS) {
      const int g = list[i / STRETCH] >> 16, k = list[i / STRETCH] & 0xffff, t = STRETCH * g + i % STRETCH;
      const int w = __ldg(widths + k), at = t - w / 2;
      if (t >= f0 && t < f1 && at >= -origin && origin + at + w <= count)
        over |= window(p + at, w) >= __ldg(reached + k);
    }
  if (!__syncthreads_or(over)) return;
  // A window reaches the threshold: the best windows, and the peaks
  int which;
  for (int t = a + (int)threadIdx.x; t < b; t += THREADS)
    best[t - a] = best_of(p, origin, t, count, j, widths, scales, &which);
  __syncthreads();
  peaks(p, best, origin, a, b, from, to, count, row, widths, scales, found, number, j);
}

// Events of the series: `found` has room for j.room of them, number[0] counts all.  All pieces, or those that
// glance.cu put on the list.
extern "C" __global__ void __launch_bounds__(THREADS, 5) detect(const SUM* sums, const int* valid, const double* levels,
                                                                const int* widths, const float* scales,
                                                                const int* reached, const u32* flagged, Event* found,
                                                                u32* number, Job j) {
  const int each = (j.high - j.low + j.segment - 1) / j.segment;
  const i64 pieces = j.subs ? (i64)number[1] : (i64)j.rows * each;
  for (i64 i = blockIdx.x; i < pieces; i += gridDim.x) {
    int row, from, to;
    if (j.subs) {
      const u32 entry = flagged[i], at = entry / (u32)j.subs;
      const int block = (int)(at % (u32)j.blocks), sub = (int)(entry % (u32)j.subs);
      const int left = j.widest / 2, right = j.widest - left;
      row = (int)(at / (u32)j.blocks);
      if (sub == j.subs - 1) {  // around the first sample of a block
        from = block * j.block - right;
        to = from + j.widest;
      } else {
        from = block * j.block + (block ? left : 0) + sub * j.segment;
        to = from + j.segment;
        if ((block + 1) * (i64)j.block < valid_of(j, valid, row)) to = min(to, (block + 1) * j.block - right);
      }
    } else {
      row = (int)(i / each);
      from = j.low + (int)(i % each) * j.segment;
      to = from + j.segment;
    }
    const int count = valid_of(j, valid, row);
    from = max(from, j.low);
    to = min(min(j.high, count), to);
    if (count < 2 || from >= to) continue;
    __syncthreads();  // the previous piece is no longer read
    look(sums, count, levels, widths, scales, reached, found, number, j, row, from, to);
  }
}

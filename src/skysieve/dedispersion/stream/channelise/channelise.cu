// From packets of voltages to the power of channels, with the same bits as cpu_power.py.
//
// unpack: bytes of packets to samples x polarisations x subbands (pairs of bytes, or of floats), with zeros for missing
//   packets.
//   Layout: a thread for `each` voltages of one packet.
//   Cost: 2 + 2 bytes for a voltage of 8 bits.
//   Limit: memory.
// channelise: filter bank, transform (Stockham: passes of radix 4, 2, others, between two buffers in shared memory, or
//   in device memory where they do not fit), power of the polarisations, sum over spectra, bytes.
//   Layout: a block computes `rows` rows of output of `tile` subbands.  The number of columns (row, polarisation,
//   subband) is a power of two and they are contiguous, so that loads are whole lines without bank conflicts.  All
//   operations that round are written as rounding operations, in the CPU's order.
//   Cost: 2 bytes read and 1 written for a voltage; about 70 instructions for 8 channels.
//   Limit: instructions.
//
// archs: 75 80 86 89 90 100 120
// build: i8 -DVALUE=i8
// build: f32 -DVALUE=float -DREAL
// budget: i8 kernel=channelise spills<=16 arch=120
// budget: f32 kernel=channelise spills<=16 arch=120
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned int u32;
typedef long long i64;

#define THREADS 256
#define MOST_PASSES 24

struct __align__(2 * sizeof(VALUE)) Voltage {
  VALUE re, im;
};

struct Packets {
  int nsamp, pols, chunks, nchan;  // of a packet; packets of one time; subbands of a packet
  int total, all;                  // subbands, polarisations
  int bits, by_pol, offset;        // packets of one time are polarisations; numbers around the middle of their range
  int low, each;                   // samples of the first packet that are left out; voltages of a thread
  u32 count;                       // voltages
};

// Both parts of a voltage: the `at`-th of some packets.
__device__ __forceinline__ Voltage voltage_at(const u8* data, i64 at, const Packets& g) {
  Voltage v;
#ifdef REAL
  const float2 x = reinterpret_cast<const float2*>(data)[at];
  v.re = fabsf(x.x) < 1e12f ? x.x : 0.0f;
  v.im = fabsf(x.y) < 1e12f ? x.y : 0.0f;
#else
  if (g.bits == 8) {
    const uchar2 x = reinterpret_cast<const uchar2*>(data)[at];
    const u8 flip = g.offset ? 0x80 : 0;
    v.re = (i8)(x.x ^ flip);
    v.im = (i8)(x.y ^ flip);
  } else {
    const int b = data[at] ^ (g.offset ? 0x88 : 0), re = b & 15, im = b >> 4;
    v.re = (i8)(re - 2 * (re & 8));
    v.im = (i8)(im - 2 * (im & 8));
  }
#endif
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS) unpack(const u8* data, const u8* there, Voltage* out, Packets g) {
  const u32 i = (blockIdx.x * THREADS + threadIdx.x) * (u32)g.each;
  if (i >= g.count) return;
  const u32 line = (u32)(g.all * g.total), t = i / line + (u32)g.low, e = i % line;
  const u32 pol = e / (u32)g.total, s = e % (u32)g.total, packet = t / (u32)g.nsamp, k = t % (u32)g.nsamp;
  const u32 chunk = g.by_pol ? pol : s / (u32)g.nchan, c = g.by_pol ? s : s % (u32)g.nchan;
  const i64 which = (i64)packet * g.chunks + chunk;
  const i64 at = ((which * g.nsamp + k) * g.pols + (g.by_pol ? 0 : pol)) * g.nchan + c;
  const bool here = there[which] != 0;
  for (int u = 0; u < g.each; u++) {
    Voltage v;
    v.re = v.im = 0;
    if (here) v = voltage_at(data, at + u, g);
    out[i + u] = v;
  }
}

struct Shape {
  i64 spectra;  // rows of output
  int N, taps, integrate;
  int pols, pick, nsub;       // of the voltages; the one wanted, or -1
  int lp, lt, lr;             // powers of two: polarisations used, subbands of a block, rows of a block
  int rising, bytes, passes;  // subbands rise in frequency; whether the result is bytes
  float middle;
  int radix[MOST_PASSES];
};

struct Cell {
  int k, s;
};

__device__ __forceinline__ float2 turned(float2 a, float2 w) {
  return make_float2(__fsub_rn(__fmul_rn(a.x, w.x), __fmul_rn(a.y, w.y)),
                     __fadd_rn(__fmul_rn(a.x, w.y), __fmul_rn(a.y, w.x)));
}
__device__ __forceinline__ float2 plus(float2 a, float2 b) {
  return make_float2(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y));
}
__device__ __forceinline__ float2 minus(float2 a, float2 b) {
  return make_float2(__fsub_rn(a.x, b.x), __fsub_rn(a.y, b.y));
}

// Transforms the columns (1 << lc of them) in x; returns x or y, whichever contains the result.
__device__ __forceinline__ float2* transform(float2* x, float2* y, const float2* turns, int lc, const Shape& g) {
  int n = g.N, s = 1;
  for (int pass = 0; pass < g.passes; pass++) {
    const int r = g.radix[pass], m = n / r, all = m * s << lc, step = s << lc;  // butterflies; from output to output
    const bool power = (s & (s - 1)) == 0;
    const int ls = 31 - __clz(s);
    __syncthreads();
    if (r == 4) {
      for (int b = threadIdx.x; b < all; b += THREADS) {
        const int q = b >> lc, p = power ? q >> ls : q / s;
        const float2 a0 = x[b], a1 = x[b + all], a2 = x[b + 2 * all], a3 = x[b + 3 * all];
        const float2 t0 = plus(a0, a2), t1 = minus(a0, a2), t2 = plus(a1, a3), t3 = minus(a1, a3);
        float2 b1 = make_float2(__fadd_rn(t1.x, t3.y), __fsub_rn(t1.y, t3.x)), b2 = minus(t0, t2);
        float2 b3 = make_float2(__fsub_rn(t1.x, t3.y), __fadd_rn(t1.y, t3.x));
        if (p) {
          b1 = turned(b1, turns[s * p]);
          b2 = turned(b2, turns[2 * s * p]);
          b3 = turned(b3, turns[3 * s * p]);
        }
        float2* const to = y + b + 3 * p * step;
        to[0] = plus(t0, t2);
        to[step] = b1;
        to[2 * step] = b2;
        to[3 * step] = b3;
      }
    } else if (r == 2) {
      for (int b = threadIdx.x; b < all; b += THREADS) {
        const int q = b >> lc, p = power ? q >> ls : q / s;
        const float2 a0 = x[b], a1 = x[b + all];
        float2 b1 = minus(a0, a1);
        if (p) b1 = turned(b1, turns[s * p]);
        float2* const to = y + b + p * step;
        to[0] = plus(a0, a1);
        to[step] = b1;
      }
    } else {
      for (int i = threadIdx.x; i < r * all; i += THREADS) {
        const int j = i / all, b = i - j * all, p = (b >> lc) / s;
        float2 sum = x[b];
        for (int k = 1; k < r; k++) {
          const float2 v = turned(x[b + k * all], turns[(int)((i64)j * k % r) * (g.N / r)]);
          sum = plus(sum, v);
        }
        if (j && p) sum = turned(sum, turns[s * p * j]);
        y[b + ((r - 1) * p + j) * step] = sum;
      }
    }
    float2* const other = x;
    x = y;
    y = other;
    n = m;
    s *= r;
  }
  __syncthreads();
  return x;
}

// Voltages from the first of row 0 on; `place` of each output channel: which channel of which subband.
extern "C" __global__ void __launch_bounds__(THREADS) channelise(const Voltage* in, const float* filters,
                                                                 const float2* turns, const Cell* place,
                                                                 const float* level, const float* scale, float2* room,
                                                                 void* out, Shape g) {
  extern __shared__ float2 shared[];
  const int lc = g.lp + g.lt + g.lr, tile = 1 << g.lt, rows = 1 << g.lr, pols = 1 << g.lp, N = g.N;
  const int cells = N << (g.lt + g.lr), nchan = N * g.nsub, tiles = (g.nsub + tile - 1) >> g.lt;
  const i64 size = (i64)N << lc, line = (i64)g.pols * g.nsub;
  float2* const x = room ? room + (2 * size + cells) * blockIdx.x : shared;
  float2* const y = x + size;
  float* const sums = reinterpret_cast<float*>(y + size);
  for (i64 work = blockIdx.x; work < (g.spectra + rows - 1 >> g.lr) * tiles; work += gridDim.x) {
    const int s0 = (int)(work % tiles) << g.lt, some = min(tile, g.nsub - s0);
    const i64 j0 = work / tiles << g.lr;
    for (int i = 0; i < g.integrate; i++) {
      for (int e = threadIdx.x; e < size; e += THREADS) {
        const int n = e >> lc, s = e & (tile - 1), p = e >> g.lt & (pols - 1), r = e >> (g.lt + g.lp) & (rows - 1);
        float2 v = make_float2(0.0f, 0.0f);
        if (s < some && j0 + r < g.spectra) {
          const Voltage* const at =
              in + (((j0 + r) * g.integrate + i) * N + n) * line + (i64)(g.pick < 0 ? p : g.pick) * g.nsub + s0 + s;
          for (int t = 0; t < g.taps; t++) {
            const Voltage a = at[t * N * line];
            const float h = filters[t * N + n];
            const float2 w = make_float2(__fmul_rn(h, (float)a.re), __fmul_rn(h, (float)a.im));
            v = t ? plus(v, w) : w;
          }
        }
        x[e] = v;
      }
      const float2* const z = transform(x, y, turns, lc, g);
      for (int e = threadIdx.x; e < cells; e += THREADS) {
        const int s = e & (tile - 1), r = e >> g.lt & (rows - 1), k = e >> (g.lt + g.lr);
        float sum = i ? sums[e] : 0.0f;
        for (int p = 0; p < pols; p++) {
          const float2 v = z[(k << lc) + (((r << g.lp) + p) << g.lt) + s];
          sum = __fadd_rn(sum, __fadd_rn(__fmul_rn(v.x, v.x), __fmul_rn(v.y, v.y)));
        }
        sums[e] = sum;
      }
      __syncthreads();
    }
    const int c0 = N * (g.rising ? g.nsub - s0 - some : s0);
    for (int r = 0; r < rows && j0 + r < g.spectra; r++)
      for (int o = threadIdx.x; o < N * some; o += THREADS) {
        const int c = c0 + o;
        const Cell at = place[c];
        const float power = sums[(((at.k << g.lr) + r) << g.lt) + at.s - s0];
        const i64 to = (j0 + r) * nchan + c;
        if (g.bytes) {
          const float q = rintf(__fadd_rn(__fmul_rn(__fsub_rn(power, level[c]), scale[c]), g.middle));
          reinterpret_cast<u8*>(out)[to] = (u8)fminf(fmaxf(q, 0.0f), 255.0f);
        } else {
          reinterpret_cast<float*>(out)[to] = power;
        }
      }
    __syncthreads();
  }
}

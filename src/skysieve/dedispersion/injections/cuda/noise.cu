// Noise of a campaign in the memory of a GPU, with the bits of injections.noise.QuickNoise: random words of PCG64
// (O'Neill 2014, XSL-RR), which any thread reaches by a jump, through the quantile function of cpu_noise.py.
//
// noise: samples x channels.
//   Layout: a grid row for a block of 4096 samples, with its own generator; a thread makes four neighbouring
//   numbers at a time.
// pulse: the samples that a pulse changes, drawn again, with the pulse.
//   Layout: a grid row for a channel; a thread for a sample.
//
// Cost: 100 integer and 60 float32 instructions for four numbers.  Limit: instructions.
//
// archs: 75 80 86 89 90 100 120
// build: default
// budget: default kernel=noise regs<=64
// budget: default kernel=pulse regs<=64
typedef unsigned char u8;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define SAMPLES 4096  // of a block: NOISE_BLOCK
#define DIGITS 4      // of the length of a jump, in base 256

struct Big {  // of 128 bits
  u64 high, low;
};

struct Generator {
  Big state, increment;
};

struct Jump {  // a number of steps: the state times `factor`, plus the increment times `sum`
  Big factor, sum;
};

struct Job {
  const Generator* generators;  // of each block
  const Jump* jumps;            // by 256^i d steps: entry 256 i + d; entry 1024: the steps of all threads of a grid row
  u8* out;                      // samples x channels
  i64 samples;
  double level, sigma, highest;  // float32 values
  int channels;
};

__device__ __forceinline__ Big times(Big a, Big b) {
  return {__umul64hi(a.low, b.low) + a.high * b.low + a.low * b.high, a.low * b.low};
}

__device__ __forceinline__ Big plus(Big a, Big b) {
  const u64 low = a.low + b.low;
  return {a.high + b.high + (low < a.low), low};
}

// The state after this number of steps.
__device__ __forceinline__ Big ahead(const Generator& g, const Jump* jumps, u32 steps) {
  Big state = g.state;
  for (int i = 0; i < DIGITS; i++, steps >>= 8) {
    const Jump& jump = jumps[256 * i + (steps & 255)];
    state = plus(times(jump.factor, state), times(jump.sum, g.increment));
  }
  return state;
}

__device__ __forceinline__ u64 word_of(Big state) {
  const u64 x = state.high ^ state.low;
  const int turn = (int)(state.high >> 58);
  return x >> turn | x << (-turn & 63);
}

__device__ __forceinline__ float series(const float (&c)[8], float x) {
  float y = c[7];
#pragma unroll
  for (int i = 6; i >= 0; i--) y = __fadd_rn(c[i], __fmul_rn(x, y));
  return y;
}

// A number of the normal distribution: `normal` of cpu_noise.py, operation for operation.
__device__ __forceinline__ float normal(int bits) {
  const float LOG[8] = {0.999999943f, -0.500003631f, 0.333351141f, -0.249700717f,
                        0.19898565f,  -0.172470133f, 0.162341898f, -0.101340568f};
  const float NEAR[8] = {2.12331309f,    0.348802705f,    -0.00590571129f, -0.00177306829f,
                         3.07181201e-4f, -6.19939125e-6f, -4.4862858e-6f,  4.84403299e-7f};
  const float FAR[8] = {4.75463389f,    1.42486483f,     0.00444828246f, -0.00270127881f,
                        0.00127872855f, -9.80913116e-4f, 7.52581693e-4f, -2.37636114e-4f};
  const float p = __fmul_rn(__fadd_rn(__int2float_rn(bits & 0x7fffffff), 0.5f), 2.3283064365386963e-10f);
  const float q = __fmul_rn(__fmul_rn(4.0f, p), __fadd_rn(1.0f, -p));
  const int n = __float_as_int(q) - 0x3f3504f3;
  const float m = __fadd_rn(__int_as_float((n & 0x7fffff) + 0x3f3504f3), -1.0f);
  const float log = __fadd_rn(__fmul_rn(__int2float_rn(n >> 23), 0.69314718055994531f), __fmul_rn(m, series(LOG, m)));
  const float w = __fadd_rn(1e-7f, -log);
  const float sign = bits < 0 ? -1.0f : 1.0f;
  const float size =
      w > 5.0f ? series(FAR, __fadd_rn(__fsqrt_rn(w), -3.526352904508354f)) : series(NEAR, __fadd_rn(w, -2.5f));
  return __fmul_rn(size, __fadd_rn(sign, -__fmul_rn(__fmul_rn(sign, 2.0f), p)));
}

__device__ __forceinline__ float analog(const Job& job, u32 bits) {
  return __fadd_rn(__fmul_rn(normal((int)bits), (float)job.sigma), (float)job.level);
}

// A value as a receiver records it.
__device__ __forceinline__ u32 recorded(const Job& job, float value) {
  return (u32)fminf(fmaxf(rintf(value), 0.0f), (float)job.highest);
}

extern "C" __global__ void __launch_bounds__(256) noise(Job job) {
  const Generator g = job.generators[blockIdx.y];
  const i64 before = (i64)blockIdx.y * SAMPLES;
  const i64 samples = job.samples - before < SAMPLES ? job.samples - before : SAMPLES;
  const u32 count = (u32)(samples * job.channels), step = 4 * gridDim.x * blockDim.x;
  const Jump far = job.jumps[256 * DIGITS];
  const Big increment = times(far.sum, g.increment), factor = far.factor, one = job.jumps[1].factor;
  u8* const out = job.out + before * job.channels;
  u32 at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  Big state = ahead(g, job.jumps, at / 2 + 1);
  for (; at < count; at += step) {
    const u64 first = word_of(state), second = word_of(plus(times(one, state), g.increment));
    u32 four = recorded(job, analog(job, (u32)first));
    four |= recorded(job, analog(job, (u32)(first >> 32))) << 8;
    four |= recorded(job, analog(job, (u32)second)) << 16;
    four |= recorded(job, analog(job, (u32)(second >> 32))) << 24;
    if (at + 4 <= count)
      *reinterpret_cast<u32*>(out + at) = four;
    else
      for (u32 j = 0; at + j < count; j++) out[at + j] = (u8)(four >> 8 * j);
    state = plus(times(factor, state), increment);
  }
}

// Row c of a pulse is shapes[c], `length` samples from first[c] on.
extern "C" __global__ void __launch_bounds__(256) pulse(Job job, const float* __restrict__ shapes,
                                                        const i64* __restrict__ first, int length) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, c = blockIdx.y;
  if (i >= length) return;
  const i64 t = first[c] + i;
  if (t < 0 || t >= job.samples) return;
  const u32 at = (u32)(t % SAMPLES) * (u32)job.channels + c;
  const u64 word = word_of(ahead(job.generators[t / SAMPLES], job.jumps, at / 2 + 1));
  const float value = __fadd_rn(analog(job, (u32)(at % 2 ? word >> 32 : word)), shapes[(i64)c * length + i]);
  job.out[t * job.channels + c] = (u8)recorded(job, value);
}

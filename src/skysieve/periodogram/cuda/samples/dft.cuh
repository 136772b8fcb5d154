// 16-point DFT with a shifted output index, with all twiddle factors inside the butterflies; products of
// complex numbers.
#pragma once

// a b; c + a b.
__device__ __forceinline__ C times(C a, C b) { return mk(fma(a.x, b.x, -a.y * b.y), fma(a.x, b.y, a.y * b.x)); }
__device__ __forceinline__ C plus_times(C c, C a, C b) {
  return mk(fma(-a.y, b.y, fma(a.x, b.x, c.x)), fma(a.y, b.x, fma(a.x, b.y, c.y)));
}

// X[b] = sum_j v[j] exp(2 pi i j (b + phi) / 16), output b at place PLACE(b). The constants, with e(x) = exp(2 pi i x):
// k(0) = e(phi/2), k(1) = e(phi/4), k(2), k(3) = e((phi + c)/8), k(4..7) = e((phi + c)/16).
// A butterfly gives a + k b and 2 a - (a + k b): six fused multiply-adds. TURN: k stands for i k.
template <bool TURN>
__device__ __forceinline__ void butterfly(C& a, C& b, const C k) {
  const T kx = TURN ? -k.y : k.x, ky = TURN ? k.x : k.y;
  const T x = fma(-ky, b.y, fma(kx, b.x, a.x)), y = fma(ky, b.x, fma(kx, b.y, a.y));
  b.x = fma((T)2, a.x, -x);
  b.y = fma((T)2, a.y, -y);
  a.x = x;
  a.y = y;
}
__device__ __host__ constexpr int place4(int j, int b) { return j + ((b & 1) ? 8 : 0) + ((b & 2) ? 4 : 0); }
__device__ __host__ constexpr int place8(int j, int b) { return b < 4 ? place4(j, b) : place4(j + 2, b - 4); }
__device__ __host__ constexpr int place(int b) { return b < 8 ? place8(0, b) : place8(1, b - 8); }

// c times e(1/8), e(1/16) and e(3/16). If loads are the limit, this is cheaper than loading the products.
__device__ __forceinline__ C eighth(C c) {
  const T r = (T)0.70710678118654752440;
  return mk(r * (c.x - c.y), r * (c.x + c.y));
}
#define COS_16 ((T)0.92387953251128675613)
#define SIN_16 ((T)0.38268343236508977173)

// FEWER 1: k(3), k(5), k(6), k(7) come from k(2) and k(4). 2: all come from k(4).
__device__ __forceinline__ C square(C c) { return mk(fma(c.x, c.x, -c.y * c.y), fma(c.x, c.y, c.x * c.y)); }
template <int FEWER, typename K>
__device__ __forceinline__ void dft16(C (&v)[16], const K& k) {
  C z = k(4), k2, k1, k0;
  if (FEWER == 2) {
    k2 = square(z);
    k1 = square(k2);
    k0 = square(k1);
  }
  {
    const C c = FEWER == 2 ? k0 : k(0);
#pragma unroll
    for (int j = 0; j < 8; j++) butterfly<false>(v[j], v[j + 8], c);
  }
  {
    const C c = FEWER == 2 ? k1 : k(1);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      butterfly<false>(v[place4(j, 0)], v[place4(j, 2)], c);
      butterfly<true>(v[place4(j, 1)], v[place4(j, 3)], c);
    }
  }
  {
    const C c = FEWER == 2 ? k2 : k(2), d = FEWER ? eighth(c) : k(3);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      butterfly<false>(v[place8(j, 0)], v[place8(j, 4)], c);
      butterfly<false>(v[place8(j, 1)], v[place8(j, 5)], d);
      butterfly<true>(v[place8(j, 2)], v[place8(j, 6)], c);
      butterfly<true>(v[place8(j, 3)], v[place8(j, 7)], d);
    }
  }
#pragma unroll
  for (int b = 0; b < 4; b++) {
    const C c = b == 0   ? z
                : !FEWER ? k(4 + b)
                : b == 1 ? times(mk(COS_16, SIN_16), z)
                : b == 2 ? eighth(z)
                         : times(mk(SIN_16, COS_16), z);
    butterfly<false>(v[place(b)], v[place(b + 8)], c);
    butterfly<true>(v[place(b + 4)], v[place(b + 12)], c);
  }
}

// Exchange between the two 16-point DFTs of a 256-point DFT: lane a of sixteen gives its output b to lane b, which
// receives it as input a. transpose_parts exchanges real parts first, then imaginary parts, in half the space (`ex`
// of 16 rows of 17); transpose_whole exchanges both together. The previous contents of `ex` are overwritten.
template <typename V>
__device__ __forceinline__ void transpose_parts(decltype(V::x)* ex, V (&v)[16], int a) {
  decltype(V::x) re[16];
  __syncwarp();
#pragma unroll
  for (int b = 0; b < 16; b++) ex[b * 17 + a] = v[place(b)].x;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 16; j++) re[j] = ex[a * 17 + j];
  __syncwarp();
#pragma unroll
  for (int b = 0; b < 16; b++) ex[b * 17 + a] = v[place(b)].y;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 16; j++) {
    v[j].x = re[j];
    v[j].y = ex[a * 17 + j];
  }
}
template <typename V>
__device__ __forceinline__ void transpose_whole(V* ex, V (&v)[16], int a) {
  __syncwarp();
#pragma unroll
  for (int b = 0; b < 16; b++) ex[b * 17 + a] = v[place(b)];
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 16; j++) v[j] = ex[a * 17 + j];
}

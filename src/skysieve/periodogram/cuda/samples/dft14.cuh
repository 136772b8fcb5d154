// The 16-point DFT of fourteen numbers, without a shift.
#pragma once

// As dft16 with phi = 0, if numbers 7 and 8 of the sixteen are 0.
template <bool TURN>
__device__ __forceinline__ void plain(double2& a, double2& b) {
  const double x = TURN ? -b.y : b.x, y = TURN ? b.x : b.y;
  b.x = a.x - x;
  b.y = a.y - y;
  a.x += x;
  a.y += y;
}
__device__ __forceinline__ void dft14(double2 (&v)[16]) {
  v[8] = v[0];
  v[7] = v[15];
  v[15] = make_double2(-v[7].x, -v[7].y);
#pragma unroll
  for (int j = 1; j < 7; j++) plain<false>(v[j], v[j + 8]);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    plain<false>(v[place4(j, 0)], v[place4(j, 2)]);
    plain<true>(v[place4(j, 1)], v[place4(j, 3)]);
  }
  const double r = 0.70710678118654752440;
#pragma unroll
  for (int j = 0; j < 2; j++) {
    plain<false>(v[place8(j, 0)], v[place8(j, 4)]);
    butterfly<false>(v[place8(j, 1)], v[place8(j, 5)], make_double2(r, r));
    plain<true>(v[place8(j, 2)], v[place8(j, 6)]);
    butterfly<true>(v[place8(j, 3)], v[place8(j, 7)], make_double2(r, r));
  }
  plain<false>(v[place(0)], v[place(8)]);
  plain<true>(v[place(4)], v[place(12)]);
#pragma unroll
  for (int b = 1; b < 4; b++) {
    const double2 c = make_double2(b == 1 ? COS_16 : b == 2 ? r : SIN_16, b == 1 ? SIN_16 : b == 2 ? r : COS_16);
    butterfly<false>(v[place(b)], v[place(b + 8)], c);
    butterfly<true>(v[place(b + 4)], v[place(b + 12)], c);
  }
}

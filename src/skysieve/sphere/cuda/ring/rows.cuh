// Rows of rings: their pixels, chirps and modes.
#pragma once
#include "common.cuh"

struct __align__(2 * sizeof(REAL)) Two {
  REAL x, y;
};

// place: of modes 0 .. most, followed by modes 0 .. -most; south < 0: there is no mirror image; phi in units of pi.
struct Row {
  double phi;
  i64 north, south, place;
  int n, most, m, residues;
};

DI Two times(Two a, Two b) {
  Two c = {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
  return c;
}
DI Two conj(Two a) {
  Two c = {a.x, -a.y};
  return c;
}
DI Two turned(REAL half_turns) {
  Two c;
  sincospi(half_turns, &c.y, &c.x);
  return c;
}
// exp(-i pi p / h), p >= 0 reduced exactly (in float by a quotient that may be one off, which changes nothing)
DI Two chirp(i64 p, int h) {
  if (SINGLE && p < (1LL << 31)) {
    int k = (int)p - (int)((float)(int)p / (float)(2 * h)) * 2 * h;
    return turned(-(REAL)k / h);
  }
  return turned(-(REAL)(p % (2LL * h)) / h);
}
// a (-i)^k
DI Two quarter_turns(Two a, int k) {
  k &= 3;
  Two r = a;
  if (k & 1) {
    r.x = a.y;
    r.y = -a.x;
  }
  if (k & 2) {
    r.x = -r.x;
    r.y = -r.y;
  }
  return r;
}

// Pixel j of a row, weighted; `part` of spin 2: 0 the ring, 1 its mirror image.  A build for one spin defines it ONLY.
DI Two scaled_pixel(const REAL* map, REAL here, REAL there, const Row& r, i64 j, int spin, i64 npix, int part) {
  Two v = {0, 0};
#ifdef ONLY
  spin = ONLY;
#endif
  if (spin == 0) {
    v.x = map[r.north + j] * here;
    if (r.south >= 0) v.y = map[r.south + j] * there;
  } else if (part == 0) {
    v.x = map[r.north + j] * here;
    v.y = map[npix + r.north + j] * here;
  } else {
    v.x = map[r.south + j] * there;
    v.y = -map[npix + r.south + j] * there;
  }
  return v;
}
DI Two pixel(const REAL* map, const REAL* w, const Row& r, int ring, int rings, i64 j, int spin, i64 npix, int part) {
  return scaled_pixel(map, w[ring], w[rings - 1 - ring], r, j, spin, npix, part);
}

// exp(-i m phi) of a row
DI Two phase(const Row& r, int m) {
  double turn = m * r.phi;
  return turned(-(REAL)(turn - 2 * rint(0.5 * turn)));
}
// One element of the conjugated transform of an output row: modes that repeat each other are added.
DI Two folded(const Two* __restrict__ sums, const Row& r, int at) {
  Two s = {0, 0};
  int m = at - (at + r.most) / r.n * r.n;  // the lowest mode from -most on
  for (; m <= r.most; m += r.n) {
    Two z = times(sums[r.place + (m >= 0 ? m : r.most + 1 - m)], conj(phase(r, m)));
    s.x += z.x;
    s.y += z.y;
  }
  return conj(s);
}

DI void put_plain(REAL* map, const Row& r, i64 j, int spin, i64 npix, int part, REAL here, REAL there, Two z) {
#ifdef ONLY
  spin = ONLY;
#endif
  if (spin == 0) {
    map[r.north + j] = z.x * here;
    if (r.south >= 0 && r.south != r.north) map[r.south + j] = z.y * there;
  } else if (part == 0) {
    map[r.north + j] = z.x * here;
    map[npix + r.north + j] = z.y * here;
  } else if (r.south != r.north) {
    map[r.south + j] = z.x * there;
    map[npix + r.south + j] = -z.y * there;
  }
}
// True for values that are not finite.
DI bool put(REAL* map, const REAL* w, const Row& r, int ring, int rings, i64 j, int spin, i64 npix, int part, Two z) {
  put_plain(map, r, j, spin, npix, part, w[ring], w[rings - 1 - ring], z);
  return strange(z.x) || strange(z.y);
}

// Before and after the batched transforms of rings of any lengths, without a plan for each length.
//
// A row is a ring with its mirror image as real and imaginary part; with spin 2 there are two rows, Q + i U of the ring
// and Q - i U of its mirror image, which have the same kernel.  Rows of one length are transformed directly.  Other
// rows are transformed with Bluestein's chirps: a length n = 4 m is split over the quadrants into four residues of
// length m, each of which is a convolution with a chirp by transforms of a power of two L >= 2 m - 1, which many rows
// share.
// Layout: one thread per element.
// Cost: each kernel reads and writes every element once.
// Limit: memory.
// archs: 75 80 86 89 90 100 120
// build: f32 -DREAL=float
// build: f64 -DREAL=double
// budget: f32 kernel=load_chirped spills<=16
// split: no
#include "ring/rows.cuh"

// Rows first .. (grid.y of them) of one length into buffer [row][n].
extern "C" __global__ void __launch_bounds__(256) load(const REAL* __restrict__ map, const REAL* __restrict__ w,
                                                       const Row* __restrict__ rows, Two* __restrict__ buffer, i64 npix,
                                                       int rings, int first, int spin, int part) {
  int row = first + blockIdx.y;
  const Row r = rows[row];
  int j = blockIdx.x * 256 + threadIdx.x;
  if (j < r.n) buffer[(i64)blockIdx.y * r.n + j] = pixel(map, w, r, row, rings, j, spin, npix, part);
}

// As `load`, into [row][residue][L] with the first chirp, zero from m on.
extern "C" __global__ void __launch_bounds__(256) load_chirped(const REAL* __restrict__ map, const REAL* __restrict__ w,
                                                               const Row* __restrict__ rows, Two* __restrict__ buffer,
                                                               i64 npix, int L, int rings, int first, int spin,
                                                               int part) {
  int row = first + blockIdx.y, t = blockIdx.x * 256 + threadIdx.x;
  if (t >= L) return;
  const Row r = rows[row];
  Two* to = buffer + (i64)blockIdx.y * r.residues * L + t;
  if (t >= r.m) {
    for (int e = 0; e < r.residues; e++) {
      Two z = {0, 0};
      to[(i64)e * L] = z;
    }
    return;
  }
  Two v[4];
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (k < r.residues) v[k] = pixel(map, w, r, row, rings, (i64)k * r.m + t, spin, npix, part);
  if (r.residues == 1) {
    to[0] = times(v[0], chirp((i64)t * t, r.m));
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; e++) {
    Two s = {0, 0};
#pragma unroll
    for (int k = 0; k < 4; k++) {
      Two q = quarter_turns(v[k], e * k);
      s.x += q.x;
      s.y += q.y;
    }
    to[(i64)e * L] = times(s, chirp(2LL * e * t + 4LL * t * t, 4 * r.m));
  }
}

// The chirp that rows are convolved with, before its transform, over L: [row][L].
extern "C" __global__ void __launch_bounds__(256) chirps(const Row* __restrict__ rows, Two* __restrict__ out, int L,
                                                         int first) {
  int t = blockIdx.x * 256 + threadIdx.x, m = rows[first + blockIdx.y].m;
  if (t >= L) return;
  i64 d = t <= L / 2 ? t : L - t;
  Two z = {0, 0};
  if (d < m) {
    z = conj(chirp(d * d, m));
    z.x /= L;
    z.y /= L;
  }
  out[(i64)blockIdx.y * L + t] = z;
}

// Multiplies spectra by those of the chirps and conjugates them: the transform that follows, conjugated again, is
// the inverse transform.
extern "C" __global__ void __launch_bounds__(256) multiply(Two* __restrict__ buffer, const Two* __restrict__ spectrum,
                                                           int L, int residues) {
  int t = blockIdx.x * 256 + threadIdx.x;
  if (t >= L) return;
  Two s = spectrum[(i64)(blockIdx.y / residues) * L + t], *z = buffer + (i64)blockIdx.y * L + t;
  *z = conj(times(*z, s));
}

// Modes of rows from their transforms (`L` = 0: as they are); modes beyond n / 2 repeat those below.
extern "C" __global__ void __launch_bounds__(256) modes(const Two* __restrict__ buffer, const Row* __restrict__ rows,
                                                        Two* __restrict__ out, int L, int first) {
  const Row r = rows[first + blockIdx.y];
  int k = blockIdx.x * 256 + threadIdx.x;
  if (k >= 2 * (r.most + 1)) return;
  int m = k <= r.most ? k : r.most + 1 - k, at = m % r.n;
  if (at < 0) at += r.n;
  Two z;
  if (L) {
    int q = at / r.residues, e = at % r.residues;
    z = times(conj(buffer[((i64)blockIdx.y * r.residues + e) * L + q]), chirp((i64)q * q, r.m));
  } else {
    z = buffer[(i64)blockIdx.y * r.n + at];
  }
  out[r.place + k] = times(z, phase(r, m));
}

extern "C" __global__ void __launch_bounds__(256) fold(const Two* __restrict__ sums, const Row* __restrict__ rows,
                                                       Two* __restrict__ buffer, int first) {
  const Row r = rows[first + blockIdx.y];
  int at = blockIdx.x * 256 + threadIdx.x;
  if (at < r.n) buffer[(i64)blockIdx.y * r.n + at] = folded(sums, r, at);
}

extern "C" __global__ void __launch_bounds__(256) fold_chirped(const Two* __restrict__ sums,
                                                               const Row* __restrict__ rows, Two* __restrict__ buffer,
                                                               int L, int first) {
  const Row r = rows[first + blockIdx.y];
  int t = blockIdx.x * 256 + threadIdx.x;
  if (t >= r.residues * L) return;
  int q = t / r.residues, e = t % r.residues;
  Two z = {0, 0};
  if (q < r.m) z = times(folded(sums, r, r.residues * q + e), chirp((i64)q * q, r.m));
  buffer[((i64)blockIdx.y * r.residues + e) * L + q] = z;
}

// Output rows of one length from their transforms (which are conjugated).
extern "C" __global__ void __launch_bounds__(256) store(const Two* __restrict__ buffer, const REAL* __restrict__ w,
                                                        const Row* __restrict__ rows, REAL* __restrict__ map,
                                                        int* __restrict__ flag, i64 npix, int rings, int first,
                                                        int spin, int part) {
  int row = first + blockIdx.y, j = blockIdx.x * 256 + threadIdx.x;
  const Row r = rows[row];
  if (j >= r.n) return;
  if (put(map, w, r, row, rings, j, spin, npix, part, conj(buffer[(i64)blockIdx.y * r.n + j]))) *flag = 1;
}

// As `store`, from the four residues [row][residue][stride].  `chirped`: whether their last chirp has yet to be
// applied.
extern "C" __global__ void __launch_bounds__(256) store_chirped(const Two* __restrict__ buffer,
                                                                const REAL* __restrict__ w,
                                                                const Row* __restrict__ rows, REAL* __restrict__ map,
                                                                int* __restrict__ flag, i64 npix, int stride,
                                                                int chirped, int rings, int first, int spin, int part) {
  int row = first + blockIdx.y, t = blockIdx.x * 256 + threadIdx.x;
  const Row r = rows[row];
  if (t >= r.m) return;
  Two v[4];
#pragma unroll
  for (int e = 0; e < 4; e++)
    if (e < r.residues) {
      v[e] = buffer[((i64)blockIdx.y * r.residues + e) * stride + t];
      if (chirped)
        v[e] = times(conj(v[e]), r.residues == 1 ? chirp((i64)t * t, r.m) : chirp(2LL * e * t + 4LL * t * t, 4 * r.m));
    }
  bool bad = false;
  if (r.residues == 1) {
    bad = put(map, w, r, row, rings, t, spin, npix, part, conj(v[0]));
  } else {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      Two s = {0, 0};
#pragma unroll
      for (int e = 0; e < 4; e++) {
        Two q = quarter_turns(v[e], e * k);
        s.x += q.x;
        s.y += q.y;
      }
      bad |= put(map, w, r, row, rings, (i64)k * r.m + t, spin, npix, part, conj(s));
    }
  }
  if (bad) *flag = 1;
}

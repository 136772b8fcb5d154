// Parts of the stencils for rings of one length (`direct/belt.cu`, `direct/spin_belt.cu`): the number of distances for
// each difference of ring numbers, and rows with their weights that are copied ahead into shared memory of a warp.
#pragma once
#include "common.cuh"

#define TALL (2 * WIDTH + 1)
#define THREADS 64
#define SLOTS 4

struct __align__(16) Vector {
  REAL v[16 / sizeof(REAL)];
};
struct Needs {
  int of[WIDTH + 1];
};
#define NEEDS \
  Needs {     \
    {         \
      NEED    \
    }         \
  }

__device__ constexpr int distances_of_a_row() {
  constexpr Needs need = NEEDS;
  int n = 0;
  for (int k = 0; k < TALL; k++) n += need.of[k < WIDTH ? WIDTH - k : k - WIDTH];
  return n;
}

// What the stencils of rings of one length share (`direct/belt.cu`, `direct/spin_belt.cu`): how many distances each difference of
// rings needs, and rows with their weights that come ahead into a warp's own shared memory.
#pragma once
#include "common.cuh"
#include "async.cuh"

#define TALL (2 * W + 1)
#define THREADS 64
#define SLOTS 4

struct Needs { int of[W + 1]; };
#define NEEDS Needs{{NEED}}

__device__ constexpr int distances_of_a_row() {
  constexpr Needs need = NEEDS;
  int n = 0;
  for (int k = 0; k < TALL; k++) n += need.of[k < W ? W - k : k - W];
  return n;
}

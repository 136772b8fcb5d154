// Host arrays that receive the results of a search: `wanted` peaks for each object, in falling order of power.
#pragma once

struct Answers {
  int* index;
  double* frequency;
  double* best;
  double* curvature;
};
__device__ __forceinline__ void no_answer(const Answers& A, size_t at) {
  A.index[at] = -1;
  A.frequency[at] = A.best[at] = A.curvature[at] = missing64();
}

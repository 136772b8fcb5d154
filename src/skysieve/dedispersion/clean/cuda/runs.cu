// Runs of equal samples in pairs of neighbouring spectra, of samples in the memory of a GPU: see clean/dropouts.py.
//
// runs: of each channel, in chunks of pairs that the host joins; and of each pair, the number of equal channels.
//   Layout: a thread for a channel of a chunk; a warp adds what is equal in a pair.
//
// Cost: two loads, a ballot and ten instructions for each pair of samples.  Limit: latency of the loads.
//
// archs: 75 80 86 89 90 100 120
// build: u8 -DWORD=u8
// build: u16 -DWORD=u16
// build: u32 -DWORD=u32
// budget: u8 kernel=runs regs<=64
// budget: u16 kernel=runs regs<=64
// budget: u32 kernel=runs regs<=64
#ifndef WORD
#define WORD u8
#endif
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

struct Run {  // of the pairs of a chunk: the equal ones, those before the first that is not, the longest run between
  int equal, lead, longest, open;  // two that are not, those after the last
};

// Pair i is samples i stride and i stride + 1; samples and channels are ts and cs words apart.
extern "C" __global__ void __launch_bounds__(256) runs(const WORD* __restrict__ x, i64 ts, i64 cs, int stride,
                                                       i64 pairs, i64 chunk, int channels, int* many, Run* found) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  const i64 first = blockIdx.y * chunk, last = first + chunk < pairs ? first + chunk : pairs;
  const bool mine = c < channels;
  Run run = {0, -1, 0, 0};
  const WORD* at = x + first * stride * ts + (mine ? c : 0) * cs;
#pragma unroll 4
  for (i64 i = first; i < last; i++, at += stride * ts) {
    const bool same = mine && at[0] == at[ts];
    const unsigned all = __ballot_sync(0xffffffffu, same);
    if (all && (threadIdx.x & 31) == 0) atomicAdd(many + i, __popc(all));
    if (same) {
      run.equal++;
      run.open++;
      continue;
    }
    if (run.lead < 0)
      run.lead = run.open;
    else if (run.open > run.longest)
      run.longest = run.open;
    run.open = 0;
  }
  if (run.lead < 0) run.lead = run.open;
  if (mine) found[(i64)blockIdx.y * channels + c] = run;
}

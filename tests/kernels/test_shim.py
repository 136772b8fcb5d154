"""The host shim itself: what it computes, and what it refuses."""

from __future__ import annotations

import os

import numpy as np
import pytest

from skysieve.core.errors import KernelError
from skysieve.core.gpu.selftest import run_selftest
from tests.kernels import shim
from tests.kernels.devices import only_shim
from tests.kernels.nvrtc import package_sources
from tests.marks import slow


@pytest.mark.slow
@pytest.mark.parametrize("source", package_sources(), ids=lambda s: s.name)
def test_every_kernel_file_compiles_for_the_host(source):
    """Its first build; the tests of the domains run the others."""
    module = shim.shim_runtime().module(source.package, source.name)
    assert all(module.attributes(kernel) for kernel in source.kernels)


def test_selftest_of_the_package(runtime):
    run_selftest(runtime, 5_000)
    assert [launch[0] for launch in runtime.launches] == ["block_sum", "block_sum"]


@only_shim
def test_selftest_sees_a_wrong_sum(runtime, monkeypatch):
    monkeypatch.setattr(runtime.xp, "arange", lambda n, dtype: np.ones(n, dtype), raising=True)
    with pytest.raises(KernelError, match="adds 0 to 99"):
        run_selftest(runtime, 100)


@only_shim
def test_warp_operations(runtime):
    module = runtime.text_module(
        """
extern "C" __global__ void ops(int* out, double* d) {
  const int i = threadIdx.x, l = i & 31;
  int* o = out + 10 * i;
  o[0] = __shfl_xor_sync(0xffffffffu, i, 5);
  o[1] = __shfl_up_sync(0xffffffffu, i, 3);
  o[2] = __shfl_down_sync(0xffffffffu, i, 3, 16);
  o[3] = __shfl_sync(0xffffffffu, i, 7, 8);
  o[4] = (int)__ballot_sync(0xffffffffu, l & 1);
  o[5] = __any_sync(0xffffffffu, l == 40) * 2 + __all_sync(0xffffffffu, l < 32);
  o[6] = __syncthreads_count(i % 3 == 0);
  o[7] = (int)__match_any_sync(0xffffffffu, l / 4);
  const unsigned half = l < 16 ? 0x0000ffffu : 0xffff0000u;       // halves of a warp diverge
  int s = l;
  if (l < 16) for (int k = 8; k; k >>= 1) s += __shfl_xor_sync(half, s, k);
  else { __syncwarp(half); s = __shfl_xor_sync(half, s, 1); }
  __syncwarp();
  o[8] = s;
  o[9] = blockDim.x + warpSize;
  d[i] = __shfl_xor_sync(0xffffffffu, 0.5 * i, 1);
}""",
        ("ops",),
    )
    out, d = np.zeros((64, 10), np.int32), np.zeros(64)
    module.launch("ops", (1,), (64,), (out, d))
    i = np.arange(64)
    lane = i & 31
    assert np.array_equal(out[:, 0], i ^ 5)
    assert np.array_equal(out[:, 1], np.where(lane >= 3, i - 3, i))
    assert np.array_equal(out[:, 2], np.where((lane & 15) + 3 < 16, i + 3, i))
    assert np.array_equal(out[:, 3], (i & ~7) + 7)
    assert set(out[:, 4].view(np.uint32)) == {0xAAAAAAAA}
    assert set(out[:, 5]) == {1}
    assert set(out[:, 6]) == {22}
    assert np.array_equal(out[:, 7].view(np.uint32), np.uint32(15) << (lane // 4 * 4).astype(np.uint32))
    assert np.array_equal(out[:, 8], np.where(lane < 16, 120, lane ^ 1))
    assert set(out[:, 9]) == {96}
    assert np.array_equal(d, 0.5 * (i ^ 1))


@only_shim
def test_shared_memory_structs_and_three_dimensions(runtime):
    module = runtime.text_module(
        """
struct Job { double scale; int shift; };
extern "C" __global__ void __launch_bounds__(2 * (12), 1) turn(const double* __restrict__ x, double2* y,
                                                              const __grid_constant__ Job job) {
  extern __shared__ __align__(16) double2 line[];
  const int i = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int n = blockDim.x * blockDim.y * blockDim.z;
  const int b = blockIdx.x + gridDim.x * blockIdx.y;
  double s, c;
  sincospi(job.scale * x[b * n + i], &s, &c);
  line[i] = make_double2(c, s);
  __syncthreads();
  y[b * n + i] = line[(i + job.shift) % n];
}""",
        ("turn",),
    )
    x = np.linspace(-3, 3, 2 * 3 * 24)
    y = np.zeros((x.size, 2))
    job = np.zeros(1, np.dtype([("scale", "f8"), ("shift", "i4")], align=True))
    job["scale"], job["shift"] = 2.0, 5
    module.launch("turn", (2, 3), (2, 3, 4), (x, y, job[0]), shared_mem=24 * 16)
    z = np.roll(np.exp(2j * np.pi * x).reshape(6, 24), -5, axis=1).ravel()
    # sin and cos rounded once by the shim; NumPy's phase is off by up to 19 * 2**-53
    assert np.abs(y.view(complex).ravel() - z).max() < 4e-15


def test_arithmetic_intrinsics():
    module = shim.shim_runtime().text_module(
        """
extern "C" __global__ void math(double* o) {
  double s, c;
  sincospi(1e9 + 0.25, &s, &c);
  o[0] = s; o[1] = c; o[2] = sinpi(0.5); o[3] = cospi(1.0); o[4] = rsqrt(4.0); o[5] = __frcp_rn(4.0f);
  o[6] = rint(2.5); o[7] = fma(1e16, 1.0, 1.0) - 1e16; o[8] = __double2int_rn(2.5); o[9] = __double2int_rd(-2.5);
  o[10] = __popc(0xf0f0u); o[11] = __clz(1); o[12] = __longlong_as_double(__double_as_longlong(1.5));
  o[13] = min(3, 2u) + max(1.0f, 2.0); o[14] = __hiloint2double(__double2hiint(0.1), __double2loint(0.1));
  o[15] = __double2int_rz(1e300); o[16] = isnan(fmin(o[0], 0.0)); o[17] = __ldg(o + 6);
}""",
        ("math",),
    )
    o = np.full(18, np.nan)
    module.launch("math", (1,), (1,), (o,))
    root = np.sqrt(0.5)
    expected = [root, root, 1, -1, 0.5, 0.25, 2, 0, 2, -3, 8, 31, 1.5, 4, 0.1, 2**31 - 1, 0, 2]
    assert np.array_equal(o, expected)


@only_shim
def test_atomics(runtime):
    module = runtime.text_module(
        """
extern "C" __global__ void tally(int* n, unsigned long long* best, double* sum, float* f) {
  atomicAdd(n, 1);
  atomicMax(best, (unsigned long long)(blockIdx.x * blockDim.x + threadIdx.x));
  atomicAdd(sum, 0.5);
  if (atomicCAS(n + 1, 0, 7) == 0) atomicExch(f, 3.0f);
}""",
        ("tally",),
    )
    n, best, total, f = np.zeros(2, np.int32), np.zeros(1, np.uint64), np.zeros(1), np.zeros(1, np.float32)
    module.launch("tally", (3,), (50,), (n, best, total, f))
    assert (list(n), best[0], total[0], f[0]) == ([150, 7], 149, 75.0, 3.0)


RACE = """
extern "C" __global__ void race(int* out) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  BARRIER
  out[threadIdx.x] = s[63 - threadIdx.x];
  __syncthreads();
}"""


@pytest.mark.parametrize(("barrier", "same"), [("__syncthreads();", True), ("", False)])
def test_order_shows_a_race(barrier, same):
    outs = []
    for order in ("forwards", "backwards"):
        out = np.zeros(64, np.int32)
        module = shim.shim_runtime(order).text_module(RACE.replace("BARRIER", barrier), ("race",))
        module.launch("race", (1,), (64,), (out,))
        outs.append(out)
    assert np.array_equal(*outs) is same


UNDEFINED = {
    "if (threadIdx.x < 10) __shfl_sync(0xffffffffu, 1, 0); else __syncthreads();": "never come",
    "if (threadIdx.x < 16) *o = __shfl_sync(0x0000ffffu, 1, 20);": "takes no part",
    "if (threadIdx.x == 20) *o = __shfl_sync(0x0000ffffu, 1, 0);": "not in its own mask",
    "__syncwarp(threadIdx.x ? 0xffffffffu : 0x0000ffffu);": "waits with mask",
    "if (threadIdx.x & 1) __syncwarp(); else *o = __any_sync(0xffffffffu, 1);": "another warp operation",
    "if (threadIdx.x == 3) __trap();": r"thread \(3,0,0\): __trap",
}


@only_shim
@pytest.mark.parametrize("k", range(len(UNDEFINED)))
def test_undefined_behaviour_is_refused(runtime, k):
    bodies = [*UNDEFINED, "*o = 1;"]
    names = tuple(f"k{i}" for i in range(len(bodies)))
    text = "".join(f'extern "C" __global__ void k{i}(int* o) {{ {body} }}\n' for i, body in enumerate(bodies))
    module = runtime.text_module(text, names)
    out = np.zeros(1, np.int32)
    with pytest.raises(KernelError, match=list(UNDEFINED.values())[k]):
        module.launch(names[k], (2,), (32,), (out,))
    module.launch(names[-1], (1,), (32,), (out,))  # the launch after a failed one is a fresh start
    assert out[0] == 1


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((np.zeros(3), 5), TypeError, "expected a NumPy scalar"),
        ((np.zeros(3), np.int64(5)), KernelError, "8 bytes .* the parameter 4"),
        ((np.zeros(3),), KernelError, "takes 2 arguments"),
        ((np.float64(1), np.int32(5)), KernelError, "is a pointer"),
        ((np.zeros((4, 4))[:, 1], np.int32(5)), KernelError, "contiguous"),
        ((np.zeros(3), np.zeros(3)), KernelError, "expected a NumPy scalar"),
    ],
)
def test_wrong_arguments_are_refused(args, error, message):
    module = shim.shim_runtime().text_module('extern "C" __global__ void k(double* x, int n) {}', ("k",))
    with pytest.raises(error, match=message):
        module.launch("k", (1,), (1,), args)


def test_null_pointers_and_empty_grids():
    runtime = shim.shim_runtime()
    module = runtime.text_module('extern "C" __global__ void k(double* x, int* o) { *o = x == nullptr; }', ("k",))
    out = np.full(1, -1, np.int32)
    module.launch("k", (0,), (1,), (None, out))
    assert out[0] == -1
    assert runtime.launches == []
    module.launch("k", (1,), (1,), (None, out))
    assert out[0] == 1


def test_a_source_that_does_not_compile_names_its_line():
    with pytest.raises(KernelError, match=r"text\.cu:2:"):
        shim.shim_runtime().text_module('\nextern "C" __global__ void k() { nothing(); }', ("k",))


PLANTED = {
    "heap": "o[4] = 1;",
    "shared": "__shared__ int s[8]; s[threadIdx.x + 1] = 1; __syncthreads(); o[0] = s[0];",
    "dynamic": "extern __shared__ int d[]; d[threadIdx.x + 1] = 1; o[0] = d[0];",
    "undefined": "o[0] = 0x7fffffff + (int)blockDim.x;",
    "fine": "extern __shared__ int d[]; d[threadIdx.x] = 1; __syncthreads(); o[threadIdx.x & 3] = d[7 - threadIdx.x];",
}


@pytest.mark.parametrize("fault", sorted(PLANTED))
def test_planted_fault(fault):
    """Run by the test below in a process of its own; a fault ends that process."""
    if not os.environ.get(shim.SANITIZE):
        pytest.skip("runs under the sanitizers only")
    # a buffer of a page and more, so that NumPy takes it from malloc and not from its own cache
    out = np.zeros(4096, np.int32)[-4:]
    text = 'extern "C" __global__ void k(int* o) { ' + PLANTED[fault] + " }"
    shim.shim_runtime().text_module(text, ("k",)).launch("k", (1,), (8,), (out,), shared_mem=32)
    assert out.sum() == 4


@pytest.mark.slow
@pytest.mark.few
@pytest.mark.parametrize(
    ("fault", "report"),
    [
        ("heap", "heap-buffer-overflow"),
        slow("shared", "out of bounds"),
        slow("dynamic", "use-after-poison"),
        slow("undefined", "signed integer overflow"),
        ("fine", "1 passed"),
    ],
)
def test_sanitizers_find_planted_faults(fault, report):
    if os.environ.get(shim.SANITIZE):
        pytest.skip("runs without the sanitizers only")
    result = shim.run_sanitized(f"tests/kernels/test_shim.py::test_planted_fault[{fault}]")
    assert report in result.stdout + result.stderr
    assert (result.returncode == 0) is (fault == "fine")


@pytest.mark.slow
def test_shim_suite_under_the_sanitizers():
    """Fibres, barriers and shuffles under AddressSanitizer, which is informed of every change of stack."""
    if os.environ.get(shim.SANITIZE):
        pytest.skip("runs without the sanitizers only")
    result = shim.run_sanitized("tests/kernels/test_shim.py", "-k", "not planted and not compiles_for_the_host")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]

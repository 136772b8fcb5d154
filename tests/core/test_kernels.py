"""Kernel files: their header block, their inclusion, and the launcher over a stand-in for CuPy."""

from __future__ import annotations

import ctypes
import sys
import threading
import types

import numpy as np
import pytest

from skysieve.core.device import Device, resolve
from skysieve.core.errors import DeviceUnavailable, KernelError
from skysieve.core.gpu import runtime as kernels
from skysieve.core.gpu.runtime import CudaRuntime, check_launch, on_device
from skysieve.core.gpu.selftest import run_selftest
from skysieve.core.gpu.source import Budget, load_source
from skysieve.core.gpu.structs import Place, fill, struct


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write files into a package of their own and get its name: ``package({"a.cu": "..."})``."""

    def make(files):
        folder = tmp_path / "kernelpack"
        folder.mkdir(exist_ok=True)
        for name, text in {"__init__.py": "", **files}.items():
            (folder / name).write_text(text)
        return "kernelpack"

    monkeypatch.syspath_prepend(str(tmp_path))
    load_source.cache_clear()
    yield make
    sys.modules.pop("kernelpack", None)
    load_source.cache_clear()


HEAD = """// A kernel.
// archs: 75 90
// build: f64 -DREAL=double -DWIDE
// build: f32 -DREAL=float -DN=3*2
// budget: f64 kernel=one regs<=40 smem<=64 spills<=8 arch=90
// budget: f32 kernel=two regs<=30
#include "a.cuh"
extern "C" __global__ void __launch_bounds__(2 * (16), 3) one(int* p) {}
extern "C" __global__ void two(int* p) {}
__global__ void hidden(int* p) {}
"""


def test_header_block(package):
    source = load_source(package({"k.cu": HEAD, "a.cuh": "#pragma once\nint a;"}), "k.cu")
    assert source.kernels == ("one", "two")
    assert source.archs == (75, 90)
    assert source.builds == {"f64": {"REAL": "double", "WIDE": "1"}, "f32": {"REAL": "float", "N": "3*2"}}
    assert source.budgets == (Budget("f64", "one", 40, 64, 8, 90), Budget("f32", "two", 30))
    code = source.assemble("f32", {"BANDS": 7, "N": 9})
    assert code.startswith('#define REAL float\n#define N 9\n#define BANDS 7\n#line 1 "k.cu"\n')
    assert source.assemble().startswith("#define REAL double\n#define WIDE 1\n")
    with pytest.raises(KernelError, match=r"k\.cu has no build 'f16'; it has: f64, f32"):
        source.assemble("f16")
    whole = load_source(package({"w.cu": "// split: no\nint w;"}), "w.cu")
    assert set(source.options) - set(whole.options) == {"--split-compile=0"}


def test_headers_are_put_in_with_their_lines(package):
    files = {"k.cu": '#include "a.cuh"\n#include "b.cuh"\nint k;', "a.cuh": '#pragma once\n#include "b.cuh"\nint a;'}
    source = load_source(package(files | {"b.cuh": "int b;"}), "k.cu")
    lines = source.text.splitlines()
    assert lines.count("int b;") == 2  # the second inside a guard that is then defined
    assert lines.count("#ifndef SKYSIEVE_B_CUH") == 2
    assert "#pragma once" not in lines
    place, seen = ("k.cu", 0), {}
    for line in lines:
        if line.startswith("#line"):
            place = (line.split('"')[1], int(line.split()[1]))
        else:
            seen.setdefault(line, place)
            place = (place[0], place[1] + 1)
    assert seen["int a;"] == ("a.cuh", 3)
    assert seen["int b;"] == ("b.cuh", 1)
    assert lines[-2:] == ['#line 3 "k.cu"', "int k;"]
    assert source.builds == {"default": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#include <stdint.h>", r"k.cu:1: <stdint.h> cannot be included"),
        ('\n#include "lost.cuh"', r"k.cu:2: header lost.cuh is neither in kernelpack nor in skysieve.core.gpu"),
        ('#include "k.cu"', "k.cu includes itself: k.cu -> k.cu"),
        ("// build: f64 REAL=double", "not 'REAL=double'"),
        ("// budget: f64 kernel=k regs<40", "cannot read 'regs<40'"),
        ("// budget: default kernel=k regs<=40", "which the file does not define"),
        ("// split: yes", "split: yes: expected 'no'"),
    ],
)
def test_files_that_cannot_be_read(package, text, message):
    with pytest.raises(KernelError, match=message):
        load_source(package({"k.cu": text}), "k.cu")


def test_a_missing_file(package):
    with pytest.raises(KernelError, match=r"none.cu is missing from kernelpack: the installation is incomplete"):
        load_source(package({}), "none.cu")


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        ((1,), (1025,), "does not hold 1 to 1024 threads"),
        ((1,), (32, 33), "does not hold"),
        ((1,), (0,), "does not hold"),
        ((1, 70000), (1,), "grid .* is outside"),
        ((-1,), (1,), "grid .* is outside"),
        ((), (1,), "one to three numbers"),
        ((1, 1, 1, 1), (1,), "one to three numbers"),
    ],
)
def test_invalid_launches_are_refused(grid, block, message):
    with pytest.raises(KernelError, match=message):
        check_launch("k", grid, block, ())


def test_too_many_arguments():
    with pytest.raises(KernelError, match="33 arguments, expected at most 32"):
        check_launch("k", (1,), (1,), [None] * 33)


@pytest.mark.parametrize("value", [3, 2.5, True])
def test_arguments_have_a_width(value):
    with pytest.raises(TypeError, match="argument 1 is the Python number"):
        check_launch("k", (1,), (1,), (np.int32(1), value))
    assert check_launch("k", (1,), (1,), (np.float64(1), None))
    assert not check_launch("k", (4, 0), (1,), ())


class FakeKernel:
    max_dynamic_shared_size_bytes = 0
    attributes = {"num_regs": 20, "shared_size_bytes": 64, "local_size_bytes": 0, "max_threads_per_block": 256}  # noqa: RUF012

    def __init__(self):
        self.calls, self.opted = [], []

    def __setattr__(self, name, value):
        if name == "max_dynamic_shared_size_bytes":
            self.opted.append(value)
        super().__setattr__(name, value)

    @property
    def kernel(self):
        return types.SimpleNamespace(ptr=self)


def launch_kernel(kernel, x, y, z, bx, by, bz, shared_mem, stream, parameters, extra):
    """The driver's call: what lies at the addresses of the first two arguments, as whole numbers of 8 and 4 bytes."""
    places = (ctypes.c_void_p * 2).from_address(parameters)
    first, second = ctypes.c_uint64.from_address(places[0]).value, ctypes.c_int32.from_address(places[1]).value
    assert extra == 0
    kernel.calls.append(((x, y, z), (bx, by, bz), (first, second), shared_mem, stream))


@pytest.fixture
def fake():
    """A CuPy as far as `CudaModule` needs it; ``fake.compile`` is what compiling does."""

    class CompileException(Exception):
        pass

    class CUDADriverError(RuntimeError):
        pass

    class Card(FakeKernel):
        def __init__(self, index):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            return None

    class RawModule:
        def __init__(self, code, options, backend):
            cupy.made.append((code, options, backend))
            self.kernels = {"one": FakeKernel()}

        def compile(self):
            cupy.compile()

        def get_function(self, name):
            if name not in self.kernels:
                raise CUDADriverError("CUDA_ERROR_NOT_FOUND: named symbol not found")
            return self.kernels[name]

    cupy = types.SimpleNamespace(made=[], devices=[], compile=lambda: None, RawModule=RawModule)
    cupy.cuda = types.SimpleNamespace(
        Device=Card,
        compiler=types.SimpleNamespace(CompileException=CompileException),
        driver=types.SimpleNamespace(CUDADriverError=CUDADriverError, launchKernel=launch_kernel),
        get_current_stream=lambda: types.SimpleNamespace(ptr=7),
        runtime=types.SimpleNamespace(getDevice=lambda: 0, setDevice=lambda index: cupy.devices.append(index)),
    )
    return cupy


@pytest.fixture
def runtime(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return CudaRuntime(Device("cuda", 0, "Card", 2**30))


def test_launch(runtime, fake):
    module = runtime.module("skysieve.core.gpu", "selftest.cu", "f32", {"N": 3})
    assert runtime.module("skysieve.core.gpu", "selftest.cu", "f32", {"N": 3}) is module
    assert runtime.module("skysieve.core.gpu", "selftest.cu", "f32", {"N": 4}) is not module
    source = load_source("skysieve.core.gpu", "selftest.cu")
    code, options, backend = fake.made[0]
    assert code.startswith("#define REAL float\n#define N 3\n#line 1")
    assert (options, backend, len(fake.made)) == (source.options, "nvrtc", 2)
    stream = types.SimpleNamespace(ptr=5)
    module.launch("one", [2], [32], [None, np.int32(4)], shared_mem=60_000, stream=stream)
    module.launch("one", [2, 3], [32, 2], [Place(1 << 40, 1, 8), np.int32(-6)], shared_mem=50_000)
    module.launch("one", [0], [32], [np.int32(4)])
    kernel = module._raw.kernels["one"]
    assert kernel.calls == [
        ((2, 1, 1), (32, 1, 1), (0, 4), 60_000, 5),
        ((2, 3, 1), (32, 2, 1), (1 << 40, -6), 50_000, 7),
    ]
    module.launch("one", [1], [1], [fill(struct("at*", "n"), at=Place(3, 1, 1), n=9), np.float32(0)])
    assert kernel.calls[-1][2] == (3, 0)
    assert kernel.opted == [60_000]
    assert module.attributes("one") == {"registers": 20, "shared": 64, "local": 0, "max_threads": 256}
    with pytest.raises(KernelError, match=r"selftest.cu has no kernel 'other'"):
        module.launch("other", (1,), (1,), ())


def test_a_thread_gets_a_context_before_its_first_launch(runtime, fake):
    """CUDA's driver refuses a launch by a thread that has not called CUDA's runtime."""
    module = runtime.module("skysieve.core.gpu", "selftest.cu", "f32", {"N": 3})
    before = []

    def work():
        before.append(list(fake.devices))
        for _ in range(2):
            module.launch("one", [2], [32], [None, np.int32(4)])

    other = threading.Thread(target=work)
    other.start()
    other.join(60)
    assert len(module._raw.kernels["one"].calls) == 2
    assert fake.devices == [*before[0], 0]


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (
            "CompileException",
            KernelError,
            r"selftest.cu does not compile for cuda:0 \(Card\):\nselftest.cu\(3\): error",
        ),
        (ImportError, DeviceUnavailable, r"\(NVRTC\) cannot be loaded.*skysieve\[cuda13\]"),
        (OSError, DeviceUnavailable, "cannot be loaded"),
        (RuntimeError, KernelError, "cannot be loaded"),
    ],
)
def test_compiling_fails(runtime, fake, error, expected, message):
    kind = fake.cuda.compiler.CompileException if isinstance(error, str) else error

    def fail():
        raise kind("selftest.cu(3): error: nothing is declared")

    fake.compile = fail
    with pytest.raises(expected, match=message):
        runtime.module("skysieve.core.gpu", "selftest.cu")


def test_compiling_ahead(runtime, fake, monkeypatch):
    """All at once, and each only once; `module` raises the error."""
    monkeypatch.setattr(kernels, "usable_cores", lambda: 2)
    together = threading.Barrier(2, timeout=600)
    fake.compile = together.wait
    wanted = [("skysieve.core.gpu", "selftest.cu", build) for build in ("f64", "f32")]
    runtime.compile_ahead([*wanted, wanted[0]])
    made = [runtime.module(*each) for each in wanted]
    runtime.compile_ahead(wanted)
    assert [runtime.module(*each) for each in wanted] == made
    assert sorted(code.split("\n")[0] for code, _, _ in fake.made) == ["#define REAL double", "#define REAL float"]

    def fail():
        raise fake.cuda.compiler.CompileException("selftest.cu(3): error")

    fake.compile = fail
    third = ("skysieve.core.gpu", "selftest.cu", "f64", {"N": 3})
    runtime.compile_ahead([third])
    for _ in range(2):
        with pytest.raises(KernelError, match=r"selftest.cu does not compile"):
            runtime.module(*third)


def test_the_device_of_a_runtime_is_made_current(runtime, fake):
    inside = []

    class Card:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            inside.append(self.index)

        def __exit__(self, *exc):
            inside.pop()

    fake.cuda.Device = Card
    with on_device(runtime):
        assert inside == [0]
    assert inside == []
    with on_device(types.SimpleNamespace(xp=np)):
        assert inside == []


@pytest.mark.parametrize("text", ["CuPy failed to load libnvrtc.so.13: OSError", 'Failure finding "libnvrtc.so.13"'])
def test_a_runtime_that_cannot_load_the_compiler(runtime, fake, text):
    def fail():
        raise RuntimeError(text)

    fake.compile = fail
    with pytest.raises(DeviceUnavailable, match="NVRTC"):
        runtime.module("skysieve.core.gpu", "selftest.cu")


@pytest.mark.gpu
def test_selftest_on_every_gpu():
    for device in resolve("cuda:all"):
        runtime = CudaRuntime(device)
        run_selftest(runtime)
        a = runtime.module("skysieve.core.gpu", "selftest.cu", "f64").attributes("block_sum")
        assert 0 < a["registers"] <= 40
        assert a["shared"] == 64
        assert device.free_memory > 0


@pytest.mark.gpu
def test_errors_of_a_gpu(package):
    runtime = CudaRuntime(resolve("cuda")[0])
    name = package({"bad.cu": '\nextern "C" __global__ void k() { nothing(); }'})
    with pytest.raises(KernelError, match=r"bad\.cu\(2\)"):
        runtime.module(name, "bad.cu")
    with pytest.raises(KernelError, match="has no kernel 'lost'"):
        runtime.module("skysieve.core.gpu", "selftest.cu").launch("lost", (1,), (1,), ())


@pytest.mark.gpu
def test_more_shared_memory_than_the_default_limit(package):
    runtime = CudaRuntime(resolve("cuda")[0])
    text = (
        'extern "C" __global__ void k(int* o) { extern __shared__ int s[]; s[threadIdx.x] = 1; o[0] = s[threadIdx.x]; }'
    )
    module = runtime.module(package({"s.cu": text}), "s.cu")
    out = runtime.xp.zeros(1, np.int32)
    module.launch("k", (1,), (32,), (out,), shared_mem=60_000)
    runtime.synchronize()
    assert int(out[0]) == 1

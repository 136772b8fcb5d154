"""Every ``.cu`` of the package compiles for the architectures it claims, within its budgets; no GPU is needed.

``make test`` compiles one build of each file for sm_90, except for the files that take longest; ``make test-all``
compiles every build for all architectures that the headers claim.  The pinned NVRTC (13.0) keeps the numbers of
registers the same from run to run.
"""

from __future__ import annotations

import pytest

from skysieve.core.gpu.source import COMPILE_OPTIONS
from tests.kernels import nvrtc
from tests.kernels.nvrtc import compile_for, nvrtc_version, package_sources, usage

REQUIRED = (75, 90, 120)
"""Every kernel supports the oldest architecture, that of data centres, and the newest."""
LONGEST = (
    "exp.cu", "rect.cu", "any.cu", "plan.cu", "glance.cu", "search.cu", "baseline.cu", "clean.cu", "fourier/grid.cu",
    "fourier/exact.cu", "bands/bands.cu", "bands/comb.cu", "peaks/peaks.cu", "peaks/refine.cu", "sinusoid/comb.cu",
    "sinusoid/direct.cu", "sinusoid/fine.cu", "sinusoid/powers_half.cu", "direct/belt.cu", "direct/spin_belt.cu",
    "ring/fft.cu", "ring/grid.cu",
)  # fmt: skip
"""Files that take 0.5 to 6 s to compile; the host shim compiles them in ``make test``."""


def _cases() -> list[object]:
    """One test for each file, build and architecture, so that xdist distributes them.  Most are slow: see above."""
    cases = []
    for s in package_sources():
        for i, build in enumerate(s.builds):
            for arch in s.archs:
                quick = (i, arch) == (0, 90) and s.name not in LONGEST
                name = f"{s.name}-{build}-sm{arch}"
                cases.append(pytest.param(s, build, arch, id=name, marks=() if quick else pytest.mark.slow))
    return cases


@pytest.mark.parametrize("source", package_sources(), ids=lambda s: s.name)
def test_header_block(source):
    assert set(REQUIRED) <= set(source.archs), "the header names no '// archs:', or not 75, 90 and 120"
    assert source.kernels, 'no extern "C" __global__ function was found'
    assert source.builds


@pytest.mark.few
@pytest.mark.parametrize(("source", "build", "arch"), _cases())
def test_compiles_within_budget(source, build, arch):
    """The options do not divide compilation among threads, with which registers and spills would vary between runs."""
    found = compile_for(source.assemble(build), source.name, arch, COMPILE_OPTIONS)
    assert set(found) == set(source.kernels)
    budgets = [b for b in source.budgets if b.build == build]
    special = {limit.kernel for limit in budgets if limit.arch == arch}
    for limit in budgets:
        if limit.arch not in (None, arch) or (limit.arch is None and limit.kernel in special):
            continue
        used = found[limit.kernel]
        assert limit.regs is None or used.regs <= limit.regs, f"{limit.kernel}: {used}"
        assert limit.smem is None or used.smem <= limit.smem, f"{limit.kernel}: {used}"
        assert used.spills <= limit.spills, f"{limit.kernel}: {used}"
    spilling = {name for name, used in found.items() if used.spills} - {limit.kernel for limit in budgets}
    assert not spilling, f"these spill and have no budget: {found}"


def test_usage_reads_spills_and_shared_memory():
    heavy = """
extern "C" __global__ void __launch_bounds__(1024) heavy(double* a, int n) {
  __shared__ double s[100];
  double x[64];
  for (int i = 0; i < 64; i++) x[i] = a[i * n + threadIdx.x];
  for (int k = 0; k < n; k++) for (int i = 0; i < 64; i++) x[i] = fma(x[i], x[(i + 1) & 63], x[(i * 7) & 63]);
  s[threadIdx.x % 100] = x[0];
  __syncthreads();
  for (int i = 0; i < 64; i++) a[i * n + threadIdx.x] = x[i] + s[(n + i) % 100];
}"""
    used = compile_for(heavy, "heavy.cu", 90)["heavy"]
    assert used.smem == 800
    assert used.regs <= 64  # 65536 registers for 1024 threads
    assert used.spills > 0
    assert usage("nothing of use") == {}


def test_a_source_that_does_not_compile_is_reported_with_its_line():
    with pytest.raises(AssertionError, match=r"bad\.cu\(3\): error"):
        compile_for('#line 1 "bad.cu"\n\n\nextern "C" __global__ void k() { nothing(); }', "x.cu", 90)


def test_a_report_is_stored_until_the_source_changes(tmp_path, monkeypatch):
    if nvrtc_version() is None:
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    monkeypatch.setattr(nvrtc, "BUILD", tmp_path / "nvrtc")
    code = 'extern "C" __global__ void k(int* o) { o[threadIdx.x] = 1; }'
    first = compile_for(code, "k.cu", 90)
    (stored,) = (tmp_path / "nvrtc").iterdir()
    stored.write_text(stored.read_text().replace(f"Used {first['k'].regs} registers", "Used 77 registers"))
    assert compile_for(code, "k.cu", 90)["k"].regs == 77
    assert compile_for(code + "\n", "k.cu", 90) == first
    assert "k" in compile_for(code, "k.cu", 75)
    assert len(list((tmp_path / "nvrtc").iterdir())) == 3


def test_nvrtc_is_the_pinned_one():
    found = nvrtc_version()
    if found is None:
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    assert found.startswith("13.0."), "budgets of registers hold for NVRTC 13.0"

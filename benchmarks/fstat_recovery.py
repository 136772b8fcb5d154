"""Recovery of simulated transients in noise, by our search and by PyFstat's search of the same SFT files.

The benchmark answers four questions.  How many of 200 signals with an expected 2F of 25 to 60 does each search find?
Do 90% intervals of t0 and tau contain the true value in 90% of the cases?  Do lines, drifting noise and gaps cause
detections that neither float64 nor LALPulsar has?  Does the line-robust statistic rank lines below signals?  Run it as
``python -m benchmarks.fstat_recovery``; PyFstat's columns are left out where it is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.harness import Report

from skysieve.fstat import (
    BSGL,
    Demodulator,
    Grid,
    Signal,
    TemplateBank,
    search_sfts,
    simulate_sfts,
    transient_map,
    write_sfts,
)
from skysieve.fstat.demod.barycentre import barycentre
from skysieve.fstat.inputs.detectors import antenna_patterns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skysieve.fstat import SFTs

START, DAYS, T = 1_000_000_000, 10, 1800
N = DAYS * 48
RA, DEC, F0, SQRT_S = 2.2486, -0.7885, 22.4, 1e-23
TREF = START + DAYS * 43_200
STEP = 2.5e-7
"""Step between templates, Hz: a third of the frequency resolution of 10 days, with a mismatch of at most 4%."""
BANK = TemplateBank(F0 + STEP * np.arange(-6, 7))
BAND = (F0 - 0.045, F0 + 0.045)
GRID = Grid(t0=START, t0_band=(N - 2) * T, dt0=T, tau=2 * T, tau_band=(N - 2) * T, dtau=T)
FALSE_ALARM = 0.01


def wave(rng: np.random.Generator, rho: float, t0: int, tau: int, f0: float = F0) -> Signal:
    """Draw a signal of a given signal-to-noise ratio and random orientation, isotropic in the whitened amplitudes.

    With a uniform density within ``rho < rhohatmax`` this is the prior of ln B and of the posteriors.
    """
    t = START + T * np.arange(N)
    inside = (t >= t0) & (t < t0 + tau)
    matrix = np.zeros((2, 2))
    for detector in ("H1", "L1"):
        pair = np.array(antenna_patterns(t[inside] + 0.5 * T, detector, RA, DEC))
        matrix += T / SQRT_S**2 * pair @ pair.T
    y = rng.standard_normal(2) + 1j * rng.standard_normal(2)
    along_a, along_b = rho * np.linalg.solve(np.linalg.cholesky(matrix).T, y / np.linalg.norm(y))
    u, v = along_a + 1j * along_b, along_a - 1j * along_b  # circular polarisations
    plus, cross = 0.5 * (abs(u) + abs(v)), 0.5 * (abs(u) - abs(v))
    h0 = plus + np.sqrt(max(0.0, plus**2 - cross**2))
    return Signal(
        f0=f0, h0=h0, ra=RA, dec=DEC, tref=TREF, cosi=float(np.clip(cross / h0, -1, 1)),
        psi=float(np.angle(u) - np.angle(v)) / 4, phi0=float(np.angle(u) + np.angle(v)) / 2, window="rect", t0=t0,
        tau=tau,
    )  # fmt: skip


def data(seed: int, signals: Any = (), **changes: Any) -> list[SFTs]:
    """SFTs of noise and signals."""
    return simulate_sfts(
        BAND, START, DAYS * 86400, noise=changes.pop("noise", SQRT_S), signals=signals, seed=seed, ephemeris="builtin",
        **changes,
    )  # fmt: skip


def ours(sfts: list[SFTs], **options: Any) -> dict[str, Any]:
    """The loudest template of our search."""
    found = search_sfts(
        sfts, RA, DEC, BANK, TREF, grid=GRID, windows=("rect",), barycentre="builtin", device="cpu", topk=1, **options
    ).columns("rect")
    return {name: column[0].item() for name, column in found.items()}


def theirs(sfts: list[SFTs], folder: Path) -> dict[str, Any]:
    """The loudest template of PyFstat's search of the same SFTs, in files."""
    import pyfstat

    logging.getLogger("pyfstat").setLevel(logging.ERROR)
    for file in folder.iterdir():
        file.unlink()
    write_sfts(folder, sfts)
    with contextlib.redirect_stderr(io.StringIO()):
        search = pyfstat.TransientGridSearch(
            label="peer", outdir=str(folder), sftfilepattern=str(folder / "*.sft"), tref=TREF,
            F0s=[BANK.f0[0], BANK.f0[-1], STEP], F1s=[0.0], F2s=[0.0], Alphas=[RA], Deltas=[DEC],
            transientWindowType="rect", t0Band=GRID.t0_band, tauBand=GRID.tau_band, minStartTime=START,
            maxStartTime=START + DAYS * 86400, tCWFstatMapVersion="lal", minCoverFreq=-0.035, maxCoverFreq=-0.035,
        )  # fmt: skip
        search.run()
    best = search.data[np.argmax(search.data["maxTwoF"])]
    names = {"max2F": "maxTwoF", "f0": "F0", "t0_ml": "t0_ML", "tau_ml": "tau_ML"}
    return {name: float(best[theirs]) for name, theirs in names.items()}


def matches(found: dict[str, Any], signal: Signal) -> bool:
    """Whether a candidate is the signal: equal frequency within the resolution, and half of the time in common."""
    ends = min(found["t0_ml"] + found["tau_ml"], signal.t0 + signal.tau), max(found["t0_ml"], signal.t0)
    union = max(found["t0_ml"] + found["tau_ml"], signal.t0 + signal.tau) - min(found["t0_ml"], signal.t0)
    return abs(found["f0"] - signal.f0) <= 1 / signal.tau and ends[0] - ends[1] >= 0.5 * union


def recovery(report: Report, count: int, noises: int, peer: bool) -> float:
    """Count the signals that are found; return our threshold."""
    report.title(
        f"{count} signals of 1 to 6 days, expected 2F of 25 to 60; threshold of {FALSE_ALARM:.0%} false alarms"
    )
    tools = {"skysieve": ours} | ({"PyFstat": theirs} if peer else {})
    loud: dict[str, list[float]] = {name: [] for name in tools}
    found: dict[str, list[tuple[float, bool]]] = {name: [] for name in tools}
    seconds = dict.fromkeys(tools, 0.0)
    # start and duration may differ by an SFT and the frequency by a step, because PyFstat makes its own steps
    same = 0
    with tempfile.TemporaryDirectory() as folder:
        extra: dict[str, tuple[Any, ...]] = {"skysieve": (), "PyFstat": (Path(folder),)}
        for i in range(noises):
            made = data(10_000 + i)
            for name, search in tools.items():
                loud[name].append(search(made, *extra[name])["max2F"])
        rng = np.random.default_rng(1)
        for i in range(count):
            tau = int(rng.integers(48, 289)) * T
            t0 = START + int(rng.integers(0, N - tau // T + 1)) * T
            signal = wave(rng, np.sqrt(rng.uniform(21, 56)), t0, tau, F0 + STEP * rng.uniform(-3, 3))
            made = data(i, signal)
            answers = {}
            for name, search in tools.items():
                begun = time.perf_counter()
                answers[name] = search(made, *extra[name])
                seconds[name] += time.perf_counter() - begun
                found[name].append((answers[name]["max2F"], matches(answers[name], signal)))
            if peer:
                same += bool(
                    abs(answers["PyFstat"]["f0"] - answers["skysieve"]["f0"]) <= STEP
                    and all(abs(answers["PyFstat"][key] - answers["skysieve"][key]) <= T for key in ("t0_ml", "tau_ml"))
                )
    bars = {name: float(np.quantile(values, 1 - FALSE_ALARM)) for name, values in loud.items()}
    for name in tools:
        good = sum(value >= bars[name] and right for value, right in found[name])
        facts = {"same_candidate": same} if peer and name == "skysieve" else {}
        least = {} if name != "skysieve" or not peer else {
            "reached": good >= sum(v >= bars["PyFstat"] and right for v, right in found["PyFstat"])
        }  # fmt: skip
        report.row("found", tool=name, found=good, of=count, threshold=bars[name], seconds_each=seconds[name] / count,
                   **facts, **least)  # fmt: skip
    return bars["skysieve"]


def calibration(report: Report, count: int, largest: float) -> None:
    """Count how often 90% intervals contain the true value; start, duration and amplitude are drawn from the prior."""
    report.title(f"{count} signals of the prior (rho below {largest:g}, any cell): 90% intervals")
    rng = np.random.default_rng(2)
    held = {"t0": 0, "tau": 0}
    for i in range(count):
        t0, tau = (int(rng.choice(x)) for x in (GRID.t0s, GRID.taus))
        signal = wave(rng, largest * rng.random() ** 0.25, t0, tau)
        made = data(20_000 + i, signal)
        atoms = Demodulator(made, RA, DEC, TREF, barycentre="builtin").atoms(F0)
        result = transient_map(atoms, GRID, window="rect", dtype="float32", device="cpu", keep_map=False)
        for name, true in (("t0", t0), ("tau", tau)):
            low, high = result.credible_interval(name)
            held[name] += low <= true <= high
    for name, number in held.items():
        report.row("calibration", parameter=name, held=number / count, of=count, reached=0.85 <= number / count <= 0.95)


def disturbed(kind: str, seed: int) -> list[SFTs]:
    """Make noise with a line in H1, with levels that drift by 1e4, with gaps, or with all of these."""
    rng = np.random.default_rng(seed)
    level: Any = SQRT_S
    if kind in ("drift", "all"):
        level = {d: SQRT_S * 10 ** rng.uniform(0, 4, N) for d in ("H1", "L1")}
    made = data(seed, noise=level)
    if kind in ("line", "all"):
        h1 = made[0]
        values = h1.data.astype(np.complex128)
        scale = np.median(np.abs(values), axis=1)
        _, rate = barycentre(h1.t[200:201] + 0.5 * T, "H1", RA, DEC, "builtin")  # Doppler factor
        at = int(F0 * T * rate[0]) - h1.first_bin + int(rng.integers(0, 2))
        values[100:300, at] += 5 * scale[100:300] * np.exp(1j * rng.uniform(0, 2 * np.pi))
        made[0] = type(h1)(h1.detector, h1.t, h1.tsft, h1.first_bin, values.astype(np.complex64), h1.taper)
    if kind in ("gaps", "all"):
        out = []
        for one in made:
            keep = rng.random(N) < 0.6
            for first in rng.integers(0, N - 60, 3):
                keep[first : first + 60] = False
            keep[[0, 1, -2, -1]] = True
            out.append(type(one)(one.detector, one.t[keep], one.tsft, one.first_bin, one.data[keep], one.taper))
        made = out
    return made


def disturbances(report: Report, count: int, bar: float, peer: bool) -> None:
    """Detections in noise with lines, drifting levels and gaps."""
    report.title(f"{count} sets of disturbed noise each: detections above 2F = {bar:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("drift", "gaps", "line", "all"):
            off, only, above = 0.0, 0, {"float32": 0, "float64": 0, "PyFstat": 0}
            for seed in range(count):
                made = disturbed(kind, 30_000 + seed)
                values = {name: ours(made, dtype=name)["max2F"] for name in ("float32", "float64")}
                if peer:
                    values["PyFstat"] = theirs(made, Path(folder))["max2F"]
                for name, value in values.items():
                    above[name] += int(value >= bar)
                off = max(off, abs(values["float32"] / values["float64"] - 1))
                only += values["float32"] >= bar and all(v < bar for n, v in values.items() if n != "float32")
            if not peer:
                del above["PyFstat"]
            report.row(kind, **above, in_float32_only=only, largest_difference=off, reached=only == 0)


def lines(report: Report, count: int) -> None:
    """Compare how well each statistic ranks signals above lines, in sets with a line or a signal of equal 2F."""
    report.title(f"{count} lines in H1 and {count} signals: how often a signal ranks above a line")
    rng = np.random.default_rng(5)
    prior = BSGL(15.0)
    ranks: dict[str, list[NDArray[np.float64]]] = {}
    for name in ("max2F", "log10BSGL"):
        values = []
        for with_line in (False, True):
            made = (
                disturbed("line", 40_000 + i) if with_line
                else data(50_000 + i, wave(rng, 8.5, START + 100 * T, 200 * T)) for i in range(count)
            )  # fmt: skip
            values.append(np.array([ours(one, bsgl=prior, statistic=name)[name] for one in made]))
        ranks[name] = values
    for name, (signals, others) in ranks.items():
        share = float((signals[:, None] > others).mean())
        reached = {} if name == "max2F" else {"reached": share >= 0.95}
        report.row("ranking", statistic=name, signal_above_line=share, median_signal=float(np.median(signals)),
                   median_line=float(np.median(others)), **reached)  # fmt: skip


def main() -> None:
    """Run the parts and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--only", nargs="*", default=[], help="parts: recovery, calibration, disturbances, lines")
    parser.add_argument("--count", type=int, default=200, help="signals")
    given = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # LALSuite's programs
    peer = find_spec("pyfstat") is not None
    count = 6 if given.quick else given.count
    report = Report("fstat-recovery", ["skysieve", "numpy", "lalsuite", "pyfstat"], given.quick)
    wanted = given.only or ["recovery", "calibration", "disturbances", "lines"]
    bar = 32.0
    if "recovery" in wanted:
        bar = recovery(report, count, count, peer)
    if "calibration" in wanted:
        calibration(report, 2 * count, 8.0)
    if "disturbances" in wanted:
        disturbances(report, max(2, count // 10), bar, peer)
    if "lines" in wanted:
        lines(report, max(4, count // 5))
    report.write("" if not given.only else "-" + "-".join(given.only))
    sys.exit(report.failed)


if __name__ == "__main__":
    main()

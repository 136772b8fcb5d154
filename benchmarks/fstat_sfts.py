"""Time searches as large as those of the paper, from SFT files of 121 days and two detectors, for Vela and the Crab.

``python -m benchmarks.fstat_sfts --device cuda`` runs all 2.2e6 templates of Vela's search and a slice of the Crab's
1.6e8 (Keitel & Ashton 2018), with rectangular and exponential windows over the full grid of start times and durations;
on a CPU it runs a slice of both.  The SFTs are simulated, with a transient that the search has to find.  A machine
without astropy needs the arrival times in a file: run ``--write-times times.npz`` elsewhere, then ``--times
times.npz``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import Report

from skysieve.core.device import resolve
from skysieve.fstat import Demodulator, Signal, TemplateBank, read_sfts, search_sfts, simulate_sfts, write_sfts
from skysieve.fstat.demod import simulate
from skysieve.fstat.demod.bank import spacing
from skysieve.fstat.demod.barycentre import barycentre
from skysieve.fstat.demod.demodulator import stream

START, DAYS, T = 1_000_000_000, 121, 1800
N = DAYS * 48
TREF = START + DAYS * 43_200
DETECTORS = ("H1", "L1")
Times = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Target:
    """A pulsar, the number of templates in the paper's search for it, and the number of different spin-downs."""

    ra: float
    dec: float
    f0: float
    f1dot: float
    whole: float
    slice: int
    spin_downs: int


TARGETS = {
    "Vela": Target(2.2486, -0.7885, 22.4, -3.12e-11, 2.2e6, 2_200_000, 40),
    "Crab": Target(1.4596, 0.3842, 59.2, -7.4e-10, 1.6e8, 400_000, 200),
}


def times_of(target: Target) -> Times:
    """Arrival times at the middles of the SFTs."""
    t = START + T * np.arange(N) + 0.5 * T
    return {detector: barycentre(t, detector, target.ra, target.dec, "builtin") for detector in DETECTORS}


def bank_of(target: Target, count: int) -> TemplateBank:
    """About `count` templates around the signal, by a mismatch of 0.2."""
    df0, df1dot, _ = spacing(DAYS * 86400, 0.2, 2)
    n1 = max(1, min(target.spin_downs, count // 16))
    n0 = count // n1
    return TemplateBank(target.f0 + df0 * (np.arange(n0) - n0 // 2), target.f1dot + df1dot * (np.arange(n1) - n1 // 2))


def files_of(target: Target, bank: TemplateBank, times: Times, folder: Path) -> tuple[Signal, tuple[float, float]]:
    """Write SFTs of noise and a transient; returns it and the band that the search needs."""
    signal = Signal(
        f0=target.f0, h0=2e-25, ra=target.ra, dec=target.dec, tref=TREF, f1dot=target.f1dot, window="exp",
        t0=START + 1800 * T, tau=1300 * T,
    )  # fmt: skip
    drift = np.abs(bank.f1dot).max() * DAYS * 86400 + target.f0 * 1.1e-4 + 60 / T
    band = float(bank.f0[0] - drift), float(bank.f0[-1] + drift)
    simulate.barycentric_times = lambda t, detector, *_: times[detector]
    made = simulate_sfts((band[0] - 0.1, band[1] + 0.1), START, DAYS * 86400, signals=signal, seed=5)
    write_sfts(folder, made)
    return signal, band


def run(report: Report, name: str, count: int, device: str, given: Times | None) -> None:
    """One search."""
    target = TARGETS[name]
    bank, times = bank_of(target, count), given or times_of(target)
    with tempfile.TemporaryDirectory() as folder:
        signal, band = files_of(target, bank, times, Path(folder))
        place: dict[str, Any] = {"ra": target.ra, "dec": target.dec, "tref": TREF, "barycentre": times}
        sfts = read_sfts(folder, band)
        few = TemplateBank(bank.f0[:64], bank.f1dot[:1])
        search_sfts(sfts, bank=few, device=device, topk=10, **place)  # compiles
        begun = time.perf_counter()
        sfts = read_sfts(folder, band)
        read = time.perf_counter() - begun
        found = search_sfts(sfts, bank=bank, device=device, topk=100, band_width=max(1, len(bank) // 200), **place)
        seconds = time.perf_counter() - begun
    with Demodulator(sfts, **place) as host, host.on(resolve(device)[0]) as one:
        batches = stream([one], bank)(0)
        sizes = [len(next(batches)[0])]  # the first is a warm-up
        begun = time.perf_counter()
        for batch, _ in zip(batches, range(20), strict=False):
            sizes.append(len(batch[0]))
        each = (time.perf_counter() - begun) / max(1, sum(sizes[1:]))
        batches.close()
    share = {"demodulation_alone": each * len(bank) / seconds} if len(sizes) > 1 else {}
    best = found.columns("exp")
    step = bank.f0[1] - bank.f0[0]
    report.row(
        name, templates=len(bank), seconds=seconds, read=read, us_each=1e6 * seconds / len(bank),
        hours_for_all=seconds * target.whole / len(bank) / 3600, **share, loudest=float(best["max2F"][0]),
        expected_of_noise=found.expected_loudest("exp"),
        reached=bool(
            abs(best["f0"][0] - signal.f0) <= 3 * step and abs(best["t0_ml"][0] - signal.t0) <= 0.2 * signal.tau
        ),
    )  # fmt: skip


def main() -> None:
    """Run the searches and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--templates", type=int, help="of each search, instead of the whole of Vela's")
    parser.add_argument("--only", nargs="*", default=list(TARGETS), help="Vela, Crab")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--times", type=Path, help="arrival times, where astropy is not installed")
    parser.add_argument("--write-times", type=Path, help="write arrival times and stop")
    given = parser.parse_args()
    if given.write_times:
        values = {f"{n}_{d}": np.stack(x) for n, target in TARGETS.items() for d, x in times_of(target).items()}
        np.savez_compressed(given.write_times, **values)
        return
    tables = np.load(given.times) if given.times else None
    report = Report("fstat-sfts", ["skysieve", "numpy", "cupy-cuda13x", "cupy-cuda12x"], given.quick)
    report.title(
        f"{DAYS} days, H1 and L1, rectangular and exponential windows, full grid, on {resolve(given.device)[0]}"
    )
    for name in given.only:
        usual = TARGETS[name].slice if resolve(given.device)[0].kind == "cuda" else 200
        count = given.templates or (200 if given.quick else usual)
        times = None if tables is None else {d: tuple(tables[f"{name}_{d}"]) for d in DETECTORS}
        run(report, name, count, given.device, times)
    report.write()
    sys.exit(report.failed)


if __name__ == "__main__":
    main()

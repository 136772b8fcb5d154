"""Compare how many periods of variable stars each multiband model recovers from simulated light curves.

RR Lyrae stars, Cepheids, eclipsing binaries and sinusoids, whose amplitudes, phases, colours and errors depend on the
band, at the cadences of two surveys.  Run it as ``python -m benchmarks.multiband_recovery``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.harness import Report

import skysieve

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RANGE = {"fmin": 0.01, "fmax": 6.0}
"""Cycles a day: periods of 0.17 to 100 days."""
BANDS = "ugrizy"
KINDS = ("RR Lyrae", "Cepheid", "eclipsing binary", "sinusoid")
SHARE = np.array([0.07, 0.10, 0.22, 0.22, 0.20, 0.19])
"""Fraction of the visits in each band, as planned for the Rubin Observatory (Ivezic et al. 2019, ApJ 873, 111)."""
DEPTH = np.array([23.9, 25.0, 24.7, 24.0, 23.3, 22.1])
"""Magnitude at which a point source has S/N 5 in one visit (the same paper, as are the constants of its error)."""
GAMMA, SYSTEMATIC = np.array([0.038, 0.039, 0.039, 0.039, 0.039, 0.039]), 0.005
SIDEREAL, YEAR, MOON = 0.0657098, 365.25, 29.53
"""Hours by which a star culminates earlier each day; days in a year."""
PULSATION = {
    # amplitudes in units of that in g (RR Lyrae: about those of Sesar et al. 2010, ApJ 708, 717), lags in cycles
    "RR Lyrae": ([0.93, 1.0, 0.71, 0.57, 0.53, 0.52], [-0.01, 0.0, 0.005, 0.01, 0.015, 0.015]),
    "Cepheid": ([1.25, 1.0, 0.68, 0.54, 0.48, 0.45], [-0.02, 0.0, 0.02, 0.035, 0.045, 0.05]),
}


@dataclass(frozen=True)
class Variables:
    """A batch: rows of star ``i`` are ``offsets[i]:offsets[i + 1]`` of ``t`` (days), ``y``, ``dy`` and ``band``."""

    t: NDArray[np.float64]
    y: NDArray[np.float64]
    dy: NDArray[np.float64]
    band: NDArray[np.str_]
    offsets: NDArray[np.int64]
    period: NDArray[np.float64]
    kind: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.period)


def _visits(
    rng: np.random.Generator, n: int, years: float, together: bool
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draw times and bands of ``n`` visits, at night and near culmination.

    Visits are pairs within the hour in neighbouring bands or, with ``together``, five bands within minutes (as in
    Stripe 82 of the SDSS).
    """
    start = rng.uniform(0, YEAR)
    t: list[float] = []
    band: list[int] = []
    while len(t) < n:
        night = np.floor(rng.uniform(0, years * YEAR))
        hour_angle = np.clip(rng.normal(0, 1.2), -2.3, 2.3) if together else rng.uniform(-3.5, 3.5)
        local = (start * 24 / YEAR - SIDEREAL * night + hour_angle + 12) % 24 - 12  # hours from midnight
        if abs(local) > 4.5:
            continue
        if together:
            t += [night + local / 24 + 72 / 86400 * k for k in range(5)]
            band += [2, 3, 0, 4, 1]
            continue
        bright = abs((night % MOON) / MOON - 0.5) < 0.2
        share = SHARE * (np.array([0.05, 0.3, 1, 1, 1, 1]) if bright else 1.0)
        first = int(rng.choice(6, p=share / share.sum()))
        second = min(5, max(0, first + int(rng.choice([-1, 1]))))
        t += [night + local / 24, night + (local + rng.uniform(0.25, 0.75)) / 24]
        band += [first, second]
    order = np.argsort(t[:n])
    return np.array(t)[order], np.array(band)[order]


def _pulsation(rng: np.random.Generator, kind: str, period: float, overtone: bool) -> Any:
    """Return the magnitude relative to the mean of its band, as a function of time and band."""
    ratio, lag = (np.array(x) for x in PULSATION[kind])
    if kind == "RR Lyrae":
        size = rng.uniform(0.3, 0.6) if overtone else rng.uniform(0.5, 1.3)
        part = np.array([1, 0.15, 0.07, 0.03]) if overtone else np.array([1, 0.48, 0.34, 0.22, 0.14, 0.09])
    else:
        size = rng.uniform(0.5, 1.2) * (0.5 if overtone else 1.0)
        part = np.array([1, 0.2, 0.06]) if overtone else np.array([1, 0.42, 0.22, 0.1, 0.05])
    part = part * np.append(1.0, rng.uniform(0.8, 1.2, len(part) - 1))
    # sines in phase, k-th of amplitude about 1 / k, make a steep rise and a slow decline
    shift = np.append(0.0, rng.normal(0, 0.3, len(part) - 1))
    ratio, lag = ratio * rng.normal(1, 0.04, 6), lag + rng.normal(0, 0.003, 6)
    k = np.arange(1, len(part) + 1)
    x = np.linspace(0, 1, 200, endpoint=False)
    wave = np.sin(2 * np.pi * np.outer(x, k) + shift) @ part
    part = part * (size / np.ptp(wave))
    zero = rng.random()

    def magnitude(t: NDArray[Any], band: NDArray[Any]) -> NDArray[Any]:
        phase = t / period + zero - lag[band]
        return ratio[band] * (np.sin(2 * np.pi * np.outer(phase, k) + shift) @ part)

    return magnitude


def _eclipses(rng: np.random.Generator, period: float, contact: bool) -> Any:
    """Return a light curve with two eclipses in each orbit; the temperatures of the stars set their depths by band."""
    slope = rng.normal(0, 0.03)
    if contact:
        depth = rng.uniform(0.15, 0.75)
        uneven = rng.uniform(0, 0.25) * depth
        first, second = depth * (1 + slope * np.arange(6)), (depth - uneven) * (1 + (slope + 0.02) * np.arange(6))
        width, reflected = 0.13, rng.uniform(0.3, 0.5)  # the ellipsoidal part is most of it
    else:
        depth = rng.uniform(0.25, 1.0)
        cool = rng.uniform(0.1, 0.9)
        first, second = depth * (1 - 0.02 * np.arange(6)), depth * cool * (1 + 0.08 * np.arange(6) * (1 - cool))
        width, reflected = rng.uniform(0.015, 0.06), rng.uniform(0.0, 0.1)
    zero = rng.random()

    def magnitude(t: NDArray[Any], band: NDArray[Any]) -> NDArray[Any]:
        phase = t / period + zero
        one, two = ((phase - a + 0.5) % 1 - 0.5 for a in (0.0, 0.5))
        dip = first[band] * np.exp(-0.5 * (one / width) ** 2) + second[band] * np.exp(-0.5 * (two / width) ** 2)
        return (1 - reflected) * dip + reflected * first[band] * 0.5 * (1 + np.cos(4 * np.pi * phase))

    return magnitude


def _star(rng: np.random.Generator, kind: str) -> tuple[float, Any, NDArray[np.float64]]:
    """Draw the period, the light curve, and the colours relative to r, of a star."""
    other = rng.random() < 0.3
    if kind == "RR Lyrae":
        period = rng.uniform(0.22, 0.42) if other else float(np.clip(rng.normal(0.58, 0.08), 0.4, 0.9))
        return period, _pulsation(rng, kind, period, other), np.array([1.35, 0.2, 0.0, -0.05, -0.05, -0.05])
    if kind == "sinusoid":  # small pulsations, ellipsoidal variables, spots
        period = float(np.exp(rng.uniform(np.log(0.2), np.log(30))))
        size, zero, ratio = rng.uniform(0.05, 0.5), rng.random(), np.array([1.05, 1.0, 0.75, 0.65, 0.55, 0.5])

        def wave(t: NDArray[Any], band: NDArray[Any]) -> NDArray[Any]:
            return size * ratio[band] * np.sin(2 * np.pi * (t / period + zero))

        return period, wave, np.array([1.6, 0.4, 0.0, -0.1, -0.15, -0.15])
    if kind == "Cepheid":
        period = float(np.exp(rng.uniform(np.log(1.0), np.log(5.0)) if other else rng.uniform(np.log(2.5), np.log(50))))
        return period, _pulsation(rng, kind, period, other), np.array([1.75, 0.45, 0.0, -0.15, -0.2, -0.22])
    contact = rng.random() < 0.6
    period = float(np.exp(rng.uniform(np.log(0.22), np.log(0.7)) if contact else rng.uniform(np.log(0.5), np.log(10))))
    red = rng.uniform(0.2, 1.2)
    return period, _eclipses(rng, period, contact), red * np.array([2.6, 1.0, 0.0, -0.45, -0.65, -0.75])


def simulate_variables(n_stars: int, epochs: int, *, together: bool = False, seed: int = 1) -> Variables:
    """Simulate RR Lyrae stars, Cepheids, eclipsing binaries and sinusoids in turn, with ``epochs`` visits in all bands.

    By default there are six bands in one to four years, and mean magnitudes are 20 to 23.5 in r.  With ``together``
    five bands are observed at once in nine years, magnitudes are 16 to 21, and hour angles scatter by 1.2 hours as in
    Stripe 82.
    """
    rng = np.random.Generator(np.random.PCG64([seed, epochs, int(together)]))
    kinds = [KINDS[i % 4] for i in range(n_stars)]
    t, y, dy, bands, period = [], [], [], [], []
    for name in kinds:
        one, light, colour = _star(rng, name)
        times, band = _visits(rng, epochs, 9.0 if together else rng.uniform(1.0, 4.0), together)
        mean = (rng.uniform(16.0, 21.0) if together else rng.uniform(20.0, 23.5)) + colour
        true = mean[band] + light(times, band)
        x = 10 ** (0.4 * (true - DEPTH[band]))
        error = np.sqrt(SYSTEMATIC**2 + (0.04 - GAMMA[band]) * x + GAMMA[band] * x**2)
        t.append(times)
        y.append(true + error * rng.standard_normal(epochs))
        dy.append(error)
        bands.append(np.array(list(BANDS))[band])
        period.append(one)
    rows = np.arange(n_stars + 1) * epochs
    flat = (np.concatenate(x) for x in (t, y, dy))
    return Variables(*flat, np.concatenate(bands), rows, np.array(period), np.array(kinds))


def recovered(made: Variables, period: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether periods are within 1% of the truth, or of half of it for eclipsing binaries, which have two eclipses."""
    ratio = np.asarray(period, np.float64) / made.period
    halved = (made.kind == KINDS[2]) & (np.abs(2 * ratio - 1) < 0.01)
    return (np.abs(ratio - 1) < 0.01) | halved


def one_band(made: Variables) -> NDArray[np.float64]:
    """Return periods from one band of each star, the band with the most rows."""
    chosen = []
    for a, b in pairwise(made.offsets.tolist()):
        names, count = np.unique(made.band[a:b], return_counts=True)
        chosen.append(a + np.flatnonzero(made.band[a:b] == names[np.argmax(count)]))
    curves = ([x[rows] for rows in chosen] for x in (made.t, made.y, made.dy))
    return np.asarray(skysieve.lombscargle(*curves, **RANGE, return_power=False, device="cpu").period)


def periods(made: Variables, **model: Any) -> NDArray[np.float64]:
    """Periods from all bands together."""
    found = skysieve.lombscargle_multiband(
        made.t, made.y, made.band, made.dy, offsets=made.offsets, **RANGE, return_power=False, device="cpu", **model
    )
    return np.asarray(found.period)


MODELS: dict[str, Any] = {
    "one band, 1 term": None,
    "default": {},
    "offsets, 1 term": {"model": "offsets", "nterms": 1},
    "offsets, 2 terms": {"model": "offsets", "nterms": 2},
    "offsets, 3 terms": {"model": "offsets", "nterms": 3},
    "separate, 1 term": {"model": "separate", "nterms": 1},
    "flexible, 1 and 1 term, 1e-6": {"model": "flexible", "nterms": 1, "reg_band": 1e-6},
    "flexible, 1 and 1 term, 1e-2": {"model": "flexible", "nterms": 1, "reg_band": 1e-2},
    "flexible, 2 and 1 terms, 1e-2": {"model": "flexible", "nterms": 2, "reg_band": 1e-2},
}
"""Models compared; "separate" is the sum of the bands' periodograms weighted with their chi-squares about the mean."""
SLOW, PART = "flexible, 1 and 1 term, 1e-6", 4
"""A model with nearly singular equations, which are solved again from the rows; it gets a quarter of the objects."""
CASES = ((25, False), (50, False), (75, False), (100, False), (150, False), (300, False), (125, True), (270, True))


def run(stars: int, seed: int, quick: bool) -> Path:
    """Run every model on every case.

    ``found`` is the fraction among the stars that are not sinusoids; the rows "all" are means over the cases.
    """
    report = Report("multiband-recovery", ("skysieve", "numpy", "numba"), quick)
    found: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in MODELS}
    seconds = dict.fromkeys(MODELS, 0.0)
    batches = [simulate_variables(stars, n, together=together, seed=seed) for n, together in CASES]
    for name, model in MODELS.items():  # compiled before the clock runs
        few = simulate_variables(4, 60, seed=seed)
        one_band(few) if model is None else periods(few, **model)
        for (epochs, together), whole in zip(CASES, batches, strict=True):
            made = simulate_variables(stars // PART, epochs, together=together, seed=seed) if name == SLOW else whole
            start = time.perf_counter()
            period = one_band(made) if model is None else periods(made, **model)
            took = time.perf_counter() - start
            good = recovered(made, period)
            found[name].append(good)
            seconds[name] += took
            kinds = {k: float(good[made.kind == k].mean()) for k in KINDS}
            cadence = "five bands at once" if together else "pairs in six bands"
            three = float(good[made.kind != "sinusoid"].mean())
            report.row(name, epochs=epochs, cadence=cadence, found=three, **kinds, ms=1e3 * took / len(made))
    report.title("all")
    for name, parts in found.items():
        good = np.concatenate(parts)
        kind = np.tile(batches[0].kind[: len(parts[0])], len(parts))
        kinds = {k: float(good[kind == k].mean()) for k in KINDS}
        three = float(good[kind != "sinusoid"].mean())
        report.row(name, found=three, **kinds, ms=1e3 * seconds[name] / good.size, stars=good.size)
    return report.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stars", type=int, default=80, help="objects of each case (80)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="16 objects of each case")
    options = parser.parse_args()
    run(16 if options.quick else options.stars, options.seed, options.quick)


if __name__ == "__main__":
    main()

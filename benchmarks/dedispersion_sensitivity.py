"""What a search of single pulses finds: in noise, on drifts of the level, and among interference.

Six parts, through the public functions:

- ``drift``: pulses on drifts of the level in all channels, with and without the baseline: recall, recovered S/N,
  candidates that belong to no pulse;
- ``recall``: injected pulses of S/N 7 to 10 in noise of 256 or 1,024 channels, beside a detector that knows DM, time
  and width on the same noise;
- ``false``: candidates in noise at the default threshold, and by threshold, with the Poisson interval;
- ``interference``: bursts of S/N 10 to 50 in noise with each kind of interference and with all: the number found,
  beside that of a detector that knows DM, time and width in the samples without interference; recovered S/N; false
  candidates;
- ``recordings``: injections into real recordings (``--data``, by default the folder of the test data), with and without
  the cleaning: recall, recovered S/N, candidates that are due neither to a pulse nor to the recording itself;
- ``speed``: the search with and without the baseline, in noise and on a drift.

Run it as ``python -m benchmarks.dedispersion_sensitivity [--only drift ...]``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import machine
from scipy.stats import beta, chi2

from skysieve.core.device import resolve
from skysieve.dedispersion import DM_CONSTANT, Completeness, Filterbank, Noise, completeness, plan, search
from skysieve.dedispersion.contract import THRESHOLD
from skysieve.dedispersion.data.delays import delay_seconds
from skysieve.dedispersion.injections.interference import KINDS
from skysieve.dedispersion.injections.pulses import Pulse, record

RECEIVER = Noise(nchan=256, fch1=1500.0, foff=-1.2, tsamp=512e-6, duration=60.0)
DMS = 1000.0
QUIET = Noise(duration=600.0)
FALSE_DMS = np.arange(500) * 0.657
"""500 DMs at 256 us, spaced as a plan spaces them."""
LOW = 5.8
"""A threshold at which there are false candidates to count."""
RECALL = {
    256: (Noise(duration=240.0), 0.0, 500.0),
    1024: (Noise(nchan=1024, foff=-300 / 1024, duration=180.0), 500.0, 3000.0),
}
"""Receiver, lowest and highest DM, by the number of channels."""
WIDTHS = {
    "all": (0.0, math.inf), "to 2": (0.0, 2e-3), "2 to 10": (2e-3, 10e-3), "10 to 50": (10e-3, 50e-3),
    "from 50": (50e-3, math.inf),
}  # fmt: skip
"""Ranges of effective widths (s); their names are in ms."""
RECORDINGS = {
    "parkes_1bit": (["parkes_1bit.fil"], 60.0, (5.0, 50.0)),
    "parkes_2bit": (["parkes_2bit.fil"], 60.0, (5.0, 50.0)),
    "parkes_4bit": (["parkes_4bit.fil"], 60.0, (5.0, 50.0)),
    "parkes_8bit_1": (["parkes_8bit_1.fil"], 60.0, (5.0, 50.0)),
    "parkes_8bit_2": (["parkes_8bit_2.fil"], 60.0, (5.0, 50.0)),
    "parkes_8bit, joined": (["parkes_8bit_1.fil", "parkes_8bit_2.fil"], 120.0, (5.0, 110.0)),
    "tutorial": (["tutorial.fil"], 300.0, (20.0, 270.0)),
    "GBT_J1807-0847": (["GBT_J1807-0847.dat"], 0.0, (0.0, 0.0)),
}
"""Real recordings: files, highest DM of the search (0: only the DM of a de-dispersed series), and DMs of the pulses."""
LEAST_LEFT = {"bad": 0.61, "all": 0.61}
"""Fraction of its samples that a burst has to keep in order to count; 23% of the channels are bad in these two kinds of
interference.  The fraction is 0.8 in all others."""
PARTS = ("drift", "recall", "false", "interference", "recordings", "speed")


def drifting(seed: int, period: float, amplitude: float, width: float, snrs: tuple[float, ...]) -> tuple[Any, Any]:
    """Make noise with a sine of ``amplitude`` sigma in all channels, and pulses with sweeps of three widths or more."""
    fb, rng = RECEIVER.segment(seed), np.random.default_rng(seed)
    obs = fb.observation
    x = fb.read().astype(np.float32)
    per_dm = DM_CONSTANT * (float(obs.freqs.min()) ** -2 - obs.top**-2)
    placed, at = [], 0.5
    while True:
        dm = float(rng.uniform(max(50.0, 3 * width / per_dm), 600.0))
        pulse = Pulse(dm, at, width, float(rng.choice(snrs)))
        made = record(obs, pulse, np.full(obs.nchan, math.hypot(16, math.sqrt(1 / 12))), DM_CONSTANT)
        if int(made.first.max()) + made.counts.shape[1] > fb.nsamp:
            break
        for row, first in enumerate(made.first):
            x[row, first : first + made.counts.shape[1]] += made.counts[row]
        placed.append((pulse, (made.begin + made.length / 2) * obs.tsamp, made.length * obs.tsamp))
        at += 2 * per_dm * dm + 0.7 + 6 * width
    x += np.float32(16 * amplitude) * np.sin(2 * np.pi * np.arange(fb.nsamp) * obs.tsamp / period, dtype=np.float32)
    data = np.clip(np.rint(x + rng.uniform(-0.5, 0.5, x.shape).astype(np.float32)), 0, 255).astype(np.uint8)
    return Filterbank.from_array(data, freqs=obs.freqs, tsamp=obs.tsamp), (placed, per_dm)


def drifts(segments: int, seed: int) -> Iterator[dict[str, Any]]:
    """Rows of the part ``drift``."""
    for period, amplitude in ((math.inf, 0.0), (1.7, 0.5), (10.0, 0.5), (60.0, 0.5)):
        for width in (5e-3, 20e-3, 50e-3):
            for baseline in (True, False):
                ratios, found_all, pulses, spare, hours = [], 0, 0, 0, 0.0
                for i in range(segments):
                    fb, (placed, per_dm) = drifting(seed + i, period, amplitude, width, (10, 15, 25, 50))
                    found = search(fb, plan(fb, DMS), baseline=baseline)
                    near_any = np.zeros(len(found), bool)
                    for pulse, middle, wide in placed:
                        close = np.abs(found.time - middle) <= 2 * wide
                        own = close & (np.abs(found.dm - pulse.dm) <= wide / per_dm)
                        sweep = per_dm * (DMS + pulse.dm) / 2
                        near_any |= np.abs(found.time - middle) <= min(sweep, (pulse.snr / 4) ** 2 * wide) + 2 * wide
                        found_all += bool(own.any())
                        pulses += 1
                        if own.any():
                            ratios.append(float(found.snr[own].max()) / pulse.snr)
                    spare += int((~near_any).sum())
                    hours += fb.duration / 3600
                yield {
                    "period, s": period, "amplitude, sigma": amplitude, "width, ms": 1e3 * width, "baseline": baseline,
                    "pulses": pulses, "recall": found_all / pulses,
                    "S/N": float(np.median(ratios)) if ratios else math.nan,
                    "S/N, 5%": float(np.quantile(ratios, 0.05)) if ratios else math.nan, "others": spare,
                    "hours": hours,
                }  # fmt: skip


def ratio(some: Any, which: Any, upper: str, lower: str) -> float:
    """Return the median ratio of two columns for some of the pulses."""
    values = (some[upper] / some[lower])[which]
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else math.nan


def recall(n: int, seed: int, channels: int, device: str, clean: bool, saved: Path | None) -> Iterator[dict[str, Any]]:
    """Rows of the part ``recall``; finished segments are saved under the name ``saved``."""
    receiver, low, high = RECALL[channels]
    dms = plan(receiver.segment(0), high, dm_min=low)
    found = completeness(
        receiver, dms, n=n, dm=(max(low, 10.0), high), width=(3e-4, 0.25), seed=seed, max_width=0.4, device=device,
        clean=clean, parts=None if saved is None else f"{saved}-{channels}",
    )  # fmt: skip
    yield from rows_of(found, channels, clean)


def rows_of(found: Completeness, channels: int, clean: bool) -> Iterator[dict[str, Any]]:
    """Rows of a campaign."""
    for width, edges in WIDTHS.items():
        t = found.trials
        t = t[(t["effective_width"] >= edges[0]) & (t["effective_width"] < edges[1])]
        for snr in np.unique(t["snr"]):
            some = t[t["snr"] == snr]
            good, known, near = some["found"], some["snr_known"], some["snr_near"]
            sure = known >= found.threshold
            total, k = len(some), int(good.sum())
            yield {
                "channels": channels, "cleaning": clean, "width, ms": width,
                "S/N": float(snr), "pulses": total, "recall": k / total,
                "from": float(beta.ppf(0.025, k, total - k + 1)),
                "to": float(beta.ppf(0.975, k + 1, total - k)) if k < total else 1.0,
                "known": float(sure.mean()), "expected": float((near >= found.threshold).mean()),
                "found / injected": ratio(some, good, "snr_found", "snr"),
                "expected / injected": ratio(some, near >= found.threshold, "snr_near", "snr"),
                "window / injected": ratio(some, good, "snr_window", "snr"),
                "known / injected, known": ratio(some, sure, "snr_known", "snr"),
                "known / injected, found": ratio(some, good, "snr_known", "snr"),
                "window / known": ratio(some, good, "snr_window", "snr_known"),
                "found / known": ratio(some, good, "snr_found", "snr_known"),
                "candidates": float(some["candidates"].mean()), "most": int(some["candidates"].max()),
                "DM error": float(np.nanmedian(np.abs(some["dm_error"]))),
            }  # fmt: skip
    rate, least, most = found.false_rate()
    yield {
        "channels": channels, "cleaning": clean, "pulses": len(found), "false": len(found.false),
        "hours": found.hours, "an hour": rate, "from": least, "to": most, "seconds": found.seconds,
        "searching": found.searching, "pulses a second": len(found) / found.seconds,
    }  # fmt: skip


def false(hours: float, seed: int, device: str, clean: bool, saved: Path | None) -> Iterator[dict[str, Any]]:
    """Rows of the part ``false``; finished segments are saved under the name ``saved``."""
    for least in (THRESHOLD, LOW):
        parts = None if saved is None else f"{saved}-{least:g}"
        found = completeness(
            QUIET, FALSE_DMS, n=0, hours=hours, seed=seed, threshold=least, device=device, clean=clean, parts=parts
        )
        seed += 1
        for threshold in (THRESHOLD,) if least == THRESHOLD else (5.8, 6.0, 6.2, 6.4, 6.5, 6.6, 6.7, 6.8, 7.0):
            count = int((found.false["snr"] >= threshold).sum())
            low = chi2.ppf(0.025, 2 * count) / 2 if count else 0.0
            yield {
                "searched with": least, "threshold": threshold, "cleaning": clean, "hours": found.hours,
                "candidates": count, "an hour": count / found.hours, "from": low / found.hours,
                "to": chi2.ppf(0.975, 2 * count + 2) / 2 / found.hours, "seconds": found.seconds,
            }  # fmt: skip


def interfered(n: int, seed: int, kinds: list[str], device: str) -> Iterator[dict[str, Any]]:
    """Rows of the part ``interference``, for bursts with enough samples left and a sweep of three widths or more."""
    few = [(64, "all", 2 * n)] if "all" in kinds else []
    for channels, kind, count in [*((256, kind, n) for kind in kinds), *few]:
        receiver = Noise(nchan=channels, foff=-300 / channels, tsamp=512e-6)
        obs = receiver.segment(0).observation
        found = completeness(
            receiver, plan(receiver.segment(0), 520.0), n=count, snr=(10, 15, 20, 30, 50), dm=(20, 500),
            width=(1e-3, 5e-2), interference=() if kind == "none" else kind, seed=seed, device=device,
        )  # fmt: skip
        t = found.trials
        sweep = t["dm"] * float(delay_seconds(obs.freqs.min(), 1.0, obs.top, DM_CONSTANT))
        t = t[(t["left"] >= LEAST_LEFT.get(kind, 0.8)) & (sweep >= 3 * t["effective_width"])]
        good, known = t["found"], t["snr_known"] >= found.threshold
        rate, least, most = found.false_rate()
        yield {
            "channels": channels, "interference": kind, "injected": len(found), "bursts": len(t),
            "found": int(good.sum()), "known": int(known.sum()),
            "found / left": ratio(t, good, "snr_found", "snr_left"), "false": len(found.false),
            "minutes": 60 * found.hours, "an hour": rate, "from": least, "to": most, "seconds": found.seconds,
        }  # fmt: skip


def recordings(folder: Path, n: int, seeds: int, device: str) -> Iterator[dict[str, Any]]:
    """Rows of the part ``recordings``."""
    for name, (files, highest, dm) in RECORDINGS.items():
        with Filterbank.open([folder / one for one in files]) as fb:
            dms = plan(fb, highest) if highest else [0.0]
            for clean in (True, False):
                own = search(fb, dms, clean=clean, device=device)
                found = Completeness.join([
                    completeness(fb, dms, n=n, snr=(8, 10, 15, 25, 50), dm=dm, width=(1e-3, 3e-2), seed=1 + seed,
                                 clean=clean, device=device) for seed in range(seeds)
                ])  # fmt: skip
                rate, least, most = found.false_rate()
                t = found.trials[found.trials["snr"] >= 10]
                known = t["snr_known"] >= found.threshold
                yield {
                    "recording": name, "cleaning": clean, "own": len(own),
                    "own, highest": float(own.snr[0]) if len(own) else math.nan, "pulses": len(found),
                    "known": int(known.sum()), "found of known": int(t["found"][known].sum()),
                    "window / known": ratio(t, known & t["found"], "snr_window", "snr_known"),
                    **{f"recall {row['snr']:g}": float(row["recall"]) for row in found.recall()},
                    **{f"S/N {row['snr']:g}": float(row["window_ratio"]) for row in found.recall() if row["snr"] > 8},
                    "false": len(found.false), "hours": found.hours, "an hour": rate, "from": least, "to": most,
                }  # fmt: skip


def speed(repetitions: int) -> Iterator[dict[str, Any]]:
    """Rows of the part ``speed``: processor seconds, the two searches in turn."""
    for period in (math.inf, 10.0, 1.7):
        fb, _ = drifting(1, period, 0.0 if math.isinf(period) else 0.5, 5e-3, (20,))
        dms, times = plan(fb, DMS), {True: [], False: []}
        for turn in range(repetitions + 1):
            for baseline in (True, False):
                began = time.process_time()
                search(fb, dms, baseline=baseline, threshold=8)
                if turn:
                    times[baseline].append(time.process_time() - began)
        with_it, without = min(times[True]), min(times[False])
        yield {"period, s": period, "with, s": with_it, "without, s": without, "ratio": with_it / without}


def show(title: str, rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print rows as they come."""
    print(f"\n{title}")
    kept: list[dict[str, Any]] = []
    for row in rows:
        if not kept or row.keys() != kept[-1].keys():
            print("| " + " | ".join(row) + " |")
            print("|" + " --- |" * len(row))
        print(
            "| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |", flush=True
        )
        kept.append(row)
    return kept


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--segments", type=int, default=4, help="minutes of data for each row of drift")
    parser.add_argument("--pulses", type=int, default=8000, help="injections of recall; a fifth for interference")
    parser.add_argument("--channels", type=int, nargs="+", choices=RECALL, default=list(RECALL), help="of recall")
    every = "none", *KINDS, "all"
    parser.add_argument("--kinds", nargs="+", choices=every, default=every, help="of interference")
    parser.add_argument("--device", default="auto", help="of recall, false, interference and recordings")
    parser.add_argument("--no-clean", action="store_true", help="search without cleaning, in recall and false")
    parser.add_argument("--data", type=Path, help="folder of the recordings")
    parser.add_argument("--hours", type=float, default=24.0, help="noise of false")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--saved", type=Path, help="where recall and false keep what is done, to continue after it")
    parser.add_argument("--output", type=Path, help="JSON of all rows")
    args = parser.parse_args()
    print(f"threshold {THRESHOLD} by default")
    how = args.device, not args.no_clean, args.saved
    root = Path(__file__).resolve().parents[1]
    shared = Path(os.environ.get("SKYSIEVE_TEST_DATA", root.parent / "shared" / "data"))
    data = shared / "dedispersion" if args.data is None else args.data
    parts = {
        "drift": lambda: drifts(args.segments, args.seed),
        "recall": lambda: chain.from_iterable(recall(args.pulses, args.seed, n, *how) for n in args.channels),
        "false": lambda: false(args.hours, args.seed, *how),
        "interference": lambda: interfered(max(1, args.pulses // 5), args.seed, args.kinds, args.device),
        "recordings": lambda: recordings(data, 40, 3, args.device),
        "speed": lambda: speed(5),
    }
    found = {name: show(name, parts[name]()) for name in args.only}
    if args.output is not None:
        found["machine"] = [machine(["numpy"]) | {"device": [str(d) for d in resolve(args.device)]}]
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a search of single pulses finds: in noise, and where the level drifts.

Four parts, each on the CPU through the public functions:

- ``drift``: pulses on drifts of the level in all channels, with and without the baseline: recall, recovered S/N,
  candidates that are no pulse;
- ``recall``: injected pulses of S/N 7 to 10 in noise, beside a detector that knows DM, time and width on the same
  noise;
- ``false``: candidates in noise by threshold, with the Poisson interval; segments are saved as they end, so that a
  later run continues (``--hours``);
- ``speed``: the search with and without the baseline, in noise and on a drift.

Run it as ``python -m benchmarks.dedispersion_sensitivity [--only drift ...]``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr
from scipy.stats import chi2

from skysieve.dedispersion import DM_CONSTANT, Filterbank, Noise, completeness, plan, search
from skysieve.dedispersion.contract import THRESHOLD
from skysieve.dedispersion.injections.pulses import Pulse, record

RECEIVER = Noise(nchan=256, fch1=1500.0, foff=-1.2, tsamp=512e-6, duration=60.0)
DMS = 1000.0
QUIET = Noise(nchan=64, fch1=1500.0, foff=-4.6875, tsamp=256e-6, duration=300.0)
FALSE_DMS = np.arange(500) * 0.657
"""500 DMs at 256 us, spaced as a plan spaces them for 256 channels.  64 channels give series of the same noise."""
PARTS = ("drift", "recall", "false", "speed")


def drifting(seed: int, period: float, amplitude: float, width: float, snrs: tuple[float, ...]) -> tuple[Any, Any]:
    """Noise with a sine of ``amplitude`` sigma in all channels and pulses whose sweep is at least three widths."""
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


def recall(n: int, seed: int, dm: tuple[float, float]) -> Iterator[dict[str, Any]]:
    """Rows of the part ``recall``."""
    receiver = Noise(duration=120.0)
    dms = plan(receiver.segment(0), 1.02 * dm[1])
    found = completeness(receiver, dms, n=n, dm=dm, width=(3e-4, 0.3), seed=seed, max_width=0.36)
    t = found.trials
    for low, high in ((0, 3e-3), (3e-3, 30e-3), (30e-3, 0.1), (0.1, 0.5), (0, 1)):
        for snr in np.unique(t["snr"]):
            some = t[(t["snr"] == snr) & (t["effective_width"] >= low) & (t["effective_width"] < high)]
            if len(some):
                yield {
                    "width, ms": f"{1e3 * low:g}-{1e3 * high:g}", "S/N": float(snr), "pulses": len(some),
                    "recall": float(some["found"].mean()),
                    "known": float((some["snr_known"] >= found.threshold).mean()),
                    "Phi(S/N - T)": float(ndtr(snr - found.threshold)),
                    "found / injected": float(np.nanmedian(some["snr_found"] / snr)),
                    "found / known": float(np.nanmedian(some["snr_found"] / some["snr_known"])),
                }  # fmt: skip


def false(hours: float, seed: int, saved: Path) -> Iterator[dict[str, Any]]:
    """Rows of the part ``false``; every segment is a line of the file ``saved``."""
    saved.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in saved.read_text().splitlines()] if saved.exists() else []
    done = {line["seed"] for line in lines}
    with saved.open("a") as file:
        for number in range(seed, seed + round(hours * 3600 / QUIET.duration)):
            if number not in done:
                found = search(QUIET.segment(number), FALSE_DMS, threshold=5.8)
                line = {"seed": number, "hours": QUIET.duration / 3600, "snr": [float(s) for s in found.snr]}
                file.write(json.dumps(line) + "\n")
                file.flush()
                lines.append(line)
    total, snr = sum(line["hours"] for line in lines), np.array([s for line in lines for s in line["snr"]])
    for threshold in (5.8, 6.0, 6.2, 6.4, 6.5, 6.6, 6.7, 6.8, 7.0):
        n = int((snr >= threshold).sum())
        low, high = chi2.ppf(0.025, 2 * n) / 2 if n else 0.0, chi2.ppf(0.975, 2 * n + 2) / 2
        yield {
            "threshold": threshold, "hours": total, "candidates": n, "an hour": n / total, "from": low / total,
            "to": high / total,
        }  # fmt: skip


def speed(repetitions: int) -> Iterator[dict[str, Any]]:
    """Rows of the part ``speed``: processor seconds, the two searches in turn."""
    for period in (math.inf, 10.0, 1.7):
        fb, _ = drifting(1, period, 0.0 if math.isinf(period) else 0.5, 5e-3, (20,))
        dms, times = plan(fb, DMS), {True: [], False: []}  # type: ignore[var-annotated]
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
        if not kept:
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
    parser.add_argument("--pulses", type=int, default=8000, help="injections of recall")
    parser.add_argument("--dm", type=float, nargs=2, default=(10.0, 600.0), help="DMs of recall")
    parser.add_argument("--hours", type=float, default=24.0, help="noise of false")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--saved", type=Path, default=Path("benchmarks/results/dedispersion_noise.jsonl"))
    parser.add_argument("--output", type=Path, help="JSON of all rows")
    args = parser.parse_args()
    print(f"threshold {THRESHOLD} by default")
    parts = {
        "drift": lambda: drifts(args.segments, args.seed),
        "recall": lambda: recall(args.pulses, args.seed, tuple(args.dm)),
        "false": lambda: false(args.hours, args.seed, args.saved),
        "speed": lambda: speed(5),
    }
    found = {name: show(name, parts[name]()) for name in args.only}
    if args.output is not None:
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

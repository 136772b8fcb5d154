"""Light curves in several bands on the GPU: the rows "bands" of ``periodogram_gpu``, which calls this module."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.periodogram_gpu import device_ms, kernel_ms, on_device
from tests.gpu.batches import BAND_MODELS, FlatSource, bands_engine

from skysieve.core.gpu.runtime import CudaRuntime
from skysieve.periodogram.contract import Output
from skysieve.periodogram.lightcurves.sources import BandedSource


def bands(bench: Any, batch: FlatSource, grids: Any) -> None:
    """Time every model of five bands beside one band, also by kernel, and measure errors against exact fits."""
    cp, nf = bench.cp, int(grids.nf[0])
    codes = np.random.default_rng(3).integers(0, 5, len(batch.t))
    on_gpu, runtime = on_device(cp, batch), CudaRuntime(bench.device[0])
    one = device_ms(cp, bench.engine(np.dtype(np.float64)), on_gpu, grids)
    rows = int(batch.offsets[40])
    some = BandedSource(
        FlatSource(on_gpu.t[:rows], on_gpu.y[:rows], on_gpu.dy[:rows], batch.offsets[:41]), codes[:rows]
    )
    for model in BAND_MODELS:
        engine = bands_engine(model, 5, runtime)
        ms = device_ms(cp, engine, BandedSource(on_gpu, codes), grids)
        bound = {"wanted": 3.0, "reached": ms <= 3 * one} if model == "offsets" else {}
        times = {f"{k}_ms": v for k, v in kernel_ms(cp, engine, BandedSource(on_gpu, codes), grids).items()}
        bench.report.row("bands", model=model, device_ms=ms, over_one_band=ms / one, **bound, **times)
        powers = []
        for method in ("nufft", "direct"):
            power = cp.full(40 * nf, cp.nan)
            judge = bands_engine(model, 5, runtime, method=method)
            judge.execute(some, grids, Output.allocate(40, 5, power))
            powers.append(power)
        error = float(cp.nanmax(cp.abs(powers[0] - powers[1])).get())
        bench.report.row("bands, error", model=model, error=error, wanted=1e-8, reached=error <= 1e-8, objects=40)

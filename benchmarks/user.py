"""Time public functions and whole commands as users call them, beside peers, plans and floors, in one run.

``python -m benchmarks.user [--device cuda] [--quick] [--only NAME ...] [--against BASELINE.json]``; writes
``results/user.json`` (``user_gpu.json`` for ``--device cuda``; with ``--only`` the names of the cases are added).  With
``--against`` the run fails if a case became 10% slower than in the baseline, as a ratio to the peer or floor that was
measured beside it in the same run.  ``--plots`` draws cost against size from the case ``scale``.

Tools of a case:

``function``, ``command``
    The subject of the case: the public function on warm caches, or a whole process.
``plan``
    The same work through a plan that was made before, which is the time of the engine.
``first``
    The command with an empty cache of compiled code.
``floor``
    The least possible time: for a command the interpreter, the imports that it needs, ``cupy.zeros(1)`` on a GPU, and
    the file read by the usual reader of the field.
others
    Peers on the same input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import Report, interleaved
from benchmarks.scale_plots import both_devices, draw

PACKAGES = (
    "skysieve",
    "numpy",
    "numba",
    "scipy",
    "finufft",
    "astropy",
    "nifty-ls",
    "healpy",
    "pyarrow",
    "cupy-cuda13x",
)
SLOWER = 1.1
"""Growth of a ratio that fails a comparison with a baseline."""
OURS = ("function", "command", "first")
N_F, F0, F1 = 28_608, 0.16, 24.0


class Bench:
    """The cases of the benchmark; every case makes its own input."""

    def __init__(self, device: str, quick: bool, report: Report, folder: Path) -> None:
        self.device, self.quick, self.report, self.folder = device, quick, report, folder
        self.gpu = device != "cpu"

    def row(self, case: str, tools: dict[str, Callable[[], object]], repetitions: int = 7, **facts: Any) -> None:
        """Time the tools of a case in turn; the first is ours."""
        n = 2 if self.quick else repetitions
        warm = not case.startswith("first")
        seconds = interleaved(tools, n if warm else 2, warm=warm)
        ours = statistics.median(seconds[next(iter(tools))])
        for tool, times in seconds.items():
            median = statistics.median(times)
            self.report.row(
                case,
                tool=tool,
                seconds=median,
                best=min(times),
                n=len(times),
                ratio=median / ours,
                device=self.device,
                **facts,
            )

    # ------------------------------------------------------------------ light curves
    def curves(self, n: int, seed: int = 1) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
        """Light curves of 5 to 1,671 points (median 110) over 120 days, with errors."""
        rng = np.random.default_rng(seed)
        lengths = np.clip(np.rint(np.exp(np.log(110) + 0.9 * rng.standard_normal(n))), 5, 1671).astype(int)
        t = [np.sort(rng.integers(0, 120, m) + 0.3 + 0.4 * rng.random(m)) for m in lengths]
        y = [np.sin(2 * np.pi * a / rng.uniform(0.1, 2)) + rng.standard_normal(len(a)) for a in t]
        return t, y, [np.full(len(a), 0.1) for a in t]

    def lombscargle(self) -> Iterator[None]:
        """Time a batch given as lists, as flat arrays, and on a GPU as CuPy arrays."""
        import skysieve

        n = 1000 if self.gpu else 50
        t, y, dy = self.curves(n)
        grid: dict[str, Any] = {"fmin": F0, "fmax": F1, "nf": N_F, "n_peaks": 5, "return_power": False}
        options: dict[str, Any] = {"device": self.device}
        flat = tuple(np.concatenate(a) for a in (t, y, dy))
        offsets = np.concatenate([[0], np.cumsum([len(a) for a in t])])
        facts = {"objects": n, "frequencies": N_F, "dtype": "float64", "dy": True, "peaks": 5}
        with skysieve.LombScarglePlan(**grid, **options) as plan:
            tools: dict[str, Callable[[], object]] = {
                "function": lambda: skysieve.lombscargle(t, y, dy, **grid, **options),
                "plan": lambda: plan.execute(t, y, dy),
                "numpy.concatenate": lambda: [np.concatenate(a) for a in (t, y, dy)],
            }
            if find_spec("nifty_ls"):
                import nifty_ls

                tools["nifty-ls"] = lambda: [
                    nifty_ls.lombscargle(a, b, c, fmin=F0, fmax=F1, Nf=N_F, nthreads=1)
                    for a, b, c in zip(t, y, dy, strict=True)
                ]
            self.row("lombscargle, lists", tools, **facts)
            yield
            flat_tools: dict[str, Callable[[], object]] = {
                "function": lambda: skysieve.lombscargle(*flat, offsets=offsets, **grid, **options),
                "plan": lambda: plan.execute(*flat, offsets=offsets),
            }
            self.row("lombscargle, flat arrays", flat_tools, **facts)
            yield
            if self.gpu:
                import cupy

                on_gpu = tuple(cupy.asarray(a) for a in flat)
                gpu_tools: dict[str, Callable[[], object]] = {
                    "function": lambda: skysieve.lombscargle(*on_gpu, offsets=offsets, **grid, **options),
                    "plan": lambda: plan.execute(*on_gpu, offsets=offsets),
                }
                self.row("lombscargle, CuPy arrays", gpu_tools, **facts)
                yield

    def batches(self) -> Iterator[None]:
        """Time fifty different batches, whose objects, points and grid vary by 30%; seconds are for 1,000 objects."""
        import skysieve

        rng = np.random.default_rng(6)
        n = 1000 if self.gpu else 50
        batches = []
        for k in range(10 if self.quick else 50):
            t, y, dy = self.curves(int(n * rng.uniform(0.7, 1.3)), seed=100 + k)
            grid = {"fmin": F0, "fmax": F1, "nf": int(N_F * rng.uniform(0.7, 1.3)), "n_peaks": 5, "return_power": False}
            batches.append(((t, y, dy), {**grid, "device": self.device}))
        forms: dict[str, Callable[[Any], tuple[Any, ...]]] = {
            "lists": lambda a: a,
            "flat arrays": lambda a: tuple(np.concatenate(x) for x in a),
        }
        if self.gpu:
            import cupy

            forms["CuPy arrays"] = lambda a: tuple(cupy.asarray(np.concatenate(x)) for x in a)
        for form, convert in forms.items():
            seconds, memory = [], []
            for curves, options in batches:
                offsets = np.concatenate([[0], np.cumsum([len(a) for a in curves[0]])])
                data, more = convert(curves), {} if form == "lists" else {"offsets": offsets}
                start = time.perf_counter()
                skysieve.lombscargle(*data, **more, **options)
                seconds.append((time.perf_counter() - start) * 1000 / (len(offsets) - 1))
                memory.append(resident_bytes())
            self.report.row(f"lombscargle, 50 batches of {form}", tool="function", best=min(seconds),
                            seconds=statistics.median(seconds[1:]), n=len(seconds), device=self.device, objects=1000,
                            memory_growth=memory[-1] / memory[min(9, len(memory) - 1)])  # fmt: skip
            yield

    def gpus(self) -> Iterator[None]:
        """Time light curves and maps in host memory, and files of eight beams, on one GPU and on all.

        ``moved`` is the number of bytes copied in host memory, ``copied`` the rate of such copies on this host.
        """
        if not self.gpu:
            return
        import skysieve
        from skysieve.core.gpu.sharing import copy_rate
        from skysieve.sphere import ConvolvePlan, Gaussian, Healpix

        rate = copy_rate()
        t, y, dy = (np.concatenate(a) for a in self.curves(1000))
        repeat = 10 if self.quick else 1000
        offsets = np.concatenate([[0], np.cumsum([len(a) for a in self.curves(1000)[0]])])
        starts = (np.arange(repeat)[:, None] * offsets[-1] + offsets[None, :-1]).ravel()
        many, ends = tuple(np.tile(a, repeat) for a in (t, y, dy)), np.append(starts, repeat * offsets[-1])
        grid: dict[str, Any] = {"fmin": F0, "fmax": F1, "nf": N_F, "n_peaks": 5, "return_power": False}
        tools: dict[str, Callable[[], object]] = {
            name: lambda d=name: skysieve.lombscargle(*many, offsets=ends, **grid, device=d)
            for name in ("cuda:all", "cuda:0")
        }
        moved = sum(a.nbytes for a in many)
        self.row("light curves, all GPUs beside one", tools, 3, objects=1000 * repeat, moved=moved, copied=rate)
        yield
        nside = 512 if self.quick else 2048
        maps = np.random.default_rng(7).standard_normal((16, 12 * nside**2), np.float32)
        plans = {
            name: ConvolvePlan(Gaussian(fwhm=0.002), Healpix(nside), device=name, dtype="float32")
            for name in ("cuda:all", "cuda:0")
        }
        tools = {name: lambda p=plan: p.execute(maps) for name, plan in plans.items()}
        self.row("16 maps, all GPUs beside one", tools, 3, nside=nside, moved=maps.nbytes, copied=rate)
        for plan in plans.values():
            plan.close()
        yield
        seconds = 10 if self.quick else 60
        beams, file = self.folder / "beams", self.folder / "beam.fil"
        self.fake(file, seconds, 1024)
        beams.mkdir()
        for k in range(8):
            (beams / f"{k}.fil").symlink_to(file)
        command = f"dedisp search {beams} --dm-min 0 --dm-step 0.5 --num-dms 1000 -o {beams}.csv --overwrite".split()
        tools = {name: lambda d=name: self.run_command([*command, "--device", d]) for name in ("cuda:all", "cuda:0")}
        self.row("files of 8 beams, all GPUs beside one", tools, 3, seconds_each=seconds, moved=8 * file.stat().st_size,
                 copied=rate)  # fmt: skip
        yield

    def scale(self) -> Iterator[None]:
        """Time against size: objects of a batch, seconds of a file, nside of a map."""
        import skysieve
        from skysieve.dedispersion import Filterbank, search

        grid: dict[str, Any] = {"fmin": F0, "fmax": F1, "nf": N_F, "n_peaks": 5, "return_power": False}
        for n in (1, 10, 100) if self.quick else (1, 10, 100, 1000, *((10_000, 100_000) if self.gpu else ())):
            t, y, dy = self.curves(min(n, 10_000))
            flat = tuple(np.concatenate(a * (-(-n // 10_000))) for a in (t, y, dy))
            offsets = np.concatenate([[0], np.cumsum([len(a) for a in t * (-(-n // 10_000))])])
            call: dict[str, Callable[[], object]] = {
                "function": lambda f=flat, o=offsets: skysieve.lombscargle(*f, offsets=o, **grid, device=self.device)
            }
            if find_spec("nifty_ls") and n <= 100:
                import nifty_ls

                call["nifty-ls"] = lambda t=t, y=y, dy=dy: [
                    nifty_ls.lombscargle(a, b, c, fmin=F0, fmax=F1, Nf=N_F) for a, b, c in zip(t, y, dy, strict=True)
                ]
            self.row("scale: objects", call, 3, size=n)
            yield
        for nside in (64, 256) if self.quick else (32, 64, 128, 256, 512, 1024, *((2048,) if self.gpu else ())):
            m = np.random.default_rng(nside).standard_normal(12 * nside**2).astype(np.float32)
            fwhm = 3 * np.sqrt(np.pi / 3) / nside
            call = {"function": lambda m=m, f=fwhm: skysieve.smoothing(m, fwhm=f, device=self.device, dtype="float32")}
            if find_spec("healpy") and nside <= 512:
                import healpy

                call["healpy, iter=3"] = lambda m=m, f=fwhm: healpy.smoothing(m, fwhm=f, iter=3)
            self.row("scale: nside", call, 3, size=nside)
            yield
        for seconds in (1, 4) if self.quick else (1, 4, 16, 64):
            path = self.folder / "scale.fil"
            self.fake(path, seconds, 256)
            fb = Filterbank.open(path)
            call = {
                "function": lambda fb=fb: search(fb, dms=np.linspace(0, 500, 500), device=self.device),
                "reading the file": lambda p=path: np.fromfile(p, "u1").sum(),
            }
            self.row("scale: seconds of data", call, 3, size=seconds)
            yield

    def one_curve(self) -> Iterator[None]:
        """One light curve of 100 points, and methods of the `LombScargle` class beside astropy's."""
        import astropy.timeseries

        import skysieve

        rng = np.random.default_rng(2)
        t = np.sort(rng.uniform(0, 100, 100))
        y, dy = np.sin(t) + rng.standard_normal(100), np.full(100, 0.5)
        frequency = np.linspace(0.02, 5, 1000)
        options: dict[str, Any] = {"device": self.device}
        grid: dict[str, Any] = {"fmin": 0.02, "fmax": 5.0, "nf": 1000}
        with skysieve.LombScarglePlan(**grid, **options) as plan:
            tools: dict[str, Callable[[], object]] = {
                "function": lambda: skysieve.lombscargle(t, y, dy, **grid, **options),
                "plan": lambda: plan.execute(t, y, dy),
                "astropy": lambda: astropy.timeseries.LombScargle(t, y, dy).power(
                    frequency, assume_regular_frequency=True
                ),
            }
            if find_spec("nifty_ls"):
                import nifty_ls

                tools["nifty-ls"] = lambda: nifty_ls.lombscargle(t, y, dy, fmin=0.02, fmax=5.0, Nf=1000)
            self.row("one curve", tools, 31, points=100, frequencies=1000)
        yield
        ours, theirs = skysieve.LombScargle(t, y, dy), astropy.timeseries.LombScargle(t, y, dy)
        calls: dict[str, Callable[[Any], object]] = {
            "power at one frequency": lambda ls: ls.power(0.3),
            "false_alarm_probability": lambda ls: ls.false_alarm_probability(0.5, maximum_frequency=5.0),
            "model": lambda ls: ls.model(t, 0.3),
        }
        for name, call in calls.items():
            pair: dict[str, Callable[[], object]] = {
                "function": lambda call=call: call(ours),
                "astropy": lambda call=call: call(theirs),
            }
            self.row(f"LombScargle class, {name}", pair, 31)
            yield

    def period(self) -> Iterator[None]:
        """``skysieve period``: Parquet to Parquet."""
        import pyarrow
        from pyarrow import parquet

        n = 200 if self.quick else 100_000 if self.gpu else 2000
        rng = np.random.default_rng(3)
        t = np.sort(rng.uniform(0, 120, (n, 200)), axis=1)
        y = np.sin(2 * np.pi * t / rng.uniform(0.1, 2, (n, 1))) + rng.standard_normal(t.shape)
        ids, errors = np.repeat(np.arange(n), 200), np.full(t.size, 0.5)
        table = {"objectid": ids, "mjd": t.ravel(), "mag": y.ravel(), "magerr": errors}
        source = self.folder / "curves.parquet"
        parquet.write_table(pyarrow.table(table), source)
        out = self.folder / "periods.parquet"
        command = f"period {source} --fmin {F0} --fmax {F1} --nf {N_F} -o {out} --overwrite".split()
        command += ["--device", self.device]
        self.command(
            "period, Parquet to Parquet",
            command,
            f"import pyarrow.parquet as p; p.read_table({str(source)!r})",
            objects=n,
            rows=200 * n,
        )
        yield

    # ------------------------------------------------------------------ sky maps
    def smoothing(self) -> Iterator[None]:
        """Maps of three sizes, repeated."""
        import skysieve
        from skysieve.sphere import ConvolvePlan, Gaussian, Healpix

        for nside in (64, 512) if self.quick or not self.gpu else (64, 512, 2048):
            m = np.random.default_rng(nside).standard_normal(12 * nside**2).astype(np.float32)
            fwhm = 3 * np.sqrt(np.pi / 3) / nside
            kernel, grid = Gaussian(fwhm=fwhm), Healpix(nside)
            with ConvolvePlan(kernel, grid, device=self.device, dtype="float32", quadrature="band") as plan:
                tools: dict[str, Callable[[], object]] = {
                    "function": lambda m=m, f=fwhm: skysieve.smoothing(m, fwhm=f, device=self.device, dtype="float32"),
                    "plan": lambda m=m, p=plan: p.execute(m),
                }
                if find_spec("healpy") and not (self.gpu and nside > 512):
                    import healpy

                    tools["healpy, iter=3"] = lambda m=m, f=fwhm: healpy.smoothing(m, fwhm=f, iter=3)
                self.row(f"smoothing, nside {nside}", tools, 31 if nside == 64 else 5, fwhm_pixels=3, dtype="float32")
            yield

    def smooth(self) -> Iterator[None]:
        """``skysieve smooth``: FITS to FITS."""
        nside = 2048 if self.gpu else 512
        source, out = self.folder / "map.fits", self.folder / "smooth.fits"
        write_map(source, nside, 4)
        command = ["smooth", str(source), str(out), "--fwhm", "10arcmin", "--overwrite"]
        floor = f"from astropy.io import fits; fits.getdata({str(source)!r}, 1)['I_STOKES'].sum()"
        self.command(f"smooth, nside {nside}, FITS to FITS", [*command, "--device", self.device], floor)
        yield

    def maps(self) -> Iterator[None]:
        """``skysieve smooth`` of several files, beside their smoothing by healpy, each read and written."""
        nside, files = (512, 32) if self.gpu else (256, 16)
        if self.quick:
            nside, files = 128, 4
        folder, out = self.folder / "maps", self.folder / "smoothed"
        folder.mkdir()
        for k in range(files):
            write_map(folder / f"{k:03d}.fits", nside, k)
        names = [str(path) for path in sorted(folder.iterdir())]
        options = ["-o", str(out), "--fwhm", "1deg", "--overwrite", "--device", self.device]
        by_healpy = (
            f"import healpy, numpy\nfor name in {names!r}:\n"
            "  m = healpy.smoothing(healpy.read_map(name), fwhm=numpy.radians(1))\n"
            f"  healpy.write_map({str(self.folder)!r} + '/healpy.fits', m, dtype='f4', overwrite=True)"
        )
        floor = f"from astropy.io import fits\nfor name in {names!r}: fits.getdata(name, 1)['I_STOKES'].sum()"
        tools: dict[str, Callable[[], object]] = {"command": lambda: self.run_command(["smooth", *names, *options])}
        if find_spec("healpy"):
            tools["healpy, iter=3"] = lambda: self.run_python(by_healpy)
        tools["floor"] = lambda: self.run_python(f"{self.needed}; {floor}")
        self.row("smooth, several files", tools, 2, files=files, nside=nside)
        yield

    # ------------------------------------------------------------------ radio bursts
    def bursts(self) -> Iterator[None]:
        """Single pulses of a filterbank file with a pulse each second, or with one: the function, and the command."""
        from skysieve.dedispersion import search

        seconds, channels, dms, tsamp = (60, 1024, 1000, 64e-6) if self.gpu else (10, 256, 200, 256e-6)
        out = self.folder / "bursts.csv"
        grid = f"--dm-min 0 --dm-step {500 / dms} --num-dms {dms} -o {out} --overwrite --device {self.device}".split()
        for pulses, period in (("a pulse each second", 1.0), ("one pulse", seconds - 1.0)):
            source = self.folder / f"data-{period:g}.fil"
            self.fake(source, seconds, channels, tsamp, period)
            floor = f"import numpy; numpy.fromfile({str(source)!r}, 'u1').sum()"
            facts = {"size": pulses, "channels": channels, "seconds_of_data": seconds, "tsamp": tsamp, "trials": dms}
            options: dict[str, Any] = {"dms": np.arange(dms) * (500 / dms), "device": self.device}
            searched: dict[str, Callable[[], object]] = {
                "function": lambda f=source, o=options: search(f, **o),
                "numpy.fromfile and sum": lambda f=source: np.fromfile(f, "u1").sum(),
            }
            self.row("dedispersion.search, warm process", searched, 7, **facts)
            yield
            self.command("dedisp search", ["dedisp", "search", str(source), *grid], floor, **facts)
            source.unlink()
            yield

    def night(self) -> Iterator[None]:
        """Single pulses of many files: the command for their folder, beside a warm search of each in turn."""
        from skysieve.dedispersion import search

        seconds, channels, dms, files = (60, 1024, 1000, 256) if self.gpu else (10, 256, 200, 16)
        files = 8 if self.quick else files
        for pulses, period in (("a pulse each second", 1.0), ("one pulse", seconds - 1.0)):
            source, night, out = (self.folder / f"night-{period:g}{end}" for end in (".fil", "", ".csv"))
            self.fake(source, seconds, channels, period=period)
            night.mkdir()
            for k in range(files):
                (night / f"{k:03d}.fil").symlink_to(source)
            grid = f"--dm-min 0 --dm-step {500 / dms} --num-dms {dms} -o {out} --overwrite".split()
            grid += ["--device", self.device]
            options: dict[str, Any] = {"dms": np.arange(dms) * (500 / dms), "device": self.device}
            tools: dict[str, Callable[[], object]] = {
                "command": lambda n=night, g=grid: self.run_command(["dedisp", "search", str(n), *g]),
                "search of each": lambda f=source, o=options: [search(f, **o) for _ in range(files)],
            }
            self.row("dedisp search, a folder", tools, 2, size=pulses, files=files, channels=channels,
                     seconds_of_data=seconds, tsamp=256e-6, trials=dms)  # fmt: skip
            source.unlink()
            yield

    def psrfits(self) -> Iterator[None]:
        """Single pulses of a PSRFITS file whose rows have scales and offsets: the function, and the command."""
        from skysieve.dedispersion import search

        seconds, channels, dms = (60, 1024, 1000) if self.gpu else (10, 256, 200)
        plain, path, out = (self.folder / f"scaled{end}" for end in (".fil", ".sf", ".csv"))
        self.fake(plain, seconds, channels)
        write_scaled(plain, path)
        facts = {"channels": channels, "seconds_of_data": seconds, "tsamp": 256e-6, "trials": dms}
        options: dict[str, Any] = {"dms": np.arange(dms) * (500 / dms), "device": self.device}
        floor = (
            f"from astropy.io import fits; r = fits.getdata({str(path)!r}, 'SUBINT'); s = r['DAT_SCL'][:, None]; "
            "(r['DATA'].reshape(len(r), -1, s.shape[2]) * s + r['DAT_OFFS'][:, None]).sum()"
        )
        tools: dict[str, Callable[[], object]] = {
            "function": lambda: search(path, **options),
            "astropy.io.fits and sum": lambda: read_scaled(path).sum(),
        }
        self.row("dedispersion.search of PSRFITS, warm process", tools, 7, **facts)
        yield
        grid = f"--dm-min 0 --dm-step {500 / dms} --num-dms {dms} -o {out} --overwrite --device {self.device}".split()
        self.command("dedisp search, PSRFITS", ["dedisp", "search", str(path), *grid], floor, **facts)
        yield

    # ------------------------------------------------------------------ gravitational waves
    def fstat(self) -> Iterator[None]:
        """One map of a day, and one of 121 days on a GPU."""
        from skysieve.fstat import TransientPlan, synth_atoms, transient_map

        for days in (1, 121) if self.gpu else (1, 10):
            atoms = synth_atoms(span=86_400 * days, seed=1)
            options: dict[str, Any] = {"window": "exp", "dtype": "float32", "keep_map": False, "device": self.device}
            with TransientPlan(**options) as plan:
                tools: dict[str, Callable[[], object]] = {
                    "function": lambda a=atoms, o=options: transient_map(a, **o),
                    "plan": lambda a=atoms, p=plan: p.execute(a),
                }
                self.row(f"transient_map, {days} d", tools, 9, window="exp", dtype="float32")
            yield

    # ------------------------------------------------------------------ commands
    def first(self) -> Iterator[None]:
        """The first answer on a new machine: every command with an empty cache of compiled code."""
        rng = np.random.default_rng(5)
        star, atoms, data, sky = (self.folder / name for name in ("star.csv", "atoms.npz", "first.fil", "first.fits"))
        t = np.sort(rng.uniform(0, 100, 30))
        lines = [f"{a},{np.sin(a) + 0.1 * rng.standard_normal()},0.1" for a in t]
        star.write_text("\n".join(["mjd,mag,magerr", *lines]) + "\n")
        two = self.folder / "bands.csv"
        two.write_text(
            "\n".join(["mjd,mag,magerr,filter", *(f"{x},{'gr'[i % 2]}" for i, x in enumerate(lines))]) + "\n"
        )
        survey, long = self.folder / "survey.csv", self.folder / "first-long.fil"
        curves = np.sort(rng.uniform(0, 100, (1000, 165)), axis=1)
        rows = [f"{k},{x:.6f},{rng.standard_normal():.4f},0.1" for k, t in enumerate(curves) for x in t]
        survey.write_text("\n".join(["id,mjd,mag,magerr", *rows]) + "\n")
        self.run_command(["fstat", "synth", str(atoms), "--days", "1"])
        self.fake(data, 2, 64)
        self.fake(long, 30, 256)
        from astropy.io import fits

        column = fits.Column(name="I_STOKES", format="E", array=rng.standard_normal(12 * 64**2).astype(np.float32))
        table = fits.BinTableHDU.from_columns([column])
        table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": 64, "INDXSCHM": "IMPLICIT"})
        table.writeto(sky, overwrite=True)
        commands = {
            "period, 30 points": ["period", str(star)],
            "period, --nterms 4": ["period", str(star), "--nterms", "4"],
            "period, two bands": ["period", str(two)],
            "period, 1,000 objects": ["period", str(survey), "-o", str(self.folder / "first.csv"), "--overwrite"],
            "fstat map": ["fstat", "map", str(atoms)],
            "smooth, nside 64": [
                "smooth",
                str(sky),
                str(self.folder / "first-out.fits"),
                "--fwhm",
                "2deg",
                "--overwrite",
            ],
            "dedisp search": ["dedisp", "search", str(data), "--dm-max", "50"],
            "dedisp search, 30 s": ["dedisp", "search", str(long), "--dm-max", "500"],
        }
        for name, command in commands.items():
            command += ["--device", self.device]
            floor = {"floor": lambda: self.run_python(self.needed)}
            self.row(f"first use: {name}", {"first": lambda c=command: self.cold_command(c), **floor})
            yield
            self.row(f"command: {name}", {"command": lambda c=command: self.run_command(c), **floor}, 3)
            yield

    def fake(self, path: Path, seconds: float, channels: int, tsamp: float = 256e-6, period: float = 1.0) -> None:
        """A filterbank file of noise and pulses, 1.2 to 1.5 GHz, 8 bits."""
        command = f"dedisp fake -o {path} --duration {seconds} --nchan {channels} --fch1 1500 --foff {-300 / channels}"
        pulses = f"--tsamp {tsamp} --snr 20 --period {period} --overwrite"
        self.run_command([*command.split(), *pulses.split()])

    def command(self, case: str, command: list[str], floor: str, **facts: Any) -> None:
        """Time a command beside its floor: interpreter, imports, a GPU context, and ``floor``, which reads the file."""
        tools: dict[str, Callable[[], object]] = {
            "command": lambda: self.run_command(command),
            "floor": lambda: self.run_python(f"{self.needed}; {floor}"),
        }
        self.row(case, tools, 3, **facts)

    @property
    def needed(self) -> str:
        """Python code that imports the packages that a command needs, and makes a GPU context."""
        return "import numpy, scipy, numba, typer, rich, astropy" + (", cupy; cupy.zeros(1)" if self.gpu else "")

    def run_python(self, code: str) -> None:
        """Run Python code as a process."""
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    def run_command(self, command: list[str], **environment: str) -> None:
        """Run ``skysieve`` as a process; a failure raises RuntimeError with its error messages."""
        done = subprocess.run(
            [sys.executable, "-m", "skysieve", *command],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        if done.returncode:
            raise RuntimeError(f"skysieve {' '.join(command)}: exit code {done.returncode}\n{done.stderr}")

    def cold_command(self, command: list[str]) -> None:
        """Run ``skysieve`` as a process with empty caches of compiled code."""
        cache = tempfile.mkdtemp(dir=self.folder)
        names = ("NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH", "SKYSIEVE_CACHE_DIR", "XDG_CACHE_HOME")
        self.run_command(command, **{name: f"{cache}/{name}" for name in names})
        shutil.rmtree(cache, ignore_errors=True)  # a helper process may still write to it


def write_map(path: Path, nside: int, seed: int) -> None:
    """Write a HEALPix map of white noise, float32."""
    from astropy.io import fits

    m = np.random.default_rng(seed).standard_normal((12 * nside**2 // 1024, 1024)).astype(np.float32)
    table = fits.BinTableHDU.from_columns([fits.Column(name="I_STOKES", format="1024E", array=m)])
    table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": nside, "INDXSCHM": "IMPLICIT"})
    table.writeto(path, overwrite=True)


def write_scaled(source: Path, path: Path, nsblk: int = 1024) -> None:
    """Write a filterbank file of bytes as PSRFITS in search mode, with a scale and an offset for each channel."""
    from astropy.io import fits

    from skysieve.dedispersion import Filterbank

    with Filterbank.open(source) as fb:
        rows, channels = fb.nsamp // nsblk, fb.nchan
        data, freqs, tsamp = fb.block(0, rows * nsblk).T, fb.freqs, fb.tsamp
    rng = np.random.default_rng(1)

    def each(values: Any) -> Any:
        return np.tile(np.asarray(values), (rows, 1))

    columns = [
        fits.Column("OFFS_SUB", "1D", array=(np.arange(rows) + 0.5) * nsblk * tsamp),
        fits.Column("DAT_FREQ", f"{channels}D", array=each(freqs)),
        fits.Column("DAT_WTS", f"{channels}E", array=each(np.ones(channels))),
        fits.Column("DAT_OFFS", f"{channels}E", array=each(rng.uniform(-5, 5, channels))),
        fits.Column("DAT_SCL", f"{channels}E", array=each(rng.uniform(0.5, 2, channels))),
        fits.Column("DATA", f"{nsblk * channels}B", array=data.reshape(rows, -1)),
    ]
    table, primary = fits.BinTableHDU.from_columns(columns, name="SUBINT"), fits.PrimaryHDU()
    table.header.update(NPOL=1, POL_TYPE="AA+BB", TBIN=tsamp, NBITS=8, NCHAN=channels, NSBLK=nsblk)
    primary.header.update(FITSTYPE="PSRFITS", OBS_MODE="SEARCH", STT_IMJD=58000, STT_SMJD=0, STT_OFFS=0.0)
    fits.HDUList([primary, table]).writeto(path, overwrite=True)


def read_scaled(path: str | Path) -> Any:
    """The samples of such a file (rows, samples, channels), read by astropy and scaled by NumPy."""
    from astropy.io import fits

    with fits.open(path) as file:
        rows = file["SUBINT"].data
        values = rows["DATA"].reshape(len(rows), -1, rows["DAT_SCL"].shape[1])
        return values * rows["DAT_SCL"][:, None] + rows["DAT_OFFS"][:, None]


def resident_bytes() -> int:
    """Bytes of main memory that this process holds."""
    text = Path("/proc/self/statm").read_text(encoding="ascii")
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


CASES = ("lombscargle", "batches", "one_curve", "period", "smoothing", "smooth", "maps", "bursts", "psrfits", "night",
         "fstat", "first", "scale", "gpus")  # fmt: skip


def _case(row: dict[str, Any]) -> str:
    """Name of the case of a row, with its size if there are several."""
    return f"{row['case']}, {row['size']}" if "size" in row else str(row["case"])


def reference_ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the ratio of our time to that of the first peer, floor or plan, for each case."""
    found: dict[str, float] = {}
    for case in dict.fromkeys(map(_case, rows)):
        times = {row["tool"]: row["best"] for row in rows if _case(row) == case}
        ours = next((times[tool] for tool in OURS if tool in times), None)
        others = [seconds for tool, seconds in times.items() if tool not in (*OURS, "plan")] or [times.get("plan")]
        if ours is not None and others[0] is not None:
            found[case] = ours / others[0]
    return found


def slower(rows: list[dict[str, Any]], baseline: list[dict[str, Any]]) -> list[str]:
    """Cases whose ratio grew by more than `SLOWER`, one line each."""
    now, before = reference_ratios(rows), reference_ratios(baseline)
    return [
        f"{case}: {now[case]:.3g} times what was measured beside it, {before[case]:.3g} in the baseline"
        for case in now
        if case in before and now[case] > SLOWER * before[case]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--quick", action="store_true", help="small inputs and two repetitions: whether it runs at all")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--against", type=Path, metavar="BASELINE.json", help="fail on cases that became 10%% slower")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the rows of 'scale' as SVG there")
    options = parser.parse_args()
    if options.plots and options.only is not CASES and "scale" not in options.only:
        parser.error("--plots: expected the case 'scale' among those that run")
    baseline = json.loads(options.against.read_text())["rows"] if options.against else None
    report = Report("user" if options.device == "cpu" else "user_gpu", PACKAGES, options.quick)
    some = "" if options.only is CASES else "-" + "-".join(options.only)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(options.device, options.quick, report, folder)
        for name in options.only:
            report.title(name)
            for _ in getattr(bench, name)():
                report.save(some)
    path = report.write(some)
    if options.plots:
        written = draw([path, *both_devices(path)], options.plots)
        print("\n".join(f"drawn: {one}" for one in written))
    if baseline is not None:
        worse = slower(report.rows, baseline)
        print("\n".join(worse) if worse else "no case is 10% slower than in the baseline")
        sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()

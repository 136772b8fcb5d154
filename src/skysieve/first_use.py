"""Compilation ahead of the first search: `warm_up` runs typical uses of every domain on small synthetic data.

Each use runs in a process of its own, because numba compiles under one lock.  The compiled code is stored in the usual
cache folders, where later processes find it.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skysieve.core.device import cuda_problem, resolve
from skysieve.core.errors import one_line
from skysieve.core.files import cache_folder
from skysieve.core.tasks import usable_cores

if TYPE_CHECKING:
    from skysieve.core.device import Device

__all__ = ["DOMAINS", "Warmed", "code_folders", "measure_rates", "warm_each", "warm_up"]

DOMAINS = ("periodogram", "sphere", "dedispersion", "fstat")
"""Packages with typical uses in the module ``command.warm_up``, and measurements of rates in ``command.rates``."""
PLACES = {domain: f"skysieve.{domain}.command.warm_up" for domain in DOMAINS} | {"alerts": "skysieve.alerts.warm_up"}
"""Modules with typical uses; those of alerts use only the CPU."""


@dataclass(frozen=True)
class Warmed:
    """A typical use that was run.

    Attributes
    ----------
    name : str
        Domain and use.
    device : str
        Where it ran.
    seconds : float
        Time of its process.
    error : str
        Why it failed; empty if it did not.
    """

    name: str
    device: str
    seconds: float
    error: str = ""


def warm_up(domains: Iterable[str] | None = None, device: str = "auto", threads: int | None = None) -> list[Warmed]:
    """Compile and store the code of typical searches, so that their first use is as fast as later ones.

    Parameters
    ----------
    domains : iterable of str, optional
        Some of "periodogram", "sphere", "dedispersion", "fstat" and "alerts"; all by default.
    device : {"auto", "cpu", "cuda", "cuda:N", "cuda:all"}
        Device for which to compile.  "auto" is the CPU, and the GPU as well if there is one.
    threads : int, optional
        Number of processes that run at the same time; one for each core by default.

    Returns
    -------
    list of Warmed
        The uses that were run, with their times in seconds.

    Raises
    ------
    ValueError
        An argument has another value than those above.
    DeviceUnavailable
        `device` names a GPU that cannot be used.
    OSError
        The cache folder cannot be written.
    RuntimeError
        Some uses failed; the message names them.  The error is raised after all other uses were run.

    Notes
    -----
    The compiled code is for the kind of processor, or of GPU, on which this runs.  Code for the CPU is stored in the
    folder ``$SKYSIEVE_CACHE_DIR``, by default in the user's cache folder; code for a GPU is stored in CuPy's cache
    folder, ``$CUPY_CACHE_DIR``.

    Examples
    --------
    >>> import skysieve
    >>> for one in skysieve.warm_up(["fstat"], device="cpu"):  # doctest: +SKIP
    ...     print(one.name, one.seconds)
    """
    done = list(warm_each(domains, device, threads))
    failed = [f"{one.name} on {one.device}: {one.error}" for one in done if one.error]
    if failed:
        raise RuntimeError("the code of these uses could not be compiled: " + "; ".join(failed))
    return done


def warm_each(
    domains: Iterable[str] | None = None, device: str = "auto", threads: int | None = None
) -> Iterator[Warmed]:
    """Yield each use of `warm_up` when it has ended; one that fails has an `error`."""
    chosen = (
        tuple(PLACES) if domains is None else tuple(dict.fromkeys([domains] if isinstance(domains, str) else domains))
    )
    for domain in chosen:
        if domain not in PLACES:
            raise ValueError(f"domains={domain!r}: expected some of {', '.join(PLACES)}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}: expected at least 1, or None for one for each core")
    if device == "auto":
        devices = ["cpu"] if cuda_problem() else ["cpu", "cuda"]
    else:
        resolve(device)
        devices = [device]
    _check_folder(cache_folder())
    work = [
        (domain, use, where)
        for where in devices
        for domain in chosen
        if where == "cpu" or domain in DOMAINS
        for use in _uses(domain)
    ]
    pool = ThreadPoolExecutor(threads or usable_cores(), "skysieve-warm-up")
    try:
        for future in as_completed([pool.submit(_run, *one) for one in work]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def code_folders(devices: Iterable[str]) -> dict[str, Path]:
    """Return where the compiled code for these devices is stored."""
    found = {}
    for device in devices:
        if device == "cpu":
            found["CPU"] = cache_folder() / "compiled"
        else:
            found["GPU"] = Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache").expanduser()
    return found


MEASURING = (ValueError, RuntimeError, ArithmeticError, MemoryError, ImportError)
"""Errors after which the rates of one domain are not measured; the other domains continue."""


def measure_rates(
    device: str = "auto", said: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[str, str, float, str]]:
    """Measure the rates from which times are predicted, domain by domain, and store them (see `core.machine.rates`).

    Parameters
    ----------
    device : {"auto", "cpu", "cuda", "cuda:N"}
        "auto" is the CPU, and the first GPU as well if there is one.
    said : callable, optional
        Called with a line before each step that takes seconds.

    Yields
    ------
    tuple of str, str, float and str
        Domain, device, seconds that the measurement took, and the reason if it failed (otherwise empty).

    Raises
    ------
    DeviceUnavailable
        `device` names a GPU that cannot be used.
    OSError
        The cache folder cannot be written.

    Notes
    -----
    The code that is timed on a GPU is compiled first, for all domains at the same time: see `rehearse`.
    """
    names = (["cpu"] if cuda_problem() else ["cpu", "cuda"]) if device == "auto" else [device]
    _check_folder(cache_folder())
    for name in names:
        found = resolve(name)[0]
        if found.kind == "cuda" and not (mark := _mark(found)).exists():
            said(f"compiling for {found}")
            for problem in (problems := list(rehearse(f"cuda:{found.index}"))):
                said(problem)
            if not problems:
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
        for domain in DOMAINS:
            said(f"measuring {domain} on {found}")
            started = time.perf_counter()
            error = ""
            try:
                importlib.import_module(f"skysieve.{domain}.command.rates").measure(found)
            except MEASURING as failure:
                error = one_line(failure)
            yield domain, str(found), time.perf_counter() - started, error


USED = ("cupy", "scipy.optimize", "astropy.io.fits", *(f"skysieve.{domain}.command.rates" for domain in DOMAINS))
"""Modules that the measurement of a GPU needs, and whose import takes a second."""


def rehearse(device: str) -> Iterator[str]:
    """Run each job that will be timed once, so that its code is compiled; yield a message for each domain that fails.

    Each domain has a process of its own, because numba compiles under one lock; its jobs are shared by threads.
    """
    with ThreadPoolExecutor(len(DOMAINS)) as pool:
        running = {domain: pool.submit(_compiled, "--rehearse", domain, device) for domain in DOMAINS}
        for name in USED:
            with suppress(ImportError):  # the measurement says what is missing
                importlib.import_module(name)
        for domain, one in running.items():
            if error := one.result():
                yield f"{domain}: not all could be compiled beforehand: {error}"


def _rehearse(domain: str, device: str) -> None:
    """Run the jobs of a domain once, several at a time."""
    from skysieve.core.machine.rates import rehearsal

    jobs = importlib.import_module(f"skysieve.{domain}.command.rates").rehearsals(resolve(device)[0])
    with rehearsal(), ThreadPoolExecutor(min(len(jobs), usable_cores())) as pool:
        running = [pool.submit(job) for job in jobs]
    errors = [error for one in running if (error := one.exception()) is not None]
    if errors:
        raise errors[0]


def _mark(device: Device) -> Path:
    """A file that exists when the jobs that are timed on a device have been compiled from the present sources."""
    from skysieve.core.cpu.jit import stored_folder

    return stored_folder("fstat") / f"measured-{re.sub('[^A-Za-z0-9]+', '-', device.name)}"


def _uses(domain: str) -> dict[str, Callable[[str], None]]:
    found: dict[str, Callable[[str], None]] = importlib.import_module(PLACES[domain]).USES
    return found


def _check_folder(folder: Path) -> None:
    """Refuse a cache folder that cannot be written: the code would not last."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            error.errno, f"cannot store compiled code: {error.strerror}; set SKYSIEVE_CACHE_DIR to a folder that can "
            "be written", str(folder),
        ) from error  # fmt: skip


def _run(domain: str, use: str, device: str) -> Warmed:
    """Run one use in a process of its own."""
    started = time.perf_counter()
    error = _compiled(domain, use, device)
    return Warmed(f"{domain} {use}", device, time.perf_counter() - started, error)


def _compiled(*words: str) -> str:
    """Run this module in a process of its own; return the error message, empty if there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "skysieve.first_use", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        check=False,
    )  # fmt: skip
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"its process ended with code {done.returncode}"


if __name__ == "__main__":
    from skysieve.core.cpu.jit import compile_all

    compile_all()
    if sys.argv[1] == "--rehearse":
        _rehearse(*sys.argv[2:])
    else:
        _uses(sys.argv[1])[sys.argv[2]](sys.argv[3])

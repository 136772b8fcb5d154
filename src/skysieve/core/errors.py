"""Exceptions of the package.

Wrong arguments raise ``ValueError`` or ``TypeError``; the classes here are for problems of the machine.
"""

from __future__ import annotations

__all__ = [
    "EXTRAS",
    "DeviceLost",
    "DeviceUnavailable",
    "KernelError",
    "MemoryBudgetError",
    "SkysieveError",
    "format_bytes",
    "install_hint",
    "one_line",
    "out_of_memory",
]

_OUT_OF_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")


def format_bytes(n: float) -> str:
    """Return a number of bytes as text, with a unit.

    >>> format_bytes(3 * 2**30)
    '3.0 GiB'
    """
    if n < 1024:
        return f"{n:.0f} B"
    value = float(n)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


EXTRAS = {
    "bokeh": "web", "confluent_kafka": "alerts", "dask": "cluster", "ducc0": "harmonic", "h5py": "hdf5",
    "matplotlib": "plot", "pyarrow": "tables",
}  # fmt: skip
"""Optional packages, and the extra of this package that installs each."""


def install_hint(package: str) -> str:
    """Return the command that installs an optional package.

    >>> install_hint("matplotlib")
    "pip install 'skysieve[plot]'"
    """
    return f"pip install 'skysieve[{EXTRAS[package]}]'"


def one_line(error: BaseException) -> str:
    """Return the message of an error for the command line; the error number of a file error is left out.

    >>> one_line(FileNotFoundError(2, "No such file or directory", "map.fits"))
    'map.fits: No such file or directory'
    """
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory was short, on the host or on a GPU.

    CuPy raises a ``MemoryError`` if its memory pool cannot allocate.  Page-locked memory, recorded launches and kernels
    that are loaded at their first launch raise only the driver's error.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"))
    (True, True)
    >>> out_of_memory(RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"))
    False
    """
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(name in str(error) for name in _OUT_OF_MEMORY)
    )


class SkysieveError(Exception):
    """Base class of the exceptions of this package."""


class DeviceUnavailable(SkysieveError, RuntimeError):
    """The requested device cannot be used.

    Parameters
    ----------
    missing : str
        What is missing, in one clause.
    remedy : str
        What the user can do, such as a command that installs what is missing.
    """

    def __init__(self, missing: str, remedy: str = "") -> None:
        self.missing = missing
        self.remedy = remedy
        super().__init__(f"{missing}. {remedy}" if remedy else missing)

    def __reduce__(self) -> tuple[type[DeviceUnavailable], tuple[str, str]]:
        return type(self), (self.missing, self.remedy)


class DeviceLost(SkysieveError, RuntimeError):
    """GPUs failed during the work and do not respond.

    Parameters
    ----------
    names : tuple of str
        Names of the GPUs.
    reason : str
        The driver's error.
    """

    def __init__(self, names: tuple[str, ...], reason: str) -> None:
        self.names = tuple(names)
        self.reason = reason
        super().__init__(f"{', '.join(self.names)} failed and does not respond: {reason}")

    def __reduce__(self) -> tuple[type[DeviceLost], tuple[tuple[str, ...], str]]:
        return type(self), (self.names, self.reason)


class MemoryBudgetError(SkysieveError, MemoryError):
    """The smallest step of a job needs more memory than the budget allows.

    Parameters
    ----------
    what : str
        What does not fit.
    needed, budget : float
        Bytes.
    """

    def __init__(self, what: str, needed: float, budget: float) -> None:
        self.what = what
        self.needed = int(needed)
        self.budget = int(budget)
        super().__init__(
            f"{what} needs {format_bytes(needed)} ({int(needed)} bytes), the budget is "
            f"{format_bytes(budget)} ({int(budget)} bytes)"
        )

    def __reduce__(self) -> tuple[type[MemoryBudgetError], tuple[str, int, int]]:
        return type(self), (self.what, self.needed, self.budget)


class KernelError(SkysieveError, RuntimeError):
    """A CUDA kernel cannot be read, compiled or launched."""

"""Compile the CPU's kernels: `njit` for this package, with its own cache of compiled code.

numba optimises and translates a function again in every function that calls it, and makes two wrappers for each.  Here
a function that compiled code calls is only lowered to LLVM's language (a *part*); the function that Python calls (an
*entry*) is optimised and translated once, with all its parts.  The first compilation takes about half the time.

Compiled entries are stored in `skysieve.core.measured.cache_folder`, in a folder for the present sources, versions and
Python, one file for each function, types of arguments and processor.  A file that is damaged counts as absent.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config, serialize
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

import skysieve
from skysieve.core.files import written
from skysieve.core.measured import cache_folder

__all__ = ["njit", "stored_folder"]

logger = logging.getLogger("skysieve.compile")

_PACKAGE = Path(skysieve.__file__).parent
_OLD = 30 * 86_400.0
"""Seconds without use after which the folder of other sources or versions is removed."""
_DAY = 86_400.0
_WITHOUT_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_said: set[str] = set()
"""What this process has said already: each message comes once."""


def njit(*signature: Any, **options: Any) -> Any:
    """Decorate a function as `numba.njit` does; its code is stored in the package's cache folder.

    Parameters
    ----------
    *signature
        Types of the arguments, to compile for them at once; or the function itself.
    **options
        Options of `numba.njit`.
    """
    if len(signature) == 1 and isinstance(signature[0], FunctionType):
        return _decorate(signature[0], (), options)
    return lambda function: _decorate(function, signature, options)


def _decorate(function: Callable[..., Any], signature: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if config.DISABLE_JIT:
        return function
    kernel = _Kernel(function, targetoptions={"nopython": True, "boundscheck": None, **options})
    kernel.enable_caching()
    for types in signature:
        kernel.compile(types)
        kernel.disable_compile()
    return kernel


# ---------------------------------------------------------------- entries and parts


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code of a part and of the parts that it calls, which is optimised and translated in the entry."""

    def finalize(self) -> None:
        """Link the callees; do nothing else."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            if hasattr(library, "_reload_init"):
                self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerPart(NativeLowering):  # type: ignore[misc]
    """Lower a part, and make it known to the functions that call it."""

    _name = "skysieve_lower_part"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        try:
            super().run_pass(state)
        finally:
            state.flags.no_compile = False
        lowered = state["cr"]
        state.library.finalize()
        name: Any = [].append  # the dispatcher demands a built-in function; it serves as a key alone
        state.targetctx.insert_user_function(name, lowered.fndesc, [state.library])
        state["cr"] = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=name, env=lowered.env)
        return True


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes = [(_LowerPart if "Lowering" in kind.__name__ else kind, why) for kind, why in pipeline.passes]
        pipeline.passes[:] = passes
        pipeline._finalized = False
        pipeline.finalize()
        return [pipeline]


class _Kernel(CPUDispatcher):  # type: ignore[misc]
    """A function that Python calls as an entry, and compiled code as a part."""

    def __init__(self, py_func: Callable[..., Any], targetoptions: dict[str, Any]) -> None:
        super().__init__(py_func, targetoptions={**targetoptions, "no_cfunc_wrapper": True})
        self._options = targetoptions

    @functools.cached_property
    def _part(self) -> Any:
        return CPUDispatcher(
            self.py_func, targetoptions={**self._options, **_WITHOUT_WRAPPERS}, pipeline_class=_PartCompiler
        )

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What compiled code calls."""
        return self._part.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """What compiled code calls."""
        return self._part.get_overload(sig)

    def enable_caching(self) -> None:
        """Store compiled entries."""
        self._cache = _Cache(self.py_func)


# ---------------------------------------------------------------- the cache


class _Cache(NullCache):  # type: ignore[misc]
    """Compiled entries of one function in the cache folder."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._enabled = True

    @property
    def cache_path(self) -> str:
        """Folder of the files."""
        return str(stored_folder(self._domain))

    @property
    def _domain(self) -> str:
        return self._function.__module__.split(".")[1] if "." in self._function.__module__ else "other"

    def enable(self) -> None:
        """Use the cache."""
        self._enabled = True

    def disable(self) -> None:
        """Do not use the cache."""
        self._enabled = False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored code for these types; None if there is none, or only a damaged file."""
        target_context.refresh()
        if not self._enabled:
            return None
        name = self._file(sig, target_context)
        for folder in _places(self._domain):
            data = _read(folder / name)
            if data is not None:
                _touch(folder)
                return CompileResult._rebuild(target_context, *pickle.loads(data))
        _say(f"compiling for this processor; this happens once, the code is stored in {cache_folder()}")
        logger.debug("compiling %s.%s", self._function.__module__, self._function.__qualname__)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store compiled code; if the cache folder cannot be written, in a temporary folder, with one warning."""
        if not self._enabled or data.library.has_dynamic_globals:
            return
        content = serialize.dumps(data._reduce())
        content = hashlib.sha256(content).digest() + content
        name, places = self._file(sig, data.target_context), _places(self._domain)
        for number, folder in enumerate(places):
            try:
                _make(folder)
                with written(folder / name, sync=False) as part:
                    part.write_bytes(content)
                return
            except OSError as error:
                instead = f"stored in {places[1]} for now" if number == 0 and len(places) > 1 else "not stored"
                _say(
                    f"compiled code cannot be stored in {folder} ({error.strerror}) and is {instead}; "
                    "SKYSIEVE_CACHE_DIR names a folder that can be written",
                    logging.WARNING,
                )

    def _file(self, sig: Any, target_context: Any) -> str:
        """Name of the file for these types on this processor."""
        code, cells = self._function.__code__, self._function.__closure__ or ()
        closure = serialize.dumps(tuple(cell.cell_contents for cell in cells))
        name = f"{self._function.__module__}.{self._function.__qualname__}"
        processor = target_context.codegen().magic_tuple()
        key = repr((name, str(sig), processor, code.co_code, closure, config.OPT, config.BOUNDSCHECK))
        return f"{self._function.__name__}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.bin"


def stored_folder(domain: str) -> Path:
    """Return the folder for compiled code of the present sources of `domain` and of the present versions."""
    return _places(domain)[0]


def _places(domain: str) -> list[Path]:
    """Return the folders in which compiled code is looked for; the first that can be written receives it."""
    name = f"{domain}-{_sources(domain)}"
    temporary = _temporary()
    return [cache_folder() / "compiled" / name, *([temporary / name] if temporary else [])]


@functools.cache
def _sources(domain: str) -> str:
    """Return a hash of the sources of a domain and of `core`, and of the versions that shape compiled code."""
    found = hashlib.sha256(
        repr((skysieve.__version__, numba.__version__, llvmlite.__version__, np.__version__, sys.version)).encode()
    )
    for part in sorted({"core", domain}):
        for path in sorted((_PACKAGE / part).rglob("*.py")):
            content = path.read_bytes()
            found.update(f"{path.relative_to(_PACKAGE).as_posix()} {len(content)} ".encode() + content)
    return found.hexdigest()[:16]


@functools.cache
def _temporary() -> Path | None:
    """Return a temporary folder that belongs to this user alone: unpickling another user's file could run anything."""
    if not hasattr(os, "getuid"):
        return Path(tempfile.gettempdir()) / "skysieve-compiled"
    path = Path(tempfile.gettempdir()) / f"skysieve-{os.getuid()}"
    with suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return path
    return None


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None if it is absent, cannot be read, or is not as it was written."""
    try:
        data = path.read_bytes()
    except OSError as error:
        logger.debug("%s: %s", path, error)
        return None
    digest, content = data[:32], data[32:]
    if hashlib.sha256(content).digest() != digest:
        logger.debug("%s is damaged: compile again", path)
        return None
    return content


def _make(folder: Path) -> None:
    """Make the folder; remove those of other sources or versions that have not been used for a month."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    domain = folder.name.rpartition("-")[0]
    for other in folder.parent.glob(f"{domain}-*"):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > _OLD:
                shutil.rmtree(other)


def _touch(folder: Path) -> None:
    """Note, once a day, that the folder is used."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > _DAY:
            os.utime(folder)


def _say(text: str, level: int = logging.INFO) -> None:
    if text not in _said:
        _said.add(text)
        logger.log(level, text)

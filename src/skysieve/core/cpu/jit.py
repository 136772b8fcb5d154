"""Compile the CPU's kernels: `njit` for this package, with its own cache of compiled code.

numba optimises and translates a function again in every function that calls it, and makes two wrappers for each.  Here
a function that compiled code calls is only lowered to LLVM IR (a *part*); the function that Python calls (an *entry*)
is optimised and translated once, with all its parts.  This about halves the time of the first compilation.

Compiled entries are stored in `core.files.cache_folder`, in a folder for the present sources, versions and
Python, one file for each function, types of arguments and processor.  A file that is damaged counts as absent.  A
process that needs a function which another process compiles waits for it.

The first answer need not wait for all compilations: `interpreted_if_small` runs a function that is called for few rows
in Python's interpreter, and `compile_together` compiles several functions at the same time, in processes of their own.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import logging
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FunctionType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config, serialize
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, DefaultPassBuilder, Flags, _LowerResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.runtime import rtsys
from numba.core.typed_passes import NativeLowering

import skysieve
from skysieve.core.files import cache_folder, written
from skysieve.core.tasks import job_share, usable_cores

__all__ = [
    "ZERO",
    "FirstAnswers",
    "compile_all",
    "compile_beside",
    "compile_together",
    "in_interpreter",
    "interpreted",
    "interpreted_if_small",
    "is_compiled",
    "is_ready",
    "njit",
    "read_only",
    "run_beside",
    "stored_folder",
]

logger = logging.getLogger("skysieve.compile")

_PACKAGE = Path(skysieve.__file__).parent
_OLD = 30 * 86_400.0
"""Seconds without use after which the folder of other sources or versions is removed."""
_DAY = 86_400.0
_WITHOUT_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
STEP_SECONDS = 1e-6
"""Time of one step (an operation on a number) in Python's interpreter."""
INTERPRETED_SECONDS = 0.3
"""Time that a function may take in the interpreter, in one process, before it is compiled: compiling takes longer."""
ZERO = np.int64(0)
"""0 for initial values and arguments.  For a literal 0, numba would compile the called function once more."""
WAIT_SECONDS = 120.0
"""Longest wait for another process that compiles."""
POLL_SECONDS = 0.02
"""Interval at which a waiting process looks for stored code."""
IDLE_SECONDS = 5.0
"""Time after which an idle helper process ends."""
_HELPER = "SKYSIEVE_COMPILES_FOR_ANOTHER_PROCESS"
"""Environment variable of processes that compile for another one: they start no further ones."""
_together = threading.Lock()
_helpers: list[_Helper] = []
"""Processes of `compile_beside` that have not ended."""
_beside: dict[Callable[..., Any], _Helper] = {}
"""The helper process of each function that has not been called yet."""
_announces = False
"""Whether this process prints what it compiles: it is a `_Helper`."""
_defers = False
"""Whether a helper process defers a line that needs a function which another process is compiling."""
_said: set[str] = set()
"""Messages that this process has logged; each is logged once."""


def njit(*signature: Any, **options: Any) -> Any:
    """Decorate a function as `numba.njit` does; its code is stored in the package's cache folder.

    Parameters
    ----------
    *signature
        Types of the arguments for which to compile immediately; or the function itself.
    **options
        Options of `numba.njit`.
    """
    if len(signature) == 1 and isinstance(signature[0], FunctionType):
        return _decorate(signature[0], (), options)
    return functools.partial(_decorate, signature=signature, options=options)


def _decorate(function: Callable[..., Any], signature: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if config.DISABLE_JIT:
        return function
    kernel = _Kernel(function, targetoptions={"nopython": True, "boundscheck": None, **options})
    kernel.enable_caching()
    for types in signature:
        kernel.compile(types)
        kernel.disable_compile()
    return kernel


def read_only(*arrays: Any) -> list[Any]:
    """Read-only views, because numba compiles a function for each combination of read-only and writable arguments."""
    views = [a.view() for a in arrays]
    for view in views:
        view.flags.writeable = False
    return views


# ---------------------------------------------------------------- entries and parts


class _PartLibrary(JITCodeLibrary):
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
class _LowerPart(NativeLowering):
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


class _PartCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes = [(_LowerPart if "Lowering" in kind.__name__ else kind, why) for kind, why in pipeline.passes]
        pipeline.passes[:] = passes
        pipeline._finalized = False
        pipeline.finalize()
        return [pipeline]


class _Flags(Flags):
    """Compiler flags that are compared fast, and that do not pass the flags of wrappers to callees.

    numba compares the flags thousands of times while it compiles a function, and compiles its own NumPy functions once
    for each set of flags.
    """

    def copy(self) -> _Flags:
        """Return the flags for the callees."""
        seen = _Flags(self)
        for name in ("no_cpython_wrapper", "no_cfunc_wrapper", "release_gil", "no_compile"):
            seen._values.pop(name, None)
        return seen

    def values(self) -> dict[str, Any]:
        """Return all values."""
        given = self._values
        return {name: given.get(name, option.default) for name, option in self.options.items()}

    def __hash__(self) -> int:
        return _FLAGS_HASH

    def __eq__(self, other: object) -> bool:
        return (type(other) is _Flags and self._values == other._values) or bool(super().__eq__(other))


_FLAGS_HASH = hash(Flags())


def _quicken(dispatcher: CPUDispatcher) -> None:
    dispatcher._compiler._customize_flags = _Flags


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch off Python's garbage collector: compiling makes millions of objects, most of which stay in use."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Kernel(CPUDispatcher):
    """A function that Python calls as an entry, and compiled code as a part."""

    def __init__(self, py_func: Callable[..., Any], targetoptions: dict[str, Any]) -> None:
        super().__init__(py_func, targetoptions={**targetoptions, "no_cfunc_wrapper": True})
        self._options = targetoptions
        self.interpreted_seconds = 0.0
        _quicken(self)

    @functools.cached_property
    def _part(self) -> Any:
        part = CPUDispatcher(
            self.py_func, targetoptions={**self._options, **_WITHOUT_WRAPPERS}, pipeline_class=_PartCompiler
        )
        _quicken(part)
        return part

    def compile(self, sig: Any) -> Any:
        """Compile for these types, or load the stored code."""
        with _no_collection(), global_compiler_lock:
            try:
                return super().compile(sig)
            finally:
                self._cache.release()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the call template of the part, which compiled code calls."""
        return self._part.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """Return the entry point of the part, which compiled code calls."""
        return self._part.get_overload(sig)

    def enable_caching(self) -> None:
        """Store compiled entries."""
        self._cache = _Cache(self.py_func)


# ---------------------------------------------------------------- first answers


def interpreted_if_small(kernel: Any, steps: float, worth: float = 1.0) -> Callable[..., Any]:
    """Return a function of `njit`, or its Python source if running that takes less time than compiling the function.

    The interpreter's results are bit-identical if all arrays are of float64, int64 or bool and no option lets the
    compiler reorder sums.

    Parameters
    ----------
    kernel : function of `njit`
        The function that is called next.
    steps : float
        Operations on numbers in that call.
    worth : float
        Time to compile it, in units of `INTERPRETED_SECONDS`.
    """
    if kernel.__class__ is not _Kernel or kernel.overloads:
        return kernel  # pyrefly: ignore[no-any-return]  # a function, as all results of `njit`
    seconds = STEP_SECONDS * steps
    if kernel.interpreted_seconds + seconds > worth * INTERPRETED_SECONDS or kernel._cache.holds_any():
        return kernel
    kernel.interpreted_seconds += seconds
    return interpreted(kernel)


def in_interpreter(replaced: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the replacement of a function of `njit` or an intrinsic in Python's interpreter (see `interpreted`).

    The replacement has the same arguments.  It stands for processor instructions, which the interpreter does not have,
    and for loops that NumPy vectorises; it may take an array where the compiled function takes one number.
    """

    def remember(function: Callable[..., Any]) -> Callable[..., Any]:
        _replacements[id(replaced)] = replaced, function
        return function

    return remember


_replacements: dict[int, tuple[Any, Callable[..., Any]]] = {}


def interpreted(kernel: Any) -> Callable[..., Any]:
    """Return the Python source of a function of `njit`, which runs without NumPy's warnings.

    The function, and those that it calls, are replaced as `in_interpreter` says; the others run from their source.
    """
    return kernel if kernel.__class__ is not _Kernel else _quiet(kernel)


@functools.cache
def _quiet(kernel: _Kernel) -> Callable[..., Any]:
    source = _source(kernel)

    @functools.wraps(source)
    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return source(*args)

    return run


@functools.cache
def _source(kernel: _Kernel) -> Callable[..., Any]:
    if id(kernel) in _replacements:
        return _replacements[id(kernel)][1]
    function = kernel.py_func
    around = dict(function.__globals__)
    source = FunctionType(function.__code__, around, function.__name__, function.__defaults__, function.__closure__)
    for name in function.__code__.co_names:
        called = around.get(name)
        if id(called) in _replacements:
            around[name] = _replacements[id(called)][1]
        elif isinstance(called, _Kernel):
            around[name] = _source(called)
    return source


class FirstAnswers:
    """The first answers of a process, which need less compiled code than later ones, or none.

    Parameters
    ----------
    limit : float
        Seconds that they may take in all: the time of compiling.

    Attributes
    ----------
    allowed : bool
        Whether this process gives first answers.
    """

    allowed = True

    def __init__(self, limit: float) -> None:
        self.limit, self.seconds = limit, 0.0

    def take(self, seconds: float) -> bool:
        """Return whether an answer may take this many seconds; if so, count them.

        For a part of a job, all of the remaining job must fit into the limit (`tasks.part_of_a_job`).
        """
        if not self.allowed or self.seconds + seconds / job_share() > self.limit:
            return False
        self.seconds += seconds
        return True


def compile_all() -> None:
    """From now on, interpret nothing and start no helper process: `skysieve warm-up` compiles for later processes."""
    global INTERPRETED_SECONDS
    INTERPRETED_SECONDS = 0.0
    FirstAnswers.allowed = False
    os.environ[_HELPER] = "1"


def is_ready(kernel: Any) -> bool:
    """Return whether there is code of a function for any types of arguments, in this process or stored."""
    return kernel.__class__ is not _Kernel or bool(kernel.overloads) or kernel._cache.holds_any()


def is_compiled(kernel: Any, *args: Any) -> bool:
    """Return whether there is code of a function for arguments of these types, in this process or stored."""
    if kernel.__class__ is not _Kernel:
        return True
    types = tuple(kernel.typeof_pyval(a) for a in args)
    return types in kernel.overloads or kernel._cache.holds(types)


def compile_together(*calls: tuple[Any, Sequence[Any]]) -> None:
    """Compile functions at the same time, the first in this process and the others in processes of their own.

    numba compiles one function at a time in a process.  Nothing happens if fewer than two functions are missing.

    Parameters
    ----------
    *calls : tuple of function of `njit` and arguments
        The calls that follow.
    """
    if all(kernel.__class__ is not _Kernel or kernel.overloads for kernel, _ in calls) or not _may_start():
        return
    with _together:  # one thread starts processes; others find the code
        typed = [
            (kernel, tuple(kernel.typeof_pyval(a) for a in args))
            for kernel, args in calls
            if not is_compiled(kernel, *args)
        ]
        if len(typed) >= 2:
            _compile_in_processes(typed)


def _compile_in_processes(typed: list[tuple[Any, Any]]) -> None:
    (kernel, types), *others = typed
    number = min(len(others), usable_cores() - 1)
    helpers = []
    for i in range(number):
        helper = _start("from skysieve.core.cpu.jit import _serve; _serve()")
        if helper is not None:
            assert helper.stdin is not None
            with suppress(BrokenPipeError), helper.stdin as pipe:
                pickle.dump([(k.__module__, k.__name__, t) for k, t in others[i::number]], pipe)
            helpers.append(helper)
    try:
        kernel.compile(types)
        for helper in helpers:
            _wait(helper)  # what is still missing then is compiled here
    finally:
        for helper in helpers:
            _end(helper)


class _Helper:
    """A process that runs uses of functions one after the other, so that they are compiled and stored.

    It prints the name of each function when it begins to compile it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.given, self.begun = process, 0, set[str]()
        threading.Thread(target=self._read, name="skysieve-compile", daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.begun.add(line.decode().strip())

    def give(self, code: str) -> bool:
        """Let the process run a line of code after the earlier ones; return False if the process has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(code.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return False
        self.given += 1
        return True

    def compiles(self, function: Callable[..., Any]) -> bool:
        """Whether it is compiling a function, or has compiled it."""
        return _name(function) in self.begun and self.process.poll() is None


def compile_beside(code: str, *kernels: Any) -> None:
    """Let a helper process compile functions that this process will call later.

    A helper process runs one line of code after the other; there are fewer helper processes than cores.  When a
    function is called and a helper has begun to compile it, this process waits until the code is stored; otherwise this
    process compiles it.  Nothing happens if all functions are stored.

    Parameters
    ----------
    code : str
        A line of Python that calls the functions, with arguments of the types of the later calls.
    *kernels : function of `njit`
    """
    if not _may_start():
        return
    with _together:
        missing = [
            kernel.py_func
            for kernel in kernels
            if kernel.__class__ is _Kernel and not is_ready(kernel) and kernel.py_func not in _beside
        ]
        if not missing:
            return
        helper = _give(code)
        if helper is not None:
            _beside.update(dict.fromkeys(missing, helper))


def run_beside(code: str) -> bool:
    """Let a helper process run a line of code, so that what it compiles is stored; see `compile_beside`.

    When this process needs a function that the helper is compiling, it waits for it; it compiles the others itself.

    Returns
    -------
    bool
        False if no helper process can be started.
    """
    if not _may_start():
        return False
    with _together:
        return _give(code) is not None


def _give(code: str) -> _Helper | None:
    """Give a line of code to the helper process that has the fewest lines; return it."""
    _helpers[:] = [helper for helper in _helpers if helper.process.poll() is None]
    if len(_helpers) < usable_cores() - 1:
        process = _start("from skysieve.core.cpu.jit import _serve_lines; _serve_lines()", subprocess.PIPE)
        if process is not None:
            _helpers.append(_Helper(process))
    return next((helper for helper in sorted(_helpers, key=lambda helper: helper.given) if helper.give(code)), None)


def _may_start() -> bool:
    return usable_cores() > 1 and _HELPER not in os.environ


def _start(code: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes] | None:
    """Start a process that runs Python code; None if no process can be started."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", _HELPER: "1"},
        )  # fmt: skip
    except OSError as error:
        logger.debug("no process for compiling: %s", error)
        return None


def _wait(helper: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        helper.wait(WAIT_SECONDS)


def _end(helper: subprocess.Popen[bytes]) -> None:
    if helper.poll() is None:
        helper.kill()
        helper.wait()


def _serve() -> None:
    """Compile the functions that standard input lists."""
    for module, name, types in pickle.load(sys.stdin.buffer):
        getattr(importlib.import_module(module), name).compile(types)


class _CompiledElsewhereError(Exception):
    """Another process is compiling a function that is needed."""


def _serve_lines() -> None:
    """Run the lines of standard input, in turn, until it ends or no line comes for a while.

    A line that needs a function which another process is compiling is run again, after the others.
    """
    global _announces, _defers
    _announces = True
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        rest = b""
        while data := os.read(0, 2**16):  # a buffered reader would be locked when the process ends
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                lines.put(line.decode())
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    deferred: set[str] = set()
    with suppress(Empty):
        while (line := lines.get(timeout=IDLE_SECONDS)) or not lines.empty():
            if not line:  # the end of the input must come after the deferred lines
                lines.put(line)
                continue
            _defers = line not in deferred
            try:
                exec(line, {})
            except _CompiledElsewhereError:
                deferred.add(line)
                lines.put(line)


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


# ---------------------------------------------------------------- the cache


class _Cache(NullCache):
    """Compiled entries of one function in the cache folder."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._enabled = True
        self._found: list[Path] = []
        """The folders in which `holds_any` found code; empty before."""
        self._claimed: int | None = None

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

    def holds(self, types: Any) -> bool:
        """Return whether code for these types is stored."""
        if not self._enabled:
            return False
        name = self._file(types, cpu_target.target_context)
        return any((folder / name).is_file() for folder in _places(self._domain))

    def holds_any(self) -> bool:
        """Return whether code for any types is stored.  True is remembered, because it is asked for often."""
        if not self._enabled:
            return False
        folders, name = list(_places(self._domain)), f"{self._function.__name__}-*.bin"
        if folders != self._found and any(any(folder.glob(name)) for folder in folders):
            self._found = folders
        return folders == self._found

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored code for these types; None if there is none, or only a damaged file."""
        if not self._enabled:
            return None
        name = self._file(sig, target_context)
        data = self._stored(name)
        helper = _beside.pop(self._function, None)
        if helper is not None:
            end = time.monotonic() + WAIT_SECONDS
            while data is None and helper.compiles(self._function) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
                data = self._stored(name)
            data = self._stored(name) if data is None else data
        if data is None:
            self._claim(name)
            data = self._stored(name)
        if data is not None:
            rtsys.initialize(target_context)  # `refresh` would load what compiling needs, which takes 0.3 s
            return CompileResult._rebuild(target_context, *pickle.loads(data))
        writable = os.access(self.cache_path, os.W_OK)  # else `save_overload` says where it is stored
        where = f"; it is stored for later runs in {cache_folder()}" if writable else ""
        _say(f"compiling code for this kind of search and processor{where}")
        logger.debug("compiling %s", _name(self._function))
        if _announces:
            with suppress(OSError):  # the process that reads this has ended
                print(_name(self._function), flush=True)
        return None

    def _claim(self, name: str) -> None:
        """Claim the compilation of a function; while another process has it, wait instead.

        Otherwise processes that start together would all compile the same function.  The claim is a lock on one byte of
        a file, which the system releases when a process ends, however it ends.  Without such locks, no process
        waits.
        """
        try:
            import fcntl
        except ModuleNotFoundError:
            return
        folder, end = Path(self.cache_path), time.monotonic() + WAIT_SECONDS
        byte = int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)
        waited = False
        try:
            _make(folder)
            self._claimed = os.open(folder / "claims", os.O_RDWR | os.O_CREAT, 0o666)
            while time.monotonic() < end:
                try:
                    fcntl.lockf(self._claimed, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                    break
                except (BlockingIOError, PermissionError):
                    if _defers:
                        raise _CompiledElsewhereError from None
                    waited = True
                    time.sleep(POLL_SECONDS)
        except OSError as error:  # the folder cannot be written to, or its file system has no locks
            logger.debug("%s: %s", folder, error)
        if waited:  # the code is stored now, or cannot be stored: the next process need not wait as well
            self.release()

    def release(self) -> None:
        """End the claim of a compilation, if there is one."""
        if self._claimed is not None:
            os.close(self._claimed)
            self._claimed = None

    def _stored(self, name: str) -> bytes | None:
        """Return the content of a file of the cache; None if there is none, or only a damaged one.

        A file that is only in the temporary folder is copied to the cache folder, if that can be written now.
        """
        places = _places(self._domain)
        for folder in places:
            data = _read(folder / name)
            if data is None:
                continue
            if folder != places[0]:
                with suppress(OSError):
                    _write(places[0], name, data)
            _touch(folder)
            return data
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store compiled code; if the cache folder cannot be written, in a temporary folder, with one warning."""
        if not self._enabled or data.library.has_dynamic_globals:
            return
        content = serialize.dumps(data._reduce())
        name, places = self._file(sig, data.target_context), _places(self._domain)
        for number, folder in enumerate(places):
            try:
                _write(folder, name, content)
                return
            except OSError as error:
                instead = f"stored in {places[1]} for now" if number == 0 and len(places) > 1 else "not stored"
                _say(
                    f"compiled code cannot be stored in {folder} ({error.strerror}) and is {instead}; "
                    "set SKYSIEVE_CACHE_DIR to a folder that can be written to",
                    logging.WARNING,
                )

    def _file(self, sig: Any, target_context: Any) -> str:
        """Name of the file for these types on this processor."""
        code, cells = self._function.__code__, self._function.__closure__ or ()
        closure = serialize.dumps(tuple(cell.cell_contents for cell in cells))
        name = _name(self._function)
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
            if path.parent.name == "command" or path == _PACKAGE / "core" / "command.py":
                continue  # no kernel is in a command line: an edit of a help text compiles nothing
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
        logger.debug("%s is damaged: compiling again", path)
        return None
    return content


def _write(folder: Path, name: str, content: bytes) -> None:
    """Write a file that `_read` reads: a digest, then the content."""
    _make(folder)
    with written(folder / name, sync=False) as part:
        part.write_bytes(hashlib.sha256(content).digest() + content)


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

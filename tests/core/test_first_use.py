"""`skysieve warm-up`, and the folder of compiled code when it vanishes, cannot be written, or has no parent."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import skysieve
from skysieve import first_use
from skysieve.cli import app

COMMANDS = {
    "fstat": ["fstat", "map", "atoms.npz", "--device", "cpu"],
    "sphere": ["smooth", "sky.fits", "out.fits", "--fwhm", "2deg", "--device", "cpu"],
    "dedispersion": ["dedisp", "search", "made.fil", "--dm-max", "50", "--device", "cpu"],
    "periodogram": ["period", "star.csv", "--device", "cpu"],
}
SHORT = COMMANDS["fstat"]
"""The command that compiles the least."""


def run(command, folder, cwd, **environment):
    """Run `skysieve` in a new process with this cache folder."""
    env = {**os.environ, "SKYSIEVE_CACHE_DIR": str(folder), **environment}
    env = {name: value for name, value in env.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-m", "skysieve", *command], capture_output=True, text=True, env=env, cwd=cwd, check=False
    )


def stored(folder):
    return sorted(path.name for path in folder.rglob("*.bin"))


def make(domain, folder):
    """Write the input of the domain's command."""
    if domain == "fstat":
        from skysieve.fstat import save_atoms, synth_atoms

        save_atoms(folder / "atoms.npz", synth_atoms(span=86400))
    elif domain == "dedispersion":
        from skysieve.dedispersion import fake

        path = folder / "made.fil"
        fake(nchan=64, duration=2, tsamp=256e-6, fch1=1500, foff=-4.6875, snr=20, path=path).close()
    elif domain == "sphere":
        import numpy as np
        from astropy.io import fits

        column = fits.Column(name="I_STOKES", format="E", array=np.arange(12 * 64**2, dtype=np.float32))
        table = fits.BinTableHDU.from_columns([column])
        table.header.update({"PIXTYPE": "HEALPIX", "ORDERING": "RING", "NSIDE": 64, "INDXSCHM": "IMPLICIT"})
        table.writeto(folder / "sky.fits")
    else:
        rows = [f"{0.7 * i + 0.01 * (i * i % 17)},{i % 5},0.1" for i in range(40)]
        (folder / "star.csv").write_text("\n".join(["mjd,mag,magerr", *rows]) + "\n")


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A folder with atoms, and a cache folder that holds what the use of `warm_up` for `SHORT` compiles."""
    folder = tmp_path_factory.mktemp("warm")
    make("fstat", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYSIEVE_CACHE_DIR", str(folder / "cache"))
        assert first_use._run("fstat", "rect", "cpu").error == ""
    assert stored(folder / "cache")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("domain", list(COMMANDS))
def test_a_command_compiles_nothing_after_warm_up(domain, tmp_path):
    make(domain, tmp_path)
    cache = tmp_path / "cache"
    warmed = run(["warm-up", "--device", "cpu", "--only", domain], cache, tmp_path)
    assert warmed.returncode == 0, warmed.stderr
    lines = warmed.stdout.splitlines()
    assert {line.split(" ")[0] for line in lines[:-1]} == {domain}
    assert len(lines) == 1 + len(first_use._uses(domain))
    assert lines[-1] == f"CPU code is stored in {cache / 'compiled'}"
    before = stored(cache)
    assert before
    done = run(COMMANDS[domain], cache, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
    assert stored(cache) == before


@pytest.mark.slow
def test_the_reader_of_packets_is_compiled_for_a_cpu(tmp_path):
    warmed = run(["warm-up", "--device", "cpu", "--only", "alerts"], tmp_path, tmp_path)
    assert warmed.returncode == 0, warmed.stderr
    assert warmed.stdout.startswith("alerts packets")
    [name] = stored(tmp_path)
    assert name.startswith("read_record-")


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Two domains with a use each, of which one fails; nothing is compiled."""
    monkeypatch.setenv("SKYSIEVE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(first_use, "_uses", lambda domain: {"map": None})

    def ran(domain, use, device):
        return first_use.Warmed(f"{domain} {use}", device, 1.5, "ValueError: no" if domain == "sphere" else "")

    monkeypatch.setattr(first_use, "_run", ran)


def test_a_use_that_fails_does_not_stop_the_others(pretended):
    done = CliRunner().invoke(app, ["warm-up", "--device", "cpu", "--only", "sphere", "--only", "fstat"])
    assert done.exit_code == 1
    assert done.stderr == "skysieve: sphere map on cpu failed: ValueError: no\n"
    assert "fstat map" in done.stdout
    assert "1.5 s" in done.stdout
    quiet = CliRunner().invoke(app, ["warm-up", "--device", "cpu", "--only", "fstat", "--quiet"])
    assert (quiet.exit_code, quiet.output) == (0, "")
    with pytest.raises(RuntimeError, match="sphere map on cpu: ValueError: no"):
        skysieve.warm_up(["sphere", "fstat"], device="cpu")
    assert [one.name for one in skysieve.warm_up("fstat", device="cpu")] == ["fstat map"]


@pytest.mark.slow
def test_a_process_that_ends_with_an_error_is_reported():
    one = first_use._run("fstat", "nothing", "cpu")
    assert one.error == "KeyError: 'nothing'"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"domains": ["stars"]}, "domains='stars': expected some of periodogram"),
        ({"threads": 0}, "threads=0: expected at least 1"),
        ({"device": "gpu"}, "device='gpu'"),
    ],
)
def test_wrong_arguments_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        skysieve.warm_up(**given)


def test_warm_up_refuses_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = run(["warm-up", "--device", "cpu", "--only", "fstat"], tmp_path / "file" / "cache", tmp_path)
    assert done.returncode == 2
    assert "cannot store compiled code" in done.stderr
    assert "SKYSIEVE_CACHE_DIR" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_code_in_a_folder_that_cannot_be_written_is_loaded(warm):
    """After its use in `warm_up`, the command compiles nothing.  It gives no warning and writes no file, not even as
    root, who may write anywhere."""
    cache, other = warm / "cache", warm / "tmp"
    other.mkdir()
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    before = stored(cache)
    for folder in folders:
        folder.chmod(0o555)
    try:
        done = run(SHORT, cache, warm, TMPDIR=str(other))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert "compil" not in done.stderr
    assert "cannot" not in done.stderr
    assert stored(cache) == before
    assert stored(other) == []


@pytest.mark.slow
def test_without_a_home_the_code_is_stored_in_a_temporary_folder(warm, tmp_path):
    """The user has no entry in the password file and HOME is not set, as in some containers.

    Quick tests of its parts are in `test_jit` (a folder that cannot be made) and `test_measured` (no home).
    """
    code = (
        "import pathlib, sys\n"
        "def none(*_): raise RuntimeError('Could not determine home directory.')\n"
        "pathlib.Path.home = none\n"
        f"sys.argv = ['skysieve', *{SHORT!r}]\n"
        "from skysieve.cli import main\n"
        "main()\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    env = {n: v for n, v in env.items() if n not in ("HOME", "SKYSIEVE_CACHE_DIR", "XDG_CACHE_HOME")}
    for warnings in (1, 0):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=warm, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("cannot be stored") == warnings
    assert len(stored(tmp_path)) == 1


VANISHES = """
import shutil, sys
from pathlib import Path
import numpy as np
from skysieve.core.cpu.jit import njit

@njit
def twice(x):
    return 2 * x

@njit
def thrice(x):
    return 3 * x

cache = Path(sys.argv[1])
print(twice(1.0))
shutil.rmtree(cache)
print(twice(1), thrice(1.0), thrice(1))
print(len(list(cache.rglob("*.bin"))))
"""


@pytest.mark.slow
def test_a_folder_that_vanishes_is_made_again(tmp_path):
    script, cache = tmp_path / "vanishes.py", tmp_path / "cache"
    script.write_text(VANISHES)
    env = {**os.environ, "SKYSIEVE_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, script, cache], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2.0\n2 3.0 3\n3\n"
    assert done.stderr == ""

"""Install the packages of a recipe of this folder into a new virtual environment, and search a light curve there.

    python deploy/check.py environment.yml
    python deploy/check.py Containerfile.cpu

The packages are installed by pip from the package index.  Neither conda nor a container engine runs, so the script
does not check that conda-forge has these packages or that an image can be built.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
OTHER_NAMES = {"python-finufft": "finufft", "distributed": "dask[distributed]"}
"""Packages of conda-forge that have another name in the package index."""
NOT_PACKAGES = ("python", "pip")
LIGHT_CURVE = """import math, random
draw = random.Random(1)
times = sorted(draw.uniform(0, 40) for _ in range(200))
rows = [f"{t:.4f},{math.sin(2 * math.pi * t / 0.7):.4f}" for t in times]
open("star.csv", "w").write("mjd,mag\\n" + "\\n".join(rows))"""


def packages(recipe: Path, cuda: str = "12") -> list[list[str]]:
    """Return the arguments of each ``pip install`` that corresponds to a recipe."""
    text = recipe.read_text(encoding="utf-8")
    if recipe.suffix == ".yml":
        listed = re.findall(r"^  - ([A-Za-z0-9_.-]+)(\S*)$", text.split("dependencies:")[1], re.M)
        wanted = [OTHER_NAMES.get(name, name) + bound for name, bound in listed if name not in NOT_PACKAGES]
        return [wanted, ["--no-deps", "--no-build-isolation", str(HERE.parent)]]
    found = [re.findall(r'"([^"]+)"', line) for line in re.findall(r"^RUN pip install (.*)$", text, re.M)]
    source = [[a.replace("/opt/skysieve/source", str(HERE.parent)).replace("${CUDA}", cuda) for a in f] for f in found]
    if not source:
        raise SystemExit(f"{recipe}: no line 'RUN pip install' was found")
    return source


def main() -> None:
    """Check one recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=sorted(p.name for p in HERE.iterdir() if p.suffix != ".py" and p.is_file()))
    recipe = HERE / parser.parse_args().recipe
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "env", with_pip=True)
        binaries = Path(folder) / "env" / ("Scripts" if sys.platform == "win32" else "bin")
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SKYSIEVE_CACHE_DIR")}
        clean["SKYSIEVE_CACHE_DIR"] = str(Path(folder) / "cache")

        def run(*words: str) -> str:
            print("$", " ".join(words), flush=True)
            done = subprocess.run(
                [str(binaries / words[0]), *words[1:]],
                cwd=folder,
                env=clean,
                text=True,
                capture_output=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(
                    f"{recipe.name}: {' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
                )
            return done.stdout

        for arguments in packages(recipe):
            run("pip", "install", "--quiet", *arguments)
        print(run("skysieve", "info"))
        run("python", "-c", LIGHT_CURVE)
        found = run("skysieve", "period", "star.csv", "--min-period", "0.3", "--max-period", "5", "--device", "cpu")
        print(found)
        if not re.search(r"\b0\.(7|70000*|6999+)\d*\s", found):
            raise SystemExit(f"{recipe.name}: the period of 0.7 d was not found")
        print(f"{recipe.name}: as expected")


if __name__ == "__main__":
    main()

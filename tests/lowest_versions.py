"""Print the lowest version of every requirement in pyproject.toml, one ``name==version`` a line.

``make test-lowest`` installs these versions into a new environment and runs the tests there.  Packages with which tests
compare results (such as astropy and lalsuite) need newer versions of each other than our lower bounds.  Therefore only
the package's own requirements and the optional ones that its tests of files use are listed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("plot", "tables", "hdf5", "harmonic")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "hatchling", "pandas")
"""What the tests themselves need, taken from the extra ``test``."""
REQUIREMENT = re.compile(r"([A-Za-z0-9_-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def lowest(project: dict) -> dict[str, str]:
    """Lower bounds of a ``[project]`` table: the requirements, the extras of `EXTRAS` and the tools of `TOOLS`.

    Raises
    ------
    ValueError
        A requirement has no lower bound.
    """
    wanted = list(project["dependencies"])
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    wanted += [r for r in project["optional-dependencies"]["test"] if re.split(r"[\[<>=;]", r)[0] in TOOLS]
    found = {}
    for requirement in wanted:
        match = REQUIREMENT.match(requirement)
        if match is None:
            raise ValueError(f"requirement {requirement!r} of pyproject.toml has no lower bound (name>=version)")
        found[match[1]] = match[2]
    return found


if __name__ == "__main__":
    text = Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8")
    for name, version in lowest(tomllib.loads(text)["project"]).items():
        sys.stdout.write(f"{name}=={version}\n")

"""Each name with variants is written once: types, checks, the command line and the documentation agree with it."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from typer.testing import CliRunner

import skysieve.sphere
from skysieve.cli import app
from skysieve.sphere import contract
from skysieve.sphere.grids import grid, healpix
from skysieve.sphere.kernels import base, shapes
from skysieve.sphere.maps import smoothing

DOCS = Path(__file__).resolve().parents[2] / "docs"
WIDE = {"COLUMNS": "250", "TERMINAL_WIDTH": "250"}


@pytest.mark.parametrize(
    ("literal", "registry"),
    [
        (contract.Method, contract.METHODS),
        (contract.Compat, contract.COMPAT),
        (grid.Quadrature, grid.QUADRATURES),
        (smoothing.SmoothingQuadrature, smoothing.QUADRATURES),
        (smoothing.Masked, smoothing.MASKED),
        (smoothing.Flux, smoothing.FLUX),
    ],
)
def test_types_are_the_registries(literal, registry):
    assert get_args(literal) == tuple(registry)


@pytest.mark.parametrize(
    ("option", "registry"),
    [
        ("method", contract.METHOD_HELP), ("quadrature", smoothing.QUADRATURES), ("masked", smoothing.MASKED),
        ("flux", smoothing.FLUX),
    ],
)  # fmt: skip
def test_the_command_line_offers_and_explains_every_choice(option, registry, tmp_path):
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", CliRunner().invoke(app, ["smooth", "--help"], env=WIDE).output).split())
    assert "|".join(registry) in shown
    for name, meaning in registry.items():
        assert f"{name}: {meaning}" in shown
    args = ["smooth", str(tmp_path / "in.fits"), str(tmp_path / "out.fits"), "--fwhm", "1deg", f"--{option}", "no"]
    result = CliRunner().invoke(app, args, env=WIDE)
    assert result.exit_code == 2
    assert f"'no': expected one of {', '.join(registry)}" in result.output


def _concrete(base_class):
    for one in base_class.__subclasses__():
        if not inspect.isabstract(one):
            yield one
        yield from _concrete(one)


CLASSES = {k.__name__: k for k in _concrete(base.Kernel) if k is not shapes.Function}


def _missing(page: str, expected: list[str]) -> list[str]:
    """Those of the expected words that a page of the docs lacks."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [words for words in expected if words not in text]


def test_every_kernel_is_public_and_documented():
    public = {name: getattr(skysieve.sphere, name) for name in skysieve.sphere.__all__}
    assert {name for name, kernel in CLASSES.items() if public.get(name) is not kernel} == set()
    assert _missing("api.rst", [f"skysieve.sphere.{name}\n" for name in CLASSES]) == []
    assert _missing("sphere.md", [f"`{name}`" for name in CLASSES]) == []


def test_every_kernel_of_the_command_line_is_in_the_help_and_the_docs():
    shown = CliRunner().invoke(app, ["smooth", "--help"], env=WIDE).output
    assert [
        words for name, entry in shapes.KERNELS.items() for words in (f"--{name}", entry.help) if words not in shown
    ] == []
    assert _missing("sphere.md", [f"`--{name} {entry.metavar}`" for name, entry in shapes.KERNELS.items()]) == []


def test_a_kernel_becomes_an_option_by_its_entry(monkeypatch):
    """Nothing but the entry is needed."""
    import typer

    from skysieve.sphere.command import cli

    option = shapes.KernelOption("ANGLE", "Smooth with a new kernel.", shapes.TopHat)
    monkeypatch.setitem(shapes.KERNELS, "new-one", option)
    found = []

    def command(path: str, fields: str = "", **kernels: str | None) -> None:
        found.append(cli.read_kernel({name: kernels[name.replace("-", "_")] for name in shapes.KERNELS}))

    app = typer.Typer()
    app.command()(cli.with_kernels(command))
    assert CliRunner().invoke(app, ["in.fits", "--new-one", "2deg"]).exit_code == 0
    assert found[0].radius == pytest.approx(np.radians(2))
    with pytest.raises(ValueError, match=r"^--new-one '0deg': expected an angle"):
        cli.read_kernel({"new-one": "0deg"})


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("fwhm", "2deg", shapes.Gaussian(fwhm=np.radians(2))), ("tophat", "60 arcmin", shapes.TopHat(np.radians(1))),
        ("mexican-hat", "0.1rad", shapes.MexicanHat(0.1)), ("needlet", "3", shapes.Needlet(3)),
    ],
)  # fmt: skip
def test_kernels_are_read_from_text(name, text, expected):
    assert np.array_equal(shapes.KERNELS[name].read(text).window(50), expected.window(50))


@pytest.mark.parametrize("text", ["x", "-1", "2.5"])
def test_a_needlet_needs_a_whole_number(text):
    with pytest.raises(ValueError, match=f"j='{text}': expected a whole number"):
        shapes.KERNELS["needlet"].read(text)


MADE = {
    "Gaussian": lambda: shapes.Gaussian(0.1),
    "Window": lambda: shapes.Window(np.ones(9), np.ones(5), np.ones(4)),
    "Profile": lambda: shapes.Profile(np.linspace(0, 0.3, 9), np.linspace(1, 0, 9), normalize=True),
    "TopHat": lambda: shapes.TopHat(0.2),
    "MexicanHat": lambda: shapes.MexicanHat(0.1),
    "Needlet": lambda: shapes.Needlet(3),
}


def test_every_kernel_has_an_example():
    assert set(MADE) == set(CLASSES)


@pytest.mark.parametrize("name", MADE)
def test_kernels_pickle(name):
    kernel = MADE[name]()
    other = pickle.loads(pickle.dumps(kernel))
    theta = np.linspace(0, 0.5, 50)
    assert np.array_equal(other.profile(theta), kernel.profile(theta))
    assert np.array_equal(other.window(20), kernel.window(20))
    assert repr(other) == repr(kernel)


GRIDS = {
    "Healpix": lambda: grid.Healpix(4, nest=True),
    "ECP": lambda: grid.ECP(5, 8, poles=True),
    "GaussLegendre": lambda: grid.GaussLegendre(4, 8),
    "Rings": lambda: grid.Rings([0.5, 1.5], [4, 8]),
}


@pytest.mark.parametrize("kind", grid.GRIDS.values(), ids=lambda k: k.__name__)
def test_grids_pickle_and_are_documented(kind):
    made = GRIDS[kind.__name__]()
    a, b = made.table("none"), pickle.loads(pickle.dumps(made)).table("none")
    for name in ("theta", "n", "phi0", "start", "weight"):
        assert np.array_equal(getattr(a, name), getattr(b, name))
    assert f"skysieve.sphere.{kind.__name__}\n" in (DOCS / "api.rst").read_text(encoding="utf-8")


def test_the_registry_of_grids_is_complete():
    assert set(grid.GRIDS.values()) == set(_concrete(grid.Grid))


@pytest.mark.parametrize("registry", [smoothing.QUADRATURES, contract.METHOD_HELP], ids=["quadratures", "methods"])
def test_quadratures_and_methods_are_documented(registry):
    assert _missing("sphere.md", [f'| `"{name}"` | {text} |' for name, text in registry.items()]) == []


@pytest.mark.parametrize("nest", [False, True])
def test_orders_have_one_name_each_in_files(nest):
    assert healpix.ORDERINGS[healpix.ordering(nest)] is nest

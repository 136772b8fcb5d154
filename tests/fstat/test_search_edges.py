"""Searches that are interrupted at unlucky moments, and batches whose parameters differ."""

from __future__ import annotations

import numpy as np
import pytest
from astropy.io import fits
from astropy.table import Table
from tests.fstat.test_search import GRID, T0, TEMPLATES, Stopped, T, batches, run, same

from skysieve.fstat import AtomsBatch, search, synth_atoms
from skysieve.fstat.template_search.ledger import Ledger
from skysieve.fstat.template_search.result import SearchResult


@pytest.fixture(scope="module")
def whole():
    return run(topk=6, posteriors=2, band="f0", band_width=0.05)


def test_windows_in_another_order_keep_their_own_ledgers(whole, tmp_path):
    options = {"topk": 6, "posteriors": 2, "band": "f0", "band_width": 0.05, "checkpoint": tmp_path / "run.npz"}
    run(windows=("rect", "exp"), **options)
    same(whole, run(iter(()), windows=("exp", "rect"), **options))


def test_an_interrupt_within_a_chunk_counts_nothing_twice(whole, tmp_path, monkeypatch):
    options = {"topk": 6, "posteriors": 2, "band": "f0", "band_width": 0.05, "checkpoint": tmp_path / "run.npz"}
    keep, calls = Ledger.keep, []

    def interrupted(self, rows, posteriors):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        keep(self, rows, posteriors)

    with monkeypatch.context() as m:
        m.setattr(Ledger, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(batches(3), **options)
    same(whole, run(batches(3), **options))


def test_the_first_item_after_a_restart_is_no_first_item(tmp_path):
    """A strict search raises for its first item only, also if it was interrupted after that item."""
    short = synth_atoms(T0, 20 * T, seed=1)
    items = [AtomsBatch.stack(one[:1]) for one in (TEMPLATES[0], short, TEMPLATES[1])]
    path = tmp_path / "run.npz"

    def killed():
        yield from items  # one has been entered when all have been distributed
        raise Stopped

    with pytest.raises(Stopped):
        search(killed(), GRID, device="cpu", threads=1, checkpoint=path)
    found = search(items, GRID, device="cpu", threads=1, checkpoint=path)
    assert (found.n_templates, list(found.faults)) == (3, [1])


def test_batches_with_other_parameters():
    one, two = (TEMPLATES[i][0] for i in (0, 5))
    items = [AtomsBatch.stack([one], {"f0": [1.0]}), AtomsBatch.stack([two], {"f1": [2.0]})]
    found = search(items, GRID, device="cpu", windows={"rect": "rect", "exp": "exp"}, topk=1)
    assert set(found.columns()) >= {"f1", "max2F"}
    both = search(items, GRID, device="cpu", windows="rect").columns()
    assert sorted(both["f0"].tolist(), key=np.isnan)[0] == 1.0
    assert np.isnan(both["f0"]).sum() == np.isnan(both["f1"]).sum() == 1
    with pytest.raises(ValueError, match="band='f0' is not a parameter of template 1; its parameters are f1"):
        search(items, GRID, device="cpu", windows="rect", band="f0", band_width=1)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"statistic": [1.0]}, ValueError, "a search has a column of this name"),
        ({"number": [1]}, ValueError, "a search has a column of this name"),
        ({"who": np.array([None])}, TypeError, "expected numbers or text"),
    ],
)
def test_parameters_that_a_search_cannot_keep(params, error, message):
    with pytest.raises(error, match=message):
        AtomsBatch.stack([TEMPLATES[0][0]], params)


def test_a_column_that_one_window_lacks_is_nan_in_its_rows():
    rows = {"number": np.array([3]), "statistic": np.array([9.0]), "max2F": np.array([9.0])}
    ledgers = {"rect": Ledger(1), "exp": Ledger(1)}
    ledgers["rect"].keep(rows | {"f0": np.array([1.0])}, {})
    ledgers["exp"].keep(rows | {"f1": np.array([2.0])}, {})
    found = SearchResult(ledgers, 4, 0, {}, None, "max2F", None, None, 1.0, {}).columns()
    assert found["template"].tolist() == [3, 3]
    assert np.array_equal(found["f0"], [1.0, np.nan], equal_nan=True)
    assert np.array_equal(found["f1"], [np.nan, 2.0], equal_nan=True)


def test_an_empty_table_has_all_columns(tmp_path):
    """No template reaches the threshold, in one window or in all; also after a restart."""
    items = [AtomsBatch.stack([TEMPLATES[i][0]], {"name": [f"x{i}"], "number_of": [i]}) for i in (0, 5)]
    options = {"device": "cpu", "windows": ("rect", "exp")}
    whole = search(items, GRID, **options).columns()
    for checkpoint in (None, tmp_path / "c.npz", tmp_path / "c.npz"):
        none = search(items, GRID, threshold=1e9, checkpoint=checkpoint, **options)
        assert list(none.columns()) == list(whole)
        assert {len(column) for column in none.columns().values()} == {0}
        assert {name: c.dtype.kind for name, c in none.columns().items()} == {
            name: c.dtype.kind for name, c in whole.items()
        }
    top = whole["max2F"].max() - 1e-6
    one = search(items, GRID, threshold=top, **options).columns()
    assert one["number_of"].tolist() == [5]
    assert one["number_of"].dtype.kind == "i"


def test_names_that_are_not_ascii_are_in_fits_files(tmp_path):
    batch = AtomsBatch.stack([TEMPLATES[0][0]], {"file": ["ä.npz"]})
    search([batch], GRID, device="cpu", windows={"ä": "rect"}, facts={"data": "ä\n"}).save(tmp_path / "x.fits")
    assert Table.read(tmp_path / "x.fits", hdu=1)["file"].tolist() == ["ä.npz"]
    assert fits.getdata(tmp_path / "x.fits", r"HISTOGRAM_\xc4")["count"].sum() == 1
    assert r"data: \xe4\n" in list(fits.getheader(tmp_path / "x.fits", 1)["HISTORY"])

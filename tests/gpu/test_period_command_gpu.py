"""``skysieve period`` on a GPU: large files in pieces, the GPU started in a thread while the file is opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import skysieve
from skysieve.cli import app
from skysieve.periodogram.lightcurves import stream

pytestmark = pytest.mark.gpu

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

N = 3000
GRID = {"fmin": 0.16, "fmax": 12.0, "nf": 6000}
OPTIONS = [f"--{name}={value}" for name, value in GRID.items()]


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    counts = rng.integers(30, 120, N)
    n = int(counts.sum())
    t = 58000 + rng.integers(0, 120, n) + 0.3 * rng.random(n)
    y = np.sin(2 * np.pi * t / np.repeat(rng.uniform(0.2, 4, N), counts)) + rng.normal(0, 0.3, n)
    band = rng.choice(["g", "r"], n)
    return {"objectid": np.repeat(np.arange(N), counts), "mjd": t, "mag": y, "magerr": np.full(n, 0.3), "filter": band}


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("bands", ["none", "offsets"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_pieces_give_what_the_function_gives(
    lists: bool, bands: str, dtype: str, table: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FEWEST_ROWS", 0)
    monkeypatch.setattr(stream, "PIECE_ROWS", 40_000)
    path, out = tmp_path / "a.parquet", tmp_path / "p.parquet"
    offsets = np.append(0, np.cumsum(np.bincount(table["objectid"])))
    whole = pa.table(table)
    if lists:
        columns = {k: pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(v)) for k, v in table.items()}
        whole = pa.table(columns | {"objectid": np.arange(N)})
    parquet.write_table(whole, path, row_group_size=len(whole) // 7)
    command = ["period", str(path), *OPTIONS, "--multiband", bands, "--dtype", dtype, "--device", "cuda", "-q"]
    result = CliRunner().invoke(app, [*command, "-o", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    found = parquet.read_table(out)
    assert found.column("id").to_pylist() == list(range(N))
    options = {**GRID, "offsets": offsets, "n_peaks": 5, "return_power": False, "dtype": dtype, "device": "cuda"}
    t, y, dy = table["mjd"], table["mag"], table["magerr"]
    if bands == "none":
        expected = skysieve.lombscargle(t, y, dy, **options)
    else:
        expected = skysieve.lombscargle_multiband(t, y, table["filter"], dy, model=bands, nterms=1, **options)
    assert set(found.column("status").to_pylist()) == {"ok"}
    np.testing.assert_allclose(found.column("period").to_numpy(), expected.period, rtol=1e-7)
    np.testing.assert_allclose(found.column("power").to_numpy(), expected.best_power, rtol=1e-7)


def test_ctrl_c_keeps_what_was_searched(
    table: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FEWEST_ROWS", 0)
    monkeypatch.setattr(stream, "PIECE_ROWS", 40_000)
    execute, done = skysieve.LombScarglePlan.execute, []

    def stopped(self, t, y, dy, *, offsets, **options):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(len(offsets) - 1)
        return execute(self, t, y, dy, offsets=offsets, **options)

    monkeypatch.setattr(skysieve.LombScarglePlan, "execute", stopped)
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(table), path, row_group_size=10_000)
    command = [
        "period",
        str(path),
        *OPTIONS,
        "--multiband",
        "none",
        "--device",
        "cuda",
        "-o",
        str(tmp_path / "p.parquet"),
    ]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 130
    assert parquet.read_table(tmp_path / "p.partial.parquet").num_rows == sum(done)

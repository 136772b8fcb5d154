"""Periods of every star of a HATS catalogue, partition by partition, through LSDB and Dask.

Needs ``pip install 'skysieve[lsdb]'``.  A survey's catalogue is opened by ``lsdb.open_catalog``; here it is made.
"""

import lsdb
import nested_pandas
import numpy as np
import pandas as pd

import skysieve.lsdb

rng = np.random.default_rng(1)
n = 60
true = rng.uniform(0.3, 3, n)
stars = nested_pandas.NestedFrame({"star": np.arange(n), "ra": rng.uniform(0, 20, n), "dec": rng.uniform(-5, 5, n)})
nights = [np.sort(rng.uniform(0, 90, rng.integers(60, 120))) for _ in range(n)]
which = np.repeat(np.arange(n), [len(t) for t in nights])
mjd = np.concatenate(nights)
mag = 15 + 0.3 * np.sin(2 * np.pi * mjd / true[which]) + rng.normal(0, 0.02, len(mjd))
rows = pd.DataFrame({"mjd": 60000 + mjd, "mag": mag, "magerr": 0.02}, index=which)
made = lsdb.from_dataframe(stars.join_nested(rows, "lightcurve"), ra_column="ra", dec_column="dec", partition_rows=20)
made.write_catalog("stars")

catalogue = lsdb.open_catalog("stars")
periods = catalogue.map_partitions(skysieve.lsdb.periods, "lightcurve", fmin=0.1, fmax=5)
periods.write_catalog("periods")

found = lsdb.open_catalog("periods").compute().sort_values("star")
print(found[["star", "status", "period", "power", "fap"]].head())
right = np.abs(found["period"].to_numpy(float) / true - 1) < 0.01
print(f"{right.sum()} of {n} periods are within 1% of the true ones")
assert right.all()

"""Plans and results of `skysieve.dedispersion`, for the tests of the shape of the API."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np


def data():
    """Noise with one pulse of DM 60 at 1 s."""
    from skysieve.dedispersion import Filterbank, fake

    made = fake(nchan=32, duration=3, tsamp=1e-3, fch1=1500, foff=-8, dm=60, times=[1.0], width=8e-3, snr=25, seed=2)
    return Filterbank.from_array(made.read(), freqs=made.freqs, tsamp=made.tsamp, tstart=59000.0, source="J0001+01")


def dm_plan():
    from skysieve.dedispersion import plan

    return plan(data(), stages=[(0, 50, 10, 1), (50, 100, 10, 2)])


def search_plan():
    from skysieve.dedispersion import SearchPlan

    fb = data()
    return SearchPlan(fb, dm_plan(), threads=1), lambda plan: plan.execute(fb)


def dedispersion_plan():
    from skysieve.dedispersion import DedispersionPlan

    fb = data()
    return DedispersionPlan(fb, dm_plan(), threads=1), lambda plan: plan.execute(fb)


def candidates():
    plan, execute = search_plan()
    with plan:
        return execute(plan), ".npz"


def dedispersed():
    plan, execute = dedispersion_plan()
    with plan:
        return execute(plan)[1], ".npz"


def one_cutout():
    from skysieve.dedispersion import cutout

    return cutout(data(), dm=60, time=1.0, width=8e-3, snr=25), ".npz"


def campaign():
    from skysieve.dedispersion import Noise, completeness

    receiver = Noise(nchan=32, fch1=1500, foff=-8, tsamp=1e-3, duration=6)
    return completeness(receiver, np.arange(0, 100, 5.0), n=2, snr=[20], dm=[50.0], threads=1), ".npz"


PLANS = {"search": search_plan, "dedispersion": dedispersion_plan}
RESULTS = {
    "candidates": candidates,
    "dedispersed": dedispersed,
    "cut-out": one_cutout,
    "completeness": campaign,
    "plan of DMs": lambda: (dm_plan(), ".json"),
}


def describe(plan):
    return plan.describe()


def same(a, b):
    """Whether two results, or lists of them, are equal in all but the time that they took."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if is_dataclass(a):
        return all(
            same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.name not in ("seconds", "searching")
        )
    return np.array_equal(a, b, equal_nan=isinstance(a, float | np.ndarray) and np.asarray(a).dtype.kind == "f")

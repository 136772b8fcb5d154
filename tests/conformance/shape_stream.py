"""The plan and the result of live streams, for `test_api_shape`."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import numpy as np


@cache
def _data():
    from skysieve.dedispersion import fake

    return fake(
        nchan=16, duration=4, tsamp=1e-3, fch1=1500, foff=-16, dm=100, times=[1.5, 3.0], width=8e-3, snr=25, seed=1
    )


def _search():
    from skysieve.dedispersion.stream import StreamSearch

    plan = StreamSearch(_data().observation, np.arange(0, 201, 20.0), block=1.1, threads=1)
    x = _data().read().T
    return plan, lambda plan: plan.execute((at, x[at : at + 700]) for at in range(0, len(x), 700))


def _candidates():
    plan, execute = _search()
    with plan:
        found = execute(plan)
    assert len(found) == 2
    return found, ".npz"


def describe(plan):
    return plan.describe()


def same(a, b):
    one, other = ({**x.columns, **{f.name: getattr(x.events, f.name) for f in fields(x.events)}} for x in (a, b))
    return (
        one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)
        and np.array_equal(a.group, b.group)
    )  # fmt: skip


PLANS = {"StreamSearch": _search}
RESULTS = {"StreamCandidates": _candidates}

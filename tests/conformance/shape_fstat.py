"""The F-statistic's plans and results for `test_api_shape`."""

from __future__ import annotations

import numpy as np

T = 1800
T0 = 1_000_000_000


def atoms(seed=0):
    from skysieve.fstat import synth_atoms

    return synth_atoms(T0, 12 * T, seed=seed)


def describe(plan):
    return plan.describe(atoms())


def map_plan(**options):
    from skysieve.fstat import Grid, TransientPlan

    grid = Grid(t0=T0, t0_band=4 * T, tau=2 * T, tau_band=3 * T)
    return TransientPlan(grid, device="cpu", threads=1, **options), lambda plan: plan.execute(atoms())


def search_plan():
    from skysieve.fstat import SearchPlan

    plan = SearchPlan(windows=("rect", "exp"), topk=2, posteriors=1, device="cpu", threads=1)
    return plan, lambda plan: plan.execute([atoms(seed) for seed in range(3)])


def result_of(make):
    plan, execute = make()
    with plan:
        return execute(plan)


PLANS = {
    "map rect": map_plan,
    "map exp float32": lambda: map_plan(window="exp", dtype="float32"),
    "map lalpulsar": lambda: map_plan(compat="lalpulsar"),
    "search": search_plan,
}
RESULTS = {
    "map": lambda: (result_of(map_plan), ".npz"),
    "map lalpulsar": lambda: (result_of(lambda: map_plan(compat="lalpulsar")), ".npz"),
    "search": lambda: (result_of(search_plan), ".npz"),
}


def same(a, b):
    """Equality of what is stored of two results, bit for bit."""
    from skysieve.fstat.archive import pack

    x, y = pack(a), pack(b)
    if type(a) is not type(b) or x.keys() != y.keys():
        return False
    return all(
        np.asarray(v).dtype == np.asarray(y[name]).dtype and np.asarray(v).tobytes() == np.asarray(y[name]).tobytes()
        for name, v in x.items()
    )

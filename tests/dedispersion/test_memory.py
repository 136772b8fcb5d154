"""Files far larger than the memory budget: peak memory of a search, measured by the operating system."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from skysieve.dedispersion import Filterbank, write_fil

SCRIPT = """
import json, sys
import numpy as np
from skysieve.dedispersion import Filterbank, plan, search
with Filterbank.open(sys.argv[1]) as fb:
    p = plan(fb, stages=[(0, 2, 1, 1), (2, 6, 2, 4)])
    found = search(fb, p, memory=sys.argv[2], threads=2)
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps({"peak": peak, "events": len(found.events), "samples": fb.nsamp}))
"""


def searched(tmp_path, size, memory):
    """Search a sparse file of zeros in another process; return facts about the search."""
    path = tmp_path / "sparse.fil"
    write_fil(path, Filterbank.from_array(np.zeros((1024, 1), np.uint8), fch1=1500, foff=-0.1, tsamp=64e-6))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1024 + size)
    done = subprocess.run([sys.executable, "-c", SCRIPT, path, memory], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="the process's own peak is read from /proc; getrusage gives that of its parent too"
)
def test_a_file_larger_than_the_budget(tmp_path):
    """700 MB in 300 MiB: the interpreter, its libraries and compiled kernels take 200 to 300 MiB beside it.

    The quick test of the bound on NumPy's memory is `test_memory_keeps_within_its_bound`, in `tests/conformance`.
    """
    facts = searched(tmp_path, 7 * 10**8 // 1024 * 1024, "300 MiB")
    assert facts == {"peak": facts["peak"], "events": 0, "samples": 683593}
    assert facts["peak"] < 600 * 2**20


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="the process's own peak is read from /proc; getrusage gives that of its parent too"
)
def test_24_gb_in_2_gib(tmp_path):
    facts = searched(tmp_path, 24 * 10**9 // 1024 * 1024, "1.6 GiB")
    assert facts["samples"] == 23437500
    assert facts["peak"] < 2 * 2**30

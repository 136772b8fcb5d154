"""A compiled reader of the light curves in binary Avro records.

A schema is a list of nodes (`schemas.Program`).  The record is read once; values that are not needed are skipped.
"""

from __future__ import annotations

import numba
import numpy as np

from skysieve.alerts.schemas import BOOLEAN, BYTES, DOUBLE, FIXED, FLOAT, MAP, NEW_ROW, RECORD, UNION, WHOLE
from skysieve.alerts.surveys import FIELDS, MISSING, OBJECT
from skysieve.core.cpu.jit import njit

__all__ = ["ERRORS", "FULL", "read_record"]

FIRST_REAL = FIELDS["t"]
DEPTH = 64
FULL = 1
"""There is no room for a further row."""
ERRORS = {
    FULL: "has too many rows",
    2: "ends in the middle of a value",
    3: "holds a whole number of more than ten bytes",
    4: "holds a negative length",
    5: "names a branch of a union that the schema does not have",
    6: "is nested too deeply",
    7: "holds a longer list than fits into it",
    8: "holds a word of more than four bytes where the name of a band is expected",
}
"""Messages on a damaged record, by the number that `read_record` returns."""
READ_ONLY = numba.types.Array(numba.uint8, 1, "C", readonly=True)
_I64 = numba.int64


@njit
def _whole(data, at, end):
    """Read a whole number of variable length; return it and the position after it, or minus the number of an error."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        byte = np.uint64(data[at])
        at += 1
        if shift > np.uint64(63):
            return np.int64(0), -3
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), -2


@njit(
    numba.types.UniTuple(_I64, 3)(
        READ_ONLY, _I64, _I64, _I64[:, ::1], _I64[::1], _I64[:, ::1], numba.float64[:, ::1], numba.uint8[::1], _I64,
        _I64[::1],
    ),
    nogil=True,
)  # fmt: skip
def read_record(data, at, end, nodes, children, whole, real, kinds, row, found):
    """Read the record at ``data[at:end]`` into rows from `row` on.

    Parameters
    ----------
    data : uint8 array
    at, end : int
    nodes, children : int64 arrays
        The schema.
    whole, real, kinds : arrays, one entry a row
        Filled: whole numbers and words of at most four bytes; real numbers; the kind.
    row : int
    found : int64 array, shape (3,)
        Filled with the object's identifier: 0 (none), or 1 and a number, or 2 and the position and length of a text.

    Returns
    -------
    at, row, error : int
        The position after the record, the number of rows, and a key of `ERRORS` or 0.
    """
    frame, step = np.empty(DEPTH, np.int64), np.empty(DEPTH, np.int64)
    depth, node = 0, 0
    budget = 64 * (end - at) + 1_000_000  # of steps: a list of values without bytes could be endless
    found[0] = 0
    while True:
        kind, goal = nodes[node, 0], nodes[node, 3]
        budget -= 1
        if budget < 0:
            return at, row, 7
        if kind == UNION:
            value, at = _whole(data, at, end)
            if at < 0:
                return at, row, -at
            if value < 0 or value >= nodes[node, 2]:
                return at, row, 5
            node = children[nodes[node, 1] + value]
            continue
        if kind == WHOLE:
            value, at = _whole(data, at, end)
            if at < 0:
                return at, row, -at
            if goal == OBJECT:
                found[0], found[1] = 1, value
            elif goal >= FIRST_REAL:
                real[row, goal - FIRST_REAL] = value
            elif goal >= 0:
                whole[row, goal] = value
        elif kind in (FLOAT, DOUBLE):
            size = 4 if kind == FLOAT else 8
            if at + size > end:
                return at, row, 2
            if goal >= FIRST_REAL:
                number = data[at : at + size]
                if kind == FLOAT:
                    real[row, goal - FIRST_REAL] = number.view(np.float32)[0]
                else:
                    real[row, goal - FIRST_REAL] = number.view(np.float64)[0]
            at += size
        elif kind == BOOLEAN:
            at += 1
            if at > end:
                return at, row, 2
        elif kind in (BYTES, FIXED):
            value = nodes[node, 2]
            if kind == BYTES:
                value, at = _whole(data, at, end)
                if at < 0:
                    return at, row, -at
                if value < 0:
                    return at, row, 4
            if value > end - at:
                return at, row, 2
            if goal == OBJECT:
                found[0], found[1], found[2] = 2, at, value
            elif goal >= 0:
                if value > 4:
                    return at, row, 8
                word = 0
                for i in range(value):
                    word |= np.int64(data[at + i]) << (8 * i)
                whole[row, goal] = word
            at += value
        elif kind >= RECORD and kind != UNION:
            if depth == DEPTH:
                return at, row, 6
            if goal >= NEW_ROW:
                if row == len(whole):
                    return at, row, FULL
                whole[row] = MISSING
                real[row] = np.nan
                kinds[row] = goal - NEW_ROW
            frame[depth], step[depth] = node, 0
            depth += 1
        while True:  # the next node
            if depth == 0:
                return at, row, 0
            inside = frame[depth - 1]
            if nodes[inside, 0] == RECORD:
                if step[depth - 1] < nodes[inside, 2]:
                    node = children[nodes[inside, 1] + step[depth - 1]]
                    step[depth - 1] += 1
                    break
                row += nodes[inside, 3] >= NEW_ROW
                depth -= 1
                continue
            if step[depth - 1] == 0:  # a block of a list: its length, negative if its size in bytes follows
                value, at = _whole(data, at, end)
                if at < 0:
                    return at, row, -at
                if value < 0:
                    value = -value
                    size, at = _whole(data, at, end)
                    if at < 0:
                        return at, row, -at
                    if value < 0:
                        return at, row, 4
                if value == 0:
                    depth -= 1
                    continue
                step[depth - 1] = value
            step[depth - 1] -= 1
            if nodes[inside, 0] == MAP:
                value, at = _whole(data, at, end)
                if at < 0:
                    return at, row, -at
                if value < 0:
                    return at, row, 4
                if value > end - at:
                    return at, row, 2
                at += value
            node = children[nodes[inside, 1]]
            break

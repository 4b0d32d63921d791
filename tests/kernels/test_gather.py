"""Rows picked by indices that are computed."""

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels._cpu import EXTERNAL, DataFault, Plan

from .one import one


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 4, 1), (2, 9, 70_000), (4, 3, 16)])
def test_gather_takes_rows_as_numpy_does(
    kind: type[np.int32 | np.int64], threads: int, shape: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(5)
    outer, rows, width = shape
    x = rng.integers(0, 256, shape, np.uint8)
    indices: NDArray[np.int32 | np.int64] = rng.integers(-rows, rows, 11).astype(kind)
    got = one(
        "gather",
        [x, indices],
        (outer, 11, width),
        np.uint8,
        outer=outer,
        rows=rows,
        width=width,
        count=11,
        itemsize=indices.itemsize,
        threads=threads,
    )
    assert np.array_equal(got, x[:, indices])


@pytest.mark.parametrize("index", [4, -5, 2**40, -(2**40)])
def test_an_index_outside_of_the_axis_is_a_fault_and_the_plan_runs_again(index: int) -> None:
    plan = Plan(0, [(EXTERNAL, 4), (EXTERNAL, 16), (EXTERNAL, 2)])
    plan.gather("pick", 0, 1, 2, outer=1, rows=4, width=1, count=2)
    x, y = np.array([5, 6, 7, 8], np.uint8), np.zeros(2, np.uint8)
    with pytest.raises(DataFault, match="pick: an index is outside of its axis"):
        plan.run([x, np.array([0, index]), y])
    plan.run([x, np.array([3, -3]), y])
    assert y.tolist() == [8, 6]


def test_gather_names_what_does_not_fit() -> None:
    plan = Plan(0, [(EXTERNAL, 4), (EXTERNAL, 16), (EXTERNAL, 2)])
    with pytest.raises(ValueError, match="pick: y is buffer 2 of 2 bytes, 4 are needed"):
        plan.gather("pick", 0, 1, 2, outer=1, rows=2, width=2, count=2)
    with pytest.raises(ValueError, match="indices of 2 bytes"):
        plan.gather("pick", 0, 1, 2, outer=1, rows=2, width=1, count=2, itemsize=2)


def test_checksums_tell_any_change_of_one_byte() -> None:
    from qir._kernels._cpu import checksum

    data = bytearray(np.random.default_rng(1).integers(0, 256, 203, np.uint8).tobytes())
    whole = checksum(bytes(data))
    assert whole == checksum(bytes(data))
    found = {whole, checksum(bytes(data[:-1])), checksum(bytes(data) + b"\0"), checksum(b"")}
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        found.add(checksum(bytes(data)))
        data[at] ^= 1 << at % 8
    assert len(found) == len(data) + 4

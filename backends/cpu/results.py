"""The arrays that a run writes its results to: new ones, or the caller's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from qir.errors import DataError

Tensor: TypeAlias = NDArray[np.generic]


def result_arrays(
    expected: Mapping[str, tuple[DTypeLike, tuple[int, ...]]],
    given: Mapping[str, object],
    inputs: Iterable[Tensor],
) -> dict[str, Tensor]:
    """Returns an array for each result; those that are given are written to.

    Raises DataError for one of another type or shape, in pieces, or in memory that a run reads.
    """
    for name in given:
        if name not in expected:
            raise DataError(f"no result {name!r}; the program has {', '.join(expected)}")
    arrays: dict[str, Tensor] = {}
    taken = list(inputs) if given else []
    for name, (kind, shape) in expected.items():
        array = given.get(name)
        if array is None:
            arrays[name] = np.empty(shape, kind)
            continue
        if not isinstance(array, np.ndarray):
            raise DataError(f"result {name!r}: {type(array).__name__} is no array")
        if array.dtype != np.dtype(kind) or array.shape != tuple(shape):
            wanted = f"{np.dtype(kind)} {list(shape)}"
            raise DataError(f"result {name!r} is {array.dtype} {list(array.shape)}, not {wanted}")
        if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
            raise DataError(f"result {name!r} is an array in pieces, or one that is read-only")
        if any(np.may_share_memory(array, other) for other in taken):
            raise DataError(f"result {name!r} shares memory with an input or another result")
        taken.append(array)
        arrays[name] = array
    return arrays

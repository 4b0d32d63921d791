"""How far the results of two runs are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from qir.errors import DataError
from qir.ir.graph import Graph
from qir.ir.quantized_ops import read


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """One output of two runs; `to_json` has the keys of the fields and `equal`."""

    name: str
    elements: int
    differ: int
    """How many elements differ in their bytes."""
    largest: float
    """The largest difference of two elements; NaN where one of the two is NaN or infinite."""
    codes: float | None
    """The largest difference in integers; None where the output is not quantized nor comes from
    any."""

    @property
    def equal(self) -> bool:
        """Whether the bytes are equal."""
        return self.differ == 0

    def to_json(self) -> dict[str, object]:
        """Returns the fields as JSON takes them."""
        largest = self.largest if np.isfinite(self.largest) else None
        return {**asdict(self), "largest": largest, "equal": self.equal}


Results = Mapping[str, NDArray[np.generic]]


def compare(graph: Graph, a: Results, b: Results) -> tuple[OutputDifference, ...]:
    """Each output of one run against the same of another.

    Raises DataError where the two have other outputs, shapes or element types.
    """
    if set(a) != set(b):
        raise DataError(f"the runs give other outputs: {', '.join(a)} and {', '.join(b)}")
    return tuple(_difference(graph, name, a[name], b[name]) for name in a)


def _difference(
    graph: Graph, name: str, a: NDArray[np.generic], b: NDArray[np.generic]
) -> OutputDifference:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise DataError(
            f"output {name}: one run gives {a.dtype} {list(a.shape)}, "
            f"the other {b.dtype} {list(b.shape)}"
        )
    if a.dtype == object:
        pairs = zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)
        others = sum(not alike(x, y) for x, y in pairs)
        return OutputDifference(name, a.size, others, float("inf") if others else 0.0, None)
    rows_a, rows_b = _bytes(a), _bytes(b)
    differ = np.any(rows_a != rows_b, axis=1).reshape(a.shape)
    count = int(differ.sum())
    if not count:
        return OutputDifference(name, a.size, 0, 0.0, 0.0 if _scale(graph, name) else None)
    with np.errstate(all="ignore"):
        gaps = np.abs(a[differ].astype(np.float64) - b[differ].astype(np.float64))
    largest = float(gaps.max())
    scale = _scale(graph, name)
    return OutputDifference(
        name, a.size, count, largest, None if scale is None else largest / scale
    )


def alike(a: object, b: object) -> bool:
    """Returns whether two texts, lists or the like are the same, tensors within them bit by bit."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype != object:
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    return bool(_text(a) == _text(b))


def _text(thing: object) -> object:
    return thing.decode(errors="surrogateescape") if isinstance(thing, bytes) else thing


def _bytes(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    array = np.ascontiguousarray(array)
    return array.reshape(-1, 1).view(np.uint8).reshape(array.size, array.dtype.itemsize)


def _scale(graph: Graph, name: str) -> float | None:
    """What one integer is worth in an output: 1 where it is quantized, else what it was
    read with."""
    value = graph.outputs.get(name)
    if value is None:
        return None
    if value.type.quant is not None or value.type.dtype.is_integer:
        return 1.0
    quant = read(value)
    if quant is None or quant.dynamic or np.size(quant.scales()) != 1:
        return None
    return float(np.asarray(quant.scales()).reshape(-1)[0])

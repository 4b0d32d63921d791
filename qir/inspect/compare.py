"""How far the results of two runs are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.errors import DataError
from qir.inspect.float_sums import depends_on_float_sums
from qir.ir.graph import Graph
from qir.ir.quantized_ops import source_quant_type

TOLERANCE = 1e-4
"""Of the largest value: how far two right results of float networks may be apart."""
STEPS = 4
"""Results of fewer bits may be so many units in the last place of the largest value apart."""


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
    relative: float = 0.0
    """The largest difference, as a share of the largest finite value; NaN where `largest` is."""
    tolerance: float | None = None
    """How large `relative` may be; None where bytes must be equal: results of integers, and floats
    that no order of sums changes."""

    @property
    def equal(self) -> bool:
        """Returns whether the bytes are equal."""
        return self.differ == 0

    @property
    def agree(self) -> bool:
        """Returns whether the bytes are equal, or the floats as near as the tolerance asks."""
        return self.equal or (self.tolerance is not None and self.relative <= self.tolerance)

    def to_json(self) -> dict[str, object]:
        """The fields as JSON takes them."""
        largest, relative = (x if np.isfinite(x) else None for x in (self.largest, self.relative))
        fields = {**asdict(self), "largest": largest, "relative": relative}
        return {**fields, "equal": self.equal, "agree": self.agree}


Results = Mapping[str, NDArray[np.generic]]


def compare(
    graph: Graph,
    a: Results,
    b: Results,
    *,
    computed: Graph | None = None,
    tolerance: float | None = None,
) -> tuple[OutputDifference, ...]:
    """Each output of one run against the same of another.

    `computed` is the graph as it ran, where it was grouped. Floats that sums in an order of their
    own lead to may differ by `tolerance` of the largest value, `TOLERANCE` unless given. Raises
    DataError where the two have other outputs, shapes or element types.
    """
    if set(a) != set(b):
        raise DataError(f"the runs give other outputs: {', '.join(a)} and {', '.join(b)}")
    computed_graph = graph if computed is None else computed
    return tuple(
        _difference(graph, name, a[name], b[name], computed_graph, tolerance) for name in a
    )


def _difference(
    graph: Graph,
    name: str,
    a: NDArray[np.generic],
    b: NDArray[np.generic],
    computed_graph: Graph,
    tolerance: float | None,
) -> OutputDifference:
    if a.shape != b.shape or a.dtype != b.dtype:
        raise DataError(
            f"output {name}: one run gives {a.dtype} {list(a.shape)}, "
            f"the other {b.dtype} {list(b.shape)}"
        )
    # Texts and lists are equal or not: any difference counts as infinite.
    if a.dtype == object:
        pairs = zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)
        differing = sum(not values_agree(x, y) for x, y in pairs)
        distance = float("inf") if differing else 0.0
        return OutputDifference(name, a.size, differing, distance, None, distance)
    allowed = _tolerance(computed_graph, name, a.dtype, tolerance)
    rows_a, rows_b = _bytes(a), _bytes(b)
    differ = np.any(rows_a != rows_b, axis=1).reshape(a.shape)
    count = int(differ.sum())
    scale = _scale(graph, name)
    if not count:
        return OutputDifference(name, a.size, 0, 0.0, 0.0 if scale else None, tolerance=allowed)
    with np.errstate(all="ignore"):
        first = a.astype(np.float64)
        gaps = np.abs(first[differ] - b[differ].astype(np.float64))
        largest_value = np.abs(first).max(initial=0.0, where=np.isfinite(first))
        largest = float(gaps.max())
        relative = (
            float(np.divide(largest, largest_value)) if largest else 0.0
        )  # zeros of either sign
    in_steps = None if scale is None else largest / scale
    return OutputDifference(name, a.size, count, largest, in_steps, relative, allowed)


def _tolerance(
    graph: Graph, name: str, dtype: np.dtype[np.generic], stated: float | None
) -> float | None:
    """Returns how far an output's floats may be apart; None where bytes must be equal."""
    value = graph.outputs.get(name)
    if value is None or not value.type.dtype.is_float or not depends_on_float_sums(value):
        return None
    unit = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    return max(TOLERANCE, STEPS * unit) if stated is None else stated


def values_agree(a: object, b: object) -> bool:
    """Returns whether two texts, lists or the like are the same, tensors within them bit by bit."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(values_agree, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(values_agree(a[key], b[key]) for key in a)
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
    quant = source_quant_type(value)
    if quant is None or quant.dynamic or np.size(quant.scales()) != 1:
        return None
    return float(np.asarray(quant.scales()).reshape(-1)[0])

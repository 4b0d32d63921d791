"""What QIR says one kernel of a runtime gives: a graph of one node or chain, run by a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array as Stored
from qir.ir.types import DeclaredBounds, QuantType, TensorType, uniform
from qir.reference.interpreter import run
from tests.counting import note

Array = NDArray[Any]
F = np.float32
Number = float | np.floating


def ranged(
    storage: str,
    scale: Number | Array,
    low: Number | Array,
    high: Number | Array,
    level: float | None = None,
    *,
    axis: int | None = None,
    bounds: tuple[int, int] | None = None,
    plus: Number | None = None,
    zero: int = 0,
) -> QuantType:
    """Returns a type that declares a range."""
    kind = uniform(dtype(storage), np.asarray(scale, F), zero, axis=axis, bounds=bounds)
    lows, highs = (tuple(float(F(v)) for v in np.atleast_1d(bound)) for bound in (low, high))
    offset = None if plus is None else (float(F(plus)),)
    return replace(kind, declared=DeclaredBounds(lows, highs, level), plus=offset)


@dataclass(frozen=True)
class Held:
    """An operand: integers and their type, or floats."""

    data: Array
    kind: QuantType | None = None


@dataclass(frozen=True)
class Then:
    """A later stage of a kernel."""

    op: str
    flow: str = "x"
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    operands: Mapping[str, Held] = field(default_factory=dict)


def predicted(
    profile: str,
    op: str,
    operands: Mapping[str, Held],
    result: QuantType | None,
    shape: Sequence[int],
    attrs: Mapping[str, Attr] | None = None,
    then: Sequence[Then] = (),
) -> Array:
    """Returns the integers (or floats, where the result has no type) that a profile foresees."""
    graph = Graph("one", profile=profile)
    values = {slot: _placed(graph, operand) for slot, operand in operands.items()}
    kind = TensorType(tuple(shape), dtype("f32") if result is None else result)
    if not then:
        node = graph.add(op, values, dict(attrs or {}), types=[kind])
    else:
        stages = [Stage(op, spec(op).complete_attrs(dict(attrs or {})), tuple(values))]
        for i, stage in enumerate(then, 1):
            extra = {f"{i}.{s}": _placed(graph, operand) for s, operand in stage.operands.items()}
            attributes = spec(stage.op).complete_attrs(dict(stage.attrs))
            stages.append(Stage(stage.op, attributes, tuple(stage.operands), flow=stage.flow))
            values |= extra
        node = graph.add_chain(stages, values, kind)
    graph.add("output", {"y": node.result})
    return np.asarray(run(graph, {})["y"])


def _placed(graph: Graph, operand: Held) -> Value:
    kind = TensorType(operand.data.shape, operand.kind or dtype_of(operand.data))
    return graph.constant(Stored(operand.data, kind))


@dataclass
class Count:
    """How many elements were compared, how many differ, and how rich in ties and ends they are."""

    total: int = 0
    wrong: int = 0
    most: float = 0
    seen: int = 0
    ties: int = 0
    low: int = 0
    high: int = 0
    where: str = ""

    def add(self, predicted: Array, actual: Array, where: object) -> None:
        message = f"{where}: {predicted.dtype}{predicted.shape} for {actual.dtype}{actual.shape}"
        assert (predicted.dtype, predicted.shape) == (actual.dtype, actual.shape), message
        distances = np.abs(predicted.astype(np.float64) - actual.astype(np.float64))
        self.total += distances.size
        note(predicted, actual)
        self.wrong += int((distances > 0).sum())
        if distances.any():
            self.where = self.where or str(where)
            self.most = max(self.most, float(distances.max()))

    def see(self, steps: NDArray[np.floating], low: int, high: int) -> None:
        """Counts ties and ends of results in steps of the integers, before they are rounded."""
        self.seen += steps.size
        self.ties += int((np.abs(steps - np.floor(steps) - 0.5) < 1e-3).sum())
        self.low += int((steps < low - 0.5).sum())
        self.high += int((steps > high + 0.5).sum())

    def rich(self, least: float = 0.05) -> None:
        """At least 5 % ties, and 5 % beyond either end."""
        shares = [n / self.seen for n in (self.ties, self.low, self.high)]
        assert min(shares) >= least, f"ties, low and high: {shares}"

    def holds(self, claim: str) -> None:
        """Holds to a claim, `exact` or `within:steps:rate`."""
        assert self.total, "nothing was compared"
        message = f"{self.wrong} of {self.total} differ by up to {self.most}, first at {self.where}"
        if claim == "exact":
            assert not self.wrong, message
            return
        word, steps, rate = claim.split(":")
        assert word == "within", claim
        assert self.most <= int(steps), message
        assert self.wrong <= float(rate) * self.total, message

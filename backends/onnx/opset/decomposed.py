"""Ops that ONNX has as one operator since some set, by operators of the sets before.

So a model keeps the operator set of its source. Float values of 16 bits are computed as f32, as the
one operator does, and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qir.ir.dtype import F32, DType
from qir.ledger import Change

from ..writer.elements import number
from ..writer.rows import Row
from ..writer.writer import STEP, OnnxWriter, Wire, Work

_AXES_ARE_INPUTS = 18
"""The first operator set whose ReduceMean and ReduceMax take axes as an operand."""


@dataclass(frozen=True, slots=True)
class OperatorSequence:
    """Writes one operator after the other, all in float of one type."""

    writer: OnnxWriter
    work: Work
    kind: DType

    def held(self, value: float) -> str:
        return self.writer.constant(np.array(value, self.kind.carrier), f"{self.work.out}_number")

    def listed(self, *values: int) -> str:
        return self.writer.constant(np.array(values, np.int64), f"{self.work.out}_sizes")

    def do(self, op: str, *operands: str, **attrs: Wire) -> str:
        out = self.writer.fresh(f"{self.work.out}_{op}")
        self.writer.emit(op, operands, [out], attrs)
        return out

    def reduced(self, op: str, x: str, axes: tuple[int, ...]) -> str:
        if self.writer.opset < _AXES_ARE_INPUTS:
            return self.do(op, x, axes=axes)
        return self.do(op, x, self.listed(*axes))

    @property
    def over(self) -> tuple[int, ...]:
        """The axes that a norm goes over."""
        rank = self.work.kind.rank
        return tuple(range(self.work.whole("axis") % rank, rank))


_Last: TypeAlias = "tuple[str, ...]"
"""The operator that makes the result, and its operands."""
_Say: TypeAlias = "Callable[[OperatorSequence, dict[str, str]], _Last]"


def since(first: int, own: Row, say: _Say) -> Row:
    """Returns the one operator from a set on, and what is said instead in those before."""

    def row(writer: OnnxWriter, work: Work, ins: dict[str, str]) -> None:
        if writer.opset >= first:
            own(writer, work, ins)
            return
        said = f"{work.op}, which opset {writer.opset} has not, by operators that each round"
        writer.ledger.add(Change.REGROUPED, STEP, work.out, said)
        kind = work.kind.dtype
        if kind.bits > 16:
            op, *operands = say(OperatorSequence(writer, work, kind), ins)
            writer.emit(op, operands, [work.out], origins=work.origins)
            return
        steps = OperatorSequence(writer, work, F32)
        wide = {slot: steps.do("Cast", name, to=number(F32)) for slot, name in ins.items()}
        made = steps.do(*say(steps, wide))
        writer.emit("Cast", [made], [work.out], {"to": number(kind)}, origins=work.origins)

    return row


def _gelu(steps: OperatorSequence, ins: dict[str, str]) -> _Last:
    x = ins["x"]
    if steps.work.attrs["approximate"] == "tanh":
        cube = steps.do("Mul", steps.do("Mul", x, x), x)
        inner = steps.do("Add", x, steps.do("Mul", cube, steps.held(0.044715)))
        curve = steps.do("Tanh", steps.do("Mul", inner, steps.held(math.sqrt(2 / math.pi))))
    else:
        curve = steps.do("Erf", steps.do("Div", x, steps.held(math.sqrt(2))))
    wide = steps.do("Mul", x, steps.do("Add", curve, steps.held(1.0)))
    return "Mul", wide, steps.held(0.5)


def _mish(steps: OperatorSequence, ins: dict[str, str]) -> _Last:
    return "Mul", ins["x"], steps.do("Tanh", steps.do("Softplus", ins["x"]))


def _hard_swish(steps: OperatorSequence, ins: dict[str, str]) -> _Last:
    return "Mul", ins["x"], steps.do("HardSigmoid", ins["x"], alpha=1 / 6, beta=0.5)


def _scaled(steps: OperatorSequence, x: str, squares: str) -> str:
    """Returns what is divided by the root of the mean of squares."""
    wide = steps.do("Add", squares, steps.held(steps.work.real("eps")))
    return steps.do("Div", x, steps.do("Sqrt", wide))


def _layer_norm(steps: OperatorSequence, ins: dict[str, str]) -> _Last:
    apart = steps.do("Sub", ins["x"], steps.reduced("ReduceMean", ins["x"], steps.over))
    squares = steps.reduced("ReduceMean", steps.do("Mul", apart, apart), steps.over)
    last = "Mul", _scaled(steps, apart, squares), ins["gamma"]
    return ("Add", steps.do(*last), ins["beta"]) if "beta" in ins else last


def _rms_norm(steps: OperatorSequence, ins: dict[str, str]) -> _Last:
    squares = steps.reduced("ReduceMean", steps.do("Mul", ins["x"], ins["x"]), steps.over)
    return "Mul", _scaled(steps, ins["x"], squares), ins["gamma"]


def _group_norm(steps: OperatorSequence, ins: dict[str, str]) -> _Last:
    work, groups = steps.work, steps.work.whole("groups")
    ones, none = (np.full(groups, v, steps.kind.carrier) for v in (1, 0))
    numbers = [steps.writer.constant(a, f"{work.out}_groups") for a in (ones, none)]
    apart = steps.do("Reshape", ins["x"], steps.listed(0, groups, -1))
    normal = steps.do("InstanceNormalization", apart, *numbers, epsilon=work.real("eps"))
    whole = steps.do("Reshape", normal, steps.do("Shape", ins["x"]))
    column = steps.listed(-1, *(1,) * (work.kind.rank - 2))
    gamma, beta = (steps.do("Reshape", ins[slot], column) for slot in ("gamma", "beta"))
    return "Add", steps.do("Mul", whole, gamma), beta


PARTS: dict[str, tuple[int, _Say]] = {
    "hard_swish": (14, _hard_swish),
    "layer_norm": (17, _layer_norm),
    "mish": (18, _mish),
    "gelu": (20, _gelu),
    "group_norm": (21, _group_norm),
    "rms_norm": (23, _rms_norm),
}
"""The first operator set that has each, and how it is said before."""

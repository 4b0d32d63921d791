"""Decomposes ops that ONNX has as one operator only since some operator set.

So a model keeps the operator set of its source. float16 and bfloat16 are computed as float32, as
the one operator does, and rounded at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from qir.ir.dtype import F32, DType
from qir.ledger import Change

from ..writer.elements import element_type
from ..writer.operator_table import OperatorWriter
from ..writer.writer import STEP, AttrValue, OnnxWriter, OpToWrite

FIRST_AXES_OPERAND = 18
"""The first operator set whose ReduceMean and ReduceMax take axes as an operand."""


@dataclass(frozen=True, slots=True)
class OperatorSequence:
    """Writes operators one after the other, with floats of one type."""

    writer: OnnxWriter
    work: OpToWrite
    kind: DType

    def constant(self, value: float) -> str:
        return self.writer.constant(np.array(value, self.kind.carrier), f"{self.work.out}_number")

    def int_list(self, *values: int) -> str:
        return self.writer.constant(np.array(values, np.int64), f"{self.work.out}_sizes")

    def do(self, op: str, *operands: str, **attrs: AttrValue) -> str:
        out = self.writer.fresh(f"{self.work.out}_{op}")
        self.writer.emit(op, operands, [out], attrs)
        return out

    def reduced(self, op: str, x: str, axes: tuple[int, ...]) -> str:
        if self.writer.opset < FIRST_AXES_OPERAND:
            return self.do(op, x, axes=axes)
        return self.do(op, x, self.int_list(*axes))

    @property
    def normalized_axes(self) -> tuple[int, ...]:
        """The axes that a norm reduces."""
        rank = self.work.kind.rank
        return tuple(range(self.work.int_attr("axis") % rank, rank))


_LastOperator: TypeAlias = "tuple[str, ...]"
"""The operator that makes the result, and its operands."""
_Decompose: TypeAlias = "Callable[[OperatorSequence, dict[str, str]], _LastOperator]"


def from_opset(first: int, own: OperatorWriter, decompose: _Decompose) -> OperatorWriter:
    """Returns a writer of one operator from an operator set on, and of its decomposition before."""

    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        if writer.opset >= first:
            own(writer, work, ins)
            return
        reason = f"{work.op}, which opset {writer.opset} has not, by operators that each round"
        writer.ledger.add(Change.REGROUPED, STEP, work.out, reason)
        kind = work.kind.dtype
        if kind.bits > 16:
            op, *operands = decompose(OperatorSequence(writer, work, kind), ins)
            writer.emit(op, operands, [work.out], origins=work.origins)
            return
        # 16-bit floats: compute in float32 and round once, as the single operator does.
        steps = OperatorSequence(writer, work, F32)
        upcast = {slot: steps.do("Cast", name, to=element_type(F32)) for slot, name in ins.items()}
        result = steps.do(*decompose(steps, upcast))
        writer.emit("Cast", [result], [work.out], {"to": element_type(kind)}, origins=work.origins)

    return write


def _gelu(steps: OperatorSequence, ins: dict[str, str]) -> _LastOperator:
    x = ins["x"]
    if steps.work.attrs["approximate"] == "tanh":
        cube = steps.do("Mul", steps.do("Mul", x, x), x)
        inner = steps.do("Add", x, steps.do("Mul", cube, steps.constant(0.044715)))
        curve = steps.do("Tanh", steps.do("Mul", inner, steps.constant(math.sqrt(2 / math.pi))))
    else:
        curve = steps.do("Erf", steps.do("Div", x, steps.constant(math.sqrt(2))))
    product = steps.do("Mul", x, steps.do("Add", curve, steps.constant(1.0)))
    # 0.5 * x * (1 + erf(x / sqrt 2)), or with tanh(sqrt(2 / pi) * (x + 0.044715 x^3)).
    return "Mul", product, steps.constant(0.5)


def _mish(steps: OperatorSequence, ins: dict[str, str]) -> _LastOperator:
    return "Mul", ins["x"], steps.do("Tanh", steps.do("Softplus", ins["x"]))


def _hard_swish(steps: OperatorSequence, ins: dict[str, str]) -> _LastOperator:
    return "Mul", ins["x"], steps.do("HardSigmoid", ins["x"], alpha=1 / 6, beta=0.5)


def _normalized(steps: OperatorSequence, x: str, squares: str) -> str:
    """Returns x divided by the root of the mean of squares."""
    variance = steps.do("Add", squares, steps.constant(steps.work.float_attr("eps")))
    return steps.do("Div", x, steps.do("Sqrt", variance))


def _layer_norm(steps: OperatorSequence, ins: dict[str, str]) -> _LastOperator:
    centered = steps.do(
        "Sub", ins["x"], steps.reduced("ReduceMean", ins["x"], steps.normalized_axes)
    )
    # (x - mean) / sqrt(mean((x - mean)^2) + eps) * gamma + beta
    squares = steps.reduced(
        "ReduceMean", steps.do("Mul", centered, centered), steps.normalized_axes
    )
    scaled = "Mul", _normalized(steps, centered, squares), ins["gamma"]
    return ("Add", steps.do(*scaled), ins["beta"]) if "beta" in ins else scaled


def _rms_norm(steps: OperatorSequence, ins: dict[str, str]) -> _LastOperator:
    squares = steps.reduced(
        "ReduceMean", steps.do("Mul", ins["x"], ins["x"]), steps.normalized_axes
    )
    return "Mul", _normalized(steps, ins["x"], squares), ins["gamma"]


def _group_norm(steps: OperatorSequence, ins: dict[str, str]) -> _LastOperator:
    work, groups = steps.work, steps.work.int_attr("groups")
    # InstanceNormalization with unit scale normalizes each group once groups are its channels.
    ones, zeros = (np.full(groups, v, steps.kind.carrier) for v in (1, 0))
    scale_and_bias = [steps.writer.constant(a, f"{work.out}_groups") for a in (ones, zeros)]
    grouped = steps.do("Reshape", ins["x"], steps.int_list(0, groups, -1))
    normalized = steps.do(
        "InstanceNormalization", grouped, *scale_and_bias, epsilon=work.float_attr("eps")
    )
    ungrouped = steps.do("Reshape", normalized, steps.do("Shape", ins["x"]))
    # gamma and beta are per channel: [channels, 1, 1 ...] broadcasts over the spatial axes.
    column = steps.int_list(-1, *(1,) * (work.kind.rank - 2))
    gamma, beta = (steps.do("Reshape", ins[slot], column) for slot in ("gamma", "beta"))
    return "Add", steps.do("Mul", ungrouped, gamma), beta


DECOMPOSITIONS: dict[str, tuple[int, _Decompose]] = {
    "hard_swish": (14, _hard_swish),
    "layer_norm": (17, _layer_norm),
    "mish": (18, _mish),
    "gelu": (20, _gelu),
    "group_norm": (21, _group_norm),
    "rms_norm": (23, _rms_norm),
}
"""The first operator set that has each op, and its decomposition before."""

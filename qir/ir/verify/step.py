"""One op as the verifier looks at it, and the integer product that it may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.calls import cached_result_types, make_call
from qir.ir.node import GraphLike, Value
from qir.ir.ops import Call, OpSpec
from qir.ir.types import Array, QuantType, TensorType

SLOTS = {
    "conv1d": ("x", "w", "bias"),
    "conv2d": ("x", "w", "bias"),
    "conv3d": ("x", "w", "bias"),
    "conv_transpose1d": ("x", "w", "bias"),
    "conv_transpose2d": ("x", "w", "bias"),
    "conv_transpose3d": ("x", "w", "bias"),
    "linear": ("x", "w", "bias"),
    "matmul": ("a", "b", "bias"),
    "gemm": ("a", "b", "c"),
    "matmul_integer": ("a", "b", ""),
    "conv_integer": ("x", "w", ""),
}
"""The products, with their slots of data, weights and bias."""


@dataclass(slots=True)
class OpUse:
    """One op: a node's own, or a stage of its chain; slots are named as the op names them."""

    prefix: str
    """What is before the slot's name on the node: nothing, or `2.`."""
    spec: OpSpec
    operands: Mapping[str, Value]
    """Without the slot where the stage before flows in."""
    attrs: Mapping[str, Attr]
    result: TensorType | None
    """The stated type; None where a stage stays in working precision."""
    bodies: Mapping[str, GraphLike] | None = None
    called: Call | None = None
    """What rules see of it, once one has looked."""
    plain: bool = False
    """Whether it is in float, without companions, and as an earlier one that its rule has seen."""
    inferred: tuple[TensorType, ...] = ()
    """What the op's type rule makes of the operands."""
    rejection: str = ""
    """Why it makes nothing of them."""

    @property
    def call(self) -> Call:
        """What rules see of it."""
        if self.called is None:
            self.called = make_call(self.spec.name, self.operands, self.attrs, self.bodies)
        return self.called

    def infer(self) -> None:
        """Asks the op's type rule, or remembers what it said of one that is alike."""
        if not self.bodies and self.called is None:
            found = cached_result_types(self.spec.name, self.operands, self.attrs)
            if found is not None:
                self.inferred, self.plain = found, True
                return
        try:
            self.inferred = self.spec.rule(self.call)
        except TypeRuleError as error:
            self.rejection = str(error)


@dataclass(frozen=True, slots=True)
class Product:
    """An integer product: who sums what, and where the numbers are."""

    step: OpUse
    x: QuantType
    """The quantized values that come from outside."""
    w: QuantType
    """The quantized values of the weights."""
    weights: Array | None
    """None where they are computed."""
    swapped: bool = False
    """Whether the constant is the left operand of a matrix product."""
    bias: Array | None = None
    """In units of the sum."""
    why_unbounded: str = ""
    """Why nothing bounds the sum, where nothing does."""
    data_bounds: tuple[float, float] = (-math.inf, math.inf)
    """Bounds of q - zero of what comes from outside, beyond those of its storage."""
    why_type_unknown: str = ""
    """Why the maps are not the whole truth, where they are not."""

    @property
    def slots(self) -> tuple[str, str]:
        """The slots of the weights and of what comes from outside."""
        data, weights, _ = SLOTS[self.step.spec.name]
        return (data, weights) if self.swapped else (weights, data)

"""Decomposes ops that ONNX lacks. The ledger reports where results are rounded more often."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qir.ledger import Change

from .elements import element_type
from .operator_table import OperatorWriter, int64_operand
from .writer import STEP, AttrValue, OnnxWriter, OpToWrite


class _OperatorSteps:
    """Writes operators one after the other; the last one computes the result."""

    def __init__(self, writer: OnnxWriter, work: OpToWrite) -> None:
        self.writer, self.work = writer, work

    def float_constant(self, value: float) -> str:
        """Returns a constant of the op's element type."""
        data = np.array(value).astype(self.work.kind.dtype.carrier)
        return self.writer.constant(data, f"{self.work.out}_number")

    def do(self, op: str, *operands: str, **attrs: AttrValue) -> str:
        out = self.writer.fresh(f"{self.work.out}_{op}")
        self.writer.emit(op, operands, [out], attrs)
        return out

    def int_constant(self, value: int) -> str:
        """Returns an int64 constant."""
        return self.writer.constant(np.array(value, np.int64), f"{self.work.out}_number")

    def int_list(self, *values: int) -> str:
        """Returns a constant list of int64, such as axes."""
        return self.writer.constant(np.array(values, np.int64), f"{self.work.out}_list")

    def reduce_channels(self, op: str, x: str, *, keepdims: int) -> str:
        """Returns a reduction along axis 1."""
        if self.writer.opset >= (13 if op == "ReduceSum" else 18):
            return self.do(op, x, self.int_list(1), keepdims=keepdims)
        return self.do(op, x, axes=(1,), keepdims=keepdims)

    def add_result(self, op: str, *operands: str, **attrs: AttrValue) -> None:
        self.writer.emit(op, operands, [self.work.out], attrs, origins=self.work.origins)


_Decompose = Callable[[_OperatorSteps, dict[str, str]], None]


def _decomposed(decompose: _Decompose, change: Change = Change.REGROUPED) -> OperatorWriter:
    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        reason = f"{work.op}, which ONNX has not, by operators that each round"
        # An exact decomposition needs no entry: nothing is rounded more often.
        if change != Change.EXACT:
            writer.ledger.add(change, STEP, work.out, reason)
        decompose(_OperatorSteps(writer, work), ins)

    return write


def _exp2(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    steps.add_result("Pow", steps.float_constant(2.0), ins["x"])


def _expm1(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    steps.add_result("Sub", steps.do("Exp", ins["x"]), steps.float_constant(1.0))


def _log1p(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    steps.add_result("Log", steps.do("Add", ins["x"], steps.float_constant(1.0)))


def _logarithm(base: float) -> _Decompose:
    def decompose(steps: _OperatorSteps, ins: dict[str, str]) -> None:
        steps.add_result("Mul", steps.do("Log", ins["x"]), steps.float_constant(1 / math.log(base)))

    return decompose


def _rsqrt(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    steps.add_result("Reciprocal", steps.do("Sqrt", ins["x"]))


def _square(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    steps.add_result("Mul", ins["x"], ins["x"])


def _erfc(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    steps.add_result("Sub", steps.float_constant(1.0), steps.do("Erf", ins["x"]))


def _trunc(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    magnitude = steps.do("Floor", steps.do("Abs", ins["x"]))
    steps.add_result("Mul", steps.do("Sign", ins["x"]), magnitude)


def _log_sigmoid(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    steps.add_result("Neg", steps.do("Softplus", steps.do("Neg", ins["x"])))


def _tanh_shrink(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    steps.add_result("Sub", ins["x"], steps.do("Tanh", ins["x"]))


def _logit(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    x, eps = ins["x"], steps.work.attrs["eps"]
    if isinstance(eps, float):
        x = steps.do("Clip", x, steps.float_constant(eps), steps.float_constant(1 - eps))
    complement = steps.do("Sub", steps.float_constant(1.0), x)
    steps.add_result("Log", steps.do("Div", x, complement))


def _floor_div(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    a, b = ins["a"], ins["b"]
    if steps.work.kind.dtype.is_float:
        steps.add_result("Floor", steps.do("Div", a, b))
        return
    # Mod has the sign of the divisor, so a - a mod b is a multiple of b and the division is exact.
    steps.add_result("Div", steps.do("Sub", a, steps.do("Mod", a, b)), b)


def _squared_difference(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    difference = steps.do("Sub", ins["a"], ins["b"])
    steps.add_result("Mul", difference, difference)


# -- bags of rows ---------------------------------------------------------------------------------


def _embedding_bag(steps: _OperatorSteps, ins: dict[str, str]) -> None:
    """Writes a product of the table's rows with a matrix that says which row is in which bag.

    Rows that `padding` names are in no bag.
    """
    writer, work = steps.writer, steps.work
    flat_indices = steps.do(
        "Reshape", int64_operand(writer, work, ins, "indices"), steps.int_list(-1)
    )
    membership, rows = (
        _bag_membership(steps, ins, flat_indices),
        steps.do("Gather", ins["w"], flat_indices),
    )
    if work.attrs["padding"] is not None:
        not_padding = steps.do("Not", steps.do("Equal", flat_indices, _padding(steps)))
        membership = steps.do("And", membership, not_padding)
    if work.attrs["mode"] == "max":
        # An empty bag's maximum is -inf here and 0 in PyTorch.
        lowest = steps.float_constant(-math.inf)
        candidates = steps.do(
            "Where", steps.do("Unsqueeze", membership, steps.int_list(2)), rows, lowest
        )
        maxima = steps.reduce_channels("ReduceMax", candidates, keepdims=0)
        steps.add_result(
            "Where", steps.do("Equal", maxima, lowest), steps.float_constant(0.0), maxima
        )
        return
    factors = steps.do("Cast", membership, to=element_type(work.kind.dtype))
    if work.attrs["mode"] == "mean":
        bag_sizes = steps.do(
            "Max",
            steps.reduce_channels("ReduceSum", factors, keepdims=1),
            steps.float_constant(1.0),
        )
        steps.add_result("Div", steps.do("MatMul", factors, rows), bag_sizes)
        return
    if "weights" in ins:
        weights = steps.do("Reshape", ins["weights"], steps.int_list(-1))
        factors = steps.do("Where", membership, weights, steps.float_constant(0.0))
    steps.add_result("MatMul", factors, rows)


def _bag_membership(steps: _OperatorSteps, ins: dict[str, str], at: str) -> str:
    """Returns a [bags, indices] matrix of bools: bag i holds the indices from its offset to the
    next."""
    count, zero = steps.do("Size", at), steps.int_constant(0)
    places, end = steps.do("Range", zero, count, steps.int_constant(1)), steps.int_list(_LAST)
    if "offsets" in ins:
        starts = int64_operand(steps.writer, steps.work, ins, "offsets")
    else:
        # Without offsets, indices are [bags, size]: each row is a bag.
        shape = steps.do("Shape", ins["indices"])
        starts = steps.do("Range", zero, count, steps.do("Gather", shape, steps.int_constant(1)))
    ends = steps.do("Slice", starts, steps.int_list(1), end)
    # `last` says that the offsets end with the number of indices, as include_last_offset does.
    if "offsets" in ins and steps.work.attrs["last"]:
        starts = steps.do("Slice", starts, steps.int_list(0), steps.int_list(-1))
    else:
        ends = steps.do("Concat", ends, steps.do("Reshape", count, steps.int_list(1)), axis=0)
    starts, ends = (steps.do("Unsqueeze", each, steps.int_list(1)) for each in (starts, ends))
    before = steps.do("Less", places, starts)
    return steps.do("And", steps.do("Not", before), steps.do("Less", places, ends))


def _padding(steps: _OperatorSteps) -> str:
    row, rows = steps.work.int_attr("padding"), steps.work.operands["w"].type.shape[0]
    if row < 0 and not isinstance(rows, int):
        raise steps.writer.refuse(steps.work.node, "nothing says which row its padding names")
    return steps.int_constant(row % rows if isinstance(rows, int) else row)


_LAST = 2**63 - 1
"""The end of a slice that goes to the end."""


OPS: dict[str, OperatorWriter] = {
    "embedding_bag": _decomposed(_embedding_bag),
    "exp2": _decomposed(_exp2),
    "expm1": _decomposed(_expm1),
    "log1p": _decomposed(_log1p),
    "log2": _decomposed(_logarithm(2.0)),
    "log10": _decomposed(_logarithm(10.0)),
    "rsqrt": _decomposed(_rsqrt),
    "square": _decomposed(_square, Change.EXACT),
    "erfc": _decomposed(_erfc),
    "trunc": _decomposed(_trunc, Change.EXACT),
    "log_sigmoid": _decomposed(_log_sigmoid),
    "tanh_shrink": _decomposed(_tanh_shrink),
    "logit": _decomposed(_logit),
    "floor_div": _decomposed(_floor_div),
    "squared_difference": _decomposed(_squared_difference),
}

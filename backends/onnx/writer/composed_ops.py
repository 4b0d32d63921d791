"""Decomposes ops that ONNX lacks; the ledger says where the result is rounded more often."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qir.ledger import Change

from .rows import Row
from .writer import STEP, OnnxWriter, Wire, Work


class _Steps:
    """Writes operators one after the other; the last one makes the result."""

    def __init__(self, writer: OnnxWriter, work: Work) -> None:
        self.writer, self.work = writer, work

    def number(self, value: float) -> str:
        """Returns a constant of the op's type."""
        data = np.array(value).astype(self.work.kind.dtype.carrier)
        return self.writer.constant(data, f"{self.work.out}_number")

    def do(self, op: str, *operands: str, **attrs: Wire) -> str:
        out = self.writer.fresh(f"{self.work.out}_{op}")
        self.writer.emit(op, operands, [out], attrs)
        return out

    def end(self, op: str, *operands: str, **attrs: Wire) -> None:
        self.writer.emit(op, operands, [self.work.out], attrs, origins=self.work.origins)


_Say = Callable[[_Steps, dict[str, str]], None]


def _composed(say: _Say, change: Change = Change.REGROUPED) -> Row:
    def row(writer: OnnxWriter, work: Work, ins: dict[str, str]) -> None:
        reason = f"{work.op}, which ONNX has not, by operators that each round"
        if change != Change.EXACT:
            writer.ledger.add(change, STEP, work.out, reason)
        say(_Steps(writer, work), ins)

    return row


def _exp2(steps: _Steps, ins: dict[str, str]) -> None:
    steps.end("Pow", steps.number(2.0), ins["x"])


def _expm1(steps: _Steps, ins: dict[str, str]) -> None:
    steps.end("Sub", steps.do("Exp", ins["x"]), steps.number(1.0))


def _log1p(steps: _Steps, ins: dict[str, str]) -> None:
    steps.end("Log", steps.do("Add", ins["x"], steps.number(1.0)))


def _logarithm(base: float) -> _Say:
    def say(steps: _Steps, ins: dict[str, str]) -> None:
        steps.end("Mul", steps.do("Log", ins["x"]), steps.number(1 / math.log(base)))

    return say


def _rsqrt(steps: _Steps, ins: dict[str, str]) -> None:
    steps.end("Reciprocal", steps.do("Sqrt", ins["x"]))


def _square(steps: _Steps, ins: dict[str, str]) -> None:
    steps.end("Mul", ins["x"], ins["x"])


def _erfc(steps: _Steps, ins: dict[str, str]) -> None:
    steps.end("Sub", steps.number(1.0), steps.do("Erf", ins["x"]))


def _trunc(steps: _Steps, ins: dict[str, str]) -> None:
    whole = steps.do("Floor", steps.do("Abs", ins["x"]))
    steps.end("Mul", steps.do("Sign", ins["x"]), whole)


def _log_sigmoid(steps: _Steps, ins: dict[str, str]) -> None:
    steps.end("Neg", steps.do("Softplus", steps.do("Neg", ins["x"])))


def _tanh_shrink(steps: _Steps, ins: dict[str, str]) -> None:
    steps.end("Sub", ins["x"], steps.do("Tanh", ins["x"]))


def _logit(steps: _Steps, ins: dict[str, str]) -> None:
    x, eps = ins["x"], steps.work.attrs["eps"]
    if isinstance(eps, float):
        x = steps.do("Clip", x, steps.number(eps), steps.number(1 - eps))
    rest = steps.do("Sub", steps.number(1.0), x)
    steps.end("Log", steps.do("Div", x, rest))


def _floor_div(steps: _Steps, ins: dict[str, str]) -> None:
    a, b = ins["a"], ins["b"]
    if steps.work.kind.dtype.is_float:
        steps.end("Floor", steps.do("Div", a, b))
        return
    steps.end("Div", steps.do("Sub", a, steps.do("Mod", a, b)), b)


def _squared_difference(steps: _Steps, ins: dict[str, str]) -> None:
    apart = steps.do("Sub", ins["a"], ins["b"])
    steps.end("Mul", apart, apart)


OPS: dict[str, Row] = {
    "exp2": _composed(_exp2),
    "expm1": _composed(_expm1),
    "log1p": _composed(_log1p),
    "log2": _composed(_logarithm(2.0)),
    "log10": _composed(_logarithm(10.0)),
    "rsqrt": _composed(_rsqrt),
    "square": _composed(_square, Change.EXACT),
    "erfc": _composed(_erfc),
    "trunc": _composed(_trunc, Change.EXACT),
    "log_sigmoid": _composed(_log_sigmoid),
    "tanh_shrink": _composed(_tanh_shrink),
    "logit": _composed(_logit),
    "floor_div": _composed(_floor_div),
    "squared_difference": _composed(_squared_difference),
}

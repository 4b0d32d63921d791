"""Operators that work element by element, in every form that ONNX has had since opset 7."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qir.backends.onnx.writer.graph import to_model
from qir.errors import Refused
from qir.ir.dtype import dtype_of
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.backends.onnx.operators import Case, assert_comes_through, onnxruntime_runs

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return np.asarray(RNG.normal(size=shape)).astype(np.float32)


X = floats(2, 3, 4)
INSIDE = RNG.uniform(-0.9, 0.9, (2, 3)).astype(np.float32)
ABOVE = RNG.uniform(1, 9, (2, 3)).astype(np.float32)
WHOLE = RNG.integers(-50, 50, (2, 3))
WORDS = np.array(["a", "b", "a", ""], object)
OLD = (7, 13, 21, 22)

MANY = ("Min", "Max", "Sum", "Mean")

CASES = [
    *(Case(op, {"x": INSIDE}, opsets=OLD) for op in "Sin Cos Tan Asin Acos Atan Tanh Exp".split()),
    *(Case(op, {"x": INSIDE}, opsets=(9, 13, 22)) for op in "Sinh Cosh Asinh Atanh Erf".split()),
    Case("Acosh", {"x": ABOVE}, opsets=(9, 22)),
    *(Case(op, {"x": ABOVE}, opsets=(7, 13)) for op in ("Log", "Sqrt", "Reciprocal")),
    *(Case(op, {"x": X * 3}, opsets=(7, 13), exact=True) for op in ("Floor", "Ceil", "Abs", "Neg")),
    Case("Round", {"x": np.array([0.5, 1.5, -2.5, 2.6], np.float32)}, opsets=(11, 22), exact=True),
    Case("Sign", {"x": X}, opsets=(9, 13), exact=True),
    *(Case(op, {"x": WHOLE}, opsets=(13,)) for op in ("Abs", "Neg", "Sign")),
    Case("LeakyRelu", {"x": X}, opsets=(7, 16)),
    Case("LeakyRelu", {"x": X}, {"alpha": 0.1}, (7, 16), exact=True),
    Case("Elu", {"x": X}, opsets=(7, 22)),
    Case("Elu", {"x": X}, {"alpha": 0.7}, (7, 22)),
    Case("Selu", {"x": X}, opsets=(7, 22)),
    Case("Selu", {"x": X}, {"alpha": 1.25, "gamma": 0.3}, (7,)),
    Case("Celu", {"x": X}, opsets=(12,)),
    Case("Celu", {"x": X}, {"alpha": 2.5}, (12,)),
    Case("HardSigmoid", {"x": X * 3}, opsets=(7, 22)),
    Case("HardSigmoid", {"x": X * 3}, {"alpha": 0.1666, "beta": 0.4}, (7, 22)),
    Case("HardSwish", {"x": X * 3}, opsets=(14, 22)),
    Case("Softplus", {"x": X * 3}, opsets=(7, 22)),
    Case("Softsign", {"x": X * 3}, opsets=(7, 22)),
    Case("ThresholdedRelu", {"x": X}, {"alpha": 0.5}, (10, 22), exact=True),
    Case("Mish", {"x": X}, opsets=(18, 22)),
    Case("Gelu", {"x": X}, opsets=(20,)),
    Case("Gelu", {"x": X}, {"approximate": "tanh"}, (20,)),
    Case("Swish", {"x": X}, {"alpha": 1.5}, (24,)),
    Case("PRelu", {"x": X, "c": floats(3, 1)}, opsets=(7, 9, 16), exact=True),
    Case("PRelu", {"x": X, "slope": floats(1)}, opsets=(9, 16), exact=True),
    Case("Pow", {"x": ABOVE, "c": np.array(2, np.float32)}, opsets=(7, 12, 13, 15)),
    Case("Pow", {"x": ABOVE, "c": np.array([2, 3, -1])}, opsets=(12, 15)),
    Case("Pow", {"x": WHOLE, "c": np.array([2, 3, 0])}, opsets=(12, 15), exact=True),
    Case("Mod", {"x": WHOLE, "c": np.array([3, -4, 7])}, opsets=(10, 13)),
    Case("Mod", {"x": X, "c": floats(4)}, {"fmod": 1}, (10, 13), exact=True),
    *(Case(op, {"x": X, "y": X, "z": X * 2}, opsets=(7,)) for op in MANY),
    *(Case(op, {"x": X, "y": floats(3, 1)}, opsets=(8, 13)) for op in MANY),
    *(Case(op, {"x": X}, opsets=(8, 13), exact=True) for op in MANY),
    *(Case(op, {"x": WHOLE, "c": np.array([3, -4, 7])}, opsets=(12, 13)) for op in ("Min", "Max")),
    Case("Equal", {"x": WORDS, "y": WORDS[::-1].copy()}, opsets=(19, 21)),
    Case("LogSoftmax", {"x": X}, opsets=(13,)),
    Case("LogSoftmax", {"x": X}, {"axis": 1}, (13,)),
    Case("LogSoftmax", {"x": X}, {"axis": -1}, (11,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{len(c.operands)}-{len(c.attrs)}")
def test_operators_are_read_written_and_computed(case: Case, tmp_path: Path) -> None:
    for opset in case.opsets:
        assert_comes_through(case, opset, tmp_path)


def written(line: str, **inputs: np.ndarray) -> np.ndarray:
    """What onnxruntime makes of `%y = line`, its operands as they are given."""
    given = [f"%{n} = input() : {TensorType(x.shape, dtype_of(x))}" for n, x in inputs.items()]
    graph = parse("\n".join(["graph m as native {", *given, f"%y = {line}", "output(y=%y)", "}"]))
    proto: onnx.ModelProto = to_model(graph, Ledger())
    onnx.checker.check_model(proto)
    (theirs,) = onnxruntime_runs(proto, inputs)
    ours = run(graph, inputs)["y"]
    assert theirs.dtype == ours.dtype
    assert theirs.tolist() == ours.tolist()
    return theirs


def test_what_differs_is_what_is_not_equal() -> None:
    a, b = np.array([1.0, np.nan, -0.0, 4.0]), np.array([1.0, np.nan, 0.0, 5.0])
    assert written("not_equal(%a, %b) : 4xbool", a=a, b=b).tolist() == [False, True, False, True]
    words = np.array(["x", "a", "a", ""], object)
    got = written("not_equal(%a, %b) : 4xbool", a=WORDS, b=words)
    assert got.tolist() == [True, True, False, False]


def test_sums_of_integers_are_added_one_after_the_other() -> None:
    x = np.array([2**31 - 1, -5], np.int32)
    got = written("sum(xs.0=%a, xs.1=%b, xs.2=%a) : 2xi32", a=x, b=x[::-1].copy())
    assert got.tolist() == [-7, 2**31 - 11]


def test_pads_that_onnx_has_not_are_refused() -> None:
    x = np.arange(3, dtype=np.float32)
    assert written('pad(%x) {pads = (2, 2), mode = "reflect"} : 7xf32', x=x).size == 7
    assert written('pad(%x) {pads = (3, 3), mode = "wrap"} : 9xf32', x=x).size == 9
    for mode, pads, said in (
        ("symmetric", (1, 1), "y: ONNX's Pad has no mode symmetric"),
        ("reflect", (3, 0), "y: axis 0 of 3 is too short for reflect pads in ONNX: 3"),
        ("wrap", (0, 4), "y: axis 0 of 3 is too short for wrap pads in ONNX: 4"),
    ):
        with pytest.raises(Refused, match=said):
            written(f'pad(%x) {{pads = {pads}, mode = "{mode}"}} : {3 + sum(pads)}xf32', x=x)


def test_powers_of_small_integers_are_refused() -> None:
    x = np.arange(3, dtype=np.int8)
    with pytest.raises(Refused, match="y: ONNX's Pow takes i32 and i64 of integers, a is i8"):
        written("pow(%x, %x) : 3xi8", x=x)

"""Operators that work element by element, in every form that ONNX has had since opset 7."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backends.onnx.operators import Case, assert_comes_through

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return np.asarray(RNG.normal(size=shape)).astype(np.float32)


X = floats(2, 3, 4)
INSIDE = RNG.uniform(-0.9, 0.9, (2, 3)).astype(np.float32)
ABOVE = RNG.uniform(1, 9, (2, 3)).astype(np.float32)
WHOLE = RNG.integers(-50, 50, (2, 3))
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
    Case("Mod", {"x": WHOLE, "c": np.array([3, -4, 7])}, opsets=(10, 13)),
    Case("Mod", {"x": X, "c": floats(4)}, {"fmod": 1}, (10, 13), exact=True),
    *(Case(op, {"x": X, "y": X, "z": X * 2}, opsets=(7,)) for op in MANY),
    *(Case(op, {"x": X, "y": floats(3, 1)}, opsets=(8, 13)) for op in MANY),
    *(Case(op, {"x": X}, opsets=(8, 13), exact=True) for op in MANY),
    *(Case(op, {"x": WHOLE, "c": np.array([3, -4, 7])}, opsets=(12, 13)) for op in ("Min", "Max")),
    Case("LogSoftmax", {"x": X}, opsets=(13,)),
    Case("LogSoftmax", {"x": X}, {"axis": 1}, (13,)),
    Case("LogSoftmax", {"x": X}, {"axis": -1}, (11,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{len(c.operands)}-{len(c.attrs)}")
def test_operators_are_read_written_and_computed(case: Case, tmp_path: Path) -> None:
    for opset in case.opsets:
        assert_comes_through(case, opset, tmp_path)

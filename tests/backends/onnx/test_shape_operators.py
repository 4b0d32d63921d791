"""Operators that move elements, compare, and make sizes, in ONNX's forms since opset 7."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from tests.backends.onnx.operators import Case, Data, assert_comes_through

RNG = np.random.default_rng(12)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
ROW = X[:1, :, :1]
WHOLE = RNG.integers(-50, 50, (2, 3))
FLAGS = RNG.random((2, 3)) < 0.5
BITS = RNG.integers(0, 255, (2, 3)).astype(np.uint8)
IMAGE = RNG.normal(size=(1, 8, 4, 6)).astype(np.float32)


def row(*values: int) -> Data:
    return np.array(values, np.int64)


ODD = np.array([np.nan, np.inf, -np.inf, 0, 1], np.float32)
ONE_AXIS = {"axes": [0]}
PAIR = {"x": X, "y": np.asarray(X[:, :1])}
VALUE = {"value": numpy_helper.from_array(np.array([3], np.int64))}

CASES = [
    Case("Squeeze", {"x": X[:1]}, ONE_AXIS, (7, 11)),
    Case("Squeeze", {"x": X[:1], "c": row(0)}, opsets=(13, 21)),
    Case("Squeeze", {"x": ROW, "c": row(-1, 0)}, opsets=(13,)),
    Case("Unsqueeze", {"x": X}, {"axes": [0, 2]}, (7, 11)),
    Case("Unsqueeze", {"x": X, "c": row(1, -1)}, opsets=(13, 21)),
    Case("Slice", {"x": X}, {"starts": [1], "ends": [9], "axes": [2]}, (7, 9)),
    Case("Slice", {"x": X}, {"starts": [0, 1], "ends": [1, -1]}, (7, 9)),
    Case("Slice", {"x": X, "c1": row(0, 1), "c2": row(1, 2)}, opsets=(10, 13)),
    Case("Slice", {"x": X, "c1": row(1), "c2": row(9), "c3": row(-1)}, opsets=(10, 13)),
    Case(
        "Slice",
        {
            "x": X,
            "c1": row(-1, 0),
            "c2": row(-(2**63), 2**63 - 1),
            "c3": row(2, 1),
            "c4": row(-2, 1),
        },
        opsets=(10, 13),
    ),
    Case("Split", {"c": X}, {"axis": 2}, (7, 11), results=2),
    Case("Split", {"x": X}, {"axis": 2, "split": [1, 3]}, (7, 11), results=2),
    Case("Split", {"x": X, "c": row(1, 1, 2)}, {"axis": -1}, (13, 18), results=3),
    Case("Split", {"c": X}, {"axis": 2, "num_outputs": 2}, (18,), results=2),
    Case("Split", {"c": X}, {"axis": 1, "num_outputs": 2}, (18,), results=2),
    Case("Gather", {"x": X, "c": row(1, 0, 1)}, {"axis": 1}, (7, 11, 13)),
    Case("Gather", {"x": X, "i": np.array([[1, -1]], np.int32)}, opsets=(11, 13)),
    Case("Gather", {"x": WHOLE, "c": np.array(1)}, {"axis": -1}, (13,)),
    Case("Expand", {"x": ROW, "c": row(2, 1, 5)}, opsets=(8, 13)),
    Case("Expand", {"x": ROW, "shape": row(2, 1, 5)}, opsets=(8, 13)),
    Case("Tile", {"x": X, "c": row(1, 2, 3)}, opsets=(7, 13)),
    Case("DepthToSpace", {"x": IMAGE}, {"blocksize": 2}, (7, 11, 13)),
    Case("DepthToSpace", {"x": IMAGE}, {"blocksize": 2, "mode": "CRD"}, (11, 13)),
    Case("SpaceToDepth", {"x": IMAGE}, {"blocksize": 2}, (7, 13)),
    Case("Where", {"k": FLAGS, "x": WHOLE, "c": np.array(7)}, opsets=(9, 16)),
    Case("Where", {"k": X > 0, "x": X, "c": np.array(-1, np.float32)}, opsets=(9, 16)),
    *(Case(op, PAIR, opsets=(9, 13)) for op in ("Less", "Greater")),
    *(Case(op, PAIR, opsets=(12, 16)) for op in ("LessOrEqual", "GreaterOrEqual")),
    Case("Equal", {"x": WHOLE, "c": np.array(7)}, opsets=(7, 11, 13, 19)),
    Case("Equal", {"x": FLAGS, "c": np.array(True)}, opsets=(7, 13)),
    Case("Equal", PAIR, opsets=(11, 19)),
    *(Case(op, {"x": FLAGS, "c": FLAGS[:, :1]}, opsets=(7,)) for op in ("And", "Or", "Xor")),
    Case("Not", {"x": FLAGS}, opsets=(7,)),
    *(Case(f"Bitwise{op}", {"x": BITS, "c": BITS[0]}, opsets=(18,)) for op in ("And", "Or", "Xor")),
    Case("BitwiseNot", {"x": BITS}, opsets=(18,)),
    Case("BitShift", {"x": BITS, "c": BITS[0] % 8}, {"direction": "LEFT"}, (11,)),
    Case("BitShift", {"x": BITS, "c": BITS[0] % 8}, {"direction": "RIGHT"}, (11,)),
    Case("IsNaN", {"x": ODD}, opsets=(9, 13, 20)),
    Case("IsInf", {"x": ODD}, opsets=(10, 20)),
    Case("IsInf", {"x": ODD}, {"detect_negative": 0}, (10, 20)),
    Case("Shape", {"x": X}, opsets=(7, 13, 19, 21)),
    Case("Shape", {"x": X}, {"start": 1, "end": -1}, (15, 19)),
    Case("Size", {"x": X}, opsets=(7, 13)),
    Case("Range", {"a": np.array(1), "b": np.array(9), "c": np.array(3)}, opsets=(11,)),
    Case("ConstantOfShape", {"shape": row(2, 3)}, opsets=(9, 20)),
    Case("ConstantOfShape", {"shape": row(2, 3)}, VALUE, (9, 20)),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.op}-{len(c.operands)}-{len(c.attrs)}-{c.opsets[0]}"
)
def test_operators_are_read_written_and_computed(case: Case, tmp_path: Path) -> None:
    for opset in case.opsets:
        assert_comes_through(case, opset, tmp_path)

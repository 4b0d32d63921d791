"""Reductions, ops along an axis and normalizations, in ONNX's forms since opset 7."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backends.onnx.operators import Case, Data, assert_comes_through

RNG = np.random.default_rng(13)
X = RNG.uniform(0.5, 3, (2, 3, 4)).astype(np.float32)
WHOLE = RNG.permutation(24).reshape(2, 3, 4)
IMAGE = RNG.normal(size=(1, 6, 4, 5)).astype(np.float32)
GAMMA, BETA = RNG.normal(size=(2, 6)).astype(np.float32)
ROW, SHIFT = RNG.normal(size=(2, 4)).astype(np.float32)


def row(*values: int) -> Data:
    return np.array(values, np.int64)


REDUCED = "Mean Sum Prod Max Min L1 L2 LogSum LogSumExp SumSquare".split()
NORM = {"x": IMAGE, "c1": GAMMA, "c2": BETA}
LAYER = {"x": X, "c1": ROW, "c2": SHIFT}

CASES = [
    *(Case(f"Reduce{r}", {"x": X}, {"axes": [1, -1]}, (11,)) for r in REDUCED),
    *(Case(f"Reduce{r}", {"x": X}, {"axes": [2], "keepdims": 0}, (7,)) for r in REDUCED),
    *(Case(f"Reduce{r}", {"x": X}, opsets=(13, 18)) for r in REDUCED),
    *(Case(f"Reduce{r}", {"x": X, "c": row(0, 2)}, opsets=(18, 20)) for r in REDUCED),
    *(Case(f"Reduce{r}", {"x": WHOLE, "c": row(1)}, opsets=(18,)) for r in ("Sum", "Max", "Min")),
    Case("ReduceSum", {"x": X, "c": row(0, 2)}, {"keepdims": 0}, (13,)),
    *(Case(op, {"x": X}, opsets=(7, 11, 13)) for op in ("ArgMax", "ArgMin")),
    *(Case(op, {"x": X}, {"axis": -1, "keepdims": 0}, (12, 13)) for op in ("ArgMax", "ArgMin")),
    Case("ArgMax", {"x": np.round(X)}, {"axis": 1, "select_last_index": 1}, (12, 13)),
    Case("CumSum", {"x": X, "c": np.array(1)}, opsets=(11, 14)),
    Case("CumSum", {"x": WHOLE, "c": row(-1)[0]}, {"exclusive": 1, "reverse": 1}, (11, 14)),
    Case("TopK", {"x": X}, {"k": 2}, (7,), results=2),
    Case("TopK", {"x": X, "c": row(2)}, opsets=(10, 11), results=2),
    Case("TopK", {"x": WHOLE, "c": row(2)}, {"axis": 1, "largest": 0}, (11,), results=2),
    Case("LayerNormalization", LAYER, opsets=(17,)),
    Case("LayerNormalization", {"x": X, "c": ROW}, {"axis": -1, "epsilon": 0.01}, (17,)),
    Case("InstanceNormalization", NORM, opsets=(7, 22)),
    Case("InstanceNormalization", NORM, {"epsilon": 0.01}, (7,)),
    Case("GroupNormalization", NORM, {"num_groups": 3, "epsilon": 0.01}, (21,)),
    Case("RMSNormalization", {"x": X, "c": ROW}, {"epsilon": 0.01}, (23,)),
    Case("LRN", {"x": IMAGE}, {"size": 3}, (7, 13)),
    Case("LRN", {"x": IMAGE}, {"size": 5, "alpha": 0.3, "beta": 0.6, "bias": 1.2}, (7, 13)),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.op}-{len(c.operands)}-{len(c.attrs)}-{c.opsets[0]}"
)
def test_operators_are_read_written_and_computed(case: Case, tmp_path: Path) -> None:
    for opset in case.opsets:
        assert_comes_through(case, opset, tmp_path)

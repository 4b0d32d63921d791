"""Conv and ConvTranspose along one to three axes, and pools, in ONNX's forms since opset 7."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backends.onnx.operators import Case, Data, assert_comes_through

RNG = np.random.default_rng(14)


def floats(*shape: int) -> Data:
    return RNG.normal(size=shape).astype(np.float32)


LINE, VOLUME, IMAGE = floats(1, 4, 9), floats(1, 2, 5, 6, 4), floats(1, 4, 5, 6)
SAME = {"auto_pad": "SAME_UPPER"}
EVEN = {"strides": [2], "pads": [1, 0], "dilations": [2], "group": 2}
WIDER = {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2], "group": 2}
WINDOW = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 2]}

CASES = [
    Case("Conv", {"x": LINE, "c": floats(6, 4, 3)}, opsets=(7, 11, 22)),
    Case("Conv", {"x": LINE, "c": floats(6, 2, 3), "c2": floats(6)}, EVEN, (7, 11)),
    Case("Conv", {"shape": LINE, "c": floats(6, 4, 3)}, {**SAME, "strides": [2]}, (11,)),
    Case("Conv", {"x": VOLUME, "c": floats(3, 2, 2, 3, 1), "c2": floats(3)}, opsets=(7, 11)),
    Case("ConvTranspose", {"x": LINE, "c": floats(4, 3, 3)}, opsets=(7, 11, 22)),
    Case("ConvTranspose", {"x": IMAGE, "c": floats(4, 3, 3, 2)}, WIDER, (7, 11)),
    Case("ConvTranspose", {"x": IMAGE, "c": floats(4, 3, 2, 2), "c2": floats(3)}, opsets=(11,)),
    Case("GlobalMaxPool", {"x": IMAGE}, opsets=(7, 22), exact=True),
    Case("LpPool", {"x": IMAGE}, {"kernel_shape": [2, 3]}, (7, 11, 18)),
    Case("LpPool", {"x": IMAGE}, {**WINDOW, "p": 3}, (7, 11, 18, 22)),
    Case("ConvTranspose", {"x": VOLUME, "c": floats(2, 3, 2, 1, 2)}, opsets=(11,)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{'-'.join(c.operands)}")
def test_operators_are_read_written_and_computed(case: Case, tmp_path: Path) -> None:
    for opset in case.opsets:
        assert_comes_through(case, opset, tmp_path)

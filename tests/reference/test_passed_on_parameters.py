"""Kernels that hand their operand's map on make no other: that is told, with what would do."""

from __future__ import annotations

import numpy as np
import pytest

from qir.errors import OpError
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.reference.interpreter import run
from qir.rewrite import run_passes

TEXT = """graph main as PROFILE {
  %x = input() : 1x1x4x4x!quant.uniform<u8:f32, 0.25>
  %y = OP : 1x1xSIDExSIDEx!quant.uniform<u8:f32, 0.5>
  output(y=%y)
}
"""
POOL = "avg_pool2d(%x) {kernel = (2, 2)}"


@pytest.mark.parametrize(
    ("name", "call", "side"),
    [
        ("tf-2.21.core", POOL, 3),
        ("tf-2.21.core", "relu(%x)", 4),
        ("tf-2.21.onednn", POOL, 3),
        ("mxnet-1.9", POOL, 3),
        ("ipex-2.8", POOL, 3),
    ],
)
def test_a_result_of_another_map_is_refused_and_written_in_reals(
    name: str, call: str, side: int
) -> None:
    text = TEXT.replace("PROFILE", name).replace("OP", call).replace("SIDE", str(side))
    quantized = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4) * 9
    with pytest.raises(
        OpError, match=r"keeps its operand's quantization parameters.*expand-qdq writes it in QDQ"
    ):
        run(parse(text), {"x": quantized})
    real = run_passes(parse(text), [ExpandQdq()], Ledger())
    found = run(real, {"x": quantized})["y"]
    wanted = quantized[0, 0].astype(np.float64)
    if call == POOL:
        wanted = np.sum([wanted[i : i + 3, j : j + 3] for i in (0, 1) for j in (0, 1)], 0) / 4
    assert np.abs(found - wanted / 2).max() <= 0.5

"""Values that depend on constants only are computed; others are refused by the input's name."""

from __future__ import annotations

import numpy as np
import pytest

import qir
from qir.errors import GraphError

TEXT = """\
graph main as native {
  %x = input() : 2xf32
  %a = constant([0.5, 1.0, 2.75]) : 3xf32
  %s = add(%a, %a) : 3xf32
  %q = quantize(%s) : 3x!quant.uniform<u8:f32, 0.5:3>
  %d = dequantize(%q) : 3xf32
  %p = slice(%d) {axes = (0,), starts = (0,), ends = (2,), steps = (1,)} : 2xf32
  %y = add(%x, %p) : 2xf32
  output(y=%y)
}
"""


def test_constants_are_computed_and_quantized_values_are_integers() -> None:
    graph = qir.parse(TEXT)
    assert qir.constant_value(graph, "s").tolist() == [1.0, 2.0, 5.5]
    found = qir.constant_value(graph, graph["q"])
    assert found.dtype == np.uint8
    assert found.tolist() == [5, 7, 14]
    assert qir.constant_value(graph, "p").tolist() == [1.0, 2.0]
    assert qir.constant_value(graph, "a").tolist() == [0.5, 1.0, 2.75]


def test_what_depends_on_an_input_is_refused() -> None:
    graph = qir.parse(TEXT)
    with pytest.raises(GraphError, match="%y depends on the input %x; it is no constant"):
        qir.constant_value(graph, "y")
    with pytest.raises(GraphError, match="another graph"):
        qir.constant_value(graph, qir.parse(TEXT)["s"])


def test_reports_say_what_they_hold() -> None:
    graph = qir.parse(
        "graph main as native {\n  %x = input() : (N)x4xf32\n  %y = relu(%x) : (N)x4xf32\n"
        "  output(y=%y)\n}\n"
    )
    statistics = qir.calibrate(graph, np.ones((6, 4), np.float32), batch=3)
    assert repr(statistics) == f"<Statistics: {len(statistics)} tensors, 2 batches>"
    assert repr(qir.plan(graph)) == ("<Plan for onnxruntime: 1 float; 0% of multiply-adds integer>")
    ledger = qir.Ledger()
    assert repr(ledger) == "<Ledger: no entries>"
    qir.optimize(qir.parse(TEXT), "fold-constants", ledger=ledger)
    assert repr(ledger) == f"<Ledger: {len(ledger)} exact>"

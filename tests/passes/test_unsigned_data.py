"""Signed data that is stored as unsigned keeps its float values."""

import numpy as np
import pytest

import qir
from qir.passes.forms.unsigned_data import UnsignedData

SOURCE = """\
graph main as native {{
  %x = input() : 64xf32
  %q = quantize(%x) : 64x!quant.uniform<i8{bounds}:f32, 0.5:{zero}>
  %d = dequantize(%q) : 64xf32
  output(d=%d{more})
}}
"""


@pytest.mark.parametrize(("bounds", "zero"), [("", 0), ("", -128), ("", 127), ("<-127:127>", 5)])
def test_float_values_stay(bounds: str, zero: int) -> None:
    graph = qir.parse(SOURCE.format(bounds=bounds, zero=zero, more=""))
    x = {"x": np.random.default_rng(0).normal(size=64).astype(np.float32) * 60}
    before = qir.run(graph, x)["d"]
    assert UnsignedData().run(graph, qir.Ledger()) == 1
    kind = graph.values["q"].type.quant
    assert kind is not None
    assert (str(kind.storage), int(kind.zeros())) == ("u8", zero + 128)
    assert (qir.run(graph, x)["d"] == before).all()


def test_an_output_keeps_its_storage() -> None:
    graph = qir.parse(SOURCE.format(bounds="", zero=0, more=", q=%q"))
    assert UnsignedData().run(graph, qir.Ledger()) == 0


@pytest.mark.parametrize(
    ("layer", "shape"), [("linear", "2x2"), ("conv_transpose2d", "2x2x1x1"), ("conv2d", "2x2x1x1")]
)
def test_weights_that_a_model_in_training_quantizes_stay_signed(layer: str, shape: str) -> None:
    graph = qir.parse(f"""\
graph main as native {{
  %x = input() : {shape}xf32
  %q = quantize(%x) : {shape}x!quant.uniform<i8:f32, 0.5>
  %d = dequantize(%q) : {shape}xf32
  %c = constant([1.0, 2.0, 3.0, -4.0]) : {shape}xf32
  %w = quantize(%c) : {shape}x!quant.uniform<i8:f32, 0.25>
  %e = dequantize(%w) : {shape}xf32
  %y = {layer}(%d, %e) : {shape}xf32
  output(y=%y)
}}
""")
    assert UnsignedData().run(graph, qir.Ledger()) == 1
    storages = [str(graph.values[name].type.dtype) for name in ("q", "w")]
    assert storages == ["u8", "i8"]


def test_kernels_that_move_values_keep_their_parameters_together() -> None:
    source = """\
    graph main as native {{
      %x = input() : 1x1x4x4xf32
      %q = quantize(%x) : 1x1x4x4x!quant.uniform<i8:f32, 0.5>
      %p = max_pool2d(%q) {{kernel = (2, 2), stride = (2, 2)}} : 1x1x2x2x!quant.uniform<i8:f32, 0.5>
      %r = relu(%p) : 1x1x2x2x!quant.uniform<i8:f32, 0.25>
      %d = dequantize(%r) : 1x1x2x2xf32
      output(d=%d{more})
    }}
    """
    x = {"x": np.random.default_rng(0).normal(size=(1, 1, 4, 4)).astype(np.float32) * 30}
    for more, moved in (("", 3), (", p=%p", 1)):  # an output keeps p, and p what it is made of
        graph = qir.parse(source.format(more=more))
        before = qir.run(graph, x)["d"]
        assert UnsignedData().run(graph, qir.Ledger()) == 0
        assert UnsignedData(kernels=True).run(graph, qir.Ledger()) == moved
        assert (qir.run(graph, x)["d"] == before).all()

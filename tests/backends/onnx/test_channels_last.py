"""Layers that another framework computes with channels last are written with channels first."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import qir

IMAGE = "!quant.uniform<u8:f32, 0.02:128>"
MADE = "!quant.uniform<u8:f32, 0.03>"
TEXT = f"""graph main as native {{
  %x = input() : 2x3x8x8xf32
  %q = quantize(%x) : 2x3x8x8x{IMAGE}
  %t = transpose(%q) {{perm = (0, 2, 3, 1)}} : 2x8x8x3x{IMAGE}
  %k = constant([0.9, -1.27, 0.03, 0.05, 0.08, -0.9, 1.27, 0.7, 0.6, -0.5, 0.4, 0.3]) : 4x3x1x1xf32
  %w = quantize(%k) : 4x3x1x1x!quant.uniform<i8:f32, 0.01>
  %c = conv2d(%t, %w) {{layout = "NHWC"}} |> relu : 2x8x8x4x{MADE}
  %p = max_pool2d(%c) {{kernel = (2, 2), stride = (2, 2), layout = "NHWC"}} : 2x4x4x4x{MADE}
  %b = transpose(%p) {{perm = (0, 3, 1, 2)}} : 2x4x4x4x{MADE}
  %y = dequantize(%b) : 2x4x4x4xf32
  output(y=%y)
}}"""


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_no_transpose_stands_between_a_layer_and_its_integers(form: str, tmp_path: Path) -> None:
    graph = qir.fold(qir.parse(TEXT))
    qir.save(graph, tmp_path / "m.onnx", format=form)
    written = onnx.load(tmp_path / "m.onnx")
    assert Counter(node.op_type for node in written.graph.node)["Transpose"] == 0
    x = np.random.default_rng(3).normal(0, 1.5, (2, 3, 8, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (made,) = session.run(None, {"x": x})
    assert np.array_equal(made, qir.run(graph, {"x": x})["y"])

"""Onnxruntime's Resize on bytes themselves: the nearest of them, every width from 1 to 70.

Where a model asks it to interpolate between bytes, it cuts off what ONNX rounds: QIR keeps such a
node as it is, claims nothing of it, and gives it back. Between a dequantize and a quantize it does
so in floats (test_qdq_operators).
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from qir.backends.onnx.writer.graph import to_model
from qir.ledger import Ledger
from qir.reference.interpreter import run

from .contrib import Case, case, kept, loaded

KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}
PLACES = ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
ROUNDS = ("floor", "round_prefer_floor", "ceil", "round_prefer_ceil")


def resized(kind: str, width: int, **attrs: str) -> Case:
    rng = np.random.default_rng(width)
    carrier, element = KINDS[kind]
    least, most = np.iinfo(carrier).min, np.iinfo(carrier).max
    channels, height = (int(v) for v in rng.integers(1, 9, 2))
    x = rng.integers(least, most + 1, (1, channels, height, width)).astype(carrier)
    sizes = [1, channels, max(1, int(height * rng.uniform(0.4, 3))), int(rng.integers(1, 150))]
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], "it", **attrs)
    return case([node], {"x": x}, {"sizes": np.array(sizes, np.int64)}, {"y": element})


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_bytes_are_onnxruntimes(kind: str) -> None:
    for width in range(1, 71):
        how = {
            "mode": "nearest",
            "coordinate_transformation_mode": PLACES[width % 4],
            "nearest_mode": ROUNDS[width // 4 % 4],
        }
        made = resized(kind, width, **how)
        graph = loaded(made.proto)
        assert not kept(graph)
        (wanted,) = made.judged().values()
        (found,) = run(graph, dict(made.feeds)).values()
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape, how
        assert np.array_equal(found, wanted), (width, how)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_between_are_kept_as_they_are(kind: str) -> None:
    for width in range(1, 71, 8):
        made = resized(kind, width, mode="linear")
        graph = loaded(made.proto)
        assert kept(graph) == ["Resize"]
        (wanted,) = made.judged().values()
        again = Case(to_model(graph, Ledger()), made.feeds)
        (found,) = again.judged().values()
        assert np.array_equal(found, wanted), width

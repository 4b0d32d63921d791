"""Pixels moved in blocks: channels first or last, blocks before or after them, open sizes."""

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.tflite.writer.forms import converted
from qir.ir.attrs import Attr
from qir.ir.dtype import I8, I16
from qir.ir.types import QuantType, uniform
from tests.differential.tensorflow.kernels import HAS_VNNI

from .written import close, compared, kernels

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
IMAGES = {"known": "2 4 6", "batch": "(N) 4 6", "sides": "1 (H) (W)", "open": "(N) (H) (W)"}
MOVES = {
    "pixel shuffle": ("depth_to_space", "CRD"),
    "depth to space": ("depth_to_space", "DCR"),
    "space to depth": ("space_to_depth", ""),
}
TYPES = {
    "float": None,
    "i8": uniform(I8, np.float32(0.05), 3),
    "i16": uniform(I16, np.float32(0.05), 0),
}


def network(move: str, image: str, layout: str, quant: QuantType | None) -> qir.Graph:
    """The move of an image of 12 channels, between a quantize and a dequantize."""
    (op, mode), (n, height, width) = MOVES[move], IMAGES[image].split()
    sizes = (n, "12", height, width) if layout == "NCHW" else (n, height, width, "12")
    text = f"%x = input() : {'x'.join(sizes)}xf32"
    graph = qir.parse(f"graph main as native {{ {text}  output(y=%x) }}")
    x = graph["x"]
    if quant is not None:
        x = graph.add("quantize", {"x": x}, types=[x.type.with_element(quant)]).result
    attrs: dict[str, Attr] = {"block": 2, "layout": layout}
    if mode:
        attrs["mode"] = mode
    y = graph.add(op, {"x": x}, attrs, name="moved").result
    if quant is not None:
        y = graph.add("dequantize", {"x": y}).result
    graph.set_operand(graph.output, "y", y)
    return graph


@pytest.mark.parametrize("held", TYPES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("move", MOVES)
def test_the_interpreter_moves_the_same_pixels(
    move: str, image: str, layout: str, held: str, tmp_path: Path
) -> None:
    graph = network(move, image, layout, TYPES[held])
    shape = (2 if image in ("known", "batch", "open") else 1, 12, 4, 6)
    x = np.random.default_rng(5).normal(0, 3, shape).astype(np.float32)
    feeds = {"x": x if layout == "NCHW" else x.transpose(0, 2, 3, 1)}
    if held == "float":
        close(graph, feeds)
    else:
        compared(graph.copy(), feeds)
        whole = kernels(converted(graph, qir.Ledger()))
        assert whole == [MOVES[move][0]]
    path = tmp_path / "moved.tflite"
    qir.save(graph, path, target="tflite")
    (wanted,) = qir.run(graph, feeds).values()
    (found,) = qir.run(qir.load(path), feeds).values()
    assert np.array_equal(found, wanted)

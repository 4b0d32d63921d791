"""A recurrent model whose samples lie on axis 1, with feeds of varying length."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[np.generic]
LENGTHS = (5, 1, 9, 3, 3)
HIDDEN = 6


def network(seed: int = 5) -> onnx.ModelProto:
    """A GRU that is given its state, and a classifier of each step."""
    random = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(random.normal(0, 0.5, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("GRU", ["x", "w", "r", "", "", "h0"], ["y", "hn"], hidden_size=HIDDEN),
        helper.make_node("MatMul", ["y", "c"], ["logits"], "/classify"),
    ]
    weights = [weight("w", 1, 3 * HIDDEN, 4), weight("r", 1, 3 * HIDDEN, HIDDEN)]
    shapes: dict[str, list[str | int | None]] = {
        "x": ["T", "N", 4],
        "h0": [1, "N", HIDDEN],
        "logits": ["T", 1, "N", 3],
        "hn": [1, "N", HIDDEN],
    }
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    graph = helper.make_graph(
        nodes, "recurrent", infos[:2], infos[2:], [*weights, weight("c", HIDDEN, 3)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(seed: int = 6) -> list[dict[str, Array]]:
    """Feeds, each of its own length and number of samples."""
    random = np.random.default_rng(seed)
    return [
        {
            "x": random.standard_normal((length, number % 3 + 1, 4), np.float32),
            "h0": random.standard_normal((1, number % 3 + 1, HIDDEN), np.float32),
        }
        for number, length in enumerate(LENGTHS)
    ]


def write(folder: Path) -> None:
    """Both as files: model.onnx, and a folder of feeds."""
    onnx.save(network(), str(folder / "model.onnx"))
    (folder / "feeds").mkdir()
    for number, feed in enumerate(feeds()):
        np.savez(folder / "feeds" / f"{number}.npz", **feed)  # type: ignore[arg-type]


def run(path: Path, feed: Mapping[str, Array]) -> dict[str, Array]:
    """What onnxruntime gives."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))

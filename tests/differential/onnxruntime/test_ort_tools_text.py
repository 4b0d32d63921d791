"""A network of words, attention and a recurrent layer, as onnxruntime's tools quantize it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)

from qir import pipeline

from .test_ort_tools import every_form

FLOAT, WIDE = TensorProto.FLOAT, 64
SIZES = {"e": WIDE, "at": WIDE, "ln": WIDE, "m1": 128, "a1": 128, "r1": 128, "m2": WIDE, "a2": WIDE}


def network() -> onnx.ModelProto:
    """Rows of a table, attention, a norm, two products with a residual, an LSTM, a product."""
    rng, node = np.random.default_rng(0), helper.make_node
    held = [numpy_helper.from_array(np.array([1]), "one")]

    def weight(name: str, *shape: int) -> str:
        data = rng.standard_normal(shape) / np.sqrt(shape[-1])
        held.append(numpy_helper.from_array(data.astype(np.float32), name))
        return name

    own: dict[str, Any] = {"domain": "com.microsoft"}
    looks = ["e", weight("wq", WIDE, 3 * WIDE), weight("bq", 3 * WIDE)]
    normal = ["at", "e", weight("g", WIDE), weight("be", WIDE)]
    state = ["tr", weight("lw", 1, 64, WIDE), weight("lr", 1, 64, 16), weight("lb", 1, 128)]
    nodes = [
        node("Gather", [weight("rows", 40, WIDE), "x"], ["e"], "e"),
        node("Attention", looks, ["at"], "at", num_heads=4, **own),
        node("SkipLayerNormalization", normal, ["ln"], "ln", **own),
        node("MatMul", ["ln", weight("w1", WIDE, 128)], ["m1"], "m1"),
        node("Add", ["m1", weight("b1", 128)], ["a1"], "a1"),
        node("Relu", ["a1"], ["r1"], "r1"),
        node("MatMul", ["r1", weight("w2", 128, WIDE)], ["m2"], "m2"),
        node("Add", ["m2", "ln"], ["a2"], "a2"),
        node("Transpose", ["a2"], ["tr"], "tr", perm=[1, 0, 2]),
        node("LSTM", state, ["ly", ""], "ly", hidden_size=16),
        node("Squeeze", ["ly", "one"], ["ls"], "ls"),
        node("MatMul", ["ls", weight("w3", 16, 8)], ["y"], "y"),
    ]
    infos = [helper.make_tensor_value_info(n, FLOAT, ["N", 5, d]) for n, d in SIZES.items()]
    turned: dict[str, list[int | str]] = {
        "tr": [5, "N", WIDE],
        "ly": [5, 1, "N", 16],
        "ls": [5, "N", 16],
    }
    infos += [helper.make_tensor_value_info(n, FLOAT, s) for n, s in turned.items()]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["N", 5])
    y = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "text", [x], [y], held, value_info=infos)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def words(seed: int) -> Mapping[str, NDArray[np.int64]]:
    return {"x": np.random.default_rng(seed).integers(0, 40, (2, 5))}


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.left = iter([words(seed) for seed in range(4)])

    def get_next(self) -> Mapping[str, NDArray[np.int64]] | None:
        return next(self.left, None)


def quantized(folder: Path, name: str) -> onnx.ModelProto:
    """The network as a tool quantizes it."""
    logging.getLogger().setLevel(logging.ERROR)
    source, made = folder / "float.onnx", folder / "made.onnx"
    onnx.save(network(), source)
    kind, _, more = name.partition(" ")
    if kind == "dynamic":
        weights = QuantType.QInt8 if "i8" in more else QuantType.QUInt8
        quantize_dynamic(source, made, weight_type=weights, per_channel="channel" in more)
    elif kind == "static":
        form = QuantFormat.QDQ if "qdq" in more else QuantFormat.QOperator
        weights = QuantType.QInt8 if "i8" in more else QuantType.QUInt8
        options: dict[str, Any] = {"weight_type": weights, "per_channel": "channel" in more}
        integers = {"activation_type": QuantType.QUInt8, "quant_format": form}
        quantize_static(source, made, _Reader(), **integers, **options)
    else:
        config = DefaultWeightOnlyQuantConfig(
            block_size=16,
            is_symmetric=False,
            op_types_to_quantize=("MatMul", "Gather"),
            quant_axes=(("MatMul", 0), ("Gather", 1)),
        )
        tool = MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
        tool.process()
        onnx.save(tool.model.model, made)
    return onnx.load(made)


FEW = {
    "dynamic i8 channel": {"QAttention", "DynamicQuantizeLSTM", "MatMulInteger", "Gather"},
    "static i8 qoperator": {"QLinearMatMul", "QLinearAdd", "Gather"},
    "nbits gather": {"MatMulNBits", "GatherBlockQuantized"},
}
SLOW = {
    "dynamic u8": {"QAttention", "DynamicQuantizeLSTM"},
    "static u8 qdq": {"QuantizeLinear"},
    "static i8 qdq channel": {"QuantizeLinear"},
    "static u8 qoperator": {"QLinearMatMul"},
}
ALL = [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]


@pytest.mark.parametrize("name", ALL)
def test_every_form_gives_the_bytes_that_the_tools_model_gives(tmp_path: Path, name: str) -> None:
    given = quantized(tmp_path, name)
    assert {n.op_type for n in given.graph.node} >= (FEW | SLOW)[name]
    every_form(tmp_path, given, words(9))
    graph = pipeline.load(tmp_path / "m.onnx")
    assert not [n for n in graph if n.op == "foreign"]

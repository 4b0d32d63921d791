"""Models quantized by onnxruntime's own tools, in all the variants that they have."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)

Feeds = dict[str, NDArray[Any]]
OPSET = 21


def network(seed: int = 0) -> onnx.ModelProto:
    """Convolutions, a depthwise one, a residual sum, pools, a concatenation, and two products."""
    rng = np.random.default_rng(seed)
    initializers: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        data = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32)
        initializers.append(numpy_helper.from_array(data, name))
        return name

    node, pads = helper.make_node, [1, 1, 1, 1]
    nodes = [
        node("Conv", ["x", weight("w0", 8, 3, 3, 3), weight("b0", 8)], ["c0"], "c0", pads=pads),
        node("Relu", ["c0"], ["r0"], "r0"),
        node("Conv", ["r0", weight("w1", 8, 1, 3, 3)], ["c1"], "c1", pads=pads, group=8),
        node("Add", ["c1", "r0"], ["s1"], "s1"),
        node("MaxPool", ["s1"], ["p1"], "p1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", weight("w2", 8, 8, 1, 1), weight("b2", 8)], ["c2"], "c2"),
        node("Concat", ["c2", "p1"], ["k"], "k", axis=1),
        node("GlobalAveragePool", ["k"], ["g"], "g"),
        node("Flatten", ["g"], ["f"], "f"),
        node("MatMul", ["f", weight("w3", 16, 64)], ["m"], "m"),
        node("Sigmoid", ["m"], ["a"], "a"),
        node("Gemm", ["a", weight("w4", 64, 10), weight("b4", 10)], ["y"], "y"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])
    graph = helper.make_graph(nodes, "net", [x], [y], initializers)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def samples(count: int = 6, seed: int = 1) -> list[Feeds]:
    """Batches of two."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self.left: Iterator[Feeds] = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self.left, None)


STATIC = {
    f"{form.name.lower()}-{a.name}-{w.name}{'-channel' if channel else ''}": (form, a, w, channel)
    for form in (QuantFormat.QDQ, QuantFormat.QOperator)
    for a, w, channel in (
        (QuantType.QUInt8, QuantType.QInt8, False),
        (QuantType.QUInt8, QuantType.QInt8, True),
        (QuantType.QUInt8, QuantType.QUInt8, False),
        (QuantType.QInt8, QuantType.QInt8, True),
    )
} | {
    "qdq-QUInt16-QInt8": (QuantFormat.QDQ, QuantType.QUInt16, QuantType.QInt8, False),
    "qdq-QInt16-QInt16": (QuantFormat.QDQ, QuantType.QInt16, QuantType.QInt16, False),
    "qdq-QUInt8-QInt4": (QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt4, False),
}
"""What `quantize_static` is told."""
DYNAMIC = {
    f"dynamic-{w.name}{'-channel' if channel else ''}": (w, channel)
    for w, channel in (
        (QuantType.QInt8, False),
        (QuantType.QUInt8, False),
        (QuantType.QInt8, True),
    )
}
"""What `quantize_dynamic` is told."""
NBITS = {
    f"nbits-{bits}-{'symmetric' if even else 'affine'}-{form.name.lower()}": (bits, even, form)
    for bits, forms in (
        (4, (QuantFormat.QOperator, QuantFormat.QDQ)),
        (8, (QuantFormat.QOperator,)),
    )
    for even in (True, False)
    for form in forms
}
"""What the quantizer of weights in blocks is told."""
QDQ, OPERATOR = QuantFormat.QDQ, QuantFormat.QOperator
U8, I8, F8 = QuantType.QUInt8, QuantType.QInt8, QuantType.QFLOAT8E4M3FN


def _static(form: QuantFormat, a: QuantType, w: QuantType, **more: Any) -> dict[str, Any]:
    return {"quant_format": form, "activation_type": a, "weight_type": w, **more}


MORE: dict[str, dict[str, Any]] = {
    f"{form.name.lower()}-{name}": _static(form, a, w, **more)
    for form in (QDQ, OPERATOR)
    for name, a, w, more in (
        ("reduced", U8, I8, {"reduce_range": True}),
        ("reduced-channel", U8, I8, {"reduce_range": True, "per_channel": True}),
        ("affine-weights", U8, I8, {"extra_options": {"WeightSymmetric": False}}),
        ("symmetric", I8, I8, {"extra_options": {"ActivationSymmetric": True}}),
        ("u8-channel", U8, U8, {"per_channel": True}),
        ("entropy", I8, I8, {"calibrate_method": CalibrationMethod.Entropy}),
        ("some-ops", U8, I8, {"op_types_to_quantize": ["Conv", "MatMul"]}),
    )
} | {
    f"qdq-{name}": _static(QDQ, U8, I8, extra_options=options)
    for name, options in (
        ("own-pairs", {"DedicatedQDQPair": True}),
        ("real-bias", {"QuantizeBias": False}),
        ("weights-quantized-there", {"AddQDQPairToWeight": True}),
        ("contrib", {"UseQDQContribOps": True}),
        ("removable", {"QDQKeepRemovableActivations": True}),
    )
}
MORE |= {
    f"qdq-{a.name}-{w.name}{'-channel' if channel else ''}": _static(QDQ, a, w, per_channel=channel)
    for a in (QuantType.QUInt16, QuantType.QInt16)
    for w in (I8, QuantType.QUInt16, QuantType.QInt4, QuantType.QUInt4)
    for channel in (False, True)
}
MORE["qdq-float8"] = _static(QDQ, F8, F8, calibrate_method=CalibrationMethod.Distribution)
"""What else `quantize_static` may be told."""
MORE_DYNAMIC: dict[str, dict[str, Any]] = {
    f"dynamic-{w.name}-{name}": {"weight_type": w, **more}
    for w in (U8, I8)
    for name, more in (
        ("reduced", {"reduce_range": True}),
        ("reduced-channel", {"reduce_range": True, "per_channel": True}),
        ("affine", {"extra_options": {"WeightSymmetric": False}}),
        ("symmetric", {"extra_options": {"WeightSymmetric": True}}),
    )
}
"""What else `quantize_dynamic` may be told."""
TABLES = {f"table-{kind}": number for number, kind in enumerate(("fp4", "nf4"))}
"""Weights by a table of four bits."""
ALL = tuple(dict.fromkeys((*STATIC, *DYNAMIC, *NBITS, *MORE, *MORE_DYNAMIC, *TABLES, "nbits-hqq")))


def quantized(name: str, seed: int = 0) -> onnx.ModelProto:
    """The network as a tool quantizes it."""
    return made_of(name, network(seed), samples())


def made_of(name: str, proto: onnx.ModelProto, feeds: Sequence[Feeds]) -> onnx.ModelProto:
    """Returns a float model as a tool quantizes it, with these batches where it needs some."""
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        source, result = Path(folder) / "float.onnx", Path(folder) / "made.onnx"
        onnx.save(proto, source)
        if name in STATIC:
            form, activations, weights, channel = STATIC[name]
            options = _static(form, activations, weights, per_channel=channel)
            quantize_static(source, result, _Reader(feeds), **options)
        elif name in DYNAMIC:
            kind, channel = DYNAMIC[name]
            quantize_dynamic(source, result, weight_type=kind, per_channel=channel)
        elif name in MORE:
            quantize_static(source, result, _Reader(feeds), **MORE[name])
        elif name in MORE_DYNAMIC:
            quantize_dynamic(source, result, **MORE_DYNAMIC[name])
        else:
            return _by_blocks(name, onnx.load(source))
        return onnx.load(result)


def _by_blocks(name: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Weights alone, in blocks."""
    if name in TABLES:
        by_table = MatMulBnb4Quantizer(proto, TABLES[name], 16)
        by_table.process()
        quantized_model: onnx.ModelProto = by_table.model.model
        return quantized_model
    if name == "nbits-hqq":
        config = HQQWeightOnlyQuantConfig(block_size=16, axis=1)
    else:
        bits, symmetric, form = NBITS[name]
        config = DefaultWeightOnlyQuantConfig(
            block_size=16, is_symmetric=symmetric, bits=bits, quant_format=form
        )
    tool = MatMulNBitsQuantizer(proto, algo_config=config)
    tool.process()
    quantized_model = tool.model.model
    return quantized_model

"""Biases that are integers of another unit than the sums': QNNPACK and MXNet take them as
floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto as Proto
from onnx import helper, numpy_helper

from qir import pipeline
from qir.ledger import Ledger
from qir.passes.forms.group import Group

Codes = NDArray[np.signedinteger] | NDArray[np.unsignedinteger]
SCALES = {"other": 0.018, "near": 0.0003 * 1.004, "tiny": 1e-6}
W_SCALE, X_SCALE, Y_SCALE = (np.float32(v) for v in (0.01, 0.03, 0.1))


def convolution(
    bias: Codes, scale: float, zero: int, weights: Codes, *, about_zero: bool
) -> onnx.ModelProto:
    """A convolution between pairs, whose bias is integers with a scale and zero point of their
    own."""
    held = {
        "sx": X_SCALE,
        "zx": np.int8(0) if about_zero else np.uint8(128),
        "w": weights,
        "sw": W_SCALE,
        "zw": np.int8(0),
        "c": bias,
        "sc": np.float32(scale),
        "zc": bias.dtype.type(zero),
        "sy": Y_SCALE,
        "zy": np.int8(0) if about_zero else np.uint8(120),
    }
    pairs = [("QuantizeLinear", "x sx zx", "xq"), ("DequantizeLinear", "xq sx zx", "xd")]
    pairs += [("DequantizeLinear", "w sw zw", "wd"), ("DequantizeLinear", "c sc zc", "cd")]
    pairs += [("Conv", "xd wd cd", "r"), ("QuantizeLinear", "r sy zy", "y")]
    stored = Proto.INT8 if about_zero else Proto.UINT8
    graph = helper.make_graph(
        [helper.make_node(op, read.split(), [made]) for op, read, made in pairs],
        "g",
        [helper.make_tensor_value_info("x", Proto.FLOAT, [2, 4, 6, 6])],
        [helper.make_tensor_value_info("y", stored, [2, 10, 4, 4])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", ["i1", "u1", "i4"])
@pytest.mark.parametrize("profile", ["torch-2.13.qnnpack", "mxnet-1.9", "native"])
def test_a_bias_of_codes_in_another_unit_means_its_reals(
    profile: str, kind: str, scale: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed := 11)
    weights = rng.integers(-127, 128, (10, 4, 3, 3)).astype(np.int8)
    bias = rng.integers(0, 127, 10).astype(kind)
    zero = 0 if kind == "i4" else 60
    path = tmp_path / "m.onnx"
    qnnpack = profile == "torch-2.13.qnnpack"
    onnx.save(convolution(bias, SCALES[scale], zero, weights, about_zero=not qnnpack), path)
    graph = pipeline.load(path)
    Group(profile=profile).run(graph, Ledger())
    quantized = rng.integers(-127, 128, (2, 4, 6, 6))
    x = quantized.astype(np.float32) * X_SCALE
    (found,) = pipeline.run(graph, {"x": x}).values()
    floats = (bias.astype(np.float32) - np.float32(zero)) * np.float32(SCALES[scale])
    if qnnpack:
        given = torch.quantize_per_tensor(torch.from_numpy(x), float(X_SCALE), 128, torch.quint8)
        wanted = by_qnnpack(given, weights, floats)
        assert np.array_equal(found, wanted), f"seed {seed}"
        return
    sums = torch.nn.functional.conv2d(
        torch.from_numpy(quantized), torch.from_numpy(weights.astype("i8"))
    )
    unit = float(X_SCALE) * float(W_SCALE)
    real = sums.numpy() * unit + floats.astype(np.float64).reshape(1, -1, 1, 1)
    wanted = np.clip(np.rint(real / float(Y_SCALE)), -128, 127)
    # A bias is rounded to the unit of the sums, a three hundredth of a code: at a tie one code.
    off = np.abs(found.astype(np.int64) - wanted)
    assert off.max() <= 1, f"seed {seed}"
    assert (off > 0).mean() <= 0.01, f"seed {seed}"


def by_qnnpack(x: torch.Tensor, weights: Codes, bias: NDArray[np.float32]) -> Codes:
    """What torch's engine makes of it."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "qnnpack"
    try:
        w = torch._make_per_tensor_quantized_tensor(torch.from_numpy(weights), float(W_SCALE), 0)
        sides = ([1, 1], [0, 0], [1, 1], 1)
        packed = torch.ops.quantized.conv2d_prepack(w, torch.from_numpy(bias), *sides)
        made = torch.ops.quantized.conv2d(x, packed, float(Y_SCALE), 120)
    finally:
        torch.backends.quantized.engine = engine
    quantized: NDArray[np.uint8] = made.int_repr().numpy()
    return quantized

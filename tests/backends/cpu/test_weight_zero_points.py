"""Weights about any zero point run on the int8 kernels, with the bytes of onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import qir
from qir.backends.cpu import CpuTarget
from tests.frontends.onnx.models import model, save
from tests.kernels.one import ISAS

F32 = np.float32
Tensor = NDArray[Any]
KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}
FLOAT = TensorProto.FLOAT


def integers(rng: np.random.Generator, kind: str, *shape: int, ends: bool = False) -> Tensor:
    info = np.iinfo(KINDS[kind][0])
    if ends:
        return rng.choice([info.min, info.max], shape).astype(KINDS[kind][0])
    return rng.integers(info.min, info.max + 1, shape).astype(KINDS[kind][0])


def zeros(rng: np.random.Generator, kind: str, count: int) -> Tensor:
    """Zero points of weights, each least or greatest as often as in between."""
    far = integers(rng, kind, count, ends=True)
    return np.where(rng.random(count) < 0.5, far, integers(rng, kind, count)).astype(far.dtype)


def compared(proto: onnx.ModelProto, feed: dict[str, Tensor], folder: Path, step: str) -> None:
    """Holds every byte of each instruction set against onnxruntime's."""
    path = save(proto, folder)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    (wanted,) = session.run(None, feed)
    graph = qir.load(path)
    for isa in ISAS:
        program = CpuTarget().compile(graph, threads=1, isa=isa)
        (got,) = (np.asarray(y) for y in program(**feed).values())
        assert not program.fallbacks
        assert step in {row.kind for row in program.describe()}
        assert got.dtype == wanted.dtype
        wrong = int((got != wanted).sum())
        assert got.tobytes() == wanted.tobytes(), f"{isa}: {wrong} of {got.size} differ"


CONVOLUTIONS = {
    # channels, output channels, groups
    "plain": (13, 37, 1),
    "first": (3, 32, 1),
    "grouped": (24, 36, 3),
    "narrow": (32, 32, 4),
    "depthwise": (70, 70, 70),
}


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("which", CONVOLUTIONS)
def test_convolutions(tmp_path: Path, which: str, kind: str) -> None:
    channels, out, groups = CONVOLUTIONS[which]
    for seed in range(3):
        rng = np.random.default_rng([91, seed])
        x = integers(rng, kind, 2, channels, 9, 11, ends=seed == 1)
        ends = seed == 1
        constants: dict[str, Tensor] = {
            "xs": np.array(0.04, F32), "xz": integers(rng, kind, 1)[0],
            "w": integers(rng, kind, out, channels // groups, 3, 3, ends=ends),
            "ws": rng.uniform(0.001, 0.01, out).astype(F32),
            "wz": np.full(out, zeros(rng, kind, 1)[0]),
            "ys": np.array(3.0, F32), "yz": integers(rng, kind, 1)[0],
            "b": rng.integers(-3000, 3000, out).astype(np.int32),
        }  # fmt: skip
        names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
        node = helper.make_node("QLinearConv", names, ["y"], "conv", pads=[1, 0, 2, 1],
                                strides=[1 + seed % 2, 1], group=groups)  # fmt: skip
        element = KINDS[kind][1]
        shape = [2, channels, 9, 11]
        proto = model([node], {"x": (element, shape)}, {"y": (element, None)}, constants)
        step = "depthwise" if which == "depthwise" else "conv2d"
        compared(proto, {"x": x}, tmp_path, step)


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("per_column", [False, True])
def test_matrix_products(tmp_path: Path, kind: str, per_column: bool) -> None:
    for seed, (m, k, n) in enumerate(((1, 7, 5), (9, 64, 33), (130, 65, 96))):
        rng = np.random.default_rng([92, seed])
        count = n if per_column else 1
        wz = zeros(rng, kind, count)
        constants: dict[str, Tensor] = {
            "xs": np.array(0.04, F32), "xz": integers(rng, kind, 1)[0],
            "w": integers(rng, kind, k, n, ends=seed == 1),
            "ws": rng.uniform(0.001, 0.01, count).astype(F32), "wz": wz,
            "ys": np.array(1.0, F32), "yz": integers(rng, kind, 1)[0],
        }  # fmt: skip
        if not per_column:
            constants |= {name: constants[name][0] for name in ("ws", "wz")}
        node = helper.make_node(
            "QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], "product"
        )
        element = KINDS[kind][1]
        proto = model([node], {"x": (element, [m, k])}, {"y": (element, None)}, constants)
        compared(proto, {"x": integers(rng, kind, m, k)}, tmp_path, "linear")


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("weights", ["u8", "i8"])
def test_products_whose_numbers_a_run_finds(
    tmp_path: Path, weights: str, per_column: bool, biased: bool
) -> None:
    for seed, (m, k, n) in enumerate(((1, 7, 5), (70, 64, 33))):
        rng = np.random.default_rng([93, seed])
        constants: dict[str, Tensor] = {
            "w": integers(rng, weights, k, n, ends=seed == 1),
            "wz": zeros(rng, weights, n) if per_column else zeros(rng, weights, 1)[0],
            "ws": rng.uniform(0.001, 0.01, n if per_column else 1).astype(F32),
            "b": rng.normal(size=n).astype(F32),
        }
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
            helper.make_node("Mul", ["s", "ws"], ["scale"]),
            helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
            helper.make_node("Mul", ["f", "scale"], ["m" if biased else "y"]),
        ]
        if biased:
            nodes.append(helper.make_node("Add", ["b", "m"], ["y"]))
        proto = model(nodes, {"x": (FLOAT, [2, m, k])}, {"y": (FLOAT, None)}, constants)
        x = rng.normal(size=(2, m, k)).astype(F32)
        compared(proto, {"x": x}, tmp_path, "dynamic_linear")


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("weights", ["u8", "i8"])
@pytest.mark.parametrize("which", CONVOLUTIONS)
def test_convolutions_whose_numbers_a_run_finds(
    tmp_path: Path, which: str, weights: str, per_channel: bool
) -> None:
    channels, out, groups = CONVOLUTIONS[which]
    rng = np.random.default_rng(94)
    constants: dict[str, Tensor] = {
        "w": integers(rng, weights, out, channels // groups, 3, 3),
        "wz": zeros(rng, weights, 1)[0],
        "ws": rng.uniform(0.001, 0.01, (1, out, 1, 1) if per_channel else 1).astype(F32),
        "b": rng.normal(size=out).astype(F32),
        "to": np.array([1, out, 1, 1], np.int64),
    }
    # As onnxruntime's quantize_dynamic writes it, with the bias in a shape of its own.
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["i"], pads=[2, 1, 0, 1],
                         strides=[1, 2], group=groups),
        helper.make_node("Mul", ["s", "ws"], ["scale"]),
        helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["f", "scale"], ["m"]),
        helper.make_node("Reshape", ["b", "to"], ["bias"]),
        helper.make_node("Add", ["m", "bias"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": (FLOAT, [2, channels, 9, 8])}, {"y": (FLOAT, None)}, constants)
    # Zero points other than 0: padding counts as them.
    x = (rng.normal(size=(2, channels, 9, 8)) + 1).astype(F32)
    compared(proto, {"x": x}, tmp_path, "dynamic_conv2d")


def test_images_stay_channels_last_between_dynamic_convolutions(tmp_path: Path) -> None:
    rng = np.random.default_rng(95)
    constants: dict[str, Tensor] = {"wz": np.array(0, np.int8)}
    nodes, x = [], "x"
    for i, (channels, out) in enumerate(((3, 16), (16, 24))):
        constants[f"w{i}"] = integers(rng, "i8", out, channels, 3, 3)
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [x], [f"q{i}", f"s{i}", f"z{i}"]),
            helper.make_node("ConvInteger", [f"q{i}", f"w{i}", f"z{i}"], [f"i{i}"]),
            helper.make_node("Cast", [f"i{i}"], [f"f{i}"], to=FLOAT),
            helper.make_node("Mul", [f"f{i}", f"s{i}"], [f"m{i}"]),
            helper.make_node("Relu", [f"m{i}"], [x := f"r{i}"]),
        ]
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["mean"]))
    proto = model(nodes, {"x": (FLOAT, [1, 3, 12, 12])}, {"mean": (FLOAT, None)}, constants)
    program = CpuTarget().compile(qir.load(save(proto, tmp_path)), threads=1)
    data = rng.normal(size=(1, 3, 12, 12)).astype(F32)
    program(x=data)
    kinds = [row.kind for row in program.describe()]
    between = kinds[kinds.index("dynamic_conv2d") : len(kinds) - kinds[::-1].index("encode")]
    assert between == ["dynamic_conv2d", "float_bound", "choose", "encode"]
    compared(model(nodes[:-1], {"x": (FLOAT, [1, 3, 12, 12])}, {x: (FLOAT, None)}, constants),
             {"x": data}, tmp_path, "dynamic_conv2d")  # fmt: skip

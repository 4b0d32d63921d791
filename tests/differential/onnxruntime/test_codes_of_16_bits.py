"""Models of 16-bit integers, which onnxruntime computes in float32 between dequantize and quantize.

Each operator of each model is held against the interpreter on what onnxruntime gave it. What rounds
once, quantize and dequantize first of all, is equal to the byte. A float sum may be added up in any
order: its floats lie within the bound of float32 sums, its integers within what `qir` says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qir import pipeline
from qir.inspect.float_sums import float_sums
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from tests.cli.command import qir
from tests.differential.networks import network
from tests.differential.proof import SUMS, ULP, Exact, real
from tests.differential.runtime import run
from tests.installed import OPTIMIZED, UNOPTIMIZED

from . import ort_tools

Values = Mapping[str, NDArray[Any]]
NAMES = tuple(n for n in ort_tools.ALL if n.startswith(("qdq-QUInt16", "qdq-QInt16")))
FEW = ("qdq-QUInt16-QInt8", "qdq-QInt16-QInt16", "qdq-QUInt16-QUInt16-channel")
LEAST = 2.0**-149
CURVE = 2.0**-22
"""Of sigmoid, which is a quotient of polynomials, by its greatest value."""
TYPE = helper.np_dtype_to_tensor_dtype


def everything(proto: onnx.ModelProto, feeds: Values, *, optimize: bool) -> dict[str, Any]:
    """Every tensor between operators, as onnxruntime computes it."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    known = {o.name for o in proto.graph.output}
    names = [o for n in proto.graph.node for o in n.output if o]
    out.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
    held = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    return {**held, **feeds, **run(out, feeds, optimize=optimize)}


def alone(proto: onnx.ModelProto, node: onnx.NodeProto, values: Values) -> onnx.ModelProto:
    """One operator, its operands inputs where they are no initializers."""
    held = [t for t in proto.graph.initializer if t.name in node.input]
    fixed = {t.name for t in held}
    names = [i for i in dict.fromkeys(node.input) if i and i not in fixed]
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TYPE(values[n].dtype), values[n].shape) for n in some]
        for some in (names, [o for o in node.output if o])
    )
    graph = helper.make_graph([node], "one", inputs, outputs, held)
    return helper.make_model(
        graph, opset_imports=list(proto.opset_import), ir_version=proto.ir_version
    )


def normalized(node: onnx.NodeProto, values: Values) -> Exact:
    """BatchNormalization, by a factor and an addend of each channel, or as it is written."""
    x, gain, shift, mean, variance = (values[i].astype(np.float64) for i in node.input)
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    factor = (gain / np.sqrt(variance + epsilon)).reshape(-1, *(1,) * (x.ndim - 2))
    mean, shift = mean.reshape(factor.shape), shift.reshape(factor.shape)
    size = abs(x * factor) + abs(mean * factor) + abs(shift)
    return Exact((x - mean) * factor + shift, 8 * ULP * size)


def held_apart(
    tmp_path: Path, proto: onnx.ModelProto, values: Values, found: Counter[str]
) -> dict[str, NDArray[Any]]:
    """Holds each operator to what is said of it, and counts what differs; QIR's float sums."""
    path, sums = tmp_path / "one.onnx", dict[str, NDArray[Any]]()
    for node in proto.graph.node:
        part = alone(proto, node, values)
        onnx.save(part, path)
        given = {i.name: values[i.name] for i in part.graph.input}
        mine = pipeline.run(pipeline.load(path), given, profile=UNOPTIMIZED)
        (name,) = node.output
        differ = mine[name] != values[name]
        found[node.op_type] += int(differ.sum())
        found["all"] += differ.size
        if node.op_type == "BatchNormalization":
            exact = normalized(node, values)
        elif node.op_type in SUMS:
            exact = real(name, {name: node}, {i: values[i] for i in node.input if i})
        else:
            assert not differ.any(), f"{node.op_type} {node.name}: {differ.sum()} differ"
            continue
        sums[name], least = mine[name], LEAST if node.op_type != "Sigmoid" else CURVE
        for floats in (mine[name], values[name]):
            off = abs(floats.astype(np.float64) - exact.value)
            assert (off <= exact.bound * (1 + 1e-9) + least).all()
    return sums


def codes_of(
    proto: onnx.ModelProto, name: str, floats: NDArray[Any], values: Values
) -> tuple[str, NDArray[Any]]:
    """What onnxruntime makes of a sum, up to its integers."""
    while True:
        (node,) = [n for n in proto.graph.node if name in n.input]
        part = alone(proto, node, values)
        given = {i.name: values[i.name] for i in part.graph.input}
        name, floats = (
            node.output[0],
            run(part, {**given, name: floats}, optimize=False)[node.output[0]],
        )
        if node.op_type == "QuantizeLinear":
            return name, floats


def held(tmp_path: Path, proto: onnx.ModelProto, feeds: Values) -> tuple[Counter[str], int]:
    """Holds a model's operators, with onnxruntime's optimizer on and off, to what is said of each;
    how much of each differs, and how many integers do."""
    path, found, others = tmp_path / "m.onnx", Counter[str](), 0
    onnx.save(proto, path)
    graph = pipeline.load(path)
    told = {s.node: s for s in float_sums(graph)}
    for optimize in (False, True):
        values = everything(proto, feeds, optimize=optimize)
        mine = held_apart(tmp_path, proto, values, found)
        assert set(mine) == set(told)  # it says so of all that may differ, and of nothing else
        for name, floats in mine.items():
            most = told[name].codes
            if most is None:
                continue
            quantized, made = codes_of(proto, name, floats, values)
            gap = abs(made.astype(np.int64) - values[quantized].astype(np.int64))
            assert gap.max() <= most
            others += int((gap > 0).sum())
    return found, others


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_float_sums_alone_differ_within_their_bound(tmp_path: Path, name: str) -> None:
    feeds = {"x": np.concatenate([f["x"] for f in ort_tools.samples(40, seed=9)])}
    found, others = held(tmp_path, ort_tools.quantized(name), feeds)
    assert found["Conv"]  # there is something to bound
    assert found["MatMul"]
    assert 0 < others < found["all"] / 100


@pytest.mark.parametrize(
    "seed", [n if n < 2 else pytest.param(n, marks=pytest.mark.slow) for n in range(20)]
)
def test_float_sums_alone_differ_in_random_networks(tmp_path: Path, seed: int) -> None:
    of = network(seed)
    for name in FEW[:2]:
        held(tmp_path, ort_tools.made_of(name, of.proto, of.calibration), of.feeds)


def test_it_is_said_in_one_line(tmp_path: Path) -> None:
    path, made, data = tmp_path / "m.onnx", tmp_path / "made.onnx", tmp_path / "x.npz"
    onnx.save(ort_tools.quantized(FEW[0]), path)
    np.savez(data, x=np.concatenate([f["x"] for f in ort_tools.samples(50, seed=9)]))
    line = (
        "7 ops are computed in float32 (3 conv2d, 1 global_avg_pool, 1 matmul, 1 sigmoid, 1 gemm): "
        "{} adds sums up in an order of its own, so a last bit may be another, and a "
        "quantized value next to a tie, by 2 at most for one op"
    )
    for form in ("qdq", "qoperator"):
        ledger = Ledger()
        pipeline.save(pipeline.load(path), made, format=form, ledger=ledger, force=True)
        (entry,) = [e for e in ledger if "16 bits" in e.reason]
        assert entry.reason == "quantized values of 16 bits: " + line.format("the runtime")
        assert entry.change is Change.REGROUPED
    told = qir("run", path, "--data", data, "--compare", "reference,onnxruntime")
    assert told.status == 1
    assert line.format("each engine") in flat(told.out)
    told = qir("verify", path, "--target", "onnxruntime")
    assert line.format("onnxruntime") in flat(told.out)
    told = qir("group", path, "--as", OPTIMIZED, "-o", tmp_path / "made.qir")
    assert line.format("the runtime") in flat(told.out)
    told = qir("group", path, "--as", OPTIMIZED, "-o", tmp_path / "json.qir", "--json")
    found = json.loads(told.out)["float_sums"]
    assert Counter(s["op"] for s in found)["conv2d"] == 3
    assert len(found) == 7
    assert {s["bits"] for s in found} == {16}
    assert max(s["codes"] or 0 for s in found) == 2


def flat(text: str) -> str:
    return " ".join(text.split())


def test_quantize_and_dequantize_are_onnxruntimes_to_the_byte(tmp_path: Path) -> None:
    """Ties, their neighbours, and what lies beyond the ends, by scales and zeros of any kind."""
    rng, path = np.random.default_rng(16), tmp_path / "m.onnx"
    for round_ in range(24):
        kind, channels = (np.uint16, np.int16)[round_ % 2], (1, 5)[round_ % 3 == 0]
        ends = np.iinfo(kind)
        scales = np.exp(rng.uniform(-14, 3, channels)).astype(np.float32)
        zeros = rng.integers(ends.min, ends.max + 1, channels).astype(kind)
        quantized = rng.integers(ends.min - 50, ends.max + 51, (channels, 2000))
        off = rng.choice([0, 0.5, -0.5, 0.25], quantized.shape)
        x = ((quantized - zeros[:, None].astype(np.int64) + off) * scales[:, None]).astype(
            np.float32
        )
        which = rng.integers(0, 3, x.shape)
        x = np.where(which == 1, np.nextafter(x, np.float32(np.inf)), x)
        x = np.where(which == 2, np.nextafter(x, np.float32(-np.inf)), x)
        if channels == 1:
            scales, zeros = scales.reshape(()), zeros.reshape(())
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=0),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=0),
        ]
        graph = helper.make_graph(
            nodes,
            "codes",
            [helper.make_tensor_value_info("x", TYPE(x.dtype), x.shape)],
            [
                helper.make_tensor_value_info("q", TYPE(zeros.dtype), x.shape),
                helper.make_tensor_value_info("y", TYPE(x.dtype), x.shape),
            ],
            [numpy_helper.from_array(scales, "s"), numpy_helper.from_array(zeros, "z")],
        )
        opsets = [helper.make_opsetid("", 21)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
        for optimize, profile in ((False, UNOPTIMIZED), (True, OPTIMIZED)):
            wanted = run(onnx.load(path), {"x": x}, optimize=optimize)
            found = pipeline.run(pipeline.load(path), {"x": x}, profile=profile)
            assert all(np.array_equal(found[n], wanted[n]) for n in "qy"), (kind, scales)


def test_what_is_added_once_makes_no_wide_codes() -> None:
    """A norm on 8-bit integers whose bias alone has 32 bits."""
    graph = parse(
        """graph main as ort-1.31 {
  %x = input() : 4x!quant.uniform<u8:f32, 0.1:128>
  %g = input() : 4x!quant.uniform<u8:f32, 0.02:3>
  %b = input() : 4x!quant.uniform<i32:f32, 0.002>
  %xr = dequantize(%x) : 4xf32
  %gr = dequantize(%g) : 4xf32
  %br = dequantize(%b) : 4xf32
  %n = layer_norm(%xr, %gr, beta=%br) : 4xf32
  %y = quantize(%n) : 4x!quant.uniform<u8:f32, 0.1:128>
  output(y=%y)
}"""
    )
    assert [(s.op, s.bits) for s in float_sums(graph)] == [("layer_norm", 8)]
    assert not float_sums(graph, 8)


def test_sums_of_two_and_numbers_chosen_for_data_have_one_right_float32(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sum", ["x", "y"], ["s"]),
        helper.make_node("DynamicQuantizeLinear", ["s"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
    ]
    floats = [helper.make_tensor_value_info(n, 1, [3, 50]) for n in "xyd"]
    made = helper.make_graph(nodes, "g", floats[:2], floats[2:])
    opset = [helper.make_opsetid("", 17)]
    proto = helper.make_model(made, opset_imports=opset, ir_version=8)
    onnx.save(proto, tmp_path / "m.onnx")
    graph = pipeline.load(tmp_path / "m.onnx")
    assert not float_sums(graph)
    rng = np.random.default_rng(3)
    for _ in range(100):
        feeds = {n: rng.normal(size=(3, 50)).astype(np.float32) for n in "xy"}
        expected = np.asarray(run(proto, feeds, optimize=True)["d"])
        assert expected.tobytes() == np.asarray(pipeline.run(graph, feeds)["d"]).tobytes()

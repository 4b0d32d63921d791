"""Models that quantize while they run: read, run, written back, beside onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from qir.backends.onnx import OnnxRuntimeTarget
from qir.backends.onnx.writer.graph import to_model
from qir.errors import Refused
from qir.frontends.onnx import OnnxFrontend
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.differential.onnxruntime.test_onnx_round_trip import again, outputs, same_bytes, skeleton
from tests.frontends.onnx.models import model, save

FLOAT, U8, I8, I32 = (getattr(TensorProto, n) for n in ("FLOAT", "UINT8", "INT8", "INT32"))
Tensor = NDArray[Any]
F = np.float32
SEED = 24


def loaded(proto: onnx.ModelProto, folder: Path) -> Graph:
    graph: Graph = OnnxFrontend().load(save(proto, folder), Ledger())
    check(graph)
    assert not [n for n in graph if n.op == "foreign"], "an op is kept as foreign"
    return graph


# -- what onnxruntime's own tool makes ------------------------------------------------------------


def mlp(seed: int) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    constants = {
        "w1": rng.normal(size=(16, 24)).astype(F),
        "b1": rng.normal(size=24).astype(F),
        "w2": rng.normal(size=(24, 5)).astype(F),
        "k": rng.normal(size=(4, 1, 3, 3)).astype(F),
    }
    node = helper.make_node
    nodes = [
        node("Reshape", ["x", "to"], ["image"], "reshape"),
        node("Conv", ["image", "k"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["rc"], "relu0"),
        node("Reshape", ["rc", "back"], ["flat"], "flat"),
        node("MatMul", ["flat", "w1"], ["m1"], "fc1"),
        node("Add", ["m1", "b1"], ["a1"], "bias1"),
        node("Relu", ["a1"], ["r1"], "relu1"),
        node("MatMul", ["r1", "w2"], ["y"], "fc2"),
    ]
    shapes = {"to": np.array([-1, 1, 4, 4], np.int64), "back": np.array([-1, 16], np.int64)}
    return model(
        nodes,
        {"x": (FLOAT, ["N", 16])},
        {"y": (FLOAT, ["M", 5])},
        {**constants, **shapes},
    )


def quantized(
    proto: onnx.ModelProto, folder: Path, *, per_channel: bool, kind: str
) -> onnx.ModelProto:
    quantize_dynamic(
        save(proto, folder, "float.onnx"),
        folder / "dynamic.onnx",
        per_channel=per_channel,
        weight_type=QuantType.QInt8 if kind == "i8" else QuantType.QUInt8,
        op_types_to_quantize=["MatMul"] if kind == "i8" else ["MatMul", "Conv"],
    )
    return onnx.load(folder / "dynamic.onnx")


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_a_model_that_quantize_dynamic_made(tmp_path: Path, per_channel: bool, kind: str) -> None:
    """Integer parts are equal byte for byte on the same floats; a code that moves moves the end."""
    for seed in range(4):
        proto = quantized(mlp(seed), tmp_path, per_channel=per_channel, kind=kind)
        found = [n.op_type for n in proto.graph.node]
        assert "MatMulInteger" in found
        assert ("ConvInteger" in found) == (kind == "u8")
        graph = loaded(proto, tmp_path)
        x = np.random.default_rng(seed).normal(size=(3, 16)).astype(F)
        _equal_integer_parts(graph, proto, x)
        (y,) = outputs(proto, {"x": x}, optimize=False)
        mine = run(graph, {"x": x})["y"]
        assert np.abs(mine - y).max() <= 0.02 * np.abs(y).max(), f"seed {seed}"
        written = again(proto, tmp_path)
        assert sorted(skeleton(written)) == sorted(skeleton(proto))
        same_bytes(proto, written, {"x": x}, f"seed {seed}")


def _equal_integer_parts(graph: Graph, proto: onnx.ModelProto, x: Tensor) -> None:
    """Each choice of numbers and each product, on what onnxruntime itself gave it."""
    kinds = {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}
    shown = [n for n in proto.graph.node if n.op_type in kinds]
    made = {o for n in proto.graph.node for o in n.output}
    names = sorted({t for n in shown for t in (*n.input, *n.output) if t in made})
    wanted = onnx.ModelProto()
    wanted.CopyFrom(proto)
    del wanted.graph.output[:]
    wanted.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    theirs = dict(zip(names, outputs(wanted, {"x": x}, optimize=False), strict=True)) | {"x": x}
    for node in shown:
        given = {n: theirs[n] for n in node.input if n in theirs}
        mine = run(_piece(graph, list(node.output), given), given)
        for name in node.output:
            assert mine[name].dtype == theirs[name].dtype
            assert np.array_equal(mine[name], theirs[name]), f"{node.op_type} {name}"


def _piece(graph: Graph, names: list[str], given: dict[str, Tensor]) -> Graph:
    """Some values of a graph, computed from others that are given."""
    out = graph.copy()
    out.remove(out.output)
    for name in given:
        old = out[name]
        if old.node.op != "input":
            out.rename(old, out.fresh(f"{name}.made"))
            fresh = out.add("input", types=[old.type], name=name, before=old.node)
            out.replace(old, fresh.result)
    out.add("output", {name: out[name] for name in names})
    out.prune()
    for value in out.inputs:
        if value.name not in given:
            out.remove(value.node)
    return out


# -- by hand --------------------------------------------------------------------------------------


def dynamic(outputs_wanted: list[str]) -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "choose"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "back"),
        node("MatMulInteger", ["q", "w", "z", "wz"], ["i"], "product"),
        node("Cast", ["i"], ["f"], "cast", to=FLOAT),
        node("Mul", ["f", "s"], ["y"], "scaled"),
        node("QuantizeLinear", ["y", "s", "z"], ["r"], "store"),
        node("Transpose", ["q"], ["t"], "turn", perm=[1, 0]),
    ]
    kinds = {"q": U8, "s": FLOAT, "z": U8, "d": FLOAT, "i": I32, "y": FLOAT, "r": U8, "t": U8}
    rank = {"s": 0, "z": 0}
    used = {"w": np.arange(40, dtype=np.int8).reshape(8, 5), "wz": np.arange(5, dtype=np.int8)}
    return model(
        nodes,
        {"x": (FLOAT, ["N", 8])},
        {n: (kinds[n], [None] * rank.get(n, 2)) for n in outputs_wanted},
        used,
    )


@pytest.mark.parametrize(
    "wanted", [["q", "s", "z"], ["y"], ["s"], ["z", "t"], ["q"], ["d", "r", "i"], ["r", "q", "d"]]
)
def test_each_result_of_a_dynamic_quantize_may_be_used_apart(
    tmp_path: Path, wanted: list[str]
) -> None:
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    proto = dynamic(wanted)
    graph = loaded(proto, tmp_path)
    written = again(proto, tmp_path)
    for _ in range(20):
        x = (rng.normal(size=(3, 8)) * 10.0 ** rng.integers(-10, 10)).astype(F)
        theirs = dict(zip(wanted, outputs(proto, {"x": x}, optimize=False), strict=True))
        mine = run(graph, {"x": x})
        for name, data in theirs.items():
            assert mine[name].dtype == data.dtype
            assert mine[name].tobytes() == data.tobytes(), name
        same_bytes(proto, written, {"x": x}, str(wanted))


@pytest.mark.parametrize("opset", [13, 21])
def test_computed_scales_are_read_and_written_as_they_are(tmp_path: Path, opset: int) -> None:
    rng = np.random.default_rng(SEED)
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "q1"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "d1"),
        node("Abs", ["scales"], ["each"], "abs"),
        node("QuantizeLinear", ["x", "each", "zeros"], ["p"], "q2", axis=1),
        node("DequantizeLinear", ["p", "each", "zeros"], ["e"], "d2", axis=1),
        node("DequantizeLinear", ["w", "each"], ["dw"], "d3", axis=0),
        node("QuantizeLinear", ["x", "s"], ["u"], "q3"),
        node("Reshape", ["q", "shape"], ["m"], "moved"),
        node("DequantizeLinear", ["m", "s", "z"], ["dm"], "d4"),
        node("DequantizeLinear", ["raw", "s", "z"], ["dr"], "d5"),
    ]
    proto = model(
        nodes,
        {
            "x": (FLOAT, [2, 3]),
            "s": (FLOAT, []),
            "z": (I8, []),
            "scales": (FLOAT, [3]),
            "raw": (I8, [4]),
        },
        {n: (FLOAT, [None] * 2) for n in ("d", "e", "dw", "dm")}
        | {"u": (U8, [2, 3]), "p": (I8, [2, 3]), "dr": (FLOAT, [4])},
        {
            "zeros": np.array([3, -4, 5], np.int8),
            "w": rng.integers(-128, 128, (3, 2)).astype(np.int8),
            "shape": np.array([3, 2], np.int64),
        },
        opset,
    )
    graph = loaded(proto, tmp_path)
    written = again(proto, tmp_path)
    assert skeleton(written) == skeleton(proto)
    names = [o.name for o in proto.graph.output]
    for _ in range(10):
        given: dict[str, Tensor] = {
            "x": rng.normal(size=(2, 3)).astype(F),
            "s": np.array(rng.random() + 0.01, F),
            "z": np.array(rng.integers(-128, 128), np.int8),
            "scales": rng.normal(size=3).astype(F),
            "raw": rng.integers(-128, 128, 4).astype(np.int8),
        }
        theirs = dict(zip(names, outputs(proto, given, optimize=False), strict=True))
        mine = run(graph, given)
        for name, data in theirs.items():
            assert mine[name].tobytes() == data.tobytes(), name
        same_bytes(proto, written, given, "computed")


def test_blocks_of_computed_scales(tmp_path: Path) -> None:
    rng = np.random.default_rng(SEED)
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "q", axis=1, block_size=2),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "d", axis=1, block_size=2),
    ]
    proto = model(
        nodes,
        {"x": (FLOAT, [3, 4]), "s": (FLOAT, [3, 2]), "z": (U8, [3, 2])},
        {"q": (U8, [3, 4]), "d": (FLOAT, [3, 4])},
        {},
        21,
    )
    graph, written = loaded(proto, tmp_path), again(proto, tmp_path)
    given: dict[str, Tensor] = {
        "x": rng.normal(size=(3, 4)).astype(F),
        "s": (rng.random((3, 2)) + 0.01).astype(F),
        "z": rng.integers(0, 256, (3, 2)).astype(np.uint8),
    }
    mine = run(graph, given)
    for name, data in zip("qd", outputs(proto, given, optimize=False), strict=True):
        assert mine[name].tobytes() == data.tobytes()
    same_bytes(proto, written, given, "blocks")


def test_static_integers_that_are_multiplied_raw(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        node("MatMulInteger", ["q", "w", "z"], ["y"], "m"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
    ]
    constants: dict[str, Tensor] = {
        "s": np.array(0.1, F),
        "z": np.array(7, np.uint8),
        "w": np.arange(-6, 6, dtype=np.int8).reshape(4, 3),
    }
    proto = model(
        nodes,
        {"x": (FLOAT, ["N", 4])},
        {"y": (I32, ["N", 3]), "d": (FLOAT, ["N", 4])},
        constants,
    )
    graph, written = loaded(proto, tmp_path), again(proto, tmp_path)
    x = np.random.default_rng(SEED).normal(size=(5, 4)).astype(F)
    mine = run(graph, {"x": x})
    for name, data in zip("yd", outputs(proto, {"x": x}, optimize=False), strict=True):
        assert mine[name].tobytes() == data.tobytes()
    assert [n.op_type for n in written.graph.node] == [n.op_type for n in proto.graph.node]
    same_bytes(proto, written, {"x": x}, "static")


# -- graphs of our own ----------------------------------------------------------------------------


def through(text: str, **inputs: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the interpreter and what onnxruntime make of a program."""
    graph = parse(f"graph g as native {{\n{text}\n}}")
    check(graph)
    session = OnnxRuntimeTarget().session(graph, threads=1, optimize=False)
    return run(graph, inputs), dict(session(**inputs))


CHOSEN = """%x = input() : 3x8xf32
%s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8
%q = quantize(%x, scale=%s, zero=%z) : 3x8x!quant.uniform<u8:f32, ?:?>
"""


@pytest.mark.parametrize(
    "body",
    [
        "%r = requantize(%q, x.scale=%s, x.zero=%z) : 3x8x!quant.uniform<u8:f32, 0.05:9>",
        "%a, %r = qparams(%q, x.scale=%s, x.zero=%z) : f32, u8",
        "%t = transpose(%q) {perm = (1, 0)} : 8x3x!quant.uniform<u8:f32, ?:?>\n"
        "%r = dequantize(%t, x.scale=%s, x.zero=%z) : 8x3xf32",
        "%r = fake_quantize(%x, code.scale=%s, code.zero=%z) {learn = 'lsq'} "
        "inner {code : !quant.uniform<u8:f32, ?:?>} : 3x8xf32",
        "%r = fake_quantize(%x) inner {code : !quant.uniform<i8:f32, 0.03:4>} : 3x8xf32",
        "%r = relu(%q, x.scale=%s, x.zero=%z, scale=%s, zero=%z) : 3x8x!quant.uniform<u8:f32, ?:?>",
    ],
)
def test_programs_of_our_own_are_written_for_onnxruntime(body: str) -> None:
    x = np.random.default_rng(SEED).normal(size=(3, 8)).astype(F)
    text = f"{CHOSEN}{body}\noutput(r=%r)".replace("'", '"')
    mine, theirs = through(text, x=x)
    assert mine["r"].dtype == theirs["r"].dtype
    assert mine["r"].tobytes() == theirs["r"].tobytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '%x = input() : 3xf32 %s, %z = choose_qparams(%x) {rule = "torch.dynamic", '
            "storage = u8} : f32, u8 output(s=%s, z=%z)",
            "s: the scale rule 'torch.dynamic' has no form in ONNX",
        ),
        (
            '%x = input() : 3xf32 %s = input() : f32 %q = quantize(%x, scale=%s) {round = "up"} : '
            "3x!quant.uniform<u8:f32, ?> output(q=%q)",
            "q: it rounds up; ONNX rounds halves to even",
        ),
        (
            "%x = input() : 3x3x!quant.uniform<u8:f32, ?> %s = input() : f32 "
            "%y = matmul(%x, %x, a.scale=%s, b.scale=%s) |> relu : 3x3xf32 output(y=%y)",
            "y: its quantization parameters are computed at run time; `format='qdq'` would do",
        ),
        (
            "%x = input() : 3xu8 %y = recode(%x) : 3xi8 output(y=%y)",
            "y: ONNX has no form for the bits of u8 as i8",
        ),
        (
            "%x = input() : 3xf32 %l = input() : f32 %h = input() : f32 "
            "%q = quantize(%x, min=%l, max=%h) : 3x!quant.uniform<u8:f32, ?:?> output(q=%q)",
            "q: its parameters are a range; ONNX takes scale and zero point",
        ),
    ],
)
def test_what_onnx_cannot_say_is_refused_in_one_line(text: str, message: str) -> None:
    graph = parse(f"graph g as native {{ {text} }}")
    with pytest.raises(Refused, match=message):
        to_model(graph, Ledger())

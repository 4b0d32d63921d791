"""Ops beside products, and float ops beside quantized values, with the reference's bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, save

import qir
from qir.backends.cpu import CpuTarget
from qir.backends.cpu import sizes as plain_sizes
from qir.backends.cpu.compiled import Compiled
from qir.ir.dtype import F32, U8, DType, dtype
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import Array, Granularity, TensorType, uniform
from qir.reference import interpreter

Q8, Q16 = "!quant.uniform<u8:f32, 0.02:117>", "!quant.uniform<u16:f32, 0.0005:30000>"
X = "%x = input() : 2x3x4xf32\n%z = input() : 2x3x4xf32"
COUNTS = "%x = input() : 2x3x4xi64\n%z = input() : 2x3x4xi64"
CODES = f"%q = input() : 2x3x4x{Q8}\n%x = dequantize(%q) : 2x3x4xf32"

GRAPHS = {
    "min": f"{X}\n%y = min(xs.0=%x, xs.1=%z) : 2x3x4xf32",
    "max of three": f"{X}\n%c = constant([0.25]) : 1xf32\n"
    "%y = max(xs.0=%x, xs.1=%z, xs.2=%c) : 2x3x4xf32",
    "sum of counts": f"{COUNTS}\n%y = add(%x, %z) : 2x3x4xi64",
    "apart": "%x = input() : 2x1x4x1xf32\n%z = input() : 1x3x4x5xf32\n"
    "%y = mul(%x, %z) : 2x3x4x5xf32",
    "comparison": f"{X}\n%y = less(%x, %z) : 2x3x4xbool",
    "choice": f"{X}\n%c = greater(%x, %z) : 2x3x4xbool\n%n = logical_not(%c) : 2x3x4xbool\n"
    "%y = where(%n, %x, %z) : 2x3x4xf32",
    "arg_max": f"{X}\n%y = arg_max(%x) {{axis = 1, keep = false}} : 2x4xi64",
    "arg_min, last": f"{COUNTS}\n%y = arg_min(%x) {{axis = 2, last = true}} : 2x3x1xi64",
    "top_k": f"{X}\n%y, %i = top_k(%x) {{k = 2, axis = 1}} : 2x2x4xf32, 2x2x4xi64",
    "reduce_sum": f"{X}\n%y = reduce_sum(%x) {{axes = (0, 2), keep = false}} : 3xf32",
    "reduce_l2": f"{X}\n%y = reduce_l2(%x) {{axes = (1,)}} : 2x1x4xf32",
    "reduce_prod": f"{COUNTS}\n%y = reduce_prod(%x) {{axes = (2,)}} : 2x3x1xi64",
    "cast": f"{X}\n%c = cast(%x) {{to = i32}} : 2x3x4xi32\n%y = cast(%c) {{to = f32}} : 2x3x4xf32",
    "exp": f"{X}\n%y = exp(%x) : 2x3x4xf32",
    "neg": f"{COUNTS}\n%y = neg(%x) : 2x3x4xi64",
    "sigmoid beside codes": f"{CODES}\n%a = add(%x, %x) : 2x3x4xf32\n%s = softmax(%a) : 2x3x4xf32\n"
    f"%t = tanh(%s) : 2x3x4xf32\n%g = gelu(%t) : 2x3x4xf32\n%y = quantize(%g) : 2x3x4x{Q16}",
    "softmax of an outer axis": f"{X}\n%s = softmax(%x) {{axis = 1}} : 2x3x4xf32\n"
    f"%y = quantize(%s) : 2x3x4x{Q16}",
    "backwards": f"{X}\n%y = slice(%x) {{starts = (-1, 0), ends = (-9, 3), axes = (2, 1), "
    "steps = (-2, 2)} : 2x2x2xf32",
    "flip": f"{COUNTS}\n%y = flip(%x) {{axes = (0, 2)}} : 2x3x4xi64",
    "tile": f"{X}\n%y = tile(%x) {{repeats = (1, 2, 3)}} : 2x6x12xf32",
    "max_pool1d": f"{X}\n%y = max_pool1d(%x) {{kernel = (3,), pad = (1, 0)}} : 2x3x3xf32",
    "avg_pool1d": f"{X}\n%y = avg_pool1d(%x) {{kernel = (2,), stride = (2,)}} : 2x3x2xf32",
    "is_nan": f"{X}\n%y = is_nan(%x) : 2x3x4xbool",
    "global_max_pool": "%x = input() : 2x3x4x5xf32\n%y = global_max_pool(%x) : 2x3x1x1xf32",
    "16 bits": f"%x = input() : 2x3x4xf32\n%q = quantize(%x) : 2x3x4x{Q16}\n"
    "%y = dequantize(%q) : 2x3x4xf32",
}  # fmt: skip


def run(text: str, **arrays: NDArray[np.generic]) -> Compiled:
    """Compiles a graph without Python calls, and holds it to the reference's bytes."""
    given = "\n".join(
        f"array @{name} : {'x'.join(map(str, a.shape))}x{str(a.dtype)[0]}{8 * a.itemsize}"
        for name, a in arrays.items()
    )
    graph = parse(f"{given}\ngraph main {{\n{text}\noutput(y = %y)\n}}", arrays)
    made = CpuTarget().compile(graph)
    assert not made.fallbacks
    rng = np.random.default_rng(21)
    data: dict[str, NDArray[np.generic]] = {}
    for value in graph.inputs:
        shape: Any = value.type.shape
        numbers = rng.normal(size=shape) * 3
        if value.type.quant is not None:
            numbers = rng.integers(0, 256, shape)
        data[value.name] = numbers.astype(value.type.dtype.carrier)
    got = made(**data)
    for name, wanted in interpreter.run(made.graph, data).items():
        assert np.asarray(got[name]).tobytes() == wanted.tobytes()
    return made


@pytest.mark.parametrize("what", GRAPHS)
def test_ops_are_steps_of_compiled_code(what: str) -> None:
    run(GRAPHS[what])


CONVS = [
    ("Conv", (1, 4, 9), (6, 2, 3), {"group": 2, "strides": [2], "pads": [1, 1]}),
    ("Conv", (2, 3, 4, 5, 6), (4, 3, 2, 3, 3), {"pads": [0, 1, 1, 0, 1, 1]}),
    ("ConvTranspose", (1, 4, 5), (4, 2, 3), {"strides": [2], "output_padding": [1]}),
    ("ConvTranspose", (2, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("ConvTranspose", (1, 4, 3, 4, 5), (4, 1, 2, 2, 2), {"group": 2, "strides": [1, 2, 2]}),
]


@pytest.mark.parametrize(("op", "shape", "kernel", "attrs"), CONVS)
def test_convolutions_of_every_kind_are_near_onnxruntime(
    op: str, shape: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], tmp_path: Any
) -> None:
    rng = np.random.default_rng(22)
    w = rng.normal(size=kernel).astype(np.float32)
    count = kernel[0] if op == "Conv" else kernel[1] * attrs.get("group", 1)
    b = rng.normal(size=count).astype(np.float32)
    held = [helper.make_tensor(n, TensorProto.FLOAT, a.shape, a.reshape(-1).tolist())
            for n, a in (("w", w), ("b", b))]  # fmt: skip
    net = helper.make_graph(
        [helper.make_node(op, ["x", "w", "b"], ["y"], "conv", **attrs)], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], held,
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(net, opset_imports=opset, ir_version=8), path)
    x = rng.normal(size=shape).astype(np.float32)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    made = qir.compile(qir.load(path), threads=2)
    assert isinstance(made, Compiled)
    assert not made.fallbacks
    assert np.allclose(np.asarray(made(x=x)["y"]), wanted, rtol=1e-5, atol=1e-5)


def quantized_layers(
    cases: list[tuple[tuple[int, ...], dict[str, Any]]], shape: tuple[int, ...], folder: Path
) -> tuple[Compiled, NDArray[np.generic], NDArray[np.generic]]:
    """Returns quantized layers of Conv and Relu, their result, and that of onnxruntime."""
    rng = np.random.default_rng(25)
    nodes, held, x = [], [], "x"
    for i, (kernel, attrs) in enumerate(cases):
        w = rng.normal(size=kernel)
        held.append(helper.make_tensor(f"w{i}", TensorProto.FLOAT, w.shape, w.reshape(-1).tolist()))
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], **attrs))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        x = f"r{i}"
    shapes = zip(("x", x), (list(shape), None), strict=True)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes]
    net = helper.make_graph(nodes, "net", ends[:1], ends[1:], held)
    source, path = folder / "float.onnx", folder / "int8.onnx"
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(net, opset_imports=opset, ir_version=8), source)
    data = rng.normal(size=shape).astype(np.float32)
    graph = qir.load(source)
    qir.save(qir.quantize(graph, qir.calibrate(graph, data)), path)
    made = qir.compile(qir.load(path), threads=2)
    assert isinstance(made, Compiled)
    assert not made.fallbacks
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": data})
    return made, np.asarray(made(x=data)[x]), wanted


def test_quantized_convolutions_of_one_axis_give_onnxruntimes_integers(tmp_path: Path) -> None:
    cases: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((6, 4, 3), {"pads": [1, 1]}),
        ((6, 1, 3), {"group": 6, "strides": [2]}),
        ((5, 6, 2), {"group": 1, "dilations": [2]}),
    ]
    made, found, wanted = quantized_layers(cases, (2, 4, 19), tmp_path)
    assert [step.kind for step in made.describe()].count("conv2d") == 2  # and a depthwise one
    assert np.array_equal(found, wanted)


def test_quantized_convolutions_of_three_axes_give_onnxruntimes_integers(tmp_path: Path) -> None:
    cases: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((6, 4, 3, 3, 3), {"pads": [1, 0, 1, 2, 1, 0]}),
        ((6, 3, 2, 3, 1), {"group": 2, "strides": [2, 1, 2]}),
        ((6, 1, 3, 2, 2), {"group": 6, "pads": [2, 1, 0, 0, 0, 1], "dilations": [2, 1, 1]}),
        ((5, 6, 1, 1, 1), {"strides": [1, 2, 1]}),
    ]
    made, found, wanted = quantized_layers(cases, (2, 4, 9, 8, 7), tmp_path)
    assert "wide_conv" not in [step.kind for step in made.describe()]
    assert np.array_equal(found, wanted)


PRODUCTS = {
    "matmul": "%y = matmul(%x, %w) {trans_b = true} : 2x3x5xf32",
    "linear": "%c = constant([1.0, 2.0, 3.0, 4.0, 5.0]) : 5xf32\n"
    "%r = linear(%x, %w, bias=%c) : 2x3x5xf32\n%y = relu(%r) : 2x3x5xf32",
    "bounded": "%y = matmul(%x, %w) {trans_b = true} |> relu(.) : 2x3x5xf32",
    "batches": "%y = matmul(%x, %x) {trans_b = true} : 2x3x3xf32",
    "trans_a": "%y = matmul(%x, %x) {trans_a = true} : 2x4x4xf32",
}  # fmt: skip


@pytest.mark.parametrize("what", PRODUCTS)
def test_float_products_beside_codes_are_sums_of_float64(what: str) -> None:
    w = (np.random.default_rng(23).integers(-9, 10, (5, 4)) / 8).astype(np.float32)
    made = run(f"{CODES}\n%w = constant(@w) : 5x4xf32\n{PRODUCTS[what]}", w=w)
    assert "wide_product" in [step.kind for step in made.describe()]


@pytest.mark.parametrize("storage", [dtype("u4"), dtype("i4"), U8])
@pytest.mark.parametrize("turned", [True, False])
def test_weights_in_blocks_stay_integers(
    storage: DType, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_sizes, "MAX_FOLDED_ELEMENTS", 0)  # as large weights are
    rng = np.random.default_rng(24)
    low, high = storage.bounds
    shape, table = ((5, 6), (5, 3)) if turned else ((6, 5), (3, 5))
    blocks = ((0, 1), (1, 2)) if turned else ((0, 2), (1, 1))
    scale = rng.uniform(0.1, 0.3, table).astype(np.float32)
    zero = rng.integers(low, high + 1, table)
    kind = replace(
        uniform(storage, scale[0, 0]),
        granularity=Granularity(blocks),
        scale=Array.of(scale, "s"),
        zero=Array.of(zero.astype(storage.carrier), "z"),
    )
    quantized = rng.integers(low, high + 1, shape).astype(storage.carrier)
    graph = Graph()
    x = graph.add("input", types=[TensorType((2, 3, 6), F32)], name="x").result
    c = graph.constant(Array(quantized, TensorType(shape, kind), "c"))
    w = graph.add("dequantize", {"x": c}, types=[TensorType(shape, F32)]).result
    y = graph.add("matmul", {"a": x, "b": w}, {"trans_b": turned},
                  types=[TensorType((2, 3, 5), F32)]).result  # fmt: skip
    graph.add("output", {"y": y})
    made = CpuTarget().compile(graph)
    assert [step.kind for step in made.describe()] == ["wide_product"]
    data = {"x": rng.normal(size=(2, 3, 6)).astype(np.float32)}
    wanted = interpreter.run(graph, data)["y"]
    assert np.asarray(made(**data)["y"]).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("stated", ["even", "away"])
def test_a_quantize_that_states_how_it_rounds_runs_compiled(stated: str) -> None:
    text = f"""graph main {{
      %x = input() : 1x2x3x40xf32
      %q = quantize(%x) {{round = "{stated}"}} : 1x2x3x40x!quant.uniform<i8:f32, 0.5:3>
      %y = dequantize(%q) : 1x2x3x40xf32
      output(q = %q, y = %y)
    }}"""
    made = CpuTarget().compile(parse(text, {}))
    assert not made.fallbacks
    x = np.arange(-120, 120, dtype=np.float32).reshape(1, 2, 3, 40) / 4  # half are ties
    halves = 2 * x.astype(np.float64)
    away = np.copysign(np.floor(np.abs(halves) + 0.5), halves)
    assert np.array_equal(made(x=x)["q"], (np.rint(halves) if stated == "even" else away) + 3)

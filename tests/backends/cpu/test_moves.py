"""Slices, parts, single indices, broadcasting and means: views of integers where they can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qir._kernels._cpu import isa
from qir.backends.cpu import CpuTarget
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.reference import interpreter

from .nets import Net
from .test_lowering import agrees, like

Q = "!quant.uniform<u8:f32, 0.031:117>"


def kinds(graph: Graph, data: dict[str, Any], **options: Any) -> list[str]:
    """The kinds of the steps of a graph, whose results are those of the reference."""
    compiled = CpuTarget().compile(graph, **options)
    assert compiled.fallbacks == ()
    got = compiled(**data)
    for name, wanted in interpreter.run(compiled.graph, data).items():
        assert np.asarray(got[name]).tobytes() == wanted.tobytes(), name
    return [row.kind for row in compiled.describe()]


@pytest.mark.parametrize("element", [Q, "f32", "i64"])
@pytest.mark.parametrize(
    ("op", "shape", "index"),
    [
        ("slice(%x) {starts = (1,), ends = (9,), axes = (1,), steps = (2,)}",
         "2x2x6x5", np.s_[:, 1::2]),
        ("slice(%x) {starts = (1, -4), ends = (2, -1), axes = (0, 2), steps = (1, 1)}",
         "1x4x3x5", np.s_[1:2, :, -4:-1]),
        ("gather(%x, %i) {axis = 2}", "2x4x5", np.s_[:, :, -2]),
        ("gather(%x, %j) {axis = 1}", "2x1x6x5", np.s_[:, 3:4]),
    ],
)  # fmt: skip
def test_elements_are_taken_by_one_copy(element: str, op: str, shape: str, index: Any) -> None:
    graph = parse(f"""
    graph main as ort-1.31 {{
      %x = input() : 2x4x6x5x{element}
      %i = constant(-2) : i64
      %j = constant([3]) : 1xi64
      %y = {op} : {shape}x{element}
      output(y = %y)
    }}
    """)
    carrier = graph.inputs[0].type.dtype.carrier
    x = np.random.default_rng(51).integers(0, 256, (2, 4, 6, 5)).astype(carrier)
    assert kinds(graph, {"x": x}) == ["strided"]
    assert np.array_equal(np.asarray(CpuTarget().compile(graph)(x=x)["y"]), x[index])


def test_parts_of_channels_last_stay_so() -> None:
    text = f"""
    graph main {{
      %x = input() : 2x12x6x5x{Q}
      %p = max_pool2d(%x) {{kernel = (2, 2), stride = (1, 1)}} : 2x12x5x4x{Q}
      %a, %b = split(%p) {{sizes = (5, 7), axis = 1}} : 2x5x5x4x{Q}, 2x7x5x4x{Q}
      %c = max_pool2d(%a) {{kernel = (2, 2), stride = (1, 1)}} : 2x5x4x3x{Q}
      %d = max_pool2d(%b) {{kernel = (2, 2), stride = (1, 1)}} : 2x7x4x3x{Q}
      output(c = %c, d = %d)
    }}
    """
    x = np.random.default_rng(52).integers(0, 256, (2, 12, 6, 5)).astype(np.uint8)
    found = kinds(parse(text), {"x": x})
    assert found.count("strided") == 2
    assert found.count("transpose") == 3, "the input and the results alone change their layout"


@pytest.mark.parametrize("cap", isa())
@pytest.mark.parametrize("by", ["split", "gather"])
def test_heads_of_one_projection_need_no_step(cap: str, by: str) -> None:
    """Query, key and value from one matrix, as vision transformers have them."""
    net = Net(53)
    x = net.op(
        "matmul", {"a": net.input(2, 9, 24), "b": net.weight(24, 72, axis=1)}, (2, 9, 72), 0.1
    )
    split = net.op(
        "reshape", {"x": x, "shape": net.shape(2, 9, 3, 3, 8)}, (), kind=like(x, 2, 9, 3, 3, 8)
    )
    turned = net.op(
        "transpose", {"x": split}, (), kind=like(x, 3, 2, 3, 9, 8), perm=(2, 0, 3, 1, 4)
    )
    if by == "split":
        node = net.graph.add(
            "split", {"x": turned}, {"sizes": (1, 1, 1)}, types=[like(x, 1, 2, 3, 9, 8)] * 3
        )
        parts = [
            net.op("squeeze", {"x": v}, (), kind=like(x, 2, 3, 9, 8), axes=(0,))
            for v in node.results
        ]
    else:
        parts = [
            net.op("gather", {"x": turned, "indices": net.index(i)}, (), kind=like(x, 2, 3, 9, 8))
            for i in range(3)
        ]
    q, k, v = parts
    k = net.op("transpose", {"x": k}, (), kind=like(x, 2, 3, 8, 9), perm=(0, 1, 3, 2))
    scores = net.op("matmul", {"a": q, "b": k}, (2, 3, 9, 9), 0.1)
    graph = net.done(y=net.op("matmul", {"a": scores, "b": v}, (2, 3, 9, 8), 0.1))
    assert kinds(graph, dict(net.data()), isa=cap, threads=2) == ["linear", "matmul", "matmul"]


def test_a_row_is_repeated_without_a_copy_of_its_own() -> None:
    graph = parse(f"""
    graph main {{
      %x = input() : 1x3x{Q}
      %s = constant([4, 2, 3]) : 3xi64
      %y = expand(%x, %s) : 4x2x3x{Q}
      %z = relu(%y) : 4x2x3x{Q}
      output(z = %z)
    }}
    """)
    assert kinds(graph, {"x": np.array([[3, 200, 118]], np.uint8)}) == ["strided", "lookup"]


@pytest.mark.parametrize("cap", isa())
@pytest.mark.parametrize("axes", [(2, 3), (1,), (-1,), (1, 2, 3), ()])
@pytest.mark.parametrize("curve", ["", "hard_swish"])
def test_a_mean_reads_codes(cap: str, axes: tuple[int, ...], curve: str) -> None:
    shape = (2, 19, 7, 5)
    kept = [1 if i in {a % 4 for a in axes} or not axes else n for i, n in enumerate(shape)]
    lines = [f"%x = input() : 2x19x7x5x{Q}", "%d = dequantize(%x) : 2x19x7x5xf32"]
    if curve:
        lines.append(f"%h = {curve}(%d) : 2x19x7x5xf32")
    last = "x".join(map(str, kept))
    lines.append(f"%m = reduce_mean(%{'h' if curve else 'd'}) {{axes = {axes!r}}} : {last}xf32")
    graph = parse("graph main as ort-1.31 {\n" + "\n".join(lines) + "\noutput(m = %m)\n}")
    x = np.random.default_rng(54).integers(0, 256, shape).astype(np.uint8)
    compiled = CpuTarget().compile(graph, isa=cap, threads=2)
    assert "mean" in [row.kind for row in compiled.describe()]
    assert "call" not in [row.kind for row in compiled.describe()]
    real = (x.astype(np.float32) - 117) * np.float32(0.031)
    if curve:
        wide = real.astype(np.float64)
        real = (wide * np.clip(wide / 6 + 0.5, 0, 1)).astype(np.float32)
    over = tuple(a % 4 for a in axes) or (0, 1, 2, 3)
    count = math.prod(shape[a] for a in over)
    moved = np.moveaxis(real, over, range(-len(over), 0)).reshape(-1, count)
    wanted = (np.array([math.fsum(row) for row in moved.tolist()]) / count).astype(np.float32)
    assert np.array_equal(np.asarray(compiled(x=x)["m"]).ravel(), wanted)


def test_a_mean_over_axes_apart_puts_them_together_first() -> None:
    graph = parse(f"""
    graph main {{
      %x = input() : 2x3x4x{Q}
      %d = dequantize(%x) : 2x3x4xf32
      %m = reduce_mean(%d) {{axes = (0, 2)}} : 1x3x1xf32
      output(m = %m)
    }}
    """)
    compiled = CpuTarget().compile(graph)
    assert not compiled.fallbacks
    x = np.random.default_rng(55).integers(0, 256, (2, 3, 4)).astype(np.uint8)
    wanted = interpreter.run(graph, {"x": x})["m"]
    assert np.array_equal(np.asarray(compiled(x=x)["m"]), wanted)


def test_moves_of_moves_are_one() -> None:
    net = Net(56)
    x = net.input(4, 6, 10)
    a = net.op("transpose", {"x": x}, (), kind=like(x, 10, 6, 4), perm=(2, 1, 0))
    cut: dict[str, Any] = {"starts": (2,), "ends": (8,), "axes": (0,), "steps": (3,)}
    b = net.op("slice", {"x": a}, (), kind=like(x, 2, 6, 4), given=cut)
    c = net.op("transpose", {"x": b}, (), kind=like(x, 6, 2, 4), perm=(1, 0, 2))
    assert kinds(net.done(c=c), dict(net.data())) == ["strided"]


def test_what_is_moved_may_be_read_in_both_layouts() -> None:
    net = Net(57)
    x = net.conv(net.input(1, 6, 5, 4), 6)
    t = net.op("transpose", {"x": x}, (), kind=like(x, 1, 6, 4, 5), perm=(0, 1, 3, 2))
    y = net.conv(t, 5)
    agrees(net, net.done(y=y, t=t, r=net.op("relu", {"x": t}, (1, 6, 4, 5))))

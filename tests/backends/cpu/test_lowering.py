"""Each op on integers equals its formula, on every instruction set and number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qir._kernels._cpu import caps
from qir.backends.cpu import CpuTarget
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I8, I32, U8, DType
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.text import parse
from qir.ir.types import Array, TensorType, uniform
from qir.reference import interpreter

from . import naive
from .nets import Net

ISAS = caps()


def agrees(net: Net, graph: Graph, where: str = "", **options: Any) -> None:
    """The compiled graph gives the bytes of the formulas, on kernels alone."""
    compiled = CpuTarget().compile(graph, **options)
    assert compiled.fallbacks == (), where
    data = net.data()
    expected = naive.run(graph, data)
    got = compiled(**data)
    for name, wanted in expected.items():
        found = got[name]
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
        wrong = np.flatnonzero(found.ravel() != wanted.ravel())
        assert not wrong.size, f"{where} {name}: {wrong.size} of {found.size} differ\n{graph}"


def sizes(value: Value) -> tuple[int, ...]:
    return tuple(int(str(d)) for d in value.type.shape)


def like(value: Value, *shape: int) -> TensorType:
    """The type of other elements of the same map."""
    return value.type.with_shape(shape)


def residual(net: Net, channels: int = 19) -> Graph:
    """Convolutions of every sort, a sum, pools, a product with weights, softmax."""
    x = net.op("quantize", {"x": net.real(2, 3, 9, 11)}, (2, 3, 9, 11))
    c = net.conv(x, channels, tail=[("relu", {})])
    d = net.conv(
        c, channels, groups=channels, stride=(2, 2), tail=[("clip", {"min": 0.0, "max": 6.0})]
    )
    e = net.conv(d, channels, (1, 1), pad=(0, 0, 0, 0), axis=None, bias=False)
    a = net.op("add", {"a": d, "b": e}, sizes(d), tail=[("relu", {})])
    p = net.op(
        "max_pool2d", {"x": a}, (), kind=like(a, 2, channels, 2, 3), kernel=(2, 2), stride=(2, 2)
    )
    g = net.op("global_avg_pool", {"x": p}, (2, channels, 1, 1))
    f = net.op("flatten", {"x": g}, (), kind=like(g, 2, channels))
    h = net.gemm(f, 10)
    unit = TensorType((2, 10), uniform(U8, np.array(1 / 256, np.float32)))
    s = net.op("softmax", {"x": h}, (), kind=unit)
    y = net.op("dequantize", {"x": s}, (), kind=TensorType((2, 10), F32))
    return net.done(y=y, middle=a, codes=h)


@pytest.mark.parametrize("cap", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("channels", [16, 19])
def test_a_residual_network_equals_the_formulas(cap: str, threads: int, channels: int) -> None:
    net = Net(channels)
    agrees(net, residual(net, channels), f"{cap} {threads}", isa=cap, threads=threads)


CONVS: dict[str, Callable[[Net], Value]] = {
    "strided": lambda n: n.conv(n.input(1, 5, 13, 12), 7, stride=(2, 3)),
    "dilated": lambda n: n.conv(n.input(1, 4, 12, 13), 6, dilation=(2, 1), pad=(2, 1, 2, 1)),
    "unevenly padded": lambda n: n.conv(n.input(1, 3, 7, 6), 5, pad=(0, 1, 2, 3)),
    "in groups": lambda n: n.conv(n.input(2, 12, 6, 5), 18, groups=3),
    "in groups of one, twice as wide": lambda n: n.conv(n.input(1, 6, 6, 5), 12, groups=6),
    "pointwise": lambda n: n.conv(n.input(3, 33, 4, 5), 35, (1, 1), pad=(0, 0, 0, 0)),
    "wide": lambda n: n.conv(n.input(1, 2, 5, 9), 3, (1, 5), pad=(0, 2, 0, 2)),
    "typed NHWC": lambda n: n.conv(n.input(2, 6, 7, 5), 8, layout="NHWC"),
    "per tensor": lambda n: n.conv(n.input(1, 4, 6, 6), 9, axis=None),
    "without bias": lambda n: n.conv(n.input(1, 4, 6, 6), 9, bias=False),
    "clipped above": lambda n: n.conv(
        n.input(1, 4, 6, 6), 9, tail=[("clip", {"max": 0.31}), ("relu", {})]
    ),
    "clipped to nothing": lambda n: n.conv(
        n.input(1, 4, 6, 6), 9, tail=[("clip", {"min": 2.0, "max": 1.0})]
    ),
}


@pytest.mark.parametrize("storage", [U8, I8], ids=str)
@pytest.mark.parametrize("case", CONVS)
def test_a_convolution_equals_its_formula(case: str, storage: object) -> None:
    for seed in range(3):
        net = Net(seed, U8 if storage is U8 else I8)
        agrees(net, net.done(y=CONVS[case](net)), f"{case}, seed {seed}")


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("trans_a", [False, True])
def test_a_gemm_equals_its_formula(trans_a: bool, trans_b: bool, real: bool) -> None:
    net = Net(3)
    x = net.input(21, 7) if trans_a else net.input(7, 21)
    y = net.gemm(x, 13, trans_a=trans_a, trans_b=trans_b, real=real)
    agrees(net, net.done(y=y))


@pytest.mark.parametrize("shape", [(5, 9), (2, 3, 9), (1, 2, 4, 9), (9,)])
@pytest.mark.parametrize("trans_b", [False, True])
def test_a_matmul_by_a_constant_matrix_equals_its_formula(
    shape: tuple[int, ...], trans_b: bool
) -> None:
    net = Net(4)
    x = net.input(*shape)
    w = net.weight(6, 9, axis=0) if trans_b else net.weight(9, 6, axis=1)
    y = net.op("matmul", {"a": x, "b": w}, (*shape[:-1], 6), 0.3, trans_b=trans_b)
    agrees(net, net.done(y=y))


COMPUTED = [
    ((5, 9), (9, 6)),
    ((2, 3, 17, 33), (2, 3, 33, 70)),
    ((3, 17, 8), (8, 65)),
    ((4, 8), (3, 8, 5)),
    ((2, 1, 5, 12), (3, 12, 7)),
    ((1, 1), (1, 1)),
]


@pytest.mark.parametrize("shapes", COMPUTED, ids=str)
@pytest.mark.parametrize("storages", [(U8, U8), (U8, I8), (I8, U8), (I8, I8)], ids=str)
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_a_product_of_two_computed_matrices_equals_its_formula(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], storages: tuple[DType, DType], turned: str
) -> None:
    net = Net(21)
    operands: dict[str, Value] = {}
    attrs: dict[str, Attr] = {}
    for slot, shape, net.storage in zip("ab", shapes, storages, strict=True):
        if slot in turned:
            shape, attrs[f"trans_{slot}"] = (*shape[:-2], shape[-1], shape[-2]), True
        operands[slot] = net.input(*shape, name=slot)
    made = (np.zeros(shapes[0]) @ np.zeros(shapes[1])).shape
    scale = 0.0007 * math.sqrt(shapes[0][-1])
    y = net.op("matmul", operands, made, scale, given=attrs)
    f = net.op("matmul", operands, (), kind=TensorType(made, F32), given=attrs)
    cap = ISAS[len(turned) % len(ISAS)]
    agrees(net, net.done(y=y, f=f), isa=cap, threads=1 + len(turned) % 2)


@pytest.mark.parametrize("cap", ISAS)
@pytest.mark.parametrize("length", [5, 40])
def test_the_transpositions_of_attention_need_no_step(cap: str, length: int) -> None:
    net = Net(22)
    x = net.input(2, length, 24)
    heads = net.shape(2, length, 3, 8)
    split = [
        net.op("reshape", {"x": v, "shape": heads}, (), kind=like(v, 2, length, 3, 8))
        for v in (net.op("matmul", {"a": x, "b": net.weight(24, 24, axis=1)}, (2, length, 24), 0.1)
                  for _ in "qkv")
    ]  # fmt: skip
    perms = (0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)
    q, k, v = (
        net.op("transpose", {"x": s}, (), kind=like(s, *(sizes(s)[i] for i in perm)), perm=perm)
        for s, perm in zip(split, perms, strict=True)
    )
    scores = net.op("matmul", {"a": q, "b": k}, (2, 3, length, length), 0.1)
    mixed = net.op("matmul", {"a": scores, "b": v}, (2, 3, length, 8), 0.1)
    kind = like(mixed, 2, length, 3, 8)
    turned = net.op("transpose", {"x": mixed}, (), kind=kind, perm=(0, 2, 1, 3))
    whole = net.shape(2, length, 24)
    y = net.op("reshape", {"x": turned, "shape": whole}, (), kind=like(turned, 2, length, 24))
    graph = net.done(y=net.op("matmul", {"a": y, "b": net.weight(24, 9, axis=1)}, (2, length, 9)))
    kinds = [row.kind for row in CpuTarget().compile(graph).describe()]
    assert kinds == ["linear"] * 3 + ["matmul"] * 2 + ["linear"]
    agrees(net, graph, isa=cap, threads=2)


def test_a_transposed_value_that_others_read_too_is_made() -> None:
    net = Net(23)
    a, c = net.input(2, 5, 4, name="a"), net.input(5, 2, 6, name="c")
    t = net.op("transpose", {"x": c}, (), kind=like(c, 2, 5, 6), perm=(1, 0, 2))
    u = net.op("transpose", {"x": a}, (), kind=like(a, 2, 4, 5), perm=(0, 2, 1))
    y = net.op("matmul", {"a": u, "b": t}, (2, 4, 6), 0.02)
    z = net.op("transpose", {"x": y}, (), kind=like(y, 4, 2, 6), perm=(1, 0, 2))
    graph = net.done(t=t, y=y, z=z, r=net.op("relu", {"x": t}, (2, 5, 6)))
    agrees(net, graph)


def test_a_linear_layer_keeps_leading_axes() -> None:
    net = Net(5)
    operands = {"x": net.input(2, 3, 8), "w": net.weight(6, 8), "bias": net.raw(6)}
    y = net.op("linear", operands, (2, 3, 6), 0.3, tail=[("relu", {})])
    agrees(net, net.done(y=y))


BROADCASTS = [
    ((2, 5, 4, 3), (2, 5, 4, 3)),
    ((2, 5, 4, 3), (2, 5, 1, 1)),
    ((1, 5, 1, 1), (2, 5, 4, 3)),
    ((2, 5, 4, 3), (5, 1, 1)),
    ((2, 5, 4, 3), (1,)),
    ((1,), (2, 5, 4, 3)),
    ((2, 5, 4, 3), (3,)),
    ((4, 1, 6), (4, 3, 6)),
    ((4, 3, 6), (4, 3, 1)),
    ((7,), (7,)),
    ((), ()),
]


@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
@pytest.mark.parametrize("spatial", [False, True])
def test_sums_and_products_broadcast(
    op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], spatial: bool
) -> None:
    for seed in range(4):
        net = Net(seed)
        a, b = (net.input(*shape, name=name) for shape, name in zip(shapes, "ab", strict=True))
        if spatial and len(shapes[0]) == 4:  # held channels last
            a = net.conv(a, shapes[0][1], (1, 1), pad=(0, 0, 0, 0))
        shape = np.broadcast_shapes(*shapes)
        y = net.op(op, {"a": a, "b": b}, shape, tail=[("relu", {})] if seed % 2 else ())
        agrees(net, net.done(y=y), f"seed {seed}")


@pytest.mark.parametrize("op", ["relu", "clip", "sigmoid", "requantize"])
@pytest.mark.parametrize("storage", [U8, I8], ids=str)
def test_an_op_of_one_operand_is_a_table(op: str, storage: object) -> None:
    net = Net(6, U8 if storage is U8 else I8)
    bounds: dict[str, Attr] = {"min": -0.3, "max": 0.7} if op == "clip" else {}
    y = net.op(op, {"x": net.input(3, 300)}, (3, 300), given=bounds)
    agrees(net, net.done(y=y))


POOLS: list[dict[str, Attr]] = [
    {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)},
    {"kernel": (2, 3), "stride": (2, 1)},
    {"kernel": (3, 2), "stride": (2, 3), "ceil": True},
]


@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("attrs", POOLS, ids=str)
@pytest.mark.parametrize("count_pad", [False, True])
def test_pools_equal_their_formulas(
    op: str, layout: str, attrs: dict[str, Attr], count_pad: bool
) -> None:
    net = Net(7)
    more: dict[str, Attr] = {**attrs, "layout": layout}
    if op == "avg_pool2d":
        more["count_pad"] = count_pad
    x = net.input(*((2, 5, 9, 10) if layout == "NCHW" else (2, 9, 10, 5)))
    probe = net.graph.add(op, {"x": x}, more)
    shape = sizes(probe.result)
    net.graph.remove(probe)
    kind = like(x, *shape) if op == "max_pool2d" else None
    y = net.op(op, {"x": x}, shape, kind=kind, given=more)
    agrees(net, net.done(y=y))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_global_mean_equals_its_formula(layout: str) -> None:
    for seed in range(5):
        net = Net(seed)
        x = net.input(*((2, 5, 7, 9) if layout == "NCHW" else (2, 7, 9, 5)))
        shape = (2, 5, 1, 1) if layout == "NCHW" else (2, 1, 1, 5)
        agrees(net, net.done(y=net.op("global_avg_pool", {"x": x}, shape, layout=layout)))


@pytest.mark.parametrize(("shape", "axis"), [((6, 37), -1), ((2, 3, 5), 2), ((2, 9, 3, 4), 1)])
def test_softmax_equals_its_formula(shape: tuple[int, ...], axis: int) -> None:
    net = Net(8)
    kind = TensorType(shape, uniform(U8, np.array(1 / 256, np.float32)))
    agrees(net, net.done(y=net.op("softmax", {"x": net.input(*shape)}, (), kind=kind, axis=axis)))


def test_softmax_divides_in_the_type_of_its_profile() -> None:
    net = Net(8)
    x = net.input(999, 1000)
    kind = TensorType((999, 1000), uniform(U8, np.array(1 / 20000, np.float32)))
    graph = net.done(y=net.op("softmax", {"x": x}, (), kind=kind, axis=-1))
    data = net.data()
    made = {}
    for profile, real in (("ort-1.31", np.float32), ("ort-1.32", np.float64)):
        graph.profile = profile
        compiled = CpuTarget().compile(graph)
        assert compiled.fallbacks == ()
        made[profile] = compiled(**data)["y"]
        quantized = next(iter(data.values()))
        expected = naive.softmax({"x": quantized}, {"x": x}, graph.outputs["y"], {"axis": -1}, real)
        assert np.array_equal(made[profile], expected), profile
    assert not np.array_equal(made["ort-1.31"], made["ort-1.32"]), "no quotient lay near a tie"


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("spatial", [False, True])
def test_concat_converts_parts_of_another_map(axis: int, spatial: bool) -> None:
    net = Net(9)
    shapes = [[2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 4, 5]]
    shapes[1][axis] += 2
    parts = [net.input(*shape, name=f"x{i}") for i, shape in enumerate(shapes)]
    if spatial:
        parts[0] = net.conv(parts[0], 3)
    whole = [2, 3, 4, 5]
    whole[axis] = 3 * whole[axis] + 2
    kind = like(parts[2], *whole)
    y = net.op("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, (), kind=kind, axis=axis)
    agrees(net, net.done(y=y))


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 2, 3)])
@pytest.mark.parametrize("spatial", [False, True])
def test_transposing_gives_the_elements_in_order(perm: tuple[int, ...], spatial: bool) -> None:
    net = Net(10)
    x = net.input(2, 3, 4, 5)
    x = net.conv(x, 3) if spatial else x
    y = net.op("transpose", {"x": x}, (), kind=like(x, *(sizes(x)[p] for p in perm)), perm=perm)
    z = net.op("relu", {"x": y}, sizes(y))
    agrees(net, net.done(y=y, z=z, x=x))


def test_transposing_channels_last_integers_to_nhwc_moves_nothing() -> None:
    net = Net(11)
    x = net.conv(net.input(2, 3, 4, 5), 6)
    y = net.op("transpose", {"x": x}, (), kind=like(x, 2, 4, 5, 6), perm=(0, 2, 3, 1))
    z = net.conv(y, 7, layout="NHWC")
    graph = net.done(z=z)
    kinds = [row.kind for row in CpuTarget().compile(graph).describe()]
    assert kinds == ["transpose", "conv2d", "conv2d"]  # the input alone is moved
    agrees(net, graph)


@pytest.mark.parametrize("spatial", [False, True])
def test_flattening_and_reshaping_follow_the_typed_order(spatial: bool) -> None:
    net = Net(12)
    x = net.input(2, 3, 4, 5)
    x = net.conv(x, 3) if spatial else x
    flat = net.op("flatten", {"x": x}, (), kind=like(x, 2, 60))
    other = net.op("reshape", {"x": x, "shape": net.shape(0, 5, 12)}, (), kind=like(x, 2, 5, 12))
    back = net.op(
        "reshape", {"x": flat, "shape": net.shape(2, 6, 5, 2)}, (), kind=like(x, 2, 6, 5, 2)
    )
    agrees(net, net.done(flat=flat, other=other, y=net.conv(back, 4)))


PADS = [
    (0, 1, 2, 3, 0, 2, 1, 0),
    (1, 0, 0, 0, 0, 0, 0, 0),
    (0,) * 8,
    (0, 0, -1, 2, 0, 0, 3, -2),
    (0, 0, -1, -1, 0, 0, -1, 0),
]


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("spatial", [False, True])
def test_padding_adds_the_code_of_the_value(pads: tuple[int, ...], spatial: bool) -> None:
    net = Net(13)
    x = net.input(2, 3, 4, 5)
    x = net.conv(x, 3) if spatial else x
    shape = [n + pads[i] + pads[i + 4] for i, n in enumerate(sizes(x))]
    y = net.op("pad", {"x": x}, (), kind=like(x, *shape), pads=pads, value=0.4)
    agrees(net, net.done(y=y))


def test_padding_floats_with_zeros_moves_bytes() -> None:
    text = """
    graph main {
      %x = input() : 1x2x3x4xf32
      %y = pad(%x) {pads = (0, 1, 2, 1, 0, 0, 1, 0)} : 1x3x6x5xf32
      output(y = %y)
    }
    """
    compiled = CpuTarget().compile(parse(text))
    x = np.random.default_rng(1).normal(size=(1, 2, 3, 4)).astype(np.float32)
    wanted = np.pad(x, ((0, 0), (1, 0), (2, 1), (1, 0)))
    assert compiled.fallbacks == ()
    assert np.array_equal(np.asarray(compiled(x=x)["y"]), wanted)


def test_u8_weights_run_where_less_their_zero_they_fit_i8() -> None:
    net = Net(14)
    x = net.input(1, 4, 5, 5)
    kind = TensorType((6, 4, 3, 3), uniform(U8, np.array(0.01, np.float32), 128))
    w = net.graph.constant(Array(net.rng.integers(0, 256, (6, 4, 3, 3)).astype(np.uint8), kind))
    agrees(net, net.done(y=net.op("conv2d", {"x": x, "w": w}, (1, 6, 3, 3), 0.2)))


def test_a_bias_typed_in_accumulator_units_is_taken() -> None:
    net = Net(15)
    x, w = net.input(1, 4, 5, 5), net.weight(6, 4, 3, 3)
    assert x.type.quant is not None
    assert w.type.quant is not None
    scale = np.float32(x.type.quant.scales()) * w.type.quant.scales()
    kind = TensorType((6,), uniform(I32, scale.astype(np.float32), axis=0))
    data = net.rng.integers(-5000, 5000, 6).astype(np.int32)
    bias = net.graph.constant(Array(data, kind))
    y = net.op("conv2d", {"x": x, "w": w, "bias": bias}, (1, 6, 3, 3), 0.2)
    agrees(net, net.done(y=y))


def test_integers_of_narrow_bounds_stay_in_them() -> None:
    net = Net(16)
    kind = TensorType((1, 6, 5, 5), uniform(U8, np.array(0.05, np.float32), 31, bounds=(10, 99)))
    x = net.input(1, 4, 5, 5)
    operands = {"x": x, "w": net.weight(6, 4, 3, 3)}
    y = net.op("conv2d", operands, (), kind=kind, pad=(1, 1, 1, 1))
    agrees(net, net.done(y=y))


def test_a_constant_operand_is_held_with_the_plan() -> None:
    net = Net(17)
    x = net.conv(net.input(2, 3, 4, 5), 6)
    y = net.op("add", {"a": x, "b": net.integers(1, 6, 1, 1)}, sizes(x))
    z = net.op("mul", {"a": net.integers(2, 6, 4, 5), "b": y}, sizes(x))
    agrees(net, net.done(z=z))


def test_results_may_be_inputs_constants_and_one_value_twice() -> None:
    net = Net(18)
    x = net.input(2, 3, 4, 5)
    y = net.op("relu", {"x": x}, sizes(x))
    flat = net.op("flatten", {"x": y}, (), kind=like(y, 2, 60))
    agrees(net, net.done(x=x, constant=net.integers(3, 4), y=y, again=y, flat=flat))


FLOATS = [
    ((2, 5, 4, 3), (2, 5, 4, 3)),
    ((2, 5, 4, 3), (1, 5, 1, 1)),
    ((1, 1, 1, 9), (2, 3, 4, 9)),
    ((2, 3), ()),
    ((), (2, 3)),
    ((4, 1, 6), (4, 3, 6)),
]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("shapes", FLOATS, ids=str)
def test_floats_are_computed_by_kernels(
    op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    net = Net(31)
    a, b = (net.real(*shape, name=name) for shape, name in zip(shapes, "ab", strict=True))
    kind = TensorType(np.broadcast_shapes(*shapes), F32)
    graph = net.done(y=net.op(op, {"a": a, "b": b}, (), kind=kind))
    compiled, data = CpuTarget().compile(graph, threads=2), net.data()
    assert compiled.fallbacks == ()
    by_name: Any = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
    assert np.array_equal(compiled(**data)["y"], by_name[op](data["a"], data["b"]))


NORMS = """
graph main {{
  %x = input() : 2x7x5x33xf32
  %gamma = constant({gamma}) : {kind}
  %beta = constant({gamma}) : {kind}
  %y = layer_norm(%x, %gamma, beta=%beta) {{axis = {axis}, eps = 1e-6}} : 2x7x5x33xf32
  %z = layer_norm(%x, %gamma) {{axis = {axis}}} : 2x7x5x33xf32
  output(y=%y, z=%z)
}}
"""


@pytest.mark.parametrize("cap", ISAS)
@pytest.mark.parametrize(("axis", "kind"), [(-1, "33xf32"), (2, "5x33xf32"), (1, "1xf32")])
def test_layer_norm_gives_the_bytes_of_the_reference(cap: str, axis: int, kind: str) -> None:
    size = math.prod(int(n) for n in kind.split("x")[:-1])
    gamma = [round(float(v), 3) for v in np.random.default_rng(32).normal(1, 1, size)]
    graph = parse(NORMS.format(gamma=gamma, kind=kind, axis=axis))
    x = np.random.default_rng(33).normal(1, 4, (2, 7, 5, 33)).astype(np.float32)
    compiled = CpuTarget().compile(graph, isa=cap, threads=2)
    assert [row.kind for row in compiled.describe()] == ["layer_norm"] * 2
    wide, over = x.astype(np.float64), tuple(range(axis % 4, 4))
    away = wide - wide.mean(over, keepdims=True)
    row = np.array(gamma, np.float32).reshape([int(n) for n in kind.split("x")[:-1]])
    wanted = away / np.sqrt((away**2).mean(over, keepdims=True) + 1e-6) * row + row
    expected = interpreter.run(graph, {"x": x})
    got = compiled(x=x)
    assert np.allclose(np.asarray(got["y"]), wanted, rtol=1e-6, atol=1e-7)
    for name in "yz":
        assert np.asarray(got[name]).tobytes() == expected[name].tobytes()


@pytest.mark.parametrize("cap", ISAS)
def test_a_masked_softmax_of_floats_is_exact_to_a_unit_of_the_last_place(cap: str) -> None:
    text = """
    graph main {
      %x = input() : 2x3x5x33x!quant.uniform<u8:f32, 0.047:131>
      %m = input() : 2x1x1x33xf32
      %d = dequantize(%x) : 2x3x5x33xf32
      %a = add(%d, %m) : 2x3x5x33xf32
      %s = softmax(%a) : 2x3x5x33xf32
      %y = quantize(%s) : 2x3x5x33x!quant.uniform<u8:f32, 0.0039>
      output(s=%s, y=%y)
    }
    """
    rng = np.random.default_rng(34)
    x = rng.integers(0, 256, (2, 3, 5, 33)).astype(np.uint8)
    m = np.where(rng.random((2, 1, 1, 33)) < 0.3, -10_000.0, 0).astype(np.float32)
    compiled = CpuTarget().compile(parse(text), isa=cap, threads=2)
    assert compiled.fallbacks == ()
    got = compiled(x=x, m=m)
    real = (x.astype(np.float32) - 131) * np.float32(0.047) + m
    powers = np.exp(real.astype(np.longdouble) - real.max(-1, keepdims=True))
    wanted = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    apart = np.asarray(got["s"]).view(np.int32).astype(np.int64) - wanted.view(np.int32)
    assert np.abs(apart).max() <= 1
    assert np.array_equal(np.asarray(got["y"]), np.rint(wanted / np.float32(0.0039)).clip(0, 255))


@pytest.mark.parametrize(
    "step",
    [
        "%y = unsqueeze(%x) {axes = (1, 3)} : 2x1x3x1x4xf32",
        "%y = squeeze(%x) : 2x3x4xf32",
        "%y = identity(%x) : 2x3x4xf32",
    ],
)
def test_ops_that_only_change_the_shape_are_no_steps(step: str) -> None:
    text = f"graph main {{ %x = input() : 2x3x4xf32 {step} %z = add(%y, %y) : {step.split(': ')[1]}"
    compiled = CpuTarget().compile(parse(text + " output(z = %z) }"))
    assert [row.kind for row in compiled.describe()] == ["real"]
    x = np.random.default_rng(35).normal(size=(2, 3, 4)).astype(np.float32)
    assert np.array_equal(np.asarray(compiled(x=x)["z"]).ravel(), (x + x).ravel())

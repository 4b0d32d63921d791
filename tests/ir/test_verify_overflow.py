"""Bounds of accumulators: some input meets each, none goes beyond, and 32 bits wrap as told.

The oracle knows nothing of weights: it asks the product, in exact arithmetic, what each element of
the input adds to each sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir.inspect.overflow import SumRange, overflow
from qir.ir.attrs import Attr
from qir.ir.dtype import I8, I32, U8, DType, dtype
from qir.ir.graph import Graph
from qir.ir.node import Stage
from qir.ir.ops import spec
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.ir.verify import verify
from tests.ir.verifying import graph_of

Whole = NDArray[np.int64]


@dataclass
class Case:
    """A random product of integers: its graph, and its sums of centred integers in exact
    arithmetic."""

    graph: Graph
    shape: tuple[int, ...]
    ends: tuple[int, int]
    """Least and greatest code - zero of the input."""
    sums: Callable[[Whole], Whole]
    """The sums of a batch of inputs, without the bias; the batch stands first."""
    bias: Whole
    """What is added to each sum."""


def convolved(x: Whole, w: Whole, attrs: dict[str, tuple[int, ...]], groups: int) -> Whole:
    """torch in float64, which is exact: every sum is far below 2^53."""
    n, pad = w.ndim - 2, attrs["pad"]
    sides = [p for i in reversed(range(n)) for p in (pad[i], pad[n + i])]
    padded = torch.nn.functional.pad(torch.tensor(x, dtype=torch.float64), sides)
    fold = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)
    filters = torch.tensor(w, dtype=torch.float64)
    out = fold[n - 1](padded, filters, None, attrs["stride"], 0, attrs["dilation"], groups)
    whole: Whole = out.numpy().astype(np.int64)
    return whole


def random_quant_type(rng: np.random.Generator, bits: int, symmetric: bool) -> QuantType:
    """A map of random storage, bounds and zero."""
    kind = dtype(f"{'i' if symmetric or rng.integers(2) else 'u'}{bits}")
    low, high = kind.bounds
    bounds = (low + 1, high - int(rng.integers(2))) if rng.integers(2) and bits > 2 else None
    low, high = bounds or (low, high)
    zero = 0 if symmetric else int(rng.integers(low, high, endpoint=True))
    return QuantType(kind, scale=(0.5,), zero=(zero,), bounds=bounds)


def weights(
    rng: np.random.Generator, shape: tuple[int, ...], axis: int, bits: int
) -> tuple[Array, Whole]:
    """Random integers with one zero, or one for each channel; and code - zero."""
    kind = random_quant_type(rng, bits, symmetric=bool(rng.integers(2)))
    data = rng.integers(kind.low, kind.high, shape, endpoint=True).astype(kind.storage.carrier)
    zeros = np.full(shape[axis], np.asarray(kind.zeros()))
    if rng.integers(2):
        if kind.zero:
            zeros = rng.integers(kind.low, kind.high, shape[axis], endpoint=True)
        kind = QuantType(
            kind.storage,
            scale=Array.of(rng.uniform(0.1, 1, shape[axis]).astype(np.float32), "s"),
            zero=Array.of(zeros.astype(kind.storage.carrier), "z") if zeros.any() else (),
            granularity=Granularity(((axis, 1),)),
            bounds=kind.bounds,
        )
    along = [-1 if i == axis else 1 for i in range(len(shape))]
    return Array(data, TensorType(shape, kind), "w"), data.astype(np.int64) - zeros.reshape(along)


def build(
    rng: np.random.Generator,
    op: str,
    x: TensorType,
    w: Array,
    attrs: dict[str, Attr],
    slots: tuple[str, str, str],
    channels: int,
) -> tuple[Graph, Whole]:
    """The product as a plain node, in QDQ form, or as the head of a chain."""
    graph, form = Graph(), int(rng.integers(3))
    value = graph.add("input", types=[x], name="x").result
    weight = graph.constant(w)
    bias = rng.integers(-(2**20), 2**20, channels) if rng.integers(2) else np.zeros(channels, int)
    operands = {slots[0]: value, slots[1]: weight}
    if bias.any() and form != 1:
        operands[slots[2]] = graph.constant(Array.of(bias.astype(np.int32), "b"))
    full = spec(op).complete_attrs(attrs)
    if form == 1:
        for slot in slots[:2]:
            operands[slot] = graph.add("dequantize", {"x": operands[slot]}).result
        if bias.any():
            unit = QuantType(I32, scale=(1.0,))
            held = Array(bias.astype(np.int32), TensorType(bias.shape, unit), "b")
            operands[slots[2]] = graph.add("dequantize", {"x": graph.constant(held)}).result
    node = graph.add(op, operands, attrs, name="y")
    if form == 2:
        made = TensorType(node.result.type.shape, QuantType(U8, scale=(1.0,)))
        graph.remove(node)
        stages = [Stage(op, full, tuple(operands)), Stage("relu", {}, (), "x")]
        node = graph.add_chain(stages, operands, made, name="y")
    graph.add("output", {"y": node.result})
    return graph, bias.astype(np.int64)


def convolution(rng: np.random.Generator) -> Case:
    n = int(rng.integers(1, 4))
    groups, each, out = (int(rng.integers(1, 4)) for _ in range(3))
    sizes = tuple(int(s) for s in rng.integers(1, 6, n))
    kernel = tuple(int(k) for k in rng.integers(1, 4, n))
    dilation = tuple(int(d) for d in rng.integers(1, 3, n))
    pad = [int(p) for p in rng.integers(0, 3, 2 * n)]
    for i in range(n):  # the window fits
        pad[n + i] += max(0, (kernel[i] - 1) * dilation[i] + 1 - sizes[i] - pad[i] - pad[n + i])
    slide = {
        "stride": tuple(int(s) for s in rng.integers(1, 4, n)),
        "pad": tuple(pad),
        "dilation": dilation,
    }
    w, centred = weights(rng, (groups * out, each, *kernel), 0, int(rng.integers(2, 9)))
    kind = random_quant_type(rng, 8, symmetric=False)
    shape = (groups * each, *sizes)
    last = n == 2 and bool(rng.integers(2))
    shown: dict[str, Attr] = {**slide, "groups": groups}
    if last:
        shown["layout"] = "NHWC"
    x = TensorType((1, *sizes, groups * each) if last else (1, *shape), kind)
    graph, bias = build(rng, f"conv{n}d", x, w, shown, ("x", "w", "bias"), groups * out)
    added = np.broadcast_to(bias.reshape(-1, *(1,) * n), (groups * out, *(1,) * n))
    return Case(graph, shape, around(kind), lambda v: convolved(v, centred, slide, groups), added)


def transposed(rng: np.random.Generator) -> Case:
    """A transposed convolution; torch has the oracle again."""
    n = int(rng.integers(1, 4))
    groups, each, out = (int(rng.integers(1, 4)) for _ in range(3))
    sizes, kernel = (tuple(int(s) for s in rng.integers(1, 4, n)) for _ in range(2))
    stride, dilation = (tuple(int(s) for s in rng.integers(1, 4, n)) for _ in range(2))
    more = tuple(int(rng.integers(max(s, d))) for s, d in zip(stride, dilation, strict=True))
    pad = tuple(
        int(rng.integers((d * (k - 1)) // 2 + 1)) for k, d in zip(kernel, dilation, strict=True)
    )
    w, centred = weights(rng, (groups * each, out, *kernel), 1, int(rng.integers(2, 9)))
    kind = random_quant_type(rng, 8, symmetric=False)
    shape = (groups * each, *sizes)
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": (*pad, *pad),
        "dilation": dilation,
        "groups": groups,
        "output_pad": more,
    }
    x = TensorType((1, *shape), kind)
    op = f"conv_transpose{n}d"
    graph, bias = build(rng, op, x, w, attrs, ("x", "w", "bias"), groups * out)
    fold = (
        torch.nn.functional.conv_transpose1d,
        torch.nn.functional.conv_transpose2d,
        torch.nn.functional.conv_transpose3d,
    )
    filters = torch.tensor(centred, dtype=torch.float64)

    def sums(v: Whole) -> Whole:
        data = torch.tensor(v, dtype=torch.float64)
        made = fold[n - 1](data, filters, None, stride, pad, more, groups, dilation)
        whole: Whole = made.numpy().round().astype(np.int64)
        return whole

    added = np.broadcast_to(bias.reshape(-1, *(1,) * n), (groups * out, *(1,) * n))
    return Case(graph, shape, around(kind), sums, added)


def around(kind: QuantType) -> tuple[int, int]:
    zero = int(np.asarray(kind.zeros()))
    return kind.low - zero, kind.high - zero


def product(rng: np.random.Generator) -> Case:
    op = ("linear", "gemm", "matmul")[int(rng.integers(3))]
    rows, inner, columns, batch = (int(v) for v in rng.integers(1, 6, 4))
    kind, bits = (
        random_quant_type(rng, int(rng.integers(2, 17)), symmetric=False),
        int(rng.integers(2, 17)),
    )
    if op == "linear":
        w, centred = weights(rng, (columns, inner), 0, bits)
        x = TensorType((rows, inner), kind)
        graph, bias = build(rng, op, x, w, {}, ("x", "w", "bias"), columns)
        return Case(graph, (rows, inner), around(kind), lambda v: v @ centred.T, bias)
    attrs: dict[str, Attr] = {f"trans_{s}": bool(rng.integers(2)) for s in "ab"}
    lead = (batch,) if op == "matmul" and rng.integers(2) else ()
    tall = (*lead, inner, columns)
    axis = len(tall) - 1
    if attrs["trans_b"]:
        tall, axis = (*lead, columns, inner), len(tall) - 2
    w, centred = weights(rng, tall, axis, bits)
    right = centred.swapaxes(-1, -2) if attrs["trans_b"] else centred
    shape = (inner, rows) if attrs["trans_a"] else (rows, inner)
    x = TensorType(shape, kind)
    graph, bias = build(rng, op, x, w, attrs, ("a", "b", "c" if op == "gemm" else "bias"), columns)

    def sums(v: Whole) -> Whole:
        left = v.swapaxes(-1, -2) if attrs["trans_a"] else v
        out: Whole = np.matmul(left[:, None] if lead else left, right)
        return out

    return Case(graph, shape, around(kind), sums, bias)


def turned(rng: np.random.Generator) -> Case:
    """A constant times what comes from outside."""
    rows, inner, columns = (int(v) for v in rng.integers(1, 6, 3))
    w, centred = weights(rng, (rows, inner), 0, 8)
    kind = random_quant_type(rng, 8, symmetric=False)
    graph = Graph()
    x = graph.add("input", types=[TensorType((inner, columns), kind)], name="x").result
    y = graph.add("matmul", {"a": graph.constant(w), "b": x}, name="y").result
    graph.add("output", {"y": y})
    zero = np.zeros(1, np.int64)
    return Case(graph, (inner, columns), around(kind), lambda v: np.matmul(centred, v), zero)


def raw(rng: np.random.Generator) -> Case:
    """Plain bytes, whose zeros come beside: one for the input, one or many for the weights."""
    graph, kinds = Graph(), [(U8, I8)[int(rng.integers(2))] for _ in range(2)]
    out, inner = (int(v) for v in rng.integers(1, 6, 2))
    sizes = tuple(int(s) for s in rng.integers(2, 5, 2))
    conv = bool(rng.integers(2))
    shape = (inner, *sizes) if conv else (3, inner)
    tall = (out, inner, 2, 1) if conv else (inner, out)
    axis = 0 if conv else 1
    names = ("x", "w") if conv else ("a", "b")
    data, zeros = [], []
    for kind, count in zip(kinds, (1, out if rng.integers(2) else 1), strict=True):
        low, high = kind.bounds
        zeros.append(rng.integers(low, high, count, endpoint=True).astype(kind.carrier))
        data.append(rng.integers(low, high, tall, endpoint=True).astype(kind.carrier))
    x = graph.add("input", types=[TensorType((1, *shape) if conv else shape, kinds[0])]).result
    operands = {names[0]: x, names[1]: graph.constant(Array.of(data[1], "w"))}
    for name, zero in zip(names, zeros, strict=True):
        held = zero if zero.size > 1 else zero.reshape(())
        operands[f"{name}.zero"] = graph.constant(Array.of(held, "z"))
    y = graph.add("conv_integer" if conv else "matmul_integer", operands, name="y").result
    graph.add("output", {"y": y})
    along = [-1 if i == axis else 1 for i in range(len(tall))]
    centred = data[1].astype(np.int64) - zeros[1].astype(np.int64).reshape(along)
    slide = {"stride": (1, 1), "pad": (0,) * 4, "dilation": (1, 1)}
    low, high = (int(end) - int(zeros[0][0]) for end in kinds[0].bounds)

    def sums(v: Whole) -> Whole:
        if conv:
            return convolved(v, centred, slide, 1)
        made: Whole = v @ centred
        return made

    return Case(graph, shape, (low, high), sums, np.zeros(1, np.int64))


def furthest(case: Case) -> tuple[int, int]:
    """Least and greatest sum, by what each element of the input adds, and met by real inputs."""
    count = math.prod(case.shape)
    parts = case.sums(np.eye(count, dtype=np.int64).reshape(count, *case.shape))
    low, high = case.ends
    bias = np.broadcast_to(case.bias, parts.shape[1:]).reshape(-1)
    adds = parts.reshape(count, -1)
    out: list[int] = []
    for least in (True, False):
        best = np.minimum(adds * low, adds * high) if least else np.maximum(adds * low, adds * high)
        totals = best.sum(axis=0) + bias
        at = int(totals.argmin() if least else totals.argmax())
        x = np.where((adds[:, at] > 0) != least, high, low).reshape(1, *case.shape)
        assert case.sums(x).reshape(-1)[at] + bias[at] == totals[at]
        out.append(int(totals[at]))
    return out[0], out[1]


@pytest.mark.parametrize("seed", range(100))
def test_the_bounds_are_those_that_some_input_meets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = (convolution, product, turned, raw, transposed)[seed % 5](rng)
    assert [f for f in verify(case.graph) if f.rule not in ("overflow", "bias-scale")] == []
    (found,) = overflow(case.graph)
    assert found.static
    assert (found.least, found.greatest) == furthest(case), f"seed {seed}\n{case.graph}"
    x = rng.integers(case.ends[0], case.ends[1], (20, *case.shape), endpoint=True)
    made = case.sums(x) + case.bias
    assert found.least is not None
    assert found.greatest is not None
    assert found.least <= made.min() <= made.max() <= found.greatest
    assert found.bits is not None
    assert -(1 << found.bits - 1) <= found.least <= found.greatest < 1 << found.bits - 1
    tighter = (1 << found.bits - 1) // 2
    assert found.bits == 1 or found.least < -tighter or found.greatest >= tighter


def linear(depth: int, value: int, kind: QuantType, weight: DType = I8) -> Graph:
    """One channel of equal weights."""
    graph = Graph()
    x = graph.add("input", types=[TensorType((1, depth), kind)], name="x").result
    held = TensorType((1, depth), QuantType(weight, scale=(1.0,)))
    w = graph.constant(Array(np.full((1, depth), value, weight.carrier), held, "w"))
    y = graph.add("linear", {"x": x, "w": w}, name="y").result
    graph.add("output", {"y": y})
    return graph


def integer_sum(depth: int, value: int) -> int:
    """What onnxruntime makes of so many products of 255 and the value, in 32 bits."""
    tensors = [
        helper.make_tensor_value_info("a", TensorProto.UINT8, (1, depth)),
        helper.make_tensor_value_info("b", TensorProto.UINT8, (depth, 1)),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.INT32, (1, 1))
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "g", tensors, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    made = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {"a": np.full((1, depth), 255, np.uint8), "b": np.full((depth, 1), value, np.uint8)}
    return int(made.run(None, feeds)[0][0, 0])


@pytest.mark.parametrize(("depth", "wraps"), [(66311, False), (66312, True)])
def test_a_sum_that_is_told_to_wrap_wraps_in_onnxruntime(depth: int, wraps: bool) -> None:
    graph = linear(depth, 127, QuantType(U8, scale=(1.0,)))
    (sums,) = overflow(graph)
    total = depth * 255 * 127
    assert (sums.least, sums.greatest, sums.wraps) == (0, total, wraps)
    assert (integer_sum(depth, 127) != total) == wraps
    told = verify(graph)
    assert [(f.rule, f.severity, f.node, f.slot, f.value) for f in told] == (
        [("overflow", "warning", "y", "w", "w")] if wraps else []
    )
    assert all(f"sums come to 0..{total} in channel 0: 33 bits" in f.message for f in told)


def test_a_bias_counts_and_one_that_is_computed_leaves_the_question_open() -> None:
    kind = QuantType(U8, scale=(1.0,))
    for bias, wraps in ((2**31 - 1 - 255, False), (2**31 - 255, True)):
        graph = linear(1, 1, kind)
        held = graph.constant(Array.of(np.array([bias], np.int32), "b"))
        graph.set_operand(graph["y"].node, "bias", held)
        (sums,) = overflow(graph)
        assert (sums.least, sums.greatest, sums.wraps) == (bias, bias + 255, wraps)
    graph = linear(1, 1, kind)
    asked = graph.add("input", types=[TensorType((1,), I32)], name="b").result
    graph.set_operand(graph["y"].node, "bias", asked)
    (sums,) = overflow(graph)
    assert (sums.wraps, sums.bits, sums.why) == (None, None, "its bias is computed")


def test_an_open_zero_point_is_the_worst_there_is() -> None:
    (sums,) = overflow(linear(10, 3, QuantType(U8, scale=None, zero=None)))
    assert (sums.least, sums.greatest) == (-10 * 3 * 255, 10 * 3 * 255)


def test_zero_points_of_rows_are_the_worst_of_all_rows() -> None:
    zeros = Array.of(np.array([7], np.uint8), "z")
    one = Array.of(np.ones(1, np.float32), "s")
    kind = QuantType(U8, scale=one, zero=zeros, granularity=Granularity(((0, 1),)))
    (sums,) = overflow(linear(10, 3, kind))
    assert (sums.least, sums.greatest) == (-10 * 3 * 7, 10 * 3 * 248)


def test_weights_that_come_into_a_body_from_outside_are_those_weights() -> None:
    q = "!quant.uniform<u8:f32, 0.5:3>"
    graph = graph_of(
        f"%n = input() : i64 %x = input() : 2x{q}\n"
        "%w = constant(@sq) : 2x2x!quant.uniform<i8:f32, 0.25>\n"
        f"%y = loop(count=%n, vs.0=%x, xs.0=%w) : 2x{q} with body {{\n"
        f"%i = input() : i64 %go = input() : bool %h = input() : 2x{q}\n"
        "%k = input() : 2x2x!quant.uniform<i8:f32, 0.25>\n"
        f"%s = linear(%h, %k) : 2x{q} output(go=%go, h=%s)\n}}\noutput(y=%y)"
    )
    (sums,) = overflow(graph)
    assert (sums.node, sums.path, sums.static) == ("s", "main/y/body", True)
    assert (sums.least, sums.greatest, sums.channel) == (-7 * 3, 7 * 252, 1)


def test_blocks_of_a_sum_are_sums_of_their_own() -> None:
    rng = np.random.default_rng(5)
    data = rng.integers(-8, 8, (3, 10)).astype(np.int8)
    scales = Array.of(np.ones((3, 3), np.float32), "s")
    kind = QuantType(dtype("i4"), scale=scales, granularity=Granularity(((0, 1), (1, 4))))
    graph = Graph()
    x = graph.add("input", types=[TensorType((1, 10), QuantType(U8, scale=(1.0,)))]).result
    w = graph.constant(Array(data, TensorType((3, 10), kind), "w"))
    graph.add("output", {"y": graph.add("linear", {"x": x, "w": w}, name="y").result})
    (sums,) = overflow(graph)
    parts = [data[:, i : i + 4].astype(int) * 255 for i in (0, 4, 8)]
    assert sums.greatest == max(int(np.maximum(p, 0).sum(axis=1).max()) for p in parts)
    assert sums.least == min(int(np.minimum(p, 0).sum(axis=1).min()) for p in parts)
    assert verify(graph) == []


def test_weights_of_64_bits_are_summed_in_whole_numbers() -> None:
    kind = QuantType(dtype("i32"), scale=(1.0,))
    (sums,) = overflow(linear(4, 2**62, kind, dtype("i64")))
    assert sums.greatest == 4 * 2**62 * (2**31 - 1)
    assert sums.least == -4 * 2**62 * 2**31
    assert sums.bits == 96


@pytest.mark.parametrize("size", ["40", "5000", "(N)"])
def test_every_place_of_a_large_transposed_convolution_is_one_of_a_few(size: str) -> None:
    graph = graph_of(
        f"%x = input() : 1x1x{size}x!quant.uniform<u8:f32, 0.5>\n"
        "%w = constant(@taps) : 1x1x4x!quant.uniform<i8:f32, 0.25>\n"
        "%y = conv_transpose1d(%x, %w) {stride = (3,), dilation = (2,)} : 1x1x?xf32\noutput(y=%y)"
    )
    (sums,) = overflow(graph)  # taps lie at 0, 2, 4, 6: the first and the last meet
    assert (sums.depth, sums.least, sums.greatest) == (2, -3 * 255, (1 + 100) * 255)
    assert sums.pairs is None


def test_codes_of_64_bits_times_nothing_are_nothing() -> None:
    (sums,) = overflow(linear(4, 0, QuantType(dtype("u64"), scale=(1.0,), zero=(2**63,))))
    assert (sums.least, sums.greatest, sums.bits) == (0, 0, 1)


@pytest.mark.parametrize(("bits", "told"), [(8, True), (16, False)])
def test_reals_of_wide_codes_are_not_summed_in_32_bits(bits: int, told: bool) -> None:
    for floats in (True, False):
        graph = Graph()
        kind, deep = QuantType(dtype(f"u{bits}"), scale=(1.0,)), 1 << 17
        x = graph.add("input", types=[TensorType((1, deep), kind)], name="x").result
        w = graph.add("input", types=[TensorType((deep, 1), kind)], name="w").result
        if floats:
            x, w = (graph.add("dequantize", {"x": v}).result for v in (x, w))
        graph.add("output", {"y": graph.add("matmul", {"a": x, "b": w}).result})
        found = [f for f in verify(graph) if f.rule == "overflow"]
        assert bool(found) is (told or not floats)


def test_computed_weights_are_bounded_by_their_type() -> None:
    q = "!quant.uniform<u8:f32, 0.5:3>"
    text = f"%x = input() : 2x4x9x{q} %y = matmul(%x, %x) {{trans_b = true}} : 2x4x4x{q}"
    (sums,) = overflow(graph_of(f"{text}\noutput(y=%y)"))
    assert (sums.static, sums.channel) == (False, None)
    assert (sums.least, sums.greatest) == (-9 * 3 * 252, 9 * 252 * 252)
    (sums,) = overflow(graph_of(f"{text}\noutput(y=%y)".replace("9x!", "(K)x!")))
    assert sums.why == "the length of its sums is not known"


# -- pairs --------------------------------------------------------------------------------------


def saturated(pairs: NDArray[np.int64], quantized: NDArray[np.int64]) -> NDArray[np.int64]:
    """vpmaddubsw, by its definition: sums of two products, kept to 16 bits."""
    out: NDArray[np.int64] = np.clip((pairs * quantized).sum(axis=-1), -(2**15), 2**15 - 1)
    return out


@pytest.mark.parametrize("seed", range(12))
def test_pairs_saturate_where_told_and_the_codes_given_take_them_there(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reach = (40, 64, 65, 128)[seed % 4]
    data = rng.integers(-reach, reach, (3, 2 + seed % 5)).astype(np.int8)
    x = QuantType((U8, I8)[seed % 2], scale=(1.0,), bounds=((0, 255), (-128, 100))[seed % 2])
    graph = Graph()
    value = graph.add("input", types=[TensorType((1, data.shape[1]), x)]).result
    held = TensorType(data.shape, QuantType(I8, scale=(1.0,)))
    w = graph.constant(Array(data, held, "w"))
    graph.add("output", {"y": graph.add("linear", {"x": value, "w": w}, name="y").result})
    (sums,) = overflow(graph)
    pairs = sums.pairs
    assert pairs is not None
    low, high = (x.low + 128, x.high + 128) if x.storage is I8 else (x.low, x.high)
    even = np.pad(data, ((0, 0), (0, data.shape[1] % 2))).astype(np.int64).reshape(3, -1, 2)
    tried = [even * np.array([a, b]) for a in (low, high) for b in (low, high)]
    totals = np.stack([t.sum(axis=-1) for t in tried])
    assert (pairs.least, pairs.greatest) == (totals.min(), totals.max())
    assert pairs.saturates == bool((np.abs(totals + 0.5) > 2**15).any())
    taken = np.array(pairs.weights, np.int64), np.array(pairs.codes, np.int64)
    np.testing.assert_array_equal(even[pairs.channel, pairs.at // 2], taken[0])
    exact = int((taken[0] * taken[1]).sum())
    assert exact in (pairs.least, pairs.greatest)
    assert (int(saturated(*taken)) != exact) == pairs.saturates


def test_weights_of_seven_bits_never_saturate_a_pair() -> None:
    for value, saturates in ((64, False), (65, True)):
        (sums,) = overflow(linear(8, value, QuantType(U8, scale=(1.0,))))
        assert sums.saturates is saturates
    (sums,) = overflow(linear(8, 127, QuantType(U8, scale=(1.0,), bounds=(0, 127))))
    assert sums.saturates is False
    (sums,) = overflow(linear(8, 127, QuantType(dtype("i16"), scale=(1.0,))))
    assert sums.pairs is None


EDGES = [
    (weights, code)
    for weights in (*range(2, 255), *range(-256, -1))
    for code in range(1, 256)
    if min(abs(weights * code - end) for end in (-(2**15), 2**15 - 1)) <= 3
]
"""Sums of two weights, and integers, whose product lies at an end of 16 bits or next to it."""


@pytest.mark.parametrize(("weights", "code"), EDGES)
def test_a_pair_saturates_from_the_first_sum_beyond_16_bits(weights: int, code: int) -> None:
    taken = np.array([[weights // 2, weights - weights // 2]])
    graph = Graph()
    x = QuantType(U8, scale=(1.0,), bounds=(0, code))
    value = graph.add("input", types=[TensorType((1, 2), x)]).result
    held = TensorType((1, 2), QuantType(I8, scale=(1.0,)))
    w = graph.constant(Array(taken.astype(np.int8), held, "w"))
    graph.add("output", {"y": graph.add("linear", {"x": value, "w": w}).result})
    (sums,) = overflow(graph)
    (kept,) = saturated(taken, np.array([code, code]))
    assert sums.saturates is bool(kept != weights * code)


def test_the_ends_of_16_bits_themselves_are_among_those_sums() -> None:
    assert {weights * code for weights, code in EDGES} >= {-(2**15), 2**15 - 1}


def test_taps_of_a_window_follow_each_other_channels_within_a_tap() -> None:
    data = np.zeros((1, 2, 1, 2), np.int8)
    data[0, :, 0, 0] = 100  # both channels of one tap: neighbours
    apart = np.zeros((1, 2, 1, 2), np.int8)
    apart[0, 0, 0, :] = 100  # one channel of both taps: none
    for held, saturates in ((data, True), (apart, False)):
        graph = Graph()
        kind = QuantType(U8, scale=(1.0,))
        x = graph.add("input", types=[TensorType((1, 2, 4, 4), kind)]).result
        w = graph.constant(Array(held, TensorType(held.shape, QuantType(I8, scale=(1.0,))), "w"))
        graph.add("output", {"y": graph.add("conv2d", {"x": x, "w": w}).result})
        (sums,) = overflow(graph)
        assert sums.saturates is saturates


def test_sums_are_told_as_json_and_for_every_product_of_a_model() -> None:
    graph = linear(66312, 127, QuantType(U8, scale=(1.0,)))
    (sums,) = overflow(graph)
    assert isinstance(sums, SumRange)
    told = sums.to_json()
    assert {"bits": 33, "headroom": -1, "wraps": True, "depth": 66312}.items() <= told.items()
    assert isinstance(told["pairs"], dict)
    assert told["pairs"]["saturates"] is True

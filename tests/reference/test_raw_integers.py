"""Products of raw integers, and bits read as another type: every element as onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError, TypeRuleError
from qir.ir.dtype import dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.text import parse_type
from qir.ir.types import Array, QuantType, TensorType
from qir.ir.verify import check
from qir.reference.interpreter import run
from tests.reference.oracles import onnxruntime_runs

Tensor = NDArray[Any]
SEED = 21


def computed(op: str, operands: dict[str, Tensor], **attrs: Any) -> Tensor:
    graph = Graph("g")
    values = {
        slot: graph.add("input", types=[TensorType(x.shape, dtype_of(x))], name=slot).result
        for slot, x in operands.items()
    }
    made = graph.add(op, values, attrs)
    graph.add("output", {"o": made.result})
    check(graph)
    return run(graph, operands)["o"]


def some(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Tensor:
    least, most = dtype(kind).bounds
    ends = rng.random() < 0.2  # all at one end: the largest sums there are
    if ends:
        return np.full(shape, rng.choice([least, most]), dtype(kind).carrier)
    return rng.integers(least, most, shape, endpoint=True).astype(dtype(kind).carrier)


def zeros(rng: np.random.Generator, kind: str, columns: int) -> Tensor | None:
    form = rng.integers(0, 3)
    return None if form == 0 else some(rng, () if form == 1 else (columns,), kind)


def test_matmul_integer_is_onnxruntimes() -> None:
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    for _ in range(80):
        m, k, n = rng.integers(1, 9, 3)
        batch = tuple(rng.integers(1, 3, rng.integers(0, 3)))
        kinds = rng.choice([["u8", "u8"], ["u8", "i8"], ["i8", "i8"]])
        a = some(rng, (*batch, m, k), kinds[0])
        b = some(rng, (*batch, k, n) if rng.random() < 0.5 else (k, n), kinds[1])
        a_zero = some(rng, (), kinds[0]) if rng.random() < 0.7 else None
        b_zero = zeros(rng, kinds[1], n) if b.ndim == 2 else None
        wanted = onnxruntime_runs("MatMulInteger", [a, b, a_zero, b_zero])
        given = {"a": a, "b": b, "a.zero": a_zero, "b.zero": b_zero}
        found = computed("matmul_integer", {s: x for s, x in given.items() if x is not None})
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted), f"{a.shape} {b.shape} {kinds}"


def test_sums_of_raw_integers_wrap() -> None:
    a = np.full((1, 40000), 255, np.uint8)
    found = computed("matmul_integer", {"a": a, "b": a.T.copy()})
    assert found[0, 0] == np.int64(40000 * 255 * 255).astype(np.int32)
    assert found[0, 0] < 0
    assert np.array_equal(found, onnxruntime_runs("MatMulInteger", [a, a.T.copy()]))


def test_zeros_along_rows_belong_to_rows() -> None:
    rng = np.random.default_rng(SEED)
    a, b, zero = some(rng, (3, 4), "u8"), some(rng, (4, 2), "i8"), some(rng, (3,), "u8")
    wanted = (a.astype(np.int64) - zero[:, None].astype(np.int64)) @ b.astype(np.int64)
    assert np.array_equal(computed("matmul_integer", {"a": a, "b": b, "a.zero": zero}), wanted)
    square = some(rng, (1, 2, 3, 4), "u8")
    many = some(rng, (1, 2, 3, 1), "u8")
    wanted = (square.astype(np.int64) - many) @ b.astype(np.int64)
    found = computed("matmul_integer", {"a": square, "b": b, "a.zero": many})
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_conv_integer_is_onnxruntimes(axes: int) -> None:
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED + axes)
    for _ in range(40):
        groups = int(rng.integers(1, 3))
        channels, out = groups * int(rng.integers(1, 4)), groups * int(rng.integers(1, 4))
        kernel = tuple(int(k) for k in rng.integers(1, 4, axes))
        stride, dilation = (
            tuple(int(v) for v in rng.integers(1, 3, axes)) for _ in ("stride", "dilation")
        )
        pad = tuple(int(p) for p in rng.integers(0, 3, 2 * axes))
        sizes = tuple(int(s) for s in rng.integers(6, 9, axes))
        kinds = ["u8", "u8"] if rng.random() < 0.5 else ["u8", "i8"]
        x = some(rng, (2, channels, *sizes), kinds[0])
        w = some(rng, (out, channels // groups, *kernel), kinds[1])
        x_zero = some(rng, (), "u8") if rng.random() < 0.7 else None
        w_zero = some(rng, (), kinds[1]) if rng.random() < 0.5 else None
        wanted = onnxruntime_runs(
            "ConvInteger",
            [x, w, x_zero, w_zero],
            strides=stride,
            dilations=dilation,
            pads=pad,
            group=groups,
        )
        given = {"x": x, "w": w, "x.zero": x_zero, "w.zero": w_zero}
        found = computed(
            "conv_integer",
            {s: t for s, t in given.items() if t is not None},
            stride=stride,
            dilation=dilation,
            pad=pad,
            groups=groups,
        )
        assert np.array_equal(found, wanted), f"{x.shape} {w.shape} {kinds}"


def test_zeros_along_channels_of_weights() -> None:
    rng = np.random.default_rng(SEED)
    x, w, zero = some(rng, (1, 2, 5), "i8"), some(rng, (3, 2, 2), "i8"), some(rng, (3,), "i8")
    left = np.stack([x[0, :, i : i + 2].astype(np.int64) for i in range(4)])
    right = w.astype(np.int64) - zero.astype(np.int64)[:, None, None]
    wanted = np.einsum("nck,ock->on", left, right)
    found = computed("conv_integer", {"x": x, "w": w, "w.zero": zero})
    assert np.array_equal(found[0], wanted)


@pytest.mark.parametrize(
    ("op", "kinds", "message"),
    [
        ("matmul_integer", {"a": "2x3xi32", "b": "3x2xu8"}, "a is 2x3xi32, it takes raw i8 or u8"),
        ("matmul_integer", {"a": "2x3xu8", "b": "2x2xu8"}, "a has 3 columns, b has 2 rows"),
        ("matmul_integer", {"a": "2x3xu8", "b": "3x2xu8", "a.zero": "i8"}, "a.zero is i8, a is u8"),
        ("matmul_integer", {"a": "2x3xu8", "b": "3x2xu8", "a.scale": "f32"}, "takes no a.scale"),
        ("matmul_integer", {"a": "2x3xu8", "b": "3x2xu8", "b.zero": "3xu8"}, "has 3 numbers"),
        ("conv_integer", {"x": "2x3xu8", "w": "3x2xu8"}, "x has 2 axes and w 2"),
        ("conv_integer", {"x": "1x3x4xu8", "w": "2x2x1xu8"}, "x has 3 channels"),
        ("conv_integer", {"x": "1x2x4xu8", "w": "2x2x9xu8"}, "larger than the padded input"),
        ("conv_integer", {"x": "1x2x4xu8", "w": "2x2x1xu8", "x.zero": "2xu8"}, "one for all"),
    ],
)
def test_what_raw_products_do_not_take_is_a_type_error(
    op: str, kinds: dict[str, str], message: str
) -> None:
    graph = Graph("g")
    values = {s: graph.add("input", types=[parse_type(k)], name=s).result for s, k in kinds.items()}
    with pytest.raises(TypeRuleError, match=message):
        graph.add(op, values)


def recoded(x: Tensor, of: Any, to: Any) -> Tensor:
    graph = Graph("g")
    value = graph.constant(Array(x, TensorType(x.shape, of), "x"))
    made = graph.add("recode", {"x": value}, types=[TensorType(x.shape, to)])
    graph.add("output", {"o": made.result})
    check(graph)
    return run(graph, {})["o"]


def test_recode_keeps_every_bit() -> None:
    every = np.arange(256).astype(np.uint8)
    meant = QuantType(dtype("u8"), scale=(0.5,), zero=(3,))
    assert np.array_equal(recoded(every, meant, dtype("u8")), every)
    assert np.array_equal(recoded(every, dtype("u8"), meant), every)
    assert np.array_equal(recoded(every, dtype("u8"), dtype("i8")), every.view(np.int8))
    words = np.random.default_rng(SEED).integers(0, 1 << 32, 50).astype(np.uint32)
    assert recoded(words, dtype("u32"), dtype("f32")).tobytes() == words.tobytes()
    nibbles = np.arange(16).astype(np.uint8)
    signed = recoded(nibbles, dtype("u4"), QuantType(dtype("i4"), scale=(1.0,)))
    assert np.array_equal(signed, np.where(nibbles < 8, nibbles, nibbles.astype(np.int8) - 16))


def test_recode_of_another_width_is_told() -> None:
    graph = Graph("g")
    x = graph.constant(Array.of(np.zeros(2, np.uint8), "x"))
    made = graph.add("recode", {"x": x}, types=[TensorType((2,), dtype("u16"))])
    graph.add("output", {"o": made.result})
    with pytest.raises(OpError, match="recode: u8 has 8 bits, u16 has 16"):
        run(graph, {})

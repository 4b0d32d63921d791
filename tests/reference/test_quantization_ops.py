"""What nodes state themselves, floats held to integers, numbers read off, integers of other
maps."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError, TypeRuleError
from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.reference.interpreter import run
from qir.rewrite import run_passes

Tensor = NDArray[Any]
F = np.float32
SEED = 23


def computed(
    body: str, data: dict[str, Tensor] | None = None, **inputs: Tensor
) -> dict[str, Tensor]:
    graph = parse(f"graph g as native {{\n{body}\n}}", data or {})
    check(graph)
    return run(graph, inputs)


# -- round and saturate ---------------------------------------------------------------------------

NEAR = {
    "even": lambda v: float(np.rint(v)),
    "away": lambda v: float(np.sign(v) * np.floor(abs(v) + 0.5)),
    "half_up": lambda v: float(np.floor(v + 0.5)),
    "half_down": lambda v: float(np.ceil(v - 0.5)),
    "up": lambda v: float(np.sign(v) * np.ceil(abs(v))),
    "down": lambda v: float(np.trunc(v)),
    "zero": lambda v: float(np.trunc(v)),
    "floor": lambda v: float(np.floor(v)),
    "ceil": lambda v: float(np.ceil(v)),
}


@pytest.mark.parametrize("mode", sorted(NEAR))
def test_a_node_that_says_how_it_rounds_is_obeyed(mode: str) -> None:
    x = (np.arange(-24, 25) / 4).astype(F)
    body = (
        f"%x = input() : 49xf32\n%q = quantize(%x) {{round = '{mode}'}} : "
        "49x!quant.uniform<i3<-3:3>:f32, 0.5>\noutput(q=%q)"
    ).replace("'", '"')
    wanted = [np.clip(NEAR[mode](v / 0.5), -3, 3) for v in x]
    assert np.array_equal(computed(body, x=x)["q"], wanted)


def test_a_requantize_that_says_how_it_rounds_is_obeyed() -> None:
    quantized = np.arange(-8, 8).astype(np.int8)
    body = (
        "%x = input() : 16x!quant.uniform<i8:f32, 0.25>\n"
        '%a = requantize(%x) {round = "ceil"} : 16x!quant.uniform<i8:f32, 0.5>\n'
        "%b = requantize(%x) : 16x!quant.uniform<i8:f32, 0.5>\noutput(a=%a, b=%b)"
    )
    found = computed(body, x=quantized)
    assert np.array_equal(found["a"], np.ceil(quantized / 2))
    assert np.array_equal(found["b"], np.rint(quantized / 2))


def overflowing(value: float, bits: int, bias: int, largest: float, above: float) -> float:
    """The nearest number of so many bits behind the point, halves to even; `above` if too large."""
    if not np.isfinite(value) or value == 0:
        return above if np.isinf(value) else value
    exponent = max(int(np.floor(np.log2(abs(value)))), 1 - bias)
    step = 2.0 ** (exponent - bits)
    near = float(np.rint(abs(value) / step) * step)
    return float(np.sign(value)) * (near if near <= largest else above)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("f8e4m3fn", (3, 7, 448.0, np.nan)), ("f8e5m2", (2, 15, 57344.0, np.inf))],
)
def test_float_codes_overflow_where_the_node_says_so(
    name: str, numbers: tuple[int, int, float, float]
) -> None:
    ends = [0, 0.001, 1, 223, 224, 231, 232, 233, 240, 28672, 30719, 30720, 32768, 1e30, np.inf]
    x = np.array([*ends, *(-v for v in ends), np.nan], F)
    body = (
        f"%x = input() : {x.size}xf32\n%q = quantize(%x) {{saturate = false}} : "
        f"{x.size}x!quant.uniform<{name}:f32, 0.5>\noutput(q=%q)"
    )
    found = computed(body, x=x)["q"].astype(F)
    wanted = [overflowing(float(v), *numbers) if v == v else np.nan for v in x / F(0.5)]
    assert np.array_equal(np.abs(found), np.abs(np.array(wanted, F)), equal_nan=True)
    assert np.array_equal(np.signbit(found[:30]), np.signbit(x[:30]))


def test_whole_codes_always_saturate() -> None:
    body = (
        "%x = input() : 3xf32\n%q = quantize(%x) {saturate = false} : "
        "3x!quant.uniform<u8:f32, 0.5>\noutput(q=%q)"
    )
    with pytest.raises(OpError, match="quantized values of u8 saturate; only floats overflow"):
        computed(body, x=np.zeros(3, F))


@pytest.mark.parametrize("attrs", [{"round": "nearest"}, {"mode": "max_first"}])
def test_words_that_are_none_are_type_errors(attrs: dict[str, Any]) -> None:
    graph = Graph("g")
    x = graph.add("input", types=[TensorType((2,), F32)], name="x").result
    with pytest.raises(TypeRuleError, match="is none of"):
        graph.add("quantize", {"x": x}, attrs)


def test_a_quantize_that_says_how_it_rounds_is_no_end_of_a_kernel() -> None:
    text = (
        "graph g as native {{\n%x = input() : 2x!quant.uniform<u8:f32, 0.5>\n"
        "%d = dequantize(%x) : 2xf32\n%s = sigmoid(%d) : 2xf32\n"
        "%q = quantize(%s){attrs} : 2x!quant.uniform<u8:f32, 0.5>\noutput(q=%q)\n}}"
    )
    plain, stated = (parse(text.format(attrs=a)) for a in ("", ' {round = "up"}'))
    assert run_passes(plain, [FuseQdq()], Ledger())["q"].node.op == "sigmoid"
    assert run_passes(stated, [FuseQdq()], Ledger())["q"].node.op == "quantize"


# -- fake_quantize --------------------------------------------------------------------------------


def test_fake_quantize_is_what_codes_can_hold() -> None:
    x = np.random.default_rng(SEED).normal(size=200).astype(F)
    body = (
        "%x = input() : 200xf32\n%s = constant(0.03) : f32\n%z = constant(7) : i32\n"
        '%f = fake_quantize(%x, code.scale=%s, code.zero=%z) {learn = "lsq"} '
        "inner {code : !quant.uniform<i8:f32, ?:?>} : 200xf32\n"
        "%q = quantize(%x) : 200x!quant.uniform<i8:f32, 0.03:7>\n%d = dequantize(%q) : 200xf32\n"
        "%off = fake_quantize(%x) {enabled = false} : 200xf32\n"
        "%n = fake_quantize(%x) inner {code : !quant.uniform<u4<0:14>:f32, 0.2:7>} : 200xf32\n"
        "output(f=%f, d=%d, off=%off, n=%n)"
    )
    found = computed(body, x=x)
    assert np.array_equal(found["f"], found["d"])
    assert np.array_equal(found["off"], x)
    quantized = np.clip(np.rint(x / F(0.2)) + 7, 0, 14)
    assert np.array_equal(found["n"], (quantized - 7).astype(F) * F(0.2))


def test_fake_quantize_without_a_type_is_told_and_never_folded() -> None:
    body = "%x = constant([1.0, 2.3]) : 2xf32\n%f = fake_quantize(%x) : 2xf32\noutput(f=%f)"
    with pytest.raises(OpError, match="the inner slot `code` has no quantized type"):
        computed(body)
    graph = parse(f"graph g as native {{\n{body}\n}}")
    assert run_passes(graph, [FoldConstants()], Ledger()) == graph


# -- qparams --------------------------------------------------------------------------------------

READ = [
    ("u8:f32, 0.5:3", F(0.5), np.uint8(3), F(-1.5), F(126)),
    ("i8<-127:127>:f32, 0.25", F(0.25), np.int8(0), F(-31.75), F(31.75)),
    ("u8:f32, 0.5, plus -2.0", F(0.5), np.uint8(0), F(-2), F(125.5)),
    ("u4:f32, 0.5:7.5", F(0.5), F(7.5), F(-3.75), F(3.75)),
    ("i8:f32, 0.5, from -60.0..63.75 / 127.5", F(0.5), np.int8(0), F(-60), F(63.75)),
    ("i8:f32, 0.1, scale f64", np.float64(0.1), np.int8(0), F(-12.8), F(12.7)),
]


@pytest.mark.parametrize(("quant", "scale", "zero", "low", "high"), READ)
def test_numbers_of_a_static_type_are_read_off(
    quant: str, scale: Any, zero: Any, low: Any, high: Any
) -> None:
    kind = np.dtype(type(scale)).name.replace("float", "f")
    other = {"u": "u", "i": "i", "f": "f"}[zero.dtype.kind] + str(8 * zero.dtype.itemsize)
    if quant.startswith("u4") and zero.dtype.kind == "u":
        other = "u4"
    body = (
        f"%x = input() : 2x!quant.uniform<{quant}>\n%s, %z = qparams(%x) : {kind}, {other}\n"
        '%l, %h = qparams(%x) {give = "range"} : f32, f32\noutput(s=%s, z=%z, l=%l, h=%h)'
    )
    found = computed(body, x=np.zeros(2, np.int8 if quant[0] == "i" else np.uint8))
    for name, wanted in zip("szlh", (scale, zero, low, high), strict=True):
        assert found[name].shape == ()
        assert found[name] == wanted
        assert found[name].dtype == wanted.dtype


def test_numbers_along_an_axis_and_beside_a_type_are_read_off() -> None:
    body = (
        "%x = input() : 2x3x!quant.uniform<u8:f32:1, {0.5:1, 0.25:2, 1.0:3}>\n"
        "%y = input() : 2x3x!quant.uniform<u8:f32, ?:?>\n%a = input() : f32\n%b = input() : u8\n"
        "%s, %z = qparams(%x) : 3xf32, 3xu8\n"
        "%t, %w = qparams(%y, x.scale=%a, x.zero=%b) : f32, u8\n"
        '%l, %h = qparams(%x) {give = "range"} : 3xf32, 3xf32\n'
        "output(s=%s, z=%z, t=%t, w=%w, l=%l, h=%h)"
    )
    quantized = np.zeros((2, 3), np.uint8)
    numbers: dict[str, Tensor] = {"a": np.array(0.3, F), "b": np.array(9, np.uint8)}
    found = computed(body, None, x=quantized, y=quantized, **numbers)
    assert np.array_equal(found["s"], np.array([0.5, 0.25, 1], F))
    assert np.array_equal(found["z"], [1, 2, 3])
    assert (found["t"], found["w"]) == (numbers["a"], numbers["b"])
    assert np.array_equal(found["l"], [-0.5, -0.5, -3])
    assert np.array_equal(found["h"], [127, 63.25, 252])


# -- by value -------------------------------------------------------------------------------------

MAPS = {
    "i8:f32:1, {0.5, 0.25, 1.0, 0.125}": lambda q: q * np.array([0.5, 0.25, 1, 0.125]),
    "i8:f32:{0:1, 1:2}, @g": lambda q: q * np.repeat([[0.5, 0.25], [1, 0.125]], 2, 1),
    "u8:f32, 0.5:1.5": lambda q: (q - 1.5) * 0.5,
    "u8:f32, 0.5, plus -3.0": lambda q: q * 0.5 - 3,
    "f8e4m3fn:f32, 0.5": lambda q: q * 0.5,
}


@pytest.mark.parametrize("quant", sorted(MAPS))
def test_codes_of_any_map_become_codes_of_another_by_value(quant: str) -> None:
    grid = np.array([[0.5, 0.25], [1, 0.125]], F)
    head = "array @g : 2x2xf32\n" if "@g" in quant else ""
    graph = parse(
        f"{head}graph g as native {{\n%x = input() : 2x4x!quant.uniform<{quant}>\n"
        "%y = requantize(%x) : 2x4x!quant.uniform<u8:f32, 0.125:100>\n"
        f"%r = dequantize(%y) : 2x4xf32\n%b = quantize(%r) : 2x4x!quant.uniform<{quant}>\n"
        "%k = requantize(%y) : 2x4x!quant.uniform<u8:f32, 0.125:100>\noutput(y=%y, b=%b, k=%k)\n}",
        {"g": grid},
    )
    carrier = dtype(quant.partition(":")[0]).carrier
    quantized = np.array([[1, 2, 3, 4], [5, 6, 7, 8]]).astype(carrier)
    found = run(graph, {"x": quantized})
    floats = MAPS[quant](quantized.astype(np.float64))
    assert np.array_equal(found["y"], np.clip(np.rint(floats / 0.125) + 100, 0, 255))
    assert np.array_equal(found["b"], quantized)
    assert np.array_equal(found["k"], found["y"])


def test_products_with_blocks_of_weights_and_real_data_are_computed_in_reals() -> None:
    rng = np.random.default_rng(SEED)
    data: dict[str, Tensor] = {
        "w": rng.integers(0, 16, (5, 8)).astype(np.uint8),
        "s": rng.random((5, 2)).astype(F),
        "z": rng.integers(0, 16, (5, 2)).astype(np.uint8),
    }
    graph = parse(
        "array @s : 5x2xf32\narray @z : 5x2xu4\ngraph g as native {\n%x = input() : 3x8xf32\n"
        "%w = constant(@w) : 5x8x!quant.uniform<u4:f32:{0:1, 1:4}, @s:@z>\n"
        "%y = matmul(%x, %w) {trans_b = true} : 3x5xf32\noutput(y=%y)\n}",
        data,
    )
    x = rng.normal(size=(3, 8)).astype(F)
    scale, zero = (np.repeat(data[n].astype(np.float64), 4, 1) for n in "sz")
    weight = ((data["w"] - zero) * scale).astype(F).astype(np.float64)
    wanted = x.astype(np.float64) @ weight.T
    found: Tensor = run(graph, {"x": x})["y"]
    assert np.abs(found - wanted).max() <= 2.0**-22 * np.abs(wanted).max()


def test_bfloat16_is_what_reals_are_held_to() -> None:
    body = (
        "%x = input() : 4xbf16\n"
        "%f = fake_quantize(%x) inner {code : !quant.uniform<i8:bf16, 0.5>} : 4xbf16\noutput(f=%f)"
    )
    x = np.array([0.26, -1.1, 300, 0], ml_dtypes.bfloat16)
    found = computed(body, x=x)["f"]
    assert found.dtype == x.dtype
    assert np.array_equal(found.astype(F), np.array([0.5, -1, 63.5, 0], F))

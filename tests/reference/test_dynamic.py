"""Types that ask for their numbers: what a program computes is what it would with them written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import Array
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.passes.fold.fold_parameters import FoldParameters
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.reference.dynamic_graphs import Dynamic

Tensor = NDArray[Any]
F = np.float32
SEED = 22


def program(body: str, data: dict[str, Tensor] | None = None) -> Graph:
    arrays = "".join(
        f"array @{n} : {'x'.join(map(str, a.shape))}x{Array.of(a).type.dtype}\n"
        for n, a in (data or {}).items()
        if f"constant(@{n})" not in body
    )
    graph = parse(f"{arrays}graph main as native {{\n{body}\n}}", data or {})
    check(graph)
    return graph


# -- against the static form ----------------------------------------------------------------------


def frozen(graph: Graph, inputs: dict[str, Tensor]) -> Graph:
    """The program with the numbers of one run written into its types."""
    chosen = [v for n in graph if n.op == "choose_qparams" for v in n.results]
    found = run(graph, inputs, values=[v.name for v in chosen])
    out = graph.copy()
    for value in chosen:
        old = out[value.name]
        fixed = out.constant(Array.of(found[value.name], f"{value.name}.held"), before=old.node)
        out.replace(old, fixed)
    out.prune()
    return run_passes(out, [FoldParameters()], Ledger())


@pytest.mark.parametrize("part", range(4))
def test_random_programs_compute_what_their_static_forms_do(part: int) -> None:
    for seed in range(50 * part, 50 * part + 50):
        made = Dynamic(seed)
        check(made.graph)
        inputs = made.inputs()
        static = frozen(made.graph, inputs)
        assert not any(v.type.quant and v.type.quant.dynamic for v in static.values.values())
        found, wanted = run(made.graph, inputs), run(static, inputs)
        for name in wanted:
            assert found[name].dtype == wanted[name].dtype
            assert found[name].tobytes() == wanted[name].tobytes(), f"seed {seed}, {name}"


def test_random_programs_print_and_read_back() -> None:
    for seed in range(60):
        graph = Dynamic(seed).graph
        arrays = {a.name: a.data for a in graph.arrays()}
        if len({a.digest for a in graph.arrays()}) == len(arrays):
            assert parse(str(graph), arrays) == graph, f"seed {seed}"


def test_written_as_reals_between_codes_they_mean_the_same() -> None:
    """Each rounding stands where it stood; float sums are not exact, so a code may move a step."""
    for seed in range(60):
        made = Dynamic(seed)
        inputs = made.inputs()
        apart = run_passes(made.graph, [ExpandQdq()], Ledger())
        asked = [n.op for n in apart if any(v.type.quant for v in n.results)]
        assert set(asked) <= {"quantize", "requantize", "transpose", "constant"}
        found, wanted = run(made.graph, inputs), run(apart, inputs)
        for name, data in wanted.items():
            one, other = found[name].astype(np.float64), data.astype(np.float64)
            near = 2.0 if data.dtype.kind in "iu" else 0.02 * np.abs(other).max() + 1e-30
            assert np.abs(one - other).max() <= near, f"seed {seed}, {name}"


# -- against formulas -----------------------------------------------------------------------------


LIFTED = """%x = input() : 3x7xf32
%wi = constant(@wi) : 7x4xu8
%wz = constant(@wz) : 4xu8
%ws = constant(@ws) : 4xf32
%s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8
%q = quantize(%x, scale=%s, zero=%z) : 3x7x!quant.uniform<u8:f32, ?:?>
%qi = recode(%q) : 3x7xu8
%i = matmul_integer(%qi, %wi, a.zero=%z, b.zero=%wz) : 3x4xi32
%f = cast(%i) {to = f32} : 3x4xf32
%m = mul(%s, %ws) : 4xf32
%raw = mul(%f, %m) : 3x4xf32
%w = recode(%wi) : 7x4x!quant.uniform<u8:f32:1, ?:?>
%lifted = matmul(%q, %w, a.scale=%s, a.zero=%z, b.scale=%ws, b.zero=%wz) : 3x4xf32
output(raw=%raw, lifted=%lifted)"""


def test_a_lifted_product_has_the_bytes_of_its_raw_form() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(30):
        data: dict[str, Tensor] = {
            "wi": rng.integers(0, 256, (7, 4)).astype(np.uint8),
            "wz": rng.integers(0, 256, 4).astype(np.uint8),
            "ws": rng.random(4).astype(F),
        }
        x = (rng.normal(size=(3, 7)) * 10.0 ** rng.integers(-20, 20)).astype(F)
        found = run(program(LIFTED, data), {"x": x})
        assert found["raw"].tobytes() == found["lifted"].tobytes()


TOKENS = """%x = input() : 2x3x8xf32
%w = constant(@w) : 5x8x!quant.uniform<i8:f32:0, @ws>
%b = constant(@b) : 5xf32
%s, %z = choose_qparams(%x)
  {rule = "torchao.per_token", storage = i8, keep = (0, 1), zero_type = i32}
  : 2x3x1xf32, 2x3x1xi32
%q = quantize(%x, scale=%s, zero=%z) : 2x3x8x!quant.uniform<i8:f32:{0:1, 1:1}, ?:?>
%y = linear(%q, %w, bias=%b, x.scale=%s, x.zero=%z) : 2x3x5xf32
%c = linear(%q, %w, x.scale=%s, x.zero=%z) : 2x3x5x!quant.uniform<u8:f32, 0.25:99>
output(s=%s, z=%z, q=%q, y=%y, c=%c)"""


def test_a_scale_a_token_and_a_scale_a_channel_multiply_each_sum() -> None:
    rng = np.random.default_rng(SEED)
    data: dict[str, Tensor] = {
        "w": rng.integers(-128, 128, (5, 8)).astype(np.int8),
        "ws": rng.random(5).astype(F),
        "b": rng.normal(size=5).astype(F),
    }
    x = (rng.normal(size=(2, 3, 8)) * 10.0 ** rng.integers(-2, 2, (2, 3, 1))).astype(F)
    found: dict[str, Tensor] = dict(run(program(TOKENS, data), {"x": x}))
    acc = (found["q"].astype(np.int64) - found["z"]) @ data["w"].astype(np.int64).T
    scale = (found["s"] * data["ws"]).astype(F)
    assert np.array_equal(found["y"], acc.astype(F) * scale + data["b"])
    factor = scale / F(0.25)
    assert np.array_equal(found["c"], np.clip(np.rint(acc.astype(F) * factor) + 99, 0, 255))


BLOCKS = """%x = input() : 2x10xf32
%w = constant(@w) : 10x3xf32
%s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8, keep = (0, 1), blocks = (1, 4)}
  : 2x3xf32, 2x3xu8
%q = quantize(%x, scale=%s, zero=%z) : 2x10x!quant.uniform<u8:f32:{0:1, 1:4}, ?:?>
%y = matmul(%q, %w, a.scale=%s, a.zero=%z) : 2x3xf32
output(s=%s, z=%z, q=%q, y=%y)"""


def test_blocks_along_the_sum_are_computed_in_reals() -> None:
    rng = np.random.default_rng(SEED)
    x, w = rng.normal(size=(2, 10)).astype(F), rng.normal(size=(10, 3)).astype(F)
    found: dict[str, Tensor] = dict(run(program(BLOCKS, {"w": w}), {"x": x}))
    spread = [np.repeat(found[n].astype(F), 4, 1)[:, :10] for n in "sz"]
    floats = (found["q"].astype(F) - spread[1]) * spread[0]
    assert np.abs(floats - x).max() <= spread[0].max() / 2
    wanted = floats.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(found["y"] - wanted).max() <= 2.0**-23 * np.abs(wanted).max()


def test_convolutions_take_numbers_that_come_beside() -> None:
    rng = np.random.default_rng(SEED)
    body = """%x = input() : 1x2x5x5xf32
%w = constant(@w) : 3x2x3x3x!quant.uniform<i8:f32:0, ?>
%ws = constant(@ws) : 3xf32
%s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8
%q = quantize(%x, scale=%s, zero=%z) : 1x2x5x5x!quant.uniform<u8:f32, ?:?>
%y = conv2d(%q, %w, x.scale=%s, x.zero=%z, w.scale=%ws) {pad = (1, 1, 1, 1)} : 1x3x5x5xf32
%raw = recode(%q) : 1x2x5x5xu8
%wr = recode(%w) : 3x2x3x3xi8
%i = conv_integer(%raw, %wr, x.zero=%z) {pad = (1, 1, 1, 1)} : 1x3x5x5xi32
output(s=%s, y=%y, i=%i)"""
    data: dict[str, Tensor] = {
        "w": rng.integers(-128, 128, (3, 2, 3, 3)).astype(np.int8),
        "ws": rng.random(3).astype(F),
    }
    x = rng.normal(size=(1, 2, 5, 5)).astype(F)
    found: dict[str, Tensor] = dict(run(program(body, data), {"x": x}))
    scale = (found["s"] * data["ws"]).astype(F)[:, None, None]
    assert np.array_equal(found["y"], found["i"].astype(F) * scale)


# -- what a type does not get ---------------------------------------------------------------------


def test_a_number_that_nobody_gives_is_asked_for_by_name() -> None:
    graph = parse(
        "graph g as native {\n%x = input() : 3x!quant.uniform<u8:f32, ?:?>\n"
        "%d = dequantize(%x) : 3xf32\noutput(d=%d)\n}"
    )
    with pytest.raises(OpError, match=r"^d: dequantize: x is .*; x\.scale is to give the number$"):
        run(graph, {"x": np.zeros(3, np.uint8)})


@pytest.mark.parametrize(
    ("kind", "companions", "message"),
    [
        ("?", {"x.scale": np.ones(2, F)}, "x.scale has 2 numbers; the type has one for all"),
        ("?", {"x.scale": np.ones((), np.int32)}, "x.scale is i32; scales are floats"),
        ("?:?", {"x.scale": np.ones((), F)}, "x.zero is missing"),
        ("0.5:3", {"x.scale": np.ones((), F)}, "x.scale is given, and no type asks for it"),
        ("?", {"x.scale": np.ones((), F), "scale": np.ones((), F)}, "scale is given, and no type"),
    ],
)
def test_numbers_that_do_not_fit_are_told(
    kind: str, companions: dict[str, Tensor], message: str
) -> None:
    graph = parse(
        f"graph g as native {{\n%x = input() : 3x!quant.uniform<u8:f32, {kind}>\n"
        "%d = dequantize(%x) : 3xf32\noutput(d=%d)\n}"
    )
    for slot, data in companions.items():
        value = graph.constant(Array.of(data, slot), before=graph["d"].node)
        graph.set_operand(graph["d"].node, slot, value)
    with pytest.raises(OpError, match=message):
        run(graph, {"x": np.zeros(3, np.uint8)})


def test_reals_are_given_no_numbers_and_sizes_need_none() -> None:
    text = "graph g as native {{\n%x = input() : {kind}\n%s = constant(0.5) : f32\n%y = {op}\n}}"
    wrong = text.format(kind="3xf32", op="relu(%x, x.scale=%s) : 3xf32\noutput(y=%y)")
    with pytest.raises(OpError, match=r"^y: relu: x\.scale is given, and no type asks for it$"):
        run(parse(wrong), {"x": np.zeros(3, F)})
    kind = "3x!quant.uniform<u8:f32, ?>"
    asked = text.format(kind=kind, op="shape(%x, x.scale=%s) : 1xi64\noutput(y=%y)")
    assert run(parse(asked), {"x": np.zeros(3, np.uint8)})["y"] == [3]


def test_a_dynamic_zero_outside_the_storage_is_told() -> None:
    graph = program(
        "%x = input() : 3xf32\n%s = constant(0.5) : f32\n%z = input() : i32\n"
        "%q = quantize(%x, scale=%s, zero=%z) : 3x!quant.uniform<u8:f32, ?:?>\noutput(q=%q)"
    )
    with pytest.raises(OpError, match=r"q: zero point 300\.\.300 does not fit u8"):
        run(graph, {"x": np.zeros(3, F), "z": np.array(300, np.int32)})


def test_real_zeros_come_beside_too() -> None:
    graph = program(
        "%x = input() : 3x!quant.uniform<u8:f32, ?:?>\n%s = constant(0.5) : f32\n"
        "%z = constant(1.5) : f32\n%d = dequantize(%x, x.scale=%s, x.zero=%z) : 3xf32\noutput(d=%d)"
    )
    found = run(graph, {"x": np.array([0, 1, 255], np.uint8)})["d"]
    assert np.array_equal(found, np.array([-0.75, -0.25, 126.75], F))


def test_bfloat16_scales_are_of_their_own_type() -> None:
    graph = program(
        "%x = input() : 3x!quant.uniform<u8:f32, ?>\n%s = constant(0.1) : f32\n"
        "%h = cast(%s) {to = bf16} : bf16\n%d = dequantize(%x, x.scale=%h) : 3xf32\noutput(d=%d)"
    )
    found = run(graph, {"x": np.array([0, 1, 255], np.uint8)})["d"]
    step = F(np.array(0.1, F).astype(dtype("bf16").carrier))
    assert np.array_equal(found, np.array([0, 1, 255], F) * step)


GROUP = """%x = input() : 3x7xf32
%w = constant(@w) : 7x4x!quant.uniform<i8:f32, 0.1>
%s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8
%q = quantize(%x, scale=%s, zero=%z) : 3x7x!quant.uniform<u8:f32, ?:?>
%b = matmul(%q, %w, a.scale=%s, a.zero=%z) : 3x4xf32
%a = matmul(%q, %w, a.scale=%s, a.zero=%z) |> relu : 3x4xf32
%d = matmul(%q, %w, a.scale=%s, a.zero=%z) |> relu : 3x4x!quant.uniform<u8:f32, 0.125:9>
%e = matmul(%q, %w, a.scale=%s, a.zero=%z) : 3x4x!quant.uniform<u8:f32, 0.125:9>
  |> mul(., %x4) : 3x4x!quant.uniform<u8:f32, 0.5:100>
output(a=%a, b=%b, d=%d, e=%e)"""


def test_groups_take_numbers_that_come_beside_and_round_where_they_say() -> None:
    rng = np.random.default_rng(SEED)
    data = {"w": rng.integers(-128, 128, (7, 4)).astype(np.int8)}
    x, x4 = rng.normal(size=(3, 7)).astype(F), rng.normal(size=(3, 4)).astype(F)
    graph = program(GROUP.replace("%x =", "%x4 = input() : 3x4xf32\n%x =", 1), data)
    found: dict[str, Tensor] = dict(run(graph, {"x": x, "x4": x4}))
    bounded = np.maximum(found["b"], 0)
    assert np.array_equal(found["a"], bounded)
    assert np.array_equal(found["d"], np.clip(np.rint(bounded / F(0.125)) + 9, 0, 255))
    inner = (np.clip(np.rint(found["b"] / F(0.125)) + 9, 0, 255) - 9).astype(F) * F(0.125)
    assert np.array_equal(found["e"], np.clip(np.rint(inner * x4 / F(0.5)) + 100, 0, 255))


def test_one_tensor_that_is_read_by_two_numbers_has_two_meanings_also_in_reals() -> None:
    graph = program(
        "%x = input() : 2x2x!quant.uniform<u8:f32, ?>\n%s = input() : f32\n%t = input() : f32\n"
        "%y = matmul(%x, %x, a.scale=%s, b.scale=%t) : 2x2xf32\noutput(y=%y)"
    )
    inputs: dict[str, Tensor] = {
        "x": np.array([[1, 2], [3, 4]], np.uint8),
        "s": np.array(0.5, F),
        "t": np.array(4, F),
    }
    apart = run_passes(graph, [ExpandQdq()], Ledger())
    assert sum(n.op == "dequantize" for n in apart) == 2
    for each in (graph, apart):
        assert np.array_equal(run(each, inputs)["y"], np.array([[14, 20], [30, 44]], F))

"""Each rule finds its own fault, says where, and is silent where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from qir.ir.dtype import I8, U8, dtype
from qir.ir.graph import Graph
from qir.ir.origin import Origin
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.ir.verify import RULES, verify
from tests.ir.verifying import OPEN, XQ, Q, X, found, graph_of

# rule, node, message; a body that is wrong; the same body put right.
CASES = [
    ("types", "y", "its op makes shape [3, 4]", f"{X} %y = relu(%x) : 4x3xf32", "3x4xf32"),
    ("types", "y", "its op makes shape [3, 4]", f"{X} %y = relu(%x) : 3xf32", "3x4xf32"),
    ("types", "y", "means f16, its op makes f32", f"{X} %y = relu(%x) : 3x4xf16", "3x4xf32"),
    (
        "types",
        "y",
        "transpose: perm (0, 0)",
        f"{X} %y = transpose(%x) {{perm = (0, 0)}} : 3x4xf32",
        "{perm = (0, 1)} : 3x4xf32",
    ),
    (
        "types",
        "y",
        "a has 4 columns, b has 3 rows",
        f"{X} %y = matmul(%x, %x) : 3x4xf32",
        "{trans_b = true} : 3x3xf32",
    ),
    ("types", "y", "is not quantized", f"{X} %y = quantize(%x) : 3x4xf32", f"3x4x{Q}"),
    ("types", "y", "its result is quantized", f"{XQ} %y = dequantize(%x) : 3x4x{Q}", "3x4xf32"),
    ("types", "y", "has 8 bits an element, x has 32", f"{X} %y = recode(%x) : 3x4xu8", "3x4xi32"),
    (
        "positive-scale",
        "x",
        "a scale is not positive and finite",
        "%x = input() : 3x!quant.uniform<u8:f32, 0.0>",
        "3x!quant.uniform<u8:f32, 0.1>",
    ),
    (
        "positive-scale",
        "x",
        "a scale is not positive and finite",
        "%x = input() : 3x!quant.uniform<u8:f32, nan>",
        "3x!quant.uniform<u8:f32, 1e-30>",
    ),
    (
        "positive-scale",
        "x",
        "a scale is not positive and finite",
        "%x = input() : 3x!quant.uniform<u8:f32:0, @bad>",
        "3x!quant.uniform<u8:f32:0, @s3>",
    ),
    (
        "zero-in-bounds",
        "x",
        "a zero point is outside 0..255",
        "%x = input() : 3x!quant.uniform<u8:f32, 0.5:256>",
        "3x!quant.uniform<u8:f32, 0.5:255>",
    ),
    (
        "zero-in-bounds",
        "x",
        "a zero point is outside -7..7",
        "%x = input() : 3x!quant.uniform<i8<-7:7>:f32, 0.5:8>",
        "3x!quant.uniform<i8<-7:7>:f32, 0.5:-7>",
    ),
    (
        "zero-in-bounds",
        "x",
        "f8e4m3fn values have no zero point",
        "%x = input() : 3x!quant.uniform<f8e4m3fn:f32, 0.5:1>",
        "3x!quant.uniform<f8e4m3fn:f32, 0.5>",
    ),
    (
        "axes",
        "x",
        "2 scales for 3 indices of axis 0",
        "%x = input() : 3x!quant.uniform<u8:f32:0, @s2>",
        "3x!quant.uniform<u8:f32:0, @s3>",
    ),
    (
        "axes",
        "x",
        "3 zeros for 2 scales",
        "%x = input() : 2x!quant.uniform<u8:f32:0, @s2:@z3>",
        "3x!quant.uniform<u8:f32:0, @s3:@z3>",
    ),
    (
        "axes",
        "x",
        "scales are [3, 2], the blocks make [3, 3]",
        "%x = input() : 3x9x!quant.uniform<u4:f32:{0:1, 1:4}, @grid>",
        "3x8x!quant.uniform<u4:f32:{0:1, 1:4}, @grid>",
    ),
    (
        "codes-in-bounds",
        "c",
        "elements -128..127 leave the bounds -127..127",
        "%c = constant(@w) : 3x!quant.uniform<i8<-127:127>:f32, 0.5>",
        "3x!quant.uniform<i8:f32, 0.5>",
    ),
    (
        "codes-in-bounds",
        "c",
        "elements 0..16 leave the bounds 0..15",
        "%c = constant(@u4) : 3x!quant.uniform<u4:f32, 0.5>",
        "3x!quant.uniform<u5:f32, 0.5>",
    ),
    ("codes-in-bounds", "c", "leave the bounds 0..15", "%c = constant(@u4) : 3xu4", "3xu8"),
    (
        "codes-in-bounds",
        "c",
        "leave the bounds 0..1",
        "%c = constant(@u4) : 3x!quant.lut<u8:f32, 1.0, codes [0.5, 1.5]>",
        "3x!quant.uniform<u8:f32, 1.0>",
    ),
    (
        "same-map",
        "y",
        "have different quantization parameters",
        f"{XQ} %y = transpose(%x) {{perm = (1, 0)}} : 4x3x!quant.uniform<u8:f32, 0.5:4>",
        f"{{perm = (1, 0)}} : 4x3x{Q}",
    ),
    (
        "same-map",
        "y",
        "%x is codes, the result is not",
        f"{XQ} %y = transpose(%x) {{perm = (1, 0)}} : 4x3xf32",
        f"{{perm = (1, 0)}} : 4x3x{Q}",
    ),
    (
        "same-map",
        "y",
        "%x is reals, the result is not",
        f"{X} %y = transpose(%x) {{perm = (1, 0)}} : 4x3x{Q}",
        "{perm = (1, 0)} : 4x3xf32",
    ),
    (
        "same-map",
        "y",
        "have different quantization parameters",
        "%x = input() : 3x4x!quant.uniform<u8:f32:0, @s3>\n"
        "%y = transpose(%x) {perm = (1, 0)} : 4x3x!quant.uniform<u8:f32:0, {1.0, 1.0, 1.0, 1.0}>",
        "{perm = (1, 0)} : 4x3x!quant.uniform<u8:f32:1, @s3>",
    ),
]

IN = "%s = input() : f32 %z = input() : u8"

# rule, node, slot, message; a whole body that is wrong; what in it is wrong, and what would do.
BESIDE = [
    (
        "x.zero",
        "x leaves its zero open, and x.zero is missing",
        f"{IN} %x = input() : 3x4x{OPEN} %y = dequantize(%x, x.scale=%s) : 3x4xf32",
        ("x.scale=%s)", "x.scale=%s, x.zero=%z)"),
    ),
    (
        "x.scale",
        "x.scale is given, and x does not leave it open",
        f"{IN} {XQ} %y = dequantize(%x, x.scale=%s) : 3x4xf32",
        (", x.scale=%s", ""),
    ),
    (
        "scale",
        "scale is given, and the result does not leave it open",
        f"{IN} {X} %y = quantize(%x, scale=%s) : 3x4x{Q}",
        (", scale=%s", ""),
    ),
    (
        "scale",
        "the result leaves its scale open, and scale is missing",
        f"{IN} {X} %y = quantize(%x, zero=%z) : 3x4x{OPEN}",
        ("zero=%z)", "zero=%z, scale=%s)"),
    ),
    (
        "scale",
        "scale is 3xf32, and a whole tensor has one",
        f"%s = input() : 3xf32 {X} %y = quantize(%x, scale=%s) : 3x4x!quant.uniform<u8:f32, ?>",
        ("3xf32 %x", "1xf32 %x"),
    ),
    (
        "scale",
        "scale is 4xf32, and there are [3] of them",
        f"%s = input() : 4xf32 {X} %y = quantize(%x, scale=%s) : 3x4x!quant.uniform<u8:f32:0, ?>",
        ("4xf32 %x", "3xf32 %x"),
    ),
    (
        "scale",
        "scale is 3x4xf32, and there are [3, 2] of them",
        f"%s = input() : 3x4xf32 {X} "
        "%y = quantize(%x, scale=%s) : 3x4x!quant.uniform<u8:f32:{0:1, 1:2}, ?>",
        ("3x4xf32 %x", "3x2xf32 %x"),
    ),
    (
        "scale",
        "scale is i32; it takes floats",
        f"%s = input() : i32 {X} %y = quantize(%x, scale=%s) : 3x4x!quant.uniform<u8:f32, ?>",
        ("i32", "f32"),
    ),
    (
        "x.max",
        "x.min and x.max come together",
        f"{IN} %x = input() : 3x4x{OPEN} %y = relu(%x, x.max=%s) : 3x4xf32",
        ("x.max=%s", "x.max=%s, x.min=%s"),
    ),
    (
        "1.b.scale",
        "b.scale is given, and b does not leave it open",
        f"{IN} {XQ} %y = relu(%x) |> add(., %x, b.scale=%s) : 3x4x{Q}",
        (", b.scale=%s", ""),
    ),
]


@pytest.mark.parametrize(("rule", "node", "message", "body", "right"), CASES)
def test_a_fault_is_found_at_its_node_and_its_repair_is_silent(
    rule: str, node: str, message: str, body: str, right: str
) -> None:
    used = f"\noutput(o=%{node})"
    errors = [f for f in verify(graph_of(body + used)) if f.severity == "error"]
    assert [(f.rule, f.node) for f in errors] == [(rule, node)]
    assert message in errors[0].message
    cut = body.rindex("{perm") if right.startswith("{perm") else body.rindex(" : ") + 3
    if right.startswith("{trans"):
        cut = body.rindex(": ")
    assert found(graph_of(body[:cut] + right + used)) == []


@pytest.mark.parametrize(("slot", "message", "body", "mend"), BESIDE)
def test_numbers_that_come_beside_are_those_that_a_type_leaves_open(
    slot: str, message: str, body: str, mend: tuple[str, str]
) -> None:
    told = [f for f in verify(graph_of(f"{body}\noutput(o=%y)")) if f.rule != "unused"]
    assert [(f.rule, f.severity, f.node, f.slot) for f in told] == [
        ("companions", "error", "y", slot)
    ]
    assert told[0].message == message
    right = body.replace(*mend)
    assert right != body
    assert [f for f in verify(graph_of(f"{right}\noutput(o=%y)")) if f.rule != "unused"] == []


def test_codes_whose_meaning_is_open_may_be_moved_without_anybody_knowing_it() -> None:
    text = f"%x = input() : 3x4x{OPEN} %y = transpose(%x) {{perm = (1, 0)}} : 4x3x{OPEN}"
    assert found(graph_of(f"{text}\noutput(y=%y)")) == []


@pytest.mark.parametrize(
    ("scale", "zero", "rule"),
    [("0.5", "7", ""), ("-0.5", "7", "positive-scale"), ("0.5", "16", "zero-in-bounds")],
)
def test_constant_numbers_beside_are_looked_at_too(scale: str, zero: str, rule: str) -> None:
    graph = graph_of(
        f"%s = constant({scale}) : f32 %z = constant({zero}) : i32 {X}\n"
        "%y = quantize(%x, scale=%s, zero=%z) : 3x4x!quant.uniform<u4:f32, ?:?>\noutput(y=%y)"
    )
    assert [f.rule for f in verify(graph)] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("@g4", ""),
        ("@g5", "a group is outside 0..1"),
        ("@z3", "3 indices are given a group, axis 1 has 4"),
        ("@s2", "groups are named by 2xf32; it takes one whole number an index"),
    ],
)
def test_every_index_is_of_a_group_that_there_is(by: str, message: str) -> None:
    kind = f"!quant.uniform<u4:f32:{{0:1, 1:2 by {by}}}, @grid>"
    told = verify(graph_of(f"%x = input() : 3x4x{kind}\noutput(y=%x)"))
    assert [f.message for f in told] == ([f"%x: {message}"] if message else [])


def test_scales_that_are_codes_themselves_are_finite_and_not_negative() -> None:
    def told(quantized: list[float], kind: QuantType) -> list[tuple[str, str, str]]:
        data = np.array(quantized, kind.storage.carrier)
        scales = Array(data, TensorType(data.shape, kind), "s")
        graph = Graph()
        held = QuantType(I8, scale=scales, granularity=Granularity(((0, 1),)))
        x = graph.add("input", types=[TensorType(data.shape, held)], name="x").result
        graph.add("output", {"x": x})
        return found(graph)

    eight = dtype("f8e4m3fn")
    assert told([0, 1, 2], QuantType(U8, scale=(0.25,))) == []
    assert told([0, 448, 0.5], QuantType(eight, scale=(1e-3,))) == []
    wrong = [("positive-scale", "error", "x")]
    assert told([0, 1, 2], QuantType(U8, scale=(0.25,), zero=(1,))) == wrong
    assert told([1, np.nan], QuantType(eight, scale=(1.0,))) == wrong
    assert told([1, 2], QuantType(U8, scale=(0.0,))) == wrong


def conv(bias: str, weights: str = "%w = constant(@k) : 2x1x1x1x") -> Graph:
    return graph_of(
        "%x = input() : 1x1x4x4x!quant.uniform<u8:f32, 0.5:3>\n"
        f"{weights}!quant.uniform<i8:f32:0, {{0.1, 0.2}}>\n"
        f"%b = input() : 2x{bias}\n"
        "%y = conv2d(%x, %w, bias=%b) : 1x2x4x4x!quant.uniform<u8:f32, 0.5>\noutput(y=%y)"
    )


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ("!quant.uniform<i32:f32:0, {0.05, 0.1}>", ""),
        ("i32", ""),
        ("!quant.uniform<i32:f32:0, {0.05, 0.1000001}>", "is not fl32(input scale x weight scale)"),
        ("!quant.uniform<i32:f32, 0.05>", "is not fl32(input scale x weight scale)"),
        ("!quant.uniform<i32:f32:0, {0.05:0, 0.1:1}>", "the bias has a zero point"),
    ],
)
def test_a_bias_scale_is_the_product_of_the_others_bit_for_bit(bias: str, message: str) -> None:
    findings = verify(conv(bias))
    assert [(f.rule, f.severity, f.node, f.slot) for f in findings] == (
        [("bias-scale", "warning", "y", "bias")] if message else []
    )
    assert all(message in f.message for f in findings)


def test_a_bias_inside_a_chain_is_looked_at_too() -> None:
    graph = graph_of(
        "%x = input() : 1x1x4x4x!quant.uniform<u8:f32, 0.5:3>\n"
        "%w = constant(@k) : 2x1x1x1x!quant.uniform<i8:f32, 0.25>\n"
        "%b = input() : 2x!quant.uniform<i32:f32, 0.25>\n"
        "%y = conv2d(%x, %w, bias=%b) |> relu : 1x2x4x4x!quant.uniform<u8:f32, 0.5>\noutput(y=%y)"
    )
    assert found(graph) == [("bias-scale", "warning", "y")]


def test_bias_scales_of_another_number_are_told() -> None:
    graph = graph_of(
        "%x = input() : 4x2x!quant.uniform<u8:f32:1, {0.5, 0.25}>\n"
        "%w = constant(@tall) : 3x2x!quant.uniform<i8:f32:0, {1.0, 1.0, 1.0}>\n"
        f"%b = input() : 3x!quant.uniform<i32:f32, 0.5> %y = linear(%x, %w, bias=%b) : 4x3x{Q}\n"
        "output(y=%y)"
    )
    rules = {f.rule: f.message for f in verify(graph)}
    assert rules["bias-scale"] == "1 bias scales for 2 input and 3 weight scales"
    assert rules["summed-axis"] == "x has a scale for each index of axis 1, which is summed up"


def test_one_array_read_as_two_maps_is_told() -> None:
    text = "%a = constant(@w) : 3x!quant.uniform<i8:f32, 0.5>\n%b = constant(@w) : 3x{}\n"
    end = "%p = dequantize(%a) : 3xf32 %q = dequantize(%b) : 3xf32 output(a=%p, b=%q)"

    def read_as(kind: str) -> Graph:
        graph = graph_of(text.format(kind) + end)
        array, other = graph["a"].constant, graph["b"].constant
        assert array is not None
        assert other is not None
        graph.set_attrs(graph["b"].node, data=Array(array.data, other.type, "w"))
        return graph

    assert found(read_as("!quant.uniform<i8:f32, 0.5>")) == []
    (finding,) = verify(read_as("!quant.uniform<i8:f32, 0.25>"))
    assert (finding.rule, finding.severity, finding.value) == ("one-tensor", "warning", "b")
    assert "that %a reads as !quant.uniform<i8:f32, 0.5>" in finding.message


@pytest.mark.parametrize(
    ("kind", "same"),
    [
        (Q, True),
        ("!quant.uniform<i8:f32, 0.5:-125>", True),
        ("!quant.uniform<i8:f32, 0.5:3>", False),
        ("!quant.uniform<u8:f32, 0.25:3>", False),
        ("!quant.uniform<u8<0:127>:f32, 0.5:3>", False),
    ],
)
def test_one_tensor_stored_under_two_maps_is_told(kind: str, same: bool) -> None:
    graph = graph_of(
        f"{X} %a = quantize(%x) : 3x4x{Q} %b = quantize(%x) : 3x4x{kind}\noutput(a=%a, b=%b)"
    )
    assert found(graph) == ([] if same else [("one-tensor", "warning", "b")])


@pytest.mark.parametrize("more", ["", "%b = dequantize(%q) : 3x4xf32\n"])
@pytest.mark.parametrize("kind", [Q, "!quant.uniform<u8:f32, 0.25:3>"])
@pytest.mark.parametrize("part", [False, True])
def test_computed_codes_read_as_others_are_told(more: str, kind: str, part: bool) -> None:
    graph = graph_of(
        f"{X} %q = quantize(%x) : 3x4x{Q}\n%r = recode(%q) : 3x4x{kind}\n"
        f"%a = dequantize(%r) : 3x4xf32\n{more}output(a=%a{', b=%b' if more else ''})"
    )
    for name in ("r", "a") if part else ("a",):
        graph.set_origins(graph[name].node, [Origin("onnx", "DequantizeLinear", "a")])
    told = kind != Q and (part or more)
    assert found(graph) == ([("one-tensor", "warning", "r")] if told else [])


def test_computed_weights_are_told_with_op_and_slot() -> None:
    assert found(conv("i32")) == []
    (finding,) = verify(conv("i32", "%w = input() : 2x1x1x1x"))
    assert (finding.rule, finding.severity) == ("static-weights", "warning")
    assert (finding.node, finding.slot, finding.value) == ("y", "w", "w")
    assert finding.message == "the weights of conv2d, w, are computed: %w"


def test_weights_made_of_constants_alone_are_as_good_as_constants() -> None:
    text = (
        f"{XQ} %c = constant(@w) : 3x!quant.uniform<i8:f32, 0.5>\n"
        "%s = constant([3, 1]) : 2xi64 %w = reshape(%c, %s) : 3x1x!quant.uniform<i8:f32, 0.5>\n"
        f"%y = matmul(%x, %w) {{trans_a = true}} : 4x1x{Q}\noutput(y=%y)"
    )
    assert found(graph_of(text)) == []


def test_batches_of_activations_may_be_multiplied() -> None:
    text = f"%x = input() : 2x4x4x{Q} %y = matmul(%x, %x) : 2x4x4x{Q}\noutput(y=%y)"
    assert found(graph_of(text)) == []
    flat = f"%x = input() : 4x4x{Q} %y = matmul(%x, %x) : 4x4x{Q}\noutput(y=%y)"
    assert found(graph_of(flat)) == [("static-weights", "warning", "y")]


@pytest.mark.parametrize(("axis", "faults"), [(0, 0), (1, 1)])
def test_scales_that_vary_within_a_sum_are_told(axis: int, faults: int) -> None:
    graph = graph_of(
        f"%x = input() : 3x2x{Q}\n"
        f"%w = constant(@sq) : 2x2x!quant.uniform<i8:f32:{axis}, {{0.1, 0.2}}>\n"
        f"%y = linear(%x, %w) : 3x2x{Q}\noutput(y=%y)"
    )
    told = verify(graph)
    assert [(f.rule, f.severity, f.node, f.slot) for f in told] == (
        [("summed-axis", "warning", "y", "w")] * faults
    )


def test_what_nobody_uses_is_a_note() -> None:
    assert found(graph_of(f"{X}\n%y = relu(%x) : 3x4xf32\noutput(o=%x)")) == [
        ("unused", "note", "y")
    ]


def test_every_rule_is_tried_here() -> None:
    tried = {case[0] for case in CASES}
    elsewhere = {"output", "structure", "bodies", "default", "slots", "overflow", "kept", "call"}
    beside = {
        "companions",
        "one-tensor",
        "one-number",
        "bias-scale",
        "static-weights",
        "summed-axis",
        "unused",
    }
    assert [r.name for r in RULES] == sorted(
        tried | elsewhere | beside, key=[r.name for r in RULES].index
    )

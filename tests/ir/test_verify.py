"""Each rule of the verifier finds its fault, says where, and is silent where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from qir.errors import VerifyError
from qir.ir.dtype import I8, U8, dtype
from qir.ir.graph import Graph
from qir.ir.node import Use
from qir.ir.origin import Origin
from qir.ir.text import parse
from qir.ir.types import Array, Grain, QuantType, TensorType
from qir.ir.verify import ERRORS, WARNINGS, Finding, check, verify
from qir.testing import graphs

DATA: dict[str, NDArray[np.generic]] = {
    "s2": np.array([0.5, 0.25], np.float32),
    "s3": np.array([0.5, 0.25, 1.0], np.float32),
    "bad": np.array([0.5, 0.0, 1.0], np.float32),
    "grid": np.full((3, 2), 0.5, np.float32),
    "z3": np.array([1, 2, 3], np.int32),
    "w": np.array([-128, 0, 127], np.int8),
    "u4": np.array([0, 15, 16], np.uint8),
    "nine": np.array([0.5, 0.25, 1.0], np.float32),
}
ARRAYS = """\
array @s2 : 2xf32
array @s3 : 3xf32
array @bad : 3xf32
array @grid : 3x2xf32
array @z3 : 3xi32
"""


def graph_of(body: str) -> Graph:
    return parse(f"{ARRAYS}graph main as native {{\n{body}\n}}", DATA)


def found(graph: Graph) -> list[tuple[str, str, str]]:
    return [(f.rule, f.severity, f.node) for f in verify(graph)]


Q = "!quant.uniform<u8:f32, 0.5:3>"
X = "%x = input() : 3x4xf32"
XQ = f"%x = input() : 3x4x{Q}"

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
    ("types", "y", "holds no codes", f"{X} %y = quantize(%x) : 3x4xf32", f"3x4x{Q}"),
    ("types", "y", "its result holds codes", f"{XQ} %y = dequantize(%x) : 3x4x{Q}", "3x4xf32"),
    (
        "parameters",
        "x",
        "a scale is not positive and finite",
        "%x = input() : 3x!quant.uniform<u8:f32, 0.0>",
        "3x!quant.uniform<u8:f32, 0.1>",
    ),
    (
        "parameters",
        "x",
        "a scale is not positive and finite",
        "%x = input() : 3x!quant.uniform<u8:f32, nan>",
        "3x!quant.uniform<u8:f32, 1e-30>",
    ),
    (
        "parameters",
        "x",
        "a scale is not positive and finite",
        "%x = input() : 3x!quant.uniform<u8:f32:0, @bad>",
        "3x!quant.uniform<u8:f32:0, @s3>",
    ),
    (
        "parameters",
        "x",
        "a zero point lies outside 0..255",
        "%x = input() : 3x!quant.uniform<u8:f32, 0.5:256>",
        "3x!quant.uniform<u8:f32, 0.5:255>",
    ),
    (
        "parameters",
        "x",
        "a zero point lies outside -7..7",
        "%x = input() : 3x!quant.uniform<i8<-7:7>:f32, 0.5:8>",
        "3x!quant.uniform<i8<-7:7>:f32, 0.5:-7>",
    ),
    (
        "parameters",
        "x",
        "f8e4m3fn codes have no zero point",
        "%x = input() : 3x!quant.uniform<f8e4m3fn:f32, 0.5:1>",
        "3x!quant.uniform<f8e4m3fn:f32, 0.5>",
    ),
    (
        "parameters",
        "x",
        "2 scales for 3 indices of axis 0",
        "%x = input() : 3x!quant.uniform<u8:f32:0, @s2>",
        "3x!quant.uniform<u8:f32:0, @s3>",
    ),
    (
        "parameters",
        "x",
        "3 zeros for 2 scales",
        "%x = input() : 2x!quant.uniform<u8:f32:0, @s2:@z3>",
        "3x!quant.uniform<u8:f32:0, @s3:@z3>",
    ),
    (
        "parameters",
        "x",
        "scales are [3, 2], the blocks make [3, 3]",
        "%x = input() : 3x9x!quant.uniform<u4:f32:{0:1, 1:4}, @grid>",
        "3x8x!quant.uniform<u4:f32:{0:1, 1:4}, @grid>",
    ),
    (
        "codes",
        "c",
        "elements -128..127 leave the bounds -127..127",
        "%c = constant(@w) : 3x!quant.uniform<i8<-127:127>:f32, 0.5>",
        "3x!quant.uniform<i8:f32, 0.5>",
    ),
    (
        "codes",
        "c",
        "elements 0..16 leave the bounds 0..15",
        "%c = constant(@u4) : 3x!quant.uniform<u4:f32, 0.5>",
        "3x!quant.uniform<u5:f32, 0.5>",
    ),
    ("codes", "c", "leave the bounds 0..15", "%c = constant(@u4) : 3xu4", "3xu8"),
    (
        "codes",
        "c",
        "leave the bounds 0..1",
        "%c = constant(@u4) : 3x!quant.lut<u8:f32, 1.0, codes [0.5, 1.5]>",
        "3x!quant.uniform<u8:f32, 1.0>",
    ),
    (
        "shared",
        "y",
        "hold different maps",
        f"{XQ} %y = transpose(%x) {{perm = (1, 0)}} : 4x3x!quant.uniform<u8:f32, 0.5:4>",
        f"{{perm = (1, 0)}} : 4x3x{Q}",
    ),
    (
        "shared",
        "y",
        "%x is codes, the result is not",
        f"{XQ} %y = transpose(%x) {{perm = (1, 0)}} : 4x3xf32",
        f"{{perm = (1, 0)}} : 4x3x{Q}",
    ),
    (
        "shared",
        "y",
        "%x is reals, the result is not",
        f"{X} %y = transpose(%x) {{perm = (1, 0)}} : 4x3x{Q}",
        "{perm = (1, 0)} : 4x3xf32",
    ),
    (
        "shared",
        "y",
        "hold different maps",
        "%x = input() : 3x4x!quant.uniform<u8:f32:0, @s3>\n"
        "%y = transpose(%x) {perm = (1, 0)} : 4x3x!quant.uniform<u8:f32:0, {1.0, 1.0, 1.0, 1.0}>",
        "{perm = (1, 0)} : 4x3x!quant.uniform<u8:f32:1, @s3>",
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


def conv(bias: str) -> Graph:
    return graph_of(
        "%x = input() : 1x1x4x4x!quant.uniform<u8:f32, 0.5:3>\n"
        "%w = input() : 2x1x1x1x!quant.uniform<i8:f32:0, {0.1, 0.2}>\n"
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
    ],
)
def test_a_bias_scale_is_the_product_of_the_others_bit_for_bit(bias: str, message: str) -> None:
    findings = verify(conv(bias))
    assert [(f.rule, f.severity, f.node) for f in findings] == (
        [("bias-scale", "warning", "y")] if message else []
    )
    assert all(message in f.message for f in findings)


def test_bias_scales_of_another_number_are_told() -> None:
    graph = conv("i32")
    kind = QuantType(dtype("i32"), scale=(1.0, 1.0, 1.0), grain=Grain(((0, 1),)))
    graph.set_type(graph["b"], TensorType((3,), kind))
    rules = {f.rule: f.message for f in verify(graph)}
    assert rules["bias-scale"] == "3 bias scales for 1 input and 2 weight scales"


def test_what_nobody_uses_is_a_warning() -> None:
    graph = graph_of(f"{X}\n%y = relu(%x) : 3x4xf32\noutput(o=%x)")
    assert found(graph) == [("unused", "warning", "y")]
    check(graph)  # a warning is no error


def test_a_graph_without_output_is_told() -> None:
    assert found(graph_of(X)) == [("output", "error", "main")]


def wrong_order(graph: Graph) -> None:
    graph["y"].node._rank, graph["z"].node._rank = graph["z"].node._rank, graph["y"].node._rank


def lost_use(graph: Graph) -> None:
    del graph["x"]._uses[Use(graph["y"].node, "x")]


def lost_edge(graph: Graph) -> None:
    graph._store.remove_edge(graph["x"].node, graph["y"].node, key="x")


def lost_name(graph: Graph) -> None:
    graph["y"].name = "other"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (wrong_order, "x reads %y, which is made later"),
        (lost_use, "x reads %x, which does not know it"),
        (lost_edge, "x has no edge"),
        (lost_name, "%other is not the value of that name"),
    ],
)
def test_bookkeeping_that_came_apart_is_found(damage: object, message: str) -> None:
    graph = graph_of(f"{X}\n%y = relu(%x) : 3x4xf32\n%z = relu(%y) : 3x4xf32\noutput(o=%z)")
    assert verify(graph) == []
    assert callable(damage)
    damage(graph)
    told = [f for f in verify(graph) if f.rule == "structure"]
    assert [f.message for f in told] == [message]


def test_a_missing_operand_is_told_and_nothing_else_breaks() -> None:
    graph = graph_of(f"{XQ}\n%y = transpose(%x) {{perm = (1, 0)}} : 4x3x{Q}\noutput(o=%y)")
    graph.set_operand(graph["y"].node, "x", None)
    assert [(f.rule, f.message) for f in verify(graph)] == [("slots", "x is missing")]
    graph["y"].node._operands["q"] = graph["x"]
    assert "transpose has no slot q" in [f.message for f in verify(graph)]


def test_a_chain_is_checked_stage_by_stage() -> None:
    text = f"{XQ}\n%y = relu(%x) |> add(., %x) |> relu : 3x4x{Q}\noutput(o=%y)"
    assert verify(graph_of(text)) == []
    bad = graph_of(text.replace("relu(%x) |>", "relu(%x) : 4x3xf32 |>"))
    finding = verify(bad)[0]
    assert (finding.rule, finding.node) == ("types", "y")
    assert "%stage 0 is 4x3xf32, its op makes shape [3, 4]" in finding.message
    late = graph_of(text.replace(f": 3x4x{Q}\no", f": 4x4x{Q}\no"))
    assert "its op makes shape [3, 4]" in verify(late)[0].message
    missing = graph_of(text)
    missing.set_operand(missing["y"].node, "1.b", None)
    assert [(f.rule, f.message) for f in verify(missing)] == [("slots", "1.b is missing")]
    broken = graph_of(text.replace("add(., %x)", "matmul(., %x)"))
    assert "stage 1: matmul: a has 4 columns, b has 3 rows" in verify(broken)[0].message


def test_a_constant_is_of_its_elements_type() -> None:
    graph = graph_of(f"%c = constant(@w) : 3xi8\n{X}\noutput(o=%c)")
    graph.set_type(graph["c"], TensorType((3,), QuantType(I8, scale=(0.5,))))
    assert ("types", "error", "c") in found(graph)


def test_scales_that_are_codes_themselves_are_not_read_as_numbers() -> None:
    nested = QuantType(U8, scale=(0.25,))
    scales = Array(np.array([0, 1, 2], np.uint8), TensorType((3,), nested), "s")
    kind = QuantType(I8, scale=scales, grain=Grain(((0, 1),)))
    graph = Graph()
    x = graph.add("input", types=[TensorType((3,), kind)]).result
    graph.add("output", {"x": x})
    assert verify(graph) == []


def test_a_finding_says_where_the_node_came_from() -> None:
    graph = graph_of(f"{X} %y = relu(%x) : 4x3xf32\noutput(o=%y)")
    graph.set_origins(graph["y"].node, [Origin("onnx", "Relu", "/layer/relu")])
    (finding,) = verify(graph)
    assert finding == Finding(
        "types",
        "error",
        "y",
        "%y is 4x3xf32, its op makes shape [3, 4]",
        "onnx Relu /layer/relu",
    )
    assert str(finding).startswith("y (onnx Relu /layer/relu): %y is 4x3xf32")
    with pytest.raises(VerifyError) as caught:
        check(graph)
    assert str(caught.value) == str(finding)
    assert "-> %y = relu" in caught.value.__notes__[0]
    assert caught.value.status == 1


@settings(max_examples=60)
@given(graphs())
def test_a_right_graph_has_no_errors(graph: Graph) -> None:
    assert [f for f in verify(graph) if f.severity == "error"] == []


def test_every_rule_is_tried_here() -> None:
    tried = {case[0] for case in CASES} | {"structure", "slots", "bias-scale", "unused"}
    rules = {r.__name__.strip("_").replace("_", "-") for r in (*ERRORS, *WARNINGS)}
    assert rules == tried


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("reshape(%x, %s)", ""),
        ("reshape(%x, %q)", ""),
        ("reshape(%x, %f)", ""),
        ("conv2d(%x, %x)", "{stride = (1,)}"),
        ("conv2d(%x, %x)", '{layout = "CHWN"}'),
        ("max_pool2d(%x)", "{kernel = (0, 0)}"),
        ("concat()", "{axis = 0}"),
        ("concat(xs.7=%x, xs.3=%s)", "{axis = 9}"),
        ("pad(%x)", "{pads = (1,)}"),
        ("pad(%x)", '{pads = (0, 9, 0, 0), mode = "reflect"}'),
        ("reduce_mean(%x)", "{axes = (0, 0)}"),
        ("reduce_mean(%x)", "{axes = (9,)}"),
        ("flatten(%x)", "{axis = 99999999999999999999}"),
        ("softmax(%s)", ""),
        ("batch_norm(%x, %x, %x, %x, %x)", "{axis = -9}"),
        ("gemm(%x, %x)", "{alpha = nan}"),
        ("linear(%s, %s)", ""),
        ("matmul(%s, %s)", ""),
    ],
)
def test_misuse_is_a_finding_and_never_a_crash(op: str, attrs: str) -> None:
    graph = graph_of(
        f"{X}\n%s = constant(3) : i64\n%q = constant([1, 2]) : 2x1xi64\n"
        f"%f = constant([1.0, 12.0]) : 2xf32\n%y = {op} {attrs} : 3x4xf32\noutput(o=%y)"
    )
    assert [f.rule for f in verify(graph) if f.severity == "error"] == ["types"]

"""A program against a target's table: what is taken in integers, and every reason why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.capability import Capability, Verdict, load, verdicts
from qir.errors import PluginError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.target import Target, target
from qir.testing import random_graph, sample_inputs

TABLE = """
name = "toy"

[[op]]
op = "conv2d"
constant = ["w", "bias"]
when = { layout = "NCHW" }
[op.slots]
x = "u8 affine tensor"
w = "i8<-127:127> symmetric channel"
bias = "i32 symmetric channel"
result = "u8 affine tensor"

[[op]]
op = "softmax"
slots = { x = "u8 affine tensor", result = "u8 affine tensor fixed(0.00390625:0)" }

[[op]]
op = ["reshape", "max_pool2d"]
slots = { x = "u8 affine tensor", result = "u8 affine tensor" }
share = ["x", "result"]

[[chain]]
chain = ["conv2d", "relu"]

[[defect]]
op = "max_pool2d"
reason = "ceil is computed wrongly"
when = { ceil = true }
"""
U8, OTHER = "!quant.uniform<u8:f32, 0.5:3>", "!quant.uniform<u8:f32, 0.25:3>"
W = "2x2x1x1x!quant.uniform<i8<-127:127>:f32:0, {0.1, 0.2}>"
DATA: dict[str, NDArray[np.generic]] = {
    "w": np.array([1, -127, 3, 4], np.int8).reshape(2, 2, 1, 1),
    "b": np.ones(2, np.int32),
}
DATA["far"] = np.full((2, 2, 1, 1), -128, np.int8)


@pytest.fixture
def table(tmp_path: Path) -> Capability:
    path = tmp_path / "toy.toml"
    path.write_text(TABLE)
    return load(path)


def graph_of(body: str) -> Graph:
    return parse(f"graph main as native {{\n{body}\n}}", DATA)


def conv(x: str = U8, w: str = W, rest: str = "", made: str = U8, name: str = "w") -> str:
    return (
        f"%x = input() : 1x2x4x4x{x} %w = constant(@{name}) : {w}\n"
        f"%y = conv2d(%x, %w{rest} : 1x2x4x4x{made}\noutput(y=%y)"
    )


BIAS = ", bias=%b)"
RIGHT = [
    conv(rest=")"),
    conv(rest=") |> relu"),
    conv(w="2x2x1x1x!quant.uniform<i8:f32, 0.5>", rest=")"),  # integers that keep to the bounds
    "%b = constant(@b) : 2xi32 " + conv(rest=BIAS),
    "%b = constant(@b) : 2x!quant.uniform<i32:f32:0, {0.05, 0.1}> " + conv(rest=BIAS),
    f"%x = input() : 1x2x4x4x{U8} %s = constant([2, 16]) : 2xi64\n"
    f"%y = reshape(%x, %s) : 2x16x{U8} output(y=%y)",
    f"%x = input() : 2x4x{U8} %y = softmax(%x) : 2x4x!quant.uniform<u8:f32, 0.00390625>"
    " output(y=%y)",
]


@pytest.mark.parametrize("body", RIGHT)
def test_what_fits_the_table_is_taken(table: Capability, body: str) -> None:
    assert [(v.taken, v.reason) for v in verdicts(table, graph_of(body))] == [("integer", "")]


WRONG = [
    (
        conv(x="!quant.uniform<i8:f32, 0.5>", rest=")"),
        "x is i8 symmetric tensor; the table of toy has u8 affine tensor",
    ),
    (
        conv(w="2x2x1x1x!quant.uniform<i8:f32, 0.5:1>", rest=")"),
        "w is i8 affine tensor; the table of toy has i8<-127:127> symmetric channel",
    ),
    (
        conv(w="2x2x1x1x!quant.uniform<i8:f32:1, {0.1, 0.2}>", rest=")"),
        "w is i8 symmetric axis 1; the table of toy has i8<-127:127> symmetric channel",
    ),
    (
        conv(w="2x2x1x1x!quant.uniform<i8:f32, 0.5>", rest=")", name="far"),
        "w is i8 symmetric tensor; the table of toy has i8<-127:127> symmetric channel",
    ),
    (
        conv(made="f32", rest=")"),
        "result is float; the table of toy has u8 affine tensor",
    ),
    (
        conv(rest=') {layout = "NHWC"}').replace("1x2x4x4x", "1x4x4x2x"),
        "layout = 'NHWC': the table of toy has 'NCHW'",
    ),
    (
        conv(rest=")").replace("constant(@w)", "input()"),
        "w is computed; the table of toy has a constant there",
    ),
    (
        "%b = input() : 2xi32 " + conv(rest=BIAS),
        "bias is computed; the table of toy has a constant there",
    ),
    (conv(rest=") |> sigmoid"), "toy has no kernel conv2d |> sigmoid"),
    (
        conv(rest=f") : 1x2x4x4x{OTHER} |> relu"),
        "it rounds after conv2d; toy rounds once, at the end",
    ),
    (
        f"%x = input() : 2x4x{U8} %y = softmax(%x) : 2x4x{U8} output(y=%y)",
        "result is u8 affine tensor; the table of toy has u8 affine tensor fixed(0.00390625:0)",
    ),
    (
        f"%x = input() : 2x4x{U8} %y = tanh(%x) : 2x4x{U8} output(y=%y)",
        "toy has no integer tanh",
    ),
    (
        f"%x = input() : 1x2x4x4x{U8} %y = max_pool2d(%x) {{kernel = (1, 1)}} : 1x2x4x4x{OTHER}"
        " output(y=%y)",
        "x and result have different quantization parameters; toy only moves quantized values",
    ),
    (
        f"%s = input() : f32 %x = input() : 2x4x!quant.uniform<u8:f32, ?>\n"
        f"%y = softmax(%x, x.scale=%s) : 2x4x{U8} output(y=%y)",
        "x is u8 with parameters from operands; the table of toy has u8 affine tensor",
    ),
]


@pytest.mark.parametrize(("body", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_codes_that_the_table_has_not_are_refused_with_the_reason(
    table: Capability, body: str, reason: str
) -> None:
    (verdict,) = verdicts(table, graph_of(body))
    assert verdict == Verdict("y", verdict.op, "refused", reason, "main")


class Toy(Target):
    name, profile = "toy", "native"

    def __init__(self, table: Capability) -> None:
        self.table = table

    def capability(self) -> Capability:
        return self.table


def test_a_refusal_is_a_finding_and_a_defect_an_error(table: Capability) -> None:
    (finding,) = Toy(table).verify(graph_of(conv(rest=") |> sigmoid")))
    assert (finding.rule, finding.severity, finding.node) == ("target", "warning", "y")
    said = "conv2d |> sigmoid is not taken in integers: toy has no kernel conv2d |> sigmoid"
    assert finding.message == said
    text = "%x = input() : 1x2x4x4xf32 %y = max_pool2d(%x) {kernel = (3, 3), ceil = true}"
    (finding,) = Toy(table).verify(graph_of(f"{text} : 1x2x2x2xf32 output(y=%y)"))
    assert (finding.severity, finding.message) == ("error", "toy: ceil is computed wrongly")


QDQ = f"""
%x = input() : 1x2x4x4x{U8} %xd = dequantize(%x) : 1x2x4x4xf32
%w = constant(@w) : {W} %wd = dequantize(%w) : 2x2x1x1xf32
%c = conv2d(%xd, %wd) : 1x2x4x4xf32 %r = relu(%c) : 1x2x4x4xf32
%y = quantize(%r) : 1x2x4x4x{U8} output(y=%y)
"""


def test_in_qdq_form_an_op_is_taken_with_what_its_kernel_computes_too(table: Capability) -> None:
    told = [(v.node, v.taken, v.reason) for v in verdicts(table, graph_of(QDQ))]
    assert told == [("c", "integer", ""), ("r", "integer", "in the kernel of c")]


def test_a_product_that_is_meant_to_be_integer_is_refused_and_other_ops_are_float(
    table: Capability,
) -> None:
    wide = QDQ.replace("<u8:f32, 0.5:3>", "<u16:f32, 0.5:3>")
    told = [(v.node, v.taken, v.reason) for v in verdicts(table, graph_of(wide))]
    said = "x is u16 affine tensor; the table of toy has u8 affine tensor"
    assert told == [("c", "refused", said), ("r", "float", "it computes in float")]
    between = f"%x = input() : 2x{U8} %a = dequantize(%x) : 2xf32 %b = tanh(%a) : 2xf32"
    between = f"{between} %y = quantize(%b) : 2x{U8} output(y=%y)"
    (verdict,) = verdicts(table, graph_of(between))
    assert (verdict.taken, verdict.reason) == ("float", "toy has no integer tanh")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["onnxruntime", "cpu"])
def test_a_target_takes_what_was_quantized_for_it_and_the_plan_says_the_same(
    seed: int, name: str
) -> None:
    graph = random_graph(seed, "float")
    statistics = pipeline.calibrate(graph, [sample_inputs(graph, seed)])
    made = pipeline.quantize(graph, statistics, target=name)
    found = pipeline.op_verdicts(made, target=name)
    assert [v for v in found if v.taken == "refused"] == []
    planned = {d.node for d in pipeline.plan(graph, target=name).decisions if d.integer}
    integer = {v.node for v in found if v.taken == "integer"}
    # What only moves integers is integer by what stands beside it, which the plan says too.
    assert planned <= integer | {v.node for v in found if v.reason == "it computes in float"}
    assert target(name).verify(made) == []


@pytest.mark.parametrize("seed", range(12))
def test_the_verdict_is_the_same_in_integer_form(seed: int) -> None:
    graph = random_graph(seed, "float")
    statistics = pipeline.calibrate(graph, [sample_inputs(graph, seed)])
    made = pipeline.quantize(graph, statistics)
    fused = made.copy()
    FuseQdq().run(fused, Ledger())
    table = target("onnxruntime").capability()
    before = sum(
        v.taken == "integer" and "kernel of" not in v.reason for v in verdicts(table, made)
    )
    after = [v for v in verdicts(table, fused)]
    assert sum(v.taken == "integer" for v in after) == before, f"seed {seed}"
    ExpandQdq().run(fused, Ledger())
    again = sum(
        v.taken == "integer" and "kernel of" not in v.reason for v in verdicts(table, fused)
    )
    assert again == before


def test_ops_in_bodies_and_ops_that_nobody_knows_have_verdicts_too(table: Capability) -> None:
    graph = parse(
        f"""graph main as native {{
  %c = input() : bool
  %x = input() : 2x4x{U8}
  %y = if(%c, xs.0=%x) : 2x4x{U8} with then {{
    %a = input() : 2x4x{U8}
    %r = tanh(%a) : 2x4x{U8}
    output(r=%r)
  }} with else {{
    %a = input() : 2x4x{U8}
    output(r=%a)
  }}
  %z = foreign(xs.0=%y) {{framework = "onnx", op = "Odd"}} : 2x4xf32
  output(z=%z)
}}
"""
    )
    told = {(v.path, v.node): (v.taken, v.reason) for v in verdicts(table, graph)}
    assert told == {
        ("main/y/then", "r"): ("refused", "toy has no integer tanh"),
        ("main", "z"): ("float", "'Odd' as it stands is not known to QIR"),
    }


def test_parts_that_nobody_reads_need_no_codes() -> None:
    u8 = "!quant.uniform<u8:f32, 0.5:3>"
    text = (
        f"graph main {{\n%x = input() : 2x4x{u8}\n%r = dequantize(%x) : 2x4xf32\n"
        "%a, %b = split(%r) {axis = 1, sizes = (1, 3)} : 2x1xf32, 2x3xf32\n"
        f"%y = quantize(%b) : 2x3x{u8}\n%z = quantize(%a) : 2x1xODD\noutput(y=%y, z=%z)\n}}"
    )
    table = target("onnxruntime").capability()
    for odd, taken in ((u8, "integer"), (u8.replace("0.5", "0.25"), "float")):
        graph = parse(text.replace("ODD", odd))
        (found,) = verdicts(table, graph)
        assert found.taken == taken
    unread = text.replace("%z = quantize(%a) : 2x1xODD\n", "").replace(", z=%z", "")
    (found,) = verdicts(table, parse(unread))
    assert found.taken == "integer"


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"x = " + b"[" * 5000, "brackets are too deep"), (b'name = "\xff"', "it is no UTF-8 text")],
)
def test_a_table_that_is_no_table_is_refused_in_one_line(
    tmp_path: Path, data: bytes, said: str
) -> None:
    path = tmp_path / "table.toml"
    path.write_bytes(data)
    with pytest.raises(PluginError, match=f"^table.toml: .*{said}"):
        load(path)

"""A user's rules decide what they name, and one that decides nothing is an error."""

from __future__ import annotations

import numpy as np
import pytest

from qir import pipeline
from qir.analysis.scheme_assignment import assign_schemes
from qir.analysis.user_rules import UserRule
from qir.errors import ParseError, SchemeError
from qir.ir.graph import Graph
from qir.ir.scheme import RESULT
from qir.ir.text import parse
from qir.target import target

TEXT = """
graph main {
  %x = input() : 1x4x8x8xf32
  %w = constant(@w) : 4x4x3x3xf32
  %c = conv2d(%x, %w) {pad = (1, 1, 1, 1)} : 1x4x8x8xf32
  %r = relu(%c) : 1x4x8x8xf32
  %s = add(%r, %x) : 1x4x8x8xf32
  %m = max_pool2d(%s) {kernel = (2, 2), stride = (2, 2)} : 1x4x4x4xf32
  %t = softmax(%m) {axis = 1} : 1x4x4x4xf32
  output(y=%t)
}
"""


def graph() -> Graph:
    return parse(TEXT, {"w": np.ones((4, 4, 3, 3), np.float32)})


def decide(*rules: str) -> dict[str, dict[str, str]]:
    made = graph()
    wishes = [UserRule.parse(rule) for rule in rules]
    _, schemes = assign_schemes(made, target("onnxruntime").capability(), "channel", wishes)
    return {n.name: {s: str(k) for s, k in slots.items()} for n, slots in schemes.items()}


def test_a_rule_without_a_slot_speaks_of_the_result() -> None:
    found = decide("op=add: u8 affine tensor percentile:90")
    assert found["s"][RESULT].startswith("u8 affine tensor percentile:90")
    assert found["m"]["x"] == found["s"][RESULT], "the pool holds the same map"


def test_a_rule_may_name_the_activation_whose_result_a_kernel_makes() -> None:
    assert decide("name=r: u8 affine tensor mse")["r"][RESULT] == "u8 affine tensor mse"


def test_bounds_that_a_rule_does_not_say_are_the_targets() -> None:
    found = decide("op=conv2d slot=w: i8 symmetric tensor")
    assert found["c"]["w"] == "i8<-127:127> symmetric tensor minmax"


def test_the_last_rule_wins() -> None:
    found = decide("op=add: u8 affine mse", "op=add: u8 affine percentile:99")
    assert "percentile:99" in found["s"][RESULT]


def test_rules_that_disagree_within_a_share_set_name_each_other() -> None:
    with pytest.raises(SchemeError, match=r"two rules want one share set: .*mse.*percentile"):
        decide("name=s: u8 affine mse", "name=m: u8 affine percentile:99")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("op=nosuch: float", "hits no op"),
        ("name=/nope/*: float", "hits no op"),
        ("op=conv2d slot=nonsense: u8", "has no slot nonsense"),
        ("op=conv2d slot=x: float", "leave slot= out"),
        ("op=conv2d op=add: float", "says op= twice"),
        ("op=conv2d: i4 symmetric tensor", "takes u8 affine tensor in result"),
        ("op=conv2d slot=w: i8 symmetric channel fixed(0.01:0)", "takes i8<-127:127> symmetric"),
        ("op=softmax: u8 affine fixed(0.5:0)", r"takes u8 affine tensor fixed\(0.00390625:0\)"),
        ("op=add u8", "no ': '"),
    ],
)
def test_a_rule_that_cannot_hold_is_an_error_that_quotes_it(rule: str, said: str) -> None:
    with pytest.raises(SchemeError, match=said) as found:
        decide(rule)
    assert rule in str(found.value)


@pytest.mark.parametrize("number", ["nan:0", "inf:0", "0:0", "-1:0", "0.1:300", "0.1:-1"])
def test_a_fixed_map_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(ParseError):
        decide(f"op=add: u8 affine tensor fixed({number})")


def test_a_rule_on_an_op_that_stays_float_says_why_it_does() -> None:
    with pytest.raises(SchemeError, match="stays float: a rule keeps it float"):
        decide("op=add: u8 affine mse", "op=add: float", "op=add slot=a: u8 affine mse")


def test_an_activation_after_an_op_that_is_kept_float_names_that_op() -> None:
    table = target("onnxruntime").capability()
    plan, _ = assign_schemes(graph(), table, "channel", [UserRule.parse("op=conv2d: float")])
    reasons = {d.node: d.reason for d in plan.decisions}
    assert reasons["c"] == "a rule keeps it float"
    assert reasons["r"] == "its input comes from %c, which stays float"
    plan, _ = assign_schemes(graph(), table, "channel", [UserRule.parse("op=relu: float")])
    assert {d.node: d.reason for d in plan.decisions}["r"] == "a rule keeps it float"


def test_a_tensor_without_elements_is_not_quantized() -> None:
    made = parse("""
graph main {
  %x = input() : 2x8xf32
  %e = slice(%x) {starts = (8,), ends = (9,), axes = (1,), steps = (1,)} : 2x0xf32
  %y = concat(xs.0=%x, xs.1=%e) {axis = 1} : 2x8xf32
  output(y=%y)
}
""")
    decisions = {d.node: d for d in pipeline.plan(made, target="onnxruntime").decisions}
    assert decisions["y"].becomes == "float"
    assert "without elements" in decisions["y"].reason

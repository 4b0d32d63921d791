"""Norms, attention and rotary embedding are found in their forms; what is almost one is not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.recover import Recover
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.testing import sample_inputs
from tests.passes import norms_in_parts
from tests.passes.test_recover import ops, recovered

# -- norms ----------------------------------------------------------------------------------------

HEAD = """
  %x = input() : 2x3x4xf32
  %two = constant(2.0) : f32
  %one = constant(1.0) : f32
  %half = constant(0.5) : f32
  %minus = constant(-0.5) : f32
  %eps = constant(0.01) : f32
  %g = constant([1.0, 2.0, 3.0, 4.0]) : 4xf32
  %b = constant([0.5, 0.25, 0.125, 1.0]) : 4xf32
"""
WIDE = "2x3x4xf32"
ROW = "2x3x1xf32"
SQUARES = (
    f"%s = mul(%d, %d) : {WIDE}",
    f"%s = pow(%d, %two) : {WIDE}",
    f"%s = square(%d) : {WIDE}",
)
ROOTS = (
    f"%r = sqrt(%e) : {ROW}; %n = div(%d, %r) : {WIDE}",
    f"%r = rsqrt(%e) : {ROW}; %n = mul(%d, %r) : {WIDE}",
    f"%q = sqrt(%e) : {ROW}; %r = reciprocal(%q) : {ROW}; %n = mul(%r, %d) : {WIDE}",
    f"%q = sqrt(%e) : {ROW}; %r = div(%one, %q) : {ROW}; %n = mul(%d, %r) : {WIDE}",
    f"%r = pow(%e, %minus) : {ROW}; %n = mul(%d, %r) : {WIDE}",
    f"%r = pow(%e, %half) : {ROW}; %n = div(%d, %r) : {WIDE}",
)
ENDS = {
    "both": f"%f = mul(%n, %g) : {WIDE}; %y = add(%b, %f) : {WIDE}",
    "gamma": f"%y = mul(%g, %n) : {WIDE}",
    "beta": f"%y = add(%n, %b) : {WIDE}",
}
CENTRE = f"%m = reduce_mean(%x) {{axes = (-1,)}} : {ROW}; %d = sub(%x, %m) : {WIDE}"
SPREAD = f"%v = reduce_mean(%s) {{axes = (2,)}} : {ROW}; %e = add(%v, %eps) : {ROW}"


def program(*lines: str, outputs: str = "y=%y") -> Graph:
    body = "\n".join(line for part in lines for line in part.split(";"))
    return parse(f"graph main {{\n{body}\n  output({outputs})\n}}")


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("root", ROOTS)
def test_layer_norm_is_found_by_every_square_and_root(square: str, root: str) -> None:
    made = recovered(program(HEAD, CENTRE, square, SPREAD, root, ENDS["both"]))
    assert ops(made) == ["layer_norm"]
    node = made["y"].node
    assert node.attrs["axis"] == 2
    assert node.attrs["eps"] == float(np.float32(0.01))
    assert node.operands["gamma"].name == "g"
    assert node.operands["beta"].name == "b"


@pytest.mark.parametrize("end", ENDS)
def test_layer_norm_is_found_with_a_part_of_its_parameters(end: str) -> None:
    made = recovered(program(HEAD, CENTRE, SQUARES[0], SPREAD, ROOTS[0], ENDS[end]))
    assert ops(made) == ["layer_norm"]
    assert ("beta" in made["y"].node.operands) == (end != "gamma")


def test_layer_norm_is_found_as_a_gain_and_a_shift() -> None:
    body = (
        f"{CENTRE}; {SQUARES[2]}; {SPREAD}; %r = rsqrt(%e) : {ROW}; %k = mul(%r, %g) : {WIDE}"
        f"; %xk = mul(%x, %k) : {WIDE}; %mk = mul(%m, %k) : {WIDE}; %o = sub(%b, %mk) : {WIDE}"
        f"; %y = add(%xk, %o) : {WIDE}"
    )
    assert ops(recovered(program(HEAD, body))) == ["layer_norm"]


def test_a_residual_behind_a_layer_norm_is_not_its_beta() -> None:
    last = f"%f = mul(%n, %g) : {WIDE}; %y = add(%f, %x) : {WIDE}"
    made = recovered(program(HEAD, CENTRE, SQUARES[0], SPREAD, ROOTS[0], last))
    assert ops(made) == ["layer_norm", "add"]


@pytest.mark.parametrize("root", ROOTS)
def test_rms_norm_is_found(root: str) -> None:
    body = f"%d = identity(%x) : {WIDE}; {SQUARES[1]}; {SPREAD}; {root}; {ENDS['gamma']}"
    made = recovered(program(HEAD, body))
    assert ops(made) == ["identity", "rms_norm"]


@pytest.mark.parametrize("kind", norms_in_parts.KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_norms_are_found_as_exporters_write_them_in_parts(seed: int, kind: str) -> None:
    """Means as sums over a count, the variance as a difference of means, gamma on the root."""
    rng = np.random.default_rng(seed)
    shape = (norms_in_parts.ROWS, norms_in_parts.WIDTH)
    held = {name: rng.uniform(0.5, 1.5, shape[1]).astype(np.float32) for name in ("gamma", "beta")}
    before = norms_in_parts.program(
        norms_in_parts.norm(random.Random(f"{seed} {kind}"), kind), held
    )
    after = run_passes(before, [Recover()], Ledger())
    squares = ["identity", "rms_norm", "add"]
    assert ops(after) == (squares if kind == "squares" else ["layer_norm"]), f"seed {seed}"
    x = rng.normal(0.3, 1, shape).astype(np.float32)
    wanted = norms_in_parts.normalized(x, kind) * held["gamma"] + held["beta"]
    made = np.asarray(run(after, {"x": x})["y"], np.float64)
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("right", "wrong"), [("mul(%a, %share)", "mul(%a, %half)"), ("%b, %count", "%b, %two")]
)
def test_sums_over_another_count_are_no_means(right: str, wrong: str) -> None:
    held = {name: np.ones(norms_in_parts.WIDTH, np.float32) for name in ("gamma", "beta")}
    body = norms_in_parts.norm(random.Random(3), "flat squares")
    assert right in body
    made = norms_in_parts.program(body.replace(right, wrong), held)
    assert "layer_norm" not in ops(run_passes(made, [Recover()], Ledger()))


OTHER = f"%m = reduce_mean(%x) {{axes = (1,)}} : 2x1x4xf32; %d = sub(%x, %m) : {WIDE}"
MIDDLE = "%v = reduce_mean(%s) {axes = (1,)} : 2x1x4xf32; %e = add(%v, %eps) : 2x1x4xf32"
SUMS = f"%v = reduce_sum(%s) {{axes = (2,)}} : {ROW}; %e = add(%v, %eps) : {ROW}"
LESS = f"%v = reduce_mean(%s) {{axes = (2,)}} : {ROW}; %e = sub(%v, %eps) : {ROW}"
PART = f"%r = sqrt(%e) : 2x1x4xf32; %n = div(%d, %r) : {WIDE}"


@pytest.mark.parametrize(
    "body",
    [
        [OTHER, SQUARES[0], SPREAD, ROOTS[0]],
        [CENTRE, SQUARES[0], MIDDLE, PART],
        [CENTRE, SQUARES[0], SUMS, ROOTS[0]],
        [CENTRE, SQUARES[0], LESS, ROOTS[0]],
        [CENTRE, f"%s = mul(%d, %x) : {WIDE}", SPREAD, ROOTS[0]],
        [CENTRE, f"%s = abs(%d) : {WIDE}", SPREAD, ROOTS[0]],
    ],
    ids=["centred elsewhere", "not the last", "sums", "less eps", "no square", "absolute"],
)
def test_what_is_almost_a_layer_norm_is_none(body: list[str]) -> None:
    made = program(HEAD, *body, ENDS["both"])
    assert "layer_norm" not in ops(run_passes(made, [Recover()], Ledger()))


def test_a_layer_norm_whose_variance_is_used_elsewhere_stays() -> None:
    parts = (HEAD, CENTRE, SQUARES[0], SPREAD, ROOTS[0], ENDS["both"])
    made = recovered(program(*parts, outputs="y=%y, v=%v"))
    assert "layer_norm" not in ops(made)


def test_a_group_norm_of_other_groups_of_axes_is_none() -> None:
    body = """
  %x = input() : 2x4x2x2xf32
  %sizes = constant([4, 2, 8]) : 3xi64
  %ones = constant([1.0, 1.0]) : 2xf32
  %zeros = constant([0.0, 0.0]) : 2xf32
  %back = constant([2, 4, 2, 2]) : 4xi64
  %r = reshape(%x, %sizes) : {}
  %i = instance_norm(%r, %ones, %zeros) : {}
  %y = reshape(%i, %back) : 2x4x2x2xf32"""
    right = body.replace("[4, 2, 8]", "[2, 2, 8]").format("2x2x8xf32", "2x2x8xf32")
    assert ops(recovered(program(right))) == ["group_norm"]
    wrong = body.replace("[4, 2, 8]", "[4, 2, 4]").format("4x2x4xf32", "4x2x4xf32")
    assert "group_norm" not in ops(recovered(program(wrong)))
    scaled = right.replace("[1.0, 1.0]", "[1.0, 2.0]")
    assert "group_norm" not in ops(recovered(program(scaled)))


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("%l = reduce_l2(%x) {axes = (1,)} : 2x1x4xf32; %y = div(%x, %l)", "div"),
        (
            "%l = reduce_l2(%x) {axes = (1,)} : 2x1x4xf32"
            "; %c = clip(%l) {min = 1.0e-12} : 2x1x4xf32; %y = div(%x, %c)",
            "lp_normalize",
        ),
        (
            "%s = square(%x) : 2x3x4xf32; %q = reduce_sum(%s) {axes = (1,)} : 2x1x4xf32"
            "; %l = sqrt(%q) : 2x1x4xf32; %c = clip(%l) {min = 1.0e-12} : 2x1x4xf32"
            "; %i = reciprocal(%c) : 2x1x4xf32; %y = mul(%x, %i)",
            "lp_normalize",
        ),
        (
            "%l = reduce_l1(%x) {axes = (-1,)} : 2x3x1xf32"
            "; %c = clip(%l) {min = 1.0e-13} : 2x3x1xf32; %y = div(%x, %c)",
            "lp_normalize",
        ),
        (
            "%l = reduce_l2(%x) {axes = (1,)} : 2x1x4xf32"
            "; %c = clip(%l) {min = 0.001} : 2x1x4xf32; %y = div(%x, %c)",
            "div",
        ),
        (
            "%l = reduce_l2(%x) {axes = (1, 2)} : 2x1x1xf32"
            "; %c = clip(%l) {min = 1.0e-12} : 2x1x1xf32; %y = div(%x, %c)",
            "div",
        ),
    ],
)
def test_a_length_that_is_kept_from_zero_is_lp_normalize(lines: str, wanted: str) -> None:
    made = recovered(program("%x = input() : 2x3x4xf32", f"{lines} : 2x3x4xf32"))
    assert ops(made)[-1] == wanted


def test_constants_of_another_axis_are_no_batch_norm() -> None:
    body = """
  %x = input() : 2x4x4x4xf32
  %g = constant([1.0, 2.0, 3.0, 4.0]) : {}
  %b = constant([0.5, 0.25, 0.125, 1.0]) : {}
  %m = mul(%x, %g) : 2x4x4x4xf32
  %y = add(%m, %b) : 2x4x4x4xf32"""
    assert ops(recovered(program(body.format("4x1x1xf32", "1x4x1x1xf32")))) == ["batch_norm"]
    assert ops(recovered(program(body.format("4x1xf32", "4x1xf32")))) == ["mul", "add"]
    assert ops(recovered(program(body.format("4x1x1xf32", "4x1xf32")))) == ["mul", "add"]


# -- attention ------------------------------------------------------------------------------------

QKV = """
  %q = input() : 2x2x3x4xf32
  %k = input() : 2x2x5x4xf32
  %v = input() : 2x2x5x4xf32
  %keep = input() : 2x1x3x5xbool
  %mask = input() : 3x5xf32
  %two = constant(2.0) : f32
  %h = constant(0.5) : f32
  %inf = constant(@inf) : f32
"""
TURN = "%t = transpose(%k) {perm = (0, 1, 3, 2)} : 2x2x4x5xf32"
LAST = "%p = softmax(%z) {axis = -1} : 2x2x3x5xf32; %y = matmul(%p, %v) : 2x2x3x4xf32"
S = "2x2x3x5xf32"
FORMS = {
    "bare": (f"{TURN}; %z = matmul(%q, %t) : {S}", 1.0),
    "by the product": (f"%z = matmul(%q, %k) {{trans_b = true}} : {S}", 1.0),
    "scaled": (f"{TURN}; %s = matmul(%q, %t) : {S}; %z = mul(%h, %s) : {S}", 0.5),
    "divided": (f"{TURN}; %s = matmul(%q, %t) : {S}; %z = div(%s, %two) : {S}", 0.5),
    "q scaled": (f"%s = mul(%q, %h) : 2x2x3x4xf32; {TURN}; %z = matmul(%s, %t) : {S}", 0.5),
    "both scaled": (
        f"%s = mul(%q, %h) : 2x2x3x4xf32; {TURN}; %u = mul(%t, %h) : 2x2x4x5xf32"
        f"; %z = matmul(%s, %u) : {S}",
        0.25,
    ),
    "k scaled first": (
        "%u = div(%k, %two) : 2x2x5x4xf32; %t = transpose(%u) {perm = (0, 1, 3, 2)} : 2x2x4x5xf32"
        f"; %z = matmul(%q, %t) : {S}",
        0.5,
    ),
}
MASKS = {
    "none": "",
    "added": f"%a = add(%z, %mask) : {S}",
    "kept": f"%a = where(%keep, %z, %inf) : {S}",
    "dropped": f"%a = where(%keep, %inf, %z) : {S}",
}


def with_infinity(*lines: str, outputs: str = "y=%y") -> Graph:
    body = "\n".join(line for part in lines for line in part.split(";"))
    low = {"inf": np.array(-np.inf, np.float32)}
    head = "array @inf : f32\n" if "@inf" in body else ""
    return parse(f"{head}graph main {{\n{body}\n  output({outputs})\n}}", low)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_attention_is_found_however_it_is_scaled_and_masked(form: str, mask: str) -> None:
    body, scale = FORMS[form]
    last = LAST.replace("%z", "%a") if mask != "none" else LAST
    before = with_infinity(QKV, body, MASKS[mask], last)
    after = run_passes(before, [Recover()], Ledger())
    assert [op for op in ops(after) if op != "logical_not"] == ["attention"]
    node = after["y"].node
    assert node.attrs["scale"] == scale
    rng = np.random.default_rng(3)
    given = sample_inputs(before, 3)
    keep = rng.integers(0, 2, (2, 1, 3, 5)).astype(bool)
    keep[..., 0], keep[..., 1] = True, False  # no row is masked as a whole
    given["keep"] = keep
    was, now = (np.asarray(run(g, given)["y"], np.float64) for g in (before, after))
    np.testing.assert_allclose(now, was, 1e-5, 1e-6)
    assert run_passes(after, [Recover()], Ledger()).version == after.copy().version


def test_attention_of_three_axes_has_one_head() -> None:
    body = """
  %q = input() : 6x3x4xf32
  %k = input() : 6x5x4xf32
  %v = input() : 6x5x4xf32
  %mask = input() : 6x3x5xf32
  %t = transpose(%k) {perm = (0, 2, 1)} : 6x4x5xf32
  %s = matmul(%q, %t) : 6x3x5xf32
  %a = add(%s, %mask) : 6x3x5xf32
  %p = softmax(%a) {axis = 2} : 6x3x5xf32
  %y = matmul(%p, %v) : 6x3x4xf32"""
    made = recovered(program(body))
    assert ops(made) == ["unsqueeze", "attention"]
    assert made["y"].node.attrs["heads"] == 1


@pytest.mark.parametrize(
    "body",
    [
        f"{TURN}; %z = matmul(%q, %t) : {S}; %p = softmax(%z) {{axis = 2}} : {S}"
        "; %y = matmul(%p, %v) : 2x2x3x4xf32",
        f"{TURN}; %s = matmul(%q, %t) : {S}; %z = mul(%s, %mask) : {S}; {LAST}",
        f"{TURN}; %z = matmul(%q, %t) : {S}; %p = sigmoid(%z) : {S}"
        "; %y = matmul(%p, %v) : 2x2x3x4xf32",
        f"{TURN}; %s = matmul(%q, %t) : {S}; %z = where(%keep, %s, %two) : {S}; {LAST}",
    ],
    ids=["softmax of queries", "mask as factor", "no softmax", "not infinite"],
)
def test_what_is_almost_attention_is_none(body: str) -> None:
    made = run_passes(with_infinity(QKV, body), [Recover()], Ledger())
    assert "attention" not in ops(made)


def test_keys_that_stand_in_columns_are_turned_for_attention() -> None:
    sizes = "  %sizes = constant([2, 2, 4, 5]) : 4xi64\n"
    body = f"%t = reshape(%k, %sizes) : 2x2x4x5xf32; %z = matmul(%q, %t) : {S}; {LAST}"
    before = with_infinity(QKV + sizes, body)
    after = run_passes(before, [Recover()], Ledger())
    assert ops(after) == ["reshape", "transpose", "attention"]
    given = sample_inputs(before, 3)
    was, now = (np.asarray(run(g, given)["y"], np.float64) for g in (before, after))
    np.testing.assert_allclose(now, was, 1e-5, 1e-6)


def test_attention_whose_weights_are_an_output_stays() -> None:
    body = f"{TURN}; %z = matmul(%q, %t) : {S}"
    made = run_passes(with_infinity(QKV, body, LAST, outputs="y=%y, p=%p"), [Recover()], Ledger())
    assert "attention" not in ops(made)


# -- rotary ---------------------------------------------------------------------------------------

TURNED = """
  %x = input() : 2x2x3x4xf32
  %row = input() : {shape}x2xf32
  %both = concat(xs.0=%row, xs.1={other}) {{axis = -1}} : {shape}x4xf32
  %cos = cos(%both) : {shape}x4xf32
  %sin = sin(%both) : {shape}x4xf32
  %b, %c = split(%x) {{sizes = (2, 2), axis = 3}} : 2x2x3x2xf32, 2x2x3x2xf32
  %n = neg({second}) : 2x2x3x2xf32
  %t = concat(xs.0=%n, xs.1={first}) {{axis = 3}} : 2x2x3x4xf32
  %xc = mul(%x, %cos) : 2x2x3x4xf32
  %ts = mul(%t, %sin) : 2x2x3x4xf32
  %y = add(%xc, %ts) : 2x2x3x4xf32"""
RIGHT = {"shape": "1x1x3", "other": "%row", "second": "%c", "first": "%b"}


@pytest.mark.parametrize("shape", ["3", "1x3", "1x1x3", "2x1x3"])
def test_rotary_by_the_halves_of_a_split_is_found(shape: str) -> None:
    made = recovered(program(TURNED.format(**RIGHT | {"shape": shape})))
    assert ops(made)[-1] == "rotary"
    assert "neg" not in ops(made)


@pytest.mark.parametrize(
    "wrong",
    [
        {"other": "%other"},
        {"second": "%b", "first": "%c"},
        {"shape": "1x2x3"},
    ],
    ids=["unequal halves", "the first turned", "one row a head"],
)
def test_what_is_almost_rotary_is_none(wrong: dict[str, str]) -> None:
    given = RIGHT | wrong
    other = f"  %other = input() : {given['shape']}x2xf32"
    made = recovered(program(other, TURNED.format(**given)))
    assert "rotary" not in ops(made)


def test_rotary_by_parts_with_a_row_for_each_pair_is_found() -> None:
    body = """
  %x = input() : 2x2x3x4xf32
  %cos = input() : 3x2xf32
  %sin = input() : 2x1x3x2xf32
  %a = slice(%x) {starts = (0,), ends = (2,), axes = (3,), steps = (1,)} : 2x2x3x2xf32
  %b = slice(%x) {starts = (2,), ends = (4,), axes = (3,), steps = (1,)} : 2x2x3x2xf32
  %ac = mul(%a, %cos) : 2x2x3x2xf32
  %bs = mul(%b, %sin) : 2x2x3x2xf32
  %as = mul(%a, %sin) : 2x2x3x2xf32
  %bc = mul(%b, %cos) : 2x2x3x2xf32
  %l = sub(%ac, %bs) : 2x2x3x2xf32
  %h = add(%as, %bc) : 2x2x3x2xf32
  %y = concat(xs.0=%l, xs.1=%h) {axis = -1} : 2x2x3x4xf32"""
    assert "rotary" not in ops(recovered(program(body)))  # rows of each batch, and of all
    one = body.replace("2x1x3x2xf32", "3x2xf32")
    assert ops(recovered(program(one))) == ["rotary"]

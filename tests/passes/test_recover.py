"""Every way in which exporters write an op is found, and what is almost one is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.recover import FAMILIES, Recover
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.testing import sample_inputs
from tests.passes.keeping import keeps
from tests.rewrite.graphs import LAYER_NORM, SOFTMAX, graph


def ops(work: Graph) -> list[str]:
    return [node.op for node in work if node.op not in ("input", "output", "constant")]


def text(body: str) -> Graph:
    """A graph of these lines and its one output, %y."""
    return graph(body.replace(";", "\n") + "\noutput(y=%y)")


def numbers(**named: float) -> str:
    return "\n".join(f"%{name} = constant({value!r}) : f32" for name, value in named.items()) + "\n"


def recovered(before: Graph, seed: int = 1) -> Graph:
    """The graph afterwards: computes the same floats, and a second pass finds nothing more."""
    after = run_passes(before, [Recover()], Ledger())
    given = sample_inputs(before, seed)
    for name, was in run(before, given).items():
        now = run(after, given)[name]
        assert was.dtype == now.dtype
        ulp = np.spacing(np.abs(was).max())
        assert np.abs(was.astype(np.float64) - now.astype(np.float64)).max() <= 16 * ulp, name
    twice = run_passes(after, [Recover()], Ledger())
    assert twice.version == after.copy().version
    return after


# -- gelu -----------------------------------------------------------------------------------------

ERF = numbers(h=0.5, one=1.0, two=2.0, root=2**0.5, inverse=0.5**0.5, minus=-(0.5**0.5))
INNER = ("%s = div(%x, %root)", "%s = mul(%x, %inverse)", "%s = mul(%inverse, %x)")
PRODUCTS = (
    "%m = mul(%x, %h); %y = mul(%m, %p)",
    "%m = mul(%p, %h); %y = mul(%x, %m)",
    "%m = mul(%x, %p); %y = mul(%m, %h)",
    "%m = div(%x, %two); %y = mul(%p, %m)",
    "%m = mul(%p, %x); %y = div(%m, %two)",
    "%m = div(%p, %two); %y = mul(%m, %x)",
)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("product", PRODUCTS)
def test_gelu_is_found_in_every_order_of_its_factors(inner: str, product: str) -> None:
    made = recovered(text(f"{ERF}{inner}; %e = erf(%s); %p = add(%one, %e); {product}"))
    assert ops(made) == ["gelu"]
    assert made["y"].node.attrs["approximate"] == "none"


@pytest.mark.parametrize(
    "body",
    [
        "%s = div(%x, %root); %e = erf(%s); %k = mul(%e, %h); %p = add(%k, %h); %y = mul(%x, %p)",
        "%s = mul(%x, %minus); %e = erfc(%s); %m = mul(%x, %h); %y = mul(%m, %e)",
        "%n = neg(%x); %s = div(%n, %root); %e = erfc(%s); %m = mul(%x, %e); %y = mul(%m, %h)",
    ],
)
def test_gelu_is_found_with_its_half_inside_and_by_erfc(body: str) -> None:
    assert ops(recovered(text(ERF + body))) == ["gelu"]


TANH = numbers(
    h=0.5,
    one=1.0,
    two=2.0,
    three=3.0,
    c=0.044715,
    s=0.7978845608,
    twice=1.5957691216,
    sc=0.0356774081,
)
CUBES = (
    "%q = pow(%x, %three); %k = mul(%q, %c)",
    "%q = mul(%x, %x); %w = mul(%q, %x); %k = mul(%c, %w)",
    "%q = pow(%x, %two); %w = mul(%x, %q); %k = mul(%w, %c)",
    "%q = mul(%c, %x); %w = mul(%q, %x); %k = mul(%w, %x)",
    "%q = square(%x); %w = mul(%q, %c); %k = mul(%x, %w)",
)
SUM = "%u = add(%x, %k); %v = mul(%u, %s)"
BENT = "%t = tanh(%v); %p = add(%t, %one)"
INNERS = (
    *(f"{cube}; {SUM}" for cube in CUBES),
    "%q = mul(%x, %x); %w = mul(%q, %c); %k = add(%w, %one); %u = mul(%x, %s); %v = mul(%u, %k)",
    "%q = mul(%x, %x); %w = mul(%q, %sc); %k = add(%w, %s); %v = mul(%x, %k)",
)


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("product", PRODUCTS[:3])
def test_gelu_by_tanh_is_found_however_its_powers_are_made(inner: str, product: str) -> None:
    made = recovered(text(f"{TANH}{inner}; {BENT}; {product}"))
    assert ops(made) == ["gelu"]
    assert made["y"].node.attrs["approximate"] == "tanh"


def test_gelu_by_tanh_is_found_where_sigmoid_stands_for_tanh() -> None:
    body = f"{TANH}{CUBES[0]}; %u = add(%x, %k); %v = mul(%u, %twice); %t = sigmoid(%v)"
    assert ops(recovered(text(f"{body}; %y = mul(%x, %t)"))) == ["gelu"]


@pytest.mark.parametrize(
    ("name", "value"), [("h", 0.4999), ("one", 1.001), ("root", 1.4143), ("inverse", 0.70701)]
)
def test_a_gelu_with_one_constant_off_is_none(name: str, value: float) -> None:
    inner = INNER[1] if name == "inverse" else INNER[0]
    held = {"h": 0.5, "one": 1.0, "root": 2**0.5, "inverse": 0.5**0.5} | {name: value}
    body = f"{numbers(**held)}{inner}; %e = erf(%s); %p = add(%one, %e); {PRODUCTS[0]}"
    made = recovered(text(body))
    assert "gelu" not in ops(made)


@pytest.mark.parametrize(("name", "value"), [("c", 0.04472), ("s", 0.798), ("one", 1.0001)])
def test_a_gelu_by_tanh_with_one_constant_off_is_none(name: str, value: float) -> None:
    held = {"h": 0.5, "one": 1.0, "three": 3.0, "c": 0.044715, "s": 0.7978846} | {name: value}
    body = f"{numbers(**held)}{CUBES[0]}; {SUM}; {BENT}; {PRODUCTS[0]}"
    assert "gelu" not in ops(recovered(text(body)))


@pytest.mark.parametrize("inner", ["s", "e", "p", "m"])
def test_a_gelu_whose_inner_value_has_another_use_stays(inner: str) -> None:
    body = f"{ERF}{INNER[0]}; %e = erf(%s); %p = add(%one, %e); {PRODUCTS[0]}"
    work = graph(body.replace(";", "\n") + f"\noutput(y=%y, other=%{inner})")
    assert "gelu" not in ops(recovered(work))


def test_a_gelu_of_two_tensors_is_none() -> None:
    body = f"{ERF}{INNER[0]}; %e = erf(%s); %p = add(%one, %e); %m = mul(%r, %h); %y = mul(%m, %p)"
    assert "gelu" not in ops(recovered(text(body)))


# -- other activations ----------------------------------------------------------------------------

FEW = numbers(zero=0.0, one=1.0, three=3.0, six=6.0, sixth=1 / 6, h=0.5, k=1.702, a=0.25, low=-0.5)
CLIP = "{min = 0.0, max = 6.0}"
UNIT = "{min = 0.0, max = 1.0}"
FORMS = {
    "sigmoid": ["%n = neg(%x); %e = exp(%n); %p = add(%e, %one); %y = div(%one, %p)"],
    "silu": [
        "%s = sigmoid(%x); %y = mul(%s, %x)",
        "%n = neg(%x); %e = exp(%n); %p = add(%one, %e); %y = div(%x, %p)",
        "%n = mul(%x, %k); %s = sigmoid(%n); %y = mul(%x, %s)",
    ],
    "hard_sigmoid": [
        f"%p = add(%x, %three); %c = clip(%p) {CLIP}; %y = div(%c, %six)",
        f"%p = add(%x, %three); %c = clip(%p) {CLIP}; %y = mul(%c, %sixth)",
        f"%m = div(%x, %six); %p = add(%m, %h); %y = clip(%p) {UNIT}",
        f"%m = mul(%x, %a); %p = add(%h, %m); %y = clip(%p) {UNIT}",
        "%p = add(%x, %three); %r0 = relu(%p); %c = min(xs.0=%r0, xs.1=%six); %y = div(%c, %six)",
    ],
    "hard_swish": [
        f"%p = add(%x, %three); %c = clip(%p) {CLIP}; %m = mul(%x, %c); %y = div(%m, %six)",
        f"%p = add(%x, %three); %c = clip(%p) {CLIP}; %m = div(%c, %six); %y = mul(%m, %x)",
        f"%p = add(%x, %three); %c = clip(%p) {CLIP}; %m = mul(%x, %sixth); %y = mul(%m, %c)",
        "%g = hard_sigmoid(%x) {alpha = 0.16666666, beta = 0.5}; %y = mul(%x, %g)",
        f"%m = div(%x, %six); %p = add(%m, %h); %c = clip(%p) {UNIT}; %y = mul(%x, %c)",
        "%p = add(%x, %three); %a0 = max(xs.0=%p, xs.1=%zero); %c = min(xs.0=%a0, xs.1=%six)"
        "; %m = mul(%x, %c); %y = div(%m, %six)",
    ],
    "softplus": ["%e = exp(%x); %p = add(%e, %one); %y = log(%p)", "%e = exp(%x); %y = log1p(%e)"],
    "mish": [
        "%s = softplus(%x); %t = tanh(%s); %y = mul(%x, %t)",
        "%e = exp(%x); %p = add(%e, %one); %s = log(%p); %t = tanh(%s); %y = mul(%t, %x)",
    ],
    "log_sigmoid": [
        "%s = sigmoid(%x); %y = log(%s)",
        "%n = neg(%x); %s = softplus(%n); %y = neg(%s)",
    ],
    "softsign": ["%a0 = abs(%x); %p = add(%one, %a0); %y = div(%x, %p)"],
    "tanh_shrink": ["%t = tanh(%x); %y = sub(%x, %t)"],
    "clip": [
        "%m = max(xs.0=%x, xs.1=%low); %y = min(xs.0=%m, xs.1=%six)",
        "%m = min(xs.0=%six, xs.1=%x); %y = max(xs.0=%low, xs.1=%m)",
        "%m = relu(%x); %y = min(xs.0=%m, xs.1=%six)",
        "%y = max(xs.0=%x, xs.1=%low)",
        "%y = min(xs.0=%x, xs.1=%six)",
    ],
    "relu": ["%y = max(xs.0=%zero, xs.1=%x)"],
    "leaky_relu": [
        "%p = relu(%x); %a0 = abs(%x); %d = sub(%x, %a0); %m = mul(%a, %d); %n = mul(%m, %h)"
        "; %y = add(%p, %n)",
        "%p = relu(%x); %a0 = abs(%x); %d = sub(%x, %a0); %m = mul(%d, %h); %n = mul(%m, %a)"
        "; %y = add(%n, %p)",
        "%p = relu(%x); %a0 = abs(%x); %d = sub(%x, %a0); %n = mul(%a, %d); %y = add(%p, %n)",
        "%p = relu(%x); %n = min(xs.0=%x, xs.1=%zero); %m = mul(%n, %a); %y = add(%p, %m)",
        "%p = relu(%x); %n = neg(%x); %q = relu(%n); %m = mul(%q, %a); %y = sub(%p, %m)",
        "%p = relu(%x); %n = neg(%x); %q = relu(%n); %m = mul(%low, %q); %y = add(%p, %m)",
        "%m = mul(%x, %a); %y = max(xs.0=%x, xs.1=%m)",
        "%g = greater(%x, %zero) : 2x3xbool; %m = mul(%x, %a); %y = where(%g, %x, %m)",
        "%g = less(%x, %zero) : 2x3xbool; %m = mul(%x, %a); %y = where(%g, %m, %x)",
    ],
}


@pytest.mark.parametrize(("op", "body"), [(op, body) for op in FORMS for body in FORMS[op]])
def test_an_activation_is_found_in_its_parts(op: str, body: str) -> None:
    assert ops(recovered(text(FEW + body))) == [op]


def test_the_factor_of_a_quick_gelu_is_the_alpha_of_silu() -> None:
    made = recovered(text(FEW + FORMS["silu"][2]))
    assert made["y"].node.attrs["alpha"] == float(np.float32(1.702))


def test_one_slope_a_channel_is_a_prelu() -> None:
    slope = "%s = constant([0.5, 0.25, 0.125]) : 3xf32\n"
    body = "%p = relu(%x); %a0 = abs(%x); %d = sub(%x, %a0); %m = mul(%s, %d); %n = mul(%m, %h)"
    made = recovered(text(f"{FEW}{slope}{body}; %y = add(%p, %n)"))
    assert ops(made) == ["prelu"]
    halves = "%p = relu(%x); %a0 = abs(%x); %d = sub(%x, %a0); %m = mul(%s, %d); %y = add(%p, %m)"
    made = recovered(text(f"{FEW}{slope}{halves}"))
    assert ops(made) == ["prelu"]
    held = made["y"].node.operands["slope"].constant
    assert held is not None
    assert held.data.tolist() == [1.0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("silu", "%s = sigmoid(%r); %y = mul(%s, %x)"),
        ("sigmoid", "%n = neg(%x); %e = exp(%n); %p = add(%e, %h); %y = div(%one, %p)"),
        ("hard_swish", f"%p = add(%x, %three); %c = clip(%p) {UNIT}; %m = mul(%x, %c)"
         "; %y = div(%m, %six)"),
        ("hard_sigmoid", f"%p = add(%x, %six); %c = clip(%p) {CLIP}; %y = div(%c, %six)"),
        ("hard_sigmoid", f"%m = mul(%x, %low); %p = add(%h, %m); %y = clip(%p) {UNIT}"),
        ("hard_swish", "%g = hard_sigmoid(%x) {alpha = 0.2, beta = 0.5}; %y = mul(%x, %g)"),
        ("softplus", "%e = exp(%x); %p = add(%e, %h); %y = log(%p)"),
        ("mish", "%s = softplus(%x); %t = tanh(%s); %y = mul(%r, %t)"),
        ("leaky_relu", "%m = mul(%x, %k); %y = max(xs.0=%x, xs.1=%m)"),
        ("leaky_relu", "%m = mul(%x, %low); %y = max(xs.0=%x, xs.1=%m)"),
        ("leaky_relu", "%p = relu(%x); %n = min(xs.0=%r, xs.1=%zero); %m = mul(%n, %a)"
         "; %y = add(%p, %m)"),
        ("leaky_relu", "%g = greater(%x, %one) : 2x3xbool; %m = mul(%x, %a)"
         "; %y = where(%g, %x, %m)"),
        ("prelu", "%p = relu(%x); %a0 = abs(%r); %d = sub(%x, %a0); %n = mul(%z, %d)"
         "; %y = add(%p, %n)"),
        ("softsign", "%a0 = abs(%x); %p = add(%h, %a0); %y = div(%x, %p)"),
    ],
)  # fmt: skip
def test_what_is_almost_an_activation_is_none(op: str, body: str) -> None:
    assert op not in ops(recovered(text(FEW + body)))


def test_a_constant_that_widens_the_result_keeps_its_parts() -> None:
    wide = ERF.replace("%h = constant(0.5) : f32", "%h = constant([0.5]) : 1x1x1xf32")
    body = "%s = div(%x, %root); %e = erf(%s); %p = add(%one, %e); %m = mul(%x, %p)"
    work = text(f"{wide}{body}; %y = mul(%m, %h) : 1x2x3xf32")
    assert ops(recovered(work)) == ["div", "erf", "add", "mul", "mul"]


def test_bounds_that_cross_stay_two_clips() -> None:
    made = recovered(text(f"{FEW}%m = min(xs.0=%x, xs.1=%low); %y = max(xs.0=%m, xs.1=%six)"))
    assert ops(made) == ["clip", "clip"]


def test_only_the_families_that_are_named_are_looked_for() -> None:
    both = text(FEW + "%s = sigmoid(%x); %m = mul(%s, %x); %t = tanh(%m); %y = sub(%m, %t)")
    assert ops(run_passes(both, [Recover(only=("softplus",))], Ledger())) == [
        "sigmoid",
        "mul",
        "tanh_shrink",
    ]
    assert ops(run_passes(both, [Recover(only=("softplus", "sigmoids"))], Ledger())) == [
        "silu",
        "tanh_shrink",
    ]
    with pytest.raises(UsageError, match="no family 'relu'; it has relus, clip, gelu"):
        Recover(only=("relu",))


def test_every_pattern_has_its_own_name_and_says_what_it_is() -> None:
    assert len(Recover().patterns) == sum(map(len, FAMILIES.values()))
    assert all(one.pattern.doc for one in Recover.rewrites)


def test_bodies_are_looked_into() -> None:
    work = parse(
        """graph main {
  %c = input() : bool
  %x = input() : 3xf32
  %y = if(%c, xs.0=%x) : 3xf32 with then {
    %x = input() : 3xf32
    %s = sigmoid(%x) : 3xf32
    %y = mul(%x, %s) : 3xf32
    output(y=%y)
  } with else {
    %x = input() : 3xf32
    %y = relu(%x) : 3xf32
    output(y=%y)
  }
  output(y=%y)
}"""
    )
    made = recovered(work)
    assert ops(made.body(made["y"].node, "then")) == ["silu"]


def test_layer_norm_and_softmax_are_found_as_the_patterns_page_writes_them() -> None:
    assert ops(recovered(graph(LAYER_NORM))) == ["layer_norm"]
    assert ops(recovered(graph(SOFTMAX))) == ["softmax"]


def test_generated_graphs_keep_what_they_compute() -> None:
    keeps(Recover(), range(6), 1e-5)

"""Softplus above a limit, as torch writes it, and norms whose eps is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as f

from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.recover import Recover
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.rewrite.runner.options import options_text, parse_passes
from tests.passes.test_recover import ops, recovered

CHOICES = (
    "%c = greater(%x, %l) : 8xbool; %p = where(%c, %x, %s) : 8xf32",
    "%c = greater_equal(%x, %l) : 8xbool; %p = where(%c, %x, %s) : 8xf32",
    "%c = less(%l, %x) : 8xbool; %p = where(%c, %x, %s) : 8xf32",
    "%c = less_equal(%x, %l) : 8xbool; %p = where(%c, %s, %x) : 8xf32",
)
PLUS = ("%s = softplus(%x) : 8xf32", "%e = exp(%x) : 8xf32; %s = log1p(%e) : 8xf32")
MISH = "%t = tanh(%p) : 8xf32; %y = mul(%x, %t) : 8xf32"


def program(*lines: str, limit: float = 20.0, kind: str = "f32") -> Graph:
    body = "\n".join(line for part in lines for line in part.split(";"))
    head = f"%x = input() : 8x{kind}\n%l = constant({limit}) : {kind}\n"
    return parse(f"graph main {{\n{head}{body.replace('f32', kind)}\n}}")


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("plus", PLUS)
def test_softplus_above_a_limit_is_softplus_and_mish(choice: str, plus: str) -> None:
    assert ops(recovered(program(plus, choice, "output(p=%p)"))) == ["softplus"]
    made = recovered(program(plus, choice, MISH, "output(y=%y)"))
    assert ops(made) == ["mish"]
    x = np.array([-90, -1, 0, 16.5, 20, np.nextafter(np.float32(20), 99), 80, 3e38], np.float32)
    expected = f.mish(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(
        np.asarray(run(made, {"x": x})["y"], float), expected, rtol=2e-7, atol=0
    )


@pytest.mark.parametrize(
    ("limit", "kind", "found"),
    [(14.0, "f32", False), (16.0, "f32", True), (20.0, "f64", False), (35.0, "f64", True),
     (6.0, "f16", False), (7.0, "f16", True), (-20.0, "f32", False), (0.5, "f32", False)],
)  # fmt: skip
def test_a_limit_is_one_where_its_type_rounds_softplus_to_the_number(
    limit: float, kind: str, found: bool
) -> None:
    before = program(PLUS[0], CHOICES[0], "output(p=%p)", limit=limit, kind=kind)
    after = run_passes(before, [Recover()], Ledger())
    assert ops(after) == (["softplus"] if found else ["softplus", "greater", "where"])


def test_softplus_above_a_limit_of_halves_is_each_of_them() -> None:
    every = np.arange(0x4700, 0x7C00, dtype=np.uint16).view(np.float16)  # from 7 to the largest
    made = np.logaddexp(0, every.astype(np.float64)).astype(np.float16)
    assert every[0] == 7
    assert np.array_equal(made, every)


def test_a_choice_the_other_way_round_or_of_another_value_is_none() -> None:
    turned = "%c = greater(%x, %l) : 8xbool; %p = where(%c, %s, %x) : 8xf32"
    other = "%c = greater(%s, %l) : 8xbool; %p = where(%c, %x, %s) : 8xf32"
    for choice in (turned, other):
        after = run_passes(program(PLUS[0], choice, "output(p=%p)"), [Recover()], Ledger())
        assert "where" in ops(after)


NORM = (
    "%m = reduce_mean(%x) {axes = (-1,)} : 1xf32; %d = sub(%x, %m) : 8xf32",
    "%s = mul(%d, %d) : 8xf32; %v = reduce_mean(%s) {axes = (-1,)} : 1xf32",
    "%r = sqrt(%v) : 1xf32; %y = div(%d, %r) : 8xf32",
    "output(y=%y)",
)


def test_a_norm_without_eps_has_one_of_zero() -> None:
    made = recovered(program(*NORM))
    assert ops(made) == ["layer_norm"]
    assert made["y"].node.attrs["eps"] == 0.0
    x = np.array([1, 2, -3, 4, 0.5, 6, -7, 8], np.float32)
    expected = f.layer_norm(torch.from_numpy(x).double(), (8,), eps=0.0).numpy()
    np.testing.assert_allclose(np.asarray(run(made, {"x": x})["y"], float), expected, rtol=1e-6)
    rms = "%s = mul(%x, %x) : 8xf32; %v = reduce_mean(%s) {axes = (-1,)} : 1xf32"
    made = recovered(program(rms, NORM[2].replace("%d", "%x"), NORM[3]))
    assert ops(made) == ["rms_norm"]
    expected = f.rms_norm(torch.from_numpy(x).double(), (8,), eps=0.0).numpy()
    np.testing.assert_allclose(np.asarray(run(made, {"x": x})["y"], float), expected, rtol=1e-6)


def test_families_are_written_as_a_list_in_brackets() -> None:
    (one,) = parse_passes("recover{only=[gelu, softmax]}")
    assert one == Recover(only=("gelu", "softmax"))
    assert options_text(one) == "recover{only=[gelu, softmax]}"
    assert parse_passes("recover{only=norm}") == (Recover(only=("norm",)),)
    with pytest.raises(UsageError, match=r"no family 'gelu\+norm'; it has relus"):
        parse_passes("recover{only=gelu+norm}")

"""What feeds a root, a power or a logarithm of a reduction stays float, and the plan says why."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.analysis.sensitive_values import sensitive_values
from tests.passes.float_networks import Grown
from tests.passes.norms_in_parts import KINDS, ONE, ROWS, WIDE, WIDTH, norm, normalized, program


def loudness(wanted: NDArray[np.float64], found: NDArray[np.float32]) -> float:
    return float(10 * np.log10(np.square(wanted).sum() / np.square(found - wanted).sum()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_a_normalization_in_its_parts_survives_rows_of_other_sizes(
    seed: int, kind: str, tmp_path: Path
) -> None:
    rng, pick = np.random.default_rng(seed), random.Random(f"{seed} {kind}")
    size = 10.0 ** rng.uniform(-1.5, 0.5, (ROWS, 1))
    x = (rng.normal(size=(ROWS, WIDTH)) * size).astype(np.float32)
    gamma, beta = (rng.uniform(0.5, 1.5, WIDTH).astype(np.float32) for _ in range(2))
    graph = program(norm(pick, kind), {"gamma": gamma, "beta": beta})
    made = pipeline.quantize(graph, pipeline.calibrate(graph, [{"x": x}]))
    path = tmp_path / "made.onnx"
    pipeline.save(made, path)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    wanted = normalized(x, kind) * gamma + beta
    assert loudness(wanted, found) > 30, f"seed {seed}"


RULES = ("op=mul: u8 affine tensor", "op=add: u8 affine tensor")


def test_the_plan_says_why_and_a_rule_asks_otherwise() -> None:
    held = {name: np.ones(WIDTH, np.float32) for name in ("gamma", "beta")}
    body = (
        f"%s = mul(%x, %x) : {WIDE}; %v = reduce_mean(%s) {{axes = (-1,)}} : {ONE}"
        f"; %e = add(%v, %eps) : {ONE}; %r = rsqrt(%e) : {ONE}; %n = mul(%x, %r) : {WIDE}"
        f"; %y = mul(%n, %gamma) : {WIDE}"
    )
    graph = program(body, held)
    found = {d.node: d for d in pipeline.plan(graph).decisions}
    assert all(d.becomes == "float" for d in found.values())
    coarse = "it makes or reads what {} rsqrt of a reduction: few bits are too coarse for that"
    says = {"s": "feeds", "e": "feeds", "n": "comes from", "y": "is normalized by"}
    assert {n: found[n].reason for n in says} == {n: coarse.format(x) for n, x in says.items()}
    asked = {d.node: d for d in pipeline.plan(graph, rules=RULES).decisions}
    assert {n for n, d in asked.items() if d.becomes == "integer"} == {"s", "e", "n", "y"}


@pytest.mark.parametrize("seed", range(40))
def test_nothing_of_a_convolutional_network_is_sensitive(seed: int) -> None:
    assert not sensitive_values(Grown(seed).graph)


def test_a_gate_of_channel_means_is_not_sensitive() -> None:
    """Sigmoid as an exponential and a reciprocal: a product stands before it."""
    held = {
        "gamma": np.ones(WIDTH, np.float32),
        "beta": np.ones(WIDTH, np.float32),
        "w": np.ones((WIDTH, WIDTH), np.float32),
    }
    body = (
        f"%w = constant(@w) : {WIDTH}x{WIDTH}xf32; %m = reduce_mean(%x) {{axes = (0,)}} : "
        f"1x{WIDTH}xf32; %g = matmul(%m, %w) : 1x{WIDTH}xf32; %h = neg(%g) : 1x{WIDTH}xf32"
        f"; %e = exp(%h) : 1x{WIDTH}xf32; %a = add(%e, %one) : 1x{WIDTH}xf32"
        f"; %r = reciprocal(%a) : 1x{WIDTH}xf32; %y = mul(%x, %r) : {WIDE}"
    )
    assert not sensitive_values(program(body, held))


def test_a_value_that_others_read_too_may_be_stored_in_few_bits() -> None:
    """Squares for their own sake, and the embedding that is normalized by its length."""
    held = {name: np.ones(WIDTH, np.float32) for name in ("gamma", "beta")}
    body = (
        f"%s = mul(%x, %x) : {WIDE}; %v = reduce_mean(%s) {{axes = (-1,)}} : {ONE}"
        f"; %r = sqrt(%v) : {ONE}; %n = div(%x, %r) : {WIDE}; %y = add(%n, %s) : {WIDE}"
    )
    names = {value.name for value in sensitive_values(program(body, held))}
    assert names == {"v", "r"}

"""Functions that ONNX has not under one name, and products so far, against torch in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from qir.errors import OpError, TypeRuleError
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.ops import spec
from qir.ir.types import TensorType
from qir.reference.table import compute
from tests.reference.oracles import Array, assert_close, assert_rounded_once, onnxruntime_runs
from tests.reference.rules import assert_rule_agrees

Exact = Callable[..., torch.Tensor]
KINDS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def _shrink(x: torch.Tensor, lambd: float, bias: float) -> torch.Tensor:
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0.0))


# op: torch's function, domain of x, attributes
FUNCTIONS: dict[str, tuple[Exact, tuple[float, float], dict[str, Any]]] = {
    "exp2": (torch.exp2, (-12, 12), {}),
    "expm1": (torch.expm1, (-3, 3), {}),
    "log1p": (torch.log1p, (-0.99, 9), {}),
    "log2": (torch.log2, (1e-9, 99), {}),
    "log10": (torch.log10, (1e-9, 99), {}),
    "rsqrt": (torch.rsqrt, (1e-3, 99), {}),
    "square": (torch.square, (-99, 99), {}),
    "erfc": (torch.erfc, (-3, 3), {}),
    "trunc": (torch.trunc, (-9, 9), {}),
    "log_sigmoid": (functional.logsigmoid, (-40, 40), {}),
    "tanh_shrink": (functional.tanhshrink, (-5, 5), {}),
    "shrink": (_shrink, (-2, 2), {"lambd": 0.75, "bias": 0.25}),
    "logit": (torch.logit, (0.001, 0.999), {"eps": 0.125}),
}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_round_the_float64_value_once(op: str) -> None:
    function, (low, high), attrs = FUNCTIONS[op]
    for seed, kind in enumerate(KINDS):
        rng = np.random.default_rng(seed)
        x = rng.uniform(low, high, (17, 9)).astype(kind)
        (got,) = assert_rule_agrees(op, {"x": x}, attrs, note=f"seed {seed}")
        assert got.dtype == x.dtype
        exact = function(torch.from_numpy(x.astype(np.float64)), **attrs).numpy()
        assert_rounded_once(
            got, exact, np.abs(exact) + np.abs(x.astype(np.float64)), f"{op} {kind}"
        )


def test_what_cancels_keeps_its_digits() -> None:
    x = np.array([1e-9, -3e-7, 2.0**-30, 0.0625])
    cubes = [math.fsum((v**3 / 3, -2 * v**5 / 15, 17 * v**7 / 315, -62 * v**9 / 2835)) for v in x]
    got = compute("tanh_shrink", {"x": x}, {}).tolist()
    assert all(math.isclose(a, b, rel_tol=1e-11) for a, b in zip(got, cubes, strict=True))
    near = compute("logit", {"x": 0.5 + x[:3]}, {}).tolist()
    exact = [4 * (0.5 + v - 0.5) for v in x[:3].tolist()]
    assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(near, exact, strict=True))


def test_odd_numbers_go_through() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    assert np.isnan(compute("shrink", {"x": x}, {})[0])
    assert compute("tanh_shrink", {"x": x}, {})[1:].tolist() == [math.inf, -math.inf, 0.0]
    assert compute("log_sigmoid", {"x": x}, {})[1:3].tolist() == [0.0, -math.inf]


@pytest.mark.parametrize("seed", range(8))
def test_functions_of_two_operands_are_torchs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = (rng.standard_normal((3, 1, 5)) * 9).astype(np.float32)
    b = (rng.standard_normal((4, 1)) * 3).astype(np.float32)
    wide = [torch.from_numpy(x.astype(np.float64)) for x in (a, b)]
    (got,) = assert_rule_agrees("atan2", {"a": a, "b": b}, note=f"seed {seed}")
    exact = torch.atan2(*wide).numpy()
    assert_rounded_once(got, exact, np.abs(exact), f"seed {seed}")
    (got,) = assert_rule_agrees("squared_difference", {"a": a, "b": b}, note=f"seed {seed}")
    exact = torch.square(torch.sub(*wide)).numpy()
    assert_rounded_once(got, exact, np.abs(exact), f"seed {seed}")
    (got,) = assert_rule_agrees("floor_div", {"a": a, "b": b}, note=f"seed {seed}")
    assert np.array_equal(got, torch.floor_divide(*wide).numpy()), f"seed {seed}"
    whole, by = (x.round().astype(np.int32) for x in (a, b))
    by[by == 0] = -3
    (got,) = assert_rule_agrees("floor_div", {"a": whole, "b": by}, note=f"seed {seed}")
    theirs = torch.floor_divide(torch.from_numpy(whole), torch.from_numpy(by))
    assert np.array_equal(got, theirs.numpy()), f"seed {seed}"
    with pytest.raises(OpError, match="b is 0 at"):
        compute("floor_div", {"a": whole, "b": by * 0}, {})


@pytest.mark.parametrize("seed", range(8))
def test_products_so_far_are_torchs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (3, 4, 5)).astype(np.float32)
    axis = int(rng.integers(-3, 3))
    exact = torch.cumprod(torch.from_numpy(x.astype(np.float64)), axis).numpy()
    (got,) = assert_rule_agrees("cumprod", {"x": x}, {"axis": axis}, note=f"seed {seed}")
    assert_rounded_once(got, exact, np.abs(exact), f"seed {seed}")
    attrs = {"axis": axis, "exclusive": True, "reverse": True}
    (turned,) = assert_rule_agrees("cumprod", {"x": x}, attrs, note=f"seed {seed}")
    back = np.flip(x.astype(np.float64), axis)
    ones = np.ones_like(np.take(back, [0], axis))
    shifted = np.concatenate([ones, np.take(back, range(x.shape[axis] - 1), axis)], axis)
    exact = np.flip(np.cumprod(shifted, axis), axis)
    assert_rounded_once(turned, exact, np.abs(exact), f"seed {seed}")
    whole = (x * 3).astype(np.int32)
    plain = torch.cumprod(torch.from_numpy(whole), axis, dtype=torch.int32)
    assert np.array_equal(compute("cumprod", {"x": whole}, {"axis": axis}), plain.numpy())


@pytest.mark.parametrize("p", [1, 2])
def test_lengths_become_1_as_onnxruntime_makes_them(p: int) -> None:
    x = np.random.default_rng(p).standard_normal((3, 4, 5)).astype(np.float32)
    x[0, :, 0] = 0
    (got,) = assert_rule_agrees("lp_normalize", {"x": x}, {"axis": 1, "p": p})
    assert_close(got, onnxruntime_runs("LpNormalization", [x], axis=1, p=p), 1e-6)
    exact = functional.normalize(torch.from_numpy(x.astype(np.float64)), p, 1).numpy()
    assert_rounded_once(got, exact, np.abs(exact), f"p {p}")
    with pytest.raises(OpError, match="p is 3"):
        compute("lp_normalize", {"x": x}, {"p": 3})


def test_dropout_and_identity_give_what_they_got() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    for op in ("identity", "dropout"):
        (got,) = assert_rule_agrees(op, {"x": x})
        assert np.array_equal(got, x)
    graph = Graph("ratio")
    value = graph.add("input", types=[TensorType((3,), F32)]).result
    with pytest.raises(TypeRuleError, match=r"ratio = 1.5, it must be in 0..1"):
        graph.add("dropout", {"x": value}, {"ratio": 1.5})


@pytest.mark.parametrize("seed", range(10))
def test_pads_that_wrap_are_onnxruntimes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(rng.integers(3, 6, 3)).astype(np.float32)
    pads = tuple(int(rng.integers(-1, d)) for d in (*x.shape, *x.shape))
    kept: Array = np.array(x.shape) + np.minimum(pads[:3], 0) + np.minimum(pads[3:], 0)
    pads = tuple(min(p, int(k)) for p, k in zip(pads, (*kept, *kept), strict=True))
    (got,) = assert_rule_agrees("pad", {"x": x}, {"pads": pads, "mode": "wrap"}, unknown=True)
    theirs = onnxruntime_runs("Pad", [x, np.array(pads)], mode="wrap")
    assert np.array_equal(got, theirs), f"seed {seed} {list(x.shape)} {pads}"


def test_bounds_of_clip_cover_the_bounded_activations() -> None:
    x = np.random.default_rng(0).uniform(-9, 9, 99).astype(np.float32)
    wide = torch.from_numpy(x)
    six = compute("clip", {"x": x}, spec("clip").complete_attrs({"min": 0.0, "max": 6.0}))
    assert np.array_equal(six, functional.relu6(wide).numpy())
    hard = compute("clip", {"x": x}, spec("clip").complete_attrs({"min": -1.0, "max": 1.0}))
    assert np.array_equal(hard, functional.hardtanh(wide).numpy())

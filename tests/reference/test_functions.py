"""Activations and mathematical functions against torch in float64, and against onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from qir.errors import OpError
from qir.ir.ops import spec
from qir.reference.table import compute
from tests.reference.oracles import (
    Array,
    assert_close,
    assert_rounded_once,
    frozen,
    onnxruntime_runs,
)
from tests.reference.rules import assert_rule_agrees

Exact = Callable[..., torch.Tensor]


def _celu(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return x.clamp(min=0) + (alpha * torch.expm1(x / alpha)).clamp(max=0)


def _selu(x: torch.Tensor, alpha: float, gamma: float) -> torch.Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


# op: torch's function, ONNX's name, domain of x, attributes
FUNCTIONS: dict[str, tuple[Exact, str, tuple[float, float], dict[str, Any]]] = {
    "leaky_relu": (
        lambda x, alpha: torch.where(x < 0, alpha * x, x),
        "LeakyRelu",
        (-9, 9),
        {"alpha": 0.125},
    ),
    "thresholded_relu": (
        lambda x, alpha: functional.threshold(x, alpha, 0),
        "ThresholdedRelu",
        (-3, 3),
        {"alpha": 0.75},
    ),
    "elu": (functional.elu, "Elu", (-20, 9), {"alpha": 1.5}),
    "celu": (_celu, "Celu", (-20, 9), {"alpha": 1.5}),
    "selu": (_selu, "Selu", (-20, 9), {"alpha": 1.625, "gamma": 1.0625}),
    "tanh": (torch.tanh, "Tanh", (-12, 12), {}),
    "hard_sigmoid": (
        lambda x, alpha, beta: (alpha * x + beta).clamp(0, 1),
        "HardSigmoid",
        (-5, 5),
        {"alpha": 0.25, "beta": 0.375},
    ),
    "hard_swish": (functional.hardswish, "HardSwish", (-5, 5), {}),
    "softplus": (lambda x: functional.softplus(x, threshold=1e9), "Softplus", (-40, 40), {}),
    "softsign": (functional.softsign, "Softsign", (-40, 40), {}),
    "gelu": (functional.gelu, "Gelu", (-5, 9), {"approximate": "none"}),
    "silu": (lambda x, alpha: x * torch.sigmoid(alpha * x), "Swish", (-30, 30), {"alpha": 1.75}),
    "mish": (functional.mish, "Mish", (-30, 30), {}),
    "exp": (torch.exp, "Exp", (-9, 9), {}),
    "log": (torch.log, "Log", (1e-30, 50), {}),
    "sqrt": (torch.sqrt, "Sqrt", (0, 6e4), {}),
    "reciprocal": (torch.reciprocal, "Reciprocal", (0.1, 50), {}),
    "erf": (torch.erf, "Erf", (-4, 4), {}),
    "floor": (torch.floor, "Floor", (-9, 9), {}),
    "ceil": (torch.ceil, "Ceil", (-9, 9), {}),
    "round": (torch.round, "Round", (-9, 9), {}),
    "sin": (torch.sin, "Sin", (-9, 9), {}),
    "cos": (torch.cos, "Cos", (-9, 9), {}),
    "tan": (torch.tan, "Tan", (-1.5, 1.5), {}),
    "asin": (torch.asin, "Asin", (-1, 1), {}),
    "acos": (torch.acos, "Acos", (-1, 1), {}),
    "atan": (torch.atan, "Atan", (-9, 9), {}),
    "sinh": (torch.sinh, "Sinh", (-9, 9), {}),
    "cosh": (torch.cosh, "Cosh", (-9, 9), {}),
    "asinh": (torch.asinh, "Asinh", (-9, 9), {}),
    "acosh": (torch.acosh, "Acosh", (1, 9), {}),
    "atanh": (torch.atanh, "Atanh", (-0.99, 0.99), {}),
    "abs": (torch.abs, "Abs", (-9, 9), {}),
    "neg": (torch.neg, "Neg", (-9, 9), {}),
    "sign": (torch.sign, "Sign", (-9, 9), {}),
}
EXACT = "leaky_relu thresholded_relu sqrt reciprocal floor ceil round abs neg sign".split()


def _run(op: str, x: Array, attrs: dict[str, Any]) -> Array:
    return compute(op, {"x": frozen(x)}, spec(op).complete_attrs(attrs))


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_round_the_float64_value_once(op: str) -> None:
    function, _, (low, high), attrs = FUNCTIONS[op]
    for seed, kind in enumerate((np.float32, np.float16, ml_dtypes.bfloat16, np.float64)):
        x = np.random.default_rng(seed).uniform(low, high, (3, 200)).astype(kind)
        x = np.clip(x.astype(np.float64), low, high).astype(kind)  # float16 may round outwards
        got = _run(op, x, attrs)
        exact = function(torch.from_numpy(x.astype(np.float64)), **attrs).numpy()
        assert got.dtype == kind
        assert_rounded_once(
            got, exact, np.abs(exact) + np.abs(x).astype(np.float64), f"{op} {seed}"
        )


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_agree_with_onnxruntimes(op: str) -> None:
    _, name, (low, high), attrs = FUNCTIONS[op]
    x = np.random.default_rng(3).uniform(low, high, 500).astype(np.float32)
    if name == "Swish":
        return  # onnxruntime has it from operator set 24 on; the float64 test holds it
    got, theirs = _run(op, x, attrs), onnxruntime_runs(name, [x], **attrs)
    assert got.dtype == theirs.dtype
    if op in EXACT:
        assert np.array_equal(got, theirs)
    else:
        assert_close(got, theirs, 3e-6)


def test_a_slope_is_held_in_float32_as_runtimes_hold_it() -> None:
    x = np.random.default_rng(4).uniform(-9, 9, 500).astype(np.float32)
    got = _run("leaky_relu", x, {"alpha": 0.1})
    assert np.array_equal(got, onnxruntime_runs("LeakyRelu", [x], alpha=0.1))
    assert np.array_equal(got, functional.leaky_relu(torch.from_numpy(x), 0.1).numpy())


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_keep_nan_and_shape(op: str) -> None:
    attrs = FUNCTIONS[op][3]
    assert np.isnan(_run(op, np.array([np.nan], np.float32), attrs)).all()
    for shape in ((), (0, 2), (2, 1, 3)):
        (made,) = assert_rule_agrees(op, {"x": np.full(shape, 0.5, np.float32)}, attrs)
        assert made.shape == shape
    assert spec(op).traits.elementwise


def test_the_tails_of_activations_lose_nothing() -> None:
    """1 + erf, log(1 + exp) and 1 + tanh would be 0 here."""
    x = np.array([-6.0, -9.0], np.float64)
    gelu = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in (-6.0, -9.0)]
    assert _run("gelu", x, {}).tolist() == pytest.approx(gelu, rel=1e-12)
    inner = [math.sqrt(2 / math.pi) * (v + 0.044715 * v**3) for v in (-6.0, -9.0)]
    smooth = [v / (1 + math.exp(-2 * u)) for v, u in zip((-6.0, -9.0), inner, strict=True)]
    assert _run("gelu", x, {"approximate": "tanh"}).tolist() == pytest.approx(smooth, rel=1e-9)
    far = np.array([-50.0], np.float64)
    assert _run("softplus", far, {})[0] == pytest.approx(math.exp(-50), rel=1e-12)
    big = np.array([800.0, -800.0], np.float64)
    assert _run("softplus", big, {}).tolist() == [800.0, 0.0]
    assert _run("mish", big, {}).tolist() == [800.0, 0.0]


def test_gelu_by_tanh_equals_onnxruntimes() -> None:
    x = np.random.default_rng(0).uniform(-5, 5, 300).astype(np.float32)
    got = _run("gelu", x, {"approximate": "tanh"})
    theirs = onnxruntime_runs("Gelu", [x], approximate="tanh")
    assert_close(got, theirs, 3e-6)


@pytest.mark.parametrize("op", ["abs", "neg", "sign"])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_signs_of_integers_equal_onnxruntimes(op: str, kind: type[np.generic]) -> None:
    x = np.array([-7, 0, 3, 2**31 - 1], kind)
    got = _run(op, x, {})
    assert got.dtype == kind
    assert np.array_equal(got, onnxruntime_runs(FUNCTIONS[op][1], [x]))


def test_prelu_takes_a_slope_for_each_channel() -> None:
    rng = np.random.default_rng(1)
    x, slope = (
        rng.standard_normal((2, 3, 4)).astype(np.float32),
        np.array([[0.5], [-1], [0]], np.float32),
    )
    (got,) = assert_rule_agrees("prelu", {"x": x, "slope": slope})
    exact = np.where(x < 0, x.astype(np.float64) * slope, x)
    assert_rounded_once(got, exact, np.abs(exact), "seed 1")
    assert np.array_equal(got, onnxruntime_runs("PRelu", [x, slope]))
    with pytest.raises(OpError, match=r"slope \[2\], x \[2, 3, 4\]"):
        compute("prelu", {"x": x, "slope": np.ones(2, np.float32)}, {})


@pytest.mark.parametrize("op", ["min", "max", "sum", "mean"])
def test_ops_on_many_operands_equal_exact_ones(op: str) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 5))
        shape = [int(n) for n in rng.integers(1, 4, 3)]
        shapes = [
            [1 if rng.random() < 0.4 else n for n in shape][int(rng.integers(0, 3)) :]
            for _ in range(count)
        ]
        xs = [np.asarray(rng.standard_normal(s)).astype(np.float32) for s in shapes]
        (got,) = assert_rule_agrees(
            op, {f"xs.{i}": x for i, x in enumerate(xs)}, note=f"seed {seed}"
        )
        wide = np.stack(np.broadcast_arrays(*(x.astype(np.float64) for x in xs)))
        exact = np.asarray(getattr(wide, op)(axis=0))
        assert_rounded_once(got, exact, np.abs(wide).sum(0), f"seed {seed}")
        theirs = onnxruntime_runs(op.title(), xs)
        assert_close(got, theirs, 1e-6)
    whole = [np.array([1, -5], np.int64), np.array([[3], [-9]], np.int64)]
    if op in ("min", "max"):
        got = compute(op, {f"xs.{i}": x for i, x in enumerate(whole)}, {})
        assert np.array_equal(got, onnxruntime_runs(op.title(), whole))


def test_pow_has_the_type_of_its_base() -> None:
    rng = np.random.default_rng(4)
    a = rng.uniform(0.1, 4, (5, 1)).astype(np.float32)
    for b in (
        rng.uniform(-3, 3, 7).astype(np.float32),
        np.array([-1, 0, 2, 3]),
        np.array(2, np.int32),
    ):
        (got,) = assert_rule_agrees("pow", {"a": a, "b": b})
        exact = torch.pow(
            torch.from_numpy(a.astype(np.float64)), torch.from_numpy(b.astype(np.float64))
        )
        assert_rounded_once(got, exact.numpy(), exact.numpy(), "seed 4")
        assert_close(got, onnxruntime_runs("Pow", [a, b]), 1e-5)


def test_mod_has_the_sign_that_is_asked_for() -> None:
    a, b = np.arange(-9, 10, dtype=np.int32)[:, None], np.array([-4, -1, 3, 5], np.int32)
    for fmod in (False, True):
        (got,) = assert_rule_agrees("mod", {"a": a, "b": b}, {"fmod": fmod})
        assert np.array_equal(got, onnxruntime_runs("Mod", [a, b], fmod=int(fmod)))
    x, y = (v.astype(np.float32) * np.float32(0.7) for v in (a, b))
    (got,) = assert_rule_agrees("mod", {"a": x, "b": y}, {"fmod": True})
    assert np.array_equal(got, onnxruntime_runs("Mod", [x, y], fmod=1))
    (got,) = assert_rule_agrees("mod", {"a": x, "b": y})
    exact = torch.remainder(torch.from_numpy(x).double(), torch.from_numpy(y).double()).numpy()
    assert_rounded_once(got, exact, np.abs(exact) + 9, "remainder")
    with pytest.raises(OpError, match=r"mod: b is 0 at \[1\]"):
        compute("mod", {"a": a, "b": np.array([1, 0], np.int32)}, {"fmod": False})


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_log_softmax_rounds_the_float64_value_once(axis: int) -> None:
    x = (np.random.default_rng(9).standard_normal((3, 4, 5)) * 20).astype(np.float32)
    (got,) = assert_rule_agrees("log_softmax", {"x": x}, {"axis": axis})
    exact = torch.log_softmax(torch.from_numpy(x.astype(np.float64)), axis).numpy()
    assert_rounded_once(got, exact, np.abs(exact) + 200, "seed 9")
    theirs = onnxruntime_runs("LogSoftmax", [x], axis=axis)
    assert_close(got, theirs, 1e-5)

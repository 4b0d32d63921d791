"""Every named scale rule against its formula as it is printed, on thousands of ranges, with ==."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import registry
from qir.errors import ArgumentError, PluginError
from qir.ir.dtype import dtype
from qir.numerics import SCALE_FORMULAS, Choose, choose
from qir.numerics.scale_rules import ScaleRequest, ScaleRule, Tensor, printed_rules

F = np.float32
Floats = NDArray[np.float32]
Pair = tuple[NDArray[np.generic], NDArray[np.generic]]
TINY = np.finfo(F).tiny
LEAST = F(2.0**-149)
EPS = F(2.0**-23)


def int8(rmin: Floats, rmax: Floats) -> Pair:
    scale = F(2) * np.maximum(abs(rmin), abs(rmax)) / F(127 + 128 - 1)
    return scale, np.zeros(len(scale))


def uint8(rmin: Floats, rmax: Floats) -> Pair:
    scale = np.maximum(rmin, rmax) / F(255)
    return scale, np.zeros(len(scale))


def halves(rmin: Floats, rmax: Floats, *, middle: int) -> Pair:
    scale = np.maximum(abs(rmin), abs(rmax)) / F(255 / 2)
    return scale, np.full(len(scale), middle)


def affine(rmin: Floats, rmax: Floats) -> Pair:
    scale = (rmax - rmin) / F(255)
    return scale, 0 - np.rint(rmin / scale)


def tool(rmin: Floats, rmax: Floats) -> Pair:
    low, high = rmin.astype(np.float64), rmax.astype(np.float64)
    scale = ((high - low) / 255).astype(F)
    return scale, np.rint(0 - low / scale)


def observer(rmin: Floats, rmax: Floats, eps: np.float32 = EPS) -> Pair:
    scale = np.maximum((rmax - rmin) / F(255), eps)
    return scale, np.clip(0 - np.rint(rmin / scale), 0, 255)


Formula = Callable[[Floats, Floats], Pair]
PRINTED: Mapping[str, tuple[str, bool, Formula]] = {
    "onednn.i8": ("i8", True, int8),
    "onnxruntime.i8": ("i8", True, int8),
    "onednn.u8": ("u8", True, uint8),
    "fbgemm.symmetric": ("u8", True, lambda a, b: halves(a, b, middle=128)),
    "fbgemm.affine": ("u8", False, affine),
    "onnxruntime.u8": ("u8", False, affine),
    "onnxruntime.tool": ("u8", False, tool),
    "torch.observer": ("u8", False, observer),
    "torch.qnnpack.symmetric": ("u8", False, lambda a, b: observer(a, b, F(2.0**-12))),
}
"""Storage, whether about zero, and the formula that `qir doctor` prints in NumPy."""


def ranges(seed: int, *, positive: bool) -> tuple[Floats, Floats]:
    """Ranges with zero in them, as the formulas take them; quotients on ties, ends at zero and of
    subnormal size among them."""
    rng = np.random.default_rng(seed)
    size = np.exp2(rng.uniform(-149, 126, 10_000))
    low = np.zeros(10_000) if positive else -rng.random(10_000) * size
    high = rng.random(10_000) * size
    if not positive:
        low[2000:2500], high[2500:3000] = 0, 0
    ties = rng.integers(0, 255, 1000) + 0.5
    scale = np.exp2(rng.integers(-9, 9, 1000))
    if not positive:
        low[:1000] = -ties * scale
        high[:1000] = (255 - ties) * scale
    return low.astype(F), high.astype(F)


@pytest.mark.parametrize("name", PRINTED)
def test_a_named_rule_is_its_printed_formula(name: str) -> None:
    storage, symmetric, formula = PRINTED[name]
    said = printed_rules()[name].formula
    assert printed_rules()[name].fits(storage, symmetric)
    low, high = ranges(3, positive=name == "onednn.u8")
    with np.errstate(all="ignore"):
        scale, zero = formula(low, high)
        there = scale >= (TINY if name == "onnxruntime.tool" else LEAST)
    low, high, scale, zero = low[there], high[there], scale[there], zero[there]
    zero = np.clip(zero, *dtype(storage).bounds)  # of steps that are no longer whole numbers
    if not symmetric:
        quotient = (low / scale.astype(F)).astype(np.float64)
        assert (np.abs(quotient - np.floor(quotient)) == 0.5).mean() >= 0.05, "too few ties"
    found, zeros = choose(low, high, dtype(storage), SCALE_FORMULAS[name], symmetric=symmetric)
    assert found.dtype == F
    assert np.array_equal(found, scale), f"{name}: {said}"
    assert np.array_equal(zeros, zero), f"{name}: {said}"


def test_every_named_rule_has_its_formula_here() -> None:
    assert PRINTED.keys() == SCALE_FORMULAS.keys()


def test_signed_integers_of_fbgemm_are_about_zero() -> None:
    low, high = ranges(4, positive=False)
    found, zeros = choose(
        low, high, dtype("i8"), SCALE_FORMULAS["fbgemm.symmetric"], symmetric=True
    )
    scale, zero = halves(low, high, middle=0)
    assert np.array_equal(found, scale)
    assert np.array_equal(zeros, zero)


def test_a_rule_is_made_of_fields_or_of_a_function() -> None:
    with pytest.raises(ArgumentError, match="choose or function; it has neither"):
        ScaleRule(formula="scale = 1")
    with pytest.raises(ArgumentError, match="choose or function; it has both"):
        ScaleRule(Choose(), lambda low, high, request: (low, high))


def _failing(low: Tensor, high: Tensor, request: ScaleRequest) -> tuple[Tensor, Tensor]:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_failing, "fails: KeyError: 'x'"),
        (lambda low, high, request: (low * 0 - 0.1, low * 0), "gives the scale -0.1"),
        (lambda low, high, request: (low * 0 + np.nan, low * 0), "gives the scale nan"),
        (lambda low, high, request: (low * 0 + 0.1, low * 0 + 0.5), "no whole number"),
        (lambda low, high, request: (np.ones(3), np.zeros(3)), "gives .* scales for"),
        (lambda low, high, request: 1.0, "fails: TypeError"),
    ],
)
def test_a_function_that_gives_no_scale_is_named(
    function: Callable[..., tuple[Tensor, Tensor]], said: str
) -> None:
    low, high = np.array([-1.0]), np.array([2.0])
    with (
        registry.offer("qir.ranges", "test.bad", ScaleRule(function=function)),
        pytest.raises(PluginError, match=f"^scale rule test.bad of .* {said}"),
    ):
        choose(low, high, dtype("u8"), Choose(by="test.bad"))

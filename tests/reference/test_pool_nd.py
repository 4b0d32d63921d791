"""Pools along one and three axes, adaptive and back, against torch in float64 and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.reference.table import compute, compute_all
from tests.reference.oracles import Array, assert_near, assert_rounded_once, onnxruntime_runs
from tests.reference.rules import assert_rule_agrees

SEEDS = range(12)


def _draw(seed: int, n: int) -> tuple[Array, dict[str, Any], dict[str, Any]]:
    """Elements, and the window's attributes under our names and under ONNX's."""
    rng = np.random.default_rng(seed)
    kernel = tuple(int(k) for k in rng.integers(1, 4, n))
    stride = tuple(int(s) for s in rng.integers(1, 4, n))
    pad = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
    size = [k + int(v) for k, v in zip(kernel, rng.integers(1, 6, n), strict=True)]
    x = rng.standard_normal((2, 3, *size)).astype(np.float32)
    ceil = bool(seed % 2)
    ours: dict[str, Any] = {"kernel": kernel, "stride": stride, "pad": pad, "ceil": ceil}
    theirs = {"kernel_shape": kernel, "strides": stride, "pads": pad, "ceil_mode": int(ceil)}
    return x, ours, theirs


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_windows_along_one_and_three_axes_are_onnxruntimes(seed: int, n: int) -> None:
    x, ours, theirs = _draw(seed, n)
    note = f"seed {seed}, {n} axes"
    (got,) = assert_rule_agrees(f"max_pool{n}d", {"x": x}, ours, note=note)
    assert np.array_equal(got, onnxruntime_runs("MaxPool", [x], **theirs)), note
    for counted in (False, True):
        (got,) = assert_rule_agrees(f"avg_pool{n}d", {"x": x}, {**ours, "count_pad": counted})
        other = onnxruntime_runs("AveragePool", [x], count_include_pad=int(counted), **theirs)
        assert_near(got, other, np.ones(got.shape), 30, note)
    p = 1 + seed % 3
    (got,) = assert_rule_agrees(f"lp_pool{n}d", {"x": x}, {**ours, "p": p}, note=note)
    theirs["ceil_mode"] = 0
    ours["ceil"] = False
    got = compute(f"lp_pool{n}d", {"x": x}, {**ours, "p": p})
    assert_near(
        got, onnxruntime_runs("LpPool", [x], p=p, **theirs), np.full(got.shape, 9.0), 60, note
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_means_of_windows_round_the_float64_value_once(seed: int) -> None:
    x, ours, _ = _draw(2 * seed, 3)
    kernel, stride, pad = ours["kernel"], ours["stride"], ours["pad"]
    got = compute("avg_pool3d", {"x": x}, {**ours, "count_pad": True})
    sides = [v for i in (2, 1, 0) for v in (pad[i], pad[i + 3])]
    wide = functional.pad(torch.from_numpy(x.astype(np.float64)), sides)
    exact = functional.avg_pool3d(wide, kernel, stride).numpy()
    magnitude = functional.avg_pool3d(wide.abs(), kernel, stride).numpy()
    assert_rounded_once(got, exact, magnitude, f"seed {seed}")


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_places_of_the_greatest_are_torchs_and_onnxruntimes(seed: int, n: int) -> None:
    x, ours, theirs = _draw(2 * seed, n)
    x = np.rint(x)  # ties: the first one counts
    kernel, pad = ours["kernel"], ours["pad"]
    ours["dilation"] = (1,) * n
    note = f"seed {seed}, {n} axes"
    got, at = assert_rule_agrees("max_pool_places", {"x": x}, ours, note=note)
    assert np.array_equal(got, onnxruntime_runs("MaxPool", [x], **theirs)), note
    assert np.array_equal(np.take(x, at.astype(np.int64)), got), note
    even = tuple(min(k // 2, p) for k, p in zip(kernel, pad, strict=False))
    ours |= {"pad": even * 2, "counted": "plane"}
    values, places = compute_all("max_pool_places", {"x": x}, ours)
    pool = getattr(functional, f"max_pool{n}d")
    one, other = pool(torch.from_numpy(x), kernel, ours["stride"], even, return_indices=True)
    assert np.array_equal(values, one.numpy()), note
    assert np.array_equal(places, other.numpy()), note


def test_what_was_pooled_goes_back_to_its_place_as_torchs_does() -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 4, 6)).astype(np.float32)
    attrs: dict[str, Attr] = {"kernel": (2, 2), "stride": (2, 2), "pad": (0,) * 4}
    attrs |= {"dilation": (1, 1)}
    for counted in ("tensor", "plane"):
        made = compute_all("max_pool_places", {"x": x}, {**attrs, "counted": counted})
        operands = dict(zip(("x", "places"), made, strict=True))
        back: dict[str, Attr] = {"size": (4, 6), "counted": counted}
        (got,) = assert_rule_agrees("max_unpool", operands, back)
        pooled, at = functional.max_pool2d(torch.from_numpy(x), 2, return_indices=True)
        assert np.array_equal(got, functional.max_unpool2d(pooled, at, (2, 2)).numpy()), counted
    with pytest.raises(OpError, match=r"a place of 23\.\.23 among 6"):
        compute("max_unpool", operands | {"places": made[1] * 0 + 23}, {**back, "size": (2, 3)})


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_adaptive_pools_are_torchs(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 3, *(int(v) for v in rng.integers(1, 9, n)))).astype(np.float32)
    size = tuple(int(rng.choice([-1, 1, 2, 3, 5, 11])) for _ in range(n))
    asked = [h if s == -1 else s for s, h in zip(size, x.shape[2:], strict=True)]
    note = f"seed {seed}, {list(x.shape)} to {size}"
    (got,) = assert_rule_agrees("adaptive_max_pool", {"x": x}, {"size": size}, note=note)
    theirs = getattr(functional, f"adaptive_max_pool{n}d")(torch.from_numpy(x), asked)
    assert np.array_equal(got, theirs.numpy()), note
    (got,) = assert_rule_agrees("adaptive_avg_pool", {"x": x}, {"size": size}, note=note)
    mean = getattr(functional, f"adaptive_avg_pool{n}d")
    wide = torch.from_numpy(x.astype(np.float64))
    assert_rounded_once(got, mean(wide, asked).numpy(), mean(wide.abs(), asked).numpy(), note)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5, 6)])
def test_global_pools_take_any_rank(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    last = np.moveaxis(x, 1, -1)
    pools = (("global_avg_pool", "Average"), ("global_max_pool", "Max"), ("global_lp_pool", "Lp"))
    for op, name in pools:
        (got,) = assert_rule_agrees(op, {"x": x})
        other = onnxruntime_runs(f"Global{name}Pool", [x])
        assert_near(got, other, np.abs(got.astype(np.float64)) + 1, 200, op)
        (turned,) = assert_rule_agrees(op, {"x": last}, {"layout": "NHWC"})
        assert np.array_equal(np.moveaxis(turned, -1, 1), got), op


def test_pools_say_what_does_not_fit() -> None:
    x = np.ones((1, 1, 4), np.float32)
    one: dict[str, Attr] = {"kernel": (2,)}
    for op, attrs, why in (
        ("max_pool1d", {"kernel": (6,)}, "a window of 6 is larger"),
        ("max_pool3d", {"kernel": (2,) * 3}, "x has 3 axes, it takes 5"),
        ("avg_pool1d", {**one, "stride": (0,)}, "each must be 1 or more"),
        ("lp_pool1d", {**one, "p": 0}, "p is 0"),
        ("adaptive_avg_pool", {"size": (1, 1)}, "cannot become"),
        ("adaptive_max_pool", {"size": (-2,)}, "cannot become"),
    ):
        with pytest.raises(OpError, match=why):
            compute(op, {"x": x}, attrs)

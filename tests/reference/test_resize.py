"""Resize by every rule, against onnxruntime, torch and the formula in exact fractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from qir.errors import OpError, TypeRuleError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.ir.ops import spec
from qir.ir.ops.resize import COORDINATES, ROUNDINGS
from qir.ir.types import Array as StoredArray
from qir.ir.types import TensorType, uniform
from qir.reference.interpreter import run
from qir.reference.table import compute
from tests.reference.oracles import Array, assert_close, onnxruntime_runs
from tests.reference.rules import assert_rule_agrees

SCALES = (0.5, 0.75, 1.5, 2.0, 3.0)  # times an even size: sizes that differ, and exact quotients


def _draw(seed: int) -> tuple[np.random.Generator, Array, Array]:
    """Elements of an image along one to three axes, and its scales."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 3))
    sizes = [4 * int(v) for v in rng.integers(1, 4, n)]
    x = rng.standard_normal((1, 2, *sizes)).astype(np.float32)
    return rng, x, np.array([1, 1, *rng.choice(SCALES, n)], np.float32)


def _both(
    op: str, x: Array, scales: Array, by_size: bool, attrs: dict[str, Attr], theirs: dict[str, Any]
) -> tuple[Array, Array]:
    """What we make and what onnxruntime makes, from scales or from sizes."""
    operands: dict[str, Array] = {"x": x}
    roi = np.array(theirs.pop("roi"), np.float32) if "roi" in theirs else None
    if by_size:
        sizes = (np.array(x.shape) * scales).astype(np.int64)
        operands["sizes"] = sizes
        other = onnxruntime_runs("Resize", [x, roi, None, sizes], **theirs)
    else:
        attrs = {**attrs, "scales": tuple(scales.astype(np.float64).tolist())}
        other = onnxruntime_runs("Resize", [x, roi, scales], **theirs)
    (got,) = assert_rule_agrees(op, operands, attrs, constant=["sizes"], unknown=True)
    if by_size:
        assert_rule_agrees(op, operands, attrs, unknown=True)
    return got, other


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_nearest_elements_are_onnxruntimes(coordinates: str, rounding: str) -> None:
    for seed in range(8):
        _, x, scales = _draw(seed)
        attrs: dict[str, Attr] = {"coordinates": coordinates, "rounding": rounding}
        theirs: dict[str, Any] = {"coordinate_transformation_mode": coordinates}
        theirs |= {"nearest_mode": rounding, "mode": "nearest"}
        if coordinates == "tf_crop_and_resize":
            n = x.ndim - 2
            roi = [0.0, 0.0, *[0.125] * n, 1.0, 1.0, *[1.25] * n]
            attrs |= {"roi": tuple(roi), "extrapolation": 7.0}
            theirs |= {"roi": roi, "extrapolation_value": 7.0}
        got, other = _both("resize_nearest", x, scales, seed % 2 == 0, attrs, theirs)
        note = f"seed {seed} {coordinates} {rounding} {list(x.shape)} by {scales}"
        assert np.array_equal(got, other), note


@pytest.mark.parametrize("coordinates", [c for c in COORDINATES if c != "tf_half_pixel_for_nn"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation_is_onnxruntimes(coordinates: str, mode: str) -> None:
    for seed in range(8):
        _, x, scales = _draw(seed)
        if x.ndim == 3 and mode == "cubic":
            x, scales = np.tile(x[:, :, None], (1, 1, 4, 1)), np.insert(scales, 2, np.float32(1.5))
        attrs: dict[str, Attr] = {"coordinates": coordinates, "mode": mode}
        theirs: dict[str, Any] = {"coordinate_transformation_mode": coordinates, "mode": mode}
        if coordinates == "tf_crop_and_resize":
            n = x.ndim - 2
            roi = [0.0, 0.0, *[0.125] * n, 1.0, 1.0, *[0.875] * n]
            attrs["roi"], theirs["roi"] = tuple(roi), roi
        elif seed % 4 == 1 and scales.max() > 1:
            attrs["antialias"], theirs["antialias"] = True, 1
        elif seed % 4 == 2 and mode == "cubic":
            attrs["exclude_outside"], theirs["exclude_outside"] = True, 1
        elif mode == "cubic":
            attrs["cubic_a"], theirs["cubic_coeff_a"] = -0.5, -0.5
        got, other = _both("resize", x, scales, seed % 2 == 0, attrs, theirs)
        assert_close(got, other, 1e-5, f"seed {seed} {attrs} {list(x.shape)} by {scales}")


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("seed", range(6))
def test_proportions_are_kept_as_onnxruntime_keeps_them(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((1, 1, *rng.integers(2, 9, 2))).astype(np.float32)
    sizes = rng.integers(9, 20, 2)
    attrs: dict[str, Attr] = {"axes": (2, 3), "policy": policy, "mode": "linear"}
    operands: dict[str, Array] = {"x": x, "sizes": sizes}
    (got,) = assert_rule_agrees("resize", operands, attrs, constant=["sizes"], unknown=True)
    marks = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": "linear"}
    other = onnxruntime_runs("Resize", [x, None, None, sizes], **marks)
    assert_close(got, other, 1e-5, f"seed {seed}")


@pytest.mark.parametrize("seed", range(10))
def test_interpolation_is_torchs_in_float64(seed: int) -> None:
    """At sizes whose places are float32 as they are: times a power of two, or one more than it."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 3, *(2 * rng.integers(1, 5, 2))))
    doubled = tuple(
        int(n * s) for n, s in zip(x.shape[2:], rng.choice([0.5, 2, 4], 2), strict=True)
    )
    wide, operands = torch.from_numpy(x), {"x": x, "sizes": np.array(doubled)}
    for mode, name in (("linear", "bilinear"), ("cubic", "bicubic")):
        for corners in (False, True):
            sizes = tuple(rng.choice([2, 3, 5, 9, 17], 2).tolist()) if corners else doubled
            operands["sizes"] = np.array(sizes)
            rule = "align_corners" if corners else "pytorch_half_pixel"
            attrs: dict[str, Attr] = {"axes": (2, 3), "coordinates": rule, "mode": mode}
            exact = functional.interpolate(wide, sizes, mode=name, align_corners=corners)
            got = compute("resize", operands, spec("resize").complete_attrs(attrs))
            assert_close(got, exact.numpy(), 1e-11)
        operands["sizes"] = np.array(doubled)
        thin: dict[str, Attr] = {"axes": (2, 3), "mode": mode, "antialias": True}
        if mode == "cubic":
            thin["cubic_a"] = -0.5
        thin["exclude_outside"] = True
        exact = functional.interpolate(wide, doubled, mode=name, antialias=True)
        got = compute("resize", operands, spec("resize").complete_attrs(thin))
        assert_close(got, exact.numpy(), 1e-11, mode)
    near: dict[str, Attr] = {"axes": (2, 3), "rounding": "floor"}
    for rule, name in (("asymmetric", "nearest"), ("tf_half_pixel_for_nn", "nearest-exact")):
        got = compute(
            "resize_nearest",
            operands,
            spec("resize_nearest").complete_attrs(near | {"coordinates": rule}),
        )
        assert np.array_equal(got, functional.interpolate(wide, doubled, mode=name).numpy()), name


def test_sizes_follow_from_scales_by_name() -> None:
    graph = Graph("sizes")
    n = dims.symbol("n")
    x = graph.add("input", types=[TensorType((1, n, n, n), F32)]).result
    attrs: dict[str, Attr] = {"scales": (1.0, 2.0, 0.75, 0.3)}
    shape = graph.add("resize_nearest", {"x": x}, attrs).result.type.shape
    assert [str(d) for d in shape] == ["1", "n*2", "(n*3)//4", "None"]


@pytest.mark.parametrize(
    ("attrs", "why"),
    [
        ({}, "scales or sizes, one of the two"),
        ({"scales": (2.0,)}, "are no 2 positive numbers"),
        ({"scales": (2.0, -1.0)}, "are no 2 positive numbers"),
        ({"scales": (2.0, 2.0), "coordinates": "tf_crop_and_resize"}, "needs a roi"),
        ({"scales": (2.0, 2.0), "roi": (0.0, 1.0)}, "roi has 2 numbers, it takes 4"),
    ],
)
def test_what_does_not_fit_is_told(attrs: dict[str, Attr], why: str) -> None:
    x = np.ones((2, 2), np.float32)
    with pytest.raises(OpError, match=why):
        compute("resize", {"x": x}, spec("resize").complete_attrs(attrs))
    graph = Graph("misfits")
    value = graph.add("input", types=[TensorType((2, 2), F32)]).result
    with pytest.raises(TypeRuleError, match=why):
        graph.add("resize", {"x": value}, attrs)


def test_sizes_of_other_axes_are_counted_not_listed() -> None:
    x, sizes = np.ones((2, 2), np.float32), np.ones(1000, np.int64)
    with pytest.raises(OpError, match=r"^resize: 1000 sizes for 2 axes$"):
        compute("resize", {"x": x, "sizes": sizes}, spec("resize").complete_attrs({}))


def test_lanes_of_channels_need_channels_last() -> None:
    """Torch's kernel on channels last, asked for an image that has none."""
    quantized = uniform(dtype("u8"), np.float32(0.5), 3)
    graph = Graph("one", profile="torch-2.13.fbgemm")
    x = graph.add("input", types=[TensorType((2, 6, 8), quantized)], name="x").result
    sizes = graph.constant(StoredArray.of(np.array([12, 16], np.int64), "sizes"))
    attrs: dict[str, Attr] = {"axes": (1, 2), "mode": "linear", "coordinates": "half_pixel"}
    made = TensorType((2, 12, 16), quantized)
    y = graph.add("resize", {"x": x, "sizes": sizes}, attrs, types=[made], name="y").result
    graph.add("output", {"y": y})
    with pytest.raises(
        OpError, match=r"^y: resize: method bilinear with lanes is that of channels"
    ):
        run(graph, {"x": np.zeros((2, 6, 8), np.uint8)})

"""Where Resize takes its elements from: every rule of places, at fractional scales and odd sizes,
against onnxruntime, torch and, of integers, torch's quantized kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper
from torch.nn import functional

from qir.ir.attrs import Attr
from qir.ir.ops import spec
from qir.ir.ops.resize import COORDINATES, ROUNDINGS
from qir.reference.resize import STEPPED
from qir.reference.table import compute
from tests.reference.oracles import assert_close

Array = NDArray[np.generic]
Reals = NDArray[np.float32]
F = np.float32
SHRINKING = (0.13, 0.25, 0.3, 1 / 3, 0.4, 0.6, 2 / 3, 0.7, 0.9)
SCALES = (*SHRINKING, 1.0, 1.1, 1.2, 4 / 3, 1.5, 1.6, 5 / 3, 2.0, 2.2, 2.5, 3.0, 3.3, 7.0)
SIZES = (1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 14, 17, 20, 25, 33)
CROP = "tf_crop_and_resize"
ROI = (0.1, 0.93)


class Resizer:
    """One Resize along one axis of two, of scales or sizes that it is given."""

    def __init__(self, by: str, attrs: Mapping[str, Any], opset: int = 19) -> None:
        crop = attrs.get("coordinate_transformation_mode") == CROP
        roi = "r" if crop or opset == 11 else ""
        names = ["x", "s"] if opset < 11 else ["x", roi, *(["s"] if by == "s" else ["", "z"])]
        node = helper.make_node("Resize", names, ["y"], **attrs)
        kinds: dict[str, tuple[int, list[str | int]]] = {
            "x": (1, ["a", "b"]),
            "s": (1, [2]),
            "z": (7, [2]),
            "r": (1, [4]),
        }
        inputs = [helper.make_tensor_value_info(n, *kinds[n]) for n in names if n]
        graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name="y")])
        of = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=of, ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        self.by, self.roi = by, roi

    def __call__(self, x: Reals, by: Array) -> Array:
        feeds = {"x": x, self.by: by}
        if self.roi:
            feeds["r"] = np.array((0, ROI[0], 1, ROI[1]), F)
        made: Array = self.session.run(None, feeds)[0]
        return made


def drawn(by: str) -> Iterator[tuple[Reals, Array]]:
    """Images of many lengths with what they are resized by."""
    for size in SIZES:
        x = np.arange(3 * size, dtype=F).reshape(3, size)
        if by == "s":
            for number, scale in enumerate(SCALES):
                if F(size) * F(scale) >= 1:
                    yield x, np.array(((1.4, 1.0, 2.0)[number % 3], scale), F)
        else:
            for made in range(1 + size % 3, 60, 3):
                yield x, np.array((1 + made % 5, made), np.int64)


def uncropped(coordinates: str, x: Array, y: Array) -> bool:
    """Whether onnxruntime may leave an axis whose size stays as it is, where the standard crops."""
    return coordinates == CROP and any(a == b for a, b in zip(x.shape, y.shape, strict=True))


def ours(op: str, x: Array, by: Array, attrs: dict[str, Attr]) -> Array:
    operands = {"x": x}
    if by.dtype == F:
        attrs = {**attrs, "scales": tuple(float(v) for v in by)}
    else:
        operands["sizes"] = by
    return compute(op, operands, spec(op).complete_attrs(attrs))


@pytest.mark.parametrize("by", ["s", "z"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_the_nearest_elements_are_onnxruntimes(coordinates: str, rounding: str, by: str) -> None:
    mark = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    theirs = Resizer(by, {"mode": "nearest", **mark})
    attrs: dict[str, Attr] = {"coordinates": coordinates, "rounding": rounding}
    if coordinates == CROP:
        attrs["roi"] = (0.0, ROI[0], 1.0, ROI[1])
    for x, scale in drawn(by):
        got, wanted = ours("resize_nearest", x, scale, attrs), theirs(x, scale)
        if uncropped(coordinates, x, got):
            continue
        assert np.array_equal(got, wanted), f"{list(x.shape)} by {scale}: {got}, not {wanted}"


@pytest.mark.parametrize("by", ["s", "z"])
@pytest.mark.parametrize("coordinates", [c for c in COORDINATES if c != "tf_half_pixel_for_nn"])
@pytest.mark.parametrize("how", ["linear", "cubic", "outside", "thin lines", "thin splines"])
def test_interpolation_is_as_near_as_float32_is(how: str, coordinates: str, by: str) -> None:
    mode = "linear" if "line" in how and how != "thin splines" else "cubic"
    attrs: dict[str, Attr] = {"coordinates": coordinates, "mode": mode}
    attrs |= {"antialias": True} if "thin" in how else {}
    attrs |= {"exclude_outside": True} if how == "outside" else {}
    marks: dict[str, str | int] = {n: 1 for n in ("antialias", "exclude_outside") if n in attrs}
    theirs = Resizer(by, {"mode": mode, "coordinate_transformation_mode": coordinates, **marks})
    if coordinates == CROP:
        attrs["roi"] = (0.0, ROI[0], 1.0, ROI[1])
    for x, scale in drawn(by):
        got, wanted = ours("resize", x, scale, attrs), theirs(x, scale)
        if uncropped(coordinates, x, got):
            continue
        reach = F(np.ptp(x) + 1)
        note = f"{how} {coordinates} {list(x.shape)} by {scale}"
        assert_close(np.divide(got, reach), np.divide(wanted, reach), 4e-6, note)


@pytest.mark.parametrize("opset", [10, 11, 13, 18, 19])
def test_each_set_takes_the_nearest_as_onnxruntime_does(opset: int) -> None:
    mark = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    theirs = Resizer("s", {"mode": "nearest", **(mark if opset > 10 else {})}, opset)
    attrs: dict[str, Attr] = {"coordinates": "asymmetric", "rounding": "floor"}
    for x, scale in drawn("s"):
        if opset > 10 or scale.min() >= 1:
            got, wanted = ours("resize_nearest", x, scale, attrs), theirs(x, scale)
            assert np.array_equal(got, wanted), f"{list(x.shape)} by {scale}"


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_proportions_make_onnxruntimes_sizes_and_places(policy: str) -> None:
    theirs = Resizer("z", {"mode": "nearest", "keep_aspect_ratio_policy": policy})
    attrs: dict[str, Attr] = {"policy": policy}
    for x, sizes in drawn("z"):
        got, wanted = ours("resize_nearest", x, sizes, attrs), theirs(x, sizes)
        assert np.array_equal(got, wanted), f"{list(x.shape)} to {sizes}"


STEPS: dict[str, dict[str, Attr]] = {
    "nearest": {"coordinates": "asymmetric", "rounding": "floor"},
    "nearest-exact": {"coordinates": "half_pixel", "rounding": "round_prefer_ceil"},
}


@pytest.mark.parametrize("mode", list(STEPS))
def test_the_nearest_codes_lie_where_torch_takes_them(mode: str) -> None:
    """Torch multiplies by one over the scale, and by old size over new: other places than those of
    a quotient."""
    apart = 0
    for size in range(1, 60, 2):
        data = torch.arange(2 * size, dtype=torch.uint8).reshape(1, 1, 2, size)
        quantized = torch._make_per_tensor_quantized_tensor(data, 0.1, 3)
        x = data.numpy()
        for scale in SCALES:
            if int(size * scale) != int(F(size) * F(scale)) or int(size * scale) < 1:
                continue
            factors: tuple[float, ...] = (2.0, scale)
            made = functional.interpolate(
                quantized, scale_factor=factors, mode=mode, recompute_scale_factor=False
            )
            wanted = made.int_repr().numpy()
            attrs: dict[str, Attr] = {**STEPS[mode], "scales": (1.0, 1.0, *factors)}
            assert np.array_equal(stepped(x, attrs), wanted), f"{size} by {scale}"
            plain = compute(
                "resize_nearest", {"x": x}, spec("resize_nearest").complete_attrs(attrs)
            )
            apart += not np.array_equal(plain, wanted)
        for to in (*range(1 + size % 5, 100, 5), 82):
            wanted = functional.interpolate(quantized, (3, to), mode=mode).int_repr().numpy()
            given = {"x": x, "sizes": np.array([1, 1, 3, to])}
            got = STEPPED(**given, **spec("resize_nearest").complete_attrs(STEPS[mode]))
            assert np.array_equal(got, wanted), f"{size} to {to}"
    assert apart > 0


def stepped(x: Array, attrs: dict[str, Attr]) -> Array:
    return STEPPED(x, **spec("resize_nearest").complete_attrs(attrs))

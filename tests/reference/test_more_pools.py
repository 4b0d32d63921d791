"""Pools over whole images and by norms, against torch in float64 and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.reference.table import compute
from tests.reference.oracles import assert_near, assert_rounded_once, onnxruntime_runs
from tests.reference.rules import assert_rule_agrees


def test_the_greatest_of_an_image_is_onnxruntimes() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    (got,) = assert_rule_agrees("global_max_pool", {"x": x})
    assert np.array_equal(got, onnxruntime_runs("GlobalMaxPool", [x]))
    last = x.transpose(0, 2, 3, 1)
    (got,) = assert_rule_agrees("global_max_pool", {"x": last}, {"layout": "NHWC"})
    assert np.array_equal(got, last.max((1, 2), keepdims=True))


@pytest.mark.parametrize("seed", range(12))
def test_norms_of_windows_round_the_float64_value_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 3, 6, 7)).astype(np.float32)
    kernel = tuple(int(v) for v in rng.integers(1, 4, 2))
    stride = tuple(int(v) for v in rng.integers(1, 4, 2))
    pad = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
    p = int(rng.integers(1, 4))
    attrs: dict[str, Attr] = {"kernel": kernel, "stride": stride, "pad": pad, "p": p}
    (got,) = assert_rule_agrees("lp_pool2d", {"x": x}, attrs, note=f"seed {seed}")
    wide = torch.from_numpy(np.abs(x.astype(np.float64)) ** p)
    ground = torch.nn.functional.pad(wide, (pad[1], pad[3], pad[0], pad[2]))
    windows = ground.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])
    exact = (windows.sum((-1, -2)) ** (1 / p)).numpy()
    assert_rounded_once(got, exact, exact, f"seed {seed}")
    marks: dict[str, tuple[int, ...]] = {"kernel_shape": kernel, "strides": stride, "pads": pad}
    theirs = onnxruntime_runs("LpPool", [x], p=p, **marks)
    assert_near(got, theirs, exact + 1e-3, 40, f"seed {seed}")


def test_norms_of_windows_say_what_does_not_fit() -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    with pytest.raises(OpError, match="p is 0"):
        compute("lp_pool2d", {"x": x}, {"kernel": (1, 1), "p": 0})
    with pytest.raises(OpError, match="x has 2 axes"):
        compute("global_max_pool", {"x": x[0, 0]}, {})

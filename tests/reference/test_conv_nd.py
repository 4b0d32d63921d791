"""Convolutions along one and three axes and transposed ones, against torch in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from qir.errors import OpError, TypeRuleError
from qir.ir.attrs import Attr
from qir.reference.table import compute
from tests.reference.oracles import assert_near, assert_rounded_once, onnxruntime_runs
from tests.reference.rules import assert_rule_agrees

Torch = Callable[..., torch.Tensor]
CONV: dict[int, Torch] = {1: functional.conv1d, 3: functional.conv3d}
TRANSPOSED: dict[int, Torch] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def _ints(rng: np.random.Generator, count: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(int(v) for v in rng.integers(low, high, count))


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("seed", range(15))
def test_convolutions_round_the_float64_sum_once(axes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, stride, dilation = int(rng.integers(1, 4)), *(_ints(rng, axes, 1, 3) for _ in range(2))
    kernel, pad, sizes = _ints(rng, axes, 1, 4), _ints(rng, axes, 0, 3), _ints(rng, axes, 5, 8)
    ins, outs = int(rng.integers(1, 3)), int(rng.integers(1, 3)) * groups
    x = rng.standard_normal((2, ins * groups, *sizes)).astype(np.float32)
    w = rng.standard_normal((outs, ins, *kernel)).astype(np.float32)
    bias = rng.standard_normal(outs).astype(np.float32)
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": pad + pad,
        "dilation": dilation,
        "groups": groups,
    }
    operands = {"x": x, "w": w, "bias": bias}
    (got,) = assert_rule_agrees(f"conv{axes}d", operands, attrs, constant=("w",), note=f"{seed}")
    wide = [torch.from_numpy(v.astype(np.float64)) for v in (x, w, bias)]
    exact, size = (
        CONV[axes](*some, stride, pad, dilation, groups).numpy()
        for some in (wide, [v.abs() for v in wide])
    )
    assert_rounded_once(got, exact, size, f"seed {seed}")
    marks = {"strides": stride, "pads": pad + pad, "dilations": dilation, "group": groups}
    assert_near(got, onnxruntime_runs("Conv", [x, w, bias], **marks), size, w[0].size, f"{seed}")


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("seed", range(15))
def test_transposed_convolutions_round_the_float64_sum_once(axes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, stride, dilation = int(rng.integers(1, 4)), *(_ints(rng, axes, 1, 4) for _ in range(2))
    kernel, sizes = _ints(rng, axes, 2, 4), _ints(rng, axes, 2, 5)
    pad = _ints(rng, axes, 0, 2)
    more = tuple(int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True))
    ins, outs = int(rng.integers(1, 3)) * groups, int(rng.integers(1, 3))
    x = rng.standard_normal((2, ins, *sizes)).astype(np.float32)
    w = rng.standard_normal((ins, outs, *kernel)).astype(np.float32)
    bias = rng.standard_normal(outs * groups).astype(np.float32)
    attrs: dict[str, Attr] = {
        "stride": stride,
        "pad": pad + pad,
        "dilation": dilation,
        "groups": groups,
        "output_pad": more,
    }
    operands, name = {"x": x, "w": w, "bias": bias}, f"conv_transpose{axes}d"
    (got,) = assert_rule_agrees(name, operands, attrs, constant=("w",), note=f"seed {seed}")
    wide = [torch.from_numpy(v.astype(np.float64)) for v in (x, w, bias)]
    exact, size = (
        TRANSPOSED[axes](*some, stride, pad, more, groups, dilation).numpy()
        for some in (wide, [v.abs() for v in wide])
    )
    assert_rounded_once(got, exact, size, f"seed {seed}")


def test_convolutions_say_what_does_not_fit() -> None:
    x, w = np.ones((1, 4, 5), np.float32), np.ones((6, 3, 2), np.float32)
    with pytest.raises(OpError, match=r"conv1d: x \[1, 4, 5\] and w \[6, 3, 2\] do not fit"):
        compute("conv1d", {"x": x, "w": w}, {})
    with pytest.raises(TypeRuleError, match="x has 4 channels, w wants 3 x 1 groups"):
        assert_rule_agrees("conv1d", {"x": x, "w": w})
    with pytest.raises(TypeRuleError, match=r"output_pad \(1,\) is not smaller"):
        assert_rule_agrees("conv_transpose1d", {"x": x, "w": w[:4]}, {"output_pad": (1,)})

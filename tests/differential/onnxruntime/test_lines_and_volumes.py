"""Convolutions and means along one and three axes, all of onnxruntime's optimizations on."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.differential.fusion import Report, examine
from tests.differential.models import Maker, Model, Style, Taste
from tests.differential.population import Population, census
from tests.differential.runtime import run
from tests.differential.spelling import Codes, Kind, Qdq, QOperator, Spelling
from tests.differential.windows import window

CHUNK = 12
SIDES = {1: (9, 60), 3: (4, 9)}
"""The least and greatest size of an axis, by how many there are."""


def sides(maker: Maker, n: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(maker.pick(low, high) for _ in range(n))


def slide(
    maker: Maker, x: Codes, n: int, *, ceil: bool = False, dilated: bool = False
) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    """Attributes of a window that fits, and how often it does along each axis."""
    while True:
        kernel = sides(maker, n, 1, 3)
        stride = sides(maker, n, 1, 3) if maker.chance(0.2) else (1,) * n
        dilation = sides(maker, n, 1, 2) if dilated else (1,) * n
        pads = tuple(maker.pick(0, kernel[i % n] - 1) for i in range(2 * n))
        size = window(x.shape[2:], kernel, stride, pads, dilation, ceil)
        if size is not None:
            attrs = {"kernel_shape": kernel, "strides": stride, "pads": pads}
            return attrs | ({"dilations": dilation} if dilated else {}), size


def convolve(maker: Maker, x: Codes, n: int) -> None:
    channels = x.shape[1]
    groups = channels if maker.chance(0.2) else 1
    many = groups * maker.pick(1, 2) if groups > 1 else maker.pick(1, 18)
    attrs, size = slide(maker, x, n, dilated=True)
    shape = (many, channels // groups, *attrs["kernel_shape"])
    scale = maker.free_scale()
    weight, j, s = maker.weight(shape, 0, int(np.prod(shape[1:])), x, scale)
    out, tail = maker.tail(maker.result((x.shape[0], many, *size), scale))
    bias = maker.bias(many, j, s)
    maker.net.op("Conv", [x, weight], out, {**attrs, "group": groups}, bias=bias, tail=tail)


def average(maker: Maker, x: Codes, n: int) -> None:
    ceil, counted = maker.chance(0.5), maker.chance(0.5)
    attrs, size = slide(maker, x, n, ceil=ceil)
    scale = maker.mean(x, int(np.prod(attrs["kernel_shape"])))
    out, tail = maker.tail(maker.result((*x.shape[:2], *size), scale))
    flags = {"ceil_mode": int(ceil), "count_include_pad": int(counted)}
    maker.net.op("AveragePool", [x], out, {**attrs, **flags}, tail=tail)


def network(seed: int, kind: Kind, spelling: Spelling, ops: str = "cacaca") -> Model:
    """Convolutions and means, along one axis where the seed is even, along three where not."""
    n, styles = (3 if seed % 2 else 1), ("dyadic", "order", "free", "dyadic")
    style: Style = styles[seed // 2 % 4]  # type: ignore[assignment]
    maker = Maker(seed, Taste(kind, style, loose=0.1, specials=0.05), spelling)
    maker.real_input((maker.pick(1, 2), maker.pick(1, 6), *sides(maker, n, *SIDES[n])))
    for op in ops:
        (convolve if op == "c" else average)(maker, maker.made[-1], n)
    return maker.model(exposed=isinstance(spelling, QOperator))


@cache
def report(chunk: int, kind: Kind) -> Report:
    found = Report()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        found.merge(examine(network(seed, kind, Qdq(bool(seed % 3)))))
    return found


def agrees(chunk: int, kind: Kind) -> None:
    found = report(chunk, kind)
    assert not found.differences, "\n".join(map(str, found.differences))
    assert not found.regrouped, "\n".join(found.regrouped)
    # Convolutions whose signed data others read too, here the model's outputs, stay real.
    heads = ("Conv", "AveragePool") if kind == "u8" else ("AveragePool",)
    wanted = [head + tail for head in heads for tail in ("", " Relu", " Clip")]
    rare = {op: found.fused[op] for op in wanted if found.fused[op] < 2}
    assert not rare, (rare, found.fused)


@pytest.mark.parametrize("chunk", range(2))
def test_lines_and_volumes_give_the_bytes_that_qir_foresees(chunk: int) -> None:
    agrees(chunk, "u8")


def test_signed_lines_and_volumes_are_predicted_too() -> None:
    agrees(0, "i8")


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(2, 14))
def test_more_lines_and_volumes_are_predicted(chunk: int) -> None:
    agrees(chunk, "u8")


def test_their_sums_tie_and_saturate_often() -> None:
    """Convolutions alone, spelled as QOperator models, have their accumulators at hand."""
    found = Population()
    for seed in range(4 * CHUNK):
        model = network(seed, "u8", QOperator(), "ccc")
        judge = run(model.proto, model.feeds, optimize=False)
        found.merge(census(model.proto, {**model.feeds, **judge}))
    found.check()

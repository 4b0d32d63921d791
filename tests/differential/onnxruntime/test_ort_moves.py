"""Ops that move or choose integers, all of onnxruntime's optimizations on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qir.ir.ops.resize import ROUNDINGS
from tests.differential.fusion import Report, examine
from tests.differential.models import Maker, Model, Style, Taste
from tests.differential.spelling import Attrs, Codes, Kind, Qdq, Weight
from tests.differential.windows import window

Extra = NDArray[np.generic]
Layer = Callable[[Maker, Codes], None]
PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn")


def pooled(maker: Maker, x: Codes) -> None:
    n = len(x.shape) - 2
    while True:
        kernel, stride = (tuple(maker.pick(1, 3) for _ in range(n)) for _ in range(2))
        pads = tuple(maker.pick(0, kernel[i % n] - 1) for i in range(2 * n))
        size = window(x.shape[2:], kernel, stride, pads, (1,) * n, maker.chance(0.3))
        if size is not None:
            break
    plain = window(x.shape[2:], kernel, stride, pads, (1,) * n) == size
    attrs: Attrs = {
        "kernel_shape": kernel,
        "strides": stride,
        "pads": pads,
        "ceil_mode": int(not plain),
    }
    moved(maker, x, "MaxPool", (*x.shape[:2], *size), attrs)


def moved(
    maker: Maker, x: Codes, op: str, shape: tuple[int, ...], attrs: Attrs, *extra: Extra
) -> None:
    name = f"{op}{len(maker.net.nodes)}_"
    extras = [maker.net.constant(f"{name}{i}", e) for i, e in enumerate(extra)]
    if op == "Resize":
        extras.insert(0, "")
    maker.net.op(op, [x], maker.like(x, shape), attrs, extra=extras)


def taken(maker: Maker, x: Codes) -> None:
    at = maker.rng.integers(0, x.shape[1], maker.pick(1, 5))
    moved(maker, x, "Gather", (x.shape[0], len(at), *x.shape[2:]), {"axis": 1}, at)


def taken_apart(maker: Maker, x: Codes) -> None:
    at = maker.rng.integers(0, x.shape[1], (x.shape[0], maker.pick(1, 5), *x.shape[2:]))
    moved(maker, x, "GatherElements", at.shape, {"axis": 1}, at)


def spread(maker: Maker, x: Codes) -> None:
    shape = (maker.pick(2, 3), *x.shape)
    moved(maker, x, "Expand", shape, {}, np.array(shape))


def repeated(maker: Maker, x: Codes) -> None:
    moved(
        maker,
        x,
        "Tile",
        (x.shape[0] * 2, *x.shape[1:]),
        {},
        np.array([2, *[1] * (len(x.shape) - 1)]),
    )


def enlarged(maker: Maker, x: Codes) -> None:
    """Larger or smaller, by whole scales and others, at places of every kind; sizes of which
    onnxruntime foresees others than it makes are left out."""
    drawn = [1, 2, 3, 0.4, 1 / 3, 0.6, 0.7, 1.1, 1.2, 4 / 3, 1.6, 2.2]
    while True:
        scales = np.array([1, 1, *maker.rng.choice(drawn, len(x.shape) - 2)], np.float32)
        shape = tuple(int(np.float32(a) * b) for a, b in zip(x.shape, scales, strict=True))
        if shape == tuple(int(a * float(b)) for a, b in zip(x.shape, scales, strict=True)):
            break
    attrs: Attrs = {
        "mode": "nearest",
        "coordinate_transformation_mode": maker.rng.choice(PLACES),
        "nearest_mode": maker.rng.choice(ROUNDINGS),
    }
    moved(maker, x, "Resize", shape, attrs, scales)


def deep(maker: Maker, x: Codes) -> None:
    n, c, h, w = x.shape
    moved(maker, x, "DepthToSpace", (n, c // 4, h * 2, w * 2), {"blocksize": 2})


def chosen(maker: Maker, x: Codes) -> None:
    """One of two tensors of other maps; the second is now and then a constant."""
    net, scale = maker.net, maker.near(float(x.scale) * 2.0 ** maker.pick(-2, 2))
    assert isinstance(net, Qdq)
    data = maker.data(x.shape[-1:] if maker.chance(0.5) else x.shape, x.kind)
    given = Weight(f"given{len(net.nodes)}", data, np.asarray(scale), maker.zero())
    where = net.constant(f"where{len(net.nodes)}", maker.rng.random(x.shape[-2:]) < 0.5)
    pair = [net.real(x), net.real(given)][:: 1 if maker.chance(0.5) else -1]
    out = maker.result(x.shape, maker.near(float(x.scale) * 2.0 ** maker.pick(-1, 2)))
    net.node("Where", [where, *pair], f"{out.name}_made")
    net.quantize(f"{out.name}_made", out)


OPS: dict[str, tuple[tuple[int, ...], tuple[Layer, ...]]] = {
    "line": ((2, 3, 11), (pooled, chosen)),
    "image": ((1, 8, 6, 7), (taken, taken_apart, enlarged, chosen, repeated, spread)),
    "depth": ((1, 8, 5, 6), (deep, enlarged, chosen)),
    "volume": ((1, 3, 6, 5, 7), (pooled, enlarged, taken, chosen)),
}


def network(seed: int, kind: Kind) -> Model:
    shape, ops = list(OPS.values())[seed % 4]
    style: Style = ("dyadic", "order", "free")[seed // 4 % 3]
    maker = Maker(seed, Taste(kind, style, specials=0.05), Qdq(bool(seed % 3)))
    maker.real_input(shape)
    for op in ops:
        op(maker, maker.made[-1])
    return maker.model(exposed=False)


def agrees(kind: Kind, count: int) -> Counter[str]:
    found = Report()
    for seed in range(count):
        found.merge(examine(network(seed, kind)))
    assert not found.differences, "\n".join(map(str, found.differences))
    assert not found.regrouped, "\n".join(found.regrouped)
    return found.fused


def test_what_moves_or_chooses_codes_does_so_as_onnxruntime() -> None:
    fused = agrees("u8", 64)
    wanted = "MaxPool Gather GatherElements Expand Tile Resize DepthToSpace Where".split()
    rare = {op: fused[op] for op in wanted if fused[op] < 6}
    assert not rare, (rare, fused)


def test_what_moves_or_chooses_signed_codes_does_so_as_onnxruntime() -> None:
    agrees("i8", 24)

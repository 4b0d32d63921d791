"""Torch's means and greatest integers along lines, images and volumes, on its two kinds of
kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import pytest
import torch

from qir.ir.attrs import Attr
from tests.differential.torch.kernels import (
    BOUNDS,
    Array,
    Asked,
    F,
    Held,
    Map,
    Tally,
    claim,
    computed,
    engine,
    of,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named

from .draws_of_torch import KINDS, image
from .test_torch_elements import back
from .test_torch_elements import pytestmark as pytestmark

nf = torch.nn.functional
Case = tuple[str, torch.Tensor, dict[str, Attr]]
Rng = np.random.Generator


def hold(tally: Tally, name: str, x: Held, case: Case, *, last: bool = False) -> str:
    """Compares one result; gives the claim that is made for it."""
    op, made, attrs = case
    wanted: Array = taken(made)
    if last:
        x, wanted, attrs = Held(back(x.data), x.map), back(wanted), {**attrs, "layout": "NHWC"}
    asked = Asked(op, {"x": x}, x.map, attrs)
    tally.add(computed(asked, name), wanted, f"{op} {x.data.shape} {attrs}")
    return claim(name, asked)


def along_lines(rng: np.random.Generator, x: Held, q: torch.Tensor) -> Iterator[Case]:
    kernel, stride = (int(v) for v in rng.integers(2, 5, 2))
    pad = int(rng.integers(0, kernel // 2 + 1))
    slide: dict[str, Attr] = {"kernel": (kernel,), "stride": (stride,), "pad": (pad, pad)}
    for ceil in (False, True):
        for counted in (False, True):
            made = nf.avg_pool1d(q, kernel, stride, pad, ceil, counted)
            yield "avg_pool1d", made, slide | {"ceil": ceil, "count_pad": counted}
        made = nf.max_pool1d(q, kernel, stride, pad, 1, ceil)
        yield "max_pool1d", made, slide | {"ceil": ceil}
    size = int(rng.integers(1, 5))
    yield "adaptive_avg_pool", nf.adaptive_avg_pool1d(q, size), {"size": (size,)}
    yield "global_avg_pool", nf.adaptive_avg_pool1d(q, 1), {}
    yield "reduce_mean", q.mean([-1]), {"axes": (-1,), "keep": False}


def over_images(
    rng: np.random.Generator, x: Held, q: torch.Tensor, *, last: bool
) -> Iterator[Case]:
    kernel, stride = (tuple(int(v) for v in rng.integers(1, n, 2)) for n in (5, 4))
    kernel = (2, 3) if kernel == (1, 1) else kernel
    pad = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
    slide: dict[str, Attr] = {"kernel": kernel, "stride": stride, "pad": pad * 2}
    for ceil in (False, True):
        for counted in (False, True):
            made = nf.avg_pool2d(q, kernel, stride, pad, ceil, counted)
            yield "avg_pool2d", made, slide | {"ceil": ceil, "count_pad": counted}
    yield "global_avg_pool", nf.adaptive_avg_pool2d(q, 1), {}
    if last:
        return
    size = tuple(int(rng.integers(1, n + 1)) for n in x.data.shape[2:])
    yield "adaptive_avg_pool", nf.adaptive_avg_pool2d(q, (size[0], size[1])), {"size": size}
    half = tuple(n // 2 for n in x.data.shape[2:])
    yield "adaptive_avg_pool", nf.adaptive_avg_pool2d(q, (half[0], half[1])), {"size": half}
    yield "reduce_mean", q.mean([2, 3]), {"axes": (2, 3), "keep": False}
    yield "reduce_mean", q.mean([-2, -1]), {"axes": (-2, -1), "keep": False}


def over_volumes(rng: np.random.Generator, q: torch.Tensor, name: str) -> Iterator[Case]:
    kernel, stride = (tuple(int(v) for v in rng.integers(1, 4, 3)) for _ in range(2))
    pad = tuple(k // 2 for k in kernel)
    if name == "fbgemm":  # QNNPACK has none, and torch does not go on to the other kernel
        slide: dict[str, Attr] = {"kernel": kernel, "stride": stride, "pad": pad * 2}
        yield "max_pool3d", nf.max_pool3d(q, kernel, stride, pad), slide
    size = tuple(int(v) for v in rng.integers(1, 4, 3))
    yield (
        "adaptive_avg_pool",
        nf.adaptive_avg_pool3d(q, (size[0], size[1], size[2])),
        {"size": size},
    )
    yield "global_avg_pool", nf.adaptive_avg_pool3d(q, 1), {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_means_along_lines_and_over_volumes_are_torchs(name: str, kind: str) -> None:
    tally, where, claims = Tally(), named(name), set()
    for number in range(40):
        rng = np.random.default_rng(number)
        x = image(rng, kind, 2, int(rng.integers(2, 70)), int(rng.integers(5, 40)))
        sizes = (int(v) for v in rng.integers(3, 7, 3))
        cube = image(rng, kind, 2, int(rng.integers(2, 20)), *sizes)
        with engine(name):
            claims |= {hold(tally, where, x, c) for c in along_lines(rng, x, tensor(x))}
            one = Held(x.data[:, :1], x.map)  # one channel lies as if channels were last
            claims |= {hold(tally, where, one, c) for c in along_lines(rng, one, tensor(one))}
            claims |= {hold(tally, where, cube, c) for c in over_volumes(rng, tensor(cube), name)}
    assert claims == {"exact"}
    tally.exact()


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
def test_means_over_images_are_those_of_qnnpack(last: bool) -> None:
    tally, claims = Tally(), set()
    for number in range(60):
        rng = np.random.default_rng(number)
        x = image(rng, "u8", 2, int(rng.integers(2, 70)), *(int(v) for v in rng.integers(5, 12, 2)))
        with engine("qnnpack"):
            cases = over_images(rng, x, tensor(x, channels_last=last), last=last)
            claims |= {hold(tally, named("qnnpack"), x, c, last=last) for c in cases}
    assert claims == {"exact", "within:1:0.02"} - ({"within:1:0.02"} if last else set())
    tally.exact()


@pytest.mark.parametrize("kind", KINDS)
def test_means_over_other_axes_are_as_near_as_is_claimed(kind: str) -> None:
    tally, claims = Tally(), set()
    for number in range(15):
        rng = np.random.default_rng(number)
        x = image(rng, kind, *(int(v) for v in rng.integers(2, 30, 3)))
        for axes in ((0,), (1,), (0, 1), (0, 2)):
            made = tensor(x).mean(list(axes))
            case: Case = ("reduce_mean", made, {"axes": axes, "keep": False})
            claims.add(hold(tally, named("fbgemm"), x, case))
    (said,) = claims
    assert tally.wrong, "what is claimed to be near is exact"
    tally.within(said)


# -- ties -----------------------------------------------------------------------------------------

TELLING = (14, 26, 30, 126)
"""Counts of elements of which 1 / n in float32 puts some ties on another side than division."""


def tied(rng: Rng, kind: str, zero: int, *shape: int) -> Array:
    """Integers of which each row of the last axis has a mean that lies between two integers."""
    low, high = BOUNDS[kind]
    base = rng.integers(max(low - zero, -100), min(high - zero - 1, 100) + 1, shape[:-1])
    raised = np.argsort(rng.random(shape), -1) < shape[-1] // 2
    return np.asarray(zero + base[..., None] + raised, np.uint8 if kind == "u8" else np.int8)


def means_of_ties(rng: Rng, kind: str, n: int) -> Iterator[tuple[Held, Case, bool]]:
    """Windows beside each other, each of them on a tie: along lines, over images and volumes."""
    low, _ = BOUNDS[kind]
    of_map = of(kind, rng.uniform(0.01, 0.1), int(rng.choice([0, low, low + 121, low + 200])))
    zero, half = int(of_map.zero), n // 2

    def asked(data: Array, *, last: bool = False) -> tuple[Held, torch.Tensor]:
        x = Held(np.ascontiguousarray(data), of_map)
        return x, tensor(x, channels_last=last)

    x, q = asked(tied(rng, kind, zero, 2, 17, 5, n).reshape(2, 17, 5 * n))
    slide: dict[str, Attr] = {"kernel": (n,), "stride": (n,)}
    yield x, ("avg_pool1d", nf.avg_pool1d(q, n, n), slide), False
    lines = tied(rng, kind, zero, 2, 17, 5, n)
    x, q = asked(lines)
    yield x, ("reduce_mean", q.mean([-1]), {"axes": (-1,), "keep": False}), False
    x, q = asked(lines.reshape(2, 17, 5, 2, half)[:, :, 0])
    yield x, ("reduce_mean", q.mean([-2, -1]), {"axes": (-2, -1), "keep": False}), False
    yield x, ("global_avg_pool", nf.adaptive_avg_pool2d(q, 1), {}), False
    many = tied(rng, kind, zero, 2, 37, 3, 4, n).reshape(2, 37, 3, 4, 2, half)
    many = many.transpose(0, 1, 2, 4, 3, 5).reshape(2, 37, 6, 4 * half)
    slide = {"kernel": (2, half), "stride": (2, half)}
    for last in (False, True):
        x, q = asked(many, last=last)
        yield x, ("avg_pool2d", nf.avg_pool2d(q, (2, half), (2, half)), slide), last
        x, q = asked(many[:, :, :2, :half], last=last)
        yield x, ("global_avg_pool", nf.adaptive_avg_pool2d(q, 1), {}), last
    cube = many.reshape(2, 37, 3, 2, 4 * half).transpose(0, 1, 3, 2, 4)  # depth 2, three rows
    x, q = asked(cube)
    kernel = (2, 1, half)
    made = nf.avg_pool3d(q, kernel, kernel)
    yield x, ("avg_pool3d", made, {"kernel": kernel, "stride": kernel}), False


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("engine_name", ["fbgemm", "qnnpack"])
def test_ties_of_means_are_torchs(engine_name: str, kind: str) -> None:
    tally, name = Tally(), named(engine_name)
    for seed, n in enumerate(TELLING * 3):
        with engine(engine_name):
            for x, case, last in means_of_ties(np.random.default_rng(seed), kind, n):
                assert hold(tally, name, x, case, last=last) == "exact", case[0]
    tally.exact()


WINDOWS: tuple[tuple[int, ...], ...] = (
    *((14,), (30,), (42,), (126,), (7, 10), (14, 5), (14, 14), (28, 7), (13, 6), (5, 26)),
    *((28, 10), (3, 14), (7, 10, 2), (5, 7, 2), (3, 5, 6), (7, 6, 5)),
)
"""Windows, most of which 1 over one side after the other tells from 1 / n and from division."""


def parts(rng: Rng, kind: str, window: tuple[int, ...], *lead: int) -> Held:
    """Images whose parts, two or three along each axis, are windows with means on ties; zero points
    anywhere, at the ends too, and scales of any kind."""
    low, high = BOUNDS[kind]
    zero = int(rng.choice([low, high, (low + high) // 2, (low + high) // 2 + 1, low + 31]))
    scale = F(rng.choice([0.25, 0.1, 0.0371])) if rng.random() < 0.5 else F(rng.uniform(0.01, 2))
    rank, base = len(window), low + 100
    each = tuple(int(v) for v in rng.integers(2, 4, rank))
    data = tied(rng, kind, base, *lead, *each, int(np.prod(window)))
    turned = [axis for i in range(rank) for axis in (i, rank + i)]
    data = data.reshape(*lead, *each, *window)
    data = data.transpose(*range(len(lead)), *(len(lead) + axis for axis in turned))
    sides = [a * b for a, b in zip(each, window, strict=True)]
    return Held(np.ascontiguousarray(data.reshape(*lead, *sides)), of(kind, scale, zero))


Adaptive = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
ADAPTIVE = cast(
    "tuple[Adaptive, ...]",
    (nf.adaptive_avg_pool1d, nf.adaptive_avg_pool2d, nf.adaptive_avg_pool3d),
)


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_ties_of_parts_are_torchs(name: str, kind: str) -> None:
    """Images of one channel among them, which lie both ways in memory; no mean leaves the
    integers."""
    tally, where, zeros = Tally(), named(name), set()
    for seed, window in enumerate(WINDOWS * 2):
        rng, run = np.random.default_rng(seed), ADAPTIVE[len(window) - 1]
        for channels in (1, int(rng.integers(2, 40))):
            x = parts(rng, kind, window, 2, channels)
            assert x.map is not None
            zeros.add(int(x.map.zero))
            corner = (slice(None), slice(None), *map(slice, window))
            one = Held(x.data[corner].copy(), x.map)
            size = tuple(a // b for a, b in zip(x.data.shape[2:], window, strict=True))
            uneven = tuple(n + 1 for n in size)
            with engine(name):
                cases: list[tuple[Held, str, tuple[int, ...]]] = [
                    (x, "adaptive_avg_pool", size),
                    (x, "adaptive_avg_pool", uneven),
                    (one, "adaptive_avg_pool", (1,) * len(window)),
                    (one, "global_avg_pool", (1,) * len(window)),
                ]
                for held, op, to in cases:
                    attrs: dict[str, Attr] = {"size": to} if op == "adaptive_avg_pool" else {}
                    made = run(tensor(held), to)
                    assert hold(tally, where, held, (op, made, attrs)) == "exact", op
                    if to != uneven:
                        exact = run(torch.from_numpy(held.data.astype(float)), to)
                        tally.see(exact.numpy() - float(x.map.zero), x.map)
    assert tally.ties >= 0.05 * tally.total
    assert {zero % 2 for zero in zeros} == {0, 1}
    assert zeros.issuperset(BOUNDS[kind])
    tally.exact()


# -- results of another map -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack", "onednn", "x86"])
def test_a_mean_in_another_map_is_torchs_mean_requantized(name: str, kind: str) -> None:
    tally = Tally()
    for number in range(40):
        rng = np.random.default_rng(number)
        sizes = (int(v) for v in rng.integers(4, 10, 2))
        x = image(rng, kind, 2, int(rng.integers(2, 40)), *sizes)
        assert x.map is not None
        out = of(kind, x.map.scale * F(rng.choice([0.5, 0.37, 2])), int(x.map.zero) + 3)
        side: dict[str, Attr] = {"kernel": (2, 3), "stride": (1, 2)}
        doubled: dict[str, Attr] = {"axes": (2, 3), "scales": (2.0, 2.0), "mode": "linear"}
        with engine(name):
            q = tensor(x)
            cases: list[Case] = [
                ("global_avg_pool", nf.adaptive_avg_pool2d(q, 1), {}),
                ("avg_pool2d", nf.avg_pool2d(q, (2, 3), (1, 2)), side),
                ("resize", nf.interpolate(q, scale_factor=2, mode="bilinear"), doubled),
            ]
            for op, made, attrs in cases:
                asked = Asked(op, {"x": x}, out, attrs)
                wanted = tensor_of(made.dequantize(), out)
                tally.add(computed(asked, named(name)), wanted, f"{op} seed {number}")
    tally.exact()


def tensor_of(floats: torch.Tensor, m: Map) -> Array:
    kind = torch.quint8 if m.storage == "u8" else torch.qint8
    return taken(torch.quantize_per_tensor(floats, float(m.scale), int(m.zero), kind))

"""Torch's kernels that move, choose or compare integers against the rules of its profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from qir.ir.attrs import Attr
from tests.differential.torch.kernels import (
    Array,
    Asked,
    F,
    Held,
    Tally,
    claim,
    computed,
    of,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named

from .draws_of_torch import KINDS, image
from .test_torch_elements import bounds_of
from .test_torch_elements import pytestmark as pytestmark

NAME = named("fbgemm")
Rng = np.random.Generator
Move = tuple[str, torch.Tensor, Mapping[str, Attr], Mapping[str, Held]]
"""An op, what torch made, attributes, and operands beside the data."""
nf = torch.nn.functional


def whole(*numbers: int) -> Held:
    return Held(np.array(numbers, np.int64))


def rows(rng: Rng, q: torch.Tensor) -> Move:
    """index_select and index: rows by their numbers."""
    places = rng.integers(0, q.shape[1], 5)
    at = torch.from_numpy(places)
    made = torch.index_select(q, 1, at) if rng.random() < 0.5 else q[:, at]
    return "gather", made, {"axis": 1}, {"indices": Held(places)}


def flipped(rng: Rng, q: torch.Tensor) -> Move:
    axes = tuple(int(a) for a in rng.choice(4, 2, replace=False))
    return "flip", q.flip(axes), {"axes": axes}, {}


def repeated(rng: Rng, q: torch.Tensor) -> Move:
    by = tuple(int(n) for n in rng.integers(1, 3, 4))
    return "tile", q.repeat(*by), {"repeats": by}, {}


def shuffled(rng: Rng, q: torch.Tensor) -> Move:
    """pixel_shuffle of as many channels as four make."""
    many = torch.cat([q] * 4, 1)
    return (
        "depth_to_space",
        nf.pixel_shuffle(many, 2),
        {"block": 2, "mode": "CRD"},
        {"x": Held(many.int_repr().numpy())},
    )


def greatest(rng: Rng, q: torch.Tensor) -> Move:
    axis = int(rng.integers(0, 4))
    return "reduce_max", torch.max(q, axis)[0], {"axes": (axis,), "keep": False}, {}


def least(rng: Rng, q: torch.Tensor) -> Move:
    if rng.random() < 0.5:
        return "reduce_min", torch.min(q).reshape([1] * 4), {}, {}
    axis = int(rng.integers(0, 4))
    return "reduce_min", torch.min(q, axis)[0], {"axes": (axis,), "keep": False}, {}


def reflected(rng: Rng, q: torch.Tensor) -> Move:
    left, right, top, bottom = (int(n) for n in rng.integers(0, 3, 4))
    made = nf.pad(q, (left, right, top, bottom), mode="reflect")
    pads = (0, 0, top, left, 0, 0, bottom, right)
    return "pad", made, {"pads": pads, "mode": "reflect"}, {}


def surrounded(rng: Rng, q: torch.Tensor) -> Move:
    left, right, top, bottom = (int(n) for n in rng.integers(0, 3, 4))
    value = float(F(rng.normal()))
    made = nf.pad(q, (left, right, top, bottom), value=value)
    return "pad", made, {"pads": (0, 0, top, left, 0, 0, bottom, right), "value": value}, {}


def nearest(rng: Rng, q: torch.Tensor) -> Move:
    """nearest-exact, whose places are those of half pixels."""
    to = tuple(int(n) for n in rng.integers(1, 15, 2))
    made = nf.interpolate(q, to, mode="nearest-exact")
    attrs: dict[str, Attr] = {"axes": (2, 3), "coordinates": "half_pixel"}
    return "resize_nearest", made, attrs | {"rounding": "round_prefer_ceil"}, {"sizes": whole(*to)}


MOVES: tuple[Callable[[Rng, torch.Tensor], Move], ...] = (
    rows,
    flipped,
    repeated,
    shuffled,
    greatest,
    least,
    reflected,
    surrounded,
    nearest,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("move", MOVES)
def test_codes_are_moved_as_torch_moves_them(
    move: Callable[[Rng, torch.Tensor], Move], kind: str
) -> None:
    tally = Tally()
    for number in range(16):
        rng = np.random.default_rng(number)
        x = image(rng, kind, 2, int(rng.integers(1, 20)), *(int(n) for n in rng.integers(3, 9, 2)))
        op, made, attrs, beside = move(rng, tensor(x))
        other = beside.get("x")
        data = x if other is None else Held(other.data, x.map)
        asked = Asked(op, {**beside, "x": data}, x.map, attrs)
        tally.add(computed(asked, NAME), taken(made), f"{op} {attrs}")
    assert claim(NAME, asked) == "exact"
    tally.exact()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_volumes_are_resized_as_torch_does(mode: str, kind: str) -> None:
    tally = Tally()
    for number in range(20):
        rng = np.random.default_rng(number)
        x = image(rng, kind, 2, 3, *(int(n) for n in rng.integers(2, 6, 3)))
        to = tuple(int(n) for n in rng.integers(1, 9, 3))
        attrs: dict[str, Attr] = {"axes": (2, 3, 4), "coordinates": "asymmetric"}
        attrs |= {"rounding": "floor"}
        if mode == "nearest-exact":
            attrs |= {"coordinates": "half_pixel", "rounding": "round_prefer_ceil"}
        asked = Asked("resize_nearest", {"x": x, "sizes": whole(*to)}, x.map, attrs)
        tally.add(
            computed(asked, NAME), taken(nf.interpolate(tensor(x), to, mode=mode)), f"to {to}"
        )
    tally.within(claim(NAME, asked))


ORDERS = {
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "equal": torch.eq,
    "not_equal": torch.ne,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ORDERS)
def test_codes_are_compared_as_reals(op: str, kind: str) -> None:
    """Beside other integers, often of the same map, and beside numbers that integers mean."""
    tally, same = Tally(), 0
    for number in range(16):
        rng = np.random.default_rng(number)
        a = image(rng, kind, 3, int(rng.integers(1, 71)))
        b = image(rng, kind, *a.data.shape)
        if number & 1:
            b = Held(np.where(rng.random(a.data.shape) < 0.5, a.data, b.data), a.map)
        left, right = tensor(a), tensor(b)
        made = ORDERS[op](left, right)
        tally.add(
            computed(Asked(op, {"a": a, "b": b}, None), NAME), made.numpy(), f"codes {number}"
        )
        same += int((left.dequantize() == right.dequantize()).sum())
        value = float(left.dequantize().reshape(-1)[0])
        asked = Asked(op, {"a": a, "b": Held(np.asarray(F(value)))}, None)
        tally.add(computed(asked, NAME), ORDERS[op](left, value).numpy(), f"a number {number}")
    assert same > 0.1 * tally.total
    tally.within(claim(NAME, asked))


def test_grids_are_as_near_to_torchs_as_is_claimed() -> None:
    tally = Tally()
    for number in range(40):
        rng = np.random.default_rng(number)
        x = image(rng, "u8", 2, int(rng.integers(1, 30)), *(int(n) for n in rng.integers(3, 9, 2)))
        places = Held(rng.uniform(-1.2, 1.2, (2, 5, 6, 2)).astype(F))
        for outside in ("zeros", "border", "reflection"):
            corners = bool(number & 1)
            made = nf.grid_sample(
                tensor(x),
                torch.from_numpy(places.data),
                padding_mode=outside,
                align_corners=corners,
            )
            attrs: dict[str, Attr] = {"outside": outside, "align_corners": corners}
            asked = Asked("grid_sample", {"x": x, "grid": places}, x.map, attrs)
            tally.add(computed(asked, NAME), taken(made), f"{outside} {number}")
    tally.within(claim(NAME, asked))


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_are_torchs(kind: str) -> None:
    """hardtanh and quantized::clamp, which are clamp by other names."""
    tally = Tally()
    for number in range(16):
        rng = np.random.default_rng(number)
        x = image(rng, kind, 3, int(rng.integers(1, 71)))
        low, high = bounds_of(rng, x)
        asked = Asked("clip", {"x": x}, x.map, {"min": low, "max": high})
        found = computed(asked, NAME)
        for run in (nf.hardtanh, torch.ops.quantized.clamp):
            tally.add(found, taken(run(tensor(x), low, high)), f"case {number}")
    tally.within(claim(NAME, asked))


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_of_prelu_are_torchs(kind: str) -> None:
    """torch.nn.functional.prelu, whose result has the map of the data."""
    tally = Tally()
    for number in range(16):
        rng = np.random.default_rng(number)
        x = image(rng, kind, 2, int(rng.integers(1, 71)), 3)
        steps: Array = rng.integers(-60, 61, (x.data.shape[1],)).astype(np.int8)
        slope = Held(steps, of("i8", F(0.015)))
        if kind == "u8":
            steps = (steps + 60).astype(np.uint8)
            slope = Held(steps, of("u8", F(0.015), 61))
        made = nf.prelu(tensor(x), tensor(slope))
        wide = Held(steps.reshape(-1, 1), slope.map)  # along the channels
        asked = Asked("prelu", {"x": x, "slope": wide}, x.map)
        tally.add(computed(asked, NAME), taken(made), f"case {number}")
    tally.within(claim(NAME, asked))

"""Random uses of ops that compute floats element by element, along axes, or move elements.

Each function draws operands and attributes; `number` counts the cases of one op, so that a few
cases in a row reach every size at which an algorithm changes. Products are in `float_products`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch

from qir.ir.attrs import Attr
from qir.reference import pool
from tests.reference.cases import PAIRED, POSITIVE, UNARY, WITHIN
from tests.reference.oracles import Array

Rng: TypeAlias = np.random.Generator
Bound: TypeAlias = Literal["equal", "sum", "curve", "near"]


@dataclass(frozen=True)
class Use:
    """One use of an op, and how its float results are compared.

    `equal`: the same values. `sum`: sums of `terms` products, within the bound for any order of
    addition. `curve`: each element to a few units of float32. `near`: the same, relative to the
    largest element.
    """

    operands: Mapping[str, Array]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    bound: Bound = "near"
    terms: int = 0
    constant: tuple[str, ...] = ()
    expected: tuple[Array, ...] | None = None
    """Results by NumPy in float64 or by torch, for what onnxruntime has no op for."""


Draw: TypeAlias = Callable[[Rng, int], Use]


def normal(rng: Rng, *shape: int, scale: float = 1.0) -> Array:
    """Normally distributed float32."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def between(rng: Rng, low: float, high: float, *shape: int) -> Array:
    """Uniformly distributed float32."""
    return rng.uniform(low, high, shape).astype(np.float32)


def small(rng: Rng, low: int = 1, high: int = 9) -> int:
    """A size from low to high."""
    return int(rng.integers(low, high + 1))


def flag(rng: Rng) -> bool:
    """True or false."""
    return bool(rng.integers(2))


def one_of(rng: Rng, choices: Sequence[str]) -> str:
    """One of several names."""
    return choices[int(rng.integers(len(choices)))]


def around(number: int, *edges: int) -> int:
    """A size just above, at or just below one of the edges, each in turn."""
    sizes = [edge + off for edge in edges for off in (1, 0, -1)]
    return sizes[number % len(sizes)]


def shape(rng: Rng, least: int = 1, most: int = 4) -> tuple[int, ...]:
    """A shape of some axes; now and then one axis is long."""
    sizes = [small(rng) for _ in range(small(rng, least, most))]
    if sizes and flag(rng):
        sizes[int(rng.integers(len(sizes)))] = small(rng, 10, 300)
    return tuple(sizes)


# -- element by element -----------------------------------------------------------------------


def _unary(low: float | None = None, high: float = 0.0, **attrs: Attr) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        sizes = shape(rng)
        x = normal(rng, *sizes, scale=2) if low is None else between(rng, low, high, *sizes)
        return Use({"x": x}, attrs, "curve")

    return draw


def _broadcast(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast."""
    full_shape = shape(rng)
    cut = [1 if rng.random() < 0.3 else n for n in full_shape][small(rng, 0, len(full_shape) - 1) :]
    pair = full_shape, tuple(cut)
    return pair if flag(rng) else pair[::-1]


def _binary(oracle: Callable[[Array, Array], Array] | None = None, bound: Bound = "curve") -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        first, second = _broadcast(rng)
        a, b = normal(rng, *first, scale=2), normal(rng, *second, scale=2)
        if bound == "equal":  # comparisons: let some elements be the same
            a, b = np.rint(a), np.rint(b)
        made = None if oracle is None else (oracle(a.astype(np.float64), b.astype(np.float64)),)
        return Use({"a": a, "b": b}, {}, bound, expected=made)

    return draw


def _pow(rng: Rng, number: int) -> Use:
    first, second = _broadcast(rng)
    return Use({"a": between(rng, 0.1, 4, *first), "b": normal(rng, *second)}, {}, "curve")


def _variadic(rng: Rng, number: int) -> Use:
    full_shape = shape(rng)
    count = small(rng, 1, 4)
    cut = [
        full_shape,
        *(full_shape[small(rng, 0, len(full_shape) - 1) :] for _ in range(count - 1)),
    ]
    xs = {f"xs.{i}": normal(rng, *sizes) for i, sizes in enumerate(cut)}
    return Use(xs, {}, "sum", terms=count)


def _prelu(rng: Rng, number: int) -> Use:
    sizes = shape(rng)
    return Use({"x": normal(rng, *sizes), "slope": normal(rng, sizes[-1])}, {}, "curve")


def _where(rng: Rng, number: int) -> Use:
    first, second = _broadcast(rng)
    full_shape = np.broadcast_shapes(first, second)
    chosen = np.asarray(rng.random(full_shape) < 0.5)
    return Use(
        {"condition": chosen, "a": normal(rng, *first), "b": normal(rng, *second)}, {}, "equal"
    )


def _odd(rng: Rng, number: int) -> Use:
    x = normal(rng, *shape(rng))
    x[rng.random(x.shape) < 0.2] = np.nan
    x[rng.random(x.shape) < 0.2] = np.inf
    return Use({"x": x}, {}, "equal")


ELEMENTS: dict[str, Draw] = {
    **dict.fromkeys([op for op in UNARY if op not in ("softmax", "hardmax")], _unary()),
    **dict.fromkeys(POSITIVE, _unary(1, 60)),
    **dict.fromkeys(WITHIN, _unary(-0.99, 0.99)),
    "leaky_relu": _unary(alpha=0.0625),
    "logit": _unary(-0.5, 1.5, eps=0.125),
    "clip": _unary(min=-1.5, max=2.25),
    **dict.fromkeys(PAIRED, _binary()),
    "mod": _binary(np.mod),
    "atan2": _binary(np.arctan2),
    "pow": _pow,
    "prelu": _prelu,
    "where": _where,
    "is_nan": _odd,
    "is_inf": _odd,
    **dict.fromkeys(("sum", "mean", "min", "max"), _variadic),
    **dict.fromkeys(
        ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        _binary(bound="equal"),
    ),
}


# -- along axes -------------------------------------------------------------------------------


def _along(bound: Bound = "near", low: float | None = None, high: float = 0.0) -> Draw:
    """An op with one axis."""

    def draw(rng: Rng, number: int) -> Use:
        sizes = shape(rng)
        axis = small(rng, -len(sizes), len(sizes) - 1)
        x = normal(rng, *sizes) if low is None else between(rng, low, high, *sizes)
        return Use({"x": x}, {"axis": axis}, bound, terms=sizes[axis])

    return draw


def _reduced(bound: Bound, low: float | None = None, high: float = 0.0) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        sizes = shape(rng)
        x = normal(rng, *sizes) if low is None else between(rng, low, high, *sizes)
        picked = rng.permutation(len(sizes))[: small(rng, 0, len(sizes))]
        axes = tuple(sorted(int(a) for a in picked))
        return Use({"x": x}, {"axes": axes, "keep": flag(rng)}, bound, terms=x.size)

    return draw


def _top_k(rng: Rng, number: int) -> Use:
    sizes = shape(rng)
    axis = small(rng, 0, len(sizes) - 1)
    x = rng.permutation(int(np.prod(sizes))).reshape(sizes).astype(np.float32)
    given: dict[str, Attr] = {"k": small(rng, 1, sizes[axis]), "axis": axis, "largest": flag(rng)}
    return Use({"x": x}, given, "equal")


def _eps(together: int) -> dict[str, Attr]:
    """A larger eps for a few elements, which may be alike: the root of the default one would
    multiply what float32 sums lose by 300."""
    return {"eps": 0.1} if together < 8 else {}


def _normed(*names: str, **positive: str) -> Draw:
    """A norm over images, with vectors of one element a channel."""

    def draw(rng: Rng, number: int) -> Use:
        groups = small(rng, 1, 4)
        channels = groups * small(rng, 1, 5)
        x = normal(rng, small(rng, 1, 3), channels, *shape(rng, 1, 3))
        more = {n: normal(rng, channels) for n in names}
        if "var" in more:
            more["var"] = between(rng, 0.1, 9, channels)
        attrs: dict[str, Attr] = {"groups": groups} if "groups" in positive else {}
        together = int(np.prod(x.shape[2:])) * (channels // groups if "groups" in positive else 1)
        if "var" not in more:
            attrs |= _eps(together)
        return Use({"x": x, **more}, attrs)

    return draw


def _row_norm(*names: str) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        sizes = (*shape(rng, 0, 2), small(rng, 2, 600))
        operands = {n: normal(rng, sizes[-1]) for n in names}
        return Use({"x": normal(rng, *sizes), **operands}, _eps(sizes[-1]))

    return draw


def _lrn(rng: Rng, number: int) -> Use:
    x = normal(rng, small(rng, 1, 2), small(rng, 1, 20), small(rng), small(rng))
    return Use({"x": x}, {"size": 2 * small(rng, 0, 3) + 1, "alpha": 0.5})


ALONG_AXES: dict[str, Draw] = {
    **dict.fromkeys(("softmax", "log_softmax", "lp_normalize"), _along()),
    **dict.fromkeys(("hardmax", "arg_max", "arg_min"), _along("equal")),
    "cumsum": _along("sum"),
    "cumprod": _along("near", 0.9, 1.1),
    "top_k": _top_k,
    **{f"reduce_{op}": _reduced("sum") for op in ("sum", "mean", "l1")},
    **{f"reduce_{op}": _reduced("equal") for op in ("max", "min")},
    **{f"reduce_{op}": _reduced("near") for op in ("l2", "log_sum_exp", "sum_square")},
    "reduce_prod": _reduced("near", 0.95, 1.05),
    "reduce_log_sum": _reduced("near", 0.1, 9),
    "batch_norm": _normed("gamma", "beta", "mean", "var"),
    "instance_norm": _normed("gamma", "beta"),
    "group_norm": _normed("gamma", "beta", groups="drawn"),
    "layer_norm": _row_norm("gamma", "beta"),
    "rms_norm": _row_norm("gamma"),
    "lrn": _lrn,
}


# -- windows ----------------------------------------------------------------------------------


def _image(rng: Rng, n: int, number: int) -> Array:
    """Images that a pool takes whole, or in two dimensions one that it splits into blocks."""
    if n != 2 or number % 8 != 7:
        sizes = (small(rng, 6, 16) for _ in range(n))
        return normal(rng, small(rng, 1, 3), small(rng, 1, 6), *sizes)
    side, channels = small(rng, 120, 200), small(rng, 20, 40)
    images = pool._MAX_BLOCK_ELEMENTS // (channels * side * side) + 1
    return normal(rng, images, channels, side, side)


def slides(rng: Rng, n: int, *, dilated: bool) -> dict[str, Attr]:
    """Kernel, stride, padding and dilation of windows along n axes."""
    kernel = tuple(small(rng, 1, 3) for _ in range(n))
    out: dict[str, Attr] = {
        "kernel": kernel,
        "stride": tuple(small(rng, 1, 3) for _ in range(n)),
        "pad": tuple(small(rng, 0, k - 1) for k in (*kernel, *kernel)),
    }
    return {**out, "dilation": tuple(small(rng, 1, 2) for _ in range(n))} if dilated else out


def _pool(n: int, bound: Bound, *, dilated: bool) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        given = slides(rng, n, dilated=dilated)
        if bound == "sum":
            given["count_pad"] = flag(rng)
        return Use({"x": _image(rng, n, number)}, given, bound, terms=3**n)

    return draw


def _global_pool(bound: Bound) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        x = _image(rng, 2 if number % 8 == 7 else small(rng, 1, 3), number)
        return Use({"x": x}, {}, bound, terms=x[0, 0].size)

    return draw


def _adaptive(op: Callable[..., torch.Tensor]) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        x, size = _image(rng, 2, 0), (small(rng, 1, 6), small(rng, 1, 6))
        made = op(torch.from_numpy(x.astype(np.float64)), size).numpy()
        return Use({"x": x}, {"size": size}, "curve", expected=(made,))

    return draw


def _places(rng: Rng, number: int) -> Use:
    return Use({"x": _image(rng, 2, 0)}, slides(rng, 2, dilated=True), "equal")


def _unpool(rng: Rng, number: int) -> Use:
    n, c, size = small(rng, 1, 3), small(rng), small(rng, 4, 20)
    count = small(rng, 1, size)
    per = np.stack([rng.permutation(size)[:count] for _ in range(n * c)]).reshape(n, c, count)
    places = per + np.arange(n * c).reshape(n, c, 1) * size
    return Use({"x": normal(rng, n, c, count), "places": places}, {"size": (size,)}, "equal")


def _unfold(rng: Rng, number: int) -> Use:
    return Use({"x": _image(rng, 2, 0)}, slides(rng, 2, dilated=True), "equal")


def _fold(rng: Rng, number: int) -> Use:
    given = slides(rng, 2, dilated=True)
    size = small(rng, 6, 12), small(rng, 6, 12)
    kernel, stride, pad, dilation = (
        np.array(given[k]) for k in ("kernel", "stride", "pad", "dilation")
    )
    counts = (np.array(size) + pad[:2] + pad[2:] - (kernel - 1) * dilation - 1) // stride + 1
    area = int(kernel.prod())
    x = normal(rng, small(rng, 1, 2), small(rng, 1, 3) * area, int(counts.prod()))
    return Use({"x": x}, {**given, "size": size}, "sum", terms=area)


def _resize(modes: Sequence[str], bound: Bound) -> Draw:
    def draw(rng: Rng, number: int) -> Use:
        scales = tuple(float(rng.choice([0.5, 1.0, 2.0, 3.0])) for _ in range(2))
        coordinates = one_of(rng, ("half_pixel", "asymmetric"))
        given: dict[str, Attr] = {"scales": (1.0, 1.0, *scales), "coordinates": coordinates}
        if modes:
            given["mode"] = one_of(rng, modes)
        return Use({"x": _image(rng, 2, 0)}, given, bound)

    return draw


def _grid_sample(rng: Rng, number: int) -> Use:
    x = _image(rng, 2, 0)
    grid = between(rng, -1.2, 1.2, len(x), small(rng), small(rng), 2)
    given: dict[str, Attr] = {
        "mode": one_of(rng, ("linear", "cubic")),
        "outside": one_of(rng, ("zeros", "border", "reflection")),
        "align_corners": flag(rng),
    }
    return Use({"x": x, "grid": grid}, given)


def _affine_grid(rng: Rng, number: int) -> Use:
    n = small(rng, 1, 3)
    size = np.array([n, 1, small(rng, 2), small(rng, 2)])
    given = {"theta": normal(rng, n, 2, 3), "size": size}
    return Use(given, {"align_corners": flag(rng)}, constant=("size",))


WINDOWS: dict[str, Draw] = {
    **{f"max_pool{n}d": _pool(n, "equal", dilated=True) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _pool(n, "sum", dilated=False) for n in (1, 2, 3)},
    **{f"lp_pool{n}d": _pool(n, "near", dilated=True) for n in (1, 2, 3)},
    "global_max_pool": _global_pool("equal"),
    "global_avg_pool": _global_pool("sum"),
    "global_lp_pool": _global_pool("near"),
    "adaptive_max_pool": _adaptive(torch.nn.functional.adaptive_max_pool2d),
    "adaptive_avg_pool": _adaptive(torch.nn.functional.adaptive_avg_pool2d),
    "max_pool_places": _places,
    "max_unpool": _unpool,
    "unfold": _unfold,
    "fold": _fold,
    "resize": _resize(("linear", "cubic"), "near"),
    "resize_nearest": _resize((), "equal"),
    "grid_sample": _grid_sample,
    "affine_grid": _affine_grid,
}

"""Symbols of arithmetic, comparisons, functions and activations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np

S = mx.sym
Case = tuple[str, Any, dict[str, Any]]
TIES = np.array([-2.5, -1.5, -0.5, -0.3, 0.0, 0.5, 0.7, 1.5, 2.5, 3.0], np.float32)
ANY = (
    "abs ceil cos cosh erf exp expm1 fix floor negative relu rint round sigmoid sign sin sinh"
    " softsign square tan tanh trunc arctan arcsinh logical_not hard_sigmoid"
).split()
POSITIVE = "log log10 log1p log2 reciprocal rsqrt sqrt".split()
ARITHMETIC = "add sub mul div mod power maximum minimum".split()
COMPARED = (
    "equal not_equal greater greater_equal lesser lesser_equal logical_and logical_or logical_xor"
).split()


def points(rng: Any) -> Iterator[Case]:
    """Returns names, symbols and inputs."""
    x, y = S.var("data"), S.var("other")
    for name in ANY:
        yield name, getattr(S, name)(x), {"data": TIES}
    for name in POSITIVE:
        yield name, getattr(S, name)(x), {"data": np.abs(TIES) + np.float32(0.1)}
    for name in ("arccos", "arcsin", "arctanh"):
        yield name, getattr(S, name)(x), {"data": TIES / 4}
    yield "arccosh", S.arccosh(x), {"data": np.abs(TIES) + 1}
    yield from pairs(rng)
    yield from scalars()
    yield from activations(rng)
    for name in ("identity", "BlockGrad", "make_loss", "MakeLoss", "Dropout"):
        yield name, getattr(S, name)(x) * 1, {"data": TIES}
    yield "clip", S.clip(x, a_min=-1, a_max=0.75), {"data": TIES}
    yield "smooth", S.smooth_l1(x, scalar=1.5), {"data": TIES}
    yield "cast", S.cast(S.cast(x, dtype="int32"), dtype="float32"), {"data": TIES}
    yield "sum of several", S.add_n(x, y, x), {"data": TIES, "other": TIES[::-1].copy()}
    condition = S.where(S.var("condition"), x, y)
    given = {"data": TIES, "other": TIES * 2, "condition": (TIES > 0).astype(np.float32)}
    yield "where", condition, given
    rows = {"condition": np.array([1, 0], np.float32)}
    rows |= {"data": rng.randn(2, 3).astype("f"), "other": rng.randn(2, 3).astype("f")}
    yield "where of rows", condition, rows


def pairs(rng: Any) -> Iterator[Case]:
    x, y = S.var("data"), S.var("other")
    a, b = TIES[:9].reshape(3, 3), np.array([[0.5, 1.5, 2.0]], np.float32)
    for name in ARITHMETIC:
        base = np.abs(a) + np.float32(0.1) if name == "power" else a
        yield f"broadcast_{name}", getattr(S, f"broadcast_{name}")(x, y), {"data": base, "other": b}
    for name in COMPARED:
        made = getattr(S, f"broadcast_{name}")(x, y)
        yield (
            f"broadcast_{name}",
            made,
            {"data": a, "other": np.array([[0.5, 0, -1.5]], np.float32)},
        )
        made = getattr(S._internal, f"_{name}")(x, y)
        yield f"_{name}", made, {"data": a, "other": a[::-1].copy()}
        made = getattr(S._internal, f"_{name}_scalar")(x, scalar=0.5)
        yield f"_{name}_scalar", made, {"data": a}
    other = {"data": np.abs(a) + np.float32(0.1), "other": np.abs(a[::-1]) + np.float32(0.6)}
    for name in ("add", "sub", "mul", "div"):
        yield f"elemwise_{name}", getattr(S, f"elemwise_{name}")(x, y), other
    for name in ("maximum", "minimum", "mod", "power"):
        yield f"_{name}", getattr(S._internal, f"_{name}")(x, y), other


def scalars() -> Iterator[Case]:
    x, data = S.var("data"), {"data": np.abs(TIES) + np.float32(0.2)}
    for name in ("plus minus rminus mul div rdiv power rpower maximum minimum mod rmod").split():
        yield name, getattr(S._internal, f"_{name}_scalar")(x, scalar=1.5), data


def activations(rng: Any) -> Iterator[Case]:
    x = S.var("data")
    for name in ("relu", "sigmoid", "tanh", "softrelu", "softsign"):
        yield name, S.Activation(x, act_type=name), {"data": TIES}
    for name in ("leaky", "elu", "selu", "gelu"):
        yield name, S.LeakyReLU(x, act_type=name), {"data": TIES}
    yield "rrelu", S.LeakyReLU(x, act_type="rrelu")[0], {"data": TIES}
    image = rng.randn(2, 3, 2, 2).astype(np.float32)
    yield "prelu", S.LeakyReLU(x, S.var("alpha"), act_type="prelu"), {"data": image}
    one = S.LeakyReLU(x, S.var("alpha", shape=(1,)), act_type="prelu")
    yield "prelu of one slope", one, {"data": image}

"""Symbols of operators that move, pick, reduce and make elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np

S = mx.sym
Case = tuple[str, Any, dict[str, Any]]
CODES: tuple[tuple[int, ...], ...] = (
    (4, -1),
    (0, -1),
    (0, 0, -1),
    (-2,),
    (2, -2),
    (-3, 4, 5),
    (-3, -3),
    (0, -3, -2),
    (-4, 1, 2, -2),
    (0, -4, -1, 3, -2),
    (0, 0, -4, 2, -1, 0),
)


def floats(held: Any) -> Any:
    return np.array(held, np.float32)


def moves(rng: Any) -> Iterator[Case]:
    """Returns names, symbols and inputs."""
    x = S.var("data")
    image = rng.randn(2, 3, 4, 5).astype(np.float32)
    one = {"data": image}
    for shape in CODES:
        yield f"reshape {shape}", S.reshape(x, shape=shape), one
    for shape in ((-1, 0), (0, -1, 0), (-1, 5)):
        yield f"reshape {shape} reversed", S.reshape(x, shape=shape, reverse=True), one
    yield "flatten", S.flatten(x), one
    yield "expand", S.expand_dims(x, axis=2), one
    yield "squeeze", S.squeeze(S.expand_dims(x, axis=1)), one
    yield "squeeze of an axis", S.squeeze(S.expand_dims(x, axis=1), axis=1), one
    yield "transpose", S.transpose(x, axes=(0, 2, 3, 1)), one
    yield "transpose of all", S.transpose(x), one
    yield "swap", S.SwapAxis(x, dim1=1, dim2=3), one
    yield "concat", S.concat(x, x * 2, dim=2), one
    yield "stack", S.stack(x, x * 2, axis=1), one
    yield "split", S.split(x, num_outputs=2, axis=2), one
    yield "split alone", S.split(x, num_outputs=3, axis=1, squeeze_axis=True), one
    yield "split at", S.split_v2(x, (1, 3), axis=3), one
    yield "split in sections", S.split_v2(x, 2, axis=2), one
    yield from slices(rng, x, one)
    yield "tile", S.tile(x, reps=(2, 1, 3)), one
    yield "tile to more axes", S.tile(x, reps=(2, 1, 1, 1, 2)), one
    yield "repeat", S.repeat(x, repeats=2, axis=1), one
    yield "repeat of all", S.repeat(x, repeats=2), one
    yield "reverse", S.reverse(x, axis=(1, 3)), one
    row = {"data": rng.randn(2, 1, 4, 1).astype(np.float32)}
    yield "broadcast to", S.broadcast_to(x, shape=(2, 3, 0, 5)), row
    yield "broadcast like", S.broadcast_like(x, S.var("other")), {**row, "other": image}
    wide = S.broadcast_like(x, S.var("other"), lhs_axes=(1, 3), rhs_axes=(2, 1))
    yield "broadcast like of axes", wide, {**row, "other": image}
    yield "broadcast axis", S.broadcast_axis(x, axis=(1, 3), size=(3, 2)), row
    for mode in ("constant", "edge", "reflect"):
        pad = {"mode": mode, "pad_width": (0, 0, 0, 0, 1, 2, 2, 1)}
        yield f"pad {mode}", S.pad(x, **pad), one
    yield "pad by a number", S.pad(x, constant_value=2.5, **{**pad, "mode": "constant"}), one
    blocks = {"data": rng.randn(1, 8, 2, 2).astype(np.float32)}
    yield "depth to space", S.depth_to_space(x, block_size=2), blocks
    yield "space to depth", S.space_to_depth(x, block_size=2), blocks
    yield from picks(rng, x, one)
    yield from reductions(rng, x, one)
    yield from products(rng)
    yield from made(x, one)


def slices(rng: Any, x: Any, one: dict[str, Any]) -> Iterator[Case]:
    yield "slice", S.slice(x, begin=(0, 1, -3), end=(2, 3, 4)), one
    open_ended = S.slice(x, begin=(None, 1), end=(1, None))
    yield "slice to the end", open_ended, one
    stepped = S.slice(x, begin=(None, None, 3), end=(None, None, None), step=(1, 2, -2))
    yield "slice by steps", stepped, one
    yield "slice of an axis", S.slice_axis(x, axis=2, begin=1, end=None), one
    yield "slice of an axis from the end", S.slice_axis(x, axis=-1, begin=-3, end=-1), one
    other = {**one, "other": rng.randn(1, 2, 3, 9).astype(np.float32)}
    yield "slice like", S.slice_like(x, S.var("other"), axes=(1, 2)), other
    yield "crop", S.Crop(x, offset=(1, 2), h_w=(2, 2), num_args=1), one
    yield "crop of the middle", S.Crop(x, h_w=(2, 3), center_crop=True, num_args=1), one
    small = {**one, "other": rng.randn(1, 2, 3, 3).astype(np.float32)}
    yield "crop like", S.Crop(x, S.var("other"), num_args=2), small


def picks(rng: Any, x: Any, one: dict[str, Any]) -> Iterator[Case]:
    where = S.var("indices")
    inside, outside = floats([[0, 2], [1, 1]]), floats([-2, 1, 9])
    embedded = S.Embedding(x, input_dim=6, output_dim=4)
    yield "embedding", embedded, {"data": floats([[0, 5], [3, 3]])}
    yield "take", S.take(x, where), {"data": one["data"], "indices": outside}
    yield "take of an axis", S.take(x, where, axis=2), {**one, "indices": inside}
    yield "take around", S.take(x, where, axis=1, mode="wrap"), {**one, "indices": outside}
    rows = {"data": rng.randn(3, 4).astype(np.float32), "indices": floats([3, 0, 9])}
    yield "pick", S.pick(x, where), rows
    yield (
        "pick of rows",
        S.pick(x, where, axis=0, keepdims=True),
        {
            "data": rows["data"],
            "indices": floats([2, 0, 1, -1]),
        },
    )
    places = floats([[0, 1, 1], [2, 0, 1]])
    yield "gather", S.gather_nd(x, where), {**one, "indices": places}
    yield (
        "one hot",
        S.one_hot(x, depth=4, on_value=2, off_value=-1),
        {"data": floats([1, 3, 0])},
    )
    for kind in ("indices", "value", "both"):
        yield f"top {kind}", S.topk(x, k=2, axis=2, ret_typ=kind), one
    yield "least", S.topk(x, k=3, ret_typ="value", is_ascend=True), one
    for name in ("argmax", "argmin"):
        yield name, getattr(S, name)(x, axis=2), one
        yield f"{name} kept", getattr(S, name)(x, axis=-1, keepdims=True), one
    yield "argmax of all", S.argmax(x), one


def reductions(rng: Any, x: Any, one: dict[str, Any]) -> Iterator[Case]:
    for name in ("mean", "sum", "prod", "max", "min"):
        yield name, getattr(S, name)(x, axis=(1, 3)), one
        yield f"{name} kept", getattr(S, name)(x, axis=-1, keepdims=True), one
        yield f"{name} of all", getattr(S, name)(x), one
    yield "sum of the others", S.sum(x, axis=1, exclude=True), one
    yield "norm", S.norm(x, axis=1), one
    yield "norm of order 1", S.norm(x, ord=1, axis=(2, 3), keepdims=True), one
    yield "norm of all", S.norm(x), one


def products(rng: Any) -> Iterator[Case]:
    a, b = S.var("a"), S.var("b")
    x, y = rng.randn(3, 4).astype(np.float32), rng.randn(4, 5).astype(np.float32)
    yield "dot", S.dot(a, b), {"a": x, "b": y}
    yield (
        "dot of turned",
        S.dot(a, b, transpose_a=True, transpose_b=True),
        {"a": x.T.copy(), "b": y.T.copy()},
    )
    yield "dot of rows", S.dot(a, b), {"a": x[0], "b": y[:, 0].copy()}
    yield "dot of more axes", S.dot(a, b), {"a": rng.randn(2, 3, 4).astype("f"), "b": y}
    many = rng.randn(2, 3, 4).astype(np.float32)
    other = rng.randn(2, 3, 4).astype(np.float32)
    yield "batch dot", S.batch_dot(a, b, transpose_b=True), {"a": many, "b": other}
    yield "batch dot of turned", S.batch_dot(a, b, transpose_a=True), {"a": many, "b": other}
    yield "gemm", S.linalg.gemm2(a, b, transpose_b=True, alpha=0.5), {"a": many, "b": other}


def made(x: Any, one: dict[str, Any]) -> Iterator[Case]:
    shape = (2, 3, 4, 5)
    yield "zeros", x + S.zeros(shape), one
    yield "ones", x + S.ones(shape), one
    yield "full", x + S.full(shape, 2.5), one
    yield "range", S.broadcast_add(x, S.arange(1, 6)), one
    column = S.expand_dims(S.arange(0, 3, 1.5, repeat=2), axis=1)
    yield "range of steps", S.broadcast_add(x, column), one
    yield "range to a number", S.broadcast_add(x, S.arange(5)), one
    yield "zeros like", S.zeros_like(x) + x, one
    yield "ones like", S.ones_like(x) + x, one
    yield "shape", S.shape_array(x), one

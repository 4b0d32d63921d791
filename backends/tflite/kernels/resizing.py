"""TensorFlow Lite's bilinear resizing of integers, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.profiles.methods import Param, PluginMethod, Taps
from qir.reference.method import Integers, saturate
from qir.reference.resize import resized

from .sums_and_means import rounded_quotient

Int64 = NDArray[np.int64]
F = np.float32


def fixed_resize(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    sizes: Integers | None = None,
    scales: Sequence[float] = (),
    axes: Sequence[int] = (),
    coordinates: str = "half_pixel",
    mode: str = "linear",
    bits: int = 10,
) -> Integers:
    """Computes bilinear resizing of integers.

    Positions and weights have 10 fraction bits, ties away from zero; or weights have 11 bits from
    float32 positions, ties up.
    """
    if not x_map.same_map(out):
        raise OpError("fixed_resize: operand and result have one map")
    resized_axes, output_sizes = resized(x, sizes, scales, axes)
    if mode != "linear" or len(resized_axes) != 2:
        raise OpError("fixed_resize: linear, along two axes")
    integers = x.astype(np.int64)
    positions_of = _positions_11_bits if bits == 11 else _positions_10_bits
    height, width = (
        positions_of(x.shape[a], target, coordinates)
        for a, target in zip(resized_axes, output_sizes, strict=True)
    )
    total: Int64 = np.zeros((), np.int64)
    for rows, by_row in height:
        for columns, by_column in width:
            neighbours = np.take(np.take(integers, rows, resized_axes[0]), columns, resized_axes[1])
            weight = along_axis(by_row, resized_axes[0], x.ndim) * along_axis(
                by_column, resized_axes[1], x.ndim
            )
            total = total + neighbours * weight
    if bits == 11:
        return saturate((total + (1 << 21)) >> 22, out)
    return saturate(rounded_quotient(total, 1 << 20), out)


def resize_taps(size: int, target: int, coordinates: str, *, bits: int = 10) -> Taps:
    """Returns the neighbours and weights of `fixed_resize` along one axis."""
    positions_of = _positions_11_bits if bits == 11 else _positions_10_bits
    (low, low_weight), (high, high_weight) = positions_of(size, target, coordinates)
    # Beyond the ends both neighbours are one, and a weight of 10 bits may be below zero.
    one = low == high
    weights = np.where(one, 1 << bits, low_weight), np.where(one, 0, high_weight)
    return Taps((low, high), weights, bits, away=bits == 10)


def real_resize(
    x: Integers,
    x_map: Affine,
    out: Affine,
    *,
    sizes: Integers | None = None,
    scales: Sequence[float] = (),
    axes: Sequence[int] = (),
    coordinates: str = "half_pixel",
    mode: str = "linear",
) -> Integers:
    """Computes bilinear resizing in float32, then adds a half and truncates."""
    if not x_map.same_map(out):
        raise OpError("real_resize: operand and result have one map")
    resized_axes, output_sizes = resized(x, sizes, scales, axes)
    if mode != "linear" or len(resized_axes) != 2 or x_map.storage.kind != "uint":
        raise OpError("real_resize: linear, along two axes, of unsigned integers")
    height, width = (
        _float_positions(x.shape[a], target, coordinates)
        for a, target in zip(resized_axes, output_sizes, strict=True)
    )
    total: NDArray[np.float32] | None = None
    # The order of the four terms decides the last bit.
    for columns, by_column in width:  # above, below; then the next column
        for rows, by_row in height:
            neighbours = np.take(
                np.take(x, rows, resized_axes[0]), columns, resized_axes[1]
            ).astype(F)
            weights = (
                along_axis(by_row, resized_axes[0], x.ndim),
                along_axis(by_column, resized_axes[1], x.ndim),
            )
            term = neighbours * weights[0] * weights[1]
            total = term if total is None else total + term
    assert total is not None
    return saturate((total + F(0.5)).astype(np.int64), out)


def _float_positions(
    size: int, target: int, coordinates: str
) -> list[tuple[Int64, NDArray[np.float32]]]:
    """Returns the neighbours of float32 positions, and float32 weights."""
    corners = coordinates == "align_corners" and target > 1
    step = F(size - 1) / F(target - 1) if corners else F(size) / F(target)
    indices, half = np.arange(target).astype(F), F(0.5)
    positions = (indices + half) * step - half if coordinates == "half_pixel" else indices * step
    below = np.maximum(np.floor(positions).astype(np.int64), 0)
    above = np.minimum(np.ceil(positions).astype(np.int64), size - 1)
    fraction = positions - below.astype(F)
    return [(below, F(1) - fraction), (above, fraction)]


Weights = TypeVar("Weights", Int64, NDArray[np.float32])


def along_axis(weights: Weights, axis: int, rank: int) -> Weights:
    """Returns weights shaped to broadcast along one axis."""
    shape = [1] * rank
    shape[axis] = -1
    return weights.reshape(shape)


def _positions_10_bits(size: int, target: int, coordinates: str) -> list[tuple[Int64, Int64]]:
    """Returns the neighbours of each position and their weights, with 10 fraction bits."""
    one = 1 << 10
    if coordinates == "align_corners" and target > 1:
        step = (one * (size - 1) + (target - 1) // 2) // (target - 1)
    else:
        step = (one * size + target // 2) // target
    positions = np.arange(target, dtype=np.int64) * step
    if coordinates == "half_pixel":
        positions = positions + step // 2 - one // 2
    below = np.maximum(np.where(positions >= 0, positions // one, -(-positions // one)), 0)
    above = np.minimum((positions + one - 1) // one, size - 1)
    fraction = positions - one * below
    return [(below, one - fraction), (above, fraction)]


def _positions_11_bits(size: int, target: int, coordinates: str) -> list[tuple[Int64, Int64]]:
    """Returns the neighbours of float32 positions, and weights of 11 fraction bits."""
    corners = coordinates == "align_corners" and target > 1
    step = F(size - 1) / F(target - 1) if corners else F(size) / F(target)
    indices = np.arange(target).astype(F)
    half = F(0.5)
    positions = (indices + half) * step - half if coordinates == "half_pixel" else indices * step
    positions = np.clip(positions, F(0), F(size - 1))
    below = positions.astype(np.int64)
    fraction = np.rint((positions - below.astype(F)) * F(2048)).astype(np.int64)
    return [(below, 2048 - fraction), (np.minimum(below + 1, size - 1), fraction)]


METHODS: Mapping[str, PluginMethod] = {
    "real_resize": PluginMethod(
        real_resize,
        ("resize",),
        slots=("x",),
        attrs=("scales", "axes", "coordinates", "mode"),
        beside=("sizes",),
    ),
    "fixed_resize": PluginMethod(
        fixed_resize,
        ("resize",),
        slots=("x",),
        attrs=("scales", "axes", "coordinates", "mode"),
        beside=("sizes",),
        params={"bits": Param((10, 11))},
        taps=resize_taps,
    ),
}
"""The methods of this module, by the name that profiles use."""

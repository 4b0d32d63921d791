"""What kernels of Intel's extension for PyTorch, oneDNN's and its own, do to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics import dequantize, quantize
from qir.numerics.affine import Affine
from qir.numerics.rounding import fma
from qir.profiles.methods import FLAG, Param, PluginMethod
from qir.reference.embedding import bag_starts
from qir.reference.method import (
    Float32Array,
    Integers,
    MethodCall,
    float32,
    require_per_tensor,
    saturate,
)


def sums_in_turn(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """Computes a float product in float32, term by term, each added with one rounding."""
    a, b = (dequantize(arrays[slot], call.map(slot), call.rule) for slot in ("a", "b"))
    a = a.swapaxes(-1, -2) if call.attrs["trans_a"] else a
    b = b.swapaxes(-1, -2) if call.attrs["trans_b"] else b
    total = np.zeros((*a.shape[:-1], b.shape[-1]), float32)
    for k in range(a.shape[-1]):
        total = fma(a[..., k : k + 1], b[..., k : k + 1, :], total)
    return total if call.out is None else quantize(total, call.out, call.rule)


def by_one_factor(x: Integers, x_map: Affine, out: Affine) -> Integers:
    """Requantizes integers around 0 by one float32 factor, ties to even."""
    return _rescaled("by_one_factor", x.astype(np.int64), x_map, out)


def summed_rows(
    w: Integers,
    w_map: Affine,
    out: Affine,
    *,
    mode: str,
    last: bool,
    padding: int | None,
    indices: Integers,
    offsets: Integers | None = None,
    weights: Integers | None = None,
    once: bool = False,
) -> Integers:
    """Sums of rows as floats, each added in one rounding; `once`: of quantized values, by one
    factor.

    Quantized values of a row alone are moved, unless the result's scale is greater by more than
    0.0001.
    """
    if mode != "sum" or padding is not None or weights is not None:
        raise OpError("embedding_bag: the runtime sums quantized rows, without padding or weights")
    rows = indices.astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < len(w):
        raise OpError("embedding_bag: a row is not there")
    flat_rows, starts = rows.reshape(-1), bag_starts("embedding_bag", rows, offsets, last)
    if any(start == end for start, end in pairwise(starts)):
        raise OpError("embedding_bag: for a bag of nothing the runtime hands on what was in memory")
    if once:
        sums = [np.sum(w[flat_rows[a:b]], 0, dtype=np.int64) for a, b in pairwise(starts)]
        return _rescaled("embedding_bag", np.array(sums).reshape(-1, w.shape[1]), w_map, out)
    require_zero_zero_points("embedding_bag", w_map, out)
    total = np.zeros((len(starts) - 1, w.shape[1]), float32)
    for row, (start, end) in enumerate(pairwise(starts)):
        for row_values in w[flat_rows[start:end]]:
            total[row] = fma(row_values.astype(float32), float32(w_map.scale), total[row])
    result = saturate(np.rint(total * (float32(1) / float32(out.scale))).astype(np.int64), out)
    # The kernel copies the row of a bag of one, unless the scales differ by more than 0.0001.
    if not float(out.scale) - float(w_map.scale) > 0.0001:
        single_row_bags = np.flatnonzero(np.diff(starts) == 1)
        result[single_row_bags] = w[flat_rows[np.asarray(starts)[single_row_bags]]]
    return result


def require_zero_zero_points(name: str, *types: Affine) -> None:
    """Raises OpError for scales along an axis, or a zero point that is not 0."""
    require_per_tensor(name, *types)
    if any(np.any(affine.zero) for affine in types):
        raise OpError(f"{name}: the runtime's kernel takes no zero point but 0")


def _rescaled(name: str, integers: NDArray[np.int64], affine: Affine, out: Affine) -> Integers:
    require_zero_zero_points(name, affine, out)
    factor = float32(float32(affine.scale) / float32(out.scale))
    return saturate(np.rint(integers.astype(float32) * factor).astype(np.int64), out)


def blocks_of_terms(
    call: MethodCall, arrays: Mapping[str, Integers], *, scales: str = "block", affine: bool = False
) -> Integers:
    """Float values made quantized values, by a scale for each row of a block, each row or all,
    times quantized values of weights; a block's sum becomes float and is added in one rounding to
    those before, first the bias."""
    if "bias" in arrays and call.types["bias"].quant is not None:
        raise OpError(f"{call.op}: the runtime takes a float bias")
    rows, terms = arrays["w"].shape
    x, size = arrays["x"].astype(float32).reshape(-1, terms), _block_size(call, terms)
    weight_scales, centred_weights = _scales_and_centred_weights(call, arrays["w"])
    total = np.zeros((len(x), rows), float32) + arrays.get("bias", np.zeros(rows, float32)).astype(
        float32
    )
    # One integer sum for each block, dequantized and added in one rounding.
    for start in range(0, terms, size):
        terms_of_block = slice(start, start + size)
        ranged = x[:, terms_of_block] if scales == "block" else x
        ranged = ranged if scales != "tensor" else ranged.reshape(1, -1)
        integers, data_scale = _quantize_rows(x[:, terms_of_block], ranged, affine=affine)
        sums = (integers @ centred_weights[:, terms_of_block].T).astype(float32)
        total = fma(sums * data_scale, weight_scales[:, start], total)
    return total.reshape(*arrays["x"].shape[:-1], rows)


def _block_size(call: MethodCall, terms: int) -> int:
    """Returns how many terms are summed as integers: those of a scale of weights, else 128, 64 or
    32."""
    quant = call.types["w"].quant
    blocks = {} if quant is None or quant.granularity is None else dict(quant.granularity.blocks)
    size = blocks.get(1, next((n for n in (128, 64, 32) if terms % n == 0), 0))
    if not size or terms % size or size % 32 or blocks.get(0) != 1:
        raise OpError(
            f"{call.op}: the runtime multiplies integers in blocks of 32, 64 or 128 terms, with a "
            "scale for each row of w, or each row of a block; others it multiplies as floats"
        )
    return size


def _scales_and_centred_weights(
    call: MethodCall, w: Integers
) -> tuple[Float32Array, NDArray[np.int64]]:
    """Returns the scale of each element of the weights, and its quantized value less the zero
    point."""
    weight_map = call.map("w").over(w.shape)
    if weight_map.plus is not None:
        raise OpError(f"{call.op}: the runtime knows no weights with an offset")
    zeros = np.asarray(weight_map.zero).astype(np.int64)
    return np.broadcast_to(weight_map.scale.astype(float32), w.shape), w.astype(np.int64) - zeros


def _quantize_rows(
    x: Float32Array, ranged: Float32Array, *, affine: bool
) -> tuple[NDArray[np.int64], Float32Array]:
    """Quantized values about 0, and the scale of each row, from the range of what is seen."""
    low, high = (end(ranged, 1, keepdims=True) for end in (np.min, np.max))
    if not affine:
        scale = np.maximum(-low, high) / float32(127)
        return np.clip(np.rint(x * (float32(1) / scale)), -128, 127).astype(np.int64), scale
    low, high = np.minimum(low, float32(0)), np.maximum(high, float32(0))
    scale = (high - low) / float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x * (float32(1) / scale) + zero), 0, 255) - zero).astype(
        np.int64
    ), scale


METHODS: Mapping[str, PluginMethod] = {
    "blocks_of_terms": PluginMethod(
        blocks_of_terms,
        ("linear",),
        params={"scales": Param(("block", "row", "tensor")), "affine": FLAG},
        any_map=True,
        reals=True,
    ),
    "by_one_factor": PluginMethod(by_one_factor, ("requantize",), slots=("x",)),
    "sums_in_turn": PluginMethod(
        sums_in_turn, ("matmul",), reads=("dequantize", "quantize"), reals=True
    ),
    "summed_rows": PluginMethod(
        summed_rows,
        ("embedding_bag",),
        slots=("w",),
        attrs=("mode", "last", "padding"),
        beside=("indices", "offsets", "weights"),
        params={"once": FLAG},
    ),
}
"""The methods of this module, by the name that profiles use."""

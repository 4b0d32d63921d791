"""Arrays of the quantization parameters that a quantized type states, dequantized if quantized."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.ir.types import Array, QuantType
from qir.numerics.affine import as_float32_or_64, declared_range_of
from qir.numerics.definition import dequantize
from qir.numerics.fields import Rule
from qir.numerics.maps import Map
from qir.numerics.wide_integers import integer_zeros

Floats = NDArray[np.floating]


def map_of(
    kind: QuantType,
    *,
    scale: NDArray[np.generic] | None = None,
    zero: NDArray[np.generic] | None = None,
) -> Map:
    """Returns the parameters of a quantized type as NumPy arrays.

    Where the type says `?`, `scale` and `zero` are the parameters. Scales, zeros, offsets and
    tables that are quantized themselves are dequantized first. Raises OpError for missing
    parameters, or a zero point where the storage has none.
    """
    scales = scale if kind.scale is None else _dequantized_parameters(kind.scale, kind.scales())
    zeros = zero if kind.zero is None else _zero_values(kind)
    if scales is None or zeros is None:
        raise OpError(f"{kind}: the numbers come from companion slots, which are not given")
    # A float zero point is a parameter of its own kind: it is added inside the rounding.
    has_integer_zero = zeros.dtype.kind in "iu"
    mapping = Map(
        kind.storage,
        kind.express,
        as_float32_or_64(np.asarray(scales)),
        integer_zeros(zeros) if has_integer_zero else as_float32_or_64(np.asarray(zeros)),
        kind.low,
        kind.high,
        kind.granularity,
        None if kind.plus is None else _parameter_values(kind.plus, kind.express),
        None if kind.codes is None else _parameter_values(kind.codes, None),
        # Parameters that a run computes replace the range that the type declares.
        declared_range_of(kind) if scale is None else None,
    )
    if (kind.storage.is_float or mapping.table is not None) and mapping.zero.any():
        subject = "a table" if mapping.table is not None else f"{kind.storage}"
        raise OpError(
            f"quantized values of {subject} have no zero point; `plus` moves the float values"
        )
    if mapping.table is not None and not (
        np.isfinite(mapping.table).all() and kind.storage.is_integer
    ):
        raise OpError("a table is looked up by integers, and its entries are finite")
    if mapping.table is not None and mapping.table.size > kind.high - kind.low + 1:
        raise OpError(
            f"a table of {mapping.table.size} entries, but {kind.storage} has fewer "
            "quantized values"
        )
    return mapping


def _dequantized_parameters(held: object, data: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns the float values of an array of parameters, which may have a quantized type of its
    own."""
    if isinstance(held, Array) and held.type.quant is not None:
        # Double quantization, as of NF4 with 8-bit scales: parameters are dequantized by the
        # default rule, whatever the profile says of data.
        return _dequantize_plain(data, map_of(held.type.quant))
    return data


def _zero_values(kind: QuantType) -> NDArray[np.generic]:
    held = kind.zero
    if isinstance(held, Array) and held.type.quant is not None:
        return _dequantize_plain(held.data, map_of(held.type.quant))
    return kind.zeros() if kind.zero else np.zeros((), np.int64)


def _parameter_values(held: tuple[float, ...] | Array, kind: DType | None) -> Floats:
    if isinstance(held, Array):
        return as_float32_or_64(_dequantized_parameters(held, held.data))
    out = np.array(held, np.float64 if kind is None else kind.carrier)
    return as_float32_or_64(out)


def _dequantize_plain(integers: NDArray[np.generic], of: Map) -> Floats:
    return dequantize(integers, of, Rule())

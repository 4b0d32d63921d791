"""Ops about the numbers of quantized types, and products of raw integers: what runs while a model
runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.ir.node import Node
from qir.ir.types import Array, QuantType, TensorType
from qir.numerics import Map, accumulate, choose, dequantize, recode
from qir.numerics.rounding import round_to_float_type
from qir.numerics.scale_rules import ScaleRequest, choose_fields, scale_rule
from qir.profiles import RuleSource, choose_query, dequantize_query
from qir.records import record
from qir.reference.companions import resolve_companions, with_companion_parameters
from qir.reference.products import mapping_of
from qir.reference.quantized import fake_quantize
from qir.reference.ranges import extremes
from qir.reference.table import Operands

Tensor = NDArray[np.generic]


@record
class _DynamicRun:
    """One node in one run: its types with their numbers, and the arrays."""

    node: Node
    types: Mapping[str, TensorType]
    arrays: Operands
    beside: Operands
    rules: RuleSource

    def text(self, name: str) -> str:
        return str(self.node.attrs[name])

    def wholes(self, name: str) -> tuple[int, ...]:
        value = self.node.attrs[name]
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, int))

    def dtype(self, name: str) -> DType | None:
        value = self.node.attrs[name]
        return value if isinstance(value, DType) else None


def run(node: Node, operands: Operands, rules: RuleSource) -> tuple[Tensor, ...]:
    """Returns one of these ops on arrays by slot, companions among them."""
    # Their operands are plain integers with zero points next to them: no type has numbers to
    # resolve.
    if node.op in _PLAIN_INTEGER_PRODUCTS:
        types = {s: node.operands[s].type for s in operands}
        return _PLAIN_INTEGER_PRODUCTS[node.op](_DynamicRun(node, types, operands, operands, rules))
    results = tuple(value.type for value in node.results)
    companion_arrays = {s: a for s, a in operands.items() if s != "x"}
    # These two read the integers, or the inner slot's companions: nothing is resolved for x.
    if node.op in ("recode", "fake_quantize"):
        x = {"x": operands["x"]}
        x_type = {"x": node.operands["x"].type}
        return _FUNCTIONS[node.op](_DynamicRun(node, x_type, x, companion_arrays, rules))
    resolved = resolve_companions(node.op, node.operands, operands, results, rules)
    return _FUNCTIONS[node.op](
        _DynamicRun(node, resolved.types, resolved.arrays, companion_arrays, rules)
    )


def _recode(run: _DynamicRun) -> tuple[Tensor, ...]:
    return (recode(run.arrays["x"], run.types["x"].dtype, run.node.result.type.dtype),)


# -- numbers --------------------------------------------------------------------------------------


def _choose(run: _DynamicRun) -> tuple[Tensor, ...]:
    """Scale and zero for the range of x, one of each or one a block."""
    storage, scale_type = run.dtype("storage"), run.dtype("scale_type")
    assert storage is not None
    assert scale_type is not None
    low, high = extremes(_float_values(run), run.wholes("keep"), run.wholes("blocks"))
    bounds = run.wholes("bounds") or storage.bounds
    request = ScaleRequest(storage, (bounds[0], bounds[1]), run.node.attrs["symmetric"] is True)
    name = run.text("rule")
    if name != "profile" and (function := scale_rule(name).function) is not None:
        scale, zero = function(low, high, request)
    else:
        scale, zero = _by_profile(run, name, low, high, request)
    kind = (run.dtype("zero_type") or storage).carrier
    return (
        round_to_float_type(np.asarray(scale), scale_type.carrier),
        np.asarray(np.asarray(zero).astype(kind)),
    )


def _by_profile(
    run: _DynamicRun, name: str, low: Tensor, high: Tensor, request: ScaleRequest
) -> tuple[Tensor, Tensor]:
    """Returns numbers by a scale rule of fields, or by the one of the node's own profile."""
    storage, granularity = str(request.storage), "channel" if run.wholes("keep") else "tensor"
    if name == "profile":
        rule = run.rules.resolve(choose_query(storage, granularity)).choose
    else:
        rule = choose_fields(name)
    scale, zero = choose(
        # The range is exact in float64; the rule itself says in which type it computes.
        low.astype(np.float64),
        high.astype(np.float64),
        request.storage,
        rule,
        bounds=request.bounds,
        symmetric=request.symmetric,
        grain=granularity,
        profile=run.rules.name,
    )
    return scale, zero


def _float_values(run: _DynamicRun) -> Tensor:
    """Returns the float values of x, which may be quantized."""
    quant = run.types["x"].quant
    if quant is None:
        return run.arrays["x"]
    rule = run.rules.resolve(dequantize_query(quant))
    return dequantize(run.arrays["x"], mapping_of(quant), rule)


def _qparams(run: _DynamicRun) -> tuple[Tensor, ...]:
    """Returns the numbers of a type, or the float values at its ends."""
    kinds = [value.type for value in run.node.results]
    names = ("min", "max") if run.text("give") == "range" else ("scale", "zero")
    companion_arrays = [run.beside.get(f"x.{name}") for name in names]
    quant = run.types["x"].quant
    assert quant is not None
    arrays = [
        array if array is not None else _parameter(quant, name, kind)
        for array, name, kind in zip(companion_arrays, names, kinds, strict=True)
    ]
    return tuple(arrays)


def _parameter(quant: QuantType, name: str, kind: TensorType) -> Tensor:
    carrier, sizes = kind.dtype.carrier, kind.shape
    if name in ("min", "max"):
        values = _range_end(quant, name)
    elif name == "scale":
        values = np.asarray(mapping_of(quant).scale)
    else:
        values = np.asarray(mapping_of(quant).zero)
    is_single = values.size == 1 and all(isinstance(d, int) for d in sizes)
    if is_single:
        values = np.broadcast_to(values.reshape(()), [d for d in sizes if isinstance(d, int)])
    return np.asarray(values.astype(carrier), order="C")


def _range_end(quant: QuantType, name: str) -> Tensor:
    """Returns the least or greatest float value: the declared one, else what the extreme integer
    means."""
    if quant.declared is not None:
        end = quant.declared.low if name == "min" else quant.declared.high
        return end.data if isinstance(end, Array) else np.array(end, np.float32)
    if not quant.storage.is_integer or quant.kind != "uniform":
        raise OpError(f"qparams: quantized values of {quant} have no bounds; read scale and zero")
    extreme = quant.low if name == "min" else quant.high
    mapping = mapping_of(quant)
    value = (extreme - np.asarray(mapping.zero, np.float64)) * np.asarray(mapping.scale, np.float64)
    plus = mapping.plus if isinstance(mapping, Map) else None
    return value if plus is None else value + np.asarray(plus, np.float64).reshape(value.shape)


def _run_fake_quantize(run: _DynamicRun) -> tuple[Tensor, ...]:
    x, node = run.arrays["x"], run.node
    # As in a framework's training graph: switched off, it hands its input on.
    if node.attrs["enabled"] is not True:
        return (x,)
    element = node.inner.get("code")
    if not isinstance(element, QuantType):
        raise OpError("fake_quantize: the inner slot `code` has no quantized type")
    code = with_companion_parameters(element, "code", run.beside, run.rules)
    if code.dynamic:
        raise OpError(f"fake_quantize: code is {element}; code.scale is to give the number")
    kind = TensorType(node.operands["x"].type.shape, code)
    return (fake_quantize(x, kind, node.attrs, run.rules),)


# -- products -------------------------------------------------------------------------------------


def _matmul_integer(run: _DynamicRun) -> tuple[Tensor, ...]:
    """Sums of (a - a.zero) * (b - b.zero); a list of zeros is along rows, or columns."""
    a = _subtract_zero(run.arrays["a"], run.beside.get("a.zero"), rows=True)
    b = _subtract_zero(run.arrays["b"], run.beside.get("b.zero"), rows=False)
    return (accumulate.matmul(a, b),)


def _subtract_zero(data: Tensor, zero: Tensor | None, *, rows: bool) -> Tensor:
    """Returns the numbers less their zeros, one for all or one a row or column."""
    if zero is None:
        return data
    zeros = zero.astype(np.int64)
    if zeros.size == 1:
        zeros = zeros.reshape(())
    elif zeros.ndim == 1 and rows:
        zeros = zeros[:, None]
    return np.asarray(data.astype(np.int64) - zeros)


def _conv_integer(run: _DynamicRun) -> tuple[Tensor, ...]:
    """Sums of a convolution, padding counting as x's zero."""
    x, w = run.arrays["x"], run.arrays["w"]
    axes = x.ndim - 2
    stride = run.wholes("stride") or (1,) * axes
    dilation = run.wholes("dilation") or (1,) * axes
    pad = run.wholes("pad") or (0,) * 2 * axes
    groups = run.node.attrs["groups"]
    assert isinstance(groups, int)
    x_zero, w_zero = run.beside.get("x.zero"), run.beside.get("w.zero")
    # Zero points are subtracted before padding, so that a padding of 0 counts as the zero point.
    x_centered = _subtract_zero(x, x_zero, rows=False)
    w_centered = w.astype(np.int64)
    if w_zero is not None:
        shape = (-1,) + (1,) * (w.ndim - 1) if w_zero.size > 1 else ()
        w_centered = w_centered - w_zero.astype(np.int64).reshape(shape)
    # Products of numbers below 2^9 in magnitude, 2^19 of them: below 2^53, exact in float64.
    if (terms := math.prod(w.shape[1:])) > 1 << 19:
        raise OpError(f"conv_integer: sums of {terms} terms; up to {1 << 19} are exact")
    sides = [(0, 0), (0, 0), *((pad[i], pad[i + axes]) for i in range(axes))]
    padded_x = np.pad(x_centered.astype(np.float64), sides)
    return (_convolve(padded_x, w_centered.astype(np.float64), stride, dilation, groups),)


def _convolve(
    x: NDArray[np.float64],
    w: NDArray[np.float64],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Returns one product of matrices a tap of the kernel; whole numbers, so that no order
    matters."""
    batch, out_channels, channels_per_group = x.shape[0], w.shape[0], w.shape[1]
    counts = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    if min(counts) < 1:
        raise OpError("conv_integer: the window is larger than the padded input")
    x_by_group = x.reshape(batch, groups, channels_per_group, *x.shape[2:])
    by_group = w.reshape(groups, out_channels // groups, *w.shape[1:])
    total = np.zeros((batch, groups, out_channels // groups, int(np.prod(counts))))
    for tap in np.ndindex(*w.shape[2:]):
        positions: list[slice] = [
            slice(i * d, i * d + (c - 1) * s + 1, s)
            for i, d, c, s in zip(tap, dilation, counts, stride, strict=True)
        ]
        elements = x_by_group[(slice(None), slice(None), slice(None), *positions)]
        elements = elements.reshape(batch, groups, channels_per_group, int(np.prod(counts)))
        total += np.matmul(by_group[(slice(None), slice(None), slice(None), *tap)], elements)
    return accumulate.wrap_to_int32(total).reshape(batch, out_channels, *counts)


_FUNCTIONS: Mapping[str, Callable[[_DynamicRun], tuple[Tensor, ...]]] = {
    "recode": _recode,
    "choose_qparams": _choose,
    "qparams": _qparams,
    "fake_quantize": _run_fake_quantize,
}
_PLAIN_INTEGER_PRODUCTS: Mapping[str, Callable[[_DynamicRun], tuple[Tensor, ...]]] = {
    "matmul_integer": _matmul_integer,
    "conv_integer": _conv_integer,
}
OPS = frozenset((*_FUNCTIONS, *_PLAIN_INTEGER_PRODUCTS))
"""The ops that are computed here."""

"""Which function computes which op in float."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.dtype import DType, dtype_of
from qir.ir.ops import OPS, plugin_op
from qir.reference import (
    activations,
    attention,
    columns,
    conv,
    conv_nd,
    einsum,
    elementwise,
    embedding,
    index,
    logic,
    matmul,
    moves,
    norm,
    pool,
    pool_nd,
    recurrent,
    reduce,
    resize,
    shape,
    sizes,
    unary,
)
from qir.reference.operands import contiguous, round_to_dtype, truncate_to_integer, wrap_to_width

Operands: TypeAlias = Mapping[str, NDArray[np.generic]]

OpResult: TypeAlias = "NDArray[np.generic] | tuple[NDArray[np.generic], ...]"

FUNCTIONS: dict[str, Callable[..., OpResult]] = {
    # Families whose functions are all named as their ops bring a table of their own; the others are
    # listed here, since a module of NumPy functions cannot name them so (`pow`, `min`).
    "add": elementwise.add,
    "sub": elementwise.sub,
    "mul": elementwise.mul,
    "div": elementwise.div,
    "relu": elementwise.relu,
    "clip": elementwise.clip,
    "sigmoid": elementwise.sigmoid,
    "pow": elementwise.power,
    "mod": elementwise.mod,
    "floor_div": elementwise.floor_div,
    "squared_difference": elementwise.squared_difference,
    "atan2": elementwise.atan2,
    "min": elementwise.elementwise_min,
    "max": elementwise.elementwise_max,
    "sum": elementwise.elementwise_sum,
    "mean": elementwise.mean,
    **activations.FUNCTIONS,
    **unary.FUNCTIONS,
    **logic.FUNCTIONS,
    **moves.FUNCTIONS,
    **sizes.FUNCTIONS,
    "conv2d": conv.conv2d,
    **conv_nd.FUNCTIONS,
    "matmul": matmul.matmul,
    "gemm": matmul.gemm,
    "linear": matmul.linear,
    "batch_norm": norm.batch_norm,
    "softmax": norm.softmax,
    "log_softmax": norm.log_softmax,
    "lp_normalize": norm.lp_normalize,
    "layer_norm": norm.layer_norm,
    "rms_norm": norm.rms_norm,
    "instance_norm": norm.instance_norm,
    "group_norm": norm.group_norm,
    "lrn": norm.lrn,
    "max_pool2d": pool.max_pool2d,
    "avg_pool2d": pool.avg_pool2d,
    "global_avg_pool": pool.global_avg_pool,
    "global_max_pool": pool.global_max_pool,
    "global_lp_pool": pool.global_lp_pool,
    **pool_nd.FUNCTIONS,
    "reshape": shape.reshape,
    "flatten": shape.flatten,
    "transpose": shape.transpose,
    "concat": shape.concat,
    "pad": shape.pad,
    **reduce.FUNCTIONS,
    **recurrent.FUNCTIONS,
    **attention.FUNCTIONS,
    **resize.FUNCTIONS,
    **index.FUNCTIONS,
    **embedding.FUNCTIONS,
    **einsum.FUNCTIONS,
    **columns.FUNCTIONS,
}


def compute(op: str, operands: Operands, attrs: Mapping[str, Attr]) -> NDArray[np.generic]:
    """Returns one op in float that has one result; OpError as for `compute_all`."""
    results = compute_all(op, operands, attrs)
    if len(results) != 1:
        raise OpError(f"{op} makes {len(results)} values, one is wanted")
    return results[0]


def compute_all(
    op: str, operands: Operands, attrs: Mapping[str, Attr]
) -> tuple[NDArray[np.generic], ...]:
    """Returns one op in float; raises OpError for values it cannot take or an op that has no
    function."""
    result = _run_plugin_or_core(op, operands, attrs)
    return result if isinstance(result, tuple) else (result,)


def _run_plugin_or_core(op: str, operands: Operands, attrs: Mapping[str, Attr]) -> OpResult:
    # A cast is the only op whose attribute decides the element type of its result, so it has no
    # function that sees operands alone.
    if op == "cast":
        return cast(operands["x"], attrs["to"])
    function = FUNCTIONS.get(op) or _plugin_function(op)
    # Functions sum in the order of memory: a view would sum in another than its copy.
    operands = {slot: contiguous(x) for slot, x in operands.items()}
    if "xs.0" in operands:
        # A variadic op's function takes one list, in the order of the slots.
        order = sorted(operands, key=lambda s: int(s.rpartition(".")[2]))
        return function([operands[s] for s in order], **attrs)
    return function(**operands, **attrs)


def _plugin_function(op: str) -> Callable[..., OpResult]:
    """Returns the function of an op that a plugin brings; raises OpError for an op that has
    none."""
    # An op of the core without a function is one that the interpreter runs itself (control flow,
    # companions): a plugin must not supply it.
    if OPS.own(op) or op not in OPS:
        raise OpError(f"no reference for op {op}")
    function = plugin_op(op).reference

    def run(*operands: object, **named: object) -> OpResult:
        result = function(*operands, **named)
        # Functions of plugins may give NumPy scalars, which the interpreter does not take for
        # arrays.
        return tuple(map(np.asarray, result)) if isinstance(result, tuple) else np.asarray(result)

    return run


def cast(x: NDArray[np.generic], to: Attr) -> NDArray[np.generic]:
    """Values in another element type; integers keep the low bits that the type has.

    Float values become whole numbers as `operands.cut` says. OpError for texts that are no such
    numbers.
    """
    if not isinstance(to, DType):
        raise OpError(f"cast: to = {to!r} is no element type")
    # NumPy leaves floats beyond the integers to the processor, so that they are cut explicitly.
    if to.is_integer and x.dtype.kind != "b" and dtype_of(x).is_float:
        return wrap_to_width(truncate_to_integer(x, to), to)
    # ml_dtypes goes from float64 by float32, which rounds twice.
    if x.dtype == np.float64 and to.is_float:
        return round_to_dtype(x, to.carrier)
    if x.dtype.kind in "OUST" and to.kind != "string":
        # NumPy would parse texts too, but says neither which element is wrong nor refuses what is
        # too large.
        return wrap_to_width(_parse_texts(x, to), to)
    with np.errstate(invalid="ignore", over="ignore"):
        return wrap_to_width(x.astype(to.carrier), to)


def _parse_texts(x: NDArray[np.generic], to: DType) -> NDArray[np.generic]:
    """Texts as the numbers that they are; raises OpError for others."""
    out = np.zeros(x.shape, to.carrier)
    for at, text in np.ndenumerate(x):
        try:
            out[at] = _parse_number(text, to)
        except (ValueError, OverflowError, TypeError):
            raise OpError(f"cast: x at {list(at)} is {text!r:.40}, no {to}") from None
    return out


def _parse_number(text: object, to: DType) -> float:
    text = text.decode() if isinstance(text, bytes) else str(text)
    if not to.is_integer:
        return float(text)
    low, high = to.bounds
    # int() has no ends; NumPy would wrap without an error.
    if not low <= (integer := int(text)) <= high:
        raise ValueError
    return integer

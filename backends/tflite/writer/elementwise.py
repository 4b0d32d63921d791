"""Arithmetic, comparisons, activations and norms, and conversions to and from integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qir.ir.dims import Dim
from qir.ir.dtype import I16
from qir.ir.types import TensorType

from .flatbuffer import Field
from .network import ACTIVATIONS, OpCall, Options, OpWriter, clip_bounds
from .schema import ELEMENT_TYPES

_FUSING = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}


def _unary(op: str, title: str = "", **options: bool) -> OpWriter:
    def write(c: OpCall) -> int:
        chosen: Options = (f"{title}Options", options) if title else None
        return c.finish(op, (c.tensor(),), chosen)

    return write


def _binary(op: str) -> OpWriter:
    return lambda c: c.finish(op, (c.tensor("a"), c.tensor("b")))


def _fusing(c: OpCall) -> int:
    """Writes arithmetic whose kernels may end in an activation."""
    chosen: dict[str, Field] = {"fused_activation_function": c.activation}
    quant = c.result.quant
    if c.op in ("add", "sub") and quant is not None and quant.storage == I16:
        # Else scales that all are powers of two have a kernel of their own, which refuses some.
        chosen["pot_scale_int16"] = False
    options: Options = (f"{_FUSING[c.op]}Options", chosen)
    return c.finish(c.op.upper(), (c.tensor("a"), c.tensor("b")), options)


def _div(c: OpCall) -> int:
    if c.result.quant is None and not c.result.dtype.is_float:
        raise c.refused("a quotient of integers is not written; divide floats")
    return _fusing(c)


def _folded(op: str, title: str) -> OpWriter:
    """Returns the writer of an op of any number of operands, as one after another."""

    def write(c: OpCall) -> int:
        first, *rest = c.node.operands.values()
        made = c.w.tensor(first)
        options: Options = (f"{title}Options", {}) if title else None
        shape = first.type.shape
        for i, value in enumerate(rest):
            inputs = (made, c.w.tensor(value))
            if i == len(rest) - 1:
                return c.finish(op, inputs, options)
            shape = _broadcast(shape, value.type.shape)
            made = c.add(op, inputs, c.result.with_shape(shape), options)
        return c.w.reshaped(c.node, made, c.result, c.node.result.name)

    return write


def _broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    rank = max(len(a), len(b))
    both = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    return tuple(m if n == 1 else n for m, n in both)


def _clip(c: OpCall) -> int:
    bounds = clip_bounds(c.attrs)
    names = {1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6"}
    number = ACTIVATIONS.get(bounds)
    floats = c.result.express.is_float
    if number is not None and floats:
        return c.finish(names[number], (c.tensor(),))
    if bounds == (0.0, 1.0) and floats:
        return c.finish("RELU_0_TO_1", (c.tensor(),))
    if c.result.quant is not None:
        raise c.refused(f"no operator clamps integers to {bounds[0]}..{bounds[1]}; keep it float")
    made = c.tensor()
    steps = [(op, b) for op, b in zip(("MAXIMUM", "MINIMUM"), bounds, strict=True) if b is not None]
    for op, bound in steps[:-1]:
        made = c.add(op, (made, c.scalar(bound)), c.result)
    if not steps:
        return c.w.reshaped(c.node, made, c.result, c.node.result.name)
    op, bound = steps[-1]
    return c.finish(op, (made, c.scalar(bound)))


def _leaky_relu(c: OpCall) -> int:
    return c.finish("LEAKY_RELU", (c.tensor(),), ("LeakyReluOptions", {"alpha": c.real("alpha")}))


def _prelu(c: OpCall) -> int:
    x, slope = c.kind(), c.operands["slope"]
    # PRELU's slopes lack the batch axis; others are broadcast from the last axis on.
    data = slope.constant
    if data is None:
        raise c.refused("its slopes are computed; PRELU takes a constant")
    shape = (1,) * (x.rank - slope.type.rank) + c.known(slope.type.shape)
    if x.rank < 2 or shape[0] != 1:
        raise c.refused("PRELU has no slopes along the first axis; write it by min and mul")
    kind = slope.type.with_shape(shape[1:])
    held, halves = data.data.reshape(shape[1:]), slope in c.w.halves
    slopes = c.w.constant(c.node, held, kind, slope.name, halves=halves)
    return c.finish("PRELU", (c.tensor(), slopes))


def _gelu(c: OpCall) -> int:
    approximate = c.attrs["approximate"] == "tanh"
    return c.finish("GELU", (c.tensor(),), ("GeluOptions", {"approximate": approximate}))


def _elu(c: OpCall) -> int:
    if c.real("alpha") != 1.0:
        raise c.refused("ELU has alpha = 1; write another by exp and where")
    return c.finish("ELU", (c.tensor(),))


class _FloatParts:
    """An op that is written as several on floats of its result's type."""

    def __init__(self, c: OpCall) -> None:
        self.c, self.x = c, c.tensor()
        if c.result.quant is not None:
            raise c.refused("TensorFlow Lite has no kernel of it on integers; keep it float")

    def f(self, op: str, *operands: int | float, kind: TensorType | None = None) -> int:
        """Adds an operator on tensors and numbers."""
        return self.c.add(op, self._inputs(operands), kind or self.c.result, _options(op))

    def last(self, op: str, *operands: int | float) -> int:
        """Adds the operator that makes the result."""
        return self.c.finish(op, self._inputs(operands), _options(op))

    def _inputs(self, operands: Sequence[int | float]) -> list[int]:
        return [self.c.scalar(o) if isinstance(o, float) else o for o in operands]


def _options(op: str) -> Options:
    title = _FUSING.get(op.lower(), "")
    return (f"{title}Options", {"fused_activation_function": 0}) if title else None


def _silu(c: OpCall) -> int:
    s, alpha = _FloatParts(c), c.real("alpha")
    scaled = s.x if alpha == 1.0 else s.f("MUL", s.x, alpha)
    return s.last("MUL", s.x, s.f("LOGISTIC", scaled))


def _softplus_of(s: _FloatParts, x: int) -> int:
    """Adds log(1 + e^x), as the greater of x and 0 and a logarithm that does not overflow."""
    small = s.f("EXP", s.f("NEG", s.f("ABS", x)))
    return s.f("ADD", s.f("RELU", x), s.f("LOG", s.f("ADD", small, 1.0)))


def _softplus(c: OpCall) -> int:
    s = _FloatParts(c)
    small = s.f("EXP", s.f("NEG", s.f("ABS", s.x)))
    return s.last("ADD", s.f("RELU", s.x), s.f("LOG", s.f("ADD", small, 1.0)))


def _mish(c: OpCall) -> int:
    s = _FloatParts(c)
    return s.last("MUL", s.x, s.f("TANH", _softplus_of(s, s.x)))


def _hard_sigmoid(c: OpCall) -> int:
    s = _FloatParts(c)
    line = s.f("ADD", s.f("MUL", s.x, c.real("alpha")), c.real("beta"))
    return s.last("MINIMUM", s.f("MAXIMUM", line, 0.0), 1.0)


# Abramowitz and Stegun, 7.1.26: erf(x) = 1 - (a1 t + ... + a5 t^5) e^(-x^2), within 1.5e-7.
_ERF_STEP = 0.3275911
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _erf(c: OpCall) -> int:
    s = _FloatParts(c)
    size = s.f("ABS", s.x)
    t = s.f("DIV", 1.0, s.f("ADD", s.f("MUL", size, _ERF_STEP), 1.0))
    series = s.f("MUL", t, _ERF[0])
    for factor in _ERF[1:]:
        series = s.f("MUL", s.f("ADD", series, factor), t)
    bell = s.f("EXP", s.f("NEG", s.f("MUL", s.x, s.x)))
    tail = s.f("MUL", series, bell)
    if c.op == "erf":
        return s.last("MUL", s.f("SIGN", s.x), s.f("SUB", 1.0, tail))
    # erfc(x) is the tail on the right, and 2 without it on the left.
    left = s.f("MUL", s.f("SUB", 1.0, s.f("SIGN", s.x)), s.f("SUB", 1.0, tail))
    return s.last("ADD", tail, left)


def _selu(c: OpCall) -> int:
    s, alpha, gamma = _FloatParts(c), c.real("alpha"), c.real("gamma")
    negative = s.f("MUL", s.f("ELU", s.f("MINIMUM", s.x, 0.0)), alpha)
    return s.last("MUL", s.f("ADD", s.f("RELU", s.x), negative), gamma)


def _softsign(c: OpCall) -> int:
    s = _FloatParts(c)
    return s.last("DIV", s.x, s.f("ADD", s.f("ABS", s.x), 1.0))


def _reciprocal(c: OpCall) -> int:
    s = _FloatParts(c)
    return s.last("DIV", 1.0, s.x)


def _exp2(c: OpCall) -> int:
    s = _FloatParts(c)
    return s.last("EXP", s.f("MUL", s.x, math.log(2.0)))


def _softmax(c: OpCall) -> int:
    x, axis = c.kind(), c.axis()
    op, options = _SOFTMAXES[c.op]
    if axis == x.rank - 1:
        return c.finish(op, (c.tensor(),), options)
    perm = list(range(x.rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    turned = x.with_shape(tuple(x.shape[i] for i in perm))
    moved = c.w.transposed(c.node, c.tensor(), turned, perm)
    made = c.add(op, (moved,), turned.with_element(c.result.element), options)
    return c.w.transposed(c.node, made, c.result, perm, c.node.result.name)


_SOFTMAXES: Mapping[str, tuple[str, Options]] = {
    "softmax": ("SOFTMAX", ("SoftmaxOptions", {"beta": 1.0})),
    "log_softmax": ("LOG_SOFTMAX", None),
}


def _layer_norm(c: OpCall) -> int:
    s, x = _FloatParts(c), c.kind()
    axes = list(range(c.axis(), x.rank))
    row = x.with_shape(tuple(1 if i in axes else n for i, n in enumerate(x.shape)))

    def mean(of: int) -> int:
        keep: Options = ("ReducerOptions", {"keep_dims": True})
        return c.add("MEAN", (of, c.w.ints(axes, "axes")), row, keep)

    centre = mean(s.x)
    spread = mean(s.f("SQUARED_DIFFERENCE", s.x, centre))
    inverse = s.f("RSQRT", s.f("ADD", spread, c.real("eps"), kind=row), kind=row)
    unit = s.f("MUL", s.f("SUB", s.x, centre), inverse)
    if "beta" not in c.operands:
        return s.last("MUL", unit, c.tensor("gamma"))
    return s.last("ADD", s.f("MUL", unit, c.tensor("gamma")), c.tensor("beta"))


def _batch_norm(c: OpCall) -> int:
    """Writes a batch norm as a product and a sum with constants along its axis."""
    s = _FloatParts(c)
    gamma, beta, mean, var = (
        np.asarray(c.constant(slot), np.float64) for slot in ("gamma", "beta", "mean", "var")
    )
    shape = [1] * c.kind().rank
    shape[c.axis()] = gamma.size
    factor = gamma / np.sqrt(var + c.real("eps"))
    rows = (factor, beta - mean * factor)
    factors, summands = (c.w.plain(row.astype(np.float32).reshape(shape)) for row in rows)
    return s.last("ADD", s.f("MUL", s.x, factors), summands)


def _lp_normalize(c: OpCall) -> int:
    if c.integer("p") != 2 or c.axis() != c.kind().rank - 1:
        raise c.refused("L2_NORMALIZATION divides by the length along the last axis alone")
    return c.finish("L2_NORMALIZATION", (c.tensor(),), ("L2NormOptions", {}))


def _lrn(c: OpCall) -> int | Sequence[int]:
    from .images import finish_image

    size = c.integer("size")
    if c.kind().rank != 4 or size % 2 == 0:
        raise c.refused("LOCAL_RESPONSE_NORMALIZATION counts as many channels before as after")
    options: Options = (
        "LocalResponseNormalizationOptions",
        {
            "radius": size // 2,
            "bias": c.real("bias"),
            "alpha": c.real("alpha") / size,  # its sum of squares is not divided
            "beta": c.real("beta"),
        },
    )
    image, _ = c.image()
    return finish_image(c, "LOCAL_RESPONSE_NORMALIZATION", (image,), options)


def _where(c: OpCall) -> int:
    return c.finish("SELECT_V2", tuple(c.tensor(slot) for slot in ("condition", "a", "b")))


def _cast(c: OpCall) -> int:
    x = c.tensor()
    options: Options = (
        "CastOptions",
        {
            "in_data_type": c.w.element_of(x),
            "out_data_type": ELEMENT_TYPES.get(str(c.result.dtype), 0),
        },
    )
    return c.finish("CAST", (x,), options)


def _quantize(c: OpCall) -> int:
    return c.finish("QUANTIZE", (c.tensor(),))


def _dequantize(c: OpCall) -> int:
    return c.finish("DEQUANTIZE", (c.tensor(),))


def _identity(c: OpCall) -> Sequence[int]:
    """Gives a result the tensor of its operand."""
    c.w.tensors[c.node.result] = c.tensor()
    return ()


def _arg(op: str, title: str) -> OpWriter:
    def write(c: OpCall) -> int:
        if c.attrs["last"]:
            raise c.refused(f"{op} finds the first of equal elements; flip its operand")
        kept = c.attrs["keep"]
        shape = tuple(n for i, n in enumerate(c.kind().shape) if i != c.axis())
        kind = c.result.with_shape(shape) if kept else c.result
        options: Options = (f"{title}Options", {"output_type": ELEMENT_TYPES["i64"]})
        inputs = (c.tensor(), c.w.ints(c.axis(), "axis"))
        if not kept:
            return c.finish(op, inputs, options)
        made = c.add(op, inputs, kind, options)
        return c.w.reshaped(c.node, made, c.result, c.node.result.name)

    return write


def _reduction(op: str) -> OpWriter:
    def write(c: OpCall) -> int:
        axes = list(c.integers("axes")) or list(range(c.kind().rank))
        options: Options = ("ReducerOptions", {"keep_dims": bool(c.attrs["keep"])})
        return c.finish(op, (c.tensor(), c.w.ints(axes, "axes")), options)

    return write


def _mod(c: OpCall) -> int:
    if c.attrs["fmod"]:
        raise c.refused("FLOOR_MOD has the sign of the divisor; write fmod by other ops")
    return _binary("FLOOR_MOD")(c)  # type: ignore[return-value]


def _cumsum(c: OpCall) -> int:
    options: Options = (
        "CumsumOptions",
        {"exclusive": bool(c.attrs["exclusive"]), "reverse": bool(c.attrs["reverse"])},
    )
    return c.finish("CUMSUM", (c.tensor(), c.w.ints(c.axis(), "axis")), options)


OPS: Mapping[str, OpWriter] = {
    "abs": _unary("ABS"),
    "add": _fusing,
    "arg_max": _arg("ARG_MAX", "ArgMax"),
    "arg_min": _arg("ARG_MIN", "ArgMin"),
    "batch_norm": _batch_norm,
    "cast": _cast,
    "ceil": _unary("CEIL"),
    "clip": _clip,
    "cos": _unary("COS"),
    "cumsum": _cumsum,
    "dequantize": _dequantize,
    "div": _div,
    "dropout": _identity,
    "elu": _elu,
    "equal": _binary("EQUAL"),
    "erf": _erf,
    "erfc": _erf,
    "exp": _unary("EXP"),
    "exp2": _exp2,
    "floor": _unary("FLOOR"),
    "floor_div": _binary("FLOOR_DIV"),
    "gelu": _gelu,
    "greater": _binary("GREATER"),
    "greater_equal": _binary("GREATER_EQUAL"),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _unary("HARD_SWISH"),
    "identity": _identity,
    "layer_norm": _layer_norm,
    "leaky_relu": _leaky_relu,
    "less": _binary("LESS"),
    "less_equal": _binary("LESS_EQUAL"),
    "log": _unary("LOG"),
    "log_softmax": _softmax,
    "logical_and": _binary("LOGICAL_AND"),
    "logical_not": _unary("LOGICAL_NOT"),
    "logical_or": _binary("LOGICAL_OR"),
    "lp_normalize": _lp_normalize,
    "lrn": _lrn,
    "max": _folded("MAXIMUM", ""),
    "min": _folded("MINIMUM", ""),
    "mish": _mish,
    "mod": _mod,
    "mul": _fusing,
    "neg": _unary("NEG"),
    "not_equal": _binary("NOT_EQUAL"),
    "pow": _binary("POW"),
    "prelu": _prelu,
    "quantize": _quantize,
    "reciprocal": _reciprocal,
    "reduce_max": _reduction("REDUCE_MAX"),
    "reduce_mean": _reduction("MEAN"),
    "reduce_min": _reduction("REDUCE_MIN"),
    "reduce_prod": _reduction("REDUCE_PROD"),
    "reduce_sum": _reduction("SUM"),
    "relu": _unary("RELU"),
    "requantize": _quantize,
    "round": _unary("ROUND"),
    "rsqrt": _unary("RSQRT"),
    "selu": _selu,
    "sigmoid": _unary("LOGISTIC"),
    "sign": _unary("SIGN"),
    "silu": _silu,
    "sin": _unary("SIN"),
    "softmax": _softmax,
    "softplus": _softplus,
    "softsign": _softsign,
    "sqrt": _unary("SQRT"),
    "square": _unary("SQUARE"),
    "squared_difference": _binary("SQUARED_DIFFERENCE"),
    "sub": _fusing,
    "sum": _folded("ADD", "Add"),
    "tanh": _unary("TANH"),
    "where": _where,
}

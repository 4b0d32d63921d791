"""Activations beyond relu, clip and sigmoid."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.ops.elementwise import (
    broadcast,
    float_unary,
    require_floats,
    require_same_express,
    unary,
)
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot, Traits
from qir.ir.types import TensorType

# The defaults of ONNX's Selu: torch's constants, rounded to float32.
SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


def _prelu(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "x", "slope")
    require_floats(call)
    result_shape = broadcast(call, call.shape("x"), call.shape("slope"))
    x = call.shape("x")
    # Broadcasting goes one way, as in ONNX's PRelu: slope may not widen x.
    if len(result_shape) != len(x) or not all(map(dims.may_be_equal, result_shape, x)):
        raise call.fail(f"slope {list(call.shape('slope'))} does not broadcast to x {list(x)}")
    return unary(call)


def _gelu(call: Call) -> tuple[TensorType, ...]:
    if call.text_attr("approximate") not in ("none", "tanh"):
        raise call.fail(f"approximate {call.text_attr('approximate')!r} is neither none nor tanh")
    return float_unary(call)


def _unary_op(name: str, doc: str, **attrs: float) -> OpSpec:
    """Returns one operand, one result, and attributes that are float numbers with these
    defaults."""
    attr_specs = tuple(AttrSpec(n, "float", v) for n, v in attrs.items())
    return OpSpec(name, _X, float_unary, attr_specs, _ELEMENTWISE, doc=doc)


_X = (Slot("x"),)
_ELEMENTWISE = Traits(elementwise=True)

OPS = (
    _unary_op("leaky_relu", "x, times alpha where it is negative", alpha=0.01),
    OpSpec("prelu", (Slot("x"), Slot("slope")), _prelu, doc="x, times slope where it is negative"),
    _unary_op("thresholded_relu", "x where it is greater than alpha, else 0", alpha=1.0),
    _unary_op("elu", "x where it is positive, else alpha * (exp(x) - 1)", alpha=1.0),
    _unary_op(
        "selu",
        "gamma * x where x is positive, else gamma * alpha * (exp(x) - 1)",
        alpha=SELU_ALPHA,
        gamma=SELU_GAMMA,
    ),
    _unary_op("celu", "max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)", alpha=1.0),
    _unary_op("tanh", "hyperbolic tangent"),
    _unary_op("hard_sigmoid", "alpha * x + beta, kept in 0..1", alpha=0.2, beta=0.5),
    _unary_op("hard_swish", "x * (x / 6 + 0.5, kept in 0..1)"),
    _unary_op("softplus", "log(1 + exp(x))"),
    _unary_op("softsign", "x / (1 + |x|)"),
    OpSpec(
        "gelu",
        _X,
        _gelu,
        (AttrSpec("approximate", "text", "none"),),
        _ELEMENTWISE,
        doc="x times the normal distribution up to x, exact or by tanh",
    ),
    _unary_op("silu", "x * sigmoid(alpha * x)", alpha=1.0),
    _unary_op("mish", "x * tanh(softplus(x))"),
    _unary_op("log_sigmoid", "log(1 / (1 + exp(-x)))"),
    _unary_op("tanh_shrink", "x - tanh(x)"),
    _unary_op(
        "shrink",
        "x + bias below -lambd, x - bias above lambd, else 0",
        lambd=0.5,
        bias=0.0,
    ),
    OpSpec(
        "logit",
        _X,
        float_unary,
        (AttrSpec("eps", "float"),),
        _ELEMENTWISE,
        doc="log(x / (1 - x)), x kept in eps..1 - eps first where there is an eps",
    ),
)

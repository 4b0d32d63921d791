"""Normalization and softmax."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.ops.elementwise import broadcast, require_floats, require_same_express, unary
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import TensorType


def _batch_norm(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "x", "gamma", "beta", "mean", "var")
    require_floats(call)
    axis = call.axis_attr("axis", len(call.shape("x")))
    channels = call.shape("x")[axis]
    for slot in ("gamma", "beta", "mean", "var"):
        if len(call.shape(slot)) != 1 or not dims.may_be_equal(call.shape(slot)[0], channels):
            raise call.fail(f"{slot} has {list(call.shape(slot))}, x has {channels} channels")
    return unary(call)


def _softmax(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    call.axis_attr("axis", len(call.shape("x")))
    return unary(call)


def _last_axes_norm(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "x", "gamma", "beta")
    require_floats(call)
    x = call.shape("x")
    call.axis_attr("axis", len(x))
    for slot in ("gamma", "beta"):
        if slot not in call.types:
            continue
        shape = call.shape(slot)
        result_shape = broadcast(call, x, shape)
        if len(result_shape) != len(x) or not all(map(dims.may_be_equal, result_shape, x)):
            raise call.fail(f"{slot} {list(shape)} does not broadcast to x {list(x)}")
    return unary(call)


def _channel_norm(call: Call) -> tuple[TensorType, ...]:
    require_same_express(call, "x", "gamma", "beta")
    require_floats(call)
    x, minimum_rank = call.shape("x"), 2 if call.op == "group_norm" else 3
    if len(x) < minimum_rank:
        raise call.fail(f"x has {len(x)} axes, it takes {minimum_rank} or more")
    for slot in ("gamma", "beta"):
        if len(call.shape(slot)) != 1 or not dims.may_be_equal(call.shape(slot)[0], x[1]):
            raise call.fail(f"{slot} has {list(call.shape(slot))}, x has {x[1]} channels")
    if "groups" in call.attrs:
        groups, channels = call.int_attr("groups"), x[1]
        if groups < 1 or (isinstance(channels, int) and channels % groups):
            raise call.fail(f"{channels} channels do not split into {groups} groups")
    return unary(call)


def _lrn(call: Call) -> tuple[TensorType, ...]:
    require_floats(call)
    if len(call.shape("x")) < 3 or call.int_attr("size") < 1:
        raise call.fail(f"size = {call.int_attr('size')}, x has {len(call.shape('x'))} axes")
    return unary(call)


def _lp_normalize(call: Call) -> tuple[TensorType, ...]:
    if call.int_attr("p") not in (1, 2):
        raise call.fail(f"p = {call.int_attr('p')}, it must be 1 or 2")
    return _softmax(call)


OPS = (
    OpSpec(
        "batch_norm",
        tuple(Slot(s) for s in ("x", "gamma", "beta", "mean", "var")),
        _batch_norm,
        (AttrSpec("eps", "float", 1e-5), AttrSpec("axis", "int", 1)),
        doc="(x - mean) / sqrt(var + eps) * gamma + beta, channel by channel",
    ),
    OpSpec(
        "softmax",
        (Slot("x"),),
        _softmax,
        (AttrSpec("axis", "int", -1),),
        doc="exp(x - max) / sum along one axis",
    ),
    OpSpec(
        "log_softmax",
        (Slot("x"),),
        _softmax,
        (AttrSpec("axis", "int", -1),),
        doc="logarithm of softmax along one axis",
    ),
    OpSpec(
        "layer_norm",
        (Slot("x"), Slot("gamma"), Slot("beta", optional=True)),
        _last_axes_norm,
        (AttrSpec("axis", "int", -1), AttrSpec("eps", "float", 1e-5)),
        doc="(x - mean) / sqrt(var + eps) * gamma + beta over the axes from `axis` on",
    ),
    OpSpec(
        "rms_norm",
        (Slot("x"), Slot("gamma")),
        _last_axes_norm,
        (AttrSpec("axis", "int", -1), AttrSpec("eps", "float", 1e-5)),
        doc="x / sqrt(mean of squares + eps) * gamma over the axes from `axis` on",
    ),
    OpSpec(
        "instance_norm",
        (Slot("x"), Slot("gamma"), Slot("beta")),
        _channel_norm,
        (AttrSpec("eps", "float", 1e-5),),
        doc="each channel of each image to mean 0 and variance 1, then gamma and beta",
    ),
    OpSpec(
        "group_norm",
        (Slot("x"), Slot("gamma"), Slot("beta")),
        _channel_norm,
        (AttrSpec("groups", "int", required=True), AttrSpec("eps", "float", 1e-5)),
        doc="each group of channels to mean 0 and variance 1; gamma and beta are by channel",
    ),
    OpSpec(
        "lrn",
        (Slot("x"),),
        _lrn,
        (
            AttrSpec("size", "int", required=True),
            AttrSpec("alpha", "float", 1e-4),
            AttrSpec("beta", "float", 0.75),
            AttrSpec("bias", "float", 1.0),
        ),
        doc="x / (bias + alpha / size * sum of squares of the channels around) ^ beta; "
        "of size channels (size - 1) // 2 are before it and size // 2 after",
    ),
    OpSpec(
        "lp_normalize",
        (Slot("x"),),
        _lp_normalize,
        (AttrSpec("axis", "int", -1), AttrSpec("p", "int", 2)),
        doc="x / the p-norm of its axis, p 1 or 2; 0 where that is 0",
    ),
)

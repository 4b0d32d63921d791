"""Normalization layers and softmax."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall


def _constant_vector(call: OverloadCall, like: Value, number: float, count: int) -> Value:
    """Returns a constant vector, for gamma or beta of a layer without them."""
    data = np.full(count, number, like.type.dtype.carrier)
    return call.reader.graph.constant(data, name=call.reader.names(call.node, "row"))


def _channel_count(x: Value) -> int:
    channels = x.type.shape[1]
    if not isinstance(channels, int):
        raise KeepCall
    return channels


def _batch_statistics(call: OverloadCall, x: Value) -> tuple[Value, Value]:
    """Returns mean and variance of each channel of the data."""
    axes = tuple(axis for axis in range(x.type.rank) if axis != 1)
    mean_kept = call.add("reduce_mean", {"x": x}, {"axes": axes, "keep": True})
    square = call.add("squared_difference", {"a": x, "b": mean_kept})
    mean = call.add("squeeze", {"x": mean_kept}, {"axes": axes})
    # Batch norm divides by the count itself, without Bessel's correction.
    return mean, call.add("reduce_mean", {"x": square}, {"axes": axes, "keep": False})


def _batch_norm(call: OverloadCall) -> Value:
    x = call.value("input")
    training = any(call.arguments.get(name) for name in ("training", "use_input_stats"))
    uses_batch = call.optional("running_mean") is None
    # In training mode, the running statistics are updated too: a graph has no state for them.
    if training and not uses_batch:
        raise KeepCall("it normalizes by the statistics of the batch, and keeps these")
    channels = _channel_count(x)
    gamma, beta = call.optional("weight"), call.optional("bias")
    mean, var = (
        _batch_statistics(call, x)
        if uses_batch
        else map(call.value, ("running_mean", "running_var"))
    )
    operands = {
        "x": x,
        "gamma": _constant_vector(call, x, 1, channels) if gamma is None else gamma,
        "beta": _constant_vector(call, x, 0, channels) if beta is None else beta,
        "mean": mean,
        "var": var,
    }
    return call.add("batch_norm", operands, {"eps": call.number("eps"), "axis": 1})


def _decomposed_batch_norm(call: OverloadCall) -> list[Value]:
    """Reads the form of batch norm after functionalization; its saved statistics are empty."""
    empty = np.zeros(0, np.float32)
    return [_batch_norm(call), *(call.reader.graph.constant(empty) for _ in range(2))]


def _weight_norm(call: OverloadCall) -> Value:
    """Scales a weight to the norm `g` along all axes but one."""
    weight, kept_axis = call.value("v"), call.integer("dim")
    if kept_axis < 0:
        raise KeepCall("it has one length for all of the weight")
    axes = tuple(axis for axis in range(weight.type.rank) if axis != kept_axis)
    length = call.add("reduce_l2", {"x": weight}, {"axes": axes, "keep": True})
    scale = call.add("div", {"a": call.value("g"), "b": length})
    return call.add("mul", {"a": weight, "b": scale})


def _layer_norm(call: OverloadCall) -> Value:
    x, sizes = call.value("input"), call.integers("normalized_shape")
    gamma, beta = call.optional("weight"), call.optional("bias")
    if gamma is None:
        data = np.ones(sizes, x.type.dtype.carrier)
        gamma = call.reader.graph.constant(data, name=call.reader.names(call.node, "row"))
    operands = {"x": x, "gamma": gamma, "beta": beta}
    return call.add("layer_norm", operands, {"axis": -len(sizes), "eps": call.number("eps")})


def _rms_norm(call: OverloadCall) -> Value:
    x, sizes = call.value("input"), call.integers("normalized_shape")
    eps = call["eps"]
    # PyTorch's default is the machine epsilon of the element type.
    if eps is None:
        eps = torch.finfo(call.result.dtype).eps
    gamma = call.optional("weight")
    if gamma is None:
        data = np.ones(sizes, x.type.dtype.carrier)
        gamma = call.reader.graph.constant(data, name=call.reader.names(call.node, "row"))
    return call.add("rms_norm", {"x": x, "gamma": gamma}, {"axis": -len(sizes), "eps": eps})


def _group_norm(call: OverloadCall) -> Value:
    x = call.value("input")
    channels = _channel_count(x)
    gamma, beta = call.optional("weight"), call.optional("bias")
    operands = {
        "x": x,
        "gamma": _constant_vector(call, x, 1, channels) if gamma is None else gamma,
        "beta": _constant_vector(call, x, 0, channels) if beta is None else beta,
    }
    attrs = {"groups": call.integer("num_groups"), "eps": call.number("eps")}
    return call.add("group_norm", operands, attrs)


def _instance_norm(call: OverloadCall) -> Value:
    x = call.value("input")
    # With running statistics, it computes what batch norm computes.
    if not call.flag("use_input_stats"):
        return _batch_norm(call)
    channels = _channel_count(x)
    gamma, beta = call.optional("weight"), call.optional("bias")
    operands = {
        "x": x,
        "gamma": _constant_vector(call, x, 1, channels) if gamma is None else gamma,
        "beta": _constant_vector(call, x, 0, channels) if beta is None else beta,
    }
    return call.add("instance_norm", operands, {"eps": call.number("eps")})


def _softmax(op: str) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        x = call.promote("self", kind=call.result.dtype)[0]
        if not x.type.rank:
            raise KeepCall
        return call.add(op, {"x": x}, {"axis": call.axis("dim", x.type.rank)})

    return read


OPS = {
    "_native_batch_norm_legit_no_training.default": _decomposed_batch_norm,
    "_weight_norm.default": _weight_norm,
    "batch_norm.default": _batch_norm,
    "layer_norm.default": _layer_norm,
    "rms_norm.default": _rms_norm,
    "group_norm.default": _group_norm,
    "instance_norm.default": _instance_norm,
    "softmax.int": _softmax("softmax"),
    "_softmax.default": _softmax("softmax"),
    "log_softmax.int": _softmax("log_softmax"),
    "_log_softmax.default": _softmax("log_softmax"),
}

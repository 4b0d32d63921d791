"""Normalization layers, softmax, and the loss layers at the end of networks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qir.ir.node import Value

from .call import SymbolCall, int64_array
from .results import Result, Unsupported


def batch_norm_gamma(call: SymbolCall, index: int) -> Value:
    """Returns gamma of a batch norm; ones if `fix_gamma` is set."""
    gamma = call.value(index)
    if not call.attrs.flag("fix_gamma", True):
        return gamma
    data = np.ones([call.size(gamma, 0)], gamma.type.dtype.carrier)
    return call.constant(data, "gamma")


def _batch_norm(call: SymbolCall) -> list[Result]:
    call.ignore("momentum", "use_global_stats", "output_mean_var")
    call.ignore("min_calib_range", "max_calib_range", "key", "ndev")
    x = call.value(0)
    operands = {
        "x": x,
        "gamma": batch_norm_gamma(call, 1),
        "beta": call.value(2),
        "mean": call.stored_state(3, "moving_mean"),
        "var": call.stored_state(4, "moving_var"),
    }
    attrs = {"eps": call.attrs.number("eps", 1e-3), "axis": call.axis("axis", x.type.rank, 1)}
    # Mean and variance are results of training.
    return [call.add("batch_norm", operands, attrs), None, None]


def _layer_norm(call: SymbolCall) -> list[Result]:
    call.ignore("output_mean_var")
    x = call.value(0)
    axis, last_axis = call.axis("axis", x.type.rank, -1), x.type.rank - 1
    # The op normalizes the last axes: the axis goes there and back.
    order = (*(i for i in range(x.type.rank) if i != axis), axis)
    if axis != last_axis:
        x = call.add("transpose", {"x": x}, {"perm": order})
    operands = {"x": x, "gamma": call.value(1), "beta": call.value(2)}
    normalized = call.add(
        "layer_norm", operands, {"axis": -1, "eps": call.attrs.number("eps", 1e-5)}
    )
    if axis != last_axis:
        inverse_order = tuple(order.index(i) for i in range(len(order)))
        normalized = call.add("transpose", {"x": normalized}, {"perm": inverse_order})
    return [normalized, None, None]


def _instance_norm(call: SymbolCall) -> Value:
    operands = {"x": call.value(0), "gamma": call.value(1), "beta": call.value(2)}
    return call.add("instance_norm", operands, {"eps": call.attrs.number("eps", 1e-3)})


def _group_norm(call: SymbolCall) -> list[Result]:
    call.ignore("output_mean_var")
    x, groups = call.value(0), call.attrs.integer("num_groups", 1)
    attrs = {"groups": groups, "eps": call.attrs.number("eps", 1e-5)}
    # The op has gamma and beta for each channel.
    channels = call.limited_size(x, 1)
    parameters = []
    for index, name in ((1, "gamma"), (2, "beta")):  # per group before MXNet 2.0
        stored = call.parameter_data(index, name)
        repeats = channels // groups if stored.shape == (groups,) else 1
        parameters.append(call.constant(np.repeat(stored, repeats), name))
    operands = {"x": x, "gamma": parameters[0], "beta": parameters[1]}
    return [call.add("group_norm", operands, attrs), None, None]


def _l2_normalization(call: SymbolCall) -> list[Result]:
    x = call.value(0)
    mode = call.choice("mode", "instance", "instance", "channel", "spatial")
    first = {"instance": 1, "channel": 1, "spatial": 2}[mode]
    axes = (1,) if mode == "channel" else tuple(range(first, x.type.rank))
    squares = call.add("reduce_sum_square", {"x": x}, {"axes": axes, "keep": True})
    eps = call.number(call.attrs.number("eps", 1e-10), x.type.dtype)
    length = call.add("sqrt", {"x": call.add("add", {"a": squares, "b": eps})})
    return [call.add("div", {"a": x, "b": length}), None]


def _lrn(call: SymbolCall) -> list[Result]:
    attrs = {
        "size": call.attrs.integer("nsize"),
        # MXNet divides alpha by the size too.
        "alpha": call.attrs.number("alpha", 1e-4),
        "beta": call.attrs.number("beta", 0.75),
        "bias": call.attrs.number("knorm", 2.0),
    }
    return [call.add("lrn", {"x": call.value(0)}, attrs), None]


def _softmax(op: str, negative: bool = False) -> Callable[[SymbolCall], Value]:
    def read(call: SymbolCall) -> Value:
        if call.attrs.flag("use_length"):
            raise Unsupported("use_length is True; mask its operand before it")
        x = call.value(0)
        if call.attrs.is_given("dtype"):
            x = call.cast(x, call.dtype())
        axis = call.axis("axis", x.type.rank, -1)
        if call.attrs.is_given("temperature"):
            temperature = call.number(call.attrs.number("temperature"), x.type.dtype)
            x = call.add("div", {"a": x, "b": temperature})
        if negative:
            x = call.add("neg", {"x": x})
        return call.add(op, {"x": x}, {"axis": axis})

    return read


def _activation(call: SymbolCall) -> Value:
    # MXNet documents "instance" as softmax over all axes but the first; oneDNN uses the last one.
    x = call.value(0)
    if call.choice("mode", "instance", "instance", "channel") == "channel":
        return call.add("softmax", {"x": x}, {"axis": 1})
    return call.add("softmax", {"x": x}, {"axis": -1})


def _softmax_output(call: SymbolCall) -> Value:
    call.ignore("grad_scale", "ignore_label", "use_ignore", "normalization", "out_grad")
    call.ignore("smooth_alpha")
    x = call.value(0)
    if call.attrs.flag("multi_output"):
        call.ignore("preserve_shape")
        return call.add("softmax", {"x": x}, {"axis": 1})
    call.ignore("preserve_shape")
    return call.add("softmax", {"x": x}, {"axis": -1})


def _regression_output(op: str = "") -> Callable[[SymbolCall], Value]:
    def read(call: SymbolCall) -> Value:
        call.ignore("grad_scale")
        return call.add(op, {"x": call.value(0)}) if op else call.value(0)

    return read


def _sequence_mask(call: SymbolCall) -> Value:
    x, axis = call.value(0), call.axis("axis", call.value(0).type.rank, 0)
    fill = call.attrs.number("value", 0.0)
    if not call.attrs.flag("use_sequence_length"):
        return x
    if axis > 1:
        raise Unsupported(f"axis is {axis}; 0 and 1 are read")
    steps = call.constant(
        int64_array(range(call.limited_size(x, axis))).astype(np.float32), "steps"
    )
    lengths = call.add("cast", {"x": call.value(1)}, {"to": steps.type.dtype})
    other_axes = tuple(range(2, x.type.rank))
    steps = call.add("unsqueeze", {"x": steps}, {"axes": (1 - axis, *other_axes)})
    lengths = call.add("unsqueeze", {"x": lengths}, {"axes": (axis, *other_axes)})
    is_inside = call.add("less", {"a": steps, "b": lengths})
    fill_value = call.number(fill, x.type.dtype)
    return call.add("where", {"condition": is_inside, "a": x, "b": fill_value})


OPS: dict[str, Callable[[SymbolCall], Result | list[Result]]] = {
    "BatchNorm": _batch_norm,
    "LayerNorm": _layer_norm,
    "InstanceNorm": _instance_norm,
    "GroupNorm": _group_norm,
    "L2Normalization": _l2_normalization,
    "LRN": _lrn,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "softmin": _softmax("softmax", negative=True),
    "SoftmaxActivation": _activation,
    "SoftmaxOutput": _softmax_output,
    "LinearRegressionOutput": _regression_output(),
    "MAERegressionOutput": _regression_output(),
    "LogisticRegressionOutput": _regression_output("sigmoid"),
    "SequenceMask": _sequence_mask,
}

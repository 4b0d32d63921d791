"""Batch norm in inference mode, softmax, local response normalization, and BiasAdd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import NodeCall
from .products import add_bias
from .reader import KeepNode
from .windows import FIRST


def _batch_norm(call: NodeCall) -> Sequence[Value]:
    x, gamma, beta, mean, var = call.operands
    if call.flag("is_training", True):
        raise KeepNode(
            "it normalizes by the statistics of the batch; freeze the model for inference"
        )
    layout = call.text("data_format", "NHWC")
    attrs: dict[str, Attr] = {
        "eps": call.number("epsilon", 1e-4),
        "axis": 1 if layout.startswith("NC") else x.type.rank - 1,
    }
    operands = {"x": x, "gamma": gamma, "beta": beta, "mean": mean, "var": var}
    # In inference mode, the further results are the running statistics.
    return call.add("batch_norm", operands, attrs), mean, var


def _softmax(op: str) -> Callable[[NodeCall], Value]:
    return lambda call: call.add(op, {"x": call[0]}, {"axis": -1})


def _lrn(call: NodeCall) -> Value:
    # LRN normalizes over channels, which are last in TensorFlow and second in the op.
    x = call.add("transpose", {"x": call[0]}, {"perm": (0, 3, 1, 2)})
    size = 2 * call.integer("depth_radius", 5) + 1
    attrs: dict[str, Attr] = {
        "size": size,
        "alpha": call.number("alpha", 1.0) * size,  # the op divides alpha by the size, as ONNX does
        "beta": call.number("beta", 0.5),
        "bias": call.number("bias", 1.0),
    }
    y = call.add("lrn", {"x": x}, attrs)
    return call.add("transpose", {"x": y}, {"perm": (0, 2, 3, 1)})


def _bias(call: NodeCall) -> Value:
    x, bias = call[0], call[1]
    if call.text("data_format", "NHWC") == FIRST and x.type.rank > 2:
        spatial_axes = tuple(range(1, x.type.rank - 1))
        bias = call.add("unsqueeze", {"x": bias}, {"axes": spatial_axes})
    return add_bias(call, x, bias)


def _l2_loss(call: NodeCall) -> Value:
    total = call.add("reduce_sum_square", {"x": call[0]}, {"keep": False})
    return call.add("mul", {"a": total, "b": call.scalar_like(0.5, call[0])})


OPS: dict[str, Callable[[NodeCall], Value | Sequence[Value]]] = {
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm),
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "LRN": _lrn,
    "BiasAdd": _bias,
    "BiasAddV1": _bias,
    "L2Loss": _l2_loss,
}

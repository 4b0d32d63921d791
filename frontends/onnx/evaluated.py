"""Runs kept operators: by onnxruntime at the operator's own version, or by ONNX's evaluator.

The evaluator has one form of most operators, the newest, and takes it for all; what it gives for
older ones, and for some of today's, is not what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from .op import held_graphs

_BETTER = frozenset(
    "MaxPool AveragePool LpPool LRN Resize LSTM GRU RNN BatchNormalization RoiAlign"
    " StringSplit".split()
)
"""Operators that the evaluator gets wrong in some forms, whatever their operator set is."""
_FINER = frozenset({"DFT"})
"""Operators whose older forms the evaluator has, nearer to what is exact than onnxruntime."""
_NEWER = {
    "Softmax": 13,
    "LogSoftmax": 13,
    "Hardmax": 13,
    "Dropout": 12,
    "Upsample": 27,
    "Resize": 11,
    "RoiAlign": 16,
    "GroupNormalization": 21,
    "LSTM": 14,
    "GRU": 14,
    "RNN": 14,
}
"""The first operator set whose form of an operator the evaluator has, where it has no older one."""


def by_runtime(proto: onnx.NodeProto, version: int, *, reals: bool = True) -> bool:
    """Returns whether onnxruntime is asked first: for older forms, and what the evaluator gets
    wrong.

    `reals` are what the node works on, or integers.
    """
    return any(
        (n.op_type in _BETTER and not (reals and _ends_at_corners(n)))
        or _pads_itself(n)
        or _is_older(n, version)
        for n in _every(proto)
    )


def without_runtime(proto: onnx.NodeProto, version: int) -> str:
    """Returns why the evaluator does not run the op, nor one within it; empty where it does."""
    for node in _every(proto):
        if node.op_type == "MaxPool" and node.output[1:] and node.output[1]:
            return "the places of MaxPool need onnxruntime: ONNX's evaluator has others"
        if version < _NEWER.get(node.op_type, 0) and _matters(node):
            return (
                f"{node.op_type} of opset {version} needs onnxruntime: "
                "ONNX's evaluator has newer forms alone"
            )
    return ""


def _matters(node: onnx.NodeProto) -> bool:
    """Returns whether what is newer shows in the node: in a Dropout, by its mask."""
    return node.op_type != "Dropout" or bool(node.output[1:] and node.output[1])


def _every(proto: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yields the standard operators of a node: its own and those of the graphs that it holds."""
    if not proto.domain:
        yield proto
    for attribute in proto.attribute:
        for graph in held_graphs(attribute):
            for node in graph.node:
                yield from _every(node)


def _pads_itself(node: onnx.NodeProto) -> bool:
    """Returns whether padding is left to the operator, of which runtime and evaluator make two
    things."""
    return any(a.name == "auto_pad" and a.s.startswith(b"SAME") for a in node.attribute)


def _ends_at_corners(node: onnx.NodeProto) -> bool:
    """Returns whether a Resize goes by corners: for scales that make no whole size the standard,
    and the evaluator, count the part of a place that onnxruntime leaves out."""
    return node.op_type == "Resize" and any(a.s == b"align_corners" for a in node.attribute)


def _is_older(node: onnx.NodeProto, version: int) -> bool:
    if node.op_type in _FINER:
        return False
    try:
        one = onnx.defs.get_schema(node.op_type, version, "").since_version
        return bool(one < onnx.defs.get_schema(node.op_type, "").since_version)
    except onnx.defs.SchemaError:
        return False

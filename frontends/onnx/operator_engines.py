"""Chooses who runs a kept operator: onnxruntime or ONNX's reference evaluator.

The evaluator implements one form of most operators, the newest, and applies it to every version.
Its results for older forms, and for some current ones, are not those of the standard.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from .op import subgraphs_of

_WRONG_IN_EVALUATOR = frozenset(
    "MaxPool AveragePool LpPool LRN Resize LSTM GRU RNN BatchNormalization RoiAlign"
    " StringSplit".split()
)
"""Operators that the evaluator gets wrong in some forms of every operator set."""
_MORE_EXACT_IN_EVALUATOR = frozenset({"DFT"})
"""Operators whose older forms the evaluator has, with smaller errors than onnxruntime."""
_FIRST_FORM_IN_EVALUATOR = {
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
"""The first operator set whose form of an operator the evaluator implements."""


def prefers_runtime(proto: onnx.NodeProto, version: int, *, on_floats: bool = True) -> bool:
    """Returns whether onnxruntime is tried first: for older forms, and where the evaluator is
    wrong.

    `on_floats` says whether the node computes on floats.
    """
    return any(
        (n.op_type in _WRONG_IN_EVALUATOR and not (on_floats and _aligns_corners(n)))
        or _has_auto_pad(n)
        or _has_newer_form(n, version)
        for n in _standard_nodes(proto)
    )


def why_evaluator_cannot(proto: onnx.NodeProto, version: int) -> str:
    """Returns why the evaluator must not run the operator or one inside it; empty if it may."""
    for node in _standard_nodes(proto):
        if node.op_type == "MaxPool" and node.output[1:] and node.output[1]:
            return "the places of MaxPool need onnxruntime: ONNX's evaluator has others"
        if version < _FIRST_FORM_IN_EVALUATOR.get(node.op_type, 0) and _depends_on_form(node):
            return (
                f"{node.op_type} of opset {version} needs onnxruntime: "
                "ONNX's evaluator has newer forms alone"
            )
    return ""


def _depends_on_form(node: onnx.NodeProto) -> bool:
    """Returns whether the newer form gives another result: for Dropout, only with a mask."""
    # A Dropout without a mask output is an identity in every version.
    return node.op_type != "Dropout" or bool(node.output[1:] and node.output[1])


def _standard_nodes(proto: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yields the operators of the standard domain in a node and its subgraphs."""
    if not proto.domain:
        yield proto
    for attribute in proto.attribute:
        for graph in subgraphs_of(attribute):
            for node in graph.node:
                yield from _standard_nodes(node)


def _has_auto_pad(node: onnx.NodeProto) -> bool:
    """Returns whether padding is SAME_UPPER or SAME_LOWER.

    There onnxruntime differs from the reference evaluator.
    """
    return any(a.name == "auto_pad" and a.s.startswith(b"SAME") for a in node.attribute)


def _aligns_corners(node: onnx.NodeProto) -> bool:
    """Returns whether a Resize aligns corners, which is left to the evaluator.

    For a scale that makes no integral size, the standard counts the fraction, as the evaluator
    does; onnxruntime leaves it out.
    """
    return node.op_type == "Resize" and any(a.s == b"align_corners" for a in node.attribute)


def _has_newer_form(node: onnx.NodeProto, version: int) -> bool:
    if node.op_type in _MORE_EXACT_IN_EVALUATOR:
        return False
    try:
        since = onnx.defs.get_schema(node.op_type, version, "").since_version
        return bool(since < onnx.defs.get_schema(node.op_type, "").since_version)
    except onnx.defs.SchemaError:
        return False

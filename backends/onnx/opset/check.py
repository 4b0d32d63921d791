"""Whether what is written is of the operator set that it is written for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import onnx

from qir.errors import Refused
from qir.ledger import Change, Ledger

from ..writer.writer import STEP

LEFT = frozenset(
    {
        "GlobalLpPool",
        "MaxRoiPool",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "RoiAlign",
    }
)
"""Operators for whose form of opset 22 onnxruntime 1.31 has no kernel, only for older ones."""
_LEFT_SINCE = 22


def check(model: onnx.ModelProto, opset: int) -> None:
    """Raises Refused for a standard operator, or an attribute of one, that its operator set
    lacks."""
    _check(model.graph.node, opset)
    for function in model.functions:
        own = {o.domain: o.version for o in function.opset_import}
        _check(function.node, own.get("", opset))


def _check(nodes: Iterable[onnx.NodeProto], opset: int) -> None:
    for node in nodes:
        if not node.attribute and node.domain:
            continue
        known = None if node.domain else _attributes(node.op_type, opset)
        for one in node.attribute:
            if known is not None and one.name not in known:
                said = f"{node.op_type} of opset {opset} has no attribute {one.name!r}"
                raise Refused(f"{_called(node)}: {said}; a newer opset would do"[:239])
            for body in (*([one.g] if one.HasField("g") else ()), *one.graphs):
                _check(body.node, opset)
        if known is None and not node.domain:
            raise Refused(f"{_called(node)}: opset {opset} has no operator {node.op_type}"[:239])


def _called(node: onnx.NodeProto) -> str:
    return node.name or next(iter(node.output), node.op_type)


@lru_cache(4096)
def _attributes(name: str, opset: int) -> frozenset[str] | None:
    """Returns what an operator of ONNX may have at an operator set; None where there is no such
    one."""
    try:
        return frozenset(onnx.defs.get_schema(name, opset, "").attributes)
    except onnx.defs.SchemaError:
        return None


def kernels(model: onnx.ModelProto, opset: int, source: int, ledger: Ledger) -> None:
    """Says what onnxruntime has no kernel for; Refused where the source's operator set had one."""
    if opset < _LEFT_SINCE:
        return
    for node in _every(model.graph.node):
        if node.domain or node.op_type not in LEFT:
            continue
        said = f"onnxruntime 1.31 has no kernel for {node.op_type} of opset {_LEFT_SINCE} and newer"
        if source < _LEFT_SINCE:
            raise Refused(f"{_called(node)}: {said}; --opset {_LEFT_SINCE - 1} has one"[:239])
        ledger.add(Change.EXACT, STEP, _called(node), f"{said}, as in the source")


def _every(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    for node in nodes:
        yield node
        for one in node.attribute:
            for body in (*([one.g] if one.HasField("g") else ()), *one.graphs):
                yield from _every(body.node)

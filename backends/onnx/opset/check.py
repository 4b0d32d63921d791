"""Checks that a written model fits its operator set, and that onnxruntime has kernels for it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import onnx

from qir.errors import Refused
from qir.ledger import Change, Ledger

from ..writer.writer import STEP

WITHOUT_KERNEL = frozenset(
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
"""Operators for whose schema of opset 22 onnxruntime 1.31 has no kernel, only for older ones."""
WITHOUT_KERNEL_SINCE = 22


def check(model: onnx.ModelProto, opset: int) -> None:
    """Raises Refused for an operator or attribute that the model's operator set lacks."""
    _check(model.graph.node, opset)
    for function in model.functions:
        imports = {o.domain: o.version for o in function.opset_import}
        _check(function.node, imports.get("", opset))


def _check(nodes: Iterable[onnx.NodeProto], opset: int) -> None:
    for node in nodes:
        # Without attributes there is nothing to check in another domain.
        if not node.attribute and node.domain:
            continue
        known = None if node.domain else _schema_attributes(node.op_type, opset)
        for attr in node.attribute:
            if known is not None and attr.name not in known:
                said = f"{node.op_type} of opset {opset} has no attribute {attr.name!r}"
                raise Refused(f"{_node_name(node)}: {said}; a newer opset would do"[:239])
            for body in (*([attr.g] if attr.HasField("g") else ()), *attr.graphs):
                _check(body.node, opset)
        if known is None and not node.domain:
            raise Refused(f"{_node_name(node)}: opset {opset} has no operator {node.op_type}"[:239])


def _node_name(node: onnx.NodeProto) -> str:
    return node.name or next(iter(node.output), node.op_type)


@lru_cache(4096)
def _schema_attributes(name: str, opset: int) -> frozenset[str] | None:
    """Returns the attributes of an operator in an operator set; None where it has no such
    operator."""
    try:
        return frozenset(onnx.defs.get_schema(name, opset, "").attributes)
    except onnx.defs.SchemaError:
        return None


def check_kernels(model: onnx.ModelProto, opset: int, source: int, ledger: Ledger) -> None:
    """Reports operators without a kernel; raises Refused where the source's operator set had
    one."""
    if opset < WITHOUT_KERNEL_SINCE:
        return
    for node in _all_nodes(model.graph.node):
        if node.domain or node.op_type not in WITHOUT_KERNEL:
            continue
        problem = (
            f"onnxruntime 1.31 has no kernel for {node.op_type} "
            f"of opset {WITHOUT_KERNEL_SINCE} and newer"
        )
        if source < WITHOUT_KERNEL_SINCE:
            raise Refused(
                f"{_node_name(node)}: {problem}; `opset={WITHOUT_KERNEL_SINCE - 1}` has one"[:239]
            )
        ledger.add(Change.EXACT, STEP, _node_name(node), f"{problem}, as in the source")


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attr in node.attribute:
            for body in (*([attr.g] if attr.HasField("g") else ()), *attr.graphs):
                yield from _all_nodes(body.node)

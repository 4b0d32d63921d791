"""Groups that are operators of onnxruntime's own, given back with their operands as they were."""

from __future__ import annotations

from onnx import NodeProto

from qir.ir.attrs import Attr
from qir.ir.node import Node

from . import foreign
from .writer import Writer

_KERNEL = "onnx:"


def known(node: Node) -> bool:
    """Whether a group is an operator of an ONNX domain."""
    return bool(node.bodies) and str(node.attrs["kernel"]).startswith(_KERNEL)


def write(writer: Writer, node: Node) -> None:
    """Writes the operator that a group is."""
    domain, _, op = str(node.attrs["kernel"]).removeprefix(_KERNEL).rpartition(".")
    ins, outs = _places(node)
    origin = next((o for o in node.origins if o.framework == "onnx"), None)
    proto = NodeProto(op_type=op, domain=domain)
    proto.name = origin.name if origin else f"{node.name}_{op}"
    names = [writer.name(v) for v in node.operands.values()]
    proto.input.extend(foreign.placed(ins, names))
    proto.output.extend(foreign.placed(outs, [writer.name(v) for v in node.results]))
    for name, value in foreign.pairs(node.attrs["attrs"]).items():
        proto.attribute.append(foreign.attribute(proto, 1, name, value))
    writer.domains.setdefault(domain, 1)
    writer.nodes.append(proto)


def _places(node: Node) -> tuple[list[int], list[int]]:
    """Where operands and results stand in the operator's lists; in order unless stated."""
    slots = node.attrs["slots"]
    found: list[Attr] = list(slots) if isinstance(slots, tuple) else []
    if len(found) != 2:
        return list(range(len(node.operands))), list(range(len(node.results)))
    return foreign.places(found[0]), foreign.places(found[1])

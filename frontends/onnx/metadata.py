"""What a model's author wrote next to its operators: kept as origins of the output, or reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import onnx

from qir.ir.origin import Origin
from qir.ledger import Change

from .calls import OPSET
from .files import ModelFile
from .op import held_graphs

_DEFAULTS = 4
"""The first version of the format whose inputs may have defaults that are not constants."""
OWN = ("", "ai.onnx")
"""The names of ONNX's own domain."""
_Noted: TypeAlias = "onnx.NodeProto | onnx.ValueInfoProto"


def said(proto: onnx.ModelProto) -> list[Origin]:
    """Notes of the model, its graph, its inputs and results, and its nodes."""
    graph = proto.graph
    docs = {"Model": proto.doc_string, "Graph": graph.doc_string}
    out = [Origin("onnx", "Doc", name, path=str(text)) for name, text in docs.items() if text]
    pairs = ((str(p.key), str(p.value)) for p in proto.metadata_props)
    out += [Origin("onnx", "Metadata", key, path=value) for key, value in pairs]
    fields = {
        "Format": str(proto.ir_version),
        "Domain": proto.domain,
        "ModelVersion": str(proto.model_version or ""),
    }
    out += [Origin("onnx", name, path=str(text)) for name, text in fields.items() if text]
    imported = {str(i.domain): i.version for i in proto.opset_import if i.domain not in OWN}
    out += [Origin("onnx", "Opset", name, str(number)) for name, number in imported.items()]
    if proto.producer_name:
        name, version = str(proto.producer_name), str(proto.producer_version)
        out.append(Origin("onnx", "Producer", name, path=version))
    if graph.metadata_props:
        held = tuple((str(p.key), str(p.value)) for p in graph.metadata_props)
        out.append(Origin("onnx", "GraphMetadata", operands=held))
    if proto.ir_version >= _DEFAULTS:
        known = {str(t.name) for t in graph.initializer}
        known |= {str(t.values.name) for t in graph.sparse_initializer}
        out += [Origin("onnx", "Default", str(i.name)) for i in graph.input if i.name in known]
    for kind, infos in (("InputNotes", graph.input), ("OutputNotes", graph.output)):
        found = ((str(i.name), _notes(i)) for i in infos)
        out += [Origin("onnx", kind, name, operands=notes) for name, notes in found if notes]
    if inner := dict.fromkeys(str(i.name) for i in graph.value_info):
        out.append(Origin("onnx", "InnerTypes", operands=tuple((name, "") for name in inner)))
    for node in _nodes(graph):
        if notes := _notes(node):
            name = node.name or f"{''.join(node.output[:1])}_{node.op_type}"
            out.append(Origin("onnx", "NodeNotes", str(name), str(node.op_type), operands=notes))
    return out


def lost(file: ModelFile) -> Iterator[tuple[Change, str, str]]:
    """Yields what a graph does not hold of a file, one line a kind: the first of them, and how
    many."""
    graph = file.proto.graph
    dropped = Change.DROPPED
    constants = [str(t.name) for t in graph.initializer if t.doc_string or t.metadata_props]
    kinds = (
        (dropped, file.functions, "function{} written out"),
        (Change.EXACT, [t.values.name for t in graph.sparse_initializer], "sparse tensor{} dense"),
        (dropped, constants, "note{} of constants dropped"),
        (dropped, list(_denoted(graph)), "denotation{} of inputs and results dropped"),
    )
    for change, names, text in kinds:
        if names:
            count = len(names)
            yield change, str(names[0]), f"{count} {text.format('s' if count > 1 else '')}"


def _notes(part: _Noted) -> tuple[tuple[str, str], ...]:
    """Returns a doc string, under no name, and metadata."""
    doc = (("", str(part.doc_string)),) if part.doc_string else ()
    if not part.metadata_props:
        return doc
    return (*doc, *((str(p.key), str(p.value)) for p in part.metadata_props if p.key != OPSET))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a graph and of those that they hold."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in held_graphs(attribute):
                yield from _nodes(inner)


def _denoted(graph: onnx.GraphProto) -> Iterator[str]:
    """Inputs and results whose type or dimensions say what they mean."""
    for info in (*graph.input, *graph.output):
        kind = info.type
        if kind.denotation or any(d.denotation for d in kind.tensor_type.shape.dim):
            yield info.name

"""Metadata of a model: kept as origins of the graph's output node, or reported as dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import onnx

from qir.ir.origin import Origin
from qir.ledger import Change

from .calls import OPSET_PROPERTY
from .files import ModelFile
from .op import subgraphs_of
from .reader import DEFAULTS_SINCE_IR_VERSION

ONNX_DOMAINS = ("", "ai.onnx")
"""The two names of ONNX's standard domain."""
_Annotated: TypeAlias = "onnx.NodeProto | onnx.ValueInfoProto"


def metadata_origins(proto: onnx.ModelProto) -> list[Origin]:
    """Returns the metadata of the model, its graph, inputs, outputs and nodes as origins."""
    graph = proto.graph
    docs = {"Model": proto.doc_string, "Graph": graph.doc_string}
    origins = [Origin("onnx", "Doc", name, path=str(text)) for name, text in docs.items() if text]
    pairs = ((str(p.key), str(p.value)) for p in proto.metadata_props)
    origins += [Origin("onnx", "Metadata", key, path=value) for key, value in pairs]
    fields = {
        "Format": str(proto.ir_version),
        "Domain": proto.domain,
        "ModelVersion": str(proto.model_version or ""),
    }
    origins += [Origin("onnx", name, path=str(text)) for name, text in fields.items() if text]
    imported = {
        str(i.domain): i.version for i in proto.opset_import if i.domain not in ONNX_DOMAINS
    }
    origins += [Origin("onnx", "Opset", name, str(number)) for name, number in imported.items()]
    if proto.producer_name:
        name, version = str(proto.producer_name), str(proto.producer_version)
        origins.append(Origin("onnx", "Producer", name, path=version))
    if graph.metadata_props:
        properties = tuple((str(p.key), str(p.value)) for p in graph.metadata_props)
        origins.append(Origin("onnx", "GraphMetadata", operands=properties))
    if proto.ir_version >= DEFAULTS_SINCE_IR_VERSION:
        # An input with an initializer has a default: the backend writes it as an input again.
        initializer_names = {str(t.name) for t in graph.initializer}
        initializer_names |= {str(t.values.name) for t in graph.sparse_initializer}
        origins += [
            Origin("onnx", "Default", str(i.name))
            for i in graph.input
            if i.name in initializer_names
        ]
    for origin_kind, infos in (("InputNotes", graph.input), ("OutputNotes", graph.output)):
        named_notes = ((str(i.name), _notes(i)) for i in infos)
        origins += [
            Origin("onnx", origin_kind, name, operands=notes)
            for name, notes in named_notes
            if notes
        ]
    if inner_names := dict.fromkeys(str(i.name) for i in graph.value_info):
        origins.append(
            Origin("onnx", "InnerTypes", operands=tuple((name, "") for name in inner_names))
        )
    for node in _all_nodes(graph):
        if notes := _notes(node):
            name = node.name or f"{''.join(node.output[:1])}_{node.op_type}"
            origins.append(
                Origin("onnx", "NodeNotes", str(name), str(node.op_type), operands=notes)
            )
    return origins


def dropped_entries(file: ModelFile) -> Iterator[tuple[Change, str, str]]:
    """Yields what the graph does not hold of a file: one entry a kind, with the first name."""
    graph = file.proto.graph
    dropped = Change.DROPPED
    constants = [str(t.name) for t in graph.initializer if t.doc_string or t.metadata_props]
    entries = (
        (dropped, file.inlined_functions, "function{} written out"),
        (Change.EXACT, [t.values.name for t in graph.sparse_initializer], "sparse tensor{} dense"),
        (dropped, constants, "note{} of constants dropped"),
        (
            dropped,
            list(_names_with_denotation(graph)),
            "denotation{} of inputs and results dropped",
        ),
    )
    for change, names, text in entries:
        if names:
            count = len(names)
            yield change, str(names[0]), f"{count} {text.format('s' if count > 1 else '')}"


def _notes(part: _Annotated) -> tuple[tuple[str, str], ...]:
    """Returns the doc string, under an empty key, and the metadata properties."""
    doc = (("", str(part.doc_string)),) if part.doc_string else ()
    if not part.metadata_props:
        return doc
    return (
        *doc,
        *((str(p.key), str(p.value)) for p in part.metadata_props if p.key != OPSET_PROPERTY),
    )


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in subgraphs_of(attribute):
                yield from _all_nodes(inner)


def _names_with_denotation(graph: onnx.GraphProto) -> Iterator[str]:
    """Yields inputs and outputs whose type or dimensions have a denotation, such as IMAGE."""
    for info in (*graph.input, *graph.output):
        value_type = info.type
        if value_type.denotation or any(d.denotation for d in value_type.tensor_type.shape.dim):
            yield info.name

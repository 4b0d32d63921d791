"""Writes the source model's metadata, and reports what of it is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import onnx
from onnx import helper

from qir.ir.graph import Graph
from qir.ir.origin import Origin
from qir.ledger import Change, Ledger

from .elements import UNKNOWN, type_proto
from .writer import STEP, OnnxWriter

PRODUCER = "qir.producer"
"""The metadata key for the source's producer in a model of QIR."""


def source_opset(graph: Graph) -> int | None:
    """Returns the operator set of the file that a graph was read from."""
    paths = [o.path for o in graph.output.origins if (o.framework, o.op) == ("onnx", "Output")]
    return next((int(p[6:]) for p in paths if re.fullmatch(r"opset \d+", p)), None)


def other_opsets(graph: Graph) -> dict[str, int]:
    """Returns the operator sets of other domains that the file imported."""
    held = [o for o in graph.output.origins if (o.framework, o.op) == ("onnx", "Opset")]
    return {o.name: int(o.path) for o in held if o.path.isdigit()}


def restore_metadata(graph: Graph, model: onnx.ModelProto, ledger: Ledger) -> None:
    """Adds the metadata and doc strings of the source; the ledger has how many are lost."""
    origins = [o for o in graph.output.origins if o.framework == "onnx"]
    props = {o.name: o.path for o in origins if o.op == "Metadata"}
    for origin in origins:
        match origin.op:
            case "Doc":
                part = model if origin.name == "Model" else model.graph
                part.doc_string = origin.path
            case "Domain":
                model.domain = origin.path
            case "ModelVersion":
                model.model_version = int(origin.path)
            case "Producer" if origin.name != "qir":
                props[PRODUCER] = f"{origin.name} {origin.path}".strip()
            case "GraphMetadata":
                _add_notes(model.graph, origin.operands)
    onnx.helper.set_model_props(model, {**props, "qir.profile": graph.profile})
    for kind, infos in (("InputNotes", model.graph.input), ("OutputNotes", model.graph.output)):
        found = {i.name: i for i in infos}
        notes = [o for o in origins if o.op == kind]
        gone = [o for o in notes if o.name not in found]
        for each in notes:
            if each.name in found:
                _add_notes(found[each.name], each.operands)
        _report_lost(ledger, gone, "inputs and results that are not there")
    _restore_node_notes(model, [o for o in origins if o.op == "NodeNotes"], ledger)


def stated_inner_types(writer: OnnxWriter) -> Iterator[onnx.ValueInfoProto]:
    """Yields the types of inner tensors that the source stated; the ledger has how many are
    lost."""
    graph = writer.graph
    held = [o for o in graph.output.origins if (o.framework, o.op) == ("onnx", "InnerTypes")]
    made = {name for node in writer.nodes for name in node.output} if held else set()
    gone = []
    for name in (name for each in held for name, _ in each.operands):
        value = graph.values.get(name)
        if value is None or name not in made or writer.name(value) != name:
            gone.append(name)
        elif value.type.dtype.name != UNKNOWN:
            yield helper.make_value_info(name, type_proto(value.type))
    if gone:
        said = f"{len(gone)} stated type{'s' if len(gone) > 1 else ''} of inner tensors dropped"
        writer.ledger.add(Change.DROPPED, STEP, gone[0], f"{said}: no operator gives them")


def report_versions(graph: Graph, model: onnx.ModelProto, why: str, ledger: Ledger) -> None:
    """Reports where a model has another operator set or format than its source."""
    opset, own = source_opset(graph), ("", "ai.onnx")
    now = {i.domain: i.version for i in model.opset_import}
    written = next(v for d, v in now.items() if d in own)
    if opset is not None and opset != written:
        ledger.add(Change.EXACT, STEP, graph.name, f"opset {opset} -> {written}: {why}")
    for domain, version in other_opsets(graph).items():
        if domain in now and now[domain] != version:
            said = (
                f"opset {version} of {domain} -> {now[domain]}: the one that its operators are of"
            )
            ledger.add(Change.EXACT, STEP, graph.name, said)
    formats = [o.path for o in graph.output.origins if (o.framework, o.op) == ("onnx", "Format")]
    if formats and int(formats[0]) != model.ir_version:
        said = f"IR version {formats[0]} -> {model.ir_version}: the one that is written"
        ledger.add(Change.EXACT, STEP, graph.name, said)


def _restore_node_notes(model: onnx.ModelProto, notes: list[Origin], ledger: Ledger) -> None:
    """Adds metadata to the nodes that are still those of the source."""
    wanted: dict[tuple[str, str], list[Origin]] = {}
    for each in notes:
        wanted.setdefault((each.name, each.path), []).append(each)
    if not wanted:
        return
    for node in _all_nodes(model.graph):
        name = node.name or f"{''.join(node.output[:1])}_{node.op_type}"
        if found := wanted.get((name, node.op_type)):
            _add_notes(node, found.pop(0).operands)
    gone = [each for rest in wanted.values() for each in rest]
    _report_lost(ledger, gone, "nodes that are written as others")


def _report_lost(ledger: Ledger, gone: list[Origin], where: str) -> None:
    docs = sum(not key for each in gone for key, _ in each.operands)
    props = sum(bool(key) for each in gone for key, _ in each.operands)
    words = (docs, "doc string", "doc strings"), (props, "metadata property", "metadata properties")
    for count, one, many in words:
        if count:
            said = f"{count} {one if count == 1 else many} of {where} dropped"
            ledger.add(Change.DROPPED, STEP, gone[0].name, said)


def _add_notes(
    part: onnx.NodeProto | onnx.ValueInfoProto | onnx.GraphProto,
    notes: Iterable[tuple[str, str]],
) -> None:
    for key, text in notes:
        if key:
            part.metadata_props.add(key=key, value=text)
        else:
            part.doc_string = text


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _all_nodes(inner)

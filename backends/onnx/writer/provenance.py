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
    origins = [o for o in graph.output.origins if (o.framework, o.op) == ("onnx", "Opset")]
    return {o.name: int(o.path) for o in origins if o.path.isdigit()}


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
    # A graph of QIR keeps its profile, so that reading the model again computes alike.
    onnx.helper.set_model_props(model, {**props, "qir.profile": graph.profile})
    for kind, infos in (("InputNotes", model.graph.input), ("OutputNotes", model.graph.output)):
        infos_by_name = {i.name: i for i in infos}
        notes = [o for o in origins if o.op == kind]
        lost = [o for o in notes if o.name not in infos_by_name]
        for note in notes:
            if note.name in infos_by_name:
                _add_notes(infos_by_name[note.name], note.operands)
        _report_lost(ledger, lost, "inputs and results that are not there")
    _restore_node_notes(model, [o for o in origins if o.op == "NodeNotes"], ledger)


def stated_inner_types(writer: OnnxWriter) -> Iterator[onnx.ValueInfoProto]:
    """Yields the types of inner tensors that the source stated; the ledger has how many are
    lost."""
    graph = writer.graph
    origins = [o for o in graph.output.origins if (o.framework, o.op) == ("onnx", "InnerTypes")]
    # A stated type is written only where the tensor still exists under its own name.
    written = {name for node in writer.nodes for name in node.output} if origins else set()
    lost = []
    for name in (name for each in origins for name, _ in each.operands):
        value = graph.values.get(name)
        if value is None or name not in written or writer.name(value) != name:
            lost.append(name)
        elif value.type.dtype.name != UNKNOWN:
            yield helper.make_value_info(name, type_proto(value.type))
    if lost:
        count = f"{len(lost)} stated type{'s' if len(lost) > 1 else ''} of inner tensors dropped"
        writer.ledger.add(Change.DROPPED, STEP, lost[0], f"{count}: no operator gives them")


def report_versions(graph: Graph, model: onnx.ModelProto, why: str, ledger: Ledger) -> None:
    """Reports where a model has another operator set or format than its source."""
    opset, onnx_domains = source_opset(graph), ("", "ai.onnx")
    imported = {i.domain: i.version for i in model.opset_import}
    target = next(v for d, v in imported.items() if d in onnx_domains)
    if opset is not None and opset != target:
        ledger.add(Change.EXACT, STEP, graph.name, f"opset {opset} -> {target}: {why}")
    for domain, version in other_opsets(graph).items():
        if domain in imported and imported[domain] != version:
            change = f"opset {version} of {domain} -> {imported[domain]}"
            reason = f"{change}: the one that its operators are of"
            ledger.add(Change.EXACT, STEP, graph.name, reason)
    formats = [o.path for o in graph.output.origins if (o.framework, o.op) == ("onnx", "Format")]
    if formats and int(formats[0]) != model.ir_version:
        reason = f"IR version {formats[0]} -> {model.ir_version}: the one that is written"
        ledger.add(Change.EXACT, STEP, graph.name, reason)


def _restore_node_notes(model: onnx.ModelProto, notes: list[Origin], ledger: Ledger) -> None:
    """Adds metadata to the nodes that are still those of the source."""
    by_node: dict[tuple[str, str], list[Origin]] = {}
    for note in notes:
        by_node.setdefault((note.name, note.path), []).append(note)
    if not by_node:
        return
    for node in _all_nodes(model.graph):
        # Nodes without a name are keyed by their output and operator, as the frontend keyed them.
        name = node.name or f"{''.join(node.output[:1])}_{node.op_type}"
        # Names need not be unique in ONNX: notes are given in the order of the file.
        if matching := by_node.get((name, node.op_type)):
            _add_notes(node, matching.pop(0).operands)
    lost = [note for rest in by_node.values() for note in rest]
    _report_lost(ledger, lost, "nodes that are written as others")


def _report_lost(ledger: Ledger, lost: list[Origin], where: str) -> None:
    docs = sum(not key for each in lost for key, _ in each.operands)
    props = sum(bool(key) for each in lost for key, _ in each.operands)
    kinds = (docs, "doc string", "doc strings"), (props, "metadata property", "metadata properties")
    for count, one, many in kinds:
        if count:
            reason = f"{count} {one if count == 1 else many} of {where} dropped"
            ledger.add(Change.DROPPED, STEP, lost[0].name, reason)


def _add_notes(
    part: onnx.NodeProto | onnx.ValueInfoProto | onnx.GraphProto,
    notes: Iterable[tuple[str, str]],
) -> None:
    for key, text in notes:
        # An empty key stands for the doc string.
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

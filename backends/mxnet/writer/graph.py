"""Converts a graph for MXNet and writes the two files of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qir.errors import InputError, Refused
from qir.frontend import frontend_for
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.quantized_ops import STRUCTURAL_OPS
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger
from qir.passes.fold.fold_constants import FoldConstants, fold
from qir.passes.fold.fold_shapes import FoldShapes
from qir.passes.forms.expand_qdq import expand
from qir.passes.forms.group import Group
from qir.passes.layout import Layout
from qir.rewrite import run_passes
from qir.source import untouched

from . import (
    attention,
    elementwise,
    files,
    foreign,
    indexing,
    integer_support,
    layers,
    movement,
    pooling,
    quantized,
    recurrent,
    signed_data,
)
from .missing_operators import replace_missing_ops
from .symbol import Entry
from .writer import REMEDY, STEP, OpWriter, SymbolWriter

PROFILE = "mxnet-1.9"
OP_WRITERS: dict[str, OpWriter] = {
    op: row
    for family in (attention, elementwise, indexing, layers, movement, pooling, recurrent)
    for op, row in family.OPS.items()
}


@dataclass(frozen=True)
class ModelFiles:
    """The contents of a model's two files."""

    symbol: str
    parameters: dict[str, NDArray[Any]]


def emit(graph: Graph, path: Path, ledger: Ledger, format: str | None, *, lossy: bool) -> None:
    """Writes both files; a model of MXNet that was not changed is copied.

    Raises Refused for ops that MXNet lacks, and for losses that were not allowed.
    """
    # A model that was read from MXNet's files and not changed is those files.
    if format is None and (pair := _source_files(graph)) is not None:
        ledger.check(lossy=lossy)
        files.copy(pair, path)
        return
    integers = any(integer_support.on_integers(node) for node in graph)
    if format == "int8" and not integers:
        reason = "nothing is quantized, so there is no int8 form"
        raise Refused(f"{graph.name}: {reason}; quantize it first, or write `format='float'`")
    if format == "float" and integers:
        reason = "it holds quantized values; write `format='int8'`"
        raise Refused(f"{graph.name}: {reason}, or write the float model that it was made of")
    model = to_model(converted(graph, ledger, integers=integers), ledger)
    ledger.check(lossy=lossy)
    files.write(path, model.symbol, model.parameters)


def _source_files(graph: Graph) -> tuple[Path, Path] | None:
    """Returns the files of a graph that was read from MXNet's and not changed since."""
    source = untouched(graph)
    if source is None or source.suffix.lower() not in (".json", ".params"):
        return None
    try:
        reader = frontend_for(source)
        model_files = list(reader.files(source)) if reader.name == "mxnet" else []
    except InputError:
        return None
    return (model_files[0], model_files[1]) if len(model_files) == 2 else None


def converted(graph: Graph, ledger: Ledger, *, integers: bool = False) -> Graph:
    """Returns the graph as MXNet computes it: grouped, NCHW, constants folded."""
    all_attrs = (attrs for n in graph for attrs in (n.attrs, *(s.attrs for s in n.stages)))
    is_nhwc = any(attrs.get("layout") == "NHWC" for attrs in all_attrs)
    converted_graph = run_passes(graph, [Layout("nchw")], ledger) if is_nhwc else graph.copy()
    replace_missing_ops(converted_graph)
    if integers:
        # Grouping is undone where MXNet has no operator: of its entries only the unverified ones
        # stay true.
        group_ledger = Ledger()
        signed_data.store_signed(converted_graph, ledger)
        converted_graph = run_passes(converted_graph, [Group(PROFILE)], group_ledger)
        for entry in group_ledger:
            if entry.change is Change.UNVERIFIED:
                ledger.add(entry.change, entry.step, entry.subject, entry.reason)
        _open_unsupported(converted_graph, ledger)
    # Folding comes last: constants that only opened kernels read are known then.
    return run_passes(converted_graph, [FoldConstants(), FoldShapes()], ledger)


def _open_unsupported(graph: Graph, ledger: Ledger) -> None:
    """Expands quantized ops that MXNet has no operator for to float ops between quantized
    values."""
    for node in list(graph):
        if (
            node.op in STRUCTURAL_OPS
            or foreign.is_kept(node)
            or not integer_support.on_integers(node)
        ):
            continue
        if not (why := integer_support.unsupported_reason(node)):
            continue
        name = node.results[0].name
        if node.op in ("quantize", "dequantize"):
            if node.op == "dequantize" and node.operands["x"].constant is not None:
                continue  # computed below
            raise _unsupported_type(node, why, ledger)
        expand(graph, node)
        change = Change.APPROXIMATED if why == integer_support.DEFECT else Change.REGROUPED
        ledger.add(change, STEP, name, f"float between integers: {why}")
    graph.prune()
    # Opening a kernel adds dequantizes of its weights, which are folded to floats here.
    for node in list(graph):
        # such as weights with a scale for each channel, and 32-bit biases: MXNet has no operator
        if node.op not in ("quantize", "dequantize") or not (
            why := integer_support.unsupported_reason(node)
        ):
            continue
        if node.op == "quantize" or node.operands["x"].constant is None:
            raise _unsupported_type(node, why, ledger)  # of an op that was opened above
        fold(graph, node, ledger, STEP)
    graph.prune()


def _unsupported_type(node: Node, why: str, ledger: Ledger) -> Refused:
    """Returns the error for a quantized type that MXNet lacks, and records it."""
    name, reason = node.results[0].name, f"{node.op}: {why}"
    ledger.add(Change.REFUSED, STEP, name, reason)
    return Refused(f"{name}: {reason}; quantize with `target='mxnet-onednn'`")


def to_model(graph: Graph, ledger: Ledger) -> ModelFiles:
    """Writes a graph; raises Refused for what MXNet lacks, and names the node."""
    writer = SymbolWriter(graph, ledger)
    ranges = quantized.Ranges(writer)
    for value in graph.inputs:
        writer.input(value)
        _require_float_input(writer, value.node, value.type)
    for node in graph:
        if node.op in STRUCTURAL_OPS:
            continue
        if foreign.is_kept(node):
            foreign.write(writer, ranges, node)
            continue
        if integer_support.on_integers(node):
            quantized.write(ranges, node)
            continue
        for value, entry in zip(node.results, write_float_node(writer, node), strict=False):
            writer.entries[value] = entry
    return finished_model(writer)


def _require_float_input(writer: SymbolWriter, node: Node, kind: TensorType) -> None:
    if kind.quant is not None:
        raise writer.refuse(node, "an input of integers has no range in MXNet; dequantize it")


def write_float_node(writer: SymbolWriter, node: Node) -> list[Entry]:
    """Returns the results of a float node."""
    op_writer = OP_WRITERS.get(node.op)
    if op_writer is None:
        raise writer.refuse(node, f"MXNet 1.9 has no operator for it; {REMEDY}")
    if node.attrs.get("layout", "NCHW") != "NCHW":
        raise writer.refuse(node, "its channels are last; run the pass layout with to = nchw")
    entries = op_writer(writer, node)
    return [entries] if isinstance(entries, tuple) else list(entries)


def finished_model(writer: SymbolWriter) -> ModelFiles:
    """Returns the symbol with the graph's outputs as its heads."""
    graph = writer.graph
    for name, value in graph.outputs.items():
        if not value.type.shape and not value.type.dtype.is_opaque:
            reason = "a number alone is an array of one element in MXNet"
            writer.ledger.add(Change.DROPPED, STEP, name, reason)
        if str(value.type.dtype) == "bool":
            reason = "truth values are floats, 0 and 1, in MXNet"
            writer.ledger.add(Change.DROPPED, STEP, name, reason)
    heads = _output_entries(writer)
    return ModelFiles(writer.symbol.json(heads), writer.parameters)


def _output_entries(writer: SymbolWriter) -> list[Entry]:
    """Returns the entries of the outputs; their nodes carry the names that MXNet would not give
    them."""
    heads: list[Entry] = []
    for name, value in writer.graph.outputs.items():
        entry = writer.entry(value)
        node = writer.symbol.nodes[entry[0]]
        # An output that is an input, a parameter or another output gets a copy of its own.
        if entry in heads or (node["op"] == "null" and node["name"] != name):
            copy_name = writer.fresh(name.removesuffix("_output"))
            entry = writer.emit("_copy", [entry], name=copy_name)
        heads.append(entry)
    numbers = [index for index, _ in heads]
    for name, (index, result) in zip(writer.graph.outputs, heads, strict=True):
        node = writer.symbol.nodes[index]
        # MXNet names an output after its node, with the number of the result where there are
        # several.
        default_name = (
            f"{node['name']}_output{result if numbers.count(index) > 1 or result else ''}"
        )
        if node["op"] != "null" and default_name != name:
            node.setdefault("attrs", {})[f"__output{result}__"] = name
    return heads

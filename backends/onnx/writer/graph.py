"""Writes a graph as an ONNX model, node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from qir import __version__
from qir.analysis.bodies import graphs_with_bodies
from qir.analysis.float32_overflow import overflow_note
from qir.errors import Refused, UsageError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.rewrite.resize_axes import full_sizes_and_scales, name_all_axes

from ..forms import qcdq
from ..opset import check, element_types
from ..optimizer import barriers, moved_values
from . import (
    attention_ops,
    contrib_ops,
    control,
    dynamic_ops,
    float_ops,
    foreign,
    integer_ops,
    plugin_ops,
    provenance,
    quantization_annotation,
)
from .elements import element_bytes, first_opset, ir_version, type_proto
from .writer import MICROSOFT, STEP, OnnxWriter, OpToWrite

DEFAULT_OPSET = 21
"""The operator set of models that come from other frameworks."""
OLDEST_OPSET = 13
"""The first operator set whose QuantizeLinear has an axis."""
NEWEST_OPSET = 26
"""The newest operator set that onnxruntime 1.31 accepts."""
_KEPT_FLOAT = (
    "stays float: a Max of one operand between it and its quantize keeps onnxruntime's optimizer "
    "from quantizing the weights of the layer by itself and computing it in integers"
)
IR_VERSION = 10
"""The newest version of the format that every onnxruntime since 1.18 reads."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The operators that a model may have."""

    standard: bool = False
    """Whether only ONNX's own operators are allowed."""
    opset: int | None = None
    """The requested operator set, if any."""
    newest: int = NEWEST_OPSET
    moves_integers: bool = False
    """Whether ops that keep elements are written on integers, where floats would be possible
    too."""


def to_model(graph: Graph, ledger: Ledger, dialect: Dialect | None = None) -> onnx.ModelProto:
    """Writes a graph of any form; raises Refused for what ONNX cannot express, and names the
    node."""
    model, large = to_parts(graph, ledger, dialect)
    for tensor in model.graph.initializer:
        if tensor.name in large:
            tensor.raw_data = b"".join(element_bytes(large[tensor.name]))
    return model


def to_parts(
    graph: Graph, ledger: Ledger, dialect: Dialect | None = None
) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Returns a model without the elements of its large initializers, and their arrays by name."""
    requested, graph = dialect or Dialect(), _with_all_axes(graph)
    writer = OnnxWriter(graph, ledger, _chosen_opset(graph, requested))
    writer.standard, writer.moves_integers = requested.standard, requested.moves_integers
    # Outputs are named first: a value with two output names needs an Identity.
    copies = _name_outputs(writer)
    for node in graph:
        _write(writer, node)
    for value, name in copies:
        writer.emit("Identity", [writer.name(value)], [name])
    # These two undo what onnxruntime's loader would get wrong, so they see the finished node
    # list.
    moved_values.add_moved_quantizes(writer, graph.outputs)
    if writer.bounded_constants:
        how_many = (
            "1 constant"
            if writer.bounded_constants == 1
            else f"{writer.bounded_constants} constants"
        )
        reason = f"that quantized values of {how_many} keep to, which no type of ONNX says"
        ledger.add(Change.DROPPED, STEP, "narrower bounds", reason)
    model = _model(writer)
    check.check(model, writer.opset)
    if not requested.standard:
        check.check_kernels(
            model, writer.opset, provenance.source_opset(graph) or DEFAULT_OPSET, ledger
        )
    provenance.restore_metadata(graph, model, ledger)
    provenance.report_versions(graph, model, _opset_reason(writer.opset, graph, requested), ledger)
    return model, writer.large


def _with_all_axes(graph: Graph) -> Graph:
    """Returns a copy whose resizes state all axes, without the axes attribute of opset 18.

    onnxruntime's layout transformation permutes scales and sizes as if they were for all axes.
    """
    if not any(full_sizes_and_scales(node) for each in graphs_with_bodies(graph) for node in each):
        return graph
    out = graph.copy()
    for each in graphs_with_bodies(out):
        for node in list(each):
            name_all_axes(each, node)
    return out


def _opset_reason(opset: int, graph: Graph, dialect: Dialect) -> str:
    """Returns why a model has another operator set than its source."""
    if dialect.opset is not None:
        return "as asked for"
    if opset > (provenance.source_opset(graph) or DEFAULT_OPSET):
        return "what it holds needs it"
    return f"the newest that {'the onnx package' if dialect.standard else 'onnxruntime 1.31'} has"


def _chosen_opset(graph: Graph, dialect: Dialect) -> int:
    """Returns the source's operator set, raised to what the graph needs.

    One newer than onnxruntime accepts is lowered as far as the graph's ops allow. Raises Refused
    where the requested one does not fit the graph.
    """
    nodes = list(_written_nodes(graph))
    kept = [
        n
        for n in nodes
        if n.op == "foreign" and n.attrs["framework"] == "onnx" and not n.attrs["domain"]
    ]
    source = provenance.source_opset(graph) or DEFAULT_OPSET
    allows_zero = any(n.op == "reshape" and n.attrs["allow_zero"] for n in nodes)
    has_microsoft = not dialect.standard
    needed = max(
        (_opset_of_type(v, has_microsoft=has_microsoft) for n in nodes for v in n.results),
        default=OLDEST_OPSET,
    )
    newest_op = max((float_ops.first_opset(n.op, n.attrs) for n in nodes), default=OLDEST_OPSET)
    firsts = [
        newest_op,
        *map(attention_ops.first_opset, nodes),
        *map(element_types.first_opset, nodes),
    ]
    # Reshape has `allowzero` since opset 14.
    lowest = max([OLDEST_OPSET, needed, *firsts, 14 if allows_zero else 0])
    newest = dialect.newest
    if dialect.opset is not None:
        return _requested_opset(graph, dialect, lowest, kept)
    # The source's opset is kept where it is possible, so that onnxruntime runs the same kernels.
    preferred = max([source, lowest, *map(foreign.opset_of, kept)])
    if preferred <= newest:
        return preferred
    # Foreign operators that an older schema accepts do not hold the opset up.
    bound = [foreign.first_opset(n) for n in kept if not foreign.fits_opset(n, newest)]
    return max([newest, lowest, *bound])


def _written_nodes(graph: Graph) -> Iterator[Node]:
    """Yields the nodes that are written, without those of a group that becomes one operator."""
    for node in graph:
        yield node
        if node.op != "fused" or not contrib_ops.is_contrib_op(node):
            for name in node.bodies:
                yield from _written_nodes(graph.body(node, name))


def _requested_opset(graph: Graph, dialect: Dialect, lowest: int, kept: list[Node]) -> int:
    """Returns the requested operator set; raises where it is unknown or does not fit the graph."""
    opset = dialect.opset or 0
    if not OLDEST_OPSET <= opset <= dialect.newest:
        message = f"opset {opset}: from {OLDEST_OPSET} to {dialect.newest} are written"
        newest_known = int(onnx.defs.onnx_opset_version())
        remedy = (
            f" for onnxruntime 1.31; `target='onnx'` takes {newest_known}"
            if OLDEST_OPSET <= opset <= newest_known
            else ""
        )
        raise UsageError(message + remedy)
    if opset < lowest:
        raise Refused(f"{graph.name}: what it holds needs opset {lowest}; {opset} is asked for")
    for node in kept:
        if foreign.first_opset(node) > opset and not foreign.fits_opset(node, opset):
            message = f"{node.attrs['op']!s} is of opset {foreign.first_opset(node)}"
            raise Refused(f"{node.name}: {message}; {opset} is asked for")
    return opset


def _opset_of_type(value: Value, *, has_microsoft: bool) -> int:
    """Returns the first operator set that has a value's quantized type.

    onnxruntime's own QuantizeLinear has more types than ONNX's of the same set.
    """
    quant = value.type.quant
    if quant is None:
        return OLDEST_OPSET
    if _is_read_by_contrib_ops(value):
        return OLDEST_OPSET
    if (
        has_microsoft
        and (quant.granularity is None or quant.axis is not None)
        and _is_in_microsoft_domain(value)
    ):
        return OLDEST_OPSET
    # QuantizeLinear accepts float16 since opset 19, blocks since opset 21.
    for_express = 19 if quant.express.name == "f16" else OLDEST_OPSET
    return max(
        first_opset(quant.storage), 21 if quant.granularity and quant.axis is None else for_express
    )


def _is_read_by_contrib_ops(value: Value) -> bool:
    """Returns whether a quantized constant is read by operators of other domains alone.

    It is bytes in the file, as the weights of MatMulNBits, or follows that domain's versions.
    """
    is_constant = value.node.op == "constant" and bool(value.users)
    return is_constant and all(
        n.op == "fused" and contrib_ops.is_contrib_op(n) for n in value.users
    )


def _is_in_microsoft_domain(value: Value) -> bool:
    """Returns whether the source had all producers and consumers of integers in onnxruntime's
    domain."""
    producers = () if value.node.op in ("constant", "input") else (value.node,)
    operators = {"quantize": "QuantizeLinear", "dequantize": "DequantizeLinear"}
    return bool(value.users) and all(
        any((o.op, o.path) == (operators.get(n.op), f"domain {MICROSOFT}") for o in n.origins)
        for n in (*producers, *value.users)
    )


def _name_outputs(writer: OnnxWriter) -> list[tuple[Value, str]]:
    """Names the outputs, and returns those that need a copy: inputs, constants, and second
    names."""
    graph = writer.graph
    named: set[Value] = set()
    copies: list[tuple[Value, str]] = []
    # Values whose own name is an output come first, so that they keep it.
    outputs = sorted(graph.outputs.items(), key=lambda item: item[0] != item[1].name)
    for name, value in outputs:
        fixed = value.node.op in ("input", "constant")
        # An output's name is wanted by another value of the graph, which gets a fresh one.
        if graph.has(name) and graph[name] is not value and graph[name].node.op != "constant":
            if graph[name].node.op == "input":
                raise writer.refuse(value.node, f"input and output are both called {name!r}")
            writer.set_name(graph[name], writer.fresh(name))
        if value.node.op == "input" and name == value.name:
            continue
        if fixed or value in named:
            copies.append((value, name))
        else:
            writer.set_name(value, name)
            named.add(value)
    order = [name for name, _ in _outputs_in_order(graph)]
    return sorted(copies, key=lambda copy: order.index(copy[1]))


def _write(writer: OnnxWriter, node: Node) -> None:
    match node.op:
        case "input" | "output" | "constant":
            return
        case "foreign":
            foreign.write(writer, node)
        case "quantize":
            _write_quantize(writer, node)
        case "dequantize":
            _write_dequantize(writer, node)
        case "requantize":
            _write_requantize(writer, node)
        case _ if plugin_ops.is_plugin_op(node):
            plugin_ops.write(writer, node)
        case "fused":
            _write_chain(writer, node)
        case "if" | "loop" | "scan":
            control.write(writer, node, _write)
        case op if op in dynamic_ops.OPS:
            dynamic_ops.OPS[op](writer, node)
        case _ if dynamic_ops.parameter_operands(node):
            if not integer_ops.write_computed_parameters(writer, node):
                dynamic_ops.write_in_float(writer, node)
        case _:
            _write_op(writer, node)


def _write_op(writer: OnnxWriter, node: Node) -> None:
    value = node.results[0]
    work = OpToWrite.of(
        node.op, node.attrs, node.operands, value.type, writer.name(value), node, node.origins
    )
    if any(v.type.quant for v in (*node.operands.values(), *node.results)):
        integer_ops.write(writer, work)
    else:
        ins = {slot: writer.name(v) for slot, v in work.operands.items()}
        float_ops.write(writer, work, ins)


def _write_chain(writer: OnnxWriter, node: Node) -> None:
    if contrib_ops.is_contrib_op(node):
        contrib_ops.write(writer, node)
        return
    if not node.stages:
        raise writer.refuse(node, "a group with a body has no form in ONNX")
    if any(spec(s.op).slot(n) is None for s in node.stages for n in s.slots):
        raise writer.refuse(
            node, "its quantization parameters are computed at run time; `format='qdq'` would do"
        )
    value = node.result
    out = writer.name(value)
    works = [
        OpToWrite.of(s.op, s.attrs, node.stage_operands(i), value.type, out, node, s.origins)
        for i, s in enumerate(node.stages)
    ]
    integer_ops.write_chain(writer, works)


def _source_parameter_names(node: Node, op: str, stem: str) -> tuple[str | None, str | None, bool]:
    """Returns the source's names of scale and zero point, and whether it had a zero point."""
    for origin in node.origins:
        if origin.framework == "onnx" and origin.op == op:
            names = dict(origin.operands)
            zero = names.get(f"{stem}_zero_point")
            return names.get(f"{stem}_scale"), zero, zero is not None
    return None, None, True


def _write_quantize(writer: OnnxWriter, node: Node) -> None:
    if len(node.operands) > 1:
        _require_even_rounding(writer, node)
        dynamic_ops.quantize(writer, node)
        return
    value = node.result
    quant = value.type.quant
    assert quant is not None
    scale, zero, had_zero_point = _source_parameter_names(node, "QuantizeLinear", "y")
    # Without a zero point QuantizeLinear makes uint8, so every other storage needs one.
    needed = had_zero_point or quant.storage.name != "u8" or bool(quant.zeros().any())
    source = writer.name(node.operands["x"])
    if not node.origins and barriers.would_be_quantized(node.operands["x"]):
        # Max of one operand is an identity that no optimizer pass removes.
        fenced = writer.fresh(f"{source}_kept_float")
        writer.emit("Max", [source], [fenced])
        writer.ledger.add(
            Change.EXACT,
            STEP,
            node.operands["x"].name,
            _KEPT_FLOAT,
        )
        source = fenced
    if qcdq.quantize(writer, node, source, (scale, zero), zero=needed):
        return
    writer.quantize(
        source,
        value.type,
        writer.name(value),
        node,
        value.lineage.tensor,
        (scale, zero),
        zero=needed,
        rounding=str(node.attrs["round"]),
    )


def _require_even_rounding(writer: OnnxWriter, node: Node) -> None:
    """Raises Refused for another rounding, where scale and zero point are computed."""
    if node.attrs["round"] not in ("", "even"):
        raise writer.refuse(node, f"it rounds {node.attrs['round']!s}; ONNX rounds halves to even")


def _write_dequantize(writer: OnnxWriter, node: Node) -> None:
    if len(node.operands) > 1:
        dynamic_ops.dequantize(writer, node)
        return
    source = node.operands["x"]
    quant = source.type.quant
    assert quant is not None
    scale, zero, had_zero_point = _source_parameter_names(node, "DequantizeLinear", "x")
    # int32 is the bias of a layer: onnxruntime's optimizer expects it without a zero point.
    if zero is None and quant.storage.name == "i32":
        had_zero_point = False
    needed = had_zero_point or bool(quant.zeros().any())
    qcdq.clip_constant(writer, node, source)
    with dynamic_ops.with_barrier(writer, node) as out:
        writer.dequantize(source, out, node, (scale, zero), zero=needed)


def _write_requantize(writer: OnnxWriter, node: Node) -> None:
    if len(node.operands) > 1:
        _require_even_rounding(writer, node)
        dynamic_ops.requantize(writer, node)
        return
    value = node.result
    floats = writer.float_tensor(node.operands["x"], node)
    rounding = str(node.attrs["round"])
    out, stem = writer.name(value), value.lineage.tensor
    writer.quantize(floats, value.type, out, node, stem, rounding=rounding)
    if difference := overflow_note(writer.graph, node):
        reason = f"requantize is written as float ops between quantized values{difference}"
        writer.ledger.add(Change.APPROXIMATED, STEP, out, reason)


def _outputs_in_order(graph: Graph) -> list[tuple[str, Value]]:
    """Returns the outputs in the source's order, which edits do not keep."""
    outputs = [o for o in graph.output.origins if o.op == "Output"]
    names = [slot for o in outputs for slot, _ in o.operands]
    known = {name: i for i, name in enumerate(names)}
    return sorted(graph.outputs.items(), key=lambda item: known.get(item[0], len(known)))


def _overridable_defaults(writer: OnnxWriter, used: set[str]) -> Iterator[Value]:
    """Yields the defaults that are written as such: initializers that are inputs, too."""
    for value in writer.graph.defaults:
        # An initializer that is an input too may be replaced at run time: a default in ONNX.
        if value.name in writer.initializers and value.name in used:
            yield value
        elif value.uses:
            reason = "a default is part of what reads it, and nobody gives it"
            writer.ledger.add(Change.DROPPED, STEP, value.name, reason)


def _model(writer: OnnxWriter) -> onnx.ModelProto:
    """Returns the model of everything that was written."""
    graph = writer.graph
    inputs = [helper.make_value_info(v.name, type_proto(v.type)) for v in graph.inputs]
    outputs = [helper.make_value_info(n, type_proto(v.type)) for n, v in _outputs_in_order(graph)]
    declared = {i.name for i in (*inputs, *outputs)}
    used = set(control.names_read(writer.nodes))
    inputs += [
        helper.make_value_info(v.name, type_proto(v.type))
        for v in _overridable_defaults(writer, used)
    ]
    infos = {i.name: i for i in (*writer.value_infos, *provenance.stated_inner_types(writer))}
    proto = helper.make_graph(
        writer.nodes,
        graph.name,
        inputs,
        outputs,
        # Constants that no node reads are left out, as those of folded branches.
        [t for n, t in writer.initializers.items() if n in used],
        value_info=[i for n, i in infos.items() if n not in declared],
    )
    imports = [helper.make_opsetid(d, v) for d, v in sorted(writer.domains.items())]
    # Weights of contrib operators are bytes in the file: their types need no newer IR version.
    results = (value for node in _written_nodes(graph) for value in node.results)
    kinds = {value.type.dtype for value in results if not _is_read_by_contrib_ops(value)}
    version = max([IR_VERSION, *map(ir_version, kinds)])
    model = helper.make_model(proto, opset_imports=imports, ir_version=version, producer_name="qir")
    model.producer_version = __version__
    quantization_annotation.annotate(writer, model.graph, _outputs_in_order(graph))
    model.functions.extend(writer.functions[name] for name in sorted(writer.functions))
    return model

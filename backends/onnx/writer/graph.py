"""Writes a graph as an ONNX model, node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from qir import __version__
from qir.analysis.bodies import bodies
from qir.analysis.float32_overflow import beyond
from qir.errors import Refused, UsageError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.rewrite.resize_axes import name_none, spread

from ..forms import qcdq
from ..opset import check, element_types
from ..optimizer import barriers, moved_values
from . import (
    annotated,
    attention_ops,
    contrib_ops,
    control,
    dynamic_ops,
    float_ops,
    foreign,
    integer_ops,
    plugin_ops,
    provenance,
)
from .elements import content, ir_version, since, type_proto
from .writer import MICROSOFT, STEP, OnnxWriter, Work

OPSET = 21
OLDEST = 13
"""The first whose QuantizeLinear has an axis."""
NEWEST = 26
"""The newest that onnxruntime 1.31 takes."""
_KEPT = (
    "stays float: a Max of one operand between it and its quantize keeps onnxruntime's optimizer "
    "from quantizing the weights of the layer by itself and computing it in integers"
)
IR_VERSION = 10
"""The newest that every onnxruntime since 1.18 reads."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which operators a model may have."""

    standard: bool = False
    """ONNX's own alone."""
    opset: int | None = None
    """This operator set, where it is asked for."""
    newest: int = NEWEST
    on_codes: bool = False
    """Whether elements are moved on quantized values, where they may be in float too."""


def to_model(graph: Graph, ledger: Ledger, dialect: Dialect | None = None) -> onnx.ModelProto:
    """Writes a graph of any form; Refused for what ONNX cannot say, naming the node."""
    model, large = to_parts(graph, ledger, dialect)
    for tensor in model.graph.initializer:
        if tensor.name in large:
            tensor.raw_data = b"".join(content(large[tensor.name]))
    return model


def to_parts(
    graph: Graph, ledger: Ledger, dialect: Dialect | None = None
) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """Returns a model whose large initializers have no elements, and these by name."""
    said, graph = dialect or Dialect(), _with_all_axes(graph)
    writer = OnnxWriter(graph, ledger, _opset(graph, said))
    writer.standard, writer.on_codes = said.standard, said.on_codes
    copies = _name_outputs(writer)
    for node in graph:
        _write(writer, node)
    for value, name in copies:
        writer.emit("Identity", [writer.name(value)], [name])
    moved_values.write(writer, graph.outputs)
    if writer.bounded:
        many = "1 constant" if writer.bounded == 1 else f"{writer.bounded} constants"
        reason = f"that quantized values of {many} keep to, which no type of ONNX says"
        ledger.add(Change.DROPPED, STEP, "narrower bounds", reason)
    model = _finished(writer)
    check.check(model, writer.opset)
    if not said.standard:
        check.kernels(model, writer.opset, provenance.source_opset(graph) or OPSET, ledger)
    provenance.restore(graph, model, ledger)
    provenance.versions(graph, model, _why(writer.opset, graph, said), ledger)
    return model, writer.large


def _with_all_axes(graph: Graph) -> Graph:
    """Writes resizes without the axes attribute of opset 18, in a copy.

    Onnxruntime's layout transformation permutes scales and sizes as those of all axes.
    """
    if not any(spread(node) for each in bodies(graph) for node in each):
        return graph
    out = graph.copy()
    for each in bodies(out):
        for node in list(each):
            name_none(each, node)
    return out


def _why(opset: int, graph: Graph, dialect: Dialect) -> str:
    """Returns why a model is of another operator set than its source."""
    if dialect.opset is not None:
        return "as asked for"
    if opset > (provenance.source_opset(graph) or OPSET):
        return "what it holds needs it"
    return f"the newest that {'the onnx package' if dialect.standard else 'onnxruntime 1.31'} has"


def _opset(graph: Graph, dialect: Dialect) -> int:
    """Returns the operator set of the source, raised to what the graph needs; ours for other
    sources.

    One newer than onnxruntime takes is lowered as far as the graph's ops let it. Refused where one
    is asked for that the graph does not fit.
    """
    nodes = list(_written(graph))
    kept = [
        n
        for n in nodes
        if n.op == "foreign" and n.attrs["framework"] == "onnx" and not n.attrs["domain"]
    ]
    source = provenance.source_opset(graph) or OPSET
    zeros = any(n.op == "reshape" and n.attrs["allow_zero"] for n in nodes)
    own = not dialect.standard
    needed = max((_needed(v, own=own) for n in nodes for v in n.results), default=OLDEST)
    first = max((float_ops.since(n.op, n.attrs) for n in nodes), default=OLDEST)
    firsts = [first, *map(attention_ops.since, nodes), *map(element_types.since, nodes)]
    least = max([OLDEST, needed, *firsts, 14 if zeros else 0])
    newest = dialect.newest
    if dialect.opset is not None:
        return _asked(graph, dialect, least, kept)
    wanted = max([source, least, *map(foreign.version, kept)])
    if wanted <= newest:
        return wanted
    bound = [foreign.since(n) for n in kept if not foreign.fits(n, newest)]
    return max([newest, least, *bound])


def _written(graph: Graph) -> Iterator[Node]:
    """Yields the nodes that are written, not those of a group that is written as one operator."""
    for node in graph:
        yield node
        if node.op != "fused" or not contrib_ops.known(node):
            for name in node.bodies:
                yield from _written(graph.body(node, name))


def _asked(graph: Graph, dialect: Dialect, least: int, kept: list[Node]) -> int:
    opset = dialect.opset or 0
    if not OLDEST <= opset <= dialect.newest:
        said = f"opset {opset}: from {OLDEST} to {dialect.newest} are written"
        most = int(onnx.defs.onnx_opset_version())
        more = (
            f" for onnxruntime 1.31; --target onnx takes {most}" if OLDEST <= opset <= most else ""
        )
        raise UsageError(said + more)
    if opset < least:
        raise Refused(f"{graph.name}: what it holds needs opset {least}; {opset} is asked for")
    for node in kept:
        if foreign.since(node) > opset and not foreign.fits(node, opset):
            said = f"{node.attrs['op']!s} is of opset {foreign.since(node)}"
            raise Refused(f"{node.name}: {said}; {opset} is asked for")
    return opset


def _needed(value: Value, *, own: bool) -> int:
    """Returns the first operator set that can hold such integers, unless only onnxruntime's own
    meet them."""
    quant = value.type.quant
    if quant is None:
        return OLDEST
    if _within_operators(value):
        return OLDEST
    if own and (quant.granularity is None or quant.axis is not None) and _microsoft(value):
        return OLDEST
    half = 19 if quant.express.name == "f16" else OLDEST
    return max(since(quant.storage), 21 if quant.granularity and quant.axis is None else half)


def _within_operators(value: Value) -> bool:
    """Returns whether quantized values are constants that operators of other domains alone read, in
    a form of theirs.

    They are bytes in the file, as MatMulNBits has its weights, or go by those domains' sets.
    """
    made = value.node.op == "constant" and bool(value.users)
    return made and all(n.op == "fused" and contrib_ops.known(n) for n in value.users)


def _microsoft(value: Value) -> bool:
    """Returns whether all that makes and reads integers was onnxruntime's own in the source, as it
    stays."""
    makers = () if value.node.op in ("constant", "input") else (value.node,)
    wanted = {"quantize": "QuantizeLinear", "dequantize": "DequantizeLinear"}
    return bool(value.users) and all(
        any((o.op, o.path) == (wanted.get(n.op), f"domain {MICROSOFT}") for o in n.origins)
        for n in (*makers, *value.users)
    )


def _name_outputs(writer: OnnxWriter) -> list[tuple[Value, str]]:
    """Gives results their names; those that need a copy to have theirs are handed back."""
    graph = writer.graph
    named: set[Value] = set()
    copies: list[tuple[Value, str]] = []
    outputs = sorted(graph.outputs.items(), key=lambda item: item[0] != item[1].name)
    for name, value in outputs:
        fixed = value.node.op in ("input", "constant")
        if graph.has(name) and graph[name] is not value and graph[name].node.op != "constant":
            if graph[name].node.op == "input":
                raise writer.refuse(value.node, f"input and output are both called {name!r}")
            writer.call(graph[name], writer.fresh(name))
        if value.node.op == "input" and name == value.name:
            continue
        if fixed or value in named:
            copies.append((value, name))
        else:
            writer.call(value, name)
            named.add(value)
    order = [name for name, _ in _outputs(graph)]
    return sorted(copies, key=lambda copy: order.index(copy[1]))


def _write(writer: OnnxWriter, node: Node) -> None:
    match node.op:
        case "input" | "output" | "constant":
            return
        case "foreign":
            foreign.write(writer, node)
        case "quantize":
            _quantize(writer, node)
        case "dequantize":
            _dequantize(writer, node)
        case "requantize":
            _requantize(writer, node)
        case _ if plugin_ops.known(node):
            plugin_ops.write(writer, node)
        case "fused":
            _chain(writer, node)
        case "if" | "loop" | "scan":
            control.write(writer, node, _write)
        case op if op in dynamic_ops.OPS:
            dynamic_ops.OPS[op](writer, node)
        case _ if dynamic_ops.companions(node):
            if not integer_ops.beside(writer, node):
                dynamic_ops.around(writer, node)
        case _:
            _plain(writer, node)


def _plain(writer: OnnxWriter, node: Node) -> None:
    value = node.results[0]
    work = Work.of(
        node.op, node.attrs, node.operands, value.type, writer.name(value), node, node.origins
    )
    if any(v.type.quant for v in (*node.operands.values(), *node.results)):
        integer_ops.write(writer, work)
    else:
        ins = {slot: writer.name(v) for slot, v in work.operands.items()}
        float_ops.write(writer, work, ins)


def _chain(writer: OnnxWriter, node: Node) -> None:
    if contrib_ops.known(node):
        contrib_ops.write(writer, node)
        return
    if not node.stages:
        raise writer.refuse(node, "a group with a body has no form in ONNX")
    if any(spec(s.op).slot(n) is None for s in node.stages for n in s.slots):
        raise writer.refuse(
            node, "its quantization parameters are computed at run time; --format qdq would do"
        )
    value = node.result
    out = writer.name(value)
    works = [
        Work.of(s.op, s.attrs, node.stage_operands(i), value.type, out, node, s.origins)
        for i, s in enumerate(node.stages)
    ]
    integer_ops.write_chain(writer, works)


def _names(node: Node, op: str, stem: str) -> tuple[str | None, str | None, bool]:
    """Returns the source's names of scale and zero point, and whether it had the latter."""
    for origin in node.origins:
        if origin.framework == "onnx" and origin.op == op:
            found = dict(origin.operands)
            zero = found.get(f"{stem}_zero_point")
            return found.get(f"{stem}_scale"), zero, zero is not None
    return None, None, True


def _quantize(writer: OnnxWriter, node: Node) -> None:
    if len(node.operands) > 1:
        _even(writer, node)
        dynamic_ops.quantize(writer, node)
        return
    value = node.result
    quant = value.type.quant
    assert quant is not None
    scale, zero, given = _names(node, "QuantizeLinear", "y")
    needed = given or quant.storage.name != "u8" or bool(quant.zeros().any())
    source = writer.name(node.operands["x"])
    if not node.origins and barriers.tempts(node.operands["x"]):
        # Max of one operand is that operand, and no optimizer takes it out.
        fenced = writer.fresh(f"{source}_kept_float")
        writer.emit("Max", [source], [fenced])
        writer.ledger.add(
            Change.EXACT,
            STEP,
            node.operands["x"].name,
            _KEPT,
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


def _even(writer: OnnxWriter, node: Node) -> None:
    """Raises Refused for another rounding, where scale and zero point are computed."""
    if node.attrs["round"] not in ("", "even"):
        raise writer.refuse(node, f"it rounds {node.attrs['round']!s}; ONNX rounds halves to even")


def _dequantize(writer: OnnxWriter, node: Node) -> None:
    if len(node.operands) > 1:
        dynamic_ops.dequantize(writer, node)
        return
    source = node.operands["x"]
    quant = source.type.quant
    assert quant is not None
    scale, zero, given = _names(node, "DequantizeLinear", "x")
    if zero is None and quant.storage.name == "i32":
        given = False
    needed = given or bool(quant.zeros().any())
    qcdq.constant(writer, node, source)
    with dynamic_ops.fenced(writer, node) as out:
        writer.dequantize(source, out, node, (scale, zero), zero=needed)


def _requantize(writer: OnnxWriter, node: Node) -> None:
    if len(node.operands) > 1:
        _even(writer, node)
        dynamic_ops.requantize(writer, node)
        return
    value = node.result
    real = writer.real(node.operands["x"], node)
    rounding = str(node.attrs["round"])
    out, stem = writer.name(value), value.lineage.tensor
    writer.quantize(real, value.type, out, node, stem, rounding=rounding)
    if apart := beyond(writer.graph, node):
        said = f"requantize is written as float ops between quantized values{apart}"
        writer.ledger.add(Change.APPROXIMATED, STEP, out, said)


def _outputs(graph: Graph) -> list[tuple[str, Value]]:
    """Returns the results in the source's order, which edits do not keep."""
    outputs = [o for o in graph.output.origins if o.op == "Output"]
    names = [slot for o in outputs for slot, _ in o.operands]
    known = {name: i for i, name in enumerate(names)}
    return sorted(graph.outputs.items(), key=lambda item: known.get(item[0], len(known)))


def _given(writer: OnnxWriter, used: set[str]) -> Iterator[Value]:
    """Yields the defaults that are written as such: initializers that are inputs too."""
    for value in writer.graph.defaults:
        if value.name in writer.initializers and value.name in used:
            yield value
        elif value.uses:
            said = "a default is part of what reads it, and nobody gives it"
            writer.ledger.add(Change.DROPPED, STEP, value.name, said)


def _finished(writer: OnnxWriter) -> onnx.ModelProto:
    graph = writer.graph
    inputs = [helper.make_value_info(v.name, type_proto(v.type)) for v in graph.inputs]
    outputs = [helper.make_value_info(n, type_proto(v.type)) for n, v in _outputs(graph)]
    shown = {i.name for i in (*inputs, *outputs)}
    used = set(control.names_read(writer.nodes))
    inputs += [helper.make_value_info(v.name, type_proto(v.type)) for v in _given(writer, used)]
    infos = {i.name: i for i in (*writer.infos, *provenance.inner_types(writer))}
    proto = helper.make_graph(
        writer.nodes,
        graph.name,
        inputs,
        outputs,
        [t for n, t in writer.initializers.items() if n in used],
        value_info=[i for n, i in infos.items() if n not in shown],
    )
    imports = [helper.make_opsetid(d, v) for d, v in sorted(writer.domains.items())]
    found = (value for node in _written(graph) for value in node.results)
    kinds = {value.type.dtype for value in found if not _within_operators(value)}
    version = max([IR_VERSION, *map(ir_version, kinds)])
    model = helper.make_model(proto, opset_imports=imports, ir_version=version, producer_name="qir")
    model.producer_version = __version__
    annotated.annotate(writer, model.graph, _outputs(graph))
    model.functions.extend(writer.functions[name] for name in sorted(writer.functions))
    return model

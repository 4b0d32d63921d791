"""Rules on what a graph is made of: operands, uses and edges, slots, bodies, types."""

from __future__ import annotations

from collections.abc import Iterator

from qir.errors import InputError
from qir.ir import dims
from qir.ir.call_signature import CallSignature
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import TensorType
from qir.ir.verify.rule import Fault, NodeContext, wanted_slots


def output(graph: Graph) -> Iterator[Fault]:
    """A graph has an output, which lists its results."""
    if graph._output is None:
        yield Fault("it has no output")


def call(graph: Graph) -> Iterator[Fault]:
    """A call signature names as many inputs and results as the graph has."""
    if graph._output is None or not graph._output.attrs["call"]:
        return
    try:
        input_count, result_count = CallSignature.of(graph).counts()
    except InputError as error:
        yield Fault(str(error))
        return
    if (input_count, result_count) != (len(graph.inputs), len(graph.outputs)):
        message = f"its call signature has {input_count} inputs and {result_count} results"
        yield Fault(f"{message}; it has {len(graph.inputs)} and {len(graph.outputs)}")


def structure(context: NodeContext) -> Iterator[Fault]:
    """Operands, uses, edges and node order agree.

    A value knows of every node that reads it, is made earlier and in the same graph, and the graph
    for networkx has the edge. Only a defect of QIR breaks this rule, or code that writes to private
    fields.
    """
    node, graph = context.node, context.graph
    store = graph._store
    for slot, value in context.operands.items():
        fault = ""
        if value.node not in graph._nodes:
            fault = f"reads %{value.name}, which is of another graph"
        elif (node, slot) not in value._uses:
            fault = f"reads %{value.name}, which does not know it"
        elif store is not None and not store.joins(value, node, slot):
            fault = "has no edge"
        elif value.node._rank >= node._rank:
            fault = f"reads %{value.name}, which is made later"
        if fault:
            yield Fault(f"{slot} {fault}", slot, value.name)
    for value in node.results:
        if graph._values.get(value.name) is not value:
            yield Fault(f"%{value.name} is not the value of that name", value=value.name)


def bodies(context: NodeContext) -> Iterator[Fault]:
    """A node holds the closed graphs that its op runs, each with an output.

    A body sees its own inputs and nothing else. A graph is in one place only: to hold it twice,
    copy it.
    """
    node = context.node
    node_bodies = {n: b for n, b in node._bodies.items() if isinstance(b, Graph)}
    expected = set(context.spec.bodies)
    if node.op != "foreign" and (node.op != "fused" or not node.stages):
        for name in sorted(expected ^ set(node_bodies)):
            yield Fault(f"body {name} is {'missing' if name in expected else 'no body of its op'}")
    for name, body in node_bodies.items():
        if body._holder is not context.graph:
            yield Fault(f"body {name} does not know that it is here")


def default(context: NodeContext) -> Iterator[Fault]:
    """A constant that the caller may replace is in the main graph, not in a body.

    The caller cannot reach a body.
    """
    if context.node.attrs.get("default") and context.graph._holder is not None:
        yield Fault("nobody can give a constant of a body")


def slots(context: NodeContext) -> Iterator[Fault]:
    """Every operand is in a slot of the op, and every required slot is filled.

    Optional slots may be empty. A group has the slots of its stages, or of its body's inputs.
    """
    node, op_spec = context.node, context.spec
    if node.op == "fused":
        for slot in context.operands.keys() - set(wanted_slots(node)):
            yield Fault(f"{slot} is no slot of its stages", slot)
    elif node.op not in ("output", "foreign"):
        is_known = tuple(context.operands) in op_spec.checked_operand_names
        # Names that `Graph.add` accepted before are sound: large graphs repeat a few combinations.
        for slot in () if is_known else context.operands:
            if op_spec.slot(slot) is None and not op_spec.is_companion(slot):
                yield Fault(f"{node.op} has no slot {slot}", slot)
        for variadic_slot in (s.name for s in op_spec.operands if s.variadic):
            count = len(node.variadic(variadic_slot))
            for i in range(count):
                if f"{variadic_slot}.{i}" not in context.operands:
                    yield Fault(f"{variadic_slot}.{i} is missing, and one after it is there")
                    break
    for slot in context.missing:
        yield Fault(f"{slot} is missing", slot)


def types(context: NodeContext) -> Iterator[Fault]:
    """The stated types agree with the op's type rule.

    The type rule takes operands and attributes; each result has the shape and the expressed type
    that the rule gives. Results are quantized if and only if the op makes quantized values.
    """
    node = context.node
    if node._bodies and node.op == "fused":
        yield from _body_type_faults(node)
    for i, step in enumerate(context.steps):
        stage = f"stage {i}" if node.stages else ""
        if step.rejection:
            yield Fault(f"{stage}: {step.rejection}" if stage else step.rejection)
        elif stage:
            kind, name = step.result, stage if i < len(node.stages) - 1 else node.name
            if kind is not None and len(step.inferred) == 1:
                yield from _type_faults(name, kind, step.inferred[0])
        else:
            yield from _result_faults(node, step.inferred)
    if node.op in _QUANTIZATION_OPS and node.results:
        yield from _direction_faults(node)


def _result_faults(node: Node, inferred: tuple[TensorType, ...]) -> Iterator[Fault]:
    if len(inferred) != len(node.results):
        yield Fault(f"makes {len(node.results)} values, its op makes {len(inferred)}")
    for value, kind in zip(node.results, inferred, strict=False):
        if value.type is kind:
            continue
        if node.op == "recode":
            yield from _recode_faults(value, kind)
        elif node._bodies and not _are_compatible(value.type, kind):
            message = f"%{value.name} is {value.type}, its bodies make {kind}"
            yield Fault(message, value=value.name)
        elif value.type.shape != kind.shape or value.type.express is not kind.express:
            yield from _type_faults(value.name, value.type, kind)


def _recode_faults(value: Value, inferred: TensorType) -> Iterator[Fault]:
    """The same bits may have any meaning; their number and the shape stay."""
    kind = value.type
    yield from _type_faults(value.name, TensorType(kind.shape, inferred.express), inferred)
    if kind.dtype.bits != inferred.dtype.bits:
        message = (
            f"%{value.name} has {kind.dtype.bits} bits an element, x has {inferred.dtype.bits}"
        )
        yield Fault(message, value=value.name)


def _type_faults(name: str, kind: TensorType, inferred: TensorType) -> Iterator[Fault]:
    shape = kind.shape
    if len(shape) != len(inferred.shape) or not all(map(dims.may_be_equal, shape, inferred.shape)):
        message = f"%{name} is {kind}, its op makes shape {list(inferred.shape)}"
        yield Fault(message, value=name)
    elif kind.express != inferred.express:
        message = f"%{name} means {kind.express}, its op makes {inferred.express}"
        yield Fault(message, value=name)


_QUANTIZATION_OPS = frozenset({"quantize", "requantize", "dequantize", "constant"})


def _direction_faults(node: Node) -> Iterator[Fault]:
    value = node.results[0]
    array = value.constant
    if array is not None and value.type != array.type:
        message = f"%{value.name} is {value.type}, its elements are {array.type}"
        yield Fault(message, value=value.name)
    if node.op in ("quantize", "requantize") and value.type.quant is None:
        message = f"its result %{value.name} is {value.type} and is not quantized"
        yield Fault(message, value=value.name)
    if node.op == "dequantize" and value.type.quant is not None:
        yield Fault("its result is quantized", value=value.name)


def _body_type_faults(node: Node) -> Iterator[Fault]:
    """A group's body takes what the group is given, and gives what the group makes."""
    for body in node._bodies.values():
        for value in body.inputs:
            operand = node._operands.get(value.name)
            if operand is not None and not _are_compatible(value.type, operand.type):
                message = f"its body takes {value.type} as {value.name}, it gets {operand.type}"
                yield Fault(message, value.name, operand.name)
        body_results: list[Value] = list(body.outputs.values())
        if len(body_results) != len(node.results):
            yield Fault(f"makes {len(node.results)} values, its body makes {len(body_results)}")
        for mine, inner in zip(node.results, body_results, strict=False):
            if not _are_compatible(mine.type, inner.type):
                message = f"%{mine.name} is {mine.type}, its body makes {inner.type}"
                yield Fault(message, value=mine.name)


def _are_compatible(a: TensorType, b: TensorType) -> bool:
    return (
        a.element == b.element
        and a.rank == b.rank
        and all(map(dims.may_be_equal, a.shape, b.shape))
    )


def kept(context: NodeContext) -> Iterator[Fault]:
    """A foreign op is one that QIR does not know.

    If QIR knows the op but could not read it, such as for parameters without a meaning, the finding
    says why.
    """
    attrs = context.node._attrs
    framework, op, why = (str(attrs.get(name, "")) for name in ("framework", "op", "why"))
    if why:
        yield Fault(f"kept as {framework} {op}: {why}")


def unused(context: NodeContext) -> Iterator[Fault]:
    """Every computed value is used; `prune` removes nodes whose values are not."""
    node = context.node
    if node.op not in ("input", "output") and not node.used:
        yield Fault("it is not used; prune removes it")

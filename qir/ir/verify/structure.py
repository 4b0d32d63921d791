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
        given, made = CallSignature.of(graph).counts()
    except InputError as error:
        yield Fault(str(error))
        return
    if (given, made) != (len(graph.inputs), len(graph.outputs)):
        said = f"its call signature has {given} inputs and {made} results"
        yield Fault(f"{said}; it has {len(graph.inputs)} and {len(graph.outputs)}")


def structure(seen: NodeContext) -> Iterator[Fault]:
    """Operands, uses, edges and node order agree.

    A value knows of every node that reads it, is made earlier and in the same graph, and networkx
    has the edge. Only a defect of QIR breaks this rule, or code that writes to private fields.
    """
    node, graph = seen.node, seen.graph
    edges = graph._store._succ
    for slot, value in seen.operands.items():
        said = ""
        if (users := edges.get(value.node)) is None:
            said = f"reads %{value.name}, which is of another graph"
        elif (node, slot) not in value._uses:
            said = f"reads %{value.name}, which does not know it"
        elif slot not in users.get(node, ()):
            said = "has no edge"
        elif value.node._rank >= node._rank:
            said = f"reads %{value.name}, which is made later"
        if said:
            yield Fault(f"{slot} {said}", slot, value.name)
    for value in node.results:
        if graph._values.get(value.name) is not value:
            yield Fault(f"%{value.name} is not the value of that name", value=value.name)


def bodies(seen: NodeContext) -> Iterator[Fault]:
    """A node holds the closed graphs that its op runs, each with an output.

    A body sees its own inputs and nothing else. A graph is in one place only: to hold it twice,
    copy it.
    """
    node = seen.node
    held = {n: b for n, b in node._bodies.items() if isinstance(b, Graph)}
    wanted = set(seen.spec.bodies)
    if node.op != "foreign" and (node.op != "fused" or not node.stages):
        for name in sorted(wanted ^ set(held)):
            yield Fault(f"body {name} is {'missing' if name in wanted else 'no body of its op'}")
    for name, body in held.items():
        if body._holder is not seen.graph:
            yield Fault(f"body {name} does not know that it is here")


def default(seen: NodeContext) -> Iterator[Fault]:
    """A constant that the caller may replace is in the main graph, not in a body.

    The caller cannot reach a body.
    """
    if seen.node.attrs.get("default") and seen.graph._holder is not None:
        yield Fault("nobody can give a constant of a body")


def slots(seen: NodeContext) -> Iterator[Fault]:
    """Every operand is in a slot of the op, and every required slot is filled.

    Optional slots may be empty. A group has the slots of its stages, or of its body's inputs.
    """
    node, row = seen.node, seen.spec
    if node.op == "fused":
        for slot in seen.operands.keys() - set(wanted_slots(node)):
            yield Fault(f"{slot} is no slot of its stages", slot)
    elif node.op not in ("output", "foreign"):
        fits = tuple(seen.operands) in row.checked_operand_names
        for slot in () if fits else seen.operands:
            if row.slot(slot) is None and not row.is_companion(slot):
                yield Fault(f"{node.op} has no slot {slot}", slot)
        for several in (s.name for s in row.operands if s.variadic):
            count = len(node.variadic(several))
            for i in range(count):
                if f"{several}.{i}" not in seen.operands:
                    yield Fault(f"{several}.{i} is missing, and one after it is there")
                    break
    for slot in seen.missing:
        yield Fault(f"{slot} is missing", slot)


def types(seen: NodeContext) -> Iterator[Fault]:
    """The stated types agree with the op's type rule.

    The type rule takes operands and attributes; each result has the shape and the expressed type
    that the rule gives. Results are quantized if and only if the op makes quantized values.
    """
    node = seen.node
    if node._bodies and node.op == "fused":
        yield from _body_types(node)
    for i, step in enumerate(seen.steps):
        stage = f"stage {i}" if node.stages else ""
        if step.rejection:
            yield Fault(f"{stage}: {step.rejection}" if stage else step.rejection)
        elif stage:
            kind, name = step.result, stage if i < len(node.stages) - 1 else node.name
            if kind is not None and len(step.inferred) == 1:
                yield from _misfit(name, kind, step.inferred[0])
        else:
            yield from _results(node, step.inferred)
    if node.op in _OF_CODES and node.results:
        yield from _direction(node)


def _results(node: Node, wanted: tuple[TensorType, ...]) -> Iterator[Fault]:
    if len(wanted) != len(node.results):
        yield Fault(f"makes {len(node.results)} values, its op makes {len(wanted)}")
    for value, kind in zip(node.results, wanted, strict=False):
        if value.type is kind:
            continue
        if node.op == "recode":
            yield from _recoded(value, kind)
        elif node._bodies and not _alike(value.type, kind):
            said = f"%{value.name} is {value.type}, its bodies make {kind}"
            yield Fault(said, value=value.name)
        elif value.type.shape != kind.shape or value.type.express is not kind.express:
            yield from _misfit(value.name, value.type, kind)


def _recoded(value: Value, wanted: TensorType) -> Iterator[Fault]:
    """The same bits may have any meaning; their number and the shape stay."""
    kind = value.type
    yield from _misfit(value.name, TensorType(kind.shape, wanted.express), wanted)
    if kind.dtype.bits != wanted.dtype.bits:
        said = f"%{value.name} has {kind.dtype.bits} bits an element, x has {wanted.dtype.bits}"
        yield Fault(said, value=value.name)


def _misfit(name: str, kind: TensorType, wanted: TensorType) -> Iterator[Fault]:
    shape = kind.shape
    if len(shape) != len(wanted.shape) or not all(map(dims.may_be_equal, shape, wanted.shape)):
        said = f"%{name} is {kind}, its op makes shape {list(wanted.shape)}"
        yield Fault(said, value=name)
    elif kind.express != wanted.express:
        said = f"%{name} means {kind.express}, its op makes {wanted.express}"
        yield Fault(said, value=name)


_OF_CODES = frozenset({"quantize", "requantize", "dequantize", "constant"})


def _direction(node: Node) -> Iterator[Fault]:
    value = node.results[0]
    array = value.constant
    if array is not None and value.type != array.type:
        said = f"%{value.name} is {value.type}, its elements are {array.type}"
        yield Fault(said, value=value.name)
    if node.op in ("quantize", "requantize") and value.type.quant is None:
        said = f"its result %{value.name} is {value.type} and is not quantized"
        yield Fault(said, value=value.name)
    if node.op == "dequantize" and value.type.quant is not None:
        yield Fault("its result is quantized", value=value.name)


def _body_types(node: Node) -> Iterator[Fault]:
    """A group's body takes what the group is given, and gives what the group makes."""
    for body in node._bodies.values():
        for value in body.inputs:
            given = node._operands.get(value.name)
            if given is not None and not _alike(value.type, given.type):
                said = f"its body takes {value.type} as {value.name}, it gets {given.type}"
                yield Fault(said, value.name, given.name)
        made: list[Value] = list(body.outputs.values())
        if len(made) != len(node.results):
            yield Fault(f"makes {len(node.results)} values, its body makes {len(made)}")
        for mine, inner in zip(node.results, made, strict=False):
            if not _alike(mine.type, inner.type):
                said = f"%{mine.name} is {mine.type}, its body makes {inner.type}"
                yield Fault(said, value=mine.name)


def _alike(a: TensorType, b: TensorType) -> bool:
    return (
        a.element == b.element
        and a.rank == b.rank
        and all(map(dims.may_be_equal, a.shape, b.shape))
    )


def kept(seen: NodeContext) -> Iterator[Fault]:
    """A foreign op is one that QIR does not know.

    If QIR knows the op but could not read it, such as for parameters without a meaning, the finding
    says why.
    """
    attrs = seen.node._attrs
    framework, op, why = (str(attrs.get(name, "")) for name in ("framework", "op", "why"))
    if why:
        yield Fault(f"kept as {framework} {op}: {why}")


def unused(seen: NodeContext) -> Iterator[Fault]:
    """Every computed value is used; `prune` removes nodes whose values are not."""
    node = seen.node
    if node.op not in ("input", "output") and not node.used:
        yield Fault("it is not used; prune removes it")

"""Whether a program is well formed: small named rules, each with located findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from qir.errors import TypeRuleError, VerifyError
from qir.ir import dims
from qir.ir.calls import make_call
from qir.ir.graph import Graph
from qir.ir.node import Node, Use, Value
from qir.ir.ops import COMPANIONS, Call, spec
from qir.ir.ops.graph import GIVEN
from qir.ir.types import Array, QuantType, TensorType


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a rule found."""

    rule: str
    severity: Literal["error", "warning"]
    """An error is no program; a warning is one that may not mean what its author thinks."""
    node: str
    message: str
    origin: str = ""

    def __str__(self) -> str:
        origin = f" ({self.origin})" if self.origin else ""
        return f"{self.node}{origin}: {self.message} [{self.rule}]"


Rule: TypeAlias = Callable[[Graph, Node], Iterator[str]]


def verify(graph: Graph) -> list[Finding]:
    """Every finding of every rule, in the order of the nodes."""
    out = [Finding("output", "error", graph.name, m) for m in _whole(graph)]
    for node in graph:
        for rule in ERRORS:
            out += _findings(rule, "error", graph, node)
        for rule in WARNINGS:
            out += _findings(rule, "warning", graph, node)
    return out


def check(graph: Graph) -> None:
    """Raises VerifyError at the first error, with the nodes around it as a note."""
    for finding in verify(graph):
        if finding.severity == "error":
            error = VerifyError(str(finding))
            error.add_note(_around(graph, finding.node))
            raise error


def _findings(
    rule: Rule, severity: Literal["error", "warning"], graph: Graph, node: Node
) -> list[Finding]:
    origin = str(node.origins[0]) if node.origins else ""
    name = rule.__name__.strip("_").replace("_", "-")
    return [Finding(name, severity, node.name, m, origin) for m in rule(graph, node)]


def _around(graph: Graph, name: str, count: int = 5) -> str:
    nodes = list(graph)
    at = next((i for i, n in enumerate(nodes) if n.name == name), 0)
    lines = [
        f"{'->' if i == at else '  '} {node!r}"
        for i, node in enumerate(nodes)
        if abs(i - at) <= count
    ]
    return "\n".join(lines)


def _whole(graph: Graph) -> Iterator[str]:
    if not any(n.op == "output" for n in graph):
        yield "it has no output"


def _structure(graph: Graph, node: Node) -> Iterator[str]:
    """Operands, uses, edges and order are one fact, kept in several places."""
    for slot, value in node.operands.items():
        if Use(node, slot) not in value.uses:
            yield f"{slot} reads %{value.name}, which does not know it"
        if not graph.nx.has_edge(value.node, node, key=slot):
            yield f"{slot} has no edge"
        if value.node._rank >= node._rank:
            yield f"{slot} reads %{value.name}, which is made later"
    for value in node.results:
        if graph.values.get(value.name) is not value:
            yield f"%{value.name} is not the value of that name"


def _slots(graph: Graph, node: Node) -> Iterator[str]:
    """Every slot is the op's, and every slot the op needs is there."""
    if node.op == "fused":
        wanted = {g for i, stage in enumerate(node.stages) for g in stage.group_slots(i)}
        wanted |= {value.name for body in node.bodies.values() for value in body.inputs}
        for slot in sorted(wanted ^ set(node.operands)):
            yield f"{slot} is {'missing' if slot in wanted else 'no slot of its stages'}"
    if node.op in ("output", "foreign", "fused"):
        return
    row = spec(node.op)
    for slot in node.operands:
        if row.slot(slot) is None and slot.rpartition(".")[2] not in COMPANIONS:
            yield f"{node.op} has no slot {slot}"
    for missing in _missing(node):
        yield f"{missing} is missing"


def _missing(node: Node) -> list[str]:
    if node.op == "fused":
        bodies = [value.name for body in node.bodies.values() for value in body.inputs]
        slots = bodies or [g for i, stage in enumerate(node.stages) for g in stage.group_slots(i)]
    else:
        row = spec(node.op)
        slots = [s.name for s in row.operands if not (s.optional or s.variadic)]
    return [s for s in slots if s not in node.operands]


def _types(graph: Graph, node: Node) -> Iterator[str]:
    """The stated types fit what the op makes of its operands."""
    if _missing(node):
        return
    if node.op in GIVEN:
        if node.stages:
            yield from _chain_types(node)
        return
    try:
        wanted = spec(node.op).rule(make_call(node.op, node.operands, node.attrs, node.bodies))
    except TypeRuleError as error:
        yield str(error)
        return
    if len(wanted) != len(node.results):
        yield f"makes {len(node.results)} values, its op makes {len(wanted)}"
    for value, kind in zip(node.results, wanted, strict=False):
        yield from _misfit(value, kind)
    if node.op == "constant" and node.result.type != wanted[0]:
        yield f"%{node.name} is {node.result.type}, its elements are {wanted[0]}"
    result = node.results[0].type.quant if node.results else None
    if node.op in ("quantize", "requantize") and result is None:
        yield f"its result %{node.name} is {node.results[0].type} and holds no codes"
    if node.op == "dequantize" and result is not None:
        yield "its result holds codes"


def _misfit(value: Value, wanted: TensorType) -> Iterator[str]:
    shape = value.type.shape
    if len(shape) != len(wanted.shape) or not all(map(dims.agree, shape, wanted.shape)):
        yield f"%{value.name} is {value.type}, its op makes shape {list(wanted.shape)}"
    elif value.type.express != wanted.express:
        yield f"%{value.name} means {value.type.express}, its op makes {wanted.express}"


def _chain_types(node: Node) -> Iterator[str]:
    flow: TensorType | None = None
    for i, stage in enumerate(node.stages):
        operands = {s: v.type for s, v in node.stage_operands(i).items()}
        if stage.flow is not None and flow is not None:
            operands[stage.flow] = flow
        given = {s: v.constant for s, v in node.stage_operands(i).items()}
        constants = {s: c for s, c in given.items() if c is not None}
        try:
            (made,) = spec(stage.op).rule(Call(stage.op, operands, stage.attrs, constants))
        except TypeRuleError as error:
            yield f"stage {i}: {error}"
            return
        if stage.type is not None:
            yield from _misfit(Value(node, i, f"stage {i}", stage.type), made)
        flow = stage.type or made
    if flow is not None:
        yield from _misfit(node.result, flow)


def _parameters(graph: Graph, node: Node) -> Iterator[str]:
    """Scales are positive and finite, zeros lie in the codes, and there are as many as needed."""
    for value in node.results:
        if (quant := value.type.quant) is not None and not quant.dynamic:
            for fault in _quant_faults(quant, value.type):
                yield f"%{value.name}: {fault}"


def _quant_faults(quant: QuantType, kind: TensorType) -> Iterator[str]:
    scales = np.asarray(quant.scales(), np.float64)
    nested = isinstance(quant.scale, Array) and quant.scale.type.quant is not None
    if not nested and not (np.isfinite(scales).all() and (scales > 0).all()):
        yield "a scale is not positive and finite"
    zeros = np.asarray(quant.zeros())
    if zeros.size not in (1, scales.size):
        yield f"{zeros.size} zeros for {scales.size} scales"
    if quant.storage.is_float and zeros.any():
        yield f"{quant.storage} codes have no zero point"
    elif not quant.real_zero and ((zeros < quant.low) | (zeros > quant.high)).any():
        yield f"a zero point lies outside {quant.low}..{quant.high}"
    if quant.grain and quant.grain.axis is not None:
        size = kind.shape[quant.grain.axis]
        if isinstance(size, int) and scales.size not in (1, size):
            yield f"{scales.size} scales for {size} indices of axis {quant.grain.axis}"
    elif quant.grain and (grid := dims.known(quant.grain.grid(kind.shape))) is not None:
        if scales.shape != grid:
            yield f"scales are {list(scales.shape)}, the blocks make {list(grid)}"


def _codes(graph: Graph, node: Node) -> Iterator[str]:
    """A constant's elements lie inside the bounds of their type."""
    if node.op != "constant" or (array := node.result.constant) is None:
        return
    kind, quant, data = array.type.dtype, array.type.quant, array.data
    if not kind.is_integer or not data.size:
        return
    low, high = (quant.low, quant.high) if quant else kind.bounds
    if quant and quant.codes is not None:
        count = len(quant.codes) if isinstance(quant.codes, tuple) else quant.codes.data.size
        high = min(high, low + count - 1)
    if data.min() < low or data.max() > high:
        yield f"elements {data.min()}..{data.max()} leave the bounds {low}..{high}"


def _shared(graph: Graph, node: Node) -> Iterator[str]:
    """What only moves codes keeps their meaning."""
    if node.op in GIVEN or not node.results or _missing(node):
        return
    row = spec(node.op)
    result = node.results[0].type.quant
    for slot in row.traits.same_params:
        values = node.variadic(slot) if slot == "xs" else [node.operands[slot]]
        for value in values:
            quant = value.type.quant
            if (quant is None) != (result is None):
                yield f"%{value.name} is {'codes' if quant else 'reals'}, the result is not"
            elif quant and result and node.op != "concat":
                if (moved := _moved(node, quant)) is None or not moved.same_map(result):
                    yield f"%{value.name} and the result hold different maps: {quant}, {result}"


def _moved(node: Node, quant: QuantType) -> QuantType | None:
    """The map after the op has moved the elements; None if it does not survive."""
    move = spec(node.op).move
    try:
        return move(make_call(node.op, node.operands, node.attrs), quant) if move else quant
    except TypeRuleError:  # the type rule's own finding
        return node.results[0].type.quant


def _bias_scale(graph: Graph, node: Node) -> Iterator[str]:
    """A quantized bias counts in units of input scale times weight scale, bit for bit."""
    if node.op in GIVEN or (slot := spec(node.op).traits.bias) is None:
        return
    traits = spec(node.op).traits
    parts = [node.operands.get(s or "") for s in (traits.data, traits.weight, slot)]
    quants = [_source_quant(v) for v in parts]
    if any(q is None or q.dynamic for q in quants):
        return
    x, w, b = (np.asarray(q.scales()).reshape(-1) for q in quants if q is not None)
    if len({x.size, w.size, b.size} - {1}) > 1:
        yield f"{b.size} bias scales for {x.size} input and {w.size} weight scales"
    elif not np.all(x.astype(np.float32) * w.astype(np.float32) == b):
        yield "the bias scale is not fl32(input scale x weight scale)"


def _source_quant(value: Value | None) -> QuantType | None:
    """The map of a value, seen through a dequantize."""
    if value is None:
        return None
    if value.type.quant is None and value.node.op == "dequantize":
        return value.node.operands["x"].type.quant
    return value.type.quant


def _unused(graph: Graph, node: Node) -> Iterator[str]:
    """Nothing is computed for nobody."""
    if node.op not in ("input", "output") and not node.used:
        yield "nobody uses it; prune takes it out"


ERRORS: tuple[Rule, ...] = (_structure, _slots, _types, _parameters, _codes, _shared)
WARNINGS: tuple[Rule, ...] = (_bias_scale, _unused)

"""What a rule is, what it sees of a node, and what it finds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

from qir.ir.calls import make_call
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import OPS, OpSpec, spec
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.ops.plugin import ops_with
from qir.ir.types import Array, QuantType, TensorType
from qir.ir.verify.producers import Compute, follow, trail_elements
from qir.ir.verify.step import OpUse, Product

Severity: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule of the verifier that a node breaks, and where."""

    rule: str
    severity: Severity
    """An error is no program; a warning is one that may not mean what its author thinks; a note
    changes no number."""
    node: str
    message: str
    origin: str = ""
    slot: str = ""
    """The operand that it is about, by the node's own name for it; empty where it is none."""
    value: str = ""
    """The value that it is about."""
    path: str = ""
    """The graph, and the nodes and bodies it is in: `main`, `main/loop/body`."""

    def __str__(self) -> str:
        inside = f"{self.path}: " if "/" in self.path else ""
        origin = f" ({self.origin})" if self.origin else ""
        text = f"{inside}{self.node}{origin}: {self.message} [{self.rule}]"
        return " ".join(text.splitlines())  # a name may hold anything


class Fault(NamedTuple):
    """What a rule says of a node: a finding without the place, which the runner knows."""

    message: str
    slot: str = ""
    value: str = ""


class Look:
    """One graph under verification, and what is known of the graphs around it."""

    __slots__ = ("bound", "compute", "graph", "maps", "moving", "numbers", "path", "profile")

    def __init__(
        self, graph: Graph, path: str, outer: Look | None = None, compute: Compute | None = None
    ) -> None:
        self.graph = graph
        self.path = path
        self.compute: Compute | None = outer.compute if outer else compute
        """What computes a node of constants; None where nobody does."""
        self.profile: str = graph.profile or (outer.profile if outer else "")
        self.bound: dict[Value, Value] = outer.bound if outer else {}
        """Inputs of bodies, and the values outside that they always are."""
        self.moving: set[Node] = outer.moving if outer else set()
        """Nodes seen so far whose values are not the same in every run."""
        self.maps: dict[object, tuple[QuantType, str]] = {}
        """One quantized type and the name of its value, for each tensor that has one
        (`one-tensor`)."""
        self.numbers: dict[Value, tuple[tuple[object, ...], str]] = {}
        """The companions of each value whose type asks for numbers, and the node that said them."""

    def pass_by(self, node: Node) -> None:
        """Notes whether a node's values are the same in every run."""
        varying = self.moving
        if node._op == "input":
            # An input of a body that always is one constant outside does not vary.
            value = self.source(node._results[0])
            if value._node is node or value._node in varying:
                varying.add(node)
            return
        for value in node._operands.values():
            if value._node in varying:
                varying.add(node)
                return

    def bind(self, node: Node, body: Graph) -> None:
        """Notes what the inputs of a body are that never change from round to round."""
        inputs = body.inputs
        if node._op == "fused":
            pairs = [(v, node.operands[v.name]) for v in inputs if v.name in node.operands]
        else:
            captured = node.variadic("xs")
            # Loops bind what they capture (`xs`) last; counters, carried values and slices change
            # every round.
            last_inputs = (
                inputs[len(inputs) - len(captured) :] if len(captured) <= len(inputs) else ()
            )
            pairs = list(zip(last_inputs, captured, strict=False)) if node._op != "foreign" else []
        self.bound.update(pairs)

    def source(self, value: Value) -> Value:
        """Returns the value itself, or the one outside that an input of a body stands for."""
        while (outside := self.bound.get(value)) is not None:
            value = outside
        return value

    def static(self, value: Value) -> bool:
        """Returns whether it is the same in every run: made of constants alone."""
        return self.source(value).node not in self.moving

    def quant_type(self, value: Value) -> QuantType | None:
        """Returns the quantized type of the integers that a value is read from, seen through what
        moves them."""
        return follow(self, value).quant

    def constant_integers(self, value: Value) -> tuple[QuantType | None, Array | None]:
        """That map, and the integers where they are constant; the elements where it is not
        quantized."""
        trail = follow(self, value)
        return trail.quant, trail_elements(self, trail)


class NodeContext:
    """One node as every rule sees it: looked up once."""

    __slots__ = (
        "has_open_parameters",
        "is_near_quantized",
        "look",
        "makes_quantized",
        "missing",
        "node",
        "operands",
        "products",
        "spec",
        "steps",
    )

    def __init__(self, look: Look, node: Node) -> None:
        self.look = look
        self.node = node
        self.spec: OpSpec = spec(node._op)
        self.operands: Mapping[str, Value] = node._operands
        self.missing = _missing_slots(node)
        self.is_near_quantized, self.makes_quantized, self.has_open_parameters = _quantization_near(
            node
        )
        """Whether integers are near it, whether it makes some, whether a type leaves
        numbers open."""
        self.steps: Sequence[OpUse] = ()
        """Its op or those of its chain, up to the first that does not take its operands."""
        self.products: tuple[Product, ...] | None = None
        """Its integer products, once a rule has asked for them."""
        if self.missing:
            return
        if node._stages:
            self.steps = tuple(_chain(node))
        elif node._op not in STATED_TYPE_OPS and all(
            name in node._bodies for name in self.spec.bodies
        ):
            step = OpUse(
                "", self.spec, self.operands, node._attrs, _result_type(node), node._bodies
            )
            step.infer()
            self.steps = (step,)

    @property
    def graph(self) -> Graph:
        """The graph that it is in."""
        return self.look.graph

    def typed(self) -> Iterator[tuple[str, TensorType]]:
        """Names and types of what it makes: results, and stages that store."""
        for value in self.node._results:
            yield f"%{value.name}", value._type
        for i, stage in enumerate(self.node._stages):
            if stage.type is not None:
                yield f"stage {i}", stage.type


def _result_type(node: Node) -> TensorType | None:
    """Returns the type of the result: of several, the first that leaves numbers open, else the
    first."""
    kinds = [value._type for value in node._results]
    first_type = kinds[0] if kinds else None
    if len(kinds) < 2:
        return first_type
    return next((k for k in kinds if k.quant and k.quant.dynamic), first_type)


def _chain(node: Node) -> Iterator[OpUse]:
    flow: TensorType | None = None
    last_index = len(node._stages) - 1
    for i, stage in enumerate(node._stages):
        op_spec, operands = spec(stage.op), node.stage_operands(i)
        call = make_call(stage.op, operands, stage.attrs)
        if stage.flow is not None and flow is not None:
            call = replace(call, types={**call.types, stage.flow: flow})
        result = node._results[0].type if i == last_index else stage.type
        step = OpUse(f"{i}." if i else "", op_spec, operands, stage.attrs, result, called=call)
        step.infer()
        yield step
        # The type of the flow is unknown from here on: later stages are not looked at.
        if step.rejection or len(step.inferred) != 1:
            return
        flow = stage.type or step.inferred[0]


Find: TypeAlias = Callable[[NodeContext], Iterator[Fault]]


@dataclass(frozen=True, slots=True)
class VerifierRule:
    """A name, how bad it is to break it, and what finds the breaches; its docstring is the rule."""

    name: str
    severity: Severity
    find: Find | None = None
    find_in_graph: Callable[[Graph], Iterator[Fault]] | None = None
    """Instead of `find`, for a rule on a graph and not on its nodes."""
    quantized_only: bool = False
    """Whether only nodes are looked at that are quantized somewhere."""
    ops: Set[str] = frozenset()
    """The ops that it looks at; none: all."""
    also_unquantized: Set[str] = frozenset()
    """Those of them that it looks at without quantized values too."""

    @property
    def doc(self) -> str:
        """What holds, in words."""
        return inspect.getdoc(self.find or self.find_in_graph) or ""


def _missing_slots(node: Node) -> list[str]:
    """Returns the slots that have to be there and are not."""
    if node._op == "fused":
        slots = wanted_slots(node)
    else:
        slots = _required_slots(node._op)
    operands = node._operands
    return [s for s in slots if s not in operands]


def wanted_slots(node: Node) -> tuple[str, ...]:
    """Returns the slots of a group: its body's inputs, or the operands of its stages."""
    if node._bodies:
        return tuple(v.name for body in node._bodies.values() for v in body.inputs)
    return tuple(g for i, stage in enumerate(node._stages) for g in stage.group_slots(i))


@cache
def _required_slots(op: str) -> tuple[str, ...]:
    return tuple(s.name for s in spec(op).operands if not (s.optional or s.variadic))


_MAY_GIVE_DEQUANTIZED = ops_with(
    OPS.values(), lambda row: row.traits.value_preserving, "dequantize"
)
"""Ops that may give what quantized values mean."""


def _quantization_near(node: Node) -> tuple[bool, bool, bool]:
    """Returns whether integers are near it, whether it makes some, and whether a type leaves
    numbers open."""
    makes_quantized = has_open_parameters = bool(node._inner) or bool(node._stages)
    is_near_quantized = makes_quantized
    for value in node._results:
        element = value._type.element
        if isinstance(element, QuantType):
            is_near_quantized = makes_quantized = True
            has_open_parameters = (
                has_open_parameters or element.scale is None or element.zero is None
            )
    for value in node._operands.values():
        element = value._type.element
        if isinstance(element, QuantType):
            is_near_quantized = True
            has_open_parameters = (
                has_open_parameters or element.scale is None or element.zero is None
            )
        elif value._node._op in _MAY_GIVE_DEQUANTIZED:
            is_near_quantized = True
    return is_near_quantized, makes_quantized, has_open_parameters

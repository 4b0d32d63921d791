"""Infers the types of a whole graph again, after the type of an input was changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from qir.errors import QirError, TypeRuleError
from qir.ir.calls import infer_result_types, make_call
from qir.ir.node import Node, Stage, Value
from qir.ir.ops import spec
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.types import TensorType

if TYPE_CHECKING:
    from qir.ir.graph import Graph


def infer_types(graph: Graph) -> int:
    """Infers the types again of what depends on an input whose type was changed; returns how many
    values changed.

    A size that only the frontend knew stays where no input changed. Raises TypeRuleError, naming
    the node, where an op does not take its operands; then all types are as before.
    """
    graph._free()
    changed: set[Value] = set()
    while True:
        # An input is found to be changed only when a reader's types do not fit: the inference
        # starts again then, with that input known as changed. Each restart adds an input, so it
        # ends.
        run = _InferenceRun(changed)
        try:
            run.infer(graph)
        except _InputChanged as restart:
            run.undo()
            changed.add(restart.value)
        except QirError as error:
            run.undo()
            if isinstance(error, TypeRuleError):
                raise TypeRuleError(f"{run.at}: {error}") from error
            raise
        else:
            break
    if run.types or run.stages:
        graph._touch()
    return len(run.types)


class _InputChanged(Exception):
    """An input has another type than the one that its readers were inferred from."""

    def __init__(self, value: Value) -> None:
        self.value = value


class _InferenceRun:
    """One inference, which can be undone; `changed` are inputs that have another type now."""

    def __init__(self, changed: Set[Value]) -> None:
        self.affected = set(changed)
        """Values that depend on a changed input: sizes that nothing says are unknown there."""
        self.types: dict[Value, TensorType] = {}
        """The types before, of values that changed."""
        self.stages: dict[Node, tuple[Stage, ...]] = {}
        self.at = ""

    def undo(self) -> None:
        for value, kind in self.types.items():
            value._type = kind
        for node, stages in self.stages.items():
            node._stages = stages

    def infer(self, graph: Graph) -> None:
        for node in graph:
            self.at = node.name
            bodies = graph._bodies.get(node, {})
            is_affected = not self.affected.isdisjoint(node.operands.values())
            # Bodies first: the node's results follow from theirs.
            for value, kind in _body_input_types(node, bodies):
                self.change(node, value, kind, is_affected)
            for body in bodies.values():
                self.infer(body)
            self.at = node.name
            body_results = [value for body in bodies.values() for value in body.outputs.values()]
            is_affected = is_affected or not self.affected.isdisjoint(body_results)
            for value, kind in zip(node.results, self.result_types(node, bodies), strict=False):
                self.change(node, value, kind, is_affected)

    def result_types(self, node: Node, bodies: Mapping[str, Graph]) -> Sequence[TensorType]:
        """Returns the result types; none for a node whose types are given, not inferred."""
        if node.stages:
            return self.chain_types(node)
        if node.op == "fused":
            return [value.type for value in bodies["body"].outputs.values()]
        return (
            ()
            if node.op in STATED_TYPE_OPS
            else infer_result_types(node.op, node.operands, node.attrs, bodies)
        )

    def chain_types(self, node: Node) -> Sequence[TensorType]:
        """Returns the result type of a chain; inner stages get theirs as well."""
        stages: list[Stage] = []
        flow: TensorType | None = None
        for i, stage in enumerate(node.stages):
            call = make_call(stage.op, node.stage_operands(i), stage.attrs)
            if stage.flow is not None and flow is not None:
                call = replace(call, types={**call.types, stage.flow: flow})
            (inferred,) = spec(stage.op).rule(call)
            stored = None if stage.type is None else _with_stated_parameters(stage.type, inferred)
            stages.append(stage if stored == stage.type else replace(stage, type=stored))
            flow = stored or inferred
        if tuple(stages) != node.stages:
            self.stages[node] = node.stages
            node._stages = tuple(stages)
        return () if flow is None else (flow,)

    def change(self, node: Node, value: Value, kind: TensorType, moved: bool) -> None:
        """Gives a value the type that was inferred for it, unless that only says less."""
        kind = _with_stated_parameters(value.type, kind)
        # Nothing this value depends on was changed, so a size that only the frontend knew is kept.
        if not moved and _is_less_specific(kind, value.type):
            return
        if not moved:
            for operand in node.operands.values():
                if operand.node.op == "input":
                    raise _InputChanged(operand)
        self.affected.add(value)
        if kind != value.type:
            # The first type that is stored is the one before the inference, for `undo`.
            self.types.setdefault(value, value.type)
            value._type = kind


def _is_less_specific(new: TensorType, old: TensorType) -> bool:
    """Returns whether a type is another one with some of its sizes unknown."""
    if new.rank != old.rank or new != old.with_shape(new.shape):
        return False
    return all(a == b or a is None for a, b in zip(new.shape, old.shape, strict=True))


def _with_stated_parameters(old: TensorType, new: TensorType) -> TensorType:
    """Returns the new type, with the quantization parameters that were stated for the same
    floats."""
    if old.quant is not None and old.express is new.express:
        return new.with_element(old.element)
    return new


def _body_input_types(
    node: Node, bodies: Mapping[str, Graph]
) -> Iterator[tuple[Value, TensorType]]:
    """Yields the inputs of a node's bodies, each with the type of what the node hands to it."""
    captured = [value.type for value in node.variadic("xs")]
    carried = [value.type for value in node.variadic("vs")]
    for body in bodies.values():
        match node.op:
            case "fused":
                input_types = [node.operands[value.name].type for value in body.inputs]
            case "if":
                input_types = captured
            case "loop":
                input_types = [value.type for value in body.inputs[:2]] + carried + captured
            case "scan":
                input_types = carried + _scan_slice_types(node) + captured
            case _:
                input_types = []
        yield from zip(body.inputs, input_types, strict=False)


def _scan_slice_types(node: Node) -> list[TensorType]:
    """Returns what a scan hands to its body of each sequence: one entry along its axis."""
    sequences = [value.type for value in node.variadic("ss")]
    stated_axes = node.attrs.get("axes")
    axes = stated_axes if isinstance(stated_axes, tuple) and stated_axes else (0,) * len(sequences)
    out = []
    for sequence, axis in zip(sequences, axes, strict=False):
        at = int(str(axis)) % sequence.rank
        out.append(sequence.with_shape(tuple(chain(sequence.shape[:at], sequence.shape[at + 1 :]))))
    return out

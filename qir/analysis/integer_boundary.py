"""Finds the inputs and outputs of a quantized graph that can be integers, and says why not others.

An input can be where quantizes to one type are all that read it; an output where it is the
dequantize of a quantized value. Ops that only move elements may be between, and next to the
boundary casts of 16-bit floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from qir.errors import UsageError
from qir.ir.dtype import BF16, F16, F32, I8, U8, DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Use, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType, make_param

Side: TypeAlias = Literal["input", "output"]
Kind: TypeAlias = Literal["float", "integer", "i8", "u8"]
KINDS: tuple[Kind, ...] = ("float", "integer", "i8", "u8")
"""What may be asked of inputs or outputs: floats, integers of the type that the model computes
with, or of a named one."""
_STORAGES = {"i8": I8, "u8": U8}
_MAX_BITS = 16
_SHAPE_OPS = ("shape", "size")
"""Ops that read no element of their operand."""


@dataclass(frozen=True, slots=True)
class BoundaryTypes:
    """What is asked of the inputs and of the outputs of a graph."""

    inputs: Kind = "float"
    outputs: Kind = "float"

    @classmethod
    def parse(cls, text: str) -> BoundaryTypes:
        """Parses `integer`, or `u8:float` for inputs and outputs; raises UsageError for others."""
        inputs, mark, outputs = text.partition(":")
        known = {str(kind): kind for kind in KINDS}
        if inputs not in known or (mark and outputs not in known):
            listed = ", ".join(KINDS)
            raise UsageError(
                f"types of inputs and outputs {text!r}: give one of {listed}, or two, as u8:float"
            )
        return cls(known[inputs], known[outputs if mark else inputs])

    @property
    def floats(self) -> bool:
        """Whether nothing is asked for."""
        return self == BoundaryTypes()

    def of(self, side: Side) -> Kind:
        """Returns what is asked of a side."""
        return self.inputs if side == "input" else self.outputs


@dataclass(frozen=True, slots=True)
class BoundaryValue:
    """An input or output that means floats."""

    name: str
    side: Side
    quant: QuantType | None
    """The type of its integers, as was asked and can be; None where it is or becomes floats."""
    computed: QuantType | None = None
    """The type that the graph computes with, which a named type may differ from."""
    reason: str = ""
    """Why it does not become what was asked."""
    is_integer: bool = False
    """Whether it is integers already, of the type `computed`."""

    @property
    def changes(self) -> bool:
        """Whether it has another type than it is to have."""
        return self.quant != (self.computed if self.is_integer else None)


def boundary_values(graph: Graph, asked: BoundaryTypes) -> list[BoundaryValue]:
    """Returns inputs and outputs with the types they can have, of what is asked.

    Floats of which floats are asked are left out.
    """
    ends = [_input(value) for value in graph.inputs if value.type.express.is_float]
    ends += [
        _output(name, value) for name, value in graph.outputs.items() if value.type.express.is_float
    ]
    kinds = [(end, asked.of(end.side)) for end in ends]
    return [_as_asked(end, kind) for end, kind in kinds if kind != "float" or end.is_integer]


def _input(value: Value) -> BoundaryValue:
    if (own := value.type.quant) is not None:
        return BoundaryValue(value.name, "input", own, own, is_integer=True)
    quantizes: list[Node] = []
    for use in (*_readers(value), *(u for cast in widening_casts(value) for u in _readers(cast))):
        if use.node.op != "quantize" or use.slot != "x":
            return BoundaryValue(value.name, "input", None, reason=_float_reader(use))
        quantizes.append(use.node)
    types = [node.result.type.quant for node in quantizes]
    first = next(iter(types), None)
    if first is None:
        return BoundaryValue(value.name, "input", None, reason="nothing quantizes it")
    for node, quant in zip(quantizes, types, strict=True):
        if quant is None or not quant.has_same_mapping(first):
            two = f"{quantizes[0].result.name} and {node.result.name} quantize it to two types"
            return BoundaryValue(value.name, "input", None, reason=two)
    return _checked(value.name, "input", first)


def _readers(value: Value) -> Iterator[Use]:
    """Yields the readers of a value and, of ops that only move it, their readers."""
    for use in value.uses:
        if use.node.op in _SHAPE_OPS or _widens(use.node):
            continue
        if only_moves(use.node) and use.slot == "x":
            yield from _readers(use.node.result)
        else:
            yield use


def _float_reader(use: Use) -> str:
    op, name = use.node.op, use.node.name
    if op == "output":
        return f"output {use.slot} is the same floats"
    if op == "choose_qparams" or use.slot != "x":
        return "its scale is chosen while the model runs"
    return f"{name} ({op}) reads floats"


def _output(name: str, value: Value) -> BoundaryValue:
    if (own := value.type.quant) is not None:
        return BoundaryValue(name, "output", own, own, is_integer=True)
    source = before_casts(value)
    while only_moves(source.node):
        source = source.node.operands["x"]
    node = source.node
    if node.op == "input":
        return BoundaryValue(name, "output", None, reason=f"it is input {source.name}")
    if node.op != "dequantize":
        ops = " |> ".join(stage.op for stage in node.stages) or node.op
        return BoundaryValue(name, "output", None, reason=f"{source.name} ({ops}) gives floats")
    quant = node.operands["x"].type.quant
    assert quant is not None
    return _checked(name, "output", quant)


def _checked(name: str, side: Side, quant: QuantType) -> BoundaryValue:
    """Returns an end of that type, where one scale and zero point say what its integers mean."""
    if reason := mapping_problem(quant):
        return BoundaryValue(name, side, None, reason=reason)
    return BoundaryValue(name, side, quant, quant)


def mapping_problem(quant: QuantType) -> str:
    """Returns why a type has not one scale and zero point; empty where it has."""
    if quant.dynamic:
        return "its scale is chosen while the model runs"
    if quant.granularity is not None:
        return "it has several scales"
    if quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None:
        return "its type is no scale with a zero point"
    if not quant.storage.is_integer or quant.storage.bits > _MAX_BITS:
        return f"it is stored as {quant.storage}"
    return ""


def _as_asked(end: BoundaryValue, kind: Kind) -> BoundaryValue:
    """Returns an end as floats, or with the storage that is asked for."""
    if end.quant is None or kind == "integer":
        return end
    if kind == "float":
        if end.quant.dynamic:
            return replace(end, reason="its scale is chosen while the model runs")
        return replace(end, quant=None)
    storage = _STORAGES[kind]
    if end.quant.storage == storage:
        return end
    reason = mapping_problem(end.quant)
    if not reason and end.quant.storage not in _STORAGES.values():
        reason = f"its integers are {end.quant.storage}, which {kind} does not hold"
    if reason:
        return replace(end, quant=end.computed if end.is_integer else None, reason=reason)
    return replace(end, quant=with_storage(end.quant, storage))


def with_storage(quant: QuantType, storage: DType) -> QuantType:
    """Returns the type of the same floats in another storage of as many bits: i8, or u8."""
    shift = storage.bounds[0] - quant.storage.bounds[0]
    bounds = None if quant.bounds is None else (quant.low + shift, quant.high + shift)
    zeros = make_param(quant.zeros() + shift, None, "zero")
    return replace(quant, storage=storage, zero=zeros, bounds=bounds, declared=None)


def widening_casts(value: Value) -> list[Value]:
    """Returns the results of casts that read a value, and have more bits."""
    return [use.node.result for use in value.uses if _widens(use.node)]


def before_casts(value: Value) -> Value:
    """Returns the floats that casts to others make a value of."""
    while value.node.op == "cast" and value.node.operands["x"].type.dtype.is_float:
        value = value.node.operands["x"]
    return value


def _widens(node: Node) -> bool:
    if node.op != "cast":
        return False
    return node.operands["x"].type.element in (F16, BF16) and node.result.type.element == F32


def only_moves(node: Node) -> bool:
    """Returns whether an op only moves or drops elements of its operand x, and reads no others."""
    if node.stages or node.bodies or node.op == "foreign":
        return False
    traits = spec(node.op).traits
    return traits.value_preserving and traits.same_params == ("x",) and len(node.results) == 1


__all__ = [
    "BoundaryTypes",
    "BoundaryValue",
    "before_casts",
    "boundary_values",
    "mapping_problem",
    "only_moves",
    "widening_casts",
    "with_storage",
]

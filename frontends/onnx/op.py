"""One node of the file, its attributes read by name and type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto

from qir.errors import InputError
from qir.ir.origin import Origin

from .contrib.names import OPERANDS
from .faults import fault

MICROSOFT = "com.microsoft"
_STANDARD = frozenset({"QLinearConv", "QuantizeLinear", "DequantizeLinear"})
"""Names that operators of ONNX and of onnxruntime have, whose origin says which it was."""


class KeepOperator(Exception):
    """The op cannot be said in the language exactly, and is kept as the file has it.

    A text says why where whoever made the model should know.
    """


class Computed(KeepOperator):
    """Numbers that the language has as constants are computed in the file."""


class OnnxOp:
    """A node with its place in the file and the version of its operator set."""

    __slots__ = (
        "_counts",
        "attributes",
        "domain",
        "holds",
        "index",
        "inputs",
        "name",
        "opset",
        "outputs",
        "path",
        "proto",
        "reads",
        "type",
    )

    def __init__(
        self, proto: onnx.NodeProto, index: int, domain: str, opset: int, path: Path
    ) -> None:
        # Each is asked for many times, and asking protobuf takes long.
        self.proto = proto
        self.index = index
        self.domain = domain
        self.opset = opset
        self.path = path
        self.type: str = proto.op_type
        self.name: str = proto.name
        given, made = tuple(proto.input), tuple(proto.output)
        held = list(proto.attribute)
        self.attributes = {a.name: a for a in held}
        self._counts = len(given), len(made), len(held)
        self.inputs: tuple[str, ...] = _trim(given)
        """Names of the operands; an absent one is empty, absent ones at the end are left out."""
        self.outputs: tuple[str, ...] = _trim(made)
        inside = [g for a in held for g in held_graphs(a)]
        self.holds = bool(inside)
        """Whether it holds graphs."""
        free = [n for g in inside for n in free_names(g)]
        self.reads = self.inputs
        if free or len(given) > 1:
            self.reads = tuple(dict.fromkeys((*self.inputs, *free)))
        """Names of all it reads: its operands, and what graphs within it use from outside."""

    @property
    def place(self) -> str:
        return f"node {self.name or self.index} ({self.type})"

    def graph(self, name: str) -> onnx.GraphProto:
        """Returns the graph that an attribute holds."""
        found = self._read(name, AttributeProto.GRAPH)
        if found is None:
            raise self.fail(f"lacks attribute {name!r}")
        return found.g

    def input(self, index: int) -> str:
        """Returns the name of an operand, empty where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def fail(self, what: str) -> InputError:
        return fault(self.path, self.place, what)

    def schema(self) -> onnx.defs.OpSchema | None:
        """ONNX's own description; None for an op of another domain."""
        return _schema(self.type, self.opset, self.domain)

    def check(self) -> None:
        """Raises InputError where the node is not what ONNX's description of its op allows."""
        operands, results, count = self._counts
        given = self.attributes
        if len(given) != count:
            raise self.fail("gives an attribute twice")
        form = _form(self.type, self.opset, self.domain)
        if form is None:
            if self.domain == "":
                raise self.fail(f"is no operator of opset {self.opset}")
            return
        if not form.operands[0] <= operands <= form.operands[1]:
            raise self.fail(f"has {operands} operands")
        if not form.results[0] <= results <= form.results[1]:
            raise self.fail(f"has {results} results")
        for name, attribute in given.items():
            known = form.attributes.get(name)
            if known is None:
                raise self.fail(f"opset {self.opset} has no attribute {name!r}")
            if known != attribute.type:
                raise self.fail(f"attribute {name!r} is of the wrong type")
        for name in form.required:
            if name not in given:
                raise self.fail(f"lacks attribute {name!r}")
        if len(self.inputs) < form.operands[0] <= len(form.names):
            raise self.fail(f"lacks operand {form.names[len(self.inputs)]}")
        if "" in self.inputs:
            for name, formal, single in zip(self.inputs, form.names, form.single, strict=False):
                if not name and single:
                    raise self.fail(f"lacks operand {formal}")

    def origin(self) -> Origin:
        """Where the node came from, with the names of all it reads."""
        given = self.inputs
        slots = _slots(self.type, self.opset, self.domain, len(given))
        operands = tuple(zip(slots, given, strict=True))
        if "" in given:
            operands = tuple((s, n) for s, n in operands if n)
        own = f"domain {self.domain}" if self.domain and self.type in _STANDARD else ""
        return Origin("onnx", self.type, self.name, own, 0, operands)

    # -- attributes ---------------------------------------------------------------------------

    def attribute(self, name: str) -> AttributeProto | None:
        """Returns the attribute of that name, if the node has it."""
        return self.attributes.get(name)

    def _read(self, name: str, kind: int) -> AttributeProto | None:
        found = self.attribute(name)
        if found is not None and found.type != kind:
            raise self.fail(f"attribute {name!r} is of the wrong type")
        return found

    def integer(self, name: str, default: int) -> int:
        found = self._read(name, AttributeProto.INT)
        return default if found is None else found.i

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        found = self._read(name, AttributeProto.INTS)
        return default if found is None else tuple(found.ints)

    def real(self, name: str, default: float) -> float:
        """Returns the attribute; a default is the float32 that a file could hold."""
        found = self._read(name, AttributeProto.FLOAT)
        return float(np.float32(default)) if found is None else found.f

    def text(self, name: str, default: str) -> str:
        found = self._read(name, AttributeProto.STRING)
        return default if found is None else found.s.decode("utf-8", "replace")

    def only(self, *names: str) -> None:
        """Keep if the node has an attribute other than these."""
        if any(name not in names for name in self.attributes):
            raise KeepOperator


@lru_cache(1024)
def _schema(name: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None


@dataclass(frozen=True, slots=True)
class _Form:
    """What ONNX's description of an op allows; reading it off takes long."""

    operands: tuple[int, int]
    results: tuple[int, int]
    attributes: dict[str, int]
    required: tuple[str, ...]
    names: tuple[str, ...]
    single: tuple[bool, ...]


@lru_cache(1024)
def _form(name: str, opset: int, domain: str) -> _Form | None:
    schema = _schema(name, opset, domain)
    if schema is None:
        return None
    known = schema.attributes
    one = onnx.defs.OpSchema.FormalParameterOption.Single
    return _Form(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {n: attribute_type(a) for n, a in known.items()},
        tuple(n for n, a in known.items() if a.required),
        tuple(p.name for p in schema.inputs),
        tuple(p.option == one for p in schema.inputs),
    )


@lru_cache(4096)
def _slots(kind: str, opset: int, domain: str, count: int) -> tuple[str, ...]:
    """Returns what ONNX or onnxruntime calls so many operands of an op."""
    if domain == MICROSOFT and kind == "QLinearConcat":
        formal = ["Y_scale", "Y_zero_point"]
        for i in range((count - 2) // 3 + 1):
            formal += [f"X.{i}", f"X_scale.{i}", f"X_zero_point.{i}"]
        return tuple(formal[:count])
    if domain == MICROSOFT and kind in OPERANDS:
        formal = OPERANDS[kind].split()
    else:
        form = _form(kind, opset, domain)
        formal = list(form.names) if form else []
        if form and count > len(formal) - 1 and len(formal) < form.operands[1]:
            last = formal.pop()
            formal += [f"{last}.{i}" for i in range(count - len(formal))]
    return tuple(formal[i] if i < len(formal) else f"input.{i}" for i in range(count))


def held_graphs(attribute: AttributeProto) -> list[onnx.GraphProto]:
    """Returns the graphs that an attribute holds."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def free_names(graph: onnx.GraphProto) -> list[str]:
    """Returns what a graph reads and does not make, in the order of reading."""
    made = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    made |= {t.values.name for t in graph.sparse_initializer}
    made |= {name for node in graph.node for name in node.output}
    read: dict[str, None] = {}
    for node in graph.node:
        inside = [n for a in node.attribute for g in held_graphs(a) for n in free_names(g)]
        read |= dict.fromkeys([*node.input, *inside])
    read |= dict.fromkeys(info.name for info in graph.output)
    return [name for name in read if name and name not in made]


def attribute_type(known: onnx.defs.OpSchema.Attribute) -> int:
    """Returns the number that AttributeProto has for the type of a described attribute."""
    return int(AttributeProto.AttributeType.Value(str(known.type).rpartition(".")[2]))


def _trim(names: tuple[str, ...]) -> tuple[str, ...]:
    while names and not names[-1]:
        names = names[:-1]
    return names


def outside_of(op: OnnxOp) -> tuple[str, ...]:
    """Returns what graphs within an operator use from outside, its own operands among it."""
    inside = (g for a in op.proto.attribute for g in held_graphs(a))
    return tuple(dict.fromkeys(n for g in inside for n in free_names(g) if n))

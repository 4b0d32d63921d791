"""One node of the file, its attributes read by name and type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto

from qir.errors import InputError
from qir.ir.origin import Origin

from .faults import fault

MICROSOFT = "com.microsoft"
_PAIR = "A A_scale A_zero_point B B_scale B_zero_point C_scale C_zero_point"
_UNARY = "X X_scale X_zero_point Y_scale Y_zero_point"
_CONTRIB = {
    "QLinearConv": "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B",
    "QLinearAdd": _PAIR,
    "QLinearMul": _PAIR,
    "QLinearSigmoid": _UNARY,
    "QLinearLeakyRelu": _UNARY,
    "QLinearSoftmax": "X X_scale x_zero_point y_scale y_zero_point",
    "QLinearAveragePool": "X x_scale x_zero_point y_scale y_zero_point",
    "QLinearGlobalAveragePool": "X x_scale x_zero_point y_scale y_zero_point",
    "QGemm": "A a_scale a_zero_point B b_scale b_zero_point C y_scale y_zero_point",
    "QuantizeLinear": "x y_scale y_zero_point",
    "DequantizeLinear": "x x_scale x_zero_point",
    "MultiHeadAttention": "query key value bias key_padding_mask attention_bias past_key "
    "past_value",
    "GroupQueryAttention": "query key value past_key past_value seqlens_k total_sequence_length "
    "cos_cache sin_cache position_ids attention_bias",
    "RotaryEmbedding": "input position_ids cos_cache sin_cache",
}


class Keep(Exception):
    """The op cannot be said in the language exactly, and is kept as the file has it.

    A text says why where whoever made the model should know.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """A node with its place in the file and the version of its operator set."""

    proto: onnx.NodeProto
    index: int
    domain: str
    opset: int
    path: Path

    @property
    def type(self) -> str:
        return self.proto.op_type

    @property
    def place(self) -> str:
        return f"node {self.proto.name or self.index} ({self.type})"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the operands; an absent one is empty, absent ones at the end are left out."""
        return _trim(tuple(self.proto.input))

    @property
    def outputs(self) -> tuple[str, ...]:
        return _trim(tuple(self.proto.output))

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of all it reads: its operands, and what graphs within it use from outside."""
        inside = (n for a in self.proto.attribute for g in held_graphs(a) for n in free_names(g))
        return tuple(dict.fromkeys((*self.inputs, *inside)))

    @property
    def holds(self) -> bool:
        """Whether it holds graphs."""
        return any(held_graphs(a) for a in self.proto.attribute)

    def graph(self, name: str) -> onnx.GraphProto:
        """The graph that an attribute holds."""
        found = self._read(name, AttributeProto.GRAPH)
        if found is None:
            raise self.fail(f"lacks attribute {name!r}")
        return found.g

    def input(self, index: int) -> str:
        """The name of an operand, empty where it is absent."""
        return self.proto.input[index] if index < len(self.proto.input) else ""

    def fail(self, what: str) -> InputError:
        return fault(self.path, self.place, what)

    def schema(self) -> onnx.defs.OpSchema | None:
        """ONNX's own description; None for an op of another domain."""
        try:
            return onnx.defs.get_schema(self.type, self.opset, self.domain)
        except onnx.defs.SchemaError:
            return None

    def check(self) -> None:
        """InputError where the node is not what ONNX's description of its op allows."""
        given = [a.name for a in self.proto.attribute]
        if len(set(given)) != len(given):
            raise self.fail("gives an attribute twice")
        schema = self.schema()
        if schema is None:
            if self.domain == "":
                raise self.fail(f"is no operator of opset {self.opset}")
            return
        if not schema.min_input <= len(self.proto.input) <= schema.max_input:
            raise self.fail(f"has {len(self.proto.input)} operands")
        if not schema.min_output <= len(self.proto.output) <= schema.max_output:
            raise self.fail(f"has {len(self.proto.output)} results")
        for attribute in self.proto.attribute:
            known = schema.attributes.get(attribute.name)
            if known is None:
                raise self.fail(f"opset {self.opset} has no attribute {attribute.name!r}")
            if attribute_type(known) != attribute.type:
                raise self.fail(f"attribute {attribute.name!r} is of the wrong type")
        for name, known in schema.attributes.items():
            if known.required and name not in given:
                raise self.fail(f"lacks attribute {name!r}")
        one = onnx.defs.OpSchema.FormalParameterOption.Single
        for name, formal in zip(self.proto.input, schema.inputs, strict=False):
            if not name and formal.option == one:
                raise self.fail(f"lacks operand {formal.name}")

    def origin(self) -> Origin:
        """Where the node came from, with the names of all it reads."""
        slots = self._slots(len(self.inputs))
        operands = tuple((s, n) for s, n in zip(slots, self.inputs, strict=True) if n)
        return Origin("onnx", op=self.type, name=self.proto.name, operands=operands)

    def _slots(self, count: int) -> list[str]:
        if self.domain == MICROSOFT and self.type == "QLinearConcat":
            formal = ["Y_scale", "Y_zero_point"]
            for i in range((count - 2) // 3 + 1):
                formal += [f"X.{i}", f"X_scale.{i}", f"X_zero_point.{i}"]
            return formal[:count]
        if self.domain == MICROSOFT and self.type in _CONTRIB:
            formal = _CONTRIB[self.type].split()
        else:
            schema = self.schema()
            formal = [p.name for p in schema.inputs] if schema else []
            if schema and count > len(formal) - 1 and len(schema.inputs) < schema.max_input:
                last = formal.pop()
                formal += [f"{last}.{i}" for i in range(count - len(formal))]
        return [formal[i] if i < len(formal) else f"input.{i}" for i in range(count)]

    # -- attributes ---------------------------------------------------------------------------

    def attribute(self, name: str) -> AttributeProto | None:
        return next((a for a in self.proto.attribute if a.name == name), None)

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
        """The attribute; a default is the float32 that a file could hold."""
        found = self._read(name, AttributeProto.FLOAT)
        return float(np.float32(default)) if found is None else found.f

    def text(self, name: str, default: str) -> str:
        found = self._read(name, AttributeProto.STRING)
        return default if found is None else found.s.decode("utf-8", "replace")

    def only(self, *names: str) -> None:
        """Keep if the node has an attribute other than these."""
        if any(a.name not in names for a in self.proto.attribute):
            raise Keep


def held_graphs(attribute: AttributeProto) -> list[onnx.GraphProto]:
    """The graphs that an attribute holds."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def free_names(graph: onnx.GraphProto) -> list[str]:
    """What a graph reads and does not make, in the order of reading."""
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
    """The number that AttributeProto has for the type of a described attribute."""
    return int(AttributeProto.AttributeType.Value(str(known.type).rpartition(".")[2]))


def _trim(names: tuple[str, ...]) -> tuple[str, ...]:
    while names and not names[-1]:
        names = names[:-1]
    return names

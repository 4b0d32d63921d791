"""One operator of an ONNX file: its operands, and its attributes by name and type."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto

from qir.errors import InputError
from qir.ir.origin import Origin
from qir.records import record

from .contrib.names import OPERANDS
from .faults import input_error

MICROSOFT = "com.microsoft"
_PLAIN_ATTRIBUTES = frozenset(
    {
        *(AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.FLOATS),
        *(AttributeProto.STRING, AttributeProto.STRINGS, AttributeProto.TENSOR),
    }
)
"""Types of attributes that hold no graph."""
_SHARED_OPERATOR_NAMES = frozenset({"QLinearConv", "QuantizeLinear", "DequantizeLinear"})
"""Operators that both ONNX and onnxruntime define; the origin of their node names the domain."""


class KeepOperator(Exception):
    """Raised where the language cannot express an operator exactly: it becomes a foreign node.

    A text, if there is one, is a reason that concerns the author of the model; the ledger has it.
    """


class NotConstant(KeepOperator):
    """Raised where an attribute of the language is a computed operand in the file."""


class OnnxOp:
    """An operator with its index in the file and the version of its operator set."""

    __slots__ = (
        "_list_lengths",
        "attributes",
        "domain",
        "has_subgraphs",
        "index",
        "inputs",
        "name",
        "names_read",
        "opset",
        "outputs",
        "path",
        "proto",
        "type",
    )

    def __init__(
        self, proto: onnx.NodeProto, index: int, domain: str, opset: int, path: Path
    ) -> None:
        # Protobuf fields are read once: access through the Python bindings is slow.
        self.proto = proto
        self.index = index
        self.domain = domain
        self.opset = opset
        self.path = path
        self.type: str = proto.op_type
        self.name: str = proto.name
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        attributes = list(proto.attribute)
        self.attributes = {a.name: a for a in attributes}
        self._list_lengths = len(inputs), len(outputs), len(attributes)
        self.inputs: tuple[str, ...] = _without_trailing_absent(inputs)
        """Names of the operands; an absent one is empty, trailing absent ones are left out."""
        self.outputs: tuple[str, ...] = _without_trailing_absent(outputs)
        subgraphs = [g for a in attributes for g in subgraphs_of(a)]
        self.has_subgraphs = bool(subgraphs)
        """Whether an attribute is a graph, as for If, Loop and Scan."""
        captured = [n for g in subgraphs for n in captured_names(g)]
        self.names_read = self.inputs
        if captured or len(inputs) > 1:
            self.names_read = tuple(dict.fromkeys((*self.inputs, *captured)))
        """Operands, and tensors of the enclosing graph that its subgraphs capture."""

    @property
    def location(self) -> str:
        return f"node {self.name or self.index} ({self.type})"

    def graph(self, name: str) -> onnx.GraphProto:
        """Returns a graph attribute; raises InputError if it is missing."""
        attribute = self._typed_attribute(name, AttributeProto.GRAPH)
        if attribute is None:
            raise self.error(f"lacks attribute {name!r}")
        return attribute.g

    def input(self, index: int) -> str:
        """Returns the name of an operand, empty where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def error(self, what: str) -> InputError:
        return input_error(self.path, self.location, what)

    def schema(self) -> onnx.defs.OpSchema | None:
        """Returns ONNX's schema of the operator; None for an operator of another domain."""
        return _schema(self.type, self.opset, self.domain)

    def check(self) -> None:
        """Raises InputError where the node does not match the schema of its operator."""
        operand_count, result_count, attribute_count = self._list_lengths
        attributes = self.attributes
        # `attributes` is a dict: a name that is there twice is in it once.
        if len(attributes) != attribute_count:
            raise self.error("gives an attribute twice")
        signature = _signature(self.type, self.opset, self.domain)
        if signature is None:
            if self.domain == "":
                raise self.error(f"is no operator of opset {self.opset}")
            return
        if not signature.operand_counts[0] <= operand_count <= signature.operand_counts[1]:
            raise self.error(f"has {operand_count} operands")
        if not signature.result_counts[0] <= result_count <= signature.result_counts[1]:
            raise self.error(f"has {result_count} results")
        for name, attribute in attributes.items():
            expected = signature.attributes.get(name)
            if expected is None:
                raise self.error(f"opset {self.opset} has no attribute {name!r}")
            if expected != attribute.type:
                raise self.error(f"attribute {name!r} is of the wrong type")
        for name in signature.required:
            if name not in attributes:
                raise self.error(f"lacks attribute {name!r}")
        # Trailing absent operands are left out, though some may be required.
        if len(self.inputs) < signature.operand_counts[0] <= len(signature.operand_names):
            raise self.error(f"lacks operand {signature.operand_names[len(self.inputs)]}")
        if "" in self.inputs:
            for name, operand_name, is_single in zip(
                self.inputs, signature.operand_names, signature.is_single, strict=False
            ):
                if not name and is_single:
                    raise self.error(f"lacks operand {operand_name}")

    def origin(self) -> Origin:
        """Returns the origin of the node, with the name of each operand by its slot."""
        inputs = self.inputs
        names = _operand_names(self.type, self.opset, self.domain, len(inputs))
        operands = tuple(zip(names, inputs, strict=True))
        if "" in inputs:
            operands = tuple((s, n) for s, n in operands if n)
        path = (
            f"domain {self.domain}" if self.domain and self.type in _SHARED_OPERATOR_NAMES else ""
        )
        return Origin("onnx", self.type, self.name, path, 0, operands)

    # -- attributes ---------------------------------------------------------------------------

    def attribute(self, name: str) -> AttributeProto | None:
        """Returns the attribute of that name, if the node has it."""
        return self.attributes.get(name)

    def _typed_attribute(self, name: str, kind: int) -> AttributeProto | None:
        attribute = self.attribute(name)
        if attribute is not None and attribute.type != kind:
            raise self.error(f"attribute {name!r} is of the wrong type")
        return attribute

    def integer(self, name: str, default: int) -> int:
        attribute = self._typed_attribute(name, AttributeProto.INT)
        return default if attribute is None else attribute.i

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        attribute = self._typed_attribute(name, AttributeProto.INTS)
        return default if attribute is None else tuple(attribute.ints)

    def floating(self, name: str, default: float) -> float:
        """Returns a float attribute; a default is rounded to float32, as a file would hold it."""
        attribute = self._typed_attribute(name, AttributeProto.FLOAT)
        return float(np.float32(default)) if attribute is None else attribute.f

    def text(self, name: str, default: str) -> str:
        attribute = self._typed_attribute(name, AttributeProto.STRING)
        return default if attribute is None else attribute.s.decode("utf-8", "replace")

    def allow_only(self, *names: str) -> None:
        """Raises KeepOperator if the node has an attribute other than these.

        A newer version of an operator may have attributes that change its meaning.
        """
        # E.g. `output_dtype` of QuantizeLinear came with opset 21.
        if any(name not in names for name in self.attributes):
            raise KeepOperator


@lru_cache(1024)
def _schema(name: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None


@record
class _Signature:
    """The parts of an ONNX schema that are checked; cached, since reading a schema is slow."""

    operand_counts: tuple[int, int]
    result_counts: tuple[int, int]
    attributes: dict[str, int]
    required: tuple[str, ...]
    operand_names: tuple[str, ...]
    is_single: tuple[bool, ...]


@lru_cache(1024)
def _signature(name: str, opset: int, domain: str) -> _Signature | None:
    schema = _schema(name, opset, domain)
    if schema is None:
        return None
    attributes = schema.attributes
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return _Signature(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {n: attribute_type_number(a) for n, a in attributes.items()},
        tuple(n for n, a in attributes.items() if a.required),
        tuple(p.name for p in schema.inputs),
        tuple(p.option == single for p in schema.inputs),
    )


@lru_cache(4096)
def _operand_names(kind: str, opset: int, domain: str, count: int) -> tuple[str, ...]:
    """Returns the formal names of the operands; operands of a variadic one are numbered."""
    if domain == MICROSOFT and kind == "QLinearConcat":
        names = ["Y_scale", "Y_zero_point"]
        for i in range((count - 2) // 3 + 1):
            names += [f"X.{i}", f"X_scale.{i}", f"X_zero_point.{i}"]
        return tuple(names[:count])
    if domain == MICROSOFT and kind in OPERANDS:
        names = OPERANDS[kind].split()
    else:
        signature = _signature(kind, opset, domain)
        names = list(signature.operand_names) if signature else []
        # The last formal operand is variadic: it stands for all the remaining ones.
        if signature and count > len(names) - 1 and len(names) < signature.operand_counts[1]:
            last = names.pop()
            names += [f"{last}.{i}" for i in range(count - len(names))]
    return tuple(names[i] if i < len(names) else f"input.{i}" for i in range(count))


def subgraphs_of(attribute: AttributeProto) -> list[onnx.GraphProto]:
    """Returns the graphs of an attribute of type GRAPH or GRAPHS."""
    if attribute.type in _PLAIN_ATTRIBUTES:  # nearly all
        return []
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def captured_names(graph: onnx.GraphProto) -> list[str]:
    """Returns the tensors that a graph uses and does not define, in order of first use."""
    defined = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    defined |= {t.values.name for t in graph.sparse_initializer}
    defined |= {name for node in graph.node for name in node.output}
    names_read: dict[str, None] = {}
    for node in graph.node:
        # A subgraph inside may capture tensors from outside of this graph too.
        captured = [n for a in node.attribute for g in subgraphs_of(a) for n in captured_names(g)]
        names_read |= dict.fromkeys([*node.input, *captured])
    names_read |= dict.fromkeys(info.name for info in graph.output)
    return [name for name in names_read if name and name not in defined]


def attribute_type_number(attribute: onnx.defs.OpSchema.Attribute) -> int:
    """Returns the AttributeProto.AttributeType of an attribute of a schema."""
    return int(AttributeProto.AttributeType.Value(str(attribute.type).rpartition(".")[2]))


def _without_trailing_absent(names: tuple[str, ...]) -> tuple[str, ...]:
    while names and not names[-1]:
        names = names[:-1]
    return names


def names_captured_by(op: OnnxOp) -> tuple[str, ...]:
    """Returns all tensors that the subgraphs of an operator capture, its own operands included."""
    subgraphs = (g for a in op.proto.attribute for g in subgraphs_of(a))
    return tuple(dict.fromkeys(n for g in subgraphs for n in captured_names(g) if n))

"""Groups: an operator of onnxruntime's own as a body that says what it computes.

The group has the operator's operands and attributes, so that it is written back as it was; the
body is what the interpreter runs and what every other target sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import GraphError, OpError, ParseError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array, Element, QuantType, TensorType
from qir.ir.verify import errors

from ..foreign import attr
from ..op import KeepOperator, OnnxOp
from ..reader import OnnxReader
from .names import OPERANDS, RESULTS


class BodyBuilder:
    """A body under construction, which takes what a group is given."""

    def __init__(self, takes: Mapping[str, Value]) -> None:
        self.graph = Graph("body", "")
        self._given = {
            slot: self.graph.add("input", types=[value.type], name=slot).result
            for slot, value in takes.items()
        }

    def __contains__(self, slot: object) -> bool:
        return slot in self._given

    def __getitem__(self, slot: str) -> Value:
        if slot not in self._given:
            raise KeepOperator(f"it lacks operand {slot}")
        return self._given[slot]

    def get(self, slot: str) -> Value | None:
        """Returns what the group is given there, if anything."""
        return self._given.get(slot)

    def many(
        self,
        kind: str,
        operands: Mapping[str, Value] | None = None,
        attrs: Mapping[str, Attr] | None = None,
        types: Iterable[TensorType] | None = None,
        bodies: Mapping[str, Graph] | None = None,
    ) -> tuple[Value, ...]:
        """Adds a node; gives its results."""
        return self.graph.add(kind, operands, attrs, types=types, bodies=bodies).results

    def op(self, kind: str, *operands: Value, **attrs: Attr) -> Value:
        """Adds a node of one result; operands are in the order of the op's slots."""
        from qir.ir.ops import spec

        slots = [s.name for s in spec(kind).operands]
        if slots and spec(kind).operands[0].variadic:
            slots = [f"{slots[0]}.{i}" for i in range(len(operands))]
        return self.many(kind, dict(zip(slots, operands, strict=False)), attrs)[0]

    def constant(self, data: NDArray[np.generic] | float | Sequence[int]) -> Value:
        """Returns a constant of the body; whole numbers are int64, others float32."""
        if isinstance(data, float):
            data = np.array(data, np.float32)
        elif not isinstance(data, np.ndarray | np.generic):
            data = np.array(data, np.int64)
        return self.graph.constant(Array.of(np.asarray(data)))

    def like(self, value: Value, number: float) -> Value:
        """Returns a number in the type of a value's elements."""
        return self.constant(np.array(number, value.type.express.carrier))

    def reshaped(self, x: Value, *sizes: int) -> Value:
        """Returns the elements in another shape: 0 copies a size, -1 takes what is left."""
        return self.op("reshape", x, self.constant(sizes))

    def cast(self, x: Value, kind: DType) -> Value:
        """Returns the values in another element type, itself where they have it."""
        return x if x.type.element == kind else self.op("cast", x, to=kind)

    def recoded(self, x: Value, element: Element) -> Value:
        """Returns the same bits as another type."""
        if x.type.element == element:
            return x
        return self.many("recode", {"x": x}, types=[x.type.with_element(element)])[0]

    def raw(self, x: Value) -> Value:
        """Quantized values as plain numbers."""
        return self.recoded(x, x.type.dtype)

    def real(self, slot: str, scale: str = "", zero: str = "") -> Value:
        """Returns the floats of integers that the group is given, by numbers in the type or next to
        it."""
        x = self[slot]
        if x.type.quant is None:
            return x
        numbers = {"x.scale": self.get(scale), "x.zero": self.get(zero)}
        given = {s: v for s, v in numbers.items() if v is not None}
        return self.many("dequantize", {"x": x, **given})[0]


Build = Callable[[BodyBuilder], Sequence[Value]]
"""Fills a body; gives its results in the order of the operator's."""


def results_of(op: OnnxOp) -> list[str]:
    """Names of the results that the operator has here, by its own names."""
    formal = RESULTS.get(op.type, "output").split()
    if len(op.outputs) > len(formal):
        raise op.fail(f"has {len(op.outputs)} results, it makes {len(formal)} at most")
    return [formal[i] for i, name in enumerate(op.outputs) if name]


def group(reader: OnnxReader, op: OnnxOp, operands: Mapping[str, Value], build: Build) -> Node:
    """Adds the op as a group; Keep where its body does not come about."""
    body = BodyBuilder(operands)
    try:
        made = build(body)
        wanted = dict(zip(RESULTS.get(op.type, "output").split(), made, strict=False))
        given = {name: wanted[name] for name in results_of(op)}
        body.graph.add("output", given)
        body.graph.prune()
    except (TypeRuleError, GraphError, OpError, ParseError, KeyError) as error:
        raise KeepOperator(f"{error}") from error
    for node in body.graph:
        _check_numbers(node, operands)
    computed = [node for node in body.graph if any("." in slot for slot in node.operands)]
    for finding in errors(body.graph, computed) if computed else ():
        raise KeepOperator(finding.message)
    places = _places(op, operands)
    made_at = tuple(i for i, name in enumerate(op.outputs) if name)
    attrs = tuple((a.name, attr(reader, op, a)) for a in op.proto.attribute)
    return reader.add(
        op,
        "fused",
        operands,
        {
            "kernel": f"onnx:{op.domain}.{op.type}",
            "slots": (places, made_at) if op.opset == 1 else (places, made_at, op.opset),
            "attrs": attrs,
        },
        types=[value.type for value in given.values()],
        bodies={"body": body.graph},
    )


def _check_numbers(node: Node, operands: Mapping[str, Value]) -> None:
    """Keep where constants that the group is given are numbers of quantized values, and make no
    sense as such.

    Scales of blocks have any sign.
    """
    for slot, value in node.operands.items():
        base, _, last = slot.rpartition(".")
        array = operands[value.name].constant if value.node.op == "input" else None
        if last not in ("scale", "zero") or array is None or not node.results:
            continue
        of = (node.operands[base] if base in node.operands else node.results[0]).type.quant
        if of is None:
            continue
        if last == "zero":
            _check_zeros(value.name, array, of)
        elif of.granularity is None or of.axis is not None:
            scales = array.data.astype(np.float64)
            if not (np.isfinite(scales) & (scales > 0)).all():
                raise KeepOperator(f"its {value.name} is not positive and finite")


def _check_zeros(name: str, array: Array, of: QuantType) -> None:
    zeros = array.data
    if not of.storage.is_integer or zeros.dtype.kind not in "iu" or not zeros.size:
        return
    if not of.low <= zeros.min() <= zeros.max() <= of.high:
        raise KeepOperator(f"its {name} is outside {of.low}..{of.high}")


def _places(op: OnnxOp, operands: Iterable[str]) -> tuple[int, ...]:
    """Returns where operands are in the operator's list."""
    formal = OPERANDS[op.type].split()
    if op.type == "Trunc" and len(op.inputs) == 5:
        formal.remove("output_scale")  # which version 1 lacks
    return tuple(formal.index(slot) for slot in operands)


def given(reader: OnnxReader, op: OnnxOp, *but: str) -> dict[str, Value]:
    """Returns the operands that are there, by the operator's own names; those in `but` are left
    out."""
    formal = OPERANDS[op.type].split()
    if len(op.inputs) > len(formal):
        raise op.fail(f"has {len(op.inputs)} operands, it takes {len(formal)} at most")
    named = dict(zip(formal, op.inputs, strict=False))
    return {s: reader.value(op, n) for s, n in named.items() if n and s not in but}

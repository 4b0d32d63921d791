"""Groups (`fused` nodes) for operators of onnxruntime's domain.

The group has the operator's operands and attributes, so that it can be written back unchanged. Its
body computes the same in ops of the language, for the interpreter and every other target.
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

from ..foreign import attribute_value
from ..op import KeepOperator, OnnxOp
from ..reader import OnnxReader
from .names import OPERANDS, RESULTS


class BodyBuilder:
    """Builds the body of a group; its inputs are the group's operands, by their formal names."""

    def __init__(self, operands: Mapping[str, Value]) -> None:
        self.graph = Graph("body", "")
        self._inputs = {
            slot: self.graph.add("input", types=[value.type], name=slot).result
            for slot, value in operands.items()
        }

    def __contains__(self, slot: object) -> bool:
        return slot in self._inputs

    def __getitem__(self, slot: str) -> Value:
        if slot not in self._inputs:
            raise KeepOperator(f"it lacks operand {slot}")
        return self._inputs[slot]

    def get(self, slot: str) -> Value | None:
        """Returns an operand of the group, or None if it is absent."""
        return self._inputs.get(slot)

    def add(
        self,
        op: str,
        operands: Mapping[str, Value] | None = None,
        attrs: Mapping[str, Attr] | None = None,
        types: Iterable[TensorType] | None = None,
        bodies: Mapping[str, Graph] | None = None,
    ) -> tuple[Value, ...]:
        """Adds a node and returns its results."""
        return self.graph.add(op, operands, attrs, types=types, bodies=bodies).results

    def op(self, op_name: str, *operands: Value, **attrs: Attr) -> Value:
        """Adds a node of one result, its operands in the order of the op's slots."""
        from qir.ir.ops import spec

        slots = [s.name for s in spec(op_name).operands]
        if slots and spec(op_name).operands[0].variadic:
            slots = [f"{slots[0]}.{i}" for i in range(len(operands))]
        return self.add(op_name, dict(zip(slots, operands, strict=False)), attrs)[0]

    def constant(self, data: NDArray[np.generic] | float | Sequence[int]) -> Value:
        """Returns a constant of the body; Python integers are int64, floats float32."""
        if isinstance(data, float):
            data = np.array(data, np.float32)
        elif not isinstance(data, np.ndarray | np.generic):
            data = np.array(data, np.int64)
        return self.graph.constant(Array.of(np.asarray(data)))

    def scalar_like(self, value: Value, number: float) -> Value:
        """Returns a scalar constant of a value's float type."""
        return self.constant(np.array(number, value.type.express.carrier))

    def reshape(self, x: Value, *sizes: int) -> Value:
        """Returns the value reshaped: 0 copies a size, -1 takes the rest."""
        return self.op("reshape", x, self.constant(sizes))

    def cast(self, x: Value, element_type: DType) -> Value:
        """Returns the value cast to a type, itself if it has that type."""
        return x if x.type.element == element_type else self.op("cast", x, to=element_type)

    def recode(self, x: Value, element: Element) -> Value:
        """Returns the same bits reinterpreted as another type."""
        if x.type.element == element:
            return x
        return self.add("recode", {"x": x}, types=[x.type.with_element(element)])[0]

    def as_integers(self, x: Value) -> Value:
        """Returns quantized values as plain integers."""
        return self.recode(x, x.type.dtype)

    def dequantized(self, slot: str, scale: str = "", zero: str = "") -> Value:
        """Returns an operand dequantized.

        Its parameters are in its type, or in operands of the group.
        """
        x = self[slot]
        if x.type.quant is None:
            return x
        qparams = {"x.scale": self.get(scale), "x.zero": self.get(zero)}
        present = {s: v for s, v in qparams.items() if v is not None}
        return self.add("dequantize", {"x": x, **present})[0]


Build = Callable[[BodyBuilder], Sequence[Value]]
"""Fills a body; returns its results in the order of the operator's."""


def present_results(op: OnnxOp) -> list[str]:
    """Returns the formal names of the results that are present."""
    result_names = RESULTS.get(op.type, "output").split()
    if len(op.outputs) > len(result_names):
        raise op.error(f"has {len(op.outputs)} results, it makes {len(result_names)} at most")
    return [result_names[i] for i, name in enumerate(op.outputs) if name]


def add_group(reader: OnnxReader, op: OnnxOp, operands: Mapping[str, Value], build: Build) -> Node:
    """Adds the operator as a group; raises KeepOperator if its body is malformed."""
    body = BodyBuilder(operands)
    try:
        values = build(body)
        results_by_name = dict(zip(RESULTS.get(op.type, "output").split(), values, strict=False))
        results = {name: results_by_name[name] for name in present_results(op)}
        body.graph.add("output", results)
        # `build` may add nodes for results that the file leaves out.
        body.graph.prune()
    except (TypeRuleError, GraphError, OpError, ParseError, KeyError) as error:
        raise KeepOperator(f"{error}") from error
    for node in body.graph:
        _check_parameters(node, operands)
    # Type inference does not check computed parameters (slots such as x.scale); the verifier does.
    quantized_nodes = [node for node in body.graph if any("." in slot for slot in node.operands)]
    for finding in errors(body.graph, quantized_nodes) if quantized_nodes else ():
        raise KeepOperator(finding.message)
    operand_places = _operand_places(op, operands)
    result_places = tuple(i for i, name in enumerate(op.outputs) if name)
    # All that is needed to write the operator back as it was.
    attrs = tuple((a.name, attribute_value(reader, op, a)) for a in op.proto.attribute)
    return reader.add(
        op,
        "fused",
        operands,
        {
            "kernel": f"onnx:{op.domain}.{op.type}",
            "slots": (operand_places, result_places)
            if op.opset == 1
            else (operand_places, result_places, op.opset),
            "attrs": attrs,
        },
        types=[value.type for value in results.values()],
        bodies={"body": body.graph},
    )


def _check_parameters(node: Node, operands: Mapping[str, Value]) -> None:
    """Raises KeepOperator for constant operands that are no valid scales or zero points.

    Scales of blocks may have any sign, as those of MatMulNBits.
    """
    for slot, value in node.operands.items():
        base, _, parameter = slot.rpartition(".")
        array = operands[value.name].constant if value.node.op == "input" else None
        if parameter not in ("scale", "zero") or array is None or not node.results:
            continue
        quant = (node.operands[base] if base in node.operands else node.results[0]).type.quant
        if quant is None:
            continue
        if parameter == "zero":
            _check_zero_points(value.name, array, quant)
        elif quant.granularity is None or quant.axis is not None:
            scales = array.data.astype(np.float64)
            if not (np.isfinite(scales) & (scales > 0)).all():
                raise KeepOperator(f"its {value.name} is not positive and finite")


def _check_zero_points(name: str, array: Array, quant: QuantType) -> None:
    zeros = array.data
    if not quant.storage.is_integer or zeros.dtype.kind not in "iu" or not zeros.size:
        return
    if not quant.low <= zeros.min() <= zeros.max() <= quant.high:
        raise KeepOperator(f"its {name} is outside {quant.low}..{quant.high}")


def _operand_places(op: OnnxOp, operands: Iterable[str]) -> tuple[int, ...]:
    """Returns the indices of operands in the operator's list."""
    operand_names = OPERANDS[op.type].split()
    if op.type == "Trunc" and len(op.inputs) == 5:
        operand_names.remove("output_scale")  # which version 1 lacks
    return tuple(operand_names.index(slot) for slot in operands)


def named_operands(reader: OnnxReader, op: OnnxOp, *excluded: str) -> dict[str, Value]:
    """Returns the present operands by their formal names, without those that are excluded."""
    operand_names = OPERANDS[op.type].split()
    if len(op.inputs) > len(operand_names):
        raise op.error(f"has {len(op.inputs)} operands, it takes {len(operand_names)} at most")
    names_by_slot = dict(zip(operand_names, op.inputs, strict=False))
    return {s: reader.value(op, n) for s, n in names_by_slot.items() if n and s not in excluded}

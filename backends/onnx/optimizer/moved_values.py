"""Quantizes values again after ops that move them, as the optimizer would.

From operator set 21 on, onnxruntime's QDQ propagation does that itself, but its quantizes of i8
values state a type that contradicts their zero point, and the model fails to load. Where the body
of a loop or branch reads what was moved, it ends the process (PropagateDQForward counts that reader
among the inputs of its node). It leaves values alone that are quantized there already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qir.ledger import Change

from ..opset.changed_operators import nodes_inside
from ..writer.writer import STEP, OnnxWriter

FIRST_TYPED_QUANTIZE = 21
"""The first operator set whose QuantizeLinear states a type."""
_PROPAGATED_OPS = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that the optimizer propagates quantizes through."""
_NEUTRAL_OPERANDS = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
"""Arithmetic that the optimizer removes, with the operand that makes it an identity."""
_MAX_DISTANCE = 256
"""Exceeds the distance of any 8-bit integer from its zero point."""


def add_moved_quantizes(writer: OnnxWriter, results: Iterable[str]) -> None:
    """Adds quantizes after such moves to the graph that a writer has; `results` are its outputs."""
    captured = frozenset(
        name for node in writer.nodes for held in nodes_inside(node) for name in held.input
    )
    if writer.opset >= FIRST_TYPED_QUANTIZE or captured:
        _QuantizePropagation(writer, frozenset(results), captured).run()


@dataclass
class _QuantizePropagation:
    """The nodes of one graph, with the consumers of each tensor."""

    writer: OnnxWriter
    results: frozenset[str]
    captured: frozenset[str]
    """Tensors that nodes of subgraphs read."""
    readers: dict[str, list[onnx.NodeProto | None]] = field(default_factory=dict)
    """The nodes that read a tensor; None stands for an output, and for a node of a subgraph."""
    sources: dict[str, onnx.NodeProto] = field(default_factory=dict)
    """The DequantizeLinear from which a float tensor comes: of i8 values, or of any that are
    captured after a move."""
    moved: list[str] = field(default_factory=list)
    moved_to_bodies: list[str] = field(default_factory=list)
    bypassed: set[str] = field(default_factory=set)
    """Float tensors whose move now reads the integers instead."""

    def run(self) -> None:
        writer = self.writer
        nodes = writer.nodes
        if not any(map(self._is_source, nodes)):
            return
        self._collect_readers(nodes)
        # The list is written anew: moves, quantizes and dequantizes take the place of plain moves.
        writer.nodes = []
        for node in nodes:
            source = self._source(node)
            if source is not None and _is_move(node) and self._must_be_quantized(node, source):
                self._write_move(node, source)
                continue
            writer.nodes.append(node)
            if self._is_source(node):
                self.sources[node.output[0]] = node
            elif source is not None and (_is_move(node) or self._is_removed(node, source)):
                self.sources[node.output[0]] = source
        self._report()
        if self.bypassed:
            self._remove_unused()

    def _remove_unused(self) -> None:
        """Removes the dequantizes that nothing reads any more."""
        writer = self.writer
        read = {name for node in writer.nodes for name in node.input}
        # An entry None is an output or a subgraph's reader, which is not in `nodes`.
        unused = {n for n in self.bypassed - read if all(self.readers[n])}
        writer.nodes = [n for n in writer.nodes if n.output[0] not in unused]
        writer.value_infos = [i for i in writer.value_infos if i.name not in unused]

    def _collect_readers(self, nodes: list[onnx.NodeProto]) -> None:
        for node in nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
            for name in (name for inner_node in nodes_inside(node) for name in inner_node.input):
                self.readers.setdefault(name, []).append(None)
        for name in self.results:
            self.readers.setdefault(name, []).append(None)

    # -- which ----------------------------------------------------------------------------------

    def _is_source(self, node: onnx.NodeProto) -> bool:
        if self._is_i8_dequantize(node):
            return True
        plain = node.op_type == "DequantizeLinear" and not node.domain
        return plain and bool(self.captured) and self._scalar_constant(node.input[1]) is not None

    def _must_be_quantized(self, node: onnx.NodeProto, source: onnx.NodeProto) -> bool:
        """Returns whether the optimizer must find a quantize after a move."""
        if node.output[0] in self.captured:
            return True
        return self._is_i8_dequantize(source) and not self._is_quantized_after(node)

    def _is_i8_dequantize(self, node: onnx.NodeProto) -> bool:
        """Returns whether a node dequantizes i8 values, where quantizes have a type."""
        if self.writer.opset < FIRST_TYPED_QUANTIZE:
            return False
        if node.op_type != "DequantizeLinear" or node.domain or len(node.input) < 3:
            return False
        zero = self._scalar_constant(node.input[2])
        return zero is not None and zero.data_type == TensorProto.INT8

    def _scalar_constant(self, name: str) -> onnx.TensorProto | None:
        """Returns a constant that onnxruntime considers a scalar: of rank 0, or of one element."""
        initializer = self.writer.main.initializers.get(name)
        return (
            initializer if initializer is not None and list(initializer.dims) in ([], [1]) else None
        )

    def _source(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        names = node.input[:2] if node.op_type in ("Add", "Mul") else node.input[:1]
        return next((self.sources[name] for name in names if name in self.sources), None)

    def _is_quantized_after(self, node: onnx.NodeProto) -> bool:
        """Returns whether the result is quantized by the model itself, directly or after further
        moves."""
        first = node
        while True:
            readers = self.readers.get(node.output[0], [])
            # The optimizer finds a quantize there, and adds none of its own.
            if readers and all(r is not None and _is_quantize(r) for r in readers):
                return node is first or (len(readers) == 1 and self._has_scalar_scale(readers[0]))
            after = readers[0] if len(readers) == 1 else None
            if after is None or not _is_move(after) or after.input[0] != node.output[0]:
                return False
            node = after

    def _has_scalar_scale(self, node: onnx.NodeProto | None) -> bool:
        """Returns whether a quantize has one constant scale."""
        return node is not None and self._scalar_constant(node.input[1]) is not None

    def _is_removed(self, node: onnx.NodeProto, source: onnx.NodeProto) -> bool:
        """Returns whether the optimizer may remove a node as an identity."""
        if node.op_type in _NEUTRAL_OPERANDS and not node.domain:
            constant = next(
                (h for name in node.input if (h := self._scalar_constant(name)) is not None), None
            )
            return (
                constant is not None
                and numpy_helper.to_array(constant).item() == _NEUTRAL_OPERANDS[node.op_type]
            )
        if node.op_type == "Cast":
            scale = self._scalar_constant(source.input[1])
            target = next((a.i for a in node.attribute if a.name == "to"), None)
            return scale is not None and target == scale.data_type
        return node.op_type in ("Identity", "Expand", "Dropout") and not node.domain

    # -- how ------------------------------------------------------------------------------------

    def _write_move(self, node: onnx.NodeProto, source: onnx.NodeProto) -> None:
        """Writes a move, then a quantize and dequantize with the parameters of its operand.

        Where floats would not quantize to the same integers, and in QLinear form, the integers
        themselves are moved.
        """
        writer, out = self.writer, node.output[0]
        # The pair is written as scalars, since the axis of a one-element list may move.
        quantized, parameters = (
            writer.fresh(f"{out}_codes"),
            [self._as_scalar(n) for n in source.input[1:]],
        )
        move = onnx.NodeProto()
        move.CopyFrom(node)
        writer.nodes.append(move)
        reads_dequantize = source.output[0] == node.input[0]
        # Otherwise the floats in between make no difference, and the move reads the integers.
        if not reads_dequantize or (
            self._requantizes_exactly(source) and not writer.moves_integers
        ):
            move.output[0] = writer.fresh(f"{out}_moved")
            writer.emit("QuantizeLinear", [move.output[0], *parameters], [quantized])
        else:
            self.bypassed.add(node.input[0])
            move.input[0], move.output[0] = source.input[0], quantized
        writer.emit("DequantizeLinear", [quantized, *parameters], [out])
        self.sources[out] = writer.nodes[-1]
        (self.moved_to_bodies if out in self.captured else self.moved).append(out)

    def _requantizes_exactly(self, source: onnx.NodeProto) -> bool:
        """Returns whether every integer, dequantized, quantizes to itself: no float is infinite
        or 0."""
        constant = self._scalar_constant(source.input[1])
        if constant is None:
            return True
        # Below tiny or above max / 256, some integer dequantizes to 0 or infinity.
        scale = np.abs(numpy_helper.to_array(constant))
        limits = np.finfo(scale.dtype)
        return bool(limits.tiny <= scale <= limits.max / _MAX_DISTANCE)

    def _as_scalar(self, name: str) -> str:
        """Returns a parameter of one element as a scalar: the axis may be gone after the move."""
        constant = self._scalar_constant(name)
        if constant is None or not constant.dims:
            return name
        data = np.asarray(numpy_helper.to_array(constant)).reshape(())
        return self.writer.parameter(data, name, None)

    def _report(self) -> None:
        first = FIRST_TYPED_QUANTIZE
        for held, what, why in (
            (self.moved, "i8 values", f"from set {first} on, those of onnxruntime 1.31's optimizer"
             " would end in an error"),
            (self.moved_to_bodies, "values to the body of a loop or branch",
             "onnxruntime's optimizer would end the process"),
        ):  # fmt: skip
            if not held:
                continue
            one = len(held) == 1
            moves = f"a move of {what} has" if one else f"{len(held)} moves of {what} have"
            them = "it" if one else "them"
            said = f"{moves} quantized values after {them} too, with the same parameters: {why}"
            self.writer.ledger.add(Change.EXACT, STEP, held[0], said)


def _is_move(node: onnx.NodeProto) -> bool:
    return not node.domain and node.op_type in _PROPAGATED_OPS


def _is_quantize(node: onnx.NodeProto) -> bool:
    return not node.domain and node.op_type == "QuantizeLinear"

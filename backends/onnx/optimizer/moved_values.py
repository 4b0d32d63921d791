"""Moves of dequantized i8 values, quantized again after them.

From operator set 21 on, onnxruntime's optimizer makes them itself, states their type, makes u8 of
their zero point, and then finds another type stated. Where quantized values are there already it
makes none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qir.ledger import Change

from ..opset.changed_operators import inside
from ..writer.writer import STEP, OnnxWriter

SINCE = 21
"""The first set whose QuantizeLinear states a type."""
_MOVES = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""What onnxruntime's optimizer takes quantized values through."""
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}
"""Arithmetic that it takes out, with the number that makes it nothing."""
_WIDEST = 256
"""More than any code of 8 bits is from its zero point."""


def write(writer: OnnxWriter, results: Iterable[str]) -> None:
    """Has quantized values after such moves, in one graph whose results have these names."""
    if writer.opset >= SINCE:
        _Moving(writer, frozenset(results)).run()


@dataclass
class _Moving:
    """One graph's nodes, and who reads what of them."""

    writer: OnnxWriter
    results: frozenset[str]
    readers: dict[str, list[onnx.NodeProto | None]] = field(default_factory=dict)
    """Those that read a tensor; None for a result, and for what a graph within reads."""
    sources: dict[str, onnx.NodeProto] = field(default_factory=dict)
    """What dequantizes i8 values of one scale and zero point, by the tensors of its numbers."""
    moved: list[str] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    """Float values that a move read, and now reads their quantized values."""

    def run(self) -> None:
        writer = self.writer
        nodes = writer.nodes
        if not any(map(self._dequantizes, nodes)):
            return
        self._read(nodes)
        writer.nodes = []
        for node in nodes:
            source = self._source(node)
            if source is not None and _moves(node) and not self._ends(node):
                self._move(node, source)
                continue
            writer.nodes.append(node)
            if self._dequantizes(node):
                self.sources[node.output[0]] = node
            elif source is not None and self._passes(node, source):
                self.sources[node.output[0]] = source
        if self.moved:
            self._say()
        if self.left:
            self._drop()

    def _drop(self) -> None:
        """Takes out what nobody reads any more."""
        writer = self.writer
        read = {name for node in writer.nodes for name in node.input}
        idle = {n for n in self.left - read if all(self.readers[n])}
        writer.nodes = [n for n in writer.nodes if n.output[0] not in idle]
        writer.infos = [i for i in writer.infos if i.name not in idle]

    def _read(self, nodes: list[onnx.NodeProto]) -> None:
        for node in nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
            for name in (name for held in inside(node) for name in held.input):
                self.readers.setdefault(name, []).append(None)
        for name in self.results:
            self.readers.setdefault(name, []).append(None)

    # -- which ----------------------------------------------------------------------------------

    def _dequantizes(self, node: onnx.NodeProto) -> bool:
        if node.op_type != "DequantizeLinear" or node.domain or len(node.input) < 3:
            return False
        zero = self._one(node.input[2])
        return zero is not None and zero.data_type == TensorProto.INT8

    def _one(self, name: str) -> onnx.TensorProto | None:
        """Returns a constant that onnxruntime counts as one number."""
        held = self.writer.whole.initializers.get(name)
        return held if held is not None and list(held.dims) in ([], [1]) else None

    def _source(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        names = node.input[:2] if node.op_type in ("Add", "Mul") else node.input[:1]
        return next((self.sources[name] for name in names if name in self.sources), None)

    def _ends(self, node: onnx.NodeProto) -> bool:
        """Returns whether integers are made of all that it moves, at once or after moves one by
        one."""
        first = node
        while True:
            readers = self.readers.get(node.output[0], [])
            if readers and all(r is not None and _quantizes(r) for r in readers):
                return node is first or (len(readers) == 1 and self._plain(readers[0]))
            after = readers[0] if len(readers) == 1 else None
            if after is None or not _moves(after) or after.input[0] != node.output[0]:
                return False
            node = after

    def _plain(self, node: onnx.NodeProto | None) -> bool:
        """Returns whether quantized values are made with one constant scale."""
        return node is not None and self._one(node.input[1]) is not None

    def _passes(self, node: onnx.NodeProto, source: onnx.NodeProto) -> bool:
        """Returns whether it may give what it takes, so that the optimizer takes it out."""
        if node.op_type in _NEUTRAL and not node.domain:
            held = next((h for name in node.input if (h := self._one(name)) is not None), None)
            return held is not None and numpy_helper.to_array(held).item() == _NEUTRAL[node.op_type]
        if node.op_type == "Cast":
            scale = self._one(source.input[1])
            wanted = next((a.i for a in node.attribute if a.name == "to"), None)
            return scale is not None and wanted == scale.data_type
        return node.op_type in ("Identity", "Expand", "Dropout") and not node.domain

    # -- how ------------------------------------------------------------------------------------

    def _move(self, node: onnx.NodeProto, source: onnx.NodeProto) -> None:
        """Writes a move of floats, their quantized values by the same quantized type, and the float
        values of these.

        A move of quantized values in the form that has such, and where float values would not give
        the quantized values again.
        """
        writer, out = self.writer, node.output[0]
        codes, pair = writer.fresh(f"{out}_codes"), [self._number(n) for n in source.input[1:]]
        made = onnx.NodeProto()
        made.CopyFrom(node)
        writer.nodes.append(made)
        direct = source.output[0] == node.input[0]
        if not direct or (self._again(source) and not writer.on_codes):
            made.output[0] = writer.fresh(f"{out}_moved")
            writer.emit("QuantizeLinear", [made.output[0], *pair], [codes])
        else:
            self.left.add(node.input[0])
            made.input[0], made.output[0] = source.input[0], codes
        writer.emit("DequantizeLinear", [codes, *pair], [out])
        self.sources[out] = writer.nodes[-1]
        self.moved.append(out)

    def _again(self, source: onnx.NodeProto) -> bool:
        """Returns whether every integer's real gives that integer again: no real is infinite, none
        is zero."""
        held = self._one(source.input[1])
        if held is None:
            return True
        scale = np.abs(numpy_helper.to_array(held))
        known = np.finfo(scale.dtype)
        return bool(known.tiny <= scale <= known.max / _WIDEST)

    def _number(self, name: str) -> str:
        """Returns one number that stands along an axis, as one for all."""
        held = self._one(name)
        if held is None or not held.dims:
            return name
        data = np.asarray(numpy_helper.to_array(held)).reshape(())
        return self.writer.parameter(data, name, None)

    def _say(self) -> None:
        count = len(self.moved)
        what = "a move of i8 values has" if count == 1 else f"{count} moves of i8 values have"
        said = (
            f"{what} quantized values after {'it' if count == 1 else 'them'} too, with the "
            "same parameters"
        )
        why = f"from set {SINCE} on, those of onnxruntime 1.31's optimizer would end in an error"
        self.writer.ledger.add(Change.EXACT, STEP, self.moved[0], f"{said}: {why}")


def _moves(node: onnx.NodeProto) -> bool:
    return not node.domain and node.op_type in _MOVES


def _quantizes(node: onnx.NodeProto) -> bool:
    return not node.domain and node.op_type == "QuantizeLinear"

"""Evaluates sizes and other small values that no input changes, while a graph is read.

TensorFlow computes shapes, axes and bounds by ops, which the language has as attributes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir import dims
from qir.ir.node import Node, Value
from qir.passes.fold.fold_shapes import SHAPE_QUERIES, SIZED_BY_OPERANDS, reckoned, whole
from qir.reference.interpreter import run_node

MAX_KNOWN_ELEMENTS = 1 << 12
"""Elements of values that are evaluated, at most."""


class KnownValues:
    """Evaluates values on demand, and caches the results; sizes may be symbolic."""

    def __init__(self) -> None:
        self._found: dict[Value, NDArray[np.generic] | None] = {}

    def elements(self, value: Value) -> NDArray[np.generic] | None:
        """Returns the elements of a value; None where they depend on inputs or open sizes."""
        array = value.constant
        if array is not None:
            return None if array.type.quant else array.data
        found = self.sizes(value)
        return None if found is None or found.dtype == object else found

    def sizes(self, value: Value) -> NDArray[np.generic] | None:
        """Returns the elements of a value, symbolic ones as objects; None for unknown values."""
        waiting = [value]
        while waiting:
            last = waiting[-1]
            if last in self._found:
                waiting.pop()
                continue
            asked = () if last.node.op in SHAPE_QUERIES else last.node.operands.values()
            missing = [v for v in asked if v not in self._found]
            if missing and self._small(last.node):
                waiting += missing
                continue
            made = self._computed(last.node)
            for i, result in enumerate(last.node.results):
                self._found[result] = None if made is None or i >= len(made) else made[i]
        return self._found[value]

    def _small(self, node: Node) -> bool:
        """Returns whether a node may be evaluated: its results are not known to be large."""
        if node.op in ("input", "constant", "foreign") or node.bodies:
            return False
        sizes = [dims.known_shape(value.type.shape) for value in node.results]
        return all(size is None or math.prod(size) <= MAX_KNOWN_ELEMENTS for size in sizes)

    def _computed(self, node: Node) -> list[NDArray[np.generic]] | None:
        if node.op == "constant":
            array = node.result.constant
            small = (
                array is not None
                and array.type.quant is None
                and array.contents.size <= MAX_KNOWN_ELEMENTS
            )
            return [array.data] if array is not None and small else None
        if not self._small(node):
            return None
        held = {slot: self._found.get(value) for slot, value in node.operands.items()}
        if node.op == "min" and (both := self._clamped(node)) is not None:
            return [both]
        plain = {slot: data for slot, data in held.items() if data is not None}
        open_ones = any(data.dtype == object for data in plain.values())
        if node.op in SHAPE_QUERIES or open_ones:
            return self._reckoned(node)
        if len(plain) < len(held) or node.op in SIZED_BY_OPERANDS:
            return None if len(plain) < len(held) else self._grown(node, plain)
        return self._run(node, plain)

    def _clamped(self, node: Node) -> NDArray[np.generic] | None:
        """Returns a number that a value is clamped to from both sides, as Keras does to sizes."""
        for low in node.operands.values():
            tops = [self._whole(value) for value in node.operands.values() if value is not low]
            if low.node.op != "max" or len(tops) != 1 or tops[0] is None:
                continue
            ends = [self._whole(value) for value in low.node.operands.values()]
            if any(end is not None and np.all(end >= tops[0]) for end in ends):
                return tops[0].astype(node.result.type.dtype.carrier)
        return None

    def _whole(self, value: Value) -> NDArray[np.int64] | None:
        """Returns what is found of a value, if that is whole numbers."""
        held = self._found.get(value)
        return held.astype(np.int64) if held is not None and held.dtype.kind in "iu" else None

    def _grown(
        self, node: Node, operands: dict[str, NDArray[np.generic]]
    ) -> list[NDArray[np.generic]] | None:
        """Evaluates an op of `SIZED_BY_OPERANDS`, unless its result is large."""
        if node.op == "range":
            start, limit, step = (float(operands[s]) for s in ("start", "limit", "step"))
            if not step or abs(limit - start) > MAX_KNOWN_ELEMENTS * abs(step):
                return None
        elif (
            "shape" in operands
            and math.prod(abs(int(s)) for s in operands["shape"]) > MAX_KNOWN_ELEMENTS
        ):
            return None
        return self._run(node, operands)

    def _reckoned(self, node: Node) -> list[NDArray[np.generic]] | None:
        parts = {
            value: data.astype(object)
            for value in node.operands.values()
            if (data := self._found.get(value)) is not None
        }
        found = reckoned(node, parts, MAX_KNOWN_ELEMENTS)
        return [
            sizes.astype(value.type.dtype.carrier) if whole(sizes) else sizes
            for sizes, value in zip(found, node.results, strict=False)
        ]

    def _run(
        self, node: Node, operands: dict[str, NDArray[np.generic]]
    ) -> list[NDArray[np.generic]] | None:
        try:
            return list(run_node(node, operands, ""))
        except QirError:
            return None

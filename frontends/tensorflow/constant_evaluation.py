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
from qir.passes.fold.fold_shapes import (
    SHAPE_QUERIES,
    SIZED_BY_OPERANDS,
    all_integers,
    computed_sizes,
)
from qir.profiles import NO_PROFILE
from qir.reference.interpreter import run_node

MAX_KNOWN_ELEMENTS = 1 << 12
"""Elements of values that are evaluated, at most."""


class KnownValues:
    """Evaluates values on demand, and caches the results; sizes may be symbolic."""

    def __init__(self) -> None:
        self._cached: dict[Value, NDArray[np.generic] | None] = {}

    def elements(self, value: Value) -> NDArray[np.generic] | None:
        """Returns the elements of a value; None where they depend on inputs or open sizes."""
        array = value.constant
        if array is not None:
            return None if array.type.quant else array.data
        elements = self.sizes(value)
        return None if elements is None or elements.dtype == object else elements

    def sizes(self, value: Value) -> NDArray[np.generic] | None:
        """Returns the elements of a value, symbolic ones as objects; None for unknown values."""
        waiting = [value]
        while waiting:
            current = waiting[-1]
            if current in self._cached:
                waiting.pop()
                continue
            # Shape queries need the type of their operand alone.
            prerequisites = (
                () if current.node.op in SHAPE_QUERIES else current.node.operands.values()
            )
            missing = [v for v in prerequisites if v not in self._cached]
            if missing and self._may_evaluate(current.node):
                waiting += missing
                continue
            results = self._evaluate(current.node)
            for i, result in enumerate(current.node.results):
                self._cached[result] = None if results is None or i >= len(results) else results[i]
        return self._cached[value]

    def _may_evaluate(self, node: Node) -> bool:
        """Returns whether a node may be evaluated: its results are not known to be large."""
        if node.op in ("input", "constant", "foreign") or node.bodies:
            return False
        sizes = [dims.known_shape(value.type.shape) for value in node.results]
        return all(size is None or math.prod(size) <= MAX_KNOWN_ELEMENTS for size in sizes)

    def _evaluate(self, node: Node) -> list[NDArray[np.generic]] | None:
        if node.op == "constant":
            array = node.result.constant
            is_small = (
                array is not None
                and array.type.quant is None
                and array.contents.size <= MAX_KNOWN_ELEMENTS
            )
            return [array.data] if array is not None and is_small else None
        if not self._may_evaluate(node):
            return None
        data_by_slot = {slot: self._cached.get(value) for slot, value in node.operands.items()}
        if node.op == "min" and (bound := self._clamped(node)) is not None:
            return [bound]
        known_data = {slot: data for slot, data in data_by_slot.items() if data is not None}
        is_symbolic = any(data.dtype == object for data in known_data.values())
        if node.op in SHAPE_QUERIES or is_symbolic:
            return self._evaluate_symbolically(node)
        # Open results may be of any size: `SIZED_BY_OPERANDS` is checked by the operands.
        if len(known_data) < len(data_by_slot) or node.op in SIZED_BY_OPERANDS:
            return (
                None
                if len(known_data) < len(data_by_slot)
                else self._evaluate_sized(node, known_data)
            )
        return self._run(node, known_data)

    def _clamped(self, node: Node) -> NDArray[np.generic] | None:
        """Returns a number that a value is clamped to from both sides, as Keras does to sizes."""
        for low in node.operands.values():
            tops = [self._integers(value) for value in node.operands.values() if value is not low]
            if low.node.op != "max" or len(tops) != 1 or tops[0] is None:
                continue
            floors = [self._integers(value) for value in low.node.operands.values()]
            if any(floor is not None and np.all(floor >= tops[0]) for floor in floors):
                return tops[0].astype(node.result.type.dtype.carrier)
        return None

    def _integers(self, value: Value) -> NDArray[np.int64] | None:
        """Returns the data of a value, if they are known integers."""
        data = self._cached.get(value)
        return data.astype(np.int64) if data is not None and data.dtype.kind in "iu" else None

    def _evaluate_sized(
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

    def _evaluate_symbolically(self, node: Node) -> list[NDArray[np.generic]] | None:
        operand_data = {
            value: data.astype(object)
            for value in node.operands.values()
            if (data := self._cached.get(value)) is not None
        }
        results = computed_sizes(node, operand_data, MAX_KNOWN_ELEMENTS)
        return [
            sizes.astype(value.type.dtype.carrier) if all_integers(sizes) else sizes
            for sizes, value in zip(results, node.results, strict=False)
        ]

    def _run(
        self, node: Node, operands: dict[str, NDArray[np.generic]]
    ) -> list[NDArray[np.generic]] | None:
        try:
            return list(run_node(node, operands, NO_PROFILE))
        except QirError:
            return None

"""Stores weights of products in few bits, which needs no calibration.

    graph main as native {
      %x = input() : 2x4xf32
      %w = constant(@w) : 4x3xf32
      %y = matmul(%x, %w) : 2x3xf32
      output(y=%y)
    }

By `quantize-weights` it becomes:

    array @w.scale : 1x3xf32
    graph main as native {
      %x = input() : 2x4xf32
      %w = constant(@w) : 4x3xf32
      %w.q = constant(@w.q) : 4x3x!quant.uniform<i8<-127:127>:f32:{0:4, 1:1}, @w.scale>
      %w.dq = dequantize(%w.q) : 4x3xf32
      %y = matmul(%x, %w.dq) : 2x3xf32
      output(y=%y)
    }
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from qir.analysis.bodies import graphs_with_bodies
from qir.analysis.decisions import GraphFacts, Plan
from qir.analysis.user_rules import UserRule
from qir.errors import SchemeError
from qir.ir.dtype import F32, DType, dtype
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import ArrayData, Box, boxes, read_box
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import Array, Granularity, QuantType
from qir.ledger import Change, Ledger
from qir.passes.quantize.quantize_dynamic import (
    computing_nodes,
    finite_weights,
    float_reason,
    require_matching_rules,
    store_dequantized,
)
from qir.profiles import Profile, lazy_quantize, parameters_for_range, profile_in
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.options import option

_Tensor = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class WeightStorage:
    """How weights alone are stored: the integers, and how many of a column share a scale."""

    storage: DType
    size: int

    @classmethod
    def parse(cls, text: str) -> WeightStorage:
        """Reads `u4:32`: affine quantized values of 4 bits, 32 a block; `i8:64` is symmetric.

        Raises SchemeError for text that says no such thing.
        """
        matched = re.fullmatch(r"([iu][248]):(\d{1,6})", text.strip())
        if not matched or int(matched[2]) < 1:
            raise SchemeError(f"{text[:40]!r} is no way to store weights, such as u4:32 or i8:64")
        return cls(dtype(matched[1]), int(matched[2]))

    @property
    def symmetric(self) -> bool:
        """Whether quantized values have no zero point: signed ones."""
        return self.storage.name.startswith("i")

    def __str__(self) -> str:
        return f"{self.storage}:{self.size}"


def plan_weights(
    graph: Graph, name: str, blocks: WeightStorage, user_rules: Iterable[UserRule] = ()
) -> tuple[Plan, list[Node]]:
    """Returns which products would have their weights stored in blocks, and why not the others."""
    rules = tuple(user_rules)
    reasons = {node: float_reason(node, rules) for node in computing_nodes(graph)}
    require_matching_rules(graph, rules)
    facts, scheme_text = GraphFacts(graph, graphs_with_bodies(graph)), f"{blocks} weights alone"
    decisions = tuple(
        facts.decision(node, reason)
        if reason
        else replace(
            facts.decision(node, ""), becomes="weights", macs_on_codes=0, schemes={"w": scheme_text}
        )
        for node, reason in reasons.items()
    )
    return Plan(name, decisions, ()), [node for node, reason in reasons.items() if not reason]


@dataclass(frozen=True)
class QuantizeWeights(Pass):
    """Stores weights of matrix products in blocks of few bits; all else stays float.

    Those of products within branches and loops are, too.
    """

    name = "quantize-weights"
    nested = False
    tolerance = ANOTHER
    blocks: WeightStorage = WeightStorage(dtype("u4"), 32)
    user_rules: tuple[UserRule, ...] = field(default=(), metadata=option(name="wishes"))
    profile: str = "native"

    def run(self, graph: Graph, ledger: Ledger) -> int:
        chosen = set(plan_weights(graph, "", self.blocks, self.user_rules)[1])
        return sum(self._quantize(each, chosen, ledger) for each in graphs_with_bodies(graph))

    def _quantize(self, graph: Graph, chosen: set[Node], ledger: Ledger) -> int:
        known: dict[tuple[Value, int], Value] = {}
        count = 0
        for node in list(graph):
            if node not in chosen or not may(self.name, f"quantize {node.op}", node):
                continue
            slot = spec(node.op).traits.weight or ""
            value = node.operands[slot]
            summed_axis = 1 if node.op == "linear" or node.attrs.get("trans_b") is True else 0
            # Blocks are along the summed axis: products that read a weight by its other axis store
            # it anew.
            if (value, summed_axis) not in known:
                blocks = blocked(
                    finite_weights(value),
                    self.blocks,
                    summed_axis,
                    profile_in(graph, self.profile),
                    value.name,
                )
                known[value, summed_axis] = store_dequantized(graph, value, blocks)
                ledger.add(Change.QUANTIZED, self.name, value.name, f"{self.blocks} in blocks")
            graph.set_operand(node, slot, known[value, summed_axis])
            count += 1
        return count


def blocked(
    floats: ArrayData, blocks: WeightStorage, axis: int, rules: Profile, name: str
) -> Array:
    """Returns a matrix in blocks along one axis, each with a scale, and a zero point where
    affine."""
    shape, size = floats.shape, blocks.size
    granularity = Granularity(tuple((i, size if i == axis else 1) for i in range(len(shape))))
    symmetric = blocks.symmetric
    # Without the least integer both ends are equally far from zero.
    bounds = (-blocks.storage.bounds[1], blocks.storage.bounds[1]) if symmetric else None
    scheme = Scheme(blocks.storage, symmetric, "channel", bounds)
    grid_shape = tuple(n for n in granularity.grid(shape) if isinstance(n, int))
    scales, zeros = np.empty(grid_shape, np.float32), np.empty(grid_shape, blocks.storage.carrier)
    # Weights may be mapped from a file and larger than memory: they are read piece by piece.
    for box in boxes(grid_shape, size):
        low, high = _block_ranges(floats, box, size, axis)
        scales[box], zeros[box] = parameters_for_range(rules, low, high, scheme, weight=True)
    scale = Array.of(_read_only(scales), f"{name}.scale")
    zero_array: Array | tuple[int, ...] = ()
    if not symmetric:
        zero_array = Array(
            _read_only(zeros), scale.type.with_element(blocks.storage), f"{name}.zero"
        )
    quant_type = QuantType(blocks.storage, F32, scale, zero_array, granularity, bounds)
    quantized = lazy_quantize(rules, floats, quant_type)
    return Array(quantized, scale.type.with_shape(shape).with_element(quant_type), name)


def _block_ranges(floats: ArrayData, box: Box, size: int, axis: int) -> tuple[_Tensor, _Tensor]:
    """Returns the least and the greatest of some blocks, and zero."""
    depth, block_range = floats.shape[axis], box[axis]
    elements = slice(block_range.start * size, min(block_range.stop * size, depth))
    data = read_box(floats, (*box[:axis], elements, *box[axis + 1 :]))
    starts = np.arange(0, max(data.shape[axis], 1), size)
    zero = np.zeros((), data.dtype)
    # reduceat takes a shorter last block too.
    low = np.minimum(np.minimum.reduceat(data, starts, axis=axis), zero)
    return low, np.maximum(np.maximum.reduceat(data, starts, axis=axis), zero)


def _read_only(array: _Tensor) -> _Tensor:
    """Numbers that nobody writes to any more."""
    array.flags.writeable = False
    return array

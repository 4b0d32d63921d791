"""Computes in float16 what a graph computes in float32; the inverse is `widen-reals`.

    graph main as native {
      %x = input() : 2xf32
      %a = relu(%x) : 2xf32
      %y = neg(%a) : 2xf32
      output(y=%y)
    }

By `narrow-reals` it becomes:

    graph main as native {
      %x = input() : 2xf32
      %x.f16 = cast(%x) {to = f16} : 2xf16
      %a = relu(%x.f16) : 2xf16
      %y = neg(%a) : 2xf16
      %y.f32 = cast(%y) {to = f32} : 2xf32
      output(y=%y.f32)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from math import inf

import numpy as np

from qir.analysis.bodies import graphs_with_bodies
from qir.calibration import Key, Statistics
from qir.ir.dtype import F16, F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.quantized_ops import STRUCTURAL_OPS
from qir.ir.text import parse
from qir.ledger import REQUEST, Change, Ledger
from qir.passes.quantize.materialize import read_statistics
from qir.rewrite import Pass, Tolerance
from qir.rewrite.retyping import Retyping, not_plain
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.options import option

_F16_MAX = float(np.finfo(np.float16).max)
_F16_SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)
_GROWTH = 2.0
"""What calibration saw may grow by so much and still be finite in float16."""


@dataclass(frozen=True)
class NarrowReals(Pass):
    """Computes in float16 what a graph computes in float32, in branches and loops too.

    Inputs and outputs keep their types, as do quantize and dequantize, whose scales stay float32;
    casts are between. An op stays float32 that is named in `kept`, that reads a constant which
    float16 does not represent, or whose values in the statistics come near the end of float16.
    """

    name = "narrow-reals"
    nested = False
    tolerance = Tolerance(inf, inf, "floats are rounded to 16 bits")
    kept: tuple[str, ...] = field(default=(), metadata=option(kind="list of name"))
    """The ops that stay float32, such as those that a runtime fuses to an integer kernel."""
    statistics: Statistics = field(
        default_factory=lambda: Statistics(""), metadata=option(read=read_statistics, kind="file")
    )
    """Of the float model; a file that `qir calibrate` wrote."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product of floats."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n"
            "  %y = mul(%x, %x) : 2x3xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        named = frozenset(self.kept)
        stays_f32 = partial(self._stays_f32, named)
        parts = list(graphs_with_bodies(graph))
        # The change is one for the whole graph, so that a filter is asked once, about its first op.
        first = next((n for part in parts for n in part if _computes(n) and not stays_f32(n)), None)
        if first is None or not may(self.name, "narrow", first):
            return 0
        for node in (n for part in parts for n in part if _computes(n) and n.name not in named):
            if reason := self._unfit_reason(node):
                message = f"stays float32: {reason}"
                ledger.add(Change.EXACT, self.name, node.name, message)
        count = sum(Retyping(part, (F32,), F16, stays_f32).run() for part in parts)
        message = f"computed in float16, as asked for: {count} values are rounded to 11 bits"
        ledger.add(Change.APPROXIMATED, self.name, graph.name, message, basis=REQUEST)
        return 1

    def _stays_f32(self, kept_names: frozenset[str], node: Node) -> bool:
        if node.name in kept_names or not_plain(node) or node.op in STRUCTURAL_OPS:
            return True
        # Whole numbers above 2048 are no numbers of float16.
        is_integer_cast = node.op == "cast" and not node.operands["x"].type.dtype.is_float
        return is_integer_cast or bool(self._unfit_reason(node))

    def _unfit_reason(self, node: Node) -> str:
        """Returns why float16 cannot hold what an op takes and gives; nothing where it can."""
        for value in (*node.operands.values(), *node.results):
            if value.type.element is F32 and not self._fits_f16(value):
                return f"{value.name} has numbers that float16 does not represent"
        return ""

    def _fits_f16(self, value: Value) -> bool:
        if value.constant is not None:
            return _is_held_by_f16(value.constant.data)
        # What calibration has not seen is taken to fit: without statistics all but constants do.
        summary = self.statistics.get(Key(value.lineage.tensor))
        return (
            summary is None
            or not summary.count
            or max(-summary.low, summary.high) * _GROWTH <= _F16_MAX
        )


def _is_held_by_f16(data: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bool:
    """Returns whether a constant is finite in float16, and not lost below its normal numbers."""
    largest = float(np.abs(data).max(initial=0))
    # Below the normal range, float16 keeps fewer than 11 bits, and none below 2^-24.
    return largest == 0 or _F16_SMALLEST_NORMAL <= largest <= _F16_MAX


def _computes(node: Node) -> bool:
    """Returns whether a plain op computes with float32; casts alone compute nothing."""
    is_plain = node.op != "cast" and not not_plain(node) and node.op not in STRUCTURAL_OPS
    return is_plain and any(v.type.element is F32 for v in node.results)

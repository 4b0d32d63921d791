"""Widens the ranges of a classifier's scores by what few samples cannot show.

    graph main as native {
      %x = input() : (N)x3xf32
      %w = constant([1.0, 0.2, -0.3, 0.5, -0.4, 0.1]) : 2x3xf32
      %y = linear(%x, %w) : (N)x2xf32 plan {result = "u8 affine tensor minmax"}
      output(y=%y)
    }

By `widen-outputs` it becomes:

    graph main as native {
      %x = input() : (N)x3xf32
      %w = constant([1.0, 0.2, -0.3, 0.5, -0.4, 0.1]) : 2x3xf32
      %y = linear(%x, %w) : (N)x2xf32 plan {result = "u8 affine tensor margin:0.25"}
      output(y=%y)
    }

The largest score of the next sample exceeds that of n samples with probability 1 / (n + 1). Clipped
scores are equal, so the answer is lost. Each end of the range moves outwards by 0.5 / sqrt(n) of
the range, which costs a bit of the scores' resolution for one sample and less for more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from qir.calibration import Key, Statistics
from qir.ir.dtype import U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import RESULT, Scheme
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.quantize.materialize import read_statistics
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.runner.options import option

WIDENING = 0.5
"""Of the range, for one row of scores; divided by the square root of the rows."""
MOST_ROWS = 256
"""Extremes of more rows of scores are trusted: their ends would move by under 1/32."""
_SOFTMAX = frozenset({"softmax", "log_softmax"})


@dataclass(frozen=True)
class WidenOutputs(Pass):
    """Widens the ranges of scores of which the calibration data show few rows.

    Scores are the last values that are computed before a softmax, reshapes and the output. It runs
    between `assign-schemes` and `materialize`. It leaves ranges that are not by minmax, and results
    of clips and other elementwise functions but relu.
    """

    name = "widen-outputs"
    nested = False
    tolerance = ANOTHER
    statistics: Statistics = field(
        default_factory=lambda: Statistics(""), metadata=option(read=read_statistics, kind="file")
    )
    """Of the float model; a file that `qir calibrate` wrote."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a linear layer whose scores were seen for four samples."""
        graph = parse(
            "graph main as native {\n  %x = input() : (N)x3xf32\n"
            "  %w = constant([1.0, 0.2, -0.3, 0.5, -0.4, 0.1]) : 2x3xf32\n"
            "  %y = linear(%x, %w) : (N)x2xf32\n  output(y=%y)\n}\n"
        )
        node = next(n for n in graph if n.op == "linear")
        graph.set_scheme(node, RESULT, Scheme(U8))
        statistics = Statistics("sample")
        with statistics.batch("sample", 0) as batch:
            batch.update("y", np.linspace(-2, 3, 8, dtype=np.float32).reshape(4, 2))
        yield cls(statistics), graph

    def run(self, graph: Graph, ledger: Ledger) -> int:
        plans = planned_values(graph)
        count = 0
        for computed, scores in score_values(graph):
            rows = self._rows(computed)
            if rows is None or rows > MOST_ROWS:
                continue
            # Three digits, so that the rule reads well in files and is equal on every processor.
            share = float(f"{WIDENING / math.sqrt(rows):.3g}")
            planned = {v for v in scores if v in plans}
            widened = [plan for value in planned for plan in plans[value] if _is_minmax(plan[2])]
            # Wider types of values far from the scores would cost resolution where nothing is
            # gained.
            if not widened or not _shares_no_type(planned, plans):
                continue
            for node, slot, scheme in widened:
                graph.set_scheme(node, slot, replace(scheme, range=f"margin:{share!r}"))
            message = f"its range is widened by {share:.1%} to each side: {rows} rows were seen"
            ledger.add(Change.QUANTIZED, self.name, computed.name, message)
            count += len(widened)
        return count

    def _rows(self, scores: Value) -> int | None:
        """Returns how many rows of scores were seen: the values by the largest of their axes."""
        summary = self.statistics.get(Key(scores.lineage.tensor, None))
        # The largest axis is taken for that of classes: layouts put it first or last.
        sizes = [size for size in scores.type.shape[1:] if isinstance(size, int)]
        # One class has no rival: no argmax can be lost.
        if summary is None or not sizes or max(sizes) < 2:
            return None
        return max(1, summary.count // max(sizes))


def score_values(graph: Graph) -> Iterator[tuple[Value, list[Value]]]:
    """Yields the last computed value before each output, with all values from it to the output.

    A softmax and ops that move elements are passed over.
    """
    seen: set[Value] = set()
    for output in (n for n in graph if n.op == "output"):
        for value in output.operands.values():
            path: list[Value] = []
            while True:
                node = value.node
                if node.op in _SOFTMAX:
                    path = []  # its own range is that of probabilities
                    value = node.operands["x"]
                    continue
                path.append(value)
                if not spec(node.op).traits.value_preserving or len(node.operands) != 1:
                    break
                value = node.operands[spec(node.op).traits.data]
            if value not in seen and _is_unbounded(value.node) and value.constant is None:
                seen.add(value)
                yield value, path


def _is_unbounded(node: Node) -> bool:
    """Returns whether results of an op may exceed the largest that was seen."""
    # A clip is fused where the integers of its result end at its bounds, so they have to stay.
    return node.op == "relu" or not (node.op == "input" or spec(node.op).traits.elementwise)


def _is_minmax(scheme: Scheme) -> bool:
    return scheme.range == "minmax" and scheme.scale is None


def planned_values(graph: Graph) -> dict[Value, list[tuple[Node, str, Scheme]]]:
    """Returns the schemes of each value, with the slots that have them."""
    plans: dict[Value, list[tuple[Node, str, Scheme]]] = {}
    for node in graph:
        for slot, scheme in node.schemes.items():
            values = node.results if slot == RESULT else (node.operands[slot],)
            for value in values:
                plans.setdefault(value, []).append((node, slot, scheme))
    return plans


def _shares_no_type(scores: set[Value], plans: dict[Value, list[tuple[Node, str, Scheme]]]) -> bool:
    """Returns whether no other value shares the quantized type of the scores."""
    shares = {s.share for v in scores for _, _, s in plans[v] if s.share}
    sharing = {v for v, schemes in plans.items() for _, _, s in schemes if s.share in shares}
    return sharing <= scores

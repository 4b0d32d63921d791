"""Plugins that load and break their contracts, for the checks to find."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.calibration import Observer, Range, Seen
from qir.ir.graph import Graph
from qir.ir.ops import OpSpec, PluginOp, Slot
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.rewrite import Pass

from .ops import HUSH

_count = itertools.count()


@dataclass(frozen=True)
class Liar(Pass):
    """Takes every relu out and says that no number moves."""

    name = "acme-liar"

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n  %a = neg(%x) : 2x3xf32\n"
            "  %y = relu(%a) : 2x3xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        found = [node for node in graph if node.op == "relu"]
        for node in found:
            if node.result.type == node.operands["x"].type:
                graph.replace(node.result, node.operands["x"])
                graph.remove(node)
        return len(found)


class Forgetful(Observer):
    """What it gives depends on how often it was asked."""

    name = "acme-forgetful"

    def range(self, seen: Seen) -> Range:
        low, high = seen.summary.extremes
        return Range(np.asarray(low), np.asarray(high) + np.float32(next(_count)))


def moody(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Half of the time in another element type."""
    return x.astype(np.float64) if next(_count) % 2 else x


MOODY = PluginOp(
    OpSpec("acme_moody", (Slot("x"),), HUSH.spec.rule, doc="x, one way or another"), moody
)

"""Transposes regions to channels last, or first, so that transposes remain only at their edges.

    graph main as native {
      %x = input() : 1x6x6x2xf32
      %w = constant(@w) : 2x2x3x3xf32
      %t = transpose(%x) {perm = (0, 3, 1, 2)} : 1x2x6x6xf32
      %c = conv2d(%t, %w) : 1x2x4x4xf32
      %y = transpose(%c) {perm = (0, 2, 3, 1)} : 1x4x4x2xf32
      output(y=%y)
    }

By `layout` it becomes:

    graph main as native {
      %x = input() : 1x6x6x2xf32
      %w = constant(@w) : 2x2x3x3xf32
      %c = conv2d(%x, %w) {layout = "NHWC"} : 1x4x4x2xf32
      output(y=%c)
    }
"""

from __future__ import annotations

from dataclasses import dataclass

from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Ledger
from qir.passes.layout.regions import PermutedRegions
from qir.passes.layout.transpose_motion import Passing
from qir.rewrite import Pass
from qir.rewrite.axis_permutation import LAYOUTS
from qir.rewrite.runner.tolerance import REGROUPED


@dataclass(frozen=True)
class Layout(Pass):
    """Transposes ops that name their layout, and those between them, to the layout of `to`.

    Ops that work element by element or along named axes, that concatenate or pad, are permuted
    with their neighbours, so that no transpose is between two permuted ops. A region without an op
    that names its layout is permuted where that removes more transposes than it adds. Ops that
    remove, insert or merge axes are written for the permuted axes, and constant weights of a
    product after them are permuted too. Constants are permuted at once. Inputs, outputs and the
    weights of convolutions stay as they are; so does an op whose result's quantized type cannot be
    permuted.
    Windows and products are summed in another order, so float values may differ in the last place.
    """

    name = "layout"
    tolerance = REGROUPED
    to: str = "nhwc"

    def __post_init__(self) -> None:
        if self.to not in LAYOUTS:
            raise UsageError(f"layout: to = {self.to!r} is neither nhwc nor nchw")

    def run(self, graph: Graph, ledger: Ledger) -> int:
        # Permuting a region may bring two transposes together, and removing one may make a region
        # worth permuting: both repeat until nothing changes.
        count, skipped = 0, set[Node]()
        while changed := self._run_round(graph, ledger, skipped):
            count += (
                changed  # permuted regions may have put transposes where others can remove them
            )
        return count

    def _run_round(self, graph: Graph, ledger: Ledger, skipped: set[Node]) -> int:
        permuted_count = PermutedRegions(graph, self.name, self.to, ledger).run()
        return permuted_count + Passing(graph, self.name, ledger, skipped).run()


def channels_last(graph: Graph, framework: str) -> bool:
    """Returns whether a graph has images that are channels last (NHWC), of other frameworks.

    A framework whose kernels take channels first would need transposes around each layer, which
    keep its runtimes from integer kernels.
    """
    return any(
        any(attrs.get("layout") == "NHWC" for attrs in (n.attrs, *(s.attrs for s in n.stages)))
        and all(origin.framework != framework for origin in n.origins)
        for _, part in graph.walk()
        for n in part
    )

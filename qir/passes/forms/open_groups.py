"""Replaces groups by the ops that they hold.

    graph main as native {
      %x = input() : 1x2x6x6xf32
      %w = constant(@w) : 2x2x3x3xf32
      %y = conv2d(%x, %w) |> relu : 1x2x4x4xf32
      output(y=%y)
    }

By `open-groups{chains=true}` it becomes:

    graph main as native {
      %x = input() : 1x2x6x6xf32
      %w = constant(@w) : 2x2x3x3xf32
      %y.conv2d = conv2d(%x, %w) : 1x2x4x4xf32
      %y = relu(%y.conv2d) : 1x2x4x4xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from qir.analysis.kernel_groups import is_float_group, unwrap_group
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger
from qir.rewrite import REGROUPED, Pass
from qir.rewrite.runner.filter import may


@dataclass(frozen=True)
class OpenGroups(Pass):
    """Replaces groups by their bodies, where the kernel's name matches a pattern.

    What one kernel computed is computed op by op then: the same float values, where the kernel
    rounds no more than its body says. With `chains`, groups of floats in a row are replaced by
    their ops too; a pattern is matched with those ops, as in `conv2d |> relu`.
    """

    name = "open-groups"
    tolerance = REGROUPED
    kernels: str = "*"
    chains: bool = False

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = self._open_chains(graph, ledger) if self.chains else 0
        for node in list(graph):
            kernel = str(node.attrs.get("kernel", ""))
            if node.op != "fused" or not node.bodies or not fnmatchcase(kernel, self.kernels):
                continue
            if not may(self.name, "open", node):
                continue
            _open_group(graph, node)
            message = f"{kernel.rpartition('.')[2] or 'a group'} is written by its parts"
            ledger.add(Change.REGROUPED, self.name, node.name, message)
            count += 1
        return count

    def _open_chains(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            chain = " |> ".join(stage.op for stage in node.stages)
            if not is_float_group(node) or not fnmatchcase(chain, self.kernels):
                continue
            if not may(self.name, "open", node):
                continue
            name = node.name
            unwrap_group(graph, node)
            ledger.add(Change.EXACT, self.name, name, f"{chain} is written by its parts")
            count += 1
        return count


def _open_group(graph: Graph, node: Node) -> None:
    body = graph.body(node, "body")
    # Value of the body -> its copy in the graph.
    copies: dict[Value, Value] = {v: node.operands[v.name] for v in body.inputs}
    for inner in body:
        if inner.op in ("input", "output"):
            continue
        names = [graph.fresh(f"{node.name}.{v.name}") for v in inner.results]
        operands = {slot: copies[v] for slot, v in inner.operands.items()}
        # Out of the group an op without a profile would follow the graph's.
        profile = inner.profile or node.profile
        if inner.stages:
            copy = graph.add_chain(
                inner.stages,
                operands,
                inner.result.type,
                name=names[0],
                before=node,
                origins=inner.origins,
                profile=profile,
            )
        else:
            copy = graph.add(
                inner.op,
                operands,
                inner.attrs,
                types=[v.type for v in inner.results],
                name=names,
                before=node,
                origins=inner.origins,
                profile=profile,
                bodies={name: body.body(inner, name).copy() for name in inner.bodies},
                inner=inner.inner,
            )
        copies.update(zip(inner.results, copy.results, strict=True))
    # Names are free only after the group is gone, so they are handed over last.
    results = [copies[v] for v in body.outputs.values()]
    old_names = [(old.name, old.lineage) for old in node.results]
    for old, result in zip(node.results, results, strict=True):
        graph.replace(old, result)
    graph.remove(node)
    for result, (name, lineage) in zip(results, old_names, strict=True):
        # A body may hand its input on: that value is another op's, and keeps its name.
        if result.node.op not in ("input", "constant"):
            graph.rename(result, name)
            graph.set_lineage(result, lineage)

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
        count = self._chains(graph, ledger) if self.chains else 0
        for node in list(graph):
            kernel = str(node.attrs.get("kernel", ""))
            if node.op != "fused" or not node.bodies or not fnmatchcase(kernel, self.kernels):
                continue
            if not may(self.name, "open", node):
                continue
            _open(graph, node)
            said = f"{kernel.rpartition('.')[2] or 'a group'} is written by its parts"
            ledger.add(Change.REGROUPED, self.name, node.name, said)
            count += 1
        return count

    def _chains(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            row = " |> ".join(stage.op for stage in node.stages)
            if not is_float_group(node) or not fnmatchcase(row, self.kernels):
                continue
            if not may(self.name, "open", node):
                continue
            name = node.name
            unwrap_group(graph, node)
            ledger.add(Change.EXACT, self.name, name, f"{row} is written by its parts")
            count += 1
        return count


def _open(graph: Graph, node: Node) -> None:
    body = graph.body(node, "body")
    twin: dict[Value, Value] = {v: node.operands[v.name] for v in body.inputs}
    for each in body:
        if each.op in ("input", "output"):
            continue
        names = [graph.fresh(f"{node.name}.{v.name}") for v in each.results]
        operands = {slot: twin[v] for slot, v in each.operands.items()}
        profile = each.profile or node.profile
        if each.stages:
            made = graph.add_chain(
                each.stages,
                operands,
                each.result.type,
                name=names[0],
                before=node,
                origins=each.origins,
                profile=profile,
            )
        else:
            made = graph.add(
                each.op,
                operands,
                each.attrs,
                types=[v.type for v in each.results],
                name=names,
                before=node,
                origins=each.origins,
                profile=profile,
                bodies={name: body.body(each, name).copy() for name in each.bodies},
                inner=each.inner,
            )
        twin.update(zip(each.results, made.results, strict=True))
    ends = [twin[v] for v in body.outputs.values()]
    known = [(old.name, old.lineage) for old in node.results]
    for old, end in zip(node.results, ends, strict=True):
        graph.replace(old, end)
    graph.remove(node)
    for end, (name, lineage) in zip(ends, known, strict=True):
        if end.node.op not in ("input", "constant"):
            graph.rename(end, name)
            graph.set_lineage(end, lineage)

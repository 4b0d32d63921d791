"""Groups a float convolution or product with the activations that follow it.

    graph main as native {
      %x = input() : 1x2x6x6xf32
      %w = constant(@w) : 2x2x3x3xf32
      %c = conv2d(%x, %w) : 1x2x4x4xf32
      %y = relu(%c) : 1x2x4x4xf32
      output(y=%y)
    }

By `group-activations` it becomes:

    graph main as native {
      %x = input() : 1x2x6x6xf32
      %w = constant(@w) : 2x2x3x3xf32
      %y = conv2d(%x, %w) |> relu : 1x2x4x4xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from dataclasses import dataclass

from qir.analysis.kernel_groups import wrap_as_group
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import OPS
from qir.ir.ops.layers import LAYERS
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.runner.filter import may

_DEFAULT_ACTIVATIONS = (
    "relu clip leaky_relu elu sigmoid hard_sigmoid hard_swish silu gelu tanh mish softplus square"
)


@dataclass(frozen=True)
class GroupActivations(Pass):
    """Groups conv2d and relu as conv2d |> relu, if the value between has no other use.

    `activations` are the ops that join, up to `most` of them; with `sums` an add of another tensor
    joins too. All values are floats: what quantized values are grouped by is a profile, and `group`
    does it.
    """

    name = "group-activations"
    activations: str = _DEFAULT_ACTIVATIONS
    most: int = 4
    sums: bool = True

    def __post_init__(self) -> None:
        self.require_least(most=1)
        for name in self.activations.split():
            if name not in OPS or not OPS[name].traits.elementwise:
                problem = "no op that works on each element by itself"
                raise UsageError(f"group-activations: {name!r} is {problem}")

    def run(self, graph: Graph, ledger: Ledger) -> int:
        activations = frozenset(self.activations.split())
        count = 0
        for node in list(graph):
            if node.op not in LAYERS or not _is_plain_float(node):
                continue
            chain = self._chain(node, activations)
            if len(chain) < 2 or not may(self.name, "group", chain[-1], *chain[:-1]):
                continue
            name, ops = chain[-1].name, " ".join(n.op for n in chain)
            wrap_as_group(graph, chain)
            ledger.add(Change.EXACT, self.name, name, f"{ops} as one group")
            count += 1
        return count

    def _chain(self, anchor: Node, activations: frozenset[str]) -> list[Node]:
        chain = [anchor]
        while len(chain) <= self.most:
            # A value with another reader must exist in memory, which a group would not leave.
            use = chain[-1].result.only_use
            if use is None or not _is_plain_float(use.node) or use.node.profile != anchor.profile:
                break
            # An add joins by whichever operand the chain flows into: the other one is an operand of
            # the group.
            joins = use.node.op in activations or (self.sums and use.node.op == "add")
            # An add may broadcast the chain's value to a larger one; kernels write an epilogue in
            # place.
            if not joins or use.node.result.type != chain[-1].result.type:
                break
            chain.append(use.node)
        return chain


def _is_plain_float(node: Node) -> bool:
    values = (*node.operands.values(), *node.results)
    return not node.schemes and not node.stages and all(v.type.quant is None for v in values)

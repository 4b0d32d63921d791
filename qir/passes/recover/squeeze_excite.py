"""Squeeze and excite: an image times what two small convolutions make of its channel means.

There is no op of that name: the nodes become one group, whose body holds them as they were.
"""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.rewrite.match import Match
from qir.rewrite.pattern import Ops, Term, Var, maybe, pattern
from qir.rewrite.rewriting import Rewrite

KERNEL = "squeeze-excite"


@pattern
def squeeze_excite(op: Ops, x: Var, w1: Var, b1: Var, w2: Var, b2: Var) -> Term:
    """x * gate(conv2(act(conv1(mean of x over height and width))))."""
    mean = op.global_avg_pool(x, layout="NCHW") | op.reduce_mean(x, keep=True).named("mean")
    first = op.conv2d(mean, w1, bias=maybe(b1), layout="NCHW").named("first")
    between = op.any_of("relu", "silu", "hard_swish", "gelu", "clip")(first).named("between")
    second = op.conv2d(between, w2, bias=maybe(b2), layout="NCHW").named("second")
    gate = op.any_of("sigmoid", "hard_sigmoid", "clip")(second).named("gate")
    return op.mul(x, gate)


def _of_images(match: Match) -> bool:
    """Whether the mean goes over height and width alone, and nothing else holds just this."""
    mean, x = match.find("mean"), match["x"].type
    if mean is not None and mean.attrs["axes"] not in ((2, 3), (-2, -1), (2, -1), (-2, 3)):
        return False
    return x.rank == 4 and match.node("second").result.type.shape[1] == x.shape[1]


def _group(graph: Graph, match: Match) -> Value | None:
    """The group; None within a body that holds nothing else, as that of the group does."""
    others = sum(n.op not in ("input", "constant", "output") for n in graph) - len(match.nodes)
    if not others and graph._holder is not None:
        return None
    body = Graph("body", "")
    inner: dict[Value, Value] = {}
    operands: dict[str, Value] = {}
    for name in ("x", "w1", "b1", "w2", "b2"):
        value = match.get(name)
        if value is not None:
            operands[name] = value
            inner[value] = body.add("input", {}, types=[value.type], name=name).result
    for node in match.nodes:
        slots = {slot: inner[value] for slot, value in node.operands.items()}
        kinds = [value.type for value in node.results]
        made = body.add(node.op, slots, node.attrs, types=kinds, name=node.name)
        body.set_origins(made, node.origins)
        inner.update(zip(node.results, made.results, strict=True))
    body.add("output", {"y": inner[match.results[0]]})
    kind = match.results[0].type
    node = graph.add("fused", operands, {"kernel": KERNEL}, types=[kind], bodies={"body": body})
    return node.result


REWRITES = (
    Rewrite(
        squeeze_excite.check("the mean goes over height and width of an image", _of_images),
        _group,
        says="{nodes} is one group, squeeze-excite",
    ),
)

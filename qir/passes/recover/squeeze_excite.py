"""Squeeze and excite: an image times what two small layers make of its channel means.

The layers are convolutions of one place, or products of what the means are without their places.

There is no op of that name: the nodes become one group, whose body holds them as they were.
"""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import MATRIX_PRODUCTS
from qir.ir.quantized_ops import STRUCTURAL_OPS
from qir.rewrite.channel_groups import FLATTENED
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Ops, Term, Var, maybe, pattern
from qir.rewrite.patterns.rewriting import Rewrite

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


def _dense(op: Ops, x: Term, n: int) -> Term:
    """Returns a linear layer, however it is written."""
    w, b = Var(f"w{n}"), Var(f"b{n}")
    product = op.matmul(x, w, bias=maybe(b), trans_a=False)
    layer = op.linear(x, w, bias=maybe(b)) | op.gemm(x, w, c=maybe(b), trans_a=False)
    return layer | op.add(product, b) | product


@pattern
def squeeze_excite_of_rows(op: Ops, x: Var) -> Term:
    """x * gate(linear2(act(linear1(mean of x over height and width, in a row)))), spread again."""
    mean = op.global_avg_pool(x) | op.reduce_mean(x, keep=True)
    row = op.flatten(mean) | op.reshape(mean, Var("s1"), ...) | op.squeeze(mean)
    first = _dense(op, row | op.reduce_mean(x, keep=False), 1)
    between = op.any_of("relu", "silu", "hard_swish", "gelu", "clip")(first)
    gate = op.any_of("sigmoid", "hard_sigmoid", "clip")(_dense(op, between, 2))
    plane = op.reshape(gate, Var("s2"), ...) | op.unsqueeze(op.unsqueeze(gate) | gate)
    return op.mul(x, plane | op.expand(plane, Var("s3")))


def _is_row_gate(match: Match) -> bool:
    """Returns whether the mean goes over height and width, and the gate is along the channels."""
    x, nodes = match["x"].type, match.nodes
    mean = next(n for n in nodes if n.op in ("global_avg_pool", "reduce_mean"))
    if x.rank != 4 or match.results[0].type.rank != 4:
        return False
    axes = mean.attrs.get("axes", (2, 3) if mean.attrs.get("layout") == "NCHW" else (1, 2))
    mean_axes = sorted(a % 4 for a in axes if isinstance(a, int)) if isinstance(axes, tuple) else []
    if mean_axes not in ([2, 3], [1, 2]):
        return False
    channel_axis = 1 if mean_axes == [2, 3] else 3
    rows = [n.result.type for n in nodes if n.op in MATRIX_PRODUCTS]
    planes = [
        n.result.type for n in nodes if n.op in ("reshape", "unsqueeze") and _has_image_rank(n)
    ]
    # The gate is one number a channel, spread over height and width by the product.
    gate_shape = tuple(size if i in (0, channel_axis) else 1 for i, size in enumerate(x.shape))
    row_shape = (x.shape[0], x.shape[channel_axis])
    first = [n for n in nodes if n.op in FLATTENED and not _has_image_rank(n)]
    return (
        None not in row_shape
        and [kind.shape[-1] for kind in rows][-1:] == [x.shape[channel_axis]]
        and all(kind.rank == 2 for kind in rows)
        and [kind.shape for kind in planes][-1:] == [gate_shape]
        and all(n.result.type.shape == row_shape for n in first)
    )


def _has_image_rank(node: Node) -> bool:
    return node.result.type.rank == 4


def _is_image_gate(match: Match) -> bool:
    """Returns whether the mean goes over height and width alone, and nothing else holds just
    this."""
    mean, x = match.find("mean"), match["x"].type
    if mean is not None and mean.attrs["axes"] not in ((2, 3), (-2, -1), (2, -1), (-2, 3)):
        return False
    return x.rank == 4 and match.node("second").result.type.shape[1] == x.shape[1]


def _group(graph: Graph, match: Match) -> Value | None:
    """Returns the group; None within a body that holds nothing else, as that of the group does."""
    others = sum(n.op not in STRUCTURAL_OPS for n in graph) - len(match.nodes)
    # The body of a group that was made before would match again, without end.
    if not others and graph._holder is not None:
        return None
    body = Graph("body", "")
    inner: dict[Value, Value] = {}
    operands: dict[str, Value] = {}
    for name in ("x", "w1", "b1", "w2", "b2", *(("s1", "s2") if "rows" in match.name else ())):
        value = match.get(name)
        if value is not None:
            operands[name] = value
            inner[value] = body.add("input", {}, types=[value.type], name=name).result
    for node in match.nodes:
        if node.op == "expand":  # the product spreads by itself
            inner[node.result] = inner[node.operands["x"]]
            continue
        slots = {slot: inner[value] for slot, value in node.operands.items()}
        types = [value.type for value in node.results]
        copy = body.add(node.op, slots, node.attrs, types=types, name=node.name)
        body.set_origins(copy, node.origins)
        inner.update(zip(node.results, copy.results, strict=True))
    body.add("output", {"y": inner[match.results[0]]})
    result_type = match.results[0].type
    node = graph.add(
        "fused", operands, {"kernel": KERNEL}, types=[result_type], bodies={"body": body}
    )
    return node.result


REWRITES = (
    Rewrite(
        squeeze_excite.check("the mean goes over height and width of an image", _is_image_gate),
        _group,
        says="{nodes} is one group, squeeze-excite",
    ),
    Rewrite(
        squeeze_excite_of_rows.check(
            "the mean goes over height and width of an image, the gate along its channels",
            _is_row_gate,
        ),
        _group,
        says="{nodes} is one group, squeeze-excite",
    ),
)

"""Attention from two products with a softmax between them."""

from __future__ import annotations

import math

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.passes.recover.builders import number, uniform_number
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Ops, Term, Var, pattern
from qir.rewrite.patterns.rewriting import Rewrite


def _scaled(op: Ops, x: Term, where: str) -> Either:
    """x, or x times or divided by a number."""
    return op.mul(x, number(f"{where}_times")) | op.div(x, number(f"{where}_by")) | x


def _is_low(value: Value) -> bool:
    constant = value.constant
    return (
        constant is not None
        and constant.contents.size > 0
        and bool((constant.data == -math.inf).all())
    )


@pattern
def attention(op: Ops, q: Var, k: Var, v: Var) -> Term:
    """softmax(q @ k.T * scale + mask) @ v; k turned by a transpose or by the product itself.

    The transpose may be between two reshapes that make one axis of all heads and part it again.

    The scale may be on the product, on q, on k or on several, as factor or divisor; none is 1.
    The mask is added, or chooses by `where` between scores and -inf.
    """
    swapped = op.transpose(_scaled(op, k, "before")).named("turn")
    rows = op.transpose(op.reshape(k, ...).named("rows"), perm=(0, 2, 1))
    turned = op.reshape(rows, ...).named("columns") | swapped
    keys = _scaled(op, turned, "k") | _scaled(op, k, "k")
    raw = op.matmul(_scaled(op, q, "q"), keys, trans_a=False).named("scores")
    scores = _scaled(op, raw, "s")
    allowed = Var("allowed").where("dtype == 'bool'")
    # Only -inf leaves a key out entirely; large negative numbers are masks that are added.
    low = Var("low").check("is -inf", _is_low)
    kept = op.where(allowed, scores, low).named("kept")
    dropped = op.where(allowed, low, scores).named("dropped")
    probs = op.softmax(kept | dropped | op.add(scores, Var("mask")) | scores)
    return op.matmul(probs, v, trans_a=False, trans_b=False).named("out")


def _scale(match: Match) -> float:
    """Returns what the scores are multiplied with in all."""
    scale = 1.0
    for where in ("before", "k", "q", "s"):
        if (value := match.get(f"{where}_times")) is not None:
            scale *= uniform_number(value) or 0.0
        if (value := match.get(f"{where}_by")) is not None:
            scale /= uniform_number(value) or math.inf
    return scale


def _has_matching_axes(match: Match) -> bool:
    """Returns whether q, k and v have one rank, softmax goes along the keys, and k is turned just
    once."""
    ranks = {match[name].type.rank for name in "qkv"}
    rank = match["q"].type.rank
    axis, transpose = match.node("softmax").attrs["axis"], match.find("turn")
    if ranks not in ({3}, {4}) or not isinstance(axis, int) or axis % rank != rank - 1:
        return False
    scores = match.node("scores")
    is_transposed = transpose is not None or match.find("columns") is not None
    if (is_transposed and scores.attrs["trans_b"] is True) or not _swaps_last_axes(match):
        return False
    # A mask that would widen the scores is another program.
    softmax_shape = match.node("softmax").result.type.shape
    return softmax_shape == scores.result.type.shape and _scale(match) != 0


def _swaps_last_axes(match: Match) -> bool:
    """Returns whether a turn between two reshapes, where there is one, swaps the last two axes of
    k."""
    columns = match.find("columns")
    if columns is None:
        return True
    k, rows = match["k"].type.shape, match.node("rows").result.type.shape
    swapped = (*k[:-2], k[-1], k[-2])
    return None not in k and rows[-2:] == k[-2:] and columns.result.type.shape == swapped


def _perm(match: Match) -> list[int]:
    """Returns the transpose of k that attention is to read: its own, the last two axes back."""
    transpose, rank = match.find("turn"), match["k"].type.rank
    if transpose is None:
        perm = list(range(rank))
        by_product = match.node("scores").attrs["trans_b"] is True
        if by_product or match.find("columns") is not None:
            return perm
    else:
        perm = _axes(transpose.attrs["perm"])
    perm[-2:] = perm[:-3:-1]
    return perm


def _with_keys_last(graph: Graph, match: Match) -> Value:
    """k with its keys where attention wants them."""
    perm = _perm(match)
    if perm == sorted(perm):
        return match["k"]
    return graph.add("transpose", {"x": match["k"]}, {"perm": tuple(perm)}).result


def _axes(perm: Attr) -> list[int]:
    return [p for p in perm if isinstance(p, int)] if isinstance(perm, tuple) else []


def _mask(graph: Graph, match: Match) -> Value | None:
    """What is added, or which keys are looked at, with the axes that attention gives it."""
    mask = match.get("mask") or match.get("allowed")
    if mask is None:
        return None
    if match.find("dropped") is not None:
        mask = graph.add("logical_not", {"x": mask}).result
    has_one_head = match["q"].type.rank == 3  # scores have an axis of one head there
    if has_one_head and mask.type.rank == 3:
        mask = graph.add("unsqueeze", {"x": mask}, {"axes": (1,)}).result
    return mask


def _replace(graph: Graph, match: Match) -> Value:
    operands = {"q": match["q"], "k": _with_keys_last(graph, match), "v": match["v"]}
    mask = _mask(graph, match)
    if mask is not None:
        operands["mask"] = mask
    return graph.add("attention", operands, _attrs(match)).results[0]


def _attrs(match: Match) -> dict[str, Attr]:
    # With three axes the op splits the last one into heads: there is one here.
    heads = 1 if match["q"].type.rank == 3 else None
    return {"scale": _scale(match), "heads": heads}


def _has_matching_types(match: Match) -> bool:
    """Returns whether attention takes q, v and a k of such sizes."""
    k = match["k"].type
    keys = k.with_shape(tuple(k.shape[p] for p in _perm(match)))
    q, v, out = match["q"].type, match["v"].type, match.results[0].type
    batched = q.shape[:-2] == keys.shape[:-2] == v.shape[:-2] == out.shape[:-2]
    # Sizes are compared and not broadcast: attention has no axis that one of them may lack.
    return batched and q.element == keys.element == v.element == out.element


REWRITES = (
    Rewrite(
        attention.check(
            "softmax goes along the keys, and k is turned once", _has_matching_axes
        ).check("q, k and v have the same batches and heads", _has_matching_types),
        _replace,
        says="{nodes} is attention",
    ),
)

"""Moves batch normalization into the weights of the convolution or product beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.calls import make_call
from qir.ir.graph import Graph
from qir.ir.layer_channels import summed_axis
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import CONVOLUTIONS, LAYERS, MATRIX_PRODUCTS, TRANSPOSED
from qir.ir.types import Array
from qir.ledger import Change, Ledger
from qir.rewrite import Pass
from qir.rewrite.patterns.conditions import Condition, Place, first_failed
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import Tolerance

Reals: TypeAlias = NDArray[np.float64]
"""Numbers as they are reckoned with, before they are rounded once."""

_SLOTS = {"gemm": ("a", "b", "c"), "matmul": ("a", "b", "bias")}


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """conv2d |> batch_norm becomes conv2d, where nobody else reads what stands between.

    Likewise convolutions along one and three axes, transposed ones, linear, gemm and matmul. A
    normalization before such an op goes into it too, unless `before` is false: where the op pads
    or is a transposed convolution, only one that shifts nothing, since zeros are put beside what
    was shifted. New weights are computed in float64 and rounded once.
    """

    name = "fold-batch-norm"
    tolerance = Tolerance(1024, 0, "equal in reals; new weights are rounded")
    before: bool = True

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op == "batch_norm" and node in graph:
                count += self._after(graph, node, ledger) or self._before(graph, node, ledger)
        return count + (graph.prune() if count else 0)

    def _after(self, graph: Graph, norm: Node, ledger: Ledger) -> bool:
        if first_failed(_asked_after(norm)) is not None:
            return False
        node, parts = norm.operands["x"].node, _affine(norm)
        assert parts is not None
        if not may(self.name, "after", norm, node):
            return False
        _, w, b = _operands(node)
        subject, into = norm.name, node.name
        bias = parts.beta + ((_reals(b) if b else 0.0) - parts.mean) * parts.gain
        _store(graph, node, w, _outward(node)(_reals(w), parts.gain), bias)
        _take_over(graph, node, norm)
        ledger.add(Change.REGROUPED, self.name, subject, f"folded into {into}'s weights")
        return True

    def _before(self, graph: Graph, norm: Node, ledger: Ledger) -> bool:
        if not self.before or first_failed(_asked_before(norm)) is not None:
            return False
        use, parts = norm.result.only_use, _affine(norm)
        assert use is not None
        assert parts is not None
        node, gain, shift = use.node, parts.gain, parts.beta - parts.mean * parts.gain
        if not may(self.name, "before", norm, node):
            return False
        _, w, b = _operands(node)
        weights, name = _reals(w), norm.name
        scaled = _inward(node)(weights, gain)
        bias = None if b is None else _reals(b)
        if shift.any():
            more = _through(node, _inward(node)(weights, shift))
            bias = more if bias is None else bias + more
        _store(graph, node, w, scaled, bias)
        graph.replace(norm.result, norm.operands["x"])
        graph.set_origins(node, (*norm.origins, *node.origins))
        graph.remove(norm)
        ledger.add(Change.REGROUPED, self.name, name, f"folded into {node.name}'s weights")
        return True


# -- which op takes a normalization in ------------------------------------------------------------


def _operands(node: Node) -> tuple[Value, Value, Value | None]:
    """Data, weights and bias, the last one where there is one."""
    x, w, bias = _SLOTS.get(node.op, ("x", "w", "bias"))
    return node.operands[x], node.operands[w], node.operands.get(bias)


def _takes(norm: Node, node: Node) -> Iterator[Condition]:
    """What is asked of the op beside a normalization, that is to take it in."""
    known = node.op in LAYERS
    article = "an" if node.op[:1] in "aeiou" else "a"
    stands = f"{article} {node.op} stands there, which takes in no batch norm"
    yield Condition(known, node, _between(norm, node) or stands)
    yield Condition(not node.schemes and not norm.schemes, node, "a scheme is planned for it")
    _, weight, bias = _operands(node)
    yield Condition(weight.constant is not None, node, f"its weight %{weight.name} is not constant")
    if bias is not None:
        said = f"its bias %{bias.name} is no constant row"
        yield Condition(bias.constant is not None and bias.type.rank == 1, node, said)
    yield Condition(node.attrs.get("beta", 1.0) == 1.0, node, "its beta is not 1")
    flat = node.op != "matmul" or weight.type.rank == 2
    yield Condition(flat, node, f"its weight %{weight.name} has more than two axes")
    plain = all(v.type.quant is None for v in (*node.operands.values(), *node.results))
    yield Condition(plain, node, "it computes on codes")
    same = norm.profile == node.profile
    yield Condition(same, node, f"it computes by another profile than {norm.name}")


def _between(norm: Node, node: Node) -> str:
    """What is said of an op that stands between a normalization and one that would take it in."""
    makers = [value.node for value in node.operands.values() if value.node is not norm]
    users = [user for value in node.results for user in value.users if user is not norm]
    beyond = [other for other in (*makers, *users) if other.op in LAYERS]
    article = "an" if node.op[:1] in "aeiou" else "a"
    if not beyond:
        return ""
    return f"{article} {node.op} stands between it and {beyond[0].op} {beyond[0].name}"


def _plain(norm: Node) -> Iterator[Condition]:
    """What is asked of the normalization itself."""
    for slot in ("gamma", "beta", "mean", "var"):
        value = norm.operands[slot]
        real = value.constant is not None and value.type.quant is None
        yield Condition(real, norm, f"its {slot} %{value.name} is not constant")
    yield Condition(norm.result.type.quant is None, norm, "it computes on codes")
    yield Condition(_affine(norm) is not None, norm, "its factors are not finite")


def _asked_after(norm: Node) -> Iterator[Condition]:
    """What is asked where the op before takes the normalization in."""
    yield Condition(norm.op == "batch_norm", norm, f"it is {norm.op}, not batch_norm")
    x = norm.operands["x"]
    node = x.node
    if node.op in LAYERS:
        others = ", ".join(user.name for user in x.users if user is not norm) or "it twice"
        yield Condition(x.only_use is not None, node, f"%{x.name} is also read by {others}")
    yield from _takes(norm, node)
    along = _axis(norm) == _result_axis(node)
    yield Condition(along, norm, f"it goes along another axis than the channels of {node.name}")
    yield from _plain(norm)


def _asked_before(norm: Node) -> Iterator[Condition]:
    """What is asked where the op behind takes the normalization in."""
    yield Condition(norm.op == "batch_norm", norm, f"it is {norm.op}, not batch_norm")
    use, readers = norm.result.only_use, ", ".join(u.name for u in norm.result.users)
    yield Condition(use is not None, norm, f"%{norm.result.name} is read by {readers or 'nobody'}")
    assert use is not None
    node = use.node
    yield from _takes(norm, node)
    x, w, _ = _operands(node)
    data = x is norm.result and w is not norm.result
    yield Condition(data, node, f"%{norm.result.name} is not its data")
    channels = f"it goes along another axis than the one that {node.name} sums over"
    yield Condition(_axis(norm) == summed_axis(node, x), norm, channels)
    yield from _plain(norm)
    parts = _affine(norm)
    assert parts is not None
    shifts = bool((parts.beta - parts.mean * parts.gain).any())
    padded = "it pads with zeros, or spreads, beside what would be shifted"
    yield Condition(not shifts or _even(node), node, padded)


def _axis(norm: Node) -> int:
    axis = norm.attrs["axis"]
    assert isinstance(axis, int)
    return axis % norm.result.type.rank


def _result_axis(node: Node) -> int:
    if node.op in TRANSPOSED:
        return 1
    found = spec(node.op).traits.result_axis
    assert found is not None
    return found(make_call(node.op, node.operands, node.attrs))


def _even(node: Node) -> bool:
    """Whether every result meets the same weights: no zeros stand beside the data."""
    pads = node.attrs.get("pad", ())
    return node.op in MATRIX_PRODUCTS or (
        node.op in CONVOLUTIONS and isinstance(pads, tuple) and not any(pads)
    )


@dataclass(frozen=True)
class _Affine:
    """(x - mean) * gain + beta."""

    gain: Reals
    mean: Reals
    beta: Reals


def _affine(norm: Node) -> _Affine | None:
    """What the normalization does; None where that is computed, or not finite."""
    parts = [norm.operands[slot] for slot in ("gamma", "beta", "mean", "var")]
    if any(p.constant is None or p.type.quant for p in parts) or norm.result.type.quant:
        return None
    gamma, beta, mean, var = map(_reals, parts)
    eps = norm.attrs["eps"]
    assert isinstance(eps, float)
    with np.errstate(all="ignore"):
        gain = gamma / np.sqrt(var + eps)
        found = _Affine(gain, mean, beta)
        finite = np.isfinite(gain).all() and np.isfinite(beta - mean * gain).all()
    return found if finite else None


# -- weights --------------------------------------------------------------------------------------


def _groups(node: Node) -> int:
    groups = node.attrs["groups"]
    assert isinstance(groups, int)
    return groups


def _along(weights: Reals, row: Reals, axis: int) -> Reals:
    shape = [1] * weights.ndim
    shape[axis] = -1
    return weights * row.reshape(shape)


def _by_group(weights: Reals, row: Reals, groups: int) -> Reals:
    """Weights whose second axis is of one group, times a row of all groups."""
    rest = weights.shape[2:]
    split = weights.reshape(groups, weights.shape[0] // groups, weights.shape[1], *rest)
    return (split * row.reshape(groups, 1, -1, *(1,) * len(rest))).reshape(weights.shape)


def _outward(node: Node) -> Callable[[Reals, Reals], Reals]:
    """How weights are multiplied by a row of output channels."""
    if node.op in TRANSPOSED:
        return lambda weights, row: _by_group(weights, row, _groups(node))
    found = spec(node.op).traits.weight_axis
    assert found is not None
    axis = found(make_call(node.op, node.operands, node.attrs))
    return lambda weights, row: _along(weights, row, axis)


def _inward(node: Node) -> Callable[[Reals, Reals], Reals]:
    """How weights are multiplied by a row of input channels."""
    if node.op in CONVOLUTIONS:
        return lambda weights, row: _by_group(weights, row, _groups(node))
    if node.op in TRANSPOSED:
        return lambda weights, row: _along(weights, row, 0)
    axis = 1 if node.op == "linear" or node.attrs.get("trans_b") is True else 0
    return lambda weights, row: _along(weights, row, axis)


def _through(node: Node, products: Reals) -> Reals:
    """What a shift of the input channels adds to each output channel."""
    if node.op in CONVOLUTIONS:
        return np.asarray(np.sum(products.reshape(products.shape[0], -1), axis=1))
    turned = node.op == "linear" or node.attrs.get("trans_b") is True
    alpha = node.attrs.get("alpha", 1.0)
    assert isinstance(alpha, float)
    return np.asarray(alpha * np.sum(products, axis=1 if turned else 0))


def _store(graph: Graph, node: Node, old: Value, weights: Reals, bias: Reals | None) -> None:
    kind = old.type.dtype.carrier
    _, w, b = _SLOTS.get(node.op, ("x", "w", "bias"))
    new = graph.constant(
        Array.of(weights.astype(kind), old.name),
        name=graph.fresh(f"{old.name}.folded"),
        before=node,
    )
    graph.set_lineage(new, old.lineage.then("scaled"))
    graph.set_operand(node, w, new)
    if bias is not None:
        name = f"{node.name}.bias"
        elements = Array.of(np.ascontiguousarray(bias.astype(kind)), name)
        made = graph.constant(elements, name=graph.fresh(name), before=node)
        graph.set_operand(node, b, made)


def _take_over(graph: Graph, node: Node, norm: Node) -> None:
    """The producer's result becomes the normalization's, name and lineage included."""
    graph.substitute(norm, node.result)
    graph.set_origins(node, (*node.origins, *norm.origins))


def _reals(value: Value) -> Reals:
    assert value.constant is not None
    return value.constant.data.astype(np.float64)


FoldBatchNorm.places = (
    Place("after", ("batch_norm",), _asked_after, "a batch norm goes into the op before it"),
    Place("before", ("batch_norm",), _asked_before, "a batch norm goes into the op behind it"),
)

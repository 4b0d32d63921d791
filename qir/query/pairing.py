"""Pairs the nodes of two graphs: by origin, then by lineage, then by structure.

Names join ops that do the same, or of which one is an integer form of the other; a quantizer gives
what absorbs a relu the relu's tensor name. Ops that do something else pair only at the end. Every
step looks at each node and each use once, so that the whole is linear in the graphs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from qir.ir.attrs import Attr
from qir.ir.node import GraphLike, Node, Value
from qir.ir.origin import Origin
from qir.ir.printer import print_graph
from qir.ir.quantized_ops import RETYPING_OPS, STRUCTURAL_OPS

How: TypeAlias = Literal["lineage", "origin", "structure"]
_SEPARATED_OPS = RETYPING_OPS | STRUCTURAL_OPS
_FORMS = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_integer"), "conv"),
    **dict.fromkeys(("matmul", "gemm", "linear", "matmul_integer"), "matmul"),
}
"""What an op does, whatever form its numbers have."""
_QUANTIZED_FORMS = re.compile(r"(_MatMul)?_quant(ized)?\Z")
"""What quantizers add to the name of an op or a weight that they write in integers."""


@dataclass(slots=True)
class Pairing:
    """The pairs of nodes, looked up from either side."""

    of_a: dict[Node, Node] = field(default_factory=dict)
    of_b: dict[Node, Node] = field(default_factory=dict)
    how: dict[Node, How] = field(default_factory=dict)
    """How each node of the first graph was matched."""

    def join(self, a: Node, b: Node, how: How) -> None:
        """Makes a pair."""
        self.of_a[a] = b
        self.of_b[b] = a
        self.how[a] = how

    def free(self, a: Node, b: Node) -> bool:
        """Returns whether neither has a partner."""
        return a not in self.of_a and b not in self.of_b

    def meet(self, a: Value, b: Value) -> bool:
        """Returns whether two values are the same result of a pair."""
        return self.of_a.get(a.node) is b.node and a.index == b.index

    def agree(self, a: Value, b: Value) -> bool:
        """Returns whether two operands are one value, seen through integers that one graph does not
        have."""
        one, other = self.bare(a, self.of_a), self.bare(b, self.of_b)
        if self.meet(a, b) or self.meet(one, other):
            return True
        if one.node in self.of_a and other.node in self.of_b:
            return False
        return not _tensors(a, one).isdisjoint(_tensors(b, other))

    def bare(self, value: Value, table: dict[Node, Node]) -> Value:
        """Returns what a value stands for, through quantized values that the other graph does not
        have."""
        while value.node.op in RETYPING_OPS and value.node not in table and value.node.operands:
            value = next(iter(value.node.operands.values()))
        return value


def pair(a: GraphLike, b: GraphLike) -> Pairing:
    """Returns the nodes of one graph, each with its partner in the other where it has one."""
    pairs = Pairing()
    a_nodes, b_nodes = list(a), list(b)
    # From the surest evidence to the weakest: names of the source, lineage, equal computations,
    # then what stands next to pairs; each step only joins nodes that are still free.
    _pair_interface(pairs, a_nodes, b_nodes)
    _pair_by_key(pairs, a_nodes, b_nodes, "origin", _origin)
    _pair_by_key(pairs, a_nodes, b_nodes, "lineage", _reported_lineage)
    _pair_by_key(pairs, a_nodes, b_nodes, "origin", _float_origin)
    _pair_by_key(pairs, a_nodes, b_nodes, "lineage", _float_lineage)
    _pair_by_structure(pairs, a_nodes, b_nodes)
    _pair_neighbours(pairs, a_nodes)
    _pair_by_key(pairs, a_nodes, b_nodes, "lineage", _lineage)
    _pair_neighbours(pairs, a_nodes)
    _join_replaced(pairs, a_nodes)
    _pair_by_key(pairs, a_nodes, b_nodes, "origin", _origin, strict=False)
    _pair_by_key(pairs, a_nodes, b_nodes, "lineage", _reported_lineage, strict=False)
    _pair_neighbours(pairs, a_nodes)
    return pairs


def ops(node: Node) -> tuple[str, ...]:
    """Returns what a node computes, in order."""
    if node.op == "foreign":
        return (f"{node.attrs['framework']!s} {node.attrs['op']!s}",)
    return tuple(stage.op for stage in node.stages) or (node.op,)


def _may_match(a: Node, b: Node) -> bool:
    """Returns whether one does what the other does, in whatever form, or a part of it."""
    return not {_FORMS.get(op, op) for op in ops(a)}.isdisjoint(_FORMS.get(op, op) for op in ops(b))


def _role(node: Node) -> str:
    return node.op if node.op in _SEPARATED_OPS else "op"


def _pair_interface(pairs: Pairing, a: Sequence[Node], b: Sequence[Node]) -> None:
    """The outputs, and the inputs: by name, those left over by place."""
    outputs = [[n for n in nodes if n.op == "output"] for nodes in (a, b)]
    if all(outputs):
        pairs.join(outputs[0][0], outputs[1][0], "structure")
    a_inputs, b_inputs = ([n for n in nodes if n.op == "input"] for nodes in (a, b))
    by_name = {n.name: n for n in b_inputs}
    for node in a_inputs:
        if node.name in by_name:
            pairs.join(node, by_name[node.name], "lineage")
    unpaired = (
        [n for n in a_inputs if n not in pairs.of_a],
        [n for n in b_inputs if n not in pairs.of_b],
    )
    if len(unpaired[0]) == len(unpaired[1]):
        for one, other in zip(*unpaired, strict=True):
            if one.result.type.rank == other.result.type.rank:
                pairs.join(one, other, "structure")


# -- by what they are called ------------------------------------------------------------------


def _lineage(node: Node) -> Hashable | None:
    return node.results[0].lineage.tensor if node.results else None


def _reported_lineage(node: Node) -> Hashable | None:
    """Returns the source tensor, unless it is only a name that a graph made up."""
    if not node.results:
        return None
    tensor = node.results[0].lineage.tensor
    if node.origins or not tensor.startswith(node.op):
        return tensor
    suffix = tensor[len(node.op) :]
    return None if not suffix or (suffix[0] == "_" and suffix[1:].isdecimal()) else tensor


def _origin(node: Node) -> Hashable | None:
    places = tuple(map(_place, node.origins))
    return places if any(name or path for name, path, _ in places) else None


def _float_origin(node: Node) -> Hashable | None:
    """Returns where an op or weight stood before a quantizer wrote it in integers."""
    if node.op in RETYPING_OPS or len(node.origins) != 1 or not node.origins[0].name:
        return None
    name, path, call = _place(node.origins[0])
    return _QUANTIZED_FORMS.sub("", name), path, call


def _float_lineage(node: Node) -> Hashable | None:
    """Returns the tensor that a weight was before a quantizer wrote it in integers."""
    return _QUANTIZED_FORMS.sub("", node.result.lineage.tensor) if node.op == "constant" else None


def _place(origin: Origin) -> tuple[str, str, int]:
    """Returns where in its source an op stands."""
    return origin.name, origin.path, origin.call


def _pair_by_key(
    pairs: Pairing,
    a: Iterable[Node],
    b: Iterable[Node],
    how: How,
    key: Callable[[Node], Hashable | None],
    *,
    strict: bool = True,
) -> None:
    """Joins what has one key: one and one, or as many on both sides of the same ops.

    Unless it is strict, one and one may do different things where both have origins.
    """
    a_index, b_index = _index(a, pairs.of_a, key), _index(b, pairs.of_b, key)
    for key_value, nodes in a_index.items():
        others = b_index.get(key_value, [])
        is_single = len(nodes) == len(others) == 1
        may_differ = not strict and all(side and side[0].origins for side in (nodes, others))
        if is_single and (may_differ or _may_match(nodes[0], others[0])):
            pairs.join(nodes[0], others[0], how)
        elif len(nodes) == len(others) and list(map(ops, nodes)) == list(map(ops, others)):
            for one, other in zip(nodes, others, strict=True):
                pairs.join(one, other, how)


def _index(
    nodes: Iterable[Node], paired: dict[Node, Node], key: Callable[[Node], Hashable | None]
) -> dict[Hashable, list[Node]]:
    out: dict[Hashable, list[Node]] = {}
    for node in nodes:
        if node not in paired and (key_value := key(node)) is not None:
            out.setdefault((_role(node), key_value), []).append(node)
    return out


# -- by what they compute ---------------------------------------------------------------------


def _pair_by_structure(pairs: Pairing, a: Sequence[Node], b: Sequence[Node]) -> None:
    """Joins nodes that compute the same from the same, in the order in which they stand."""
    # Value numbering: nodes with one number compute the same from the same, pairs included.
    numbers: dict[Hashable, int] = {}
    tokens: dict[Node, Hashable] = {}
    for number, (one, other) in enumerate(pairs.of_a.items()):
        tokens[one] = tokens[other] = ("pair", number)
    sides: list[dict[int, list[Node]]] = []
    for nodes, paired in ((a, pairs.of_a), (b, pairs.of_b)):
        by_number: dict[int, list[Node]] = {}
        for node in nodes:
            if node in paired:
                continue
            signature = _signature(node, tokens)
            number = numbers.setdefault(signature, len(numbers))
            tokens[node] = number
            by_number.setdefault(number, []).append(node)
        sides.append(by_number)
    for number, mine in sides[0].items():
        theirs = sides[1].get(number, [])
        if len(mine) == len(theirs):
            for one, other in zip(mine, theirs, strict=True):
                pairs.join(one, other, "structure")


def _signature(node: Node, tokens: dict[Node, Hashable]) -> Hashable:
    """Returns all that a node computes, with what it computes it from."""
    used = tuple(sorted(((s, v.index, str(tokens.get(v.node))) for s, v in node.operands.items())))
    stages = tuple((s.op, _attrs(s.attrs.items()), s.slots, s.flow, s.type) for s in node.stages)
    bodies = tuple(
        print_graph(body, by_content=True, profiles=False) for body in node.bodies.values()
    )
    kinds = tuple(v.type for v in node.results) if node.op in ("input", "constant") else ()
    return node.op, _attrs(node.attrs.items()), stages, used, bodies, kinds


def _attrs(items: Iterable[tuple[str, Attr]]) -> Hashable:
    return tuple((name, _exact(value)) for name, value in items)


def _exact(value: Attr) -> Hashable:
    """Returns an attribute so that 1, 1.0 and True are three."""
    if isinstance(value, tuple):
        return tuple(map(_exact, value))
    return type(value).__name__, repr(value) if isinstance(value, float) else value


def _pair_neighbours(pairs: Pairing, nodes: Sequence[Node]) -> None:
    """Joins what is in the same slots before and after pairs, as far as that leads."""
    todo = [(n, pairs.of_a[n]) for n in reversed(nodes) if n in pairs.of_a]
    while todo:
        a, b = todo.pop()
        for one, other in (*_producer_pairs(pairs, a, b), *_user_pairs(pairs, a, b)):
            if pairs.free(one, other) and ops(one) == ops(other):
                pairs.join(one, other, "structure")
                todo.append((one, other))


def _producer_pairs(pairs: Pairing, a: Node, b: Node) -> Iterator[tuple[Node, Node]]:
    for slot, value in a.operands.items():
        if (other := b.operands.get(slot)) is not None:
            yield value.node, other.node
            yield pairs.bare(value, pairs.of_a).node, pairs.bare(other, pairs.of_b).node


def _user_pairs(pairs: Pairing, a: Node, b: Node) -> Iterator[tuple[Node, Node]]:
    for value, other in zip(a.results, b.results, strict=False):
        a_users, b_users = _users(value, pairs.of_a), _users(other, pairs.of_b)
        for place, nodes in a_users.items():
            others = b_users.get(place, [])
            if len(nodes) == len(others):
                yield from zip(nodes, others, strict=True)


def _join_replaced(pairs: Pairing, nodes: Sequence[Node]) -> None:
    """Joins an op with the other op that is in its place, between the same values."""
    for a in nodes:
        if (b := pairs.of_a.get(a)) is None:
            continue
        for slot, value in a.operands.items():
            if (other := b.operands.get(slot)) is None or value.index != other.index:
                continue
            one, two = value.node, other.node
            if pairs.free(one, two) and _role(one) == _role(two) == "op":
                if any(pairs.meet(v, two.operands.get(s, other)) for s, v in one.operands.items()):
                    pairs.join(one, two, "structure")


def _users(value: Value, paired: dict[Node, Node]) -> dict[Hashable, list[Node]]:
    """Users without a partner, by op and slot; after quantized values too."""
    out: dict[Hashable, list[Node]] = {}
    todo = [value]
    while todo:
        for node, slot in todo.pop().uses:
            if node not in paired:
                out.setdefault((ops(node), slot), []).append(node)
                if node.op in RETYPING_OPS:
                    todo += node.results
    return out


# -- who holds what is not there --------------------------------------------------------------


def holders(nodes: Iterable[Node]) -> Callable[[Node], Node | None]:
    """Tells which of the nodes computes another graph's node as a part of itself."""
    by_origin: dict[Hashable, Node] = {}
    by_name: dict[str, Node] = {}
    for node in nodes:
        inner = [o for origins in node.slot_origins.values() for o in origins]
        if _role(node) == "op":
            inner += node.origins
        for stage in node.stages:
            inner += stage.origins
            if stage.name:
                by_name.setdefault(stage.name, node)
        if _role(node) == "op":
            for value in node.results:
                by_name.setdefault(value.lineage.tensor, node)
        for origin in inner:
            if origin.name or origin.path:
                by_origin.setdefault(_place(origin), node)

    def holder(node: Node) -> Node | None:
        places = map(_place, node.origins)
        absorbing = next((by_origin[place] for place in places if place in by_origin), None)
        if absorbing is not None or node.op in STRUCTURAL_OPS:
            return absorbing
        return next((by_name[t] for t in _tensors_as_stored(node) if t in by_name), None)

    return holder


def _tensors_as_stored(node: Node) -> Iterator[str]:
    """Yields the tensors that a node makes, and the quantized values that these become."""
    for value in node.results:
        yield value.lineage.tensor
        if (use := value.only_use) is not None and use.node.op in RETYPING_OPS:
            yield from (result.lineage.tensor for result in use.node.results)


def _tensors(value: Value, last: Value) -> set[str]:
    """Returns the tensors from a value back to the one that its quantized values stand for."""
    out = {value.lineage.tensor}
    while value is not last:
        value = next(iter(value.node.operands.values()))
        out.add(value.lineage.tensor)
    return out

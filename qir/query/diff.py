"""Compares two graphs: structure, types, quantization parameters, quantized values.

Nodes are paired by origin, then by lineage, then by structure. Names of inner values, their order
and their origins are no difference; the names of inputs and outputs are, but for those of branches
and loops, which go by their order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.arguments import checked
from qir.ir import attrs as attributes
from qir.ir.attrs import Attr
from qir.ir.node import GraphLike, Node, Value
from qir.ir.ops.layers import CONTROL_FLOW_OPS
from qir.ir.types import Array, QuantType, TensorType
from qir.query.alignment import (
    ArrayOrType,
    align_to_source,
    in_source_axis_order,
    source_axis_orders,
)
from qir.query.display import parameters_text, shape
from qir.query.distances import Measure, dequantize_for_measure, measure, number, same_bits
from qir.query.html import rows_html
from qir.query.pairing import How, Pairing, holders, ops, pair
from qir.query.raw_integers import plain_integer_mapping

_MAX_ROWS = 60
What: TypeAlias = Literal[
    "op",
    "attribute",
    "operand",
    "results",
    "shape",
    "type",
    "scale",
    "zero",
    "grain",
    "codes",
    "elements",
    "profile",
    "plan",
    "name",
    "order",
]
"""What kind of thing is another."""


@dataclass(frozen=True, slots=True)
class GraphChange:
    """One fact that differs between two graphs."""

    what: What
    where: str
    """The slot, attribute, result or stage."""
    a: str
    b: str
    measure: Measure | None = None
    """How far numbers are apart."""

    def __str__(self) -> str:
        subject = f"{self.what} {self.where}".strip()
        return f"{subject}: {self.a} -> {self.b}{f' ({self.far})' if self.far else ''}"

    @property
    def far(self) -> str:
        """How far numbers are apart, in words; nothing where there are none."""
        distance = self.measure
        if distance is None or not distance.differ:
            return ""
        all_differ = distance.differ == distance.elements
        first_difference = None if all_differ and self.what == "elements" else distance.first
        parts = ["all" if all_differ else f"{distance.differ:,} of {distance.elements:,}"]
        if distance.elements == 1:
            parts = []
        elif first_difference is not None and first_difference.texts != (self.a, self.b):
            parts.append(
                f"first {first_difference.place}: {first_difference.a} -> {first_difference.b}"
            )
        if by := _distance_text(self.what, distance):
            parts.append(f"by up to {by}" if distance.elements > 1 else f"by {by}")
        return ", ".join(parts)


def _distance_text(what: What, distance: Measure) -> str:
    """Returns the largest distance, in the unit that suits it."""
    if distance.ulps is not None and distance.ulps < 1000:
        ulps = f"{distance.ulps} ulp{'' if distance.ulps == 1 else 's'}"
        return ulps if what == "scale" else f"{distance.largest or 0.0:.3g}, {ulps}"
    if what == "scale":
        return "" if distance.relative is None else f"{100 * distance.relative:,.4g} %"
    if distance.steps is not None:
        return f"{_amount_text(distance.steps)} step{'' if distance.steps == 1 else 's'}"
    return "" if distance.largest is None else _amount_text(distance.largest)


def _amount_text(amount: float) -> str:
    return f"{amount:,.0f}" if amount == round(amount) or amount >= 1000 else f"{amount:.3g}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A node and its partner, and by what they were matched."""

    a: str
    b: str
    how: How


@dataclass(frozen=True, slots=True)
class Changed:
    """A pair that differs."""

    a: str
    b: str
    op: str
    how: How
    changes: tuple[GraphChange, ...]


@dataclass(frozen=True, slots=True)
class Lone:
    """A node without a partner."""

    name: str
    op: str
    held_by: str
    """The other graph's node that computes it as a part of itself; empty where none does."""


@dataclass(frozen=True, slots=True)
class GraphDifference:
    """What differs between graphs a and b; `to_json` has the keys of the fields and `equal`."""

    nodes: tuple[int, int]
    """How many there are, those of bodies too."""
    graph: tuple[GraphChange, ...]
    changed: tuple[Changed, ...]
    only_a: tuple[Lone, ...]
    only_b: tuple[Lone, ...]
    pairs: tuple[Pair, ...]
    """Those of bodies by their path, after the graph's own."""
    bodies: Mapping[str, GraphDifference]
    """The bodies that differ, by the path of the node that holds them."""

    @property
    def equal(self) -> bool:
        """Whether there is no difference."""
        return not (self.graph or self.changed or self.only_a or self.only_b or self.bodies)

    @property
    def matched(self) -> dict[str, int]:
        """How many pairs there are of each kind."""
        return dict(Counter(pair.how for pair in self.pairs).most_common())

    def changes(self, *what: What) -> Iterator[GraphChange]:
        """Yields every change of these kinds, or of any, in bodies too."""
        yield from (c for c in self.graph if not what or c.what in what)
        for changed_pair in self.changed:
            yield from (c for c in changed_pair.changes if not what or c.what in what)
        for body in self.bodies.values():
            yield from body.changes(*what)

    def to_json(self) -> dict[str, object]:
        """Returns the difference as JSON takes it: the counts of pairs, and all else."""
        return {
            "equal": self.equal,
            "nodes": list(self.nodes),
            "matched": self.matched,
            "graph": [asdict(change) for change in self.graph],
            "changed": [asdict(changed) for changed in self.changed],
            "only_a": [asdict(lone) for lone in self.only_a],
            "only_b": [asdict(lone) for lone in self.only_b],
            "bodies": {path: difference.to_json() for path, difference in self.bodies.items()},
        }

    def _repr_html_(self) -> str:
        rows: list[tuple[str, ...]] = [("", c.what, c.where, c.a, c.b, c.far) for c in self.graph]
        for changed_pair in self.changed:
            rows += [
                (changed_pair.b, c.what, c.where, c.a, c.b, c.far) for c in changed_pair.changes
            ]
        rows += [(lone.name, "only in a", "", lone.op, "", "") for lone in self.only_a]
        rows += [(lone.name, "only in b", "", "", lone.op, "") for lone in self.only_b]
        rows += [
            (path, "body", "", "", str(body_difference), "")
            for path, body_difference in self.bodies.items()
        ]
        heads = ("node", "what", "where", "a", "b", "how far")
        rows = rows or [("", "no difference", "", "", "", "")]
        return rows_html(heads, rows[:_MAX_ROWS], max(len(rows) - _MAX_ROWS, 0))

    def __str__(self) -> str:
        if self.equal:
            return "no difference"
        lines = [str(change) for change in self.graph]
        for difference in self.changed:
            lines += [f"{difference.b}: {change}" for change in difference.changes]
        lines += [f"- {lone.name} = {lone.op}" for lone in self.only_a]
        lines += [f"+ {lone.name} = {lone.op}" for lone in self.only_b]
        lines += [f"{path}: {difference}" for path, difference in self.bodies.items()]
        return "\n".join(lines)


@checked
def diff(a: GraphLike, b: GraphLike) -> GraphDifference:
    """Returns the differences between two graphs."""
    return _diff(a, b)


def _diff(a: GraphLike, b: GraphLike, *, is_body: bool = False) -> GraphDifference:
    pairs = pair(a, b)
    changed: list[Changed] = []
    bodies: dict[str, GraphDifference] = {}
    inner: list[Pair] = []
    for one, other in pairs.of_a.items():
        is_interface = is_body and one.op in ("input", "output")
        if changes := tuple(
            (_body_interface_changes if is_interface else _changes)(pairs, a, b, one, other)
        ):
            how = pairs.how[one]
            changed.append(Changed(one.name, other.name, " |> ".join(ops(other)), how, changes))
        for name in sorted(one.bodies.keys() & other.bodies.keys()):
            body_difference = _diff(
                one.bodies[name], other.bodies[name], is_body=one.op in CONTROL_FLOW_OPS
            )
            paths = f"{one.name}/{name}", f"{other.name}/{name}"
            inner += [
                Pair(f"{paths[0]}/{p.a}", f"{paths[1]}/{p.b}", p.how) for p in body_difference.pairs
            ]
            if not body_difference.equal:
                bodies[paths[0]] = body_difference
    position = {node.name: i for i, node in enumerate(a)}
    # Pairs were found in several passes: the report follows the order of graph a.
    changed.sort(key=lambda c: position[c.a])
    a_nodes, b_nodes = list(a), list(b)
    return GraphDifference(
        (_count(a_nodes), _count(b_nodes)),
        tuple(_graph_changes(pairs, a, b, is_body)),
        tuple(changed),
        _lone(a_nodes, pairs.of_a, b_nodes),
        _lone(b_nodes, pairs.of_b, a_nodes),
        (*(Pair(n.name, p.name, pairs.how[n]) for n, p in pairs.of_a.items()), *inner),
        dict(sorted(bodies.items())),
    )


def _count(nodes: Iterable[Node]) -> int:
    """Returns how many nodes there are, those of bodies too."""
    return sum(1 + sum(map(_count, node.bodies.values())) for node in nodes)


def _lone(
    nodes: Iterable[Node], paired: Mapping[Node, Node], others: Iterable[Node]
) -> tuple[Lone, ...]:
    unpaired = [node for node in nodes if node not in paired]
    holder = holders(others if unpaired else ())
    with_holders = ((node, holder(node)) for node in unpaired)
    return tuple(Lone(n.name, " |> ".join(ops(n)), h.name if h else "") for n, h in with_holders)


def _graph_changes(
    pairs: Pairing, a: GraphLike, b: GraphLike, is_body: bool
) -> Iterator[GraphChange]:
    if a.profile != b.profile:
        yield GraphChange("profile", "", a.profile, b.profile)
    if is_body:
        input_pairs = zip(a.inputs, b.inputs, strict=False)
        if len(a.inputs) == len(b.inputs) and not all(pairs.agree(v, w) for v, w in input_pairs):
            a_names, b_names = (", ".join(v.name for v in g.inputs) for g in (a, b))
            yield GraphChange("order", "inputs", a_names, b_names)
        return
    for name in sorted(a.own_profiles.keys() & b.own_profiles.keys()):
        if a.own_profiles[name].text != b.own_profiles[name].text:
            yield GraphChange("profile", name, "its rules", "other rules")
    sides = [([v.name for v in g.inputs], _outputs(g)) for g in (a, b)]
    for where, a_names, b_names in zip(("inputs", "outputs"), *sides, strict=True):
        if a_names != b_names and sorted(a_names) == sorted(b_names):
            yield GraphChange("order", where, ", ".join(a_names), ", ".join(b_names))


def _outputs(graph: GraphLike) -> list[str]:
    return [name for node in graph if node.op == "output" for name in node.operands]


# -- one pair ---------------------------------------------------------------------------------


def _changes(
    pairs: Pairing, a: GraphLike, b: GraphLike, one: Node, other: Node
) -> Iterator[GraphChange]:
    if ops(one) != ops(other):
        yield GraphChange("op", "", " |> ".join(ops(one)), " |> ".join(ops(other)))
    if one.op == "input" and one.name != other.name:
        yield GraphChange("name", "", one.name, other.name)
    profiles = one.profile or a.profile, other.profile or b.profile
    if profiles[0] != profiles[1] and (one.profile or other.profile):
        yield GraphChange("profile", "", *profiles)
    yield from _attribute_changes(one, other)
    if ops(one) == ops(other) or set(one.operands) == set(other.operands):
        yield from _operand_changes(pairs, one, other)
    yield from _result_changes(one, other)
    for slot in _union(one.schemes, other.schemes):
        plans = _value_text(one.schemes.get(slot)), _value_text(other.schemes.get(slot))
        if plans[0] != plans[1]:
            yield GraphChange("plan", slot, *plans)
    for name in _union(one.inner, other.inner):
        inner = _value_text(one.inner.get(name)), _value_text(other.inner.get(name))
        if inner[0] != inner[1]:
            yield GraphChange("type", name, *inner)
    for name in sorted(one.bodies.keys() ^ other.bodies.keys()):
        presence = "a body", "nothing"
        yield GraphChange("attribute", name, *(presence if name in one.bodies else presence[::-1]))
    if one.op == other.op == "constant":
        yield from _constant_changes(one.result, other.result)


def _body_interface_changes(
    pairs: Pairing, a: GraphLike, b: GraphLike, one: Node, other: Node
) -> Iterator[GraphChange]:
    """Yields what differs between the inputs or outputs of two bodies that are bound by order."""
    yield from _result_changes(one, other)
    a_operands, b_operands = list(one.operands.items()), list(other.operands.values())
    if len(a_operands) != len(b_operands):
        yield GraphChange("results", "", f"{len(a_operands)}", f"{len(b_operands)}")
    for (slot, value), other_value in zip(a_operands, b_operands, strict=False):
        if not pairs.agree(value, other_value):
            yield GraphChange("operand", slot, _name(value), _name(other_value))


def _union(a: Iterable[str], b: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*a, *b]))


def _value_text(value: object) -> str:
    return "nothing" if value is None else str(value)


def _attribute_changes(a: Node, b: Node) -> Iterator[GraphChange]:
    for prefix, a_attrs, b_attrs in _attribute_pairs(a, b):
        for name in _union(a_attrs, b_attrs):
            if name not in a_attrs or name not in b_attrs:
                texts = _attr(a_attrs.get(name, "nothing")), _attr(b_attrs.get(name, "nothing"))
                yield GraphChange("attribute", prefix + name, *texts)
            elif name != "data" and not attributes.same(a_attrs[name], b_attrs[name]):
                yield GraphChange(
                    "attribute", prefix + name, *_difference_text(a_attrs[name], b_attrs[name])
                )
    if ops(a) == ops(b):
        for i, (one, other) in enumerate(zip(a.stages, b.stages, strict=False)):
            if one.type != other.type:
                yield GraphChange(
                    "type", f"stage {i}", _value_text(one.type), _value_text(other.type)
                )


def _attribute_pairs(
    a: Node, b: Node
) -> Iterator[tuple[str, Mapping[str, Attr], Mapping[str, Attr]]]:
    """Yields the attributes to compare: of the node, or of what both compute."""
    if not a.stages and not b.stages:
        if a.op == b.op:
            yield "", a.attrs, b.attrs
        return
    a_parts, b_parts = _ops_with_attrs(a), _ops_with_attrs(b)
    if ops(a) == ops(b):
        for i, ((_, one), (_, other)) in enumerate(zip(a_parts, b_parts, strict=True)):
            yield f"{i}.", one, other
        return
    short, long = (a_parts, b_parts) if len(a_parts) == 1 else (b_parts, a_parts)
    for op, attrs in long:
        if len(short) == 1 and op == short[0][0]:
            yield ("", short[0][1], attrs) if short is a_parts else ("", attrs, short[0][1])
            return


def _ops_with_attrs(node: Node) -> Sequence[tuple[str, Mapping[str, Attr]]]:
    return [(s.op, s.attrs) for s in node.stages] or [(node.op, node.attrs)]


def _attr(value: Attr) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _difference_text(a: Attr, b: Attr) -> tuple[str, str]:
    """Formats two differing attributes so that their texts differ too."""
    if isinstance(a, Array) and isinstance(b, Array):
        distance = measure(a.data, b.data) if a.type.element == b.type.element else None
        return distance.first.texts if distance and distance.first else (repr(a), repr(b))
    texts = _attr(a), _attr(b)
    if texts[0] != texts[1]:
        return texts
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for one, other in zip(a, b, strict=True):
            if not attributes.same(one, other):
                is_named = isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str)
                name = f"{one[0]!s} = " if is_named and isinstance(one, tuple) else ""
                a_text, b_text = _difference_text(one, other)
                return f"{name}{a_text}", f"{name}{b_text}"
    return f"{texts[0]} ({type(a).__name__})", f"{texts[1]} ({type(b).__name__})"


def _operand_changes(pairs: Pairing, a: Node, b: Node) -> Iterator[GraphChange]:
    for slot in _union(a.operands, b.operands):
        a_value, b_value = a.operands.get(slot), b.operands.get(slot)
        if a_value is None or b_value is None:
            yield GraphChange("operand", slot, _name(a_value), _name(b_value))
        elif not pairs.agree(a_value, b_value):
            yield GraphChange("operand", slot, _name(a_value), _name(b_value))


def _name(value: Value | None) -> str:
    return "nothing" if value is None else f"%{value.name}"


# -- types ------------------------------------------------------------------------------------


def _result_changes(a: Node, b: Node) -> Iterator[GraphChange]:
    if len(a.results) != len(b.results):
        yield GraphChange("results", "", f"{len(a.results)}", f"{len(b.results)}")
    for a_value, b_value in zip(a.results, b.results, strict=False):
        where = a_value.name if len(a.results) > 1 else ""
        yield from _type_changes(where, *in_source_axis_order(a_value, b_value))


def _type_changes(where: str, a: TensorType, b: TensorType) -> Iterator[GraphChange]:
    if a == b:
        return
    if a.shape != b.shape:
        yield GraphChange("shape", where, shape(a), shape(b))
    if a.quant is None or b.quant is None:
        if a.element != b.element:
            yield GraphChange("type", where, _element(a), _element(b))
        return
    yield from _quant_type_changes(where, a.quant, b.quant)


def _element(kind: TensorType) -> str:
    return parameters_text(kind.quant) if kind.quant else str(kind.dtype)


def _quant_type_changes(where: str, a: QuantType, b: QuantType) -> Iterator[GraphChange]:
    a_text, b_text = [
        f"{q.kind} {q.storage}"
        + (f"<{q.bounds[0]}:{q.bounds[1]}>" if q.bounds else "")
        + f":{q.express}"
        + (f" scale {q.scale_dtype}" if q.scale_dtype else "")
        for q in (a, b)
    ]
    if a_text != b_text:
        yield GraphChange("type", where, a_text, b_text)
    if a.granularity != b.granularity:
        yield GraphChange(
            "grain", where, str(a.granularity or "tensor"), str(b.granularity or "tensor")
        )
    if a.scale != b.scale:
        measured = None
        if a.scale is not None and b.scale is not None:
            measured = measure(np.asarray(a.scales()), np.asarray(b.scales()))
        yield _number_change("scale", where, (_scale(a), _scale(b)), measured)
    if a.zero != b.zero or a.has_float_zero != b.has_float_zero:
        measured = None
        are_known = None not in (a.zero, b.zero, a.scale, b.scale)
        if are_known and a.has_float_zero == b.has_float_zero:
            measured = measure(np.asarray(a.zeros()), np.asarray(b.zeros()))
        yield _number_change("zero", where, (_zero(a), _zero(b)), measured)
    offsets = [(q.plus, q.declared, q.codes, q.signs[q.has_float_zero :]) for q in (a, b)]
    if offsets[0] != offsets[1]:
        yield GraphChange(
            "type", f"{where} offset, declared range or table".strip(), str(a), str(b)
        )


def _number_change(
    what: What, where: str, texts: tuple[str, str], measured: Measure | None
) -> GraphChange:
    """Returns a change of numbers; of the first that differs where both look alike in short."""
    if texts[0] == texts[1] and measured is not None and measured.first is not None:
        texts = measured.first.texts
    return GraphChange(what, where, *texts, measured)


def _scale(quant: QuantType) -> str:
    return "?" if quant.scale is None else _numbers(np.asarray(quant.scales()))


def _zero(quant: QuantType) -> str:
    zero = quant.zero.data if isinstance(quant.zero, Array) else quant.zero
    if zero is None:
        return "?"
    text = _numbers(np.asarray(zero)) if len(zero) else "0"
    return f"real {text}" if quant.has_float_zero else text


def _numbers(values: NDArray[np.generic]) -> str:
    """Returns one number to the last bit, or the least and the greatest in short."""
    flat = values.reshape(-1)
    if flat.size == 1:
        return number(flat[0])
    float64_values = flat.astype(np.float64)
    low, high = f"{float64_values.min():.7g}", f"{float64_values.max():.7g}"
    return f"{low} each" if (flat == flat[:1]).all() else f"{low}..{high}"


# -- constants --------------------------------------------------------------------------------

_NEUTRAL_STEPS = re.compile("coded|permuted")  # steps that leave every float value as it was


def _constant_changes(a: Value, b: Value) -> Iterator[GraphChange]:
    a_array, b_array = a.constant, b.constant
    if a_array is None or b_array is None or a_array is b_array:
        return
    axes = source_axis_orders(a, b) or (None, None)
    maps = [v.type.quant or plain_integer_mapping(v) for v in (a, b)]
    x, y = (
        align_to_source(h, q, o) for h, q, o in zip((a_array, b_array), maps, axes, strict=True)
    )
    if x[0].shape != y[0].shape:
        return  # the types say so
    # The two stand for different source values: their distance would say nothing.
    steps = [{s for s in v.lineage.how if not _NEUTRAL_STEPS.match(s)} for v in (a, b)]
    if a.lineage.tensor == b.lineage.tensor and steps[0] != steps[1]:
        yield GraphChange(
            "elements",
            ", ".join(sorted(steps[0] ^ steps[1])),
            _array_text(a_array),
            _array_text(b_array),
        )
        return
    if maps[0] == maps[1] and same_bits(x[0], y[0]):
        return
    # Integers first: two types may differ in scale alone.
    on_integers = _integer_measure(x, y)
    distance = on_integers or _element_measure(x, y)
    if distance is not None and distance.differ:
        yield _number_change(
            "codes" if on_integers else "elements",
            "",
            (_array_text(a_array), _array_text(b_array)),
            distance,
        )


def _integer_measure(a: ArrayOrType, b: ArrayOrType) -> Measure | None:
    """Returns the distance of two arrays of one kind of quantized values, where both hold
    integers."""
    storages = {q.storage for _, q in (a, b) if q is not None}
    if len(storages) != 1 or a[0].dtype != b[0].dtype or a[0].dtype.kind not in "iu":
        return None
    return measure(a[0], b[0], np.ones(()))


def _element_measure(a: ArrayOrType, b: ArrayOrType) -> Measure | None:
    """Returns the distance of the float values; in steps where one of the two is quantized."""
    values, expressed, step = [], [], None
    for data, quant in (a, b):
        if quant is None:
            values.append(data)
            expressed.append(data)
            continue
        if (dequantized := dequantize_for_measure(data, quant)) is None:
            return None
        values.append(dequantized[0])
        expressed.append(dequantized[0].astype(quant.express.carrier))
        step = dequantized[1]
    if step is not None:
        values = [np.asarray(v).astype(np.float64) for v in values]
    return measure(values[0], values[1], step, (expressed[0], expressed[1]))


def _array_text(array: Array) -> str:
    if array.contents.size == 1 and array.contents.dtype.kind in "iufb":
        return str(array.data.reshape(-1)[0])
    return f"{shape(array.type)}x{array.type.dtype}" if array.type.rank else f"{array.type.dtype}"

"""What a runtime does to a QDQ model when it loads it, before it groups: as its profile says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array, QuantType, uniform
from qir.ledger import Change, Ledger
from qir.numerics import affine_of, quantize
from qir.passes.forms.group.convolution_inputs import join_pads, join_reals
from qir.passes.forms.group.flattened_softmax import lays_back, rows_of_codes
from qir.passes.forms.group.float_parameters import code_reals
from qir.passes.forms.group.gemms import as_gemms
from qir.passes.forms.group.low_bit_weights import given_weights, round_data
from qir.profiles import Profile, Query, query_of
from qir.rewrite.linear_layers import as_linear, knows_linear

_NAME = "group"


def load(graph: Graph, profile: Profile, ledger: Ledger) -> int:
    """Does all that a profile's runtime does; says how many places changed."""
    moving = frozenset(g.chain[0] for g in profile.groups if g.propagates)
    rule = profile.resolve(Query("constant"))
    count = 0
    if rule.weights.given == "float":
        count += join_pads(graph, ledger, _NAME) + join_reals(graph, ledger, _NAME)
    count += _fold(graph, profile)
    if profile.doubled == "merged":
        count += _same(graph, ledger)
    if profile.gemms == "joined":
        count += as_gemms(graph, ledger, _NAME)
    views = knows_linear(profile)
    parts = frozenset({"split"}) if views and "slice" in moving else frozenset()
    count += _move_up(graph, moving) + _move_down(graph, moving | parts, weights=not views)
    if profile.doubled == "merged":
        count += _meet(graph) if "transpose" in moving else 0
        count += _merge(graph, ledger) + _drop(graph, ledger)
    given = given_weights(graph)
    if rule.weights.given == "float":
        count += code_reals(graph, profile, rule, ledger)
    if profile.signed == "private_unsigned":
        count += _unsign(graph, ledger)
    if profile.doubled == "merged":
        count += rows_of_codes(graph, ledger, _NAME)
    if profile.nbits != "kept":
        wide = profile.nbits == "rounded_wide"
        count += round_data(graph, ledger, _NAME, wide=wide, left=given)
    return count + as_linear(graph, profile, ledger)


def _fold(graph: Graph, profile: Profile) -> int:
    """Quantized values of constants are constants."""
    count = 0
    for node in list(graph):
        if node.op != "quantize" or len(node.operands) > 1 or node.attrs["round"]:
            continue
        held, quant = node.operands["x"].constant, node.result.type.quant
        if held is None or quant is None or not (_plain(quant) or quant.axis is not None):
            continue
        if quant.dynamic or not quant.storage.is_integer or quant.kind != "uniform":
            continue
        if quant.real_zero or quant.plus is not None:
            continue
        codes = quantize(held.data, affine_of(quant), profile.resolve(query_of(node)))
        array = Array(codes, node.result.type, node.name)
        made = graph.constant(array, name=graph.fresh(node.name), before=node)
        graph.set_origins(made.node, [*node.operands["x"].node.origins, *node.origins])
        graph.substitute(node, made)
        count += 1
    return count


def _same(graph: Graph, ledger: Ledger) -> int:
    """Leaves one quantize of several that make the same quantized values of one value."""
    count = 0
    kept: dict[Value, list[Node]] = {}
    for node in [n for n in graph if n.op == "quantize" and len(n.operands) == 1]:
        firsts = kept.setdefault(node.operands["x"], [])
        first = next((f for f in firsts if _makes_same(f, node)), None)
        if first is None:
            firsts.append(node)
        elif not any(use.node.op == "output" for use in node.result.uses):
            graph.replace(node.result, first.result)
            graph.remove(node)
            said = "an equal quantize of the same value is merged with this one"
            ledger.add(Change.EXACT, _NAME, first.name, said)
            count += 1
    return count


def _makes_same(one: Node, other: Node) -> bool:
    a, b = one.result.type.quant, other.result.type.quant
    alike = dict(one.attrs) == dict(other.attrs) and one.profile == other.profile
    return a is not None and b is not None and alike and a.same_map(b)


def _pair(graph: Graph, value: Value, quant: QuantType, before: Node | None = None) -> Value:
    """A quantize of a value and its dequantize; gives what the latter makes."""
    kind = value.type.with_element(quant)
    name = graph.fresh(f"{value.name}.codes")
    codes = graph.add("quantize", {"x": value}, types=[kind], name=name, before=before)
    return graph.add("dequantize", {"x": codes.result}, before=before).result


def _plain(quant: QuantType | None) -> bool:
    return quant is not None and quant.grain is None and not quant.dynamic


def _move_up(graph: Graph, moving: frozenset[str]) -> int:
    """A quantize after ops that only move elements is also put before them."""
    count = 0
    for node in reversed(list(graph)):
        if node.op not in moving or lays_back(node):
            continue
        use, x = node.result.only_use, node.operands["x"]
        if use is None or use.node.op != "quantize" or x.only_use is None:
            continue
        quant = use.node.result.type.quant
        if x.node.op == "dequantize" or x.type.quant or quant is None or not _plain(quant):
            continue
        graph.set_operand(node, "x", _pair(graph, x, quant, node))
        count += 1
    return count


def _move_down(graph: Graph, moving: frozenset[str], *, weights: bool) -> int:
    """A dequantize before ops that only move elements is also put after them; of `weights` too, for
    a runtime that has no layers whose weights are turned."""
    count = 0
    for node in graph:
        x = node.operands.get("x")
        if node.op not in moving or x is None or x.node.op != "dequantize":
            continue
        codes = x.node.operands["x"]
        if not _plain(codes.type.quant) or (codes.constant is not None and not weights):
            continue
        for made in node.results:
            count += _put_pair(graph, made, codes.type.quant)
    return count


def _put_pair(graph: Graph, made: Value, quant: QuantType | None) -> bool:
    """Puts a pair after a value that something reads and nothing quantizes."""
    readers = [use.node.op for use in made.uses]
    if quant is None or not readers or "quantize" in readers:
        return False
    moved = _pair(graph, made, quant)
    graph.replace(made, moved, except_in=moved.node.operands["x"].node)
    return True


def _meet(graph: Graph) -> int:
    """A pair between two transposes, which become one, is put before both of them."""
    count = 0
    for last in [node for node in graph if node.op == "transpose"]:
        while (pair := _pair_behind(last)) is not None:
            codes, first = pair
            quant = codes.result.type.quant
            assert quant is not None
            made, turned = last.operands["x"].node, first.attrs["perm"]
            graph.set_operand(last, "x", _pair(graph, first.operands["x"], quant, first))
            again = last.attrs["perm"]
            assert isinstance(turned, tuple)
            assert isinstance(again, tuple)
            graph.set_attrs(last, perm=tuple(turned[i] for i in again if isinstance(i, int)))
            for gone in (made, codes, first):
                graph.remove(gone)
            count += 1
    return count


def _pair_behind(last: Node) -> tuple[Node, Node] | None:
    """The quantize, and the transpose before it, whose integers a transpose alone reads as
    floats."""
    back = last.operands["x"].node
    if back.op != "dequantize" or back.result.only_use is None:
        return None
    codes = back.operands["x"].node
    if codes.op != "quantize" or codes.result.only_use is None:
        return None
    first = codes.operands["x"].node
    if first.op != "transpose" or first.result.only_use is None:
        return None
    return (codes, first) if _plain(codes.result.type.quant) else None


def _unsign(graph: Graph, ledger: Ledger) -> int:
    """Gives unsigned integers to values that only their one reader sees, as the runtime does.

    The float values stay; but a kernel that computes on raw integers rounds elsewhere.
    """
    count = 0
    for node in graph:
        quant = node.result.type.quant if node.op == "quantize" else None
        if quant is None or quant.storage != I8 or quant.grain is not None or quant.dynamic:
            continue
        use = node.result.only_use
        if use is None or use.node.op != "dequantize" or use.node.result.only_use is None:
            continue
        low, high = quant.low + 128, quant.high + 128
        moved = replace(
            quant,
            storage=U8,
            zero=(int(quant.zeros()) + 128,),
            bounds=(low, high) if quant.bounds else None,
        )
        graph.set_type(node.result, node.result.type.with_element(moved))
        ledger.add(Change.REGROUPED, _NAME, node.name, "its signed integers become unsigned")
        count += 1
    return count


def _merge(graph: Graph, ledger: Ledger) -> int:
    """Leaves one pair of two in a row, with the range that both can hold: other integers."""
    count = 0
    for second in list(graph):
        if second.op != "quantize" or not all(
            u.node.op == "dequantize" for u in second.result.uses
        ):
            continue
        between = second.operands["x"].node
        if between.op != "dequantize" or between.result.only_use is None:
            continue
        first = between.operands["x"].node
        if first.op != "quantize" or first.result.only_use is None:
            continue
        one, other = first.result.type.quant, second.result.type.quant
        if one is None or other is None or not (_plain(one) and _plain(other)):
            continue
        if one.storage != other.storage or one.storage not in (I8, U8):
            continue
        both = one if one.same_map(other) else _common(one, other)
        if both is None:
            continue
        graph.set_type(first.result, first.result.type.with_element(both))
        graph.replace(second.result, first.result)
        graph.remove(second)
        graph.remove(between)
        ledger.add(Change.NUDGED, _NAME, first.name, "two pairs in a row become one", codes=255.0)
        count += 1
    return count


def _drop(graph: Graph, ledger: Ledger) -> int:
    """Takes out a dequantize and the quantize of the same map after it that has one reader."""
    count = 0
    for last in [node for node in graph if node.op == "quantize"]:
        use, between = last.result.only_use, last.operands["x"].node
        if use is None or between.op != "dequantize" or last.attrs["round"]:
            continue
        codes, quant = between.operands["x"], last.result.type.quant
        first = codes.type.quant
        if first is None or quant is None or not (_plain(first) and first.same_map(quant)):
            continue
        shown = use.node.op == "output"
        if shown and (codes.node.op == "input" or any(u.node.op == "output" for u in codes.uses)):
            continue
        name, lineage = last.result.name, last.result.lineage
        graph.replace(last.result, codes)
        graph.remove(last)
        if not between.used:
            graph.remove(between)
        if shown:
            graph.rename(codes, name)
            graph.set_lineage(codes, lineage)
        said = "a dequantize and a quantize with equal parameters are removed"
        ledger.add(Change.EXACT, _NAME, codes.node.name, said)
        count += 1
    return count


def _common(one: QuantType, other: QuantType) -> QuantType | None:
    """The map of the range that two maps have in common, computed in float32; None if none."""
    f32 = np.float32
    ends = [
        (q.low - int(q.zeros()), q.high - int(q.zeros()), f32(q.scales())) for q in (one, other)
    ]
    least = max(f32(low) * scale for low, _, scale in ends)
    most = min(f32(high) * scale for _, high, scale in ends)
    if not most > least:
        return None
    scale = f32(most - least) / f32(one.high - one.low)
    exact = f32(f32(one.low) - f32(least / scale))
    zero = int(np.floor(np.abs(exact) + f32(0.5)) * np.sign(exact))
    return uniform(one.storage, np.asarray(scale), np.asarray(min(max(zero, one.low), one.high)))

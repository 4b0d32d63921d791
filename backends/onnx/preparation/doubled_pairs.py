"""Merges consecutive pairs of quantize and dequantize, as onnxruntime does when it loads a
model."""

from __future__ import annotations

import numpy as np

from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import QuantType, uniform
from qir.ledger import Change, Ledger
from qir.passes.forms.group.pairs import has_one_scale, put_pair
from qir.rewrite.preparation import Preparation


def merge_equal_quantizes(graph: Graph, prepared: Preparation) -> int:
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
            prepared.ledger.add(Change.EXACT, prepared.name, first.name, said)
            count += 1
    return count


def _makes_same(one: Node, other: Node) -> bool:
    a, b = one.result.type.quant, other.result.type.quant
    alike = dict(one.attrs) == dict(other.attrs) and one.profile == other.profile
    return a is not None and b is not None and alike and a.has_same_mapping(b)


def merge_pairs(graph: Graph, prepared: Preparation) -> int:
    """Merges pairs in a row, between transposes too, and removes pairs that change nothing."""
    ledger, name = prepared.ledger, prepared.name
    count = _meet(graph) if "transpose" in prepared.moving else 0
    return count + _merge(graph, ledger, name) + _drop(graph, ledger, name)


def _meet(graph: Graph) -> int:
    """A pair between two transposes, which become one, is put before both of them."""
    count = 0
    for last in [node for node in graph if node.op == "transpose"]:
        while (pair := _pair_behind(last)) is not None:
            codes, first = pair
            quant = codes.result.type.quant
            assert quant is not None
            made, turned = last.operands["x"].node, first.attrs["perm"]
            graph.set_operand(last, "x", put_pair(graph, first.operands["x"], quant, first))
            again = last.attrs["perm"]
            assert isinstance(turned, tuple)
            assert isinstance(again, tuple)
            graph.set_attrs(last, perm=tuple(turned[i] for i in again if isinstance(i, int)))
            for gone in (made, codes, first):
                graph.remove(gone)
            count += 1
    return count


def _pair_behind(last: Node) -> tuple[Node, Node] | None:
    """Returns the quantize, and the transpose before it, whose integers a transpose alone reads as
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
    return (codes, first) if has_one_scale(codes.result.type.quant) else None


def _merge(graph: Graph, ledger: Ledger, name: str) -> int:
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
        if one is None or other is None or not (has_one_scale(one) and has_one_scale(other)):
            continue
        if one.storage != other.storage or one.storage not in (I8, U8):
            continue
        both = one if one.has_same_mapping(other) else _common(one, other)
        if both is None:
            continue
        graph.set_type(first.result, first.result.type.with_element(both))
        graph.replace(second.result, first.result)
        graph.remove(second)
        graph.remove(between)
        ledger.add(Change.NUDGED, name, first.name, "two pairs in a row become one", codes=255.0)
        count += 1
    return count


def _drop(graph: Graph, ledger: Ledger, name: str) -> int:
    """Takes out a dequantize and the quantize of the same quantized type after it that has one
    reader."""
    count = 0
    for last in [node for node in graph if node.op == "quantize"]:
        use, between = last.result.only_use, last.operands["x"].node
        if use is None or between.op != "dequantize" or last.attrs["round"]:
            continue
        codes, quant = between.operands["x"], last.result.type.quant
        first = codes.type.quant
        if (
            first is None
            or quant is None
            or not (has_one_scale(first) and first.has_same_mapping(quant))
        ):
            continue
        shown = use.node.op == "output"
        if shown and (codes.node.op == "input" or any(u.node.op == "output" for u in codes.uses)):
            continue
        made, lineage = last.result.name, last.result.lineage
        graph.replace(last.result, codes)
        graph.remove(last)
        if not between.used:
            graph.remove(between)
        if shown:
            graph.rename(codes, made)
            graph.set_lineage(codes, lineage)
        said = "a dequantize and a quantize with equal parameters are removed"
        ledger.add(Change.EXACT, name, codes.node.name, said)
        count += 1
    return count


def _common(one: QuantType, other: QuantType) -> QuantType | None:
    """Returns the quantized type of the range that two quantized types have in common, computed in
    float32; None if none."""
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

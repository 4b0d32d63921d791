"""Merges consecutive pairs of quantize and dequantize, as onnxruntime's DoubleQDQPairsRemover
does."""

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
    """Keeps one of several quantizes that make the same integers of one value; returns how many
    go."""
    count = 0
    kept: dict[Value, list[Node]] = {}
    for node in [n for n in graph if n.op == "quantize" and len(n.operands) == 1]:
        firsts = kept.setdefault(node.operands["x"], [])
        first = next((f for f in firsts if _have_same_result(f, node)), None)
        if first is None:
            firsts.append(node)
        elif not any(use.node.op == "output" for use in node.result.uses):
            graph.replace(node.result, first.result)
            graph.remove(node)
            said = "an equal quantize of the same value is merged with this one"
            prepared.ledger.add(Change.EXACT, prepared.name, first.name, said)
            count += 1
    return count


def _have_same_result(one: Node, other: Node) -> bool:
    a, b = one.result.type.quant, other.result.type.quant
    alike = dict(one.attrs) == dict(other.attrs) and one.profile == other.profile
    return a is not None and b is not None and alike and a.has_same_mapping(b)


def merge_pairs(graph: Graph, prepared: Preparation) -> int:
    """Merges consecutive pairs, also between transposes, and removes pairs that change nothing."""
    ledger, name = prepared.ledger, prepared.name
    count = _move_pairs_out_of_transposes(graph) if "transpose" in prepared.moving else 0
    return (
        count
        + _merge_consecutive_pairs(graph, ledger, name)
        + _remove_redundant_pairs(graph, ledger, name)
    )


def _move_pairs_out_of_transposes(graph: Graph) -> int:
    """Moves a pair between two transposes before both, which then become one."""
    count = 0
    for last in [node for node in graph if node.op == "transpose"]:
        while (pair := _pair_between_transposes(last)) is not None:
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


def _pair_between_transposes(last: Node) -> tuple[Node, Node] | None:
    """Returns the quantize, and the transpose before it, whose integers only a transpose reads
    as floats."""
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


def _merge_consecutive_pairs(graph: Graph, ledger: Ledger, name: str) -> int:
    """Replaces two consecutive pairs by one, with the range that both hold: integers change."""
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
        first_type, second_type = first.result.type.quant, second.result.type.quant
        if (
            first_type is None
            or second_type is None
            or not (has_one_scale(first_type) and has_one_scale(second_type))
        ):
            continue
        if first_type.storage != second_type.storage or first_type.storage not in (I8, U8):
            continue
        both = (
            first_type
            if first_type.has_same_mapping(second_type)
            else _common_type(first_type, second_type)
        )
        if both is None:
            continue
        graph.set_type(first.result, first.result.type.with_element(both))
        graph.replace(second.result, first.result)
        graph.remove(second)
        graph.remove(between)
        ledger.add(Change.NUDGED, name, first.name, "two pairs in a row become one", codes=255.0)
        count += 1
    return count


def _remove_redundant_pairs(graph: Graph, ledger: Ledger, name: str) -> int:
    """Removes a dequantize and a following quantize of the same type that has one consumer."""
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


def _common_type(one: QuantType, other: QuantType) -> QuantType | None:
    """Returns the type of the range that two types have in common, computed in float32; None if
    none."""
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

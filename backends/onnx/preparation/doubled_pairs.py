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
    by_operand: dict[Value, list[Node]] = {}
    for node in [n for n in graph if n.op == "quantize" and len(n.operands) == 1]:
        kept_quantizes = by_operand.setdefault(node.operands["x"], [])
        first = next((f for f in kept_quantizes if _have_same_result(f, node)), None)
        if first is None:
            kept_quantizes.append(node)
        # A quantize that makes an output keeps it.
        elif not any(use.node.op == "output" for use in node.result.uses):
            graph.replace(node.result, first.result)
            graph.remove(node)
            reason = "an equal quantize of the same value is merged with this one"
            prepared.ledger.add(Change.EXACT, prepared.name, first.name, reason)
            count += 1
    return count


def _have_same_result(one: Node, other: Node) -> bool:
    a, b = one.result.type.quant, other.result.type.quant
    same_attributes = dict(one.attrs) == dict(other.attrs) and one.profile == other.profile
    return a is not None and b is not None and same_attributes and a.has_same_mapping(b)


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
            quantize, first = pair
            quant = quantize.result.type.quant
            assert quant is not None
            dequantize, first_perm = last.operands["x"].node, first.attrs["perm"]
            graph.set_operand(last, "x", put_pair(graph, first.operands["x"], quant, first))
            last_perm = last.attrs["perm"]
            assert isinstance(first_perm, tuple)
            assert isinstance(last_perm, tuple)
            # perm(last) after perm(first): axis i of the result is first[last[i]] of the operand.
            graph.set_attrs(
                last, perm=tuple(first_perm[i] for i in last_perm if isinstance(i, int))
            )
            for removed in (dequantize, quantize, first):
                graph.remove(removed)
            count += 1
    return count


def _pair_between_transposes(last: Node) -> tuple[Node, Node] | None:
    """Returns the quantize, and the transpose before it, whose integers only a transpose reads
    as floats."""
    dequantize = last.operands["x"].node
    if dequantize.op != "dequantize" or dequantize.result.only_use is None:
        return None
    quantize = dequantize.operands["x"].node
    if quantize.op != "quantize" or quantize.result.only_use is None:
        return None
    first = quantize.operands["x"].node
    if first.op != "transpose" or first.result.only_use is None:
        return None
    return (quantize, first) if has_one_scale(quantize.result.type.quant) else None


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
        merged_type = (
            first_type
            if first_type.has_same_mapping(second_type)
            else _common_type(first_type, second_type)
        )
        if merged_type is None:
            continue
        graph.set_type(first.result, first.result.type.with_element(merged_type))
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
        quantized, quant = between.operands["x"], last.result.type.quant
        first = quantized.type.quant
        if (
            first is None
            or quant is None
            or not (has_one_scale(first) and first.has_same_mapping(quant))
        ):
            continue
        # An output's value keeps its name: the integers take it over, unless they are one
        # themselves.
        is_output = use.node.op == "output"
        if is_output and (
            quantized.node.op == "input" or any(u.node.op == "output" for u in quantized.uses)
        ):
            continue
        name_of_output, lineage = last.result.name, last.result.lineage
        graph.replace(last.result, quantized)
        graph.remove(last)
        if not between.used:
            graph.remove(between)
        if is_output:
            graph.rename(quantized, name_of_output)
            graph.set_lineage(quantized, lineage)
        reason = "a dequantize and a quantize with equal parameters are removed"
        ledger.add(Change.EXACT, name, quantized.node.name, reason)
        count += 1
    return count


def _common_type(one: QuantType, other: QuantType) -> QuantType | None:
    """Returns the type of the range that two types have in common, computed in float32; None if
    none."""
    f32 = np.float32
    # Ends of each range in steps from the zero point, with the scale in float32.
    ends = [
        (q.low - int(q.zeros()), q.high - int(q.zeros()), f32(q.scales())) for q in (one, other)
    ]
    lowest = max(f32(low) * scale for low, _, scale in ends)
    highest = min(f32(high) * scale for _, high, scale in ends)
    if not highest > lowest:
        return None
    scale = f32(highest - lowest) / f32(one.high - one.low)
    # zero = low - round(least / scale), rounded half away from zero as std::round does.
    exact_zero = f32(f32(one.low) - f32(lowest / scale))
    zero = int(np.floor(np.abs(exact_zero) + f32(0.5)) * np.sign(exact_zero))
    return uniform(one.storage, np.asarray(scale), np.asarray(min(max(zero, one.low), one.high)))

"""Quantizes the data of products at run time, which needs no calibration.

    graph main as native {
      %x = input() : 2x4xf32
      %w = constant(@w) : 4x3xf32
      %y = matmul(%x, %w) : 2x3xf32
      output(y=%y)
    }

By `quantize-dynamic` it becomes:

    graph main as native {
      %x = input() : 2x4xf32
      %w = constant(@w) : 4x3xf32
      %x.scale, %x.zero = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8
      %x.q = quantize(%x, scale=%x.scale, zero=%x.zero) : 2x4x!quant.uniform<u8:f32, ?:?>
      %x.dq = dequantize(%x.q, x.scale=%x.scale, x.zero=%x.zero) : 2x4xf32
      %w.q = constant(@w.q) : 4x3x!quant.uniform<i8<-127:127>:f32, 0.061023623>
      %w.dq = dequantize(%w.q) : 4x3xf32
      %y = matmul(%x.dq, %w.dq) : 2x3xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from qir.analysis.bodies import graphs_with_bodies
from qir.analysis.decisions import ALREADY_QUANTIZED, Decision, GraphFacts, Plan
from qir.analysis.quantized_regions import is_dequantized, is_quantized_already
from qir.analysis.user_rules import UserRule, fit_to_slot
from qir.capability import Capability, Dynamic, OpCapability
from qir.errors import DataError, SchemeError
from qir.ir.attrs import Attr, same
from qir.ir.calls import make_call
from qir.ir.dtype import F32, I8, U8, dtype
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import ArrayData, boxes, iter_pieces, read_box
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import CONVOLUTIONS, MATRIX_PRODUCTS, RECURRENT_OPS
from qir.ir.ops.recurrent import DEFAULT_ACTIVATIONS, DIRECTIONS
from qir.ir.quantized_ops import STRUCTURAL_OPS
from qir.ir.scheme import RESULT, Scheme
from qir.ir.types import Array, QuantType, uniform
from qir.ledger import Change, Ledger
from qir.profiles import lazy_quantize, parameters_for_range, profile_in
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.options import option

PRODUCTS = MATRIX_PRODUCTS | CONVOLUTIONS
"""Ops whose sums a runtime forms in integers while it chooses the numbers of one side."""
NOT_A_PRODUCT = "only matrix products and convolutions are quantized without data"
"""The reason of what is no such product."""
NOT_A_MATRIX_PRODUCT = "only matrix products have their weights alone stored in few bits"
"""The reason of what has no weights that are stored alone."""


def plan_dynamic(
    graph: Graph, table: Capability, granularity: str, user_rules: Iterable[UserRule] = ()
) -> tuple[Plan, dict[Node, Scheme]]:
    """Returns what would be summed in integers without data, and how its weights are stored."""
    rules = tuple(user_rules)
    chosen: dict[Node, Scheme] = {}
    reasons: dict[Node, str] = {}
    for node in computing_nodes(graph):
        scheme = _weight_scheme(node, table, granularity, rules)
        if isinstance(scheme, Scheme):
            chosen[node] = scheme
        reasons[node] = "" if isinstance(scheme, Scheme) else scheme
    # A rule that hits nothing is a slip of the pen, such as a name of another model.
    require_matching_rules(graph, rules)
    facts = GraphFacts(graph, graphs_with_bodies(graph))
    rule = table.dynamic.rule
    decisions = tuple(
        decision(facts, n, reason, chosen.get(n), rule) for n, reason in reasons.items()
    )
    return Plan(table.name, decisions, ()), chosen


def computing_nodes(graph: Graph) -> list[Node]:
    """Returns what computes in a graph, and in its branches and loops."""
    return [n for each in graphs_with_bodies(graph) for n in each if n.op not in STRUCTURAL_OPS]


def require_matching_rules(graph: Graph, user_rules: tuple[UserRule, ...]) -> None:
    for rule in user_rules:
        if not any(rule.matches(n) for n in computing_nodes(graph)):
            raise SchemeError(f"rule {rule} hits no op of this model")


def is_float_by_rule(node: Node, user_rules: tuple[UserRule, ...]) -> bool:
    matching = [rule for rule in user_rules if rule.slot == RESULT and rule.matches(node)]
    # Later rules win, as in `assign-schemes`.
    return bool(matching) and matching[-1].scheme is None


def float_reason(
    node: Node, user_rules: tuple[UserRule, ...], ops: frozenset[str] = MATRIX_PRODUCTS
) -> str:
    """Returns why an op keeps float weights; empty where nothing keeps it."""
    if is_quantized_already(node):
        return ALREADY_QUANTIZED
    if node.op not in ops:
        return NOT_A_MATRIX_PRODUCT if ops == MATRIX_PRODUCTS else NOT_A_PRODUCT
    if is_float_by_rule(node, user_rules):
        return "a rule keeps it float"
    traits = spec(node.op).traits
    weight = node.operands[traits.weight or ""]
    if weight.constant is None:
        return "its weights are computed"
    if any(
        value.type.element != F32 for value in (weight, node.operands[traits.data], *node.results)
    ):
        return "it does not compute in f32"
    if node.op in MATRIX_PRODUCTS and weight.type.rank != 2:
        return f"its weights have {weight.type.rank} axes, a kernel takes 2"
    return _unsupported_layer_reason(node) if node.op in RECURRENT_OPS else ""


def _unsupported_layer_reason(node: Node) -> str:
    """Returns why a recurrent layer stays float: kernels take usual ones with constant weights."""
    if node.operands["r"].constant is None:
        return "its weights are computed"
    if extra_slots := [slot for slot in ("lengths", "peephole", "proj") if slot in node.operands]:
        return f"no kernel quantizes the state of a layer with {extra_slots[0]}"
    default_activations = DEFAULT_ACTIVATIONS[node.op] * len(
        DIRECTIONS[str(node.attrs["direction"])]
    )
    if node.attrs["activations"] not in ((), default_activations):
        return "no kernel quantizes the state of a layer with other activations"
    if node.attrs["clip"] is not None or node.attrs.get("input_forget") is True:
        return "no kernel quantizes the state of a layer that bounds or couples its gates"
    return ""


def _weight_scheme(
    node: Node, table: Capability, granularity: str, user_rules: tuple[UserRule, ...]
) -> Scheme | str:
    """Returns how an op's weights are stored, or why it stays float."""
    supported = PRODUCTS | (RECURRENT_OPS & set(table.dynamic.ops))
    if reason := float_reason(node, user_rules, supported):
        return reason
    if table.dynamic.ops and node.op not in table.dynamic.ops:
        return f"without data {table.name} quantizes {', '.join(table.dynamic.ops)} alone"
    # A recurrent layer multiplies by rows of its weights, as linear does.
    entry = table.ops.get("linear" if node.op in RECURRENT_OPS else node.op)
    # ConvInteger of ONNX has its channels second, as its kernels do.
    if node.attrs.get("layout", "NCHW") != "NCHW":
        return "its channels stand last"
    options = _offered_schemes(node, entry, granularity)
    requested = [
        rule.scheme
        for rule in user_rules
        if rule.scheme and rule.slot == "w" and rule.matches(node)
    ]
    if not requested:
        return options[0]
    if requested[-1].storage not in (I8, U8):
        listed = entry.slots.get(spec(node.op).traits.weight or "", ()) if entry else ()
        fitting = (fit_to_slot(allowed, requested[-1]) for allowed in listed)
        if (found := next((each for each in fitting if each is not None), None)) is not None:
            return found
        raise SchemeError(
            f"{node.name}: {table.name} sums weights of i8 and u8, not {requested[-1]}"
        )
    if (
        node.op in _convolutions()
        and requested[-1].granularity == "channel"
        and not requested[-1].symmetric
    ):
        # ConvInteger's zero points may be per channel by the standard; onnxruntime takes one alone.
        raise SchemeError(f"{node.name}: weights of convolutions have one zero point")
    return requested[-1]


def _weight_slots(node: Node) -> tuple[str, ...]:
    """Returns the slots of weights that are quantized: those of data, and those of the state."""
    weight = spec(node.op).traits.weight
    return (*((weight,) if weight else ()), *(("r",) if node.op in RECURRENT_OPS else ()))


def _convolutions() -> frozenset[str]:
    return PRODUCTS - MATRIX_PRODUCTS


def _offered_schemes(
    node: Node, entry: OpCapability | None, granularity: str
) -> tuple[Scheme, ...]:
    slot = spec(node.op).traits.weight or ""
    # -128 is left out, so that both ends are equally far from 0.
    default = Scheme(I8, True, "channel", (-127, 127))
    offered = (
        entry.slots.get(slot, ()) if entry is not None and _meets_conditions(node, entry) else ()
    )
    listed = [
        scheme
        for scheme in offered
        if scheme.granularity == granularity and scheme.storage in (I8, U8)
    ]
    return tuple(listed) or (
        replace(default, granularity="channel" if granularity == "channel" else "tensor"),
    )


def _meets_conditions(node: Node, entry: OpCapability) -> bool:
    return all(
        any(same(node.attrs.get(name), value) for value in allowed)
        for name, allowed in (entry.when or {}).items()
    )


def decision(
    facts: GraphFacts, node: Node, reason: str, scheme: Scheme | None, rule: str = ""
) -> Decision:
    traits = spec(node.op).traits
    schemes = {} if scheme is None else {traits.data: f"u8 affine tensor {rule}"}
    if scheme is not None:
        schemes |= dict.fromkeys(_weight_slots(node), str(scheme))
    return facts.decision(node, reason, schemes)


# -- what is done ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuantizeDynamic(Pass):
    """Quantizes products with constant weights; scales of data are computed at run time.

    The data of each is quantized as a whole to u8 by its own range, once for all who read it; the
    weights by their range, now. The state of a recurrent layer is quantized in each step, where
    the target has such a kernel. Everything between stays float. What branches and loops hold is
    quantized within them.
    """

    name = "quantize-dynamic"
    nested = False
    tolerance = ANOTHER
    capability: Capability = field(default_factory=lambda: Capability("none", {}))
    granularity: str = "channel"
    user_rules: tuple[UserRule, ...] = field(default=(), metadata=option(name="wishes"))
    profile: str = "native"

    def run(self, graph: Graph, ledger: Ledger) -> int:
        _, chosen = plan_dynamic(graph, self.capability, self.granularity, self.user_rules)
        return sum(self._quantize(each, chosen, ledger) for each in graphs_with_bodies(graph))

    def _quantize(self, graph: Graph, chosen: dict[Node, Scheme], ledger: Ledger) -> int:
        dequantized: dict[Value, Value] = {}
        weights: dict[tuple[Value, Scheme, int | None], Value] = {}
        count = 0
        for node in list(graph):
            scheme = chosen.get(node)
            if scheme is None or not may(self.name, f"quantize {node.op}", node):
                continue
            traits = spec(node.op).traits
            data = node.operands[traits.data]
            # Data that were quantized before are read by that dequantize, and not quantized again.
            if is_dequantized(data):
                dequantized[data] = data
            if data not in dequantized:
                dequantized[data] = _quantize_at_run_time(graph, data, self.capability.dynamic)
                reason = f"u8 by {self.capability.dynamic.rule}, chosen while the model runs"
                ledger.add(Change.QUANTIZED, self.name, data.name, reason)
            for slot in _weight_slots(node):
                self._quantize_weight(graph, node, slot, scheme, weights, ledger)
            graph.set_operand(node, traits.data, dequantized[data])
            if node.op in RECURRENT_OPS:
                graph.set_inner(node, "h", _state_type(self.capability.dynamic))
                message = "its state is quantized in each step, as its data"
                ledger.add(Change.QUANTIZED, self.name, node.name, message)
            count += 1
        return count

    def _quantize_weight(
        self,
        graph: Graph,
        node: Node,
        slot: str,
        scheme: Scheme,
        known: dict[tuple[Value, Scheme, int | None], Value],
        ledger: Ledger,
    ) -> None:
        traits = spec(node.op).traits
        value, axis = node.operands[slot], None
        if scheme.granularity == "channel" and traits.weight_axis is not None:
            axis = traits.weight_axis(make_call(node.op, node.operands, node.attrs))
        # Weights that several products read are stored once.
        key = (value, scheme, axis)
        if key not in known:
            floats = finite_weights(value)
            low, high = least_and_greatest(floats, axis)
            rules = profile_in(graph, self.profile)
            scales, zeros = parameters_for_range(rules, low, high, scheme, weight=True)
            scales32 = np.asarray(scales, np.float32)
            quant_type = uniform(
                scheme.storage, scales32, zeros, axis=axis, bounds=scheme.bounds, name=value.name
            )
            quantized = lazy_quantize(rules, floats, quant_type)
            known[key] = store_dequantized(
                graph, value, Array(quantized, value.type.with_element(quant_type))
            )
            message = f"{scheme.storage} {scheme.granularity}, {scales32.size} scales"
            ledger.add(Change.QUANTIZED, self.name, value.name, message)
        graph.set_operand(node, slot, known[key])


def finite_weights(value: Value) -> ArrayData:
    assert value.constant is not None
    if not all(np.isfinite(piece).all() for piece in iter_pieces(value.constant.contents)):
        raise DataError(f"%{value.name}: a weight is NaN or infinite")
    return value.constant.contents


def least_and_greatest(
    floats: ArrayData, axis: int | None
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Returns the least and the greatest element and zero, of each index of an axis or of all."""
    shape = () if axis is None else (floats.shape[axis],)
    # From zero, which each range contains, so that padding and masks are exact.
    low, high = np.zeros(shape, floats.dtype), np.zeros(shape, floats.dtype)
    other_axes = None if axis is None else tuple(i for i in range(floats.ndim) if i != axis)
    # Piece by piece: weights may be larger than memory.
    for box in boxes(floats.shape):
        data, index = read_box(floats, box), () if axis is None else box[axis]
        low[index] = np.minimum(low[index], data.min(axis=other_axes, initial=0))
        high[index] = np.maximum(high[index], data.max(axis=other_axes, initial=0))
    return low[()], high[()]


def _first_reader(value: Value) -> Node:
    # Before the first reader, so that all others come after the quantize that they share.
    return min((u.node for u in value.uses), key=lambda n: n._rank)


def _state_type(dynamic: Dynamic) -> QuantType:
    """Returns the type of a state that is quantized in each step by its own range."""
    return QuantType(U8, F32, None, None, bounds=dynamic.bounds, scale_dtype=dtype(dynamic.scale))


def _quantize_at_run_time(graph: Graph, value: Value, dynamic: Dynamic) -> Value:
    """Quantized values of a whole tensor by its own range, and what dequantizes them."""
    first_reader, stem = _first_reader(value), value.name
    attrs: dict[str, Attr] = {
        "rule": dynamic.rule,
        "storage": U8,
        "scale_type": dtype(dynamic.scale),
    }
    if dynamic.bounds is not None:
        attrs["bounds"] = dynamic.bounds
    names = [graph.fresh(f"{stem}.scale"), graph.fresh(f"{stem}.zero")]
    parameters = graph.add("choose_qparams", {"x": value}, attrs, name=names, before=first_reader)
    scale, zero = parameters.results
    tensor_type = value.type.with_element(QuantType(U8, F32, None, None))
    operands = {"x": value, "scale": scale, "zero": zero}
    name = graph.fresh(f"{stem}.q")
    quantized = graph.add(
        "quantize", operands, types=[tensor_type], name=name, before=first_reader
    ).result
    graph.set_lineage(quantized, value.lineage.then("coded"))
    operands = {"x": quantized, "x.scale": scale, "x.zero": zero}
    dequantized = graph.add(
        "dequantize", operands, name=graph.fresh(f"{stem}.dq"), before=first_reader
    ).result
    graph.set_lineage(dequantized, value.lineage)
    return dequantized


def store_dequantized(graph: Graph, value: Value, array: Array) -> Value:
    """Returns a constant's quantized values, and what dequantizes them."""
    first_reader = _first_reader(value)
    named_array = Array(array.contents, array.type, value.name)
    quantized = graph.constant(
        named_array, name=graph.fresh(f"{value.name}.q"), before=first_reader
    )
    graph.set_origins(quantized.node, value.node.origins)
    graph.set_lineage(quantized, value.lineage.then("coded"))
    name = graph.fresh(f"{value.name}.dq")
    dequantized = graph.add("dequantize", {"x": quantized}, name=name, before=first_reader).result
    graph.set_lineage(dequantized, value.lineage)
    return dequantized


__all__ = ["PRODUCTS", "QuantizeDynamic", "plan_dynamic"]

"""Fuses QDQ form into quantized kernels: the base class of the passes that do so."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from qir.arguments import unchecked
from qir.ir.calls import make_call
from qir.ir.dtype import F32, I32, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS, TRANSPOSED_CONVOLUTIONS
from qir.ir.types import Array, QuantType, TensorType
from qir.ledger import Change, Entry, Ledger
from qir.numerics import Rule, affine_of, quantize_bias
from qir.profiles import Profile, Query, dequantize_by_profile, profile_in, query_for_op
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import REGROUPED

_add_node, _add_chain = unchecked(Graph.add), unchecked(Graph.add_chain)
_set_slot_origins, _substitute = unchecked(Graph.set_slot_origins), unchecked(Graph.substitute)
_set_lineage, _remove = unchecked(Graph.set_lineage), unchecked(Graph.remove)
INTEGER_OPS = frozenset(
    "conv2d gemm matmul linear add mul avg_pool2d global_avg_pool sigmoid softmax concat "
    "max_pool2d reshape flatten transpose squeeze unsqueeze slice leaky_relu pad relu clip".split()
)
"""Ops that have an integer form."""
CONVOLUTIONS_1D_3D = frozenset({"conv1d", "conv3d"})
"""Convolutions along one and three axes, whose sum is always rounded."""
ACTIVATIONS = frozenset({"relu", "clip"})
"""Activations that any kernel applies before it rounds."""
NORM_SLOTS = frozenset({"gamma", "beta", "mean", "var"})
"""Parameters of norms, which kernels read as floats."""

INDEX_SLOTS = frozenset(
    {
        *(("reshape", "shape"), ("expand", "shape"), ("resize", "sizes")),
        *(("resize_nearest", "sizes"), ("where", "condition")),
        *(("gather", "indices"), ("gather_elements", "indices")),
    }
)
"""Operands that are shapes, indices or masks: they are neither quantized nor float data."""


@dataclass(frozen=True)
class ChainMatch:
    """A chain of ops between dequantize and quantize, such as conv2d |> add |> relu."""

    ops: tuple[Node, ...]
    operands: Mapping[str, Value]
    """Slots of the anchor, with the quantized values before their dequantize.

    A float bias, a shape or indices are listed as they are.
    """
    quantize: Node | None
    """None where the result stays float."""
    summands: Mapping[int, Value] = field(default_factory=dict)
    """The quantized values that later ops of the chain add, by their index in it."""

    @property
    def anchor(self) -> Node:
        """The first op, whose rule the kernel computes by."""
        return self.ops[0]

    @property
    def last(self) -> Node:
        """The node whose result the kernel's result replaces."""
        return self.quantize or self.ops[-1]

    @property
    def result(self) -> QuantType | None:
        """The quantized type of the result; None where it is float."""
        return self.last.result.type.quant

    @cached_property
    def query(self) -> Query:
        """The query by which a profile finds the kernel's rule."""
        types = {slot: value.type for slot, value in self.operands.items()}
        result_type = self.last.result.type if self.quantize else None
        return query_for_op(self.anchor.op, self.anchor.attrs, types, result_type)

    @property
    def has_float_data(self) -> bool:
        """Whether the kernel is a product of float data and quantized weights."""
        data = self.operands.get(spec(self.anchor.op).traits.data)
        return self.anchor.op in INTEGER_SUM_LAYERS and data is not None and data.type.quant is None

    @property
    def bias(self) -> Value | None:
        """The bias of the first op, if it has one."""
        return self.operands.get(spec(self.anchor.op).traits.bias or "")


@dataclass(frozen=True)
class Fusing(Pass):
    """Replaces chains of ops by quantized kernels; subclasses say in `allows` which ones exist."""

    tolerance = REGROUPED

    @abstractmethod
    def allows(self, match: ChainMatch, graph: Graph) -> bool:
        """Returns whether these ops are one kernel."""

    def kernel_profile(self, graph: Graph) -> Profile | None:
        """Returns the profile by which kernels compute; None in a body, which has its holder's."""
        return profile_in(graph, graph.profile) if graph.profile else None

    def fusible_ops(self, graph: Graph) -> frozenset[str]:
        """Returns the ops that chains are made of."""
        return INTEGER_OPS

    def epilogue_ops(self, graph: Graph) -> frozenset[str]:
        """Returns the activations that chains may end in."""
        return ACTIVATIONS

    def fuses_adds(self, graph: Graph) -> bool:
        """Returns whether a chain may contain an add of another quantized value."""
        return False

    def fuses_float_data(self, graph: Graph) -> bool:
        """Returns whether a product of float data and quantized weights may be a kernel."""
        return False

    def rewrite_name(self, match: ChainMatch, graph: Graph) -> str:
        """Returns the name of a rewrite, by which filters select it and bisection reports it."""
        return " |> ".join(node.op for node in match.ops)

    def claim_entries(self, match: ChainMatch, graph: Graph) -> tuple[Entry, ...]:
        """Returns the ledger entries for kernels whose bytes are not exactly predicted."""
        return ()

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        fusible, epilogue = self.fusible_ops(graph), self.epilogue_ops(graph)
        fuses_adds, float_data = self.fuses_adds(graph), self.fuses_float_data(graph)
        rules = self.kernel_profile(graph)
        # Names of rewrites take a search of the profile each: only a filter wants to know them.
        is_filtered = graph.rewrite_filter is not None
        ends = [n for n in graph if n.op == "quantize"]
        # Products come after the quantizes: one inside a chain that is rounded belongs to that
        # chain.
        ends += [n for n in graph if n.op in INTEGER_SUM_LAYERS and not n.stages]
        for end in ends:
            # An earlier chain may have taken this node in.
            if end not in graph or not end.used:
                continue
            quantize = end if end.op == "quantize" else None
            chains = (
                [(end,)]
                if quantize is None
                else _chains_ending_in(quantize, fusible, epilogue, fuses_adds=fuses_adds)
            )
            match = self._best(chains, quantize, graph, float_data)
            if match is None:
                continue
            if is_filtered and not may(
                self.name, self.rewrite_name(match, graph), match.anchor, *match.ops[1:]
            ):
                continue
            message = " |> ".join(n.op for n in match.ops)
            message += (
                " of floats by quantized values"
                if match.has_float_data
                else " on quantized values, rounded once"
            )
            # Before the rewrite: claims are looked up by the ops that it removes.
            entries = self.claim_entries(match, graph)
            _replace_by_kernel(graph, match, rules)
            ledger.add(Change.REGROUPED, self.name, match.anchor.name, message)
            ledger.extend(entries)
            count += 1
        return count + (graph.prune() if count else 0)

    def _best(
        self,
        chains: Sequence[tuple[Node, ...]],
        quantize: Node | None,
        graph: Graph,
        float_data: bool,
    ) -> ChainMatch | None:
        """Returns the longest chain that is allowed."""
        # Longest first: conv2d |> relu is one kernel, though conv2d alone is one as well.
        for ops in reversed(chains):
            match = match_chain(ops, quantize, float_data=float_data)
            if match is not None and self.allows(match, graph):
                return match
        return None


def _chains_ending_in(
    quantize: Node, fusible: frozenset[str], epilogue: frozenset[str], *, fuses_adds: bool
) -> list[tuple[Node, ...]]:
    """Returns the chains that end in a quantize, shortest first; nothing else reads inside them.

    With `fuses_adds` a chain may contain an add whose other operand is dequantized.
    """
    chains: list[tuple[Node, ...]] = []
    ops: tuple[Node, ...] = ()
    value = quantize.operands["x"]
    while value.only_use is not None and value.node.op in fusible and not value.node.stages:
        ops = (value.node, *ops)
        chains.append(ops)
        if value.node.op in epilogue:
            flow: str | None = "x"
        else:
            flow = _flow_operand(value.node) if fuses_adds else None
        # An op that is no activation begins the chain: what it reads are the kernel's operands.
        if flow is None:
            break
        value = value.node.operands[flow]
    return chains


def _flow_operand(node: Node) -> str | None:
    """Returns the slot of an add that a product computes, if the other slot is dequantized."""
    if node.op != "add":
        return None
    for flow, other in (("a", "b"), ("b", "a")):
        producer, other_producer = (node.operands[slot].node.op for slot in (flow, other))
        if producer in INTEGER_SUM_LAYERS and other_producer == "dequantize":
            return flow
    return None


def is_fusible_activation(node: Node) -> bool:
    """Returns whether a node is an activation of kernels; also a clip with computed bounds."""
    return node.op in ACTIVATIONS or (node.op == "foreign" and node.attrs["op"] == "Clip")


def match_chain(
    ops: tuple[Node, ...],
    quantize: Node | None,
    *,
    float_data: bool = False,
    computed_parameters: bool = False,
) -> ChainMatch | None:
    """Matches a chain of ops up to a quantize; returns None where it is no quantized kernel.

    With `float_data` a product may have float data and a float result; with `computed_parameters`
    operands may have parameters that are computed at run time.
    """
    quant = quantize.result.type.quant if quantize else None
    if quantize and (
        quant is None or not _is_uniform_integer(quant) or quant.granularity is not None
    ):
        return None
    if quantize and quantize.attrs["round"]:
        # The node names its own rounding, but a kernel would round by the profile.
        return None
    sources: dict[str, Value] = {}
    for slot, value in ops[0].operands.items():
        source = quantized_source(ops[0], slot, value, computed_parameters=computed_parameters)
        if (
            source is None
            and float_data
            and quantize is None
            and _is_float_data(ops[0], slot, value)
        ):
            source = value
        if source is None:
            return None
        sources[slot] = source
    summands: dict[int, Value] = {}
    for i, node in enumerate(ops[1:], 1):
        if node.op != "add":
            continue
        flow = _flow_operand(node)
        other = "b" if flow == "a" else "a"
        source = quantized_source(node, other, node.operands[other])
        shapes = (node.operands[other].type.shape, node.result.type.shape)
        # Kernels add tensors of the result's shape: a broadcast summand is another kernel.
        if source is None or source.type.quant is None or shapes[0] != shapes[1]:
            return None
        summands[i] = source
    return ChainMatch(ops, sources, quantize, summands)


def _is_float_data(node: Node, slot: str, value: Value) -> bool:
    """Returns whether an operand is the float data of a product."""
    data = node.op in INTEGER_SUM_LAYERS and slot == spec(node.op).traits.data
    return data and value.type.quant is None and value.node.op != "dequantize"


def bias_slot(op: str) -> str | None:
    """Returns the bias slot of an op, also of transposed convolutions, whose bias stays float."""
    return "bias" if op in TRANSPOSED_CONVOLUTIONS else spec(op).traits.bias


def quantized_source(
    node: Node, slot: str, value: Value, *, computed_parameters: bool = False
) -> Value | None:
    """Returns the quantized value before an operand's dequantize, or None.

    Returns the operand itself where a kernel reads floats, shapes or indices. With
    `computed_parameters` scale and zero point may be computed at run time.
    """
    traits = spec(node.op).traits
    # Indices and shapes are plain integers to every kernel.
    if (node.op, slot) in INDEX_SLOTS:
        return value
    if value.type.quant is not None:
        return None
    if value.node.op != "dequantize":
        # Runtimes quantize such constants themselves when they build the kernel.
        may_be_float = bias_slot(node.op) == slot or slot in NORM_SLOTS
        return value if may_be_float and value.constant is not None else None
    source = value.node.operands["x"]
    quant = source.type.quant
    if quant is None or not _is_uniform_integer(quant, computed_parameters=computed_parameters):
        return None
    if node.op in TRANSPOSED_CONVOLUTIONS and slot == bias_slot(node.op):
        return source if source.constant is not None and quant.axis in (None, 0) else None
    if quant.granularity is None:
        return source
    if node.op in TRANSPOSED_CONVOLUTIONS and slot == "w" and node.attrs["groups"] == 1:
        return source if source.constant is not None and quant.axis == 1 else None
    # Several scales are those of weights: data have one for the whole tensor.
    if source.constant is None or traits.weight_axis is None:
        return None
    if slot == traits.bias:
        return source if quant.axis in (0, source.type.rank - 1) else None
    channel_axis = traits.weight_axis(make_call(node.op, node.operands, node.attrs))
    return source if slot == traits.weight and quant.axis == channel_axis else None


def _is_uniform_integer(quant: QuantType, *, computed_parameters: bool = False) -> bool:
    """Returns whether a type is (q - zero) * scale with an integer zero point, as kernels need."""
    known = computed_parameters or not quant.dynamic
    is_integer = quant.storage.is_integer and known and not quant.has_float_zero
    return is_integer and quant.kind == "uniform" and quant.plus is None


def only_moves_quantized(match: ChainMatch) -> bool:
    """Returns whether a kernel only moves quantized values, without changing their type."""
    traits = spec(match.anchor.op).traits
    if not traits.same_params or match.result is None or len(match.ops) > 1:
        return False
    types = [
        match.operands[s].type.quant
        for s in match.operands
        if s.split(".")[0] in traits.same_params
    ]
    return all(q is not None and q.has_same_mapping(match.result) for q in types)


def accumulator_scale(
    node: Node | Stage, operands: Mapping[str, Value]
) -> NDArray[np.float32] | None:
    """Returns fl32(input scale x weight scale): the scale of the accumulator."""
    traits = spec(node.op).traits
    x, w = operands[traits.data].type.quant, operands[traits.weight or ""].type.quant
    if x is None or w is None:
        return None
    # A float32 product, as files store the scale of an int32 bias.
    return np.asarray(np.float32(x.scales()) * np.asarray(w.scales(), np.float32), np.float32)


def has_accumulator_bias(match: ChainMatch) -> bool:
    """Returns whether the bias, if any, is i32 with the accumulator's scale and zero point 0."""
    if match.bias is None:
        return True
    quant = match.bias.type.quant
    if match.bias.constant is None or quant is None or quant.storage != I32:
        return False
    unit = accumulator_scale(match.anchor, match.operands)
    if unit is None or np.any(quant.zeros()):
        return False
    shape = np.broadcast_shapes(unit.shape, np.shape(quant.scales()))
    return bool(np.all(np.broadcast_to(unit, shape) == np.broadcast_to(quant.scales(), shape)))


def _replace_by_kernel(graph: Graph, match: ChainMatch, rules: Profile | None) -> None:
    anchor, last = match.anchor, match.last
    kernel_profile = profile_in(graph, anchor.profile) if anchor.profile else rules
    operands = {
        slot: _bias_as_computed(graph, match, slot, value, kernel_profile)
        for slot, value in match.operands.items()
    }
    # The kernel computes in float, so its bias is the float operand, not the integers before it.
    if match.has_float_data:
        bias = spec(anchor.op).traits.bias
        operands |= {slot: value for slot, value in anchor.operands.items() if slot == bias}
    result_type = last.result.type
    # A single op becomes the op on quantized values; a chain becomes a group of stages.
    if len(match.ops) == 1:
        node = _add_node(
            graph,
            anchor.op,
            operands,
            anchor.attrs,
            types=[result_type],
            before=last,
            origins=anchor.origins,
            profile=anchor.profile,
        )
    else:
        stages = [_stage(match, i, tuple(operands)) for i in range(len(match.ops))]
        operands |= {f"{i}.b": value for i, value in match.summands.items()}
        node = _add_chain(graph, stages, operands, result_type, before=last, profile=anchor.profile)
    for slot, value in anchor.operands.items():
        if value.node.op == "dequantize":
            _set_slot_origins(graph, node, slot, value.node.origins)
    # The dequantizes of summands go away; their origins stay as those of the kernel's slots.
    for i in match.summands:
        flow = _flow_operand(match.ops[i])
        other = match.ops[i].operands["b" if flow == "a" else "a"]
        _set_slot_origins(graph, node, f"{i}.b", other.node.origins)
    if match.quantize:
        _set_slot_origins(graph, node, "result", match.quantize.origins)
    _substitute(graph, last, node.result)
    # From the end, so that each op has lost its reader before it is looked at.
    for fused in reversed(match.ops):
        if fused is not last and not fused.used:
            _remove(graph, fused)


def _stage(match: ChainMatch, place: int, first: tuple[str, ...]) -> Stage:
    """Returns an op of the chain as a stage of the kernel."""
    node = match.ops[place]
    if place == 0:
        return Stage(node.op, node.attrs, first, None, None, node.name, node.origins)
    summed = place in match.summands
    own, flow = (("b",), "a") if summed else ((), "x")
    return Stage(node.op, node.attrs, own, flow, None, node.name, node.origins)


def _bias_as_computed(
    graph: Graph, match: ChainMatch, slot: str, value: Value, rules: Profile | None
) -> Value:
    """Adds the bias as the kernel reads it; returns any other operand as it is.

    There are three cases, by `bias.domain` of the profile's rule:

    1. `rescaled_acc`: the kernel reads a quantized bias with a scale of its own.
    2. `real_after`, and transposed convolutions: the bias is float.
    3. Others: plain i32 or i64 in units of the accumulator, without a quantized type.
    """
    if slot != bias_slot(match.anchor.op) or value.constant is None or match.has_float_data:
        return value
    data = value.constant.data
    rule = rules.resolve(match.query) if rules else Rule()
    if rules and value.type.quant and _takes_scaled_bias(match, rules):
        return value
    if rules and (rule.bias.domain == "real_after" or match.anchor.op in TRANSPOSED_CONVOLUTIONS):
        if value.type.quant is None:
            return value
        # The runtime dequantizes the bias when it builds the kernel, by its own rule.
        floats = dequantize_by_profile(rules, data, value.type.quant).astype(np.float32)
        raw = Array(floats, TensorType(value.type.shape, F32), value.constant.name)
    else:
        keeps_integers = rule.bias.domain != "rounded_acc" or has_accumulator_bias(match)
        if rules and value.type.quant and not keeps_integers:
            data = _quantized_bias(
                match, dequantize_by_profile(rules, data, value.type.quant), rule, rules
            )
        elif value.type.quant is None:
            data = _quantized_bias(match, data, rule, rules)
        raw = Array(data, TensorType(data.shape, dtype_of(data)), value.constant.name)
    constant = _add_node(
        graph,
        "constant",
        None,
        {"data": raw},
        types=(raw.type,),
        name=f"{value.name}.raw",
        before=match.anchor,
        origins=value.node.origins,
    ).result
    _set_lineage(graph, constant, value.lineage)
    return constant


def _takes_scaled_bias(match: ChainMatch, rules: Profile) -> bool:
    """Returns whether a kernel reads a quantized bias with a scale of its own."""
    return rules.resolve(match.query).bias.domain == "rescaled_acc"


def _quantized_bias(
    match: ChainMatch, bias: NDArray[np.generic], rule: Rule, rules: Profile | None
) -> NDArray[np.signedinteger]:
    """Returns the integers that the runtime makes of a float bias when it builds the kernel."""
    traits = spec(match.anchor.op).traits
    x = match.operands[traits.data].type.quant
    w = match.operands[traits.weight or ""].type.quant
    assert x is not None
    assert w is not None
    return quantize_bias(np.asarray(bias, np.float64), affine_of(x), affine_of(w), rule)

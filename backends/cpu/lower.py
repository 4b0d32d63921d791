"""Lowers a graph with known sizes to steps: to compiled kernels where they exist, else to the
reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from qir._kernels._cpu import Plan
from qir.analysis.kernel_groups import is_float
from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.profiles import profile, query_for_node
from qir.profiles.profile import differences
from qir.reference.interpreter import rules_of, run_node
from qir.reference.quantized import with_node_rounding
from qir.target import See

from . import (
    bodies,
    by_rule,
    data_movement,
    elementwise,
    float64_sums,
    float_chains,
    floats,
    gathers,
    general_quantize,
    lookup_tables,
    normalizations,
    pixels,
    plain_elements,
    pointwise_chains,
    pools,
    products,
    recurrent,
    transposed,
)
from .builder import BodyProgram, Buffer, CannotLower, Fallback, MeanSource, ProgramBuilder, sizes
from .kernel_types import KERNEL_PROFILE, Job, byte_parameters, job_of
from .sizes import Sizes

LOWERINGS: dict[str, Callable[[ProgramBuilder, Job], None]] = {
    "conv2d": products.conv2d,
    "conv1d": products.conv1d,
    "conv3d": products.conv3d,
    "gemm": products.gemm,
    "matmul": products.matmul,
    "linear": products.linear,
    "add": elementwise.add,
    "mul": elementwise.mul,
    "sub": elementwise.float_binary,
    "div": elementwise.float_binary,
    "max_pool2d": pools.max_pool2d,
    "avg_pool2d": pools.avg_pool2d,
    "global_avg_pool": pools.global_avg_pool,
    "reduce_mean": pools.reduce_mean,
    "reduce_max": pools.reduce_max,
    "global_max_pool": pools.reduce_max,
    "softmax": normalizations.softmax,
    "layer_norm": normalizations.layer_norm,
    "quantize": data_movement.quantize,
    "dequantize": data_movement.dequantize,
    "reshape": data_movement.reshape,
    "flatten": data_movement.reshape,
    "identity": data_movement.reshape,
    "squeeze": data_movement.reshape,
    "unsqueeze": data_movement.reshape,
    "transpose": data_movement.transpose,
    "slice": data_movement.slice_axes,
    "gather": gathers.gather,
    "expand": data_movement.expand,
    "concat": data_movement.concat,
    "pad": gathers.pad,
    "depth_to_space": pixels.depth_to_space,
    "space_to_depth": pixels.space_to_depth,
    "resize_nearest": pixels.resize_nearest,
}
"""Lowerings to the int8 kernels, and to kernels that move bytes."""

SLOWER_LOWERINGS: dict[str, Callable[[ProgramBuilder, Job], None]] = {
    **plain_elements.LOWERINGS,
    **float64_sums.LOWERINGS,
    **general_quantize.LOWERINGS,
    **dict.fromkeys(("flip", "tile", "slice"), gathers.rearranged),
    **dict.fromkeys(("max_pool1d", "avg_pool1d"), floats.pool1d),
    "avg_pool2d": floats.avg_pool2d,
    "global_avg_pool": floats.global_avg_pool,
}
"""Lowerings that are tried second: they accept more types and attributes."""
MULTI_RESULT_LOWERINGS: dict[str, Callable[[ProgramBuilder, Node], None]] = {
    "split": data_movement.split,
    "top_k": plain_elements.top_k,
    "choose_qparams": general_quantize.choose_qparams,
}
"""Lowerings of ops with several results."""

ACCEPTED_METHOD_PARAMS = {"softmax": frozenset({"quotient"})}
"""Method parameters that a kernel implements whatever their value."""


MOVE_METHOD_OPS = frozenset(
    {
        "slice",
        "split",
        "gather",
        "squeeze",
        "unsqueeze",
        "expand",
        "identity",
        "depth_to_space",
        "space_to_depth",
        "resize_nearest",
    }
)
"""Ops whose kernels copy integers, so that a profile's method "move" and no method are the same.

The trait `value_preserving` also covers pools, concat and pad, where a method may requantize.
"""


def lower(
    graph: Graph,
    watched: Collection[str] = (),
    see: See | None = None,
    *,
    is_float_model: bool | None = None,
    compile: Callable[[Graph, bool], BodyProgram] | None = None,
) -> ProgramBuilder:
    """Returns a builder with a step for every node that an output needs.

    `see` is called with each watched value once it is computed. `is_float_model` says of a body
    whether the graph around it has no quantized values either; `compile` compiles bodies.
    """
    builder = ProgramBuilder(
        graph, is_float(graph) and is_float_model is not False, frozenset(watched)
    )
    if compile is not None and not watched:
        builder.compile = lambda body: compile(body, builder.is_float)
    # A table replaces the values between its root and its result, so that nobody could observe
    # them.
    table_of = {} if watched else lookup_tables.lookup_tables(graph)
    builder.means.update(_quantized_means(builder, table_of))
    needed = lookup_tables.needed_values(graph, table_of, builder.means)
    for node in graph:
        watched_results = [value for value in node.results if value.name in builder.watched]
        if node.op == "input":
            value = node.result
            builder.allocate(value).input = value.name
        # Computed by the step of an earlier node.
        elif node.name in builder.fused:
            continue
        elif node.op not in ("constant", "output") and (
            watched_results or not needed.isdisjoint(node.results)
        ):
            # A dequantize kernel also changes the layout, so it is better than a table of floats.
            table = table_of.get(node.results[0])
            if table is None or _is_plain_dequantize(node, table):
                _lower(builder, node)
            else:
                elementwise.lower_by_table(builder, node, table)
        for value in watched_results:
            assert see is not None
            _add_observer_step(builder, value, see)
    for name, value in graph.outputs.items():
        _mark_output(builder, name, value)
    builder.steps = float_chains.joined_convolutions(builder.steps)
    builder.steps = pointwise_chains.joined_chains(builder.steps)
    return builder


def _add_observer_step(b: ProgramBuilder, value: Value, see: See) -> None:
    """Adds a call of `see` with a value's array."""
    source, (kind, shape) = b.buffer(value), _dtype_and_shape(value)
    b.add(
        value.name,
        "call",
        [source],
        [],
        shape,
        lambda plan, at: plan.call(
            value.name, partial(see, value.name), [(at(source), kind, shape)], []
        ),
    )


def _quantized_means(
    b: ProgramBuilder, table_of: Mapping[Value, lookup_tables.ByteTable]
) -> Iterator[tuple[Value, MeanSource]]:
    """Yields the means that a kernel computes from a quantized tensor."""
    for node in b.graph:
        mean = pools.quantized_mean_source(node, table_of)
        if mean is not None:
            with suppress(CannotLower):
                if mean.table is None:
                    _method_params(b, node.operands["x"].node)
                yield node.result, mean


def _is_plain_dequantize(node: Node, table: lookup_tables.ByteTable) -> bool:
    """Returns whether a node dequantizes the root of its table itself."""
    return node.op == "dequantize" and node.operands["x"] is table.root


def _lower(b: ProgramBuilder, node: Node) -> None:
    """Lowers a node to a kernel, or to a call of the reference where every kernel refuses it."""
    if general_quantize.fold_constant_dequantize(b, node):
        return
    try:
        if node.op in MULTI_RESULT_LOWERINGS and not node.stages:
            _method_params(b, node)
            MULTI_RESULT_LOWERINGS[node.op](b, node)
            return
        if node.op in recurrent.RECURRENT_OPS and not node.stages:
            recurrent.lower_layer(b, node)
            return
        if node.op in bodies.CONTROL_OPS:
            bodies.run_bodies(b, node)
            return
        if len(node.results) != 1:
            raise CannotLower("it has more than one result")
        _lower_single_result(b, node, _job(b, node))
    except CannotLower as reason:
        _fall_back(b, node, str(reason))


def _lower_single_result(b: ProgramBuilder, node: Node, job: Job) -> None:
    """Lowers an op with one result to the fastest kernel that accepts it."""
    fastest = (floats.LOWERINGS if floats.has_float_kernel(b, job) else LOWERINGS).get(job.op)
    if job.rule is not None:
        lowering = RULED_LOWERINGS.get(job.op, by_rule.lower_by_rule)
        lowering(b, job)
        return
    slower = SLOWER_LOWERINGS.get(job.op)
    candidates = [lowering for lowering in (fastest, slower) if lowering is not None]
    if not candidates:
        raise CannotLower(_no_kernel_reason(node))
    refusals: list[CannotLower] = []
    # A refusal adds no step, so that the next lowering starts from the same state.
    for lowering in candidates:
        try:
            lowering(b, job)
            return
        except CannotLower as reason:
            refusals.append(reason)
    # The slower kernel accepts more, so its reason is the one to remedy; but it takes floats alone,
    # which says nothing of a layer of quantized values.
    takes_quantized = any(value.type.quant for value in job.operands.values())
    raise refusals[0 if takes_quantized else -1]


def _no_kernel_reason(node: Node) -> str:
    """Returns why an op without a kernel of its own has no lookup table either."""
    if lookup_tables.is_pointwise(node.op) and len(node.operands) == 1:
        ((slot, value),) = node.operands.items()
        byte_parameters(value, slot)
    return "it has no kernel"


RULED_LOWERINGS: dict[str, Callable[[ProgramBuilder, Job], None]] = {
    **{op: LOWERINGS[op] for op in ("conv1d", "conv2d", "conv3d", "linear", "gemm", "matmul")},
    "conv_transpose2d": transposed.conv_transpose2d,
}
"""Ops whose lowerings compute by the rule of any profile, as far as there are kernels for it."""


def _job(b: ProgramBuilder, node: Node) -> Job:
    """Returns a node as a job, with the rule of its profile where the kernels' own is another."""
    job = job_of(node)
    try:
        params = _method_params(b, node)
        if job.summand is not None:
            raise CannotLower(f"no kernel computes {job.op} |> add as one by its profile")
        return replace(job, params=params)
    except CannotLower:
        rules = rules_of(b.graph, node).on_processor()
        rule = rules.resolve(query_for_node(node))
        if job.op not in RULED_LOWERINGS and not by_rule.lowers(job.op, rule):
            raise
        if job.op in ("conv1d", "conv3d") and rule.method and rule.method.name == "as_conv2d":
            rule = replace(rule, method=None)  # lines and volumes are images here, too
        return replace(job, rules=rules, rule=rule)


def _method_params(b: ProgramBuilder, node: Node) -> Mapping[str, object]:
    """Returns the parameters of the method by which a node's profile computes it.

    Raises CannotLower where that profile differs from the kernels' own.
    """
    kinds = [value.type for value in (*node.operands.values(), *node.results)]
    if not any(kind.quant for kind in kinds):
        return {}  # profiles are about quantized values
    if _moves_alone(b, node):
        return {}  # whatever a profile says, bytes stay
    rules = rules_of(b.graph, node).on_processor()  # as the reference computes it here
    name, query = rules.name, query_for_node(node)
    kernel_rule, rule = profile(KERNEL_PROFILE).resolve(query), rules.resolve(query)
    if node.op in ("quantize", "requantize"):
        rule = with_node_rounding(rule, node.attrs)
    differing = differences(kernel_rule, rule)
    if node.op == "quantize" and node.attrs["round"] == "away":
        differing.pop("quantize.round", None)  # the general kernel knows both
    if node.op == "dequantize":  # all that its kernel reads
        differing = {k: v for k, v in differing.items() if k.split(".")[0] in _DEQUANTIZE}
    if node.op in MOVE_METHOD_OPS and {r.method.name for r in (kernel_rule, rule) if r.method} <= {
        "move"
    }:
        differing.pop("method", None)
    if kernel_rule.method and rule.method and kernel_rule.method.name == rule.method.name:
        changed = dict(kernel_rule.method.params.items() ^ rule.method.params.items())
        if changed.keys() <= ACCEPTED_METHOD_PARAMS.get(node.op, frozenset()):
            differing.pop("method", None)
    if differing and name == KERNEL_PROFILE:
        raise CannotLower(f"it states itself that it rounds by {node.attrs['round']!s}")
    if differing:
        raise CannotLower(f"profile {name} computes it otherwise: {', '.join(differing)}")
    return rule.method.params if rule.method else {}


_DEQUANTIZE = frozenset({"dequantize", "params", "method"})
"""The parts of a rule that decide what a dequantize gives."""
_FILLING_OPS = frozenset({"pad", "unfold"})
"""Ops that put other elements next to those that they move."""


def _fills_by_rule(node: Node) -> bool:
    """Returns whether a rule decides what a node fills with; 0 is the zero point by all of them."""
    if node.op != "pad":
        return node.op in _FILLING_OPS
    return node.attrs["mode"] == "constant" and node.attrs["value"] != 0.0


def _moves_alone(b: ProgramBuilder, node: Node) -> bool:
    """Returns whether a node moves bytes of one static type, by no method or one that does that."""
    traits = spec(node.op).traits
    if not traits.value_preserving or _fills_by_rule(node) or node.stages:
        return False
    moved = [v for s, v in node.operands.items() if s.partition(".")[0] in traits.same_params]
    quants = [v.type.quant for v in (*moved, *node.results)]
    known = [quant for quant in quants if quant is not None and not quant.dynamic]
    if not moved or len(known) < len(quants) or not all(map(known[0].has_same_mapping, known)):
        return False
    if known[0].granularity is not None:
        return False
    method = rules_of(b.graph, node).on_processor().resolve(query_for_node(node)).method
    # By floats, bytes of one type come back as they are; so does the zero that a pad fills with.
    return method is None or method.name == "move" or (node.op == "pad" and method.name == "reals")


def _fall_back(b: ProgramBuilder, node: Node, reason: str) -> None:
    """Adds a call of the reference for a node, and records why no kernel computes it."""
    op = " |> ".join(s.op for s in node.stages) or node.op
    b.fallbacks.append(Fallback(node.name, op, reason))
    constants = {s: v.constant.data for s, v in node.operands.items() if v.constant is not None}
    slots = [s for s in node.operands if s not in constants]
    sources = [b.buffer(node.operands[s]) for s in slots]
    outputs = [b.allocate(v) for v in node.results]
    operands = [_dtype_and_shape(node.operands[s]) for s in slots]
    results = [_dtype_and_shape(v) for v in node.results]
    rules = rules_of(b.graph, node).on_processor()

    def call(*arrays: NDArray[np.generic]) -> None:
        # Operands go to the reference in the order of the node's slots.
        arrays_by_slot = constants | dict(zip(slots, arrays, strict=False))
        try:
            ordered = {slot: arrays_by_slot[slot] for slot in node.operands}
            computed = run_node(node, ordered, rules)
        except QirError as error:
            where = f" ({node.origins[0]})" if node.origins else ""
            raise type(error)(f"{node.name}{where}: {error}") from error
        for out, result in zip(arrays[len(slots) :], computed, strict=True):
            out[...] = result

    def add(plan: Plan, at: Callable[[Buffer], int]) -> None:
        plan.call(
            node.name,
            call,
            [(at(x), kind, shape) for x, (kind, shape) in zip(sources, operands, strict=True)],
            [(at(y), kind, shape) for y, (kind, shape) in zip(outputs, results, strict=True)],
        )

    b.add(node.name, "call", sources, outputs, results[0][1] if results else (), add)


def _dtype_and_shape(value: Value) -> tuple[np.dtype[np.generic], Sizes]:
    """Returns the element type and shape of a value's array."""
    return value.type.dtype.carrier, sizes(value)


def _mark_output(b: ProgramBuilder, name: str, value: Value) -> None:
    """Lets the step that computes a result write it to the caller's array."""
    computed = b.buffer(value)
    # A constant, an input or another output cannot also be this array: copy it.
    if computed.external:
        result = Buffer(computed.size)
        data_movement.copy(b, name, computed, result, sizes(value))
        computed = result
    computed.output = name

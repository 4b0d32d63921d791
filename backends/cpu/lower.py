"""Lowers a graph with known sizes to steps: kernels where there are any, else the reference."""

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
from qir.profiles import profile, query_for_node
from qir.profiles.processor import on_processor
from qir.profiles.profile import differences
from qir.reference.interpreter import profile_of, run_node
from qir.target import See

from . import (
    affine,
    bodies,
    elementwise,
    floats,
    gathers,
    moves,
    pixels,
    products,
    recurrent,
    rows,
    tables,
    tensors,
    wide,
    windows,
)
from .builder import Buffer, CannotLower, Fallback, MeanSource, ProgramBuilder, Runs, sizes
from .codes import PROFILE, Job, codes, job
from .sizes import Sizes

LOWERINGS: dict[str, Callable[[ProgramBuilder, Job], None]] = {
    "conv2d": products.conv2d,
    "conv1d": products.conv1d,
    "gemm": products.gemm,
    "matmul": products.matmul,
    "linear": products.linear,
    "add": elementwise.add,
    "mul": elementwise.mul,
    "sub": elementwise.real,
    "div": elementwise.real,
    "max_pool2d": windows.max_pool2d,
    "avg_pool2d": windows.avg_pool2d,
    "global_avg_pool": windows.global_avg_pool,
    "reduce_mean": windows.reduce_mean,
    "softmax": rows.softmax,
    "layer_norm": rows.layer_norm,
    "quantize": moves.quantize,
    "dequantize": moves.dequantize,
    "reshape": moves.reshape,
    "flatten": moves.reshape,
    "identity": moves.reshape,
    "squeeze": moves.reshape,
    "unsqueeze": moves.reshape,
    "transpose": moves.transpose,
    "slice": moves.part,
    "gather": gathers.gather,
    "expand": moves.expand,
    "concat": moves.concat,
    "pad": gathers.pad,
    "depth_to_space": pixels.depth_to_space,
    "space_to_depth": pixels.space_to_depth,
    "resize_nearest": pixels.resize_nearest,
}

GENERAL: dict[str, Callable[[ProgramBuilder, Job], None]] = {
    **tensors.LOWERINGS,
    **wide.LOWERINGS,
    **affine.LOWERINGS,
    **dict.fromkeys(("flip", "tile", "slice"), gathers.arranged),
    **dict.fromkeys(("max_pool1d", "avg_pool1d"), floats.pool1d),
    "avg_pool2d": floats.avg_pool2d,
    "global_avg_pool": floats.global_avg_pool,
}
"""Lowerings to slower kernels, which take what those above do not."""
SEVERAL: dict[str, Callable[[ProgramBuilder, Node], None]] = {
    "split": moves.split,
    "top_k": tensors.top_k,
    "choose_qparams": affine.choose,
}
"""Ops with several results."""

CHOICES = {"softmax": frozenset({"quotient"})}
"""Parameters of an op's method that its kernel takes in every value."""


MOVES = frozenset(
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
"""Ops that only move values of one quantized type: a profile that says so and one that says nothing
agree."""


def lower(
    graph: Graph,
    watched: Collection[str] = (),
    see: See | None = None,
    *,
    real: bool | None = None,
    compile: Callable[[Graph, bool], Runs] | None = None,
) -> ProgramBuilder:
    """Returns every node that is needed as steps; its results are marked as the program's outputs.

    `see` is called with each of the watched values as it is made. `real` says of a body whether
    nothing around it is quantized either, and `compile` makes a program of one.
    """
    b = ProgramBuilder(graph, is_float(graph) and real is not False, frozenset(watched))
    if compile is not None and not watched:
        b.compile = lambda body: compile(body, b.real)
    images = {} if watched else tables.images(graph)
    b.means.update(_means(b, images))
    needed = tables.needed(graph, images, b.means)
    for node in graph:
        shown = [value for value in node.results if value.name in b.watched]
        if node.op == "input":
            value = node.result
            b.make(value).input = value.name
        elif node.name in b.fused:
            continue
        elif node.op not in ("constant", "output") and (
            shown or not needed.isdisjoint(node.results)
        ):
            image = images.get(node.results[0])
            if image is None or _converts(node, image):
                _lower(b, node)
            else:
                elementwise.by_table(b, node, image)
        for value in shown:
            assert see is not None
            _show(b, value, see)
    for name, value in graph.outputs.items():
        _give(b, name, value)
    return b


def _show(b: ProgramBuilder, value: Value, see: See) -> None:
    source, (kind, shape) = b.need(value), _operand(value)
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


def _means(
    b: ProgramBuilder, images: Mapping[Value, tables.Image]
) -> Iterator[tuple[Value, MeanSource]]:
    """Yields the results that are means of dequantized values."""
    for node in b.graph:
        mean = windows.mean_of(node, images)
        if mean is not None:
            with suppress(CannotLower):
                if mean.table is None:
                    _params(b, node.operands["x"].node)
                yield node.result, mean


def _converts(node: Node, image: tables.Image) -> bool:
    """Returns whether a node is a plain dequantize, whose kernel also changes the layout."""
    return node.op == "dequantize" and node.operands["x"] is image.root


def _lower(b: ProgramBuilder, node: Node) -> None:
    if affine.constant(b, node):
        return
    try:
        if node.op in SEVERAL and not node.stages:
            _params(b, node)
            SEVERAL[node.op](b, node)
            return
        if node.op in recurrent.OPS and not node.stages:
            recurrent.layer(b, node)
            return
        if node.op in bodies.OPS:
            bodies.run_bodies(b, node)
            return
        if len(node.results) != 1:
            raise CannotLower("it has more than one result")
        _one(b, node, replace(job(node), params=_params(b, node)))
    except CannotLower as reason:
        _fall_back(b, node, str(reason))


def _one(b: ProgramBuilder, node: Node, asked: Job) -> None:
    """Lowers an op of one result to the best kernel that takes it."""
    own = (floats.LOWERINGS if floats.takes(b, asked) else LOWERINGS).get(asked.op)
    other = GENERAL.get(asked.op)
    found = [lowering for lowering in (own, other) if lowering is not None]
    if not found:
        raise CannotLower(_lacking(node))
    for lowering in found[:-1]:
        with suppress(CannotLower):
            lowering(b, asked)
            return
    found[-1](b, asked)


def _lacking(node: Node) -> str:
    """Returns why an op without a kernel of its own is no table either."""
    if tables.pointwise(node.op) and len(node.operands) == 1:
        ((slot, value),) = node.operands.items()
        codes(value, slot)
    return "it has no kernel"


def _params(b: ProgramBuilder, node: Node) -> Mapping[str, object]:
    """Returns the parameters of the method by which a node is computed.

    CannotLower for a node whose profile computes it otherwise than the kernels do.
    """
    kinds = [value.type for value in (*node.operands.values(), *node.results)]
    if not any(kind.quant for kind in kinds):
        return {}  # profiles are about quantized values
    if node.op in ("quantize", "requantize") and node.attrs["round"]:
        raise CannotLower("it states itself how it rounds")
    name = profile_of(b.graph, node)
    query = query_for_node(node)
    with on_processor([name]):  # as the reference computes it here
        ours, theirs = profile(PROFILE).resolve(query), profile(name).resolve(query)
    other = differences(ours, theirs)
    if node.op in MOVES and {r.method.name for r in (ours, theirs) if r.method} <= {"move"}:
        other.pop("method", None)
    if ours.method and theirs.method and ours.method.name == theirs.method.name:
        changed = dict(ours.method.params.items() ^ theirs.method.params.items())
        if changed.keys() <= CHOICES.get(node.op, frozenset()):
            other.pop("method", None)
    if name != PROFILE and other:
        raise CannotLower(f"profile {name} computes it otherwise: {', '.join(other)}")
    return theirs.method.params if theirs.method else {}


def _fall_back(b: ProgramBuilder, node: Node, reason: str) -> None:
    op = " |> ".join(s.op for s in node.stages) or node.op
    b.fallbacks.append(Fallback(node.name, op, reason))
    constants = {s: v.constant.data for s, v in node.operands.items() if v.constant is not None}
    slots = [s for s in node.operands if s not in constants]
    sources = [b.need(node.operands[s]) for s in slots]
    made = [b.make(v) for v in node.results]
    operands = [_operand(node.operands[s]) for s in slots]
    results = [_operand(v) for v in node.results]
    computes_as = profile_of(b.graph, node)

    def call(*arrays: NDArray[np.generic]) -> None:
        given = constants | dict(zip(slots, arrays, strict=False))
        try:
            with on_processor([computes_as]):
                sorted_ones = {slot: given[slot] for slot in node.operands}
                computed = run_node(node, sorted_ones, computes_as)
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
            [(at(y), kind, shape) for y, (kind, shape) in zip(made, results, strict=True)],
        )

    b.add(node.name, "call", sources, made, results[0][1] if results else (), add)


def _operand(value: Value) -> tuple[np.dtype[np.generic], Sizes]:
    return value.type.dtype.carrier, sizes(value)


def _give(b: ProgramBuilder, name: str, value: Value) -> None:
    """Lets the step that makes a result write it to the caller, or copies what is not its own."""
    held = b.need(value)
    if held.external:
        own = Buffer(held.size)
        moves.copy(b, name, held, own, sizes(value))
        held = own
    held.output = name

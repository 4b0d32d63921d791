"""Compares each integer tensor of a network with what a target's runtime computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import qir
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from qir.target import Target

Arrays = Mapping[str, NDArray[np.generic]]
TOLERANCE = 1e-4
"""Floats may be off by so much of the largest: sums are made in another order."""


@dataclass
class Comparison:
    """How many integers were compared, and those that differ, by tensor."""

    total: int = 0
    wrong: dict[str, int] = field(default_factory=dict)


def compare(target: Target, graph: Graph, inputs: Arrays) -> Comparison:
    """Compares a runtime with the reference, where the reference computes all by itself.

    Raises AssertionError for floats that are not near.
    """
    shown = _with_outputs(graph, _quantized_names(graph))
    return _compare_results(_grouped_graph(target, shown), target.compile(shown)(**inputs), inputs)


def compare_by_parts(target: Target, graph: Graph, inputs: Arrays) -> Comparison:
    """Compares likewise, but floats that are quantized are taken from the runtime.

    So one that is off by its last bit, as float sums are, moves no integer behind it.
    """
    grouped = _grouped_graph(target, _with_outputs(graph, _quantized_names(graph)))
    floats = [
        node.operands["x"].name
        for node in grouped
        if node.op == "quantize" and not node.stages and node.operands["x"].node.op != "input"
    ]
    shown = _with_outputs(graph, [*_quantized_names(graph), *floats])
    found = target.compile(shown)(**inputs)
    parts = _grouped_graph(target, shown)
    given = {}
    for name in dict.fromkeys(floats):
        value = parts[name]
        start = parts.add("input", types=[value.type], name=parts.fresh("given"), before=value.node)
        for use in list(value.uses):
            if use.node.op == "quantize":
                parts.set_operand(use.node, use.slot, start.result)
        data, shown_as = np.asarray(found[name]), parts.outputs[name].node
        last = shown_as.op == "transpose" and shown_as.operands["x"] is value
        last = last or data.shape != value.type.shape
        given[start.result.name] = np.moveaxis(data, 1, -1) if last else data
    return _compare_results(parts, found, {**inputs, **given})


def _quantized_names(graph: Graph) -> list[str]:
    return [node.result.name for node in graph if node.op == "quantize"]


def _with_outputs(graph: Graph, names: list[str]) -> Graph:
    """Returns a graph that gives these values too."""
    made = graph.copy()
    for name in dict.fromkeys(names):
        if name not in made.output.operands:
            made.set_operand(made.output, name, made[name])
    return made


def _grouped_graph(target: Target, graph: Graph) -> Graph:
    made = target.computed(graph, Ledger())
    return made or run_passes(graph, [Group(target.profile)], Ledger())


def _compare_results(grouped: Graph, found: Mapping[str, object], inputs: Arrays) -> Comparison:
    made = Comparison()
    for name, data in qir.run(grouped, inputs).items():
        ours, theirs = np.asarray(data), np.asarray(found[name])
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
        if ours.dtype.kind in "iu":
            made.total += ours.size
            if wrong := int((ours != theirs).sum()):
                made.wrong[name] = wrong
        else:
            near = TOLERANCE * float(np.abs(ours).max(initial=1e-30))
            assert float(np.abs(ours - theirs).max()) <= near, name
    return made

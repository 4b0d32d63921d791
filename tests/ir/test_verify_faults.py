"""One fault planted in a right graph is found, at its node and by its rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest

from qir.errors import QirError
from qir.inspect.overflow import overflow
from qir.ir.dtype import F16
from qir.ir.graph import Graph
from qir.ir.node import Node, Use, Value
from qir.ir.ops import spec
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.ir.verify import verify
from qir.target import target
from qir.testing import FORMS, random_graph

Planted: TypeAlias = "tuple[str, str] | None"
"""Rule and node; None where the graph has no place for the fault."""
Fault: TypeAlias = Callable[[random.Random, Graph], Planted]


def one(rng: random.Random, found: Iterable[Value | Node]) -> Value | Node | None:
    choices = list(found)
    return rng.choice(choices) if choices else None


def coded(rng: random.Random, graph: Graph) -> tuple[Value, QuantType] | None:
    """A value that holds integers."""
    value = one(rng, (v for v in graph.values.values() if v.type.quant))
    return (value, value.type.quant) if isinstance(value, Value) and value.type.quant else None


def retype(graph: Graph, value: Value, kind: QuantType) -> None:
    """Gives a value another map; a constant's elements too."""
    made = value.type.with_element(kind)
    if value.constant is not None:
        graph.set_attrs(value.node, data=Array(value.constant.data, made, value.constant.name))
    graph.set_type(value, made)


def wrong_zero(rng: random.Random, graph: Graph) -> Planted:
    if (found := coded(rng, graph)) is None:
        return None
    value, quant = found
    zero = rng.choice((quant.low - 1, quant.high + 1, quant.high + 1000))
    retype(graph, value, quant.with_parameters((0.5,), (zero,)))
    return "zero-in-bounds", value.node.name


def wrong_scale(rng: random.Random, graph: Graph) -> Planted:
    if (found := coded(rng, graph)) is None:
        return None
    value, quant = found
    count = np.asarray(quant.scales()).size
    scales = np.full(count, 0.5, np.float32)
    scales[rng.randrange(count)] = rng.choice((0.0, -0.5, np.inf, np.nan))
    held = Array.of(scales, "s") if quant.granularity else (float(scales[0]),)
    retype(graph, value, replace(quant, scale=held, scale_dtype=None))
    return "positive-scale", value.node.name


def wrong_count(rng: random.Random, graph: Graph) -> Planted:
    if (found := coded(rng, graph)) is None:
        return None
    value, quant = found
    sized = [i for i, d in enumerate(value.type.shape) if isinstance(d, int)]
    if not sized:
        return None
    axis = rng.choice(sized)
    size = value.type.shape[axis]
    assert isinstance(size, int)
    count = size + 1 + rng.randrange(3)
    if count == 1:
        return None
    scales = Array.of(np.full(count, 0.5, np.float32), "s")
    zeros = Array.of(np.full(count, quant.high - 1, np.int32), "z")
    zero: Array | tuple[int, ...] = zeros if rng.randrange(2) else ()
    retype(graph, value, quant.with_parameters(scales, zero, grain=Granularity(((axis, 1),))))
    return "axes", value.node.name


def wrong_shape(rng: random.Random, graph: Graph) -> Planted:
    values = (v for v in graph.values.values() if v.node.op not in STATED_TYPE_OPS - {"fused"})
    value = one(rng, (v for v in values if any(isinstance(d, int) for d in v.type.shape)))
    if not isinstance(value, Value):
        return None
    shape = list(value.type.shape)
    axis = rng.choice([i for i, d in enumerate(shape) if isinstance(d, int)])
    size = shape[axis]
    assert isinstance(size, int)
    shape[axis] = size + rng.choice((1, 7))
    graph.set_type(value, TensorType(tuple(shape), value.type.element))
    return "types", value.node.name


def wrong_rank(rng: random.Random, graph: Graph) -> Planted:
    values = (v for v in graph.values.values() if v.node.op not in STATED_TYPE_OPS - {"fused"})
    value = one(rng, values)
    if not isinstance(value, Value):
        return None
    graph.set_type(value, TensorType((*value.type.shape, 1), value.type.element))
    return "types", value.node.name


def wrong_element(rng: random.Random, graph: Graph) -> Planted:
    values = (
        v for v in graph.values.values() if v.node.op not in STATED_TYPE_OPS and not v.type.quant
    )
    value = one(rng, (v for v in values if v.type.dtype.is_float))
    if not isinstance(value, Value):
        return None
    graph.set_type(value, value.type.with_element(F16))
    return "types", value.node.name


def out_of_range_integers(rng: random.Random, graph: Graph) -> Planted:
    constants = (v for v in graph.values.values() if v.constant is not None and v.type.quant)
    value = one(rng, (v for v in constants if v.type.dtype.bits == 8))
    if not isinstance(value, Value) or value.constant is None or value.type.quant is None:
        return None
    data, quant = value.constant.data, value.type.quant
    least, most = int(data.min()), int(data.max())
    low, high = quant.storage.bounds
    bounds = (low, most - 1) if most - 1 > low and rng.random() < 0.5 else (least + 1, high)
    if not low <= bounds[0] < bounds[1] <= high or bounds[0] > 0 or bounds[1] < 0:
        return None
    retype(graph, value, replace(quant, bounds=bounds))
    return "codes-in-bounds", value.node.name


def wrong_move(rng: random.Random, graph: Graph) -> Planted:
    movers = (n for n in graph if not n.stages and n.op != "concat" and n.results)
    node = one(rng, (n for n in movers if spec(n.op).traits.same_params and n.result.type.quant))
    if not isinstance(node, Node) or (quant := node.result.type.quant) is None:
        return None
    scale = float(np.asarray(quant.scales()).reshape(-1)[0]) * 2
    retype(graph, node.result, quant.with_parameters((scale,), quant.zero))
    return "same-map", node.name


def wrong_bias(rng: random.Random, graph: Graph) -> Planted:
    def biases() -> Iterator[Node]:
        for node in graph:
            slot = spec(node.op).traits.bias
            value = node.operands.get(slot or "")
            if value is not None and value.node.op == "dequantize" and len(value.uses) == 1:
                yield node

    node = one(rng, biases())
    if not isinstance(node, Node):
        return None
    quantized = node.operands[spec(node.op).traits.bias or ""].node.operands["x"]
    quant = quantized.type.quant
    assert quant is not None
    near = np.nextafter(np.asarray(quant.scales()), np.float32(1))
    scale = Array.of(near, "s") if quant.granularity else (float(near),)
    retype(graph, quantized, replace(quant, scale=scale))
    return "bias-scale", node.name


def computed_weights(rng: random.Random, graph: Graph) -> Planted:
    def layers() -> Iterator[Node]:
        for node in graph:
            slots = [spec(s.op).traits.weight for s in node.stages[:1]] or [
                spec(node.op).traits.weight
            ]
            value = node.operands.get(slots[0] or "")
            if value is None or not (value.type.quant or value.node.op == "dequantize"):
                continue
            data = node.operands.get("x", node.operands.get("a"))
            if data is not None and (data.type.quant or data.node.op == "dequantize"):
                yield node

    node = one(rng, layers())
    if not isinstance(node, Node):
        return None
    slot = "w" if "w" in node.operands else "b"
    weight = node.operands[slot]
    source = weight.node.operands["x"] if weight.node.op == "dequantize" else weight
    given = graph.add("input", types=[source.type], name="given", before=source.node)
    graph.replace(source, given.result)
    return "static-weights", node.name


def missing_operand(rng: random.Random, graph: Graph) -> Planted:
    node = one(rng, (n for n in graph if n.op not in STATED_TYPE_OPS - {"fused"} and n.operands))
    if not isinstance(node, Node):
        return None
    needed = [s for s in node.operands if s not in ("bias", "c") and not s.startswith("xs")]
    if not needed:
        return None
    graph._unbind(node, rng.choice(needed))
    return "slots", node.name


def lost_use(rng: random.Random, graph: Graph) -> Planted:
    node = one(rng, (n for n in graph if n.operands))
    if not isinstance(node, Node):
        return None
    slot = rng.choice(list(node.operands))
    del node.operands[slot]._uses[Use(node, slot)]
    return "structure", node.name


def lost_output(rng: random.Random, graph: Graph) -> Planted:
    graph.remove(graph.output)
    return "output", graph.name


PLANTED, SEEDS = 15, 300
FAULTS: tuple[Fault, ...] = (
    wrong_zero,
    wrong_scale,
    wrong_count,
    wrong_shape,
    wrong_rank,
    wrong_element,
    out_of_range_integers,
    wrong_move,
    wrong_bias,
    computed_weights,
    missing_operand,
    lost_use,
    lost_output,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_a_planted_fault_is_found_by_its_rule_at_its_node(fault: Fault) -> None:
    planted = seed = 0
    while planted < PLANTED and seed < SEEDS:
        seed += 1
        graph = random_graph(seed, FORMS[seed % 3])
        assert {f.rule for f in verify(graph)} <= {"unused"}, f"seed {seed}"
        place = fault(random.Random(seed), graph)
        if place is None:
            continue
        planted += 1
        told = {(f.rule, f.node) for f in verify(graph)}
        assert place in told, f"seed {seed}: {place} is not among {told}\n{graph}"
    assert planted == PLANTED, f"only {planted} of {SEEDS} graphs take this fault"


def test_faults_upon_faults_are_findings_and_never_a_crash() -> None:
    """A fault may find no place in a graph that another has broken; the verifier has to."""
    for seed in range(90):
        rng, graph = random.Random(seed), random_graph(seed, FORMS[seed % 3])
        for fault in rng.sample(FAULTS, 4):
            with suppress(QirError, ValueError, KeyError, AssertionError):
                fault(rng, graph)
        assert all(f.rule for f in verify(graph)), f"seed {seed}"
        overflow(graph)
        for name in ("cpu", "onnxruntime"):
            target(name).verify(graph)

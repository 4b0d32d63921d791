"""A model that is not what QIR thinks: the comparisons of tests/differential find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.differential.comparison import read, reference_differences
from tests.differential.emission import (
    MOVES,
    Quantized,
    qdq_differences,
    qoperator_differences,
    quantized,
)
from tests.differential.models import Model, Taste, make
from tests.differential.networks import network
from tests.differential.runtime import exposing, run
from tests.installed import UNOPTIMIZED

PROFILE = UNOPTIMIZED
SEEDS = range(8)
Fault = Callable[[onnx.ModelProto], bool]


@cache
def emitted(seed: int) -> Quantized:
    return quantized(network(seed), "channel")


def copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    return out


def initializer(proto: onnx.ModelProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = next(t for t in proto.graph.initializer if t.name == name)
    return found


def channel_scales(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Scales of convolution weights, of more than one channel."""
    makers = {out: n for n in proto.graph.node for out in n.output}
    for node in proto.graph.node:
        if node.op_type == "QLinearConv":
            yield initializer(proto, node.input[4])
        elif node.op_type == "Conv" and node.input[1] in makers:
            yield initializer(proto, makers[node.input[1]].input[1])


def swap_two_channels(proto: onnx.ModelProto) -> bool:
    """The scales of the channels that differ most change places."""
    for tensor in channel_scales(proto):
        scales = numpy_helper.to_array(tensor).copy()
        if scales.ndim == 0 or scales.size < 2 or scales.max() < 1.5 * scales.min():
            continue
        low, high = int(scales.argmin()), int(scales.argmax())
        scales[[low, high]] = scales[[high, low]]
        tensor.CopyFrom(numpy_helper.from_array(scales, tensor.name))
        return True
    return False


def swap_a_share(proto: onnx.ModelProto) -> bool:
    """What is read with one scale was written with another: the operands' change places."""
    for node in proto.graph.node:
        if node.op_type == "QLinearAdd":
            first, second = node.input[1], node.input[4]
            one, other = (
                float(numpy_helper.to_array(initializer(proto, n))) for n in (first, second)
            )
            if abs(one - other) > 0.02 * one:
                node.input[1], node.input[4] = second, first
                return True
    return False


def unshare(proto: onnx.ModelProto) -> bool:
    """What only moves integers is given another scale for its result than for its operand."""
    made = {out: n for n in proto.graph.node for out in n.output}
    for node in proto.graph.node:
        mover = made.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        if mover is not None and mover.op_type in MOVES:
            name = f"{node.input[1]}_unshared"
            scale = numpy_helper.to_array(initializer(proto, node.input[1])) * np.float32(1.1)
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(scale), name))
            node.input[1] = name
            return True
    return False


def nudge_a_zero(proto: onnx.ModelProto) -> bool:
    """One result's zero point is one off."""
    for node in proto.graph.node:
        if node.op_type == "QLinearConv":
            name = f"{node.input[7]}_nudged"
            zero = numpy_helper.to_array(initializer(proto, node.input[7]))
            moved = (zero - 1 if zero == 255 else zero + 1).astype(zero.dtype)
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(moved), name))
            node.input[7] = name
            return True
    return False


def drop_a_bias(proto: onnx.ModelProto) -> bool:
    """A convolution without the bias that it had."""
    for node in proto.graph.node:
        if node.op_type == "QLinearConv" and len(node.input) > 8:
            del node.input[8:]
            return True
    return False


def seen(form: str, fault: Fault) -> tuple[int, int]:
    """In how many models a fault was planted, and in how many the comparison saw it."""
    planted = found = 0
    for seed in SEEDS:
        right = emitted(seed)
        wrong = copy(right.qoperator if form == "qoperator" else right.qdq)
        if not fault(wrong):
            continue
        planted += 1
        if form == "qoperator":
            differences, _ = qoperator_differences(replace(right, qoperator=wrong))
        else:
            differences, _ = qdq_differences(replace(right, qdq=wrong))
        found += bool(differences)
    return planted, found


@pytest.mark.parametrize("fault", [swap_two_channels, nudge_a_zero, swap_a_share, drop_a_bias])
def test_a_fault_in_a_written_qoperator_model_is_found(fault: Fault) -> None:
    planted, found = seen("qoperator", fault)
    assert planted, "no model takes this fault"
    assert found == planted


@pytest.mark.parametrize("fault", [swap_two_channels, unshare])
def test_a_fault_in_a_written_qdq_model_is_found(fault: Fault) -> None:
    planted, found = seen("qdq", fault)
    assert planted
    assert found == planted


def test_models_without_a_fault_are_not_found_wanting() -> None:
    assert seen("qoperator", lambda proto: True) == (len(SEEDS), 0)


def without_relu(model: Model) -> onnx.ModelProto | None:
    """The model less its first relu."""
    proto = copy(model.proto)
    for node in list(proto.graph.node):
        if node.op_type == "Relu":
            proto.graph.node.remove(node)
            for reader in proto.graph.node:
                for i, name in enumerate(reader.input):
                    if name == node.output[0]:
                        reader.input[i] = node.input[0]
            return proto
    return None


def test_a_dropped_relu_is_found() -> None:
    """In sums, which float32 rounds once: so that the relu alone makes the difference."""
    taste = Taste(ops=("add", "add_constant", "mul"), tails=1.0, loose=1.0, specials=0.0)
    planted = found = 0
    for seed in range(20):
        model = make(seed, taste, qdq=True)
        wrong = without_relu(model)
        if wrong is None:
            continue
        names = [n for n in model.names if n not in model.feeds]
        right = run(exposing(model, names), model.feeds, optimize=False)
        judge = run(exposing(replace(model, proto=wrong), names), model.feeds, optimize=False)
        graph, where = read(exposing(model, names)), f"seed {seed}"
        assert not reference_differences(where, graph, model.feeds, right, PROFILE)
        # Where nothing is below zero, a relu does nothing.
        if any(not np.array_equal(right[n], judge[n]) for n in right):
            planted += 1
            found += bool(reference_differences(where, graph, model.feeds, judge, PROFILE))
    assert planted > 5
    assert found == planted

"""Every tensor inside a written loop is TensorFlow's, in every round.

TensorFlow fetches no tensor from within a loop. Each value of a body is therefore stacked over the
rounds as a result of its own, and each node is held to what the reference computes of the operands
that TensorFlow had in that round.
"""

from collections.abc import Iterator

import numpy as np
import pytest

import qir
from qir.backends.tensorflow.writer.forms import converted
from qir.backends.tensorflow.writer.graphdef import to_graphdef
from qir.errors import Refused
from qir.ir.node import Node, Value
from qir.profiles.lookup import NamedProfile
from qir.reference.interpreter import run_node

from .written import Array, Feeds, compared_by_regions, in_a_child, quantized

tf = pytest.importorskip("tensorflow")
QUANTIZED = """graph main as native {
  %x = input() : 2x4xf32
  %count = constant(6) : i64
  %h, %parts = loop(count=%count, vs.0=%x, xs.0=%x) : 2x4xf32, (k)x2x4xf32 with body {
    %i = input() : i64
    %go = input() : bool
    %v = input() : 2x4xf32
    %given = input() : 2x4xf32
    %q = quantize(%v) {round = "away"} : 2x4x!quant.uniform<i8:f32, 0.0125>
    %d = dequantize(%q) : 2x4xf32
    %w = constant(@w) : 4x4x!quant.uniform<i8<-127:127>:f32, 0.01>
    %wd = dequantize(%w) : 4x4xf32
    %m = matmul(%d, %wd) : 2x4xf32
    %sum = add(%m, %given) : 2x4xf32
    %y = tanh(%sum) : 2x4xf32
    %yq = quantize(%y) {round = "away"} : 2x4x!quant.uniform<i8:f32, 0.0078125>
    %yd = dequantize(%yq) : 2x4xf32
    output(go=%go, v=%yd, part=%m)
  }
  output(h=%h, parts=%parts)
}"""


def _with_stacked_values(graph: qir.Graph) -> Iterator[tuple[Node, dict[str, str]]]:
    """Makes every value of the loops' bodies a stacked output; yields each loop with the names of
    these outputs by value.

    Quantized values are stacked dequantized, as TensorFlow stacks no integers of 8 bits that are
    quantized.
    """
    for node in [node for node in graph if node.op == "loop"]:
        body = graph.body(node).copy()
        inside = [value for value in body.values.values() if value.constant is None]
        for value in inside:
            seen = value
            if value.type.quant is not None:
                seen = body.add("dequantize", {"x": value}, before=body.output).result
            body.set_operand(body.output, f"seen.{value.name}", seen)
        loop = graph.add("loop", node.operands, before=node, bodies={"body": body})
        results, added = loop.results[: len(node.results)], loop.results[len(node.results) :]
        stacked = {value.name: f"{node.name}/{value.name}" for value in inside}
        for name, value in zip(stacked.values(), added, strict=True):
            graph.set_operand(graph.output, name, value)
        graph.substitute(node, *results)
        yield loop, stacked


def compared_rounds(made: qir.Graph, feeds: Feeds) -> tuple[int, int]:
    """Counts the rounds of loops and the integers in them; all are TensorFlow's."""
    whole = converted(made, qir.Ledger(), kernels=True)
    loops = list(_with_stacked_values(whole))
    written = to_graphdef(whole)
    found = {k: np.asarray(v) for k, v in in_a_child(written, feeds, written.outputs).items()}
    rounds = integers = 0
    for loop, stacked in loops:
        count = {len(found[name]) for name in stacked.values()}
        assert len(count) == 1
        for i in range(*count):
            body = whole.body(loop)
            theirs = {
                name: _stored(body[name], found[output][i]) for name, output in stacked.items()
            }
            integers += _held(body, theirs, whole.profile)
            rounds += 1
    return rounds, integers


def _stored(value: Value, data: Array) -> Array:
    """Returns the integers of a quantized value that was dequantized, and others as they are."""
    quant = value.type.quant
    if quant is None:
        return data
    integers: Array = np.rint(data / np.asarray(quant.scales())).astype(value.type.dtype.carrier)
    return integers


def _held(body: qir.Graph, theirs: dict[str, Array], profile: str) -> int:
    """Holds each node of a body to TensorFlow's values of one round; counts the integers."""
    integers = 0
    for node in body:
        if node.op in ("input", "constant", "output") or node.results[0].name not in theirs:
            continue
        operands = {
            slot: theirs[value.name] if value.constant is None else value.constant.data
            for slot, value in node.operands.items()
        }
        for value, data in zip(
            node.results, run_node(node, operands, NamedProfile(profile)), strict=True
        ):
            wanted = theirs[value.name]
            if data.dtype.kind == "f":
                limit = 1e-5 * np.abs(wanted).max()
                assert np.abs(np.subtract(data, wanted)).max() <= limit, value.name
            else:
                assert np.array_equal(data, wanted), value.name
                integers += data.size if value.type.quant else 0
    return integers


def test_quantized_values_inside_a_loop_are_tensorflows() -> None:
    w = np.random.default_rng(5).integers(-127, 128, (4, 4)).astype(np.int8)
    graph = qir.parse(QUANTIZED, {"w": w})
    x = np.random.default_rng(6).normal(size=(2, 4)).astype(np.float32)
    assert compared_rounds(graph, {"x": x}) == (6, 6 * 2 * 8)


def test_quantized_values_that_a_loop_stacks_are_refused() -> None:
    stacked = "(k)x2x4x!quant.uniform<i8:f32, 0.0125>"
    text = QUANTIZED.replace("part=%m", "part=%q").replace("(k)x2x4xf32", stacked)
    graph = qir.parse(text, {"w": np.zeros((4, 4), np.int8)})
    with pytest.raises(Refused, match="stacks no quantized values; dequantize them inside"):
        to_graphdef(converted(graph, qir.Ledger(), kernels=True))


@pytest.mark.slow
def test_every_round_of_recurrent_layers_is_tensorflows() -> None:
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(5)
    given = layers.Input((9, 6))
    y = layers.Conv1D(8, 3, padding="same", activation="relu")(given)
    y = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(y)
    y = layers.GRU(4, return_sequences=True)(layers.Dense(7)(y))
    model = tf.keras.Model(given, layers.Dense(4)(layers.Flatten()(y)))
    graph = qir.load(model)
    assert sorted(node.op for node in graph if node.op in ("lstm", "gru")) == ["gru", *["lstm"] * 2]
    (name,) = (value.name for value in graph.inputs)
    x = np.random.default_rng(7).normal(size=(16, 9, 6)).astype(np.float32)
    made = quantized(graph, {name: x})
    rounds, integers = compared_rounds(made, {name: x})
    assert (rounds, integers) == (3 * 9, 0)  # what a loop holds stays float
    found = compared_by_regions(made, {name: x})
    assert found.integers > 5_000

"""Loops and lists of tensors, of TensorFlow 1 and 2, against TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import qir
from qir.errors import InputError
from qir.frontends.tensorflow import loops
from qir.passes.loops.unroll import Unroll
from qir.reference.interpreter import run
from tests.frontends.comparison import difference

from .comparison import build_graph_def, run_graph, save_graph_def

X = np.random.default_rng(3).uniform(-1, 1, (6, 2, 4)).astype(np.float32)
W = np.random.default_rng(4).uniform(-1, 1, (4, 4)).astype(np.float32)


def counted(x: Any) -> Any:
    """A product that is repeated."""
    return tf.while_loop(lambda i, _: i < 4, lambda i, h: (i + 1, tf.tanh(h @ W)), (0, x[0]))[1]


def until(x: Any) -> Any:
    """A loop whose rounds depend on data."""
    done = tf.while_loop(lambda h: tf.reduce_sum(tf.abs(h)) < 50.0, lambda h: (h * 1.5,), (x[0],))
    return done[0]


def listed(x: Any) -> Any:
    """A recurrence that reads an array and writes another."""
    taken = tf.TensorArray(tf.float32, 6).unstack(x)
    made = tf.TensorArray(tf.float32, 6, element_shape=(2, 4))

    def step(i: Any, h: Any, made: Any) -> Any:
        h = tf.tanh(taken.read(i) + h @ W)
        return i + 1, h, made.write(i, h)

    _, h, made = tf.while_loop(lambda i, *_: i < 6, step, (0, tf.zeros((2, 4)), made))
    return made.stack(), h


def backwards(x: Any) -> Any:
    """Writes in an order that the loop does not have."""
    made = tf.TensorArray(tf.float32, 6, element_shape=(2, 4))

    def step(i: Any, made: Any) -> Any:
        return i + 1, made.write(5 - i, x[0])

    return tf.while_loop(lambda i, *_: i < 6, step, (0, made))[1].stack()


def built_by(version: int, function: Callable[..., Any]) -> tuple[Any, list[Any]]:
    """Returns a graph whose loops are those of TensorFlow 1, rings of nodes, or of 2."""
    v1 = tf.compat.v1
    switches = v1.disable_control_flow_v2, v1.enable_control_flow_v2
    before = v1.control_flow_v2_enabled()
    switches[version == 2]()
    try:
        return build_graph_def(function, (X,))
    finally:
        switches[before]()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("function", [counted, until, listed], ids=lambda f: f.__name__)
def test_a_loop_computes_what_tensorflow_computes(
    function: Callable[..., Any], version: int, tmp_path: Path
) -> None:
    proto, wanted = built_by(version, function)
    ops = {node.op for node in proto.node}
    assert ("Enter" in ops) == (version == 1)
    graph = qir.load(save_graph_def(proto, tmp_path / "g.pb"))
    (loop,) = (node for node in graph if node.op == "loop")
    assert ("count" in loop.operands) == (function is not until)
    pairs = zip(run_graph(graph, (X,)), wanted, strict=True)
    assert [why for ours, theirs in pairs if (why := difference(ours, theirs, 1e-5))] == []


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_computes_what_tensorflow_computes(sign: int, tmp_path: Path) -> None:
    def either(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: (tf.tanh(x[0] @ W), x), lambda: (x[1], x * 2))

    x = np.abs(X) * np.float32(sign)
    proto, wanted = build_graph_def(either, (x,))
    graph = qir.load(save_graph_def(proto, tmp_path / "g.pb"))
    assert sum(node.op == "if" for node in graph) == 1
    pairs = zip(run_graph(graph, (x,)), wanted, strict=True)
    assert [why for ours, theirs in pairs if (why := difference(ours, theirs, 1e-5))] == []


def test_a_list_that_is_written_out_of_order_is_refused_by_name(tmp_path: Path) -> None:
    proto, _ = build_graph_def(backwards, (X,))
    with pytest.raises(InputError, match=r"g\.pb: \S+ while\S* is not read: its list . is not"):
        qir.load(save_graph_def(proto, tmp_path / "g.pb"))


def test_loops_are_written_to_onnx(tmp_path: Path) -> None:
    import onnxruntime

    proto, wanted = build_graph_def(listed, (X,))
    graph = qir.load(save_graph_def(proto, tmp_path / "g.pb"))
    qir.save(graph, tmp_path / "g.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "g.onnx"))
    for ours, theirs in zip(session.run(None, {"x0": X}), wanted, strict=True):
        assert difference(np.asarray(ours), theirs, 1e-5) == ""
    made = run(graph, {"x0": X})
    assert difference(made["out1"], wanted[1], 1e-5) == ""


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("rounds", [3, 0])
def test_loops_that_count_to_a_constant_are_unrolled(
    version: int, rounds: int, tmp_path: Path
) -> None:
    def sums(x: Any) -> Any:
        end = 2 + rounds
        return tf.while_loop(
            lambda i, _: i < end, lambda i, h: (i + 1, h + tf.gather(x, i)), (2, x[0])
        )

    proto, wanted = built_by(version, lambda x: sums(x)[1])
    graph = qir.load(save_graph_def(proto, tmp_path / "g.pb"))
    made = Unroll().run(graph, qir.Ledger())
    assert bool(made) == bool(rounds)  # what has no round stays
    (found,) = run_graph(graph, (X,))
    assert difference(found, wanted[0], 1e-6) == ""


def test_every_op_on_lists_is_compared() -> None:
    protos = [built_by(version, listed)[0] for version in (1, 2)]
    nodes = [node for proto in protos for node in proto.node]
    nodes += [n for proto in protos for f in proto.library.function for n in f.node_def]
    assert loops.OPS.keys() - {node.op for node in nodes} == set()


def _nested(x: Any) -> list[Any]:
    """Branches in a branch and after one, one of them with constants alone."""
    cond, total = tf.compat.v1.cond, tf.reduce_sum(x)

    def inner() -> Any:
        rest = tf.reduce_max(x)
        more = cond(rest > 2, lambda: x * 3, lambda: x - rest)
        return more, cond(rest > 2, lambda: tf.constant(5.0), lambda: tf.constant(7.0))

    y, k = cond(total > 0, inner, lambda: (-x, tf.constant(1.0)))
    return [cond(total > 0, lambda: y + k, lambda: tf.nn.relu(y)), k]


@pytest.mark.parametrize("shift", [-3.0, 0.5, 3.0])
def test_branches_of_tensorflow_1_are_read(shift: float, tmp_path: Path) -> None:
    x = (np.linspace(-1, 1, 6) + shift).astype(np.float32).reshape(2, 3)
    tf.compat.v1.disable_control_flow_v2()
    try:
        proto, wanted = build_graph_def(_nested, (x,))
    finally:
        tf.compat.v1.enable_control_flow_v2()
    assert {"Switch", "Merge"} <= {node.op for node in proto.node}
    graph = qir.load(save_graph_def(proto, tmp_path / "g.pb"))
    for found, each in zip(run_graph(graph, (x,)), wanted, strict=True):
        assert difference(found, each, 1e-6) == ""

"""Ops that QIR does not know are run by TensorFlow in a child, and written back as they were."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import qir
from qir.errors import InputError
from qir.frontends.tensorflow import foreign
from qir.frontends.tensorflow.messages import GraphDefMessage
from qir.frontends.tensorflow.operators import OPS
from tests.frontends.comparison import difference

from .comparison import build_graph_def, run_graph, save_graph_def

X = np.random.default_rng(3).uniform(0.5, 2, (3, 4)).astype(np.float32)
W = np.random.default_rng(4).uniform(-1, 1, (4, 5)).astype(np.float32)
CASES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Betainc": ("Betainc", lambda x: tf.math.betainc(x, x + 1, tf.nn.sigmoid(x)) @ W),
    "integers": ("HistogramFixedWidth", lambda x: tf.histogram_fixed_width(x, [0.0, 3.0], 5)),
    "two results": ("Qr", lambda x: list(tf.linalg.qr(x))),
    "list": ("MatrixDiagPartV3", lambda x: tf.linalg.diag_part(x) * 2),
}


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    yield
    foreign.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_unknown_op_is_run_by_tensorflow_and_written_back(name: str, tmp_path: Path) -> None:
    op, function = CASES[name]
    assert op not in OPS
    proto, wanted = build_graph_def(function, (X,), open_axes=1)
    graph = qir.load(save_graph_def(proto, tmp_path / "a.pb"))
    (kept,) = (node for node in graph if node.op == "foreign")
    assert kept.attrs["op"] == op
    for ours, theirs in zip(run_graph(graph, (X,)), wanted, strict=True):
        assert difference(ours, theirs, 1e-6) == ""
    qir.save(graph, tmp_path / "b.pb", target="tensorflow-onednn")
    before, after = (
        next(n for n in GraphDefMessage.FromString((tmp_path / f).read_bytes()).node if n.op == op)
        for f in ("a.pb", "b.pb")
    )
    assert {k: str(v) for k, v in before.attr.items() if k[0] != "_"} == {
        k: str(v) for k, v in after.attr.items()
    }
    again = qir.load(tmp_path / "b.pb")
    for ours, theirs in zip(run_graph(again, (X,)), wanted, strict=True):
        assert difference(ours, theirs, 1e-6) == ""


def test_a_gather_past_its_batch_axes_is_kept(tmp_path: Path) -> None:
    x, at = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5), np.array([[3, 0], [1, 1]], "i4")
    proto, (wanted,) = build_graph_def(
        lambda x, i: tf.gather(x, i, axis=2, batch_dims=1) * 2, (x, at)
    )
    graph = qir.load(save_graph_def(proto, tmp_path / "a.pb"))
    (kept,) = (node for node in graph if node.op == "foreign")
    assert kept.attrs["op"] == "GatherV2"
    assert np.array_equal(run_graph(graph, (x, at))[0], wanted)
    qir.save(graph, tmp_path / "b.pb", target="tensorflow-onednn")
    assert np.array_equal(run_graph(qir.load(tmp_path / "b.pb"), (x, at))[0], wanted)


def test_open_sizes_go_through_a_kept_op(tmp_path: Path) -> None:
    proto, _ = build_graph_def(lambda x: tf.math.betainc(x, x, x), (X,), open_axes=1)
    graph = qir.load(save_graph_def(proto, tmp_path / "a.pb"))
    (kept,) = (node for node in graph if node.op == "foreign")
    assert kept.result.type.shape == graph.inputs[0].type.shape
    assert str(qir.parse(str(graph))) == str(graph)


def test_a_kept_op_stands_between_quantized_layers(tmp_path: Path) -> None:
    proto, (wanted,) = build_graph_def(CASES["Betainc"][1], (X,))
    graph = qir.load(save_graph_def(proto, tmp_path / "a.pb"))
    made = qir.quantize(graph, qir.calibrate(graph, [{"x0": X}]), target="tensorflow-onednn")
    assert qir.plan(graph, target="tensorflow-onednn").integer_macs == 1
    (found,) = qir.run(made, {"x0": X}).values()
    assert np.allclose(found, wanted, atol=0.1)


@pytest.mark.slow
def test_an_op_with_a_state_is_refused(tmp_path: Path) -> None:
    proto, _ = build_graph_def(lambda x: x + tf.random.uniform((3, 4)), (X,))
    with pytest.raises(InputError, match=r"a\.pb: RandomUniform .* is no op .*it has a state"):
        qir.load(save_graph_def(proto, tmp_path / "a.pb"))

"""Each op that is read computes what TensorFlow computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from qir.errors import InputError
from qir.frontends.tensorflow import TensorFlowFrontend
from qir.ledger import Ledger
from tests.frontends.comparison import difference

from .cases import Case, cases
from .comparison import Array, build_graph_def, run_graph, save_graph_def

CASES = cases()


@lru_cache(len(CASES))
def _built(case: Case) -> tuple[Any, list[Array]]:
    return build_graph_def(case.function, case.inputs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_op_computes_what_tensorflow_computes(case: Case, tmp_path: Path) -> None:
    proto, wanted = _built(case)
    graph = TensorFlowFrontend().load(save_graph_def(proto, tmp_path / "graph.pb"), Ledger())
    pairs = zip(run_graph(graph, case.inputs), wanted, strict=True)
    assert [why for ours, theirs in pairs if (why := difference(ours, theirs, case.near))] == []


def _tower(stride: int) -> Callable[[Any], Any]:
    w = np.ones((3, 3, 3, 4), np.float32)
    shuffle = tf.nn.depth_to_space
    return lambda x: (
        shuffle(tf.nn.relu(tf.nn.conv2d(x, w, stride, "SAME")), 2)
        * tf.cast(tf.shape(x)[1], tf.float32)
    )


def test_images_of_open_size_are_read(tmp_path: Path) -> None:
    image = np.linspace(-1, 1, 2 * 5 * 7 * 3, dtype=np.float32).reshape(2, 5, 7, 3)
    proto, wanted = build_graph_def(_tower(1), (image,), open_axes=3)
    graph = TensorFlowFrontend().load(save_graph_def(proto, tmp_path / "graph.pb"), Ledger())
    assert not any(isinstance(size, int) for size in graph.inputs[0].type.shape[:3])
    (ours,) = run_graph(graph, (image,))
    assert difference(ours, wanted[0], 1e-6) == ""


def test_strides_on_images_of_open_size_are_refused(tmp_path: Path) -> None:
    image = np.ones((2, 5, 7, 3), np.float32)
    proto, _ = build_graph_def(_tower(2), (image,), open_axes=3)
    said = "Conv2D Conv2D is not read: SAME padding with stride 2 needs the size of its input"
    with pytest.raises(InputError, match=said):
        TensorFlowFrontend().load(save_graph_def(proto, tmp_path / "graph.pb"), Ledger())


def test_every_op_that_is_read_is_compared() -> None:
    from qir.frontends.tensorflow import kernels, loops
    from qir.frontends.tensorflow.operators import OPS

    compared = {node.op for case in CASES for node in _built(case)[0].node}
    elsewhere = kernels.OPS.keys() | loops.OPS.keys()
    assert OPS.keys() - elsewhere - compared == set()


@pytest.mark.slow
def test_an_input_too_many_is_refused(tmp_path: Path) -> None:
    from qir.frontends.tensorflow import kernels, loops
    from qir.frontends.tensorflow.operators import OPS

    left = OPS.keys() - kernels.OPS.keys() - loops.OPS.keys()
    for case in CASES:
        proto, _ = _built(case)
        found = [n for n in proto.node if n.op in left and n.input and "N" not in n.attr]
        for op in {node.op for node in found} - {"Einsum", "IdentityN"}:  # of any number
            left -= {op}
            damaged = type(proto).FromString(proto.SerializeToString())
            node = next(n for n in damaged.node if n.op == op)
            node.input.append(node.input[0])
            said = f"{op} {node.name} is not read: "
            with pytest.raises(InputError, match=said):
                TensorFlowFrontend().load(save_graph_def(damaged, tmp_path / "x.pb"), Ledger())

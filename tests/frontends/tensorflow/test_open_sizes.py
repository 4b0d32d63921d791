"""Networks whose images or sequences have open sizes are read, and compute what TensorFlow does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from qir.frontends.tensorflow import TensorFlowFrontend
from qir.ir.graph import Graph
from qir.ledger import Ledger
from tests.frontends.comparison import difference

from .comparison import Array, build_graph_def, run_graph, save_graph_def


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def compared(function: Callable[..., Any], x: Array, axes: int, folder: Path) -> Graph:
    """Reads a function whose first axes are open, and compares what it computes."""
    proto, wanted = build_graph_def(function, (x,), open_axes=axes)
    graph: Graph = TensorFlowFrontend().load(save_graph_def(proto, folder / "graph.pb"), Ledger())
    assert not any(isinstance(size, int) for size in graph.inputs[0].type.shape[:axes])
    for ours, theirs in zip(run_graph(graph, (x,)), wanted, strict=True):
        assert difference(ours, theirs, 1e-5) == ""
    return graph


def _transposed(size: int, stride: int, padding: str) -> Callable[[Any], Any]:
    w = drawn(size, size, 4, 3, seed=1)

    def function(x: Any) -> Any:
        more = max(size - stride, 0) if padding == "VALID" else 0
        sizes = tf.shape(x)
        shape = (sizes[0], sizes[1] * stride + more, sizes[2] * stride + more, 4)
        return tf.nn.conv2d_transpose(x, w, tf.stack(shape), stride, padding)

    return function


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (5, 3), (4, 1), (1, 2)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_transposed_convolutions(size: int, stride: int, padding: str, tmp_path: Path) -> None:
    compared(_transposed(size, stride, padding), drawn(2, 5, 7, 3), 3, tmp_path)


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("dilation", [2, 3, 5])
def test_dilated_convolutions_of_sequences(
    dilation: int, padding: str, axes: int, tmp_path: Path
) -> None:
    w = drawn(3, 4, 5, seed=1)

    def function(x: Any) -> Any:
        return tf.nn.convolution(x, w, 1, padding, dilations=dilation)

    proto, _ = build_graph_def(function, (drawn(2, 17, 4),), open_axes=axes)
    assert Counter(node.op for node in proto.node)["SpaceToBatchND"] == 1
    graph = compared(function, drawn(2, 17, 4), axes, tmp_path)
    (node,) = (node for node in graph if node.op == "conv2d")
    assert node.attrs["dilation"] == (1, dilation)
    assert "reshape" not in {node.op for node in graph}


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_dilated_convolutions_of_channels(padding: str, axes: int, tmp_path: Path) -> None:
    w = drawn(3, 2, 4, 2, seed=1)

    def function(x: Any) -> Any:
        return tf.nn.depthwise_conv2d(x, w, (1, 1, 1, 1), padding, dilations=(2, 3))

    graph = compared(function, drawn(2, 11, 13, 4), axes, tmp_path)
    (node,) = (node for node in graph if node.op == "conv2d")
    assert node.attrs["dilation"] == (2, 3)


def test_blocks_that_another_node_reads_stay(tmp_path: Path) -> None:
    w = drawn(3, 3, 4, 4, seed=1)

    def function(x: Any) -> Any:
        blocks = tf.space_to_batch(x, (2, 2), [[1, 1], [0, 0]])
        made = tf.nn.conv2d(blocks, w, 1, "VALID")
        return tf.batch_to_space(made, (2, 2), [[0, 1], [1, 0]]), tf.reduce_max(blocks)

    compared(function, drawn(2, 10, 12, 4), 1, tmp_path)


def test_blocks_with_their_own_padding_and_crops(tmp_path: Path) -> None:
    w = drawn(3, 3, 4, 4, seed=1)

    def function(x: Any) -> Any:
        blocks = tf.space_to_batch(x, (2, 2), [[3, 1], [2, 2]])
        return tf.batch_to_space(tf.nn.conv2d(blocks, w, 1, "VALID"), (2, 2), [[1, 1], [2, 0]])

    compared(function, drawn(2, 10, 12, 4), 1, tmp_path)


def test_slices_to_the_end_of_an_open_axis(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        sizes = tf.shape(x)
        ends = tf.stack((sizes[0], sizes[1], 3))
        return tf.strided_slice(x, (0, 1, 0), ends, (1, 2, 1))

    compared(function, drawn(2, 9, 4), 2, tmp_path)


@pytest.mark.parametrize("axes", [1, 2])
def test_frames_of_a_signal(axes: int, tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return tf.signal.frame(x, 16, 8)

    compared(function, drawn(2, 100), axes, tmp_path)


def test_slices_whose_bounds_are_computed(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        count = tf.cast(tf.reduce_sum(tf.cast(x > 0, tf.float32)) / 9, tf.int32)
        return x[1:, 1:count, ::2], x[:, count : count + 2], x[..., -count:]

    compared(function, drawn(3, 9, 8), 1, tmp_path)


@pytest.mark.parametrize("batch", [1, 2])
def test_indices_after_batch_axes_of_open_size(batch: int, tmp_path: Path) -> None:
    """`tf.gather_nd` counts batches by Tile, whose counts are sizes then."""

    def function(x: Any) -> Any:
        places = tf.cast(x[..., :2, :1] * 3 + 3, tf.int32)
        return tf.gather_nd(x, places, batch_dims=batch)

    graph = compared(function, drawn(*(2, 3)[:batch], 7, 4), batch, tmp_path)
    assert "gather_nd" in {node.op for node in graph}

"""What written models are held to: every quantized tensor is TensorFlow's, to the bit."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

import qir
from qir.backends.tensorflow.session import Session
from qir.backends.tensorflow.writer.forms import formed
from qir.backends.tensorflow.writer.graphdef import Written, to_graphdef
from qir.ir.node import Node, Value

TARGET = "tensorflow-onednn"
Array = NDArray[np.generic]
Feeds = Mapping[str, Array]
Run = Callable[[Written, Feeds, Mapping[str, str]], Mapping[str, object]]


def quantized(graph: qir.Graph, *batches: Feeds) -> qir.Graph:
    """A graph quantized for TensorFlow with the statistics of batches."""
    return qir.quantize(graph, qir.calibrate(graph, list(batches)), target=TARGET)


def sums(graph: qir.Graph) -> Iterator[tuple[Node, Value]]:
    """Kernels that add a tensor, each with that tensor."""
    for node in graph:
        for index, stage in enumerate(node.stages):
            if stage.op == "add":
                for value in node.stage_operands(index).values():
                    yield node, value


def in_a_child(written: Written, feeds: Feeds, places: Mapping[str, str]) -> Mapping[str, object]:
    """Runs a graph in the process that all sessions share."""
    return Session(written, 1).values(feeds, places)


def compared(made: qir.Graph, feeds: Feeds, run: Run = in_a_child) -> int:
    """Counts the quantized elements that were compared; none may differ from TensorFlow's.

    A tensor whose buffer a sum writes over is not fetched: another owner would end the process.
    """
    whole = formed(made, qir.Ledger(), kernels=True)
    written = to_graphdef(whole)
    over = {value.name for _, value in sums(whole)}
    coded = [name for name in written.values if whole.values[name].type.quant is not None]
    names = [name for name in coded if name not in over]
    found = run(written, feeds, {name: written.values[name] for name in names})
    wanted = qir.run(whole, feeds, values=names)
    for name in names:
        ours, theirs = wanted[name], np.asarray(found[name])
        assert theirs.dtype == ours.dtype, name
        differ = int((theirs != ours).sum())
        assert not differ, f"{name}: {differ} of {ours.size} differ"
    assert names
    return sum(wanted[name].size for name in names)


def close(graph: qir.Graph, feeds: Feeds, run: Run = in_a_child) -> None:
    """Holds a float network to what the reference computes, within 1e-4 of the largest value."""
    written = to_graphdef(formed(graph, qir.Ledger(), kernels=True))
    found, wanted = run(written, feeds, written.outputs), qir.run(graph, feeds)
    for name, array in wanted.items():
        far = np.abs(np.asarray(found[name]) - array).max()
        assert far <= 1e-4 * np.abs(array).max(), name

"""What written models are held to: every quantized tensor is TensorFlow's, to the bit."""

import numpy as np
from numpy.typing import NDArray

import qir
from qir.backends.tensorflow.session import Session
from qir.backends.tensorflow.writer.forms import formed
from qir.backends.tensorflow.writer.graphdef import to_graphdef

TARGET = "tensorflow-onednn"
Feeds = dict[str, NDArray[np.generic]]


def quantized(graph: qir.Graph, *batches: Feeds) -> qir.Graph:
    """A graph quantized for TensorFlow with the statistics of batches."""
    return qir.quantize(graph, qir.calibrate(graph, list(batches)), target=TARGET)


def compared(made: qir.Graph, feeds: Feeds) -> int:
    """Counts the quantized elements that were compared; none may differ from TensorFlow's.

    A tensor whose buffer a sum writes over is not fetched: another owner would end the process.
    """
    whole = formed(made, qir.Ledger(), kernels=True)
    written = to_graphdef(whole)
    summands = {
        value.name
        for node in whole
        for index, stage in enumerate(node.stages)
        if stage.op == "add"
        for value in node.stage_operands(index).values()
    }
    names = [
        name
        for name in written.values
        if whole.values[name].type.quant is not None and name not in summands
    ]
    found = Session(written, 1).values(feeds, {name: written.values[name] for name in names})
    wanted = qir.run(whole, feeds, values=names)
    for name in names:
        assert found[name].dtype == wanted[name].dtype, name
        differ = int((found[name] != wanted[name]).sum())
        assert not differ, f"{name}: {differ} of {wanted[name].size} differ"
    assert names
    return sum(wanted[name].size for name in names)


def close(graph: qir.Graph, feeds: Feeds) -> None:
    """Holds a float network to what the reference computes, within 1e-4 of the largest value."""
    written = to_graphdef(formed(graph, qir.Ledger(), kernels=True))
    found, wanted = Session(written, 1)(**feeds), qir.run(graph, feeds)
    for name, array in wanted.items():
        assert np.abs(found[name] - array).max() <= 1e-4 * np.abs(array).max(), name

"""What written files are held to: every quantized tensor is the interpreter's, to the bit."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import qir
from qir.backends.tflite.session import TfliteSession
from qir.backends.tflite.writer.file import to_tflite
from qir.backends.tflite.writer.forms import converted
from tests.backends.tensorflow.networks import Net

TARGET = "tflite"
Array = NDArray[np.generic]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Compared:
    """What a network computes in the interpreter beside what is predicted of it."""

    integers: int
    """Elements of quantized tensors; all are the interpreter's, given its floats."""
    tied: int
    """Elements that float ops before a quantize make another integer: sums of another order."""
    far: float
    """How far floats are off at most, of the largest in their tensor."""


def quantized(graph: qir.Graph, *batches: Feeds, target: str = TARGET) -> qir.Graph:
    """A graph quantized for TensorFlow Lite with the statistics of batches."""
    return qir.quantize(graph, qir.calibrate(graph, list(batches)), target=target)


def kernels(graph: qir.Graph) -> list[str]:
    """The operators of a converted graph in order, without those that make and read integers."""
    apart = ("input", "constant", "output", "quantize", "dequantize", "transpose")
    named = (" |> ".join(stage.op for stage in node.stages) or node.op for node in graph)
    return [name for name in named if name not in apart]


def compared(made: qir.Graph, feeds: Feeds) -> Compared:
    """Holds every quantized tensor to the interpreter's, and the float ops between them.

    Floats that are computed and then quantized are those of the interpreter, so that a last bit
    that makes another integer is counted once, and not in all that hangs on it.
    """
    whole = converted(made, qir.Ledger())
    results = [v for n in whole for v in n.results if n.op not in ("input", "constant")]
    heads = {value.name: value.node for value in results if value.type.quant is not None}
    assert heads
    cuts = {
        name: node.operands["x"].name
        for name, node in heads.items()
        if node.op == "quantize" and node.operands["x"].node.op not in ("input", "transpose")
    }
    for name in dict.fromkeys([*heads, *cuts.values()]):
        whole.set_operand(whole.output, name, whole.values[name])
    found = TfliteSession(to_tflite(whole), 1)(**feeds)
    theirs = {name: np.asarray(array) for name, array in found.items()}

    first, more = next(iter(whole)), dict(feeds)
    ties: dict[str, str] = {}
    for name, x in cuts.items():
        node = whole.values[name].node
        own = whole.add("quantize", {"x": node.operands["x"]}, node.attrs, types=[node.result.type])
        ties[name] = own.name
        given = whole.add("input", types=[node.operands["x"].type], before=first).result
        whole.set_operand(node, "x", given)
        more[given.name] = theirs[x]
    for own_name in ties.values():
        whole.set_operand(whole.output, own_name, whole.values[own_name])
    ours = qir.run(whole, more)
    for name in heads:
        assert (theirs[name].dtype, theirs[name].shape) == (ours[name].dtype, ours[name].shape)
        differ = int((theirs[name] != ours[name]).sum())
        assert not differ, f"{name}: {differ} of {ours[name].size} differ"
    floats = [name for name in theirs if theirs[name].dtype == np.float32]
    far = max((_far(ours[name], theirs[name]) for name in floats), default=0.0)
    assert far <= 1e-4
    steps = [ours[own].astype(int) - theirs[name].astype(int) for name, own in ties.items()]
    assert all(np.abs(step).max(initial=0) <= 1 for step in steps)
    tied = sum(int(np.count_nonzero(step)) for step in steps)
    return Compared(sum(ours[name].size for name in heads), tied, far)


def _far(ours: Array, theirs: Array) -> float:
    wanted = np.asarray(ours, np.float64)
    apart = np.abs(wanted - np.asarray(theirs, np.float64))
    return float(apart.max() / max(np.abs(wanted).max(), 1e-9))


def close(graph: qir.Graph, feeds: Feeds) -> None:
    """Holds a float network to what the reference computes, within 1e-4 of the largest value."""
    found = TfliteSession(to_tflite(converted(graph, qir.Ledger())), 1)(**feeds)
    for name, wanted in qir.run(graph, feeds).items():
        theirs = np.asarray(found[name])
        assert (theirs.dtype, theirs.shape) == (wanted.dtype, wanted.shape), name
        if wanted.dtype.kind == "f":
            assert _far(wanted, theirs) <= 1e-4, name
        else:
            assert np.array_equal(theirs, wanted), name


def quantized_net(net: Net, batch: int = 4) -> qir.Graph:
    """A network of images, quantized with the statistics of random ones."""
    return quantized(net.graph, net.feeds(batch))

"""What written models are held to: every quantized tensor is TensorFlow's, to the bit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import qir
from qir.backends.tensorflow.session import TensorFlowSession
from qir.backends.tensorflow.writer.forms import converted
from qir.backends.tensorflow.writer.graphdef import WrittenGraph, to_graphdef
from qir.ir.node import Node, Value

TARGET = "tensorflow-onednn"
Array = NDArray[np.generic]
Feeds = Mapping[str, Array]
Run = Callable[[WrittenGraph, Feeds, Mapping[str, str]], Mapping[str, object]]


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


def in_a_child(
    written: WrittenGraph, feeds: Feeds, places: Mapping[str, str]
) -> Mapping[str, object]:
    """Runs a graph in the process that all sessions share."""
    found: Mapping[str, object] = TensorFlowSession(written, 1).values(feeds, places)
    return found


def here(written: WrittenGraph, feeds: Feeds, places: Mapping[str, str]) -> Mapping[str, object]:
    """Runs a graph in this process, which has TensorFlow loaded to build the networks."""
    from qir.backends.tensorflow import runner

    session, _ = runner.cached_session(np.frombuffer(written.data, np.uint8), 1)
    names = [runner.tensor_name(place) for place in places.values()]
    given = {f"{written.inputs[name]}:0": array for name, array in feeds.items()}
    found = session.run(names, given)
    return dict(zip(places, map(runner.as_plain_array, found), strict=True))


@dataclass(frozen=True)
class Compared:
    """What a network computes in TensorFlow beside what is predicted of it."""

    integers: int
    """Elements of quantized tensors; all are TensorFlow's, given its floats."""
    tied: int
    """Elements that float ops before a QuantizeV2 make another integer: sums of another order."""
    far: float
    """How far such a float is off at most, of the largest in its tensor."""


def compared_by_regions(made: qir.Graph, feeds: Feeds, run: Run = in_a_child) -> Compared:
    """Holds every kernel to TensorFlow's integers, and the float ops between them to its floats.

    Floats that are computed and then quantized are those of TensorFlow, so that the last bit of a
    float which makes another integer is counted once, and not in all that hangs on it.
    """
    whole = converted(made, qir.Ledger(), kernels=True)
    written = to_graphdef(whole)
    over = {value.name for _, value in sums(whole)}
    coded = [name for name in written.values if whole.values[name].type.quant is not None]
    names = [name for name in coded if name not in over]
    heads = [whole.values[name].node for name in names]
    cuts = {
        node.name: node.operands["x"].name
        for node in heads
        if node.op == "quantize" and node.operands["x"].node.op not in ("input", "constant")
    }
    wanted = {name: written.values[name] for name in {*names, *cuts.values()}}
    theirs = {name: np.asarray(array) for name, array in run(written, feeds, wanted).items()}

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
    ours = qir.run(whole, more, values=[*names, *cuts.values(), *ties.values()])
    for name in names:
        assert theirs[name].dtype == ours[name].dtype, name
        differ = int((theirs[name] != ours[name]).sum())
        assert not differ, f"{name}: {differ} of {ours[name].size} differ"
    apart = [(ours[x], theirs[x]) for x in cuts.values()]
    far = max((np.abs(a - b).max() / np.abs(b).max() for a, b in apart), default=0.0)
    steps = [ours[own].astype(int) - theirs[name].astype(int) for name, own in ties.items()]
    assert all(np.abs(step).max(initial=0) <= 1 for step in steps)
    tied = sum(int(np.count_nonzero(step)) for step in steps)
    return Compared(sum(ours[name].size for name in names), tied, float(far))


def compared(made: qir.Graph, feeds: Feeds, run: Run = in_a_child) -> int:
    """Counts the quantized elements that were compared; none may differ from TensorFlow's.

    A tensor whose buffer a sum writes over is not fetched: another owner would end the process.
    """
    whole = converted(made, qir.Ledger(), kernels=True)
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
    written = to_graphdef(converted(graph, qir.Ledger(), kernels=True))
    found, wanted = run(written, feeds, written.outputs), qir.run(graph, feeds)
    for name, array in wanted.items():
        far = np.abs(np.asarray(found[name]) - array).max()
        assert far <= 1e-4 * np.abs(array).max(), name

"""The rows: a network quantized by one call, run in its framework, and compared with QIR."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

import qir
from qir.backends.ipex.edges import only_read_by_layers
from qir.calibration import Statistics
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from qir.target import target
from tests.backends.mxnet import written as mxnet
from tests.backends.tensorflow import written as tensorflow
from tests.backends.torch.networks import watched

from .networks import HERE, digits, network

Array = NDArray[np.generic]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Row:
    """One framework with one form of data."""

    framework: str
    data: str
    target: str

    @property
    def emitter(self) -> str:
        """The installed target that writes for it."""
        return self.target if not self.target.endswith(".toml") else "pytorch-fbgemm"


ROWS = (
    Row("ONNX Runtime (MLAS)", "asymmetric u8", "onnxruntime"),
    Row("PyTorch (FBGEMM)", "asymmetric u8", "pytorch-fbgemm"),
    Row("PyTorch (FBGEMM)", "symmetric u8", str(HERE / "fbgemm-u8.toml")),
    Row("TensorFlow (oneDNN)", "symmetric i8/u8", "tensorflow-onednn"),
    Row("MXNet (oneDNN)", "symmetric i8/u8", "mxnet-onednn"),
    Row("PyTorch IPEX (oneDNN)", "asymmetric u8", "ipex-onednn"),
    Row("PyTorch IPEX (oneDNN)", "symmetric i8", "ipex-onednn-s8"),
    Row("PyTorch IPEX (oneDNN)", "symmetric u8", "ipex-onednn-u8"),
)
NETWORKS = ("resnet", "mobilenet")


@dataclass(frozen=True)
class Measurement:
    """What running a row in its framework gave."""

    accuracy: float
    tensors: int
    compared: int
    differing: int


@cache
def statistics(name: str) -> Statistics:
    """Returns the statistics of a network's tensors on the calibration images."""
    return qir.calibrate(network(name), digits()["calibration"])


@cache
def quantize_for_row(row: Row, name: str) -> tuple[Graph, Ledger]:
    """Returns a network quantized for a row, and what the ledger says of it."""
    ledger = Ledger()
    made = qir.quantize(network(name), statistics(name), target=row.target, ledger=ledger)
    return made, ledger


def integer_share(row: Row, name: str) -> float:
    """Returns the share of multiply-adds on integers."""
    return qir.plan(network(name), target=row.target).integer_macs


def accuracy(logits: Array) -> float:
    """Returns the percentage of images whose class is right."""
    return 100 * float((np.asarray(logits).argmax(1) == digits()["labels"]).mean())


def float_accuracy(name: str) -> float:
    """Returns that of the float network."""
    graph = network(name)
    return accuracy(next(iter(qir.run(graph, {graph.inputs[0].name: digits()["x"]}).values())))


def file_size(row: Row, name: str, ledger: Ledger) -> int | None:
    """Returns how many bytes the files of a row have; None for a module in memory."""
    graph, _ = quantize_for_row(row, name)
    if row.emitter.startswith("ipex"):
        return None
    emitter = target(row.emitter)
    with tempfile.TemporaryDirectory() as folder:
        stem = "model-symbol" if row.emitter == "mxnet-onednn" else "model"
        path = Path(folder, stem + emitter.suffix)
        qir.save(graph, path, target=row.target, ledger=ledger)
        return sum(part.stat().st_size for part in emitter.files(path))


def measure(row: Row, name: str) -> Measurement:
    """Runs a row in its framework and compares every quantized tensor with QIR's."""
    graph, _ = quantize_for_row(row, name)
    return RUNNERS[row.emitter.removesuffix("-s8").removesuffix("-u8")](row, graph)


def predict_quantized_tensors(graph: Graph, *more: str) -> dict[str, Array]:
    """Returns the quantized tensors that QIR predicts for a grouped graph, and `more`, by name."""
    names = [*more]
    names += [v.name for n in graph if n.op != "constant" for v in n.results if v.type.quant]
    return dict(qir.run(graph, {graph.inputs[0].name: digits()["x"]}, values=names))


def _difference(ours: Arrays, theirs: Arrays, logits: Array) -> Measurement:
    assert set(ours) <= set(theirs), set(ours) - set(theirs)
    wrong = 0
    for name, wanted in ours.items():
        found = np.asarray(theirs[name])
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
        wrong += int((found != wanted).sum())
    return Measurement(accuracy(logits), len(ours), sum(a.size for a in ours.values()), wrong)


def _onnxruntime(row: Row, graph: Graph) -> Measurement:
    ours = predict_quantized_tensors(run_passes(graph, [Group()], Ledger()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        qir.save(graph, path, target=row.target, format="qoperator")
        model = onnx.load(path)
    (result,) = (each.name for each in model.graph.output)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ours)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [result, *ours]
    made = dict(zip(names, session.run(names, _feeds(graph)), strict=True))
    return _difference(ours, made, made[result])


def _pytorch(row: Row, graph: Graph) -> Measurement:
    whole, made = watched(graph), target(row.target)
    found = {name: np.asarray(a) for name, a in made.compile(whole)(**_feeds(graph)).items()}
    grouped = made.computed(whole, Ledger())
    assert grouped is not None
    wanted = qir.run(grouped, _feeds(graph), profile=made.profile)
    ours = {name: np.asarray(a) for name, a in wanted.items() if np.asarray(a).dtype.kind in "iu"}
    return _difference(ours, found, found[next(iter(graph.outputs))])


def _tensorflow(row: Row, graph: Graph) -> Measurement:
    count = tensorflow.compared(graph, _feeds(graph))
    made = target(row.target).compile(graph)(**_feeds(graph))
    coded = sum(node.op == "quantize" for node in graph)
    return Measurement(accuracy(np.asarray(next(iter(made.values())))), coded, count, 0)


def _mxnet(row: Row, graph: Graph) -> Measurement:
    from qir.backends.mxnet.session import MxnetSession

    feeds = _feeds(graph)
    with tempfile.TemporaryDirectory() as folder:
        session = MxnetSession(mxnet.files(graph, Path(folder)))
        theirs = mxnet.of_mxnet(session.run(feeds, all_nodes=True))
        logits = next(iter(session(**feeds).values()))
    (x,) = feeds.values()
    ours = {
        k: v for k, v in mxnet.integers(graph, np.asarray(x, np.float32)).items() if k in theirs
    }
    return _difference(ours, theirs, np.asarray(logits))


def _ipex(row: Row, graph: Graph) -> Measurement:
    """Runs IPEX where `QIR_IPEX` names its Python: one program for each tensor."""
    ours, made = predict_ipex_tensors(graph), target(row.target)
    found = {}
    for name in ours:
        only = only_read_by_layers(graph, Ledger())
        only.remove(only.output)
        only.add("output", {name: only[name]})
        only.prune()
        found[name] = np.asarray(made.compile(only)(**_feeds(graph))[name])
    (logits,) = made.compile(graph)(**_feeds(graph)).values()
    return _difference(ours, found, np.asarray(logits))


def predict_ipex_tensors(graph: Graph) -> dict[str, Array]:
    """Returns the quantized tensors that QIR predicts for IPEX, by name."""
    return predict_quantized_tensors(
        run_passes(only_read_by_layers(graph, Ledger()), [Group("ipex-2.8")], Ledger())
    )


def digest_of_arrays(arrays: Arrays) -> str:
    """Returns what tells arrays from others."""
    made = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        made.update(
            f"{name} {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).data
        )
    return made.hexdigest()


def _feeds(graph: Graph) -> dict[str, Array]:
    return {graph.inputs[0].name: digits()["x"]}


RUNNERS: Mapping[str, Callable[[Row, Graph], Measurement]] = {
    "onnxruntime": _onnxruntime,
    "pytorch-fbgemm": _pytorch,
    "tensorflow-onednn": _tensorflow,
    "mxnet-onednn": _mxnet,
    "ipex-onednn": _ipex,
}

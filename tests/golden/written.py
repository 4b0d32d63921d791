"""The hashes of ONNX files that QIR writes for small networks: `written.json` records them.

`python -m tests.golden.written` records those of today. Files of asset models, which are in no
repository, are hashed where the models are found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

import qir
from qir import pipeline
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Value

RECORD_FILE = Path(__file__).with_name("written.json")
ASSETS = Path(os.environ.get("QIR_ASSETS") or Path(__file__).parents[3] / "shared" / "assets")
MODELS = (
    *("mnist/mnist", "mlperf_tiny/ic_resnet8", "kws_tf/DS_CNN_S", "kws_tf/DNN_S"),
    *("superres/FSRCNN_x2", "superres/ESPCN_x2", "kws_tf/CNN_S", "kws_tf/CRNN_S"),
    *("kws_tf/GRU_S", "kws_tf/LSTM_S", "yunet/yunet_n_320_320"),
)
"""Small models of the assets."""
PROFILE, OPSET, SEED = "ort-1.31", 21, 7
"""What is written says nothing of the installed versions."""


def convolutions() -> Graph:
    """A residual block of convolutions, a pool and a classifier."""
    graph = qir.parse("graph net as native { %x = input() : 2x3x8x8xf32  output(y=%x) }")
    rng = np.random.default_rng(SEED)

    def weights(*shape: int) -> Value:
        return graph.constant(rng.normal(0, 0.4, shape).astype(np.float32))

    def conv(x: Value, w: Value, **attrs: int) -> Value:
        given: dict[str, Attr] = {"pad": (1, 1, 1, 1), **attrs}
        return graph.add("conv2d", {"x": x, "w": w, "bias": weights(6)}, given).result

    first = graph.add("relu", {"x": conv(graph["x"], weights(6, 3, 3, 3))}).result
    second = conv(first, weights(6, 1, 3, 3), groups=6)
    both = graph.add("relu", {"x": graph.add("add", {"a": first, "b": second}).result}).result
    pooled = graph.add("max_pool2d", {"x": both}, {"kernel": (2, 2), "stride": (2, 2)}).result
    rows = graph.add("flatten", {"x": pooled}, {"axis": 1}).result
    out = graph.add("gemm", {"a": rows, "b": weights(96, 10), "c": weights(10)}).result
    graph.set_operand(graph.output, "y", out)
    return graph


def products() -> Graph:
    """Two products with weights that can be stored in blocks."""
    graph = qir.parse("graph net as native { %x = input() : 3x64xf32  output(y=%x) }")
    rng = np.random.default_rng(SEED)
    value = graph["x"]
    for depth, wide in ((64, 32), (32, 16)):
        w = graph.constant(rng.normal(0, 0.2, (depth, wide)).astype(np.float32))
        value = graph.add("matmul", {"a": value, "b": w}).result
        value = graph.add("relu", {"x": value}).result
    graph.set_operand(graph.output, "y", value)
    return graph


def sample_inputs(graph: Graph) -> dict[str, NDArray[np.float32]]:
    """Data of one sample, sizes that are open being 1."""
    rng = np.random.default_rng(SEED)
    out = {}
    for value in graph.inputs:
        shape = [size if isinstance(size, int) else 1 for size in value.type.shape]
        out[value.name] = rng.random(shape, np.float32)
    return out


def quantize_static(graph: Graph) -> Graph:
    statistics = qir.calibrate(graph, [sample_inputs(graph)])
    return qir.quantize(graph, statistics, profile=PROFILE)


def with_profile(graph: Graph) -> Graph:
    """The graph, which says that it computes by the profile of this record."""
    graph.profile = PROFILE
    return graph


def quantize_dynamic(graph: Graph) -> Graph:
    return with_profile(pipeline.quantize_dynamic(graph, target="onnx"))


def quantize_weights(graph: Graph) -> Graph:
    return with_profile(pipeline.quantize_weights(graph, "u4:16", target="onnx"))


NetworkForm = tuple[Callable[[], Graph], Callable[[Graph], Graph], str]
NETWORKS: dict[str, NetworkForm] = {
    "convolutions, float": (convolutions, Graph.copy, "qdq"),
    "convolutions, QDQ": (convolutions, quantize_static, "qdq"),
    "convolutions, QOperator": (convolutions, quantize_static, "qoperator"),
    "products, QDQ": (products, quantize_static, "qdq"),
    "products, dynamic": (products, quantize_dynamic, "integer"),
    "products, blocks": (products, quantize_weights, "nbits"),
}


def file_digest(graph: Graph, form: str) -> str:
    """The hash of the ONNX file of a graph."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "m.onnx")
        qir.save(graph, path, target="onnx", format=form, opset=OPSET, lossy=True)
        return sha256(path.read_bytes()).hexdigest()


def digest_of_network(name: str) -> str:
    """The hash of the file of a network built here."""
    build, quantize, form = NETWORKS[name]
    return file_digest(quantize(build()), form)


def digest_of_asset(name: str) -> str:
    """The hash of the QDQ file of an asset model."""
    return file_digest(quantize_static(qir.load(ASSETS / "models" / f"{name}.onnx")), "qdq")


def available_assets() -> tuple[str, ...]:
    """The asset models that there are."""
    return tuple(name for name in MODELS if (ASSETS / "models" / f"{name}.onnx").exists())


def recorded_digests() -> dict[str, str]:
    """The hashes that the record holds."""
    held: dict[str, str] = json.loads(RECORD_FILE.read_text(encoding="utf-8"))
    return held


def current_digests() -> Iterator[tuple[str, str]]:
    """Each network and its hash today; of asset models that are not here, that of the record."""
    yield from ((name, digest_of_network(name)) for name in NETWORKS)
    here = available_assets()
    yield from (
        (name, digest_of_asset(name) if name in here else recorded_digests()[name])
        for name in MODELS
    )


if __name__ == "__main__":
    RECORD_FILE.write_text(json.dumps(dict(current_digests()), indent=2) + "\n", encoding="utf-8")

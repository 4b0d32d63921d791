"""What lies in and beside a model file: tensors of every storage, and what its author wrote."""

from __future__ import annotations

import glob
import os
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx import OnnxRuntimeTarget, OnnxTarget
from qir.errors import InputError
from qir.frontends.onnx import OnnxFrontend
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.installed import OPTIMIZED

from .models import conv_net, model, save

FLOAT = TensorProto.FLOAT


def load(proto: onnx.ModelProto, folder: Path) -> Graph:
    graph: Graph = OnnxFrontend().load(save(proto, folder), Ledger())
    return graph


def added() -> onnx.ModelProto:
    """y = x + w, where w is left for the test to make."""
    node = helper.make_node("Add", ["x", "w"], ["y"])
    return model([node], {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])})


def sparse(indices: NDArray[np.int64], values: NDArray[np.float32]) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(indices, "w_at"), [2, 3]
    )


X = np.arange(6, dtype=np.float32).reshape(2, 3)
WANTED = X + np.array([[0, 7, 0], [0, 0, -2]], np.float32)
VALUES = np.array([7, -2], np.float32)


@pytest.mark.parametrize("indices", [np.array([1, 5]), np.array([[0, 1], [1, 2]])])
def test_a_sparse_initializer_is_read_with_its_zeros(
    tmp_path: Path, indices: NDArray[np.int64]
) -> None:
    proto = added()
    proto.graph.sparse_initializer.append(sparse(indices, VALUES))
    assert np.array_equal(run(load(proto, tmp_path), {"x": X})["y"], WANTED)
    other = added()
    node = helper.make_node("Constant", [], ["w"], sparse_value=sparse(indices, VALUES))
    other.graph.node.insert(0, node)
    assert np.array_equal(run(load(other, tmp_path), {"x": X})["y"], WANTED)


@pytest.mark.parametrize(
    "indices", [np.array([1, 6]), np.array([-1, 2]), np.array([[0, 1], [2, 0]]), np.array([1])]
)
def test_a_sparse_initializer_that_does_not_fit_is_named(
    tmp_path: Path, indices: NDArray[np.int64]
) -> None:
    proto = added()
    proto.graph.sparse_initializer.append(sparse(indices, VALUES))
    with pytest.raises(InputError, match="tensor w"):
        load(proto, tmp_path)


def beside(proto: onnx.ModelProto, kind: int, shape: list[int], offset: int, length: int) -> None:
    tensor = proto.graph.initializer.add(name="w", data_type=kind, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def test_data_beyond_two_gigabytes_are_mapped_and_not_read(tmp_path: Path) -> None:
    """The file has a hole of 3 GB, and so has the tensor that nobody computes with."""
    offset, w = 3 << 30, np.arange(6, dtype=np.float32)
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.seek(offset)
        stream.write(w.tobytes())
    proto = added()
    beside(proto, FLOAT, [2, 3], offset, w.nbytes)
    assert np.array_equal(run(load(proto, tmp_path), {"x": X})["y"], 2 * X)
    node = helper.make_node("Gather", ["w", "i"], ["y"], axis=0)
    inputs = {"i": (TensorProto.INT64, [1])}
    large = model([node], inputs, {"y": (FLOAT, [1, 1 << 10])})
    beside(large, FLOAT, [3 << 18, 1 << 10], 0, offset)
    graph = load(large, tmp_path)
    constant = graph["w"].constant
    assert constant is not None
    assert constant.data.nbytes == offset
    assert not constant.data.flags.owndata


@pytest.mark.parametrize("shift", [0, 1])
def test_data_beside_a_model_may_lie_anywhere(tmp_path: Path, shift: int) -> None:
    w = np.arange(6, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(bytes(shift) + w.tobytes())
    proto = added()
    beside(proto, FLOAT, [2, 3], shift, w.nbytes)
    assert np.array_equal(run(load(proto, tmp_path), {"x": X})["y"], 2 * X)
    damaged = added()
    beside(damaged, FLOAT, [2, 4], shift, w.nbytes)
    with pytest.raises(InputError, match="takes 32 bytes"):
        load(damaged, tmp_path)


def test_what_its_author_wrote_comes_back(tmp_path: Path) -> None:
    proto = conv_net(1)
    helper.set_model_props(proto, {"author": "me", "labels": "cat\ndog", "note": "opset 9"})
    proto.doc_string, proto.graph.doc_string = "what it is", "how it is made"
    ledger = Ledger()
    graph = OnnxFrontend().load(save(proto, tmp_path), ledger)
    assert not list(ledger)
    OnnxRuntimeTarget().emit(graph, tmp_path / "back.onnx", ledger)
    back = onnx.load(tmp_path / "back.onnx")
    found = {p.key: p.value for p in back.metadata_props}
    assert found.pop("qir.changes") == "exact 1"  # of the version of the format
    assert found == {**{p.key: p.value for p in proto.metadata_props}, "qir.profile": OPTIMIZED}
    assert (back.doc_string, back.graph.doc_string) == ("what it is", "how it is made")
    assert back.opset_import[0].version == proto.opset_import[0].version


_LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
_ASSETS = os.environ.get("QIR_ASSETS") or Path(__file__).parents[4] / "shared" / "assets"
_FOUND = sorted(glob.glob(f"{_ASSETS}/**/*.onnx", recursive=True))
_KINDS = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}


_FORMS = (None, "qdq", "qoperator", "integer")


def _same_numbers(path: Path, folder: Path) -> None:
    """The file, QIR's reading of it and what is written anew in every form."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options)
    rng = np.random.default_rng(1)
    feed: dict[str, NDArray[np.generic]] = {}
    for info in session.get_inputs():
        shape = [d if isinstance(d, int) and d > 0 else 1 for d in info.shape]
        kind = _KINDS[info.type]
        drawn = rng.random(shape) if kind is np.float32 else np.full(shape, 1)
        feed[info.name] = drawn.astype(kind)
    names = [info.name for info in session.get_outputs()]
    wanted = session.run(names, feed)
    graph = OnnxFrontend().load(path, Ledger())
    found = run(graph, feed)
    for name, a in zip(names, wanted, strict=True):
        assert np.allclose(found[name], a, rtol=1e-4, atol=1e-5 * max(1, np.abs(a).max())), name
    tried: set[bytes] = set()
    forms = [*((OnnxRuntimeTarget(), f) for f in _FORMS), *((OnnxTarget(), f) for f in _FORMS)]
    for target, form in forms:
        back = folder / "back.onnx"
        target.emit(graph, back, Ledger(), format=form, lossy=True)
        made = back.read_bytes()
        assert made != path.read_bytes(), "it is no copy"
        if (digest := sha256(made).digest()) in tried:
            continue
        tried.add(digest)
        again = onnxruntime.InferenceSession(str(back), options).run(names, feed)
        for name, a, b in zip(names, wanted, again, strict=True):
            assert np.array_equal(a, b), (target.name, form, name)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(_LIGHT.glob("*.onnx")), ids=lambda path: str(path.stem))
def test_the_networks_of_the_package_keep_their_numbers(tmp_path: Path, path: Path) -> None:
    _same_numbers(path, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not _FOUND, reason="no models: neither QIR_ASSETS nor ../shared/assets")
@pytest.mark.parametrize("name", _FOUND, ids=lambda name: Path(str(name)).stem)
def test_trained_networks_keep_their_numbers(tmp_path: Path, name: str) -> None:
    _same_numbers(Path(name), tmp_path)

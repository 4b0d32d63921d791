"""Large files, whose tensors are read where they lie: nothing but time differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qir.errors import InputError
from qir.frontends.onnx import OnnxFrontend, wire
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.reference.interpreter import run

KINDS = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    TensorProto.UINT4: np.dtype(ml_dtypes.uint4),
    TensorProto.BOOL: np.dtype(np.bool_),
}


def many() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model over a megabyte of tensors, large and small, of every kind of element."""
    rng = np.random.default_rng(7)
    tensors, arrays = [], {}
    for kind, carrier in KINDS.items():
        for i, shape in enumerate(((700, 601), (3,), (20_000,))):
            data = rng.integers(0, 2, shape).astype(carrier)
            tensor = TensorProto(name=f"t{kind}_{i}", data_type=kind, dims=shape)
            plain = data.astype(np.uint8).reshape(-1) if kind == TensorProto.UINT4 else data
            if kind == TensorProto.UINT4:
                plain = np.append(plain, plain[:0] if plain.size % 2 == 0 else 0).astype(np.uint8)
                plain = plain[::2] | plain[1::2] << 4
            tensor.raw_data = plain.tobytes()
            tensors.append(tensor)
            arrays[tensor.name] = data
    nodes = [helper.make_node("Identity", [t.name], [f"y_{t.name}"]) for t in tensors]
    outs = [helper.make_tensor_value_info(f"y_{t.name}", t.data_type, t.dims) for t in tensors]
    graph = helper.make_graph(nodes, "g", [], outs, tensors)
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10), arrays


def load(path: Path) -> Graph:
    graph: Graph = OnnxFrontend().load(path, Ledger())
    return graph


def test_tensors_of_all_kinds_are_what_they_are(tmp_path: Path) -> None:
    proto, arrays = many()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    found = wire.split_message(path)
    assert found is not None
    assert len(found.data_spans) >= len(KINDS)
    assert len(found.message) < 40_000
    made = run(load(path), {})
    for name, data in arrays.items():
        y = made[f"y_{name}"]
        assert y.shape == data.shape
        assert (y.astype(np.float64) == data.astype(np.float64)).all()


def test_a_model_in_another_order_of_fields_is_read_alike(tmp_path: Path) -> None:
    """Messages may be joined: what stands twice is merged; those are read as a whole."""
    proto, arrays = many()
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.initializer[:]
    rest = onnx.ModelProto()
    rest.graph.initializer.extend(proto.graph.initializer)
    path = tmp_path / "m.onnx"
    path.write_bytes(rest.SerializeToString() + bare.SerializeToString())
    assert wire.split_message(path) is None
    made = run(load(path), {})
    assert all((made[f"y_{n}"] == a).all() for n, a in arrays.items())


def _short(data: bytes) -> bytes:
    return data[:-1000]


def _cut_short(data: bytes) -> bytes:
    return data[:600_000]


def _flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 7]) + data[1:]


@pytest.mark.parametrize("harm", [_short, _cut_short, _flipped])
def test_a_damaged_large_file_is_told_as_a_small_one_is(
    tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(harm(many()[0].SerializeToString()))
    with pytest.raises(InputError, match=r"m\.onnx") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_tensor_that_holds_fewer_bytes_than_its_shape_is_named(tmp_path: Path) -> None:
    proto, _ = many()
    proto.graph.initializer[0].dims[0] += 1
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    with pytest.raises(InputError, match="tensor t1_0"):
        load(path)

"""What is large is read, quantized, packed and written part by part: the same bytes in little room.

Nothing changes but memory, so each way is held to the whole-array way, which small arrays take.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import qir
from qir.errors import InputError
from qir.frontends.onnx import OnnxFrontend, files
from qir.ir import lazy_arrays
from qir.ir.graph import Graph
from qir.ir.printer import print_graph
from qir.ledger import Ledger
from qir.passes.quantize.quantize_dynamic import QuantizeDynamic
from qir.passes.quantize.quantize_weights import QuantizeWeights, WeightStorage

MIB = 1 << 20
FLOAT, UINT8, UINT4 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.UINT4


def in_parts(monkeypatch: pytest.MonkeyPatch, *, all_: bool) -> None:
    """Everything is large, or nothing is."""
    monkeypatch.setattr(lazy_arrays, "MIN_LAZY_SIZE", 2 if all_ else 1 << 60)
    monkeypatch.setattr(lazy_arrays, "PIECE_SIZE", 300)
    monkeypatch.setattr(files, "LAZY_FILE_BYTES", 1 if all_ else 1 << 60)
    monkeypatch.setattr(files, "_SPLIT_FILE_BYTES", 1)


def load(path: Path) -> Graph:
    graph: Graph = OnnxFrontend().load(path, Ledger())
    return graph


def model(nodes: list[onnx.NodeProto], arrays: dict[str, TensorProto], width: int) -> bytes:
    x = helper.make_tensor_value_info("x", FLOAT, ["N", width])
    y = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, None)
    graph = helper.make_graph(nodes, "main", [x], [y], list(arrays.values()))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    data: bytes = made.SerializeToString()
    return data


def raw(name: str, data: NDArray[np.generic], kind: int, *dims: int) -> TensorProto:
    shape = dims or data.shape
    return TensorProto(name=name, data_type=kind, dims=shape, raw_data=data.tobytes())


def products(path: Path, *, beside: bool) -> None:
    """Products in a row, their weights in the file or beside it, where no even places are."""
    rng = np.random.default_rng(3)
    nodes, arrays, offset = [], {}, 3
    sizes = [(96, 130), (130, 67), (67, 40)]
    held = bytearray(offset)
    for k, (depth, count) in enumerate(sizes):
        w = rng.standard_normal((depth, count)).astype(np.float32)
        turned = k == 1
        w = np.ascontiguousarray(w.T) if turned else w
        arrays[f"w{k}"] = tensor = raw(f"w{k}", w, FLOAT)
        if beside:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            said = {"location": "w.bin", "offset": len(held), "length": w.nbytes}
            for key, value in said.items():
                tensor.external_data.add(key=key, value=str(value))
            held += w.tobytes() + bytes(k)
        ins, op = [f"h{k}" if k else "x", f"w{k}"], "Gemm" if turned else "MatMul"
        node = helper.make_node(op, ins, [f"h{k + 1}"])
        if turned:
            node.attribute.append(helper.make_attribute("transB", 1))
        nodes.append(node)
    (path.parent / "w.bin").write_bytes(held)
    path.write_bytes(model(nodes, arrays, 96))


def ways(folder: Path, monkeypatch: pytest.MonkeyPatch, source: Path) -> Iterator[dict[str, bytes]]:
    """The files that a source becomes: as it is, quantized, and in all forms of one another."""
    for all_ in (False, True):
        in_parts(monkeypatch, all_=all_)
        made: dict[str, bytes] = {}

        def write(graph: Graph, name: str, form: str | None, to: dict[str, bytes] = made) -> Graph:
            path = folder / name
            qir.save(graph, path, format=form, lossy=True, force=True)
            to[name] = path.read_bytes()
            return load(path) if name.endswith(".onnx") else qir.load(path)

        for spec in ("u4:32", "u4:16", "i4:16", "u2:32", "i8:64"):
            stem = spec.replace(":", "_")
            graph = load(source)
            QuantizeWeights(WeightStorage.parse(spec)).run(graph, Ledger())
            write(graph, f"{stem}.qir", None)
            qdq = write(graph, f"{stem}.onnx", "qdq")
            few = write(graph, f"{stem}.nbits.onnx", "nbits")
            write(few, f"{stem}.back.onnx", "qdq")
            write(few, f"{stem}.kept.qir", None)
            write(qdq, f"{stem}.again.onnx", "nbits")
        graph = load(source)
        x = np.random.default_rng(6).standard_normal((4, 96)).astype(np.float32)
        static = qir.quantize(graph, qir.calibrate(graph, x))
        write(write(static, "static.qir", None), "static.onnx", "qoperator")
        QuantizeDynamic().run(graph, Ledger())
        write(write(graph, "dynamic.qir", None), "integer.onnx", "integer")
        yield made


@pytest.mark.parametrize("beside", [False, True])
def test_all_forms_have_the_bytes_of_the_whole_array_way(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products(tmp_path / "m.onnx", beside=beside)
    whole, streamed = ways(tmp_path, monkeypatch, tmp_path / "m.onnx")
    assert [n for n in whole if whole[n] != streamed[n]] == []
    assert len(whole) == 34


def few(op: str, ins: list[str], out: str, **attrs: int) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type=op, input=ins, output=[out], domain="com.microsoft")
    for name, value in {"block_size": 16, **attrs}.items():
        node.attribute.append(helper.make_attribute(name, value))
    return node


def few_bits(path: Path, *, odd: bool) -> None:
    """Operators of onnxruntime's own on few bits, and DequantizeLinear of four."""
    rng = np.random.default_rng(4)
    depth, count = (67, 33) if odd else (64, 48)
    bytes_ = rng.integers(0, 256, 1 << 13, np.uint8)
    real = (rng.random(1 << 10) + 0.1).astype(np.float32)
    blocks = -(-depth // 16)
    total = -(-depth * count // 16)
    arrays = {
        "b": raw("b", bytes_[: count * blocks * 8], UINT8, count, blocks, 8),
        "bs": raw("bs", real[: count * blocks], FLOAT),
        "t": raw("t", bytes_[: -(-depth * count // 2)], UINT8),
        "ts": raw("ts", real[:total], FLOAT),
        "g": raw("g", bytes_[: 90 * 32], UINT8, 90, 32),
        "gs": raw("gs", real[: 90 * 4], FLOAT, 90, 4),
        "q": raw("q", bytes_[: -(-depth * count // 2)], UINT4, depth, count),
        "qs": raw("qs", real[:count], FLOAT),
    }
    ids = raw("i", np.arange(5), TensorProto.INT64)
    nodes = [
        few("MatMulNBits", ["x", "b", "bs"], "h0", bits=4, K=depth, N=count),
        few("MatMulBnb4", ["x", "t", "ts"], "h1", quant_type=1, K=depth, N=count),
        few("GatherBlockQuantized", ["g", "i", "gs"], "h2", bits=4),
        helper.make_node("DequantizeLinear", ["q", "qs"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["h3"]),
        helper.make_node("ReduceMax", ["h2"], ["h4"], keepdims=0),
        helper.make_node("Sum", ["h0", "h1", "h3", "h4"], ["y"]),
    ]
    path.write_bytes(model(nodes, {**arrays, "i": ids}, depth))


@pytest.mark.parametrize("odd", [False, True])
def test_operators_on_few_bits_are_read_and_written_alike(
    odd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_bits(tmp_path / "m.onnx", odd=odd)
    texts, files_ = [], []
    for all_ in (False, True):
        in_parts(monkeypatch, all_=all_)
        graph = load(tmp_path / "m.onnx")
        held = [
            n.result.constant.contents for n in graph if n.op == "constant" and n.result.constant
        ]
        assert any(isinstance(h, lazy_arrays.LazyArray) for h in held) == all_
        texts.append(print_graph(graph, by_content=True))
        for form in ("qdq", "nbits"):
            qir.save(graph, tmp_path / "made.onnx", format=form, lossy=True, force=True)
            files_.append((tmp_path / "made.onnx").read_bytes())
    assert texts[0] == texts[1]
    assert files_[:2] == files_[2:]


# -- files that stay open -------------------------------------------------------------------------


def test_a_large_file_may_go_and_may_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    products(path, beside=False)
    in_parts(monkeypatch, all_=True)
    monkeypatch.setattr(lazy_arrays, "CACHE_BYTES", 0)
    wanted = onnx.load(path).graph.initializer[0].raw_data
    graph = load(path)
    array = graph["w0"].constant
    assert array is not None
    os.replace(path, tmp_path / "moved.onnx")
    assert array.data.tobytes() == wanted
    with (tmp_path / "moved.onnx").open("r+b") as stream:
        stream.truncate(5000)
    with pytest.raises(InputError, match=r"m.onnx: was changed after it was read; load it again"):
        _ = array.data


# -- memory ---------------------------------------------------------------------------------------


def large(path: Path, count: int, size: int) -> int:
    """A chain of products whose weights, so many MiB in all, lie beside the model."""
    rng = np.random.default_rng(5)
    some = rng.standard_normal(MIB // 4).astype(np.float32).tobytes()
    nodes, arrays, each = [], {}, 4 * size * size
    with (path.parent / "w.bin").open("wb") as stream:
        for _ in range(count * each // MIB):
            stream.write(some)
    for k in range(count):
        arrays[f"w{k}"] = tensor = TensorProto(name=f"w{k}", data_type=FLOAT, dims=[size, size])
        tensor.data_location = TensorProto.EXTERNAL
        for key, said in (("location", "w.bin"), ("offset", k * each), ("length", each)):
            tensor.external_data.add(key=key, value=str(said))
        nodes.append(helper.make_node("MatMul", [f"h{k}" if k else "x", f"w{k}"], [f"h{k + 1}"]))
    path.write_bytes(model(nodes, arrays, size))
    return count * each


def test_weights_of_few_bits_take_a_share_of_the_memory_of_what_they_stood_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code to a byte would be a quarter; scales, held while they are chosen, are a 32nd."""
    monkeypatch.setattr(lazy_arrays, "CACHE_BYTES", 8 * MIB)
    monkeypatch.setattr(files, "LAZY_FILE_BYTES", MIB)
    size = large(tmp_path / "m.onnx", 16, 2048)
    shares: dict[str, float] = {}

    def traced(name: str, form: str | None, graph: Graph) -> None:
        qir.save(graph, tmp_path / name, format=form, lossy=True, force=True)
        shares[f"{name} {form}"] = tracemalloc.get_traced_memory()[1] / size
        tracemalloc.stop()

    def quantized() -> Graph:
        tracemalloc.start()
        graph = load(tmp_path / "m.onnx")
        QuantizeWeights(WeightStorage.parse("u4:32")).run(graph, Ledger())
        return graph

    def read(name: str) -> Graph:
        tracemalloc.start()
        return load(tmp_path / name)

    traced("n.onnx", "nbits", quantized())
    traced("n.qir", None, read("n.onnx"))
    traced("q.onnx", "qdq", read("n.onnx"))
    traced("m2.onnx", "nbits", read("q.onnx"))
    assert max(shares.values()) < 1 / 8, shares

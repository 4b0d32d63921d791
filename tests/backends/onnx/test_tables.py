"""Weights by the tables nf4 and fp4: MatMulBnb4, its parts, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger

MICROSOFT = "com.microsoft"
NF4 = """[-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]"""


def read(rows: int, depth: int, size: int, table: int, path: Path) -> onnx.ModelProto:
    """A product as bitsandbytes stores it."""
    rng = np.random.default_rng(rows)
    count = rows * depth
    packed = rng.integers(0, 256, (count + 1) // 2).astype(np.uint8)
    packed[-1] &= 0xF0 if count % 2 else 0xFF
    held: dict[str, NDArray[np.generic]] = {
        "B": packed,
        "s": rng.uniform(0.1, 1, -(-count // size)).astype(np.float32),
    }
    sizes = {"K": depth, "N": rows, "block_size": size, "quant_type": table}
    node = helper.make_node("MatMulBnb4", ["a", "B", "s"], ["y"], domain=MICROSOFT)
    node.attribute.extend(helper.make_attribute(k, v) for k, v in sizes.items())
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [info("a", TensorProto.FLOAT, [3, depth])],
        [info("y", TensorProto.FLOAT, [3, rows])],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )
    sets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    onnx.save(model, path)
    return model


def ran(path: Path, a: NDArray[np.float32]) -> NDArray[np.float32]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found: NDArray[np.float32] = session.run(None, {"a": a})[0]
    return found


def stored(model: onnx.ModelProto) -> tuple[dict[str, int], list[bytes]]:
    """The numbers that the one MatMulBnb4 states, and its weights and scales."""
    (node,) = [n for n in model.graph.node if n.op_type == "MatMulBnb4"]
    held = {t.name: numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}
    return {a.name: a.i for a in node.attribute}, [held[name] for name in node.input[1:]]


@pytest.mark.parametrize("table", [0, 1])
@pytest.mark.parametrize(("rows", "depth", "size"), [(6, 64, 16), (5, 33, 32), (7, 256, 64)])
def test_it_is_few_bits_and_comes_back_from_its_parts(
    rows: int, depth: int, size: int, table: int, tmp_path: Path
) -> None:
    path, kept, parts, back = (tmp_path / f"{n}.onnx" for n in ("m", "kept", "parts", "back"))
    model = read(rows, depth, size, table, path)
    a = np.random.default_rng(7).normal(size=(3, depth)).astype(np.float32)
    wanted = ran(path, a)
    pipeline.save(pipeline.load(path), kept, format="nbits")
    assert stored(onnx.load(kept)) == stored(model)
    assert ran(kept, a).tobytes() == wanted.tobytes()

    pipeline.save(pipeline.load(path), parts, format="qdq")
    assert not any(n.op_type == "MatMulBnb4" for n in onnx.load(parts).graph.node)
    ledger = Ledger()
    pipeline.save(pipeline.load(parts), back, format="nbits", ledger=ledger)
    assert stored(onnx.load(back)) == stored(model)
    assert ran(back, a).tobytes() == wanted.tobytes()
    assert any("MatMulBnb4" in entry.reason for entry in ledger)


def product(op: str, weights: str, shape: str, more: str = ")") -> Graph:
    rng = np.random.default_rng(3)
    sizes = tuple(map(int, shape.split("x")))
    arrays: dict[str, NDArray[np.generic]] = {
        "w": rng.integers(0, 16, sizes).astype(np.uint8),
        "s": rng.uniform(0.1, 1, (6, 2)).astype(np.float32),
        "t": rng.uniform(0.1, 1, (2, 6)).astype(np.float32),
        "c": rng.normal(size=6).astype(np.float32),
        "nf4": np.array([float(v) for v in NF4.strip("[]").split(",")], np.float32),
        "log2": np.array([2.0**-i for i in range(16)], np.float32),
    }
    text = f"""graph main as ort-1.31 {{
  %a = input() : 3x64xf32
  %w = constant(@w) : {shape}x!quant.lut<u4:f32:{weights}>
  %c = constant(@c) : 6xf32
  %v = dequantize(%w) : {shape}xf32
  %y = {op}(%a, %v{more} : 3x6xf32
  output(y=%y)
}}"""
    heads = {
        "w": f"{shape}xu8",
        "s": "6x2xf32",
        "t": "2x6xf32",
        "c": "6xf32",
        "nf4": "16xf32",
        "log2": "16xf32",
    }
    used = {n: a for n, a in arrays.items() if f"@{n}" in text}
    said = "".join(f"array @{name} : {heads[name]}\n" for name in used)
    return parse(said + text, used)


@pytest.mark.parametrize(
    ("op", "more"),
    [("linear", ")"), ("linear", ", bias=%c)"), ("gemm", ", c=%c) {trans_b = true}")],
)
def test_rows_in_blocks_are_taken_too(op: str, more: str, tmp_path: Path) -> None:
    """Blocks that end where rows do lie one after another; a bias is added behind."""
    graph = product(op, "{0:1, 1:32}, @s, codes @nf4", "6x64", more)
    a = np.random.default_rng(7).normal(size=(3, 64)).astype(np.float32)
    path = tmp_path / "m.onnx"
    pipeline.save(graph, path, format="nbits")
    sizes, _ = stored(onnx.load(path))
    assert sizes == {"K": 64, "N": 6, "block_size": 32, "quant_type": 1}
    wanted = np.asarray(pipeline.run(graph, {"a": a})["y"], np.float32)
    np.testing.assert_allclose(ran(path, a), wanted, rtol=1e-5, atol=1e-5)
    again = pipeline.run(pipeline.load(path), {"a": a})["y"]
    np.testing.assert_allclose(np.asarray(again, np.float32), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "weights", "shape", "said"),
    [
        ("linear", "{0:1, 1:32}, @s, codes @log2", "6x64", "the tables nf4 and fp4"),
        ("matmul", "{0:32, 1:1}, @t, codes @nf4", "64x6", "rows of weights"),
        ("linear", "{0:3, 1:64}, {0.5, 0.25}, codes @nf4", "6x64", "blocks of 16, 32"),
    ],
)
def test_what_the_kernel_does_not_take_is_told(
    op: str, weights: str, shape: str, said: str, tmp_path: Path
) -> None:
    graph = product(op, weights, shape)
    with pytest.raises(Refused, match=f"y stays as it is: MatMulBnb4 .*{said}"):
        pipeline.save(graph, tmp_path / "m.onnx", format="nbits")
    with pytest.raises(Refused, match="its type is a lookup table"):
        pipeline.save(graph, tmp_path / "m.onnx", format="nbits", target="onnx")

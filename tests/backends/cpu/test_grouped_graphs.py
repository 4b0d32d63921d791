"""A grouped graph runs as it stands; one in QDQ form gets the bytes that its profile says."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.backends.cpu import CpuTarget
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from qir.reference.interpreter import run
from qir.testing.random_graphs import random_graph, sample_inputs
from tests.differential import runtime
from tests.differential.comparison import read
from tests.differential.fusion import sums_before
from tests.differential.models import ALL, Taste, make

FLOAT_BETWEEN_CODES = """
graph main as ort-1.31 {
  %a = input() : 64x!quant.uniform<u8:f32, 0.0625:3>
  %b = input() : 64x!quant.uniform<u8:f32, 0.0625:7>
  %s = mul(%a, %b) : 64x!quant.uniform<u8:f32, 0.03125:9>
  %x = dequantize(%s) : 64xf32
  %y = dequantize(%b) : 64xf32
  %m = mul(%x, %y) : 64xf32
  %q = quantize(%m) : 64x!quant.uniform<u8:f32, 0.046:11>
  output(q=%q)
}
"""


def same(a: object, b: NDArray[np.generic]) -> bool:
    return np.asarray(a).tobytes() == b.tobytes()


def test_float_ops_of_a_grouped_graph_stay_float() -> None:
    graph = parse(FLOAT_BETWEEN_CODES)
    compiled = CpuTarget().compile(graph)
    assert [n.op for n in compiled.graph] == [n.op for n in graph]
    assert not list(compiled.ledger)
    rng = np.random.default_rng(1)
    quantized = {name: rng.integers(0, 256, 64, np.uint8) for name in "ab"}
    assert same(compiled(**quantized)["q"], run(graph, quantized)["q"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ort-1.31", "torch-2.13.fbgemm", "native"])
def test_random_graphs_that_were_grouped_run_as_they_stand(name: str) -> None:
    looked = 0
    for seed in range(60):
        graph = random_graph(seed, "qdq")
        graph.profile = name
        Group().run(graph, Ledger())
        compiled = CpuTarget().compile(graph)
        if list(compiled.ledger):  # nothing was grouped, as in a graph that still has to be
            ops = {n.op for n in graph if any(v.type.quant for v in n.results)}
            assert ops <= {"quantize", "dequantize", "constant"}, f"seed {seed}: {ops}"
            continue
        inputs = sample_inputs(graph, seed)
        for output, wanted in run(graph, inputs).items():
            assert same(compiled(**inputs)[output], wanted), f"seed {seed}: {output}"
            looked += 1
    assert looked > 20, looked


@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_random_qdq_models_give_the_bytes_of_onnxruntime(kind: str) -> None:
    looked = 0
    for seed in range(50):
        taste = Taste(kind, "dyadic", ALL, layers=4, gains=0.0, wraps=0.0, specials=0.0)  # type: ignore[arg-type]
        model = make(seed, taste, qdq=True, shared=bool(seed % 2))
        judge, shown = runtime.optimized(model.proto, model.feeds)
        compiled = CpuTarget().compile(read(model.proto))
        made = compiled(**model.feeds)
        for name, wanted in judge.items():
            maker = runtime.producer(shown, name)
            if maker is None or sums_before(shown, maker, through=True):
                continue  # it has float sums, whose order is each engine's own
            assert same(made[name], wanted), f"seed {seed}: {name}"
            looked += 1
    assert looked > 10, looked


@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_codes_of_two_storages_are_multiplied_and_added_as_onnxruntime_does(op: str) -> None:
    """onnxruntime has no kernel for them, and computes in float32."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scales = rng.integers(1, 64, 3).astype(np.float32) / np.float32(256)
        proto = _two_storages(op, scales, [int(z) for z in rng.integers(0, 100, 3)])
        feeds = {
            "a": rng.integers(0, 256, 4096).astype(np.uint8),
            "b": rng.integers(-128, 128, 4096).astype(np.int8),
        }
        compiled = CpuTarget().compile(read(proto))
        assert not [e for e in compiled.ledger if e.change is not Change.EXACT]
        wanted = runtime.run(proto, feeds, optimize=True)["y"]
        assert same(compiled(**feeds)["y"], wanted), f"seed {seed}"


def _two_storages(op: str, scales: NDArray[np.float32], zeros: list[int]) -> onnx.ModelProto:
    kinds = (np.uint8, np.int8, np.uint8)
    held = [numpy_helper.from_array(s, f"s{i}") for i, s in enumerate(scales)]
    held += [
        numpy_helper.from_array(np.asarray(zero, kind), f"z{i}")
        for i, (zero, kind) in enumerate(zip(zeros, kinds, strict=True))
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "s0", "z0"], ["ad"]),
        helper.make_node("DequantizeLinear", ["b", "s1", "z1"], ["bd"]),
        helper.make_node(op, ["ad", "bd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s2", "z2"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.UINT8, [4096]),
        helper.make_tensor_value_info("b", TensorProto.INT8, [4096]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.UINT8, [4096])
    graph = helper.make_graph(nodes, op, inputs, [output], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

"""Chains of integer ops become products of integers, byte for byte, under the conditions stated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import qir
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.lift_dynamic import LiftDynamic
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.golden.reading import generate_arrays
from tests.passes.keeping import keeps

CHAIN = """graph main as {profile} {{
  %a = input() : 5x64xf32
  %held = constant(@held) : 64x7x{storage}
  %zero = constant({zero}) : {storage}
  %weights = constant(@weights) : {grain}f32
  %bias = constant(@bias) : 7xf32
  %s, %z = choose_qparams(%a) {{rule = "onnx.dynamic", storage = u8}} : f32, u8
  %q = quantize(%a, scale=%s, zero=%z) : 5x64x!quant.uniform<u8:f32, ?:?>
  %raw = recode(%q) : 5x64xu8
  %i = matmul_integer(%raw, %held, a.zero=%z, b.zero=%zero) : 5x7xi32
  %f = cast(%i) {{to = f32}} : 5x7xf32
  {scaling}
  {end}
  output({outputs})
}}"""
RIGHT = {
    "profile": "ort-1.31",
    "storage": "i8",
    "zero": "3",
    "grain": "7x",
    "scaling": "%m = mul(%s, %weights) : 7xf32\n  %p = mul(%f, %m) : 5x7xf32",
    "end": "%y = add(%p, %bias) : 5x7xf32",
    "outputs": "y=%y",
}


def chain(**changes: str) -> Graph:
    text = CHAIN.format(**RIGHT | changes)
    return parse(text, generate_arrays(text))


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph if n.op not in ("input", "constant", "output")]


def lifted(before: Graph) -> Graph:
    after = run_passes(before, [LiftDynamic()], Ledger())
    for seed in range(3):
        rng = np.random.default_rng(seed)
        given = {
            v.name: rng.normal(0, 10.0**seed, [d for d in v.type.shape if isinstance(d, int)])
            for v in before.inputs
        }
        inputs = {name: data.astype(np.float32) for name, data in given.items()}
        was, now = run(before, inputs), run(after, inputs)
        assert all(was[n].tobytes() == now[n].tobytes() for n in was), f"seed {seed}"
    assert run_passes(after, [LiftDynamic()], Ledger()).version == after.copy().version
    return after


@pytest.mark.parametrize("storage", ["i8", "u8"])
@pytest.mark.parametrize("grain", ["7x", "", "1x"])
@pytest.mark.parametrize("end", ["%y = add(%p, %bias) : 5x7xf32", "%y = identity(%p) : 5x7xf32"])
def test_a_chain_of_integer_ops_is_a_product_of_codes(storage: str, grain: str, end: str) -> None:
    scaling = RIGHT["scaling"]
    if grain != "7x":
        scaling = scaling.replace(": 7xf32", f": {grain}f32")
    made = lifted(chain(storage=storage, grain=grain, end=end, scaling=scaling))
    assert ops(made)[:3] == ["choose_qparams", "quantize", "matmul"]
    node = next(n for n in made if n.op == "matmul")
    assert list(node.operands)[:4] == ["a", "b", "a.scale", "a.zero"]
    kind = node.operands["b"].type.quant
    assert kind is not None
    assert str(kind.storage) == storage
    assert np.all(kind.zeros() == 3)


@pytest.mark.parametrize(
    "change",
    [
        {"scaling": "%m = mul(%f, %s) : 5x7xf32\n  %p = mul(%m, %weights) : 5x7xf32"},
        {"scaling": "%m = mul(%s, %weights) : 7xf32\n  %p = div(%f, %m) : 5x7xf32"},
        {"scaling": "%m = mul(%weights, %weights) : 7xf32\n  %p = mul(%f, %m) : 5x7xf32"},
        {"outputs": "y=%y, i=%i"},
        {"outputs": "y=%y, f=%f"},
        {"outputs": "y=%y, m=%m"},
        {"end": "%y = add(%p, %f) : 5x7xf32"},
    ],
    ids=[
        "another order",
        "divided",
        "another scale",
        "sum used",
        "float used",
        "scales used",
        "no constant",
    ],
)
def test_what_would_be_other_bytes_stays(change: dict[str, str]) -> None:
    assert "matmul_integer" in ops(lifted(chain(**change)))


def test_a_bias_that_the_profile_adds_in_one_rounding_stays_apart() -> None:
    for name in ("torch-2.13.onednn", "torch-2.13.fbgemm"):
        assert ops(lifted(chain(profile=name)))[-1] == "add", name


def test_a_sum_that_takes_off_another_zero_stays() -> None:
    text = str(chain()).replace("a.zero=%z", "a.zero=%zero_2").replace("%q =", "%q =", 1)
    text = text.replace("  %s, %z", "  %zero_2 = constant(7) : u8\n  %s, %z", 1)
    assert "matmul_integer" in ops(lifted(parse(text, generate_arrays(text))))


def test_the_ledger_says_that_it_is_exact() -> None:
    ledger = Ledger()
    run_passes(chain(), [LiftDynamic()], ledger)
    assert [(e.change.value, e.step, e.subject) for e in ledger] == [("exact", "lift-dynamic", "y")]


def network(path: Path) -> None:
    rng = np.random.default_rng(5)
    w1, w2 = rng.normal(0, 0.3, (16, 24)), rng.normal(0, 0.3, (24, 8))
    b1 = rng.normal(0, 1, 24)
    held = {"w1": w1, "w2": w2, "b1": b1}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m"]),
        helper.make_node("Add", ["m", "b1"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        ends,
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, path)


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("channels", [False, True])
def test_a_network_of_onnxruntimes_own_tool_is_lifted_whole(
    kind: QuantType, channels: bool, tmp_path: Path
) -> None:
    network(tmp_path / "float.onnx")
    path = tmp_path / "dynamic.onnx"
    quantize_dynamic(tmp_path / "float.onnx", path, weight_type=kind, per_channel=channels)
    read = qir.load(path)
    assert ops(read).count("matmul_integer") == 2
    made = lifted(read)
    assert ops(made).count("matmul") == 2
    assert not {"matmul_integer", "cast", "mul", "recode"} & set(ops(made))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(6).normal(0, 1, (4, 16)).astype(np.float32)
    (wanted,) = session.run(None, {"x": x})
    assert run(made, {"x": x})["y"].tobytes() == wanted.tobytes()


def test_generated_graphs_keep_every_byte() -> None:
    keeps(LiftDynamic(), range(6))

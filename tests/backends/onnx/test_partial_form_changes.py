"""What is not in the form that was asked for is counted, and what need not change stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qir import pipeline
from qir.ledger import Change, Ledger
from tests.differential.runtime import run
from tests.frontends.onnx.models import model

FLOAT = TensorProto.FLOAT


def product(weights: int, quantized: int, *, domain: str = "", opset: int = 21) -> onnx.ModelProto:
    """A product of integers with weights of some type, and a Selu on integers behind it."""
    rng = np.random.default_rng(4)

    def node(op: str, ins: list[str], out: str) -> onnx.NodeProto:
        own = domain if op.endswith("Linear") else ""
        return helper.make_node(op, ins, [out], domain=own or None)

    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], "q"),
        node("DequantizeLinear", ["q", "s", "z"], "a"),
        node("DequantizeLinear", ["w", "t", "o"], "b"),
        node("MatMul", ["a", "b"], "c"),
        node("QuantizeLinear", ["c", "u", "z"], "d"),
        node("DequantizeLinear", ["d", "u", "z"], "e"),
        node("Selu", ["e"], "f"),
        node("QuantizeLinear", ["f", "u", "z"], "g"),
        node("DequantizeLinear", ["g", "u", "z"], "y"),
    ]
    scales = {n: np.asarray(v, np.float32) for n, v in (("s", 0.02), ("t", 0.1), ("u", 0.1))}
    domains = [domain] if domain else []
    x, y = {"x": (FLOAT, [3, 32])}, {"y": (FLOAT, [3, 5])}
    proto = model(nodes, x, y, scales, opset=opset, domains=domains)
    proto.ir_version = 10
    w = rng.integers(-8, 8, 32 * 5)
    proto.graph.initializer.append(helper.make_tensor("w", weights, [32, 5], w))
    proto.graph.initializer.append(helper.make_tensor("o", weights, [], [0]))
    proto.graph.initializer.append(helper.make_tensor("z", quantized, [], [100]))
    return proto


def converted(proto: onnx.ModelProto, folder: Path, form: str) -> tuple[onnx.ModelProto, Ledger]:
    path, out, ledger = folder / "m.onnx", folder / "out.onnx", Ledger()
    onnx.save(proto, path)
    pipeline.save(pipeline.load(path), out, format=form, ledger=ledger, force=True)
    return onnx.load(out), ledger


U8, U16 = TensorProto.UINT8, TensorProto.UINT16
I8, I4 = TensorProto.INT8, TensorProto.INT4


@pytest.mark.parametrize(
    ("weights", "codes", "form", "said"),
    [
        (I8, U16, "qoperator", ["no quantized operator takes u16: 2 ops stay"]),
        (
            I4,
            U8,
            "qoperator",
            [
                "no quantized operator takes i4: 1 op stays",
                "has no quantized operator for them: 1 op",
            ],
        ),
        (I8, U8, "qoperator", ["has no quantized operator for them: 1 op stays float (1 Selu)"]),
        (I4, U8, "integer", ["both sides of a matrix product or convolution: 1 op stays"]),
        (I8, U8, "integer", []),
        (I8, U8, "qdq", []),
    ],
)
def test_a_form_says_what_stays_out_of_it(
    tmp_path: Path, weights: int, codes: int, form: str, said: list[str]
) -> None:
    _, ledger = converted(product(weights, codes), tmp_path, form)
    told = [e for e in ledger if e.subject == f"format {form}"]
    assert all(e.change is Change.EXACT for e in told)
    assert len(told) == len(said)
    for entry, part in zip(told, said, strict=True):
        assert part in entry.reason


@pytest.mark.parametrize(("weights", "codes"), [(I4, U8), (I8, U16), (I4, U16)])
def test_codes_of_onnxruntimes_own_operators_need_no_newer_operator_set(
    tmp_path: Path, weights: int, codes: int
) -> None:
    proto = product(weights, codes, domain="com.microsoft", opset=17)
    made, ledger = converted(proto, tmp_path, "qdq")
    assert {o.domain: o.version for o in made.opset_import} == {"": 17, "com.microsoft": 1}
    # The second line says what onnxruntime does since 1.32.
    assert ["values of 16 bits" in e.reason for e in ledger] == [True, False] * (codes == U16)
    assert ["since 1.32" in e.reason for e in ledger] == [False, True] * (codes == U16)
    feeds = {"x": np.random.default_rng(5).standard_normal((3, 32)).astype(np.float32)}
    for optimize in (False, True):
        wanted = run(proto, feeds, optimize=optimize)["y"]
        np.testing.assert_array_equal(run(made, feeds, optimize=optimize)["y"], wanted)


@pytest.mark.parametrize("codes", [U8, U16])
def test_what_asks_for_sizes_stays_on_nothing(codes: int, tmp_path: Path) -> None:
    """Shape and Size compute nothing on floats, so that nobody counts them among what does."""
    proto = product(I8, codes)
    (end,) = (n for n in proto.graph.node if n.op_type == "Selu")
    for op, shape in (("Shape", [2]), ("Size", [])):
        proto.graph.node.append(helper.make_node(op, end.input, [op]))
        proto.graph.output.append(helper.make_tensor_value_info(op, TensorProto.INT64, shape))
    made, ledger = converted(proto, tmp_path, "qoperator")
    assert {"Shape", "Size"} <= {n.op_type for n in made.graph.node}
    said = [entry.reason for entry in ledger if "float (" in entry.reason]
    assert said
    assert not any("Shape" in line or "Size" in line for line in said)

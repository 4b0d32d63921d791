"""Operators of onnxruntime's own on floats stay whole: what is opened is what integers are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir import pipeline
from qir.ledger import Ledger
from tests.differential.runtime import run
from tests.frontends.onnx.models import model, save

SEED = 61
KINDS = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16}
OWN = {"domain": "com.microsoft"}


def fused(kind: type[Any], *, coded: bool = False) -> onnx.ModelProto:
    """A normalized sum, a product and a gelu with a bias; coded: data of the product are
    integers."""
    rng = np.random.default_rng(SEED)

    def real(*shape: int) -> NDArray[Any]:
        return rng.normal(size=shape).astype(kind)

    constants = {"g": real(16), "c": real(16), "w": real(16, 8), "b": real(8)}
    nodes = [helper.make_node("SkipLayerNormalization", ["x", "s", "g", "c"], ["n"], **OWN)]
    data = "n"
    if coded:
        constants |= {"q": np.asarray(0.05, np.float32), "z": np.asarray(128, np.uint8)}
        nodes += [
            helper.make_node("QuantizeLinear", ["n", "q", "z"], ["i"]),
            helper.make_node("DequantizeLinear", ["i", "q", "z"], ["d"]),
        ]
        data = "d"
    product = ("FusedMatMul", OWN) if coded else ("MatMul", {})
    nodes += [
        helper.make_node(product[0], [data, "w"], ["p"], **product[1]),
        helper.make_node("BiasGelu", ["p", "b"], ["y"], **OWN),
    ]
    number = KINDS[kind]
    wide: Sequence[int | str | None] = ["B", 4, 16]
    inputs = {name: (number, wide) for name in "xs"}
    return model(nodes, inputs, {"y": (number, ["B", 4, 8])}, constants, 17, ["com.microsoft"])


def feeds(kind: type[Any]) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(SEED + 1)
    return {name: rng.normal(size=(2, 4, 16)).astype(kind) for name in "xs"}


def ops(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in proto.graph.node)


@pytest.mark.parametrize("form", ["qdq", "integer"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_operators_on_reals_stay_whole_in_every_form(
    form: str, kind: type[Any], tmp_path: Path
) -> None:
    proto, out = fused(kind), tmp_path / "out.onnx"
    pipeline.save(pipeline.load(save(proto, tmp_path)), out, format=form)
    made = onnx.load(out)
    assert ops(made) == ops(proto)
    wanted, found = (run(each, feeds(kind), optimize=False)["y"] for each in (proto, made))
    assert found.tobytes() == wanted.tobytes()


def test_products_beside_codes_are_written_by_their_parts(tmp_path: Path) -> None:
    proto, out, ledger = fused(np.float32, coded=True), tmp_path / "out.onnx", Ledger()
    pipeline.save(pipeline.load(save(proto, tmp_path)), out, format="qdq", ledger=ledger)
    made = onnx.load(out)
    assert ops(made) == ops(proto) - Counter(["FusedMatMul"]) + Counter(["MatMul"])
    assert "FusedMatMul is written by its parts" in {e.reason for e in ledger}
    wanted, found = (run(p, feeds(np.float32), optimize=False)["y"] for p in (proto, made))
    assert np.allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_dynamic_products_leave_operators_on_reals_whole(tmp_path: Path) -> None:
    proto, out = fused(np.float32), tmp_path / "out.onnx"
    made = pipeline.quantize_dynamic(pipeline.load(save(proto, tmp_path)))
    pipeline.save(made, out, format="integer")
    written = onnx.load(out)
    found = ops(written)
    assert found["SkipLayerNormalization"] == found["BiasGelu"] == found["MatMulInteger"] == 1
    assert not found["Erf"] + found["LayerNormalization"]
    wanted, got = (run(p, feeds(np.float32), optimize=False)["y"] for p in (proto, written))
    assert np.abs(np.subtract(got, wanted, dtype=np.float32)).max() < 0.2


def test_for_other_runtimes_they_are_written_by_their_parts(tmp_path: Path) -> None:
    proto, out = fused(np.float32), tmp_path / "out.onnx"
    pipeline.save(pipeline.load(save(proto, tmp_path)), out, target="onnx", format="qdq")
    made = onnx.load(out)
    assert {n.domain for n in made.graph.node} == {""}
    wanted, found = (run(p, feeds(np.float32), optimize=False)["y"] for p in (proto, made))
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5)

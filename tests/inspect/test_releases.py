"""Ops that releases of a runtime compute differently are named, with the releases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.inspect.releases import disagreements, siblings
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.target import target
from tests.cli.command import qir

OTHERS = {
    ("ort-1.32", "i8"): {">=1.20, <1.29", ">=1.29, <1.31", "1.31.*"},
    ("ort-1.32", "u8"): {">=1.20, <1.29", ">=1.29, <1.31", "1.31.*"},
    ("ort-1.31", "i8"): {">=1.20, <1.29", "1.32.*"},
    ("ort-1.31", "u8"): {"1.32.*"},
    ("ort-1.30", "u8"): {"1.32.*"},
    ("ort-1.28", "i8"): {">=1.29, <1.31", "1.31.*", "1.32.*"},
}


def program(kind: str, op: str = "softmax", *, real: bool = False) -> Graph:
    low = -128 if kind == "i8" else 0
    last = "" if real else f"  %y = quantize(%s) : 2x5x!quant.uniform<{kind}:f32, 0.01:{low}>\n"
    return parse(f"""graph main as ort-1.31 {{
  %x = input() : 2x5x!quant.uniform<{kind}:f32, 0.5:{low + 3}>
  %r = dequantize(%x) : 2x5xf32
  %s = {op}(%r) : 2x5xf32
{last}  output(y=%{"s" if real else "y"})
}}""")


@pytest.mark.parametrize(("named", "kind"), OTHERS)
def test_releases_that_compute_a_softmax_differently_are_named(named: str, kind: str) -> None:
    (found,) = disagreements(program(kind), named, siblings(named))
    assert (found.op, found.runtime) == ("softmax", "onnxruntime")
    assert set(found.versions) == OTHERS[named, kind]


@pytest.mark.parametrize(
    "graph", [program("i8", "sigmoid"), program("i8", real=True)], ids=["sigmoid", "float"]
)
def test_what_all_releases_compute_alike_is_not_named(graph: Graph) -> None:
    assert disagreements(graph, "ort-1.32", siblings("ort-1.32")) == ()


def test_a_profile_has_siblings_of_its_own_settings_and_others_have_none() -> None:
    assert set(siblings("ort-1.31.noopt")) == {f"ort-1.{n}.noopt" for n in (28, 30, 32)}
    assert siblings("native") == siblings("") == siblings("of-nobody") == ()


def model(path: Path) -> None:
    """A softmax of i8 between a dequantize and a quantize."""
    zero = np.int8(-128)
    held = {"s": np.float32(0.5), "z": np.int8(3), "t": np.float32(1 / 256), "u": zero}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["r"]),
        helper.make_node("Softmax", ["r"], ["p"], name="attend", axis=-1),
        helper.make_node("QuantizeLinear", ["p", "t", "u"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.INT8, [2, 5]) for n in "xy"]
    arrays = [numpy_helper.from_array(np.asarray(v), n) for n, v in held.items()]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], arrays)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]), path)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_written_model_is_certified_with_a_warning(form: str, tmp_path: Path) -> None:
    source, written, ledger = tmp_path / "m.onnx", tmp_path / "w.onnx", Ledger()
    model(source)
    pipeline.save(pipeline.load(source), written, format=form, ledger=ledger)
    (told,) = (e.reason for e in ledger if e.change is Change.UNVERIFIED)
    others = [v for _, v in _known() if v != _own()]
    assert told.startswith("onnxruntime of ")
    assert any(v in told for v in others)
    assert _own() not in told
    done = qir("certify", written)
    assert done.status == 0
    assert "may give other values for this softmax" in " ".join(done.out.split())


def _known() -> list[tuple[str, str]]:
    from qir.backends.onnx import versions

    return [(name, said.removeprefix("==")) for name, said in versions.profiles().items()]


def _own() -> str:
    return dict(_known())[target("onnxruntime").profile]

"""Long sums of raw integers and of onnxruntime's products: told, and floats only if asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import Refused
from qir.ledger import Change, Ledger
from tests.differential.runtime import run

MOST = (2**31 - 1) // (255 * 127)  # terms of the longest sum that 32 bits hold
LENGTHS = (MOST, MOST + 1)
KINDS = {
    "u8": (TensorProto.UINT8, np.uint8(255)),
    "f32": (TensorProto.FLOAT, np.float32(1)),
    "i32": (TensorProto.INT32, np.int32(0)),
}
"""Elements, and the greatest that a test gives."""
OWN = "com.microsoft"
node = helper.make_node


def model(nodes: list[onnx.NodeProto], ends: tuple[str, str], terms: int) -> onnx.ModelProto:
    """A model of `x`, a row of so many terms, or one pixel of so many channels."""
    convolved = any(n.op_type == "ConvInteger" for n in nodes)
    held: dict[str, NDArray[np.generic]] = {
        "w": np.full((1, terms, 1, 1) if convolved else (terms, 1), 127, np.int8),
        "s": np.array(1 / 255, np.float32),
        "ws": np.array(0.01, np.float32),
        "ys": np.array(0.25, np.float32),
        "b": np.array([3], np.float32),
        "z": np.array(0, np.uint8),
        "yz": np.array(128, np.uint8),
        "wz": np.array(0, np.int8),
    }
    used = {name for n in nodes for name in n.input}
    kinds = [KINDS[end][0] for end in ends]
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", kinds[0], (1, terms, 1, 1)[: 4 if convolved else 2])],
        [helper.make_tensor_value_info("y", kinds[1], None)],
        [numpy_helper.from_array(a, n) for n, a in held.items() if n in used],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(OWN, 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def greatest(proto: onnx.ModelProto) -> dict[str, NDArray[np.generic]]:
    """The input that takes sums furthest."""
    kind = proto.graph.input[0].type.tensor_type
    least = next(most for element, most in KINDS.values() if element == kind.elem_type)
    return {"x": np.full([d.dim_value for d in kind.shape.dim], least)}


def ops(path: Path) -> set[str]:
    return {n.op_type for n in onnx.load(path).graph.node}


# -- raw sums -------------------------------------------------------------------------------------


def summed(op: str) -> list[onnx.NodeProto]:
    """A sum of quantized data, cast and scaled by constants."""
    return [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node(op, ["q", "w", "z"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "ws"], ["y"]),
    ]


@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
@pytest.mark.parametrize("terms", LENGTHS)
def test_raw_sums_that_wrap_are_told_before_any_run(op: str, terms: int, tmp_path: Path) -> None:
    proto = model([node(op, ["x", "w"], ["y"])], ("u8", "i32"), terms)
    onnx.save(proto, tmp_path / "m.onnx")
    found = pipeline.verify(pipeline.load(tmp_path / "m.onnx"))
    exact = terms * 255 * 127
    wraps = int(run(proto, greatest(proto), optimize=False)["y"].item()) != exact
    assert wraps == (terms > MOST)
    told = [f.message for f in found if f.rule == "overflow"]
    assert told == [f"sums come to 0..{exact} in channel 0: 33 bits, and 32 wrap"] * wraps


@pytest.mark.parametrize("op", ["MatMulInteger", "ConvInteger"])
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("terms", LENGTHS)
def test_raw_sums_that_wrap_stay_raw_sums(op: str, form: str, terms: int, tmp_path: Path) -> None:
    source, made, ledger = tmp_path / "m.onnx", tmp_path / "made.onnx", Ledger()
    proto = model(summed(op), ("f32", "f32"), terms)
    onnx.save(proto, source)
    pipeline.save(pipeline.load(source), made, format=form, ledger=ledger)
    assert (op in ops(made)) == (terms > MOST)
    told = [e.reason for e in ledger if e.step == "raise-integer" and e.change == Change.EXACT]
    said = f"stays a sum of integers: sums come to 0..{terms * 255 * 127}, which wrap in 32 bits"
    assert told == [said] * (terms > MOST)
    wanted, found = (run(m, greatest(m), optimize=False)["y"] for m in (proto, onnx.load(made)))
    assert wanted.item() < 0 if terms > MOST else wanted.item() > 0
    assert found == (wanted if terms > MOST else pytest.approx(wanted, rel=1e-3))


# -- what has no operator on integers
# ----------------------------------------------------------------


def dynamic(*more: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A product of data that are quantized while it runs; `m` is its result where more follows."""
    return [
        node("DynamicQuantizeLinear", ["x"], ["q", "xs", "xz"]),
        node("MatMulInteger", ["q", "w", "xz"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["xs", "ws"], ["u"]),
        node("Mul", ["f", "u"], ["m" if more else "y"]),
        *more,
    ]


CASES = {
    "dynamic": ("onnxruntime", ("f32", "f32"), dynamic()),
    "dynamic with a bias": ("onnxruntime", ("f32", "f32"), dynamic(node("Add", ["m", "b"], ["y"]))),
    "MatMulIntegerToFloat": (
        "onnx",
        ("u8", "f32"),
        [node("MatMulIntegerToFloat", ["x", "w", "s", "ws"], ["y"], domain=OWN)],
    ),
    "DynamicQuantizeMatMul": (
        "onnx",
        ("f32", "f32"),
        [node("DynamicQuantizeMatMul", ["x", "w", "ws"], ["y"], domain=OWN)],
    ),
    "QGemm": (
        "onnx",
        ("u8", "u8"),
        [node("QGemm", ["x", "s", "z", "w", "ws", "wz", "", "ys", "yz"], ["y"], domain=OWN)],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("terms", LENGTHS)
def test_products_without_an_operator_on_integers_become_floats_where_they_fit(
    name: str, terms: int, tmp_path: Path
) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    target, ends, nodes = CASES[name]
    proto, ledger = model(nodes, ends, terms), Ledger()
    onnx.save(proto, source)
    graph, wraps = pipeline.load(source), terms > MOST
    if wraps:
        said = r"[ym](\.product)?: .* is written as float ops .* sums come to .* wrap in 32 bits; "
        said += "`lossy=True` allows it"
        with pytest.raises(Refused, match=said):
            pipeline.save(graph, made, target=target, format="qoperator")
        assert not made.exists()
    pipeline.save(graph, made, target=target, format="qoperator", ledger=ledger, lossy=wraps)
    assert (Change.APPROXIMATED in ledger.counts()) == wraps
    assert not ops(made) & {"MatMulInteger", name}
    wanted, found = (run(m, greatest(m), optimize=False)["y"] for m in (proto, onnx.load(made)))
    assert (found == pytest.approx(wanted, rel=1e-3)) != wraps  # it was refused for a reason


# -- in branches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["qdq", "integer", "qoperator"])
@pytest.mark.parametrize("terms", LENGTHS)
def test_a_branch_whose_weights_lie_outside_is_held_to_the_same(
    form: str, terms: int, tmp_path: Path
) -> None:
    """With ONNX's own operators, of which none multiplies integers as QGemm does."""
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    proto = model(CASES["QGemm"][2], ("u8", "u8"), terms)
    graph, kind = proto.graph, TensorProto.UINT8
    branches = [
        helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("o", kind, None)])
        for nodes in (list(graph.node), [node("Identity", ["k"], ["o"])])
    ]
    branches[0].node[0].output[0] = "o"
    graph.initializer.append(numpy_helper.from_array(np.zeros((1, 1), np.uint8), "k"))
    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    del graph.node[:]
    graph.node.append(node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]))
    onnx.save(proto, source)
    if terms > MOST:
        with pytest.raises(
            Refused, match=r"sums come to .* wrap in 32 bits; `lossy=True` allows it"
        ):
            pipeline.save(pipeline.load(source), made, target="onnx", format=form)
        assert not made.exists()
        return
    pipeline.save(pipeline.load(source), made, target="onnx", format=form)
    feeds = {"x": np.full((1, terms), 255, np.uint8), "c": np.array(True)}
    wanted, found = (run(m, feeds, optimize=False)["y"] for m in (proto, onnx.load(made)))
    assert (found == wanted).all()

"""Integers whose floats float32 does not hold, such as those of a mask at its end."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qir import pipeline
from qir.errors import Refused
from qir.ledger import Change, Ledger
from tests.differential.runtime import run

MOST = float(np.finfo(np.float32).max)
FORMS = {
    "qdq": ("qdq", "onnxruntime"),
    "integer": ("integer", "onnxruntime"),
    "onnx": ("qoperator", "onnx"),
}


class Map(NamedTuple):
    """What integers mean."""

    scale: float
    zero: int


UNIT = {"i": Map(1 / 255, -128), "u": Map(1 / 255, 0)}
TYPES = {"i": np.dtype(np.int8), "u": np.dtype(np.uint8)}


def model(op: str, kind: str, b: NDArray[np.generic] | None, maps: list[Map]) -> onnx.ModelProto:
    """All integers and those of b, which are given where none are held."""
    dtype = TYPES[kind]
    element = helper.np_dtype_to_tensor_dtype(dtype)
    held = {} if b is None else {"b": b}
    for name, (scale, zero) in zip("abc", [UNIT[kind], *maps], strict=True):
        held[f"{name}s"] = np.array(scale, np.float32)
        held[f"{name}z"] = np.array(zero, dtype)
    inputs = [helper.make_tensor_value_info("a", element, (256, 1))]
    if b is None:
        inputs.append(helper.make_tensor_value_info("b", element, (256,)))
    slots = ["a", "as", "az", "b", "bs", "bz", "cs", "cz"]
    graph = helper.make_graph(
        [helper.make_node(op, slots, ["c"], domain="com.microsoft")],
        "main",
        inputs,
        [helper.make_tensor_value_info("c", element, None)],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def feeds(proto: onnx.ModelProto, kind: str) -> dict[str, NDArray[np.generic]]:
    quantized = np.arange(256).astype(np.uint8).view(TYPES[kind])
    given = {"a": quantized.reshape(256, 1), "b": quantized}
    return {i.name: given[i.name] for i in proto.graph.input}


KEPT = {
    "a constant by 127": ("i", [-127, -126, 0, 1], [Map(MOST / 127, 0), Map(MOST / 255, 127)]),
    "a constant by 254": ("u", [1, 2, 254, 255], [Map(MOST / 254, 255), Map(MOST / 255, 255)]),
    "a constant by 255": ("i", [-128, 0, 127], [Map(MOST / 255, 127), Map(MOST / 255, 127)]),
}


@pytest.mark.parametrize("op", ["QLinearMul", "QLinearAdd"])
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("form", FORMS)
def test_floats_that_a_scales_rounding_makes_infinite_stand_at_the_end(
    op: str, name: str, form: str, tmp_path: Path
) -> None:
    kind, quantized, maps = KEPT[name]
    proto, ledger = model(op, kind, np.array(quantized, TYPES[kind]), maps), Ledger()
    onnx.save(proto, tmp_path / "m.onnx")
    how, target = FORMS[form]
    made = tmp_path / "made.onnx"
    pipeline.save(
        pipeline.load(tmp_path / "m.onnx"), made, format=how, target=target, ledger=ledger
    )
    assert Change.APPROXIMATED not in ledger.counts()
    given = feeds(proto, kind)
    wanted = run(proto, given, optimize=False)["c"]
    for optimize in (False, True):
        assert (run(onnx.load(made), given, optimize=optimize)["c"] == wanted).all()


FAR = {
    "a constant's codes": ("i", [-128], [Map(MOST / 100, 0), Map(MOST / 255, 127)], "b"),
    "codes that are data": ("u", None, [Map(MOST / 100, 255), Map(MOST / 255, 255)], "b"),
    "codes of the result": ("i", [-1, 0, 1], [Map(1.0, 0), Map(MOST / 127, 127)], "its result"),
}


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("form", FORMS)
def test_floats_that_lie_further_are_refused_in_one_line(
    name: str, form: str, tmp_path: Path
) -> None:
    kind, quantized, maps, whose = FAR[name]
    b = None if quantized is None else np.array(quantized, TYPES[kind])
    proto = model("QLinearMul", kind, b, maps)
    onnx.save(proto, tmp_path / "m.onnx")
    how, target = FORMS[form]
    made, graph = tmp_path / "made.onnx", pipeline.load(tmp_path / "m.onnx")
    far = rf"which float32 does not hold: quantized values of {whose} mean up to .*lossy=True"
    said = f"between quantized values, {far}"
    with pytest.raises(Refused, match=said):
        pipeline.save(graph, made, format=how, target=target)
    assert not made.exists()
    ledger = Ledger()
    pipeline.save(graph, made, format=how, target=target, ledger=ledger, lossy=True)
    assert Change.APPROXIMATED in ledger.counts()


def between(kind: str, b: NDArray[np.generic], maps: list[Map]) -> onnx.ModelProto:
    """The same product of floats between integers, as a source may have it."""
    proto = model("QLinearMul", kind, b, maps)
    del proto.graph.node[:]
    proto.graph.node.extend(
        [
            helper.make_node("DequantizeLinear", ["a", "as", "az"], ["ar"]),
            helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["br"]),
            helper.make_node("Mul", ["ar", "br"], ["cr"]),
            helper.make_node("QuantizeLinear", ["cr", "cs", "cz"], ["c"]),
        ]
    )
    return proto


@pytest.mark.parametrize("divided", [126, 127])
def test_infinite_floats_of_a_source_stay_floats(divided: int, tmp_path: Path) -> None:
    maps = [Map(MOST / divided, 0), Map(MOST / 255, 127)]
    proto, ledger = between("i", np.array([-127, 1], np.int8), maps), Ledger()
    onnx.save(proto, tmp_path / "m.onnx")
    made = tmp_path / "made.onnx"
    graph = pipeline.load(tmp_path / "m.onnx")
    pipeline.save(graph, made, format="qoperator", ledger=ledger)
    assert any("stays float (1 Mul)" in e.reason for e in ledger)
    given = feeds(proto, "i")
    wanted, found = (run(m, given, optimize=False)["c"] for m in (proto, onnx.load(made)))
    assert (found == wanted).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_that_makes_floats_of_its_integers_has_infinite_ones_too(
    form: str, tmp_path: Path
) -> None:
    proto = model("QLinearMul", "i", None, [Map(MOST / 254, 126), Map(MOST / 254, 126)])
    slots = ["b", "bs", "bz", "cs", "cz"]
    node = helper.make_node("QLinearLeakyRelu", slots, ["c"], domain="com.microsoft", alpha=0.01)
    proto.graph.node[0].CopyFrom(node)
    onnx.save(proto, tmp_path / "m.onnx")
    how, target = FORMS[form]
    made = tmp_path / "made.onnx"
    pipeline.save(pipeline.load(tmp_path / "m.onnx"), made, format=how, target=target)
    given = feeds(proto, "i")
    wanted, found = (run(m, given, optimize=False)["c"] for m in (proto, onnx.load(made)))
    assert wanted.ravel()[128] == found.ravel()[128] == -128
    assert (found == wanted).all()


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("form", ["qdq", "integer"])
def test_sums_past_the_end_of_floats_within_it_are_refused(
    form: str, pool: bool, tmp_path: Path
) -> None:
    scale = MOST / 510 if pool else MOST / 128  # each real lies within float32
    held = {
        "s": np.float32(scale),
        "z": np.int8(0),
        "w": np.array([[127], [-127]], np.int8),
        "ws": np.float32(4 / 127),
    }
    read = ["x", "s", "z", "s", "z"] if pool else ["x", "s", "z", "w", "ws", "z", "s", "z"]
    made = helper.make_node("QLinearMatMul", read, ["y"])
    if pool:
        ours = "com.microsoft"
        made = helper.make_node("QLinearAveragePool", read, ["y"], domain=ours, kernel_shape=[2, 2])
    shapes = ([1, 1, 3, 3], [1, 1, 2, 2]) if pool else ([3, 2], [3, 1])
    ends = (onnx.TensorProto.INT8, shapes[0]), (onnx.TensorProto.INT8, shapes[1])
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info("x", *ends[0])],
        [helper.make_tensor_value_info("y", *ends[1])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items() if k in read],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=9), tmp_path / "m.onnx")
    with pytest.raises(Refused, match=r"float32 does not hold: its sums come to .*`lossy"):
        pipeline.save(pipeline.load(tmp_path / "m.onnx"), tmp_path / "made.onnx", format=form)

"""Signed integers that go through moves to floats, in every operator set: onnxruntime takes
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qir
from qir import pipeline
from qir.backends.onnx.optimizer import moved_values
from qir.ledger import Change, Ledger
from tests.differential.runtime import optimized, run

F = np.float32
FLOAT = TensorProto.FLOAT
SHAPE = [1, 4, 4, 4]
REFUSED = "output_dtype INT8 does not match y_zero_point type UINT8"
FORMS = (None, "qdq", "qoperator", "integer")
MOVES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Slice": (([0], [2], [1]), {}),
    "Reshape": (([4, -1],), {}),
    "Transpose": ((), {"perm": [0, 2, 3, 1]}),
    "Squeeze": (([0],), {}),
    "Unsqueeze": (([0, -1],), {}),
    "MaxPool": ((), {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
    "Flatten": ((), {}),
    "Tile": (([1, 2, 1, 1],), {}),
    "Gather": (([[1, 0], [-1, 2]],), {"axis": 1}),
    "Expand": (([3, 4, 4, 4],), {}),
    "Pad": (([0, 0, 1, 1, 0, 0, 1, 1],), {}),
    "DepthToSpace": ((), {"blocksize": 2}),
    "SpaceToDepth": ((), {"blocksize": 2}),
    "Split": (([3, 1],), {"axis": 1}),
    "Concat": ((), {"axis": 1}),
    "Resize": ((None, np.array([1, 1, 2, 2], F)), {"nearest_mode": "floor"}),
    "Identity": ((), {}),
}
OPENED = ("Slice", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "MaxPool")
"""Those that the optimizer takes integers through."""
FEEDS = {"x": (np.random.default_rng(3).standard_normal(SHAPE) * 9).astype(F)}

Nodes = list[onnx.NodeProto]
Held = dict[str, NDArray[Any]]


def quantize_pair(held: Held, stem: str, scale: float = 0.1, kind: type = np.int8) -> Nodes:
    """Quantize and dequantize, from x."""
    held |= {f"{stem}_s": np.array(scale, F), f"{stem}_z": np.array(3, kind)}
    pair = [f"{stem}_s", f"{stem}_z"]
    made = helper.make_node("QuantizeLinear", ["x", *pair], [f"{stem}_q"])
    return [made, helper.make_node("DequantizeLinear", [f"{stem}_q", *pair], [f"{stem}_d"])]


def move(held: Held, op: str, source: str, out: str) -> onnx.NodeProto:
    others, attrs = MOVES[op]
    for i, other in enumerate(others):
        if other is not None:
            held[f"{out}_{i}"] = np.asarray(other)
    names = [f"{out}_{i}" if o is not None else "" for i, o in enumerate(others)]
    more = [source, "x"] if op == "Concat" else [source, *names]
    return helper.make_node(op, more, [out, f"{out}_2"] if op == "Split" else [out], **attrs)


def model(nodes: Nodes, held: Held, opset: int, results: list[str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "signed",
        [helper.make_tensor_value_info("x", FLOAT, SHAPE)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in results],
        [numpy_helper.from_array(data, name) for name, data in held.items()],
    )
    sets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


WAYS = ("result", "relu", "both", "row")


def every(opset: int, kind: type, ways: tuple[str, ...] = WAYS) -> onnx.ModelProto:
    """Each move by itself, and in a row: to a result, to an operator on floats, and to both."""
    held: Held = {}
    nodes: Nodes = []
    results: list[str] = []
    for i, op in enumerate(MOVES):
        for way in ways:
            stem = f"{op}_{way}"
            nodes += [
                *quantize_pair(held, stem, (i + 3) / 64, kind),
                move(held, op, f"{stem}_d", stem),
            ]
            if way == "row":
                nodes += [helper.make_node("Transpose", [stem], [f"{stem}_t"])]
                stem = f"{stem}_t"
            if way in ("result", "both"):
                results.append(stem)
            if way != "result":
                nodes += [helper.make_node("Relu", [stem], [f"{stem}_y"])]
                results.append(f"{stem}_y")
    return model(nodes, held, opset, results)


def written(
    folder: Path, proto: onnx.ModelProto, ledger: Ledger | None = None, **how: Any
) -> onnx.ModelProto:
    onnx.save(proto, folder / "m.onnx")
    graph = pipeline.load(folder / "m.onnx")
    given = ledger if ledger is not None else Ledger()
    pipeline.save(graph, folder / "w.onnx", ledger=given, force=True, **how)
    return onnx.load(folder / "w.onnx")


def compare(folder: Path, proto: onnx.ModelProto, made: onnx.ModelProto) -> None:
    """What is written gives the source's bytes: in onnxruntime, and read again."""
    onnx.save(proto, folder / "m.onnx")
    onnx.save(made, folder / "again.onnx")
    wanted = pipeline.run(pipeline.load(folder / "m.onnx"), FEEDS)
    again = pipeline.run(pipeline.load(folder / "again.onnx"), FEEDS)
    for found in (run(made, FEEDS, optimize=True), run(made, FEEDS, optimize=False), again):
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: np.asarray(wanted[n]).tobytes() for n in found
        }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opset", range(13, 27))
def test_every_move_of_signed_codes_opens(tmp_path: Path, opset: int, form: str | None) -> None:
    proto = every(13, np.int8, WAYS if opset in (21, 24) else ("relu",))
    compare(tmp_path, proto, written(tmp_path, proto, format=form, opset=opset))


def test_unsigned_codes_are_written_as_they_are(tmp_path: Path) -> None:
    proto = every(13, np.uint8)
    older, newer = (written(tmp_path, proto, opset=opset) for opset in (20, 21))
    assert [n.op_type for n in newer.graph.node] == [n.op_type for n in older.graph.node]
    compare(tmp_path, proto, newer)


@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
def test_each_target_has_them(tmp_path: Path, target: str) -> None:
    proto = every(13, np.int8)
    compare(tmp_path, proto, written(tmp_path, proto, target=target, opset=24))


@pytest.mark.parametrize("op", MOVES)
def test_the_optimizer_fails_at_its_own_codes_from_set_21_on(op: str) -> None:
    """Where this fails, onnxruntime has mended it."""
    held: Held = {}
    nodes = [
        *quantize_pair(held, "c"),
        move(held, op, "c_d", "t"),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    run(model(nodes, held, 20, ["y"]), FEEDS, optimize=True)
    newer = model(nodes, held, 21, ["y"])
    run(newer, FEEDS, optimize=False)
    if op in OPENED:
        with pytest.raises(Exception, match=REFUSED):
            run(newer, FEEDS, optimize=True)
    else:
        run(newer, FEEDS, optimize=True)


def test_the_ledger_says_what_stands_behind_moves(tmp_path: Path) -> None:
    held: Held = {}
    nodes = [
        *quantize_pair(held, "c"),
        move(held, "Slice", "c_d", "t"),
        move(held, "Tile", "t", "y"),
    ]
    ledger = Ledger()
    made = written(tmp_path, model(nodes, held, 17, ["y"]), ledger, opset=21)
    (line,) = (e for e in ledger if "after it too" in e.reason)
    assert (line.change, line.subject) == (Change.EXACT, "t")
    assert line.reason.startswith(
        "a move of i8 values has quantized values after it too, with the same"
    )
    names = ["QuantizeLinear", "DequantizeLinear"]
    assert [n.op_type for n in made.graph.node] == [*names, "Slice", *names, "Tile"]


@pytest.mark.parametrize("form", FORMS)
def test_a_second_writing_adds_nothing(tmp_path: Path, form: str | None) -> None:
    once = written(tmp_path, every(17, np.int8), format=form, opset=23)
    twice = written(tmp_path, once, format=form, opset=23)
    assert [n.op_type for n in twice.graph.node] == [n.op_type for n in once.graph.node]


@pytest.mark.parametrize("op", OPENED)
def test_kernels_behind_moves_are_those_of_older_sets(tmp_path: Path, op: str) -> None:
    """A sigmoid between integers runs on integers, which take u8 and no i8."""
    held: Held = {}
    end: Held = {"e_s": np.array(1 / 256, F), "e_z": np.array(-128, np.int8)}
    nodes = [
        *quantize_pair(held, "c"),
        move(held, op, "c_d", "t"),
        helper.make_node("Sigmoid", ["t"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", *end], ["p"]),
        helper.make_node("DequantizeLinear", ["p", *end], ["y"]),
    ]
    proto = model(nodes, held | end, 20, ["y"])
    older, kernels = optimized(proto, FEEDS)
    newer, found = optimized(written(tmp_path, proto, opset=21), FEEDS)
    assert [n.op_type for n in found.graph.node] == [n.op_type for n in kernels.graph.node]
    assert "QLinearSigmoid" in [n.op_type for n in found.graph.node]
    assert newer["y"].tobytes() == older["y"].tobytes()


@pytest.mark.parametrize("scale", [3e36, 2e-39])
@pytest.mark.parametrize("form", FORMS)
def test_codes_whose_reals_do_not_give_them_again_are_moved(
    tmp_path: Path, scale: float, form: str | None
) -> None:
    held: Held = {}
    nodes = [*quantize_pair(held, "c", scale), move(held, "Slice", "c_d", "t")]
    proto = model([*nodes, helper.make_node("Neg", ["t"], ["y"])], held, 17, ["y"])
    wide = FEEDS["x"].astype(np.float64) * scale * 10
    feeds = {"x": wide.clip(-3.4e38, 3.4e38).astype(F)}
    made = written(tmp_path, proto, format=form, opset=21)
    assert run(made, feeds, optimize=True)["y"].tobytes() == (
        run(proto, feeds, optimize=False)["y"].tobytes()
    )


THROUGH: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "Identity": (("c_d",), {}),
    "Dropout": (("c_d",), {}),
    "Cast": (("c_d",), {"to": FLOAT}),
    "Add": (("none", "c_d"), {}),
    "Sub": (("c_d", "none"), {}),
    "Mul": (("c_d", "one"), {}),
    "Div": (("c_d", "one"), {}),
    "Expand": (("c_d", "shape"), {}),
}


@pytest.mark.parametrize("op", THROUGH)
def test_what_the_optimizer_takes_out_hides_no_move(tmp_path: Path, op: str) -> None:
    held: Held = {"none": np.array(0, F), "one": np.array(1, F), "shape": np.array(SHAPE)}
    names, attrs = THROUGH[op]
    used = {n: held[n] for n in held if n in names}
    nodes = [
        *quantize_pair(used, "c"),
        helper.make_node(op, names, ["i"], **attrs),
        move(used, "Slice", "i", "t"),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    proto = model(nodes, used, 17, ["y"])
    compare(tmp_path, proto, written(tmp_path, proto, opset=21))


def test_one_channel_of_its_own_is_one_number(tmp_path: Path) -> None:
    held: Held = {"s": np.array([0.1], F), "z": np.array([3], np.int8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=0),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0),
        move(held, "Transpose", "d", "t"),
        move(held, "Reshape", "t", "r"),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    proto = model(nodes, held, 17, ["y"])
    compare(tmp_path, proto, written(tmp_path, proto, opset=21))


def test_moves_within_branches(tmp_path: Path) -> None:
    branches = {}
    held: Held = {"yes": np.array(True)}
    for name, op in (("then_branch", "Slice"), ("else_branch", "MaxPool")):
        nodes = [*quantize_pair(held, name), move(held, op, f"{name}_d", f"{name}_t")]
        nodes += [helper.make_node("Relu", [f"{name}_t"], [f"{name}_y"])]
        out = helper.make_tensor_value_info(f"{name}_y", FLOAT, None)
        branches[name] = helper.make_graph(nodes, name, [], [out])
    given = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["cond"], to=TensorProto.BOOL),
        helper.make_node("If", ["cond"], ["y"], **branches),
    ]
    proto = model(given, held, 17, ["y"])
    compare(tmp_path, proto, written(tmp_path, proto, opset=21))


def test_weights_of_few_bits_behind_moves(tmp_path: Path) -> None:
    """The form that needs set 21; every sum is exact."""
    rng = np.random.default_rng(4)
    held: Held = {"w": rng.integers(-8, 8, (16, 8)).astype(np.int8), "ws": np.full(8, 0.25, F)}
    held["wz"] = np.zeros(8, np.int8)
    nodes = [
        *quantize_pair(held, "c", 0.5),
        move(held, "Reshape", "c_d", "t"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1),
        helper.make_node("MatMul", ["t", "wd"], ["y"]),
    ]
    proto = model(nodes, held, 17, ["y"])
    made = written(tmp_path, proto, format="nbits")
    assert [n.op_type for n in made.graph.node][-1] == "MatMulNBits"
    compare(tmp_path, proto, made)


def test_without_it_the_optimizer_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved_values, "FIRST_TYPED_QUANTIZE", 99)
    made = written(tmp_path, every(13, np.int8), opset=21)
    with pytest.raises(Exception, match=REFUSED):
        run(made, FEEDS, optimize=True)


CAPTURED = """graph main as native {{
  %x = input() : 5x2x4xf32
  %start = input() : 2x4xf32
  %q = quantize(%x) : 5x2x4x!quant.uniform<{kind}:f32, 0.5:{zero}>
  %d = dequantize(%q) : 5x2x4xf32
  %moved = transpose(%d) {{perm = (0, 2, 1)}} : 5x4x2xf32
  %back = transpose(%moved) {{perm = (0, 2, 1)}} : 5x2x4xf32
  %count = constant(5) : i64
  %h = loop(count=%count, vs.0=%start, xs.0={read}) : 2x4xf32 with body {{
    %i = input() : i64
    %go = input() : bool
    %v = input() : 2x4xf32
    %all = input() : 5x2x4xf32
    %one = gather(%all, %i) {{axis = 0}} : 2x4xf32
    %sum = add(%v, %one) : 2x4xf32
    output(go=%go, v=%sum)
  }}
  output(h=%h)
}}"""


@pytest.mark.parametrize("opset", [13, 17, 21, 23])
@pytest.mark.parametrize(("kind", "zero"), [("u8", 128), ("i8", -3)])
@pytest.mark.parametrize("read", ["%d", "%back"])
def test_a_body_reads_moved_values(
    read: str, kind: str, zero: int, opset: int, tmp_path: Path
) -> None:
    graph = qir.parse(CAPTURED.format(read=read, kind=kind, zero=zero))
    pipeline.save(graph, tmp_path / "made.onnx", opset=opset)
    rng = np.random.default_rng(8)
    feeds = {
        "x": (9 * rng.standard_normal((5, 2, 4))).astype(F),
        "start": rng.standard_normal((2, 4)).astype(F),
    }
    made = run(onnx.load(tmp_path / "made.onnx"), feeds, optimize=True)
    (wanted,) = pipeline.run(graph, feeds).values()
    assert np.array_equal(np.asarray(next(iter(made.values()))), wanted)

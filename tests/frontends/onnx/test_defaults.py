"""Inputs with defaults are constants that the caller may give, until something counts on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import DataError
from qir.ir.verify import verify
from qir.ledger import Ledger
from tests.cli.command import qir
from tests.frontends.onnx.models import save

Array = NDArray[Any]
Feeds = dict[str, Array]
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _given(folder: Path, version: int = 8) -> Path:
    """y = x * k, where k is an input that is 2 unless it is given."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in "xy")
    k = helper.make_tensor_value_info("k", TensorProto.FLOAT, [3])
    held = numpy_helper.from_array(np.full(3, 2, np.float32), "k")
    node = helper.make_node("Mul", ["x", "k"], ["y"])
    graph = helper.make_graph([node], "g", [x, k], [y], [held])
    imports = [helper.make_opsetid("", 17)]
    return save(helper.make_model(graph, opset_imports=imports, ir_version=version), folder)


def _takes(path: Path) -> list[str]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [i.name for i in session.get_overridable_initializers()]


def _runs(path: Path, feeds: Feeds) -> Array:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: Array = session.run(None, feeds)[0]
    return found


K = np.array([1, -2, 0.5], np.float32)


def test_a_default_may_be_given_and_is_given_back(tmp_path: Path) -> None:
    path, ledger = _given(tmp_path), Ledger()
    assert _takes(path) == ["k"]
    graph = pipeline.load(path, ledger=ledger)
    assert [*ledger] == []
    assert verify(graph) == []
    assert [v.name for v in graph.defaults] == ["k"]
    pipeline.save(graph, tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").read_bytes() == path.read_bytes()
    pipeline.save(graph, tmp_path / "new.onnx", opset=21)
    assert _takes(tmp_path / "new.onnx") == ["k"]
    pipeline.save(graph, tmp_path / "m.qir")
    for each in (graph, *(pipeline.load(tmp_path / n) for n in ("new.onnx", "m.qir"))):
        for feeds in ({"x": X}, {"x": X, "k": K}):
            wanted = _runs(path, feeds)
            assert pipeline.run(each, feeds)["y"].tobytes() == wanted.tobytes()
            assert _runs(tmp_path / "new.onnx", feeds).tobytes() == wanted.tobytes()
    compiled = pipeline.compile(graph)
    assert np.array_equal(np.asarray(compiled(x=X)["y"]), X * 2)
    with pytest.raises(DataError, match="input 'k' has a default, which is compiled in"):
        compiled(x=X, k=K)
    with pytest.raises(DataError, match=r"input 'k' is \[4\], the model takes 3"):
        pipeline.run(graph, {"x": X, "k": np.ones(4, np.float32)})


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
def test_a_form_in_which_nothing_is_leaves_defaults(tmp_path: Path, form: str) -> None:
    path, out, ledger = _given(tmp_path), tmp_path / "out.onnx", Ledger()
    pipeline.save(pipeline.load(path), out, format=form, ledger=ledger)
    assert _takes(out) == ["k"]
    assert not [e for e in ledger if "default" in e.reason]
    assert [e.reason for e in ledger if "summed" in e.reason] == (
        ["no product of 8-bit integers here can be summed in integers"] if form == "integer" else []
    )
    assert _runs(out, {"x": X, "k": K}).tobytes() == _runs(path, {"x": X, "k": K}).tobytes()


def test_what_counts_on_a_default_says_so_and_takes_none(tmp_path: Path) -> None:
    graph = pipeline.load(_given(tmp_path))
    line = ("DROPPED", "k", "a default is a plain constant from here on")

    def told(ledger: Ledger) -> bool:
        return line in [(e.change.name, e.subject, e.reason) for e in ledger]

    ledger = Ledger()
    made = pipeline.quantize(graph, pipeline.calibrate(graph, [{"x": X}]), ledger=ledger)
    assert told(ledger)
    pipeline.save(made, tmp_path / "q.onnx")
    assert _takes(tmp_path / "q.onnx") == []
    with pytest.raises(DataError, match="default"):
        pipeline.run(made, {"x": X, "k": K})
    folded = pipeline.fold(graph, ledger := Ledger())
    assert [v.name for v in folded.defaults] == ["k"]
    assert not told(ledger)
    assert [v.name for v in graph.defaults] == ["k"]


Node = onnx.NodeProto
node = helper.make_node
_SUMS = [node("ReduceSum", ["x", "k"], ["y"], keepdims=1)]
_ADDED = [node("Add", ["k", "one"], ["s"]), node("ReduceSum", ["x", "s"], ["y"], keepdims=1)]
_SHAPES = [node("Concat", ["k", "one"], ["s"], axis=0), node("Reshape", ["x", "s"], ["y"])]
_CLIPS = [node("Clip", ["x", "k"], ["y"])]
_CODES = [
    node("QuantizeLinear", ["x", "k", "zero"], ["q"]),
    node("DequantizeLinear", ["q", "k", "zero"], ["y"]),
]
_HELD = [
    node("DequantizeLinear", ["k", "half", "zero"], ["d"]),
    node("Mul", ["x", "d"], ["y"]),
]
_SIDE = helper.make_graph(
    [node("Mul", ["x", "k"], ["b"])],
    "side",
    [],
    [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
)
_BRANCH = [node("If", ["yes"], ["y"], then_branch=_SIDE, else_branch=_SIDE)]
COUNTED: dict[str, tuple[list[Node], Array, Array]] = {
    "axes": (_SUMS, np.array([1]), np.array([0])),
    "axes that are computed": (_ADDED, np.array([2]), np.array([1])),
    "sizes of a Reshape": (
        [node("Reshape", ["x", "k"], ["y"])],
        np.array([3, 2]),
        np.array([6, 1]),
    ),
    "bounds of a Clip": (_CLIPS, np.array(1, np.float32), np.array(2, np.float32)),
    "scales": (_CODES, np.array(0.5, np.float32), np.array(0.25, np.float32)),
    "quantized values": (_HELD, np.array([1, 2, 3], np.uint8), np.array([3, 2, 1], np.uint8)),
    "a branch": (_BRANCH, np.array([2, 2, 2], np.float32), K),
    "of open size": ([node("Mul", ["x", "k"], ["y"])], np.array([2], np.float32), K[:1]),
}


def test_the_guide_names_what_makes_a_constant_of_a_default() -> None:
    text = (Path(__file__).parents[3] / "docs/reference/onnx-exceptions.md").read_text()
    start = text.index("is a constant that says `default = true`")
    said = text[start : text.index("reading makes it a constant", start)]
    assert [what for what in COUNTED if what.removesuffix(" that are computed") not in said] == []


def _made(folder: Path, nodes: list[Node], held: Array, sizes: list[str | int]) -> Path:
    rest = {"one": np.array([-1]), "zero": np.array(3, np.uint8), "yes": np.array(True)}
    rest["half"] = np.array(0.5, np.float32)
    read = {n for each in nodes for n in each.input}
    tensors = [numpy_helper.from_array(a, n) for n, a in rest.items() if n in read]
    tensors.append(numpy_helper.from_array(held, "k"))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("k", helper.np_dtype_to_tensor_dtype(held.dtype), sizes),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [y], tensors)
    imports = [helper.make_opsetid("", 17)]
    return save(helper.make_model(graph, opset_imports=imports, ir_version=8), folder)


def test_sizes_may_hang_on_a_default_where_no_type_does(tmp_path: Path) -> None:
    path = _made(tmp_path, _SHAPES, np.array([6]), [1])
    graph = pipeline.load(path)
    for feeds in ({"x": X}, {"x": X, "k": np.array([3])}):
        assert np.array_equal(pipeline.run(graph, feeds)["y"], _runs(path, feeds))


@pytest.mark.parametrize("what", COUNTED)
def test_a_default_that_is_counted_on_when_it_is_read_is_a_constant(
    tmp_path: Path, what: str
) -> None:
    nodes, held, other = COUNTED[what]
    path = _made(tmp_path, nodes, held, ["n"] if what == "of open size" else list(held.shape))
    made = pipeline.load(path, ledger=(ledger := Ledger()))
    line = ("DROPPED", "k", "an input with a default is a constant here")
    assert line in [(e.change.name, e.subject, e.reason) for e in ledger]
    assert made.defaults == ()
    assert pipeline.run(made, {"x": X})["y"].tobytes() == _runs(path, {"x": X}).tobytes()
    with pytest.raises(DataError, match="input 'k' has a default in its file and is that constant"):
        pipeline.run(made, {"x": X, "k": other})


def test_weights_that_are_all_inputs_are_quantized_as_constants(tmp_path: Path) -> None:
    """As some exporters list them; the ledger names each."""
    rng = np.random.default_rng(0)
    held = {"w": rng.normal(size=(4, 3, 3, 3)), "b": rng.normal(size=4)}
    tensors = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in held.items()]
    sizes = {"x": (1, 3, 5, 5), **{n: a.shape for n, a in held.items()}}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node("Conv", ["x", "w", "b"], ["y"])], "g", infos, [y], tensors)
    imports = [helper.make_opsetid("", 17)]
    path = save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path)
    loaded = pipeline.load(path)
    assert [v.name for v in loaded.defaults] == ["w", "b"]
    x = rng.normal(size=(1, 3, 5, 5)).astype(np.float32)
    feeds = {"x": x, "w": np.ones((4, 3, 3, 3), np.float32), "b": np.ones(4, np.float32)}
    found, wanted = pipeline.run(loaded, feeds)["y"], _runs(path, feeds)
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, rtol=1e-5)
    assert all(d.integer for d in pipeline.plan(loaded).decisions)
    ledger = Ledger()
    pipeline.quantize(loaded, pipeline.calibrate(loaded, [{"x": x}]), ledger=ledger)
    assert [e.subject for e in ledger if "a default is" in e.reason] == ["w", "b"]


def test_passes_that_change_nothing_leave_defaults(tmp_path: Path) -> None:
    path, out = _given(tmp_path), tmp_path / "out.onnx"
    told = qir("opt", path, "-o", out, "--passes", "clean-moves; cse; fold-constants")
    assert (told.status, _takes(out)) == (0, ["k"])
    assert "default" not in told.out
    ledger, graph = Ledger(), pipeline.load(path)
    made = pipeline.optimize(graph, "clean-moves; cse", ledger=ledger)
    assert ([v.name for v in made.defaults], [*ledger]) == (["k"], [])
    for feeds in ({"x": X}, {"x": X, "k": K}):
        assert pipeline.run(made, feeds)["y"].tobytes() == _runs(path, feeds).tobytes()


def test_passes_make_constants_of_the_defaults_that_they_fold(tmp_path: Path) -> None:
    nodes = [node("Neg", ["x"], ["m"]), node("Neg", ["x"], ["n"]), node("Mul", ["m", "k"], ["o"])]
    for name, left, least in (("k", 1, "cse"), ("kk", 0, "cse; fold-constants")):
        more = [node("Mul", ["k", "k"], ["kk"])] if name == "kk" else []
        nodes[2] = node("Mul", ["m", name], ["o"])
        path = _made(tmp_path, [*more, *nodes, node("Add", ["n", "o"], ["y"])], K, [3])
        ledger, graph = Ledger(), pipeline.load(path)
        made = pipeline.optimize(graph, least, ledger=ledger)
        assert len(made) < len(graph)
        assert len(made.defaults) == left
        assert [e.subject for e in ledger if "a default is" in e.reason] == ["k"] * (1 - left)
        assert [v.name for v in graph.defaults] == ["k"]


def test_run_says_which_defaults_are_given(tmp_path: Path) -> None:
    path, data = _given(tmp_path), tmp_path / "data.npz"
    np.savez(data, x=X, k=K)
    told = qir("run", path, "--data", data, "-o", tmp_path / "y.npz")
    assert told.status == 0
    assert "k: has a default and is given by the data" in told.out
    assert np.array_equal(np.load(tmp_path / "y.npz")["y"], X * K)
    assert qir("run", path, "--data", data, "--compare", "reference,onnxruntime").status == 0
    np.savez(data, x=X)
    assert "k: has a default and is not given" in qir("run", path, "--data", data).out
    assert "default" not in qir("run", _given(tmp_path, 3), "--data", data).out


def test_a_model_of_defaults_alone_runs_on_what_an_npz_gives(tmp_path: Path) -> None:
    sizes = {"a": X, "b": K}
    ins = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in sizes.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    held = [numpy_helper.from_array(a, n) for n, a in sizes.items()]
    graph = helper.make_graph([node("Add", ["a", "b"], ["y"])], "g", ins, [y], held)
    imports = [helper.make_opsetid("", 17)]
    path = save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path)
    data, out = tmp_path / "data.npz", tmp_path / "y.npz"
    for feeds in ({"a": -X}, {"b": K + 1}, {}):
        np.savez(data, **feeds)
        for engine in ("reference", "onnxruntime"):
            told = qir("run", path, "--data", data, "--with", engine, "-o", out, "--force")
            assert told.status == 0
            assert np.array_equal(np.load(out)["y"], _runs(path, feeds))
    np.save(tmp_path / "a.npy", X)
    told = qir("run", path, "--data", tmp_path / "a.npy")
    assert told.status == 2
    assert "all inputs have defaults (a, b): give them by name, in an .npz" in told.err
    assert "there is no such file" in qir("run", path, "--data", tmp_path / "no.npz").err


def test_what_data_hold_and_nobody_reads_is_told(tmp_path: Path) -> None:
    path, data = _given(tmp_path), tmp_path / "data.npz"
    np.savez(data, x=X, k=K, labels=X, ids=X)
    rest, fixed = "labels, ids: are no inputs and are not read", "k: has a default and is constant"
    assert rest in qir("run", path, "--data", data).out
    found = qir("calibrate", path, "--data", data, "-o", tmp_path / "m.stats").out
    assert rest in found
    assert fixed in found
    for given in (data, tmp_path / "folder"):
        if given != data:
            given.mkdir()
            np.savez(given / "1.npz", x=X, k=K, labels=X, ids=X)
        found = qir("quantize", path, "--data", given, "-o", tmp_path / "q.onnx", "--force").out
        assert rest in found
        assert fixed in found
    found = qir("run", path, "--data", tmp_path / "folder").out
    assert rest in found
    assert "k: has a default and is not taken from a folder" in found
    np.savez(data, x=X)
    assert "not read" not in qir("run", path, "--data", data).out
    np.savez(data, images=X)
    assert "not read" not in qir("run", path, "--data", data).out


def test_before_version_4_no_initializer_is_an_input(tmp_path: Path) -> None:
    path, ledger = _given(tmp_path, 3), Ledger()
    assert _takes(path) == []
    graph = pipeline.load(path, ledger=ledger)
    assert [*ledger] == []
    with pytest.raises(DataError, match="no input 'k'; the model takes x"):
        pipeline.run(graph, {"x": X, "k": np.ones(3, np.float32)})
    assert [i.name for i in onnx.load(path).graph.input] == ["x", "k"]


def _two(folder: Path) -> Path:
    """A convolution with weights by default, halved twice, and a real sum with another default."""
    rng = np.random.default_rng(3)
    held = {
        "w": rng.normal(0, 0.4, (4, 2, 3, 3)).astype(np.float32),
        "k": np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4, 1, 1),
        "i": np.array([1, 0]),
        "half": np.array(0.5, np.float32),
    }
    nodes = [
        node("Mul", ["half", "half"], ["quarter"]),
        node("Conv", ["x", "w"], ["c"]),
        node("Tanh", ["c"], ["t"]),
        node("Mul", ["t", "quarter"], ["h"]),
        node("Max", ["h", "k"], ["p"]),
        node("Gather", ["p", "i"], ["g"], axis=2),
        node("Sin", ["g"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in held.items()}
    inputs = [info("x", TensorProto.FLOAT, [1, 2, 5, 5])]
    inputs += [info(n, kinds[n], held[n].shape) for n in "wki"]
    tensors = [numpy_helper.from_array(a, n) for n, a in held.items()]
    ends = [info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, ends, tensors)
    imports = [helper.make_opsetid("", 17)]
    return save(helper.make_model(graph, opset_imports=imports, ir_version=8), folder)


@pytest.mark.parametrize("form", [None, "qdq", "qoperator"])
def test_a_default_that_nothing_counts_on_stays_one(tmp_path: Path, form: str | None) -> None:
    path, out, ledger = _two(tmp_path), tmp_path / "q.onnx", Ledger()
    graph = pipeline.load(path)
    x = np.random.default_rng(4).uniform(0.1, 1, (1, 2, 5, 5)).astype(np.float32)
    folded = pipeline.optimize(graph, "fold-constants", ledger=ledger)
    assert {v.name for v in folded.defaults} == {"w", "k", "i"}
    assert [e.step for e in ledger] == ["fold-constants"]
    made = pipeline.quantize(
        graph, pipeline.calibrate(graph, [{"x": x}]), ledger=(told := Ledger())
    )
    assert {v.name for v in made.defaults} == {"k", "i"}
    assert [e.subject for e in told if "a default is a plain constant" in e.reason] == ["w"]
    pipeline.save(made, out, format=form, ledger=(said := Ledger()))
    assert not [e for e in said if "a default is a plain constant" in e.reason]
    assert set(_takes(out)) == {"k", "i"}
    given = {"x": x, "k": np.full((1, 4, 1, 1), 2, np.float32), "i": np.array([2, 2])}
    for feeds in ({"x": x}, given):
        assert np.allclose(
            _runs(out, feeds), np.asarray(pipeline.run(made, feeds)["y"], np.float32)
        )
    assert not np.allclose(_runs(out, given), _runs(out, {"x": x}))

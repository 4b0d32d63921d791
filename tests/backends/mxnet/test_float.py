"""Float models in MXNet's files: each operator that is read is written, and means the same."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import qir
from qir.backends.mxnet import session
from qir.backends.mxnet.session import MxnetSession
from qir.errors import Refused, UsageError
from qir.frontends.mxnet import MxnetFrontend
from qir.ir.attrs import Attr
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger
from qir.reference.interpreter import run
from qir.target import target
from tests.frontends.comparison import difference
from tests.frontends.mxnet.recorded_cases import Case, cases

TARGET = "mxnet-onednn"
ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("QIR_MXNET", ROOT / "build/oracles/mxnet/bin/python"))
CASES = [case for family in ("layers", "moves", "points") for case in cases(family)]
NEAR = 1e-5


def written(case: Case, folder: Path) -> Path:
    """Returns the symbol of a case that was read and written anew."""
    graph = qir.load(case.write(folder), inputs=case.given())
    path = folder / "again-symbol.json"
    qir.save(graph, path, target=TARGET, format="float", force=True)
    return path


def read_by_nodes(path: Path) -> set[str]:
    """Returns the variables of a symbol that some node reads."""
    nodes = json.loads(path.read_text())["nodes"]
    return {nodes[i]["name"] for node in nodes for i, _, _ in node["inputs"]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_is_written_and_computes_the_same(case: Case, tmp_path: Path) -> None:
    path = written(case, tmp_path)
    used = {name: x for name, x in case.inputs.items() if name in read_by_nodes(path)}
    names = [n["name"] for n in json.loads(path.read_text())["nodes"] if n["name"] in used]
    graph = qir.load(path, inputs=[used[name] for name in names])
    pairs = zip(run(graph, used).values(), case.results, strict=True)
    assert [why for ours, theirs in pairs if (why := difference(ours, theirs, NEAR))] == []


@pytest.mark.slow
def test_mxnet_runs_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not PYTHON.exists():
        told = f"MXNet is not at {PYTHON} (make oracle-mxnet): files are read back alone"
        warnings.warn(told, stacklevel=1)
        pytest.skip(told)
    monkeypatch.setenv("QIR_MXNET", str(PYTHON))
    for case in CASES:
        made = MxnetSession(written(case, tmp_path)).run(case.inputs)
        pairs = zip(made.values(), case.results, strict=True)
        said = [why for ours, theirs in pairs if (why := difference(ours, theirs, NEAR))]
        assert said == [], case.name


def test_files_run_by_the_shapes_they_were_read_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[dict[str, object]] = [{"op": "null", "name": "x", "inputs": []}]
    nodes.append({"op": "sin", "name": "y", "inputs": [[0, 0, 0]]})
    path = tmp_path / "open-symbol.json"
    path.write_text(json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[1, 0, 0]]}))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    mxnet = SimpleNamespace(answer=lambda asked: {"0": np.sin(asked[3]["x"])})
    monkeypatch.setattr(session, "_mxnet", lambda python: mxnet)
    made = target(TARGET).compile_read(path, qir.load(path, inputs=[x]))(x=x)
    assert list(made) == ["y_output"]
    assert np.array_equal(np.asarray(made["y_output"]), np.sin(x))


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """The files of a small network that QIR brings along."""
    paths = MxnetFrontend().samples(tmp_path)
    return tmp_path / Path(paths[0]).name


def test_an_untouched_model_comes_back_byte_for_byte(sample: Path, tmp_path: Path) -> None:
    graph = qir.load(sample)
    qir.save(graph, tmp_path / "copy-symbol.json", target=TARGET)
    for end in ("symbol.json", "0000.params"):
        old, new = (tmp_path / f"{name}-{end}" for name in ("network", "copy"))
        assert old.read_bytes() == new.read_bytes()


def test_a_changed_model_is_written_anew(sample: Path, tmp_path: Path) -> None:
    graph = qir.load(sample)
    graph.rename(graph["relu0"], "gate")
    qir.save(graph, tmp_path / "copy-symbol.json", target=TARGET)
    names = {n["name"] for n in json.loads((tmp_path / "copy-symbol.json").read_text())["nodes"]}
    assert "gate" in names
    again = qir.load(tmp_path / "copy-symbol.json")
    assert list(again.outputs) == ["fc0_output"]
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    (ours,), (theirs,) = (run(g, {"data": x}).values() for g in (graph, again))
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("taken", ["new-symbol.json", "new-0000.params"])
def test_neither_file_is_overwritten_unasked(taken: str, sample: Path, tmp_path: Path) -> None:
    graph = qir.load(sample)
    (tmp_path / taken).write_text("mine")
    with pytest.raises(UsageError, match=f"{taken} exists"):
        qir.save(graph, tmp_path / "new-symbol.json", target=TARGET)
    assert (tmp_path / taken).read_text() == "mine"
    qir.save(graph, tmp_path / "new-symbol.json", target=TARGET, force=True)
    assert (tmp_path / taken).read_bytes() != b"mine"


def test_results_keep_the_names_that_mxnet_would_not_give(tmp_path: Path) -> None:
    text = (
        "graph main as native {\n  %x = input() : 2x3xf32\n  %y = relu(%x) : 2x3xf32\n"
        "  output(first=%y, second=%y, third=%x)\n}\n"
    )
    path = tmp_path / "named-symbol.json"
    qir.save(qir.parse(text), path, target=TARGET)
    graph = qir.load(path)
    assert list(graph.outputs) == ["first", "second", "third"]
    assert str(graph.inputs[0].type) == "2x3xf32"


@pytest.mark.parametrize("format", ["int8", "other"])
def test_a_format_that_does_not_fit_is_refused(format: str, sample: Path, tmp_path: Path) -> None:
    graph, path = qir.load(sample), tmp_path / "new-symbol.json"
    wanted = "nothing is quantized" if format == "int8" else "no format 'other'; it has int8 and"
    with pytest.raises((Refused, UsageError), match=wanted):
        qir.save(graph, path, target=TARGET, format=format)
    assert not path.exists()


def test_an_op_that_mxnet_does_not_have_is_refused_in_one_line(tmp_path: Path) -> None:
    text = (
        "graph main as native {\n  %x = input() : 4xf32\n"
        "  %y = cumprod(%x) {axis = 0} : 4xf32\n  output(y=%y)\n}\n"
    )
    ledger = Ledger()
    with pytest.raises(Refused, match=r"cumprod cannot be written for MXNet: .* cut the model"):
        qir.save(qir.parse(text), tmp_path / "a-symbol.json", target=TARGET, ledger=ledger)
    assert [entry.change for entry in ledger] == [Change.REFUSED]
    assert not list(tmp_path.iterdir())


def test_truth_values_and_numbers_alone_are_noted(tmp_path: Path) -> None:
    text = (
        "graph main as native {\n  %x = input() : 4xf32\n  %z = constant(0.5) : f32\n"
        "  %y = greater(%x, %z) : 4xbool\n"
        "  %s = reduce_sum(%x) {axes = (0,), keep = false} : f32\n  output(y=%y, s=%s)\n}\n"
    )
    ledger = Ledger()
    path = tmp_path / "a-symbol.json"
    qir.save(qir.parse(text), path, target=TARGET, ledger=ledger)
    assert sorted(e.subject for e in ledger if e.change is Change.DROPPED) == ["s", "y"]
    x = np.array([0.25, 0.75, 0.5, 2], np.float32)
    made = run(qir.load(path), {"x": x})
    assert made["y"].tolist() == [0, 1, 0, 1]
    assert made["s"].tolist() == [3.5]


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "by head"])
@pytest.mark.parametrize("mask", ["none", "float", "bool", "causal"])
def test_attention_is_written_as_products_and_a_softmax(
    flat: bool, mask: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(7)
    shape = (2, 5, 8) if flat else (2, 2, 5, 4)
    graph = Graph("attention")
    held = {s: graph.add("input", types=[TensorType(shape, F32)], name=s).result for s in "qkv"}
    allowed = np.tril(np.ones((5, 5), bool)) if mask == "causal" else rng.random((5, 5)) < 0.7
    allowed |= np.eye(5, dtype=bool)
    added = rng.normal(size=(5, 5)).astype(np.float32)
    if mask in ("float", "bool"):
        held["mask"] = graph.constant(added if mask == "float" else allowed)
    attrs: dict[str, Attr] = {"heads": 2 if flat else None, "causal": mask == "causal"}
    graph.add("output", {"y": graph.add("attention", held, attrs).result})
    path = tmp_path / "model-symbol.json"
    qir.save(graph, path, target=TARGET)
    x = {s: rng.normal(size=shape).astype(np.float32) for s in "qkv"}
    (made,) = run(qir.load(path), x).values()

    q, k, v = (a.astype(np.float64) for a in x.values())
    if flat:
        q, k, v = (a.reshape(2, 5, 2, 4).swapaxes(1, 2) for a in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / 2
    scores = scores + added if mask == "float" else scores
    scores = np.where(allowed, scores, -np.inf) if mask in ("bool", "causal") else scores
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = shares / shares.sum(-1, keepdims=True) @ v
    wanted = wanted.swapaxes(1, 2).reshape(shape) if flat else wanted
    assert np.abs(made - wanted).max() < 1e-6


NEAREST = 'axes = (2, 3), coordinates = "asymmetric", rounding = "floor"'
RESIZED = {
    "a factor": (
        f"resize_nearest(%x) {{{NEAREST}, scales = (2.0, 2.0)}} : (N)x2x(H*2)x(W*2)xf32",
        {"scale": "2", "sample_type": "nearest", "num_args": "1"},
    ),
    "sizes": (
        'resize(%x, sizes=%s) {axes = (2, 3), coordinates = "half_pixel"} : (N)x2x5x9xf32',
        {"height": "5", "width": "9", "align_corners": "False"},
    ),
}


@pytest.mark.parametrize("case", RESIZED)
def test_images_of_open_sizes_are_resized(case: str, tmp_path: Path) -> None:
    op, wanted = RESIZED[case]
    text = (
        "graph main as native {\n  %x = input() : (N)x2x(H)x(W)xf32\n"
        f"  %s = constant([5, 9]) : 2xi64\n  %y = {op}\n  output(y=%y)\n}}\n"
    )
    path = tmp_path / "large-symbol.json"
    qir.save(qir.parse(text), path, target=TARGET)
    (node,) = (n for n in json.loads(path.read_text())["nodes"] if n["name"] == "y")
    assert node["attrs"].items() >= wanted.items()


@pytest.mark.parametrize(
    "change",
    [
        "axes = (2, 3), scales = (2.5, 2.5)} : 1x2x10x10xf32",
        "axes = (2, 3), scales = (2.0, 3.0)} : 1x2x8x12xf32",
        "axes = (1, 2, 3), scales = (2.0, 2.0, 2.0)} : 1x4x8x8xf32",
    ],
)
def test_factors_that_up_sampling_does_not_have_are_refused(change: str, tmp_path: Path) -> None:
    whole = qir.parse(
        "graph main as native {\n  %x = input() : 1x2x4x4xf32\n"
        '  %y = resize_nearest(%x) {coordinates = "asymmetric", '
        f'rounding = "floor", {change}\n  output(y=%y)\n}}\n'
    )
    with pytest.raises(Refused, match="makes images larger by one whole factor"):
        qir.save(whole, tmp_path / "large-symbol.json", target=TARGET)

"""Operators that QIR does not know: kept, written back as they were, and run by MXNet alone."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qir
from qir.backends.mxnet.session import MxnetSession
from qir.errors import PluginError, Refused
from qir.frontends.mxnet.parameters import read_parameters
from qir.frontends.mxnet.samples import parameter_bytes
from tests.backends.mxnet.written import differing, integers, of_mxnet
from tests.cli.command import qir as command

TARGET = "mxnet-onednn"
ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("QIR_MXNET", ROOT / "build/oracles/mxnet/bin/python"))
SEED = 20261130
SHAPE = (2, 3, 16, 16)


class Symbol:
    """A symbol that grows node by node, with random parameters."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.held: dict[str, np.ndarray[Any, Any]] = {}
        self.rng = np.random.default_rng(SEED)

    def add(self, op: str, name: str, *inputs: int | tuple[int, int], **attrs: str) -> int:
        pairs = [(held, 0) if isinstance(held, int) else held for held in inputs]
        node: dict[str, Any] = {"op": op, "name": name}
        if attrs:
            node["attrs"] = attrs
        node["inputs"] = [[index, which, 0] for index, which in pairs]
        self.nodes.append(node)
        return len(self.nodes) - 1

    def parameter(self, name: str, *shape: int, group: str = "arg") -> int:
        self.held[f"{group}:{name}"] = self.rng.normal(0, 0.3, shape).astype(np.float32)
        return self.add("null", name)

    def conv(self, x: int, name: str, taken: int, given: int) -> int:
        w = self.parameter(f"{name}_weight", given, taken, 3, 3)
        attrs = {"kernel": "(3, 3)", "pad": "(1, 1)", "num_filter": str(given), "no_bias": "True"}
        return self.add("Convolution", name, x, w, **attrs)

    def write(self, folder: Path, *heads: int | tuple[int, int]) -> Path:
        ends = [(held, 0) if isinstance(held, int) else held for held in heads]
        path = folder / "kept-symbol.json"
        variables = [i for i, node in enumerate(self.nodes) if node["op"] == "null"]
        text = {"nodes": self.nodes, "arg_nodes": variables, "heads": [[*e, 0] for e in ends]}
        path.write_text(json.dumps(text, indent=2))
        (folder / "kept-0000.params").write_bytes(parameter_bytes(self.held))
        return path


def detector(folder: Path) -> Path:
    """Writes a detector: a deformable convolution, priors, and a head that picks boxes."""
    made = Symbol()
    data = made.add("null", "data", __shape__=str(SHAPE))
    x = made.add("Activation", "relu1", made.conv(data, "conv1", 3, 8), act_type="relu")
    offsets = made.conv(x, "offsets", 8, 18)
    w = made.parameter("bent_weight", 8, 8, 3, 3)
    sides = {"kernel": "(3, 3)", "pad": "(1, 1)", "num_filter": "8", "no_bias": "True"}
    x = made.add("_contrib_DeformableConvolution", "bent", x, offsets, w, **sides)
    x = made.add("Activation", "relu2", x, act_type="relu")
    prior = made.add("_contrib_MultiBoxPrior", "prior", x, sizes="(0.5, 0.25)", ratios="(1,)")
    scores = made.add("transpose", "last", made.conv(x, "scores", 8, 6), axes="(0, 2, 3, 1)")
    scores = made.add("Reshape", "rows", scores, shape="(0, -1, 3)")
    scores = made.add("softmax", "shares", made.add("transpose", "t", scores, axes="(0, 2, 1)"))
    places = made.add("transpose", "last2", made.conv(x, "places", 8, 8), axes="(0, 2, 3, 1)")
    places = made.add("Flatten", "flat", places)
    found = made.add("_contrib_MultiBoxDetection", "found", scores, places, prior)
    best = made.add("slice_axis", "best", found, axis="1", begin="0", end="5")
    return made.write(folder, best, prior)


def unknown(folder: Path) -> Path:
    """Writes operators that no version of MXNet has, with states, subgraphs and ranges."""
    made = Symbol()
    data = made.add("null", "data", __shape__="(2, 3)")
    state = made.parameter("state", 3, group="aux")
    inner = {"nodes": [{"op": "null", "name": "in", "inputs": []}], "heads": [[0, 0, 0]]}
    first = made.add("_foo_holds", "first", data, state, data, big="1e400", text='a "b"\n(')
    made.nodes[first]["subgraphs"] = [inner]
    ends = {"min_calib_range": "-1.5", "max_calib_range": "1.5", "out_type": "int8"}
    q = made.add("_contrib_quantize_v2", "q", data, **ends)
    second = made.add("_foo_quantized", "second", (q, 0), (q, 1), (q, 2))
    last = made.add("_contrib_dequantize", "last", (second, 0), (second, 1), (second, 2))
    return made.write(folder, (first, 2), last)


def nodes(path: Path) -> dict[str, tuple[Any, ...]]:
    """Returns the operators of a symbol by name: op, attributes, subgraphs, what they read."""
    held = json.loads(path.read_text())["nodes"]
    return {
        n["name"]: (
            n["op"],
            n.get("attrs"),
            n.get("subgraphs"),
            [(held[i]["name"], which) for i, which, _ in n["inputs"]],
        )
        for n in held
        if n["op"] != "null"
    }


@pytest.fixture(name="mxnet")
def _mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    if not PYTHON.exists():
        told = f"MXNet is not at {PYTHON} (make oracle-mxnet): kept operators are not run"
        warnings.warn(told, stacklevel=1)
        pytest.skip(told)
    monkeypatch.setenv("QIR_MXNET", str(PYTHON))


def test_a_kept_operator_is_shown_with_its_shape_where_that_is_known(tmp_path: Path) -> None:
    graph = qir.load(detector(tmp_path))
    kept = {str(n.attrs["op"]): str(n.result.type) for n in graph if n.op == "foreign"}
    assert kept == {
        "_contrib_DeformableConvolution": "2x8x16x16xf32",
        "_contrib_MultiBoxPrior": "1x512x4xf32",
        "_contrib_MultiBoxDetection": "2x512x6xf32",
    }
    told = command("show", tmp_path / "kept-symbol.json")
    assert told.status == 0
    assert "mxnet _contrib_DeformableConvolution" in told.out


def test_what_reads_an_unknown_shape_is_kept_too(tmp_path: Path) -> None:
    graph = qir.load(unknown(tmp_path))
    kept = [str(n.attrs["op"]) for n in graph if n.op == "foreign"]
    assert kept == ["_foo_holds", "_foo_quantized", "_contrib_dequantize"]
    assert list(graph.outputs) == ["first_output2", "last_output"]
    assert str(qir.parse(str(graph))) == str(graph)


@pytest.mark.parametrize(("write", "format"), [(detector, "float"), (unknown, "int8")])
def test_kept_operators_are_written_as_they_were(write: Any, format: str, tmp_path: Path) -> None:
    path, again = write(tmp_path), tmp_path / "again-symbol.json"
    qir.save(qir.load(path), again, target=TARGET, format=format)
    before, after = nodes(path), nodes(again)
    kept = [name for name, node in before.items() if node[0].startswith(("_contrib_Mu", "_foo"))]
    assert len(kept) == 2
    for name in (*kept, *(["bent"] if write is detector else ["last"])):
        assert after[name] == before[name]
    states = read_parameters(again.with_name("again-0000.params")).states
    assert states == ({"state"} if write is unknown else set())


@pytest.mark.parametrize("write", [detector, unknown])
def test_an_untouched_file_comes_back_byte_for_byte(write: Any, tmp_path: Path) -> None:
    path, again = write(tmp_path), tmp_path / "again-symbol.json"
    qir.save(qir.load(path), again, target=TARGET)
    assert again.read_bytes() == path.read_bytes()
    stores = [p.with_name(p.name.replace("symbol.json", "0000.params")) for p in (path, again)]
    assert stores[0].read_bytes() == stores[1].read_bytes()


@pytest.mark.parametrize(
    ("target", "suffix"),
    [("onnxruntime", "onnx"), ("pytorch-x86", "pt"), ("tensorflow-onednn", "pb")],
)
def test_other_targets_refuse_it_in_one_line(target: str, suffix: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"_contrib_DeformableConvolution.* (unknown|written)") as e:
        qir.save(qir.load(detector(tmp_path)), tmp_path / f"made.{suffix}", target=target)
    assert "\n" not in str(e.value)
    assert "model before it" in str(e.value) or "out of the model" in str(e.value)


def test_without_mxnet_it_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QIR_MXNET", raising=False)
    path = detector(tmp_path)
    np.save(tmp_path / "x.npy", np.zeros(SHAPE, np.float32))
    told = command("run", path, "--data", tmp_path / "x.npy")
    assert told.status != 0
    assert told.err.count("\n") == 1
    assert "bent" in told.err
    assert "QIR_MXNET names no Python that has mxnet 1.9" in told.err


@pytest.mark.parametrize("op", ["_cvimread", "_NDArray", "Custom", "random_normal"])
def test_what_reaches_beyond_its_operands_is_never_run(op: str, tmp_path: Path) -> None:
    made = Symbol()
    x = made.add("null", "data", __shape__="(2, 3)")
    graph = qir.load(made.write(tmp_path, made.add(op, "kept", x, filename="/etc/hosts")))
    with pytest.raises(PluginError, match="is not run: it reaches beyond its operands"):
        qir.run(graph, {"data": np.zeros((2, 3), np.float32)})


@pytest.mark.slow
@pytest.mark.usefixtures("mxnet")
def test_mxnet_runs_kept_operators_between_quantized_layers(tmp_path: Path) -> None:
    x = np.random.default_rng(SEED).normal(size=SHAPE).astype(np.float32)
    path = detector(tmp_path)
    graph = qir.load(path)
    theirs = list(MxnetSession(path).run({"data": x}).values())
    for ours, wanted in zip(qir.run(graph, {"data": x}).values(), theirs, strict=True):
        assert np.allclose(ours, wanted, atol=1e-5)
    made = qir.quantize(graph, qir.calibrate(graph, x), target=TARGET)
    again = tmp_path / "int8-symbol.json"
    qir.save(made, again, target=TARGET)
    found = of_mxnet(MxnetSession(again).run({"data": x}, all_nodes=True))
    assert len(found) > 5
    assert differing(integers(made, x), found) == []

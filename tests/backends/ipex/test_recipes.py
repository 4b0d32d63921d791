"""Recipes: read with their module, written as IPEX numbers them, refused where they do not fit."""

from __future__ import annotations

import json
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qir
from qir.backends.ipex import read_recipe, read_schemes
from qir.backends.ipex.calls import calls
from qir.errors import InputError, Refused, UsageError
from qir.ir.graph import Graph
from qir.ledger import Change, Ledger
from tests.cli.command import qir as command

from .networks import made

RECORDED = Path(__file__).with_name("recorded")
SAMPLES = sorted(RECORDED.glob("ipex_*.json"))


@cache
def graph(name: str) -> Graph:
    net, x = made(name)
    return qir.load(net, inputs=(x,))


@cache
def quantized(name: str, target: str = "ipex-onednn") -> Graph:
    _, x = made(name)
    return qir.quantize(graph(name), qir.calibrate(graph(name), x.numpy()), target=target)


def recipe(held: Graph, format: str = "recipe") -> dict[str, Any]:
    text = qir.build(held, target="ipex-onednn", format=format)
    assert isinstance(text, str)
    found: dict[str, Any] = json.loads(text)
    return found


def forced(tensor: dict[str, Any]) -> tuple[Any, ...]:
    """What a recipe says of an input that it quantizes."""
    if tensor.get("force_dtype", "torch.float32") == "torch.float32":
        return (tensor.get("id"),)
    return tuple(tensor[key] for key in ("id", "force_dtype", "scale", "zero_point"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_recipe_of_ipex_comes_back_as_it_was(path: Path) -> None:
    read = read_recipe(path, graph("sample"))
    assert qir.build(read, target="ipex-onednn") == path.read_text()


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_recipe_is_written_anew_with_the_same_numbers(path: Path) -> None:
    wanted = json.loads(path.read_text())[" "]["q_op_infos"]
    rows = recipe(read_recipe(path, graph("sample")).copy())[" "]["q_op_infos"]
    assert list(rows) == list(wanted)
    for index, row in rows.items():
        said = wanted[index]
        assert (row["fqn"], row["op_type_is_module"]) == (said["fqn"], said["op_type_is_module"])
        assert row["op_type"].rstrip(">") == said["op_type"].split(" at ")[0].rstrip(">")
        inputs = [forced(t) for t in row["input_tensor_infos"] if t]
        assert inputs == [forced(t) for t in said["input_tensor_infos"] if t]
        assert row["weight_tensor_infos"] == said["weight_tensor_infos"]
        assert [t["id"] for t in row["output_tensor_infos"]] == [
            t["id"] for t in said["output_tensor_infos"]
        ]


def test_what_observers_ask_for_becomes_schemes() -> None:
    found = {path.stem: str(read_schemes(path)["/0"]) for path in SAMPLES}
    assert found == {
        "ipex_affine_quint8_minmax": "u8 affine tensor minmax",
        "ipex_default_static_qconfig": "u8 affine tensor mse",
        "ipex_sym_act_qint8": "i8 symmetric tensor minmax",
    }


def test_a_module_that_fx_does_not_trace_is_numbered_part_by_part() -> None:
    """The expected numbers are those of IPEX 2.8, which wrote a recipe of this module."""
    found = recipe(quantized("bert"), "recipe-nested")
    assert list(found) == [" ", "layers", "layers:0", "layers:0:att", "layers:1", "layers:1:att"]
    calls = {
        owner: [
            (row["fqn"], *[t["id"] for t in row["input_tensor_infos"] if "id" in t])
            for row in entry["q_op_infos"].values()
        ]
        for owner, entry in found.items()
    }
    assert calls[" "] == [("fc", 49)]
    assert calls["layers:0"] == [
        ("layers.0", 0, 17),
        ("layers.0.f1", 19),
        ("layers.0.f2", 21),
        ("layers.0", 19, 22),
    ]
    assert [name for name, *_ in calls["layers:1:att"]] == [
        "layers.1.att.q",
        "layers.1.att.k",
        "layers.1.att.v",
        "layers.1.att",
        "layers.1.att",
        "layers.1.att.o",
    ]


def test_a_recipe_read_back_means_what_was_written(tmp_path: Path) -> None:
    _, x = made("sample")
    path = tmp_path / "recipe.json"
    qir.save(quantized("sample"), path, target="ipex-onednn")
    back = read_recipe(path, graph("sample"))
    assert recipe(back.copy()) == json.loads(path.read_text())
    feeds = {back.inputs[0].name: x.numpy()}
    (wanted,) = qir.run(read_recipe(path, graph("sample")), feeds).values()
    (found,) = qir.run(back, feeds).values()
    assert (found == wanted).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d[" "]["q_op_infos"]["2"].update(fqn="elsewhere"), "entry ' ', call 2"),
        (lambda d: d[" "]["q_op_infos"].popitem(), "another module"),
        (lambda d: d[" "].pop("q_op_infos"), "entry ' ' has no table q_op_infos"),
        (lambda d: d.pop(" "), "is no recipe of IPEX"),
        (
            lambda d: d[" "]["q_op_infos"]["0"]["input_tensor_infos"][0].update(scale=[-1.0]),
            "entry ' ', call 0",
        ),
        (
            lambda d: d[" "]["q_op_infos"]["0"]["input_tensor_infos"][0].update(zero_point=[300]),
            "entry ' ', call 0",
        ),
        (lambda d: d[" "]["q_op_infos"]["0"].update(input_tensor_infos=[]), "entry ' ', call 0"),
        (
            lambda d: d[" "]["q_op_infos"]["0"]["input_tensor_infos"][0].update(force_dtype=[1]),
            "entry ' ', call 0 has the type '[1]'",
        ),
        (
            lambda d: d[" "]["q_op_infos"]["0"]["input_tensor_infos"][0].update(scale=["a"]),
            "entry ' ', call 0 has not one scale for each zero point",
        ),
        *(
            (
                lambda d, key=key, held=held: d[" "]["q_op_infos"]["1"][key][0].update(id=held),
                f"entry ' ', call 1 has the tensor id {str(held)!r}",
            )
            for key in ("input_tensor_infos", "output_tensor_infos")
            for held in (2**60, -1, "x", None, True, 1.5)
        ),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused_in_one_line(
    change: Any, said: str, tmp_path: Path
) -> None:
    held = json.loads(SAMPLES[0].read_text())
    change(held)
    path = tmp_path / "other.json"
    path.write_text(json.dumps(held))
    with pytest.raises(InputError) as caught:
        read_recipe(path, graph("sample"))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", '{"nodes": []}', "[" * 100_000, "\x00"])
def test_other_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other\.json: is no"):
        read_recipe(path, graph("sample"))


def test_what_ipex_gets_wrong_stays_float(tmp_path: Path) -> None:
    """IPEX 2.8 sums in the place of the data, and fails on a pool whose stride is left out."""
    ledger = Ledger()
    path = tmp_path / "recipe.json"
    qir.save(quantized("own"), path, target="ipex-onednn", ledger=ledger)
    rows = json.loads(path.read_text())[" "]["q_op_infos"].values()
    inputs = {row["op_type"]: row["input_tensor_infos"] for row in rows if not row["fqn"]}
    (summands,) = (tensors for kind, tensors in inputs.items() if "'add'" in kind)
    assert {t["force_dtype"] for t in summands if t} == {"torch.float32"}
    (pooled,) = (tensors for kind, tensors in inputs.items() if "max_pool2d" in kind)
    assert {t["force_dtype"] for t in pooled if t} == {"torch.float32"}
    (conv,) = (row for row in rows if row["fqn"] == "c2")
    assert conv["input_tensor_infos"][0]["force_dtype"] == "torch.quint8"
    (entry,) = (e for e in ledger if e.change is Change.UNVERIFIED)
    assert "IPEX overwrites it" in entry.reason


def test_what_recipes_do_not_number_is_float_in_file_and_summary(tmp_path: Path) -> None:
    """IPEX takes layers of torch.nn as one call, and a mean is none that it quantizes."""
    net, x = made("mixed")
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    np.save(tmp_path / "x.npy", x.numpy())
    path = tmp_path / "recipe.json"
    given: list[str | Path] = [
        "quantize",
        tmp_path / "net.pt2",
        "--data",
        tmp_path / "x.npy",
        "-o",
        path,
    ]
    told = json.loads(command(*given, "--json", "--target", "ipex-onednn").out)
    rows = json.loads(path.read_text())[" "]["q_op_infos"].values()
    inputs = [(row["fqn"], row["input_tensor_infos"][0]["force_dtype"]) for row in rows]
    assert inputs == [("first", "torch.quint8"), ("last", "torch.quint8")]
    assert told["integer_ops"] == len(inputs)
    ledger = Ledger()
    qir.save(quantized("mixed"), path, target="ipex-onednn", ledger=ledger, force=True)
    said = {e.reason.split(": ")[1] for e in ledger if e.reason.startswith("stays float")}
    assert said == {
        "recipes of IPEX do not reach into nn.TransformerEncoderLayer",
        "recipes of IPEX do not quantize aten.mean.dim",
    }


@pytest.mark.parametrize("name", ["sample", "bert", "own", "mixed", "inplace", "recurrent"])
def test_the_plan_of_a_recipe_is_what_quantize_says_of_it(name: str, tmp_path: Path) -> None:
    net, x = made(name)
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    np.save(tmp_path / "x.npy", x.numpy())
    form = "recipe-nested" if name == "bert" else "recipe"
    given: list[str | Path] = [tmp_path / "net.pt2", "--target", "ipex-onednn", "--format", form]
    more: list[str | Path] = ["--data", tmp_path / "x.npy", "-o", tmp_path / "recipe.json"]
    wanted = json.loads(command("quantize", *given, *more, "--json").out)
    told = json.loads(command("plan", *given, "--json").out)
    assert told["refused"] == ""
    assert told["integer_macs"] == wanted["integer_macs"]
    assert sum(d["integer"] for d in told["decisions"]) == wanted["integer_ops"]


def test_the_plan_says_where_no_recipe_holds_the_model() -> None:
    text = "graph main as native { %x = input() : 2x4xf32 %y = relu(%x) : 2x4xf32 output(y=%y) }"
    found = qir.plan(qir.parse(text), target="ipex-onednn", format="recipe")
    assert found.refused.startswith("y: relu stems from no module of PyTorch")
    assert not qir.plan(qir.parse(text), target="ipex-onednn", format="module").refused
    for unknown, target in (("table", "ipex-onednn"), ("recipe", "onnxruntime")):
        known = "recipe, recipe-nested and module" if target == "ipex-onednn" else "and nbits"
        with pytest.raises(UsageError, match=f"has no format '{unknown}'; it has .*{known}$"):
            qir.plan(qir.parse(text), target=target, format=unknown)
    light = qir.plan(graph("sample"), target="ipex-onednn", format="recipe", dynamic=True)
    assert "quantized while the model runs" in light.refused


def test_a_nested_recipe_of_a_folded_norm_is_refused() -> None:
    """IPEX folds batch norms where torch.fx traces the module alone."""
    with pytest.raises(Refused, match=r"its weights hold b1, .*fuse_conv_bn_eval"):
        qir.build(quantized("sample"), target="ipex-onednn", format="recipe-nested")


def test_sums_in_place_are_numbered_where_fx_traces_alone() -> None:
    """There `x += y` is `x = x + y`, elsewhere a method that IPEX does not number."""
    kinds = {}
    for nested in (False, True):
        found = calls(graph("inplace"), nested=nested)
        kinds[nested] = [call.origin.op for call in found if call.numbered and not call.layer]
    relu = "aten.relu.default"
    assert kinds[False] == [relu, "aten.add_.Tensor", "aten.add.Tensor"]
    assert kinds[True] == [relu, "aten.add.Tensor"]


def test_a_recipe_that_would_quantize_nothing_is_refused() -> None:
    with pytest.raises(Refused, match=r"nothing of it: .*nn\.TransformerEncoder; .*'module'"):
        qir.build(quantized("encoder"), target="ipex-onednn")
    module = qir.build(quantized("encoder"), target="ipex-onednn", format="module")
    assert isinstance(module, nn.Module)
    assert any(buffer.is_quantized for buffer in module.buffers())


def test_a_graph_of_no_module_has_no_recipe() -> None:
    text = "graph main as native { %x = input() : 2x4xf32 %y = relu(%x) : 2x4xf32 output(y=%y) }"
    with pytest.raises(Refused, match="stems from no module"):
        qir.build(qir.parse(text), target="ipex-onednn")


def test_a_module_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no file"):
        qir.save(quantized("sample"), tmp_path / "m.json", target="ipex-onednn", format="module")


def test_the_example_runs_without_ipex(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[3] / "docs" / "examples" / "ipex_recipe.py"
    runpy.run_path(str(example), run_name="__main__")
    assert "largest difference from float: 0.00" in capsys.readouterr().out

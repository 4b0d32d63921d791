"""Target files: what they extend, replace, add and remove, and where their errors are."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from qir import pipeline
from qir.capability import Capability, load
from qir.errors import PluginError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.target import target

BASE = """
name = "base"
[[op]]
op = ["relu", "sigmoid"]
slots = { x = "u8 affine tensor", result = "u8 affine tensor" }
[[op]]
op = "add"
slots = { a = "u8 affine tensor", b = "u8 affine tensor", result = "u8 affine tensor" }
[[chain]]
chain = ["add", "relu"]
cuts = false
[[chain]]
chain = ["add", "clip"]
"""


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    (folder / "base.toml").write_text(BASE)
    path = folder / name
    path.write_text(text)
    return path


def read(folder: Path, text: str) -> Capability:
    return load(written(folder, f'extends = "base.toml"\n{text}'))


def network() -> Graph:
    return parse(
        "graph main as native {\n  %x = input() : 2x3xf32\n  %s = sigmoid(%x) : 2x3xf32\n"
        "  %y = add(%s, %x) : 2x3xf32\n  output(y=%y)\n}"
    )


def test_a_file_is_named_by_itself_and_has_the_rows_of_the_extended_file(tmp_path: Path) -> None:
    table = read(tmp_path, "")
    assert (table.name, sorted(table.ops)) == ("mine", ["add", "relu", "sigmoid"])
    assert table.chains == (("add", "relu"), ("add", "clip"))
    assert table.uncut == {("add", "relu")}
    assert read(tmp_path, 'name = "other"').name == "other"


def test_a_row_replaces_the_one_of_its_op_and_no_other(tmp_path: Path) -> None:
    row = 'slots = { x = "i8 symmetric tensor", result = "i8 symmetric tensor" }'
    table = read(tmp_path, f'[[op]]\nop = ["relu", "tanh"]\n{row}')
    assert [str(s) for s in table.ops["relu"].slots["x"]] == ["i8 symmetric tensor minmax"]
    assert [str(s) for s in table.ops["tanh"].slots["x"]] == ["i8 symmetric tensor minmax"]
    assert [str(s) for s in table.ops["sigmoid"].slots["x"]] == ["u8 affine tensor minmax"]


def test_a_chain_is_added_or_replaced(tmp_path: Path) -> None:
    table = read(tmp_path, '[[chain]]\nchain = ["add", "relu"]\n[[chain]]\nchain = ["add", "tanh"]')
    assert set(table.chains) == {("add", "relu"), ("add", "clip"), ("add", "tanh")}
    assert not table.uncut


def test_rows_are_removed(tmp_path: Path) -> None:
    table = read(tmp_path, '[[remove]]\nop = "relu"\n[[remove]]\nchain = ["add", "clip"]')
    assert sorted(table.ops) == ["add", "sigmoid"]
    assert table.chains == (("add", "relu"),)


def test_files_extend_files_that_extend_files(tmp_path: Path) -> None:
    written(tmp_path, 'extends = "base.toml"\n[[remove]]\nop = "relu"', "middle.toml")
    table = load(written(tmp_path, 'extends = "middle.toml"\n[[remove]]\nop = "add"'))
    assert sorted(table.ops) == ["sigmoid"]


FAULTS = {
    'extends = "base.toml"\n[[op]]\nop = "relv"': "line 3: no op 'relv'; did you mean 'relu'?",
    'extends = "base.toml"\n[[op]]\nop = "relu"\n[op.slots]\nx = "u8 afine tensor"': (
        "line 5: 'u8 afine tensor' is no scheme"
    ),
    'extends = "base.toml"\n[[op]]\nop = "relu"\nslots = { y = "u8 affine tensor" }': (
        "line 4: relu has no slot y"
    ),
    'extends = "base.toml"\n\n[[op]]\nop = "relu"\nslot = {}': (
        "line 5: no key of [[op]] 'slot'; did you mean 'slots'?"
    ),
    'extends = "base.toml"\n[[op]]\nslots = {}': "line 2: [[op]] says no op",
    'extends = "base.toml"\n[[float]]\nop = "relu"': "line 2: [[float]] says no reason",
    'extends = "base.toml"\n[[remove]]\nop = "tanh"': "line 2: what it extends has no row of op",
    'extends = "base.toml"\n[[remove]]\nchain = ["relu"]': "line 2: what it extends has no chain",
    'extends = "base.toml"\n[op]\nop = "relu"': "line 2: op is written [[op]]",
    'extends = "nobody.toml"': "line 1: there is no file nobody.toml beside it",
    '\nextends = "mine.toml"': "line 2: it extends mine.toml, which extends it, in a circle",
    'extends = "base.toml"\nversion = 2': "line 2: it is a target file of version 2",
    'extends = "base.toml"\nops = 3': "line 2: no key 'ops'; did you mean 'op'?",
    'extends = "base.toml"\n\n[[op]\n': "line 3: ",
    "extends = 3": "line 1: extends is a text, not 3",
    "version = 1": "line 1: it says no name",
}


@pytest.mark.parametrize("text", FAULTS)
def test_errors_name_the_file_and_the_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(PluginError) as raised:
        load(written(tmp_path, text))
    assert str(raised.value).startswith(f"mine.toml, {FAULTS[text]}")


def test_a_file_of_a_user_is_a_target_that_writes_what_the_installed_one_writes(
    tmp_path: Path,
) -> None:
    text = 'extends = "onnxruntime"\n[[float]]\nop = "sigmoid"\nreason = "ours is float"'
    path = written(tmp_path, text)
    graph = network()
    named = str(path)
    made = target(named)
    assert (made.name, made.profile) == ("mine", target("onnxruntime").profile)
    planned = {d.node: d for d in pipeline.plan(graph, target=named).decisions}
    assert planned["s"].reason == "ours is float"
    assert planned["y"].integer
    statistics = pipeline.calibrate(graph, [np.ones((2, 3), np.float32)])
    quantized = pipeline.quantize(graph, statistics, target=named)
    pipeline.save(quantized, tmp_path / "y.onnx", target=named, format="qdq")
    assert len(pipeline.load(tmp_path / "y.onnx")) > 3


def test_the_command_line_takes_a_file(tmp_path: Path) -> None:
    written(
        tmp_path, 'extends = "onnxruntime"\n[[float]]\nop = "sigmoid"\nreason = "ours is float"'
    )
    pipeline.save(network(), tmp_path / "net.qir")
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=False)
    qir = [sys.executable, "-m", "qir"]
    made = run([*qir, "plan", "net.qir", "--target", "./mine.toml", "--json"])
    assert [d["reason"] for d in json.loads(made.stdout)["decisions"]] == ["ours is float", ""]
    said = ["quantize", "net.qir", "--data", "x.npy", "--feeds", "--target", "./mine.toml", "-o"]
    for suffix in ("qir", "onnx"):
        done = run([*qir, *said, f"net8.{suffix}"])
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"net8.{suffix}").exists()


def test_a_file_names_another_profile(tmp_path: Path) -> None:
    path = written(tmp_path, 'extends = "onnxruntime"\nprofile = "ort-1.30"')
    assert target(str(path)).profile == "ort-1.30"
    assert target(str(path)).at(21).profile == "ort-1.30"


def test_a_file_may_extend_a_file_that_extends_a_target(tmp_path: Path) -> None:
    written(tmp_path, 'extends = "onnxruntime"\nprofile = "ort-1.30"', "middle.toml")
    path = written(tmp_path, 'extends = "middle.toml"')
    assert (target(str(path)).name, target(str(path)).profile) == ("mine", "ort-1.30")


def test_a_file_is_no_target_without_one_that_writes_for_it(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"base\.toml: it extends no target"):
        target(str(written(tmp_path, BASE, "base.toml")))
    with pytest.raises(PluginError, match="an installed target is named onnx;"):
        target(str(written(tmp_path, 'extends = "onnxruntime"\nname = "onnx"')))
    with pytest.raises(PluginError, match="no target 'onnxrntime'"):
        target(str(written(tmp_path, 'extends = "onnxrntime"')))
    with pytest.raises(PluginError, match=r"nobody\.toml: No such file"):
        target(str(tmp_path / "nobody.toml"))

"""Target files: what they extend, replace, add and remove, and where their errors are."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from qir import pipeline
from qir.capability import Capability, files, load
from qir.capability.files import schema_text
from qir.capability.table import KINDS
from qir.errors import PluginError, UsageError
from qir.inspect.plugins import load_plugin
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.registry import offer
from qir.target import target
from qir.testing import check_target
from tests.cli.command import qir as command

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


def test_several_schemes_may_take_the_place_of_one(tmp_path: Path) -> None:
    more = '"u8 affine tensor" = ["u8 affine tensor", "u16 affine tensor"]'
    slots = read(tmp_path, f"[replace]\n{more}").ops["relu"].slots
    both = ["u8 affine tensor minmax", "u16 affine tensor minmax"]
    assert [str(s) for s in slots["x"]] == [str(s) for s in slots["result"]] == both


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
        "line 5: slots.x: 'u8 afine tensor' is no scheme"
    ),
    'extends = "base.toml"\n[[op]]\nop = "relu"\nslots = { y = "u8 affine tensor" }': (
        "line 4: relu has no slot y; known: x, result"
    ),
    'extends = "base.toml"\n\n[[op]]\nop = "relu"\nslot = {}': (
        "line 5: no key of [[op]] 'slot'; did you mean 'slots'?"
    ),
    'extends = "base.toml"\n[[op]]\nslots = {}': "line 2: [[op]] says no op",
    'extends = "base.toml"\n[[float]]\nop = "relu"': "line 2: [[float]] says no reason",
    'extends = "base.toml"\n[[remove]]\nop = "tanh"': (
        "line 2: remove: what it extends has no row of op 'tanh'"
    ),
    'extends = "base.toml"\n[[remove]]\nchain = ["relu"]': (
        "line 2: remove: what it extends has no chain relu"
    ),
    'extends = "base.toml"\n[op]\nop = "relu"': "line 2: op is written [[op]]",
    'extends = "nobody.toml"': "line 1: extends: there is no file nobody.toml next to it",
    '\nextends = "mine.toml"': "line 2: it extends mine.toml, which extends it, in a circle",
    'extends = "base.toml"\nversion = 2': "line 2: it is a target file of version 2",
    'extends = "base.toml"\nops = 3': "line 2: no key 'ops'; did you mean 'op'?",
    'extends = "base.toml"\n\n[[op]\n': "line 3: ",
    "extends = 3": "line 1: extends is a text, not 3",
    'name = "a"\nprofile = "ort-1.3"': "line 2: no profile 'ort-1.3'; did you mean 'ort-1.3",
    'name = "a"\nformulas = "onedn"': "line 2: no formulas 'onedn'; did you mean 'onednn'?",
    'name = "a"\nlibrary = 3': "line 2: library is a text, not 3",
    'name = "a"\n[forms]\nstatic = ["a"]\ndinamic = []': (
        "line 4: no kind of forms 'dinamic'; did you mean 'dynamic'?"
    ),
    'name = "a"\nforms = { static = 3 }': "line 2: forms.static: 3 is no text or list of texts",
    'name = "a"\n[rounding]\ni8 = "evn"': (
        "line 3: rounding: no rounding 'evn' of i8; did you mean 'even'?"
    ),
    'name = "a"\n[rounding]\nint8 = "even"': "line 3: 'int8' is not an element type; such as f32",
    'name = "a"\nrounding = "even"': "line 2: rounding is a table, not 'even'",
    'name = "a"\n[dynamic]\nrule = "torch.dynamik"': (
        "line 3: dynamic: no rule 'torch.dynamik'; did you mean 'torch.dynamic'?"
    ),
    'name = "a"\n[dynamic]\nops = ["linaer"]': (
        "line 3: dynamic.ops: no op 'linaer'; did you mean 'linear'?"
    ),
    'name = "a"\n[dynamic]\nscale = 2': "line 3: dynamic.scale: 2 is no text",
    'name = "a"\n[[chain]]\nchain = ["conv2d", "reluu"]': (
        "line 3: chain: no op 'reluu'; did you mean 'relu'?"
    ),
    'name = "a"\n[[chain]]\nchain = ["conv2d", "relu"]\ncuts = "no"': (
        "line 4: cuts is true or false, not 'no'"
    ),
    'name = "a"\n[[chain]]\nchain = ["conv2d", "clip"]\nwhen = { minimum = 0.0 }': (
        "line 4: conv2d |> clip has no attribute 'minimum'; did you mean 'min'?"
    ),
    'name = "a"\n[[op]]\nop = "conv2d"\nwhen = { layuot = "NCHW" }': (
        "line 4: conv2d has no attribute 'layuot'; did you mean 'layout'?"
    ),
    'name = "a"\n[[op]]\nop = "add"\nshare = ["a", "resutl"]': (
        "line 4: share: add has no slot resutl; did you mean 'result'?"
    ),
    'name = "a"\n[[op]]\nop = "conv2d"\nconstant = "weight"': (
        "line 4: constant: conv2d has no slot weight; known: x, w, bias, result"
    ),
    'name = "a"\n[[op]]\nop = "matmul"\n[op.ranks]\nc = 2': (
        "line 5: matmul has no slot c; known: a, b, bias, result"
    ),
    'name = "a"\n[[op]]\nop = "relu"\n[op.slots]\nx = "u8 affine tensor minmx"': (
        "line 5: slots.x: 'u8 affine tensor minmx': no range rule 'minmx'; did you mean 'minmax"
    ),
    'name = "a"\n[[op]]\nop = "relu"\nunasked = 3': "line 4: unasked: 3 is no text",
    'name = "a"\n[[defect]]\nop = "relu"\nreason = 3': "line 4: reason: 3 is no text",
    'extends = "base.toml"\n[replace]\n"u8 affine channel" = "i8"': (
        "line 3: what it extends has no scheme 'u8 affine channel'; did you mean 'u8 affine tensor"
    ),
    'extends = "base.toml"\n[replace]\n"u8 affine tensor" = "i8 symetric"': (
        "line 3: replace.u8 affine tensor: 'i8 affine tensor symetric': no range rule "
    ),
    'name = "a"\n[[op]]\nop = "relu"\n[op.slots]\nx = "i8 symetric"': (
        "line 5: slots.x: 'i8 affine tensor symetric': no range rule 'symetric'; did you mean 'sy"
    ),
    'name = "a"\n[replace]\n"u8 affine tensor" = "i8"': "line 2: replace speaks of what it extends",
    'extends = "nobody"': "line 1: extends: no target 'nobody'",
    "version = 1": "line 1: it says no name",
}


@pytest.mark.parametrize("text", FAULTS)
def test_errors_name_the_file_and_the_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(PluginError) as raised:
        load(written(tmp_path, text), lambda name: target(name).capability())
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


@pytest.mark.slow
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


def test_a_file_that_extends_no_target_plans_and_quantizes_and_writes_qir_files(
    tmp_path: Path,
) -> None:
    named = str(written(tmp_path, BASE, "base.toml"))
    graph = network()
    assert [d.becomes for d in pipeline.plan(graph, target=named).decisions] == ["integer"] * 2
    statistics = pipeline.calibrate(graph, [np.ones((2, 3), np.float32)])
    quantized = pipeline.quantize(graph, statistics, target=named)
    assert quantized.profile == "native"
    pipeline.save(quantized, tmp_path / "y.qir", target=named)
    assert len(pipeline.load(tmp_path / "y.qir")) == len(quantized)
    remedy = r"target base writes no files; write a \.qir file, or name another target"
    with pytest.raises(UsageError, match=remedy):
        pipeline.save(quantized, tmp_path / "y.onnx", target=named)
    assert not (tmp_path / "y.onnx").exists()
    pipeline.save(network(), tmp_path / "net.qir")
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    words = (tmp_path / "net.qir", "--data", tmp_path / "x.npy", "--feeds", "--target", named)
    outcome = command("quantize", *words, "-o", tmp_path / "y.onnx")
    assert outcome.status == 2
    assert "writes no files; write a .qir file" in outcome.err
    assert command("targets", named).status == 0


def test_a_file_that_extends_no_target_passes_the_checks_of_targets(tmp_path: Path) -> None:
    checks = check_target(target(str(written(tmp_path, BASE, "base.toml"))), [network()])
    assert [check.detail for check in checks if not check.passed] == []
    assert any(check.detail == "plans" for check in checks)


def test_a_file_finds_scales_by_the_profile_that_it_names(tmp_path: Path) -> None:
    text = BASE.replace("[[op]]", 'profile = "mxnet-1.9"\n[[op]]', 1)
    one = target(str(written(tmp_path, text.replace("u8 affine", "i8 symmetric"), "own.toml")))
    assert one.profile == "mxnet-1.9"
    graph = network()
    statistics = pipeline.calibrate(graph, [np.full((2, 3), 2, np.float32)])
    made = pipeline.quantize(graph, statistics, target=str(tmp_path / "own.toml"))
    kind = next(n.result.type.quant for n in made if n.op == "quantize")
    assert kind is not None
    assert kind.scales() == np.float32(2) / np.float32(127.5)


@pytest.mark.parametrize(
    ("scheme", "low", "level"),
    [
        ("u8|i8 by sign symmetric tensor zero(0)", 0, 255),
        ("u8|i8 by sign symmetric tensor zero(0)", -1, 127),
        ("u8<0:127> symmetric tensor zero(0)", 0, 127),
        ("u16 symmetric tensor zero(0)", 0, 65535),
    ],
)
def test_values_from_zero_up_use_all_unsigned_values(
    tmp_path: Path, scheme: str, low: float, level: int
) -> None:
    path = str(written(tmp_path, BASE.replace("u8 affine tensor", scheme), "other.toml"))
    graph = network()
    data = np.array([[low, 0, 3], [1, 2, 2]], np.float32)
    made = pipeline.quantize(graph, pipeline.calibrate(graph, [data]), target=path)
    kind = made["x.q"].type.quant
    assert kind is not None
    assert kind.scales() == np.float32(3 / level)
    assert kind.zeros() == 0
    assert kind.declared is None


def test_schemes_are_replaced_wherever_they_occur(tmp_path: Path) -> None:
    text = '[replace]\n"u8 affine tensor" = "u16 affine tensor"\n'
    own = '[[op]]\nop = "tanh"\nslots = { x = "u8 affine tensor" }'
    table = read(tmp_path, text + own)
    kinds = {str(s) for op in ("relu", "add") for k in table.ops[op].slots.values() for s in k}
    assert kinds == {"u16 affine tensor minmax"}
    assert [str(s) for s in table.ops["tanh"].slots["x"]] == ["u8 affine tensor minmax"]


def test_an_installed_target_may_be_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'extends = "onnxruntime"\nlibrary = "ours"')
    with offer("qir.targets", "mine", path):
        assert target("mine").name == "mine"
        assert target("mine").capability().row.library == "ours"
        assert target("mine").formats == target("onnxruntime").formats
        assert load_plugin("qir.targets", "mine").name == "mine"  # type: ignore[attr-defined]


def test_names_that_are_taken_or_lead_nowhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="an installed target is named onnx;"):
        target(str(written(tmp_path, 'extends = "onnxruntime"\nname = "onnx"')))
    with pytest.raises(
        PluginError, match=r"mine\.toml, line 1: extends: no target 'onnxrntime'; did you"
    ):
        target(str(written(tmp_path, 'extends = "onnxrntime"')))
    with pytest.raises(PluginError, match=r"nobody\.toml: No such file"):
        target(str(tmp_path / "nobody.toml"))


SCHEMA = json.loads(schema_text())
SHIPPED = sorted(
    path
    for folder in ("backends", "tests/plugin")
    for path in (Path(__file__).parent.parent / folder).rglob("*.toml")
    if path.parent.name != "profiles" and path.name != "pyproject.toml"
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_files_are_read_and_fit_the_schema(path: Path) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(tomllib.loads(path.read_text("utf-8")))
    if "backends" in path.parts:  # others name ops of plugins
        assert load(path, lambda name: target(name).capability()).ops


@pytest.mark.parametrize(
    "text",
    [
        "version = 1",
        'name = "a"\nversion = 2',
        'name = "a"\nops = 3',
        'name = "a"\n[[op]]\nop = "relu"\nslot = {}',
        'name = "a"\n[[op]]\nslots = {}',
        'name = "a"\n[op]\nop = "relu"',
        'name = "a"\n[[float]]\nop = "relu"',
        'name = "a"\n[[chain]]\nchain = ["relu"]\ncuts = 1',
        'name = "a"\nforms = { statik = [] }',
    ],
)
def test_the_schema_and_the_reader_refuse_the_same(tmp_path: Path, text: str) -> None:
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(tomllib.loads(text)))
    with pytest.raises(PluginError, match=r"mine\.toml, line \d"):
        load(written(tmp_path, text))


def test_the_schema_names_the_keys_that_the_reader_knows() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(files.HEAD)
    for table, keys in files.TABLES.items():
        assert set(SCHEMA["properties"][table]["items"]["properties"]) == set(keys), table
    assert set(SCHEMA["properties"]["forms"]["properties"]) == set(KINDS)
    assert set(SCHEMA["properties"]["dynamic"]["properties"]) == set(files.DYNAMIC)
    assert json.loads(command("targets", "--schema").out) == SCHEMA

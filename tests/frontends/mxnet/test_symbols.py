"""Which files are read as MXNet models, the shapes of their inputs, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qir
from qir.errors import InputError, UsageError
from qir.frontends.mxnet import MxnetFrontend
from qir.frontends.mxnet.samples import parameter_bytes, write
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.cli.command import qir as command

from .recorded_cases import cases

LAYERS = {case.name: case for case in cases("layers")}


def network(folder: Path) -> Path:
    """Writes a small convolutional network and returns its symbol."""
    return Path(write(folder)[0])


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Changes the JSON of a symbol."""
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))
    return path


def said_of(path: Path, **more: object) -> str:
    """Returns the error of reading a model, which has to be one line that names the file."""
    with pytest.raises(InputError) as told:
        qir.load(path, **more)  # type: ignore[arg-type]
    said = str(told.value)
    assert str(path) in said
    assert "\n" not in said
    return said


def test_a_symbol_is_recognized_by_its_content(tmp_path: Path) -> None:
    path = network(tmp_path)
    other = path.rename(tmp_path / "renamed.json")
    (tmp_path / "network-0000.params").rename(tmp_path / "renamed-0000.params")
    assert len(qir.load(other).outputs) == 1
    (tmp_path / "other.json").write_text('{"nodes": []}')
    assert not MxnetFrontend().accepts(tmp_path / "other.json")
    with pytest.raises(InputError, match="no frontend reads this"):
        qir.load(tmp_path / "other.json")


def test_parameters_of_an_epoch_are_found_or_named(tmp_path: Path) -> None:
    path = network(tmp_path)
    first = tmp_path / "network-0000.params"
    tenth = first.rename(tmp_path / "network-0010.params")
    assert qir.load(path) == qir.load(tenth)
    assert list(MxnetFrontend().files(path)) == [path, tenth]
    (tmp_path / "network-0020.params").write_bytes(tenth.read_bytes())
    assert "name one of network-0010.params, network-0020.params" in said_of(path)
    path.unlink()
    assert "network-symbol.json is not in the same folder" in said_of(tenth)


def test_parameters_without_prefixes_are_those_of_gluon(tmp_path: Path) -> None:
    path = network(tmp_path)
    store = tmp_path / "network-0000.params"
    first = qir.load(path)
    held = MxnetFrontend().files(path)
    assert store in held
    plain = store.read_bytes()
    for prefix in (b"arg:", b"aux:"):
        parts = plain.split(prefix)
        plain = parts[0]
        for part in parts[1:]:
            size = int.from_bytes(plain[-8:], "little") - len(prefix)
            plain = plain[:-8] + size.to_bytes(8, "little") + part
    store.write_bytes(plain)
    assert qir.load(path) == first


def test_shapes_come_from_layers_from_the_file_and_from_the_user(tmp_path: Path) -> None:
    path = network(tmp_path)
    (x,) = qir.load(path).inputs
    assert (x.name, str(x.type)) == ("data", "(data_0)x3x(data_2)x(data_3)xf32")
    assert str(qir.load(path, inputs=[(2, 3, 8, 8)]).inputs[0].type) == "2x3x8x8xf32"
    assert str(qir.load(path, inputs=[("n", 3, 8, None)]).inputs[0].type) == "(n)x3x8x(data_3)xf32"
    sample = np.zeros((1, 3, 9, 9))
    assert str(qir.load(path, inputs=[sample]).inputs[0].type) == "1x3x9x9xf32"
    changed(path, lambda held: held["nodes"][0].update(attrs={"__shape__": "(0, 3, 8, 8)"}))
    assert str(qir.load(path).inputs[0].type) == "(data_0)x3x8x8xf32"
    assert "2 inputs are given, the model has: data" in said_of(path, inputs=[sample, sample])
    assert "conv0" in said_of(path, inputs=[(2, 5, 8, 8)])


def test_an_input_without_a_shape_says_how_to_give_one(tmp_path: Path) -> None:
    path = Path(write(tmp_path)[1])
    changed(path, lambda held: held["nodes"][0].pop("attrs"))
    assert "--shape 1,3,224,224, --data, or inputs=[(1, 3, 224, 224)]" in said_of(path)
    assert len(qir.load(path, inputs=[(2, 3)]).inputs) == 1


def test_files_with_their_own_shapes_take_no_inputs(tmp_path: Path) -> None:
    qir.save(qir.load(network(tmp_path)), tmp_path / "m.qir")
    with pytest.raises(UsageError, match="leave out inputs"):
        qir.load(tmp_path / "m.qir", inputs=[(2, 3, 8, 8)])


def test_nodes_keep_their_names_and_origins(tmp_path: Path) -> None:
    graph = qir.load(network(tmp_path))
    assert list(graph.outputs) == ["fc0_output"]
    named = {value.name for node in graph for value in node.results}
    assert {"data", "conv0", "conv0_weight", "bn0", "relu0", "flat", "fc0"} <= named
    (conv,) = (node for node in graph if node.op == "conv2d")
    assert str(conv.origins[0]) == "mxnet Convolution conv0"


def test_labels_are_no_inputs(tmp_path: Path) -> None:
    case = LAYERS["output"]
    assert '"softmax_label"' in case.symbol
    assert [x.name for x in qir.load(case.write(tmp_path), inputs=case.given()).inputs] == ["data"]


def test_attributes_of_old_files_are_read(tmp_path: Path) -> None:
    path = network(tmp_path)
    wanted = qir.load(path)

    def older(held: dict[str, Any]) -> None:
        for node in held["nodes"]:
            node["param"] = node.pop("attrs", {})
            node["attr"] = {"lr_mult": "2"}
            node["inputs"] = [entry[:2] for entry in node["inputs"]]
            if node["op"] == "BatchNorm":
                del node["inputs"][3:]  # states were no operands before 0.9

    graph = qir.load(changed(path, older))
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 5)).astype(np.float32)
    (ours,), (theirs,) = (run(g, {"data": x}).values() for g in (graph, wanted))
    assert np.array_equal(ours, theirs)


def test_an_lstm_whose_states_are_zeros_of_any_shape(tmp_path: Path) -> None:
    case = LAYERS["lstm of Gluon"]
    held = json.loads(case.symbol)
    for node in held["nodes"]:
        if node["op"] == "_zeros":
            node["attrs"]["shape"] = "(0, 0)"
    path = case.write(tmp_path)
    path.write_text(json.dumps(held))
    graph = qir.load(path)
    assert str(graph.inputs[0].type) == "(data_0)x(data_1)x(data_2)xf32"
    (made,) = run(graph, case.inputs).values()
    assert np.allclose(made, case.results[0], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("conv", (3, 4, 9, 8)),
        ("max pool full", (1, 3, 9, 6)),
        ("unit length channel", (1, 4, 3, 3)),
        ("linear of an image", (4, 4, 7, 6)),
        ("lstm 2 2", (7, 3, 5)),
    ],
)
def test_open_sizes_run_with_other_sizes(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    case = LAYERS[name]
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape).astype(np.float32)
    given = {"data": x}
    for state in ("h", "c"):
        if state in case.inputs:
            count, _, size = case.inputs[state].shape
            given[state] = rng.normal(size=(count, shape[1], size)).astype(np.float32)
    opened: list[tuple[int | None, ...]] = [(None,) * data.ndim for data in case.given()]
    fixed = [given[name] for name in case.inputs]
    path = case.write(tmp_path)
    if name == "unit length channel" or "linear" in name or "pool" in name or "conv" in name:
        opened = [(None, shape[1], *shape[2:])]
    graphs = [qir.load(path, inputs=inputs) for inputs in (opened, fixed)]
    made = [list(run(graph, given).values()) for graph in graphs]
    assert all(np.array_equal(a, b) for a, b in zip(*made, strict=True))


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no nodes": (lambda h: h.pop("nodes"), "is no MXNet symbol"),
    "no heads": (lambda h: h.update(heads=[]), "has no heads"),
    "a cycle": (
        lambda h: h["nodes"][2]["inputs"].__setitem__(0, [7, 0, 0]),
        "node 2 (conv0): reads node 7, which does not come before it: the graph has a cycle",
    ),
    "a head that is not there": (lambda h: h.update(heads=[[99, 0, 0]]), "heads: reads node 99"),
    "a reference that is none": (
        lambda h: h["nodes"][2].update(inputs=[["a", 0]]),
        "is no reference",
    ),
    "a result that is not there": (
        lambda h: h["nodes"][-1]["inputs"].__setitem__(0, [2, 5, 0]),
        "node fc0 (FullyConnected) cannot be read: it reads result 5 of conv0",
    ),
    "two variables of one name": (
        lambda h: h["nodes"][1].update(name="data"),
        "node 1: a second variable named data",
    ),
    "a node that is a number": (lambda h: h["nodes"].__setitem__(0, 3), "node 0 is no object"),
    "a node without an op": (lambda h: h["nodes"][2].pop("op"), "node 2 has no op and name"),
    "attributes that are numbers": (
        lambda h: h["nodes"][2].update(attrs={"kernel": 3}),
        "node 2 (conv0): its attrs are no texts",
    ),
    "an unknown attribute": (
        lambda h: h["nodes"][2]["attrs"].update(sparse="True"),
        "node conv0 (Convolution) cannot be read: its attribute sparse is not read here",
    ),
    "an attribute that is a program": (
        lambda h: h["nodes"][2]["attrs"].update(kernel="(__import__('os'), 3)"),
        "attribute kernel is \"__import__('os')\", it must be an integer of at most 18 digits",
    ),
    "too few operands": (
        lambda h: h["nodes"][-1]["inputs"].pop(),
        "node fc0 (FullyConnected) cannot be read: it has 2 operands, one more is needed",
    ),
    "a layout that is not read": (
        lambda h: h["nodes"][2]["attrs"].update(layout="NHWC"),
        "layout is 'NHWC'; read are",
    ),
    "a missing parameter": (
        lambda h: h["nodes"][1].update(name="conv9_weight"),
        "parameter conv9_weight of node conv0 (Convolution) is missing in",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_symbol_is_one_line(name: str, tmp_path: Path) -> None:
    change, words = BROKEN[name]
    assert words in said_of(changed(network(tmp_path), change))


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "7", "[" * 100_000, '{"nodes": {}}'])
def test_other_json_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m-symbol.json"
    path.write_text(text)
    said_of(path)


def test_a_symbol_without_parameters_says_which_file_it_wants(tmp_path: Path) -> None:
    path = network(tmp_path)
    (tmp_path / "network-0000.params").unlink()
    said = said_of(path)
    assert "conv0_weight" in said
    assert "network-0000.params, which is not there" in said


def test_attributes_of_any_text_are_input_errors_or_programs(tmp_path: Path) -> None:
    seed = 12
    rng = np.random.default_rng(seed)
    texts = [
        "",
        "0",
        "-1",
        "7",
        "1000000000000",
        "(1,)",
        "(0, 0)",
        "(1, 2, 3, 4, 5)",
        "True",
        "nan",
    ]
    texts += ["None", "(-9, 99)", "(99999999999, 1)", "(2, None)", "1e30", "avg", "int8", "[]"]
    every = [
        case for family in ("layers", "moves", "points", "quantized") for case in cases(family)
    ]
    tried = 0
    for case in every[::3]:
        path, held = case.write(tmp_path), json.loads(case.symbol)
        nodes = [node for node in held["nodes"] if node.get("attrs") and node["op"] != "null"]
        for node in nodes[:2]:
            name = str(rng.choice(sorted(node["attrs"])))
            before, node["attrs"][name] = node["attrs"][name], str(rng.choice(texts))
            path.write_text(json.dumps(held))
            tried += 1
            try:
                MxnetFrontend().load_object(path, Ledger(), case.given())
            except InputError as error:
                if "\n" in str(error):
                    raise
            except Exception as error:
                where = f"seed {seed}: {case.name}: {node['op']} {name}={node['attrs'][name]!r}"
                raise AssertionError(where) from error
            node["attrs"][name] = before
    assert tried > 60


def test_damaged_symbols_are_input_errors_or_programs(tmp_path: Path) -> None:
    rng, whole = np.random.default_rng(11), network(tmp_path).read_text()
    store = parameter_bytes({})
    path = tmp_path / "damaged-symbol.json"
    (tmp_path / "damaged-0000.params").write_bytes(
        (tmp_path / "network-0000.params").read_bytes() or store
    )
    letters = '0123456789"[]{},:abc()-'
    for _ in range(200):
        held = list(whole)
        for place in rng.integers(0, len(held), 2):
            held[place] = letters[int(rng.integers(len(letters)))]
        path.write_text("".join(held))
        with suppress(InputError):  # what is damaged may still be a program
            MxnetFrontend().load(path, Ledger())


def test_shapes_are_given_on_the_command_line(tmp_path: Path) -> None:
    output = tmp_path / "shaped.qir"
    told = command("convert", network(tmp_path), "--shape", "batch, 3,16,16", "-o", output)
    assert told.status == 0, told.err
    assert str(qir.load(output).inputs[0].type) == "(batch)x3x16x16xf32"


def test_a_model_without_shapes_is_shown_by_those_that_are_given(tmp_path: Path) -> None:
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "relu", "name": "made", "inputs": [[0, 0, 0]]},
    ]
    path = tmp_path / "bare-symbol.json"
    path.write_text(json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[1, 0, 0]]}))
    (tmp_path / "bare-0000.params").write_bytes(parameter_bytes({}))
    told = command("show", path)
    assert told.status != 0
    assert "no layer gives it; give one shape per input: --shape 1,3,224,224" in told.err
    told = command("show", path, "--shape", "n,3,5")
    assert told.status == 0, told.err
    assert "nx3x5" in told.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--shape", "2,x y"), "'x y' is neither a size nor the name of one"),
        (("--shape", "1,3,8,8", "--shape", "2"), "2 inputs are given, the model has: data"),
    ],
)
def test_a_shape_that_does_not_fit_is_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    told = command("convert", network(tmp_path), *words, "-o", tmp_path / "shaped.qir")
    assert told.status == 2
    assert said in told.err
    assert not (tmp_path / "shaped.qir").exists()


def test_nodes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Gluon names a block that is called twice so, and MXNet runs ops named like an input."""
    nodes: list[dict[str, object]] = [
        {"op": "null", "name": "x", "inputs": [], "attrs": {"__shape__": "(2,)"}},
        {"op": "cos", "name": "x", "inputs": [[0, 0, 0]]},
        {"op": "sin", "name": "x", "inputs": [[1, 0, 0]]},
    ]
    path = tmp_path / "shared-symbol.json"
    path.write_text(json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[2, 0, 0]]}))
    (made,) = run(qir.load(path), {"x": np.array([1, 2], np.float32)}).values()
    mxnets = np.array([0.51439524, -0.40423915], np.float32)
    assert np.allclose(np.asarray(made, np.float32), mxnets, rtol=0, atol=1e-7)


def test_work_is_counted_by_the_sizes_of_the_data(tmp_path: Path) -> None:
    path, output = network(tmp_path), tmp_path / "quantized-symbol.json"
    x = np.random.default_rng(0).normal(size=(4, 3, 16, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ("--data", tmp_path / "x.npy", "--target", "mxnet-onednn", "-o", output)
    told = command("quantize", path, *words)
    assert told.status == 0, told.err
    assert "5 of 5 ops, 100 % of 41.5 k multiply-adds\n" in told.out
    graph = qir.load(path)
    made = qir.plan(graph, target="mxnet-onednn", sizes={"data_2": 16, "data_3": 12})
    assert sum(each.macs for each in made.decisions) == 8 * 3 * 3 * 3 * 16 * 12 + 8 * 4
    assert made.integer_macs == 1
    assert sum(not each.counted for each in qir.plan(graph, target="mxnet-onednn").decisions) == 1

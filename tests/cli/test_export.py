"""`qir export`: the files it writes, and those it does not write over."""

import json
from pathlib import Path

import networkx as nx
import pytest

import qir as package
from qir.inspect.export import FORMATS
from tests.cli.command import assert_one_line, qir


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_of_each_form_is_written_and_is_what_the_function_gives(
    folder: Path, form: str
) -> None:
    output = folder / f"drawing.{form}"
    outcome = qir("export", folder / "quantized.onnx", "--to", form, "-o", output)
    assert outcome.status == 0, outcome
    text = output.read_text("utf-8")
    assert text == FORMATS[form](package.load(folder / "quantized.onnx"))
    assert "/conv1/Conv" in text or form in ("dot", "mermaid")
    outcome = qir("export", folder / "quantized.onnx", "--to", form, "-o", output)
    assert_one_line(outcome, 2)
    told = qir("export", folder / "quantized.onnx", "--to", form, "-o", output, "-f", "--json")
    assert json.loads(told.out)["output_bytes"] == output.stat().st_size


def test_networkx_finds_its_way_through_an_exported_model(folder: Path) -> None:
    output = folder / "model.graphml"
    assert qir("export", folder / "model.onnx", "--to", "graphml", "-o", output).status == 0
    read = nx.read_graphml(output, force_multigraph=True)
    ops = {key: data["op"] for key, data in read.nodes(data=True)}
    (start,) = (key for key, data in read.nodes(data=True) if data["name"] == "images")
    (end,) = (key for key, op in ops.items() if op == "output")
    way = [ops[key] for key in nx.shortest_path(read, start, end)]
    assert way[:3] == ["input", "conv2d", "relu"]
    assert way[-2:] == ["softmax", "output"]


def test_no_form_and_the_model_itself_are_refused(folder: Path) -> None:
    model = folder / "model.onnx"
    assert_one_line(qir("export", model, "-o", folder / "x"), 2)
    assert_one_line(qir("export", model, "--to", "svg", "-o", folder / "x"), 2)
    assert_one_line(qir("export", model, "--to", "dot", "-o", model, "-f"), 2)
    assert not (folder / "x").exists()


@pytest.mark.parametrize("where", [(), ("-o", "-")])
def test_without_a_file_the_drawing_is_printed(folder: Path, where: tuple[str, ...]) -> None:
    told = qir("export", folder / "model.onnx", "--to", "dot", *where)
    assert told.status == 0
    assert told.out == FORMATS["dot"](package.load(folder / "model.onnx"))
    assert not Path("-").exists()
    assert_one_line(qir("export", folder / "model.onnx", "--to", "dot", "--json", *where), 2)

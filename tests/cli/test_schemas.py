"""What verbs print as JSON, against the schemas that the package brings along."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import jsonschema
import pytest

import qir.cli
from qir import pipeline
from qir.cli.app import VERBS, app
from qir.inspect.export import to_json
from qir.ir.text import parse
from qir.query.diff import diff
from qir.testing import random_graph
from tests.cli.command import qir as command
from tests.inspect.programs import INTEGER, program

FOLDER = Path(qir.cli.__file__).parent / "schemas"
SCHEMAS = {path.stem: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}
Plain: TypeAlias = "dict[str, Plain] | list[Plain] | str | float | bool | None"


def objects(schema: Plain) -> Iterator[dict[str, Plain]]:
    """Every schema of an object within a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from objects(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from objects(part)


def check(name: str, data: Plain) -> None:
    jsonschema.Draft202012Validator(SCHEMAS[name]).validate(data)


def test_every_verb_that_prints_json_has_a_schema() -> None:
    verbs = {v.name for v in VERBS if any("--json" in p.opts for p in v.params)}
    assert verbs == set(app.commands), "every verb has --json"
    assert set(SCHEMAS) == verbs | {"graph"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_strict(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    found = list(objects(SCHEMAS[name]))
    assert found
    for part in found:
        assert "additionalProperties" in part, part
        named = part.get("properties")
        if isinstance(named, dict) and not set(named) <= COUNTED:
            assert part["additionalProperties"] is False, part
            assert part.get("required") == list(named), part


COUNTED = {"lineage", "origin", "structure", *SCHEMAS["convert"]["$defs"]["ledger"]["properties"]}
"""Of these there are only those that there are any of."""


@pytest.mark.parametrize("name", sorted(set(SCHEMAS) - {"graph"}))
def test_the_help_names_the_keys_of_the_schema(name: str) -> None:
    help_text = command(name, "--help").out
    told = set(re.findall(r"\w+", help_text[help_text.index("--json prints") :]))
    for part in objects(SCHEMAS[name]):
        if part is SCHEMAS[name] or part in SCHEMAS[name].get("oneOf", []):
            assert isinstance(part["properties"], dict)
            assert set(part["properties"]) <= told


# Command lines, the files they name lying in the folder, and the status they end with.
LINES = {
    "show model.onnx": 0,
    "show quantized.qir": 0,
    "show quantized.onnx --node /conv1/Conv": 0,
    "show model.onnx --node logits": 0,
    "query quantized.onnx w.bits==8": 0,
    "query quantized.onnx quantized --values": 0,
    "query quantized.onnx false": 0,
    "why-not model.onnx relu1 relu(%x)": 0,
    "why-not model.onnx relu1 relu(erf(%x))": 1,
    "verify quantized.onnx --target onnxruntime": 0,
    "verify quantized.qir --target onnxruntime --overflow": 0,
    "verify quantized.onnx --overflow": 0,
    "verify model.qir": 0,
    "certify quantized.onnx": 0,
    "certify quantized.onnx --profiles native,torch-2.13.fbgemm": 0,
    "plan model.onnx": 0,
    "plan model.onnx --keep-float /fc/*": 0,
    "calibrate model.onnx --data samples.npy -o new.stats": 0,
    "quantize model.onnx --stats model.stats -o new.onnx": 0,
    "quantize model.onnx --data samples.npy --check --labels labels.npy -o new.qir": 0,
    "convert model.onnx -o new.qir": 0,
    "convert quantized.onnx -o operators.onnx --format qoperator": 0,
    "opt model.onnx -p fold-batch-norm;prune --validate -o new.qir": 0,
    "group quantized.onnx --as ort-1.31 -o new.qir": 0,
    "bisect model.onnx -p prune --check true": 0,
    "passes": 0,
    "passes group": 0,
    "diff model.onnx model.qir": 0,
    "diff model.onnx quantized.onnx": 1,
    "diff quantized.qir quantized.onnx": 1,
    "run model.onnx --data samples.npy": 0,
    "run quantized.onnx --data samples.npy --compare reference,cpu --metric sqnr --metric top1": 0,
    "run quantized.onnx --data samples.npy --compare reference,onnxruntime": 0,
    "eval quantized.onnx --data samples.npy --against model.onnx --metric sqnr --metric top1": 0,
    "compile quantized.onnx -o new.qirp": 0,
    "bench quantized.onnx --with cpu --runs 3 --profile": 0,
    "bench model.onnx --with reference --runs 3": 0,
    "export quantized.onnx --to json -o new.json": 0,
    "probe onnxruntime.none": 0,
    "targets": 0,
    "targets onnxruntime": 0,
    "targets --matrix": 0,
    "plugins": 0,
    "plugins check sqnr": 0,
    "new observer robust -o fresh": 0,
    "new preprocess imagenet": 0,
    "doctor": 0,
}


@pytest.mark.parametrize("line", LINES)
def test_what_a_verb_prints_fits_its_schema(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    name = line.split()[0]
    outcome = command(*line.split(), "--json")
    assert outcome.status == LINES[line], outcome
    data = json.loads(outcome.out)
    check(name, data)
    for key in data:
        less = {k: v for k, v in data.items() if k != key}
        with pytest.raises(jsonschema.ValidationError):
            check(name, less)
    with pytest.raises(jsonschema.ValidationError):
        check(name, {**data, "more": 1})
    inner = copy.deepcopy(data)
    rows = [row for row in walk(inner) if row is not inner and row in strict_rows(inner)]
    if rows:
        rows[-1]["more"] = {"x": 1}
        with pytest.raises(jsonschema.ValidationError):
            check(name, inner)
    if name == "export":
        check("graph", json.loads((folder / "new.json").read_text("utf-8")))


def walk(data: Plain) -> Iterator[dict[str, Plain]]:
    """Every object in some data."""
    if isinstance(data, dict):
        yield data
    for part in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from walk(part)


def strict_rows(data: Plain) -> list[dict[str, Plain]]:
    """The objects that stand in lists: these are records, not tables by name."""
    return [r for d in walk(data) for v in d.values() if isinstance(v, list) for r in walk(v)]


WRAPS = """
graph wraps {
  %x = input() : 1x131072x!quant.uniform<u8:f32, 0.5:3>
  %w = input() : 131072x1x!quant.uniform<u8:f32, 0.5:3>
  %y = matmul(%x, %w) : 1x1x!quant.uniform<u8:f32, 0.5:3>
  output(y=%y)
}
"""


def test_findings_fit_the_schema(tmp_path: Path) -> None:
    graph = program(INTEGER)
    graph.add("relu", {"x": graph["f"]})
    told = {}
    for name, of in (("odd", graph), ("wraps", parse(WRAPS, {}))):
        pipeline.save(of, tmp_path / f"{name}.qir")
        outcome = command("verify", tmp_path / f"{name}.qir", "--json")
        data = json.loads(outcome.out)
        assert data["findings"]
        check("verify", data)
        told[name] = outcome.status, {f["severity"] for f in data["findings"]}
    assert told["odd"] == (0, {"note"})
    assert told["wraps"][0] == 1
    assert "warning" in told["wraps"][1]


def test_graphs_of_every_kind_fit_the_schema_of_exported_ones() -> None:
    for seed in range(40):
        for form in ("whole", "qdq", "integer"):
            graph = random_graph(seed, form, decorated=seed % 2 == 0)
            check("graph", json.loads(json.dumps(to_json(graph), allow_nan=False)))


def test_differences_of_graphs_of_every_kind_fit_the_schema() -> None:
    for seed in range(40):
        a, b = (random_graph(s, "whole", decorated=True) for s in (seed, seed + 1))
        told = {"a": "a", "b": "b", **diff(a, b).to_json(), "samples": None, "outputs": []}
        check("diff", json.loads(json.dumps(told, allow_nan=False)))

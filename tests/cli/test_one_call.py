"""A verb of the command line calls one function of the pipeline, which a program can call too."""

import ast
from pathlib import Path

import numpy as np
import onnx

import qir
from qir import workflows
from qir.workflows import (
    SampleData,
    benchmark_model,
    bisect_model,
    calibrate_model,
    certify_model,
    compare_engines,
    compare_models,
    explain_match,
    group_model,
    optimize_model,
    quantize_model,
    run_model,
    verify_model,
)
from tests.cli.command import qir as command
from tests.cli.models import images, network

CLI = Path(__file__).parents[2] / "qir" / "cli"
DOES = ("qir.pipeline", "qir.workflows", "qir.mixed_precision", "qir.evaluating")
"""The modules whose functions do the work of a verb; of workflows those that they export: others
answer questions, such as whether a file may be written."""
TWO = {"run.py": {"qir.workflows.compare_engines", "qir.workflows.run_model"}}
"""Verbs with two jobs: --compare is another than to run a model."""


def called(path: Path) -> set[str]:
    """The functions of those modules that a file calls, under any name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names, modules = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in DOES:
                    modules.add(alias.asname or alias.name)
                elif node.module.startswith(DOES) and not (
                    node.module.startswith("qir.workflows") and alias.name not in workflows.__all__
                ):
                    names[alias.asname or alias.name] = whole
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name) if name in names and name[0].islower():
                found.add(names[name])
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in modules:
                found.add(f"{name}.{attr}")
    return found


def test_a_verb_calls_at_most_one_function_of_the_pipeline() -> None:
    several = {path.name: found for path in CLI.glob("*.py") if len(found := called(path)) > 1}
    assert several == TWO
    assert called(CLI / "quantize.py") == {"qir.workflows.quantize_model"}


def test_the_functions_write_what_the_commands_write(tmp_path: Path) -> None:
    model, data = tmp_path / "model.onnx", tmp_path / "data.npy"
    onnx.save(network(), model)
    np.save(data, images())
    commands = (
        f"quantize {model} --data {data} -o {tmp_path}/a.onnx",
        f"quantize {model} --dynamic -o {tmp_path}/dynamic_a.onnx",
        f"opt {model} -p fold-batch-norm -o {tmp_path}/folded_a.onnx",
        f"group {tmp_path}/a.onnx --as ort-1.31 -o {tmp_path}/grouped_a.qir",
    )
    for words in commands:
        assert (done := command(*words.split())).status == 0, done
    graph = qir.load(model)
    made = quantize_model(graph, tmp_path / "b.onnx", data=SampleData(data))
    assert made.noise is not None
    assert made.noise.outputs["classes"] > 20
    assert made.plan.integer_macs == 1
    quantize_model(graph, tmp_path / "dynamic_b.onnx", dynamic=True)
    optimize_model(graph, "fold-batch-norm", tmp_path / "folded_b.onnx")
    quantized = qir.load(tmp_path / "b.onnx")
    grouped = group_model(quantized, "ort-1.31", tmp_path / "grouped_b.qir")
    for name in ("{}.onnx", "dynamic_{}.onnx", "folded_{}.onnx"):
        one, other = ((tmp_path / name.format(which)).read_bytes() for which in "ab")
        assert one == other, name
    assert qir.load(tmp_path / "grouped_a.qir") == grouped.graph
    assert len(grouped.kernels) == 6
    found = verify_model(quantized, target="onnxruntime", overflow=True)
    assert not found.findings
    assert found.sums is not None
    assert len(found.sums) == 3


def test_the_functions_return_what_the_commands_show(tmp_path: Path) -> None:
    model, data = tmp_path / "model.onnx", tmp_path / "data.npy"
    onnx.save(network(), model)
    np.save(data, images())
    graph, samples = qir.load(model), SampleData(data, limit=8)
    calibrated = calibrate_model(graph, samples, tmp_path / "a.stats")
    assert calibrated.ranges[0].tensor == graph.inputs[0].name
    made = quantize_model(graph, tmp_path / "q.onnx", statistics=tmp_path / "a.stats").graph

    done = run_model(made, samples, output=tmp_path / "r.npz")
    assert (done.engine, done.samples, done.fallbacks) == ("reference", 8, [])
    with np.load(tmp_path / "r.npz") as results:
        assert np.array_equal(results["classes"], done.results["classes"])
    status = command("run", str(tmp_path / "q.onnx"), "--data", str(data), "--limit", "8").status
    assert status == 0

    compared = compare_engines(made, data, engines=["cpu"], metrics=["cosine"])
    assert compared.engines == ("reference", "cpu")
    assert compared.agree
    assert compared.distances["classes"]["cosine"] == 1
    timed = benchmark_model(made, data, engines=["cpu", "reference"], runs=2, steps=True)
    assert [timing.name for timing in timed.timings] == ["cpu", "reference"]
    assert timed.steps is not None

    models = compare_models(graph, made, samples)
    assert not models.difference.equal
    assert models.measured is not None
    assert models.measured.samples == 8
    assert models.measured.distances["classes"]["sqnr"] > 20
    assert compare_models(graph, graph).measured is None
    assert not certify_model(made).has_findings

    found = bisect_model(graph, "prune; fold-batch-norm", "test -s")
    assert found.culprit is None
    assert [step.name for step in found.passes] == ["prune", "fold-batch-norm"]
    named = next(node for node in graph if node.op == "relu")
    assert explain_match(graph, named.name, "relu(%x)").matches
    assert not explain_match(graph, named.name, "tanh(%x)").matches

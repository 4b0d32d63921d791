"""The verbs that run passes: opt, group, bisect; and passes, which tells about them."""

import json
import sys
from pathlib import Path

import jsonschema
import numpy as np
import onnxruntime
import pytest

from qir import pipeline
from qir.errors import UsageError
from qir.ir import file
from qir.qir_files import read_journal
from qir.rewrite.layer_weights import float_weights
from qir.rewrite.runner.options import find_pass, make_pass, options_text, parse_passes
from qir.testing import random_graph
from tests.cli.command import assert_one_line, process, qir
from tests.cli.test_schemas import SCHEMAS

MARK = """
import sys
text = open(sys.argv[1], 'rb').read()
sys.exit({status} if b'batch_norm(' not in text else 0)
"""


def check(folder: Path, status: int) -> str:
    """A command that ends so where no batch norm is left."""
    script = folder / "mark.py"
    script.write_text(MARK.format(status=status))
    return f"'{sys.executable}' '{script}'"


# -- opt -------------------------------------------------------------------------------------------


def test_opt_runs_passes_and_the_file_keeps_what_was_run(folder: Path) -> None:
    out = folder / "out.qir"
    words = ("-p", "fold-batch-norm; prune", "-p", "fold-constants{limit=64}")
    done = qir("opt", folder / "model.onnx", *words, "-o", out)
    assert done.status == 0, done
    assert "fold-constants{limit=64}" in done.out
    assert all(node.op != "batch_norm" for node in pipeline.load(out))
    rows = [(entry.name, entry.text) for entry in read_journal(out)]
    assert rows == [
        ("fold-batch-norm", "fold-batch-norm"),
        ("prune", "prune"),
        ("fold-constants", "fold-constants{limit=64}"),
    ]
    told = qir("show", out).out
    assert "fold-batch-norm (6), prune (-), fold-constants{limit=64} (-)" in told
    again = folder / "again.qir"
    assert qir("opt", out, "-p", "turn-sums", "-o", again).status == 0
    assert [entry.name for entry in read_journal(again)][-2:] == [
        "fold-constants",
        "turn-sums",
    ]
    converted = folder / "converted.qir"
    assert qir("convert", again, "-o", converted).status == 0
    assert read_journal(converted) == read_journal(again)


def test_same_passes_give_the_same_bytes(folder: Path) -> None:
    for name in ("a.qir", "b.qir"):
        done = qir("opt", folder / "model.onnx", "-p", "fold-batch-norm", "-o", folder / name)
        assert done.status == 0, done
    assert (folder / "a.qir").read_bytes() == (folder / "b.qir").read_bytes()


def test_quantize_writes_its_passes_into_the_journal(folder: Path) -> None:
    names = [entry.name for entry in read_journal(folder / "quantized.qir")]
    assert names[:2] == ["prune", "fold-constants"]
    assert names[2:5] == ["fold-bias", "recover", "fold-batch-norm"]
    assert {"assign-schemes", "materialize"} <= set(names)


def test_a_file_without_a_journal_keeps_loading_and_one_with_a_broken_one_is_told(
    tmp_path: Path,
) -> None:
    graph = random_graph(1)
    path = tmp_path / "plain.qir"
    pipeline.save(graph, path)
    assert "journal" not in file.texts(path)
    assert len(read_journal(path)) == 0
    file.write(path, file.Bundle(graph, journal='{"version": 9}'))
    assert_one_line(qir("show", path), 2)


def test_opt_writes_onnx_that_computes_the_same(folder: Path) -> None:
    out = folder / "out.onnx"
    done = qir("opt", folder / "model.onnx", "-p", "fold-batch-norm", "-o", out, "--validate")
    assert done.status == 0, done
    images = {"images": np.load(folder / "samples.npy")}
    a, b = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, images)[0]
        for path in (folder / "model.onnx", out)
    )
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_dump_holds_the_graph_after_each_pass(folder: Path) -> None:
    steps = folder / "steps"
    words = ("-p", "prune", "-p", "fold-batch-norm", "--dump", steps, "-o", folder / "o.qir")
    assert qir("opt", folder / "model.onnx", *words).status == 0
    names = ["00-before", "01-prune", "02-fold-batch-norm"]
    assert sorted(p.name for p in steps.iterdir()) == sorted(
        f"{name}.{kind}" for name in names for kind in ("qir", "txt")
    )
    for name in names:
        assert str(pipeline.load(steps / f"{name}.qir")) == (steps / f"{name}.txt").read_text()
    assert pipeline.load(steps / f"{names[-1]}.qir") == pipeline.load(folder / "o.qir")


def test_a_dump_of_another_run_stays_unless_force_replaces_it(folder: Path) -> None:
    steps, out, source = folder / "steps", folder / "o.qir", folder / "model.onnx"
    words = ("opt", source, "-p", "prune; cse; fold-batch-norm", "--dump", steps)
    assert qir(*words, "-o", out).status == 0
    (steps / "01-mine.txt").write_text("a note")
    held = {path.name: path.read_bytes() for path in steps.iterdir()}
    done = qir("opt", source, "-p", "prune", "--dump", steps, "-o", folder / "other.qir")
    assert_one_line(done, 2)
    assert f"{steps} holds another run, 00-before.txt first; --force replaces it" in done.err
    assert {path.name: path.read_bytes() for path in steps.iterdir()} == held
    assert not (folder / "other.qir").exists()
    with pytest.raises(UsageError, match="holds another run"):
        pipeline.optimize(pipeline.load(source), "cse", dump=steps)
    assert qir("opt", source, "-p", "cse", "--dump", steps, "-o", out, "--force").status == 0
    names = [f"{name}.{kind}" for name in ("00-before", "01-cse") for kind in ("qir", "txt")]
    assert sorted(p.name for p in steps.iterdir()) == sorted([*names, "01-mine.txt"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("group", "say whose kernels: group{as=ort-1.31}"),
        ("assign-schemes", "say for whom: assign-schemes{target=onnxruntime}"),
        ("materialize", "it carries out plans, of assign-schemes"),
    ],
)
def test_a_pass_that_was_given_nothing_is_told_with_what_to_give(
    name: str, said: str, folder: Path
) -> None:
    done = qir("opt", folder / "model.onnx", "-p", name, "-o", folder / "out.qir")
    assert done.status == 0
    assert f"{name} changed nothing; {said}" in " ".join(done.out.split())
    done = qir("opt", folder / "model.onnx", "-p", "cse", "-o", folder / "cse.qir")
    assert "changed nothing" not in done.out


def test_a_model_that_is_missing_is_told_before_what_would_be_written(folder: Path) -> None:
    held = folder / "model.onnx"
    for words in (("opt", "-p", "prune"), ("convert",), ("group", "--as", "ort-1.31")):
        verb, *more = words
        done = qir(verb, folder / "no.onnx", *more, "-o", held)
        assert_one_line(done, 2)
        assert "no.onnx: there is no such file" in done.err


def test_validation_that_finds_a_tensor_ends_with_1_and_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "qir.passes.fold.fold_batch_norm.float_weights"
    monkeypatch.setattr(name, lambda value: float_weights(value) * 1.001)
    out = folder / "out.qir"
    words = ("-p", "fold-batch-norm", "-o", out)
    done = qir("opt", folder / "model.onnx", *words, "--validate")
    assert done.status == 1, done
    last = done.err.splitlines()[-1]
    assert "pass fold-batch-norm: %norm2 moved by" in last
    assert "at norm2, number 1 of 1" in last
    assert any(line.startswith("  -> %norm2") for line in done.err.splitlines())
    assert not out.exists()
    assert qir("opt", folder / "model.onnx", *words).status == 0


BAD = {
    "opt model.onnx -p none -o o.qir": "no pass 'none'",
    "opt model.onnx -p fold-constants{size=3} -o o.qir": "its options: limit",
    "opt model.onnx -p fold-constants{limit=x} -o o.qir": "option limit: x is no int",
    "opt model.onnx -p fold-constants{limit=-1} -o o.qir": "option limit = -1 is below 0",
    "opt model.onnx -p fold-constants{growth=-1} -o o.qir": "option growth = -1 is below 0",
    "opt model.onnx -p fold-shapes{limit=-1} -o o.qir": "option limit = -1 is below 0",
    "opt model.onnx -p unroll{limit=0} -o o.qir": "option limit = 0 is below 1",
    "opt model.onnx -p roll{least=1} -o o.qir": "option least = 1 is below 2",
    "opt model.onnx -p group-activations{most=0} -o o.qir": "option most = 0 is below 1",
    "opt model.onnx -p fold-constants{limit=3 -o o.qir": "a comma or } is missing",
    "opt model.onnx -p ; -o o.qir": "names no pass",
    "opt model.onnx -p prune -o o.txt": "target onnxruntime writes .onnx files, and .qir ones",
    "opt model.onnx -p prune -o o.tflite": "; .tflite files are for --target tflite",
    "opt model.onnx -p prune -o o.qir --data samples.npy": "give --validate too",
    "opt model.onnx -p prune -o o.qir --validate --size N": "is not NAME=NUMBER",
    "opt model.onnx -p prune -o o.qir --dump model.onnx": "model.onnx:",
    "opt model.onnx -p group{as=nobody} -o o.qir": "no profile 'nobody'",
    "opt model.onnx -p materialize{statistics=none.stats} -o o.qir": "none.stats",
    "opt model.onnx -p assign-schemes{target=none} -o o.qir": "no target 'none'",
    "group quantized.onnx --as nobody -o o.qir": "no profile 'nobody'",
    "group quantized.onnx --as ort-1.31 -o o.onnx": "groups are kept in .qir files",
    "quantize model.onnx --stats model.stats --as nobody -o o.qir": "no profile 'nobody'",
    "quantize model.onnx --stats model.stats --as ort-1.31 -o o.onnx": "name a .qir file",
    "quantize model.onnx --dynamic --as ort-1.31 -o o.qir": "--as needs samples",
    "quantize model.onnx --stats model.stats --as ort-1.31 --target cpu -o o.qir": "or --as:",
    "quantize model.onnx --stats model.stats --as qonnx-1.0 -o o.qir": "makes no kernels of 8-bit",
    "passes none": "no pass 'none'",
    "bisect model.onnx -p prune --check no-such-command": "cannot run no-such-command",
    "bisect model.onnx -p prune --check false": "fails before any pass has run",
    "bisect model.onnx -p prune --check '": "No closing quotation",
    "bisect model.onnx -p prune --check true --target cpu": "writes no files",
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_be_meant_is_told_in_one_line(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = qir(*line.split(" "))
    assert_one_line(done, 2)
    assert BAD[line] in done.err
    assert not (folder / "o.qir").exists()


def test_a_quantizing_pipeline_runs_as_text(folder: Path) -> None:
    out = folder / "texted.qir"
    stats = folder / "model.stats"
    text = (
        "prune; fold-constants; fold-batch-norm; assign-schemes{target=onnxruntime};"
        f" correct-bias{{statistics='{stats}', target=onnxruntime, profile=ort-1.31}};"
        f" widen-outputs{{statistics='{stats}'}};"
        f" materialize{{statistics='{stats}', profile=ort-1.31}}; turn-sums; prune"
    )
    done = qir("opt", folder / "model.onnx", "-p", text, "-o", out)
    assert done.status == 0, done
    made, wanted = pipeline.load(out), pipeline.load(folder / "quantized.qir")
    made.profile = wanted.profile
    assert made == wanted


# -- group -----------------------------------------------------------------------------------------


def test_group_tells_nodes_and_rows_of_the_profile(folder: Path) -> None:
    out = folder / "grouped.qir"
    done = qir("group", folder / "quantized.onnx", "--as", "ort-1.31", "-o", out, "--json")
    assert done.status == 0, done
    found = json.loads(done.out)
    jsonschema.validate(found, SCHEMAS["group"])
    assert [g["chain"] for g in found["groups"]][:2] == [["conv2d", "relu"]] * 2
    profiles = Path(pipeline.__file__).parent.parent / "backends" / "onnx" / "profiles"
    for row in found["groups"]:
        name, _, line = row["row"].rpartition(":")
        text = (profiles / name).read_text().splitlines()
        block = "\n".join(text[int(line) - 1 : int(line) + 12])
        assert "[[group]]" in block.splitlines()[0]
        chain = row["chain"]
        assert f"chain = {json.dumps(chain if len(chain) > 1 else chain[0])}\n" in block
    other = folder / "other.qir"
    assert (
        qir("opt", folder / "quantized.onnx", "-p", "group{as=ort-1.31}", "-o", other).status == 0
    )
    assert pipeline.load(out) == pipeline.load(other)


def test_group_counts_what_stays_float_and_says_why(folder: Path) -> None:
    out = folder / "left.qir"
    words = ("--as", "tf-2.21.core", "-o", out, "-f")
    done = qir("group", folder / "quantized.onnx", *words)
    assert done.status == 0, done
    assert "0 kernels on quantized values" in done.out
    assert "tf-2.21.core groups nothing" in done.out
    done = qir("group", folder / "quantized.onnx", *words, "--json")
    found = json.loads(done.out)
    jsonschema.validate(found, SCHEMAS["group"])
    assert "conv2d" in {one["op"] for one in found["float"]}


def test_a_float_model_is_grouped_as_it_will_be_computed(folder: Path) -> None:
    out, model = folder / "real.qir", folder / "model.onnx"
    done = qir("group", model, "--as", "ort-1.31", "-o", out, "--json")
    found = json.loads(done.out)
    jsonschema.validate(found, SCHEMAS["group"])
    assert found["on"] == "reals"
    assert [g["chain"] for g in found["groups"]][:2] == [["conv2d", "relu"]] * 2
    done = qir("group", model, "--as", "ort-1.31", "-o", out, "-f")
    assert "The model is float, and no number of it moved." in " ".join(done.out.split())
    assert f"{len(found['groups'])} kernels on quantized inputs" in done.out
    inputs = {"images": np.load(folder / "samples.npy")}
    (name,) = (made := pipeline.run(pipeline.load(out), inputs))
    folded = pipeline.run(pipeline.fold(pipeline.load(model)), inputs)
    assert made[name].tobytes() == folded[name].tobytes()


def test_a_grouped_float_model_is_calibrated_quantized_and_grouped_again(folder: Path) -> None:
    real, stats, coded, last = (folder / name for name in ("g.qir", "g.stats", "c.onnx", "l.qir"))
    as_torch = ("--as", "torch-2.13.pt2e", "--json")
    first = json.loads(qir("group", folder / "model.onnx", *as_torch, "-o", real).out)
    assert qir("calibrate", real, "--data", folder / "samples.npy", "-o", stats).status == 0
    assert qir("quantize", real, "--stats", stats, "-o", coded).status == 0
    second = json.loads(qir("group", coded, *as_torch, "-o", last).out)
    several = [
        [g["chain"] for g in told["groups"] if len(g["chain"]) > 1] for told in (first, second)
    ]
    assert several[0]
    assert several[0] == several[1]


# -- bisect ----------------------------------------------------------------------------------------


def test_a_profile_file_groups_and_travels_in_what_is_written(folder: Path, tmp_path: Path) -> None:
    path, named, opted = tmp_path / "next.toml", tmp_path / "a.qir", tmp_path / "b.qir"
    path.write_text('name = "mine-2"\nextends = "ort-1.31"\n')
    done = qir("group", folder / "quantized.onnx", "--as", path, "-o", named, "--json")
    assert done.status == 0, done
    assert json.loads(done.out)["profile"] == "mine-2"
    assert json.loads(done.out)["groups"]
    done = qir("opt", folder / "quantized.onnx", "-p", f"group{{as={path}}}", "-o", opted)
    assert done.status == 0, done
    path.unlink()
    done = process("show", named, "--json", cwd=tmp_path)
    assert json.loads(done.out)["profile"] == "mine-2", done
    assert process("run", opted, "--data", folder / "samples.npy", cwd=tmp_path).status == 0


def test_bisect_finds_the_pass_and_the_rewrite(folder: Path) -> None:
    words = ("-p", "prune; fold-constants; fold-batch-norm; turn-sums")
    done = qir("bisect", folder / "model.onnx", *words, "--check", check(folder, 1), "--json")
    assert done.status == 1, done
    found = json.loads(done.out)
    jsonschema.validate(found, SCHEMAS["bisect"])
    assert found["found"]["pass"] == "fold-batch-norm"
    assert (found["found"]["index"], found["found"]["node"]) == (2, "norm2")
    assert found["trials"][0] == {"passes": 0, "rewrites": None, "good": True}
    text = qir("bisect", folder / "model.onnx", *words, "--check", check(folder, 1))
    assert text.status == 1, text
    assert "fold-batch-norm, number 3" in text.out


def test_bisect_ends_with_0_where_all_is_good_and_says_so(folder: Path) -> None:
    words = ("-p", "prune", "--target", "onnxruntime")
    done = qir("bisect", folder / "model.onnx", *words, "--check", "test -s {}")
    assert done.status == 0, done
    assert "good after 1 pass" in done.out


def test_a_check_that_cannot_tell_ends_the_search(folder: Path) -> None:
    done = qir(
        "bisect", folder / "model.onnx", "-p", "fold-batch-norm", "--check", check(folder, 125)
    )
    assert_one_line(done, 2)
    assert "ends with 125, it cannot tell" in done.err


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise SystemExit(3)", "ends with 3"),
        ("raise ValueError('no such model')", "ends with 1: ValueError: no such model"),
        ("import os; os.kill(os.getpid(), 11)", "is ended by signal 11"),
    ],
)
def test_a_check_that_fails_for_the_model_as_it_is_says_how(
    script: str, said: str, folder: Path
) -> None:
    (folder / "wrong.py").write_text(script)
    words = ("-p", "fold-batch-norm", "--check", f"'{sys.executable}' '{folder / 'wrong.py'}'")
    done = qir("bisect", folder / "model.onnx", *words)
    assert_one_line(done, 2)
    assert "fails before any pass has run" in done.err
    assert said in done.err


def test_a_check_that_crashes_says_bad_and_one_that_is_not_steady_is_told(folder: Path) -> None:
    crash = "import os, sys\nif b'batch_norm(' not in open(sys.argv[1], 'rb').read():\n"
    (folder / "crash.py").write_text(f"{crash}    os.kill(os.getpid(), 11)\n")
    words = ("bisect", folder / "model.onnx", "-p", "prune; fold-batch-norm", "--check")
    done = qir(*words, f"'{sys.executable}' '{folder / 'crash.py'}'")
    assert done.status == 1, done
    assert "fold-batch-norm, number 2" in done.out
    often = folder / "often"
    (folder / "flaky.py").write_text(
        f"import os, sys\nopen({str(often)!r}, 'a').write('x')\n"
        f"sys.exit(os.path.getsize({str(often)!r}) == 2)\n"
    )
    done = qir(*words, f"'{sys.executable}' '{folder / 'flaky.py'}'")
    assert_one_line(done, 2)
    assert "the check is not steady" in done.err


# -- passes and their text -------------------------------------------------------------------------


def test_passes_lists_every_pass_with_options_and_defaults() -> None:
    done = qir("passes")
    assert done.status == 0, done
    assert "assign-schemes" in done.out
    assert "limit=67108864" in done.out
    told = json.loads(qir("passes", "--json").out)["passes"]
    assert [row for row in told if row["fault"]] == []
    assert all(row["doc"] and row["tolerance"] for row in told)
    rows = {row["name"]: row for row in told}
    assert rows["group"]["options"][0]["name"] == "as"
    assert rows["materialize"]["ensures"] == [
        {"name": "no-schemes", "doc": "no slot has a plan"},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "prune",
        "fold-constants{limit=3}",
        "group{as=ort-1.31}",
        "assign-schemes{granularity=tensor, range=percentile:99.9}",
        'assign-schemes{target=onnxruntime, rules=["op=softmax: float", "name=a,b: float"]}',
    ],
)
def test_a_pass_as_text_reads_back(text: str) -> None:
    (one,) = parse_passes(text)
    assert options_text(one) == text
    assert parse_passes(f" {text} ; {text}") == (one, one)


def test_options_have_the_name_of_the_field_too() -> None:
    assert make_pass("group", {"profile": "ort-1.31"}) == make_pass("group", {"as": "ort-1.31"})
    assert find_pass("group").name == "group"

"""What the verbs do when all is well."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from qir.calibration.runner import GraphProgram
from qir.cli.app import VERBS, app
from tests.cli import models
from tests.cli.command import Outcome, process, qir
from tests.sampling import sample


def session(path: Path, *, optimize: bool = True) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def expect(outcome: Outcome, status: int = 0) -> Outcome:
    assert outcome.status == status, outcome
    return outcome


@pytest.mark.slow
def test_the_examples_of_the_help_work_in_their_order(tmp_path: Path) -> None:
    models.write(tmp_path)
    first = ("calibrate", "quantize", "convert")
    begun = [verb for name in first for verb in VERBS if verb.name == name]
    rest = sample("examples of the help", [verb for verb in VERBS if verb not in begun], 1)
    for verb in [*begun, *rest]:
        assert 2 <= len(verb.examples) <= 3, verb.name
        for example in verb.examples:
            done = subprocess.run(
                ["bash", "-ec", f'qir() {{ {sys.executable} -m qir "$@"; }}; {example}'],
                cwd=tmp_path,
                env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{example}\n{done.stdout}{done.stderr}"
            assert shlex.split(example)[:2] == ["qir", verb.name]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_help_with_examples_and_the_keys_of_its_json(verb: object) -> None:
    name = verb.name  # type: ignore[attr-defined]
    text = expect(qir(name, "--help")).out
    assert f"Usage: qir {name}" in text
    assert "Examples:\n  qir " in text
    assert "--json prints {" in text
    assert max(map(len, text.splitlines())) <= 100


def test_qir_alone_prints_its_help() -> None:
    outcome = expect(qir())
    assert all(f"\n  {verb} " in outcome.out for verb in app.commands)
    verbs = outcome.out.partition("Commands:")[2]
    assert "..." not in verbs, "a verb's first sentence is too long"
    assert outcome.out == expect(qir("--help")).out


def test_the_command_line_comes_up_without_loading_anything_large(tmp_path: Path) -> None:
    code = "import sys, qir.cli; print([m for m in sys.modules if m in ('numpy', 'onnx', 'rich')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    version = process("--version", cwd=tmp_path)
    assert version.out.startswith("qir "), version


def test_run_gives_what_onnxruntime_gives_without_its_optimizer(folder: Path) -> None:
    out = folder / "results.npz"
    words = ("--data", folder / "samples.npy", "-o", out, "--batch", "7")
    expect(qir("run", folder / "quantized.onnx", *words, "--with", "cpu"))
    wanted = session(folder / "quantized.onnx").run(None, {"images": models.images()})[0]
    with np.load(out) as results:
        assert list(results) == ["classes"]
        np.testing.assert_array_equal(results["classes"], wanted)


def test_run_by_onnxruntime_runs_the_file_as_it_is(folder: Path) -> None:
    for name, optimize in (("onnxruntime", True), ("onnxruntime:plain", False)):
        out = folder / f"{optimize}.npz"
        words = ("--data", folder / "samples.npy", "-o", out, "--with", name)
        expect(qir("run", folder / "model.onnx", *words))
        made = session(folder / "model.onnx", optimize=optimize)
        wanted = [made.run(None, {"images": part})[0] for part in [models.images()]]
        with np.load(out) as results:
            np.testing.assert_array_equal(results["classes"], np.concatenate(wanted))


def test_run_shows_values_in_between(folder: Path) -> None:
    out = folder / "values.npz"
    words = ("--data", folder / "samples.npy", "-o", out, "--values", "relu1", "--values", "flat")
    expect(qir("run", folder / "model.onnx", *words))
    model = onnx.load(str(folder / "model.onnx"))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("relu1", "flat"))
    onnx.save(model, str(folder / "more.onnx"))
    made = session(folder / "more.onnx", optimize=False)
    wanted = made.run(["relu1", "flat"], {"images": models.images()})
    with np.load(out) as results:
        assert list(results) == ["relu1", "flat"]
        np.testing.assert_allclose(results["relu1"], wanted[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(results["flat"], wanted[1], rtol=1e-5, atol=1e-6)


def test_compare_finds_engines_that_agree(folder: Path) -> None:
    words = ("--data", folder / "samples.npy", "--compare", "cpu,onnxruntime")
    outcome = expect(qir("run", folder / "quantized.onnx", *words))
    assert "all equal" in outcome.out


def test_compare_ends_with_findings_where_the_bytes_differ(folder: Path) -> None:
    words = ("--data", folder / "samples.npy", "--compare", "reference,onnxruntime", "--json")
    outcome = expect(qir("run", folder / "model.onnx", *words, "--tolerance", "0"), 1)
    found = json.loads(outcome.out)
    assert found["engines"] == ["reference", "onnxruntime"]
    (output,) = found["outputs"]
    assert output["differ"] > 0
    assert 0 < output["largest"] < 1e-5
    assert output["equal"] is False


@pytest.mark.slow
def test_the_same_command_writes_the_same_bytes(folder: Path) -> None:
    for i, (threads, seed) in enumerate((("1", "0"), ("2", "1"), ("2", "2"))):
        words = ("--data", "samples.npy", "--batch", "5", "--threads", threads)
        for verb, name in (("calibrate", f"{i}.stats"), ("quantize", f"{i}.onnx")):
            expect(process(verb, "model.onnx", *words, "-o", name, cwd=folder, PYTHONHASHSEED=seed))
        expect(process("convert", f"{i}.onnx", "-o", f"{i}.qir", cwd=folder, PYTHONHASHSEED=seed))
    for suffix in (".stats", ".onnx"):
        assert len({(folder / f"{i}{suffix}").read_bytes() for i in range(3)}) == 1, suffix


def test_statistics_serve_where_data_would(folder: Path) -> None:
    words = ("--stats", folder / "model.stats", "-o", folder / "by-stats.onnx")
    expect(qir("quantize", folder / "model.onnx", *words))
    assert (folder / "by-stats.onnx").read_bytes() == (folder / "quantized.onnx").read_bytes()


@pytest.mark.parametrize("rule", ["percentile:99", "entropy", "mse", "average:0.1"])
def test_other_range_rules_make_other_models_that_run(folder: Path, rule: str) -> None:
    stats, out = folder / "new.stats", folder / "other.onnx"
    words = ("--data", folder / "samples.npy", "--batch", "4", "-o", stats)
    expect(qir("calibrate", folder / "model.onnx", *words))
    words = ("--stats", stats, "--range", rule, "-o", out)
    expect(qir("quantize", folder / "model.onnx", *words))
    if rule != "mse":  # with so few samples the widest range may be the best
        assert out.read_bytes() != (folder / "quantized.onnx").read_bytes()
    result = session(out).run(None, {"images": models.images()})[0]
    assert result.shape == (models.SAMPLES, 5)


def test_what_is_kept_float_stays_float(folder: Path) -> None:
    out = folder / "mixed.onnx"
    words = ("--data", folder / "samples.npy", "-o", out, "--keep-float", "/fc/*")
    outcome = expect(qir("quantize", folder / "model.onnx", *words, "--rule", "op=softmax: float"))
    assert "a rule keeps it float" in outcome.out
    model = onnx.load(str(out))
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    (gemm,) = [node for node in model.graph.node if node.op_type == "Gemm"]
    assert makers.get(gemm.input[1], "initializer") == "initializer"
    (softmax,) = [node for node in model.graph.node if node.op_type == "Softmax"]
    assert makers[softmax.input[0]] == "Gemm"


def test_a_calibration_that_is_stopped_goes_on_where_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = folder / "model.onnx", folder / "new.stats"
    words = ("--data", folder / "samples.npy", "--batch", "1", "--threads", "1")
    expect(qir("calibrate", model, *words, "-o", folder / "whole.stats"))
    run, calls = GraphProgram.run, []

    def stop(self: GraphProgram, *args: object) -> None:
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        run(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(GraphProgram, "run", stop)
    outcome = expect(qir("calibrate", model, *words, "-o", out), 130)
    assert "--resume" in outcome.err
    assert not out.exists()
    calls[:] = [1] * 20
    expect(qir("calibrate", model, *words, "-o", out, "--resume"))
    assert len(calls) - 20 == models.SAMPLES - 19, "what was done before is not done again"
    assert out.read_bytes() == (folder / "whole.stats").read_bytes()
    assert not (folder / "new.stats.part").exists()


@pytest.mark.slow
def test_a_request_to_stop_leaves_nothing_half_written(folder: Path) -> None:
    np.save(folder / "many.npy", np.zeros((200_000, 3, 8, 8), np.float32))
    command = ["quantize", "model.onnx", "--data", "many.npy", "--batch", "8", "-o", "new.onnx"]
    before = set(os.listdir(folder))
    with subprocess.Popen(
        [sys.executable, "-m", "qir", *command], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as running:
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(2)
        running.terminate()
        _, said = running.communicate(timeout=30)
    assert running.returncode == 143
    kept = set(os.listdir(folder)) - before  # nothing yet, or what the same command goes on from
    assert kept <= {"new.onnx.stats.part"}
    more = "; the same command continues from new.onnx.stats.part" if kept else ""
    assert said == f"qir: stopped by the system{more}\n"


def test_text_reads_back_to_the_same_program(folder: Path) -> None:
    text = expect(qir("show", folder / "model.onnx", "--text")).out
    assert text.startswith("array @") or text.startswith("graph small")
    assert text == expect(qir("show", folder / "model.qir", "--text")).out


def test_show_finds_a_node_by_its_source_name(folder: Path) -> None:
    by_source = expect(qir("show", folder / "model.onnx", "--node", "/conv1/Conv"))
    by_value = expect(qir("show", folder / "model.onnx", "--node", "conv1"))
    assert by_source.out == by_value.out
    assert "pad" in by_source.out
    assert "6x3x3x3" in by_source.out


def test_verify_ends_with_findings(folder: Path) -> None:
    model = onnx.load(str(folder / "quantized.onnx"))
    for tensor in model.graph.initializer:
        if tensor.name == "b1_scale" or ("b1" in tensor.name and "scale" in tensor.name):
            data = onnx.numpy_helper.to_array(tensor).copy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(data * 2, tensor.name))
            break
    else:
        pytest.fail(f"no scale of a bias in {[t.name for t in model.graph.initializer]}")
    onnx.save(model, str(folder / "wrong.onnx"))
    outcome = expect(qir("verify", folder / "wrong.onnx"), 1)
    assert "bias-scale" in outcome.out
    assert "1 warning" in outcome.out
    assert expect(qir("verify", folder / "wrong.onnx", "--quiet"), 1).out == ""
    found = json.loads(expect(qir("verify", folder / "wrong.onnx", "--json"), 1).out)
    assert [f["rule"] for f in found["findings"]] == ["bias-scale"]


def test_verify_says_how_much_it_looked_at(folder: Path) -> None:
    outcome = expect(qir("verify", folder / "quantized.onnx"))
    assert outcome.out.startswith("quantized.onnx: no findings in ")
    assert outcome.out.endswith(" rules\n")


def test_quiet_verbs_print_nothing(folder: Path) -> None:
    model, data = folder / "model.onnx", ("--data", folder / "samples.npy")
    for words in (
        ("calibrate", model, *data, "-o", folder / "q.stats"),
        ("quantize", model, *data, "-o", folder / "q.onnx"),
        ("convert", model, "-o", folder / "q.qir"),
        ("run", model, *data),
        ("verify", model),
        ("plan", model),
    ):
        outcome = expect(qir(*words, "--quiet"))
        assert outcome.out + outcome.err == "", outcome


KEYS = {
    "show model.onnx": "file file_bytes name profile frameworks nodes parameters bytes macs"
    " integer_macs longest_integer_chain inputs defaults outputs ops layers journal",
    "show model.onnx --node conv1": "name op doc text attributes operands results used_by origins"
    " source_names profile plans macs in_codes",
    "verify model.onnx": "file target nodes rules findings sums ops",
    "certify quantized.onnx": "file profiles releases layers",
    "plan model.onnx": "file target integer_macs decisions shared maybe_masks refused",
    "calibrate model.onnx --data samples.npy -o j.stats": "file output batches resumed tensors",
    "quantize model.onnx --data samples.npy -o j.onnx": "file output file_bytes output_bytes target"
    " integer_macs integer_ops weight_ops ops sqnr noisiest goal check io ledger",
    "convert model.onnx -o j.qir": "file output output_bytes ledger",
    "opt model.onnx -p prune -o j.qir": "file output output_bytes validated passes ledger",
    "group quantized.onnx --as ort-1.31 -o j.qir": "file output output_bytes profile on groups"
    " loaded float float_sums doubts",
    "bisect model.onnx -p prune --check true": "file check passes found trials",
    "passes": "passes",
    "run model.onnx --data samples.npy": "file engine samples outputs",
    "run quantized.onnx --data samples.npy --compare cpu,onnxruntime": "file engines samples"
    " outputs fault",
    "bench quantized.onnx --runs 2 --profile": "file batch threads inputs engines left_out"
    " fallbacks steps",
    "doctor": "qir python platform libraries frameworks plugins features isa threads kernels"
    " runtimes scales",
    "probe onnxruntime.none": "runtimes output",
}


@pytest.mark.parametrize("command", KEYS)
def test_json_has_its_documented_keys_and_nothing_beside_it(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    outcome = expect(qir(*shlex.split(command), "--json"))
    found = json.loads(outcome.out)
    assert list(found) == KEYS[command].split()
    assert outcome.err == ""
    text = " ".join(expect(qir(command.split()[0], "--help")).out.split())
    for key in found:
        assert key in text, f"{key} is not documented"


def test_the_ledger_is_saved_as_json(folder: Path) -> None:
    file = folder / "ledger.json"
    words = ("--data", folder / "samples.npy", "-o", folder / "q.onnx", "--ledger", file)
    expect(qir("quantize", folder / "model.onnx", *words))
    rows = json.loads(file.read_text())["entries"]
    assert {"change", "step", "subject", "reason"} <= set(rows[0])
    assert any(row["step"] == "fold-batch-norm" for row in rows)


def plugin(folder: Path, entry_points: str) -> Path:
    """A distribution that is installed in a folder."""
    place = folder / "site"
    info = place / "stranger-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(entry_points)
    (place / "stranger.py").write_text("Target = 1 / 0\n")
    (place / "lacking.py").write_text("import a_framework_nobody_has\n")
    return place


def row(out: str, word: str) -> str:
    """The one row of a table that begins where a word stands, its wrapped lines joined."""
    lines = out.splitlines()
    (at,) = [i for i, line in enumerate(lines) if f" {word} " in line]
    more = [line for line in lines[at + 1 :][:3] if line.startswith(" " * 20)]
    return " ".join(" ".join([lines[at], *more]).split())


@pytest.mark.slow
def test_doctor_tells_of_a_broken_plugin_and_whose_it_is(tmp_path: Path) -> None:
    place = plugin(tmp_path, "[qir.targets]\nfaulty = stranger:Target\n")
    outcome = expect(process("doctor", cwd=tmp_path, PYTHONPATH=str(place)), 1)
    line = row(outcome.out, "faulty")
    assert "broken" in line
    assert "stranger 1.5" in line
    assert "division by zero" in line
    assert outcome.err == ""


def test_doctor_fits_a_screen_and_lists_all_when_asked(tmp_path: Path) -> None:
    short, whole = (process("doctor", *more, cwd=tmp_path) for more in ((), ("--all",)))
    assert len(expect(short).out.splitlines()) <= 50, short
    for listed in ("correct-bias", "fbgemm.affine", "tf-2.21.uniform"):
        assert listed not in short.out
        assert listed in expect(whole).out


def test_doctor_takes_a_missing_framework_for_no_fault(tmp_path: Path) -> None:
    place = plugin(tmp_path, "[qir.frontends]\nabsent = lacking:Frontend\n")
    outcome = expect(process("doctor", cwd=tmp_path, PYTHONPATH=str(place)))
    line = row(outcome.out, "absent")
    assert "not usable" in line
    assert "needs a_framework_nobody_has" in line


def test_a_refused_conversion_ends_with_3_and_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qir import loading
    from qir.ledger import Change, Ledger

    load = loading.load

    def lossy(path: Path, *, ledger: Ledger | None = None, **extra: object) -> object:
        if ledger is not None:
            ledger.add(Change.APPROXIMATED, "a frontend", "conv1", "its scale is rounded")
        return load(path, ledger=ledger)

    monkeypatch.setattr(loading, "load", lossy)
    words = ("convert", folder / "model.onnx", "-o")
    for name in ("new.onnx", "new.qir"):
        outcome = expect(qir(*words, folder / name), 3)
        assert outcome.err.splitlines() == [
            "qir: a frontend: conv1: its scale is rounded; --lossy allows it"
        ]
        assert not (folder / name).exists()
        expect(qir(*words, folder / name, "--lossy"))
        assert (folder / name).exists()

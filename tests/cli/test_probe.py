"""`qir probe` and what `qir doctor` says of it, with the runtimes that are installed."""

import json
from pathlib import Path

import pytest

from qir.errors import UsageError
from qir.inspect.runtimes import chosen
from qir.profiles import parse, profile
from tests.cli.command import assert_one_line, process, qir
from tests.installed import UNOPTIMIZED


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
def test_a_runtime_is_held_beside_its_file_and_doctor_knows_it_then(tmp_path: Path) -> None:
    before = json.loads(qir("doctor", "--json").out)["runtimes"]
    assert {r["state"] for r in before if r["name"] == "onnxruntime.none"} == {"assumed"}
    outcome = qir("probe", "onnxruntime.none")
    assert outcome.status == 0, outcome
    lines = outcome.out.splitlines()
    assert lines[0].startswith("onnxruntime.none 1.")
    assert lines[0].endswith(f", compared with {UNOPTIMIZED}")
    assert any(line.split()[-5:-2] == ["requant.round", "even", "even"] for line in lines), outcome
    assert any(line.startswith("no drift in ") for line in lines), outcome
    assert max(map(len, lines)) <= 100, "it fits a page where it is not on a terminal"
    assert max(map(len, qir("doctor").out.splitlines())) <= 100
    after = json.loads(qir("doctor", "--json").out)["runtimes"]
    (kept,) = (r for r in after if r["name"] == "onnxruntime.none")
    assert (kept["state"], kept["profile"], kept["drifts"]) == ("measured", UNOPTIMIZED, 0)
    assert f"measured {kept['date']}: as filed" in qir("doctor").out


def test_what_was_measured_becomes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine-1.31.toml"
    outcome = qir("probe", "onnxruntime.none", "-o", file, "--quiet")
    assert (outcome.status, outcome.out) == (0, ""), outcome
    made = parse(file.read_text(), file.name, profile)
    assert made.name == "mine-1.31"
    assert made.head.extends == UNOPTIMIZED
    assert not made.rules
    again = qir("probe", "onnxruntime.none", "-o", file)
    assert again.status == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nobody",), "qir: no probe 'nobody'; known: "),
        (("onnxruntime", "-o", "x.toml"), "qir: -o takes one runtime, these are onnxruntime.all"),
        (("onnxruntime.none", "-o", "no/x.toml"), "qir: no/x.toml: there is no folder no"),
        (("onnxruntime.none", "--python", "x"), "qir: --python is for a runtime that can be"),
        (("mxnet", "--python", "nobody"), "qir: nobody is no Python that can be run"),
    ],
)
def test_what_cannot_be_probed_is_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    outcome = process("probe", *words, cwd=tmp_path)
    assert_one_line(outcome, 2)
    assert outcome.err.startswith(said), outcome
    assert not list(tmp_path.glob("*.toml"))


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("nobody", ("onnxruntime", "tensorflow", "tflite", "torch", "qir doctor --all lists")),
        ("torch.nothing", ("torch,", "torch.fbgemm", "torch.onednn", "torch.qnnpack", "torch.x86")),
        ("n" * 500, ("onnxruntime", "tensorflow", "tflite", "torch", "qir doctor --all lists")),
    ],
)
def test_an_unknown_probe_is_told_with_whole_names(word: str, known: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as raised:
        chosen([word])
    said = f"qir: {raised.value}"
    assert len(said) < 240
    assert "..." not in said
    assert all(name in said for name in known), said

"""`qir why-not`: what it tells of a node and a pattern, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import qir as qir_api
from qir import registry
from qir.rewrite.patterns.library import find_pattern, patterns
from qir.rewrite.patterns.pattern import Pattern
from qir.rewrite.patterns.rewriting import PatternPass
from tests.cli.command import assert_one_line, qir
from tests.rewrite.test_rewriting import Tidy


def told(folder: Path, node: str, pattern: str) -> dict[str, object]:
    outcome = qir("why-not", folder / "model.onnx", node, pattern, "--json")
    assert outcome.status in (0, 1), outcome
    data: dict[str, object] = json.loads(outcome.out)
    assert data["matches"] is (outcome.status == 0)
    return data


def test_a_match_is_told_with_its_nodes(folder: Path) -> None:
    outcome = qir("why-not", folder / "model.onnx", "relu1", "relu(conv2d|batch_norm(%x, ...))")
    assert outcome.status in (0, 1)
    data = told(folder, "relu1", "relu(%x)")
    assert data["nodes"] == ["relu1"]
    lines = qir("why-not", folder / "model.onnx", "relu1", "relu(%x)").out.splitlines()
    assert lines == ["pattern matches at relu1", "  1 node: relu1"]


def test_the_first_condition_that_failed_is_told(folder: Path) -> None:
    data = told(folder, "relu1", "relu(erf(%x))")
    assert data["root"] == "relu1"
    assert "not erf" in str(data["reason"])
    outcome = qir("why-not", folder / "model.onnx", "relu1", "relu(erf(%x))")
    assert outcome.status == 1
    assert outcome.out.startswith("pattern does not match at ")
    assert "1 part of the pattern met before that" in outcome.out


def test_a_pattern_lies_in_a_file(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.pattern"
    file.write_text("relu(%x)  # any relu\n")
    assert told(folder, "relu1", str(file))["pattern"] == "mine"
    file.write_bytes(b"\xff\xfe")
    assert_one_line(qir("why-not", folder / "model.onnx", "relu1", file), 2)
    file.unlink()
    assert_one_line(qir("why-not", folder / "model.onnx", "relu1", file), 2)


@pytest.mark.parametrize(
    ("node", "pattern", "said"),
    [
        ("relu9", "relu(%x)", "did you mean 'relu"),
        ("relu1", "relu(%x", "line 1, column"),
        ("relu1", "reluu(%x)", "did you mean relu"),
        ("relu1", "no-such-pattern", "no pattern 'no-such-pattern'"),
        ("relu1", "", "no pattern ''"),
        ("relu1", "recover.nope", "no pattern 'recover.nope'; did you mean 'recover."),
        ("relu1", "fold-batch-norm.nope", "has fold-batch-norm.after and fold-batch-norm.before"),
        ("relu1", "prune", "finds its places without patterns"),
        ("relu1", "relu(%x) or %x", "may be anything"),
    ],
)
def test_what_cannot_be_meant_is_one_line(folder: Path, node: str, pattern: str, said: str) -> None:
    outcome = qir("why-not", folder / "model.onnx", node, pattern)
    assert_one_line(outcome, 2)
    assert said in outcome.err


def test_of_a_pass_by_its_name_all_patterns_are_tried(tmp_path: Path) -> None:
    text = """graph main as native {
      %x = input() : 2x3xf32
      %half = constant(0.5) : f32
      %root = constant(1.4142135) : f32
      %two = constant(2.0) : f32
      %d = div(%x, %root) : 2x3xf32
      %e = erf(%d) : 2x3xf32
      %a = add(%e, %two) : 2x3xf32
      %m = mul(%x, %half) : 2x3xf32
      %y = mul(%m, %a) : 2x3xf32
      %s = sigmoid(%x) : 2x3xf32
      %z = mul(%x, %s) : 2x3xf32
      output(y=%y, z=%z)
    }"""
    file = tmp_path / "gelu.qir"
    qir_api.save(qir_api.parse(text), file)
    outcome = qir("why-not", file, "y", "recover")
    assert outcome.status == 1
    assert outcome.out.startswith("gelu"), outcome
    assert "does not match at" in outcome.out
    assert "of recover it came nearest" in outcome.out
    outcome = qir("why-not", file, "z", "recover")
    assert outcome.status == 0
    assert outcome.out.startswith("silu matches at z")
    assert qir("why-not", file, "y", "fold-bias").status == 1


def test_patterns_of_installed_passes_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "names", lambda kind: ("tidy",))
    monkeypatch.setattr(registry, "find", lambda kind, name: Tidy)
    known = dict(patterns())
    assert list(known) == ["tidy.gelu", "tidy.mul-one", "tidy.relu-twice"]
    assert find_pattern("mul-one") is find_pattern("tidy.mul-one") is known["tidy.mul-one"]


def test_every_pattern_of_an_installed_pass_has_a_name_of_its_own_and_a_text() -> None:
    for name in registry.names("qir.passes"):
        found = registry.find("qir.passes", name)
        if isinstance(found, type) and issubclass(found, PatternPass):
            names = [rewrite.name for rewrite in found.rewrites]
            assert len(set(names)) == len(names), name
    for full, wanted in patterns():
        assert isinstance(wanted, Pattern)
        assert str(wanted).startswith("pattern "), full

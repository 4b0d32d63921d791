"""Each claim of a profile is held by comparisons that tests counted, rule by rule.

The counts are those of tests/differential/counts.json; a sample of the tests counts again and
finds the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from qir.profiles import Profile, profile, profile_names
from qir.profiles.evidence import NO_ARITHMETIC, parse_same_as
from qir.profiles.profile import When
from tests.counting import Counts, counts, group_key, of_another_torch, rule_key, totals

ROOT = Path(__file__).parents[2]

OURS = sorted(name for name in profile_names() if not name.startswith("acme"))
"""Without what the example plugin brings where it is loaded: its own tests hold that."""

MOVED = frozenset("reshape flatten transpose squeeze unsqueeze slice relu".split())
"""Ops of which no kernel looks at more than the integers' order: the reference's tests say how."""

SAMPLE = (
    "onnxruntime/test_qonnx_vectors.py::test_quant_is_predicted",
    "mxnet/test_mxnet.py::test_recorded_results_are_predicted",
    "ipex/test_ipex_vectors.py::test_layers_are_predicted",
    "onnxruntime/test_ort_methods.py::test_quantize_is_onnxruntimes_for_every_length_and_special_value",
)
"""Tests that count again, of recorded results and of a runtime itself."""


def claims(of: Profile) -> Iterator[tuple[str, str, When, str]]:
    """What a profile's own rules and groups claim: key, claim, conditions, evidence."""
    for rule in of.rules:
        claim = str(rule.fields.get(("", "claim"), "unknown"))
        evidence = str(rule.fields.get(("", "evidence"), ""))
        if not set(rule.ops) <= MOVED:
            yield rule_key(rule), claim, rule.when, evidence
    for group in of.own_groups:
        if len(group.chain) > 1 or group.chain[0] not in MOVED:
            yield group_key(group), group.claim, group.when, group.evidence


@cache
def counted() -> Counts:
    return counts()


def bears(claim: str, tests: Mapping[str, Sequence[int]]) -> str:
    """Why counts do not bear a claim; empty where they do."""
    compared, differ = totals(tests)
    if not compared:
        return "nothing was compared"
    most = float(claim.rpartition(":")[2]) if claim.startswith("within:") else 0.0
    if differ > most * compared:
        at = next(test for test, pair in tests.items() if pair[1])
        return f"{differ:,} of {compared:,} differ, in {at}"
    return ""


def rests(of: Profile, key: str, when: When) -> bool:
    """Whether a group that is not compared itself begins with an op of which a rule is."""
    head = next((g.chain[0] for g in of.own_groups if group_key(g) == key), None)
    return any(
        head in entry.ops
        and entry.when.meets(when)
        and not bears(str(entry.fields.get(("", "claim"))), counted()[layer.name][rule_key(entry)])
        for layer in of.layers
        for entry in layer.rules
        if rule_key(entry) in counted().get(layer.name, {})
    )


@pytest.mark.parametrize("name", OURS)
def test_each_claim_is_held_by_what_was_compared(name: str) -> None:
    of, wrong = profile(name), []
    for key, claim, when, evidence in claims(of):
        other = evidence.startswith(NO_ARITHMETIC) or parse_same_as(evidence) is not None
        if not claim.startswith(("exact", "within:")):
            continue
        tests = counted().get(name, {}).get(key, {})
        # What a version computes otherwise is recorded and compared; the rest of its profile is
        # held where it is installed: `make test TORCH=torch==2.15.0`.
        if not tests and (other or when.isa or rests(of, key, when) or of_another_torch(name)):
            continue
        if why := bears(claim, tests):
            wrong.append(f"{key}, claimed {claim}: {why}")
    assert not wrong, f"{name} (`make counts` counts again):\n" + "\n".join(wrong)


def test_what_was_counted_is_of_rules_and_tests_that_there_are() -> None:
    for name, rules in counted().items():
        of = profile(name)
        known = {rule_key(r) for r in of.rules} | {group_key(g) for g in of.own_groups}
        assert rules.keys() <= known, f"{name}: {sorted(rules.keys() - known)}; `make counts`"
        for test in {test for tests in rules.values() for test in tests}:
            path, _, function = test.partition("::")
            text = (ROOT / path).read_text(encoding="utf-8")
            assert f"def {function}(" in text, f"{test} is no test; `make counts`"


@pytest.mark.slow
def test_a_sample_of_the_tests_counts_the_same_again(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    named = [f"tests/differential/{test}" for test in SAMPLE]
    words = ["-m", "pytest", "-q", "-n", "0", "--counts", *named]
    env = {**os.environ, "QIR_COUNTS": str(file), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stdout[-2000:] + done.stderr[-500:]
    again: Counts = json.loads(file.read_text(encoding="utf-8"))
    assert of_tests(again, named) == of_tests(counted(), named), "`make counts` counts again"


def of_tests(found: Counts, named: Sequence[str]) -> dict[tuple[str, str, str], list[int]]:
    """The counts of some tests."""
    out = {
        (name, rule, test): pair
        for name, rules in found.items()
        for rule, tests in rules.items()
        for test, pair in tests.items()
        if test in named
    }
    assert {test for _, _, test in out} == set(named)
    return out


def test_counts_that_do_not_bear_a_claim_are_told() -> None:
    assert bears("exact", {}) == "nothing was compared"
    assert bears("exact", {"a": [10, 0]}) == ""
    assert bears("exact", {"a": [10, 0], "b": [5, 1]}) == "1 of 15 differ, in b"
    assert bears("within:1:0.1", {"a": [10, 1]}) == ""
    assert bears("within:1:0.1", {"a": [10, 2]}) == "2 of 10 differ, in a"

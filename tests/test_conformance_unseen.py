"""What checks could not look at is said to be that; files of a target are run where it can."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qir import pipeline
from qir.capability import Capability
from qir.errors import ContractError, Refused, UsageError
from qir.ir import file
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import Pass, run_passes
from qir.target import Executable, Target, target
from qir.testing import Check, check_pass, check_target, random_graph, require
from tests.cli.command import qir as command

MEANS = "what it writes means what was written"


class Writes(Target):
    """Writes files of a kind that nobody reads."""

    name = "strange"
    profile = "native"
    formats = ("plain",)
    suffix = ".strange"

    def capability(self) -> Capability:
        return replace(target("onnxruntime").capability(), name=self.name)

    def emit(self, graph: Graph, path: Path, ledger: Ledger, **said: Any) -> None:
        if said.get("format") not in (None, *self.formats):
            raise UsageError(f"target {self.name} has no format {said['format']!r}")
        ledger.check(lossy=said.get("lossy", False))
        file.write(path, file.Bundle(self.written(graph)))

    def written(self, graph: Graph) -> Graph:
        """What stands in the file."""
        return graph


class Ran(Executable):
    """A file that is run by the reference."""

    def __init__(self, graph: Graph) -> None:
        self.graph = run_passes(graph, [Group("native")], Ledger())

    def __call__(self, **inputs: object) -> dict[str, object]:
        arrays = {name: np.asarray(data) for name, data in inputs.items()}
        return dict(pipeline.run(self.graph, arrays))


class Runs(Writes):
    """Runs its own files too."""

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        return Ran(file.read(path).graph)


class Wrong(Runs):
    """Writes another model: a sign is lost."""

    def written(self, graph: Graph) -> Graph:
        made = graph.copy()
        name, value = next(iter(made.outputs.items()))
        turned = made.add("neg", {"x": value}, before=made.output)
        made.set_operand(made.output, name, turned.result)
        return made


def means(kind: type[Target]) -> Check:
    (row,) = (check for check in check_target(kind, [random_graph(1)]) if check.name == MEANS)
    return row


def test_files_that_nobody_reads_are_not_checked() -> None:
    row = means(Writes)
    assert (row.checked, row.mark) == (False, "not checked")
    assert "no frontend reads .strange files" in row.detail
    assert str(row).startswith(f"not checked  {MEANS}: ")
    require([row])  # which is no failure


def test_files_that_the_target_runs_are_held_to_the_model() -> None:
    row = means(Runs)
    assert row.mark == "ok", row
    assert row.detail.endswith("files, by the target itself")


def test_a_wrong_emitter_is_found_by_running_its_files() -> None:
    row = means(Wrong)
    assert row.mark == "FAILED", row
    assert "its file run by it, output" in row.detail


def test_a_pass_that_is_not_installed_has_no_text_to_check() -> None:
    class Odd(Pass):
        """Of nobody."""

        name = "odd-one"

        def run(self, graph: Graph, ledger: Ledger) -> int:
            return 0

    rows = {row.name: row.mark for row in check_pass(Odd, count=0, graphs=[random_graph(1)])}
    assert rows["reads back from text with its options"] == "not checked"


def test_the_command_line_marks_what_was_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    import qir.testing

    rows = (Check("one", True, "seen"), Check("two", True, "nobody can tell", checked=False))
    monkeypatch.setattr(qir.testing, "check_plugin", lambda kind, name: rows)
    outcome = command("plugins", "check", "prune")
    assert outcome.status == 0
    assert "not checked  two" in outcome.out
    assert "1 check passed, 1 could not be made" in outcome.out
    (found,) = json.loads(command("plugins", "check", "prune", "--json").out)["checked"]
    assert [row["checked"] for row in found["checks"]] == [True, False]


RELU = "graph main as native { %x = input() : 4x6xf32 %y = relu(%x) : 4x6xf32 output(y=%y) }"


class Few(Writes):
    """Writes and runs relu and nothing else."""

    def written(self, graph: Graph) -> Graph:
        for node in graph:
            if node.op not in ("input", "output", "quantize", "dequantize", "relu"):
                raise Refused(f"{node.name}: {self.name} has no {node.op}")
        return graph

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        return Ran(self.written(graph))

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        return Ran(file.read(path).graph)


class FewOfItsOwn(Few):
    """Brings graphs of what it takes."""

    def samples(self) -> list[Graph]:
        return [parse(RELU)]


def test_a_target_that_takes_few_ops_is_checked_on_its_own_samples() -> None:
    rows = {row.name: row for row in check_target(FewOfItsOwn)}
    require(rows.values())
    assert rows["brings samples"].detail == "1 of its own"
    assert rows[MEANS].detail == "2 files, by the target itself"
    assert rows["runs as the reference does under its profile"].detail.startswith("2 programs")


def test_a_target_that_refuses_every_network_is_told_to_bring_samples() -> None:
    checks = check_target(Few)
    failed = {row.name: row.detail for row in checks if not row.passed}
    assert len(failed) == 3
    assert all("samples() of the target" in detail for detail in failed.values())
    (unseen,) = (row for row in checks if not row.checked)
    assert unseen.name == MEANS
    with pytest.raises(ContractError, match=r"^3 of \d+ checks failed: FAILED  ") as raised:
        require(checks)
    assert isinstance(raised.value, AssertionError)
    assert "\n" not in str(raised.value)


def test_samples_that_are_no_graphs_are_refused() -> None:
    class Odd(FewOfItsOwn):
        def samples(self) -> Any:
            return ["relu"]

    (row,) = (row for row in check_target(Odd) if not row.passed)
    assert row.detail == "sample 0 is no qir.Graph"


def test_a_failed_assertion_is_reported_with_its_place() -> None:
    class Bare(FewOfItsOwn):
        def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
            assert threads == 9
            return super().compile(graph)

    failed = [row.detail for row in check_target(Bare) if not row.passed]
    assert len(failed) == 2
    for detail in failed:
        assert detail.startswith("AssertionError")
        assert " at test_conformance_unseen.py:" in detail
        assert "assert threads == 9" in detail

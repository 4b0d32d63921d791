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
from qir.errors import UsageError
from qir.ir import file
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.group import Group
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

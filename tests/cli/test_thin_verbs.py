"""A verb parses, calls one function that a Python program can call too, and shows what it gives."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CLI = Path(__file__).parents[2] / "qir" / "cli"
MODULES = sorted(path for path in CLI.glob("*.py") if path.stem != "__init__")
WORK = {
    "analysis",
    "calibration",
    "graph_dump",
    "mixed_precision",
    "numerics",
    "passes",
    "quantizing",
    "reference",
    "requantizing",
    "rewrite",
}
"""The parts of QIR that a verb uses by the functions of others."""
EXCEPTIONS = {
    "doctor": {"numerics.scale_rules.printed_rules"},
    "accuracy_goals": {"mixed_precision.Goal"},
    "new": {"calibration.preprocess.STYLES"},
    "opt": {"graph_dump.Dump"},
    "passes": {
        "rewrite.patterns.rewriting.PatternPass",
        "rewrite.runner.options.find_pass",
        "rewrite.runner.options.options",
        "rewrite.runner.properties.find_property",
    },
    "pass_options": {
        "rewrite.runner.options.options_text",
        "rewrite.runner.options.parse_passes",
    },
    "plan": {"analysis.masks.MASKED"},
}
"""What verbs take of them all the same: names that are listed or parsed, and classes that hold
options. `passes` lists passes and `pass_options` reads and prints them, which is all they do."""


def taken(path: Path) -> set[str]:
    """The names that a module imports of those parts when it runs, which is not for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in typing and node.module:
            head, _, rest = node.module.partition(".")
            parts = [f"{rest}.{alias.name}" if rest else alias.name for alias in node.names]
            names |= {part for part in parts if head == "qir" and part.split(".")[0] in WORK}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_verb_leaves_work_to_functions_that_others_can_call(path: Path) -> None:
    assert taken(path) == EXCEPTIONS.get(path.stem, set()), "move the work into qir/workflows"


def test_work_of_a_verb_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "verb.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nfrom qir.workflows import run_model\n"
        "if TYPE_CHECKING:\n    from qir.calibration import Statistics\n"
        "def verb():\n    from qir.passes.cleanup.prune import Prune\n    from qir import rewrite\n"
    )
    assert taken(path) == {"passes.cleanup.prune.Prune", "rewrite"}


def test_functions_of_verbs_are_short() -> None:
    """Options, docstrings and what is printed excepted, a verb is a few steps."""
    longest = {
        path.stem: max((sum(1 for _ in steps(function)) for function in functions(path)), default=0)
        for path in MODULES
    }
    assert {name: count for name, count in longest.items() if count > MOST_STEPS} == {}


MOST_STEPS = 60
"""Statements of one function, those inside of blocks counted."""


def functions(path: Path) -> list[ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def steps(function: ast.FunctionDef) -> list[ast.stmt]:
    return [node for node in ast.walk(function) if isinstance(node, ast.stmt)][1:]

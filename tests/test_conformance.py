"""Every plugin of QIR itself comes through the door that a stranger's does, and passes the checks.

A pass that random graphs do not show at work brings graphs of its own by `samples()`, or has golden
ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from qir import registry
from qir.ir.graph import Graph
from qir.ir.ops import OPS, PluginOp
from qir.reference.table import FUNCTIONS
from qir.rewrite import Pass
from qir.testing import check_op, check_pass, check_plugin, require
from qir.testing.feeding import APART
from tests.golden.reading import Golden

GOLDEN = Path(__file__).parent / "golden"
OURS = [
    (short, name)
    for group, short in registry.KINDS.items()
    for name in registry.names(group)
    if registry.owner(group, name).startswith("qir ")
]
IDLE = "does something"
"""The check that a pass fails which none of the graphs was meant for."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), OURS, ids=lambda part: part)
def test_a_plugin_of_ours_passes_the_checks_of_its_kind(kind: str, name: str) -> None:
    checks = check_plugin(kind, name)
    failed = {check.name for check in checks if not check.passed}
    if kind == "pass" and failed == {IDLE}:
        for one, graphs in golden(name):
            checks = check_pass(one, graphs, count=1)
    require(checks)


def golden(name: str) -> list[tuple[Pass, list[Graph]]]:
    """The graphs of a pass's golden files, as they are before it, with the options of the first."""
    files = [Golden.read(path) for path in sorted((GOLDEN / name).glob("*.qir"))]
    alone = [file for file in files if len(file.passes()) == 1]
    alike = [file.graph() for file in alone if file.run == alone[0].run]
    return [(alone[0].passes()[0], alike)] if alone else []


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) & set(OPS) - APART))
def test_an_op_of_ours_passes_the_checks_of_ops(name: str) -> None:
    require(check_op(PluginOp(OPS[name], FUNCTIONS[name])))

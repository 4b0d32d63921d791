"""Every plugin of QIR itself comes through the door of a stranger's, and passes the checks."""

from __future__ import annotations

import json

import pytest

from qir import registry
from qir.ir.ops import OPS, PluginOp
from qir.reference.table import FUNCTIONS
from qir.testing import check_op, require
from qir.testing.op_samples import APART
from tests.cli.command import qir as command

OURS = [
    (short, name)
    for group, short in registry.KINDS.items()
    for name in registry.names(group)
    if registry.owner(group, name).startswith("qir ")
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), OURS, ids=lambda part: part)
def test_qir_plugins_check_finds_nothing_wrong_with_ours(kind: str, name: str) -> None:
    outcome = command("plugins", "check", name, "--kind", kind, "--json")
    (checked,) = json.loads(outcome.out)["checked"]
    assert (checked["kind"], checked["name"], checked["distribution"]) == (kind, name, "qir")
    failed = [f"{c['name']}: {c['detail']}" for c in checked["checks"] if not c["passed"]]
    assert not failed, "\n".join(failed)
    assert len(checked["checks"]) > 1
    assert (outcome.status, checked["passed"]) == (0, True)


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) & set(OPS) - APART))
def test_an_op_of_ours_passes_the_checks_of_ops(name: str) -> None:
    require(check_op(PluginOp(OPS[name], FUNCTIONS[name])))

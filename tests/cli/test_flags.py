"""Errors of the library name arguments; the command line says its flags in their place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from qir.cli.flags import in_flags

ROOT = Path(__file__).parents[2]


def test_arguments_that_errors_name_are_flags_on_the_command_line() -> None:
    said = "m.onnx exists; `force=True` overwrites it, `statistics` of `qir calibrate`, `w` stays"
    assert (
        in_flags(said)
        == "m.onnx exists; --force overwrites it, --stats of `qir calibrate`, `w` stays"
    )


def test_values_of_arguments_are_those_of_the_flags() -> None:
    said = "`format='qdq'` would do, or `opset=21`; `mode='linear'` stays"
    assert in_flags(said) == "--format qdq would do, or --opset 21; `mode='linear'` stays"


def test_each_argument_that_a_workflow_names_has_a_flag() -> None:
    named = set()
    for path in [*(ROOT / "qir/workflows").glob("*.py"), ROOT / "qir/atomic.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                parts = " ".join(t for t in texts if isinstance(t, str))
                named |= set(re.findall(r"`([a-z_0-9]+(?:=True)?)`", parts))
                outside = re.sub("`[^`]*`", "", parts)  # within are commands, as a whole
                assert not re.search(r"(?<![\w-])--[a-z]", outside), f"{path.name}: {parts}"
    assert {"force=True", "data", "statistics"} <= named
    kept = {name for name in named if in_flags(f"`{name}`").startswith("`")}
    assert not kept, f"qir/cli/flags.py has no flag for {kept}"

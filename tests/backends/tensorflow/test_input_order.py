"""A SavedModel's inputs come back in the order of the graph that was written."""

from __future__ import annotations

from pathlib import Path

import pytest

import qir

pytest.importorskip("tensorflow")

NAMES = tuple("x5 x3 x1 x0 x2 x4".split())
"""Neither sorted nor reversed; as they are hashed they come in this order once in 720 times."""


def test_inputs_of_a_folder_keep_their_order(tmp_path: Path) -> None:
    lines = [f"  %{name} = input() : 2x{i + 1}xf32" for i, name in enumerate(NAMES)]
    joined = ", ".join(f"xs.{i}=%{name}" for i, name in enumerate(NAMES))
    lines += [f"  %y = concat({joined}) {{axis = 1}} : 2x21xf32", "  output(y=%y)"]
    graph = qir.parse("graph main as native {\n" + "\n".join(lines) + "\n}\n")
    qir.save(graph, tmp_path / "m", target="tensorflow-onednn", format="savedmodel")
    back = qir.load(tmp_path / "m")
    assert tuple(value.name for value in back.inputs) == NAMES

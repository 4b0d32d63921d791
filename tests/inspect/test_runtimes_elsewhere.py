"""A runtime in a Python of its own: what is asked over the pipe, and what becomes of faults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError
from qir.inspect.child_probes import OtherRuntime
from qir.inspect.probe_cases import Forms
from qir.ir.graph import Graph

PROGRAM = """
import os, runpy, sys
stream = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
print("noise of a framework")
def answer(asked):
    if isinstance(asked, str):
        raise {"no": ValueError, "fault": AttributeError}[asked]("not of\\nthis kind")
    return asked
runpy.run_path(sys.argv[1])["serve"](answer, stream)
"""


class Echo(OtherRuntime):
    """Gives back what it is given."""

    name = "echo"
    backend = "echo"
    forms = Forms(("quantize",), rounds=1)

    def run(self, graph: Graph, feeds: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
        return self.ask(feeds["x"])


def test_a_program_is_asked_and_started_anew_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "child.py"
    script.write_text(PROGRAM)
    monkeypatch.setattr(Echo, "script", script, raising=False)
    echo, x = Echo(), np.arange(6, dtype=np.int8).reshape(2, 3)
    echo.begin()
    first = echo.child
    for _ in "12":
        assert echo.run(Graph(), {"x": x}).tobytes() == x.tobytes()
    with pytest.raises(OpError, match=r"^ValueError: not of this kind$"):
        echo.ask("no")
    assert echo.child is first
    with pytest.raises(OpError, match=r" ended: 1$"):
        echo.ask("fault")
    assert echo.child is None
    assert np.array_equal(echo.ask(x), x)

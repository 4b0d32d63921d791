"""Results are written to the caller's arrays, which hold them from call to call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.errors import DataError
from qir.ir.text import parse
from qir.target import Executable

TEXT = """
graph main {
  %x = input() : 2x3xf32
  %y = relu(%x) : 2x3xf32
  %z = neg(%x) : 2x3xf32
  output(y=%y, z=%z)
}
"""
X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


@pytest.fixture(params=["compiled", "loaded", "onnxruntime"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Executable:
    graph = parse(TEXT)
    if request.param == "loaded":
        path = tmp_path / "net.qirp"
        qir.compile(graph).save(path)  # type: ignore[attr-defined]
        return qir.load_program(path)
    return qir.compile(graph, target="cpu" if request.param == "compiled" else request.param)


def test_results_are_in_the_arrays_that_are_given(program: Executable) -> None:
    y = np.full((2, 3), np.nan, np.float32)
    for x in (X, -X):
        made = program.run_into({"y": y}, x=x)
        assert made["y"] is y
        assert np.array_equal(y, x.clip(0))
        assert np.array_equal(np.asarray(made["z"]), -x)
    assert np.array_equal(np.asarray(program(x=X)["y"]), X.clip(0))
    assert np.array_equal(y, (-X).clip(0))


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ({"w": np.zeros((2, 3), np.float32)}, "no result 'w'; the .* y, z"),
        ({"y": np.zeros((3, 2), np.float32)}, r"result 'y' is .*\[2, 3\]"),
        ({"y": np.zeros((2, 3))}, "result 'y' is .*float32"),
        ({"y": [[0.0] * 3] * 2}, "result 'y'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    results: dict[str, object], said: str, program: Executable
) -> None:
    with pytest.raises(DataError, match=said):
        program.run_into(results, x=X)


def test_memory_that_a_run_reads_is_refused() -> None:
    program, x = qir.compile(parse(TEXT)), X.copy()
    both = np.zeros((2, 3), np.float32)
    wide = np.zeros((2, 6), np.float32)
    for results in ({"y": x}, {"y": both, "z": both}, {"y": wide[:, ::2]}, {"y": frozen()}):
        with pytest.raises(DataError, match=r"memory|in pieces"):
            program.run_into(results, x=x)
    assert np.array_equal(x, X)


def frozen() -> np.ndarray:
    array = np.zeros((2, 3), np.float32)
    array.flags.writeable = False
    return array

"""Public functions refuse wrong arguments in one line, and programmers find TypeErrors in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import qir
from qir.arguments import checked, unchecked
from qir.errors import ArgumentError, QirError
from qir.ir.graph import Graph
from qir.rewrite import Pass

TEXT = "graph main as native { %x = input() : 2xf32 %y = relu(%x) : 2xf32 output(y=%y) }"


@checked
def several(
    path: str | Path,
    many: Iterable[str] = (),
    by: Mapping[str, object] | None = None,
    *,
    count: int = 1,
    size: float = 1.0,
    side: Literal["left", "right"] = "left",
    later: Later | None = None,
) -> str:
    """Takes what the annotations say."""
    return str(path)


class Later:
    """Is defined after the function that takes it."""


@pytest.mark.parametrize(
    "given",
    [
        {"path": Path("a")},
        {"many": ["a", "b"]},
        {"many": iter("ab")},
        {"many": {"a": 1}},
        {"by": {"a": object()}},
        {"count": np.int64(3)},
        {"size": 3},
        {"size": np.float32(0.5)},
        {"side": "right"},
        {"later": Later()},
    ],
)
def test_what_the_annotations_allow_is_taken(given: dict[str, object]) -> None:
    arguments: dict[str, object] = {"path": "a", **given}
    assert several(**arguments) == "a"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"path": b"a"},
            "argument path is a bytes or holds what does not fit; it takes str |",
        ),
        ({"path": 3}, "argument path is an int (3) or"),
        ({"many": "ab"}, "argument many is a str ('ab') or"),
        ({"many": ["a", 3]}, "argument many is a list or"),
        ({"many": np.array(3)}, "argument many is a ndarray or"),
        ({"by": {3: 3}}, "argument by is a dict or"),
        ({"by": ["a"]}, "argument by is a list or"),
        ({"count": 1.5}, "argument count is a float (1.5) or"),
        ({"size": None}, "argument size is None or"),
        ({"side": "top"}, "argument side is a str ('top') or"),
        ({"later": Path}, "argument later is a type or"),
    ],
)
def test_what_they_do_not_allow_is_named(given: dict[str, object], said: str) -> None:
    arguments: dict[str, object] = {"path": "a", **given}
    with pytest.raises(ArgumentError) as raised:
        several(**arguments)  # type: ignore[arg-type]
    assert isinstance(raised.value, TypeError)
    assert str(raised.value).startswith(f"several: {said}")
    assert "\n" not in str(raised.value)


def test_python_itself_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        several()  # type: ignore[call-arg]


def test_graphs_and_the_pipeline_name_the_argument_and_change_nothing(tmp_path: Path) -> None:
    graph = qir.parse(TEXT)
    was = str(graph)
    for call, name in (
        (lambda: graph.add("relu", [graph["x"]]), "operands"),  # type: ignore[arg-type]
        (lambda: graph.remove("y"), "node"),  # type: ignore[arg-type]
        (lambda: graph.replace(graph["y"], None), "new"),  # type: ignore[arg-type]
        (lambda: graph["x", "y"], "name"),  # type: ignore[index]
        (lambda: qir.plan(graph, rules="op=relu: float"), "rules"),
        (lambda: qir.save("graph", tmp_path / "a.qir"), "graph"),  # type: ignore[arg-type]
        (lambda: qir.run(graph, np.ones(2)), "inputs"),  # type: ignore[arg-type]
        (lambda: qir.optimize(graph, "prune", samples={"x": 1}), "samples"),  # type: ignore[dict-item]
        (lambda: qir.calibrate(graph, np.ones(2), limit="3"), "limit"),  # type: ignore[arg-type]
        (lambda: qir.print_graph(None), "graph"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError, match=f"argument {name} is "):
            call()
    assert (str(graph), list(tmp_path.iterdir())) == (was, [])


def test_numbers_and_paths_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    graph: Graph = qir.parse(TEXT)
    with pytest.raises(QirError, match="threads -3: give at least 1"):
        qir.calibrate(graph, np.ones((2, 2), np.float32), threads=-3)
    for name in ("a" * 400, "a\0b", "\ud800"):
        with pytest.raises(QirError, match="cannot name a file"):
            qir.save(graph, tmp_path / f"{name}.qir")
    assert qir.optimize(graph, "prune", seconds=2.0**70).inputs[0].name == "x"


def test_very_long_messages_show_their_start_and_their_end() -> None:
    error = QirError(f"rule {'(' * 40_000} is none")
    assert len(str(error)) < 2_010
    assert str(error).startswith("rule ((((")
    assert str(error).endswith("(((( is none")


def test_optimize_takes_passes_as_a_text_a_list_of_texts_and_objects() -> None:
    from qir.passes.cleanup.cse import Cse

    text = (
        "graph main as native { %x = input() : 2xf32 %a = relu(%x) : 2xf32 %b = relu(%x) : 2xf32 "
        "%unused = neg(%x) : 2xf32 %y = add(%a, %b) : 2xf32 output(y=%y) }"
    )
    forms: list[str | list[str | Pass]] = ["prune; cse", ["prune", "cse"], ["prune", Cse()]]
    results = {str(qir.optimize(qir.parse(text), form)) for form in forms}
    assert len(results) == 1
    assert "neg" not in results.pop()


def test_a_function_without_its_checks_is_the_one_that_was_written() -> None:
    assert unchecked(several)("a", count=2) == "a"
    assert unchecked(several)(3) == "3"  # type: ignore[arg-type]
    assert unchecked(len)("four") == 4

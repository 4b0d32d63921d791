"""Passes make of a graph exactly the graph that stands below it in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from qir import registry
from qir.ledger import Ledger
from qir.rewrite import run_passes
from tests.golden.reading import Golden
from tests.ir.alike import difference

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*/*.qir"))
# Passes that need more than a graph and options: a target's table, statistics, a profile.
WITHOUT = {"assign-schemes", "correct-bias", "equalize", "materialize", "group"}
WITHOUT |= {"clip-weights", "measure-bias", "round-weights", "smooth", "widen-outputs"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_passes_make_the_whole_graph_that_is_expected(
    path: Path, request: pytest.FixtureRequest
) -> None:
    golden = Golden.read(path)
    made = golden.text(golden.result())
    if request.config.getoption("--update-golden"):
        golden.write(made)
    else:
        assert made == golden.expected


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_passes_twice_make_what_they_make_once(path: Path) -> None:
    golden = Golden.read(path)
    if len(golden.passes()) > 1:
        pytest.skip("passes that undo each other")
    once = golden.result()
    twice = run_passes(once, golden.passes(), Ledger())
    assert difference(once, twice, history=True) == ""
    assert twice.version == once.copy().version  # untouched, and not rewritten to the same


def test_every_pass_that_stands_alone_has_its_files() -> None:
    assert set(registry.names("qir.passes")) - WITHOUT == {p.parent.name for p in FILES}


def test_a_golden_file_is_written_as_it_was_read(tmp_path: Path) -> None:
    golden = Golden.read(FILES[0])
    copy = Golden(tmp_path / "g.qir", golden.run, golden.given, golden.expected)
    copy.write(golden.expected)
    assert (tmp_path / "g.qir").read_text() == FILES[0].read_text()

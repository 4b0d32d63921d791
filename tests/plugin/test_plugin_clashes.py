"""Clashing and broken plugins of every kind: an error when asked for, naming who brings them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import qir
from qir import registry
from qir.testing import random_graph, sample_inputs
from tests.cli.command import Outcome, assert_one_line
from tests.cli.command import qir as command

GROUPS = tuple(registry.KINDS)
STATES = {
    "twin": ("clashing", "is claimed by north 1.0 and south 2.0; remove one of them"),
    "gone": ("not usable", "of north 1.0 needs nowhere"),
    "fails": ("broken", "of north 1.0 breaks: cannot import name 'nothing' from 'json'"),
    "falls": ("broken", "of north 1.0 breaks: the sky"),
    "later": ("other API", "of north 1.0 is written for plugin API 2, this qir has 1"),
    "mute": ("other API", "of north 1.0 does not say which plugin API it is written for"),
    "bare": ("broken", "of north 1.0 breaks: module 'north_thing' has no attribute 'bare'"),
    "odd": ("broken", "of north 1.0 is no "),
}
MODULES = {
    "north_thing": "qir_api = 1\nthing = 3\n",
    "south_thing": "qir_api = 1\nthing = 4\n",
    "north_gone": "qir_api = 1\nfrom nowhere import thing\n",
    "north_fails": "qir_api = 1\nfrom json import nothing as thing\n",
    "north_falls": "qir_api = 1\nraise RuntimeError('the sky')\n",
    "north_later": "qir_api = 2\nfrom nowhere import thing\n",
    "north_mute": "thing = 3\n",
}


def distribution(site: Path, name: str, version: str, points: str) -> None:
    """What an installer leaves of a distribution: the records of its metadata."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(head)
    (folder / "entry_points.txt").write_text(points)


@pytest.fixture(scope="module", autouse=True)
def _two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two distributions that bring what is broken, of every kind, on the path."""
    site = tmp_path_factory.mktemp("clashing")
    for module, text in MODULES.items():
        (site / f"{module}.py").write_text(text)
    north, south = "", ""
    for group, kind in registry.KINDS.items():
        where = {"twin": "thing", "odd": "thing"}
        rows = [f"{kind}-{s} = north_{where.get(s, s)}:thing" for s in STATES if s != "bare"]
        rows.append(f"{kind}-bare = north_thing:bare")
        north += "\n".join([f"[{group}]", *rows, ""])
        south += f"[{group}]\n{kind}-twin = south_thing:thing\n"
    distribution(site, "north", "1.0", north)
    distribution(site, "south", "2.0", south)
    sys.path.insert(0, str(site))
    registry.forget()
    yield
    sys.path.remove(str(site))
    for module in MODULES:
        sys.modules.pop(module, None)
    registry.forget()


def test_each_is_listed_with_its_state_and_who_brings_it() -> None:
    outcome = command("plugins", "--json")
    assert outcome.status == 1, outcome
    listed = {p["name"]: p for p in json.loads(outcome.out)["plugins"]}
    for kind in registry.KINDS.values():
        for state, (said, fault) in STATES.items():
            row = listed[f"{kind}-{state}"]
            assert (row["kind"], row["state"]) == (kind, said), row
            assert row["fault"].startswith(f"{kind} '{kind}-{state}' ")
            assert fault in row["fault"]
            wanted = ("north, south", "1.0, 2.0") if state == "twin" else ("north", "1.0")
            assert (row["distribution"], row["version"]) == wanted
    ours = [p for p in listed.values() if p["distribution"] == "qir"]
    assert all(p["state"] in ("ok", "not usable") for p in ours)


def test_nobody_is_harmed_who_does_not_ask_for_them(tmp_path: Path) -> None:
    graph = random_graph(1)
    model, made = tmp_path / "a.qir", tmp_path / "q.qir"
    qir.save(graph, model)
    np.savez(tmp_path / "data.npz", **sample_inputs(graph, 1))  # type: ignore[arg-type]
    data = ("--data", tmp_path / "data.npz")
    for words in (
        ("show", model),
        ("quantize", model, *data, "-o", made),
        ("opt", model, "-p", "prune", "-o", tmp_path / "o.qir"),
        ("group", made, "--as", "ort-1.31", "-o", tmp_path / "g.qir"),
        ("run", made, *data),
        ("passes",),
    ):
        done = command(*words)
        assert done.status == 0, done
    assert command("diff", model, model, *data, "--metric", "cosine").status == 0


def asked(kind: str, name: str, model: Path, folder: Path) -> Outcome:
    """Asks for one plugin, as the verb does that is there for its kind."""
    data, out = ("--data", folder / "data.npz"), ("-o", folder / "o.qir")
    words: dict[str, tuple[str | Path, ...]] = {
        "target": ("plan", model, "--target", name),
        "pass": ("opt", model, "-p", name, *out),
        "observer": ("quantize", model, *data, "--range", name, *out),
        "metric": ("diff", model, model, *data, "--metric", name),
    }
    return command(*words[kind])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ["target", "pass", "observer", "metric"])
def test_who_asks_is_told_in_one_line(kind: str, state: str, tmp_path: Path) -> None:
    graph = random_graph(1)
    qir.save(graph, tmp_path / "a.qir")
    np.savez(tmp_path / "data.npz", **sample_inputs(graph, 1))  # type: ignore[arg-type]
    done = asked(kind, f"{kind}-{state}", tmp_path / "a.qir", tmp_path)
    assert_one_line(done, 2)
    assert STATES[state][1] in done.err
    assert not (tmp_path / "o.qir").exists()


@pytest.mark.parametrize("kind", ["op", "method"])
def test_a_program_that_needs_a_broken_op_or_method_says_so(kind: str, tmp_path: Path) -> None:
    if kind == "op":
        text = "graph main as native {%x = input() : 2xf32 %y = op-twin(%x) : 2xf32 output(y=%y)}"
        path = tmp_path / "a.qir"
        qir.save(random_graph(1), path)
        done = command("query", path, "op == 'op-twin'")
        assert done.status in (0, 1, 2)
        with pytest.raises(qir.errors.QirError):
            qir.parse(text)
    checked = command("plugins", "check", f"{kind}-twin")
    assert checked.status == 1
    assert "is claimed by north 1.0 and south 2.0" in " ".join(checked.out.split())


def test_why_not_says_what_is_wrong_with_the_pass(tmp_path: Path) -> None:
    qir.save(random_graph(1), tmp_path / "a.qir")
    done = command("why-not", tmp_path / "a.qir", "y", "pass-twin")
    assert_one_line(done, 2)
    assert "pass 'pass-twin' is claimed by north 1.0 and south 2.0" in done.err

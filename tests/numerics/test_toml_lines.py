"""The lines of keys and items in a TOML text, against what `tomllib` reads of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from qir.profiles.toml_positions import head_lines, value_positions

FILES = sorted(Path(__file__).parents[2].glob("backends/*/profiles/*.toml"))

TEXT = '''# one
name = "a # b" # two
"key 1".'k.2' = {a = [1, 2], "b = c" = {d = true}}

[many.tables]
list = [  # three
  "x, ]", 'y',
  """z
"],""", [1.5,
  -2],
]
date = 1979-05-27T07:32:00Z

[[rule]]
op = "p"
[rule.when.attrs]
axis = 1
[[ "rule" ]]
op = ["q\\"",
 "r"]
requant.zero = "x"
requant.round = "y"'''

LINES = {
    ("name",): 2,
    ("key 1", "k.2", "a", 1): 3,
    ("key 1", "k.2", "b = c", "d"): 3,
    ("many", "tables"): 5,
    ("many", "tables", "list", 1): 7,
    ("many", "tables", "list", 3): 9,
    ("many", "tables", "list", 3, 1): 10,
    ("many", "tables", "date"): 12,
    ("rule", 0): 14,
    ("rule", 0, "when", "attrs", "axis"): 17,
    ("rule", 1): 18,
    ("rule", 1, "op", 1): 20,
    ("rule", 1, "requant", "round"): 22,
}


def paths(data: object, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    pairs = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in pairs:
        yield (*above, key)
        yield from paths(value, (*above, key))


def test_lines_are_those_of_the_keys() -> None:
    found = value_positions(TEXT)
    assert {path: found[path] for path in LINES} == LINES
    assert set(found) == set(paths(tomllib.loads(TEXT)))
    assert value_positions("") == value_positions("# nothing") == value_positions("\n\n") == {}


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_every_key_of_the_profiles_has_its_line(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = value_positions(text)
    assert set(found) == set(paths(tomllib.loads(text)))
    for keys, line in found.items():
        assert isinstance(keys[-1], int) or str(keys[-1]) in text.splitlines()[line - 1]


ODD = {
    'a = ["""say "x""""]\nb = 1': 2,
    "a = ['''say 'x'''']\nb = 1": 2,
    'a = """two "x"""""\nb = 1': 2,
    'a = """"""\nc = """\\""""\nb = 1': 3,
    '"a\\U00000075" = 1\n"" = 2\nb = 3': 3,
    "a = [\n]\nc = [[], [1,\n2]]\nb = {}": 5,
    'a = [ # "\n "]", # ]\n ] # [\nb.c.d = 1': 4,
}
"""Texts, and the line of their key `b`."""


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_have_a_line_for_every_key(text: str) -> None:
    found = value_positions(text)
    assert set(found) == set(paths(tomllib.loads(text)))
    assert found["b",] == ODD[text]


MANY = ("rule", "group")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_heads_alone_are_found_where_all_positions_have_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    positions = value_positions(text)
    heads = {p: line for p, line in positions.items() if len(p) == 2 and p[0] in MANY}
    assert head_lines(text, tomllib.loads(text), MANY) == heads


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        'rule = [{op = "a"}]',
        'a = """\n[[rule]]"""',
        '[["rule"]]\nop = "a"',
        "[rule]\nop = 1",
        "rule = 1",
    ],
)
def test_heads_that_are_written_otherwise_are_left_to_who_goes_through_all(text: str) -> None:
    assert head_lines(text, tomllib.loads(text), MANY) == {}

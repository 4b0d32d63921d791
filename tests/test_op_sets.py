"""Facts about ops stand in their specs: literal sets of op names elsewhere do not grow."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from qir.ir.ops import OPS

ROOT = Path(__file__).parent.parent
FEWEST = 3
"""Op names that make a set."""
MOST = 66
"""Sets that the core has. Lower it where one becomes a trait; a new fact about ops is a trait."""
ALONE = {"backends/ipex/child.py", "backends/mxnet/child.py", "backends/tensorflow/child.py"}
"""Programs for a Python that has no QIR, and so no op table."""


class Repeated(NamedTuple):
    """A set of op names that stands in several places."""

    ops: str
    places: int
    reason: str


REPEATED = (
    Repeated("gru lstm rnn", 10, "tables: what a layer is called, or does, differs in each"),
    Repeated("add max min mul", 3, "tables: what a reduction of a scatter is called in each"),
    Repeated("max mean sum", 2, "modes of an embedding bag, in the order of ATen's numbers"),
    Repeated("add div mul sub", 7, "seven facts: each runtime's own names, kernels and no-ops"),
    Repeated("add mul sub", 2, "formulas of kernels; what random networks draw from"),
    Repeated("add conv2d relu", 2, "a chain in order, which two runtimes fuse"),
    Repeated("avg_pool2d concat conv2d dequantize linear quantize", 2, "probed ops, and how"),
    Repeated(
        "avg_pool1d avg_pool2d max_pool1d max_pool2d", 2, "two facts: a rule of strides, a defect"
    ),
)


class OpSet(NamedTuple):
    """A literal collection of op names."""

    place: str
    line: int
    ops: frozenset[str]
    table: bool
    """Whether they are the keys of a dictionary."""


def op_sets(root: Path, *tops: str) -> Iterator[OpSet]:
    """Every literal collection of op names under these folders, outside the op table."""
    for top in tops:
        for path in sorted((root / top).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            if not place.startswith("qir/ir/ops/") and place not in ALONE:
                yield from (OpSet(place, *found) for found in read(path))


@cache
def read(path: Path) -> tuple[tuple[int, frozenset[str], bool], ...]:
    return tuple(
        (node.lineno, names, isinstance(node, ast.Dict))  # type: ignore[attr-defined]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if len(names := literal(node)) >= FEWEST and names <= OPS.keys()
    )


def literal(node: ast.AST) -> frozenset[str]:
    """The strings of a set, tuple or list, the keys of a dictionary, or the words of a text that
    is split."""
    match node:
        case ast.Set(elts=items) | ast.Tuple(elts=items) | ast.List(elts=items):
            return strings(items)
        case ast.Dict(keys=keys):
            return strings(keys)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split")):
            return frozenset(text.split())
    return frozenset()


def strings(items: list[ast.expr] | list[ast.expr | None]) -> frozenset[str]:
    texts = [i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str)]
    return frozenset(texts) if len(texts) == len(items) else frozenset()


def repeated(root: Path) -> dict[str, list[str]]:
    """The places of each set of ops that stands twice or more, by its sorted names."""
    places = defaultdict(list)
    for found in op_sets(root, "qir", "backends", "frontends"):
        places[" ".join(sorted(found.ops))].append(f"{found.place}:{found.line}")
    return {names: held for names, held in places.items() if len(held) > 1}


def test_sets_of_ops_become_fewer() -> None:
    found = [held for held in op_sets(ROOT, "qir") if not held.table]
    listed = "\n".join(f"{held.place}:{held.line}" for held in found)
    assert len(found) <= MOST, f"{len(found)} sets of op names, {MOST} are allowed:\n{listed}"


def test_no_set_of_ops_stands_twice() -> None:
    allowed = {held.ops: held.places for held in REPEATED}
    found = {n: held for n, held in repeated(ROOT).items() if len(held) > allowed.get(n, 1)}
    assert not found, "\n".join(f"{len(h)} {names}: {', '.join(h)}" for names, h in found.items())


@pytest.mark.parametrize("held", REPEATED, ids=lambda r: r.ops)
def test_every_repetition_that_is_allowed_is_there(held: Repeated) -> None:
    assert len(repeated(ROOT).get(held.ops, ())) == held.places


def test_a_planted_set_is_found(tmp_path: Path) -> None:
    path = tmp_path / "qir" / "a.py"
    path.parent.mkdir()
    path.write_text(
        'A = {"add", "mul", "sub"}\nB = ("add", "mul")\nC = "conv2d add mul".split()\n'
        'D = ["add", "mul", "no op"]\nE = {"add": 1, "mul": 2, "sub": 3}\nF = {"add": 1, **E}\n',
        encoding="utf-8",
    )
    assert [(held.line, held.table) for held in op_sets(tmp_path, "qir")] == [
        (1, False),
        (3, False),
        (5, True),
    ]


@pytest.mark.parametrize("top", ["qir/passes", "backends/cpu", "frontends/onnx"])
@pytest.mark.parametrize(
    "text", ['{"mul", "sub", "add"}', '"sub mul add".split()', '{"add": 1, "mul": 2, "sub": 3}']
)
def test_a_planted_repetition_is_found(top: str, text: str, tmp_path: Path) -> None:
    for name, planted in (("qir/a.py", '("add", "mul", "sub")'), (f"{top}/b.py", text)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"A = {planted}\n", encoding="utf-8")
    (places,) = repeated(tmp_path).values()
    assert set(places) == {"qir/a.py:1", f"{top}/b.py:1"}

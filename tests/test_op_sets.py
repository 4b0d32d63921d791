"""Facts about ops stand in their specs: literal sets of op names elsewhere do not grow."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from qir.ir.ops import OPS

ROOT = Path(__file__).parent.parent
FEWEST = 3
"""Op names that make a set."""
MOST = 74
"""Sets that there are. Lower it where one becomes a trait; a new fact about ops is a trait."""
TWICE = 1
"""Sets that stand in two places."""


def op_sets(root: Path) -> Iterator[tuple[str, int, frozenset[str]]]:
    """Every literal collection of op names in the core outside the op table: file, line, names."""
    for path in sorted((root / "qir").rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if place.startswith("qir/ir/ops/"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = literal(node)
            if len(names) >= FEWEST and names <= set(OPS):
                yield place, node.lineno, names  # type: ignore[attr-defined]


def literal(node: ast.AST) -> frozenset[str]:
    """The strings of a set, tuple or list, or of one text that is split into words."""
    match node:
        case ast.Set(elts=items) | ast.Tuple(elts=items) | ast.List(elts=items):
            held = [i.value for i in items if isinstance(i, ast.Constant)]
            texts = [text for text in held if isinstance(text, str)]
            return frozenset(texts) if len(texts) == len(items) else frozenset()
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split")):
            return frozenset(text.split())
    return frozenset()


def test_sets_of_ops_become_fewer() -> None:
    found = list(op_sets(ROOT))
    listed = "\n".join(f"{place}:{line}" for place, line, _ in found)
    assert len(found) <= MOST, f"{len(found)} sets of op names, {MOST} are allowed:\n{listed}"
    counted = Counter(names for _, _, names in found)
    twice = [sorted(names) for names, count in counted.items() if count > 1]
    assert len(twice) <= TWICE, f"the same set twice: {twice}"


def test_a_planted_set_is_found(tmp_path: Path) -> None:
    path = tmp_path / "qir" / "a.py"
    path.parent.mkdir()
    path.write_text(
        'A = {"add", "mul", "sub"}\nB = ("add", "mul")\nC = "conv2d add mul".split()\n'
        'D = ["add", "mul", "no op"]\n',
        encoding="utf-8",
    )
    assert [line for _, line, _ in op_sets(tmp_path)] == [1, 3]

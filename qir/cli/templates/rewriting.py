"""A new pass."""

from __future__ import annotations

from collections.abc import Mapping

FILES: Mapping[str, str] = {
    "=points": """\
[project.entry-points."qir.passes"]
$name = "$module:$Class"
""",
    "=about": """\
A pass for QIR: it removes two negations in a row. That is where it starts; write your own
pattern in `$module/__init__.py`, and its replacement.""",
    "=use": """\
Then run it on a model:

```text
qir opt model.onnx -p $name -o smaller.qir
qir opt model.onnx -p $name -o smaller.qir --validate
```""",
    "$module/__init__.py": '''\
"""Removes two negations in a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.text import parse
from qir.ledger import Change
from qir.rewrite import EXACT, Match, Ops, Pass, PatternPass, Rewrite, Term, Var, pattern

qir_api = 1


@pattern
def twice(op: Ops, x: Var) -> Term:
    """The subgraph that is looked for: it is written as it looks."""
    return op.neg(op.neg(x))


def once(graph: Graph, match: Match) -> Value:
    """What stands instead: here a value that is there already."""
    return match["x"]


@dataclass(frozen=True)
class $Class(PatternPass):
    """Removes two negations in a row."""

    name = "$name"
    tolerance = EXACT  # results stay; REGROUPED where floats are summed in another order
    rewrites = (Rewrite(twice, once, Change.EXACT, "two negations are none"),)

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Graphs that it changes, for `qir plugins check`."""
        text = """
        graph main as native {
          %x = input() : 2x3xf32
          %a = neg(%x) : 2x3xf32
          %b = neg(%a) : 2x3xf32
          output(y=%b)
        }
        """
        yield cls(), parse(text)
''',
    "tests/test_$module.py": '''\
"""The pass does what it says, and keeps the contract of passes."""

from qir.ir.text import parse
from qir.ledger import Ledger
from qir.rewrite import run_passes
from qir.testing import check_pass, require

from $module import $Class


def test_two_negations_are_none() -> None:
    graph = parse(
        "graph main as native {\\n"
        "  %x = input() : 2xf32\\n"
        "  %a = neg(%x) : 2xf32\\n"
        "  %b = neg(%a) : 2xf32\\n"
        "  %y = relu(%b) : 2xf32\\n"
        "  output(y=%y)\\n"
        "}\\n"
    )
    made = run_passes(graph, [$Class()], Ledger())
    assert [node.op for node in made] == ["input", "relu", "output"]


def test_a_negation_that_somebody_else_reads_stays() -> None:
    graph = parse(
        "graph main as native {\\n"
        "  %x = input() : 2xf32\\n"
        "  %a = neg(%x) : 2xf32\\n"
        "  %b = neg(%a) : 2xf32\\n"
        "  output(a=%a, b=%b)\\n"
        "}\\n"
    )
    made = run_passes(graph, [$Class()], Ledger())
    assert str(made) == str(graph)


def test_it_keeps_the_contract_of_passes() -> None:
    require(check_pass($Class))
''',
}

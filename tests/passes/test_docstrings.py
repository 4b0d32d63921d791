"""The module of a pass opens with a sentence, then a graph before and after it, which are run.

Removes nodes whose values reach no output.

    graph main as native {
      ...
    }

By `prune{}` it becomes:

    graph main as native {
      ...
    }
"""

from __future__ import annotations

import inspect
import re
import sys

import pytest

from qir import registry
from qir.ir.text import parse, print_graph
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.passes.quantize.quantize_dynamic import QuantizeDynamic
from qir.passes.quantize.quantize_weights import QuantizeWeights, WeightStorage
from qir.rewrite import Pass, run_passes
from qir.rewrite.runner.options import parse_passes
from qir.target import target
from tests.golden.reading import generate_arrays

SAMPLED = frozenset(
    {"correct-bias", "equalize", "materialize", "measure-bias", "round-weights", "smooth"}
    | {"widen-outputs"}
)
"""Passes whose options no text states, such as statistics: their first sample is the example."""


def passes(text: str) -> list[Pass]:
    """The passes of a text; those whose options no text can state with some for examples."""
    match text:
        case "quantize-dynamic":
            return [QuantizeDynamic(target("onnxruntime").capability(), "tensor")]
        case "quantize-weights":
            return [QuantizeWeights(WeightStorage.parse("i8:4"))]
        case _:
            return list(parse_passes(text))


_GRAPH = r"((?:    .*\n|\n)+)"
_EXAMPLE = re.compile(rf"\A.+\n\n{_GRAPH}By `(.+)` it becomes:\n\n{_GRAPH}")


def module(name: str) -> str:
    """The docstring of the module or package of a pass."""
    found = registry.find("qir.passes", name)
    assert isinstance(found, type)
    assert issubclass(found, Pass)
    return inspect.getdoc(sys.modules[found.__module__]) or ""


def unwrapped(text: str) -> str:
    """A graph of a docstring, whose long plans stand on several lines."""
    return re.sub(r"\n +(?=plan {|\w+ = \")", " ", inspect.cleandoc(text))


def sample(name: str, before: str) -> Pass:
    """The first of a pass's samples, which has this graph."""
    kind = registry.find("qir.passes", name)
    one, graph = next(iter(getattr(kind, "samples", tuple)()))
    assert isinstance(one, Pass)
    assert print_graph(graph) == f"{before}\n", "the docstring shows the first sample"
    return one


@pytest.mark.parametrize("name", registry.names("qir.passes"))
def test_a_pass_opens_with_a_sentence_and_a_graph_before_and_after(name: str) -> None:
    said = module(name)
    first = said.split("\n")[0]
    assert re.match(r"[A-Z][a-z]+s .*\.", first), f"{name}: {first!r} is no sentence with a verb"
    found = _EXAMPLE.match(f"{said}\n")
    assert found is not None, f"the module of {name} shows no graph before and after"
    before, options, after = unwrapped(found[1]), found[2], unwrapped(found[3])
    assert re.match(rf"{name}\b", options)
    given, wanted = (parse(text, generate_arrays(text)) for text in (before, after))
    assert errors(given) == errors(wanted) == []
    steps = [sample(name, before)] if name in SAMPLED else passes(options)
    made = run_passes(given, steps, Ledger())
    assert print_graph(made) == print_graph(wanted) == f"{after}\n"
    assert print_graph(given) == f"{before}\n"
    assert before != after

"""Cases of recipes of IPEX, broken or of another module."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import qir
from qir.backends.ipex import IpexTarget, read_recipe, read_schemes
from qir.ir.graph import Graph
from qir.testing import sample_inputs
from tests.fuzzing.breaking import break_json, break_text
from tests.fuzzing.judging import LONGEST, Broken, Try, refused
from tests.fuzzing.texts import sound

RECORDED = Path(__file__).parents[1] / "backends/ipex/recorded/ipex_affine_quint8_minmax.json"
ODD: tuple[object, ...] = (
    *(0, 1, -1, 2, 300, 2**31, 2**60, 2**63, 0.5, -0.5, 1e308, 1e-320, float("nan"), True, None),
    *("", " ", "one", "fc", "torch.quint8", "torch.qint8", "torch.qint32", "torch.float32", "a\nb"),
    *([], {}, [0.5, 0.25], [float("inf")], [-3], [[1]], "x" * 60, [2**70], ["a"]),
)


@lru_cache(1)
def intact_recipe() -> tuple[Graph, str]:
    """Returns the graph of a module, and a right recipe for it."""
    (graph,) = IpexTarget().samples()
    statistics = qir.calibrate(graph, sample_inputs(graph, 0))
    made = qir.build(qir.quantize(graph, statistics, target="ipex-onednn"), target="ipex-onednn")
    assert isinstance(made, str)
    return graph, made


def recipe_case(attempt: Try) -> None:
    """A broken recipe is refused in one line, or gives a graph and schemes."""
    rng = attempt.rng
    graph, text = intact_recipe()
    text = text if rng.random() < 0.9 else RECORDED.read_text()
    path = attempt.folder / "recipe.json"
    if rng.random() < 0.2:
        path.write_bytes(break_text(rng, text).encode("utf-8", "surrogatepass"))
    else:
        held = json.loads(text)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            break_json(rng, held, ODD)
        path.write_text(json.dumps(held))
    most = LONGEST + len(str(path))
    refused(lambda: read_schemes(path), most)
    made = refused(lambda: read_recipe(path, graph), most)
    if made is None:
        return
    if not sound(made):
        raise Broken("what was read is no program")
    refused(lambda: qir.build(made, target="ipex-onednn"), most)

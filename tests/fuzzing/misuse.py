"""Cases of programmers' mistakes: one wrong argument in a right call of the public interface."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

import qir
from qir.calibration import Statistics
from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.verify import errors
from qir.ledger import Change, Ledger
from qir.pipeline import quantize_dynamic, quantize_weights
from qir.query.query import query, query_values
from tests.fuzzing.judging import Broken, Try, clear
from tests.fuzzing.texts import sound

NET = """graph main as native {
  %x = input() : (N)x3x6x6xf32
  %w = constant(@w) : 4x3x3x3xf32
  %y = conv2d(%x, %w) {pad = (1, 1, 1, 1)} : (N)x4x6x6xf32
  %r = relu(%y) : (N)x4x6x6xf32
  %p = global_avg_pool(%r) : (N)x4x1x1xf32
  output(p=%p)
}"""
MOST = 2_000
Arguments = Mapping[str, object]


@dataclass(frozen=True)
class Call:
    """A public function, and arguments by name that are right."""

    function: Callable[..., object]
    given: Arguments
    graph: Graph
    edits: bool = False
    """Whether the graph may change, if the call is accepted."""


@lru_cache(1)
def _net() -> Graph:
    w = np.random.default_rng(0).normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)
    return qir.parse(NET, {"w": w})


@lru_cache(1)
def _samples() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(1).normal(size=(4, 3, 6, 6)).astype(np.float32)


@lru_cache(1)
def _statistics() -> Statistics:
    return qir.calibrate(_net(), _samples())


@lru_cache(1)
def _quantized() -> Graph:
    return qir.quantize(_net(), _statistics())


def calls(graph: Graph, folder: Path) -> tuple[Call, ...]:
    """Right calls; the first four hand a file over or take one."""
    x, held = _samples(), folder / "held.qir"
    node, value = graph["r"].node, graph["y"]
    out, made = folder / "out.qir", folder / "made.onnx"
    pass_on: list[tuple[Callable[..., object], Arguments]] = [
        (qir.load, {"source": held, "frontend": None, "ledger": Ledger()}),
        (qir.save, {"graph": graph, "destination": out, "force": True, "ledger": Ledger()}),
        (
            qir.save,
            {
                "graph": graph,
                "destination": made,
                "target": "onnxruntime",
                "format": "qdq",
                "opset": 21,
                "lossy": False,
                "force": True,
            },
        ),
        (qir.verify, {"graph": graph, "target": "onnxruntime"}),
        (qir.optimize, {"graph": graph, "passes": "prune", "samples": [{"x": x}], "seconds": 9.0}),
        (qir.fold, {"graph": graph, "ledger": Ledger()}),
        (
            qir.plan,
            {
                "graph": graph,
                "target": "onnxruntime",
                "granularity": "channel",
                "rules": ["op=relu: float"],
                "dynamic": False,
                "weights": None,
                "profile": "",
                "statistics": _statistics(),
            },
        ),
        (qir.calibrate, {"graph": graph, "data": x, "limit": 3, "batch": 2, "threads": 1}),
        (
            qir.quantize,
            {
                "graph": graph,
                "statistics": _statistics(),
                "target": "onnxruntime",
                "granularity": "tensor",
                "rules": ["op=relu: float"],
                "range_rule": "minmax",
                "scales": "profile",
                "profile": "",
            },
        ),
        (quantize_dynamic, {"graph": graph, "target": "onnxruntime", "rules": []}),
        (quantize_weights, {"graph": graph, "weights": "u4:32", "target": "onnxruntime"}),
        (
            qir.run,
            {"graph": graph, "inputs": {"x": x}, "values": ["y"], "profile": "native", "isa": None},
        ),
        (qir.compile, {"graph": _quantized(), "target": "cpu", "threads": 1}),
        (qir.diff, {"a": graph, "b": _quantized()}),
        (qir.parse, {"text": NET, "arrays": {"w": x}}),
        (qir.print_graph, {"graph": graph, "origins": True}),
        (query, {"graph": graph, "expression": 'op == "relu"'}),
        (query_values, {"graph": graph, "expression": "rank == 4"}),
        (Ledger().add, {"change": Change.EXACT, "step": "s", "subject": "t", "reason": "r"}),
        (_statistics().save, {"path": folder / "s.stats"}),
        (Statistics.load, {"path": folder / "held.stats"}),
    ]
    edits: list[tuple[Callable[..., object], Arguments]] = [
        (
            graph.add,
            {"op": "relu", "operands": {"x": value}, "attrs": {}, "name": "n", "before": None},
        ),
        (graph.constant, {"data": np.ones(3, np.float32), "name": "k"}),
        (graph.set_operand, {"node": node, "slot": "x", "value": value}),
        (graph.replace, {"old": value, "new": graph["r"]}),
        (graph.remove, {"node": graph["p"].node}),
        (graph.rename, {"value": value, "name": "other"}),
        (graph.set_type, {"value": value, "type": value.type}),
        (graph.set_profile, {"node": node, "profile": "native"}),
        (graph.set_scheme, {"node": node, "slot": "x", "scheme": None}),
        (graph.set_origins, {"node": node, "origins": []}),
        (graph.fresh, {"base": "x"}),
        (graph.body, {"node": node, "name": "body"}),
        (graph.query, {"expression": "uses > 1"}),
        (graph.__getitem__, {"name": "x"}),
    ]
    return (
        *(Call(function, given, graph) for function, given in pass_on),
        *(Call(function, given, graph, True) for function, given in edits),
    )


def wrong_argument(rng: random.Random, folder: Path) -> object:
    """What a programmer may give by mistake."""
    other = _quantized().copy()
    makers: tuple[Callable[[], object], ...] = (
        lambda: rng.choice((None, True, ..., NotImplemented)),
        lambda: rng.choice((0, -1, 1, 2, -(2**70), 2**70, 10**9)),
        lambda: rng.choice((1.5, -0.0, float("nan"), float("inf"))),
        lambda: rng.choice(("", "nope", "x", "relu", "é\n", "a" * 400, "\ud800", "../nope")),
        lambda: rng.choice((b"", b"x", 1j)),
        lambda: rng.choice(([], {}, (), set(), [None], {"x": None}, {1: 2}, ["x"], [[]])),
        lambda: rng.choice((object(), object, Graph, len, lambda: 1, qir)),
        lambda: rng.choice((iter([]), range(3), frozenset("ab"))),
        lambda: np.zeros(rng.choice(((), (0,), (3,), (2, 3, 6, 6))), rng.choice(("f4", "i8", "O"))),
        lambda: rng.choice((np.float32(1), np.int64(-3), np.bool_(True))),
        lambda: {"x": np.zeros((2, 3, 6, 6), rng.choice(("f8", "u1", "U1", "c8", "O")))},
        lambda: rng.choice((folder, folder / "nope", Path("/"), Path(""), folder / "held.qir")),
        lambda: rng.choice((other, other["r"], other["r"].node, other["r"].type, Graph())),
        lambda: rng.choice((Ledger(), Statistics("m"), _statistics(), Change.EXACT)),
    )
    return rng.choice(makers)()


def misuse_case(attempt: Try) -> None:
    """A call with a wrong argument is answered clearly, and leaves what it was given as it was."""
    rng, folder = attempt.rng, attempt.folder / "misuse"
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "here" / "inside"
    work.mkdir(parents=True)
    graph = _net().copy()
    qir.save(graph, folder / "held.qir")
    _statistics().save(folder / "held.stats")
    was, before = str(graph), {path.name for path in folder.iterdir()}
    call = rng.choice(calls(graph, folder))
    wrong = rng.choice(list(call.given))
    arguments = {**call.given, wrong: wrong_argument(rng, folder)}
    if rng.random() < 0.04:
        del arguments[wrong]
    elif rng.random() < 0.04:
        arguments["nonsense"] = 1
    said = f"{getattr(call.function, '__name__', '')}({wrong}={arguments.get(wrong)!r:.80})"
    try:
        with chdir(work):  # relative names are files there, and nowhere else
            made = call.function(**arguments)
    except QirError as error:
        clear(error, MOST)
    except (TypeError, ValueError) as error:
        if wrong not in str(error) and "nonsense" not in str(error):
            raise Broken(f"{said} raises {type(error).__name__}: {error}") from error
    except Exception as error:
        raise Broken(f"{said} raises {type(error).__name__}: {error}") from error
    else:
        if isinstance(made, Graph) and made is not graph and (found := errors(made)):
            raise Broken(f"{said} gives what is no program: {found[0]}")
        if call.edits:
            _accepted(graph, said)
            return
    if str(graph) != was:
        raise Broken(f"{said} has changed the graph")
    left = {path.name for path in folder.iterdir()} - before
    for name in (name for name in left if name.endswith((".qir", ".onnx"))):
        try:
            qir.load(folder / name)
        except QirError as error:
            raise Broken(f"{said} leaves {name}: {error}") from error


def _accepted(graph: Graph, said: str) -> None:
    try:
        sound(graph)
    except Exception as error:
        raise Broken(f"{said} is accepted, and then: {type(error).__name__}: {error}") from error

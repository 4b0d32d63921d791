"""Rewriting by patterns next to onnxscript's rewriter: the same graphs, patterns and matches.

`small` is relu(relu(x)) -> relu(x), `gelu` the five ops of gelu -> one. Seconds of processor time,
the least of several runs; `none` is the same graph with nothing in it that matches. The last column
is what 2,500 matches cost in the larger graph, over what they cost in the smaller one. onnxscript
is best installed in an environment of its own: its column is a dash where it is missing.

    python -m venv peers && peers/bin/pip install onnxscript networkx safetensors
    PYTHONPATH=. peers/bin/python benchmarks/bench_rewriting.py
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

import numpy as np

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Ops, Pattern, Term, Var, near, pattern
from qir.rewrite.patterns.rewriting import Rewrite, rewrite

try:
    import onnx_ir
    from onnxscript.rewriter import pattern as peer_pattern
except ImportError:
    onnx_ir = None

SIZES = (10_000, 100_000)
MATCHES = 2_500
SECONDS = float(os.environ.get("BENCH_SECONDS", "300"))
SHAPE = (2, 3)
ROOT = np.sqrt(np.float32(2))


class Qir:
    """This project."""

    name = "qir"

    def build(self, case: str, nodes: int, matches: int) -> Graph:
        graph = Graph()
        kind = TensorType(SHAPE, F32)
        x = graph.add("input", types=[kind], name="x").result
        weight, half, one, root = (
            graph.constant(Array.of(np.array(v, np.float32))) for v in (1.5, 0.5, 1.0, ROOT)
        )

        def unary(op: str, value: Value) -> Value:
            return graph.add(op, {"x": value}).result

        def binary(op: str, a: Value, b: Value) -> Value:
            return graph.add(op, {"a": a, "b": b}).result

        for i in filler(case, nodes, matches):
            if i < 0:
                x = binary("add", unary("tanh", x), weight)
            elif case == "small":
                x = unary("relu", unary("relu", x))
            else:
                e = unary("erf", binary("div", x, root))
                x = binary("mul", binary("mul", x, half), binary("add", e, one))
        graph.add("output", {"y": x})
        return graph

    def rewrite(self, case: str, graph: Graph) -> int:
        to = "relu" if case == "small" else "gelu"

        def replace(graph: Graph, m: Match) -> Value:
            return graph.add(to, {"x": m["x"]}).result

        return rewrite(graph, [Rewrite(PATTERNS[case], replace)], Ledger(), "bench")


@pattern
def small(op: Ops, x: Var) -> Term:
    return op.relu(op.relu(x))


@pattern
def gelu(op: Ops, x: Var) -> Term:
    return op.mul(op.mul(x, 0.5), op.add(op.erf(op.div(x, near(2**0.5))), 1.0))


PATTERNS: dict[str, Pattern] = {"small": small, "gelu": gelu}


class Onnxscript:
    """onnxscript's rewriter over onnx-ir."""

    name = "onnxscript"

    def build(self, case: str, nodes: int, matches: int) -> object:
        ir = onnx_ir
        shape, kind = ir.Shape(SHAPE), ir.TensorType(ir.DataType.FLOAT)
        x = ir.Value(name="x", shape=shape, type=kind)
        nodes_added: list[object] = []

        def add(op: str, *inputs: object) -> object:
            node = ir.node(op, inputs)
            nodes_added.append(node)
            (output,) = node.outputs
            output.shape, output.type = shape, kind
            output.name = f"v{len(nodes_added)}"
            return output

        numbers = []
        for i, number in enumerate((1.5, 0.5, 1.0, ROOT)):
            data = ir.tensor(np.array(number, np.float32), name=f"c{i}")
            value = ir.Value(name=f"c{i}", shape=ir.Shape(()), type=kind, const_value=data)
            numbers.append(value)
        weight, half, one, root = numbers
        first = x
        for i in filler(case, nodes, matches):
            if i < 0:
                x = add("Add", add("Tanh", x), weight)
            elif case == "small":
                x = add("Relu", add("Relu", x))
            else:
                e = add("Erf", add("Div", x, root))
                x = add("Mul", add("Mul", x, half), add("Add", e, one))
        graph = ir.Graph(
            [first],
            [x],
            nodes=nodes_added,
            initializers=numbers,
            opset_imports={"": 20},
            name="main",
        )
        return ir.Model(graph, ir_version=10)

    def rewrite(self, case: str, model: object) -> int:
        if case == "small":
            rule = peer_pattern.RewriteRule(
                lambda op, x: op.Relu(op.Relu(x)), lambda op, x: op.Relu(x)
            )
        else:
            rule = peer_pattern.RewriteRule(
                lambda op, x: op.Mul(op.Mul(x, 0.5), op.Add(op.Erf(op.Div(x, float(ROOT))), 1.0)),
                lambda op, x: op.Gelu(x),
            )
        return peer_pattern.RewriteRuleSet([rule]).apply_to_model(model)


def filler(case: str, nodes: int, matches: int) -> list[int]:
    """Returns the steps of a graph: -1 is two nodes that match nothing, others are matches."""
    size = 2 if case == "small" else 5
    filler_pairs = (nodes - size * matches) // 2
    if not matches:
        return [-1] * (nodes // 2)
    steps: list[int] = []
    for i in range(matches):
        steps.append(i)
        steps += [-1] * ((i + 1) * filler_pairs // matches - i * filler_pairs // matches)
    return steps


def seconds(run: Callable[[], object]) -> float:
    """Returns the processor time of one run."""
    gc.collect()
    # A collection in the middle would be counted to whichever side it meets.
    gc.disable()
    started = time.process_time()
    run()
    spent = time.process_time() - started
    gc.enable()
    return spent


def measured(peer: object, case: str, nodes: int, matches: int, rounds: int) -> float:
    """Returns the least processor time of rewriting a graph, which is built anew each time."""
    best = float("inf")
    for _ in range(rounds):
        graph = peer.build(case, nodes, matches)
        match_counts: list[int] = []
        best = min(best, seconds(lambda g=graph, d=match_counts: d.append(peer.rewrite(case, g))))
        assert match_counts == [matches], f"{peer.name}: {match_counts} matches, not {matches}"
    return best


def main() -> None:
    deadline = time.perf_counter() + SECONDS
    print(
        f"{'rewriting':12}{'case':>8}"
        + "".join(f"{nodes:>10,}{'none':>10}" for nodes in SIZES)
        + f"{'a match':>12}{'larger':>10}",
        flush=True,
    )
    for peer in (Qir(), Onnxscript()):
        for case in PATTERNS:
            if isinstance(peer, Onnxscript) and onnx_ir is None:
                print(f"{peer.name:12}{case:>8}" + f"{'-':>10}" * 4, flush=True)
                continue
            row: list[float] = []
            for nodes, rounds in zip(SIZES, (3, 2), strict=True):
                if time.perf_counter() > deadline:
                    break
                row += [measured(peer, case, nodes, n, rounds) for n in (MATCHES, 0)]
            cells = "".join(f"{value:10.3f}" for value in row)
            if len(row) == 4:
                costs = row[0] - row[1], row[2] - row[3]
                cells += f"{costs[1] / MATCHES * 1e6:9.0f} us{costs[1] / costs[0]:9.1f}x"
            else:
                cells += "  no time left; BENCH_SECONDS gives more"
            print(f"{peer.name:12}{case:>8}{cells}", flush=True)


if __name__ == "__main__":
    main()

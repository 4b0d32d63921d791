"""The language next to onnx-ir, torch.fx and plain networkx: the same network of ten ops a layer.

Seconds of processor time, the least of several runs, and bytes as Python counts them; a dash where
there is no such step. `order` is networkx's topological order, onnx-ir's own; `insert` is a
thousand nodes at random places; torch.fx prints Python, and verifies by its `lint`.
"""

from __future__ import annotations

import gc
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import networkx as nx
import numpy as np

from qir.ir.dtype import F32, U8
from qir.ir.graph import Graph
from qir.ir.node import Stage
from qir.ir.printer import array_table
from qir.ir.text import parse, print_graph
from qir.ir.types import Array, QuantType, TensorType
from qir.ir.verify import verify

try:
    import onnx
    import onnx_ir
except ImportError:
    onnx_ir = None
try:
    import torch
except ImportError:
    torch = None

SIZES = (10_000, 100_000)
LAYER = 10  # ops
EDITS = 1000
SECONDS = float(os.environ.get("BENCH_SECONDS", "300"))
TOGETHER = ("build", "order", "verify", "print", "parse")
STEPS = (*TOGETHER, "together", "insert", "copy", "KB a node")
KIND = TensorType((1, 8, 16, 16), F32)


def weights(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights and biases of every layer, small, and all different."""
    rng = np.random.default_rng(0)
    shape = (count // LAYER, 8)
    return (
        rng.standard_normal((*shape, 8, 1, 1)).astype(np.float32),
        rng.standard_normal(shape).astype(np.float32),
    )


class Qir:
    """This project."""

    name = "qir"

    def build(self, count: int) -> Graph:
        graph = Graph()
        x = graph.add("input", types=[KIND], name="x").result
        for i, (w, b) in enumerate(zip(*weights(count), strict=True)):
            weight = graph.constant(Array.of(w), name=f"w{i}")
            bias = graph.constant(Array.of(b), name=f"b{i}")
            quantized_type = KIND.with_element(QuantType(U8, scale=(0.01 + i * 1e-5,), zero=(128,)))
            q = graph.add("quantize", {"x": x}, types=[quantized_type]).result
            y = graph.add("dequantize", {"x": q}).result
            y = graph.add("conv2d", {"x": y, "w": weight, "bias": bias}).result
            y = graph.add("add", {"a": y, "b": x}).result
            y = graph.add("relu", {"x": y}).result
            y = graph.add("transpose", {"x": y}, {"perm": (0, 1, 3, 2)}).result
            s = graph.add("sigmoid", {"x": y}).result
            x = graph.add("mul", {"a": s, "b": y}).result
        graph.add("output", {"y": x})
        return graph

    def order(self, graph: Graph) -> object:
        return list(graph), list(nx.topological_sort(graph.nx))

    def insert(self, graph: Graph) -> object:
        rng = random.Random(0)
        for node in rng.sample([n for n in graph if n.op == "relu"], EDITS):
            x = node.operands["x"]
            graph.set_operand(node, "x", graph.add("tanh", {"x": x}, before=node).result)
        return graph

    def verify(self, graph: Graph) -> object:
        return verify(graph)

    def print(self, graph: Graph) -> str:
        return print_graph(graph)

    def parse(self, text: str, graph: Graph) -> object:
        return parse(text, {name: array.data for name, array in array_table(graph).items()})

    def copy(self, graph: Graph) -> object:
        return graph.copy()


class OnnxIr:
    """onnx-ir; its check, its text and the reading of that are onnx's own, in C++."""

    name = "onnx-ir"

    def build(self, count: int) -> object:
        ir = onnx_ir
        shape, kind = ir.Shape(KIND.shape), ir.TensorType(ir.DataType.FLOAT)
        x = ir.Value(name="x", shape=shape, type=kind)
        graph = ir.Graph([x], [], nodes=[], opset_imports={"": 20}, name="main")

        def add(op: str, *inputs: object, **attrs: object) -> object:
            node = ir.node(op, inputs, attrs)
            graph.append(node)
            (out,) = node.outputs
            out.shape, out.type = shape, kind
            return out

        for i, (w, b) in enumerate(zip(*weights(count), strict=True)):
            weight, bias = (add("Constant", value=ir.tensor(data)) for data in (w, b))
            scale = ir.tensor(np.float32(0.01 + i * 1e-5))
            q = add("QuantizeLinear", x, add("Constant", value=scale))
            y = add("DequantizeLinear", q, q.producer().inputs[1])
            y = add("Conv", y, weight, bias)
            y = add("Relu", add("Add", y, x))
            y = add("Transpose", y, perm=[0, 1, 3, 2])
            x = add("Mul", add("Sigmoid", y), y)
        graph.outputs.append(x)
        return ir.Model(graph, ir_version=10)

    def order(self, model: object) -> object:
        return model.graph.sort()

    def insert(self, model: object) -> object:
        rng = random.Random(0)
        for node in rng.sample([n for n in model.graph if n.op_type == "Relu"], EDITS):
            inserted = onnx_ir.node("Tanh", [node.inputs[0]])
            model.graph.insert_before(node, inserted)
            node.replace_input_with(0, inserted.outputs[0])
        return model

    def verify(self, model: object) -> object:
        return onnx.checker.check_model(onnx_ir.to_proto(model))

    def print(self, model: object) -> str:
        return onnx_ir.to_onnx_text(model)

    def parse(self, text: str, model: object) -> object:
        return onnx_ir.from_onnx_text(text)

    def copy(self, model: object) -> object:
        return model.clone()


class Fx:
    """torch.fx; its text is a Python function."""

    name = "torch.fx"

    def build(self, count: int) -> object:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        call = graph.call_function
        for i in range(count // LAYER):
            weight, bias = graph.get_attr(f"w{i}"), graph.get_attr(f"b{i}")
            q = call(torch.quantize_per_tensor, (x, 0.01 + i * 1e-5, 128, torch.quint8))
            y = call(torch.dequantize, (q,))
            y = call(torch.conv2d, (y, weight, bias))
            y = call(torch.relu, (call(torch.add, (y, x)),))
            y = call(torch.permute, (y, (0, 1, 3, 2)))
            x = call(torch.mul, (call(torch.sigmoid, (y,)), y))
        graph.output(x)
        return graph

    def insert(self, graph: object) -> object:
        rng = random.Random(0)
        for node in rng.sample([n for n in graph.nodes if n.target is torch.relu], EDITS):
            with graph.inserting_before(node):
                inserted = graph.call_function(torch.tanh, (node.args[0],))
            node.args = (inserted,)
        return graph

    def verify(self, graph: object) -> object:
        return graph.lint()

    def print(self, graph: object) -> str:
        return graph.python_code("self").src

    def copy(self, graph: object) -> object:
        copied = torch.fx.Graph()
        return copied.graph_copy(graph, {})


class Networkx:
    """networkx alone: vertices and edges that mean nothing."""

    name = "networkx"

    def build(self, count: int) -> object:
        graph = nx.MultiDiGraph()
        made = 0

        def add(op: str, **operands: int) -> int:
            nonlocal made
            made += 1
            graph.add_node(made, op=op)
            for slot, value in operands.items():
                graph.add_edge(value, made, key=slot)
            return made

        x = add("input")
        for _ in range(count // LAYER):
            w, b = add("constant"), add("constant")
            y = add("dequantize", x=add("quantize", x=x))
            y = add("relu", x=add("add", a=add("conv2d", x=y, w=w, bias=b), b=x))
            y = add("transpose", x=y)
            x = add("mul", a=add("sigmoid", x=y), b=y)
        return graph

    def order(self, graph: object) -> object:
        return list(nx.topological_sort(graph))

    def copy(self, graph: object) -> object:
        return graph.copy()


def seconds(run: Callable[[], object]) -> float:
    """Returns the processor time of one run."""
    gc.collect()
    started = time.process_time()
    run()
    return time.process_time() - started


def measured(peer: object, count: int) -> dict[str, float]:
    """Returns the seconds of every step of one peer, each run once."""
    seconds_by_step: dict[str, float] = {}
    built: list[object] = []
    seconds_by_step["build"] = seconds(lambda: built.append(peer.build(count)))
    (graph,) = built
    for step in ("order", "verify", "copy"):
        if hasattr(peer, step):
            seconds_by_step[step] = seconds(partial(getattr(peer, step), graph))
    if hasattr(peer, "print"):
        texts: list[str] = []
        seconds_by_step["print"] = seconds(lambda: texts.append(peer.print(graph)))
        if hasattr(peer, "parse"):
            seconds_by_step["parse"] = seconds(partial(peer.parse, texts[0], graph))
    if hasattr(peer, "insert"):
        seconds_by_step["insert"] = seconds(partial(peer.insert, graph))
    return seconds_by_step


def kilobytes(build: Callable[[int], object], count: int) -> float:
    """Returns the kilobytes of a node, with its name, types and edges."""
    gc.collect()
    tracemalloc.start()
    graph = build(count)
    gc.collect()
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del graph
    return traced / count / 1024


def least(runs: list[dict[str, float]]) -> dict[str, float]:
    """Returns the least of each step."""
    return {step: min(run[step] for run in runs) for step in runs[0]}


def cell(value: float | None) -> str:
    return f"{'-':>10}" if value is None else f"{value:10.3f}"


def groups(count: int) -> Graph:
    """Returns chains of three stages, one after another."""
    graph = Graph()
    x = graph.add("input", types=[KIND], name="x").result
    w = graph.constant(Array.of(weights(LAYER)[0][0]), name="w")
    convolution = graph.add("conv2d", {"x": x, "w": w})
    for _ in range(count):
        stages = (
            Stage("conv2d", convolution.attrs, ("x", "w")),
            Stage("add", {}, ("b",), "a"),
            Stage("relu", {}, (), "x"),
        )
        x = graph.add_chain(stages, {"x": x, "w": w, "1.b": x}, KIND).result
    graph.add("output", {"y": x})
    return graph


def outputs(count: int) -> Graph:
    """Returns one node with many results, each of them used, and another with as many operands."""
    graph = Graph()
    x = graph.add("input", types=[TensorType((count, 8), F32)], name="x").result
    parts = graph.add("split", {"x": x}, {"axis": 0, "sizes": (1,) * count}).results
    activated = {f"xs.{i}": graph.add("relu", {"x": part}).result for i, part in enumerate(parts)}
    graph.add("output", {"y": graph.add("concat", activated, {"axis": 0}).result})
    return graph


class Shape(Qir):
    """This project with a graph of an odd shape."""

    def __init__(self, name: str, build: Callable[[int], Graph]) -> None:
        self.name = name
        self.build = build

    def insert(self, graph: Graph) -> object:
        for _ in range(EDITS):
            graph.add("input", types=[KIND], before=graph.output)
        return graph


def table(title: str, counts: tuple[int, int], peers: list[object], deadline: float) -> None:
    """A row of each size for each peer, then how the larger compares with the smaller."""
    print(f"\n{title:22}{'':>8}" + "".join(f"{step:>10}" for step in STEPS), flush=True)
    small, large = counts
    for peer in peers:
        rows: list[dict[str, float]] = []
        for count, rounds in ((small, 3), (large, 1)):
            if time.perf_counter() > deadline:
                print(
                    f"{peer.name:22}{count:8}  no time left; BENCH_SECONDS gives more", flush=True
                )
                break
            row = least([measured(peer, count) for _ in range(rounds)])
            if row.keys() >= set(TOGETHER):
                row["together"] = sum(row[step] for step in TOGETHER)
            rows.append(row | {"KB a node": kilobytes(peer.build, small)})
            cells = "".join(cell(rows[-1].get(step)) for step in STEPS)
            print(f"{peer.name:22}{count:8}{cells}", flush=True)
        if len(rows) == 2:
            ratios = {s: rows[1][s] / rows[0][s] for s in rows[1] if s != "KB a node"}
            print(f"{'':22}{'ratio':>8}" + "".join(cell(ratios.get(s)) for s in STEPS), flush=True)


def main() -> None:
    """Prints the tables."""
    deadline = time.perf_counter() + 0.5 * SECONDS
    peers = [Qir(), Networkx(), Fx() if torch else None, OnnxIr() if onnx_ir else None]
    table("seconds, chain groups", (2_000, 20_000), [Shape("qir", groups)], deadline)
    table("seconds, wide nodes", (200, 2_000), [Shape("qir", outputs)], deadline)
    table("seconds, ten ops a layer", SIZES, [p for p in peers if p], deadline)


if __name__ == "__main__":
    main()

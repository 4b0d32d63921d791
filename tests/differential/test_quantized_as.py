"""A float model that is quantized as a profile's kernels take it gives the runtime's bytes."""

from __future__ import annotations

import numpy as np
import pytest

from qir import pipeline
from qir.inspect.left_float import ops_left_float, predicted_kernels
from qir.inspect.runtimes import chosen
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile
from qir.rewrite import run_passes

LITE = "tflite-2.21.xnnpack"
SEEDS = range(4)


def network(seed: int) -> Graph:
    """Layers whose data have channels last, as TensorFlow Lite has them."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> str:
        return str([round(float(v), 3) for v in rng.normal(0, 0.4, int(np.prod(shape)))])

    return parse(f"""graph main {{
  %x = input() : 2x6x6x3xf32
  %w = constant({numbers(4, 3, 3, 3)}) : 4x3x3x3xf32
  %b = constant({numbers(4)}) : 4xf32
  %v = constant({numbers(4, 4, 1, 1)}) : 4x4x1x1xf32
  %a = conv2d(%x, %w, bias=%b) {{layout = "NHWC", pad = (1, 1, 1, 1)}} : 2x6x6x4xf32
  %r = relu(%a) : 2x6x6x4xf32
  %c = conv2d(%r, %v, bias=%b) {{layout = "NHWC"}} : 2x6x6x4xf32
  %d = clip(%c) {{min = 0.0, max = 1.0}} : 2x6x6x4xf32
  %e = add(%d, %r) : 2x6x6x4xf32
  %s = sigmoid(%e) : 2x6x6x4xf32
  %m = mul(%e, %s) : 2x6x6x4xf32
  output(y=%m)
}}
""")


def alone(node: Node) -> Graph:
    """A model of one kernel."""
    graph = Graph("main")
    operands = {}
    for slot, value in node.operands.items():
        constant = value.constant
        if constant is None:
            operands[slot] = graph.add("input", types=[value.type], name=slot).result
        else:
            attrs = value.node.attrs
            operands[slot] = graph.add(
                "constant", attrs=attrs, types=[value.type], name=slot
            ).result
    if node.stages:
        made = graph.add_chain(node.stages, operands, node.result.type, name="y")
    else:
        made = graph.add(node.op, operands, node.attrs, types=[node.result.type], name="y")
    graph.add("output", {"y": made.result})
    return graph


def quantized(graph: Graph, name: str, samples: list[dict[str, np.ndarray]]) -> Graph:
    grouped = run_passes(graph, [Group(name)], Ledger())
    statistics = pipeline.calibrate(grouped, samples)
    made = pipeline.quantize(grouped, statistics, profile=name)
    return run_passes(made, [Group(name)], Ledger())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_kernels_that_were_predicted_give_the_interpreters_bytes(seed: int) -> None:
    (probe,) = chosen(["tflite.xnnpack"])
    graph = network(seed)
    rng = np.random.default_rng(seed + 100)
    samples = [{"x": rng.normal(0, 1, (2, 6, 6, 3)).astype(np.float32)} for _ in range(2)]
    made = quantized(graph, LITE, samples)
    assert not list(ops_left_float(made))
    found = [n for n in made if n.results and n.result.type.quant and n.operands]
    found = [n for n in found if n.op != "quantize"]
    assert len(found) == len(predicted_kernels(graph, profile(LITE))) == 5
    names = [v.name for n in found for v in (n.result, *n.operands.values())]
    held = pipeline.run(made, samples[0], values=dict.fromkeys(names))
    for node in found:
        one = alone(node)
        feeds = {s: held[v.name] for s, v in node.operands.items() if v.constant is None}
        given = probe.run(one, feeds)
        wanted = held[node.result.name]
        assert np.array_equal(given, wanted), f"seed {seed}: {node.name}"
        assert len(np.unique(given)) > 20, f"seed {seed}: {node.name}"

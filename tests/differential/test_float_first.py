"""Float networks grouped as a runtime will compute them, then quantized: the runtime's bytes."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import qir
from qir import pipeline
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.installed import OPTIMIZED
from tests.passes.float_networks import Activations, Grown, samples

from . import runtime
from .torch.kernels import Array, Held, Map, Product, Tally, of
from .torch.pointwise_of_torch import ACTIVATIONS, Form, made

CODED: Activations = (
    ("relu", {}),
    ("relu", {}),
    ("clip", {"min": 0.0, "max": 6.0}),
    ("leaky_relu", {"alpha": 0.125}),
)
"""What onnxruntime computes on integers, or as float32 that has one answer."""
BEHIND: Activations = (*CODED[:3], ("hard_swish", {}))
"""What oneDNN computes behind a product, to the byte."""


def quantized(graph: Graph, seed: int, name: str, target: str) -> tuple[Graph, Graph]:
    """Grouped, quantized; and grouped again, as it runs."""
    first = run_passes(graph, [Group(name)], Ledger())
    made = pipeline.quantize(first, pipeline.calibrate(first, samples(seed, 3)), target=target)
    return made, run_passes(made, [Group(name)], Ledger())


def test_onnxruntime_gives_the_bytes_of_the_kernels_that_were_predicted(tmp_path: Path) -> None:
    several = compared = 0
    for seed in range(20):
        graph = Grown(seed, CODED, plain=True).graph
        written, again = quantized(graph, seed, OPTIMIZED, "onnxruntime")
        path = tmp_path / f"{seed}.onnx"
        qir.save(written, path)
        for feeds in samples(seed + 100):
            wanted = runtime.run(onnx.load(path), feeds, optimize=True)
            found = run(again, feeds)
            for name, data in wanted.items():
                assert np.array_equal(found[name], data), f"seed {seed}, {name}"
                compared += data.size
        several += sum(bool(node.stages) for node in again)
    assert several > 10
    assert compared > 3000


def held(value: Value, data: Array) -> Held:
    quant = value.type.quant
    assert quant is not None
    scale, axis = np.asarray(quant.scales(), np.float32), quant.axis
    return Held(data, of(str(quant.storage), scale, np.asarray(quant.zeros()), axis))


def form_of(node: Node, values: dict[str, Array]) -> Form:
    """A kernel on integers and what it was given, as torch is asked for it."""
    head, *behind = node.stages or (node,)
    attrs, given = (
        head.attrs,
        {s: held(v, values[v.name]) for s, v in quantized_operands(node).items()},
    )
    quant = node.result.type.quant
    assert quant is not None
    out: Map = of(str(quant.storage), np.float32(quant.scales()), np.asarray(quant.zeros()))
    bias = node.operands.get("bias")
    tail = behind[-1] if behind and behind[-1].op != "add" else None
    pads, groups = attrs.get("pad", (0,)), attrs.get("groups", 1)
    assert isinstance(pads, tuple)
    assert isinstance(pads[0], int)
    assert isinstance(groups, int)
    case = Product(
        head.op,
        given["x"],
        given["w"],
        None if bias is None else values[bias.name],
        out,
        pad=pads[0],
        groups=groups,
        summand=given.get("1.b"),
    )
    return Form(case, next((n for n, t in ACTIVATIONS.items() if tail and t.op == tail.op), ""))


def quantized_operands(node: Node) -> dict[str, Value]:
    return {slot: value for slot, value in node.operands.items() if value.type.quant}


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
def test_kernels_of_exported_programs_give_the_bytes_that_were_predicted(
    vnni: ProcessPoolExecutor,
) -> None:
    forms: list[Form] = []
    found: list[Array] = []
    for seed in range(16):
        graph = Grown(seed, BEHIND, plain=True).graph
        _, again = quantized(graph, seed, "torch-2.13.pt2e", "cpu")
        names = [value.name for value in again.values.values()]
        values = run(again, samples(seed + 100, 1)[0], values=names)
        for node in again:
            op = node.stages[0].op if node.stages else node.op
            if op in ("conv2d", "linear") and node.result.type.quant:
                forms.append(form_of(node, values))
                found.append(values[node.result.name])
    wanted = vnni.submit(made, forms).result()
    tally = Tally()
    for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        tally.add(mine, theirs, f"kernel {number}")
    tally.exact()
    assert sum(form.case.summand is not None for form in forms) > 5
    assert len({form.tail for form in forms}) == 4
    assert len(forms) > 60

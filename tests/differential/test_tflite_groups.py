"""Layers of real data by weights of codes, grouped as TensorFlow Lite's: its recorded bytes."""

from __future__ import annotations

import numpy as np
import pytest

from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.group import Group
from qir.reference.interpreter import run
from tests.differential.one_op import graph_of
from tests.differential.test_tflite_vectors import DELEGATE, REFERENCE, VECTORS, recorded, unpadded
from tests.oracles.tflite_cases import Case

WHO = {"ref": REFERENCE, "xnnpack": DELEGATE}
SUITES = ("dynamic_linear", "dynamic_linear_i4", "dynamic_conv", "dynamic_matmul")


def by_parts(case: Case) -> Graph:
    """The case as a model has it: weights are dequantized, and the layer is one of reals."""
    graph = graph_of(case, "native")
    node = graph["y"].node
    weight = "b" if case.op == "matmul" else "w"
    codes = node.operands[weight]
    made = graph.add("dequantize", {"x": codes}, before=node).result
    graph.set_operand(node, weight, made)
    return graph


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", SUITES)
def test_layers_of_reals_are_grouped_as_the_kernels_they_are(name: str, who: str) -> None:
    for case, wanted in recorded(VECTORS / "tflite", name, who)[::5]:
        if who == "xnnpack" and unpadded(case):
            continue
        graph = by_parts(case)
        assert Group(profile=WHO[who]).run(graph, Ledger())
        assert [n.op for n in graph if n.op not in ("input", "constant", "output")] == [case.op]
        given = {slot: case.operands[slot].data for slot in case.fed}
        assert np.array_equal(run(graph, given)["y"], wanted), case.op


@pytest.mark.parametrize("name", ["mxnet-1.9", "ort-1.31", "torch-2.13.fbgemm"])
def test_what_takes_no_reals_beside_codes_is_left_as_it_is(name: str) -> None:
    case, _ = recorded(VECTORS / "tflite", "dynamic_linear", "ref")[7]
    graph = by_parts(case)
    Group(profile=name).run(graph, Ledger())
    assert [n.op for n in graph if n.op in ("dequantize", "linear")] == ["dequantize", "linear"]

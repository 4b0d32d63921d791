"""Layers of real data by weights of integers, grouped as TensorFlow Lite's: its recorded bytes."""

from __future__ import annotations

import numpy as np
import pytest

from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.reference.interpreter import run
from tests.differential.one_op import graph_of
from tests.differential.tflite.test_tflite_vectors import (
    DELEGATE,
    REFERENCE,
    VECTORS,
    recorded,
    unpadded,
)
from tests.oracles.tflite_cases import OpCase

WHO = {"ref": REFERENCE, "xnnpack": DELEGATE}
SUITES = ("dynamic_linear", "dynamic_linear_i4", "dynamic_conv", "dynamic_matmul")


def by_parts(case: OpCase) -> Graph:
    """The case as a model has it: weights are dequantized, and the layer is one of floats."""
    graph = graph_of(case, "native")
    node = graph["y"].node
    weight = "b" if case.op == "matmul" else "w"
    quantized = node.operands[weight]
    made = graph.add("dequantize", {"x": quantized}, before=node).result
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


JOINED = """graph g {{
%a = input() : 2x3x!quant.uniform<u8:f32, 0.25:3>
%b = input() : 2x3x!quant.uniform<u8:f32, {of}:3>
%c = dequantize(%a) : 2x3xf32
%d = dequantize(%b) : 2x3xf32
%e = concat(xs.0=%c, xs.1=%d) {{axis = 0}} : 4x3xf32
%y = quantize(%e) : 4x3x!quant.uniform<u8:f32, {made}:3>
output(y=%y)
}}"""


@pytest.mark.parametrize(
    ("name", "of", "made", "one"),
    [
        (REFERENCE, 0.25, 0.25, True),
        (REFERENCE, 0.5, 0.25, False),
        (REFERENCE, 0.25, 0.5, False),
        ("tf-2.21.onednn", 0.5, 0.5, True),
        ("tf-2.21.onednn", 0.5, 0.25, False),
    ],
)
def test_what_a_runtime_cannot_join_is_no_kernel_of_its(
    name: str, of: float, made: float, one: bool
) -> None:
    """TensorFlow Lite refuses other maps; TensorFlow makes a range in which all operands' lie."""
    text = JOINED.format(of=of, made=made)
    graph = parse(text if name == REFERENCE else text.replace(":3>", ">"), {})
    Group(profile=name).run(graph, Ledger())
    left = [n.op for n in graph if n.op in ("dequantize", "quantize")]
    assert left == ([] if one else ["dequantize", "dequantize", "quantize"])

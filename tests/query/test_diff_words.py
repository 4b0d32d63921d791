"""What a comparison says of numbers: which moved first, from what to what, and how far."""

import json

import numpy as np
import pytest

from qir.ir.dtype import F32, I8
from qir.ir.graph import Graph
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.query.diff import GraphChange, diff

CODES = np.arange(12, dtype=np.int8).reshape(3, 4)
SCALES = np.array([0.5, 0.0012986378, 0.25], np.float32)


def coded(kind: QuantType, quantized: np.ndarray = CODES) -> Graph:
    """A graph of one constant."""
    graph = Graph()
    value = graph.constant(Array(quantized, TensorType(quantized.shape, kind), "w"), name="w")
    graph.add("output", {"w": value})
    return graph


def only(a: Graph, b: Graph) -> GraphChange:
    """The one change there is."""
    (pair,) = diff(a, b).changed
    (change,) = pair.changes
    return change


def test_one_ulp_of_one_scale_is_told_with_its_channel_and_both_numbers() -> None:
    other = SCALES.copy()
    other[1] = np.nextafter(other[1], np.float32(1))
    change = only(coded(uniform(I8, SCALES, axis=0)), coded(uniform(I8, other, axis=0)))
    assert (change.a, change.b) == (f"[1] {SCALES[1]!s}", f"[1] {other[1]!s}")
    assert np.float32(change.a.split()[1]) != np.float32(change.b.split()[1])
    assert change.far == "1 of 3, by up to 1 ulp"
    alone = only(coded(uniform(I8, SCALES[1])), coded(uniform(I8, other[1])))
    assert np.float32(alone.b) == other[1]
    assert np.float32(alone.a) == SCALES[1]
    assert alone.far == "by 1 ulp"


def test_half_as_much_again_is_fifty_percent() -> None:
    change = only(coded(uniform(I8, np.float32(0.5))), coded(uniform(I8, np.float32(0.75))))
    assert (change.a, change.b, change.far) == ("0.5", "0.75", "by 50 %")


def test_one_zero_of_many_is_told_and_zeros_that_are_all_alike_are_one_number() -> None:
    zeros = np.array([0, 5, 0], np.int8)
    change = only(coded(uniform(I8, SCALES, axis=0)), coded(uniform(I8, SCALES, zeros, axis=0)))
    assert (change.a, change.b) == ("0", "0..5")
    assert change.far == "1 of 3, first [1]: 0 -> 5, by up to 5"
    change = only(
        coded(uniform(I8, SCALES, axis=0)), coded(uniform(I8, SCALES, np.full(3, 2), axis=0))
    )
    assert (change.a, change.b) == ("0", "2 each")


def test_the_first_code_that_moved_is_told_and_steps_are_whole_numbers() -> None:
    kind = QuantType(I8)
    quantized = CODES.copy()
    quantized[1, 2] += 1
    change = only(coded(kind), coded(kind, quantized))
    assert (change.a, change.b) == ("[1, 2] 6", "[1, 2] 7")
    assert change.far == "1 of 12, by up to 1 step"
    wide = [np.zeros(2, np.int32), np.array([0, 2147483000], np.int32)]
    a, b = Graph(), Graph()
    for graph, data in zip((a, b), wide, strict=True):
        graph.add("output", {"w": graph.constant(Array.of(data), name="w")})
    assert only(a, b).far == "1 of 2, by up to 2,147,483,000"


def test_the_first_that_differs_is_in_json() -> None:
    quantized = CODES.copy()
    quantized[2, 3] -= 4
    told = json.loads(
        json.dumps(diff(coded(QuantType(I8)), coded(QuantType(I8), quantized)).to_json())
    )
    ((change,),) = (row["changes"] for row in told["changed"])
    assert change["measure"]["first"] == {"index": [2, 3], "a": "11", "b": "7"}


def test_numbers_that_print_alike_are_told_by_their_bits() -> None:
    held = [np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001)]
    a, b = Graph(), Graph()
    for graph, data in zip((a, b), held, strict=True):
        graph.add("output", {"w": graph.constant(Array.of(data), name="w")})
    first = only(a, b).measure
    assert first is not None
    assert first.first is not None
    assert first.first.texts == ("[0] nan (7fc00000)", "[0] nan (7fc00001)")


@pytest.mark.parametrize("depth", [0, 1])
def test_arrays_among_attributes_are_told_apart(depth: int) -> None:
    graphs = []
    for last in (1.5, 2.5):
        graph = Graph()
        x = graph.add("input", types=[TensorType((1,), F32)], name="x").result
        array = Array.of(np.array([0.0, last], np.float32))
        held = (("value", array),) if depth else array
        attrs = {"framework": "onnx", "op": "Odd", "attrs": held}
        kinds = [TensorType((1,), F32)]
        y = graph.add("foreign", {"xs.0": x}, attrs, types=kinds, name="y").result
        graph.add("output", {"y": y})
        graphs.append(graph)
    change = only(*graphs)
    name = "value = " if depth else ""
    assert (change.a, change.b) == (f"{name}[1] 1.5", f"{name}[1] 2.5")

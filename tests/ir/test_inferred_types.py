"""Result types that are looked up are those that the rule gives."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from qir.errors import TypeRuleError
from qir.ir import calls
from qir.ir.dtype import F32, I64
from qir.ir.graph import Graph
from qir.ir.ops import spec
from qir.ir.types import Array, TensorType
from qir.testing import FORMS, random_graph


def test_each_node_has_the_types_that_its_rule_gives_when_it_is_asked_anew() -> None:
    for seed, form in product(range(6), FORMS):
        for _, graph in random_graph(seed, form).walk():
            for node in graph:
                if node.op not in calls._RESULT_TYPES:
                    continue
                found = calls.infer_result_types(node.op, node.operands, node.attrs, node.bodies)
                again = calls.infer_result_types(node.op, node.operands, node.attrs, node.bodies)
                asked = calls.make_call(node.op, node.operands, node.attrs, node.bodies)
                if all(v.type.quant is None for v in node.operands.values()):
                    assert found == again == spec(node.op).rule(asked), f"seed {seed}"


def test_what_hangs_on_elements_of_a_constant_is_asked_each_time() -> None:
    graph = Graph()
    x = graph.add("input", types=[TensorType((6,), F32)], name="x").result
    free = graph.add("input", types=[TensorType((2,), I64)], name="s").result

    def shaped(*sizes: int) -> object:
        target = graph.constant(np.array(sizes, np.int64))
        return graph.add("reshape", {"x": x, "shape": target}).result.type.shape

    assert shaped(2, 3) == (2, 3)
    assert shaped(3, 2) == (3, 2)
    assert graph.add("reshape", {"x": x, "shape": free}).result.type.shape == (None, None)
    assert shaped(6, 1) == (6, 1)


def test_types_that_differ_in_shape_element_or_attribute_are_told_apart() -> None:
    graph = Graph()
    x = graph.add("input", types=[TensorType((2, 3), F32)], name="x").result
    y = graph.add("input", types=[TensorType((3, 2), F32)], name="y").result
    z = graph.add("input", types=[TensorType((2, 3), I64)], name="z").result
    for value in (x, y, z):
        assert graph.add("relu", {"x": value}).result.type == value.type
    assert graph.add("transpose", {"x": x}, {"perm": (1, 0)}).result.type == y.type
    assert graph.add("transpose", {"x": x}, {"perm": (0, 1)}).result.type == x.type
    for _ in range(2):
        with pytest.raises(TypeRuleError, match="do not broadcast"):
            graph.add("add", {"a": x, "b": y})


def test_answers_that_are_kept_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MAX_CACHED_TYPES", 4)
    calls._RESULT_TYPES["relu"].clear()
    graph = Graph()
    for size in range(1, 30):
        value = graph.add("input", types=[TensorType((size,), F32)]).result
        assert graph.add("relu", {"x": value}).result.type.shape == (size,)
        assert len(calls._RESULT_TYPES["relu"]) <= 4


def test_constants_are_what_their_array_is() -> None:
    array = Array.of(np.zeros((2, 2), np.float32), "w")
    assert Graph().constant(array).type is array.type

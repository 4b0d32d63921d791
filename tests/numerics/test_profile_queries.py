"""Everybody asks a profile the same of an op: passes, certificates and the interpreter."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from qir.errors import QirError
from qir.ir.dtype import F32, I8, I32, U8
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import OPS
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import (
    NamedProfile,
    Profile,
    Query,
    choose_query,
    dequantize_query,
    quantize_query,
    query_for_node,
)
from qir.reference.interpreter import run, run_node
from qir.rewrite.fusing import match_chain
from qir.testing.op_samples import APART, feed
from tests.differential.torch.profile_in_use import named

ROOT = Path(__file__).parents[2]
SEED = 20261123
CALLS = 6
"""Of each op and granularity."""


def said(query: Query) -> tuple[object, ...]:
    storage = tuple(sorted(query.storage.items()))
    return query.op, storage, query.grain, query.bounds, query.forms, tuple(query.attrs.items())


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Query]]:
    """Every question that is put to a profile meanwhile."""
    found: list[Query] = []
    asked = Profile.resolve

    def resolve(self: Profile, query: Query) -> object:
        found.append(query)
        return asked(self, query)

    with monkeypatch.context() as patch:
        patch.setattr(Profile, "resolve", resolve)
        yield found


def random_quantized(chance: random.Random, shape: tuple[int, ...], axis: int | None) -> Array:
    """Random integers, with one scale or one for each index of an axis."""
    storage = chance.choice((U8, I8))
    rng = np.random.default_rng(chance.randrange(1 << 30))
    count = () if axis is None else (shape[axis],)
    scale = rng.uniform(0.1, 1, count).astype(np.float32)
    bounds = (-127, 127) if storage == I8 and chance.random() < 0.5 else None
    kind = uniform(storage, scale, 0, axis=axis, bounds=bounds, name="s")
    held = rng.integers(kind.low, kind.high, shape, endpoint=True)
    return Array(held.astype(storage.carrier), TensorType(shape, kind))


def quantized_call(chance: random.Random, op: str, *, several: bool) -> Node | None:
    """A random call of an op with integers in the place of its floats; None where it takes none."""
    fed = feed(chance.randrange, Graph("main"), op, [])
    if fed is None or len(fed.results) != 1:
        return None
    graph, operands = Graph("main", "native"), {}
    for slot, value in fed.operands.items():
        array = value.constant
        assert array is not None
        if value.type.dtype is F32:
            shape = array.data.shape
            axis = chance.randrange(len(shape)) if several and shape else None
            array = random_quantized(chance, shape, axis)
        operands[slot] = graph.constant(array)
    result = fed.result.type
    if result.dtype is F32:
        result = result.with_element(random_quantized(chance, (1,), None).type.element)
    try:
        return graph.add(op, operands, fed.attrs, types=[result])
    except QirError:
        return None


@pytest.mark.parametrize("several", [False, True], ids=["tensor", "channel"])
def test_the_interpreter_asks_what_passes_ask_of_every_op(
    several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, ops = 0, set()
    for op in sorted(OPS.keys() - APART):
        for seed in range(SEED, SEED + CALLS):
            node = quantized_call(random.Random(seed), op, several=several)
            if node is None:
                continue
            arrays = {s: v.constant.data for s, v in node.operands.items() if v.constant}
            with listening(monkeypatch) as found:
                try:
                    run_node(node, arrays, NamedProfile("native"))
                except (QirError, TypeError):
                    pass  # what it asked before it refused counts, too
            put = [said(query) for query in found if query.op == op]
            assert all(one == said(query_for_node(node)) for one in put), f"seed {seed}: {node}"
            looked += len(put)
            ops |= {op} if put else set()
    assert len(ops) > 60, sorted(ops)
    assert looked > 300, looked


@pytest.mark.parametrize("several", [False, True], ids=["tensor", "channel"])
def test_a_kernel_is_asked_for_before_it_is_wrapped_as_it_is_afterwards(several: bool) -> None:
    ops = set()
    for op in sorted(OPS.keys() - APART):
        for seed in range(SEED, SEED + CALLS):
            node = quantized_call(random.Random(seed), op, several=several)
            if node is None or node.result.type.quant is None:
                continue
            graph, operands = Graph("main", "native"), {}
            for slot, value in node.operands.items():
                assert value.constant is not None
                held = graph.constant(value.constant)
                coded = held.type.quant is not None
                operands[slot] = graph.add("dequantize", {"x": held}).result if coded else held
            try:
                real = graph.add(op, operands, node.attrs)
                last = graph.add("quantize", {"x": real.result}, types=[node.result.type])
            except QirError:
                continue
            match = match_chain((real,), last)
            if match is not None:
                assert said(match.query) == said(query_for_node(node)), f"seed {seed}: {node}"
                ops.add(op)
    assert len(ops) > (8 if several else 40), sorted(ops)


BUILDING = re.compile(r"(?<!\w)Query\((?!\"constant\"|\"\"\))")
"""A question that is put together by hand, other than of constants and of the defaults."""


def test_questions_are_built_in_one_place() -> None:
    files = [p for top in ("qir", "frontends", "backends") for p in (ROOT / top).rglob("*.py")]
    found = [p.relative_to(ROOT).as_posix() for p in files if BUILDING.search(p.read_text("utf-8"))]
    assert found == ["qir/profiles/profile.py"]


TYPES = {
    "tensor": uniform(U8, np.float32(0.25), 3),
    "narrow": uniform(I8, np.float32(0.25), 0, bounds=(-127, 127)),
    "channel": uniform(I8, np.array([0.25, 0.5], np.float32), np.array([3, -5]), axis=0),
    "wide": uniform(I32, np.array([0.25, 0.5], np.float32), axis=0),
}


@pytest.mark.parametrize("name", TYPES)
def test_conversions_are_asked_for_by_the_granularity_of_their_integers(name: str) -> None:
    quant = TYPES[name]
    grain = "channel" if name in ("channel", "wide") else "tensor"
    for op in ("quantize", "dequantize", "requantize"):
        assert query_for_node(converted(op, quant)).grain == grain, op
    assert said(query_for_node(converted("quantize", quant))) == said(quantize_query(quant))
    assert said(query_for_node(converted("dequantize", quant))) == said(dequantize_query(quant))
    bounds = "narrow" if name == "narrow" else "full"
    assert said(choose_query(str(quant.storage), grain, bounds)) == said(quantize_query(quant))


def converted(op: str, quant: QuantType) -> Node:
    """A conversion to integers of a type, or from them."""
    graph, kind = Graph("one", "native"), TensorType((2, 8), quant)
    given = kind.with_element(F32) if op == "quantize" else kind
    x = graph.add("input", types=[given], name="x").result
    return graph.add(op, {"x": x}, types=[kind.with_element(F32) if op == "dequantize" else kind])


@pytest.mark.parametrize("seed", range(4))
def test_constants_beside_ties_become_the_integers_that_torch_makes_of_them(seed: int) -> None:
    """Integers of constants per channel, with zero points, that `group` computes."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.01, 0.3, 8).astype(np.float32)
    zero = rng.integers(-90, 90, 8)
    steps = rng.integers(-30, 30, (8, 64)) + 0.5
    data = (steps * scale[:, None]).astype(np.float32)
    data = np.nextafter(data, data * rng.choice([0, 1, 2], data.shape).astype(np.float32))
    graph = Graph("main", named("fbgemm"))
    kind = TensorType((8, 64), uniform(I8, scale, zero, axis=0, name="s"))
    x = graph.constant(Array(data, TensorType((8, 64), F32)), name="c")
    graph.add("output", {"y": graph.add("quantize", {"x": x}, types=[kind]).result})
    wanted = torch.quantize_per_channel(
        torch.from_numpy(data),
        torch.from_numpy(scale.astype(np.float64)),
        torch.from_numpy(zero),
        0,
        torch.qint8,
    )
    plain = run(graph, {})["y"]
    Group().run(graph, Ledger())
    assert graph.outputs["y"].constant is not None
    for made in (plain, run(graph, {})["y"]):
        np.testing.assert_array_equal(made, wanted.int_repr().numpy(), f"seed {seed}")

"""One condition of a rule of onnxruntime's profile, or one field of a group, changed: a model is
grouped otherwise than onnxruntime makes of it, or it is listed with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from onnx import ModelProto

import qir
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile
from tests.differential.comparison import read
from tests.differential.runtime import optimized, producer
from tests.mutation.conditions import Asks, all_found, asks, none_found, told_apart
from tests.mutation.fields import Mutant
from tests.mutation.rows_of_onnxruntime import Array, Case, cases, write

pytestmark = pytest.mark.slow
PROFILE = "ort-1.31"
NAMES = (PROFILE,)
_REAL = ("QGemm", "MatMulIntegerToFloat")
"""Kernels on integers whose result may be real."""


def made_there(model: ModelProto, name: str) -> bool:
    """Whether a kernel on integers makes a result, in the model that onnxruntime wrote."""
    maker = producer(model, name)
    assert maker is not None
    if name.startswith("QuantizeLinear"):
        return maker.op_type != "QuantizeLinear"
    return maker.op_type in _REAL


def made_here(graph: Graph, name: str) -> bool:
    """Whether a kernel on integers is predicted to make it."""
    node = graph[name].node
    if graph[name].type.quant is not None:
        return node.op != "quantize"
    return any(value.type.quant is not None for value in node.operands.values())


@dataclass(frozen=True)
class Asked:
    """A model as QIR reads it, and which of its results kernels on integers make there."""

    case: Case
    graph: Graph
    chains: frozenset[tuple[str, ...]]
    """The ops in a row that grouping it asks about."""
    right: dict[str, bool]

    def predicted(self) -> dict[str, bool]:
        graph = self.graph.copy()
        Group(profile=PROFILE).run(graph, Ledger())
        return {name: made_here(graph, name) for name in self.right}

    def speaks(self, mutant: Mutant) -> bool:
        """Whether it could tell a change: of rows of its ops, or of what moves."""
        if "propagates" in mutant.said:
            return any(node.op == mutant.ops[0] for node in self.graph)
        return mutant.ops in self.chains


def hold(case: Case) -> tuple[Asked, Asks]:
    """A case that is right with the right profile, in kernels and, where these are all, in bytes;
    and what it asks the profile."""
    written = write(case)
    proto, feeds = written.proto(), written.feeds()
    judge, shown = optimized(proto, feeds)
    right = {name: made_there(shown, name) for name in written.asked}
    with asks(PROFILE) as told:
        graph = read(proto)
        grouped = graph.copy()
        Group(profile=PROFILE).run(grouped, Ledger())
        found = {name: made_here(grouped, name) for name in right}
        assert found == right, f"{case}: {right} there, {found} here"
        _same(case, grouped, feeds, {n: judge[n] for n in right if right[n]})
    chains = frozenset(chain for chain, _, _ in told.values() if chain)
    return Asked(case, graph, chains, right), told


def _same(case: Case, graph: Graph, feeds: dict[str, Array], judge: dict[str, Array]) -> None:
    """Holds what kernels on integers make to onnxruntime's bytes."""
    if judge:
        mine = qir.run(graph, feeds)
        for name, wanted in judge.items():
            assert np.array_equal(mine[name], wanted), f"{case}: {name}"


@cache
def all_held() -> tuple[list[Asked], Asks]:
    """Every case, and all that they ask the right profile."""
    held, told = [], Asks()
    for case in cases():
        one, said = hold(case)
        held.append(one)
        told |= said
    return held, told


def agreeing(name: str) -> Callable[[Mutant], None]:
    """Whether a changed profile still groups and claims as is right of onnxruntime."""
    assert name == PROFILE
    right, (held, told) = profile(PROFILE), all_held()

    def agrees(mutant: Mutant) -> None:
        if mutant.block != "group":
            told_apart(told, right, mutant.profile)
            return
        for number, one in enumerate(held):
            if one.speaks(mutant) and one.predicted() != one.right:
                held.insert(0, held.pop(number))
                raise AssertionError(f"{one.case}")

    return agrees


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_condition_is_found_or_listed(name: str) -> None:
    all_found(name, agreeing(name))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_is_not_found(name: str) -> None:
    none_found(name, agreeing(name))

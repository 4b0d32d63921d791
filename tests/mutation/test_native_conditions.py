"""One field of a group of QIR's own kernels changed: rows are grouped otherwise than the processor
has kernels for, or it is listed with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

import qir
from backends.cpu.lower import lower
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.group import Group
from qir.profiles import profile
from qir.rewrite.linear_layers import as_linear
from tests.differential.comparison import read
from tests.mutation.conditions import all_found, none_found
from tests.mutation.fields import Mutant
from tests.mutation.rows_of_onnxruntime import Array, Case, Written, cases_of, write
from tests.mutation.test_onnxruntime_conditions import made_here

pytestmark = pytest.mark.slow
PROFILE = "native"
NAMES = (PROFILE,)
_LINEAR = "torch-2.13.fbgemm"
"""A profile that knows linear layers and no gemm."""
ALONE = (
    *("sigmoid", "softmax", "avg_pool2d", "global_avg_pool", "concat"),
    *("relu", "clip", "pad", "max_pool2d", "reshape", "flatten", "transpose"),
)
"""Ops whose kernels bound no integers beside their own: they stand in rows by themselves."""
_LIKE = {"linear": "gemm"}
BOUNDED = ("conv2d", "matmul", "gemm", "linear", "add", "mul")


@dataclass(frozen=True)
class Held:
    """A model, and which of its results the processor's kernels make of integers."""

    case: Case
    graph: Graph
    right: Mapping[str, bool]

    def grouped(self) -> Graph:
        graph = self.graph.copy()
        Group(profile=PROFILE).run(graph, Ledger())
        return graph

    def predicted(self) -> dict[str, bool]:
        graph = self.grouped()
        return {name: made_here(graph, name) for name in self.right}


def cases() -> Iterator[Case]:
    """Of integers of eight bits, whose biases have units."""
    for op in (*ALONE, *BOUNDED):
        yield from filter(_asked, (replace(case, op=op) for case in cases_of(_LIKE.get(op, op))))
    yield from (Case("matmul", tail=tail, bias="unit") for tail in ("", "relu", "clip"))
    yield from (Case("matmul", tail=tail, bias="other_unit") for tail in ("", "relu", "clip"))
    yield Case("gemm", gain=0.5, behind="real")


def _asked(case: Case) -> bool:
    eight = {case.x, case.w, case.y} <= {"", "u8", "i8"}
    bounded = case.op in BOUNDED or not case.tail
    units = ("", "unit", "other_unit", *["u8"] * (case.op not in _LIKE))
    behind = ("", "sigmoid", *["real"] * (case.op not in _LIKE))
    # The reference computes stacked weights with a scale for each column: no kernel does.
    return (
        not case.stacked
        and eight
        and bounded
        and case.bias in units
        and case.gain == 1
        and case.behind in behind
    )


def _read(case: Case) -> tuple[Graph, Written]:
    """The model, its gemm made the layer that no ONNX operator is."""
    like = case.op == "linear" or (case.op == "matmul" and case.bias)
    written = write(replace(case, op="gemm") if like else case)
    graph = read(written.proto())
    graph.profile = PROFILE
    if case.op == "linear":
        as_linear(graph, profile(_LINEAR), Ledger())
    elif like:
        (node,) = [node for node in graph if node.op == "gemm"]
        operands = {"a": node.operands["a"], "b": node.operands["b"], "bias": node.operands["c"]}
        made = graph.add("matmul", operands, types=[node.result.type], before=node)
        graph.substitute(node, made.result)
    assert any(node.op == case.op for node in graph)
    return graph, written


def hold(case: Case) -> Held:
    """What kernels there are: by the fusing that asks no profile's groups, and by lowering."""
    graph, written = _read(case)
    fused = graph.copy()
    FuseQdq().run(fused, Ledger())
    slow = {fallback.node for fallback in lower(fused).fallbacks}
    right = {}
    for name in written.asked:
        # Integers make floats in products with gains of one alone.
        if fused[name].type.quant is None:
            right[name] = (case.op, case.gain) == ("gemm", 1) and case.bias in ("", "unit")
        else:
            right[name] = made_here(fused, name) and fused[name].node.name not in slow
    held = Held(case, graph, right)
    found = held.predicted()
    assert found == right, f"{case}: kernels make {right}, and {found} is predicted"
    _agrees(held, fused, written.feeds())
    return held


def _agrees(held: Held, fused: Graph, feeds: dict[str, Array]) -> None:
    """Holds what is grouped to the processor's kernels, to the byte, with no step by reference."""
    wanted = [name for name, kernel in held.right.items() if kernel]
    grouped = held.grouped()
    slow = {fallback.node for fallback in lower(grouped).fallbacks}
    assert not slow & {grouped[name].node.name for name in wanted}, f"{held.case}: {slow}"
    if wanted:
        made, reference = qir.compile(grouped)(**feeds), qir.run(grouped, feeds)
        theirs = qir.compile(fused)(**feeds)
        for name in wanted:
            compiled, coded = np.asarray(made[name]), grouped[name].type.quant is not None
            assert np.array_equal(compiled, reference[name]), f"{held.case}: {name}"
            if coded:
                assert np.array_equal(compiled, np.asarray(theirs[name])), f"{held.case}: {name}"


@cache
def all_held() -> list[Held]:
    """Every case, right with the right profile."""
    return [hold(case) for case in cases()]


def agreeing(name: str) -> Callable[[Mutant], None]:
    """Whether a changed profile still groups what there are kernels for."""
    assert name == PROFILE
    held = all_held()

    def agrees(mutant: Mutant) -> None:
        for one in held:
            if one.case.op == mutant.ops[0]:
                assert one.predicted() == one.right, str(one.case)

    return agrees


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_condition_is_found_or_listed(name: str) -> None:
    all_found(name, agreeing(name))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_is_not_found(name: str) -> None:
    none_found(name, agreeing(name))

"""One field of the profiles of onnxruntime and of QIR's own kernels changed: onnxruntime finds it.

It is given the cases of its probes, which are rich in ties, without its optimizer and with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

from qir.inspect.probe_cases import Case, cases
from qir.inspect.probing import Probe, chosen
from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.numerics import Profile, Query, choose, profile, query_of
from qir.numerics.fields import READS
from qir.numerics.library import replaced
from qir.passes.expand_qdq import ExpandQdq
from qir.passes.group import Group
from qir.reference.interpreter import run
from qir.reference.products import PRODUCTS
from tests.differential import test_qdq_fused as fused
from tests.differential.test_qdq_fused import real_biases_agree
from tests.mutation.fields import Mutant, survivors
from tests.mutation.indistinct import same
from tests.numerics.test_ranges import KINDS, F, ranges

pytestmark = pytest.mark.slow
BY_NETWORKS = {"requant.order = x*(w/y)", "requant.compute = f64"}
"""What whole networks tell apart: see test_profile_faults."""
Codes = NDArray[np.generic]


class Asked:
    """What onnxruntime gives for all cases of a probe."""

    def __init__(self, probe: Probe) -> None:
        self.grouped = probe.grouped
        self.known: list[tuple[Case, Graph, Codes]] = []
        for case in cases(replace(probe.forms, rounds=2)):
            graph = case.graph.copy()
            if probe.grouped:
                ExpandQdq().run(graph, Ledger())
            self.known.append((case, graph, probe.run(graph, case.feeds)))

    def agrees(self, name: str, mutant: Mutant) -> None:
        for case, graph, wanted in self.known:
            if not shows(mutant, case):
                continue
            made = graph
            if self.grouped:
                made = graph.copy()
                Group(name).run(made, Ledger())
            (found,) = run(made, case.feeds, profile=name).values()
            assert np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f"), case.told


def shows(mutant: Mutant, case: Case) -> bool:
    """Whether a change can show in a case."""
    if mutant.ops:
        return case.op in mutant.ops
    method = profile("native").resolve(query_of(case.graph["y"].node)).method
    if method is not None:
        return mutant.block in READS[method.name]
    if case.op in PRODUCTS:
        return mutant.block in ("acc", "bias", "requant")
    return case.op == mutant.block


def rebased(of: Profile, other: Profile) -> Profile:
    """A profile that stands on another one of the name of one below it."""
    if of.name == other.name:
        return other
    return of if of.base is None else replace(of, base=rebased(of.base, other))


@contextmanager
def standing_on(other: Profile, *names: str) -> Iterator[None]:
    """Profiles as they are with a changed one below them."""
    first, *rest = names
    with replaced(rebased(profile(first), other)):
        with standing_on(other, *rest) if rest else nullcontext():
            yield


@pytest.fixture(scope="module")
def plain() -> Asked:
    (probe,) = chosen(["onnxruntime.none"])
    return Asked(probe)


@cache
def numbers(kind: str, symmetric: bool) -> tuple[tuple[int, int], Codes, Codes]:
    """Bounds, and scales and zero points by onnxruntime's own function."""
    low, high = ranges(5, 400)
    least, most = get_qmin_qmax_for_qType(KINDS[kind], symmetric=symmetric)
    found = [compute_scale_zp(a, b, least, most, symmetric) for a, b in zip(low, high, strict=True)]
    scales, zeros = np.array([s for _, s in found], F), np.array([z for z, _ in found])
    return (int(least), int(most)), scales.reshape(-1), zeros.reshape(-1)


def numbers_agree() -> None:
    low, high = ranges(5, 400)
    rule = profile("ort-1.31").resolve(Query("quantize")).choose
    for kind in KINDS:
        for symmetric in (False, True):
            bounds, wanted, zeros = numbers(kind, symmetric)
            scale, zero = choose(low, high, dtype(kind), rule, bounds=bounds, symmetric=symmetric)
            assert np.array_equal(scale, wanted), kind
            assert np.array_equal(zero, zeros), kind


def test_a_changed_field_of_native_is_found_or_listed(plain: Asked) -> None:
    plain.agrees("ort-1.31.noopt", Mutant("", "", ("",), profile("native")))

    def agrees(mutant: Mutant) -> None:
        with standing_on(mutant.profile, "ort-1.31.noopt", "ort-1.31"):
            if mutant.block == "choose":
                numbers_agree()
            elif mutant.block == "bias":
                real_biases_agree()
            else:
                plain.agrees("ort-1.31.noopt", mutant)

    left = survivors(profile("native"), agrees)
    left -= BY_NETWORKS
    print("LEFT", "native", sorted(left))
    assert left == same("native")


def test_a_changed_field_of_onnxruntimes_own_is_found_or_listed() -> None:
    def agrees(mutant: Mutant) -> None:
        fused.report.cache_clear()
        fused.test_real_weights_become_the_codes_that_onnxruntime_makes_of_them()

    left = survivors(profile("ort-1.31"), agrees)
    fused.report.cache_clear()
    print("LEFT", "ort-1.31", sorted(left))
    assert left == same("ort-1.31")

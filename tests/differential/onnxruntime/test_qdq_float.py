"""QDQ models with onnxruntime's optimizations off: it computes in float, and so does QIR.

What rounds once is equal to the byte. A sum may be added up in any order: then a code may be one
off, where the exact value lies within the float error of a tie, which is proven for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from qir import pipeline
from tests.differential.comparison import read
from tests.differential.models import Model, Style, Taste, make
from tests.differential.proof import SUMS, proven
from tests.differential.runtime import cut, exposing, run
from tests.differential.spelling import Kind
from tests.installed import UNOPTIMIZED

PROFILE = UNOPTIMIZED
CHUNK = 25


def taste(seed: int) -> Taste:
    """Scales that are no powers of two: then sums round, and ties are missed by little."""
    styles: tuple[Style, ...] = ("order", "free", "order", "dyadic")
    kind: Kind = "u8" if seed % 3 else "i8"
    return Taste(kind, styles[seed % 4], gains=0.0, wraps=0.0, specials=0.0, loose=0.5)


@dataclass
class Findings:
    """What the networks showed."""

    wrong: list[str] = field(default_factory=list)
    exact: int = 0
    explained: int = 0
    compared: int = 0


def examine(model: Model, found: Findings) -> None:
    """Holds each op against onnxruntime on its own, from the integers that onnxruntime gave."""
    quantized = [n for n in model.names if n not in model.feeds]
    judge = run(exposing(model, quantized), model.feeds, optimize=False)
    given = {n: model.feeds[n] if n in model.feeds else judge[n] for n in model.names}
    for name in quantized:
        part = cut(model, {n: a for n, a in given.items() if n != name}, [name])
        mine = pipeline.run(read(part.proto), part.feeds, profile=PROFILE)[name]
        theirs = judge[name]
        found.compared += theirs.size
        ops = {n.op_type for n in part.proto.graph.node}
        where = f"seed {model.seed}, {name} by {' '.join(sorted(ops))}"
        if not ops & SUMS:
            found.exact += theirs.size
            if not np.array_equal(mine, theirs):
                found.wrong.append(f"{where}: {(mine != theirs).sum()} of {theirs.size} differ")
            continue
        found.explained += int((mine != theirs).sum())
        reasons = proven(part.proto, part.feeds, name, mine, theirs)
        found.wrong += [f"{where}: {why}" for why in reasons]


def chunk_agrees(chunk: int) -> Findings:
    found = Findings()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        examine(make(seed, taste(seed), qdq=True), found)
    assert not found.wrong, "\n".join(found.wrong[:20])
    assert found.exact
    return found


@pytest.mark.parametrize("chunk", range(4))
def test_a_difference_is_one_code_where_float_sums_reach_a_tie(chunk: int) -> None:
    found = chunk_agrees(chunk)
    assert found.explained < found.compared / 100, found.explained


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(4, 16))
def test_three_hundred_more_networks_differ_at_ties_alone(chunk: int) -> None:
    chunk_agrees(chunk)


def test_there_are_differences_to_explain() -> None:
    found = Findings()
    for seed in range(40):
        examine(make(seed, taste(seed), qdq=True), found)
    assert found.explained > 20, found.explained


def test_the_proof_does_not_explain_a_code_that_is_no_tie() -> None:
    model = make(3, Taste("u8", "free", ("conv",), layers=2, tails=0.0), qdq=True)
    name = model.names[-1]
    quantized = [n for n in model.names if n not in model.feeds]
    judge = run(exposing(model, quantized), model.feeds, optimize=False)
    given = {n: model.feeds[n] if n in model.feeds else judge[n] for n in model.names}
    part = cut(model, {n: a for n, a in given.items() if n != name}, [name])
    theirs = judge[name].astype(np.uint8)
    mine = np.where(theirs < 255, theirs + 1, theirs - 1).astype(theirs.dtype)
    assert not proven(part.proto, part.feeds, name, theirs, theirs)
    assert len(proven(part.proto, part.feeds, name, mine, theirs)) > 0.9 * theirs.size

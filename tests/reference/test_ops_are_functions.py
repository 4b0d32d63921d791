"""Every op is a function of operands and attributes: again, in another order, process and with
other threads, it gives the same bytes and leaves what it was given alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qir.ir.ops import OPS
from qir.ir.text import parse
from qir.reference.interpreter import run
from tests.reference.cases import CASES, digest, missing
from tests.reference.oracles import Array, frozen

ROOT = Path(__file__).parents[2]
THREADS = "OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS QIR_NUM_THREADS".split()


def test_every_op_has_a_case() -> None:
    assert not missing(OPS), "add a line to tests/reference/cases.py"


def test_an_op_gives_the_same_bytes_again_and_in_another_order() -> None:
    first = {op: digest(op) for op in CASES}
    order = list(CASES)
    random.Random(7).shuffle(order)
    again = {op: digest(op) for op in order}
    assert {op for op in CASES if first[op] != again[op]} == set()
    other = {op for op in CASES if digest(op, 1) != first[op]}
    assert len(other) > len(CASES) * 0.9, "what is computed hangs on what goes in"


@pytest.mark.parametrize("threads", ["1", "3"])
def test_an_op_gives_the_same_bytes_in_another_process(threads: str) -> None:
    order = sorted(CASES, reverse=threads == "3")
    environment = {**os.environ, **dict.fromkeys(THREADS, threads), "PYTHONHASHSEED": threads}
    run = subprocess.run(
        [sys.executable, "-m", "tests.reference.cases", *order],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(run.stdout)
    assert {op for op in CASES if theirs[op] != digest(op)} == set()


@pytest.mark.parametrize("op", CASES)
def test_an_op_leaves_its_operands_alone(op: str) -> None:
    case = CASES[op]
    arrays = case.arrays(3)
    before = {slot: data.copy() for slot, data in arrays.items()}
    case.compute(op, arrays)
    for slot, data in arrays.items():
        assert np.array_equal(data, before[slot]), slot
        assert not data.flags.writeable


def _widest(data: Array) -> Array:
    """float32 as float64, whose last bits show the order of sums."""
    return frozen(data.astype(np.float64)) if data.dtype == np.float32 else data


def _laid_out(data: Array, form: str) -> Array:
    """The same elements, otherwise in memory."""
    if form == "columns":
        out = np.array(data, order="F")
    elif form == "backwards":
        every = (slice(None, None, -1),) * data.ndim
        out = np.array(data[every], order="C")[every]
    else:
        wide = np.zeros([2 * size for size in data.shape], data.dtype)
        out = wide[(slice(None, None, 2),) * data.ndim] if data.ndim else wide
        out[...] = data
    out.setflags(write=False)
    return out


@pytest.mark.parametrize("form", ["columns", "backwards", "gaps"])
def test_how_operands_lie_in_memory_changes_no_byte(form: str) -> None:
    different = set()
    for op, case in CASES.items():
        arrays = {s: _widest(data) for s, data in case.arrays(0).items()}
        laid = {slot: _laid_out(data, form) for slot, data in arrays.items()}
        assert all(np.array_equal(laid[s], arrays[s]) for s in arrays)
        made, again = case.compute(op, arrays), case.compute(op, laid)
        pairs = zip(made, again, strict=True)
        if any(a.tobytes() != b.tobytes() or a.shape != b.shape for a, b in pairs):
            different.add(op)
    assert different == set()


def test_a_sum_of_moved_axes_is_the_sum_of_moved_elements() -> None:
    data = np.random.default_rng(3).standard_normal((37, 211))
    text = (
        "graph m as native {{\n%x = input() : {}xf64\n{}%s = reduce_sum({}) "
        "{{axes = (1,)}} : 211x1xf64\noutput(s=%s)\n}}"
    )
    moved = parse(text.format("37x211", "%t = transpose(%x) {perm = (1, 0)} : 211x37xf64\n", "%t"))
    given = parse(text.format("211x37", "", "%x"))
    plain = np.array(data.T, order="C")
    assert run(moved, {"x": data})["s"].tobytes() == run(given, {"x": plain})["s"].tobytes()

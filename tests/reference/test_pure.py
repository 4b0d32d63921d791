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
from tests.reference.cases import CASES, digest, missing

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

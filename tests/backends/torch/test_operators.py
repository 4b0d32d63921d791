"""Each operator that is read from PyTorch is written for it again, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest

import qir
from qir.backends.torch.session import ProgramInterface, TorchSession
from qir.errors import Refused
from qir.ir.text import parse
from qir.target import target
from tests.frontends.comparison import difference
from tests.frontends.torch.cases import Case, cases
from tests.frontends.torch.comparison import export, run_module

NEAR = 1e-5
"""Results may be off by so much of the largest one: sums are made in another order."""


UNWRITTEN = {
    "choose_qparams": "QIR knows no operator of PyTorch for it",
}
"""Cases that are read and refused when written, and why."""


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
@pytest.mark.parametrize("form", ["torchscript", "fx"])
def test_an_operator_is_written_as_what_pytorch_computes(case: Case, form: str) -> None:
    graph = qir.load(export(case.module(), case.inputs))
    if case.name in UNWRITTEN:
        with pytest.raises(Refused, match=UNWRITTEN[case.name]):
            qir.build(graph, target="pytorch-x86", format=form)
        return
    made = qir.build(graph, target="pytorch-x86", format=form)
    given = {v.name: x.numpy() for v, x in zip(graph.inputs, case.inputs, strict=True)}
    assert callable(made)
    found = TorchSession(made, "x86", ProgramInterface.of(graph))(**given).values()
    pairs = zip(map(np.asarray, found), run_module(case.module(), case.inputs), strict=True)
    assert [why for a, b in pairs if (why := difference(a, b, max(case.near, NEAR)))] == []


REFUSED = {
    "%y = hardmax(%x) : (N)x3xf32": (
        "y: hardmax cannot be written for PyTorch: QIR knows no operator"
    ),
    "%y = slice(%x) {starts = (2,), ends = (0,), axes = (0,), steps = (-1,)} : (M)x3xf32": (
        "y: slice cannot be written for PyTorch: its axis 0 has steps of -1 and no known size"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_an_op_that_pytorch_lacks_is_refused_by_name(text: str) -> None:
    graph = parse(f"graph main as native {{ %x = input() : (N)x3xf32 {text} output(y=%y) }}")
    with pytest.raises(Refused) as raised:
        qir.build(graph, target="pytorch-x86")
    assert str(raised.value).startswith(REFUSED[text])


BACKWARDS = [
    (-1, -(2**63), -1), (2**62, -(2**63), -1), (8, 1, -3), (-2, -9, -2), (5, 5, -1), (100, 2, -4)
]  # fmt: skip


@pytest.mark.parametrize(("start", "end", "step"), BACKWARDS)
def test_slices_that_go_backwards_are_numpys(start: int, end: int, step: int) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    graph = qir.parse("graph main { %x = input() : 2x12xf32  output(y=%x) }")
    attrs = {"starts": (start,), "ends": (end,), "axes": (1,), "steps": (step,)}
    graph.set_operand(graph.output, "y", graph.add("slice", {"x": graph["x"]}, attrs).result)
    (found,) = target("pytorch-x86").compile(graph)(x=x).values()
    last = None if end == -(2**63) else end
    assert np.array_equal(np.asarray(found), x[:, start:last:step])

"""Call signatures: read from exported programs, kept by the language, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_structure

import qir
from qir.errors import InputError
from qir.ir.call_signature import CallSignature
from qir.ir.graph import Graph
from qir.ir.text import parse, print_graph
from qir.ir.verify import verify
from tests.cli.command import qir as qir_command

TEXT = "(_, (_, [_]), mask=_, factor=2) -> {'logits': _, 'states': (_, [_]), 'more': None}"


class Nested(nn.Module):
    """Takes a nested state and named arguments, and gives back names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, state: Any, *, mask: Tensor, factor: int = 1) -> dict[str, Any]:
        y = self.linear(x) * mask * factor
        return {"logits": y, "states": (y + state[0], [state[1][0] * 2]), "more": None}


class Pair(NamedTuple):
    """A result with names."""

    first: Tensor
    second: Tensor


class Named(nn.Module):
    """Gives back a named tuple."""

    def forward(self, x: Tensor) -> Pair:
        return Pair(x + 1, x * 2)


def given(rows: int = 3) -> tuple[tuple[Any, ...], dict[str, Any]]:
    drawn = torch.Generator().manual_seed(rows)
    x, a, b, mask = (torch.randn(rows, 4, generator=drawn) for _ in range(4))
    return (x, (a, [b])), {"mask": mask, "factor": 2}


def nested(*, batch: bool = False) -> Graph:
    args, kwargs = given()
    sizes = None
    if batch:
        n = {0: torch.export.Dim("n")}
        sizes = {"x": n, "state": (n, [n]), "mask": n, "factor": None}
    return qir.load(torch.export.export(Nested().eval(), args, kwargs, dynamic_shapes=sizes))


def test_a_signature_is_read_printed_and_stored(tmp_path: Path) -> None:
    graph = nested()
    assert graph.output.attrs["call"] == TEXT
    assert str(CallSignature.parse(TEXT)) == TEXT
    assert parse(print_graph(graph, weights=True)) == graph
    qir.save(graph, tmp_path / "a.qir")
    assert qir.load(tmp_path / "a.qir").output.attrs["call"] == TEXT
    shown = qir_command("show", tmp_path / "a.qir").out
    said = "called as   (x, (state_0, [state_1_0]), mask=mask, factor=2) -> {'logits': mul_1, "
    assert " ".join(said.split()) in " ".join(shown.split())
    assert [f for f in verify(graph) if f.rule == "call"] == []


def test_names_of_a_tuple_are_kept_and_plain_calls_have_no_signature() -> None:
    graph = qir.load(Named(), inputs=(torch.randn(2, 3),))
    assert graph.output.attrs["call"] == "(_) -> {'first': _, 'second': _}"
    assert qir.load(nn.Linear(3, 2), inputs=(torch.randn(2, 3),)).output.attrs["call"] == ""


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("form", ["fx", "pt2", "float"])
def test_a_written_model_is_called_as_the_one_that_was_read(
    form: str, batch: bool, tmp_path: Path
) -> None:
    graph = nested(batch=batch)
    made: Any = qir.build(graph, target="pt2e", format=form)
    module = made if form == "fx" else made.module()
    args, kwargs = given(5 if batch else 3)
    found, wanted = module(*args, **kwargs), Nested()(*args, **kwargs)
    assert tree_structure(found) == tree_structure(wanted)
    pairs = zip(tree_leaves(found), tree_leaves(wanted), strict=True)
    assert all(b is None or torch.allclose(a, b, atol=1e-6) for a, b in pairs)
    if form == "pt2":
        qir.save(graph, tmp_path / "a.pt2", target="pt2e")
        again = qir.load(tmp_path / "a.pt2")
        assert again.output.attrs["call"] == TEXT
        assert [v.name for v in again.inputs] == [v.name for v in graph.inputs]
        inputs = dict(zip((v.name for v in graph.inputs), tensors(args, kwargs), strict=True))
        run = qir.target.target("pt2e").compile_file(tmp_path / "a.pt2")
        for value, theirs in zip(run(**inputs).values(), tree_leaves(wanted)[:3], strict=True):
            assert np.allclose(np.asarray(value), theirs.detach().numpy(), atol=1e-6)


def tensors(*held: Any) -> list[np.ndarray[Any, Any]]:
    return [leaf.numpy() for leaf in tree_leaves(held) if isinstance(leaf, Tensor)]


def test_quantizing_keeps_the_signature() -> None:
    graph = nested()
    names = [v.name for v in graph.inputs]
    data = dict(zip(names, tensors(*given()), strict=True))
    made = qir.quantize(graph, qir.calibrate(graph, data), target="pt2e")
    assert made.output.attrs["call"] == TEXT
    module: Any = qir.build(made, target="pt2e", format="fx")
    args, kwargs = given()
    assert list(module(*args, **kwargs)) == ["logits", "states", "more"]


def test_a_signature_that_does_not_fit_is_a_finding() -> None:
    graph = nested()
    graph.set_attrs(graph.output, call="(_) -> _")
    said = [f.message for f in verify(graph) if f.rule == "call"]
    assert said == ["its call signature has 1 inputs and 1 results; it has 4 and 3"]
    graph.set_attrs(graph.output, call="nothing")
    (found,) = [f.message for f in verify(graph) if f.rule == "call"]
    assert "is no call signature" in found


@pytest.mark.parametrize("text", ["", "_ -> _", "(_) -> f(_)", "(_, -> _", "(_) _"])
def test_what_is_no_signature_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no call signature"):
        CallSignature.parse(text)

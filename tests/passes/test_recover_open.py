"""What both of torch's exporters write of networks of fixed and of open sizes is found again."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

import qir
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.cleanup.clean_moves import CleanMoves
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.fold.fold_shapes import FoldShapes
from qir.passes.recover import Recover
from qir.reference.interpreter import run
from qir.rewrite import Pass, run_passes
from tests.passes.test_recover_exports import CASES, Module, rows

FOLD: tuple[Pass, ...] = (FoldShapes(), FoldConstants(), CleanMoves(), FoldShapes())
DYNAMO = pytest.param(
    True,
    id="dynamo",
    marks=[
        pytest.mark.long,
        pytest.mark.skipif(
            importlib.util.find_spec("onnxscript") is None,
            reason="torch exports so with onnxscript",
        ),
    ],
)
SCRIPT = pytest.param(False, id="torchscript")


class Groups(nn.Module):
    """Group norm by hand, in a row a group or with the groups as an axis."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.gamma, self.beta, self.how = rows(8), rows(8), how

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        split = (
            x.view(n, 2, c // 2, h, w) if self.how == "axes" else x.reshape(n, 2, c // 2 * h * w)
        )
        axes = (2, 3, 4) if self.how == "axes" else (-1,)
        less = split - split.mean(axes, keepdim=True)
        if self.how == "var":
            room = split.var(axes, unbiased=False, keepdim=True)
        else:
            room = (less**2).mean(axes, keepdim=True)
        made = (less / torch.sqrt(room + 1e-5)).reshape(n, c, h, w)
        return made * self.gamma.view(1, -1, 1, 1) + self.beta.view(1, -1, 1, 1)


class Excite(nn.Module):
    """Squeeze and excite of linear layers."""

    def __init__(self, pool: str, act: nn.Module, gate: nn.Module, bias: bool = True) -> None:
        super().__init__()
        self.pool, self.act, self.gate = pool, act, gate
        self.one, self.two = nn.Linear(8, 4, bias=bias), nn.Linear(4, 8, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        if self.pool == "mean":
            row = x.mean((2, 3))
        elif self.pool == "flatten":
            row = torch.flatten(f.adaptive_avg_pool2d(x, 1), 1)
        else:
            row = f.adaptive_avg_pool2d(x, 1).view(count, 8)
        gate = self.gate(self.two(self.act(self.one(row))))
        plane: Tensor = gate[:, :, None, None] if self.pool == "mean" else gate.view(count, 8, 1, 1)
        return x * (plane.expand_as(x) if self.pool == "flatten" else plane)


class Block(nn.Module):
    """The attention of a GPT; the mask is that of a buffer, of torch, or there is none."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.inside, self.outside, self.mask = nn.Linear(8, 24), nn.Linear(8, 8), mask
        self.seen: Tensor
        self.register_buffer("seen", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (
            part.view(b, t, 2, c // 2).transpose(1, 2) for part in self.inside(x).split(c, dim=2)
        )
        if self.mask == "buffer":
            scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
            scores = scores.masked_fill(self.seen[:, :, :t, :t] == 0, float("-inf"))
            made = f.softmax(scores, dim=-1) @ v
        else:
            made = f.scaled_dot_product_attention(q, k, v, is_causal=self.mask == "torch")
        joined: Tensor = self.outside(made.transpose(1, 2).contiguous().view(b, t, c))
        return joined


class Slopes(nn.Module):
    """PReLU from relu, abs and differences."""

    def __init__(self, form: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.slope, self.form = nn.Parameter(torch.rand(8, 1, 1)), form

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x, self.slope)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries and keys turned by cosines and sines that come in."""

    def half(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((q * cos + half(q) * sin, k * cos + half(k) * sin))


def rotary_of_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def deviation(x: Tensor) -> Tensor:
    room = x.var(-1, unbiased=False, keepdim=True)
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(room + 1e-5)


@dataclass(frozen=True)
class Case:
    """A network, the shapes that go in, which sizes are open, and what is to be found."""

    module: nn.Module | Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    open: tuple[Mapping[int, str], ...]
    wanted: str
    alone: bool = False
    """Whether nothing else is left."""


IMAGE, ALL = ((2, 8, 5, 5),), ({0: "n", 2: "h", 3: "w"},)
ROWS, STEPS = ((2, 6, 8),), ({0: "b", 1: "t"},)
Q = (2, 4, 6, 8)
NETS: dict[str, Case] = {
    **{
        f"group norm, {h}": Case(Groups(h), IMAGE, ALL, "group_norm", True)
        for h in ("row", "axes", "var")
    },
    "excite, mean": Case(Excite("mean", nn.ReLU(), nn.Sigmoid()), IMAGE, ALL, "fused", True),
    "excite, flatten": Case(
        Excite("flatten", nn.SiLU(), nn.Hardsigmoid()), IMAGE, ALL, "fused", True
    ),
    "excite, view": Case(
        Excite("view", nn.ReLU(), nn.Sigmoid(), bias=False), IMAGE, ALL, "fused", True
    ),
    "masked by a buffer": Case(Block("buffer"), ROWS, STEPS, "attention"),
    "causal": Case(Block("torch"), ROWS, STEPS, "attention"),
    "unmasked": Case(Block(""), ROWS, STEPS, "attention"),
    "encoder": Case(
        nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True),
        *(ROWS, STEPS, "attention"),
    ),
    "rotary": Case(
        rotary,
        (Q, Q, (2, 6, 8), (2, 6, 8)),
        ({0: "b", 2: "t"}, {0: "b", 2: "t"}, {0: "b", 1: "t"}, {0: "b", 1: "t"}),
        "rotary",
    ),
    "rotary by halves": Case(
        rotary_of_halves,
        (Q, (6, 4), (6, 4)),
        ({0: "b", 2: "t"}, {0: "t"}, {0: "t"}),
        "rotary",
        True,
    ),
    "deviation": Case(deviation, ROWS, STEPS, "layer_norm", True),
    "prelu by abs": Case(
        Slopes(lambda x, a: f.relu(x) + a * (x - x.abs()) * 0.5), IMAGE, ALL, "prelu", True
    ),
    "prelu by halves": Case(
        Slopes(lambda x, a: 0.5 * (1 + a) * x + 0.5 * (1 - a) * x.abs()), IMAGE, ALL, "prelu", True
    ),
    "prelu by what relu takes": Case(
        Slopes(lambda x, a: a * (x - f.relu(x)) + f.relu(x)), IMAGE, ALL, "prelu", True
    ),
    "prelu by two relus": Case(
        Slopes(lambda x, a: f.relu(x) - a * f.relu(-x)), IMAGE, ALL, "prelu", True
    ),
}


def _nested(module: nn.Module, free: tuple[object, ...]) -> tuple[object, ...]:
    """A module of a function takes its inputs as one list."""
    return (free,) if isinstance(module, Module) else free


def export(
    module: nn.Module,
    given: list[Tensor],
    path: Path,
    *,
    dynamo: bool,
    sizes: tuple[Mapping[int, str], ...] | None,
) -> Graph:
    names = [f"in{i}" for i in range(len(given))]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it has no form in ONNX
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            if dynamo:
                free = tuple(dict.fromkeys(s, torch.export.Dim.DYNAMIC) for s in sizes or ())
                made = torch.onnx.export(
                    module,
                    tuple(given),
                    dynamo=True,
                    dynamic_shapes=_nested(module, free) if sizes else None,
                    verbose=False,
                )
                assert made is not None
                made.save(str(path), external_data=False)
            else:
                torch.onnx.export(
                    module,
                    tuple(given),
                    str(path),
                    dynamo=False,
                    opset_version=17,
                    input_names=names,
                    dynamic_axes=dict(zip(names, sizes, strict=True)) if sizes else None,
                )
    finally:
        logging.disable(logging.NOTSET)
        torch.backends.mha.set_fastpath_enabled(fast)
    return qir.load(path)


def found(case: Case, path: Path, *, dynamo: bool, sizes: bool) -> list[str]:
    """The ops that recovering leaves, once it was seen that they compute what torch does."""
    torch.manual_seed(5)
    function = case.module
    module = (function if isinstance(function, nn.Module) else Module(function)).eval()
    given = [rows(*shape) for shape in case.shapes]
    if function is rotary:
        given[2:] = [torch.cat((table[..., :4], table[..., :4]), -1) for table in given[2:]]
    with torch.no_grad():
        wanted = module(*given).numpy()
    graph = export(module, given, path, dynamo=dynamo, sizes=case.open if sizes else None)
    after = run_passes(graph, [*FOLD, FoldConstants(), Recover(halves=True)], Ledger())
    inputs = dict(zip((v.name for v in after.inputs), (t.numpy() for t in given), strict=True))
    (made,) = run(after, inputs).values()
    np.testing.assert_allclose(np.asarray(made, np.float64), wanted, rtol=1e-4, atol=1e-5)
    return [node.op for node in after if node.op not in ("input", "constant", "output")]


@pytest.mark.parametrize("dynamo", [SCRIPT, DYNAMO])
@pytest.mark.parametrize("sizes", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", NETS)
def test_what_was_taken_apart_is_found_with_any_sizes(
    name: str, sizes: bool, dynamo: bool, tmp_path: Path
) -> None:
    case = NETS[name]
    if name == "encoder" and not dynamo:
        pytest.skip("the older exporter does not take it")
    ops = found(case, tmp_path / "m.onnx", dynamo=dynamo, sizes=sizes)
    assert case.wanted in ops
    assert "softmax" not in ops
    if case.alone:
        assert ops == [case.wanted]


@pytest.mark.parametrize("dynamo", [DYNAMO])
@pytest.mark.parametrize("name", CASES)
def test_what_the_newer_exporter_writes_is_found_too(
    name: str, dynamo: bool, tmp_path: Path
) -> None:
    module, shapes, _, wanted = CASES[name]
    case = Case(module, tuple(shapes), (), wanted[0])
    ops = found(case, tmp_path / "m.onnx", dynamo=dynamo, sizes=False)
    assert wanted[-1] in ops


def test_halves_that_nobody_promises_are_not_taken_for_equal(tmp_path: Path) -> None:
    given = [rows(*shape) for shape in NETS["rotary"].shapes]
    read = export(Module(rotary).eval(), given, tmp_path / "m.onnx", dynamo=False, sizes=None)
    assert "rotary" not in {node.op for node in run_passes(read, [Recover()], Ledger())}

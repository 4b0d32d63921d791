"""What torch's exporter takes apart is found again, and computes what torch computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

import qir
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.fold.fold_shapes import FoldShapes
from qir.passes.recover import Recover
from qir.reference.interpreter import run
from qir.rewrite import Pass, run_passes

Function = Callable[..., Tensor]


class Module(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Tensor:
        made: Tensor = self.function(*given)
        return made


class Rms(nn.Module):
    """RMS norm as language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        made: Tensor = self.weight * (x * scale)
        return made


class Excite(nn.Module):
    """Squeeze and excite as image models write it."""

    def __init__(self, act: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.act, self.gate = act, gate

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        made: Tensor = x * self.gate(self.second(self.act(self.first(mean))))
        return made


class Heads(nn.Module):
    """Attention of several heads as encoders write it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (m(x).view(2, 6, 2, 4).transpose(1, 2) for m in (self.q, self.k, self.v))
        probs = torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1)
        made: Tensor = (probs @ v).transpose(1, 2).reshape(2, 6, 8)
        return made


class Rotary(nn.Module):
    """Rotary embedding as Llama writes it: angles of one row twice."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Tensor
        self.register_buffer("steps", 1.0 / 100 ** (torch.arange(0, 4).float() / 4))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        angles = places[:, :, None].float() * self.steps
        both = torch.cat((angles, angles), -1)
        cos, sin = both.cos().unsqueeze(1), both.sin().unsqueeze(1)
        half = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * cos + half * sin


def scaled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5 + mask, -1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(mask > 0.5, float("-inf"))
    return torch.softmax(scores, -1) @ v


def neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def batch_norm(x: Tensor, w: Tensor) -> Tensor:
    mean, gain = torch.arange(8.0).view(1, 8, 1, 1), torch.arange(1.0, 9.0).view(1, 8, 1, 1)
    return (f.conv2d(x, w) - mean) * gain + 2 * mean


def rows(*shape: int) -> Tensor:
    return torch.rand(*shape) * 4 - 2


X, IMAGE, Q = (2, 8, 4, 8), (2, 8, 5, 5), (2, 4, 6, 8)
CASES: dict[str, tuple[nn.Module | Function, list[tuple[int, ...]], int, list[str]]] = {
    "gelu": (nn.GELU(), [X], 13, ["gelu"]),
    "gelu by tanh": (nn.GELU(approximate="tanh"), [X], 13, ["gelu"]),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), [X], 13, ["silu"]),
    "silu": (nn.SiLU(), [X], 13, ["silu"]),
    "hard swish": (nn.Hardswish(), [X], 13, ["hard_swish"]),
    "hard swish by relu6": (lambda x: x * f.relu6(x + 3) / 6, [X], 13, ["hard_swish"]),
    "hard sigmoid by relu6": (lambda x: f.relu6(x + 3) / 6, [X], 13, ["hard_sigmoid"]),
    "mish": (nn.Mish(), [X], 17, ["mish"]),
    "mish by parts": (lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), [X], 13, ["mish"]),
    "softplus by parts": (lambda x: torch.log(1 + torch.exp(x)), [X], 13, ["softplus"]),
    "log sigmoid": (nn.LogSigmoid(), [X], 17, ["log_sigmoid"]),
    "softsign": (nn.Softsign(), [X], 13, ["softsign"]),
    "tanh shrink": (nn.Tanhshrink(), [X], 17, ["tanh_shrink"]),
    "relu6": (nn.ReLU6(), [X], 9, ["clip"]),
    "layer norm": (nn.LayerNorm(8), [X], 13, ["layer_norm"]),
    "plain layer norm": (nn.LayerNorm((4, 8), elementwise_affine=False), [X], 13, ["layer_norm"]),
    "rms norm": (Rms(), [X], 17, ["rms_norm"]),
    "group norm": (nn.GroupNorm(2, 8), [IMAGE], 13, ["group_norm"]),
    "plain group norm": (nn.GroupNorm(4, 8, affine=False), [IMAGE], 17, ["group_norm"]),
    "normalize": (lambda x: f.normalize(x, dim=1), [X], 17, ["lp_normalize"]),
    "prelu by parts": (
        lambda x: f.relu(x) + 0.25 * (x - x.abs()) * 0.5,
        [X],
        13,
        ["leaky_relu"],
    ),
    "batch norm by parts": (batch_norm, [IMAGE, (8, 8, 1, 1)], 13, ["conv2d", "batch_norm"]),
    "squeeze and excite": (Excite(nn.ReLU(), nn.Sigmoid()), [IMAGE], 17, ["fused"]),
    "squeeze and excite, hard": (Excite(nn.Hardswish(), nn.Hardsigmoid()), [IMAGE], 17, ["fused"]),
    "attention": (scaled, [Q, Q, Q, (2, 1, 6, 6)], 17, ["attention"]),
    "masked attention": (masked, [Q, Q, Q, (2, 1, 6, 6)], 17, ["attention"]),
    "torch's own attention": (
        f.scaled_dot_product_attention,
        [Q, Q, Q, (2, 1, 6, 6)],
        17,
        ["attention"],
    ),
    "rotary by neighbours": (neighbours, [Q, (6, 4), (6, 4)], 17, ["rotary"]),
    "heads": (Heads(), [(2, 6, 8)], 17, ["attention"]),
    "rotary": (Rotary(), [Q, (2, 6)], 17, ["rotary"]),
}
OWN = frozenset({"masked attention", "heads", "rotary"})
"""What has ops of its own around the one that is looked for."""


def exported(module: nn.Module, given: list[Tensor], opset: int, path: Path) -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(given), str(path), opset_version=opset, dynamo=False)
    return qir.load(path)


@pytest.mark.parametrize("name", CASES)
def test_what_torch_exports_is_found_and_computes_what_torch_computes(
    name: str, tmp_path: Path
) -> None:
    function, shapes, opset, wanted = CASES[name]
    torch.manual_seed(len(name))
    module = function if isinstance(function, nn.Module) else Module(function)
    module = module.eval()
    given = [rows(*shape) for shape in shapes]
    read = exported(module, given, opset, tmp_path / "m.onnx")
    folded: list[Pass] = [FoldShapes(), FoldConstants(), Recover()]
    after = run_passes(read, folded, Ledger())
    found = [node.op for node in after if node.op not in ("input", "constant", "output")]
    if name in OWN:
        assert wanted[0] in found
        assert not {"softmax", "neg"} & set(found)
    else:
        assert found == wanted
    inputs = dict(zip((v.name for v in after.inputs), (t.numpy() for t in given), strict=True))
    (got,) = run(after, inputs).values()
    with torch.no_grad():
        expected = module(*given).numpy()
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=1e-4, atol=1e-5)

"""Torch's means of whole volumes, which pass through floats where channels lie last in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from qir.reference.interpreter import run
from tests.differential.torch.kernels import (
    F,
    Held,
    Tally,
    engine,
    of,
    random_integers,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named

from .draws_of_torch import KINDS
from .test_torch_elements import pytestmark as pytestmark
from .test_torch_groups import Net, kind_of
from .test_torch_means import Case, Rng, hold, nf, tied

MAP, WEIGHTS = of("u8", F(0.05), 101), of("i8", F(0.01), 0)
SIDES = ((1, 2, 2), (2, 2, 2), (2, 3, 1), (3, 4, 5), (2, 7, 9), (4, 7, 7), (6, 10, 9), (9, 16, 16))
"""Fewer elements than runs of 16 have, runs of runs, and what is left over of four."""


def volume(rng: Rng, kind: str, channels: int, sides: tuple[int, int, int]) -> Held:
    """Volumes of which each mean lies half way between two integers, or any."""
    zero = int(rng.integers(20, 200)) | 1 if kind == "u8" else int(rng.integers(-60, 60)) | 1
    count = int(np.prod(sides))
    scale = rng.choice([0.05, 0.1, 0.0371, 0.25]) if rng.random() < 0.6 else rng.uniform(0.01, 2)
    data = tied(rng, kind, zero, 2, channels, count)
    if rng.random() < 0.4:
        low = 0 if kind == "u8" else -128
        data = rng.integers(low, low + 256, data.shape).astype(data.dtype)
    return Held(data.reshape(2, channels, *sides), of(kind, np.float32(scale), zero))


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack", "onednn", "x86"])
def test_means_of_volumes_are_torchs(name: str, kind: str, *, last: bool) -> None:
    tally = Tally()
    for seed, sides in enumerate(SIDES):
        rng = np.random.default_rng(seed)
        for channels in (1, 3, 7, int(rng.integers(8, 40)), int(rng.integers(40, 110))):
            x = volume(rng, kind, channels, sides)
            with engine(name):
                made = nf.adaptive_avg_pool3d(tensor(x, channels_last=last), 1)
            case: Case = ("global_avg_pool", made, {})
            assert hold(tally, named(name), x, case, last=last) == "exact"
    tally.exact()


@dataclass
class Volumes:
    """A network that ends in the means of volumes, as torch runs it and as a graph."""

    net: Net
    q: torch.Tensor
    at: Value

    def convolution(self, rng: Rng, channels: int) -> None:
        count = self.q.shape[1]
        w = Held(rng.integers(-60, 61, (channels, count, 1, 1, 1)).astype(np.int8), WEIGHTS)
        ones, ops = [1] * 3, torch.ops.quantized
        packed = ops.conv3d_prepack(tensor(w), None, ones, [0] * 3, ones, 1)
        self.q = ops.conv3d(self.q, packed, float(MAP.scale), int(MAP.zero))
        self.note("conv3d", {"w": self.net.constant(w, "w")})

    def note(self, op: str, more: dict[str, Value] | None = None, **attrs: Attr) -> None:
        made = self.net.graph.add(op, {"x": self.at, **(more or {})}, attrs).result
        self.at = self.net.through(made, MAP)

    def mean(self) -> None:
        self.q = nf.adaptive_avg_pool3d(self.q, 1)
        self.note("global_avg_pool")

    def permuted(self, *perm: int) -> None:
        self.q = self.q.permute(perm)
        self.note("transpose", perm=perm)


def volumes(rng: Rng, way: str) -> tuple[Volumes, Held]:
    shape = (2, int(rng.integers(1, 40)), *(int(v) for v in rng.integers(1, 4, 3)))
    x, net = Held(random_integers(rng, "u8", *shape), MAP), Net("native")
    real = net.real(net.graph.add("input", types=[kind_of(shape, MAP)], name="x").result)
    made = Volumes(net, tensor(x), real)
    if way == "convolution":
        made.convolution(rng, int(rng.integers(1, 80)))
    if way == "turned":
        made.permuted(0, 4, 1, 2, 3)
    if way == "any order":
        made.permuted(0, 1, 4, 3, 2)
    made.mean()
    net.graph.add("output", {"y": made.at.node.operands["x"]})
    net.graph.prune()
    return made, x


@pytest.mark.parametrize("way", ["alone", "convolution", "turned", "any order"])
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack", "onednn", "x86"])
def test_means_of_volumes_in_networks_are_torchs_or_told(name: str, way: str) -> None:
    tally, told = Tally(), 0
    for seed in range(40):
        with engine(name):
            made, x = volumes(np.random.default_rng(seed), way)
        graph, ledger = made.net.graph, Ledger()
        Group(named(name)).run(graph, ledger)
        assert not [n for n in graph if n.op == "dequantize"]
        said = {entry.reason for entry in ledger if entry.change is Change.UNVERIFIED}
        if any("of another layout" in reason for reason in said):
            told += 1
            continue
        found = run(graph, {"x": x.data})["y"]
        tally.add(found, taken(made.q), f"seed {seed} {x.data.shape}")
    tally.exact()
    assert (told > 0) == (way == "any order")

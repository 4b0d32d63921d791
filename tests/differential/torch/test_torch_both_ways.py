"""Images and lines of one element, or one wide, which lie both ways in memory: kernels write what
they make of them with channels last, into tensors that are read with channels second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from qir.ir.dtype import I64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array as Stored
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from qir.reference.interpreter import run
from tests.differential.torch.kernels import (
    F,
    Held,
    Map,
    Tally,
    engine,
    of,
    random_integers,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named

from .test_torch_groups import Net, kind_of
from .test_torch_groups import pytestmark as here

pytestmark = here
ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")
SEEDS = 100
MAP = of("u8", F(0.05), 101)
KINDS = (
    "max",
    "max",
    "avg",
    "avg",
    "bilinear",
    "nearest",
    "nearest",
    "mean",
    "turn",
    "leaky",
    "conv",
)
func = torch.nn.functional


@dataclass
class Chain:
    """Kernels one behind the other, as torch runs them and as a graph."""

    rng: np.random.Generator
    rank: int
    net: Net = field(default_factory=lambda: Net("native"))
    torchs: list[Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=list)
    maps: list[Map] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    made: dict[str, Value] = field(default_factory=dict)
    x: Held = field(init=False)
    at: Value = field(init=False)

    def draw(self, count: int) -> Chain:
        sizes = [int(self.rng.choice([1, 1, 1, 1, 3])) for _ in range(self.rank - 2)]
        shape = (int(self.rng.integers(1, 3)), int(self.rng.choice([2, 3, 8])), *sizes)
        self.x = Held(random_integers(self.rng, "u8", *shape), MAP)
        self.at = self.net.real(
            self.net.graph.add("input", types=[kind_of(shape, MAP)], name="x").result
        )
        kinds = [k for k in KINDS if self.rank == 4 or k not in ("bilinear", "nearest")]
        for _ in range(count):
            self.step(str(self.rng.choice(kinds)))
        self.net.graph.add("output", self.made)
        self.net.graph.prune()
        return self

    def step(self, kind: str) -> None:
        sides, d = self.at.type.shape[2:], self.rank - 2
        if max(size for size in sides if isinstance(size, int)) > 12 and kind in KINDS[:7]:
            return
        if kind == "conv":
            self.convolution()
            return
        op, attrs, by = getattr(self, kind)(d)
        self.torchs.append(by)
        self.note(kind, self.net.graph.add(op, {"x": self.at}, attrs).result)

    def note(self, kind: str, value: Value) -> None:
        self.at = self.net.through(value, MAP)
        self.said.append(kind)
        self.made[f"y{len(self.made)}"] = self.at.node.operands["x"]

    def max(self, d: int) -> tuple[str, dict[str, Any], Any]:
        attrs = {"kernel": (2,) * d, "pad": (1,) * (2 * d)}
        by: Any = func.max_pool2d if d == 2 else func.max_pool1d
        return f"max_pool{d}d", attrs, lambda x: by(x, 2, 1, 1)

    def avg(self, d: int) -> tuple[str, dict[str, Any], Any]:
        attrs = {"kernel": (2,) * d, "pad": (1,) * (2 * d), "count_pad": True}
        by = func.avg_pool2d if d == 2 else func.avg_pool1d
        return f"avg_pool{d}d", attrs, lambda x: by(x, 2, 1, 1)

    def mean(self, d: int) -> tuple[str, dict[str, Any], Any]:
        by: Any = func.adaptive_avg_pool2d if d == 2 else func.adaptive_avg_pool1d
        return "global_avg_pool", {}, lambda x: by(x, 1)

    def bilinear(self, d: int) -> tuple[str, dict[str, Any], Any]:
        attrs = {"scales": (1.0,) * 2 + (2.0,) * d}
        return "resize", attrs, lambda x: func.interpolate(x, scale_factor=2, mode="bilinear")

    def nearest(self, d: int) -> tuple[str, dict[str, Any], Any]:
        halves = (1.0,) * 2 + (2.0,) * d
        attrs = {"scales": halves, "coordinates": "asymmetric", "rounding": "floor"}
        return "resize_nearest", attrs, lambda x: func.interpolate(x, scale_factor=2)

    def turn(self, d: int) -> tuple[str, dict[str, Any], Any]:
        perm = tuple(int(v) for v in self.rng.permutation(d + 2))
        return "transpose", {"perm": perm}, lambda x: x.permute(perm)

    def leaky(self, d: int) -> tuple[str, dict[str, Any], Any]:
        at = float(MAP.scale), int(MAP.zero)
        by = torch.ops.quantized.leaky_relu
        return "leaky_relu", {"alpha": 0.25}, lambda x: by(x, 0.25, False, *at)

    def convolution(self) -> None:
        d, made = self.rank - 2, int(self.rng.choice([2, 3, 8]))
        (count,) = (size for size in self.at.type.shape[1:2] if isinstance(size, int))
        w = self.rng.integers(-60, 61, (made, count, *(1,) * d)).astype(np.int8)
        held, bias = Held(w, of("i8", np.full(made, 0.01, F), 0, 0)), np.zeros(made, F)
        ops, ones, at = torch.ops.quantized, [1] * d, (float(MAP.scale), int(MAP.zero))

        def by(x: torch.Tensor) -> torch.Tensor:
            prepack = getattr(ops, f"conv{d}d_prepack")
            packed = prepack(tensor(held), torch.from_numpy(bias), ones, [0] * d, ones, 1)
            done: torch.Tensor = getattr(ops, f"conv{d}d")(x, packed, *at)
            return done

        self.torchs.append(by)
        given = {"x": self.at, "w": self.net.constant(held, "w"), "bias": self.net.plain(bias, "b")}
        self.note("conv", self.net.graph.add(f"conv{d}d", given).result)


def chain(seed: int) -> Chain:
    rng = np.random.default_rng(seed)
    return Chain(rng, 3 if rng.random() < 0.3 else 4).draw(int(rng.integers(2, 7)))


def by_torch(name: str, drawn: Chain) -> list[torch.Tensor]:
    with engine(name):
        at, made = tensor(drawn.x), []
        for step in drawn.torchs:
            at = step(at)
            made.append(at)
        return made


def grouped(graph: Graph, name: str) -> Ledger:
    ledger = Ledger()
    Group(named(name)).run(graph, ledger)
    return ledger


@pytest.mark.parametrize("name", ENGINES)
def test_chains_of_small_images_are_torchs(name: str) -> None:
    tally, moved, said = Tally(), 0, 0
    for seed in range(SEEDS):
        drawn = chain(seed)
        wanted = [taken(t) for t in by_torch(name, drawn)]
        ledger = grouped(drawn.net.graph, name)
        assert not [n for n in drawn.net.graph if n.op == "dequantize"], f"seed {seed}"
        if Change.UNVERIFIED in {entry.change for entry in ledger}:
            said += 1
            continue
        moved += any("both ways" in entry.reason for entry in ledger)
        found = run(drawn.net.graph, {"x": drawn.x.data})
        for i, (kind, codes_) in enumerate(zip(drawn.said, wanted, strict=True)):
            tally.add(found[f"y{i}"], codes_, f"seed {seed}, step {i}: {kind} of {drawn.said}")
    tally.exact()
    assert moved > SEEDS / 8
    assert said < SEEDS / 8


@pytest.mark.parametrize("ceil", [False, True], ids=["floor", "ceil"])
@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_which_pools_are_qnnpacks_own(name: str, kind: str, ceil: bool) -> None:
    """Those misplace nothing: of unsigned integers, the greatest of whole windows alone."""
    rng, kept = np.random.default_rng(3), of(kind, F(0.05), 11)
    x = Held(random_integers(rng, kind, 2, 5, 1, 1), kept)
    net = Net("native")
    real = net.real(net.graph.add("input", types=[kind_of(x.data.shape, kept)], name="x").result)
    attrs: dict[str, Any] = {"kernel": (2, 2), "pad": (1, 1, 1, 1), "ceil": ceil}
    y = net.through(net.graph.add("max_pool2d", {"x": real}, attrs).result, kept)
    net.graph.add("output", {"y": y.node.operands["x"]})
    net.graph.prune()
    with engine(name):
        wanted = taken(func.max_pool2d(tensor(x), 2, 1, 1, ceil_mode=ceil))
    ledger = grouped(net.graph, name)
    if any(n.op == "dequantize" for n in net.graph):
        pytest.fail("torch has a kernel")
    assert np.array_equal(run(net.graph, {"x": x.data})["y"], wanted)
    moved = any("both ways" in entry.reason for entry in ledger)
    assert moved == (name == "fbgemm" or ceil or kind == "i8")


@pytest.mark.parametrize("name", ENGINES)
def test_a_grouped_graph_is_grouped_once(name: str) -> None:
    for seed in range(20):
        drawn = chain(seed)
        grouped(drawn.net.graph, name)
        before = str(drawn.net.graph)
        grouped(drawn.net.graph, name)
        assert str(drawn.net.graph) == before, f"seed {seed}"


def one(kind: str, shape: tuple[int, ...], perm: tuple[int, ...], seed: int) -> Chain:
    """Integers in any order, which a test goes on from."""
    rng = np.random.default_rng(seed)
    made = Chain(rng, len(shape))
    kept = of(kind, F(0.05), 101 if kind == "u8" else -27)
    made.x = Held(random_integers(rng, kind, *shape), kept)
    made.at = made.net.real(
        made.net.graph.add("input", types=[kind_of(shape, kept)], name="x").result
    )
    if perm != tuple(range(len(shape))):
        made.torchs.append(lambda x: x.permute(perm))
        made.at = made.net.through(
            made.net.graph.add("transpose", {"x": made.at}, {"perm": perm}).result, kept
        )
    return made


def pools(d: int) -> list[tuple[str, dict[str, Any], Any]]:
    """Means of windows that reach beyond the image, with vectors and without."""
    by: Any = func.avg_pool2d if d == 2 else func.avg_pool1d
    found: list[tuple[str, dict[str, Any], Any]] = []
    for size, counted in ((2, True), (3, False), (3, True)):
        attrs = {"kernel": (size,) * d, "pad": (1,) * (2 * d), "count_pad": counted}
        found.append(
            (f"avg_pool{d}d", attrs, lambda x, n=size, c=counted: by(x, n, 1, 1, False, c))
        )
    return found


def of_images() -> list[tuple[str, dict[str, Any], Any]]:
    found: list[tuple[str, dict[str, Any], Any]] = [
        ("global_avg_pool", {}, lambda x: func.adaptive_avg_pool2d(x, 1))
    ]
    for corners in (False, True):
        for h, w in ((11, 9), (7, 16)):
            attrs = {"coordinates": "align_corners" if corners else "half_pixel"}
            found.append(
                (
                    "resize",
                    attrs | {"to": (h, w)},
                    lambda x, to=(h, w), c=corners: func.interpolate(
                        x, to, mode="bilinear", align_corners=c
                    ),
                )
            )
    return found


EACH: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((2, 37, 1, 1), (0, 1, 2, 3)),
    ((2, 5, 1, 1), (0, 1, 2, 3)),
    ((2, 3, 1), (0, 1, 2)),
    ((3, 16, 1, 1), (0, 1, 2, 3)),
    ((1, 48, 1), (0, 1, 2)),
    ((2, 17, 1), (0, 1, 2)),
    ((1, 1, 5, 4), (0, 1, 2, 3)),
    ((2, 1, 6, 7), (0, 1, 2, 3)),
    ((2, 1, 5, 19), (0, 3, 2, 1)),
    ((2, 1, 14, 37), (0, 3, 2, 1)),
    ((2, 5, 1, 19), (0, 3, 1, 2)),
)


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("name", ENGINES)
def test_what_lies_both_ways_is_computed_as_with_channels_last(name: str, kind: str) -> None:
    tally = Tally()
    for seed, (shape, perm) in enumerate(EACH * 2):
        d = len(shape) - 2
        for op, attrs, by in [*pools(d), *(of_images() if d == 2 else [])]:
            drawn = one(kind, shape, perm, seed)
            assert drawn.x.map is not None
            given = {"x": drawn.at}
            if "to" in attrs:
                sizes = (*(shape[p] for p in perm[:2]), *attrs["to"])
                held = Stored(np.array(sizes, np.int64), TensorType((4,), I64), "sizes")
                given["sizes"] = drawn.net.graph.constant(held)
            said = {k: v for k, v in attrs.items() if k != "to"}
            made = drawn.net.graph.add(op, given, said).result
            y = drawn.net.through(made, drawn.x.map)
            drawn.net.graph.add("output", {"y": y.node.operands["x"]})
            drawn.net.graph.prune()
            drawn.torchs.append(by)
            wanted = taken(by_torch(name, drawn)[-1])
            ledger = grouped(drawn.net.graph, name)
            assert not [n for n in drawn.net.graph if n.op == "dequantize"]
            assert Change.UNVERIFIED not in {entry.change for entry in ledger}
            found = run(drawn.net.graph, {"x": drawn.x.data})["y"]
            tally.add(found, wanted, f"{op} {shape} {perm} {attrs}")
    tally.exact()

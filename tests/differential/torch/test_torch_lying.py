"""Chains of torch's kernels that lie both ways, with gaps or turned: every step and every code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from qir.backends.torch.channels_last.inference import inferred_layout
from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile
from qir.reference.interpreter import run
from qir.rewrite.preparation import Preparation
from tests.differential.torch.kernels import F, Held, Tally, engine, of, random_integers, taken
from tests.differential.torch.profile_in_use import named

from .test_torch_groups import pytestmark as here
from .test_torch_lines import Both

pytestmark = here
ENGINES = ("fbgemm", "qnnpack", "onednn", "x86")
ops, nf = torch.ops.quantized, torch.nn.functional
OWN = ("fbgemm", "qnnpack")
"""Engines that ask nobody else for the processor: their integers are compared too."""
SEEDS = 60
SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    3: ((2, 9, 1), (1, 8, 1), (2, 1, 9), (2, 5, 4), (1, 16, 3)),
    4: (
        *((2, 9, 1, 1), (1, 8, 1, 1), (2, 5, 1, 6), (2, 5, 6, 1), (1, 1, 5, 4), (2, 8, 2, 2)),
        *((3, 1, 1, 1), (1, 17, 4, 3)),
    ),
    5: ((2, 7, 2, 1, 1), (1, 6, 4, 2, 2), (2, 8, 1, 1, 1), (2, 8, 1, 3, 3)),
}
KINDS: dict[int, tuple[str, ...]] = {
    2: ("relu", "leaky", "add", "cat", "turn", "put", "shape"),
    3: ("conv", "norm", "most", "mean", "whole", "parts", "cut", "left"),
    4: (
        *("conv", "norm", "most", "mean", "whole", "parts", "near", "bilinear", "groups"),
        *("each", "cut", "left", "flat", "images"),
    ),
    5: ("conv", "norm", "mean", "whole", "cut", "left"),
}
ANY = ("relu", "leaky", "sigmoid", "elu", "clip", "add", "mul", "cat", "cat", "turn", "mean_last")


class Chain(Both):
    """Draws its steps; what torch refuses is no step."""

    def draw(self, count: int) -> Chain:
        for _ in range(count):
            kinds = (*KINDS[self.x_rank], *(ANY if self.x_rank > 2 else ()))
            self.try_out(str(self.rng.choice(kinds)))
        return self

    @property
    def x_rank(self) -> int:
        return self.made[-1].dim()

    def try_out(self, kind: str) -> None:
        if self.made[-1].numel() > 1500 and kind in ("cat", "near", "bilinear", "most", "mean"):
            return
        known = len(self.made)
        before = str(self.net.graph)
        try:
            getattr(self, f"do_{kind}")()
        except RuntimeError:
            assert (len(self.made), str(self.net.graph)) == (known, before), kind

    def one(self, by: Callable[[torch.Tensor], torch.Tensor], op: str, **attrs: Attr) -> None:
        self.op(op, by(self.made[-1]), attrs)

    def do_conv(self) -> None:
        self.conv(bool(self.rng.random() < 0.4))

    def do_norm(self) -> None:
        x, at = self.made[-1], (self.scale * 2, 121)
        many = x.shape[1]
        held = [self.rng.normal(size=many).astype(F) for _ in "abc"]
        held.append(self.rng.uniform(0.1, 2, many).astype(F))
        by = getattr(ops, f"batch_norm{x.dim() - 2}d")
        made = by(x, *map(torch.from_numpy, held), 1e-5, *at)
        self.factors("batch_norm", made, ("gamma", "beta", "mean", "var"), held)

    def factors(self, op: str, made: torch.Tensor, slots: Any, held: Any, **attrs: Attr) -> None:
        given = {s: self.net.plain(v, f"{s}{len(self.made)}") for s, v in zip(slots, held)}  # noqa: B905
        slots = {"x": self.reals[-1], **given}
        self.end(made, self.net.graph.add(op, slots, attrs).result)

    def do_groups(self) -> None:
        self.normed(
            "group_norm", lambda x, w, b: ops.group_norm(x, 1, w, b, 1e-5, 0.1, 99), groups=1
        )

    def do_each(self) -> None:
        self.normed("instance_norm", lambda x, w, b: ops.instance_norm(x, w, b, 1e-5, 0.1, 99))

    def normed(self, op: str, by: Any, **attrs: Attr) -> None:
        many = self.made[-1].shape[1]
        held = [self.rng.normal(size=many).astype(F) for _ in "ab"]
        self.factors(
            op, by(self.made[-1], *map(torch.from_numpy, held)), ("gamma", "beta"), held, **attrs
        )

    def sides(self) -> tuple[int, dict[str, Attr]]:
        d = self.x_rank - 2
        return d, {"kernel": (2,) * d, "stride": (1,) * d, "pad": (1,) * 2 * d}

    def do_most(self) -> None:
        d, attrs = self.sides()
        by = getattr(nf, f"max_pool{d}d")
        self.one(lambda x: by(x, 2, 1, 1), f"max_pool{d}d", **attrs)

    def do_mean(self) -> None:
        d, attrs = self.sides()
        by = getattr(nf, f"avg_pool{d}d")
        self.one(lambda x: by(x, 2, 1, 1), f"avg_pool{d}d", **attrs, count_pad=True)

    def do_whole(self) -> None:
        by = getattr(nf, f"adaptive_avg_pool{self.x_rank - 2}d")
        self.one(lambda x: by(x, 1), "global_avg_pool")

    def do_parts(self) -> None:
        d = self.x_rank - 2
        by = getattr(nf, f"adaptive_avg_pool{d}d")
        self.one(lambda x: by(x, 2), "adaptive_avg_pool", size=(2,) * d)

    def do_near(self) -> None:
        attrs: dict[str, Attr] = {"coordinates": "asymmetric", "rounding": "floor"}
        scales = (1.0, 1.0, 2.0, 2.0)
        self.one(
            lambda x: nf.interpolate(x, scale_factor=2), "resize_nearest", scales=scales, **attrs
        )

    def do_bilinear(self) -> None:
        by = partial(nf.interpolate, scale_factor=2, mode="bilinear")
        self.one(by, "resize", scales=(1.0, 1.0, 2.0, 2.0))

    def do_relu(self) -> None:
        self.one(torch.relu, "relu")

    def do_leaky(self) -> None:
        self.one(lambda x: ops.leaky_relu(x, 0.25, False, self.scale, 99), "leaky_relu", alpha=0.25)

    def do_sigmoid(self) -> None:
        self.one(lambda x: ops.sigmoid(x, 1 / 256, 0), "sigmoid")

    def do_elu(self) -> None:
        self.elu()

    def do_clip(self) -> None:
        self.one(lambda x: torch.clamp(x, -0.5, 1.5), "clip", min=-0.5, max=1.5)

    def like(self, shape: tuple[int, ...], free: int | None = None) -> int:
        """A tensor of that shape, along one axis of any size."""
        many = [
            i
            for i, t in enumerate(self.made)
            if t.dim() == len(shape)
            and all(a == free or n == shape[a] for a, n in enumerate(t.shape))
        ]
        return int(self.rng.choice(many))

    def do_add(self) -> None:
        self.paired("add", ops.add)

    def do_mul(self) -> None:
        self.paired("mul", ops.mul)

    def paired(self, op: str, by: Any) -> None:
        at = [len(self.made) - 1, self.like(tuple(self.made[-1].shape))]
        i, j = self.rng.permutation(at)
        made = by(self.made[i], self.made[j], self.scale * 2, 121)
        self.end(made, self.net.graph.add(op, {"a": self.reals[i], "b": self.reals[j]}).result)

    def do_cat(self) -> None:
        axis = int(self.rng.choice([1, int(self.rng.integers(self.x_rank))]))
        at = [len(self.made) - 1, self.like(tuple(self.made[-1].shape), axis)]
        at = [int(i) for i in self.rng.permutation(at)]
        made = ops.cat([self.made[i] for i in at], axis, self.scale, 121)
        given = {f"xs.{n}": self.reals[i] for n, i in enumerate(at)}
        self.end(made, self.net.graph.add("concat", given, {"axis": axis}).result)

    def do_mean_last(self) -> None:
        self.mean(-1)

    def do_images(self) -> None:
        self.mean(2, 3)

    def do_turn(self) -> None:
        self.turn(*(int(a) for a in self.rng.permutation(self.x_rank)))

    def do_cut(self) -> None:
        axis = int(self.rng.integers(self.x_rank))
        size = self.made[-1].shape[axis]
        first = int(self.rng.integers(size))
        attrs: dict[str, Attr] = {"starts": (first,), "ends": (size,), "axes": (axis,)}
        self.one(
            lambda x: x[(slice(None),) * axis + (slice(first, None),)], "slice", **attrs, steps=(1,)
        )

    def do_left(self) -> None:
        ones = [axis for axis, size in enumerate(self.made[-1].shape) if size == 1]
        if ones:
            axis = int(self.rng.choice(ones))
            self.one(lambda x: x.squeeze(axis), "squeeze", axes=(axis,))

    def do_put(self) -> None:
        axis = int(self.rng.integers(self.x_rank + 1))
        self.one(lambda x: x.unsqueeze(axis), "unsqueeze", axes=(axis,))

    def do_flat(self) -> None:
        self.one(lambda x: torch.flatten(x, 1), "flatten", axis=1)

    def do_shape(self) -> None:
        shape = (*self.made[-1].shape, *(1,) * int(self.rng.integers(1, 3)))
        given = {"x": self.reals[-1], "shape": self.net.sizes(*shape)}
        self.end(self.made[-1].reshape(shape), self.net.graph.add("reshape", given).result)


def chain(seed: int, name: str) -> Chain:
    rng = np.random.default_rng(seed)
    many = SHAPES[int(rng.choice([3, 4, 4, 5]))]
    shape = many[int(rng.integers(len(many)))]
    with engine(name):
        drawn = Chain(rng, Held(random_integers(rng, "u8", *shape), of("u8", F(0.05), 121)))
        drawn.draw(int(rng.integers(2, 8)))
    ends: dict[str, Value] = {f"y{i}": v.node.operands["x"] for i, v in enumerate(drawn.reals[1:])}
    drawn.net.graph.add("output", ends)
    drawn.net.graph.prune()
    return drawn


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENGINES)
def test_chains_lie_and_compute_as_torchs(name: str) -> None:
    tally, said, whole = Tally(), 0, 0
    group, rules = Group(named(name)), profile(named(name))
    for seed in range(SEEDS):
        drawn = chain(seed, name)
        graph, wrap = drawn.net.graph.copy(), partial(group._wrap, "native")
        given = Preparation(rules, Ledger(), "group", wrap)
        order = inferred_layout(graph, given, "channels_last_moved_clips" in rules.prepare)
        out = next(n for n in graph if n.op == "output")
        for i, made in enumerate(drawn.made[1:]):
            where = f"seed {seed}, step {i} {out.operands[f'y{i}'].node}"
            assert order.strides[out.operands[f"y{i}"]] == tuple(made.stride()), where
        if name not in OWN:
            continue
        ledger = Ledger()
        group.run(drawn.net.graph, ledger)
        if [n for n in drawn.net.graph if n.op == "dequantize"]:
            continue
        whole += 1
        if Change.UNVERIFIED in {entry.change for entry in ledger}:
            said += 1
            continue
        ours = run(drawn.net.graph, {"x": drawn.x.data})
        for i, made in enumerate(drawn.made[1:]):
            tally.add(ours[f"y{i}"], taken(made), f"seed {seed}, step {i}")
    if name not in OWN:
        return
    tally.exact()
    assert whole > SEEDS / 2
    assert said < whole / 3


@pytest.mark.parametrize("name", OWN)
def test_rows_one_high_and_wide_are_joined_through_floats(name: str) -> None:
    """Behind a convolution, at half the scale, where many integers lie half way."""
    tally, shapes = Tally(), ((2, 5, 1, 6), (2, 5, 6, 1), (1, 4, 1, 1), (2, 5, 3, 4))
    for seed in range(24):
        rng, axis = np.random.default_rng(seed), 1 + seed // 4 % 3
        x = Held(random_integers(rng, "u8", *shapes[seed % 4]), of("u8", F(0.05), 121))
        with engine(name):
            drawn = Chain(rng, x)
            drawn.conv(False)
            y, given = drawn.made[-1], {f"xs.{i}": drawn.reals[-1] for i in range(2)}
            made = ops.cat([y, y], axis, 2 * float(y.q_scale()), 69)
            drawn.end(made, drawn.net.graph.add("concat", given, {"axis": axis}).result)
        drawn.net.graph.add("output", {"y": drawn.reals[-1].node.operands["x"]})
        drawn.net.graph.prune()
        ledger = Ledger()
        Group(named(name)).run(drawn.net.graph, ledger)
        assert Change.UNVERIFIED not in {entry.change for entry in ledger}
        tally.add(run(drawn.net.graph, {"x": x.data})["y"], taken(made), f"seed {seed}")
    tally.exact()


@pytest.mark.parametrize("kind", ["each", "groups"])
@pytest.mark.parametrize("name", OWN)
def test_norms_of_volumes_that_lie_both_ways_misplace_nothing(name: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    x = Held(random_integers(rng, "u8", 2, 5, 1, 3, 1), of("u8", F(0.05), 121))
    with engine(name):
        drawn = Chain(rng, x)
        drawn.conv(False)
        drawn.turn(0, 1, 4, 3, 2)
        getattr(drawn, f"do_{kind}")()
    drawn.net.graph.add("output", {"y": drawn.reals[-1].node.operands["x"]})
    drawn.net.graph.prune()
    Group(named(name)).run(drawn.net.graph, Ledger())
    made = taken(drawn.made[-1]).astype(int)
    assert np.abs(run(drawn.net.graph, {"x": x.data})["y"].astype(int) - made).max() <= 1

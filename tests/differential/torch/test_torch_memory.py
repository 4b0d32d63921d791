"""Networks whose tensors lie with channels last from their first convolution on: every code."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from qir.ir.dtype import I64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.parser import parse
from qir.ir.types import Array as Stored
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from qir.passes.layout import Layout
from qir.passes.layout.regions import PermutedRegions
from qir.reference.interpreter import run
from tests.differential.torch.kernels import (
    Array,
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

from .draws_of_torch import weights
from .test_torch_groups import Net, kind_of
from .test_torch_groups import pytestmark as here

pytestmark = here
ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")
SEEDS = 40
PLAIN = (
    "leaky",
    "leaky",
    "sigmoid",
    "hard_swish",
    "max",
    "avg",
    "avg",
    "nearest",
    "bilinear",
    "clip",
)


@dataclass(frozen=True, eq=False)
class Step:
    """One kernel: what it reads, by the numbers of steps, and what it is made of."""

    kind: str
    reads: tuple[int, ...]
    out: Map
    w: Held | None = None
    bias: Array | None = None
    groups: int = 1
    relu: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """A network: step 0 is its input."""

    x: Held
    steps: tuple[Step, ...]


@dataclass
class Drawing:
    """Draws a network step by step, with the shape that each step gives."""

    rng: np.random.Generator
    qnnpack: bool
    mixed: bool = False
    """Whether sums and concats read tensors of two orders, and kernels parts of tensors."""
    steps: list[Step] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    maps: list[Map] = field(default_factory=list)
    convolved: list[bool] = field(default_factory=list)

    def map(self, unit: float = 0.0) -> Map:
        """Any scale, or one by which many results lie half way between integers."""
        some = float(self.rng.uniform(0.02, 0.2))
        if unit and self.mixed:
            some = unit * float(self.rng.uniform(0.7, 2.0))
        elif unit:
            parts = (0.75, 1.0, 1.25, 1.5, 1.75, float(self.rng.uniform(0.7, 2.0)))
            some = unit * float(self.rng.choice(parts))
        return of("u8", F(some), int(self.rng.integers(90, 160)) | 1)

    def plan(self) -> Plan:
        rng, volumes = self.rng, bool(self.rng.random() < 0.2) and not self.mixed
        rank = 5 if volumes else 4
        sizes: tuple[int, ...] = (
            (3, 5, 4) if volumes else (int(rng.integers(5, 12)), int(rng.integers(5, 12)))
        )
        shape = (int(rng.integers(1, 3)), int(rng.integers(1, 7)), *sizes)
        x = Held(random_integers(rng, "u8", *shape), self.map())
        assert x.map is not None
        self.note(shape, x.map, False)
        kinds = [
            "conv",
            "depthwise",
            "add",
            "cat",
            *(PLAIN if rank == 4 else ("leaky", "sigmoid", "clip")),
        ]
        if self.mixed:
            kinds += ["add", "cat", "wide", "elu", "elu", "half", "half"]
        first = int(rng.integers(0, 3))
        for i in range(int(rng.integers(4, 9))):
            kind = "conv" if i == first else str(rng.choice(kinds))
            self.step(kind, len(self.shapes) - 1)
        if rank == 4:
            self.step("mean", len(self.shapes) - 1)
        return Plan(x, tuple(self.steps))

    def note(self, shape: tuple[int, ...], out: Map, convolved: bool) -> None:
        self.shapes.append(shape)
        self.maps.append(out)
        self.convolved.append(convolved)

    def step(self, kind: str, at: int) -> None:
        shape, kept, rng = self.shapes[at], self.maps[at], self.rng
        n, c, *sides = shape
        w, bias, groups, relu = None, None, 1, False
        reads: tuple[int, ...] = (at,)
        out = self.map(float(kept.scale))
        convolved = self.convolved[at]
        if kind in ("conv", "depthwise"):
            apart = kind == "depthwise"
            made = c if apart else int(rng.integers(2, 40))
            window = (int(rng.choice([1, 3])),) * len(sides)
            w = Held(
                rng.integers(-60, 61, (made, 1 if apart else c, *window)).astype(np.int8),
                of("i8", rng.uniform(0.003, 0.02, made).astype(F), 0, 0),
            )
            terms = int(np.prod(w.data.shape[1:]))
            out = self.map(float(kept.scale) * 0.012 * 35 * np.sqrt(terms))
            bias = rng.normal(size=made).astype(F)
            groups, relu, c, convolved = c if apart else 1, bool(rng.random() < 0.5), made, True
        elif kind in ("add", "cat", "wide"):
            same = [i for i, s in enumerate(self.shapes) if s == shape]
            like = [i for i in same if self.mixed or self.convolved[i] == convolved]
            reads, relu = (at, int(rng.choice(like))), kind == "add" and bool(rng.random() < 0.5)
            reads = reads[::-1] if self.mixed and rng.random() < 0.5 else reads
            c = 2 * c if kind == "cat" else c
            sides[-1] *= 2 if kind == "wide" else 1
        elif kind == "half":
            c, out = c // 2, kept
            if not c:
                return
        elif kind == "sigmoid":
            out = of("u8", F(1 / 256), 0)
        elif kind in ("max", "avg", "nearest", "bilinear", "clip", "mean"):
            out = kept
            if kind in ("max", "avg"):
                sides = [side // 2 for side in sides]
                if min(sides) < 1:
                    return
            elif kind in ("nearest", "bilinear"):
                sides = [2 * side for side in sides]
                if max(sides) > 24:
                    return
            elif kind == "mean":
                sides = [1 for _ in sides]
            elif self.qnnpack:
                convolved = False
        self.steps.append(Step(kind, reads, out, w, bias, groups, relu))
        self.note((n, c, *sides), out, convolved)


def plan(seed: int, name: str, *, mixed: bool = False) -> Plan:
    return Drawing(np.random.default_rng(seed), name == "qnnpack", mixed).plan()


# -- torch ----------------------------------------------------------------------------------------


def by_torch(name: str, network: Plan) -> list[Array]:
    """What each step gives."""
    with engine(name):
        made = [tensor(network.x)]
        for step in network.steps:
            made.append(kernel(step, [made[i] for i in step.reads]))
        return [taken(t) for t in made[1:]]


def kernel(step: Step, xs: list[torch.Tensor]) -> torch.Tensor:
    ops, func, x = torch.ops.quantized, torch.nn.functional, xs[0]
    at = float(step.out.scale), int(step.out.zero)
    if step.w is not None and step.bias is not None:
        rank = x.dim() - 2
        pad = [n // 2 for n in step.w.data.shape[2:]]
        packed = getattr(ops, f"conv{rank}d_prepack")(
            tensor(step.w), torch.from_numpy(step.bias), [1] * rank, pad, [1] * rank, step.groups
        )
        done: torch.Tensor = getattr(ops, f"conv{rank}d{'_relu' if step.relu else ''}")(
            x, packed, *at
        )
        return done
    plain: dict[str, Any] = {
        "leaky": lambda: ops.leaky_relu(x, 0.25, False, *at),
        "sigmoid": lambda: ops.sigmoid(x, *at),
        "hard_swish": lambda: ops.hardswish(x, *at),
        "max": lambda: func.max_pool2d(x, 2),
        "avg": lambda: func.avg_pool2d(x, 2),
        "nearest": lambda: func.interpolate(x, scale_factor=2, mode="nearest"),
        "bilinear": lambda: func.interpolate(x, scale_factor=2, mode="bilinear"),
        "clip": lambda: torch.clamp(x, -0.5, 1.5),
        "mean": lambda: func.adaptive_avg_pool2d(x, 1),
        "add": lambda: (ops.add_relu if step.relu else ops.add)(*xs, *at),
        "cat": lambda: ops.cat(xs, 1, *at),
        "wide": lambda: ops.cat(xs, 3, *at),
        "elu": lambda: ops.elu(x, *at, 0.75),
        "half": lambda: x[:, : x.shape[1] // 2],
    }
    given: torch.Tensor = plain[step.kind]()
    return given


def by_torchs(name: str, networks: list[Plan]) -> list[list[Array]]:
    return [by_torch(name, network) for network in networks]


# -- the same as a graph --------------------------------------------------------------------------


def graph_of(network: Plan) -> Graph:
    net = Net("native")
    assert network.x.map is not None
    kind = kind_of(network.x.data.shape, network.x.map)
    made = [net.real(net.graph.add("input", types=[kind], name="x").result)]
    for step in network.steps:
        y = float_step(net, step, [made[i] for i in step.reads])
        if step.relu:
            y = net.graph.add("relu", {"x": y}).result
        made.append(net.through(y, step.out))
    ends = {f"y{i}": v.node.operands["x"] for i, v in enumerate(made[1:])}
    net.graph.add("output", ends)
    net.graph.prune()
    return net.graph


def float_step(net: Net, step: Step, xs: list[Value]) -> Value:
    add, x = net.graph.add, xs[0]
    if step.w is not None and step.bias is not None:
        given = {"x": x, "w": net.constant(step.w, "w"), "bias": net.plain(step.bias, "b")}
        pad = tuple(n // 2 for n in step.w.data.shape[2:] for _ in "ab")
        return add(f"conv{x.type.rank - 2}d", given, {"pad": pad, "groups": step.groups}).result
    pool = {"kernel": (2, 2), "stride": (2, 2)}
    halves = {"scales": (1.0, 1.0, 2.0, 2.0)}
    plain: dict[str, tuple[str, Any]] = {
        "leaky": ("leaky_relu", {"alpha": 0.25}),
        "sigmoid": ("sigmoid", {}),
        "hard_swish": ("hard_swish", {}),
        "max": ("max_pool2d", pool),
        "avg": ("avg_pool2d", pool),
        "nearest": ("resize_nearest", {**halves, "coordinates": "asymmetric", "rounding": "floor"}),
        "bilinear": ("resize", halves),
        "clip": ("clip", {"min": -0.5, "max": 1.5}),
        "mean": ("global_avg_pool", {}),
        "elu": ("elu", {"alpha": 0.75}),
    }
    if step.kind == "add":
        return add("add", {"a": x, "b": xs[1]}).result
    if step.kind == "cat":
        return add("concat", {"xs.0": x, "xs.1": xs[1]}, {"axis": 1}).result
    if step.kind == "wide":
        return add("concat", {"xs.0": x, "xs.1": xs[1]}, {"axis": 3}).result
    if step.kind == "half":
        count = x.type.shape[1]
        assert isinstance(count, int)
        sizes = (count // 2, count - count // 2)
        return add("split", {"x": x}, {"axis": 1, "sizes": sizes}).results[0]
    op, attrs = plain[step.kind]
    return add(op, {"x": x}, attrs).result


@pytest.mark.parametrize("name", ENGINES)
def test_networks_lie_in_memory_as_torchs_do(name: str, vnni: ProcessPoolExecutor) -> None:
    networks = [plan(seed, name) for seed in range(SEEDS)]
    agree(name, networks, vnni.submit(by_torchs, name, networks).result())


def agrees(name: str) -> None:
    """The same in this process, for engines that ask nobody for their processor."""
    networks = [plan(seed, name) for seed in range(SEEDS)]
    agree(name, networks, by_torchs(name, networks))


def agree(name: str, networks: list[Plan], made: list[list[Array]]) -> None:
    tally, turned = Tally(), 0
    for seed, (network, wanted) in enumerate(zip(networks, made, strict=True)):
        graph, ledger = graph_of(network), Ledger()
        Group(named(name)).run(graph, ledger)
        assert not [n for n in graph if n.op == "dequantize"], f"seed {seed}: not all is grouped"
        assert Change.UNVERIFIED not in {entry.change for entry in ledger}, f"seed {seed}"
        turned += any(e.reason.endswith("what is channels_last in memory") for e in ledger)
        found = run(graph, {"x": network.x.data})
        for i, (step, codes_) in enumerate(zip(network.steps, wanted, strict=True)):
            tally.add(found[f"y{i}"], codes_, f"seed {seed}, step {i}: {step.kind}")
    tally.exact()
    assert turned > SEEDS / 2


@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_networks_of_two_orders_and_of_parts_are_torchs(name: str) -> None:
    """Where integers of vectors and of single elements are not the same, that is said."""
    networks = [plan(seed, name, mixed=True) for seed in range(24)]
    tally, said = Tally(), 0
    for seed, (network, wanted) in enumerate(zip(networks, by_torchs(name, networks), strict=True)):
        graph, ledger = graph_of(network), Ledger()
        Group(named(name)).run(graph, ledger)
        if Change.UNVERIFIED in {entry.change for entry in ledger}:
            said += 1
            continue
        found = run(graph, {"x": network.x.data})
        for i, (step, codes_) in enumerate(zip(network.steps, wanted, strict=True)):
            tally.add(found[f"y{i}"], codes_, f"seed {seed}, step {i}: {step.kind}")
    tally.exact()
    assert said < 8


def around(
    op: str, attrs: dict[str, Any], before: tuple[int, ...], after: tuple[int, ...]
) -> Graph:
    """An op between integers of one map."""
    net, kept = Net("native"), of("u8", 0.05, 61)
    x = net.graph.add("input", types=[kind_of(before, kept)], name="x").result
    y = net.through(net.graph.add(op, {"x": net.real(x)}, attrs).result, kept)
    assert y.type.shape == after
    net.graph.add("output", {"y": y.node.operands["x"]})
    net.graph.prune()
    return net.graph


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
def test_a_resize_of_every_axis_is_torchs_in_either_order(name: str, last: bool) -> None:
    """One that says that images and channels keep their sizes."""
    rng = np.random.default_rng(5)
    shape, made = (2, 11, 5, 6), (2, 11, 10, 12)
    kept = of("u8", 0.05, 61)
    x = Held(random_integers(rng, "u8", *shape), kept)
    with engine(name):
        held = tensor(x, channels_last=last)
        wanted = taken(torch.nn.functional.interpolate(held, scale_factor=2, mode="bilinear"))
    sizes = np.array(made)
    for by_sizes in (False, True):
        graph = around("resize", {"scales": (1.0, 1.0, 2.0, 2.0)}, shape, made)
        if by_sizes:
            (node,) = (n for n in graph if n.op == "resize")
            held_sizes = Stored(sizes, TensorType(sizes.shape, I64), "sizes")
            graph.set_operand(node, "sizes", graph.constant(held_sizes, before=node))
            graph.set_attrs(node, scales=())
        if last:
            seen = graph.copy()
            Layout().run(seen, Ledger())
            assert not [n for n in seen if n.op == "transpose"], "nothing asks for another order"
            turn(graph)
        Group(named(name)).run(graph, Ledger())
        assert not [n for n in graph if n.op == "dequantize"]
        assert np.array_equal(run(graph, {"x": x.data})["y"], wanted)


def turn(graph: Graph) -> None:
    """Turns all of a graph that can turn."""
    nodes = frozenset(PermutedRegions(graph, "layout", "nhwc", Ledger()).turnable())
    assert PermutedRegions(graph, "layout", "nhwc", Ledger(), nodes).run()


@pytest.mark.parametrize(
    ("attrs", "after"),
    [
        ({"scales": (1.0, 1.0, 2.0, 2.0), "mode": "cubic"}, (1, 3, 10, 8)),
        ({"scales": (1.0, 1.0, 2.0, 2.0), "antialias": True}, (1, 3, 10, 8)),
        ({"scales": (1.0, 1.0, 2.0, 2.0), "coordinates": "asymmetric"}, (1, 3, 10, 8)),
        ({"scales": (1.0, 2.0, 2.0, 2.0)}, (1, 6, 10, 8)),
    ],
)
def test_a_resize_for_which_torch_has_no_kernel_stays_real(
    attrs: dict[str, Any], after: tuple[int, ...]
) -> None:
    graph = around("resize", attrs, (1, 3, 5, 4), after)
    Group(named("fbgemm")).run(graph, Ledger())
    assert [n.op for n in graph if n.op == "dequantize"]
    assert run(graph, {"x": np.zeros((1, 3, 5, 4), np.uint8)})["y"].shape == after


def test_a_resize_of_any_number_of_images_is_torchs() -> None:
    """Behind a convolution, whose tensors lie with channels last."""
    x = Held(random_integers(np.random.default_rng(1), "u8", 2, 3, 4, 4), of("u8", 0.05, 61))
    w = Held(np.full((9, 3, 1, 1), 11, np.int8), of("i8", np.full(9, 0.01, F), 0, 0))
    out = of("u8", 0.03, 101)
    network = Plan(x, (Step("conv", (0,), out, w, np.zeros(9, F)), Step("bilinear", (1,), out)))
    text = str(graph_of(network)).replace(": 2x", ": ?x")
    arrays = {array.name: array.data for array in graph_of(network).arrays()}
    graph = parse(text, arrays)
    Group(named("fbgemm")).run(graph, Ledger())
    assert not [n for n in graph if n.op == "dequantize"]
    for found, wanted in zip(
        run(graph, {"x": x.data}).values(), by_torch("fbgemm", network), strict=True
    ):
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("axis", [1, 2])
def test_parts_of_an_image_are_pooled_as_torch_does(axis: int, last: bool) -> None:
    """Pools of what a split gives, behind a convolution or not."""
    rng = np.random.default_rng(5)
    x = Held(random_integers(rng, "u8", 3, 48, 8, 14), of("u8", 0.05, 61))
    whole, steps, at = x, tuple[Step, ...](), x.map
    if last:
        w = Held(np.asarray(rng.integers(-9, 9, (48, 48, 1, 1)), np.int8), of("i8", 0.01, 0))
        steps = (Step("conv", (0,), of("u8", 0.03, 101), w, np.zeros(48, F)),)
        at = steps[0].out
        whole = Held(by_torch("fbgemm", Plan(x, steps))[0], at)
    assert x.map is not None
    assert at is not None
    net = Net("native")
    y = net.real(net.graph.add("input", types=[kind_of(x.data.shape, x.map)], name="x").result)
    if steps:
        y = net.through(float_step(net, steps[0], [y]), steps[0].out)
    half = whole.data.shape[axis] // 2
    parts = net.graph.add("split", {"x": y}, {"axis": axis, "sizes": (half, half)}).results
    pool = {"kernel": (2, 2), "stride": (2, 2)}
    pooled = [net.graph.add("avg_pool2d", {"x": net.through(p, at)}, pool).result for p in parts]
    made = [net.through(value, at) for value in pooled]
    net.graph.add("output", {f"y{i}": v.node.operands["x"] for i, v in enumerate(made)})
    net.graph.prune()
    Group(named("fbgemm")).run(net.graph, Ledger())
    order = torch.channels_last if last else torch.contiguous_format
    given = tensor(whole).contiguous(memory_format=order)
    found = run(net.graph, {"x": x.data})
    for i, part in enumerate(given.chunk(2, axis)):
        wanted = torch.nn.functional.avg_pool2d(part, 2).int_repr().numpy()
        assert np.array_equal(found[f"y{i}"], wanted)


def test_what_no_convolution_precedes_lies_as_the_graph_says() -> None:
    graph = around("avg_pool2d", {"kernel": (2, 2), "stride": (2, 2)}, (1, 3, 4, 4), (1, 3, 2, 2))
    ledger = Ledger()
    Group(named("fbgemm")).run(graph, ledger)
    assert not [n for n in graph if n.op == "transpose"]
    assert not any("channels_last" in entry.reason for entry in ledger)


FUNCTIONS: dict[str, Any] = {
    "sigmoid": torch.ops.quantized.sigmoid,
    "elu": torch.ops.quantized.elu,
    "hard_swish": torch.ops.quantized.hardswish,
    "leaky_relu": lambda x, *at: torch.ops.quantized.leaky_relu(x, 0.01, False, *at),
}


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_functions_behind_lines_go_one_by_one(name: str, op: str) -> None:
    """conv1d gives tensors in an order that functions do not keep."""
    rng, tally = np.random.default_rng(8), Tally()
    for number in range(4):
        length, made = int(rng.integers(20, 90)), int(rng.integers(2, 20))
        x = Held(random_integers(rng, "u8", 2, 3, length), of("u8", rng.uniform(0.02, 0.1), 101))
        taps, step = weights(rng, 3, made, 3, 1)
        w = Held(taps, of("i8", rng.uniform(0.005, 0.02), 0))
        assert x.map is not None
        assert w.map is not None
        unit = float(x.map.scale * w.map.scale) * (4 if step == 1 and taps.std() > 20 else step)
        middle = of("u8", unit * rng.choice([2, 4]), 121)
        end = of("u8", *((1 / 256, 0) if op == "sigmoid" else (rng.uniform(0.03, 0.1), 77)))
        at, to = ((float(m.scale), int(m.zero)) for m in (middle, end))
        with engine(name):
            packed = torch.ops.quantized.conv1d_prepack(tensor(w), None, [1], [0], [1], 1)
            lines = torch.ops.quantized.conv1d(tensor(x), packed, *at)
            args = (*to, 1.0) if op == "elu" else to
            wanted = taken(FUNCTIONS[op](lines, *args))
        net = Net("native")
        kind = kind_of(x.data.shape, x.map)
        data = net.real(net.graph.add("input", types=[kind], name="x").result)
        y = net.graph.add("conv1d", {"x": data, "w": net.constant(w, "w")}).result
        y = net.graph.add(op, {"x": net.through(y, middle)}).result
        net.graph.add("output", {"y": net.through(y, end).node.operands["x"]})
        net.graph.prune()
        ledger = Ledger()
        Group(named(name)).run(net.graph, ledger)
        assert Change.UNVERIFIED not in {entry.change for entry in ledger}
        assert not [n for n in net.graph if n.op == "dequantize"]
        tally.add(run(net.graph, {"x": x.data})["y"], wanted, f"{number}")
    tally.exact()


def test_what_lies_in_two_orders_is_said_not_to_be_predicted() -> None:
    """A sum of what a convolution gives and of what it reads."""
    x = Held(random_integers(np.random.default_rng(0), "u8", 1, 3, 4, 4), of("u8", 0.05, 61))
    w = Held(np.ones((3, 3, 1, 1), np.int8), of("i8", np.full(3, 0.01, F), 0, 0))
    steps = (
        Step("conv", (0,), of("u8", 0.1, 3), w, np.zeros(3, F)),
        Step("add", (0, 1), of("u8", 0.2, 5)),
    )
    ledger = Ledger()
    Group(named("fbgemm")).run(graph_of(Plan(x, steps)), ledger)
    (said,) = (entry.reason for entry in ledger if entry.change is Change.UNVERIFIED)
    assert "two layouts" in said

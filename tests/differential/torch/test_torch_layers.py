"""Torch's transposed convolutions, tables of integers and resizes against its profiles."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qir.backends.torch.kernels.layers import pack_rows, unpack_rows
from qir.ir.attrs import Attr
from qir.ir.dtype import F16, F32, dtype
from qir.ir.graph import Graph
from qir.ir.types import Array as Stored
from qir.ir.types import Granularity, QuantType, TensorType
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import Query, profile
from qir.reference.interpreter import run
from tests.differential.torch.kernels import (
    Array,
    Asked,
    F,
    Held,
    Map,
    Tally,
    claim,
    computed,
    engine,
    of,
    random_integers,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named

from . import draws_of_torch as draws
from .test_torch_groups import Net, kind_of

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512, which this processor has not",
)

OPS = torch.ops.quantized
Rng = np.random.Generator


def claimed(
    name: str, op: str, storage: dict[str, str], attrs: dict[str, Attr] | None = None
) -> str:
    return profile(named(name)).resolve(Query(op, storage, attrs=attrs or {})).claim


# -- transposed convolutions ----------------------------------------------------------------------


def transposed(rng: Rng, rank: int, many: bool, alike: bool) -> tuple[Asked, list[list[int]]]:
    """A transposed convolution, sums often at ties; `alike`: as many channels out as in."""
    groups, into, outof = (int(rng.choice(v)) for v in ([1, 1, 2], [1, 2, 3, 8], [1, 2, 5, 9]))
    into = outof if alike else into
    kernel, stride, dilation = (int(rng.integers(1, n)) for n in (4, 3, 3))
    pad = int(rng.integers(0, kernel))
    more = 0 if alike else int(rng.integers(0, max(stride, dilation)))
    sizes = [int(v) for v in (rng.integers(4, 7, rank) if rank < 3 else rng.integers(3, 6, rank))]
    x, w = draws.maps(rng, outof, many=many)
    w = replace(w, axis=1 if many else None)
    terms, shape = into * (-(-kernel // stride)) ** rank, (groups * into, outof, *[kernel] * rank)
    weights, step = draws.weights(rng, terms, *shape)
    operands = {
        "x": Held(random_integers(rng, "u8", 2, groups * into, *sizes), x),
        "w": Held(weights, w),
    }
    sides = [[v] * rank for v in (stride, pad, more, dilation)]
    attrs: dict[str, Attr] = {
        "stride": tuple(sides[0]),
        "pad": (pad,) * 2 * rank,
        "output_pad": tuple(sides[2]),
        "dilation": tuple(sides[3]),
        "groups": groups,
    }
    asked = Asked(f"conv_transpose{rank}d", operands, None, attrs)
    return filled(rng, asked, sides, step), sides


def filled(rng: Rng, asked: Asked, sides: list[list[int]], step: int) -> Asked:
    """A transposed convolution with a map of results that its sums fill."""
    x, w = asked.operands["x"], asked.operands["w"]
    assert x.map is not None
    assert w.map is not None
    unit = of("u8", F(x.map.scale * w.map.scale.min()))
    one = replace(asked, out=unit)
    units = exact_transposed(one, sides)
    if rng.random() < 0.6:
        spread = max(1, int(units.std() / step))
        steps = rng.integers(-spread, spread, units.shape[1], endpoint=True) * step
        bias = Held(np.asarray(steps * float(unit.scale), F))
        one = replace(one, operands={**one.operands, "bias": bias})
        units = exact_transposed(one, sides)
    ratio, zero = draws.level(rng, units, step)
    return replace(one, out=of("u8", F(unit.scale * F(ratio)), zero))


def torchs_transposed(asked: Asked, sides: list[list[int]]) -> torch.Tensor:
    bias = asked.operands.get("bias")
    packed = getattr(OPS, f"{asked.op}_prepack")(
        tensor(asked.operands["w"]),
        None if bias is None else torch.from_numpy(bias.data),
        *sides,
        asked.attrs["groups"],
    )
    assert asked.out is not None
    run_it = getattr(OPS, asked.op)
    made: torch.Tensor = run_it(
        tensor(asked.operands["x"]), packed, float(asked.out.scale), int(asked.out.zero)
    )
    return made


def exact_transposed(asked: Asked, sides: list[list[int]]) -> NDArray[np.float64]:
    """The result in units of its code."""
    x, w, bias = (asked.operands.get(s) for s in ("x", "w", "bias"))
    assert x is not None
    assert x.map is not None
    assert w is not None
    assert w.map is not None
    assert asked.out is not None
    stride, pad, more, dilation = sides
    rank = len(stride)
    groups, zero = int(str(asked.attrs["groups"])), np.broadcast_to(w.map.zero, w.data.shape[1])
    sums = getattr(torch.nn.functional, asked.op)(
        torch.from_numpy(x.data.astype(np.float64) - float(x.map.zero)),
        torch.from_numpy(w.data.astype(np.float64) - zero.reshape(1, -1, *[1] * rank)),
        None,
        stride,
        pad,
        more,
        groups,
        dilation,
    ).numpy()
    shape = (1, -1, *(1,) * rank)
    scale = w.map.scale.astype(np.float64)
    scale = np.tile(scale, groups).reshape(shape) if scale.ndim else scale
    real = sums * scale * float(x.map.scale)
    if bias is not None:
        real = real + bias.data.astype(np.float64).reshape(shape)
    return np.asarray(real / float(asked.out.scale))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "many"), [("fbgemm", False), ("qnnpack", False), ("qnnpack", True)]
)
def test_transposed_convolutions_are_the_engines(name: str, many: bool, rank: int) -> None:
    if (name, rank) == ("qnnpack", 3):  # which gives other sums
        assert claimed(name, "conv_transpose3d", {"x": "u8", "w": "i8"}) == "unknown"
        return
    tally, where = Tally(), named(name)
    asked = Asked("", {}, None)
    with engine(name):
        for seed in range((40, 30, 24)[rank - 1]):
            asked, sides = transposed(np.random.default_rng(seed), rank, many, False)
            if many and asked.attrs["groups"] != 1:
                continue  # qnnpack fails to read scales a channel in groups
            made = torchs_transposed(asked, sides)
            tally.see(exact_transposed(asked, sides), asked.out or of("u8", 1.0))
            tally.add(computed(asked, where), taken(made), f"seed {seed}")
    tally.rich()
    tally.within(claimed(name, asked.op, {"x": "u8", "w": "i8", "result": "u8"}))


@pytest.mark.parametrize("rank", [1, 2])
def test_a_bias_half_way_between_two_sums_becomes_that_of_qnnpack(rank: int) -> None:
    tally = Tally()
    for seed in range(12):
        asked, sides = transposed(np.random.default_rng(seed), rank, False, False)
        bias, x, w = (asked.operands.get(slot) for slot in ("bias", "x", "w"))
        assert x is not None
        assert x.map is not None
        assert w is not None
        assert w.map is not None
        unit = np.full(w.data.shape[1] * int(str(asked.attrs["groups"])), x.map.scale * w.map.scale)
        made = Held(draws.halves(None if bias is None else bias.data, unit))
        asked = replace(asked, operands={**asked.operands, "bias": made})
        with engine("qnnpack"):
            wanted = taken(torchs_transposed(asked, sides))
        tally.add(computed(asked, named("qnnpack")), wanted, f"seed {seed}")
    tally.within(claimed("qnnpack", asked.op, {"x": "u8", "w": "i8", "result": "u8"}))


def torchs_many(name: str, cases: list[tuple[Asked, list[list[int]]]]) -> list[Array]:
    with engine(name):
        return [taken(torchs_transposed(asked, sides)) for asked, sides in cases]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["x86", "onednn"])
def test_transposed_convolutions_of_onednn_multiply_misread_weights(
    name: str, rank: int, vnni: ProcessPoolExecutor
) -> None:
    """Of other channels out than in; with output padding fbgemm computes them, or nobody."""
    rngs = [np.random.default_rng(seed) for seed in range((400, 120, 32)[rank - 1])]
    cases = [transposed(rng, rank, False, False) for rng in rngs]
    if name == "onednn":
        cases = [(asked, sides) for asked, sides in cases if not any(sides[2])]
    apart, where, tallies = 0, named(name), defaultdict[str, Tally](Tally)
    made = vnni.submit(torchs_many, name, cases).result()
    for (asked, sides), wanted in zip(cases, made, strict=True):
        if (said := claim(where, asked)) == "unknown":
            continue
        tally = tallies[said]
        tally.add(computed(asked, where), wanted, f"{asked.attrs}")
        straight = computed(asked, named("fbgemm"))
        apart += 0 if any(sides[2]) else int(np.count_nonzero(straight != wanted))
    near = "within:1:0.01" if rank == 3 else "within:1:0.002"
    assert set(tallies) == ({"exact", near} if name == "x86" else {near})
    assert apart > 0.1 * tallies[near].total, "the weights as they are would have done"
    for said, tally in tallies.items():
        tally.within(said)


def grouped(asked: Asked, name: str, bias: Held) -> Graph:
    """A transposed convolution in QDQ form with a bias, grouped for an engine."""
    net, x, w = Net("native"), asked.operands["x"], asked.operands["w"]
    assert x.map is not None
    assert asked.out is not None
    data = net.graph.add("input", types=[kind_of(x.data.shape, x.map)], name="x").result
    made = {"x": net.real(data), "w": net.constant(w, "w")}
    plain = net.plain(bias.data, "b") if bias.map is None else None
    made["bias"] = plain or net.constant(bias, "b")
    y = net.through(net.graph.add(asked.op, made, dict(asked.attrs)).result, asked.out)
    net.graph.add("output", {"y": y.node.operands["x"]})
    net.graph.prune()
    assert Group(named(name)).run(net.graph, Ledger())
    return net.graph


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack", "x86", "onednn"])
def test_a_transposed_convolution_is_grouped_with_its_real_bias(
    name: str, rank: int, vnni: ProcessPoolExecutor
) -> None:
    """One of integers becomes real again, be its scale that of all channels or each its own."""
    cases, graphs = [], []
    for seed in range(18):
        rng = np.random.default_rng([seed, rank])
        asked, sides = transposed(rng, rank, False, True)
        x, w = asked.operands["x"].map, asked.operands["w"].map
        assert x is not None
        assert w is not None
        size = asked.operands["w"].data.shape[1] * int(str(asked.attrs["groups"]))
        drawn, unit = asked.operands.get("bias"), np.asarray(x.scale * w.scale, F)
        real = Held(np.zeros(size, F)) if drawn is None else drawn
        halves = np.rint(real.data.astype(F) / unit * F(2)).astype(np.int32)
        own = Map("i32", np.full(size, unit / F(2), F), np.zeros(size, np.int64), 0)
        given = (real, Held(halves, of("i32", unit / F(2))), Held(halves, own))[seed % 3]
        graphs.append(grouped(asked, name, given))
        ops = [node.op for node in graphs[-1] if node.op not in ("constant", "input", "output")]
        assert ops == [asked.op], "not all is grouped"
        cases.append((replace(asked, operands={**asked.operands, "bias": real}), sides))
    if (name, rank) == ("qnnpack", 3):
        return  # which gives other sums
    tally = Tally()
    made = vnni.submit(torchs_many, name, cases).result()
    for (asked, _), graph, wanted in zip(cases, graphs, made, strict=True):
        if claim(named(name), asked) == "unknown":
            continue
        found = run(graph, {"x": asked.operands["x"].data})["y"]
        tally.add(found, wanted, f"{asked.attrs}")
    near = "within:1:0.01" if rank == 3 else "within:1:0.002"
    tally.within("exact" if name in ("fbgemm", "qnnpack") else near)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_transposed_convolution_of_a_scale_each_channel_is_qnnpacks_alone(rank: int) -> None:
    """Of one group; the others refuse it, and QNNPACK that of several groups."""
    tally = Tally()
    for seed in range(40):
        asked, sides = transposed(np.random.default_rng([seed, rank]), rank, True, True)
        x, w = asked.operands["x"], asked.operands["w"]
        bias = asked.operands.get("bias", Held(np.zeros(w.data.shape[1], F)))
        if asked.attrs["groups"] != 1:
            continue
        for name in ("fbgemm", "x86", "onednn"):
            with engine(name), pytest.raises(RuntimeError, match="Per Channel"):
                torchs_transposed(asked, sides)
            left = grouped(asked, name, bias)
            assert [n for n in left if n.op == "dequantize"], "no kernel takes it"
        graph = grouped(asked, "qnnpack", bias)
        assert not [n for n in graph if n.op == "dequantize"]
        with engine("qnnpack"):
            wanted = taken(torchs_transposed(asked, sides))
        tally.add(run(graph, {"x": x.data})["y"], wanted, f"{asked.attrs}")
    tally.exact()


def scattered(seed: int, rank: int) -> tuple[Asked, list[list[int]]]:
    """A transposed convolution in more than 100 groups."""
    rng = np.random.default_rng([seed, rank])
    groups, outof = int(rng.choice([101, 104])), int(rng.integers(1, 4))
    asked, sides = transposed(rng, rank, False, True)
    into = int(rng.integers(1, 3))
    x, w = asked.operands["x"], asked.operands["w"]
    sizes, taps = x.data.shape[2:], w.data.shape[2:]
    weights, step = draws.weights(rng, w.data[0, 0].size * into, groups * into, outof, *taps)
    data = random_integers(rng, "u8", 1, groups * into, *(min(s, 6 - rank) for s in sizes))
    held = {"x": Held(data, x.map), "w": Held(weights, w.map)}
    asked = replace(asked, operands=held, attrs={**asked.attrs, "groups": groups})
    return filled(rng, asked, sides, step), sides


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["x86", "onednn"])
def test_transposed_convolutions_of_many_groups_are_fbgemms_or_onednns(
    name: str, rank: int, vnni: ProcessPoolExecutor
) -> None:
    cases, where = [scattered(seed, rank) for seed in range(20)], named(name)
    tally = Tally()
    for (asked, _), wanted in zip(
        cases, vnni.submit(torchs_many, name, cases).result(), strict=True
    ):
        if claim(where, asked) != "unknown":
            tally.add(computed(asked, where), wanted, f"{asked.attrs}")
    tally.within("exact" if name == "x86" else "within:1:0.01")


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions_of_weights_with_zero_points_are_fbgemms(rank: int) -> None:
    """Engine x86 asks oneDNN for none of them."""
    tally = Tally()
    for seed in range((40, 30, 24)[rank - 1]):
        asked, sides = transposed(np.random.default_rng(seed), rank, False, False)
        w = asked.operands["w"]
        assert w.map is not None
        moved = Held(w.data, of("i8", w.map.scale, 1 + seed % 5))
        asked = replace(asked, operands={**asked.operands, "w": moved})
        with engine("x86"):
            made = taken(torchs_transposed(asked, sides))
        tally.add(computed(asked, named("x86")), made, f"seed {seed}")
    tally.exact()


# -- rows of a table ------------------------------------------------------------------------------

BITS = {"u8": 8, "u4": 4, "u2": 2}


def packed_row(kind: str, table: Array) -> NDArray[np.uint8]:
    """The rows as torch's prepack leaves them, from floats."""
    word = {"u8": "byte", "u4": "4bit", "u2": "2bit"}[kind]
    made: NDArray[np.uint8] = getattr(OPS, f"embedding_bag_{word}_prepack")(
        torch.from_numpy(table)
    ).numpy()
    return made


def opened(
    kind: str, packed: NDArray[np.uint8], width: int
) -> tuple[Array, NDArray[np.float32], NDArray[np.float32]]:
    """Integers, scales and offsets that lie in packed rows."""
    count, number = 8 // BITS[kind], np.dtype(F if kind == "u8" else np.float16)
    held = -(-width // count)
    parts = [(packed[:, :held] >> (BITS[kind] * i)) & ((1 << BITS[kind]) - 1) for i in range(count)]
    data = np.stack(parts, -1).reshape(len(packed), -1)[:, :width]
    ends = np.ascontiguousarray(packed[:, held:]).view(number)
    return np.ascontiguousarray(data), ends[:, 0].copy(), ends[:, 1].copy()


def table_of(rng: Rng, width: int) -> NDArray[np.float32]:
    table = rng.normal(size=(23, width)).astype(F) * F(rng.uniform(0.1, 30))
    table[3], table[4] = F(0.5), F(0)
    table[5] = rng.integers(-9, 10, width) * F(0.5)
    return np.asarray(table, F)


def row_type(kind: str, scale: Array, plus: Array) -> QuantType:
    """Integers of rows with a scale and an offset each."""
    express = F32 if kind == "u8" else F16
    grain = Granularity(((0, 1),))
    held = [
        Stored(a.copy(), TensorType(a.shape, express), n) for a, n in ((scale, "s"), (plus, "p"))
    ]
    return QuantType(dtype(kind), F32, held[0], (0,), grain, plus=held[1], scale_dtype=express)


def bags(rng: Rng) -> tuple[Array, Array]:
    starts = np.sort(rng.integers(0, 60, 9))
    starts[0] = 0
    return rng.integers(0, 23, 60), starts


def looked_up(
    op: str, kind: str, quant: QuantType, held: dict[str, Array], name: str = named("fbgemm")
) -> Array:
    graph = Graph(profile=name)
    given = {}
    for slot, data in held.items():
        element = quant if slot == "w" else {"i": dtype("i64"), "f": F32}[data.dtype.kind]
        shape = TensorType(data.shape, element)
        if slot == "w":
            given[slot] = graph.constant(Stored(data, shape, slot))
        else:
            given[slot] = graph.add("input", types=[shape], name=slot).result
    attrs: dict[str, Attr] = {"mode": "sum"} if op == "embedding_bag" else {}
    rows = held["offsets"] if op == "embedding_bag" else held["indices"]
    result = TensorType((len(rows), held["w"].shape[1]), F32)
    graph.add("output", {"y": graph.add(op, given, attrs, types=[result]).result})
    return run(graph, {s: a for s, a in held.items() if s != "w"})["y"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", BITS)
def test_bags_of_rows_of_codes_are_torchs(kind: str, weighted: bool) -> None:
    tally, step = Tally(), 8 // BITS[kind]
    word = {"u8": "byte", "u4": "4bit", "u2": "2bit"}[kind]
    for width in range(step, 71, step):
        rng = np.random.default_rng(width)
        packed = packed_row(kind, table_of(rng, width))
        data, scale, plus = opened(kind, packed, width)
        rows, starts = bags(rng)
        share = rng.normal(size=60).astype(F) if weighted else None
        made = getattr(OPS, f"embedding_bag_{word}_rowwise_offsets")(
            torch.from_numpy(packed),
            torch.from_numpy(rows),
            torch.from_numpy(starts),
            False,
            0,
            False,
            None if share is None else torch.from_numpy(share),
            None,
            False,
        )
        held = {"w": data, "indices": rows, "offsets": starts}
        if share is not None:
            held["weights"] = share
        found = looked_up("embedding_bag", kind, row_type(kind, scale, plus), held)
        tally.add(found, made.numpy(), f"width {width}")
    tally.within(claimed("fbgemm", "embedding_bag", {"w": kind}))


@pytest.mark.parametrize("kind", BITS)
def test_rows_are_packed_and_unpacked_as_torch_does(kind: str) -> None:
    tally, step = Tally(), 8 // BITS[kind]
    word = {"u8": "byte", "u4": "4bit", "u2": "2bit"}[kind]
    for width in range(step, 71, step):
        table = table_of(np.random.default_rng(width), width)
        packed = packed_row(kind, table)
        wanted, found = opened(kind, packed, width), pack_rows(table, BITS[kind])
        for theirs, mine in zip(wanted, found, strict=True):
            tally.add(mine.astype(F), theirs.astype(F), f"width {width}")
        back = getattr(OPS, f"embedding_bag_{word}_unpack")(torch.from_numpy(packed)).numpy()
        tally.add(unpack_rows(*wanted), back, f"width {width}, unpacked")
    tally.exact()


@pytest.mark.parametrize("kind", ["u8", "u4"])
def test_single_rows_of_codes_are_torchs(kind: str) -> None:
    """Tables that hold integers with real zero points from the start, as observers make them."""
    tally = Tally()
    word = "byte" if kind == "u8" else "4bit"
    for width in range(2, 71, 2):
        rng = np.random.default_rng(width)
        scale = rng.uniform(0.01, 0.1, 23).astype(F)
        zero = rng.uniform(0, 15, 23).astype(F)
        made = torch.quantize_per_channel(
            torch.from_numpy(table_of(rng, width)),
            torch.from_numpy(scale),
            torch.from_numpy(zero),
            0,
            torch.quint8 if kind == "u8" else torch.quint4x2,
        )
        packed = OPS.embedding_bag_prepack(made)
        raw = OPS.embedding_bag_unpack(packed)
        bits = raw.int_repr().numpy()
        data = bits if kind == "u8" else np.stack([bits & 15, bits >> 4], -1).reshape(23, width)
        rows = rng.integers(0, 23, 60)
        wanted = getattr(OPS, f"embedding_{word}")(packed, torch.from_numpy(rows), False).numpy()
        held = [
            Stored(a.copy(), TensorType(a.shape, F32), n) for a, n in ((scale, "s"), (zero, "z"))
        ]
        quant = QuantType(dtype(kind), F32, held[0], held[1], Granularity(((0, 1),)))
        found = looked_up("embedding", kind, quant, {"w": data, "indices": rows})
        tally.add(found, wanted, f"width {width}")
    tally.within(claimed("fbgemm", "embedding", {"w": kind}))


# -- resizing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_resizes_by_scales_are_torchs(mode: str, last: bool) -> None:
    """Places go by the scales as given, which are not the ratios of the sizes."""
    tally, op = Tally(), "resize" if mode == "bilinear" else "resize_nearest"
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sizes = [int(v) for v in rng.integers(3, 12, 2)]
        scales = [float(v) for v in rng.choice([0.6, 1.05, 1.3, 1.5, 1.7, 2.0, 2.45], 2)]
        m = of("u8", F(rng.uniform(0.01, 0.1)), int(rng.integers(0, 256)))
        x = Held(random_integers(rng, "u8", 2, int(rng.choice([2, 8, 19, 70])), *sizes), m)
        corners = mode == "bilinear" and seed % 8 == 0
        more = {"align_corners": corners} if mode == "bilinear" else {}
        by = torch.nn.functional.interpolate
        wanted = taken(by(tensor(x, channels_last=last), scale_factor=scales, mode=mode, **more))
        attrs: dict[str, Attr] = {
            "axes": (1, 2) if last else (2, 3),
            "scales": tuple(scales),
            "coordinates": "align_corners" if corners else "half_pixel",
        }
        if mode == "nearest":
            attrs |= {"coordinates": "asymmetric", "rounding": "floor"}
        if last:
            x = Held(np.ascontiguousarray(np.moveaxis(x.data, 1, -1)), m)
            wanted = np.ascontiguousarray(np.moveaxis(wanted, 1, -1))
        found = computed(Asked(op, {"x": x}, m, attrs), named("fbgemm"))
        tally.add(found, wanted, f"seed {seed}")
    tally.exact()


@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_resizes_are_torchs(mode: str, kind: str, last: bool, name: str) -> None:
    tally, halves, total = Tally(), 0, 0
    op = "resize" if mode == "bilinear" else "resize_nearest"
    for seed in range(48):
        rng = np.random.default_rng(seed)
        sizes = [int(v) for v in rng.integers(1, 9, 2)]
        channels = int(rng.choice([2, 3, 8, 12, 16, 24, 33, 70]))
        if sizes == [1, 1]:
            continue  # an image of one element lies both ways
        # Half the size gives means of pairs, many of them exact halves.
        sizes = [2 * v for v in sizes] if seed & 2 else sizes
        to = [
            v // 2 if seed & 2 and seed & 4 << i else int(rng.integers(1, 20))
            for i, v in enumerate(sizes)
        ]
        corners = bool(seed & 1) and mode == "bilinear"
        m = of(
            kind,
            F(rng.uniform(0.01, 0.1)),
            int(rng.integers(-60, 60)) * 2 + 1 + (128 if kind == "u8" else 0),
        )
        x = Held(random_integers(rng, kind, int(rng.integers(1, 3)), channels, *sizes), m)
        more = {"align_corners": corners} if mode == "bilinear" else {}
        with engine(name):
            given = tensor(x, channels_last=last)
            made = torch.nn.functional.interpolate(given, to, mode=mode, **more)
        at = (1, 2) if last else (2, 3)
        attrs: dict[str, Attr] = {
            "axes": at,
            "coordinates": "align_corners" if corners else "half_pixel",
        }
        if mode == "nearest":
            attrs |= {"coordinates": "asymmetric", "rounding": "floor"}
        held = Held(np.ascontiguousarray(np.moveaxis(x.data, 1, -1)), m) if last else x
        asked = Asked(op, {"x": held, "sizes": Held(np.array(to, np.int64))}, m, attrs)
        wanted = taken(made)
        wanted = np.ascontiguousarray(np.moveaxis(wanted, 1, -1)) if last else wanted
        tally.add(computed(asked, named(name)), wanted, f"seed {seed}")
        exact = torch.nn.functional.interpolate(
            torch.from_numpy(x.data.astype(np.float64)), to, mode=mode, **more
        ).numpy()
        halves += int((np.abs(exact - np.floor(exact) - 0.5) < 1e-9).sum())
        total += exact.size
    if mode == "bilinear":
        assert halves >= 0.05 * total, f"{halves} of {total} on ties"
    tally.within(
        claimed("fbgemm", op, {"x": kind, "result": kind}, {"axes": (1, 2) if last else (2, 3)})
    )

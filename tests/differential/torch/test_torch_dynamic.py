"""Torch's dynamic layers, whose data is quantized as it comes, against its profiles' rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array as Stored
from qir.ir.types import QuantType, TensorType
from qir.profiles import Query, profile
from qir.reference.interpreter import run
from tests.differential.torch.kernels import (
    Array,
    Asked,
    F,
    Held,
    Tally,
    engine,
    kind_of,
    of,
    tensor,
)
from tests.differential.torch.profile_in_use import named

from . import draws_of_torch as draws
from .test_torch_layers import transposed

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)

OPS = torch.ops.quantized
CODES = QuantType(dtype("u8"), F32, None, None, scale_dtype=dtype("f64"))
ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")


@dataclass(frozen=True, eq=False)
class Layer:
    """A dynamic linear layer and its data."""

    x: NDArray[np.float32]
    w: Held
    bias: Array | None
    short: bool
    """Whether the data's integers are kept to seven bits."""
    relu: bool


def layer(seed: int, many: bool, *, short: bool) -> Layer:
    """Every other one has a scale that is a power of two, and half its data on ties."""
    rng = np.random.default_rng(seed)
    rows, terms, count = (int(v) for v in rng.integers(1, 71, 3))
    rows = rows if terms > 1 else rows + 1
    top = 127 if short else 255
    if seed & 1:
        zero = int(rng.integers(0, top)) | 1
        steps = rng.integers(-2 * zero, 2 * (top - zero) + 1, (rows, terms)) * F(0.5)
        steps.flat[0], steps.flat[-1] = -zero, top - zero
        x = np.asarray(steps * F(2.0 ** int(rng.integers(-8, 3))), F)
    else:
        x = rng.normal(size=(rows, terms)).astype(F) * F(rng.uniform(0.5, 4))
    scale = rng.uniform(0.001, 0.05, count if many else ()).astype(F)
    w = of("i8", scale, 0, 0) if many else of("i8", scale)
    bias = rng.normal(size=count).astype(F) if seed % 3 else None
    weights = rng.integers(-127, 128, (count, terms)).astype(np.int8)
    return Layer(x, Held(weights, w), bias, short, bool(seed & 2))


def steps(one: Layer) -> NDArray[np.float64]:
    """The data in units of its integers."""
    scale, _ = torch._choose_qparams_per_tensor(torch.from_numpy(one.x), one.short)
    return np.asarray(one.x.astype(np.float64) / scale)


def run_layers(name: str, layers: list[Layer]) -> list[Array]:
    """What an engine makes of each."""
    ops = torch.ops.quantized
    made: list[Array] = []
    with engine(name):
        for one in layers:
            bias = None if one.bias is None else torch.from_numpy(one.bias)
            packed = ops.linear_prepack(tensor(one.w), bias)
            run_it = ops.linear_relu_dynamic if one.relu else ops.linear_dynamic
            made.append(run_it(torch.from_numpy(one.x), packed, one.short).numpy())
    return made


def chosen(graph: Graph, x: Value, *, short: bool) -> tuple[Value, dict[str, Value]]:
    """The data's integers, and their numbers. What is chosen for seven bits is cut at eight."""
    attrs: dict[str, Attr] = {"rule": "torch.dynamic", "storage": dtype("u8")}
    attrs["scale_type"] = dtype("f64")
    if short:
        attrs["bounds"] = (0, 127)
    numbers = dict(
        zip(("scale", "zero"), graph.add("choose_qparams", {"x": x}, attrs).results, strict=True)
    )
    kind = x.type.with_element(CODES)
    return graph.add("quantize", {"x": x, **numbers}, types=[kind]).result, numbers


def held(graph: Graph, operands: Mapping[str, Held]) -> dict[str, Value]:
    """Weights and biases as constants."""
    return {
        slot: graph.constant(Stored(h.data, kind_of(h), slot))
        for slot, h in operands.items()
        if slot != "x"
    }


def computed(one: Layer, name: str) -> Array:
    """What QIR makes of it: numbers are chosen, the data quantized, the integers multiplied."""
    graph = Graph(profile=named(name))
    x = graph.add("input", types=[TensorType(one.x.shape, F32)], name="x").result
    q, numbers = chosen(graph, x, short=one.short)
    operands = {"w": one.w} if one.bias is None else {"w": one.w, "bias": Held(one.bias)}
    given = {"x": q, **held(graph, operands)} | {f"x.{n}": v for n, v in numbers.items()}
    y = graph.add("linear", given).result
    y = graph.add("relu", {"x": y}).result if one.relu else y
    graph.add("output", {"y": y})
    return run(graph, {"x": one.x})["y"]


@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("name", ENGINES)
def test_dynamic_linear_layers_are_the_engines(
    name: str, many: bool, vnni: ProcessPoolExecutor
) -> None:
    if name == "onednn" and named(name) == "torch-2.15.onednn":
        pytest.skip("it quantizes data otherwise than quantize, which the profile notes")
    layers = [layer(seed, many, short=False) for seed in range(40)]
    if name != "qnnpack":  # which does not know of seven bits
        layers += [layer(seed, many, short=True) for seed in range(40, 60)]
    tally = Tally()
    for seed, (one, wanted) in enumerate(
        zip(layers, vnni.submit(run_layers, name, layers).result(), strict=True)
    ):
        tally.add(computed(one, name), wanted, f"seed {seed}")
    halves = [np.abs(steps(one) % 1 - 0.5) < 1e-6 for one in layers]
    rich = np.concatenate([found.ravel() for found in halves])
    assert rich.mean() >= 0.05, f"{rich.mean():.3f} of the data lie on ties"
    query = Query("linear", {"x": "u8", "w": "i8"}, "channel" if many else "tensor")
    tally.within(profile(named(name)).resolve(query).claim)


# -- convolutions ---------------------------------------------------------------------------------


def convolution(seed: int, rank: int, many: bool) -> tuple[Asked, list[list[int]]]:
    """A convolution of any data; its weights have one scale, or one a channel."""
    rng = np.random.default_rng(seed)
    groups, into, outof = (int(rng.choice(v)) for v in ([1, 1, 2], [1, 2, 3, 8], [1, 2, 5]))
    kernel, stride, dilation = (int(rng.integers(1, n)) for n in (4, 3, 3))
    pad = int(rng.integers(0, kernel))
    count = groups * outof
    scale = rng.uniform(0.001, 0.05, count if many else ()).astype(F)
    sizes = [int(v) for v in rng.integers(6, 9, rank)]
    weights, step = draws.weights(rng, into * kernel**rank, count, into, *[kernel] * rank)
    if seed % 3:  # half of the sums, or more of them, lie half way between two integers of the data
        parts = rng.choice([0.5, 0.5, 0.5, 1.5, 0.75], scale.shape)
        scale = np.asarray(parts / step, F)
    operands = {
        "x": Held(rng.normal(size=(2, groups * into, *sizes)).astype(F)),
        "w": Held(weights, of("i8", scale, 0, 0) if many else of("i8", scale)),
    }
    if seed % 4:
        operands["bias"] = Held(rng.normal(size=count).astype(F))
    attrs: dict[str, Attr] = {
        "stride": (stride,) * rank,
        "pad": (pad,) * 2 * rank,
        "dilation": (dilation,) * rank,
        "groups": groups,
    }
    return Asked(f"conv{rank}d", operands, None, attrs), [
        [v] * rank for v in (stride, pad, dilation)
    ]


def spread(seed: int, rank: int) -> tuple[Asked, list[list[int]]]:
    """A transposed convolution of any data."""
    asked, sides = transposed(np.random.default_rng(seed), rank, False, False)
    return asked, sides


def with_data(asked: Asked, seed: int, *, short: bool) -> Asked:
    """The same for floats, of which two times of three half lie on ties, with biases of halves."""
    rng, levels = np.random.default_rng(seed + 100), 127 if short else 255
    shape, operands = asked.operands["x"].data.shape, dict(asked.operands)
    if seed % 3 == 0:
        x = rng.normal(size=shape).astype(F)
    else:
        half, zero = F(2.0 ** -int(rng.integers(3, 9))), 1 + 2 * int(rng.integers(levels // 2))
        x = rng.integers(-2 * zero, 2 * (levels - zero) + 1, shape) * half
        x.flat[0], x.flat[-1] = -2 * zero * half, 2 * (levels - zero) * half
        if (bias := operands.get("bias")) is not None:
            operands["bias"] = Held((rng.integers(-99, 99, bias.data.shape) * half).astype(F))
    return replace(asked, operands={**operands, "x": Held(np.asarray(x, F))})


def run_convolutions(
    name: str, cases: list[tuple[Asked, list[list[int]]]], short: bool
) -> list[Array]:
    """What an engine makes of each."""
    made: list[Array] = []
    with engine(name):
        for asked, sides in cases:
            bias = asked.operands.get("bias")
            packed = getattr(OPS, f"{asked.op}_prepack")(
                tensor(asked.operands["w"]),
                None if bias is None else torch.from_numpy(bias.data),
                *sides,
                asked.attrs["groups"],
            )
            x = torch.from_numpy(asked.operands["x"].data)
            made.append(getattr(OPS, f"{asked.op}_dynamic")(x, packed, short).numpy())
    return made


def convolved(asked: Asked, name: str, *, short: bool) -> Array:
    """What QIR makes of it: the result's integers have the numbers of the data's."""
    graph = Graph(profile=named(name))
    data = asked.operands["x"].data
    x = graph.add("input", types=[TensorType(data.shape, F32)], name="x").result
    q, numbers = chosen(graph, x, short=short)
    given = {"x": q, **held(graph, asked.operands)}
    plain = {"x": x, "w": graph.add("dequantize", {"x": given["w"]}).result}
    shape = graph.add(asked.op, plain, asked.attrs).result.type
    own = {f"x.{n}": v for n, v in numbers.items()}
    kind = shape.with_element(CODES)
    y = graph.add(asked.op, given | own | numbers, asked.attrs, types=[kind]).result
    graph.add("output", {"y": graph.add("dequantize", {"x": y} | own).result})
    graph.prune()
    return run(graph, {"x": data})["y"]


@pytest.mark.parametrize("form", ["tensor", "channel", "transposed"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["fbgemm", "x86", "qnnpack"])
def test_dynamic_convolutions_give_codes_of_the_datas_own_scale(
    name: str, rank: int, form: str, vnni: ProcessPoolExecutor
) -> None:
    """What lies beyond the range of the data is cut off, in the result as well."""
    if form == "transposed" and (name, rank) == ("qnnpack", 3):
        return  # nothing is claimed
    layers = [
        spread(seed, rank) if form == "transposed" else convolution(seed, rank, form == "channel")
        for seed in range(6 if rank == 3 else 16)
    ]
    tallies = defaultdict[str, Tally](Tally)
    for short in (False, True)[: 1 if name == "qnnpack" else 2]:
        cases = [
            (with_data(asked, seed, short=short), sides)
            for seed, (asked, sides) in enumerate(layers)
        ]
        made = vnni.submit(run_convolutions, name, cases, short).result()
        for seed, ((asked, _), wanted) in enumerate(zip(cases, made, strict=True)):
            storage = {"x": "u8", "w": "i8", "result": "u8"}
            grain = "channel" if form == "channel" else "tensor"
            query = Query(asked.op, storage, grain, attrs=dict(asked.attrs))
            claim = profile(named(name)).resolve(query).claim
            tallies[claim].add(convolved(asked, name, short=short), wanted, f"seed {seed}")
    for claim, tally in tallies.items():
        tally.within(claim)


@pytest.mark.parametrize("name", ENGINES)
def test_cells_add_two_dynamic_layers_and_go_on_in_floats(name: str) -> None:
    """Gates are sums of two exact layers of seven bits; the rest is within float32's last bits."""
    with engine(name):
        for seed in range(12):
            rng = np.random.default_rng(seed)
            rows, terms, hidden = (int(v) for v in rng.integers(2, 30, 3))
            sides = [layer_of(rng, rows, count, 4 * hidden) for count in (terms, hidden)]
            cell = rng.normal(size=(rows, hidden)).astype(F)
            packed = [
                torch.ops.quantized.linear_prepack(
                    tensor(s.w), torch.from_numpy(np.asarray(s.bias))
                )
                for s in sides
            ]
            x, h = (torch.from_numpy(s.x) for s in sides)
            state = [h, torch.from_numpy(cell)]
            made = torch.ops.quantized.quantized_lstm_cell_dynamic(x, state, *packed, None, None)
            gates = np.add(*(run_layers(name, [s])[0] for s in sides)).astype(np.float64)
            i, f, g, o = np.split(gates, 4, axis=1)
            c = cell * logistic(f) + logistic(i) * np.tanh(g)
            for mine, theirs in zip((logistic(o) * np.tanh(c), c), made, strict=True):
                assert np.abs(mine - theirs.numpy()).max() < 1e-6


def test_half_precision_layers_round_their_weights_and_sum_in_an_order_of_their_own() -> None:
    ops = torch.ops.quantized
    with engine("fbgemm"):
        for seed in range(12):
            rng = np.random.default_rng(seed)
            rows, terms, count = (int(v) for v in rng.integers(1, 71, 3))
            x, w = (rng.normal(size=(n, terms)).astype(F) for n in (rows, count))
            bias = rng.normal(size=count).astype(F)
            packed = ops.linear_prepack_fp16(torch.from_numpy(w), torch.from_numpy(bias))
            made = ops.linear_dynamic_fp16(torch.from_numpy(x), packed).numpy()
            half = w.astype(np.float16).astype(np.float64)
            exact = x.astype(np.float64) @ half.T + bias
            size = np.abs(x).astype(np.float64) @ np.abs(half).T + np.abs(bias)
            assert np.all(np.abs(made - exact) <= (terms + 2) * 2.0**-24 * size)


def layer_of(rng: np.random.Generator, rows: int, terms: int, count: int) -> Layer:
    x = rng.normal(size=(rows, terms)).astype(F)
    w = Held(
        rng.integers(-127, 128, (count, terms)).astype(np.int8),
        of("i8", F(rng.uniform(0.001, 0.01))),
    )
    return Layer(x, w, rng.normal(size=count).astype(F), short=True, relu=False)


def logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-x)))

"""Torch's dynamic layers, whose data is quantized as it comes, against its profiles' rules."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.ir.types import Array as Stored
from qir.ir.types import QuantType, TensorType
from qir.numerics import Query, profile
from qir.reference.interpreter import run

from .kernels_of_torch import Array, F, Held, Tally, engine, kind_of, of, processor, tensor

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)

ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")


@dataclass(frozen=True, eq=False)
class Layer:
    """A dynamic linear layer and its data."""

    x: NDArray[np.float32]
    w: Held
    bias: Array | None
    short: bool
    """Whether the data's codes are kept to seven bits."""
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
    """The data in units of its codes."""
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


def computed(one: Layer, name: str) -> Array:
    """What QIR makes of it: numbers are chosen, the data quantized, the codes multiplied."""
    graph = Graph(profile=f"torch-2.13.{name}")
    x = graph.add("input", types=[TensorType(one.x.shape, F32)], name="x").result
    attrs: dict[str, Attr] = {
        "rule": "torch.dynamic",
        "storage": dtype("u8"),
        "scale_type": dtype("f64"),
    }
    if one.short:
        attrs["bounds"] = (0, 127)
    scale, zero = graph.add("choose_qparams", {"x": x}, attrs).results
    bounds = (0, 127) if one.short else None
    code = QuantType(dtype("u8"), F32, None, None, bounds=bounds, scale_dtype=dtype("f64"))
    numbers = {"scale": scale, "zero": zero}
    q = graph.add("quantize", {"x": x, **numbers}, types=[TensorType(one.x.shape, code)]).result
    given = {"x": q, "w": graph.constant(Stored(one.w.data, kind_of(one.w), "w"))}
    if one.bias is not None:
        given["bias"] = graph.constant(Stored(one.bias, TensorType(one.bias.shape, F32), "b"))
    given |= {"x.scale": scale, "x.zero": zero}
    y = graph.add("linear", given).result
    y = graph.add("relu", {"x": y}).result if one.relu else y
    graph.add("output", {"y": y})
    return run(graph, {"x": one.x})["y"]


@pytest.fixture(scope="module")
def vnni() -> Iterator[ProcessPoolExecutor]:
    """A process whose oneDNN knows no more than VNNI."""
    with processor("AVX512_CORE_VNNI") as pool:
        yield pool


@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("name", ENGINES)
def test_dynamic_linear_layers_are_the_engines(
    name: str, many: bool, vnni: ProcessPoolExecutor
) -> None:
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
    tally.within(profile(f"torch-2.13.{name}").resolve(query).claim)


@pytest.mark.parametrize("name", ENGINES)
def test_cells_add_two_dynamic_layers_and_go_on_in_reals(name: str) -> None:
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

"""What Intel's extension for PyTorch computed, recorded, and what its profile says of it.

`make oracle-ipex` says how it is recorded again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.profiles.library import parameters_for_range, profile, quantize_by_profile
from qir.reference.interpreter import run
from tests.counting import note

VECTORS = Path(__file__).parents[1] / "vectors" / "ipex"
PROFILE = "ipex-2.8"
Codes = NDArray[np.generic]
F = np.float32


@dataclass(frozen=True)
class Record:
    """One module under one setting and plan: its arrays, scales and ops."""

    case: str
    key: str
    arrays: Mapping[str, Codes]
    tensors: Mapping[str, tuple[float, int]]
    ops: tuple[Mapping[str, object], ...]

    @property
    def storage(self) -> str:
        return "i8" if self.key.startswith("s8") else "u8"

    def op(self, name: str) -> dict[str, list[dict[str, int]]]:
        """The op of that path or kind, as IPEX lists it."""
        found = next(op for op in self.ops if name in (op["fqn"], op["op"]))
        return found  # type: ignore[return-value]

    def map(self, name: str, operand: int = 0) -> QuantType:
        """The map of an operand of an op."""
        scale, zero = self.tensors[str(self.op(name)["inputs"][operand]["id"])]
        return uniform(dtype(self.storage), F(scale), zero)

    @property
    def wanted(self) -> Codes:
        """Integers where the result was recovered as such, else floats."""
        carrier = np.int8 if self.storage == "i8" else np.uint8
        quantized = self.arrays.get("codes")
        return self.arrays["y_traced"] if quantized is None else quantized.astype(carrier)


def records(case: str) -> Iterator[Record]:
    """All of a case's file."""
    with np.load(VECTORS / f"{case}.npz") as file:
        said = json.loads(str(file["said"]))["cases"]
        arrays = {name: file[name] for name in file.files if name != "said"}
    for key, told in said.items():
        mine = {n.partition("/")[2]: a for n, a in arrays.items() if n.startswith(f"{key}/")}
        yield Record(case, key, mine, told["tensors"], tuple(told["ops"]))


class Program:
    """A graph under construction whose inputs are a record's."""

    def __init__(self, record: Record, name: str = PROFILE) -> None:
        self.record, self.graph = record, Graph(profile=name)
        self.fed: dict[str, Codes] = {}

    def input(self, name: str, quant: QuantType) -> Value:
        """An input and the integers that are made of it at the edge."""
        data = self.record.arrays[name]
        self.fed[name] = data
        node = self.graph.add("input", types=[TensorType(data.shape, F32)], name=name)
        made = TensorType(data.shape, quant)
        return self.graph.add("quantize", {"x": node.result}, types=[made]).result

    def constant(self, data: Codes, quant: QuantType | None = None) -> Value:
        kind = TensorType(data.shape, quant or dtype_of(data))
        return self.graph.constant(Array(data, kind))

    def weights(self, name: str) -> dict[str, Value]:
        """The integers of a layer's weights, one scale a channel, and its real bias."""
        floats = self.record.arrays[f"p.{name}.weight"]
        (scales,) = self.record.op(name)["weights"]
        quant = uniform(dtype("i8"), np.asarray(scales, np.float32), axis=0)
        made = {
            "w": self.constant(
                quantize_by_profile(profile(self.graph.profile), floats, quant), quant
            )
        }
        if f"p.{name}.bias" in self.record.arrays:
            made["bias"] = self.constant(self.record.arrays[f"p.{name}.bias"])
        return made

    def add(
        self,
        op: str,
        operands: Mapping[str, Value],
        quant: QuantType | None,
        *tails: tuple[str, Mapping[str, Value]],
        **attrs: Attr,
    ) -> Value:
        """An op, or a chain that starts with it; of integers, or real."""
        plain = Graph(profile=self.graph.profile)
        shapes = {s: TensorType(v.type.shape, F32) for s, v in operands.items()}
        inputs = {s: plain.add("input", types=[k]).result for s, k in shapes.items()}
        shape = plain.add(op, inputs, attrs).result.type.shape
        result = TensorType(shape, quant or F32)
        if not tails:
            return self.graph.add(op, operands, attrs, types=[result]).result
        stages = [Stage(op, spec(op).complete_attrs(attrs), tuple(operands))]
        given = dict(operands)
        for number, (name, beside) in enumerate(tails, 1):
            flow = "a" if name == "add" else "x"
            stages.append(Stage(name, spec(name).complete_attrs({}), tuple(beside), flow))
            given |= {f"{number}.{slot}": value for slot, value in beside.items()}
        return self.graph.add_chain(stages, given, result).result

    def run(self, result: Value) -> Codes:
        self.graph.add("output", {"y": result})
        return run(self.graph, self.fed)["y"]


def padding(record: Record, name: str) -> dict[str, Attr]:
    """The attributes of a convolution: padded to keep sizes, grouped where weights say so."""
    weight = record.arrays[f"p.{name}.weight"]
    half, channels = weight.shape[2] // 2, record.arrays["x0"].shape[1]
    return {"pad": (half,) * 4, "groups": channels // weight.shape[1]}


def layer(record: Record, name: str, *tails: str, to: QuantType | None) -> Codes:
    """A convolution or linear layer, with activations after it."""
    program = Program(record)
    conv = record.arrays[f"p.{name}.weight"].ndim == 4
    x = program.input("x0", record.map(name))
    operands = {"x": x, **program.weights(name)}
    chain: list[tuple[str, Mapping[str, Value]]] = [(tail, {}) for tail in tails]
    attrs = padding(record, name) if conv else {}
    return program.run(program.add("conv2d" if conv else "linear", operands, to, *chain, **attrs))


def same(record: Record, found: Codes) -> None:
    """AssertionError where a result is not what was recorded."""
    wanted = record.wanted
    assert found.dtype == wanted.dtype
    note(found, wanted)
    differ = int(np.count_nonzero(found != wanted))
    assert not differ, f"{record.case} {record.key}: {differ} of {wanted.size} differ"


@pytest.mark.parametrize("case", ["quantize", "quantize_random"])
def test_what_is_quantized_at_the_edge_is_predicted(case: str) -> None:
    for record in records(case):
        program = Program(record)
        same(record, program.run(program.input("x0", record.map("probe"))))


LAYERS = {
    "conv": ("c",),
    "conv_wide": ("c",),
    "conv_nobias": ("c",),
    "conv_relu": ("c", "relu"),
    "depthwise": ("c",),
    "linear": ("l",),
    "linear_wide": ("l",),
    "linear_relu": ("l", "relu"),
    "linear_gelu": ("l", "gelu"),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers_are_predicted(case: str) -> None:
    name, *tails = LAYERS[case]
    for record in records(case):
        same(record, layer(record, name, *tails, to=record.map("probe")))


RICH = [
    ("conv", "conv_wide", "conv_nobias", "conv_relu", "depthwise"),
    ("linear", "linear_wide", "linear_relu"),
]


@pytest.mark.parametrize("cases", RICH, ids=lambda cases: str(cases[0]))
def test_the_recorded_layers_are_rich(cases: tuple[str, ...]) -> None:
    ties = low = high = total = 0
    for record in (record for case in cases for record in records(case)):
        quant = record.map("probe")
        steps = layer(record, LAYERS[record.case][0], to=None).astype(np.float64)
        steps = steps / quant.scales() + quant.zeros()
        ties += int(np.count_nonzero(np.abs(steps - np.floor(steps) - 0.5) < 1e-4))
        low += int(np.count_nonzero(np.rint(steps) < quant.low))
        high += int(np.count_nonzero(np.rint(steps) > quant.high))
        total += steps.size
    assert min(ties, low, high) >= 0.05 * total, f"{ties} ties, {low} low, {high} high of {total}"


@pytest.mark.parametrize("case", ["conv_float", "linear_float", "weight_quantize"])
def test_layers_with_real_results_are_predicted(case: str) -> None:
    for record in records(case):
        same(record, layer(record, "c" if case == "conv_float" else "l", to=None))


@pytest.mark.parametrize("case", ["conv_add", "conv_add_relu"])
def test_sums_in_a_convolution_are_predicted(case: str) -> None:
    for record in records(case):
        program = Program(record)
        x = program.input("x0", record.map("c"))
        summand = program.input("x1", record.map("add", 1))
        tails: list[tuple[str, Mapping[str, Value]]] = [("add", {"b": summand})]
        tails += [("relu", {})] if case.endswith("relu") else []
        operands, attrs = {"x": x, **program.weights("c")}, padding(record, "c")
        same(
            record,
            program.run(program.add("conv2d", operands, record.map("probe"), *tails, **attrs)),
        )


def test_sums_of_two_layers_are_predicted() -> None:
    for record in records("linear_add"):
        program = Program(record)
        first = {"x": program.input("x0", record.map("l")), **program.weights("l")}
        other = {"x": program.input("x1", record.map("l2")), **program.weights("l2")}
        summand = program.add("linear", other, None)
        made = program.add("linear", first, record.map("probe"), ("add", {"b": summand}))
        same(record, program.run(made))


def framed(record: Record) -> Record:
    """Of three axes as one of several batches."""
    arrays = {n: a[None] if a.ndim == 3 else a for n, a in record.arrays.items()}
    return replace(record, arrays=arrays)


@pytest.mark.parametrize("case", ["matmul", "bmm_requant", "bmm_float"])
def test_products_of_two_results_are_predicted(case: str) -> None:
    """A batch of products is one of four axes: of three the extension computes in floats."""
    for record in map(framed, records(case)):
        program, name = Program(record), case[:6] if case == "matmul" else "bmm"
        slots = zip("ab", ("x0", "x1"), strict=True)
        operands = {s: program.input(x, record.map(name, i)) for i, (s, x) in enumerate(slots)}
        to = None if case == "bmm_float" else record.map("probe")
        same(record, program.run(program.add("matmul", operands, to)))


def test_sums_of_codes_are_predicted() -> None:
    for record in records("add"):
        program = Program(record)
        slots = zip("ab", ("x0", "x1"), strict=True)
        operands = {s: program.input(x, record.map("add", i)) for i, (s, x) in enumerate(slots)}
        same(record, program.run(program.add("add", operands, record.map("probe"))))


OBSERVED = {
    "conv": "c",
    "conv_float": "c",
    "conv_wide": "c",
    "depthwise": "c",
    "linear": "l",
    "linear_relu": "l",
    "quantize_random": "probe",
}


def chosen() -> Iterator[tuple[Codes, Scheme, Codes, Codes]]:
    """Floats that an observer has seen, what was wanted, and the scale and zero point it chose."""
    for case, name in OBSERVED.items():
        for record in (r for r in records(case) if r.key.endswith("minmax")):
            fixed = 128 if record.key.startswith("u8sym") else None
            wanted = Scheme(dtype(record.storage), symmetric="sym" in record.key, zero=fixed)
            scale, zero = record.tensors[str(record.op(name)["inputs"][0]["id"])]
            yield record.arrays["x0"].reshape(1, -1), wanted, np.array([scale], F), np.array([zero])
            if name != "probe":
                weight = record.arrays[f"p.{name}.weight"]
                scales = np.asarray(record.op(name)["weights"][0], F)
                wanted = Scheme(dtype("i8"), symmetric=True, granularity="channel")
                yield weight.reshape(scales.size, -1), wanted, scales, np.zeros(scales.size)


def test_scales_are_chosen_as_by_its_observers() -> None:
    for data, wanted, scale, zero in chosen():
        made = parameters_for_range(profile(PROFILE), data.min(1), data.max(1), wanted)
        assert (made[0] == scale).all()
        assert (made[1] == zero).all()


POOLS: Mapping[str, tuple[str, Mapping[str, Attr]]] = {
    "maxpool": ("max_pool2d", {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)}),
    "avgpool": ("avg_pool2d", {"kernel": (2, 2), "stride": (2, 2), "count_pad": True}),
    "avgpool_oblong": ("avg_pool2d", {"kernel": (2, 7), "count_pad": True}),
    "avgpool_pad": (
        "avg_pool2d",
        {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1), "count_pad": True},
    ),
    "avgpool_pad_valid": (
        "avg_pool2d",
        {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1), "count_pad": False},
    ),
}


def fronted(program: Program) -> Value:
    """The integers behind a convolution that gives each channel a factor, or keeps it as it is."""
    record = program.record
    operands = {"x": program.input("x0", record.map("front")), **program.weights("front")}
    return program.add("conv2d", operands, record.map("p"))


@pytest.mark.parametrize("case", POOLS)
def test_pools_are_predicted(case: str) -> None:
    op, attrs = POOLS[case]
    for record in records(case):
        program = Program(record)
        same(
            record,
            program.run(program.add(op, {"x": fronted(program)}, record.map("probe"), **attrs)),
        )


@pytest.mark.parametrize(
    "case", ["adaptive_avgpool", "adaptive_avgpool1", "adaptive_avgpool_oblong"]
)
def test_adaptive_pools_are_predicted(case: str) -> None:
    for record in records(case):
        program, size = Program(record), record.wanted.shape[2:]
        x = {"x": fronted(program)}
        same(
            record, program.run(program.add("adaptive_avg_pool", x, record.map("probe"), size=size))
        )


@pytest.mark.parametrize(("case", "window"), [("relu", 1), ("flatten", 2)])
def test_what_stands_behind_a_pool_is_predicted(case: str, window: int) -> None:
    """A relu to a map of its own, which is computed in floats, and integers that only move."""
    for record in records(case):
        program, sides = Program(record), {"kernel": (window,) * 2, "stride": (window,) * 2}
        x = program.add("max_pool2d", {"x": fronted(program)}, record.map("f"), **sides)
        same(record, program.run(program.add(case, {"x": x}, record.map("probe"))))


def test_what_becomes_real_at_the_end_is_predicted() -> None:
    for record in records("dequantize"):
        if not record.key.endswith("minmax"):
            continue  # IPEX keeps the scale it observed there, which the file does not say
        program = Program(record)
        made = program.graph.add("dequantize", {"x": fronted(program)}).result
        same(record, program.run(made))

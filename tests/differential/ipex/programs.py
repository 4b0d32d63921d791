"""Programs in QDQ form that Intel's extension for PyTorch ran, made from seeds, rich in ties.

`tests.oracles.ipex_programs` runs them there and keeps what came out; `test_ipex_programs` makes
them again and holds the profile to it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, QuantType, TensorType, uniform

VECTORS = Path(__file__).parents[1] / "vectors" / "ipex"
PROFILE = "ipex-2.8"
Codes = NDArray[np.generic]
Plan: TypeAlias = Literal["dyadic", "parting"]
Attrs: TypeAlias = "Mapping[str, Attr]"
F = np.float32
GAIN = F(1.5)
"""About how many steps of a result a step of the sum is: every second or fourth sum is on a tie."""


@dataclass
class Program:
    """A graph under construction, and what it is fed."""

    name: str
    storage: str = "u8"
    plan: Plan = "parting"
    graph: Graph = field(default_factory=lambda: Graph(profile=PROFILE))
    feeds: dict[str, Codes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seed_text = f"{self.name} {self.storage} {self.plan}"
        self.rng = np.random.default_rng(zlib.crc32(seed_text.encode()))
        self.x_scale, self.y_scale = F(0.25), F(0.5)
        while self.plan == "parting":
            x, y = (F(v) for v in self.rng.uniform(0.02, 0.2, 2))
            w = F(y * GAIN / x)
            # Scales are drawn until the three ways to divide by them round differently.
            if F(F(x * w) * F(F(1) / y)) != F(F(x * w) / y) or F(x * F(w / y)) != F(F(x * w) / y):
                self.x_scale, self.y_scale = x, y
                break
        self.results_in(self.y_scale)

    def results_in(self, scale: float | np.float32) -> None:
        """Takes weights of which a layer's sums are results of that scale."""
        self.y_scale = F(scale)
        self.w_scale = F(self.y_scale * GAIN / self.x_scale)

    @property
    def key(self) -> str:
        """What its result is kept under."""
        return f"{self.name}/{self.storage}.{self.plan}"

    def map(self, scale: float | np.float32) -> QuantType:
        """Returns a type with an odd zero point near the middle."""
        low, high = dtype(self.storage).bounds
        zero = int(self.rng.integers(low + 90, high - 90)) | 1
        return uniform(dtype(self.storage), F(scale), zero)

    def integers(
        self, shape: tuple[int, ...], quant: QuantType, reach: int = 4, share: float = 0.25
    ) -> Value:
        """An input of integers near zero, and in every second row others too, dequantized."""
        low, high = quant.storage.bounds
        integers = np.asarray(quant.zeros()) + self.rng.integers(-reach, reach + 1, shape)
        odd_rows = np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)) % 2
        replaced = self.rng.random(shape) < share * odd_rows
        integers = np.where(
            replaced, self.rng.integers(low, high + 1, shape), np.clip(integers, low, high)
        )
        data = integers.astype(quant.storage.carrier)
        value = self.fed(data, TensorType(shape, quant))
        return self.op("dequantize", {"x": value})

    def floats(self, shape: tuple[int, ...], scale: float = 1.0) -> Value:
        data = (self.rng.normal(size=shape) * scale).astype(F)
        return self.fed(data, TensorType(shape, F32))

    def fed(self, data: Codes, kind: TensorType) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = data
        return self.graph.add("input", types=[kind], name=name).result

    def constant(self, data: Codes) -> Value:
        values = np.asarray(data, F)
        return self.graph.constant(Array(values, TensorType(values.shape, F32)))

    def weights(
        self, shape: tuple[int, ...], axis: int = 0, reach: int = 9
    ) -> tuple[Value, NDArray[np.float32]]:
        """Integers of weights, one scale a channel, dequantized; and the scales."""
        scales = (self.w_scale * self.rng.choice([0.5, 1, 1, 2], shape[axis])).astype(F)
        data = self.rng.integers(-reach, reach + 1, shape).astype(np.int8)
        kind = TensorType(shape, uniform(dtype("i8"), scales, axis=axis))
        constant = self.graph.constant(Array(data, kind))
        return self.op("dequantize", {"x": constant}), scales

    def bias(self, scales: NDArray[np.float32], step: float = 0.5) -> Value:
        """Steps of a sum, of which `step` are the least there is of them."""
        steps = self.rng.integers(-80, 81, scales.size) * F(step)
        return self.constant(steps.astype(F) * np.asarray(self.x_scale * scales, F))

    def op(self, name: str, operands: Mapping[str, Value], attrs: Attrs | None = None) -> Value:
        return self.graph.add(name, operands, attrs or {}).result

    def coded(self, value: Value, quant: QuantType) -> Value:
        kind = TensorType(value.type.shape, quant)
        return self.graph.add("quantize", {"x": value}, types=[kind]).result

    def ends(self, value: Value, quant: QuantType | None) -> Program:
        """The program with that result, as integers if a map is given."""
        result = value if quant is None else self.coded(value, quant)
        self.graph.rename(result, "y")
        self.graph.add("output", {"y": result})
        return self


def window(axes: int, stride: int = 1) -> dict[str, Attr]:
    """Returns attributes of a convolution of 3 along each axis; stride 1 keeps sizes."""
    return {"pad": (1,) * (2 * axes), "stride": (stride,) * axes, "dilation": (1,) * axes}


def layer(
    program: Program,
    op: str,
    *,
    stride: int = 1,
    groups: int = 1,
    channels: int = 16,
    sizes: tuple[int, ...] = (5, 5, 5),
) -> Value:
    """Adds a convolution, transposed or not, or a linear layer, with a bias."""
    quant = program.map(program.x_scale)
    if op == "linear":
        x = program.integers((24, 18), quant)
        w, scales = program.weights((channels, 18))
        return program.op(op, {"x": x, "w": w, "bias": program.bias(scales)})
    axes, turned = int(op[-2]), op.startswith("conv_t")
    x = program.integers((2, 4, *sizes[:axes]), quant)
    inner = (channels // groups if turned else 4 // groups, *((3,) * axes))
    most = 5 if axes == 3 else 9
    w, scales = program.weights((4 if turned else channels, *inner), int(turned), most)
    attrs: dict[str, Attr] = window(axes, stride) | {"groups": groups}
    return program.op(op, {"x": x, "w": w, "bias": program.bias(scales)}, attrs)


ACTIVATIONS: Mapping[str, tuple[str, Attrs]] = {
    "relu": ("relu", {}),
    "gelu": ("gelu", {}),
    "gelu_tanh": ("gelu", {"approximate": "tanh"}),
    "sigmoid": ("sigmoid", {}),
    "tanh": ("tanh", {}),
    "silu": ("silu", {}),
    "mish": ("mish", {}),
    "mish_fine": ("mish", {}),
    "hard_swish": ("hard_swish", {}),
    "hard_sigmoid": ("hard_sigmoid", {"alpha": 1 / 6}),
    "leaky_relu": ("leaky_relu", {"alpha": 0.75}),
    "leaky_relu_tenth": ("leaky_relu", {"alpha": 0.1}),
    "elu": ("elu", {}),
    "elu_third": ("elu", {"alpha": 0.3}),
    "relu6": ("clip", {"min": 0.0, "max": 6.0}),
    "hardtanh": ("clip", {"min": -1.0, "max": 1.0}),
    "abs": ("abs", {}),
    "square": ("square", {}),
    "exp": ("exp", {}),
}
SMALL = {"sigmoid": 1 / 256, "hard_sigmoid": 1 / 256, "tanh": 1 / 128}
"""Steps of results that lie within 1."""
CUT = {"relu6": 3 / 64, "hardtanh": 1 / 128, "mish_fine": 1 / 8}
"""Steps of sums that are cut off where their integers end, about, or are near what a curve
makes."""
STORAGES = ("u8", "i8")
PLANS: tuple[Plan, ...] = ("dyadic", "parting")


def each(name: str) -> Iterator[Program]:
    """Yields programs of each storage and plan."""
    for storage in STORAGES:
        for plan in PLANS:
            yield Program(name, storage, plan)


def activated(head: str) -> Iterator[Program]:
    """A layer with each activation behind it."""
    for name, (op, attrs) in ACTIVATIONS.items():
        for program in each(f"{head}_{name}"):
            program.results_in(CUT.get(name, program.y_scale))
            result = program.op(op, {"x": layer(program, head)}, attrs)
            yield program.ends(result, program.map(SMALL.get(name, program.y_scale)))


def lines() -> Iterator[Program]:
    """Convolutions along one axis and three, and transposed ones."""
    for op in ("conv1d", "conv3d", "conv2d"):
        for stride, groups in ((1, 1), (2, 2)):
            for program in each(f"{op}_{stride}"):
                result = layer(program, op, stride=stride, groups=groups)
                yield program.ends(result, program.map(program.y_scale))
    for op in ("conv1d", "conv3d"):
        for program in each(f"{op}_relu"):
            result = program.op("relu", {"x": layer(program, op)})
            yield program.ends(result, program.map(program.y_scale))


def transposed() -> Iterator[Program]:
    for op in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
        for stride in (1, 2):
            for program in each(f"{op}_{stride}"):
                result = layer(program, op, stride=stride, channels=8)
                yield program.ends(result, program.map(program.y_scale))


def sums() -> Iterator[Program]:
    """Layers and integers that are added to them, on either side."""
    for op in ("conv2d", "linear"):
        for tail in ("", "relu"):
            for program in each(f"{op}_sum_{tail}".strip("_")):
                result = layer(program, op)
                shape = tuple(int(str(d)) for d in result.type.shape)
                share = F(0.5 if program.storage == "u8" else 0.75)
                summand = program.integers(shape, program.map(program.y_scale * share), reach=20)
                slots = ("b", "a") if program.storage == "u8" else ("a", "b")
                result = program.op("add", dict(zip(slots, (result, summand), strict=True)))
                result = program.op("relu", {"x": result}) if tail else result
                yield program.ends(result, program.map(program.y_scale))


SIDES = {
    "two": ((24, 18), (18, 16)),
    "four": ((2, 2, 12, 18), (2, 2, 18, 8)),
    "three_by_two": ((2, 12, 18), (18, 16)),
}


PRODUCTS = 4
"""About how many steps of a layer's result are one of a product's."""


def products() -> Iterator[Program]:
    """Products of two results."""
    for name, (a, b) in SIDES.items():
        for tail in ("", "relu"):
            for program in each(f"matmul_{name}_{tail}".strip("_")):
                yield product(program, a, b, tail)


def three_axes() -> Iterator[Program]:
    """Products of three axes, which are computed in floats: sums of up to 384 terms."""
    for terms in (1, 7, 18, 33, 64, 129, 384):
        for rows, columns in ((2, 1), (5, 3), (9, 16), (16, 17)):
            for program in each(f"matmul_three_{terms}_{rows}"):
                yield product(program, (2, rows, terms), (2, terms, columns), "")
    for program in each("matmul_three_relu"):
        yield product(program, (2, 12, 18), (2, 18, 8), "relu")


def product(program: Program, a: tuple[int, ...], b: tuple[int, ...], tail: str) -> Program:
    first = program.integers(a, program.map(program.x_scale))
    second = program.integers(b, program.map(program.w_scale * F(2)))
    result = program.op("matmul", {"a": first, "b": second})
    result = program.op(tail, {"x": result}) if tail else result
    return program.ends(result, program.map(program.y_scale * F(PRODUCTS)))


def norms() -> Iterator[Program]:
    """Softmax and layer norm, of integers and of floats."""
    for program in each("softmax"):
        x = program.integers((2, 3, 24, 10), program.map(program.x_scale))
        yield program.ends(program.op("softmax", {"x": x}, {"axis": -1}), program.map(1 / 256))
    for program in each("softmax_of_reals"):
        x = program.floats((2, 3, 24, 10), 3.0)
        yield program.ends(program.op("softmax", {"x": x}, {"axis": -1}), program.map(1 / 256))
    for program in each("layer_norm"):
        x = program.integers((40, 33), program.map(program.x_scale))
        gamma, beta = (program.constant(program.rng.normal(size=33)) for _ in range(2))
        result = program.op("layer_norm", {"x": x, "gamma": gamma, "beta": beta})
        yield program.ends(result, program.map(0.03))


def attention() -> Iterator[Program]:
    """Shares of one product times another, as transformers have them: no kernel has both."""
    for form in ("plain", "div", "mul", "mask"):
        for rows, terms, size in ((20, 26, 32), (7, 35, 33), (1, 12, 8)):
            for program in each(f"attention_{form}_{size}"):
                q, k, v = (
                    program.integers((2, 2, count, size), program.map(F(0.03) * program.x_scale))
                    for count in (rows, terms, terms)
                )
                turned = program.op("transpose", {"x": k}, {"perm": (0, 1, 3, 2)})
                result = program.op("matmul", {"a": q, "b": turned})
                if form != "plain":
                    by = program.constant(np.array(4.0 if form == "div" else 0.25))
                    op = "div" if form == "div" else "mul"
                    result = program.op(op, {"a": result, "b": by})
                if form == "mask":
                    hidden = np.where(np.arange(terms) % 3, 0.0, -5.0)
                    result = program.op("add", {"a": result, "b": program.constant(hidden)})
                share = program.op("softmax", {"x": result}, {"axis": -1})
                share = program.coded(share, uniform(dtype(program.storage), F(1 / 256)))
                share = program.op("dequantize", {"x": share})
                result = program.op("matmul", {"a": share, "b": v})
                step = F(12 / 256) * F(0.03) if program.plan == "dyadic" else F(0.002)
                yield program.ends(result, program.map(step * program.x_scale))


LENGTHS = (1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 70, 95, 127, 129, 150, 223, 1001)


def added() -> Iterator[Program]:
    """Sums of integers of lengths that fill vectors and do not, maps alike and not."""
    for length in LENGTHS:
        for number in range(4):
            for program in each(f"add_{length}_{number}"):
                a, b = (F(v) for v in program.rng.uniform(0.003, 0.3, 2))
                b = a if number % 2 else b
                a, b = (F(0.375), F(0.375)) if program.plan == "dyadic" else (a, b)
                first = program.integers((length,), program.map(a), share=0.6)
                right = program.integers((length,), program.map(b), share=0.6)
                result = program.op("add", {"a": first, "b": right})
                yield program.ends(result, program.map(a / GAIN))


IMAGES = ((2, 2), (5, 5), (4, 6), (2, 3), (4, 3), (2, 5))
"""Of means of an even count some are on ties."""
MEANS: Mapping[str, Attrs] = {"global_avg_pool": {}, "adaptive_avg_pool": {"size": (2, 2)}}


def means() -> Iterator[Program]:
    """Means of images, whole and in parts, behind a convolution, which lays channels last."""
    for channels, sizes in zip((1, 5, 16, 37, 64, 70), IMAGES, strict=True):
        for op, attrs in MEANS.items():
            for program in each(f"mean_{op}_{channels}"):
                quant = program.map(program.y_scale)
                result = layer(program, "conv2d", channels=channels, sizes=sizes)
                result = program.op("dequantize", {"x": program.coded(result, quant)})
                yield program.ends(program.op(op, {"x": result}, attrs), quant)


def joined() -> Iterator[Program]:
    """Integers of several maps joined."""
    for program in each("concat"):
        parts = {
            f"xs.{i}": program.integers((2, 3 + i, 6, 6), program.map(program.x_scale * F(s)))
            for i, s in enumerate((1.0, 0.7))
        }
        result = program.op("concat", parts, {"axis": 1})
        yield program.ends(result, program.map(program.x_scale * F(1.1)))


def real_ends() -> Iterator[Program]:
    """Layers and products that end the model: their results are real."""
    for op in ("conv2d", "linear"):
        for program in each(f"{op}_real"):
            yield program.ends(layer(program, op, sizes=(4, 4)), None)
    for program in each("matmul_real"):
        first = program.integers((2, 2, 6, 18), program.map(program.x_scale))
        second = program.integers((2, 2, 18, 5), program.map(program.w_scale * F(2)))
        yield program.ends(program.op("matmul", {"a": first, "b": second}), None)


WINDOWS: Mapping[str, Attrs] = {
    "avg_pool2d": {"kernel": (2, 2), "stride": (2, 2), "count_pad": True},
    "max_pool2d": {"kernel": (2, 2), "stride": (2, 2)},
    "adaptive_avg_pool": {"size": (2, 2)},
    "global_avg_pool": {},
    "flatten": {},
    "relu": {},
}


def kept() -> Iterator[Program]:
    """What gives its data's map, behind a layer."""
    yield from _behind("kept", F(1))


def apart() -> Iterator[Program]:
    """The same to integers of another map, which no kernel on integers gives: every second is a
    tie."""
    yield from _behind("apart", GAIN)


def _behind(how: str, share: np.float32) -> Iterator[Program]:
    for op, attrs in WINDOWS.items():
        for program in each(f"{how}_{op}"):
            quant = program.map(program.y_scale * share)
            result = layer(program, "conv2d", sizes=(6, 6))
            result = program.op("dequantize", {"x": program.coded(result, quant)})
            output_type = quant if share == 1 else program.map(program.y_scale)
            yield program.ends(program.op(op, {"x": result}, attrs), output_type)


NARROW: Mapping[str, tuple[str, int, int, int]] = {
    "conv2d_3": ("conv2d", 3, 3, 1),
    "conv2d_4": ("conv2d", 4, 3, 1),
    "conv2d_33": ("conv2d", 33, 3, 1),
    "conv2d_1x1": ("conv2d", 33, 1, 1),
    "conv2d_groups": ("conv2d", 16, 3, 2),
    "conv2d_depthwise": ("conv2d", 16, 3, 16),
    "conv1d": ("conv1d", 16, 3, 1),
    "conv1d_1": ("conv1d", 17, 1, 1),
    "conv3d": ("conv3d", 8, 3, 1),
    "matmul": ("matmul", 18, 0, 1),
    "linear_7": ("linear", 7, 0, 1),
    "linear_18": ("linear", 18, 0, 1),
    "linear_64": ("linear", 64, 0, 1),
}
"""Layers whose pairs of terms 16 bits do not hold: op, channels, taps along an axis, groups."""
PROCESSORS = {"avx512": "AVX512_CORE", "avx2": "AVX2"}
"""Processors without VNNI, and what oneDNN is told to take this one for them."""


def narrow() -> Iterator[Program]:
    """Layers of extremes, with padding where the zero point times two weights fits 16 bits, and
    layers whose sums are small, some on ties."""
    for name, (op, channels, taps, groups) in NARROW.items():
        for storage in STORAGES if op not in ("conv3d", "matmul") else ("i8",):
            for kind, drawn in (("narrow", extreme), ("even", even)):
                program = Program(f"{kind}_{name}", storage, _plan(kind, storage))
                axes = int(op[-2]) if op.startswith("conv") else 0
                shape = (2, channels, *((5,) * axes)) if axes else (24, channels)
                inner = (16, channels // groups, *((taps,) * axes))
                x, w, scales = drawn(program, op, shape, inner)
                attrs: dict[str, Attr] = {}
                if op == "matmul":
                    y = program.op(op, {"a": x, "b": w})
                else:
                    attrs |= {"pad": (taps // 2,) * (2 * axes), "groups": groups} if axes else {}
                    bias = program.bias(scales, 2 if kind == "even" else 0.5)
                    y = program.op(op, {"x": x, "w": w, "bias": bias}, attrs)
                yield program.ends(y, program.map(program.y_scale))


def _plan(kind: str, storage: str) -> Plan:
    return "dyadic" if (kind, storage) == ("even", "u8") else "parting"


Drawn: TypeAlias = "tuple[Value, Value, NDArray[np.float32]]"
"""Data and weights, and the scales of these."""


def _low(program: Program) -> QuantType:
    """A map whose zero point is below the middle."""
    low = dtype(program.storage).bounds[0]
    return uniform(
        dtype(program.storage), program.x_scale, low + int(program.rng.integers(90, 128))
    )


def extreme(program: Program, op: str, shape: tuple[int, ...], inner: tuple[int, ...]) -> Drawn:
    """Integers of which many are at the ends of their type; results come to both ends of theirs."""
    rng, (low, high), quant = program.rng, dtype(program.storage).bounds, _low(program)
    ends, all_codes = rng.choice([low, high, high - 3], shape), rng.integers(low, high + 1, shape)
    data = np.where(rng.random(shape) < 0.6, ends, all_codes).astype(quant.storage.carrier)
    x = program.op("dequantize", {"x": program.fed(data, TensorType(shape, quant))})
    ends, all_codes = rng.choice([-128, -127, 126, 127], inner), rng.integers(-128, 128, inner)
    weights = np.where(rng.random(inner) < 0.5, ends, all_codes).astype(np.int8)
    part = program.w_scale / F(150 * np.sqrt(weights[0].size))
    if op == "matmul":
        weight_type = uniform(dtype("i8"), part, 3)
        w = program.fed(np.ascontiguousarray(weights.T), TensorType(inner[::-1], weight_type))
        return x, program.op("dequantize", {"x": w}), np.array(())
    scales = (part * rng.choice([0.5, 1, 1, 2], 16)).astype(F)
    kind = TensorType(inner, uniform(dtype("i8"), scales, axis=0))
    constant = program.graph.constant(Array(weights, kind))
    return x, program.op("dequantize", {"x": constant}), scales


def even(program: Program, op: str, shape: tuple[int, ...], inner: tuple[int, ...]) -> Drawn:
    """Integers near zero, weights even, so that half of them is whole."""
    x = program.integers(shape, _low(program), share=0)
    if op == "matmul":
        quant = program.map(program.w_scale)
        return x, program.integers(inner[::-1], quant), np.array(())
    scales = (program.w_scale / F(2) * program.rng.choice([0.5, 1, 1, 2], 16)).astype(F)
    kind = TensorType(inner, uniform(dtype("i8"), scales, axis=0))
    reach = 2 if op == "conv3d" else 6
    data = (2 * program.rng.integers(-reach, reach + 1, inner)).astype(np.int8)
    constant = program.graph.constant(Array(data, kind))
    return x, program.op("dequantize", {"x": constant}), scales


FAMILIES = {
    "conv2d": lambda: activated("conv2d"),
    "linear": lambda: activated("linear"),
    "lines": lines,
    "transposed": transposed,
    "sums": sums,
    "products": products,
    "three_axes": three_axes,
    "norms": norms,
    "attention": attention,
    "added": added,
    "means": means,
    "joined": joined,
    "real_ends": real_ends,
    "kept": kept,
    "apart": apart,
}
"""Programs by what they have in common; a file of results for all."""


def some(family: str) -> Iterator[Program]:
    """One program of each op and storage: plans of numbers make no other kernels."""
    yielded = set()
    for program in FAMILIES[family]():
        key = program.name if family != "added" else program.name.rpartition("_")[2]
        if (key, program.storage) not in yielded:
            yielded.add((key, program.storage))
            yield program

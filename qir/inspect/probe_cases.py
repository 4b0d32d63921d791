"""Small programs on which the arithmetics that profiles can say part ways: rich in ties.

Every case is one quantized op, its inputs given as quantized values. Where scales meet, their
quotient is all but a power of two: every order in which they are multiplied lands on another side
of some tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import F32, I8, dtype
from qir.ir.graph import Graph
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array, DeclaredBounds, QuantType, TensorType, uniform

Tensor = NDArray[np.generic]
GranularityName: TypeAlias = Literal["tensor", "channel"]
Bias: TypeAlias = Literal["codes", "real", "none"]
float32 = np.float32


@dataclass(frozen=True, slots=True, eq=False)
class ProbeCase:
    """One op and what it is fed; `told` says what kind of case it is."""

    op: str
    told: str
    graph: Graph
    feeds: Mapping[str, Tensor]
    tail: tuple[str, ...] = ()
    """Ops that one kernel computes after it."""


@dataclass(frozen=True, slots=True)
class Forms:
    """What a runtime has kernels for, of what cases can ask."""

    ops: tuple[str, ...]
    storages: tuple[str, ...] = ("u8", "i8")
    products: tuple[str, ...] = ("u8",)
    """Storage types of the data of products; weights are i8."""
    grains: tuple[GranularityName, ...] = ("tensor", "channel")
    bias: Bias = "codes"
    special: tuple[GranularityName, ...] = ("tensor", "channel")
    """By which maps NaN, infinities and what 32 bits do not hold are quantized too."""
    rounds: int = 3
    """How many sets of numbers each op is given."""
    weights: tuple[GranularityName, ...] = ("tensor", "channel")
    """Whether weights have one scale, or one a channel."""
    zeros: Literal["odd", "none"] = "odd"
    """`none`: zero points are 0, and types declare a range, which runtimes receive."""
    about_zero: bool = False
    """Whether weights have no quantized value -128."""
    layout: str = "NCHW"
    tails: tuple[tuple[str, ...], ...] = ()
    """Rows of ops that one kernel computes, the first among `ops`."""
    padded: bool = True
    """Whether windows may stand beyond the edge."""
    joined: bool = True
    """Whether parts of other quantized types than the result's are put together."""
    parts: tuple[str, ...] = ("u8", "i8")
    """Storage types of what is put together."""
    whole_ends: bool = False
    """Whether shares and logistics come in steps of 1/256 from the least integer, and no others."""
    chosen: tuple[tuple[str, bool], ...] = (("u8", False),)
    """For which quantized values scales are chosen: storage, and whether about zero."""
    level: float = 0.0
    """By how much the level of a declared range is beyond the extreme quantized value."""
    wraps: bool = True
    """Whether sums may be longer than 32 bits hold."""
    depthwise: bool = False
    """Whether convolutions may have as many groups as channels."""

    def after(self, op: str) -> Iterator[tuple[str, ...]]:
        """Yields what may follow an op in its kernel; nothing first."""
        yield ()
        yield from (row[1:] for row in self.tails if row[0] == op)


def cases(forms: Forms) -> Iterator[ProbeCase]:
    """Yields the cases of a runtime, the same ones every time."""
    for op in forms.ops:
        yield from _MAKERS[op](op, forms)


# -- quantize and dequantize ----------------------------------------------------------------------

_SPECIAL = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, -0.0, 2.0**31], float32)


def _quantize(op: str, forms: Forms) -> Iterator[ProbeCase]:
    for storage in forms.storages:
        for granularity in forms.grains:
            for number in range(forms.rounds):
                rng = _generator(op, number)
                count = 3
                scales = rng.uniform(0.01, 0.3, count).astype(float32)
                scales[0] = float32(0.25)
                scale = scales if granularity == "channel" else scales[number % count]
                kind = _type(rng, storage, scale, forms)
                steps = rng.integers(-600, 601, (count, 997)) * float32(0.5)
                step = scales[:, None] if granularity == "channel" else scales[number % count]
                x = (steps.astype(float32) * step).astype(float32)
                # A third of the rows on ties, a third one ulp above, a third one ulp below.
                x[:, 200:400] = np.nextafter(x[:, 200:400], float32(np.inf))
                x[:, 400:600] = np.nextafter(x[:, 400:600], float32(-np.inf))
                if granularity in forms.special:
                    x[:, : len(_SPECIAL)] = _SPECIAL
                graph = Graph()
                value = graph.add("input", types=[TensorType(x.shape, F32)], name="x").result
                yield _case(
                    op, f"{storage}, {granularity}", graph, {"x": value}, {}, kind, {"x": x}
                )


def _dequantize(op: str, forms: Forms) -> Iterator[ProbeCase]:
    for storage in forms.storages:
        for granularity in forms.grains:
            rng = _generator(op, 0)
            scales = rng.uniform(0.01, 0.3, 5).astype(float32)
            kind = _type(rng, storage, scales if granularity == "channel" else scales[0], forms)
            x = np.tile(_every(storage), (5, 1))
            graph = Graph()
            value = _input(graph, "x", x, kind)
            node = graph.add(op, {"x": value}, name="y")
            graph.add("output", {"y": node.result})
            yield ProbeCase(op, f"{storage}, {granularity}", graph, {"x": x})


def _choose(op: str, forms: Forms) -> Iterator[ProbeCase]:
    """Ranges of which the scale, or the zero point, is wanted: ties, one-sided ones and tiny."""
    rng = _generator(op, 0)
    reach = np.exp2(rng.uniform(-12, 12, 400))
    x = np.sort(rng.normal(size=(400, 2)) * reach[:, None], axis=1).astype(float32)
    ties = rng.integers(0, 255, 100) + float32(0.5)
    steps = np.exp2(rng.integers(-6, 6, 100)).astype(float32)
    x[:100, 0], x[:100, 1] = -ties * steps, (255 - ties) * steps
    x[100:104] = np.array([[0, 0], [0, 1e-38], [-1e-42, 0], [3, 5]], float32)
    scales = rng.uniform(0.001, 0.1, 100).astype(float32)  # ties that no power of two makes exact
    x[104:204, 0], x[104:204, 1] = -ties * scales, (255 - ties) * scales
    for storage, symmetric in forms.chosen:
        for number, parameter in enumerate(("scale", "zero")):
            graph = Graph()
            value = graph.add("input", types=[TensorType(x.shape, F32)], name="x").result
            attrs: dict[str, Attr] = {"rule": "profile", "storage": dtype(storage)}
            attrs |= {"keep": (0,), "symmetric": symmetric}
            node = graph.add(op, {"x": value}, attrs, name="y")
            graph.add("output", {"y": node.results[number]})
            symmetry = "symmetric" if symmetric else "affine"
            yield ProbeCase(op, f"{storage} {symmetry}, {parameter}", graph, {"x": x})


# -- products -------------------------------------------------------------------------------------


def _product(op: str, forms: Forms) -> Iterator[ProbeCase]:
    for storage in forms.products:
        for granularity in forms.weights:
            for tail in forms.after(op):
                for number in range(2 if tail else forms.rounds):
                    yield _rounding(op, forms, storage, granularity, number, tail)
        yield _extremes(op, forms, storage)
        if op == "conv2d" and forms.depthwise:
            yield from (_depthwise(op, forms, storage, number) for number in range(forms.rounds))
    if op in ("matmul", "linear") and forms.wraps:
        for storage in forms.products:
            yield _wrapping(op, forms, storage)


def _rounding(
    op: str,
    forms: Forms,
    storage: str,
    granularity: GranularityName,
    number: int,
    tail: tuple[str, ...],
) -> ProbeCase:
    """Sums a good part of which are ties, or nearly."""
    rng = _generator(f"{op} {storage} {granularity}", number)
    channels, depth = 16, 18
    steps = np.exp2(rng.integers(3, 6, channels if granularity == "channel" else ())).astype(
        float32
    )
    x_scale, y_scale = _distinguishing(rng, number)
    w_scale = np.asarray(y_scale / (x_scale * steps), float32)
    if number == 0:
        x_scale, y_scale = float32(0.25), float32(0.5)
        w_scale = np.asarray(float32(2) / steps, float32)
    x_kind = _type(rng, storage, np.asarray(x_scale), forms)
    zero = int(np.asarray(x_kind.zeros()))
    w = rng.integers(-9, 10, (channels, depth)).astype(np.int8)
    anywhere = rng.choice(_every(storage), (160, depth))
    near_zero = np.clip(zero + rng.integers(-25, 26, anywhere.shape), *dtype(storage).bounds)
    x = np.where(rng.random(anywhere.shape) < 0.5, anywhere, near_zero).astype(anywhere.dtype)
    result_storage = _result_storage(storage, forms, tail)
    y_kind = _type(rng, result_storage, np.asarray(y_scale), forms)
    if number % 2 and tail and tail[-1] in ("relu", "clip") and forms.zeros == "odd":
        y_kind = uniform(dtype(result_storage), y_scale, dtype(result_storage).bounds[0])
    unit = np.asarray(w_scale * x_scale, float32)
    text = f"{storage} x i8, {granularity}"
    bias = (forms.bias, unit, rng)
    return _products(op, text, (x, x_kind), (w, w_scale), y_kind, bias, forms, tail)


def _result_storage(storage: str, forms: Forms, tail: tuple[str, ...]) -> str:
    """Returns the storage type of a product's result."""
    if forms.zeros == "odd":
        return storage
    return "u8" if tail and tail[-1] == "relu" else "i8"


def _distinguishing(rng: np.random.Generator, number: int) -> tuple[np.float32, np.float32]:
    """Scales of data and result for which, with weights of their quotient, orders part ways."""
    while True:
        x, y = (float32(v) for v in rng.uniform(0.02, 0.2, 2))
        w = float32(y / x)
        plain = float32(float32(x * w) / y)
        inverted = float32(float32(1) / float32(float32(1) / x))
        alternatives = (
            float32(x * float32(w / y)),
            float32(float32(x * w) * float32(float32(1) / y)),
            float32(float32(inverted * w) / y),
        )
        # Random scales until the orders of multiplication round to different sides.
        if plain == 1 and alternatives[number % 3] != plain:
            return x, y


def _extremes(op: str, forms: Forms, storage: str) -> ProbeCase:
    """Pairs of products that leave 16 bits, and sums that saturate."""
    rng = _generator(f"{op} {storage} extremes", 0)
    ends = np.array(dtype(storage).bounds)
    x = rng.choice(ends, (80, 18)).astype(dtype(storage).carrier)
    least = -127 if forms.about_zero else -128
    w = rng.choice(np.array([least, 127, 126, -3]), (16, 18)).astype(np.int8)
    kinds = (storage, 0.11), (_result_storage(storage, forms, ()), 23.7)
    x_kind, y_kind = (_type(rng, kind, np.asarray(float32(s)), forms) for kind, s in kinds)
    scale = np.asarray(float32(0.07))
    unit = np.asarray(float32(0.11) * scale, float32)
    text = f"{storage} x i8, tensor"
    return _products(op, text, (x, x_kind), (w, scale), y_kind, (forms.bias, unit, rng), forms)


def _depthwise(op: str, forms: Forms, storage: str, number: int) -> ProbeCase:
    """Returns one channel a group: taps that leave 16 bits two by two, or sums that are ties."""
    rng = _generator(f"{op} {storage} depthwise", number)
    low, high = dtype(storage).bounds
    channels, largest = 24, 9 if number else 127
    x = rng.integers(low, high + 1, (2, channels, 9, 8)).astype(dtype(storage).carrier)
    w = rng.integers(-largest, largest + 1, (channels, 1, 3, 3)).astype(np.int8)
    x_scale, y_scale = _distinguishing(rng, number)
    w_scale = np.asarray(y_scale / (x_scale * float32(8 if number else 512)), float32)
    x_kind, y_kind = (_type(rng, storage, np.asarray(s), forms) for s in (x_scale, y_scale))
    attrs: dict[str, Attr] = {"pad": (1, 1, 1, 1), "groups": channels}
    graph = Graph()
    operands = {
        "x": _input(graph, "x", x, x_kind),
        "w": _constant(graph, "w", w, uniform(I8, w_scale, name="w")),
    }
    if forms.bias == "real":
        bias = rng.integers(-80, 81, (channels,)) * float32(0.5) * float32(w_scale * x_scale)
        operands["bias"] = graph.constant(Array.of(bias.astype(float32), "bias"))
    return _case(op, f"{storage} x i8, depthwise", graph, operands, attrs, y_kind, {"x": x})


def _volumes(op: str, forms: Forms) -> Iterator[ProbeCase]:
    """One channel a group, weights with a zero point, and windows whose integers leave 16 bits."""
    for storage in forms.products:
        for number in range(forms.rounds):
            rng = _generator(f"{op} {storage}", number)
            channels, taps = 8, 7
            x = rng.choice(_every(storage), (1, channels, 4, 5, 6))
            w = rng.integers(-9, 10, (channels, 1, taps, taps, taps)).astype(np.int8)
            x_scale, y_scale = _distinguishing(rng, number)
            w_scale = np.asarray(y_scale / (x_scale * float32(256)), float32)
            x_kind, y_kind = (_type(rng, storage, np.asarray(s), forms) for s in (x_scale, y_scale))
            zero = np.asarray(rng.choice([-3, 1, 5]))
            graph = Graph()
            operands = {
                "x": _input(graph, "x", x, x_kind),
                "w": _constant(graph, "w", w, uniform(I8, w_scale, zero, name="w")),
            }
            attrs: dict[str, Attr] = {"pad": (taps // 2,) * 6, "groups": channels}
            text = f"{storage} x i8, depthwise"
            yield _case(op, text, graph, operands, attrs, y_kind, {"x": x})


def _wrapping(op: str, forms: Forms, storage: str) -> ProbeCase:
    """Returns a sum that 32 bits do not hold."""
    low, high = dtype(storage).bounds
    depth = 135_300 if low else 66_300
    x = np.full((2, depth), high, dtype(storage).carrier)
    x[1, ::3] = low
    w = np.full((2, depth), 127, np.int8)
    w[1] = -128
    x_kind, y_kind = (uniform(dtype(storage), float32(s), low) for s in (0.01, 2e4))
    text = f"{storage} x i8, tensor"
    bias = ("none", np.asarray(float32(1)), _generator(op, 0))
    return _products(op, text, (x, x_kind), (w, np.asarray(float32(0.1))), y_kind, bias, forms)


def _products(
    op: str,
    text: str,
    data: tuple[Tensor, QuantType],
    weights: tuple[Tensor, NDArray[np.floating]],
    y_kind: QuantType,
    bias: tuple[str, NDArray[np.floating], np.random.Generator],
    forms: Forms,
    tail: tuple[str, ...] = (),
) -> ProbeCase:
    """Rows of data times rows of weights, laid out as the op takes them."""
    (x, x_kind), (w, w_scale), (bias_kind, unit, rng) = data, weights, bias
    attrs: dict[str, Attr] = {}
    slots, w_axis = ("x", "w", "bias"), 0
    if op == "conv2d":
        image = np.resize(x, (4, 2, 12, 12))
        x, w = image, w.reshape(len(w), 2, 3, 3)
        attrs = {"pad": (1, 1, 1, 1), "layout": forms.layout}
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if forms.layout == "NHWC" else x
    elif op in ("matmul", "gemm"):
        slots, w, w_axis = ("a", "b", "c"), np.ascontiguousarray(w.T), 1
    graph = Graph()
    data_value = _input(graph, slots[0], x, x_kind)
    kind = uniform(I8, w_scale, axis=w_axis if w_scale.ndim else None, name="w")
    if forms.zeros == "none":
        kind = _declared_type("i8", w_scale, w_axis if w_scale.ndim else None)
    operands = {slots[0]: data_value, slots[1]: _constant(graph, slots[1], w, kind)}
    count = w.shape[w_axis]
    if bias_kind == "codes" and op != "matmul":
        integer_bias = rng.integers(-40, 41, (count,)).astype(np.int32)
        operands[slots[2]] = graph.constant(Array.of(integer_bias, slots[2]))
    elif bias_kind == "real" and op != "matmul":
        float_bias = np.asarray(rng.integers(-80, 81, (count,)) * float32(0.5) * unit, float32)
        operands[slots[2]] = graph.constant(Array.of(float_bias, slots[2]))
    return _case(op, text, graph, operands, attrs, y_kind, {slots[0]: x}, tail)


# -- one element at a time ------------------------------------------------------------------------


def _pairwise(op: str, forms: Forms) -> Iterator[ProbeCase]:
    for storage in forms.storages:
        for number in range(forms.rounds + 2):
            rng = _generator(f"{op} {storage}", number)
            a, b = (float32(v) for v in rng.uniform(0.003, 0.3, 2))
            b = a if number % 2 else b
            out = float32(a * 2) if op == "add" else float32(a * b * 2.0 ** rng.integers(3, 9))
            if number == 0:
                a, b, out = (
                    float32(0.25),
                    float32(0.25),
                    float32(0.5) if op == "add" else float32(2),
                )
            elif number == 1 and op == "add":  # beside ties, by no powers of two
                b, out = float32(a * float32(0.5)), float32(a * 3)
            every = _every(storage)
            feeds = {"a": np.repeat(every, len(every)), "b": np.tile(every, len(every))}
            if number > 1:  # all pairs for two sets of maps, some for others
                sample = rng.choice(len(every) ** 2, 10_000, replace=False)
                feeds = {slot: data[sample] for slot, data in feeds.items()}
            graph = Graph()
            operands = {
                slot: _input(graph, slot, feeds[slot], _type(rng, storage, s, forms))
                for slot, s in (("a", a), ("b", b))
            }
            yield _case(op, storage, graph, operands, {}, _type(rng, storage, out, forms), feeds)


def _pointwise(op: str, forms: Forms) -> Iterator[ProbeCase]:
    ends = {"sigmoid": 1 / 256, "tanh": 1 / 128, "softmax": 1 / 256}
    for storage in forms.storages:
        for number in range(4 * forms.rounds):
            rng = _generator(f"{op} {storage}", number)
            scale = float32(2.0**-5 if number == 0 else rng.uniform(0.003, 0.3))
            y_scale = float32(
                ends.get(op, float(scale) * 0.75) if number < 4 else rng.uniform(0.002, 0.02)
            )
            y_type = _type(rng, storage, y_scale, forms)
            if forms.whole_ends and op in ends:
                low = dtype(storage).bounds[0]
                y_type = uniform(dtype(storage), float32(ends[op]), low if op != "tanh" else 0)
            x = _every(storage) if op != "softmax" else rng.choice(_every(storage), (60, 37))
            graph = Graph()
            operands = {"x": _input(graph, "x", x, _type(rng, storage, scale, forms))}
            attrs: dict[str, Attr] = {"axis": 1} if op == "softmax" else {}
            yield _case(op, storage, graph, operands, attrs, y_type, {"x": x})


def _softmax(op: str, forms: Forms) -> Iterator[ProbeCase]:
    """Long rows, and short ones: one dominant entry, or several equal ones next to small ones.

    Their results are on ties and beyond the extreme quantized value; intermediate products may
    overflow.
    """
    yield from _pointwise(op, forms)
    for storage in forms.storages:
        low, high = dtype(storage).bounds
        for number, length in enumerate((1, 2, 3, 6, 7, 11, 13)):
            rng = _generator(f"{op} {storage} short", number)
            rows = rng.choice(_every(storage), (40, length))
            equal = rng.permuted(np.tile(np.arange(length), (40, 1)), axis=1)
            equal = np.where(equal < rng.integers(1, length + 1, (40, 1)), high, low)
            x = np.concatenate([rows, equal.astype(rows.dtype)])
            y_type = uniform(dtype(storage), float32(1 / 256), low)
            if number % 2 and not forms.whole_ends:
                levels = int(rng.choice([267, 300, 999, 1500]))
                y_type = uniform(dtype(storage), float32(1 / levels), low + 5, name="k")
            graph = Graph()
            scale = float32(rng.choice([0.1, 0.5, 1.0, 4.0]))
            operands = {"x": _input(graph, "x", x, _type(rng, storage, scale, forms))}
            yield _case(op, storage, graph, operands, {"axis": 1}, y_type, {"x": x})


# -- windows and parts ----------------------------------------------------------------------------


def _pool(op: str, forms: Forms) -> Iterator[ProbeCase]:
    for storage in forms.storages:
        for number in range(forms.rounds):
            rng = _generator(f"{op} {storage}", number)
            kind = _type(rng, storage, float32(rng.uniform(0.01, 0.2)), forms)
            x = rng.choice(_every(storage), (6, 20, 7, 4))
            if op == "global_avg_pool":
                x = _tied_images(rng, storage, (6, 20, 7, 10))
            if forms.layout == "NHWC":
                x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
            graph = Graph()
            operands = {"x": _input(graph, "x", x, kind)}
            attrs: dict[str, Attr] = {"layout": forms.layout}
            if op == "avg_pool2d":
                attrs |= {"kernel": (2, 2), "stride": (1, 1)}
                attrs |= {"pad": (0, 1, 0, 1)} if forms.padded else {}
            yield _case(op, storage, graph, operands, attrs, kind, {"x": x})


def _tied_images(rng: np.random.Generator, storage: str, shape: tuple[int, ...]) -> Tensor:
    """Images with means between two integers, and on one side of that by 1 over both sides
    of them."""
    base = rng.choice(_every(storage)[:-1], (*shape[:2], 1))
    raised = (
        np.argsort(rng.random((*shape[:2], shape[2] * shape[3])), -1) < shape[2] * shape[3] // 2
    )
    return np.asarray((base + raised).reshape(shape), base.dtype)


def _concat(op: str, forms: Forms) -> Iterator[ProbeCase]:
    for storage in forms.parts:
        for number in range(forms.rounds):
            rng = _generator(f"{op} {storage}", number)
            scales = rng.uniform(0.01, 0.2, 3).astype(float32)
            if number == 0:
                scales = np.array([0.125, 0.25, 0.5], float32)
            if forms.zeros == "none":
                scales[2] = scales[:2].max()
            every = _every(storage).reshape(1, -1)
            graph = Graph()
            feeds = {"xs.0": every, "xs.1": every[:, ::-1].copy()}
            kinds = [_type(rng, storage, s, forms) for s in scales]
            kinds = kinds if forms.joined else kinds[:1] * 3
            operands = {
                slot: _input(graph, slot.replace(".", ""), feeds[slot], kind)
                for slot, kind in zip(feeds, kinds[:2], strict=True)
            }
            feeds_by_input = {slot.replace(".", ""): data for slot, data in feeds.items()}
            yield _case(op, storage, graph, operands, {"axis": 1}, kinds[2], feeds_by_input)


# -- parts of cases -------------------------------------------------------------------------------


def _generator(name: str, number: int) -> np.random.Generator:
    return np.random.default_rng([number, *name.encode()])


def _every(storage: str) -> Tensor:
    """Returns every quantized value."""
    low, high = dtype(storage).bounds
    return np.arange(low, high + 1).astype(dtype(storage).carrier)


def _odd_zero(rng: np.random.Generator, storage: str) -> int:
    """Returns an odd zero point, where rounding before it and after it differ at ties."""
    low, high = dtype(storage).bounds
    return int(rng.integers(low + 90, high - 90)) | 1


def _type(
    rng: np.random.Generator, storage: str, scale: NDArray[np.floating] | float32, forms: Forms
) -> QuantType:
    scale = np.asarray(scale)
    if forms.zeros == "none":
        return _declared_type(storage, scale, 0 if scale.ndim else None, forms.level)
    zeros = np.array([_odd_zero(rng, storage) for _ in range(scale.size)]).reshape(scale.shape)
    return uniform(dtype(storage), scale, zeros, axis=0 if scale.ndim else None, name="k")


def _declared_type(
    storage: str, scale: NDArray[np.floating], axis: int | None, more: float = 0.0
) -> QuantType:
    """Returns the type of a range about zero, or from it; its scale is the range over the extreme
    integer."""
    level = float32(dtype(storage).bounds[1] + more)
    reach = np.asarray(scale * level, float32)
    kind = uniform(dtype(storage), np.asarray(reach / level, float32), axis=axis, name="k")
    high = tuple(float(v) for v in reach.reshape(-1))
    low = tuple(-v for v in high) if dtype(storage).bounds[0] else (0.0,) * len(high)
    return replace(kind, declared=DeclaredBounds(low, high, float(level)))


def _input(graph: Graph, name: str, data: Tensor, kind: QuantType) -> Value:
    return graph.add("input", types=[TensorType(data.shape, kind)], name=name).result


def _constant(graph: Graph, name: str, data: Tensor, kind: QuantType) -> Value:
    return graph.constant(Array(data, TensorType(data.shape, kind), name))


def _case(
    op: str,
    text: str,
    graph: Graph,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    kind: QuantType,
    feeds: Mapping[str, Tensor],
    tail: tuple[str, ...] = (),
) -> ProbeCase:
    """Returns the case of an op, or a row of them, whose result has that quantized type."""
    all_attrs = spec(op).complete_attrs(attrs)
    shaped = (
        operands["x"].type if op == "quantize" else infer_result_types(op, operands, all_attrs)[0]
    )
    if not tail:
        node = graph.add(op, operands, attrs, types=[shaped.with_element(kind)], name="y")
        graph.add("output", {"y": node.result})
        return ProbeCase(op, text, graph, feeds)
    all_operands, all_feeds = dict(operands), dict(feeds)
    stages = [Stage(op, all_attrs, tuple(operands))]
    for number, name in enumerate(tail, 1):
        stage_attrs = spec(name).complete_attrs(_TAILS.get(name, {}))
        if name == "add":
            all_feeds["s"], summand_type = _summand(shaped, kind)
            all_operands[f"{number}.b"] = _input(graph, "s", all_feeds["s"], summand_type)
            stages.append(Stage(name, stage_attrs, ("b",), "a"))
        else:
            stages.append(Stage(name, stage_attrs, (), "x"))
    node = graph.add_chain(stages, all_operands, shaped.with_element(kind), name="y")
    graph.add("output", {"y": node.result})
    return ProbeCase(op, text, graph, all_feeds, tail)


_TAILS: Mapping[str, Mapping[str, Attr]] = {
    "clip": {"min": 0.0, "max": 6.0},
    "leaky_relu": {"alpha": 0.25},
}


def _summand(y_type: TensorType, kind: QuantType) -> tuple[Tensor, QuantType]:
    """Quantized values to be added to what has that quantized type, in another quantized type."""
    shape = tuple(d for d in y_type.shape if isinstance(d, int))
    rng, storage = _generator("summand", len(shape)), str(kind.storage)
    scale = np.asarray(kind.scales() * float32(0.7), float32)
    has_range = kind.declared is not None
    plain_type = uniform(kind.storage, scale, _odd_zero(rng, storage))
    summand_type = _declared_type(storage, scale, None) if has_range else plain_type
    return rng.choice(_every(storage), shape), summand_type


_Maker: TypeAlias = Callable[[str, Forms], Iterator[ProbeCase]]
_MAKERS: Mapping[str, _Maker] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    **dict.fromkeys(("conv2d", "linear", "matmul", "gemm"), _product),
    "conv3d": _volumes,
    **dict.fromkeys(("add", "mul"), _pairwise),
    **dict.fromkeys(("sigmoid", "tanh", "leaky_relu"), _pointwise),
    "softmax": _softmax,
    **dict.fromkeys(("avg_pool2d", "global_avg_pool"), _pool),
    "concat": _concat,
    "choose_qparams": _choose,
}
OPS: Sequence[str] = tuple(_MAKERS)
"""The ops that there are cases of."""

"""How many ties and saturations a run has hit, from whole numbers and fractions alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Tensors = Mapping[str, NDArray[np.generic]]
Whole = NDArray[np.int64]
COUNTED = ("QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd", "QLinearMul")


@dataclass
class Population:
    """Counts over all accumulators that a run has rounded to integers."""

    total: int = 0
    ties: int = 0
    low: int = 0
    high: int = 0
    by_op: dict[str, list[int]] = field(default_factory=dict)
    zeros: list[int] = field(default_factory=list)

    def add(
        self, op: str, sums: Whole, ratio: list[Fraction], axis: int, zero: int, kind: str
    ) -> None:
        """Counts sums that are rounded with a multiplier, or one each along an axis."""
        # A sum that leaves 32 bits wraps.
        sums = (sums + 2**31) % 2**32 - 2**31  # as 32-bit registers hold them
        low, high = (0, 255) if kind == "uint8" else (-128, 127)
        shape = [1] * sums.ndim
        if len(ratio) > 1:
            shape[axis] = -1
        factor = np.array([float(r) for r in ratio]).reshape(shape)
        real = sums * factor + zero
        inside = (real > low - 0.5) & (real < high + 0.5)
        tie = inside & tied(
            sums, [r.numerator for r in ratio], [r.denominator for r in ratio], axis
        )
        counts = [
            sums.size,
            int(tie.sum()),
            int((real < low - 0.5).sum()),
            int((real > high + 0.5).sum()),
        ]
        self.total, self.ties, self.low, self.high = (
            a + b for a, b in zip((self.total, self.ties, self.low, self.high), counts, strict=True)
        )
        before = self.by_op.setdefault(op, [0, 0, 0, 0])
        self.by_op[op] = [a + b for a, b in zip(before, counts, strict=True)]
        self.zeros.append(zero)

    def merge(self, other: Population) -> None:
        """Adds another's counts."""
        self.total += other.total
        self.ties += other.ties
        self.low += other.low
        self.high += other.high
        self.zeros += other.zeros
        for op, counts in other.by_op.items():
            before = self.by_op.setdefault(op, [0, 0, 0, 0])
            self.by_op[op] = [a + b for a, b in zip(before, counts, strict=True)]

    def check(self, *, share: float = 0.05) -> None:
        """AssertionError unless ties and both saturations are frequent, and odd zeros present."""
        odd = sum(z % 2 for z in self.zeros)
        assert self.total > 0, "nothing was rounded"
        assert self.ties >= share * self.total, f"too few ties: {self}"
        assert self.low >= share * self.total, f"too few saturate low: {self}"
        assert self.high >= share * self.total, f"too few saturate high: {self}"
        assert odd >= 0.25 * len(self.zeros), f"only {odd} of {len(self.zeros)} zero points are odd"


def tied(
    sums: Whole, numerators: list[int], denominators: list[int], axis: int
) -> NDArray[np.bool_]:
    """Where sum * numerator / denominator lies exactly between two whole numbers.

    The fractions are in lowest terms: then it is so where the denominator is even and the sum an
    odd multiple of its half (an odd times an odd over two).
    """
    halves = [d // 2 if d % 2 == 0 and d < 1 << 62 else 0 for d in denominators]
    shape = [1] * sums.ndim
    if len(halves) > 1:
        shape[axis] = -1
    half = np.array(halves, np.int64).reshape(shape)
    divisor = np.maximum(half, 1)
    ties: NDArray[np.bool_] = (half > 0) & (sums % divisor == 0) & ((sums // divisor) % 2 != 0)
    return ties


def conv_sums(x: Whole, w: Whole, attrs: Mapping[str, object]) -> Whole:
    """The sums of a convolution of whole numbers, tap by tap."""
    n = w.ndim - 2
    strides, dilations = (ints(attrs, name, (1,) * n) for name in ("strides", "dilations"))
    pads = ints(attrs, "pads", (0,) * 2 * n)
    (groups,) = ints(attrs, "group", (1,))
    padded = np.pad(x, ((0, 0), (0, 0), *zip(pads[:n], pads[n:], strict=True)))
    size = [
        (padded.shape[i + 2] - (w.shape[i + 2] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in range(n)
    ]
    channels = w.shape[0] // groups
    result = np.zeros((x.shape[0], w.shape[0], *size), np.int64)
    for g in range(groups):
        part = padded[:, g * w.shape[1] : (g + 1) * w.shape[1]]
        group_weights = w[g * channels : (g + 1) * channels]
        for tap_index in np.ndindex(*w.shape[2:]):
            firsts = [tap_index[i] * dilations[i] for i in range(n)]
            ends = [firsts[i] + (size[i] - 1) * strides[i] + 1 for i in range(n)]
            places = [slice(firsts[i], ends[i], strides[i]) for i in range(n)]
            values = part[(slice(None), slice(None), *places)]
            weights = group_weights[(slice(None), slice(None), *tap_index)]
            result[:, g * channels : (g + 1) * channels] += np.einsum(
                "nc...,oc->no...", values, weights
            )
    return result


def ints(attrs: Mapping[str, object], name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """An attribute of whole numbers."""
    value = attrs.get(name, default)
    if isinstance(value, int):
        return (value,)
    assert isinstance(value, list | tuple)
    return tuple(int(v) for v in value)


def fractions(values: NDArray[np.generic]) -> list[Fraction]:
    """Float32 numbers as they are."""
    return [Fraction(float(v)) for v in np.asarray(values, np.float64).reshape(-1)]


def census(proto: onnx.ModelProto, tensors: Tensors) -> Population:
    """The population of a QOperator model, its tensors of integers given as onnxruntime made
    them."""
    constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    population = Population()
    for node in proto.graph.node:
        _count(node, {**constants, **tensors}, population)
    return population


def _count(node: onnx.NodeProto, arrays: Tensors, population: Population) -> None:
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type not in COUNTED:
        return
    operands = [arrays[n] if n else np.zeros((), np.int32) for n in node.input]
    op = node.op_type
    kind = str(arrays[node.output[0]].dtype) if node.output[0] in arrays else ""
    if op in ("QLinearConv", "QLinearMatMul"):
        sums, axis = _sums(op, operands, attrs)
        population.add(
            op, sums, _ratio(operands[1], operands[4], operands[6]), axis, int(operands[7]), kind
        )
    elif op == "QGemm" and len(operands) == 9:
        sums, axis = _sums(op, operands, attrs)
        alpha = attrs.get("alpha", 1.0)
        assert isinstance(alpha, float)
        ratio = [Fraction(alpha) * r for r in _ratio(operands[1], operands[4], operands[7])]
        population.add(op, sums, ratio, axis, int(operands[8]), kind)
    elif op == "QLinearMul":
        a, b = (
            operands[0].astype(np.int64) - int(operands[2]),
            operands[3].astype(np.int64) - int(operands[5]),
        )
        population.add(
            op, a * b, _ratio(operands[1], operands[4], operands[6]), 0, int(operands[7]), kind
        )
    elif op == "QLinearAdd":
        a, b = (
            operands[0].astype(np.int64) - int(operands[2]),
            operands[3].astype(np.int64) - int(operands[5]),
        )
        (ra,), (rb,) = fractions(operands[1]), fractions(operands[4])
        unit = min(ra, rb)
        if (ra / unit).denominator == (rb / unit).denominator == 1:
            total = a * int(ra / unit) + b * int(rb / unit)
            ratio = fractions(np.array([float(unit / fractions(operands[6])[0])], np.float32))
            population.add(op, total, ratio, 0, int(operands[7]), kind)


def _ratio(
    x: NDArray[np.generic], w: NDArray[np.generic], y: NDArray[np.generic]
) -> list[Fraction]:
    """The multipliers of sums, as float32 holds them."""
    (sx,), (sy,) = fractions(x), fractions(y)
    return fractions(np.array([float(sx * sw / sy) for sw in fractions(w)], np.float32))


def _sums(
    op: str, operands: list[NDArray[np.generic]], attrs: Mapping[str, object]
) -> tuple[Whole, int]:
    a = operands[0].astype(np.int64) - int(operands[2])
    b = operands[3].astype(np.int64) - int(operands[5].reshape(-1)[0])
    if op == "QLinearConv":
        sums = conv_sums(a, b, attrs)
        if len(operands) > 8:
            sums = sums + operands[8].astype(np.int64).reshape(-1, *(1,) * (a.ndim - 2))
        return sums, 1
    if op == "QGemm":
        return a @ (b.T if attrs.get("transB") else b) + operands[6].astype(np.int64), 1
    sums = np.matmul(a, b)
    return sums, sums.ndim - 1

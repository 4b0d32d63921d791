"""Small integer networks, layer by layer, with numbers drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I8, I32, U8, DType
from qir.ir.graph import Graph
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array, TensorType, uniform


class Net:
    """A graph that grows; every method adds a layer and gives its value."""

    def __init__(self, seed: int, storage: DType = U8) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph()
        self.storage = storage

    def kind(self, shape: Sequence[int], scale: float | None = None) -> TensorType:
        """Integers of a random map, with an odd zero."""
        low, high = self.storage.bounds
        zero = int(self.rng.integers(low // 2, high // 2)) * 2 + 1
        size = self.rng.uniform(0.01, 0.05) if scale is None else scale
        return TensorType(
            tuple(shape), uniform(self.storage, np.array(size, np.float32), min(zero, high))
        )

    def input(self, *shape: int, name: str = "x") -> Value:
        return self.graph.add("input", types=[self.kind(shape)], name=name).result

    def real(self, *shape: int, name: str = "x") -> Value:
        return self.graph.add("input", types=[TensorType(shape, F32)], name=name).result

    def integers(self, *shape: int) -> Value:
        """A constant of random integers."""
        kind = self.kind(shape)
        data = self.rng.integers(kind.element.low, kind.element.high + 1, shape)  # type: ignore[union-attr]
        return self.graph.constant(Array(data.astype(kind.dtype.carrier), kind))

    def weight(self, *shape: int, axis: int | None = 0) -> Value:
        """Constant i8 weights, a scale for each index of the axis."""
        count = () if axis is None else shape[axis]
        scale = self.rng.uniform(0.002, 0.02, count).astype(np.float32)
        kind = TensorType(shape, uniform(I8, scale, axis=axis, name="w"))
        data = self.rng.integers(-128, 128, shape).astype(np.int8)
        return self.graph.constant(Array(data, kind))

    def raw(self, count: int) -> Value:
        """A constant bias in accumulator units."""
        data = self.rng.integers(-(1 << 13), 1 << 13, count).astype(np.int32)
        return self.graph.constant(Array(data, TensorType((count,), I32)))

    def shape(self, *sizes: int) -> Value:
        return self.graph.constant(Array.of(np.array(sizes, np.int64), ""))

    def index(self, number: int) -> Value:
        return self.graph.constant(Array.of(np.array(number, np.int64), ""))

    def scale(self, x: Value, depth: int) -> float:
        """An output scale at which an accumulator of that depth saturates now and then."""
        assert x.type.quant is not None
        return float(x.type.quant.scales() * 0.01 * 74 * 74 * math.sqrt(depth) / 60)

    def op(
        self,
        op: str,
        operands: dict[str, Value],
        shape: Sequence[int],
        scale: float | None = None,
        tail: Sequence[tuple[str, dict[str, Attr]]] = (),
        kind: TensorType | None = None,
        given: Mapping[str, Attr] | None = None,
        **more: Attr,
    ) -> Value:
        """An op, or a chain where there is a tail, with a result of a random map."""
        kind = kind or self.kind(shape, scale)
        attrs = {**(given or {}), **more}
        if not tail:
            return self.graph.add(op, operands, attrs, types=[kind]).result
        stages = [Stage(op, spec(op).complete_attrs(attrs), tuple(operands))]
        stages += [Stage(t, spec(t).complete_attrs(a), (), "x") for t, a in tail]
        return self.graph.add_chain(stages, operands, kind).result

    def conv(
        self,
        x: Value,
        out: int,
        kernel: tuple[int, int] = (3, 3),
        *,
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] = (1, 1, 1, 1),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        layout: str = "NCHW",
        bias: bool = True,
        axis: int | None = 0,
        tail: Sequence[tuple[str, dict[str, Attr]]] = (),
    ) -> Value:
        sizes = [int(str(d)) for d in x.type.shape]
        n, c, h, w = sizes if layout == "NCHW" else (sizes[0], sizes[3], sizes[1], sizes[2])
        oh = (h + pad[0] + pad[2] - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
        ow = (w + pad[1] + pad[3] - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
        operands = {"x": x, "w": self.weight(out, c // groups, *kernel, axis=axis)}
        if bias:
            operands["bias"] = self.raw(out)
        scale = self.scale(x, c // groups * kernel[0] * kernel[1])
        shape = (n, out, oh, ow) if layout == "NCHW" else (n, oh, ow, out)
        return self.op("conv2d", operands, shape, scale, tail, stride=stride, pad=pad,
                       dilation=dilation, groups=groups, layout=layout)  # fmt: skip

    def gemm(
        self, x: Value, out: int, *, trans_b: bool = True, trans_a: bool = False,
        real: bool = False, tail: Sequence[tuple[str, dict[str, Attr]]] = (),
    ) -> Value:  # fmt: skip
        rows, depth = (int(str(d)) for d in (x.type.shape[::-1] if trans_a else x.type.shape))
        sizes, axis = ((out, depth), 0) if trans_b else ((depth, out), 1)
        operands = {"a": x, "b": self.weight(*sizes, axis=axis), "c": self.raw(out)}
        kind = TensorType((rows, out), F32) if real else None
        return self.op("gemm", operands, (rows, out), self.scale(x, depth), tail, kind,
                       trans_a=trans_a, trans_b=trans_b)  # fmt: skip

    def done(self, **outputs: Value) -> Graph:
        self.graph.add("output", outputs)
        return self.graph

    def data(self) -> dict[str, NDArray[np.generic]]:
        """Random elements for every input."""
        out: dict[str, NDArray[np.generic]] = {}
        for value in self.graph.inputs:
            shape = tuple(int(str(d)) for d in value.type.shape)
            if value.type.quant is None:
                out[value.name] = self.rng.normal(0, 1.5, shape).astype(value.type.dtype.carrier)
            else:
                low, high = value.type.quant.low, value.type.quant.high
                quantized = self.rng.integers(low, high + 1, shape)
                out[value.name] = quantized.astype(value.type.dtype.carrier)
        return out

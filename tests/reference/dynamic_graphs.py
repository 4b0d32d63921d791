"""Random programs that quantize while they run: numbers chosen, carried along, and used."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, U8, DType, dtype
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.ops.quantization import chosen_granularity
from qir.ir.types import Array, QuantType, TensorType, uniform

F = np.float32


class Dynamic:
    """One random program and what its inputs may be."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.graph = Graph("main")
        self.rows, self.inner = self.rng.randint(1, 5), self.rng.randint(2, 9)
        x = self.graph.add("input", types=[TensorType((self.rows, self.inner), F32)], name="x")
        self.given: list[Value] = []
        real = x.result
        for _ in range(self.rng.randint(1, 3)):
            real = self._layer(real)
        self.graph.add("output", {f"o{i}": v for i, v in enumerate((*self.given, real))})

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """Floats around zero, a constant now and then."""
        x = self.numbers.normal(size=(self.rows, self.inner)) * 10.0 ** self.rng.randint(-3, 3)
        return {"x": (x if self.rng.random() < 0.9 else np.full(x.shape, 2.5)).astype(F)}

    def _layer(self, real: Value) -> Value:
        """Floats to integers of chosen numbers, and on to floats again."""
        keep = self.rng.choice([(), (), (0,), (1,), (0, 1)])
        storage = self.rng.choice([dtype("u8"), dtype("i8")])
        blocks = (1, self.rng.randint(1, 4)) if keep == (0, 1) else ()
        rule = self.rng.choice(["onnx.dynamic", "torch.observer", "profile"])
        attrs: dict[str, Attr] = {"rule": rule, "storage": storage, "keep": keep, "blocks": blocks}
        numbers = self.graph.add("choose_qparams", {"x": real}, attrs)
        s, z = numbers.results
        kind = QuantType(storage, F32, None, None, chosen_granularity(keep, blocks))
        quantized = self.graph.add(
            "quantize",
            {"x": real, "scale": s, "zero": z},
            types=[real.type.with_element(kind)],
        ).result
        companions = (s, z)
        if not keep and self.rng.random() < 0.5:
            quantized = self._moved(quantized)
        use = self.rng.choice([self._product, self._product, self._back, self._stored])
        return use(quantized, companions)

    def _moved(self, quantized: Value) -> Value:
        """There and back, without telling anybody the numbers."""
        turned = self.graph.add("transpose", {"x": quantized}, {"perm": (1, 0)})
        return self.graph.add("transpose", {"x": turned.result}, {"perm": (1, 0)}).result

    def _back(self, quantized: Value, numbers: tuple[Value, Value]) -> Value:
        operands = {"x": quantized, "x.scale": numbers[0], "x.zero": numbers[1]}
        return self.graph.add("dequantize", operands).result

    def _stored(self, quantized: Value, numbers: tuple[Value, Value]) -> Value:
        """Integers of a static map, from those of a dynamic one."""
        kind = quantized.type.with_element(QuantType(U8, F32, (0.0625,), (100,)))
        operands = {"x": quantized, "x.scale": numbers[0], "x.zero": numbers[1]}
        made = self.graph.add("requantize", operands, types=[kind])
        self.given.append(made.result)
        return self.graph.add("dequantize", {"x": made.result}).result

    def _product(self, quantized: Value, numbers: tuple[Value, Value]) -> Value:
        """A product with constant weights, real or stored under a static map."""
        inner = quantized.type.shape[1]
        assert isinstance(inner, int)
        columns = self.rng.randint(1, 6)
        weight = self._weight(inner, columns)
        operands = {"a": quantized, "b": weight, "a.scale": numbers[0], "a.zero": numbers[1]}
        shape = (quantized.type.shape[0], columns)
        if self.rng.random() < 0.3:
            kind = TensorType(shape, QuantType(U8, F32, (0.25,), (128,)))
            made = self.graph.add("matmul", operands, types=[kind]).result
            self.given.append(made)
            return self.graph.add("dequantize", {"x": made}).result
        return self.graph.add("matmul", operands, types=[TensorType(shape, F32)]).result

    def _weight(self, inner: int, columns: int) -> Value:
        kind: DType = self.rng.choice([dtype("i8"), dtype("u8")])
        axis = self.rng.choice([None, 1])
        count = () if axis is None else (columns,)
        scale = (0.01 + self.numbers.random(count)).astype(F)
        zero = 0 if kind.name == "i8" else 121
        quant = uniform(kind, scale, zero, axis=axis)
        data = self.numbers.integers(*kind.bounds, (inner, columns), endpoint=True)
        array = Array(data.astype(kind.carrier), TensorType((inner, columns), quant), "w")
        return self.graph.constant(array)

"""Networks on quantized values, in integer form, with groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.calls import make_call
from qir.ir.dtype import I8, U8, DType
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.testing.float_networks import Reals
from qir.testing.random_source import Pick


def random_map(pick: Pick, storage: DType) -> QuantType:
    """Returns a quantized type of the whole tensor."""
    low, high = storage.bounds
    scale = np.float32(2.0 ** -(3 + pick(4)) * (1 + pick(99) / 64))
    return uniform(storage, np.asarray(scale), low + pick(high - low + 1))


class IntegerNetwork(Reals):
    """Grows a quantized network, in integer form, with groups."""

    def kind(self, shape: dims.Shape) -> TensorType:
        return TensorType(shape, random_map(self.pick, U8))

    def layers(self) -> list[Callable[[Value], Value | None]]:
        return [self.conv, self.conv, self.chain, self.residual, self.pool, self.move]

    def codes(self, shape: dims.Shape) -> TensorType:
        return TensorType(shape, random_map(self.pick, U8))

    def state(self, op: str, operands: dict[str, Value], **attrs: Attr) -> Value:
        """Returns an op whose result is of a quantized type of its own."""
        full = spec(op).complete_attrs(attrs)
        (kind,) = spec(op).rule(make_call(op, operands, full))
        return self.graph.add(op, operands, attrs, types=[self.codes(kind.shape)]).result

    def weights(self, x: Value) -> tuple[dict[str, Value], dict[str, Attr]]:
        window, attrs, channels, out = self.filters(x)
        shape = (out, channels, *window.pop("kernel"))
        scales = self.rng.uniform(0.01, 0.1, out).astype(np.float32)
        element = uniform(I8, scales, axis=0, bounds=(-127, 127), name="w")
        data = self.rng.integers(-127, 127, shape, endpoint=True).astype(np.int8)
        operands = {"x": x, "w": self.graph.constant(Array(data, TensorType(shape, element), "w"))}
        if self.pick(2):
            bias = self.rng.integers(-999, 999, out).astype(np.int32)
            operands["bias"] = self.graph.constant(Array.of(bias, "b"))
        return operands, {**window, **attrs}

    def conv(self, x: Value) -> Value:
        operands, attrs = self.weights(x)
        return self.state("conv2d", operands, **attrs)

    def chain(self, x: Value) -> Value:
        operands, attrs = self.weights(x)
        full = spec("conv2d").complete_attrs(attrs)
        (kind,) = spec("conv2d").rule(make_call("conv2d", operands, full))
        inner_type = self.codes(kind.shape) if self.pick(3) == 0 else None
        # A sum of another layer may come in between, as runtimes fuse conv, add and relu.
        stages = [Stage("conv2d", full, tuple(operands), None, inner_type, "conv")]
        same_shape = [v for v in self.values if v.type.shape == kind.shape]
        if same_shape and self.pick(2):
            operands["1.b"] = same_shape[self.pick(len(same_shape))]
            stages.append(Stage("add", {}, ("b",), "a", None, "sum"))
        stages.append(Stage("relu", {}, (), "x", None, ""))
        return self.graph.add_chain(stages, operands, self.codes(kind.shape), name="g").result

    def residual(self, x: Value) -> Value:
        same_shape = [v for v in self.values if v.type.shape == x.type.shape]
        return self.state("add", {"a": x, "b": same_shape[self.pick(len(same_shape))]})

    def pool(self, x: Value) -> Value:
        window: dict[str, Attr] = dict(self.window(x))
        if self.pick(2):
            return self.add("max_pool2d", {"x": x}, **window)
        return self.state("avg_pool2d", {"x": x}, **window)

    def head(self, x: Value) -> Value:
        return self.add("dequantize", {"x": x})

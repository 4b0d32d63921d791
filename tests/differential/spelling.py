"""Two spellings of one integer network: QLinear operators, and QDQ pairs around float ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Kind: TypeAlias = Literal["u8", "i8"]
Attrs: TypeAlias = Mapping[str, int | float | str | Sequence[int]]

MICROSOFT = "com.microsoft"
CARRIERS: dict[str, type[np.uint8] | type[np.int8]] = {"u8": np.uint8, "i8": np.int8}
PROTO = {"u8": TensorProto.UINT8, "i8": TensorProto.INT8}


def bounds(kind: Kind) -> tuple[int, int]:
    """Returns the least and the greatest value of a type."""
    return (0, 255) if kind == "u8" else (-128, 127)


@dataclass(frozen=True)
class Codes:
    """A tensor of integers of a map for the whole tensor."""

    name: str
    shape: tuple[int, ...]
    scale: np.float32
    zero: int
    kind: Kind


@dataclass(frozen=True)
class Weight:
    """Constant integers, of one scale or one an index of an axis."""

    name: str
    data: NDArray[np.integer]
    scale: NDArray[np.float32]
    zero: int
    axis: int | None = None

    @property
    def kind(self) -> Kind:
        return "u8" if self.data.dtype == np.uint8 else "i8"


@dataclass(frozen=True)
class Tail:
    """A relu, or a clip to bounds, between an op and its rounding."""

    bounds: tuple[float, float] | None = None


# QLinear operators by the float operator they compute; True where integers are moved as they are.
QLINEAR = {
    "Conv": ("", "QLinearConv"),
    "MatMul": ("", "QLinearMatMul"),
    "Gemm": (MICROSOFT, "QGemm"),
    "Add": (MICROSOFT, "QLinearAdd"),
    "Mul": (MICROSOFT, "QLinearMul"),
    "Sigmoid": (MICROSOFT, "QLinearSigmoid"),
    "Softmax": (MICROSOFT, "QLinearSoftmax"),
    "AveragePool": (MICROSOFT, "QLinearAveragePool"),
    "GlobalAveragePool": (MICROSOFT, "QLinearGlobalAveragePool"),
    "Concat": (MICROSOFT, "QLinearConcat"),
}
MOVES = ("MaxPool", "Reshape", "Flatten", "Transpose")


class Spelling:
    """What both spellings share: nodes and initializers as they come."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, data: NDArray[np.generic]) -> str:
        """An initializer by name, made once."""
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(data, name)
        return name

    def params(self, t: Codes | Weight) -> list[str]:
        """The names of a tensor's scale and zero point."""
        zero = np.array(t.zero, CARRIERS[t.kind])
        if isinstance(t, Weight) and t.axis is not None:
            zero = np.full(t.scale.shape, t.zero, CARRIERS[t.kind])
        return [
            self.constant(f"{t.name}_scale", np.asarray(t.scale, np.float32)),
            self.constant(f"{t.name}_zero", zero),
        ]

    def integers(self, t: Codes | Weight) -> str:
        """The name of the tensor itself."""
        return self.constant(t.name, t.data) if isinstance(t, Weight) else t.name

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        domain: str = "",
        attrs: Attrs | None = None,
    ) -> None:
        name = f"{op}_{output}"
        node = helper.make_node(op, list(inputs), [output], name=name, domain=domain)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in (attrs or {}).items())
        self.nodes.append(node)

    def quantize(self, real: str, out: Codes) -> None:
        """Integers from a float tensor."""
        self.node("QuantizeLinear", [real, *self.params(out)], out.name)

    def dequantize(self, t: Codes, real: str) -> None:
        """A float tensor from integers."""
        self.node("DequantizeLinear", [t.name, *self.params(t)], real)

    def op(
        self,
        op: str,
        operands: Sequence[Codes | Weight],
        out: Codes,
        attrs: Attrs | None = None,
        *,
        bias: NDArray[np.int32 | np.float32] | None = None,
        extra: Sequence[str] = (),
        tail: Tail | None = None,
    ) -> None:
        """One op on integers that rounds once; `extra` are plain inputs such as a shape.

        A bias is in accumulator units; one in float32 only float operators take.
        """
        raise NotImplementedError

    def real_result(
        self,
        operands: Sequence[Codes | Weight],
        real: str,
        attrs: Attrs,
        bias: NDArray[np.int32 | np.float32] | None,
    ) -> None:
        """A Gemm whose result stays float."""
        raise NotImplementedError


class QOperator(Spelling):
    """Operators that take integers and give integers."""

    def op(
        self,
        op: str,
        operands: Sequence[Codes | Weight],
        out: Codes,
        attrs: Attrs | None = None,
        *,
        bias: NDArray[np.int32 | np.float32] | None = None,
        extra: Sequence[str] = (),
        tail: Tail | None = None,
    ) -> None:
        if op in MOVES:
            self.node(op, [self.integers(operands[0]), *extra], out.name, attrs=attrs)
            return
        if op == "Requantize":
            (x,) = operands
            assert isinstance(x, Codes)
            self.dequantize(x, f"{out.name}_real")
            self.quantize(f"{out.name}_real", out)
            return
        domain, name = QLINEAR[op]
        attributes = dict(attrs or {})
        operand_inputs = [n for t in operands for n in (self.integers(t), *self.params(t))]
        bias_inputs = [] if bias is None else [self.constant(f"{out.name}_bias", bias)]
        if op == "Concat":
            inputs = [*self.params(out), *operand_inputs]
        elif op == "Conv":
            inputs = [*operand_inputs, *self.params(out), *bias_inputs]
        elif op == "Gemm":
            inputs = [*operand_inputs, *(bias_inputs or [""]), *self.params(out)]
        else:
            inputs = [*operand_inputs, *self.params(out)]
        if op == "Softmax":
            attributes["opset"] = 13
        self.node(name, inputs, out.name, domain, attributes)

    def real_result(
        self,
        operands: Sequence[Codes | Weight],
        real: str,
        attrs: Attrs,
        bias: NDArray[np.int32 | np.float32] | None,
    ) -> None:
        operand_inputs = [n for t in operands for n in (self.integers(t), *self.params(t))]
        bias_inputs = [] if bias is None else [self.constant(f"{real}_bias", bias)]
        self.node("QGemm", [*operand_inputs, *bias_inputs], real, MICROSOFT, attrs)


class Qdq(Spelling):
    """Float operators between DequantizeLinear and QuantizeLinear.

    `shared`: all readers of a tensor share one DequantizeLinear; else each has its own. `bare`:
    what only moves elements stands between a DequantizeLinear and the next op, unquantized.
    """

    def __init__(self, shared: bool = True, bare: bool = False) -> None:
        super().__init__()
        self.shared = shared
        self.bare = bare
        self._reals: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        """Float tensors that stand for integers which the model does not hold."""

    def real(self, t: Codes | Weight) -> str:
        """The float tensor that integers mean."""
        if t.name in self.moved:
            return self.moved[t.name]
        if self.shared and t.name in self._reals:
            return self._reals[t.name]
        count = sum(n.op_type == "DequantizeLinear" for n in self.nodes)
        real = f"{t.name}_real{count}"
        attrs = {"axis": t.axis} if isinstance(t, Weight) and t.axis is not None else None
        self.node("DequantizeLinear", [self.integers(t), *self.params(t)], real, attrs=attrs)
        self._reals[t.name] = real
        return real

    def _bias(
        self, name: str, operands: Sequence[Codes | Weight], bias: NDArray[np.int32 | np.float32]
    ) -> str:
        if bias.dtype == np.float32:
            return self.constant(f"{name}_bias_real", bias)
        x, w = operands
        scale = np.float32(x.scale) * np.asarray(w.scale, np.float32)
        integers = self.constant(f"{name}_bias", bias)
        attrs = {"axis": 0} if scale.ndim else None
        inputs = [integers, self.constant(f"{name}_bias_scale", scale)]
        self.node("DequantizeLinear", inputs, f"{name}_bias_real", attrs=attrs)
        return f"{name}_bias_real"

    def op(
        self,
        op: str,
        operands: Sequence[Codes | Weight],
        out: Codes,
        attrs: Attrs | None = None,
        *,
        bias: NDArray[np.int32 | np.float32] | None = None,
        extra: Sequence[str] = (),
        tail: Tail | None = None,
    ) -> None:
        inputs = [self.real(t) for t in operands] + list(extra)
        if op == "Requantize":
            self.quantize(inputs[0], out)
            return
        if bias is not None:
            inputs.append(self._bias(out.name, operands, bias))
        float_name = f"{out.name}_made"
        self.node(op, inputs, float_name, attrs=attrs)
        if self.bare and op in MOVES:
            self.moved[out.name] = float_name
            return
        self.quantize(self.activate(float_name, tail), out)

    def activate(self, float_name: str, tail: Tail | None) -> str:
        """What a relu or clip makes of a float tensor."""
        if tail is None:
            return float_name
        if tail.bounds is None:
            self.node("Relu", [float_name], f"{float_name}_relu")
            return f"{float_name}_relu"
        low, high = (
            self.constant(f"{float_name}_{side}", np.array(v, np.float32))
            for side, v in zip(("min", "max"), tail.bounds, strict=True)
        )
        self.node("Clip", [float_name, low, high], f"{float_name}_clip")
        return f"{float_name}_clip"

    def real_result(
        self,
        operands: Sequence[Codes | Weight],
        real: str,
        attrs: Attrs,
        bias: NDArray[np.int32 | np.float32] | None,
    ) -> None:
        inputs = [self.real(t) for t in operands]
        if bias is not None:
            inputs.append(self._bias(real, operands, bias))
        self.node("Gemm", inputs, real, attrs=attrs)

"""Probes of TensorFlow Lite's interpreters, TensorFlow's and LiteRT's, in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from dataclasses import fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.inspect import pipe
from qir.inspect.pipe import Plain
from qir.inspect.probe_cases import Forms
from qir.inspect.probing import Probe
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.types import TensorType

from .models import CaseOperand, OpCase, Value

Array = NDArray[np.generic]
F = np.float32


class _Child:
    """A process in which one package runs models; it ends with this one."""

    def __init__(self, package: str) -> None:
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qir.backends.tflite.child", package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )

    def run(self, case: OpCase, resolver: str) -> Array:
        try:
            answer = pipe.ask(self.process, (_as_plain_values(case), resolver))
        except EOFError:
            # The interpreter aborts its process on some inputs.
            raise OpError(f"the interpreter ended: {self.process.wait()}") from None
        if isinstance(answer, str):
            raise OpError(answer[:160])
        return np.asarray(answer)

    def close(self) -> None:
        pipe.close(self.process)


def _as_plain_values(case: OpCase) -> Plain:
    """Returns a case as plain values: its operands, its result, and the rest by name."""
    case_fields = {f.name: getattr(case, f.name) for f in fields(case)}
    operands = {
        slot: _field_values(operand) for slot, operand in case_fields.pop("operands").items()
    }
    out = _field_values(case_fields.pop("out"))
    return (operands, out, {**case_fields, "attrs": dict(case.attrs)})


def _field_values(operand: CaseOperand) -> Plain:
    return tuple(getattr(operand, f.name) for f in fields(operand))


_CHILDREN: dict[str, _Child] = {}
"""One process a package, for all its resolvers."""


class _Interpreter(Probe):
    """A model of one op in one interpreter, on one thread."""

    backend = "tflite"
    distributions: ClassVar[tuple[str, ...]] = ("tensorflow", "tensorflow-cpu")
    package: ClassVar[str] = "tensorflow"
    resolver: ClassVar[str]
    forms = Forms(
        (
            "quantize",
            "dequantize",
            "conv2d",
            "linear",
            "add",
            "mul",
            "sigmoid",
            "leaky_relu",
            "softmax",
            "avg_pool2d",
            "concat",
        ),
        storages=("i8",),
        products=("i8",),
        grains=("tensor",),
        special=(),
        about_zero=True,
        layout="NHWC",
        padded=False,
        parts=("i8",),
        joined=False,
        wraps=False,
        whole_ends=True,
        tails=(("conv2d", "relu"), ("conv2d", "clip"), ("linear", "relu")),
    )

    def begin(self) -> None:
        self._started()

    def _started(self) -> _Child:
        child = _CHILDREN.get(self.package)
        if child is None:
            child = _CHILDREN[self.package] = _Child(self.package)
            weakref.finalize(child, child.close)
        return child

    def run(self, graph: Graph, feeds: Mapping[str, Array]) -> Array:
        child = self._started()
        try:
            return child.run(_case(graph["y"].node, feeds), self.resolver)
        except OpError:
            if child.process.poll() is not None:
                del _CHILDREN[self.package]
            raise


class Reference(_Interpreter):
    """The reference kernels."""

    name = "tflite.reference"
    resolver = "ref"
    settings: ClassVar[Mapping[str, str]] = {"resolver": "reference", "rounding": "double"}


class Delegate(_Interpreter):
    """The interpreter as it comes, with XNNPACK."""

    name = "tflite.xnnpack"
    resolver = "xnnpack"
    settings: ClassVar[Mapping[str, str]] = {"resolver": "default", "delegate": "xnnpack"}


class LiteRt(Delegate):
    """LiteRT's interpreter as it comes."""

    name = "litert.xnnpack"
    package = "ai_edge_litert"
    distributions = ("ai-edge-litert",)


# -- a graph as a case ----------------------------------------------------------------------------


def _case(node: Node, feeds: Mapping[str, Array]) -> OpCase:
    """Returns an op, or one with an activation, as a model has it."""
    anchor = node.stages[0] if node.stages else node
    operands = {slot: _operand(node, slot, feeds) for slot in node.operands}
    if "bias" in operands:
        x, w = operands["x"], operands["w"]
        # A bias counts sums of data and weights, so its scale is their product.
        bias_scale = np.asarray(np.asarray(w.scale, F) * F(x.step), F)
        operands["bias"] = CaseOperand(
            operands["bias"].data, bias_scale if bias_scale.ndim else float(bias_scale)
        )
    attrs: dict[str, Value] = {}
    for name, value in anchor.attrs.items():
        if isinstance(value, tuple):
            attrs[name] = tuple(int(v) for v in value)  # type: ignore[arg-type]
        elif isinstance(value, int | float | bool | str):
            attrs[name] = value
    pad = attrs.get("pad", ())
    shape = tuple(d for d in node.result.type.shape if isinstance(d, int))
    activations = {"relu": "relu", "clip": "relu6"}
    return OpCase(
        anchor.op,
        operands,
        _case_operand(np.zeros(0, _carrier(node.result.type)), node.result.type),
        shape,
        attrs,
        tuple(slot for slot in operands if node.operands[slot].constant is None),
        isinstance(pad, tuple) and any(pad),
        activations[node.stages[1].op] if node.stages else "",
    )


def _operand(node: Node, slot: str, feeds: Mapping[str, Array]) -> CaseOperand:
    value = node.operands[slot]
    constant = value.constant
    return _case_operand(feeds[value.name] if constant is None else constant.data, value.type)


def _carrier(kind: TensorType) -> np.dtype[np.generic]:
    return kind.quant.storage.carrier if kind.quant else kind.dtype.carrier


def _case_operand(data: Array, kind: TensorType) -> CaseOperand:
    quant = kind.quant
    if quant is None:
        return CaseOperand(data)
    scales, zeros = np.asarray(quant.scales(), F), np.asarray(quant.zeros())
    if quant.axis is not None:
        return CaseOperand(data, scales, 0, quant.axis)
    return CaseOperand(data, float(scales), int(zeros))


PROBES: tuple[Probe, ...] = (Reference(), Delegate(), LiteRt())

"""The probe of Intel's extension for PyTorch, in a Python of its own, which `QIR_IPEX` names.

The extension 2.8 wants torch 2.8 to the letter, so it is seldom where QIR is. Programs go there in
QDQ form and are traced and frozen, so that the extension makes its kernels of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

import qir.inspect.pipe as pipe
from qir.inspect.child_probes import OtherRuntime
from qir.inspect.probe_cases import Forms
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.types import QuantType

Array = NDArray[np.generic]


class Ipex(OtherRuntime):
    """Traced modules, whose groups oneDNN computes."""

    name = "ipex"
    backend = "ipex"
    settings: ClassVar[Mapping[str, str]] = {"engine": "onednn", "form": "traced"}
    distributions = ("intel-extension-for-pytorch",)
    elsewhere = "QIR_IPEX"
    script = Path(__file__).with_name("child.py")
    grouped = True
    forms = Forms(
        ("quantize", "dequantize", "conv2d", "linear", "add", "avg_pool2d", "global_avg_pool"),
        products=("u8", "i8"),
        bias="real",
        special=(),
        rounds=2,
        weights=("channel",),
        tails=(("conv2d", "relu"), ("linear", "relu"), ("linear", "gelu"), ("conv2d", "add")),
        wraps=False,
    )

    def run(self, graph: Graph, feeds: Mapping[str, Array]) -> Array:
        return self.ask(program_of(graph, feeds))


def program_of(graph: Graph, feeds: Mapping[str, Array], result: str = "") -> dict[str, pipe.Plain]:
    """Returns a program in QDQ form as plain data, with what it is fed; `y` unless a result is
    named."""
    inputs: dict[str, pipe.Plain] = {}
    constants: dict[str, pipe.Plain] = {}
    nodes: list[pipe.Plain] = []
    for node in graph:
        if node.op == "output":
            continue
        value, parameters = node.result, _quantization_parameters(node.result.type.quant)
        if node.op == "input":
            inputs[value.name] = (feeds[value.name], parameters)
        elif value.constant is not None:
            constants[value.name] = (value.constant.data, parameters)
        else:
            operands: pipe.Plain = {slot: operand.name for slot, operand in node.operands.items()}
            attrs: pipe.Plain = {name: _plain_attr(v) for name, v in node.attrs.items()}
            nodes.append((node.op, value.name, operands, attrs, parameters))
    result = result or graph.outputs["y"].name
    return {"inputs": inputs, "constants": constants, "nodes": nodes, "result": result}


def _quantization_parameters(quant: QuantType | None) -> pipe.Plain:
    """Storage, scales, zero points and axis."""
    if quant is None:
        return None
    scales = np.asarray(quant.scales())
    # One zero point may stand for all channels; PyTorch takes one for each.
    zeros = np.array(np.broadcast_to(np.asarray(quant.zeros(), np.int64), scales.shape))
    return (str(quant.storage), scales, zeros, quant.axis)


def _plain_attr(value: Attr) -> pipe.Plain:
    if isinstance(value, tuple):
        return tuple(_plain_attr(v) for v in value)
    return value if isinstance(value, bool | int | float | None) else str(value)


PROBES = (Ipex(),)

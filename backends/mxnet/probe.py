"""The probe of MXNet's quantized kernels, in a Python of its own, which `QIR_MXNET` names.

MXNet 1.9 wants Python 3.11 or older and NumPy below 1.24, so it is seldom where QIR is.
Its products take weights in float, which the cases have as quantized values: recorded results hold
those.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

import qir.inspect.pipe as pipe
from qir.errors import OpError
from qir.inspect.child_probes import OtherRuntime
from qir.inspect.probe_cases import Forms
from qir.ir.graph import Graph
from qir.ir.types import TensorType

Array = NDArray[np.generic]
_STORED = {"u8": "uint8", "i8": "int8"}


class MxNet(OtherRuntime):
    """Kernels by name, as MXNet's modules call them."""

    name = "mxnet"
    backend = "mxnet"
    settings: ClassVar[Mapping[str, str]] = {"library": "onednn"}
    distributions = ("mxnet",)
    elsewhere = "QIR_MXNET"
    script = Path(__file__).with_name("child.py")
    forms = Forms(
        ("quantize", "dequantize", "add", "concat", "avg_pool2d"),
        grains=("tensor",),
        special=(),
        zeros="none",
        level=0.5,
    )

    def run(self, graph: Graph, feeds: Mapping[str, Array]) -> Array:
        node = graph["y"].node
        operand_types = [value.type for value in node.operands.values()]
        attrs: dict[str, pipe.Plain] = {}
        if node.op == "quantize":
            attrs["out_type"] = _STORED[str(node.result.type.dtype)]
        if node.op == "avg_pool2d":
            # MXNet's operator has one pad an axis, for both of its sides.
            top, left, *pad_after = _int_tuple(node.attrs["pad"])
            if [top, left] != pad_after:
                raise OpError("pads one side as the other")
            attrs |= {"pad": (top, left), "kernel": _int_tuple(node.attrs["kernel"])}
            attrs |= {"stride": _int_tuple(node.attrs["stride"]), "count_include_pad": False}
        arrays: list[pipe.Plain] = list(feeds.values())
        ranges: list[pipe.Plain] = [_declared_range(t) for t in operand_types]
        return self.ask((node.op, arrays, ranges, _declared_range(node.result.type), attrs))


def _int_tuple(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


def _declared_range(kind: TensorType) -> tuple[float, float]:
    """Returns the range that a type declares; nothing for floats."""
    declared = kind.quant.declared if kind.quant else None
    if declared is None:
        return 0.0, 0.0
    assert isinstance(declared.low, tuple)
    assert isinstance(declared.high, tuple)
    return declared.low[0], declared.high[0]


PROBES = (MxNet(),)

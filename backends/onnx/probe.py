"""Probes of onnxruntime's CPU provider, its optimizer off and on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from qir.inspect.probe_cases import Forms
from qir.inspect.probing import Probe
from qir.ir.graph import Graph

from .target import OnnxRuntimeTarget

_OPS = (
    "quantize",
    "dequantize",
    "conv2d",
    "matmul",
    "gemm",
    "add",
    "mul",
    "sigmoid",
    "leaky_relu",
    "softmax",
    "avg_pool2d",
    "global_avg_pool",
    "concat",
)

_ROWS = (("conv2d", "relu"), ("matmul", "relu"), ("gemm", "relu"))


class _OnnxRuntime(Probe):
    """A model of one op in one session, on one thread."""

    backend = "onnxruntime"
    distributions = ("onnxruntime", "onnxruntime-gpu")

    def run(self, graph: Graph, feeds: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
        session = OnnxRuntimeTarget().session(graph, threads=1, optimize=self.grouped)
        (made,) = session(**feeds).values()
        return np.asarray(made)


class Plain(_OnnxRuntime):
    """Integer operators one by one, the optimizer off."""

    name = "onnxruntime.none"
    settings: ClassVar[Mapping[str, str]] = {"optimizer": "none"}
    forms = Forms(_OPS)


class Optimized(_OnnxRuntime):
    """QDQ models, of which the optimizer makes integer operators; signed ones may stay real."""

    name = "onnxruntime.all"
    settings: ClassVar[Mapping[str, str]] = {"optimizer": "all"}
    forms = Forms(_OPS, tails=_ROWS)
    grouped = True


PROBES: tuple[Probe, ...] = (Plain(), Optimized())

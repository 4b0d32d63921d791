"""Probes of onnxruntime's CPU provider, its optimizer off and on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from qir.inspect.probe_cases import Forms
from qir.inspect.probing import Probe
from qir.ir.graph import Graph

from .target import OnnxRuntimeTarget
from .versions import DISTRIBUTIONS

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
    "choose_qparams",
)

_CHOOSE_FORMS = (("u8", False), ("i8", False), ("i8", True))
_FUSED_CHAINS = (("conv2d", "relu"), ("matmul", "relu"), ("gemm", "relu"))


class _OnnxRuntime(Probe):
    """A model of one op in one session, on one thread."""

    backend = "onnxruntime"
    distributions = DISTRIBUTIONS

    def run(self, graph: Graph, feeds: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
        if graph["y"].node.op == "choose_qparams":
            return _chosen(graph, feeds["x"])
        session = OnnxRuntimeTarget().session(graph, threads=1, optimize=self.grouped)
        (result,) = session(**feeds).values()
        return np.asarray(result)


def _chosen(graph: Graph, ranges: NDArray[np.generic]) -> NDArray[np.generic]:
    """Scales or zero points by the function of onnxruntime's quantization tool."""
    from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

    node = graph["y"].node
    symmetric, kind = node.attrs["symmetric"] is True, str(node.attrs["storage"])
    element_type = TensorProto.UINT8 if kind == "u8" else TensorProto.INT8
    # The tool's own function, since a session reports no parameters.
    lowest, highest = get_qmin_qmax_for_qType(element_type, symmetric=symmetric)
    pairs = [compute_scale_zp(a, b, lowest, highest, symmetric) for a, b in ranges]
    output = graph.outputs["y"]
    position = 1 - node.results.index(output)
    values = np.array([pair[position] for pair in pairs])
    return values.reshape(-1, 1).astype(output.type.dtype.carrier)


class Plain(_OnnxRuntime):
    """Integer operators one by one, the optimizer off."""

    name = "onnxruntime.none"
    settings: ClassVar[Mapping[str, str]] = {"optimizer": "none"}
    forms = Forms(_OPS, chosen=_CHOOSE_FORMS)


class Optimized(_OnnxRuntime):
    """QDQ models, of which the optimizer makes integer operators; signed ones may stay float."""

    name = "onnxruntime.all"
    settings: ClassVar[Mapping[str, str]] = {"optimizer": "all"}
    forms = Forms(_OPS, tails=_FUSED_CHAINS, chosen=_CHOOSE_FORMS)
    grouped = True


PROBES: tuple[Probe, ...] = (Plain(), Optimized())

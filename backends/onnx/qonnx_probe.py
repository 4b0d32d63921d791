"""The probe of QONNX's Quant as its package executes it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.inspect.probe_cases import Forms
from qir.inspect.probing import Probe
from qir.ir.graph import Graph

F = np.float32


class Qonnx(Probe):
    """Quant dequantizes float values; the integers between are their steps from the zero point."""

    name = "qonnx"
    backend = "qonnx"
    distributions = ("qonnx",)
    forms = Forms(("quantize",), grains=("tensor",), special=())

    def run(self, graph: Graph, feeds: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
        try:
            from qonnx.custom_op.general.intquant import int_quant
        except ImportError as error:
            raise OpError(f"qonnx does not load: {error}") from error
        quant = graph["y"].type.quant
        assert quant is not None
        scale, zero = F(quant.scales()), F(quant.zeros())
        low, _ = quant.storage.bounds
        bits = np.array(quant.storage.bits, F)
        floats = int_quant(feeds["x"], scale, zero, bits, low < 0, False, "ROUND")
        # Dividing by the scale restores the integer steps that Quant returns as floats.
        steps = np.rint(np.asarray(floats, np.float64) / float(scale)) + float(zero)
        return np.asarray(steps, quant.storage.carrier)


PROBES = (Qonnx(),)

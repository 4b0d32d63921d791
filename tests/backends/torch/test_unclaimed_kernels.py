"""Ops whose kernels the profile does not claim where they stand: float, and the plan says why."""

from __future__ import annotations

import numpy as np
import pytest

from qir import pipeline
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.target import target

from .networks import differing, watched

RNG = np.random.default_rng(7)
ARRAYS: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {
    "one": RNG.normal(size=(3, 3, 1, 1)).astype(np.float32),
    "three": RNG.normal(size=(3, 3, 3, 3)).astype(np.float32),
}
HEAD = "graph main as native {\n  %x = input() : (N)x3x9x7xf32\n"
HEAD += "  %w = constant(@one) : 3x3x1x1xf32\n"
HEAD += "  %v = constant(@three) : 3x3x3x3xf32\n"
WINDOWS_OF_PADDING = f"""{HEAD}
  %y = conv2d(%x, %w) {{pad = (1, 1, 1, 1)}} : (N)x3x11x9xf32
  output(y=%y)
}}"""
TWO_ORDERS = f"""{HEAD}
  %a = conv2d(%x, %v) {{pad = (1, 1, 1, 1)}} : (N)x3x9x7xf32
  %b = add(%a, %x) : (N)x3x9x7xf32
  %c = conv2d(%b, %w) : (N)x3x9x7xf32
  output(y=%c)
}}"""


def planned(text: str, name: str) -> tuple[Graph, dict[str, str]]:
    graph = parse(text, ARRAYS)
    decisions = pipeline.plan(graph, target=name).decisions
    return graph, {d.node: d.reason for d in decisions if not d.integer}


def test_windows_that_hold_padding_alone_are_float_in_onednn() -> None:
    _, reasons = planned(WINDOWS_OF_PADDING, "pytorch-x86")
    assert list(reasons) == ["y"]
    assert reasons["y"].endswith("nothing is claimed of its bytes")
    assert planned(WINDOWS_OF_PADDING, "pytorch-fbgemm")[1] == {}


@pytest.mark.parametrize("engine", ["x86", "fbgemm"])
def test_a_sum_of_tensors_that_lie_in_two_orders_is_float(engine: str) -> None:
    name = f"pytorch-{engine}"
    graph, reasons = planned(TWO_ORDERS, name)
    assert list(reasons) == ["b"]
    assert "two layouts" in reasons["b"]
    data = np.random.default_rng(3).normal(size=(40, 3, 9, 7)).astype(np.float32)
    made = pipeline.quantize(graph, pipeline.calibrate(graph, data), target=name)
    assert differing(target(name), watched(made), {"x": data[:20]})[0] == 0


PARTS = f"""{HEAD}
  %a = adaptive_avg_pool(%x) {{size = (4, 3)}} : (N)x3x4x3xf32
  %b = conv2d(%a, %v) {{pad = (1, 1, 1, 1)}} : (N)x3x4x3xf32
  %c = adaptive_avg_pool(%b) {{size = (2, 3)}} : (N)x3x2x3xf32
  %d = conv2d(%c, %w) : (N)x3x2x3xf32
  %e = adaptive_avg_pool(%d) {{size = (2, 2)}} : (N)x3x2x2xf32
  output(y=%e)
}}"""


@pytest.mark.parametrize("engine", ["x86", "fbgemm", "onednn", "qnnpack"])
def test_means_of_parts_are_float_behind_a_convolution_alone(engine: str) -> None:
    name = f"pytorch-{engine}"
    graph, reasons = planned(PARTS, name)
    assert list(reasons) == (["e"] if engine == "qnnpack" else ["c", "e"])
    assert "its data have channels last" in reasons["e"]
    data = np.random.default_rng(3).normal(size=(40, 3, 9, 7)).astype(np.float32)
    made = pipeline.quantize(graph, pipeline.calibrate(graph, data), target=name)
    assert differing(target(name), watched(made), {"x": data[:20]})[0] == 0


def test_qnnpack_clips_in_float_since_its_clamp_misplaces_channels() -> None:
    text = TWO_ORDERS.replace("add(%a, %x)", "clip(%a) {min = 0.0, max = 6.0}")
    _, reasons = planned(text, "pytorch-qnnpack")
    assert "a defect" in reasons["b"]
    assert planned(text, "pytorch-x86")[1] == {}

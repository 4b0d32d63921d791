"""The kernels compute as one profile says; a graph that follows another is not run by them."""

from __future__ import annotations

import numpy as np

from qir import profiles
from qir.backends.cpu import CpuTarget
from qir.ir.text import parse
from qir.profiles import parser
from qir.reference.interpreter import run
from tests.overriding import override_profile

TEXT = """
graph main as {profile} {{
  %x = input() : 2x3x!quant.uniform<u8:f32, 1.0:3>
  %z = input() : 2x3x!quant.uniform<u8:f32, 1.0:3>
  %y = mul(%x, %z) : 2x3x!quant.uniform<u8:f32, 2.0:5>
  output(y=%y)
}}
"""


def test_a_graph_of_onnxruntimes_profile_runs_on_kernels() -> None:
    compiled = CpuTarget().compile(parse(TEXT.format(profile="ort-1.31")))
    assert compiled.fallbacks == ()


def test_a_profile_that_computes_otherwise_is_run_by_the_reference() -> None:
    text = 'name = "odd"\nextends = "native"\n[[rule]]\nop = "softmax"\nmethod = "reals"\n'
    odd = parser.parse(text, "odd.toml", profiles.profile)
    with override_profile(odd):
        graph = parse(
            "graph main as odd {\n%x = input() : 2x3x!quant.uniform<u8:f32, 0.5>\n"
            "%y = softmax(%x) : 2x3x!quant.uniform<u8:f32, 0.004>\noutput(y=%y)\n}"
        )
        compiled = CpuTarget().compile(graph)
        (row,) = compiled.fallbacks
        assert row.reason == "profile odd computes it otherwise: method"
        x = np.arange(6, dtype=np.uint8).reshape(2, 3)
        assert np.array_equal(compiled(x=x)["y"], run(graph, {"x": x})["y"])

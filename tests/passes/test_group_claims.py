"""What a profile claims of kernels is told kernel by kernel, where it is not every byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.ir.dtype import dtype_of
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Change, Entry, Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile, query_for_node
from qir.profiles.evidence import weaker_claim
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.cli.command import qir

LAYER = """graph main {
  %x = input() : 4x6x!quant.uniform<XX:f32, 0.1:3>
  %xr = dequantize(%x) : 4x6xf32
  %w = constant(3x6xi8) : 3x6x!quant.uniform<WW:f32, 0.05>
  %wr = dequantize(%w) : 3x6xf32
  %y = linear(%xr, %wr) : 4x3xf32
  %q = quantize(%y) : 4x3x!quant.uniform<XX:f32, 0.2:5>
  output(q=%q)
}
"""
SUM = """graph main {
  %x = input() : 4x6x!quant.uniform<i8:f32, 0.1:3>
  %xr = dequantize(%x) : 4x6xf32
  %y = add(%xr, %xr) : 4x6xf32
  %q = quantize(%y) : 4x6x!quant.uniform<i8:f32, 0.2:5>
  output(q=%q)
}
"""
CONV = """graph main {
  %x = input() : 1x2x5x5x!quant.uniform<u8:f32, 0.1:3>
  %xr = dequantize(%x) : 1x2x5x5xf32
  %w = input() : 3x2x1x1x!quant.uniform<i8:f32, 0.05>
  %wr = dequantize(%w) : 3x2x1x1xf32
  %y = conv2d(%xr, %wr) {pad = (PAD)} : OUTxf32
  %q = quantize(%y) : OUTx!quant.uniform<u8:f32, 0.2:5>
  output(q=%q)
}
"""


def layer(kind: str, weights: str) -> str:
    """A linear layer whose weights are an input too."""
    text = LAYER.replace("constant(3x6xi8)", "input()").replace("XX", kind).replace("WW", weights)
    return text.replace(":3>", ">").replace(":5>", ">") if kind == "i16" else text


def conv(pad: int) -> str:
    """A convolution by one tap, with so many rows and columns of padding alone."""
    size = 5 + 2 * pad
    made = CONV.replace("PAD", ", ".join([str(pad)] * 4))
    return made.replace("OUT", f"1x3x{size}x{size}")


def depthwise() -> str:
    """A convolution of 16-bit integers in two groups, by weights of four bits."""
    made = conv(0).replace("(0, 0, 0, 0)", "(0, 0, 0, 0), groups = 2").replace("u8", "i16")
    made = made.replace("3x2x1x1x", "2x1x1x1x").replace("1x3x5x5", "1x2x5x5").replace("<i8", "<i4")
    return made.replace("3x2x1x1", "2x1x1x1").replace(":3>", ">").replace(":5>", ">")


def told(text: str, name: str) -> tuple[Graph, list[Entry]]:
    ledger = Ledger()
    made = run_passes(parse(text), [Group(name)], ledger)
    return made, [entry for entry in ledger if entry.basis == "claim"]


REF, DNNL = "tflite-2.21.ref", "torch-2.13.onednn"


@pytest.mark.parametrize(
    ("text", "name", "change", "codes", "said"),
    [
        (layer("i8", "i8"), REF, None, 0, ""),
        (layer("i16", "i4"), REF, None, 0, ""),
        (layer("u8", "u8"), REF, None, 0, ""),
        (depthwise(), REF, Change.UNVERIFIED, 0, "nothing is claimed of its bytes"),
        (
            SUM,
            "ort-1.31",
            Change.REGROUPED,
            1,
            "claimed within 1 step, in 0.02 % of results at most",
        ),
        (conv(0), DNNL, Change.REGROUPED, 1, "claimed within 1 step, in 0.1 % of results at most"),
        (conv(2), DNNL, Change.UNVERIFIED, 0, "nothing is claimed of its bytes"),
    ],
)
def test_a_kernel_that_is_not_known_to_the_byte_is_told(
    text: str, name: str, change: Change | None, codes: float, said: str
) -> None:
    made, entries = told(text, name)
    kernel = made["q"].node
    assert kernel.op in ("linear", "add", "conv2d")
    assert [(e.change, e.codes, e.reason) for e in entries] == [(change, codes, said)] * bool(said)
    of = profile(name)
    claim = of.resolve(query_for_node(kernel)).claim
    assert (weaker_claim(claim, "exact") == "exact") == (not said)


@pytest.mark.parametrize("kinds", [("i16", "u8"), ("i8", "u8"), ("u8", "i8"), ("u8", "i4")])
def test_data_and_weights_that_no_kernel_takes_are_left(kinds: tuple[str, str]) -> None:
    made, entries = told(layer(*kinds), REF)
    assert made["q"].node.op == "quantize"
    assert not entries


BIASED = """graph main {
  %x = input() : 4x6x!quant.uniform<XX:f32, 0.25>
  %xr = dequantize(%x) : 4x6xf32
  %w = input() : 3x6x!quant.uniform<WW:f32, 0.5>
  %wr = dequantize(%w) : 3x6xf32
  %b = constant(@b) : 3xBIAS
  %br = dequantize(%b) : 3xf32
  %y = linear(%xr, %wr, bias=%br) : 4x3xf32
  %q = quantize(%y) : 4x3x!quant.uniform<XX:f32, 64.0>
  output(q=%q)
}
"""


def biased(kind: str, bias: NDArray[np.generic]) -> Graph:
    """A layer whose bias is integers in the unit of its sums, or real."""
    held = str(dtype_of(bias))
    coded = held != "f32"
    text = BIASED.replace("XX", kind).replace("WW", "u8" if kind == "u8" else "i8")
    text = text.replace("3xBIAS", f"3x!quant.uniform<{held}:f32, 0.125>" if coded else "3xf32")
    if not coded:
        text = text.replace("  %br = dequantize(%b) : 3xf32\n", "").replace("%br", "%b")
    return parse(text, {"b": bias})


@pytest.mark.parametrize(
    ("kind", "bias", "one"),
    [
        ("i16", np.array([1 << 33, -(1 << 34), 77], np.int64), True),
        ("i16", np.array([1 << 30, -(1 << 30), 77], np.int32), True),
        ("i16", np.array([2.0**30, -(2.0**31), 9.625], np.float32), True),
        ("i8", np.array([1 << 14, -(1 << 12), 77], np.int32), True),
        ("i8", np.array([1 << 14, -(1 << 12), 77], np.int64), False),
        ("u8", np.array([1 << 14, 1 << 12, 77], np.int32), True),
    ],
)
def test_layers_of_16_bits_take_a_bias_of_64(
    kind: str, bias: NDArray[np.generic], one: bool
) -> None:
    """Sums of 16-bit integers and their bias have 64 bits in TensorFlow Lite, of 8-bit integers
    32."""
    graph = biased(kind, bias)
    x = np.arange(24, dtype=kind.replace("i", "int").replace("u", "uint")).reshape(4, 6)
    w = (np.arange(18) - (0 if kind == "u8" else 9)).reshape(3, 6)
    w = w.astype(np.uint8 if kind == "u8" else np.int8)
    quantized = bias.astype(np.float64) / (0.125 if bias.dtype.kind == "f" else 1)
    sums = x.astype(np.int64) @ w.T.astype(np.int64) + quantized.astype(np.int64)
    Group(REF).run(graph, Ledger())
    graph.prune()
    assert ("dequantize" not in {node.op for node in graph}) is one
    if one:
        steps = sums * 0.125 / 64
        whole = np.trunc(steps + np.copysign(0.5, steps))
        ends = np.iinfo(x.dtype)
        found = run(graph, {"x": x, "w": w})["q"]
        assert np.array_equal(found, np.clip(whole, ends.min, ends.max))


def test_the_verb_says_it_in_its_table_and_in_json(tmp_path: Path) -> None:
    path, out = tmp_path / "layer.qir", tmp_path / "out.qir"
    words = ("group", path, "--as", REF, "-o", out, "-f")
    pipeline.save(parse(depthwise()), path)
    shown = " ".join(qir(*words).out.split())
    assert "1 kernel: nothing is claimed of its bytes" in shown
    assert shown.count("nothing is claimed") == 2, shown
    said = json.loads(qir(*words, "--json").out)["groups"]
    assert [group["claim"] for group in said] == ["nothing is claimed of its bytes"]
    pipeline.save(parse(layer("i8", "i8")), path, force=True)
    shown = qir(*words).out
    assert "every byte of 1 kernel" in shown
    assert "nothing is claimed" not in shown

"""What a profile claims of kernels is told kernel by kernel, where it is not every byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qir import pipeline
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Change, Entry, Ledger
from qir.numerics import profile, query_of
from qir.numerics.evidence import weaker
from qir.passes.group import Group
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
        (layer("i16", "u8"), REF, Change.UNVERIFIED, 0, "nothing is claimed of its bytes"),
        (
            SUM,
            "ort-1.31",
            Change.REGROUPED,
            1,
            "claimed within 1 code, in 0.02 % of results at most",
        ),
        (conv(0), DNNL, Change.REGROUPED, 1, "claimed within 1 code, in 0.1 % of results at most"),
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
    claim = of.resolve(query_of(kernel)).claim
    assert (weaker(claim, "exact") == "exact") == (not said)


def test_the_verb_says_it_in_its_table_and_in_json(tmp_path: Path) -> None:
    path, out = tmp_path / "layer.qir", tmp_path / "out.qir"
    words = ("group", path, "--as", REF, "-o", out, "-f")
    pipeline.save(parse(layer("i16", "u8")), path)
    shown = " ".join(qir(*words).out.split())
    assert "1 kernel: nothing is claimed of its bytes" in shown
    assert shown.count("nothing is claimed") == 2, shown
    said = json.loads(qir(*words, "--json").out)["groups"]
    assert [group["claim"] for group in said] == ["nothing is claimed of its bytes"]
    pipeline.save(parse(layer("i8", "i8")), path, force=True)
    shown = qir(*words).out
    assert "every byte of 1 kernel" in shown
    assert "nothing is claimed" not in shown

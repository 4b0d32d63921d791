"""The range rules of onnxruntime, and of the tool that quantizes models for it."""

from __future__ import annotations

from collections.abc import Mapping

from qir.numerics import Choose
from qir.numerics.range_rules import AFFINE_TEXT, SYMMETRIC_TEXT, NamedRangeRule

RANGES: Mapping[str, NamedRangeRule] = {
    "onnxruntime.i8": NamedRangeRule(
        Choose(levels=(("i8", 127.0),), zero="round(qmin-min/s)"),
        said=SYMMETRIC_TEXT,
        storages=("i8",),
        symmetric=True,
        family="onnxruntime",
    ),
    "onnxruntime.u8": NamedRangeRule(
        Choose(zero="qmin-round(min/s)"),
        said=AFFINE_TEXT,
        storages=("u8",),
        symmetric=False,
        family="onnxruntime",
    ),
    "onnxruntime.tool": NamedRangeRule(
        Choose(
            levels=(("i8", 127.0), ("i16", 32767.0)),
            compute="f64",
            zero="round(qmin-min/s)",
            small="replace_below:tiny:1",
        ),
        said="in float64: scale = (rmax-rmin)/255, zero_point = round(0 - rmin/scale)",
    ),
}
"""The formulas of the support matrix, and what the tool does."""

"""The scale rules of onnxruntime, and of the tool that quantizes models for it."""

from __future__ import annotations

from collections.abc import Mapping

from qir.numerics import Choose
from qir.numerics.scale_rules import AFFINE_TEXT, SYMMETRIC_TEXT, ScaleRule

RANGES: Mapping[str, ScaleRule] = {
    "onnxruntime.i8": ScaleRule(
        Choose(levels=(("i8", 127.0),), zero="round(qmin-min/s)"),
        formula=SYMMETRIC_TEXT,
        storages=("i8",),
        symmetric=True,
        family="onnxruntime",
    ),
    "onnxruntime.u8": ScaleRule(
        Choose(zero="qmin-round(min/s)"),
        formula=AFFINE_TEXT,
        storages=("u8",),
        symmetric=False,
        family="onnxruntime",
    ),
    "onnxruntime.tool": ScaleRule(
        Choose(
            levels=(("i8", 127.0), ("i16", 32767.0)),
            compute="f64",
            zero="round(qmin-min/s)",
            small="replace_below:tiny:1",
        ),
        formula="in float64: scale = (rmax-rmin)/255, zero_point = round(0 - rmin/scale)",
    ),
}
"""The formulas of the support matrix, and what the tool does."""

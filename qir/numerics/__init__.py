"""Arithmetic on quantized values: quantize, requantize, sums, packing, ranges, scale rules."""

from __future__ import annotations

from qir.numerics.affine import Affine, affine, affine_of
from qir.numerics.fields import Choose, MethodField, Rule
from qir.numerics.maps import AnyMap, Map, same_map
from qir.numerics.packing import pack, recode, unpack
from qir.numerics.quantize import (
    convert,
    dequantize,
    multiplier,
    quantize,
    quantize_bias,
    requantize,
    requantize_bias,
    scale_sum,
)
from qir.numerics.ranges import choose
from qir.numerics.scale_rules import SCALE_FORMULAS
from qir.numerics.stated_parameters import map_of

__all__ = [
    "SCALE_FORMULAS",
    "Affine",
    "AnyMap",
    "Choose",
    "Map",
    "MethodField",
    "Rule",
    "affine",
    "affine_of",
    "choose",
    "convert",
    "dequantize",
    "map_of",
    "multiplier",
    "pack",
    "quantize",
    "quantize_bias",
    "recode",
    "requantize",
    "requantize_bias",
    "same_map",
    "scale_sum",
    "unpack",
]

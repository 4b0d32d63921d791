"""How numbers behave: the maps between codes and reals, and profiles that say who computes how."""

from __future__ import annotations

from qir.numerics.affine import Affine, affine, affine_of
from qir.numerics.fields import Choose, Method, Rule
from qir.numerics.library import (
    PROFILES,
    bring,
    codes_of,
    numbers_for,
    profile,
    profile_names,
    profile_text,
    reals_of,
    replaced,
)
from qir.numerics.profile import Group, Profile, Query, When, query_of
from qir.numerics.quantize import (
    bias_codes,
    dequantize,
    multiplier,
    quantize,
    requantize,
    scale_sum,
)
from qir.numerics.ranges import NAMED, choose
from qir.numerics.reading import dumps, load, parse

__all__ = [
    "NAMED",
    "PROFILES",
    "Affine",
    "Choose",
    "Group",
    "Method",
    "Profile",
    "Query",
    "Rule",
    "When",
    "affine",
    "affine_of",
    "bias_codes",
    "bring",
    "choose",
    "codes_of",
    "dequantize",
    "dumps",
    "load",
    "multiplier",
    "numbers_for",
    "parse",
    "profile",
    "profile_names",
    "profile_text",
    "quantize",
    "query_of",
    "reals_of",
    "replaced",
    "requantize",
    "scale_sum",
]

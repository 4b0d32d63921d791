"""How numbers behave: the maps between codes and reals, and profiles that say who computes how."""

from __future__ import annotations

from qir.numerics.affine import Affine, affine, affine_of
from qir.numerics.deferred import codes_later, packed_later, packed_pieces, unpacked_later
from qir.numerics.fields import Choose, Method, Rule
from qir.numerics.library import (
    PROFILES,
    bring,
    codes_of,
    given,
    numbers_for,
    profile,
    profile_names,
    profile_text,
    reals_of,
    replaced,
)
from qir.numerics.maps import AnyMap, Map, same_map
from qir.numerics.packing import pack, recode, unpack
from qir.numerics.parameters import Param
from qir.numerics.plugin_methods import PluginMethod
from qir.numerics.profile import (
    Group,
    Profile,
    Query,
    When,
    choosing,
    dequantizing,
    quantizing,
    query_of,
    query_on,
    resolve,
)
from qir.numerics.quantize import (
    bias_codes,
    convert,
    dequantize,
    multiplier,
    quantize,
    requantize,
    rescaled_bias,
    scale_sum,
)
from qir.numerics.ranges import NAMED, choose
from qir.numerics.reading import dumps, load, parse
from qir.numerics.typed import map_of

__all__ = [
    "NAMED",
    "PROFILES",
    "Affine",
    "AnyMap",
    "Choose",
    "Group",
    "Map",
    "Method",
    "Param",
    "PluginMethod",
    "Profile",
    "Query",
    "Rule",
    "When",
    "affine",
    "affine_of",
    "bias_codes",
    "bring",
    "choose",
    "choosing",
    "codes_later",
    "codes_of",
    "convert",
    "dequantize",
    "dequantizing",
    "dumps",
    "given",
    "load",
    "map_of",
    "multiplier",
    "numbers_for",
    "pack",
    "packed_later",
    "packed_pieces",
    "parse",
    "profile",
    "profile_names",
    "profile_text",
    "quantize",
    "quantizing",
    "query_of",
    "query_on",
    "reals_of",
    "recode",
    "replaced",
    "requantize",
    "rescaled_bias",
    "resolve",
    "same_map",
    "scale_sum",
    "unpack",
    "unpacked_later",
]

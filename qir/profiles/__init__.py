"""Numerics profiles: what a runtime computes, as data, and which rule answers a query."""

from __future__ import annotations

from qir.profiles.lazy_quantize import iter_packed, lazy_pack, lazy_quantize, lazy_unpack
from qir.profiles.library import (
    PROFILES,
    choose_rule_for,
    declared_range_for,
    dequantize_by_profile,
    is_profile_file,
    parameters_for_range,
    profile,
    profile_names,
    profile_text,
    quantize_by_profile,
    read_profile,
)
from qir.profiles.lookup import (
    NO_PROFILE,
    NamedProfile,
    ProfileLibrary,
    carry_profile,
    library_of,
    profile_in,
    read_profile_for,
)
from qir.profiles.methods import Param, PluginMethod, Taps
from qir.profiles.parser import load, parse
from qir.profiles.preparation import PreparationStep
from qir.profiles.profile import (
    GroupEntry,
    Profile,
    Query,
    RuleSource,
    When,
    choose_query,
    dequantize_query,
    quantize_query,
    query_for_node,
    query_for_op,
    resolve,
)
from qir.profiles.writing import dumps

__all__ = [
    "NO_PROFILE",
    "PROFILES",
    "GroupEntry",
    "NamedProfile",
    "Param",
    "PluginMethod",
    "PreparationStep",
    "Profile",
    "ProfileLibrary",
    "Query",
    "RuleSource",
    "Taps",
    "When",
    "carry_profile",
    "choose_query",
    "choose_rule_for",
    "declared_range_for",
    "dequantize_by_profile",
    "dequantize_query",
    "dumps",
    "is_profile_file",
    "iter_packed",
    "lazy_pack",
    "lazy_quantize",
    "lazy_unpack",
    "library_of",
    "load",
    "parameters_for_range",
    "parse",
    "profile",
    "profile_in",
    "profile_names",
    "profile_text",
    "quantize_by_profile",
    "quantize_query",
    "query_for_node",
    "query_for_op",
    "read_profile",
    "read_profile_for",
    "resolve",
]

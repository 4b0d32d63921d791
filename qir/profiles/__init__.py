"""Numerics profiles: what a runtime computes, as data, and which rule answers a query."""

from __future__ import annotations

from qir.profiles.lazy_quantize import iter_packed, lazy_pack, lazy_quantize, lazy_unpack
from qir.profiles.library import (
    PROFILES,
    choose_rule_for,
    declared_range_for,
    dequantize_by_profile,
    override_profile,
    parameters_for_range,
    profile,
    profile_names,
    profile_text,
    quantize_by_profile,
    register_profile,
    resolve_profile_name,
)
from qir.profiles.methods import Param, PluginMethod
from qir.profiles.parser import load, parse
from qir.profiles.preparation import PreparationStep
from qir.profiles.profile import (
    GroupEntry,
    Profile,
    Query,
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
    "PROFILES",
    "GroupEntry",
    "Param",
    "PluginMethod",
    "PreparationStep",
    "Profile",
    "Query",
    "When",
    "choose_query",
    "choose_rule_for",
    "declared_range_for",
    "dequantize_by_profile",
    "dequantize_query",
    "dumps",
    "iter_packed",
    "lazy_pack",
    "lazy_quantize",
    "lazy_unpack",
    "load",
    "override_profile",
    "parameters_for_range",
    "parse",
    "profile",
    "profile_names",
    "profile_text",
    "quantize_by_profile",
    "quantize_query",
    "query_for_node",
    "query_for_op",
    "register_profile",
    "resolve",
    "resolve_profile_name",
]

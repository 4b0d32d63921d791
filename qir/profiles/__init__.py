"""Numerics profiles: what a runtime computes, as data, and which rule answers a query."""

from __future__ import annotations

from qir.profiles.deferred import codes_later, packed_later, packed_pieces, unpacked_later
from qir.profiles.library import (
    PROFILES,
    bring,
    chosen_by,
    codes_of,
    declared_for,
    given,
    numbers_for,
    profile,
    profile_names,
    profile_text,
    reals_of,
    replaced,
)
from qir.profiles.methods import Param, PluginMethod
from qir.profiles.parser import load, parse
from qir.profiles.preparation import PreparationStep
from qir.profiles.profile import (
    GroupEntry,
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
    "bring",
    "choosing",
    "chosen_by",
    "codes_later",
    "codes_of",
    "declared_for",
    "dequantizing",
    "dumps",
    "given",
    "load",
    "numbers_for",
    "packed_later",
    "packed_pieces",
    "parse",
    "profile",
    "profile_names",
    "profile_text",
    "quantizing",
    "query_of",
    "query_on",
    "reals_of",
    "replaced",
    "resolve",
    "unpacked_later",
]

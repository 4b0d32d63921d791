"""Finds installed profiles by name, and answers what passes ask of a profile."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import PluginError, ProfileError
from qir.ir.scheme import Scheme
from qir.ir.types import Array, DeclaredBounds, Granularity, QuantType, make_param
from qir.numerics.fields import Choose, Rule, level_of, levels_of
from qir.numerics.quantize import dequantize, quantize
from qir.numerics.ranges import choose, declared_ends
from qir.numerics.scale_rules import named_scales
from qir.numerics.stated_parameters import map_of
from qir.profiles.parser import load, parse
from qir.profiles.profile import Profile, Query, choose_query, dequantize_query, quantize_query

PROFILES = Path(__file__).parent
"""The folder of the profiles that the core holds."""
_MAX_SHOWN_NAMES = 6
_NAME = re.compile(r"[\w.+-]{1,80}")


def _folders(broken: list[str]) -> Iterator[Path]:
    """Yields the folders of profile files, ours first; says what is wrong with others."""
    yield PROFILES
    for name in registry.names("qir.profiles"):
        try:
            folder = registry.find("qir.profiles", name)
        except PluginError as error:
            broken.append(str(error))
            continue
        if isinstance(folder, Path):
            yield folder
        else:
            broken.append(f"profiles {name!r} is not a folder")


def profile_names() -> tuple[str, ...]:
    """Returns the profiles that are installed, sorted."""
    return tuple(sorted({p.stem for folder in _folders([]) for p in folder.glob("*.toml")}))


def profile(name: str) -> Profile:
    """Returns the installed profile of that name, ours or a plugin's; raises ProfileError if there
    is none.

    A graph may carry others: `profile_in` finds those too.
    """
    return _installed(name)


_READ_PROFILES: dict[str, Profile] = {}
"""The profiles that were read from files."""


def _installed(name: str, extending: tuple[str, ...] = ()) -> Profile:
    loaded = _READ_PROFILES.get(name)
    if loaded is None:
        loaded = _READ_PROFILES[name] = _read(name, extending)
    return loaded


def is_installed(other: Profile) -> bool:
    """Returns whether a profile says what the installed one of its name says."""
    if other.name not in profile_names():
        return False
    installed = _installed(other.name)
    return installed is other or (installed.text == other.text and installed == other)


def parse_profile(name: str, text: str) -> Profile:
    """Reads the text of a profile that is not installed; what it extends is.

    Raises ProfileError for text that is no profile.
    """
    return parse(text, f"{name}.toml", profile)


def is_profile_file(text: str) -> bool:
    """Whether a user names a profile by the path of its file, not by its name."""
    return text.endswith(".toml")


def read_profile(text: str) -> Profile:
    """Returns the profile that a user names, by its name or by the path of a `.toml` file.

    The profile of a file has the name that the file says; what it extends is installed. Raises
    ProfileError for a file that is no profile, or whose name an installed one has.
    """
    if not is_profile_file(text):
        return profile(text)
    path = Path(text)
    loaded = load(path, profile)
    if not _NAME.fullmatch(loaded.name):
        raise ProfileError(f"{path.name}, line 1: {_invalid_name_text(loaded.name)}")
    if loaded.name in profile_names() and profile_text(loaded.name) != loaded.text:
        raise ProfileError(
            f"{path.name}: an installed profile is named {loaded.name} and says something else; "
            f"give this one another name"
        )
    return loaded


def _invalid_name_text(name: str) -> str:
    return f"{name[:40]!r} is no name of a profile: letters, digits and . + - _"


def _read(name: str, extending: tuple[str, ...]) -> Profile:
    if not _NAME.fullmatch(name):
        raise ProfileError(_invalid_name_text(name))
    chain = (*extending, name)
    broken: list[str] = []
    for folder in _folders(broken):  # no plugin is loaded after the one whose file it is
        path = folder / f"{name}.toml"
        if path.parent == folder and path.exists():
            return load(path, lambda base: _installed(base, chain), extending=extending)
    known = profile_names()
    close_names = difflib.get_close_matches(name, known, 1)
    shown_names = ", ".join(known[:_MAX_SHOWN_NAMES]) + (
        ", ..." if len(known) > _MAX_SHOWN_NAMES else ""
    )
    hint = f"did you mean {close_names[0]!r}?" if close_names else f"known: {shown_names}"
    raise ProfileError("; ".join([f"no profile {name[:40]!r}; {hint}", *broken]))


def profile_text(name: str) -> str:
    """Returns the text of a profile's file; raises ProfileError if there is none."""
    return profile(name).text


def parameters_for_range(
    profile: Profile,
    low: NDArray[np.generic],
    high: NDArray[np.generic],
    scheme: Scheme,
    *,
    weight: bool = False,
    scales: str = "profile",
) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    """Returns scale and zero point, or arrays of them, for ranges and a scheme.

    `scales` names a scale rule, or a family of them, that takes the place of the profile's. A zero
    point that the scheme fixes is kept. Raises ProfileError as `choose`, and for a scale of 0.
    """
    storage = str(scheme.storage)
    named_choice = named_scales(scales, storage, scheme.symmetric)
    if named_choice is None:
        rule = choose_rule_for(profile, scheme)
        symmetric = scheme.symmetric
        # `decimals` models ranges written to a text file; weight ranges are in none.
        rule = replace(rule, decimals="exact") if weight else rule
    else:
        rule, symmetric = named_choice
        if rule.reach == "max" and np.min(low, initial=0) < 0:
            raise ProfileError(
                f"a range {np.min(low):.6g}..{np.max(high):.6g} goes below zero, from which "
                f"{scales} counts up: keep it float or choose another type by `rules`, or other "
                "`scales`"
            )
    scale, zero = choose(
        np.asarray(low, np.float64) if np.asarray(low).dtype.kind != "f" else np.asarray(low),
        np.asarray(high, np.float64) if np.asarray(high).dtype.kind != "f" else np.asarray(high),
        scheme.storage,
        rule,
        bounds=scheme.bounds,
        symmetric=symmetric,
        grain=scheme.granularity,
        weight=weight,
        profile=profile.name,
    )
    if scale.dtype.kind == "f" and np.any(scale == 0):
        by = profile.name if scales == "profile" else scales
        raise ProfileError(
            f"a range of zeros alone, or too near to them, has no scale by {by}: keep it float "
            "by `rules`, or take other `scales`, such as torch.observer"
        )
    return scale, zero if scheme.zero is None else np.full_like(zero, scheme.zero)


def choose_rule_for(profile: Profile, scheme: Scheme) -> Choose:
    """Returns how a profile makes scale and zero point of a range for a scheme.

    Symmetric values that all count from a fixed zero point up reach the greatest of them, unless
    the profile names another level.
    """
    rule = _profile_choose_rule(profile, scheme)
    counts_from_zero = scheme.symmetric and scheme.zero == scheme.low
    if (
        not counts_from_zero
        or levels_of(rule.levels, str(scheme.storage), scheme.granularity) is not None
    ):
        return rule
    # Such a type is unsigned and counts from its zero point: the full span is the level.
    low, high = scheme.storage.bounds
    return replace(rule, zero="none", levels=((str(scheme.storage), float(high - low)),))


def _profile_choose_rule(profile: Profile, scheme: Scheme) -> Choose:
    return _resolve_cached(profile, choose_query(str(scheme.storage), scheme.granularity)).choose


def declared_range_for(
    profile: Profile,
    low: NDArray[np.generic],
    high: NDArray[np.generic],
    scheme: Scheme,
    scale: NDArray[np.floating],
    name: str = "",
    *,
    weight: bool = False,
) -> DeclaredBounds | None:
    """Returns the range that goes with a scale, where a profile's runtime carries ranges.

    That is one without zero points that names a level; None for others, and for a scale that is not
    what the range reaches over that level. Zeros alone have the range that their scale stands for.
    """
    rule = _profile_choose_rule(profile, scheme)
    bounds = scheme.low, scheme.high
    level = level_of(rule.levels, rule.zero, scheme.storage, bounds, scheme.granularity)
    if not scheme.symmetric or rule.zero != "none" or level is None:
        return None
    rule = replace(rule, decimals="exact") if weight else rule
    float32_ends = low.astype(np.float32), high.astype(np.float32)
    low_end, high_end = declared_ends(*float32_ends, scheme.storage, rule, weight=weight)
    high_declared = np.where(
        high_end == 0, (scale * np.float32(level)).astype(np.float32), high_end
    )
    ends = (
        np.where(low_end == high_end, -high_declared if scheme.low < 0 else low_end, low_end),
        high_declared,
    )
    # A runtime that carries ranges computes the scale from them: it must come out the same.
    if np.any((ends[1] / np.float32(level)).astype(np.float32) != scale):
        return None
    granularity = Granularity(((0, 1),)) if scale.size > 1 else None
    lows, highs = (
        cast("tuple[float, ...] | Array", make_param(end, granularity, f"{name}.{end_name}"))
        for end_name, end in zip(("low", "high"), ends, strict=True)
    )
    return DeclaredBounds(lows, highs, level)


_RuleKey: TypeAlias = "tuple[int, str, tuple[tuple[str, str], ...], str, str]"
_RESOLVED_RULES: dict[_RuleKey, tuple[Profile, Rule]] = {}
_MAX_RESOLVED_RULES = 4096


def _resolve_cached(profile: Profile, query: Query) -> Rule:
    """Resolves a query with a cache: passes ask the same for every tensor of a model."""
    key = (id(profile), query.op, tuple(query.storage.items()), query.grain, query.bounds)
    cached = _RESOLVED_RULES.get(key)
    # The id of a profile may be given to another once it is gone: the entry holds the profile
    # itself.
    if cached is None or cached[0] is not profile:
        if len(_RESOLVED_RULES) > _MAX_RESOLVED_RULES:
            _RESOLVED_RULES.clear()
        cached = _RESOLVED_RULES[key] = profile, profile.resolve(query)
    return cached[1]


def quantize_by_profile(
    profile: Profile, data: NDArray[np.generic], kind: QuantType
) -> NDArray[np.integer]:
    """Quantizes floats by a profile's `quantize` rule. Raises as `quantize` does."""
    floats = np.asarray(data)
    return quantize(
        floats if floats.dtype.kind == "f" else floats.astype(np.float32),
        map_of(kind),
        _resolve_cached(profile, quantize_query(kind)),
    )


def dequantize_by_profile(
    profile: Profile, codes: NDArray[np.generic], kind: QuantType
) -> NDArray[np.floating]:
    """Dequantizes integers by a profile's `dequantize` rule. Raises as `dequantize` does."""
    return dequantize(
        np.asarray(codes),
        map_of(kind),
        _resolve_cached(profile, dequantize_query(kind)),
    )

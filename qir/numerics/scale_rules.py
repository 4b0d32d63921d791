"""Scale rules: how a range becomes a scale and a zero point, as tools and runtimes have it.

`choose_qparams`, `--scales`, target files and `choose.by` of profiles name them. They are found by
the entry point `qir.ranges`: those of one runtime are in its backend's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import ArgumentError, PluginError, ProfileError, QirError
from qir.ir.dtype import DType
from qir.numerics.fields import Choose
from qir.records import record

KIND = "qir.ranges"
"""The entry points of scale rules; each names a `ScaleRule` or a table of them by name."""
SYMMETRIC_TEXT = "scale = 2*max(|rmin|,|rmax|)/(127+128-1)"
AFFINE_TEXT = "scale = (rmax-rmin)/255, zero_point = 0 - round(rmin/scale)"
Tensor: TypeAlias = NDArray[np.generic]


@record
class ScaleRequest:
    """What scale and zero point are chosen for."""

    storage: DType
    bounds: tuple[int, int]
    symmetric: bool


@record
class ScaleRule:
    """How a range becomes a scale and a zero point: by the fields of `choose`, or by a function.

    The range itself comes from a range rule of `qir.calibration`, or from data at run time.
    """

    choose: Choose | None = None
    function: Callable[[Tensor, Tensor, ScaleRequest], tuple[Tensor, Tensor]] | None = None
    """`function(low, high, request)`: scales and zero points, of ranges in arrays of one shape, for
    what no fields express. It raises OpError for what it has no scale for."""
    formula: str = ""
    """The formula as it is printed; a rule without one is no choice of `--scales`."""
    storages: tuple[str, ...] = ()
    """Storage types of which the formula speaks; any where none is named."""
    symmetric: bool | None = None
    """Whether quantized values are about zero, or from it; None where the formula has both."""
    note: str = ""
    """A remark that is printed after the formula."""
    family: str = ""
    """The name under which `--scales` takes several rules: each storage type by the one that fits
    it."""

    def __post_init__(self) -> None:
        if (self.choose is None) == (self.function is None):
            has = "neither" if self.choose is None else "both"
            raise ArgumentError(f"ScaleRule is given choose or function; it has {has}")

    def fits(self, storage: str, symmetric: bool) -> bool:
        """Returns whether the formula says how such quantized values get their scale."""
        has_storage = not self.storages or storage in self.storages
        return has_storage and self.symmetric in (None, symmetric)

    @property
    def text(self) -> str:
        """The formula and its note."""
        return ", ".join(part for part in (self.formula, self.note) if part)

    @property
    def types_text(self) -> str:
        """The quantized types that it fits, in words such as `i8 symmetric`."""
        symmetry = {True: "symmetric", False: "affine", None: ""}[self.symmetric]
        return " ".join(part for part in (" or ".join(self.storages) or "any", symmetry) if part)


def scale_rules() -> Mapping[str, ScaleRule]:
    """Returns all scale rules by name."""
    return registry.entries(KIND, ScaleRule)


def scale_rule(name: str) -> ScaleRule:
    """Returns the scale rule of that name; raises ProfileError if there is none."""
    found = registry.entry(KIND, ScaleRule, name)
    if found is None:
        raise ProfileError(f"no scale rule {name[:40]!r}; known: {', '.join(scale_rules())}")
    return found


def computed_scales(
    name: str, low: Tensor, high: Tensor, request: ScaleRequest
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the scales and zero points of a rule that is a function.

    Raises PluginError, which names the rule and its distribution, for a function that fails or
    gives what are no scales above zero and no whole zero points.
    """
    function = scale_rule(name).function
    assert function is not None
    where = f"scale rule {name} of {registry.owner(KIND, name)}"
    try:
        found = function(low, high, request)
        scales, zeros = (np.asarray(part, np.float64) for part in found)
    except QirError:
        raise
    except Exception as error:  # a plugin raises what it likes
        raise PluginError(f"{where} fails: {type(error).__name__}: {error}") from error
    if scales.shape != np.shape(low) or zeros.shape != np.shape(low):
        raise PluginError(f"{where} gives {scales.shape} scales for {np.shape(low)} ranges")
    if not np.all((scales > 0) & np.isfinite(scales)):
        raise PluginError(f"{where} gives the scale {scales.min()}: scales are finite and above 0")
    if not np.all(zeros == np.rint(zeros)):
        raise PluginError(f"{where} gives a zero point that is no whole number")
    return scales, zeros.astype(np.int64)


def choose_fields(name: str) -> Choose:
    """Returns the `choose` block that computes what a scale rule does; ProfileError as
    `scale_rule`."""
    return scale_rule(name).choose or Choose(by=name)


def stated_fields(name: str) -> dict[str, Any]:
    """Returns what `choose.by` states: all fields of a scale rule, or the name of its function."""
    found = scale_rule(name).choose
    return (
        {"by": name} if found is None else {f.name: getattr(found, f.name) for f in fields(found)}
    )


def printed_rules() -> Mapping[str, ScaleRule]:
    """Returns the scale rules that have a formula, which `--scales` takes."""
    return {name: rule for name, rule in scale_rules().items() if rule.formula}


def families() -> Mapping[str, tuple[str, ...]]:
    """Returns the names of the rules of each family, by the name of the family."""
    out: dict[str, tuple[str, ...]] = {}
    for name, rule in printed_rules().items():
        if rule.family:
            out[rule.family] = (*out.get(rule.family, ()), name)
    return out


class ScaleFormulas(Mapping[str, Choose]):
    """The `choose` blocks of the scale rules that have a formula, by name.

    A plugin may be installed or offered later, so the rules are looked up when they are asked for.
    """

    def __getitem__(self, name: str) -> Choose:
        if name not in printed_rules():
            raise KeyError(name)
        return choose_fields(name)

    def __iter__(self) -> Iterator[str]:
        return iter(printed_rules())

    def __len__(self) -> int:
        return len(printed_rules())


SCALE_FORMULAS = ScaleFormulas()
"""The `choose` blocks of scale rules by name: the formulas of the support matrix, and those of
today's tools."""


def known_scales(word: str) -> str:
    """Returns the name of a scale rule, or of a family of them, or `profile`; raises ProfileError
    for others."""
    if word != "profile" and word not in families() and word not in printed_rules():
        known = ", ".join(("profile", *families(), *printed_rules()))
        raise ProfileError(f"no scale rule {word[:40]!r}; known: {known}")
    return word


def named_scales(word: str, storage: str, symmetric: bool) -> tuple[Choose, bool] | None:
    """Returns the scale rule of that name for a quantized type, and whether that is symmetric.

    None for `profile`. An unsigned affine type may also take a symmetric rule, whose zero point is
    one of those that it allows. Raises ProfileError where no rule fits the type.
    """
    if known_scales(word) == "profile":
        return None
    name, is_symmetric = named_rule(word, storage, symmetric)
    return choose_fields(name), is_symmetric


def named_rule(word: str, storage: str, symmetric: bool) -> tuple[str, bool]:
    """Returns the name of the rule of a family for a quantized type, and whether that is symmetric.

    Raises ProfileError where no rule fits the type.
    """
    # A single rule is a family of one.
    rules = {name: scale_rule(name) for name in families().get(word, (word,))}
    # First what was asked for; then, as an unsigned type may have any zero point, a symmetric rule
    # too.
    for is_symmetric in dict.fromkeys((symmetric, storage.startswith("u") or symmetric)):
        for name, rule in rules.items():
            if rule.fits(storage, is_symmetric):
                return name, is_symmetric
    choices = ", ".join(f"{name} of {rule.types_text}" for name, rule in rules.items())
    raise ProfileError(
        f"{storage} {'symmetric' if symmetric else 'affine'} types have no scale by {word} "
        f"({choices}): choose another type for them by `rules`, or other `scales`"
    )

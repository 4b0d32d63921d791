"""The targets that are installed: what each takes, and the support matrix that they make up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np

from qir import registry
from qir.capability import Capability
from qir.capability.table import KINDS
from qir.errors import PluginError, ProfileError, UsageError
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.numerics.formulas import formula
from qir.numerics.scale_rules import named_rule, scale_rule
from qir.passes.quantize.halve_weights import HALVES
from qir.profiles import Profile, choose_rule_for, parameters_for_range, profile
from qir.target import Target, target

FLOAT32 = "what stays float is float32"
Role = Literal["activation", "weight"]
KIND_TITLES = {
    "static": "post-training static (needs calibration data)",
    "dynamic": "post-training dynamic (needs none)",
    "training": "quantization-aware training (needs fine-tuning)",
    "weights": "weights alone (needs no data)",
    "float16": "weights alone, in float16 (needs no data)",
}
"""The kinds of quantization as the support matrix prints them."""
_ENDS = (0.25, 1.0, 3.0, 100.0)
"""Ends of the ranges on which two rules are compared."""


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """One target in a line."""

    name: str
    framework: str
    library: str
    formats: tuple[str, ...]
    """The forms of the files that it writes, the default first."""
    activations: tuple[str, ...]
    """How products store what they read."""
    weights: tuple[str, ...]
    status: str
    """What it does: writes, runs, plans."""


State = Literal["yes", ".qir files", "no"]
"""`.qir files`: it plans and quantizes, and no framework's form holds the result."""


@dataclass(frozen=True, slots=True)
class KindOf:
    """How a target takes one kind of quantization."""

    kind: str
    state: State
    how: str


@dataclass(frozen=True, slots=True)
class PrintedRule:
    """One formula of the support matrix."""

    role: Role
    values: str
    """The type, such as `int8<-127:127> symmetric`."""
    matrix: str
    today: str
    """By the target's profile; empty where it computes the same."""
    profiles: tuple[str, ...]
    """Of the targets that compute so."""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One row of the support matrix: a framework and the library whose kernels compute."""

    framework: str
    library: str
    symmetric: str
    asymmetric: str
    targets: tuple[str, ...]
    formulas: tuple[PrintedRule, ...]


def targets() -> list[Target]:
    """Returns the installed targets that can be loaded, by name."""
    found = []
    for name in registry.names("qir.targets"):
        try:
            found.append(target(name))
        except PluginError:  # `qir plugins` says what is wrong with it
            continue
    return found


def summary(of: Target) -> TargetSummary:
    """Returns what the list of targets says of one."""
    table = of.capability()
    row = table.row
    schemes = list(_product_schemes(table))
    return TargetSummary(
        of.name,
        _framework(table),
        row.library,
        tuple(of.formats),
        _texts(scheme for role, scheme in schemes if role == "activation"),
        _texts(scheme for role, scheme in schemes if role == "weight"),
        ", ".join(
            [
                *(["writes"] if of.formats else []),
                *(["runs"] if type(of).compile is not Target.compile else []),
            ]
        )
        or "plans",
    )


def kinds(of: Target) -> tuple[KindOf, ...]:
    """Returns which kinds of quantization a target has, and how."""
    table = of.capability()
    forms = table.row.forms
    bits = {
        max(s.bits for s in scheme.storages)
        for role, scheme in _product_schemes(table)
        if role == "activation"
    }
    static = ", ".join(forms.get("static", ()))
    written: State = "yes" if of.formats else ".qir files"
    out = []
    for kind, width in (("w8a8", 8), ("w8a16", 16)):
        said = static or ("its files" if of.formats else "planned and quantized")
        no = f"no product takes activations of {width} bits"
        out.append(KindOf(kind, written, said) if width in bits else KindOf(kind, "no", no))
    products = ", ".join(table.dynamic.ops) or "matrix products and convolutions"
    for kind, name, what in (
        ("dynamic", "dynamic", products),
        ("weights", "weights of 8 or 4 bits", "matrix products"),
    ):
        how = "; ".join(part for part in (what, ", ".join(forms.get(kind, ()))) if part)
        out.append(KindOf(name, "yes" if kind in forms and of.formats else ".qir files", how))
    trained = ", ".join(forms.get("training", ()))
    fake = "no form of models with fake quantization"
    out.append(KindOf("training", "yes" if "training" in forms else "no", trained or fake))
    halves = ", ".join(forms.get("float16", ()))
    stays = f"{halves}; they are computed with in float32" if halves else FLOAT32
    out.append(KindOf("float16", "yes" if halves else "no", stays))
    return tuple(out)


def require_kind(of: Target, kind: str) -> None:
    """Raises UsageError for a kind of quantization that a target's files do not hold.

    A target that says nothing of forms may hold any.
    """
    forms = of.capability().row.forms
    if not forms or kind in forms:
        return
    having = [t.name for t in targets() if t.formats and kind in t.capability().row.forms]
    others = f", or name another target: {', '.join(having)}" if having else ""
    what = {
        "dynamic": "quantized while it runs",
        "weights": "with weights of few bits alone",
        "float16": "with weights of float16 alone",
    }
    said = f"target {of.name} writes no model {what.get(kind, kind)}"
    raise UsageError(f"{said}; write a .qir file{others}")


def kind_without_data(*, dynamic: bool, weights: str | None) -> str:
    """Returns which kind of quantization is asked for that needs no data."""
    if dynamic:
        return "dynamic"
    return "float16" if weights == HALVES else "weights"


def usual_format(of: Target, kind: str) -> str | None:
    """Returns the form that a model quantized without data usually has; None: the target's own."""
    usual = {"dynamic": "integer", "weights": "nbits"}.get(kind)
    return usual if usual in of.formats else None


def matrix(of: Sequence[Target] | None = None) -> tuple[MatrixRow, ...]:
    """Returns the support matrix: a row for each framework and library of the targets."""
    found = [(t, t.capability()) for t in (targets() if of is None else of)]
    found = [(t, table) for t, table in found if table.row.library]

    def place(pair: tuple[Target, Capability]) -> tuple[str, str]:
        return _framework(pair[1]), pair[1].row.library

    found.sort(key=lambda pair: (*map(str.casefold, place(pair)), pair[0].name))
    rows = []
    for (framework, library), each in groupby(found, key=place):
        group = list(each)
        schemes = [pair for _, table in group for pair in _product_schemes(table)]
        rows.append(
            MatrixRow(
                framework,
                library,
                _cell(schemes, symmetric=True),
                _cell(schemes, symmetric=False),
                tuple(t.name for t, _ in group),
                _merged(rule for t, table in group for rule in _printed(t, table)),
            )
        )
    return tuple(rows)


def forms(of: Sequence[Target] | None = None) -> dict[str, str]:
    """Returns the second table of the matrix: the forms of each kind, by framework."""
    tables = [t.capability() for t in (targets() if of is None else of)]
    out = {}
    for kind in KINDS:
        named: dict[str, dict[str, None]] = {}
        for table in sorted(tables, key=lambda table: table.row.framework):
            if table.row.framework and kind in table.row.forms:
                known = named.setdefault(table.row.framework, {})
                known.update(dict.fromkeys(table.row.forms[kind]))
        cells = (": ".join(p for p in (f, ", ".join(n)) if p) for f, n in named.items())
        out[kind] = "; ".join(cells)
    return out


def _framework(table: Capability) -> str:
    return " ".join(part for part in (table.row.framework, table.row.extension) if part)


def _product_schemes(table: Capability) -> Iterable[tuple[Role, Scheme]]:
    """Returns the schemes of what products read: data, and constant weights."""
    for op, row in table.ops.items():
        traits = spec(op).traits
        if traits.weight is not None:
            yield from (("activation", scheme) for scheme in row.slots.get(traits.data, ()))
            yield from (("weight", scheme) for scheme in row.slots.get(traits.weight, ()))


def _texts(schemes: Iterable[Scheme]) -> tuple[str, ...]:
    """Storage and symmetry of schemes, each once."""
    return tuple(
        dict.fromkeys(
            f"{'|'.join(map(str, s.storages))} {'symmetric' if s.symmetric else 'affine'}"
            for s in schemes
        )
    )


def _named(storage: object) -> str:
    """Returns a storage type as frameworks name it."""
    text = str(storage)
    return f"{'uint' if text[0] == 'u' else 'int'}{text[1:]}"


def _cell(schemes: Iterable[tuple[Role, Scheme]], *, symmetric: bool) -> str:
    held: dict[str, set[str]] = {"activation": set(), "weight": set()}
    for role, scheme in schemes:
        if scheme.symmetric == symmetric:
            held[role] |= {_named(storage) for storage in scheme.storages}
    cell = (f"{role} {'/'.join(sorted(names))}" for role, names in held.items() if names)
    return ", ".join(cell) or "-"


def _printed(of: Target, table: Capability) -> Iterable[PrintedRule]:
    """Returns the formulas of a target's products: those of the matrix, and its profile's."""
    if not table.row.formulas:
        return
    by = profile(of.profile)
    for role, wanted in dict.fromkeys(_product_schemes(table)):
        for storage in wanted.storages:
            scheme = wanted.with_storage(storage)
            if storage.bits != 8:
                continue
            name, _ = named_rule(table.row.formulas, str(storage), scheme.symmetric)
            weight = role == "weight"
            bounds = f"<{scheme.low}:{scheme.high}>" if scheme.bounds else ""
            own = formula(choose_rule_for(by, scheme), scheme, weight=weight)
            alike = _alike(by, table.row.formulas, scheme, weight=weight)
            yield PrintedRule(
                role,
                f"{_named(storage)}{bounds} {'symmetric' if scheme.symmetric else 'affine'}",
                scale_rule(name).formula,
                "" if alike else own,
                (by.name,),
            )


def _merged(rules: Iterable[PrintedRule]) -> tuple[PrintedRule, ...]:
    """Each formula once, with all profiles that compute so."""
    out: dict[PrintedRule, dict[str, None]] = {}
    for rule in rules:
        known = out.setdefault(replace(rule, profiles=()), {})
        known.update(dict.fromkeys(rule.profiles))
    return tuple(replace(rule, profiles=tuple(names)) for rule, names in out.items())


def _alike(by: Profile, formulas: str, scheme: Scheme, *, weight: bool) -> bool:
    """Returns whether a profile and a named rule give ordinary ranges one scale and zero point."""
    upward = scheme.zero == 0 and scheme.low == 0
    lows = [0.0] if upward else [0.0, *(-end for end in _ENDS)]
    pairs = [(low, high) for low in lows for high in _ENDS]
    low, high = (np.asarray(ends, np.float32) for ends in zip(*pairs, strict=True))
    own = parameters_for_range(by, low, high, scheme, weight=weight)
    try:
        named = parameters_for_range(by, low, high, scheme, weight=weight, scales=formulas)
    except ProfileError:  # its formula has no scale for values below zero
        return False
    near = np.allclose(own[0], named[0], rtol=1e-6, atol=0)
    return bool(near and np.array_equal(own[1], named[1]))

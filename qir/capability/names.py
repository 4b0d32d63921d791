"""Checks names in target files; an error suggests the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from qir import registry
from qir.errors import ParseError
from qir.ir.ops import OPS
from qir.ir.scheme import RESULT, Scheme

_WORDS = ("symmetric", "affine", "tensor", "channel")
_LIST = 120  # letters of names that still fit a line


def require(said: str, name: str, known: Collection[str]) -> None:
    """Raises ParseError with `said` and the nearest known name, unless the name is known."""
    if name in known:
        return
    near = difflib.get_close_matches(name, known, 1)
    names = ", ".join(known)
    hint = f"known: {names}" if len(names) <= _LIST else ""
    hint = f"did you mean {near[0]!r}?" if near else hint
    raise ParseError(f"{said}; {hint}" if hint else said)


def require_ops(ops: Iterable[str]) -> None:
    """Raises ParseError for a name that is no op."""
    for op in ops:
        require(f"no op {op!r}", op, OPS)


def require_slot(op: str, slot: str) -> None:
    """Raises ParseError for a slot that an op has not; `xs` stands for all of its list."""
    if slot != RESULT and OPS[op].slot(slot) is None and OPS[op].slot(f"{slot}.0") is None:
        slots = [each.name for each in OPS[op].operands]
        require(f"{op} has no slot {slot}", slot, [*slots, RESULT])


def require_attributes(ops: Collection[str], names: Iterable[str]) -> None:
    """Raises ParseError for an attribute that none of the ops has."""
    known = dict.fromkeys(a.name for op in ops if op in OPS for a in OPS[op].attrs)
    for name in names:
        require(f"{' |> '.join(ops)} has no attribute {name!r}", name, known)


def require_range(scheme: Scheme) -> None:
    """Raises ParseError for a range rule that there is not."""
    rule, known = scheme.range.partition(":")[0], registry.names("qir.observers")
    if rule not in known:  # a misspelled word of a scheme is read as a range rule too
        require(f"{str(scheme)!r}: no range rule {rule!r}", rule, [*known, *_WORDS])

"""User rules, which override the plan by origin, op and slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from qir.analysis.decisions import ALREADY_QUANTIZED
from qir.errors import SchemeError
from qir.ir.node import Node
from qir.ir.scheme import RESULT, Scheme, parse_scheme


@dataclass(frozen=True, slots=True)
class UserRule:
    """A user's rule: a scheme, or float, where name, op and slot match. The last match wins."""

    text: str = field(compare=False)
    name: str = "*"
    """Shell pattern on the names of source ops and of the node."""
    op: str = "*"
    slot: str = RESULT
    scheme: Scheme | None = None
    """None: keep the op in float."""

    @classmethod
    def parse(cls, text: str) -> UserRule:
        """Reads `name=/conv1/* slot=w: i8 symmetric tensor` or `op=softmax: float`.

        A scheme without a slot is the result's. Raises SchemeError for text that is no rule.
        """
        where, colon, what = text.partition(": ")
        if not colon:
            raise SchemeError(f"rule {text!r} has no ': ' before its scheme")
        parts: dict[str, str] = {}
        for word in where.split():
            key, equals, value = word.partition("=")
            if not equals or key not in ("name", "op", "slot"):
                raise SchemeError(f"rule {text!r}: {word!r} is not name=, op= or slot=")
            if key in parts:
                raise SchemeError(f"rule {text!r} says {key}= twice")
            parts[key] = value
        scheme = None if what.strip() == "float" else parse_scheme(what)
        if scheme is None and "slot" in parts:
            raise SchemeError(f"rule {text!r}: an op is float as a whole; leave slot= out")
        name, op = parts.get("name", "*"), parts.get("op", "*")
        return cls(text, name, op, parts.get("slot", RESULT), scheme)

    def matches(self, node: Node) -> bool:
        """Returns whether the rule applies to a node."""
        names = {node.name, *(o.name for o in node.origins if o.name)}
        return fnmatchcase(node.op, self.op) and any(fnmatchcase(n, self.name) for n in names)

    def __str__(self) -> str:
        return repr(self.text)


def fit_to_slot(allowed: Scheme, wanted: Scheme) -> Scheme | None:
    """Returns the wanted scheme as a slot accepts it; None where it does not.

    A slot for affine values accepts symmetric ones. Bounds and zero point that the rule leaves
    open are those of the slot. A storage by sign is narrowed to the storages that both have.
    """
    both = [storage for storage in wanted.storages if storage in allowed.storages]
    if not both or allowed.granularity != wanted.granularity:
        return None
    if len(both) == 1:
        allowed, wanted = allowed.with_storage(both[0]), wanted.with_storage(both[0])
    if allowed.scale is not None and (allowed.scale, allowed.zero) != (wanted.scale, wanted.zero):
        return None
    if allowed.symmetric and not wanted.symmetric:
        return None
    made = replace(wanted, bounds=allowed.bounds) if wanted.bounds is None else wanted
    if made.scale is None and made.zero is None:
        made = replace(made, zero=allowed.zero)
    return made if allowed.low <= made.low and made.high <= allowed.high else None


def with_fixed_scale(wanted: Scheme | None, fixed: Iterable[Scheme]) -> Scheme | None:
    """Returns a wanted scheme with the fixed scale of a slot where it leaves the scale open."""
    if wanted is None or wanted.scale is not None:
        return wanted
    for each in fixed:
        takes = fit_to_slot(replace(each, scale=None, zero=None), wanted) is not None
        if takes and wanted.zero in (None, each.zero) and not (wanted.symmetric and each.zero):
            return each
    return wanted


def check_rule(rule: UserRule, reasons: Mapping[Node, str | None]) -> None:
    """Raises SchemeError for a rule without effect on ops, given why each stays float."""
    hit = [n for n in reasons if rule.matches(n)]
    if not hit:
        raise SchemeError(f"rule {rule} hits no op of this model")
    slots = {s.split(".")[0] for n in hit for s in n.operands} | {RESULT}
    if rule.slot.split(".")[0] not in slots:
        there = ", ".join(sorted(slots))
        raise SchemeError(f"rule {rule}: what it hits has no slot {rule.slot}: {there}")
    if rule.scheme and all(reasons[n] for n in hit):
        first = hit[0]
        stays = "as it is" if reasons[first] == ALREADY_QUANTIZED else "float"
        raise SchemeError(f"rule {rule}: {first.name} stays {stays}: {reasons[first]}")

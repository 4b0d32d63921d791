"""Finds what integer inputs are for: rows of a table, or the truths of a mask.

Numbers drawn at random for an input have to be possible ones: token ids beyond the table end a run,
and attention masks of large numbers make infinities.
"""

from __future__ import annotations

from qir.ir.node import Use, Value
from qir.ir.ops import spec

_INDICES = "indices"
"""The slot of indices, in every op that takes some."""


def index_limit(value: Value) -> int | None:
    """Returns the least number of entries that a value's integers index; None where they index
    none, or an axis of unknown size."""
    limits = [limit for use in _uses(value) if (limit := _entries(use)) is not None]
    return min(limits, default=None)


def is_mask(value: Value) -> bool:
    """Whether a value's integers are only cast to another type, as an attention mask's are."""
    uses = _uses(value)
    return bool(uses) and all(use.node.op == "cast" for use in uses)


def _uses(value: Value) -> list[Use]:
    """Returns the uses of a value's integers, through ops that only move or widen them."""
    found: list[Use] = []
    values, seen = [value], {value}
    while values:
        for use in values.pop().uses:
            node = use.node
            moves = spec(node.op).traits.value_preserving and use.slot != _INDICES
            widens = node.op == "cast" and node.results[0].type.dtype.is_integer
            if not moves and not widens:
                found.append(use)
                continue
            values += [result for result in node.results if result not in seen]
            seen.update(node.results)
    return found


def _entries(use: Use) -> int | None:
    """Returns the size of the axis that an operand of indices names entries of."""
    node = use.node
    table = node.operands.get("x") or node.operands.get("w")
    if use.slot != _INDICES or table is None or not table.type.shape:
        return None
    axis = node.attrs.get("axis", 0) if "x" in node.operands else 0
    shape = table.type.shape
    if node.op == "gather_nd":  # the last axis of its indices names an entry of several axes
        batch = int(str(node.attrs["batch"]))
        sizes = shape[batch : batch + _known(use)]
    else:
        sizes = (shape[int(str(axis or 0))],)
    known = [size for size in sizes if isinstance(size, int)]
    return min(known) if known and len(known) == len(sizes) else None


def _known(use: Use) -> int:
    """Returns how many axes one index of `gather_nd` names."""
    last = use.node.operands[use.slot].type.shape[-1]
    return last if isinstance(last, int) else 1

"""Sums of products by an equation, as einsum writes them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from qir.errors import TypeRuleError
from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.ops.elementwise import require_numbers, require_same_express
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import TensorType

DOTS = "..."


@dataclass(frozen=True, slots=True)
class Equation:
    """The labels of each operand's axes, and of the result's.

    The axes that dots stand for have labels of their own: `0` for the last one, `1` before it.
    """

    terms: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]


def equation(text: str, ranks: tuple[int, ...]) -> Equation:
    """Reads an equation for operands of those ranks; raises TypeRuleError if it is none of
    theirs."""
    left, arrow, right = text.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise TypeRuleError(f"{text!r} has {len(parts)} terms for {len(ranks)} operands")
    terms = tuple(_term(text, p, r) for p, r in zip(parts, ranks, strict=True))
    known = Counter(label for term in terms for label in term)
    most = max((sum(label.isdigit() for label in term) for term in terms), default=0)
    dotted = tuple(str(i) for i in reversed(range(most)))
    if not arrow:
        letters = sorted(n for n, times in known.items() if times == 1 and not n.isdigit())
        return Equation(terms, (*dotted, *letters))
    result = _labels(text, right, dotted)
    if len(set(result)) < len(result) or not set(result) <= set(known):
        raise TypeRuleError(f"{text!r}: its result names an axis twice, or one that is nowhere")
    return Equation(terms, result)


def _term(text: str, part: str, rank: int) -> tuple[str, ...]:
    free = rank - len(part.replace(DOTS, ""))
    dotted = tuple(str(i) for i in reversed(range(max(free, 0))))
    out = _labels(text, part, dotted)
    if len(out) != rank:
        raise TypeRuleError(f"{text!r}: {part or 'nothing'} stands for {rank} axes")
    return out


def _labels(text: str, part: str, dotted: tuple[str, ...]) -> tuple[str, ...]:
    before, dots, after = part.partition(DOTS)
    letters = before + after
    if letters and not (letters.isascii() and letters.isalpha()):
        raise TypeRuleError(f"{text!r}: {part!r} holds more than letters and one '...'")
    return (*before, *(dotted if dots else ()), *after)


def sizes(found: Equation, shapes: tuple[Shape, ...]) -> dict[str, Dim]:
    """Returns the size of each label; raises TypeRuleError where two differ and neither is 1."""
    out: dict[str, Dim] = {}
    for term, shape in zip(found.terms, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            held = out.setdefault(label, size)
            if held == size or size == 1:
                continue
            if held != 1 and isinstance(held, int) and isinstance(size, int):
                raise TypeRuleError(f"axis {label} has {held} and {size}")
            out[label] = _require_float_sums(held, size)
    return out


def _require_float_sums(held: Dim, size: Dim) -> Dim:
    """Returns the common size of two that may differ."""
    if held == 1:
        return size
    if isinstance(held, int) or isinstance(size, int):
        return held if isinstance(held, int) else size
    return None


def _read(call: Call) -> tuple[Equation, dict[str, Dim]]:
    shapes = tuple(t.shape for t in call.variadic("xs"))
    try:
        found = equation(call.text_attr("equation"), tuple(map(len, shapes)))
        return found, sizes(found, shapes)
    except TypeRuleError as error:
        raise call.fail(str(error)) from None


def _einsum(call: Call) -> tuple[TensorType, ...]:
    if not call.types:
        raise call.fail("it takes an operand or more")
    require_same_express(call, *call.types)
    require_numbers(call, "xs.0")
    found, known = _read(call)
    return (TensorType(tuple(known[n] for n in found.result), call.express("xs.0")),)


def _macs(call: Call, result: Shape) -> int:
    """Returns the product of all sizes, once for each operand after the first."""
    every = dims.known_shape(tuple(_read(call)[1].values()))
    total = max(len(call.types) - 1, 0)
    for size in every if every is not None else (0,):
        total *= size
    return total


OPS = (
    OpSpec(
        "einsum",
        (Slot("xs", variadic=True),),
        _einsum,
        (AttrSpec("equation", "text", required=True),),
        cost=_macs,
        doc="products of all operands, summed over the axes that the result does not name",
    ),
)

"""Sums of products by an equation, as einsum writes them."""

from __future__ import annotations

from collections import Counter

from qir.errors import TypeRuleError
from qir.ir import dims
from qir.ir.dims import Dim, Shape
from qir.ir.ops.elementwise import require_numbers, require_same_express
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import TensorType
from qir.records import record

DOTS = "..."


@record
class Equation:
    """The labels of each operand's axes, and of the result's.

    The axes that dots stand for have labels of their own: `0` for the last one, `1` before it.
    """

    terms: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]


def equation(text: str, ranks: tuple[int, ...]) -> Equation:
    """Reads an equation for operands of those ranks; raises TypeRuleError if it is none of
    theirs."""
    operand_text, arrow, result_text = text.replace(" ", "").partition("->")
    parts = operand_text.split(",")
    if len(parts) != len(ranks):
        raise TypeRuleError(f"{text!r} has {len(parts)} terms for {len(ranks)} operands")
    terms = tuple(_term(text, p, r) for p, r in zip(parts, ranks, strict=True))
    label_counts = Counter(label for term in terms for label in term)
    dotted_count = max((sum(label.isdigit() for label in term) for term in terms), default=0)
    # Dotted axes align at the right, as in broadcasting: `0` is the last one.
    dotted = tuple(str(i) for i in reversed(range(dotted_count)))
    if not arrow:
        # Without an arrow the result has the labels that occur once, in alphabetical order, as
        # NumPy and torch define it.
        letters = sorted(n for n, times in label_counts.items() if times == 1 and not n.isdigit())
        return Equation(terms, (*dotted, *letters))
    result = _labels(text, result_text, dotted)
    if len(set(result)) < len(result) or not set(result) <= set(label_counts):
        raise TypeRuleError(f"{text!r}: its result names an axis twice, or one that is nowhere")
    return Equation(terms, result)


def _term(text: str, part: str, rank: int) -> tuple[str, ...]:
    dotted_count = rank - len(part.replace(DOTS, ""))
    dotted = tuple(str(i) for i in reversed(range(max(dotted_count, 0))))
    labels = _labels(text, part, dotted)
    if len(labels) != rank:
        raise TypeRuleError(f"{text!r}: {part or 'nothing'} stands for {rank} axes")
    return labels


def _labels(text: str, part: str, dotted: tuple[str, ...]) -> tuple[str, ...]:
    before, dots, after = part.partition(DOTS)
    letters = before + after
    if letters and not (letters.isascii() and letters.isalpha()):
        raise TypeRuleError(f"{text!r}: {part!r} holds more than letters and one '...'")
    return (*before, *(dotted if dots else ()), *after)


def sizes(parsed: Equation, shapes: tuple[Shape, ...]) -> dict[str, Dim]:
    """Returns the size of each label; raises TypeRuleError where two differ and neither is 1."""
    out: dict[str, Dim] = {}
    for term, shape in zip(parsed.terms, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            size_so_far = out.setdefault(label, size)
            if size_so_far == size or size == 1:
                continue
            if size_so_far != 1 and isinstance(size_so_far, int) and isinstance(size, int):
                raise TypeRuleError(f"axis {label} has {size_so_far} and {size}")
            out[label] = _merge_sizes(size_so_far, size)
    return out


def _merge_sizes(one: Dim, other: Dim) -> Dim:
    """Returns the common size of two that may differ."""
    if one == 1:
        return other
    if isinstance(one, int) or isinstance(other, int):
        return one if isinstance(one, int) else other
    return None


def _parse_call(call: Call) -> tuple[Equation, dict[str, Dim]]:
    shapes = tuple(t.shape for t in call.variadic("xs"))
    try:
        parsed = equation(call.text_attr("equation"), tuple(map(len, shapes)))
        return parsed, sizes(parsed, shapes)
    except TypeRuleError as error:
        raise call.fail(str(error)) from None


def _einsum(call: Call) -> tuple[TensorType, ...]:
    if not call.types:
        raise call.fail("it takes an operand or more")
    require_same_express(call, *call.types)
    require_numbers(call, "xs.0")
    parsed, label_sizes = _parse_call(call)
    return (TensorType(tuple(label_sizes[n] for n in parsed.result), call.express("xs.0")),)


def _macs(call: Call, result: Shape) -> int:
    """Returns the product of all sizes, once for each operand after the first."""
    all_sizes = dims.known_shape(tuple(_parse_call(call)[1].values()))
    total = max(len(call.types) - 1, 0)
    for size in all_sizes if all_sizes is not None else (0,):
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

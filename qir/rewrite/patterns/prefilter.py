"""Selects the nodes where a pattern may match, in one pass over an integer view of the graph.

Each op of a pattern has a bit. A node has the bit where its op is the same, its results have no
more uses than the whole pattern has operands, and for each op below it some operand's producer has
that op's bit; so a node that has a result's bit is on the ops that the pattern is made of. Types,
attributes, slots and sameness are left to the match itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.rewrite.patterns._view import View
from qir.rewrite.patterns.pattern import Pattern
from qir.rewrite.patterns.terms import Chain, Either, Every, Many, Number, Op, Out, Repeat, Term

GROUP = ""
"""Stands for a group of stages where ops are named."""
_BITS = 64
_ANY = (1 << 31) - 1


def roots(pattern: Pattern) -> frozenset[str]:
    """Returns the ops that may make a pattern's first result; raises UsageError where that may be
    any."""
    return frozenset(_roots(pattern, pattern.results[0]))


def _roots(pattern: Pattern, term: Term) -> Iterable[str]:
    match term:
        case Op():
            return term.ops
        case Out():
            return term.op.ops
        case Chain():
            return (GROUP,)
        case Either():
            return [op for one in term.terms for op in _roots(pattern, one)]
        case Repeat():
            first = _roots(pattern, term.body)
            return [*first, *(_roots(pattern, term.start) if term.least == 0 else ())]
    raise UsageError(f"pattern {pattern.name}: its first result may be anything; name an op")


def candidates(graph: Graph, patterns: Sequence[Pattern]) -> list[Node]:
    """Yields the nodes at which one of the patterns may match, producers first."""
    tables = _tables(tuple(patterns))
    if not tables:
        return []
    numbers = tables[0].numbers
    view = View(graph, numbers, GROUP)
    per_table = [view.candidates(t.rows, t.tests, t.needs, t.goals) for t in tables]
    if len(per_table) == 1:
        return per_table[0]
    # Several tables may find one node; the order of the graph is restored after.
    nodes_found = {node: None for nodes in per_table for node in nodes}
    return sorted(nodes_found, key=lambda node: node._rank)


@dataclass(frozen=True)
class _Table:
    """Terms of some patterns, as the view reads them."""

    numbers: dict[str, int]
    rows: array[int]
    tests: array[int]
    needs: array[int]
    goals: int


@lru_cache(maxsize=256)
def _tables(patterns: tuple[Pattern, ...]) -> list[_Table]:
    """Tables of at most so many terms as there are bits, each with whole patterns in it."""
    numbers: dict[str, int] = {}
    sets = [_Bits()]
    for pattern in patterns:
        pattern_bits = _bits(pattern, _Bits())
        # One bit for each op of a pattern, in a mask of 64 bits; further patterns start a new
        # table.
        if len(sets[-1].rows) + len(pattern_bits.rows) > _BITS:
            sets.append(_Bits())
        _bits(pattern, sets[-1])
    for bits in sets:
        for ops, _, _ in bits.rows:
            for op in ops:
                numbers.setdefault(op, len(numbers))
    return [_table(bits, numbers) for bits in sets if bits.rows]


@dataclass
class _Bits:
    """Terms with a bit each: ops, most uses, needs; and what is known of terms."""

    rows: list[tuple[tuple[str, ...], int, list[int]]] = field(default_factory=list)
    known: dict[Term, int] = field(default_factory=dict)
    goals: int = 0
    constants: int = 0
    room: int = _BITS


def _bits(pattern: Pattern, bits: _Bits) -> _Bits:
    pattern_plan = pattern.plan
    # An inner node of a match has no readers outside, and so no more uses than the pattern has
    # edges.
    max_uses = _ANY if pattern_plan.open else pattern_plan.edges
    result_terms = {t.op if isinstance(t, Out) else t for t in pattern.results}
    root = pattern.results[0]
    _roots(pattern, root)
    bits.goals |= _mask(root, bits, max_uses, result_terms, top=True)
    return bits


def _mask(
    term: Term, bits: _Bits, max_uses: int, result_terms: set[Term], *, top: bool = False
) -> int:
    """Returns the bits of which a node that meets a term has one; 0: it may be anything."""
    match term:
        case Op():
            return _op_mask(
                term,
                bits,
                _ANY if top or term in result_terms else max_uses,
                max_uses,
                result_terms,
            )
        case Out():
            return _mask(term.op, bits, max_uses, result_terms, top=top)
        case Chain():
            return _chain_mask(term, bits)
        case Number():
            if not bits.constants and len(bits.rows) < bits.room:
                bits.rows.append((("constant",), _ANY, []))
                bits.constants = 1 << (len(bits.rows) - 1)
            return bits.constants
        case Either():
            masks = [_mask(t, bits, max_uses, result_terms, top=top) for t in term.terms]
        case Repeat():
            masks = [_mask(term.body, bits, max_uses, result_terms, top=top)]
            if term.least == 0:
                masks.append(_mask(term.start, bits, max_uses, result_terms, top=top))
        case _:
            return 0
    # One alternative that may be anything makes the whole term anything.
    if not all(masks):
        return 0
    combined = 0
    for mask in masks:
        combined |= mask
    return combined


def _chain_mask(term: Chain, bits: _Bits) -> int:
    if term not in bits.known:
        if len(bits.rows) >= bits.room:
            return 0
        bits.rows.append(((GROUP,), _ANY, []))
        bits.known[term] = 1 << (len(bits.rows) - 1)
    return bits.known[term]


def _op_mask(term: Op, bits: _Bits, uses: int, max_uses: int, result_terms: set[Term]) -> int:
    if term in bits.known:
        return bits.known[term]
    if len(bits.rows) >= bits.room:
        return 0  # the rest of a very large pattern is left to the match
    place = len(bits.rows)
    needs: list[int] = []
    bits.rows.append((term.ops, uses, needs))
    bits.known[term] = 1 << place
    for operand in term.operands.values():
        operand_terms: list[Term] = []
        if isinstance(operand, Term):
            operand_terms = [operand]
        elif isinstance(operand, Many):
            operand_terms = [item for item in operand.items if isinstance(item, Term)]
        elif isinstance(operand, Every) and operand.least:
            operand_terms = [operand.term]
        needs += [
            mask
            for operand_term in operand_terms
            if (mask := _mask(operand_term, bits, max_uses, result_terms))
        ]
    return bits.known[term]


def _table(bits: _Bits, numbers: dict[str, int]) -> _Table:
    by_op: list[list[int]] = [[] for _ in numbers]
    for bit, (ops, _, _) in enumerate(bits.rows):
        for op in dict.fromkeys(ops):
            by_op[numbers[op]].append(bit)
    # Flat arrays, which the view reads without touching a Python object for each node.
    rows, tests, needs = array("i", [0]), array("i"), array("Q")
    for terms in by_op:
        for bit in terms:
            _, uses, wanted = bits.rows[bit]
            tests.extend((bit, uses, len(needs), len(needs) + len(wanted)))
            needs.extend(wanted)
        rows.append(len(tests) // 4)
    return _Table(numbers, rows, tests, needs, bits.goals)

"""The capability table: allowed schemes for each slot, shared slots, and fusions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qir.capability.names import require_range, require_slot
from qir.errors import ParseError
from qir.ir.attrs import same
from qir.ir.node import Node
from qir.ir.scheme import RESULT, Scheme, parse_scheme

_SUM_BITS = 4
"""A bias has so many times the bits of the data, as sums have: 32 for 8, 64 for 16."""


@dataclass(frozen=True, slots=True)
class OpCapability:
    """How a target takes one op in integers."""

    op: str
    slots: Mapping[str, tuple[Scheme, ...]]
    """Allowed schemes, best first; `result` is the result. A slot not named stays float."""
    share: tuple[str, ...] = ()
    """Slots that must hold one quantized type."""
    constant: tuple[str, ...] = ()
    """Slots that must be constants."""
    when: Mapping[str, tuple[str | int | float | bool, ...]] | None = None
    """Attributes and the values they may have."""
    computed: Mapping[str, tuple[Scheme, ...]] = field(default_factory=dict)
    """Allowed schemes of slots in `constant` where what they hold is computed; none: it is not."""
    unasked: str = ""
    """Why no plan asks for integers that are there for its sake alone, though the target has it."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """How many axes slots must have."""

    def must(self, slot: str, constant: bool) -> bool:
        """Returns whether a slot must hold a constant and does not."""
        return not constant and slot in self.constant and slot not in self.computed

    def allowed(self, slot: str, constant: bool) -> tuple[Scheme, ...]:
        """Returns the schemes of a slot, whose operand is a constant or not."""
        rest = self.slots.get(slot, ())
        return rest if constant else self.computed.get(slot, rest)

    def biases(self, slot: str, data: Scheme | None) -> tuple[Scheme, ...]:
        """Returns the schemes of a constant bias, those as wide as the sums of the data if any."""
        allowed = self.allowed(slot, True)
        bits = 0 if data is None else _SUM_BITS * max(storage.bits for storage in data.storages)
        return tuple(each for each in allowed if each.storage.bits >= bits) or allowed


@dataclass(frozen=True, slots=True)
class ChainCapability:
    """What one kernel of several ops asks for, next to what its first op does."""

    result: tuple[Scheme, ...] = ()
    """Allowed schemes of its result; none: those of its first op."""
    summand: tuple[Scheme, ...] = ()
    """Allowed schemes of the tensor that a later op adds; none: it adds none."""
    last_reader: bool = False
    """Whether all other readers of that tensor must have run before, as the kernel writes to it."""
    when: Mapping[str, tuple[str | int | float | bool, ...]] = field(default_factory=dict)
    """Attributes of its ops and the values they may have."""


@dataclass(frozen=True, slots=True)
class OpCondition:
    """An op, the attributes of which something is said, and the reason."""

    op: str
    reason: str
    when: Mapping[str, tuple[str | int | float | bool, ...]]

    def hits(self, node: Node) -> bool:
        """Returns whether a node is what this speaks of."""
        return node.op == self.op and all(
            any(same(node.attrs.get(name), v) for v in values) for name, values in self.when.items()
        )


@dataclass(frozen=True, slots=True)
class Defect(OpCondition):
    """A known fault of the target: an op it would compute wrongly, refused with the reason."""


@dataclass(frozen=True, slots=True)
class Dynamic:
    """How a target quantizes data while a model runs."""

    rule: str = "onnx.dynamic"
    """The scale rule that chooses scale and zero point."""
    scale: str = "f32"
    """The element type of the scale that is chosen."""
    ops: tuple[str, ...] = ()
    """The products that have such kernels; none: all of them."""
    bounds: tuple[int, int] | None = None
    """The lowest and highest value that data take; none: those of their storage."""


KINDS = ("static", "dynamic", "training", "weights", "float16")
"""Kinds of quantization that forms are named for: with calibration data, while the model runs,
fine-tuned with fake quantization, weights alone in few bits, and weights alone in float16."""


@dataclass(frozen=True, slots=True)
class MatrixPosition:
    """Where a target is in the support matrix."""

    framework: str = ""
    extension: str = ""
    """What of another maker extends the framework; empty: nothing."""
    library: str = ""
    """The library whose kernels compute."""
    formulas: str = ""
    """The scale rule, or the family of them, that the support matrix prints; empty: none."""
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each kind of `KINDS` that there is, what the framework calls its forms; none: nothing."""


@dataclass(frozen=True, slots=True)
class Capability:
    """What a target supports: a row for each op that it runs on integers."""

    name: str
    ops: Mapping[str, OpCapability]
    chains: tuple[tuple[str, ...], ...] = ()
    """Ops that one kernel computes with a single rounding at the end."""
    defects: tuple[Defect, ...] = ()
    uncut: frozenset[tuple[str, ...]] = frozenset()
    """Chains that are one kernel only where their activations cut no quantized value."""
    rows: Mapping[tuple[str, ...], ChainCapability] = field(default_factory=dict)
    """What chains ask for that their first ops do not."""
    rounding: Mapping[str, str] = field(default_factory=dict)
    """How a quantize that no kernel absorbs rounds, by storage; others as the profile says."""
    floats: tuple[OpCondition, ...] = ()
    """Ops that stay float, though some kernel may take them, and why."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Ops of one graph that stay float, by name, and why."""
    dynamic: Dynamic = Dynamic()
    """How data are quantized while a model runs."""
    profile: str = ""
    """The numerics profile that a file names in the place of its target's; empty: that one."""
    row: MatrixPosition = MatrixPosition()
    """Its row of the support matrix."""

    def schemes(self) -> Iterator[Scheme]:
        """Yields every scheme of its rows and chains."""
        for row in self.ops.values():
            for kinds in (*row.slots.values(), *row.computed.values()):
                yield from kinds
        for chain in self.rows.values():
            yield from (*chain.result, *chain.summand)

    def with_schemes(self, others: Mapping[Scheme, tuple[Scheme, ...]]) -> Capability:
        """Returns the table with other schemes in the place of some, wherever they occur."""

        def of(kinds: tuple[Scheme, ...]) -> tuple[Scheme, ...]:
            # Replacements may coincide; the order of preference stays.
            return tuple(dict.fromkeys(n for kind in kinds for n in others.get(kind, (kind,))))

        def all_of(slots: Mapping[str, tuple[Scheme, ...]]) -> dict[str, tuple[Scheme, ...]]:
            return {slot: of(kinds) for slot, kinds in slots.items()}

        ops = {
            op: replace(row, slots=all_of(row.slots), computed=all_of(row.computed))
            for op, row in self.ops.items()
        }
        rows = {
            chain: replace(row, result=of(row.result), summand=of(row.summand))
            for chain, row in self.rows.items()
        }
        return replace(self, ops=ops, rows=rows)

    def float_reason(self, node: Node) -> str:
        """Returns why the target keeps an op in float on purpose; empty where it does not."""
        kept = self.kept.get(node.name, "")
        return kept or next((each.reason for each in self.floats if each.hits(node)), "")

    def chain(self, ops: tuple[str, ...]) -> bool:
        """Returns whether one kernel computes these ops in a row."""
        return ops in self.chains

    def leads(self, ops: tuple[str, ...]) -> bool:
        """Reports whether a chain begins with these ops."""
        return any(chain[: len(ops)] == ops for chain in self.chains)

    def chain_row(self, ops: tuple[str, ...]) -> ChainCapability | None:
        """Returns what a chain asks for; None where there is no such chain."""
        return self.rows.get(ops, ChainCapability()) if self.chain(ops) else None

    def kernel(self, ops: tuple[str, ...]) -> OpCapability | None:
        """Returns the row of an op, its result as the chain has it where more ops follow."""
        row, chain_entry = self.ops.get(ops[0]), self.rows.get(ops)
        # A chain's own schemes are of its result alone: all else is as in the row of its first op.
        if row is None or chain_entry is None or not chain_entry.result:
            return row
        return replace(row, slots={**row.slots, RESULT: chain_entry.result})


def slots_of(op: str, given: object) -> dict[str, tuple[Scheme, ...]]:
    """Reads the schemes of slots; raises ParseError for what is none."""
    if not isinstance(given, dict):
        raise ParseError(f"{op}: slots are a table")
    slots: dict[str, tuple[Scheme, ...]] = {}
    for slot, schemes in given.items():
        require_slot(op, slot)
        slots[slot] = schemes_of(schemes)
    return slots


def schemes_of(given: object) -> tuple[Scheme, ...]:
    """Reads one scheme or a list of them; raises ParseError for what is none."""
    schemes = tuple(parse_scheme(text) for text in texts(given))
    for scheme in schemes:
        require_range(scheme)
    return schemes


def values_of(table: object) -> dict[str, tuple[str | int | float | bool, ...]]:
    """Reads attributes and the values that they may have; raises ParseError for what is no
    table."""
    if not isinstance(table, dict):
        raise ParseError("when is a table of attributes")
    lists = {k: v if isinstance(v, list) else [v] for k, v in table.items()}
    return {k: tuple(map(_value, values)) for k, values in lists.items()}


def _value(value: Any) -> Any:
    """Returns a value of an attribute, rows as attributes hold them."""
    return tuple(value) if isinstance(value, list) else value


def word(value: object) -> str:
    """Reads one text; raises ParseError for something else."""
    if isinstance(value, str):
        return value
    raise ParseError(f"{value!r} is no text")


def texts(value: object) -> tuple[str, ...]:
    """Reads one text or a list of texts; raises ParseError for something else."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise ParseError(f"{value!r} is no text or list of texts")

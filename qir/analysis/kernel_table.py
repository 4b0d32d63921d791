"""Derives a capability table from the groups of a profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from qir.analysis.activations import drops_activations
from qir.capability import Capability, OpCapability
from qir.errors import UsageError
from qir.ir.dtype import I8, I32, U8, DType
from qir.ir.ops import spec
from qir.ir.ops.layers import MATRIX_PRODUCTS
from qir.ir.quantized_ops import CONVERSION_OPS
from qir.ir.scheme import RESULT, Scheme
from qir.profiles import Profile, choose_query
from qir.profiles.conditions import conditions
from qir.profiles.profile import DATA_SLOTS
from qir.profiles.profile import GroupEntry as Row

_UNIT: Mapping[str, Mapping[str, tuple[bool, ...]]] = {
    "gemm": {"trans_a": (False,)},
    "matmul": {"trans_a": (False,)},
}
_ONE_OF_REALS = frozenset({"batch_norm", "instance_norm", "reshape"})
"""Ops of one tensor of quantized values, next to which stand numbers that stay as they are."""
_PROBABILITIES = 256
"""Quantized values of a softmax share out one."""


def kernel_table(profile: Profile) -> Capability:
    """Returns what a profile's kernels take: one storage for all data, the one that most of them
    know.

    Data of runtimes that know no zero point are symmetric. UsageError for a profile that makes no
    kernels of 8-bit integers.
    """
    rows = [row for row in profile.groups if _plain(row)]
    without = profile.resolve(choose_query("u8")).quantize.zero == "none"
    kinds = (I8,) if without else (U8, I8)
    kind = max(kinds, key=lambda k: len({row.chain for row in rows if _takes(row, k)}))
    ops: dict[str, OpCapability] = {}
    for row in rows:
        if _takes(row, kind):
            for op in _heads(row):
                found = _op(op, row, Scheme(kind, symmetric=without))
                if found is not None:
                    ops.setdefault(op, found)
    if not ops:
        raise UsageError(
            f"{profile.name} makes no kernels of 8-bit integers that a model could have"
        )
    uncut = (row for row in rows if drops_activations(row.needs))
    chains = tuple(dict.fromkeys(_chains(rows, kind)))
    return Capability(profile.name, ops, chains, uncut=frozenset(_chains(uncut, kind)))


def _plain(row: Row) -> bool:
    return row.result == "codes" and row.chain[0] not in CONVERSION_OPS


def _takes(row: Row, kind: DType) -> bool:
    """Returns whether a row takes data, and gives a result, of a storage."""
    asked = [row.when.storage[s] for s in ("data", *DATA_SLOTS, RESULT) if s in row.when.storage]
    return all(str(kind) in kinds for kinds in asked) and "narrow" not in row.when.bounds


def _heads(row: Row) -> Iterable[str]:
    """Returns the ops of a float graph that a row's first may be."""
    head = row.chain[0]
    return sorted(MATRIX_PRODUCTS) if head == "linear" else (head,)


def _chains(rows: Iterable[Row], kind: DType) -> Iterable[tuple[str, ...]]:
    for row in rows:
        if not _takes(row, kind):
            continue
        for head in _heads(row):
            yield (head, *row.chain[1:])
            if head == "matmul":
                yield (head, "add", *row.chain[1:])


def _op(op: str, row: Row, data: Scheme) -> OpCapability | None:
    """Returns one op as a target's table has it; None for ops whose quantized values no plan speaks
    of."""
    known = spec(op)
    names = [slot.name for slot in known.operands]
    traits = known.traits
    if traits.weight_axis is not None and traits.weight in names:
        return _product(op, row, data)
    needed = tuple(slot.name for slot in known.operands if not slot.optional)
    if op not in _ONE_OF_REALS and needed not in (("x",), ("a", "b"), ("xs",)):
        return None
    slots = ("x",) if op in _ONE_OF_REALS else needed
    result = data
    if op == "softmax" and not data.symmetric:
        result = replace(data, scale=1 / _PROBABILITIES, zero=data.low)
    held = {slot: (data,) for slot in slots} | {RESULT: (result,)}
    keeps = any(conditions()[need].keeps_map for need in row.needs)
    share = (*slots, RESULT) if keeps else ()
    return OpCapability(op, held, share)


def _product(op: str, row: Row, data: Scheme) -> OpCapability:
    traits = spec(op).traits
    weights = Scheme(I8, symmetric=True, bounds=(-127, 127))
    grains = row.when.grain or ("channel", "tensor")
    held: dict[str, tuple[Scheme, ...]] = {traits.data: (data,), RESULT: (data,)}
    assert traits.weight is not None
    held[traits.weight] = tuple(
        replace(weights, granularity=g) for g in ("channel", "tensor") if g in grains
    )
    constant = [traits.weight]
    if traits.bias is not None:
        constant.append(traits.bias)
        held[traits.bias] = (Scheme(I32, symmetric=True, granularity="channel"),)
    return OpCapability(op, held, (), tuple(constant), _UNIT.get(op))

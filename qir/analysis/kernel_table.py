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
from qir.profiles.profile import DATA_SLOTS, GroupEntry

# Groups of `linear` have no transposed data, which ONNX's gemm allows.
_REQUIRED_ATTRS: Mapping[str, Mapping[str, tuple[bool, ...]]] = {
    "gemm": {"trans_a": (False,)},
    "matmul": {"trans_a": (False,)},
}
_ONE_QUANTIZED_INPUT = frozenset({"batch_norm", "instance_norm", "reshape"})
"""Ops with one quantized tensor; their other operands, such as means, are not quantized."""
_SOFTMAX_LEVELS = 256
"""A softmax result is in 0..1, so its scale is 1 / 256 whatever the data are."""


def kernel_table(profile: Profile) -> Capability:
    """Returns the capability table of a profile's kernels.

    All data have one storage, which most kernels accept; without zero points it is symmetric.
    Raises UsageError for a profile without 8-bit kernels.
    """
    entries = [entry for entry in profile.groups if _is_integer_kernel(entry)]
    is_symmetric = profile.resolve(choose_query("u8")).quantize.zero == "none"
    kinds = (I8,) if is_symmetric else (U8, I8)
    kind = max(
        kinds, key=lambda k: len({entry.chain for entry in entries if _accepts_storage(entry, k)})
    )
    ops: dict[str, OpCapability] = {}
    for entry in entries:
        if _accepts_storage(entry, kind):
            for op in _anchor_ops(entry):
                capability = _op_capability(op, entry, Scheme(kind, symmetric=is_symmetric))
                if capability is not None:
                    ops.setdefault(op, capability)
    if not ops:
        raise UsageError(
            f"{profile.name} makes no kernels of 8-bit integers that a model could have"
        )
    uncut = (entry for entry in entries if drops_activations(entry.needs))
    chains = tuple(dict.fromkeys(_chains(entries, kind)))
    return Capability(profile.name, ops, chains, uncut=frozenset(_chains(uncut, kind)))


def _is_integer_kernel(entry: GroupEntry) -> bool:
    return entry.result == "codes" and entry.chain[0] not in CONVERSION_OPS


def _accepts_storage(entry: GroupEntry, kind: DType) -> bool:
    """Returns whether an entry accepts data and result of a storage, at full range."""
    listed = [
        entry.when.storage[s] for s in ("data", *DATA_SLOTS, RESULT) if s in entry.when.storage
    ]
    return all(str(kind) in kinds for kinds in listed) and "narrow" not in entry.when.bounds


def _anchor_ops(entry: GroupEntry) -> Iterable[str]:
    """Returns the float ops that an entry's first op covers."""
    anchor = entry.chain[0]
    return sorted(MATRIX_PRODUCTS) if anchor == "linear" else (anchor,)


def _chains(entries: Iterable[GroupEntry], kind: DType) -> Iterable[tuple[str, ...]]:
    for entry in entries:
        if not _accepts_storage(entry, kind):
            continue
        for anchor in _anchor_ops(entry):
            yield (anchor, *entry.chain[1:])
            if anchor == "matmul":
                yield (anchor, "add", *entry.chain[1:])


def _op_capability(op: str, entry: GroupEntry, data: Scheme) -> OpCapability | None:
    """Returns an op's entry of the table; None for ops with operands that no plan quantizes."""
    known = spec(op)
    names = [slot.name for slot in known.operands]
    traits = known.traits
    if traits.weight_axis is not None and traits.weight in names:
        return _product_capability(op, entry, data)
    needed = tuple(slot.name for slot in known.operands if not slot.optional)
    if op not in _ONE_QUANTIZED_INPUT and needed not in (("x",), ("a", "b"), ("xs",)):
        return None
    slots = ("x",) if op in _ONE_QUANTIZED_INPUT else needed
    result = data
    if op == "softmax" and not data.symmetric:
        result = replace(data, scale=1 / _SOFTMAX_LEVELS, zero=data.low)
    schemes = {slot: (data,) for slot in slots} | {RESULT: (result,)}
    keeps_type = any(conditions()[need].keeps_map for need in entry.needs)
    share = (*slots, RESULT) if keeps_type else ()
    return OpCapability(op, schemes, share)


def _product_capability(op: str, entry: GroupEntry, data: Scheme) -> OpCapability:
    traits = spec(op).traits
    weights = Scheme(I8, symmetric=True, bounds=(-127, 127))
    granularities = entry.when.grain or ("channel", "tensor")
    schemes: dict[str, tuple[Scheme, ...]] = {traits.data: (data,), RESULT: (data,)}
    assert traits.weight is not None
    schemes[traits.weight] = tuple(
        replace(weights, granularity=g) for g in ("channel", "tensor") if g in granularities
    )
    constant = [traits.weight]
    if traits.bias is not None:
        constant.append(traits.bias)
        schemes[traits.bias] = (Scheme(I32, symmetric=True, granularity="channel"),)
    return OpCapability(op, schemes, (), tuple(constant), _REQUIRED_ATTRS.get(op))

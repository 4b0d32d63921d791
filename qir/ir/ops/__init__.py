"""The table of ops; one file a family."""

from __future__ import annotations

import difflib

from qir.errors import TypeRuleError
from qir.ir.ops import (
    activations,
    attention,
    columns,
    control,
    conv,
    conv_nd,
    einsum,
    elementwise,
    embedding,
    graph,
    index,
    integer,
    logic,
    matmul,
    moves,
    norm,
    pool,
    pool_nd,
    quantization,
    recurrent,
    reduce,
    resize,
    shape,
    sizes,
    unary,
)
from qir.ir.ops.spec import COMPANIONS, AttrSpec, Call, OpSpec, Signature, Slot, Traits

FAMILIES = (
    graph,
    elementwise,
    activations,
    unary,
    logic,
    conv,
    conv_nd,
    matmul,
    norm,
    pool,
    pool_nd,
    shape,
    moves,
    sizes,
    reduce,
    resize,
    index,
    embedding,
    einsum,
    columns,
    quantization,
    integer,
    recurrent,
    attention,
    control,
)
"""The modules that hold the ops, in the order of their page."""
OPS: dict[str, OpSpec] = {op.name: op for family in FAMILIES for op in family.OPS}
"""Every op, by name."""


def spec(name: str) -> OpSpec:
    """The op of that name; TypeRuleError if there is none."""
    try:
        return OPS[name]
    except KeyError:
        near = difflib.get_close_matches(name, OPS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise TypeRuleError(f"no op {name!r}{hint}") from None


__all__ = [
    "COMPANIONS",
    "FAMILIES",
    "OPS",
    "AttrSpec",
    "Call",
    "OpSpec",
    "Signature",
    "Slot",
    "Traits",
    "spec",
]

"""The table of ops; one file a family."""

from __future__ import annotations

import difflib

from qir import registry
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
from qir.ir.ops.plugin import KIND, Elsewhere, OpTable, PluginOp, found_elsewhere, plugin_op
from qir.ir.ops.spec import COMPANIONS, AttrSpec, BodySignature, Call, OpSpec, Slot, Traits

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
OPS: OpTable = OpTable((op.name, op) for family in FAMILIES for op in family.OPS)
"""Every op, by name; those of plugins are in it, but it does not go through them."""


def spec(name: str) -> OpSpec:
    """Returns the op of that name; raises TypeRuleError if there is none, PluginError if a plugin's
    is broken."""
    try:
        return OPS[name]
    except KeyError:
        raise TypeRuleError(no_op(name)) from None


def no_op(name: str) -> str:
    """Returns what to say of an op that there is not."""
    near = difflib.get_close_matches(name, (*OPS, *registry.names(KIND)), 1)
    hint = f"did you mean {near[0]}?" if near else "no plugin here brings it"
    return f"no op {name!r}; {hint}"


__all__ = [
    "COMPANIONS",
    "FAMILIES",
    "OPS",
    "AttrSpec",
    "BodySignature",
    "Call",
    "Elsewhere",
    "OpSpec",
    "OpTable",
    "PluginOp",
    "Slot",
    "Traits",
    "found_elsewhere",
    "plugin_op",
    "spec",
]

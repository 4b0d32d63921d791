"""The nodes that every graph has: inputs, constants, the output; groups and foreign ops.

`input`, `constant`, `fused` and `foreign` are given their result types; nothing is inferred.
"""

from __future__ import annotations

from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import TensorType


def _given(call: Call) -> tuple[TensorType, ...]:
    return ()


def _constant(call: Call) -> tuple[TensorType, ...]:
    return (call.constants["data"].type,)


OPS = (
    OpSpec("input", (), _given, doc="A value the caller gives."),
    OpSpec(
        "constant",
        (),
        _constant,
        (
            AttrSpec("data", "array", required=True),
            AttrSpec("trainable", "bool", False),
            AttrSpec("default", "bool", False),
        ),
        doc="A tensor that never changes; quantized values where its type is quantized. Of a "
        "`default` the "
        "caller may give another, until passes count on what it holds.",
    ),
    OpSpec(
        "output",
        (),
        _given,
        (AttrSpec("call", "text", ""),),
        results=0,
        doc="What the graph gives back; its slots are named as results. `call` says how arguments "
        "and results nest, such as `(_, mask=_) -> {'logits': _}`; each `_` is the next input or "
        "result.",
    ),
    OpSpec(
        "fused",
        (),
        _given,
        (
            AttrSpec("kernel", "text", ""),
            AttrSpec("slots", "any", ()),
            AttrSpec("attrs", "any", ()),
        ),
        results=None,
        bodies=("body",),
        doc="Several ops that one kernel computes: a chain of stages, or a body. `slots` and "
        "`attrs` are what the op of that name has in its framework, as a foreign op has them.",
    ),
    OpSpec(
        "foreign",
        (Slot("xs", variadic=True),),
        _given,
        (
            AttrSpec("framework", "text", required=True),
            AttrSpec("op", "text", required=True),
            AttrSpec("domain", "text", ""),
            AttrSpec("version", "int", 0),
            AttrSpec("slots", "any", ()),
            AttrSpec("attrs", "any", ()),
            AttrSpec("why", "text", ""),
        ),
        results=None,
        doc="An op of a framework that QIR does not know; kept whole and given back unchanged. "
        "`why` says what is wrong with one that it does know.",
    ),
)

STATED_TYPE_OPS = frozenset({"input", "output", "fused", "foreign"})
"""Ops whose result types are stated and not inferred."""
FREE_SLOT_OPS = frozenset({"output", "fused", "foreign"})
"""Ops whose slots are names of the user's own, not of a spec."""

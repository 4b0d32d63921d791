"""Normalization and softmax."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.ops.elementwise import floats, same_express, unary
from qir.ir.ops.spec import AttrSpec, Call, OpSpec, Slot
from qir.ir.types import TensorType


def _batch_norm(call: Call) -> tuple[TensorType, ...]:
    same_express(call, "x", "gamma", "beta", "mean", "var")
    floats(call)
    axis = call.axis("axis", len(call.shape("x")))
    channels = call.shape("x")[axis]
    for slot in ("gamma", "beta", "mean", "var"):
        if len(call.shape(slot)) != 1 or not dims.agree(call.shape(slot)[0], channels):
            raise call.fail(f"{slot} has {list(call.shape(slot))}, x has {channels} channels")
    return unary(call)


def _softmax(call: Call) -> tuple[TensorType, ...]:
    floats(call)
    call.axis("axis", len(call.shape("x")))
    return unary(call)


OPS = (
    OpSpec(
        "batch_norm",
        tuple(Slot(s) for s in ("x", "gamma", "beta", "mean", "var")),
        _batch_norm,
        (AttrSpec("eps", "float", 1e-5), AttrSpec("axis", "int", 1)),
        doc="(x - mean) / sqrt(var + eps) * gamma + beta, channel by channel",
    ),
    OpSpec(
        "softmax",
        (Slot("x"),),
        _softmax,
        (AttrSpec("axis", "int", -1),),
        doc="exp(x - max) / sum along one axis",
    ),
    OpSpec(
        "log_softmax",
        (Slot("x"),),
        _softmax,
        (AttrSpec("axis", "int", -1),),
        doc="logarithm of softmax along one axis",
    ),
)

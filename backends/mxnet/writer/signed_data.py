"""Data around the zero point 128, as other runtimes store symmetric data, become int8."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import uniform
from qir.ledger import Change, Ledger
from qir.passes.forms.unsigned_data import movable

STEP = "write mxnet"
_MIDDLE = 128


def store_signed(graph: Graph, ledger: Ledger) -> None:
    """Stores u8 values with the zero point 128 as i8; the same float values, the same steps."""
    for value in movable(graph, _has_zero_point_128, kernels=True):
        kind = value.type.quant
        assert kind is not None
        bounds = kind.bounds and (kind.bounds[0] - _MIDDLE, kind.bounds[1] - _MIDDLE)
        signed_type = uniform(I8, kind.scales(), np.int64(0), bounds=bounds)
        signed_type = replace(signed_type, express=kind.express, scale_dtype=kind.scale_dtype)
        graph.set_type(value, value.type.with_element(signed_type))
        reason = "stored as i8 without its zero point of 128; its float values stay"
        ledger.add(Change.REGROUPED, STEP, value.name, reason)


def _has_zero_point_128(value: Value) -> bool:
    kind = value.type.quant
    if kind is None or kind.storage != U8 or kind.kind != "uniform" or kind.dynamic:
        return False
    if kind.has_float_zero or kind.plus is not None or kind.granularity is not None:
        return False
    return bool(value.uses) and bool(np.all(np.asarray(kind.zeros()) == _MIDDLE))

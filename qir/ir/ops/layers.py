"""The ops that are layers, by the kind that their traits state."""

from __future__ import annotations

from qir.ir.ops import OPS
from qir.ir.ops.spec import Layer


def _of(kind: Layer) -> frozenset[str]:
    return frozenset(op.name for op in OPS.values() if op.traits.layer == kind)


CONVOLUTIONS = _of("convolution")
TRANSPOSED = _of("transposed")
"""Transposed convolutions."""
MATRIX_PRODUCTS = _of("matrix")
LAYERS = CONVOLUTIONS | TRANSPOSED | MATRIX_PRODUCTS

"""Kinds of ops, by what their specs state: layers, and ops that hold graphs."""

from __future__ import annotations

from qir.ir.ops import OPS, recurrent
from qir.ir.ops.spec import Layer


def _of(kind: Layer) -> frozenset[str]:
    return frozenset(op.name for op in OPS.values() if op.traits.layer == kind)


CONVOLUTIONS = _of("convolution")
TRANSPOSED = _of("transposed")
"""Transposed convolutions."""
MATRIX_PRODUCTS = _of("matrix")
LAYERS = CONVOLUTIONS | TRANSPOSED | MATRIX_PRODUCTS
PRODUCTS = MATRIX_PRODUCTS | {"conv2d"}
"""Layers whose kernels sum products of integers and round once."""
RECURRENT = frozenset(op.name for op in recurrent.OPS)
"""Layers that hand a state from step to step."""
CONTROL = frozenset(op.name for op in OPS.values() if op.bodies) - {"fused"}
"""Branches and loops."""
INNER = frozenset(op.name for op in OPS.values() if op.inner and op.traits.layer is None)
"""Ops that round values within themselves."""

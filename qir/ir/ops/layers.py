"""Kinds of ops, by what their specs state: layers, and ops that hold graphs."""

from __future__ import annotations

from qir.ir.ops import OPS, recurrent
from qir.ir.ops.spec import Layer


def _ops_of_layer(kind: Layer) -> frozenset[str]:
    return frozenset(op.name for op in OPS.values() if op.traits.layer == kind)


CONVOLUTIONS = _ops_of_layer("convolution")
TRANSPOSED_CONVOLUTIONS = _ops_of_layer("transposed")
"""Transposed convolutions."""
MATRIX_PRODUCTS = _ops_of_layer("matrix")
LAYERS = CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS | MATRIX_PRODUCTS
INTEGER_SUM_LAYERS = MATRIX_PRODUCTS | {"conv2d"}
"""Layers whose kernels sum products of integers and round once."""
RECURRENT_OPS = frozenset(op.name for op in recurrent.OPS)
"""Layers that hand a state from step to step."""
CONTROL_FLOW_OPS = frozenset(op.name for op in OPS.values() if op.bodies) - {"fused"}
"""Branches and loops."""
INNER_ROUNDING_OPS = frozenset(
    op.name for op in OPS.values() if op.inner and op.traits.layer is None
)
"""Ops that round values within themselves."""

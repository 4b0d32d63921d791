"""One node of constants, computed for who asks what they make: the verifier."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.reference.interpreter import run_node
from qir.reference.table import compute_all

_FILLS = frozenset({"pad", "trilu"})


def computed(
    node: Node, operands: Mapping[str, NDArray[np.generic]], profile: str
) -> tuple[NDArray[np.generic], ...]:
    """What a node makes of these operands; nothing where it cannot be computed.

    What only moves elements takes any: reals, or the codes that stand for them.
    """
    try:
        if spec(node.op).traits.value_preserving and node.op not in _FILLS:
            return compute_all(node.op, operands, node.attrs)
        return run_node(node, operands, node.profile or profile)
    except QirError:
        return ()

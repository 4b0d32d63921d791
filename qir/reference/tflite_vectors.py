"""What TensorFlow Lite's vectors compute otherwise than what is left over beside them: sums and
codes are rounded twice by both, the second time halves up in vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.fields import Rule
from qir.reference.method import Call, Codes, Method
from qir.reference.products import Kernel
from qir.reference.tflite_methods import fixed_recode
from qir.reference.torch_layers import transposed


def _up(rule: Rule) -> Rule:
    """The rule of whole vectors."""
    if rule.requant.round != "double":
        raise OpError("what vectors leave over is rounded by requant.round = 'double'")
    return replace(rule, requant=replace(rule.requant, round="double_up"))


def recode_vectors(x: Codes, x_map: Affine, out: Affine, *, rule: Rule, lanes: int) -> Codes:
    """Codes to codes, so many at a time."""
    vectors = fixed_recode(x, x_map, out, rule=_up(rule))
    rest = fixed_recode(x, x_map, out, rule=rule)
    places = np.arange(x.size).reshape(x.shape) < x.size // lanes * lanes
    return np.where(places, vectors, rest)


def transposed_vectors(
    call: Call, arrays: Mapping[str, Codes], *, lanes: int, rows: bool = False
) -> Codes:
    """A transposed convolution whose sums are scaled so many at a time, channels last in memory:
    all of them one after the other, or the channels of each place (`rows`)."""
    if not isinstance(call, Kernel):
        raise OpError(f"{call.op}: transposed_vectors is of transposed convolutions")
    vectors = transposed(replace(call, rule=_up(call.rule)), arrays)
    rest = transposed(call, arrays)
    n, channels, *sizes = rest.shape
    count = channels if rows else rest.size
    places = np.arange(rest.size).reshape(n, *sizes, channels) % count < count // lanes * lanes
    return np.where(np.moveaxis(places, -1, 1), vectors, rest)


METHODS: Mapping[str, Method] = {
    "recode_vectors": Method(recode_vectors, params=("lanes",), rule=True),
    "transposed_vectors": Method(transposed_vectors, params=("lanes", "rows"), whole=True),
}
"""What `methods` knows of these functions."""

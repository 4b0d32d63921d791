"""Functions of u8 as tables of 256 entries."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.errors import OpError
from qir.profiles.methods import PluginMethod
from qir.reference.method import (
    Integers,
    MethodCall,
    float32,
    require_per_tensor,
    round_to_int32,
    saturate,
)
from qir.reference.vector_functions import check_fixed_slope, hard_sigmoid


def float_table(call: MethodCall, arrays: Mapping[str, Integers]) -> Integers:
    """QNNPACK's tables of u8 values: sigmoid and hard sigmoid in steps of 1/256, tanh in those of
    1/128 about 128; the zero point is in the float that is rounded."""
    x, out = call.affine("x"), call.out
    assert out is not None
    require_per_tensor(call.op, x, out)
    steps, zero = (128, 128) if call.op == "tanh" else (256, 0)
    if out.scale != 1 / steps or out.zero != zero:
        raise OpError(
            f"{call.op}: QNNPACK's table has results of scale 1/{steps} and zero point {zero}"
        )
    # One entry for each integer of the operand, in the order of a u8 lookup.
    integers = np.arange(x.low, x.high + 1)
    with np.errstate(all="ignore"):
        floats = (integers - int(x.zero)).astype(float32) * float32(x.scale)
        if call.op == "tanh":
            scaled = float32(128) * np.tanh(floats.astype(np.float64)) + 128.0
        elif call.op == "hard_sigmoid":
            check_fixed_slope(call.attrs)
            scaled = hard_sigmoid(floats) * float32(256)
        else:
            scaled = float32(256) / (
                float32(1) + np.exp(-floats.astype(np.float64)).astype(float32)
            )
        table = saturate(round_to_int32(np.asarray(scaled, float32)), out)
    return table[arrays["x"].astype(np.int64) - int(x.low)]


METHODS: Mapping[str, PluginMethod] = {
    "float_table": PluginMethod(float_table, ("sigmoid", "tanh", "hard_sigmoid"), pointwise=True),
}
"""The methods of this module, by the name that profiles use."""

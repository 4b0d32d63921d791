"""Attention as products, a softmax, and sums of masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from qir.ir.node import Node

from .elementwise import ElementwiseWriter
from .nodes import GraphNodes, refusal, type_attr

_DEFAULTS = {"softcap": 0.0, "left": -1, "right": -1, "present": False, "qk": "none"}


def _attention(w: GraphNodes, n: Node) -> str:
    q, k, v = (n.operands[slot] for slot in "qkv")
    unsupported = [name for name, default in _DEFAULTS.items() if n.attrs[name] != default]
    unsupported += [slot for slot in ("past_k", "past_v", "lengths") if slot in n.operands]
    if unsupported or q.type.rank != 4 or q.type.shape[1] != k.type.shape[1]:
        why = unsupported[0] if unsupported else "heads in one axis, or fewer of the keys"
        raise refusal(n, f"attention with {why} is not written for TensorFlow; write ONNX")
    s, scale = ElementwiseWriter(w, n, "q"), n.attrs["scale"]
    size = q.type.shape[3]
    # The default of the op: 1 / sqrt(head size).
    if not isinstance(scale, float):
        if not isinstance(size, int):
            raise refusal(n, "attention needs the size of its heads")
        scale = 1 / math.sqrt(size)
    # The query is scaled, which is cheaper than to scale the scores.
    scaled = s.f("Mul", s.x, s.number(scale))
    raw = w.add("BatchMatMulV2", (scaled, w.tensor(k)), n.name, T=type_attr(q), adj_y=True)
    mask = n.operands.get("mask")
    if mask is not None and str(mask.type.dtype) == "bool":
        select_inputs = (w.tensor(mask), raw, s.number(-math.inf))
        raw = w.add("SelectV2", select_inputs, n.name, T=type_attr(q))
    elif mask is not None:
        raw = s.f("AddV2", raw, w.tensor(mask))
    if n.attrs["causal"]:
        rows, columns = q.type.shape[2], k.type.shape[2]
        if not isinstance(rows, int) or not isinstance(columns, int):
            raise refusal(n, "causal attention needs the lengths of its sequences; state them")
        # -inf above the diagonal hides later keys.
        causal_mask = np.triu(np.full((rows, columns), -np.inf, np.float32), 1)
        raw = s.f("AddV2", raw, w.constant(causal_mask))
    probs = s.f("Softmax", raw)
    return w.add("BatchMatMulV2", (probs, w.tensor(v)), n.name, T=type_attr(q))


OPS: Mapping[str, Callable[[GraphNodes, Node], str]] = {"attention": _attention}

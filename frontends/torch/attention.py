"""Scaled dot-product attention."""

from __future__ import annotations

import torch

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .call import OverloadCall
from .reader import KeepCall


def _attention(call: OverloadCall) -> Value:
    q, k, v = (call.value(name) for name in ("query", "key", "value"))
    # Other ranks and dropout are decomposed, into the products and the softmax.
    if q.type.rank != 4 or call.number("dropout_p"):
        raise KeepCall
    # Keys of fewer heads broadcast over queries, unless grouped queries are asked for.
    if not call.flag("enable_gqa") and q.type.shape[1] != k.type.shape[1]:
        raise KeepCall
    attrs: dict[str, Attr] = {"causal": call.flag("is_causal")}
    if call["scale"] is not None:
        attrs["scale"] = call.number("scale")
    mask = call.optional("attn_mask")
    if mask is not None and call.fake_tensor("attn_mask").dtype not in (
        torch.bool,
        call.result.dtype,
    ):
        raise KeepCall
    return call.add("attention", {"q": q, "k": k, "v": v, "mask": mask}, attrs)


OPS = {"scaled_dot_product_attention.default": _attention}

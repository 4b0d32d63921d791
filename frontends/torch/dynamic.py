"""Kernels of quantized engines without a float form: dynamic linear and quantized embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType

from .call import OverloadCall
from .dynamic_recurrent import quantize_by_own_range
from .elements import array_of
from .reader import KeepCall


def _dynamic_linear(call: OverloadCall) -> Value:
    """Reads linear_dynamic; `script.quantized` replaced its packed weights by (weight, bias)."""
    x = call.value("X")
    weight, bias = call["W_prepack"]
    data, qparams = quantize_by_own_range(call, x, seven_bits=call.flag("reduce_range"))
    operands = {
        "x": data,
        # The reader dequantized the weight: the kernel takes the quantized operand of that
        # dequantize.
        "w": call.reader.tensor(weight).node.operands["x"],
        "bias": None if bias is None else call.reader.tensor(bias),
        **qparams,
    }
    return call.add("linear", operands)


def _quantized_table(call: OverloadCall, name: str, storage: str) -> Value:
    """Returns an embedding table; each row has a scale and a float zero point."""
    stored = [call.reader.stored_tensor(node) for node in call[name]]
    rows, *numbers = [arrays for arrays in stored if arrays is not None]
    arrays = [array_of(data).astype(np.float32) for _, data in numbers]
    scale, zero = (Array(data, TensorType(data.shape, F32)) for data in arrays)
    kind = QuantType(dtype(storage), F32, scale, zero, Granularity(((0, 1),)))
    return call.reader.constant(*rows, kind)


def _embedding(storage: str) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        table, indices = _quantized_table(call, "weight", storage), call.value("indices")
        kind = TensorType((*indices.type.shape, table.type.shape[1]), F32)
        return call.add_typed("embedding", {"w": table, "indices": indices}, kind)

    return read


def _embedding_bag(storage: str) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        if call.integer("mode") or call["compressed_indices_mapping"] is not None:
            raise KeepCall("its bags are not sums of the rows of a whole table")
        operands = {
            "w": _quantized_table(call, "weight", storage),
            "indices": call.value("indices"),
            "offsets": call.optional("offsets"),
            "weights": call.optional("per_sample_weights"),
        }
        attrs: dict[str, Attr] = {"mode": "sum", "last": call.flag("include_last_offset")}
        return call.add("embedding_bag", operands, attrs)

    return read


OPS: dict[str, Callable[[OverloadCall], Any]] = {
    "quantized.linear_dynamic.default": _dynamic_linear,
    "quantized.embedding_byte.default": _embedding("u8"),
    "quantized.embedding_4bit.default": _embedding("u4"),
    "quantized.embedding_bag_byte.default": _embedding_bag("u8"),
    "quantized.embedding_bag_4bit.default": _embedding_bag("u4"),
}
"""Converters by overload."""

"""Handlers of operators that ONNX does not define: onnxruntime's own, and QONNX's.

A module of its own, so that a model of ONNX's operators alone imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import attention_ops, qonnx_ops
from .contrib import (
    attention,
    grouped_attention,
    mixture_of_experts,
    multi_head_attention,
    operators,
    quantized,
    recurrent,
)
from .op import OnnxOp
from .reader import OnnxReader

HANDLERS: Mapping[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    **operators.OPS,
    **mixture_of_experts.OPS,
    **recurrent.OPS,
    **qonnx_ops.OPS,
    **attention.OPS,
    **quantized.OPS,
    **attention_ops.CONTRIB,
    **grouped_attention.OPS,
    **multi_head_attention.OPS,
}
"""By domain and name."""

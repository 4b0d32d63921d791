"""Float operators of onnxruntime's domain as groups: fused activations, norms and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import I32, I64
from qir.ir.node import Value

from ..float_ops import conv_attrs
from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from ..windows import check_window_fits, explicit_pads
from .group_bodies import BodyBuilder, add_group, named_operands


def keep_unless_float_values(op: OnnxOp, values: Sequence[Value]) -> None:
    """Raises KeepOperator where an operand is not float."""
    if any(v.type.quant or not v.type.dtype.is_float for v in values):
        raise KeepOperator(f"an operand of {op.type} is no float")


# -- activations ----------------------------------------------------------------------------------


def _gelu(reader: OnnxReader, op: OnnxOp) -> None:
    """Gelu, BiasGelu and FastGelu: after an optional bias, exact or by tanh."""
    op.allow_only()
    operands = named_operands(reader, op)
    keep_unless_float_values(op, list(operands.values()))
    first, *addend_slots = operands

    def build(body: BodyBuilder) -> list[Value]:
        x = body[first]
        for slot in addend_slots:
            x = body.op("add", x, body[slot])
        return [body.op("gelu", x, approximate="tanh" if op.type == "FastGelu" else "none")]

    add_group(reader, op, operands, build)


def _quick_gelu(reader: OnnxReader, op: OnnxOp) -> None:
    op.allow_only("alpha")
    operands = named_operands(reader, op)
    keep_unless_float_values(op, list(operands.values()))
    alpha = op.floating("alpha", 1.702)
    # x * sigmoid(alpha * x) is SiLU with an alpha.
    add_group(reader, op, operands, lambda body: [body.op("silu", body["X"], alpha=alpha)])


def apply_activation(body: BodyBuilder, x: Value, name: str, parameters: Sequence[float]) -> Value:
    """Adds the activation that a fused operator names; raises KeepOperator for an unknown one."""
    entry = _ACTIVATIONS.get(name)
    if entry is None:
        raise KeepOperator(f"its activation {name!r} is not known")
    op_name, *slots = entry
    return body.op(op_name, x, **dict(zip(slots, parameters, strict=False)))


_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "": ("identity",),
    "Relu": ("relu",),
    "Tanh": ("tanh",),
    "Sigmoid": ("sigmoid",),
    "LeakyRelu": ("leaky_relu", "alpha"),
    "Clip": ("clip", "min", "max"),
    "HardSigmoid": ("hard_sigmoid", "alpha", "beta"),
    "HardSwish": ("hard_swish",),
}
"""The op of an activation, and its attributes in the order of the operator's parameters."""

# -- normalization --------------------------------------------------------------------------------


def _skip_norm(reader: OnnxReader, op: OnnxOp) -> None:
    """SkipLayerNormalization and SkipSimplifiedLayerNormalization; also returns the sum."""
    op.allow_only("epsilon")
    operands = named_operands(reader, op)
    keep_unless_float_values(op, list(operands.values()))
    if any(op.outputs[1:3]):
        raise KeepOperator("mean and deviation, which onnxruntime does not give on CPUs")
    eps = op.floating("epsilon", 1e-12)
    is_rms = op.type != "SkipLayerNormalization"

    def build(body: BodyBuilder) -> list[Value]:
        total = body.op("add", body["input"], body["skip"])
        if "bias" in body:
            total = body.op("add", total, body["bias"])
        normalized = add_layer_norm(
            body, total, "gamma", None if is_rms else "beta", eps, is_rms=is_rms
        )
        # onnxruntime's CPU kernel has no mean and deviation; only the sum is read.
        return [normalized, total, total, total]

    add_group(reader, op, operands, build)


def add_layer_norm(
    body: BodyBuilder, x: Value, gamma: str, beta: str | None, eps: float, *, is_rms: bool = False
) -> Value:
    """Adds a layer norm, or an RMS norm if `is_rms`, along the last axis."""
    if is_rms:
        return body.op("rms_norm", x, body[gamma], axis=-1, eps=eps)
    optional_beta = [body[beta]] if beta and beta in body else []
    return body.op("layer_norm", x, body[gamma], *optional_beta, axis=-1, eps=eps)


def _embed_layer_norm(reader: OnnxReader, op: OnnxOp) -> None:
    """EmbedLayerNormalization: sums entries of up to three embedding tables and normalizes them."""
    op.allow_only("epsilon", "mask_index_type")
    operands = named_operands(reader, op)
    eps = op.floating("epsilon", 1e-12)

    def build(body: BodyBuilder) -> list[Value]:
        rows = {t: body.get(f"{t}_embedding") for t in ("word", "position", "segment")}
        total = add_embeddings(body, rows, body.get("position_ids"))
        normalized = add_layer_norm(body, total, "gamma", "beta", eps)
        return [normalized, sequence_lengths(body), total]

    add_group(reader, op, operands, build)


def add_embeddings(
    body: BodyBuilder, tables: dict[str, Value | None], positions: Value | None
) -> Value:
    """Returns the sum of the embeddings of words, positions and segments."""
    ids = body["input_ids"]
    if ids.type.element not in (I32, I64):
        raise KeepOperator(f"its words are {ids.type.element}")
    word, position, segment = (tables[t] for t in ("word", "position", "segment"))
    if word is None or position is None:
        raise KeepOperator("it has no table of words, or none of positions")
    total = body.op("gather", word, ids, axis=0)
    if positions is None:
        # The length of the sequences, of which each gets the positions from 0 on.
        length = body.reshape(body.op("shape", ids, start=1, end=2))
        zero, one = body.constant(np.array(0, np.int64)), body.constant(np.array(1, np.int64))
        position_rows = body.op("gather", position, body.op("range", zero, length, one), axis=0)
        if isinstance(ids.type.shape[1], int):
            position_rows = body.reshape(position_rows, ids.type.shape[1], -1)
    else:
        position_rows = body.op("gather", position, positions, axis=0)
    total = body.op("add", total, position_rows)
    if segment is not None and "segment_ids" in body:
        total = body.op("add", total, body.op("gather", segment, body["segment_ids"], axis=0))
    return total


def sequence_lengths(body: BodyBuilder) -> Value:
    """Returns the length of each sequence by its mask; 0 without a mask, as onnxruntime does."""
    if "mask" in body:
        return body.op("reduce_sum", body.cast(body["mask"], I32), axes=(1,), keep=False)
    ids = body["input_ids"]
    # Zeros in the shape of the ids: their sum has one 0 for each sequence.
    zeros = body.op("mul", ids, body.cast(body.constant(np.array(0, np.int64)), ids.type.dtype))
    return body.cast(body.op("reduce_sum", zeros, axes=(1,), keep=False), I32)


# -- products -------------------------------------------------------------------------------------


def _matmul(reader: OnnxReader, op: OnnxOp) -> None:
    """FusedMatMul: operands transposed first, the product times alpha."""
    op.allow_only("alpha", "transA", "transB", "transBatchA", "transBatchB")
    operands = named_operands(reader, op)
    keep_unless_float_values(op, list(operands.values()))
    alpha = op.floating("alpha", 1.0)

    def build(body: BodyBuilder) -> list[Value]:
        factors = []
        for slot in "AB":
            x = body[slot]
            # The first axis moves behind the other batch axes.
            if op.integer(f"transBatch{slot}", 0) and x.type.rank > 2:
                perm = (*range(1, x.type.rank - 1), 0, x.type.rank - 1)
                x = body.op("transpose", x, perm=perm)
            factors.append(x)
        is_transposed = [op.integer(f"trans{s}", 0) != 0 for s in "AB"]
        # Vectors are not transposed.
        is_transposed = [t and x.type.rank > 1 for t, x in zip(is_transposed, factors, strict=True)]
        normalized = body.op("matmul", *factors, trans_a=is_transposed[0], trans_b=is_transposed[1])
        return [
            normalized
            if alpha == 1.0
            else body.op("mul", normalized, body.scalar_like(normalized, alpha))
        ]

    add_group(reader, op, operands, build)


def _gemm(reader: OnnxReader, op: OnnxOp) -> None:
    """FusedGemm: Gemm and an activation."""
    parameter_names = ("activation_alpha", "activation_beta", "activation_gamma")
    op.allow_only("alpha", "beta", "transA", "transB", "activation", *parameter_names)
    operands = named_operands(reader, op)
    keep_unless_float_values(op, list(operands.values()))
    attrs: dict[str, Attr] = {
        "alpha": op.floating("alpha", 1.0),
        "beta": op.floating("beta", 1.0),
        "trans_a": op.integer("transA", 0) != 0,
        "trans_b": op.integer("transB", 0) != 0,
    }
    parameters = [op.floating(n, 0.0) for n in parameter_names if op.attribute(n) is not None]

    def build(body: BodyBuilder) -> list[Value]:
        product = body.op("gemm", *(body[s] for s in operands), **attrs)
        return [apply_activation(body, product, op.text("activation", ""), parameters)]

    add_group(reader, op, operands, build)


_WINDOW_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _conv(reader: OnnxReader, op: OnnxOp) -> None:
    """FusedConv: a convolution, an optional addition of Z, and an activation."""
    op.allow_only(*_WINDOW_ATTRIBUTES, "activation", "activation_params")
    operands = named_operands(reader, op)
    keep_unless_float_values(op, list(operands.values()))
    x, w = operands["X"].type.shape, operands["W"].type.shape
    if len(x) not in (3, 4, 5) or len(w) != len(x):
        raise op.error(f"its operands have {len(x)} and {len(w)} axes")
    attrs = conv_attrs(op, x[2:], w)
    attribute = op.attribute("activation_params")
    parameters = list(attribute.floats) if attribute is not None else []

    def build(body: BodyBuilder) -> list[Value]:
        conv_operands = [body[s] for s in ("X", "W", "B") if s in body]
        result = body.op(f"conv{len(x) - 2}d", *conv_operands, **attrs)
        if "Z" in body:
            result = body.op("add", result, body["Z"])
        return [apply_activation(body, result, op.text("activation", ""), parameters)]

    add_group(reader, op, operands, build)


# -- moves ----------------------------------------------------------------------------------------


def _expand_dims(reader: OnnxReader, op: OnnxOp) -> None:
    """ExpandDims: inserts an axis of size 1 at a constant position."""
    op.allow_only()
    axis = int(reader.constant_data(op.input(1)).reshape(-1)[0])
    x = reader.value(op, op.input(0))
    if not -x.type.rank - 1 <= axis <= x.type.rank:
        raise op.error(f"axis {axis}, but its operand has {x.type.rank} axes")
    position = axis % (x.type.rank + 1)
    operands = {"X": x, "axis": reader.value(op, op.input(1))}
    add_group(
        reader, op, operands, lambda body: [body.op("unsqueeze", body["X"], axes=(position,))]
    )


def _max_pool(reader: OnnxReader, op: OnnxOp) -> None:
    """NhwcMaxPool: max pool of quantized values, channels last."""
    op.allow_only("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
    x = reader.value_to_move(op, op.input(0))
    if x.type.rank != 4:
        raise KeepOperator("its operand is no image")
    kernel, sizes = op.integers("kernel_shape", ()), x.type.shape[1:3]
    stride, dilation = op.integers("strides", (1, 1)), op.integers("dilations", (1, 1))
    pad, ceil = (
        explicit_pads(op, sizes, kernel, stride, dilation, pool=True),
        op.integer("ceil_mode", 0),
    )
    if not ceil:
        check_window_fits(sizes, kernel, stride, pad, dilation)
    attrs: dict[str, Attr] = {
        "kernel": kernel,
        "stride": stride,
        "pad": pad,
        "dilation": dilation,
        "ceil": ceil != 0,
        "layout": "NHWC",
    }
    add_group(reader, op, {"x": x}, lambda body: [body.op("max_pool2d", body["x"], **attrs)])


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "Gelu"): _gelu,
    (MICROSOFT, "BiasGelu"): _gelu,
    (MICROSOFT, "FastGelu"): _gelu,
    (MICROSOFT, "QuickGelu"): _quick_gelu,
    (MICROSOFT, "SkipLayerNormalization"): _skip_norm,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_norm,
    (MICROSOFT, "EmbedLayerNormalization"): _embed_layer_norm,
    (MICROSOFT, "FusedMatMul"): _matmul,
    (MICROSOFT, "TransposeMatMul"): _matmul,
    (MICROSOFT, "FusedGemm"): _gemm,
    (MICROSOFT, "FusedConv"): _conv,
    (MICROSOFT, "ExpandDims"): _expand_dims,
    (MICROSOFT, "NhwcMaxPool"): _max_pool,
}

"""Operators of onnxruntime's own domain in float, as groups whose bodies say what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import I32, I64
from qir.ir.node import Value

from ..float_ops import conv_attrs
from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from ..windows import check_room, pads
from .body import BodyBuilder, given, group


def floats(op: OnnxOp, values: Sequence[Value]) -> None:
    """Keep where an operand is of another type than float values."""
    if any(v.type.quant or not v.type.dtype.is_float for v in values):
        raise KeepOperator(f"an operand of {op.type} is no float")


# -- activations ----------------------------------------------------------------------------------


def _gelu(reader: OnnxReader, op: OnnxOp) -> None:
    """Gelu, BiasGelu and FastGelu: with a bias before, exact or by tanh."""
    op.only()
    operands = given(reader, op)
    floats(op, list(operands.values()))
    first, *rest = operands

    def build(body: BodyBuilder) -> list[Value]:
        x = body[first]
        for slot in rest:
            x = body.op("add", x, body[slot])
        return [body.op("gelu", x, approximate="tanh" if op.type == "FastGelu" else "none")]

    group(reader, op, operands, build)


def _quick_gelu(reader: OnnxReader, op: OnnxOp) -> None:
    op.only("alpha")
    operands = given(reader, op)
    floats(op, list(operands.values()))
    alpha = op.real("alpha", 1.702)
    group(reader, op, operands, lambda body: [body.op("silu", body["X"], alpha=alpha)])


def activated(body: BodyBuilder, x: Value, name: str, numbers: Sequence[float]) -> Value:
    """Returns the activation that a fused operator names; Keep for one that is not known."""
    row = _ACTIVATIONS.get(name)
    if row is None:
        raise KeepOperator(f"its activation {name!r} is not known")
    kind, *slots = row
    return body.op(kind, x, **dict(zip(slots, numbers, strict=False)))


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
"""The op and the attributes that an activation's numbers are, in order."""

# -- normalization --------------------------------------------------------------------------------


def _skip_norm(reader: OnnxReader, op: OnnxOp) -> None:
    """SkipLayerNormalization and its form without means; gives the sum too."""
    op.only("epsilon")
    operands = given(reader, op)
    floats(op, list(operands.values()))
    if any(op.outputs[1:3]):
        raise KeepOperator("mean and deviation, which onnxruntime does not give on CPUs")
    eps = op.real("epsilon", 1e-12)
    simple = op.type != "SkipLayerNormalization"

    def build(body: BodyBuilder) -> list[Value]:
        total = body.op("add", body["input"], body["skip"])
        if "bias" in body:
            total = body.op("add", total, body["bias"])
        out = normed(body, total, "gamma", None if simple else "beta", eps, simple=simple)
        return [out, total, total, total]

    group(reader, op, operands, build)


def normed(
    body: BodyBuilder, x: Value, gamma: str, beta: str | None, eps: float, *, simple: bool = False
) -> Value:
    """Returns a layer's norm along the last axis."""
    if simple:
        return body.op("rms_norm", x, body[gamma], axis=-1, eps=eps)
    extra = [body[beta]] if beta and beta in body else []
    return body.op("layer_norm", x, body[gamma], *extra, axis=-1, eps=eps)


def _embed(reader: OnnxReader, op: OnnxOp) -> None:
    """EmbedLayerNormalization: rows of up to three tables added and brought to mean 0."""
    op.only("epsilon", "mask_index_type")
    operands = given(reader, op)
    eps = op.real("epsilon", 1e-12)

    def build(body: BodyBuilder) -> list[Value]:
        rows = {t: body.get(f"{t}_embedding") for t in ("word", "position", "segment")}
        total = embedded(body, rows, body.get("position_ids"))
        out = normed(body, total, "gamma", "beta", eps)
        return [out, counted(body), total]

    group(reader, op, operands, build)


def embedded(body: BodyBuilder, tables: dict[str, Value | None], positions: Value | None) -> Value:
    """Returns the sum of the rows that words, positions and segments have in their tables."""
    ids = body["input_ids"]
    if ids.type.element not in (I32, I64):
        raise KeepOperator(f"its words are {ids.type.element}")
    word, position, segment = (tables[t] for t in ("word", "position", "segment"))
    if word is None or position is None:
        raise KeepOperator("it has no table of words, or none of positions")
    total = body.op("gather", word, ids, axis=0)
    if positions is None:
        length = body.reshaped(body.op("shape", ids, start=1, end=2))
        zero, one = body.constant(np.array(0, np.int64)), body.constant(np.array(1, np.int64))
        rows = body.op("gather", position, body.op("range", zero, length, one), axis=0)
        if isinstance(ids.type.shape[1], int):
            rows = body.reshaped(rows, ids.type.shape[1], -1)
    else:
        rows = body.op("gather", position, positions, axis=0)
    total = body.op("add", total, rows)
    if segment is not None and "segment_ids" in body:
        total = body.op("add", total, body.op("gather", segment, body["segment_ids"], axis=0))
    return total


def counted(body: BodyBuilder) -> Value:
    """Returns how many words each sequence has by its mask; 0 without one."""
    if "mask" in body:
        return body.op("reduce_sum", body.cast(body["mask"], I32), axes=(1,), keep=False)
    ids = body["input_ids"]
    none = body.op("mul", ids, body.cast(body.constant(np.array(0, np.int64)), ids.type.dtype))
    return body.cast(body.op("reduce_sum", none, axes=(1,), keep=False), I32)


# -- products -------------------------------------------------------------------------------------


def _matmul(reader: OnnxReader, op: OnnxOp) -> None:
    """FusedMatMul: factors whose axes are swapped first, the product times alpha."""
    op.only("alpha", "transA", "transB", "transBatchA", "transBatchB")
    operands = given(reader, op)
    floats(op, list(operands.values()))
    alpha = op.real("alpha", 1.0)

    def build(body: BodyBuilder) -> list[Value]:
        sides = []
        for slot in "AB":
            x = body[slot]
            if op.integer(f"transBatch{slot}", 0) and x.type.rank > 2:
                perm = (*range(1, x.type.rank - 1), 0, x.type.rank - 1)
                x = body.op("transpose", x, perm=perm)
            sides.append(x)
        turned = [op.integer(f"trans{s}", 0) != 0 for s in "AB"]
        turned = [t and x.type.rank > 1 for t, x in zip(turned, sides, strict=True)]
        out = body.op("matmul", *sides, trans_a=turned[0], trans_b=turned[1])
        return [out if alpha == 1.0 else body.op("mul", out, body.like(out, alpha))]

    group(reader, op, operands, build)


def _gemm(reader: OnnxReader, op: OnnxOp) -> None:
    """FusedGemm: a product, a summand and an activation."""
    numbers = ("activation_alpha", "activation_beta", "activation_gamma")
    op.only("alpha", "beta", "transA", "transB", "activation", *numbers)
    operands = given(reader, op)
    floats(op, list(operands.values()))
    attrs: dict[str, Attr] = {
        "alpha": op.real("alpha", 1.0),
        "beta": op.real("beta", 1.0),
        "trans_a": op.integer("transA", 0) != 0,
        "trans_b": op.integer("transB", 0) != 0,
    }
    own = [op.real(n, 0.0) for n in numbers if op.attribute(n) is not None]

    def build(body: BodyBuilder) -> list[Value]:
        made = body.op("gemm", *(body[s] for s in operands), **attrs)
        return [activated(body, made, op.text("activation", ""), own)]

    group(reader, op, operands, build)


_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _conv(reader: OnnxReader, op: OnnxOp) -> None:
    """FusedConv: a convolution, a summand and an activation."""
    op.only(*_WINDOW, "activation", "activation_params")
    operands = given(reader, op)
    floats(op, list(operands.values()))
    x, w = operands["X"].type.shape, operands["W"].type.shape
    if len(x) not in (3, 4, 5) or len(w) != len(x):
        raise op.fail(f"its operands have {len(x)} and {len(w)} axes")
    attrs = conv_attrs(op, x[2:], w)
    found = op.attribute("activation_params")
    own = list(found.floats) if found is not None else []

    def build(body: BodyBuilder) -> list[Value]:
        places = [body[s] for s in ("X", "W", "B") if s in body]
        made = body.op(f"conv{len(x) - 2}d", *places, **attrs)
        if "Z" in body:
            made = body.op("add", made, body["Z"])
        return [activated(body, made, op.text("activation", ""), own)]

    group(reader, op, operands, build)


# -- moves ----------------------------------------------------------------------------------------


def _expand_dims(reader: OnnxReader, op: OnnxOp) -> None:
    """ExpandDims: an axis of one put in where a constant says."""
    op.only()
    axis = int(reader.numbers(op.input(1)).reshape(-1)[0])
    x = reader.value(op, op.input(0))
    if not -x.type.rank - 1 <= axis <= x.type.rank:
        raise op.fail(f"axis {axis}, but its operand has {x.type.rank} axes")
    place = axis % (x.type.rank + 1)
    operands = {"X": x, "axis": reader.value(op, op.input(1))}
    group(reader, op, operands, lambda body: [body.op("unsqueeze", body["X"], axes=(place,))])


def _max_pool(reader: OnnxReader, op: OnnxOp) -> None:
    """NhwcMaxPool: greatest quantized values of windows, channels last."""
    op.only("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
    x = reader.moved(op, op.input(0))
    if x.type.rank != 4:
        raise KeepOperator("its operand is no image")
    kernel, sizes = op.integers("kernel_shape", ()), x.type.shape[1:3]
    stride, dilation = op.integers("strides", (1, 1)), op.integers("dilations", (1, 1))
    pad, ceil = pads(op, sizes, kernel, stride, dilation, pool=True), op.integer("ceil_mode", 0)
    if not ceil:
        check_room(sizes, kernel, stride, pad, dilation)
    attrs: dict[str, Attr] = {
        "kernel": kernel,
        "stride": stride,
        "pad": pad,
        "dilation": dilation,
        "ceil": ceil != 0,
        "layout": "NHWC",
    }
    group(reader, op, {"x": x}, lambda body: [body.op("max_pool2d", body["x"], **attrs)])


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "Gelu"): _gelu,
    (MICROSOFT, "BiasGelu"): _gelu,
    (MICROSOFT, "FastGelu"): _gelu,
    (MICROSOFT, "QuickGelu"): _quick_gelu,
    (MICROSOFT, "SkipLayerNormalization"): _skip_norm,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_norm,
    (MICROSOFT, "EmbedLayerNormalization"): _embed,
    (MICROSOFT, "FusedMatMul"): _matmul,
    (MICROSOFT, "TransposeMatMul"): _matmul,
    (MICROSOFT, "FusedGemm"): _gemm,
    (MICROSOFT, "FusedConv"): _conv,
    (MICROSOFT, "ExpandDims"): _expand_dims,
    (MICROSOFT, "NhwcMaxPool"): _max_pool,
}

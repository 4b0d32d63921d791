"""Attention and rotary embedding, ONNX's own and those of onnxruntime's domain that say the same.

Of the latter, what hangs on lengths known only when the model runs (a buffer shared by past and
present, ragged batches) has no form here, and is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir.errors import TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.dtype import DType
from qir.ir.node import Value
from qir.ir.types import Array

from .elements import element
from .op import MICROSOFT, KeepOperator, OnnxOp
from .reader import OnnxReader
from .recurrent_ops import all_floats, named_results

_SLOTS = ("q", "k", "v", "mask", "past_k", "past_v", "lengths")
_SHOWN = ("raw", "capped", "masked", "probs")


def _attention(reader: OnnxReader, op: OnnxOp) -> None:
    """Attention of opsets 23 and later."""
    all_floats(reader, op, [0, 1, 2, 4, 5])
    _check_mask(reader, op, 3)
    operands = {s: reader.value(op, n) for s, n in zip(_SLOTS, op.inputs, strict=False) if n}
    flat = operands["q"].type.rank == 3
    mode = op.integer("qk_matmul_output_mode", 0)
    if not 0 <= mode < len(_SHOWN) or op.real("softcap", 0.0) < 0:
        raise KeepOperator
    attrs: dict[str, Attr] = {
        "heads": op.integer("q_num_heads", 0) or None if flat else None,
        "kv_heads": op.integer("kv_num_heads", 0) or None if flat else None,
        "causal": op.integer("is_causal", 0) != 0,
        "scale": op.real("scale", 0.0) if op.attribute("scale") else None,
        "softcap": op.real("softcap", 0.0),
        "left": op.integer("left_window_size", -1),
        "right": op.integer("right_window_size", -1),
        "precision": _precision(op),
        "qk": _SHOWN[mode],
    }
    _add(reader, op, operands, attrs)


def _precision(op: OnnxOp) -> DType | None:
    """Returns the type that softmax computes in, where the file names it."""
    if op.attribute("softmax_precision") is None:
        return None
    found = element(op.integer("softmax_precision", 0))
    if not found.is_float:
        raise KeepOperator
    return found


def _add(
    reader: OnnxReader, op: OnnxOp, operands: Mapping[str, Value], attrs: dict[str, Attr]
) -> None:
    """Adds the node with the results that the file asks for."""
    outputs = [*op.proto.output, "", "", "", ""]
    present = bool(outputs[1] or outputs[2])
    places = [0, *((1, 2) if present else ()), *((3,) if outputs[3] else ())]
    every = named_results(reader, op, ("y", "present_k", "present_v", "qk"))
    shown = attrs.pop("qk", "raw")
    full = {**attrs, "present": present, "qk": shown if outputs[3] else "none"}
    reader.add(op, "attention", operands, full, names=[every[i] for i in places])


def _check_mask(reader: OnnxReader, op: OnnxOp, place: int) -> None:
    """Keep for a mask that is neither bool nor of q's own type."""
    if not op.input(place):
        return
    kind, own = (reader.type_of(op, op.input(i)) for i in (place, 0))
    if kind.quant or kind.dtype.name not in ("bool", own.dtype.name):
        raise KeepOperator


def _rotary(reader: OnnxReader, op: OnnxOp) -> None:
    """RotaryEmbedding of opset 23."""
    all_floats(reader, op, [0, 1, 2])
    slots = ("x", "cos", "sin", "positions")
    operands = {s: reader.value(op, n) for s, n in zip(slots, op.inputs, strict=False) if n}
    heads = op.integer("num_heads", 0) or None
    reader.add(op, "rotary", operands, _turning(op, operands["x"], heads))


def _turning(op: OnnxOp, x: Value, heads: int | None) -> dict[str, Attr]:
    return {
        "interleaved": op.integer("interleaved", 0) != 0,
        "dim": op.integer("rotary_embedding_dim", 0),
        "heads": heads if x.type.rank == 3 else None,
    }


# -- onnxruntime's own -----------------------------------------------------------------------------


def _contrib_rotary(reader: OnnxReader, op: OnnxOp) -> None:
    """RotaryEmbedding with its positions second."""
    op.only("interleaved", "num_heads", "rotary_embedding_dim", "is_packed_batching", "scale")
    all_floats(reader, op, [0, 2, 3])
    if op.integer("is_packed_batching", 0) or op.real("scale", 1.0) != 1.0:
        raise KeepOperator
    slots = ("x", "positions", "cos", "sin")
    operands = {s: reader.value(op, n) for s, n in zip(slots, op.inputs, strict=True)}
    x, cos = operands["x"].type, operands["cos"].type
    heads = op.integer("num_heads", 0) or None
    if x.rank == 3 and heads is None:
        width, half = x.shape[2], cos.shape[-1]
        if not isinstance(width, int) or not isinstance(half, int) or not half:
            raise KeepOperator
        heads = width // (2 * half)
    reader.add(op, "rotary", operands, _turning(op, operands["x"], heads))


def _same(a: Dim, b: Dim) -> bool:
    return a is not None and a == b


def multi_head(reader: OnnxReader, op: OnnxOp) -> bool:
    """Reads MultiHeadAttention as attention where it is that alone; whether it was."""
    q, k, v = (_given(reader, op, i) for i in range(3))
    if any(op.input(i) for i in (3, 4, 8, 9)) or any(x.type.rank != 3 for x in (q, k, v)):
        return False
    causal = op.integer("unidirectional", 0) != 0
    if (causal or op.input(6)) and not _same(q.type.shape[1], k.type.shape[1]):
        return False  # onnxruntime counts from another end there
    if bool(op.input(6)) != bool(op.input(7)) or len(op.outputs) > 3:
        return False
    operands = {"q": q, "k": k, "v": v}
    more = {"mask": 5, "past_k": 6, "past_v": 7}
    operands |= {s: reader.value(op, op.input(i)) for s, i in more.items() if op.input(i)}
    attrs: dict[str, Attr] = {
        "heads": op.integer("num_heads", 0),
        "causal": causal,
        "scale": op.real("scale", 0.0) or None,
    }
    _add(reader, op, operands, attrs)
    return True


def _given(reader: OnnxReader, op: OnnxOp, place: int) -> Value:
    if not op.input(place):
        raise KeepOperator
    return reader.value(op, op.input(place))


_GROUPED = (
    "num_heads kv_num_heads scale softcap causal local_window_size do_rotary rotary_interleaved "
    "smooth_softmax qk_output k_quant_type v_quant_type kv_cache_bit_width sliding_window_cache "
    "qk_norm_epsilon"
).split()


def check_grouped(op: OnnxOp) -> None:
    """Keep where GroupQueryAttention asks for what the language has not."""
    op.only(*_GROUPED)
    odd = [op.integer(n, 0) for n in ("qk_output", "kv_cache_bit_width", "sliding_window_cache")]
    kinds = [op.text(n, "NONE") for n in ("k_quant_type", "v_quant_type")]
    if any(odd) or set(kinds) != {"NONE"} or op.integer("smooth_softmax", 0) > 0:
        raise KeepOperator
    if any(op.input(i) for i in (11, 12, 13, 14, 15)) or len(op.outputs) > 3:
        raise KeepOperator


def grouped(reader: OnnxReader, op: OnnxOp) -> None:
    """GroupQueryAttention over a whole prompt: no past, every sequence as long as the tensor."""
    all_floats(reader, op, [0, 1, 2, 7, 8, 10])
    if any(op.input(i) for i in (3, 4, 9)):
        raise KeepOperator
    heads, kv_heads = op.integer("num_heads", 0), op.integer("kv_num_heads", 0)
    _check_lengths(reader, op)
    if bool(op.input(1)) != bool(op.input(2)):
        raise KeepOperator
    window = op.integer("local_window_size", -1)
    attrs: dict[str, Attr] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "causal": op.integer("causal", 1) != 0,
        "scale": op.real("scale", 0.0) or None,
        "softcap": op.real("softcap", 0.0),
        "left": window - 1 if window > 0 else -1,
    }
    turned = op.integer("do_rotary", 0) != 0
    if turned and not all(isinstance(_width(reader, op, i), int) for i in (7, 8)):
        raise KeepOperator
    mask = reader.value(op, op.input(10)) if op.input(10) else None
    q, k, v = _parts(reader, op, heads, kv_heads)
    if turned:
        q, k = (_turned(reader, op, s, x, n) for s, x, n in (("q", q, heads), ("k", k, kv_heads)))
    operands = {"q": q, "k": k, "v": v}
    if mask is not None:
        operands["mask"] = mask
    _add(reader, op, operands, attrs)


def _check_lengths(reader: OnnxReader, op: OnnxOp) -> None:
    """Keep unless every sequence is known to be as long as the tensors of queries and keys."""
    ends, total = (reader.numbers(op.input(i)).reshape(-1) for i in (5, 6))
    shapes = [_given(reader, op, 0).type.shape]
    if op.input(1):
        shapes.append(_given(reader, op, 1).type.shape)
    if len(total) != 1 or any(len(s) != 3 or s[1] != total[0] for s in shapes):
        raise KeepOperator
    if ends.tolist() != [int(total[0]) - 1] * len(ends) or shapes[0][0] != len(ends):
        raise KeepOperator


def _parts(reader: OnnxReader, op: OnnxOp, heads: int, kv_heads: int) -> tuple[Value, Value, Value]:
    """q, k and v, split where one tensor holds them all."""
    q = _given(reader, op, 0)
    if op.input(1):
        return q, _given(reader, op, 1), _given(reader, op, 2)
    width, count = q.type.shape[2], heads + 2 * kv_heads
    if not isinstance(width, int) or count < 1 or width % count:
        raise KeepOperator
    size = width // count
    attrs: dict[str, Attr] = {
        "sizes": (heads * size, kv_heads * size, kv_heads * size),
        "axis": 2,
    }
    names = [reader.spare(f"{op.outputs[0]}.{s}") for s in "qkv"]
    one, two, three = _made(reader, op, "split", {"x": q}, attrs, names)
    return one, two, three


def _turned(reader: OnnxReader, op: OnnxOp, slot: str, x: Value, heads: int) -> Value:
    """q or k with rotary embedding, from position 0 on."""
    half = _width(reader, op, 7)
    assert isinstance(half, int)
    stem = f"{op.outputs[0]}.{slot}"
    zero = np.zeros(1, np.int64)
    start = reader.graph.constant(Array.of(zero), name=reader.spare(f"{stem}.start"))
    attrs: dict[str, Attr] = {
        "interleaved": op.integer("rotary_interleaved", 0) != 0,
        "dim": 2 * half,
        "heads": heads,
    }
    cos, sin = (reader.value(op, op.input(i)) for i in (7, 8))
    operands = {"x": x, "cos": cos, "sin": sin, "positions": start}
    return _made(reader, op, "rotary", operands, attrs, [reader.spare(f"{stem}.turned")])[0]


def _width(reader: OnnxReader, op: OnnxOp, place: int) -> Dim:
    """Returns how many pairs a table of angles has."""
    if not op.input(place):
        raise KeepOperator
    shape = reader.type_of(op, op.input(place)).shape
    return shape[-1] if shape else None


def _made(
    reader: OnnxReader,
    op: OnnxOp,
    kind: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    names: Sequence[str],
) -> tuple[Value, ...]:
    """Returns the results of a node that is before the op's own; raises InputError for a malformed
    op."""
    try:
        origin = [op.origin()]
        return reader.graph.add(kind, operands, attrs, name=names, origins=origin).results
    except TypeRuleError as error:
        raise op.fail(str(error)) from error


OPS: dict[str, Callable[[OnnxReader, OnnxOp], None]] = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
}
CONTRIB: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "RotaryEmbedding"): _contrib_rotary,
}

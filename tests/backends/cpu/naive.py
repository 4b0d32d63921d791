"""Integer graphs computed the slow way, from the formulas of onnxruntime's operators.

Nothing of QIR computes here: graphs are only walked. Everything is held as it is typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.ir.node import Node, Value

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
Values: TypeAlias = Mapping[str, Value]
Attrs: TypeAlias = Mapping[str, Any]
F = np.float32


def quant(value: Value) -> tuple[np.float32, int, int, int]:
    """Scale, zero, lowest and highest code of a whole-tensor type."""
    kind = value.type.quant
    assert kind is not None
    return F(kind.scales()), int(kind.zeros()), kind.low, kind.high


def run(graph: Graph, inputs: Arrays) -> dict[str, Array]:
    """The outputs of a graph."""
    live: dict[Value, Array] = {}
    for node in graph:
        if node.op == "input":
            live[node.result] = inputs[node.name]
        elif node.op == "constant":
            data = node.result.constant
            assert data is not None
            live[node.result] = data.data
        elif node.op != "output":
            live[node.result] = _node(node, {s: live[v] for s, v in node.operands.items()})
    return {name: live[value] for name, value in graph.outputs.items()}


def _node(node: Node, x: Arrays) -> Array:
    op = node.stages[0].op if node.stages else node.op
    attrs = dict(node.stages[0].attrs if node.stages else node.attrs)
    types = {slot: value for slot, value in node.operands.items()}
    y: Array = globals()[f"_{op}"](x, types, node.result, attrs)
    for stage in node.stages[1:]:
        y = _bounded(y, node.result, stage.op, stage.attrs)
    return y.astype(node.result.type.dtype.carrier)


def _bounded(y: Array, result: Value, op: str, attrs: Attrs) -> Array:
    low, high = (0.0, None) if op == "relu" else (attrs["min"], attrs["max"])
    if low is not None:
        y = np.maximum(y, to_quantized(np.array(low, F), result))
    if high is not None:
        y = np.minimum(y, to_quantized(np.array(high, F), result))
    return y


def to_quantized(floats: Array, result: Value) -> Array:
    scale, zero, low, high = quant(result)
    with np.errstate(over="ignore"):
        near: Array = np.rint((floats.astype(F) / scale).clip(F(low - zero), F(high - zero)))
    return near.astype(np.int64) + zero


def to_floats(quantized: Array, value: Value) -> Array:
    scale, zero, _, _ = quant(value)
    return (quantized.astype(np.int64) - zero).astype(F) * scale


def once(acc: Array, multiplier: Array, result: Value) -> Array:
    """Accumulators, wrapped to 32 bits, to integers: scaled, rounded to even, zero added,
    clamped."""
    wrapped = acc.astype(np.int64).astype(np.uint32).view(np.int32)
    scaled = wrapped.astype(F) * multiplier.astype(F)
    if result.type.quant is None:
        return scaled
    _, zero, low, high = quant(result)
    out: Array = np.rint(scaled.clip(F(low - zero), F(high - zero))).astype(np.int64) + zero
    return out


def converted(real: Array, result: Value) -> Array:
    """Floats with the zero in them to integers: to 32-bit integers first, where 2^31 is the
    least."""
    *_, low, high = quant(result)
    with np.errstate(invalid="ignore"):
        fits = np.abs(real) < 2.0**31
    whole: Array = np.where(fits, np.rint(np.where(fits, real, 0)), -(2.0**31)).astype(np.int64)
    return whole.clip(low, high)


def _weights(value: Value, quantized: Array, axis: int) -> tuple[Array, Array]:
    kind = value.type.quant
    assert kind is not None
    zeros = np.asarray(kind.zeros())
    shape = [1] * quantized.ndim
    if zeros.ndim:
        shape[axis] = -1
    return quantized.astype(np.int64) - zeros.reshape(shape), np.asarray(kind.scales(), F).reshape(
        -1
    )


def _multiplier(x: Value, w: Array, result: Value) -> Array:
    product = F(quant(x)[0]) * w
    return product if result.type.quant is None else product / quant(result)[0]


def _conv2d(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    nchw = a["layout"] == "NCHW"
    data = x["x"].astype(np.int64) - quant(types["x"])[1]
    data = data if nchw else data.transpose(0, 3, 1, 2)
    w, scales = _weights(types["w"], x["w"], 0)
    top, left, bottom, right = a["pad"]
    data = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    (sh, sw), (dh, dw), groups = a["stride"], a["dilation"], a["groups"]
    out, per, kh, kw = w.shape
    oh = (data.shape[2] - dh * (kh - 1) - 1) // sh + 1
    ow = (data.shape[3] - dw * (kw - 1) - 1) // sw + 1
    acc = np.zeros((len(data), out, oh, ow), np.int64)
    for o in range(out):
        g = o // (out // groups)
        for i in range(kh):
            for j in range(kw):
                part = data[:, g * per : (g + 1) * per, i * dh :, j * dw :]
                part = part[:, :, : (oh - 1) * sh + 1 : sh, : (ow - 1) * sw + 1 : sw]
                acc[:, o] += (part * w[o, :, i, j][None, :, None, None]).sum(1)
    if "bias" in x:
        acc += x["bias"].reshape(-1).astype(np.int64)[None, :, None, None]
    m = _multiplier(types["x"], scales, result).reshape(1, -1, 1, 1)
    y = once(acc, m, result)
    return y if nchw else y.transpose(0, 2, 3, 1)


def _product(
    left: Array,
    matrix: Array,
    axis: int,
    a_value: Value,
    b_value: Value,
    added: Array | None,
    result: Value,
) -> Array:
    w, scales = _weights(b_value, matrix, axis)
    acc = (left.astype(np.int64) - quant(a_value)[1]) @ (w if axis else w.swapaxes(-1, -2))
    if added is not None:
        acc = acc + added.astype(np.int64)
    return once(acc, _multiplier(a_value, scales, result), result)


def _gemm(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    left = x["a"].T if a["trans_a"] else x["a"]
    axis = 0 if a["trans_b"] else 1
    return _product(left, x["b"], axis, types["a"], types["b"], x.get("c"), result)


def _matmul(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    axis = 0 if a["trans_b"] else 1
    left = x["a"].swapaxes(-1, -2) if a["trans_a"] else x["a"]
    return _product(left, x["b"], axis, types["a"], types["b"], x.get("bias"), result)


def _linear(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    return _product(x["x"], x["w"], 0, types["x"], types["w"], x.get("bias"), result)


def fma(a: Array | np.float32, b: np.float32, c: Array | np.float32) -> Array:
    """a * b + c rounded once: a code times a float32, and the sum, fit the widest float."""
    wide = np.longdouble
    out: Array = (np.asarray(a, wide) * wide(b) + np.asarray(c, wide)).astype(F)
    return out


def _scalar_first(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether a's step along onnxruntime's innermost run is none, as its iterator sets it up."""
    if not b:
        return not a or a[-1] == 1
    for back in range(1, min(len(a), len(b)) + 1):
        if back == min(len(a), len(b)) or max(a[-back], b[-back]) != 1:
            return a[-back] == 1
    return True


def _add(x: Arrays, types: Values, result: Value, attrs: Attrs) -> Array:
    order = ["b", "a"] if _scalar_first(x["a"].shape, x["b"].shape) else ["a", "b"]
    (sa, za, *_), (sb, zb, *_) = (quant(types[s]) for s in order)
    sc, zc, *_ = quant(result)
    ra, rb = F(sa / sc), F(sb / sc)
    c = F(zc) - fma(F(za), ra, rb * F(zb))
    a, b = np.broadcast_arrays(x[order[0]], x[order[1]])
    return converted(fma(a, ra, fma(b, rb, c)), result)


def _mul(x: Arrays, types: Values, result: Value, attrs: Attrs) -> Array:
    (sa, za, *_), (sb, zb, *_) = quant(types["a"]), quant(types["b"])
    sc, zc, *_ = quant(result)
    m = F(F(sa * sb) / sc)
    product = (x["a"].astype(np.int64) - za) * (x["b"].astype(np.int64) - zb)
    return converted(product.astype(F) * m + F(zc), result)


def _windows(data: Array, a: Attrs) -> Iterator[tuple[int, int, list[Array]]]:
    (kh, kw), (sh, sw) = a["kernel"], a["stride"]
    dh, dw = a.get("dilation", (1, 1))
    top, left, bottom, right = a["pad"]
    h, w = data.shape[2:]

    def count(size: int, k: int, s: int, d: int, before: int, after: int) -> int:
        room = size + before + after - d * (k - 1) - 1
        if not a["ceil"]:
            return room // s + 1
        n = -(-room // s) + 1
        return n - 1 if (n - 1) * s >= size + before else n

    for i in range(count(h, kh, sh, dh, top, bottom)):
        for j in range(count(w, kw, sw, dw, left, right)):
            rows = [r for k in range(kh) if 0 <= (r := i * sh - top + k * dh) < h]
            columns = [r for k in range(kw) if 0 <= (r := j * sw - left + k * dw) < w]
            yield i, j, [data[:, :, r, c] for r in rows for c in columns]


def _pool(x: Arrays, a: Attrs, of: Callable[[Sequence[Array]], Array]) -> Array:
    nchw = a["layout"] == "NCHW"
    data = x["x"] if nchw else x["x"].transpose(0, 3, 1, 2)
    cells = [(i, j, of(parts)) for i, j, parts in _windows(data, a)]
    out = np.zeros((*data.shape[:2], cells[-1][0] + 1, cells[-1][1] + 1), np.int64)
    for i, j, cell in cells:
        out[:, :, i, j] = cell
    return out if nchw else out.transpose(0, 2, 3, 1)


def _max_pool2d(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    return _pool(x, a, lambda parts: np.max(np.stack(parts), axis=0))


def _avg_pool2d(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    image = x["x"].shape[2:] if a["layout"] == "NCHW" else x["x"].shape[1:3]
    if image == tuple(a["kernel"]) and not any(a["pad"]):
        return _global_avg_pool(x, types, result, a)
    (sx, zx, *_), (so, zo, *_) = quant(types["x"]), quant(result)

    def mean(parts: Sequence[Array]) -> Array:
        acc = np.zeros(parts[0].shape, F)
        for part in parts:
            acc = acc + (part.astype(np.int64) - zx).astype(F) * sx
        count = F(a["kernel"][0] * a["kernel"][1] if a["count_pad"] else len(parts))
        return converted(acc / count / so + F(zo), result)

    return _pool(x, a, mean)


def _global_avg_pool(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    axes = (2, 3) if a["layout"] == "NCHW" else (1, 2)
    (sx, zx, *_), so = quant(types["x"]), quant(result)[0]
    count = x["x"].shape[axes[0]] * x["x"].shape[axes[1]]
    acc = (x["x"].astype(np.int64) - zx).sum(axes, keepdims=True)
    return once(acc, np.array(F(sx / F(so * F(count)))), result)


def _requantize(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    return to_quantized(to_floats(x["x"], types["x"]), result)


def _relu(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    return to_quantized(np.maximum(to_floats(x["x"], types["x"]), 0), result)


def _clip(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    low = -np.inf if a["min"] is None else a["min"]
    high = np.inf if a["max"] is None else a["max"]
    return to_quantized(np.clip(to_floats(x["x"], types["x"]), F(low), F(high)), result)


def _sigmoid(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    floats = to_floats(x["x"], types["x"]).astype(np.float64)
    return to_quantized((1 / (1 + np.exp(-floats))).astype(F), result)


def _quantize(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    return to_quantized(x["x"], result)


def _dequantize(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    return to_floats(x["x"], types["x"])


def _moved(x: Array, value: Value, result: Value) -> Array:
    same = quant(value) == quant(result)
    return x if same else to_quantized(to_floats(x, value), result)


def _concat(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    order = sorted(x, key=lambda s: int(s.split(".")[1]))
    return np.concatenate([_moved(x[s], types[s], result) for s in order], a["axis"])


def _flatten(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    rows = int(np.prod(x["x"].shape[: a["axis"]]))
    return x["x"].reshape(rows, -1)


def _reshape(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    shape = [x["x"].shape[i] if d == 0 else d for i, d in enumerate(x["shape"].tolist())]
    return x["x"].reshape(shape)


def _transpose(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    return x["x"].transpose(a["perm"])


def _pad(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    rank = x["x"].ndim
    pairs = list(zip(a["pads"][:rank], a["pads"][rank:], strict=True))
    value = int(to_quantized(np.array([a["value"]], F), result)[0])
    wide = [(max(b, 0), max(e, 0)) for b, e in pairs]
    out = np.pad(x["x"], wide, constant_values=value)
    keep = tuple(
        slice(max(-b, 0), n - max(-e, 0)) for (b, e), n in zip(pairs, out.shape, strict=True)
    )
    return out[keep]


def _softmax(x: Arrays, types: Values, result: Value, a: Attrs) -> Array:
    return softmax(x, types, result, a, F)


def softmax(x: Arrays, types: Values, result: Value, a: Attrs, kind: type[np.floating]) -> Array:
    """Softmax whose shares are divided in float32 or float64."""
    sx = np.float64(quant(types["x"])[0])
    so, zo, low, high = quant(result)
    quantized = np.moveaxis(x["x"].astype(np.int64), a["axis"], -1)
    width = quantized.shape[-1]
    shift = max(0.0, float(np.log(np.finfo(F).max / F(width))) - 5.0) / sx
    table = np.exp((np.arange(256) - 255 + shift) * sx).astype(F)
    v = table[quantized - quantized.max(-1, keepdims=True) + 255]
    total = np.zeros(v.shape[:-1], F)
    for i in range(width):
        total = total + v[..., i]
    share = v.astype(kind) * np.floor(F(1) / so).astype(kind) / total[..., None].astype(kind)
    return np.moveaxis((np.rint(share).astype(np.int64) + zo).clip(low, high), -1, a["axis"])

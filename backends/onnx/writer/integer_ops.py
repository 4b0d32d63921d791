"""Writes quantized ops as onnxruntime's operators, or between dequantize and quantize."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from qir.ir.dtype import I32
from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.types import QuantType, TensorType, uniform
from qir.ledger import Change

from ..optimizer import overhanging_pools
from . import custom, dynamic_ops, float_ops
from .float_ops import conv_attrs
from .pool_ops import pool_attrs
from .writer import MICROSOFT, STEP, OnnxWriter, Wire, Work

Row = Callable[[OnnxWriter, Work], bool]
_PREFIXES = {"x": "xXAa", "a": "aA", "w": "w", "b": "bB", "result": "yYC"}
_MOVES = frozenset(
    "reshape flatten transpose squeeze unsqueeze slice concat pad max_pool1d max_pool2d "
    "max_pool3d gather expand tile depth_to_space resize_nearest split".split()
)
_EIGHT = frozenset(
    "pad max_pool1d max_pool2d max_pool3d gather expand tile depth_to_space resize_nearest".split()
)
"""Ops that runtimes have for quantized values of eight bits."""
_BESIDE = ("shape", "indices", "sizes")
"""Operands that say where elements go."""


def write(writer: OnnxWriter, work: Work) -> None:
    """Writes a quantized op; Refused for quantized values that ONNX has no form for."""
    if _moves(work) and not any(o.op == "QLinearConcat" for o in work.origins):
        float_ops.write(writer, work, {s: writer.name(v) for s, v in work.operands.items()})
        return
    row = _OPS.get(work.op)
    if row is not None and row(writer, work):
        return
    around(writer, work)


def around(writer: OnnxWriter, work: Work) -> None:
    """Writes dequantize, the op in float, quantize."""
    if overhanging_pools.differs(work.node):
        said = "windows that exceed the padding count differently in float"
        raise writer.refuse(work.node, f"{said}; --target onnxruntime has the quantized pool")
    if len(work.node.results) > 1:
        said = f"ONNX has no {work.op} of {work.kind.quant} quantized values"
        raise writer.refuse(work.node, f"{said}; --format qdq would do")
    ins = {s: _real(writer, work, s) for s in work.operands}
    quant = work.kind.quant
    if quant is None:
        float_ops.write(writer, work, ins)
        writer.on_reals(work.op, work.node, work.out)
        return
    made = writer.fresh(f"{work.out}_QuantizeLinear_Input")
    reals = replace(work, kind=work.kind.with_element(quant.express), out=made)
    float_ops.write(writer, reals, ins)
    stem = work.node.result.lineage.tensor
    writer.quantize(made, work.kind, work.out, work.node, stem, _given(work, "result"))
    writer.on_reals(work.op, work.node, work.out)


def _real(writer: OnnxWriter, work: Work, slot: str) -> str:
    value = work.operands[slot]
    if value.type.dtype == I32 and value.type.quant is None and slot in ("bias", "c"):
        return _real_bias(writer, work, slot, value)
    return writer.real(value, work.node)


def _real_bias(writer: OnnxWriter, work: Work, slot: str, value: Value) -> str:
    """Returns a bias that counts in the accumulator's unit, dequantized."""
    data, weight = ("x", "w") if "x" in work.operands else ("a", "b")
    x, w = work.operands[data].type.quant, work.operands[weight].type.quant
    if x is None or w is None:
        said = f"its {slot} counts integer sums, and not both sides are quantized"
        raise writer.refuse(work.node, f"{said}; give it a {slot} of floats")
    alpha = work.real("alpha") if "alpha" in work.attrs else 1.0
    scales = (np.asarray(q.scales(), np.float32) for q in (x, w))
    unit = np.asarray(next(scales) * next(scales) * np.float32(alpha), np.float32)
    if unit.ndim and (not value.type.shape or value.type.shape[-1] != unit.size):
        return dynamic_ops.counted(writer, work, slot)
    axis = value.type.rank - 1 if unit.ndim else None
    quant = uniform(I32, unit, axis=axis, name=value.name)
    scale, _ = writer.pair_of(quant, value.lineage.tensor, work.node)
    out = writer.fresh(f"{value.name}_DequantizeLinear_Output")
    attrs: dict[str, Wire] = {} if axis is None else {"axis": axis}
    writer.emit("DequantizeLinear", [writer.name(value), scale], [out], attrs)
    return out


# -- what onnxruntime's operators take -----------------------------------------------------------


def _moves(work: Work) -> bool:
    """Returns whether the op only moves quantized values of one quantized type."""
    quant = work.kind.quant
    if work.op not in _MOVES or quant is None:
        return False
    if work.op in _EIGHT and quant.storage.name not in ("u8", "i8"):
        return False
    if work.op == "pad" and quant.granularity is not None:
        return False
    if work.op == "split" and (quant.granularity is not None or quant.storage.bits < 8):
        return False
    given = [v.type.quant for s, v in work.operands.items() if s not in _BESIDE]
    turned = work.op in ("transpose", "squeeze", "unsqueeze")
    return all(g is not None and (turned or g.has_same_mapping(quant)) for g in given)


def _single(quant: QuantType | None, *storages: str) -> bool:
    return (
        quant is not None
        and quant.granularity is None
        and not custom.odd(quant, (), constant=True)
        and quant.express.name == "f32"
        and quant.storage.name in storages
    )


def _alike(work: Work, slots: Iterable[str]) -> bool:
    """Returns whether operands and result are all u8, or all i8, each with one quantized type."""
    quants = [work.operands[s].type.quant for s in slots]
    return any(all(_single(q, kind) for q in (*quants, work.kind.quant)) for kind in ("u8", "i8"))


def _weighted(work: Work, data: str, weight: str, axis: int, *, real: bool = False) -> bool:
    """Returns whether an integer product is one that the kernels take."""
    x, w = work.operands[data].type.quant, work.operands[weight].type.quant
    if x is None or w is None or w.express.name != "f32" or w.storage.name not in ("u8", "i8"):
        return False
    if custom.odd(w, work.operands[weight].type.shape, constant=True) or (
        w.granularity is not None and w.axis != axis
    ):
        return False
    if _single(x, "u8"):
        return real or _single(work.kind.quant, "u8")
    return _single(x, "i8") and w.storage.name == "i8" and (real or _single(work.kind.quant, "i8"))


def _given(work: Work, slot: str) -> tuple[str | None, str | None]:
    """Returns the source's names for scale and zero point of an operand or of the result."""
    for origin in (*work.node.slot_origins.get(slot, ()), *work.origins):
        found = dict(origin.operands)
        if origin.op == "QLinearWhere":
            stems = [{"a": "x", "b": "y", "result": "z"}[slot]]
        elif origin.op == "QLinearReduceMean":
            stems = ["data" if slot == "x" else "reduced"]
        elif origin.op.startswith("Q") and origin.op not in ("QuantizeLinear", "QLinearConcat"):
            stems = list(_PREFIXES.get(slot, ""))
        elif origin.op == "QuantizeLinear" and slot == "result":
            stems = ["y"]
        elif origin.op == "DequantizeLinear" and slot != "result":
            stems = ["x"]
        else:
            stems = []
        for stem in stems:
            if f"{stem}_scale" in found:
                zero = found.get(f"{stem}_zero_point") or found.get(f"{stem.lower()}_zero_point")
                return found[f"{stem}_scale"], zero
    return None, None


def _triple(writer: OnnxWriter, work: Work, slot: str) -> list[str]:
    value = work.operands[slot]
    quant = value.type.quant
    assert quant is not None
    if quant.dynamic:
        return [writer.name(value), *_computed(writer, work, slot, value.type)]
    writer.check(work.node, quant, constant=value.constant is not None)
    return [writer.name(value), *writer.pair(value, work.node, _given(work, slot))]


def _computed(writer: OnnxWriter, work: Work, slot: str, kind: TensorType) -> list[str]:
    """Returns the scale and zero point operands of an op; a zero point of 0 where there is none."""
    quant = kind.quant
    assert quant is not None
    numbers = dynamic_ops.numbers(writer, work.node, slot, kind, False)
    if len(numbers) > 1:
        return numbers
    zero = np.zeros((), quant.storage.carrier)
    name = f"{work.node.name}_{slot or 'result'}_zero_point"
    return [*numbers, writer.parameter(zero, name, None, quant.storage)]


def _result(writer: OnnxWriter, work: Work) -> list[str]:
    quant = work.kind.quant
    assert quant is not None
    if quant.dynamic:
        return _computed(writer, work, "", work.kind)
    writer.check(work.node, quant, constant=False)
    stem = work.node.result.lineage.tensor
    return list(writer.pair_of(quant, stem, work.node, _given(work, "result")))


def _bias(writer: OnnxWriter, work: Work, slot: str) -> list[str] | None:
    """Returns the raw bias as an operand; none if there is none; None if it is not in the right
    unit."""
    value = work.operands.get(slot)
    if value is None:
        return []
    return [writer.name(value)] if value.type.element == I32 else None


def _emit(
    writer: OnnxWriter,
    work: Work,
    op: str,
    operands: Iterable[str],
    attrs: dict[str, Wire] | None = None,
    domain: str = MICROSOFT,
) -> bool:
    if domain and writer.standard:
        return False
    writer.emit(op, operands, [work.out], attrs, domain=domain, origins=work.origins)
    return True


# -- the operators -------------------------------------------------------------------------------


def _conv(writer: OnnxWriter, work: Work) -> bool:
    bias = _bias(writer, work, "bias")
    if bias is None or not _weighted(work, "x", "w", 0):
        return False
    operands = [*_triple(writer, work, "x"), *_triple(writer, work, "w"), *_result(writer, work)]
    attrs = {**conv_attrs(work), **_last(work)}
    domain = MICROSOFT if work.last else ""
    return _emit(writer, work, "QLinearConv", [*operands, *bias], attrs, domain)


def _matmul(writer: OnnxWriter, work: Work) -> bool:
    a, b = work.operands["a"].type, work.operands["b"].type
    if "bias" in work.operands or work.attrs["trans_a"] or work.attrs["trans_b"]:
        if a.rank != 2 or b.rank != 2:
            return False
        return _qgemm(writer, work, ("a", "b", "bias"), work.attrs["trans_b"] is True)
    if not _weighted(work, "a", "b", b.rank - 1):
        return False
    operands = [*_triple(writer, work, "a"), *_triple(writer, work, "b"), *_result(writer, work)]
    return _emit(writer, work, "QLinearMatMul", operands, domain="")


def _linear(writer: OnnxWriter, work: Work) -> bool:
    if work.operands["x"].type.rank != 2:
        return False
    return _qgemm(writer, work, ("x", "w", "bias"), True)


def _gemm(writer: OnnxWriter, work: Work) -> bool:
    if "c" in work.operands and work.attrs["beta"] != 1.0:
        return False
    return _qgemm(writer, work, ("a", "b", "c"), work.attrs["trans_b"] is True)


def _qgemm(writer: OnnxWriter, work: Work, slots: tuple[str, str, str], turned: bool) -> bool:
    data, weight, added = slots
    bias = _bias(writer, work, added)
    real = work.kind.element == work.kind.express
    if bias is None or not _weighted(work, data, weight, 0 if turned else 1, real=real):
        return False
    attrs: dict[str, Wire] = {}
    if "alpha" in work.attrs:
        attrs["alpha"] = work.real("alpha")
    if work.attrs.get("trans_a"):
        attrs["transA"] = 1
    if turned:
        attrs["transB"] = 1
    operands = [*_triple(writer, work, data), *_triple(writer, work, weight)]
    if not real:
        operands += [*(bias or [""]), *_result(writer, work)]
    return _emit(writer, work, "QGemm", operands if not real else operands + bias, attrs)


def _pair(op: str) -> Row:
    def row(writer: OnnxWriter, work: Work) -> bool:
        if not _alike(work, ("a", "b")):
            return False
        operands = [*_triple(writer, work, "a"), *_triple(writer, work, "b")]
        return _emit(writer, work, op, [*operands, *_result(writer, work)])

    return row


def _unary(op: str, attrs: Callable[[Work], dict[str, Wire]]) -> Row:
    def row(writer: OnnxWriter, work: Work) -> bool:
        if not _alike(work, ("x",)):
            return False
        operands = [*_triple(writer, work, "x"), *_result(writer, work)]
        return _emit(writer, work, op, operands, attrs(work))

    return row


def _last(work: Work) -> dict[str, Wire]:
    return {"channels_last": 1} if work.last else {}


def _concat(writer: OnnxWriter, work: Work) -> bool:
    slots = work.variadic("xs")
    if not _alike(work, slots):
        return False
    parts = [name for s in slots for name in _concat_part(writer, work, s)]
    first, second = _concat_names(work, "Y_scale"), _concat_names(work, "Y_zero_point")
    stem = work.node.result.lineage.tensor
    if work.kind.quant is not None and work.kind.quant.dynamic:
        pair = _result(writer, work)
    else:
        pair = [*writer.pair_of(work.kind.quant, stem, work.node, (first, second))]
    axis: dict[str, Wire] = {"axis": work.whole("axis")}
    return _emit(writer, work, "QLinearConcat", [*pair, *parts], axis)


def _concat_part(writer: OnnxWriter, work: Work, slot: str) -> list[str]:
    at = slot.rpartition(".")[2]
    value = work.operands[slot]
    if value.type.quant is not None and value.type.quant.dynamic:
        return _triple(writer, work, slot)
    names = _concat_names(work, f"X_scale.{at}"), _concat_names(work, f"X_zero_point.{at}")
    return [writer.name(value), *writer.pair(value, work.node, names)]


def _concat_names(work: Work, slot: str) -> str | None:
    found: list[Origin] = [o for o in work.origins if o.op == "QLinearConcat"]
    return dict(found[0].operands).get(slot) if found else None


def _where(writer: OnnxWriter, work: Work) -> bool:
    if not _alike(work, ("a", "b")):
        return False
    operands = [*_triple(writer, work, "a"), *_triple(writer, work, "b"), *_result(writer, work)]
    condition = writer.name(work.operands["condition"])
    return _emit(writer, work, "QLinearWhere", [condition, *operands])


def _mean(writer: OnnxWriter, work: Work) -> bool:
    """Writes QLinearReduceMean where the source had it: onnxruntime has no kernel for it."""
    if not any(o.op == "QLinearReduceMean" for o in work.origins) or not _alike(work, ("x",)):
        return False
    attrs: dict[str, Wire] = {
        "axes": work.numbers("axes"),
        "keepdims": int(work.attrs["keep"] is True),
    }
    operands = [*_triple(writer, work, "x"), *_result(writer, work)]
    return _emit(writer, work, "QLinearReduceMean", operands, attrs)


def beside(writer: OnnxWriter, node: Node) -> bool:
    """Writes a quantized op whose parameters are operands, where onnxruntime has one for it."""
    row = _OPS.get(node.op)
    kinds = (node.results[0].type, *(v.type for v in node.operands.values()))
    if row is None or len(node.results) != 1:
        return False
    if node.results[0].type.quant is None and node.op != "gemm":
        return False
    if any(k.quant is not None and k.quant.has_float_zero for k in kinds):
        return False
    apart = dynamic_ops.companions(node)
    own = {s: v for s, v in node.operands.items() if s not in apart}
    value = node.result
    out = writer.name(value)
    work = Work.of(node.op, node.attrs, own, value.type, out, node, node.origins)
    return row(writer, work)


_OPS: dict[str, Row] = {
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "matmul": _matmul,
    "linear": _linear,
    "gemm": _gemm,
    "add": _pair("QLinearAdd"),
    "mul": _pair("QLinearMul"),
    "sigmoid": _unary("QLinearSigmoid", lambda work: {}),
    "leaky_relu": _unary("QLinearLeakyRelu", lambda work: {"alpha": work.real("alpha")}),
    "softmax": _unary("QLinearSoftmax", lambda work: {"axis": work.whole("axis"), "opset": 13}),
    "where": _where,
    "reduce_mean": _mean,
    "avg_pool1d": _unary("QLinearAveragePool", pool_attrs),
    "avg_pool2d": _unary("QLinearAveragePool", lambda work: {**pool_attrs(work), **_last(work)}),
    "avg_pool3d": _unary("QLinearAveragePool", pool_attrs),
    "global_avg_pool": _unary("QLinearGlobalAveragePool", _last),
    "concat": _concat,
}


# -- chains --------------------------------------------------------------------------------------


def saturates(op: str, attrs: Work, kind: QuantType) -> bool:
    """Returns whether rounding into those quantized values does all that the activation would."""
    low, high = _bounds(op, attrs)
    scale, zero = np.float32(kind.scales()), int(kind.zeros())
    enough_low = low is None or np.rint(np.float32(low) / scale) + zero <= kind.low
    return bool(
        enough_low and (high is None or np.rint(np.float32(high) / scale) + zero >= kind.high)
    )


def _bounds(op: str, work: Work) -> tuple[float | None, float | None]:
    if op == "relu":
        return 0.0, None
    low, high = work.attrs["min"], work.attrs["max"]
    return (low if isinstance(low, float) else None, high if isinstance(high, float) else None)


def write_chain(writer: OnnxWriter, works: list[Work]) -> None:
    """Writes a group: a quantized op and the activations after it.

    Refused for any other group: onnxruntime has no operator for it.
    """
    head, *tails = works
    quant = head.kind.quant
    shown = " |> ".join(w.op for w in works)
    single = quant is not None and quant.granularity is None and head.op in _OPS
    inner = any(s.type is not None for s in head.node.stages[:-1])
    if not single or inner or any(t.op not in ("relu", "clip") for t in tails):
        raise writer.refuse(
            head.node, f"onnxruntime has no operator for {shown}; --format qdq would do"
        )
    assert quant is not None
    left = [t for t in tails if not saturates(t.op, t, quant)]
    out = head.out if not left else writer.fresh(f"{head.out}_before_{left[0].op}")
    write(writer, replace(head, out=out))
    for i, work in enumerate(left):
        target = work.out if i == len(left) - 1 else writer.fresh(f"{work.out}_before_{work.op}")
        _activate(writer, replace(work, out=target), out, head.kind)
        out = target
    if left:
        ops = ", ".join(w.op for w in left)
        writer.ledger.add(
            Change.EXACT,
            STEP,
            head.out,
            f"{ops} is written after the rounding, on the quantized values: rounding keeps order",
        )


def _activate(writer: OnnxWriter, work: Work, codes: str, kind: TensorType) -> None:
    """Writes dequantize, the activation, quantize, all with one quantized type."""
    quant, node = kind.quant, work.node
    assert quant is not None
    scale, zero = writer.pair_of(quant, node.result.lineage.tensor, node, _given(work, "result"))
    real, made = writer.fresh(f"{work.out}_real"), writer.fresh(f"{work.out}_{work.op}")
    writer.emit("DequantizeLinear", [codes, scale, zero], [real])
    reals = replace(work, kind=kind.with_element(quant.express), out=made)
    float_ops.write(writer, reals, {"x": real})
    writer.emit("QuantizeLinear", [made, scale, zero], [work.out])

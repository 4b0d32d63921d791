"""QMoE: experts of two products each, whose weights are quantized; some serve each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType

from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from .body import BodyBuilder, group
from .names import OPERANDS
from .packing import BlockPacking, codes_in, unpacked
from .quantized import rounded, weight

_OWN = (
    "activation_alpha activation_beta activation_type block_size expert_weight_bits k "
    "normalize_routing_weights swiglu_fusion swiglu_limit accuracy_level quant_type "
    "use_sparse_mixer weights_prepacked fc1_expert_weight_bits fc2_expert_weight_bits"
).split()
_FIRST, _SECOND = (2, 3, 11), (5, 6, 12)
"""Where weights, scales and zero points of the first and the second product stand."""


@dataclass(frozen=True, slots=True)
class _Experts:
    """What all experts share."""

    chosen: int
    bits: int
    block: int
    kind: str
    alpha: float
    beta: float
    limit: float | None


def _experts(reader: OnnxReader, op: OnnxOp) -> None:
    op.only(*_OWN)
    odd = op.integer("use_sparse_mixer", 0) or op.text("quant_type", "int") != "int"
    bits = op.integer("expert_weight_bits", 4)
    others = {op.integer(f"fc{i}_expert_weight_bits", bits) for i in (1, 2)}
    if odd or others - {bits, 0} or op.integer("weights_prepacked", 0) > 0:
        raise KeepOperator("its experts are mixed otherwise, or laid out for one kernel")
    if bits not in (4, 8) or op.integer("accuracy_level", 0) not in (0, 1):
        raise KeepOperator(f"weights of {bits} bits at accuracy {op.integer('accuracy_level', 0)}")
    kind = op.text("activation_type", "relu")
    if kind not in ("relu", "gelu", "silu", "identity", "swiglu"):
        raise KeepOperator(f"its activation {kind!r} is not known")
    if kind == "swiglu" and op.integer("swiglu_fusion", 0) != 1:
        raise KeepOperator("halves of an activation that do not alternate")
    formal = OPERANDS[op.type].split()
    plain = [i for i in (0, 1, 4, 7) if op.input(i)]
    if any(name and i not in (*plain, *_FIRST, *_SECOND) for i, name in enumerate(op.inputs)):
        raise KeepOperator("a third product, or weights of the rows apart")
    of = _Experts(
        op.integer("k", 4),
        bits,
        op.integer("block_size", 0),
        kind,
        op.real("activation_alpha", 1.0),
        op.real("activation_beta", 0.0),
        op.real("swiglu_limit", 0.0) if op.attribute("swiglu_limit") else None,
    )
    operands = {formal[i]: reader.value(op, op.input(i)) for i in plain}
    if any(v.type.element != F32 for v in operands.values()):
        raise KeepOperator("its rows are no f32")
    router, count = operands["router_probs"].type, dims.product(operands["input"].type.shape[:-1])
    if router.rank != 2 or not dims.may_be_equal(count, router.shape[0]):
        raise KeepOperator("its router has other rows than its data")
    experts = {reader.held(op.input(places[0])).shape[:1] for places in (_FIRST, _SECOND)}
    if not all(dims.may_be_equal(router.shape[1], *count) for count in experts if count):
        raise KeepOperator("its router chooses among other experts than it has")
    for places in (_FIRST, _SECOND):
        operands[formal[places[0]]] = _codes(reader, op, places, of)
    order = [s for s in formal if s in operands]
    group(reader, op, {s: operands[s] for s in order}, lambda body: [_mixed(body, of)])


def _codes(reader: OnnxReader, op: OnnxOp, places: tuple[int, int, int], of: _Experts) -> Value:
    """Weights [experts, rows, depth] with their scales and zero points; Keep for computed ones."""
    at, scale, zero = (op.input(i) for i in places)
    data, scales = reader.held(at), reader.numbers(scale)
    if data.ndim != 3 or data.dtype != np.uint8:
        raise op.fail(f"its weights {at!r} are {data.dtype} of {data.ndim} axes")
    codes = codes_in(data, of.bits, (*data.shape[:2], data.shape[2] * 8 // of.bits))
    count, rows, depth = codes.shape
    size = of.block or depth
    grid = (count, rows, -(-depth // size))
    if scales.size != count * rows * grid[2]:
        raise op.fail(f"has {scales.size} scales for weights of {codes.shape}")
    middle = np.full(grid, 1 << (of.bits - 1), np.uint8)
    held = Array.of(middle, "zero")
    if zero:
        zeros = unpacked(reader.numbers(zero), of.bits)
        zeros = zeros[..., : grid[2]] if of.block else zeros[..., :rows]
        if zeros.size != scales.size:
            raise op.fail(f"has {zeros.size} zero points for {scales.size} scales")
        held = Array.of(np.ascontiguousarray(zeros.reshape(grid)), zero)
    grain = Granularity(((0, 1), (1, 1), (2, size)))
    scale_array = Array.of(np.ascontiguousarray(scales.reshape(grid)), scale)
    storage = dtype(f"u{of.bits}")
    quant = QuantType(storage, reader.kind_of(scale), scale_array, held, grain)
    return weight(reader, at, codes, quant)


def _mixed(body: BodyBuilder, of: _Experts) -> Value:
    """Returns all experts on all rows, weighted by what the router gives them; 0 for those not
    chosen."""
    x, shape = body["input"], body["input"].type.shape
    if len(shape) == 3:
        x = body.reshaped(x, -1, *(d for d in shape[2:] if isinstance(d, int)))
    hidden = _product(body, body.op("unsqueeze", x, axes=(0,)), "fc1", of)
    made = _product(body, _active(body, hidden, of), "fc2", of)
    router = body["router_probs"]
    best, places = body.many("top_k", {"x": router}, {"k": of.chosen, "axis": 1})
    share = body.op("softmax", best, axis=1)
    value: dict[str, Attr] = {"value": Array.of(np.zeros(1, np.float32))}
    none = body.op("constant_of_shape", body.op("shape", router), **value)
    placed: dict[str, Attr] = {"axis": 1}
    each = body.op("scatter_elements", none, places, share, **placed)
    column = body.op("unsqueeze", body.op("transpose", each, perm=(1, 0)), axes=(2,))
    out = body.op("reduce_sum", body.op("mul", made, column), axes=(0,), keep=False)
    if len(shape) == 3:
        out = body.op("reshape", out, body.op("shape", body["input"]))
    return out


def _product(body: BodyBuilder, a: Value, stem: str, of: _Experts) -> Value:
    weights = f"{stem}_experts_weights"
    rows, depth = (d for d in body[weights].type.shape[1:] if isinstance(d, int))
    if of.bits == 8 and of.block:
        a = rounded(body, a, BlockPacking(8, of.block, (rows, depth)))
    made = body.op("matmul", a, body.real(weights), trans_b=True)
    bias = body.get(f"{stem}_experts_bias")
    return made if bias is None else body.op("add", made, body.op("unsqueeze", bias, axes=(1,)))


def _active(body: BodyBuilder, x: Value, of: _Experts) -> Value:
    if of.kind == "gelu":
        return body.op("gelu", x, approximate="tanh")
    if of.kind != "swiglu":
        return body.op(of.kind, x)
    wide = x.type.shape[2]
    assert isinstance(wide, int)
    cuts = ({"starts": (i,), "ends": (wide,), "axes": (2,), "steps": (2,)} for i in (0, 1))
    gate, linear = (body.op("slice", x, **cut) for cut in cuts)
    if of.limit is not None:
        gate = body.op("clip", gate, max=of.limit)
        linear = body.op("clip", linear, min=-of.limit, max=of.limit)
    gate = body.op("silu", gate, alpha=of.alpha)
    return body.op("mul", gate, body.op("add", linear, body.constant(of.beta)))


OPS = {(MICROSOFT, "QMoE"): _experts}

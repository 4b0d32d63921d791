"""QMoE: a mixture of experts, each of two products with quantized weights."""

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
from .group_bodies import BodyBuilder, add_group
from .names import OPERANDS
from .packing import BlockPacking, unpack_integers, unpack_rows
from .quantized import quantized_constant, round_to_int8_blocks

_ATTRIBUTES = (
    "activation_alpha activation_beta activation_type block_size expert_weight_bits k "
    "normalize_routing_weights swiglu_fusion swiglu_limit accuracy_level quant_type "
    "use_sparse_mixer weights_prepacked fc1_expert_weight_bits fc2_expert_weight_bits"
).split()
_FC1_PLACES, _FC2_PLACES = (2, 3, 11), (5, 6, 12)
"""Operand indices of weights, scales and zero points of the two products."""


@dataclass(frozen=True, slots=True)
class _Experts:
    """Attributes that all experts share."""

    top_k: int
    bits: int
    block: int
    activation: str
    alpha: float
    beta: float
    swiglu_limit: float | None


def _qmoe(reader: OnnxReader, op: OnnxOp) -> None:
    op.allow_only(*_ATTRIBUTES)
    is_unsupported = op.integer("use_sparse_mixer", 0) or op.text("quant_type", "int") != "int"
    bits = op.integer("expert_weight_bits", 4)
    weight_bits = {op.integer(f"fc{i}_expert_weight_bits", bits) for i in (1, 2)}
    if is_unsupported or weight_bits - {bits, 0} or op.integer("weights_prepacked", 0) > 0:
        raise KeepOperator("its experts are mixed otherwise, or laid out for one kernel")
    if bits not in (4, 8) or op.integer("accuracy_level", 0) not in (0, 1):
        raise KeepOperator(f"weights of {bits} bits at accuracy {op.integer('accuracy_level', 0)}")
    activation = op.text("activation_type", "relu")
    if activation not in ("relu", "gelu", "silu", "identity", "swiglu"):
        raise KeepOperator(f"its activation {activation!r} is not known")
    if activation == "swiglu" and op.integer("swiglu_fusion", 0) != 1:
        raise KeepOperator("halves of an activation that do not alternate")
    operand_names = OPERANDS[op.type].split()
    float_indices = [i for i in (0, 1, 4, 7) if op.input(i)]
    if any(
        name and i not in (*float_indices, *_FC1_PLACES, *_FC2_PLACES)
        for i, name in enumerate(op.inputs)
    ):
        raise KeepOperator("a third product, or weights of the rows apart")
    shared = _Experts(
        op.integer("k", 4),
        bits,
        op.integer("block_size", 0),
        activation,
        op.floating("activation_alpha", 1.0),
        op.floating("activation_beta", 0.0),
        op.floating("swiglu_limit", 0.0) if op.attribute("swiglu_limit") else None,
    )
    operands = {operand_names[i]: reader.value(op, op.input(i)) for i in float_indices}
    if any(v.type.element != F32 for v in operands.values()):
        raise KeepOperator("its rows are no f32")
    router, count = operands["router_probs"].type, dims.product(operands["input"].type.shape[:-1])
    if router.rank != 2 or not dims.may_be_equal(count, router.shape[0]):
        raise KeepOperator("its router has other rows than its data")
    experts = {
        reader.lazy_data(op.input(indices[0])).shape[:1] for indices in (_FC1_PLACES, _FC2_PLACES)
    }
    if not all(dims.may_be_equal(router.shape[1], *count) for count in experts if count):
        raise KeepOperator("its router chooses among other experts than it has")
    for indices in (_FC1_PLACES, _FC2_PLACES):
        operands[operand_names[indices[0]]] = _expert_weights(reader, op, indices, shared)
    order = [s for s in operand_names if s in operands]
    add_group(reader, op, {s: operands[s] for s in order}, lambda body: [_mixture(body, shared)])


def _expert_weights(
    reader: OnnxReader, op: OnnxOp, indices: tuple[int, int, int], experts: _Experts
) -> Value:
    """Returns constant weights [experts, rows, depth] of a quantized type.

    Raises NotConstant for computed ones.
    """
    weights_name, scale, zero = (op.input(i) for i in indices)
    data, scales = reader.lazy_data(weights_name), reader.constant_data(scale)
    if data.ndim != 3 or data.dtype != np.uint8:
        raise op.error(f"its weights {weights_name!r} are {data.dtype} of {data.ndim} axes")
    weights = unpack_integers(
        data, experts.bits, (*data.shape[:2], data.shape[2] * 8 // experts.bits)
    )
    count, rows, depth = weights.shape
    size = experts.block or depth
    grid = (count, rows, -(-depth // size))
    if scales.size != count * rows * grid[2]:
        raise op.error(f"has {scales.size} scales for weights of {weights.shape}")
    # Without zero points, the middle of the unsigned range stands for 0.
    midpoints = np.full(grid, 1 << (experts.bits - 1), np.uint8)
    zero_points = Array.of(midpoints, "zero")
    if zero:
        zeros = unpack_rows(reader.constant_data(zero), experts.bits)
        zeros = zeros[..., : grid[2]] if experts.block else zeros[..., :rows]
        if zeros.size != scales.size:
            raise op.error(f"has {zeros.size} zero points for {scales.size} scales")
        zero_points = Array.of(np.ascontiguousarray(zeros.reshape(grid)), zero)
    granularity = Granularity(((0, 1), (1, 1), (2, size)))
    scale_array = Array.of(np.ascontiguousarray(scales.reshape(grid)), scale)
    storage = dtype(f"u{experts.bits}")
    quant = QuantType(storage, reader.constant_dtype(scale), scale_array, zero_points, granularity)
    return quantized_constant(reader, weights_name, weights, quant)


def _mixture(body: BodyBuilder, experts: _Experts) -> Value:
    """Returns the sum of all experts on all rows, weighted by the router.

    onnxruntime runs the chosen experts only; those that are not chosen have weight 0 here.
    """
    x, shape = body["input"], body["input"].type.shape
    if len(shape) == 3:
        # All rows of the batch are one matrix, [rows, depth].
        x = body.reshape(x, -1, *(d for d in shape[2:] if isinstance(d, int)))
    hidden = _product(body, body.op("unsqueeze", x, axes=(0,)), "fc1", experts)
    results = _product(body, _activated(body, hidden, experts), "fc2", experts)
    router = body["router_probs"]
    best_scores, best_indices = body.add("top_k", {"x": router}, {"k": experts.top_k, "axis": 1})
    share = body.op("softmax", best_scores, axis=1)
    value: dict[str, Attr] = {"value": Array.of(np.zeros(1, np.float32))}
    zeros = body.op("constant_of_shape", body.op("shape", router), **value)
    scatter_attrs: dict[str, Attr] = {"axis": 1}
    weights = body.op("scatter_elements", zeros, best_indices, share, **scatter_attrs)
    column = body.op("unsqueeze", body.op("transpose", weights, perm=(1, 0)), axes=(2,))
    total = body.op("reduce_sum", body.op("mul", results, column), axes=(0,), keep=False)
    if len(shape) == 3:
        total = body.op("reshape", total, body.op("shape", body["input"]))
    return total


def _product(body: BodyBuilder, a: Value, stem: str, experts: _Experts) -> Value:
    weights = f"{stem}_experts_weights"
    rows, depth = (d for d in body[weights].type.shape[1:] if isinstance(d, int))
    # onnxruntime rounds rows to int8 blocks here, as MatMulNBits does at accuracy level 4.
    if experts.bits == 8 and experts.block:
        a = round_to_int8_blocks(body, a, BlockPacking(8, experts.block, (rows, depth)))
    product = body.op("matmul", a, body.dequantized(weights), trans_b=True)
    bias = body.get(f"{stem}_experts_bias")
    return (
        product if bias is None else body.op("add", product, body.op("unsqueeze", bias, axes=(1,)))
    )


def _activated(body: BodyBuilder, x: Value, experts: _Experts) -> Value:
    if experts.activation == "gelu":
        return body.op("gelu", x, approximate="tanh")
    if experts.activation != "swiglu":
        return body.op(experts.activation, x)
    width = x.type.shape[2]
    assert isinstance(width, int)
    # SwiGLU: gates at even positions, linear parts at odd ones.
    slices = ({"starts": (i,), "ends": (width,), "axes": (2,), "steps": (2,)} for i in (0, 1))
    gate, linear = (body.op("slice", x, **slice_attrs) for slice_attrs in slices)
    if experts.swiglu_limit is not None:
        gate = body.op("clip", gate, max=experts.swiglu_limit)
        linear = body.op("clip", linear, min=-experts.swiglu_limit, max=experts.swiglu_limit)
    gate = body.op("silu", gate, alpha=experts.alpha)
    return body.op("mul", gate, body.op("add", linear, body.constant(experts.beta)))


OPS = {(MICROSOFT, "QMoE"): _qmoe}

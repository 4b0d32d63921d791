"""Quantized values of 8 and 16 bits, per tensor or per channel, with static or computed
parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, I8, I16, I32, U8, U16, DType
from qir.ir.node import Node, Value
from qir.ir.types import QuantType
from qir.reference.interpreter import rules_of, run_node

from . import dynamic, plain_elements
from .builder import Buffer, CannotLower, ProgramBuilder, sizes, strides
from .float64_sums import convolve, multiply
from .kernel_types import Job
from .products import Matrices
from .sizes import Sizes

STORAGES: dict[DType, str] = {I8: "i8", U8: "u8", I16: "i16", U16: "u16"}
"""The storages that the kernels read and write, by their names there."""
DYNAMIC_SCALE_RULE = "onnx.dynamic"
"""The scale rule that the kernel implements: that of ONNX's DynamicQuantizeLinear."""


def _storage_and_shape(
    value: Value, slot: str, storages: dict[DType, str]
) -> tuple[QuantType, str, Sizes]:
    """Returns a value's quantized type, its storage, and its (outer, channels, inner) sizes."""
    quant, shape = value.type.quant, sizes(value)
    if quant is None or quant.storage not in storages:
        raise CannotLower(f"{slot} is stored as {value.type.dtype}")
    if quant.kind != "uniform" or quant.plus is not None or quant.has_float_zero:
        raise CannotLower(f"{slot} is no uniform type with whole zeros")
    if quant.express != F32 or quant.scale_dtype is not None:
        raise CannotLower(f"{slot} does not mean float32 by a float32 scale")
    if quant.granularity is None:
        return quant, storages[quant.storage], (1, 1, math.prod(shape))
    if (axis := quant.axis) is None:
        raise CannotLower(f"{slot} has scales for blocks")
    grouped_sizes = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    return quant, storages[quant.storage], grouped_sizes


def quantize(b: ProgramBuilder, job: Job) -> None:
    """Lowers float32 to integers; scale and zero point may be computed values."""
    value = job.operands["x"]
    if value.type.element != F32 or job.epilogue:
        raise CannotLower(f"x is {value.type.element}, the kernels quantize f32")
    quant, kind, shape = _storage_and_shape(job.result, "the result", STORAGES)
    static, computed = _scale_and_zero(b, job, quant)
    away = job.attrs["round"] == "away"
    # One scale for all: the order of the elements is any.
    nhwc = quant.granularity is None and b.is_nhwc(value)
    source, target = b.buffer(value, nhwc=nhwc), b.allocate(job.result, nhwc=nhwc)
    b.add(
        job.name,
        "encode",
        [source, *computed.values()],
        [target],
        sizes(value),
        lambda plan, at: plan.encode(
            job.name, at(source), at(target), shape=shape, kind=kind, low=quant.low,
            high=quant.high, away=away, **static,
            **{name: at(buffer) for name, buffer in computed.items()},
        ),
    )  # fmt: skip


def dequantize(b: ProgramBuilder, job: Job) -> None:
    """Lowers integers to float32."""
    value = job.operands["x"]
    if job.result.type.element != F32:
        raise CannotLower(f"the result is {job.result.type.element}, the kernels give f32")
    quant, kind, shape = _storage_and_shape(value, "x", {**STORAGES, I32: "i32"})
    static, computed = _scale_and_zero(b, job, quant)
    source, target = b.buffer(value), b.allocate(job.result)
    b.add(
        job.name,
        "decode",
        [source, *computed.values()],
        [target],
        sizes(value),
        lambda plan, at: plan.decode(
            job.name, at(source), at(target), shape=shape, kind=kind, **static,
            **{slot: at(buffer) for slot, buffer in computed.items()},
        ),
    )  # fmt: skip


def _scale_and_zero(
    b: ProgramBuilder, job: Job, quant: QuantType
) -> tuple[dict[str, Any], dict[str, Buffer]]:
    """Returns static scales and zero points as step options, and the buffers of computed ones."""
    if not quant.dynamic:
        scale = np.asarray(quant.scales(), np.float32).reshape(-1)
        return {"scale": scale, "zero": quant.zeros().astype(np.int32).reshape(-1)}, {}
    scale_of = _companion(job, "scale")
    if scale_of is None or quant.granularity is not None or math.prod(sizes(scale_of)) != 1:
        raise CannotLower("a scale that is computed is no single float32")
    zero = _companion(job, "zero")
    computed = {"scale_at": b.buffer(scale_of)}
    if zero is not None:
        if zero.type.dtype != quant.storage or math.prod(sizes(zero)) != 1:
            raise CannotLower(f"the zero is {zero.type}, not one {quant.storage}")
        computed["zero_at"] = b.buffer(zero)
    return {}, computed


def _companion(job: Job, name: str) -> Value | None:
    """Returns the operand that carries a computed scale or zero point; None where it is static."""
    companions = [v for slot, v in job.operands.items() if slot.rpartition(".")[2] == name]
    return companions[0] if companions else None


def fold_constant_dequantize(b: ProgramBuilder, node: Node) -> bool:
    """Folds the dequantize of a constant; returns whether a node is one.

    The float weights are computed only if some step needs them: matrix products read the integers.
    """
    if node.op != "dequantize" or node.stages or len(node.operands) != 1:
        return False
    source = node.operands["x"]
    if source.constant is None:
        return False
    data, rules = source.constant.data, rules_of(b.graph, node).on_processor()

    # The reference computes the floats: with the node's own profile, not the kernels'.
    def compute() -> NDArray[np.generic]:
        (result,) = run_node(node, {"x": data}, rules)
        return np.asarray(result)

    b.fold(node.result, source, compute)
    return True


# -- ranges that a run finds ----------------------------------------------------------------------


def choose_qparams(b: ProgramBuilder, node: Node) -> None:
    """Lowers the choice of scale and zero point from a tensor's range, by ONNX's dynamic rule."""
    value, attrs = node.operands["x"], node.attrs
    storage = attrs["storage"]
    if (
        attrs["rule"] != DYNAMIC_SCALE_RULE
        or attrs["keep"]
        or attrs["symmetric"]
        or attrs["bounds"]
    ):
        raise CannotLower(f"no kernel chooses by {attrs['rule']!r} with these attributes")
    if storage not in (U8, I8) or value.type.element != F32 or len(node.operands) != 1:
        raise CannotLower("the kernel chooses 8 bits for f32")
    if attrs["scale_type"] != F32 or attrs["zero_type"] not in (None, storage):
        raise CannotLower("the kernel gives a float32 scale and a zero of the storage")
    # A range is that of any order of the elements.
    source = b.buffer(value, nhwc=b.is_nhwc(value))
    targets = [b.allocate(result) for result in node.results]
    assert isinstance(storage, DType)
    size, kind = math.prod(sizes(value)), STORAGES[storage]
    b.add(
        node.name,
        "choose",
        [source],
        targets,
        (),
        lambda plan, at: plan.choose(
            node.name, at(source), at(targets[0]), at(targets[1]), size=size, kind=kind
        ),
    )


def recode(b: ProgramBuilder, job: Job) -> None:
    """Lowers a reinterpretation: the same bits under another type."""
    value = job.operands["x"]
    quant = value.type.quant
    stored = (quant.storage if quant else value.type.dtype).carrier
    new_storage = job.result.type.quant.storage if job.result.type.quant else job.result.type.dtype
    if stored.itemsize != new_storage.carrier.itemsize or new_storage.bits != 8 * stored.itemsize:
        raise CannotLower("the kernels hold these integers in another width")
    nhwc = b.is_nhwc(value)
    b.set_buffer(job.result, b.buffer(value, nhwc=nhwc), nhwc=nhwc)


def matmul_integer(b: ProgramBuilder, job: Job) -> None:
    """Lowers a product of integers minus zero points, exactly: by int8 kernels, else as float64
    sums."""
    if dynamic.scaled_product(b, job):
        return
    shapes = [sizes(job.operands[slot]) for slot in ("a", "b")]
    # The reference refuses longer sums: see `qir.reference.dynamic`.
    # 2^19 is the reference's bound, too: up to there sums in float64 are exact.
    if min(map(len, shapes)) < 2 or shapes[0][-1] > 1 << 19:
        raise CannotLower("the kernel takes matrices and sums of up to 2^19 terms")
    left_matrices, right_matrices = (
        Matrices(_minus_zero(b, job, slot), shape, strides(shape))
        for slot, shape in zip(("a", "b"), shapes, strict=True)
    )
    multiply(
        b,
        job.name,
        left_matrices,
        right_matrices,
        b.allocate(job.result),
        sizes(job.result),
        to_whole=True,
    )


def _minus_zero(b: ProgramBuilder, job: Job, slot: str) -> Buffer:
    """Returns 8-bit integers minus their zero point, as float32."""
    value = job.operands[slot]
    kind = plain_elements.kind_of(value)
    if kind not in ("u8", "i8"):
        raise CannotLower(f"{slot} is {kind}, the kernel takes 8 bits")
    zero = job.operands.get(f"{slot}.zero")
    if zero is not None and (math.prod(sizes(zero)) != 1 or zero.type.dtype != value.type.dtype):
        raise CannotLower(f"{slot} has more than one zero")
    # Integers minus the zero point, times 1: exact in float32, as they have 8 bits.
    source, target = b.buffer(value), b.scratch(math.prod(sizes(value)) * 4)
    computed = {"scale_at": Buffer(4, data=_ONE)}
    if zero is not None:
        computed["zero_at"] = b.buffer(zero)
    shape = (1, 1, math.prod(sizes(value)))
    b.add(
        f"{job.name} {slot}",
        "decode",
        [source, *computed.values()],
        [target],
        sizes(value),
        lambda plan, at: plan.decode(
            job.name, at(source), at(target), shape=shape, kind=kind,
            **{slot: at(buffer) for slot, buffer in computed.items()},
        ),
    )  # fmt: skip
    return target


_ONE = np.ones(1, np.float32)


def conv_integer(b: ProgramBuilder, job: Job) -> None:
    """Lowers a convolution of integers minus zero points, exactly: by int8 kernels, else as float64
    sums."""
    if dynamic.scaled_convolution(b, job):
        return
    axes = job.operands["x"].type.rank - 2
    if not 1 <= axes <= 3 or math.prod(sizes(job.operands["w"])[1:]) > 1 << 19:
        raise CannotLower("the kernel takes one to three axes and sums of up to 2^19 terms")
    convolve(
        b,
        job.name,
        _minus_zero(b, job, "x"),
        _minus_zero(b, job, "w"),
        b.allocate(job.result),
        None,
        shape=sizes(job.operands["x"]),
        kernel=sizes(job.operands["w"])[2:],
        result=sizes(job.result),
        stride=job.int_tuple("stride") or (1,) * axes,
        pad=(job.int_tuple("pad") or (0,) * 2 * axes)[:axes],
        dilation=job.int_tuple("dilation") or (1,) * axes,
        groups=job.int_attr("groups"),
        to_whole=True,
    )


LOWERINGS = {
    "quantize": quantize,
    "dequantize": dequantize,
    "recode": recode,
    "matmul_integer": matmul_integer,
    "conv_integer": conv_integer,
}

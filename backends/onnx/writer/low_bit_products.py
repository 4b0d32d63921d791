"""Groups products with block-quantized low-bit weights as onnxruntime's MatMulNBits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qir.analysis.bodies import graphs_with_bodies
from qir.ir.dtype import F32, dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.lazy_arrays import ArrayData, LazyArray, add_offset, read_all, reshape
from qir.ir.lazy_arrays import transposed as transposed
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import MATRIX_PRODUCTS
from qir.ir.types import Array, Granularity, Param, QuantType, TensorType
from qir.ledger import Change, Ledger
from qir.passes.forms.open_groups import OpenGroups

from ..forms import kept_operators
from . import bnb4
from .writer import STEP

KERNEL = "onnx:com.microsoft.MatMulNBits"
_BITS = {"i2": 2, "u2": 2, "i4": 4, "u4": 4, "i8": 8, "u8": 8}
MIN_BLOCK, MAX_BLOCK = 16, 256
"""The kernel accepts blocks whose size is a power of two within these."""
_WRITTEN_AT_LEVEL_0 = (
    "written as MatMulNBits, whose values count from the middle, at accuracy level 0, so that data "
    "stay float; in quantize/dequantize form onnxruntime's optimizer computes it at level 4 and "
    "rounds them to 8 bits a block, unless session.qdq_matmulnbits_accuracy_level says otherwise"
)
_KERNEL_OPERATORS = ("MatMulNBits", "MatMulBnb4")
_LOOKUP_TABLE = "its type is a lookup table, which ONNX's DequantizeLinear does not have"
_KERNEL_FAILS = (
    "onnxruntime's MatMulNBits fails in each run, or at load, with weights of 8 bits that have "
    "float zero points or g_idx"
)


def open_failing_groups(graph: Graph, ledger: Ledger) -> None:
    """Opens groups whose kernel fails in each run, also those in bodies."""
    for each in graphs_with_bodies(graph):
        with kept_operators.keeping(each, lambda node: not _always_fails(node)):
            names = [n.name for n in each if _always_fails(n)]
            OpenGroups(KERNEL).run(each, ledger)
        for name in names:
            ledger.add(Change.EXACT, STEP, name, _KERNEL_FAILS)


def _always_fails(node: Node) -> bool:
    """Returns whether a node is a group of the kernel with weights that the kernel cannot
    unpack."""
    if node.op != "fused" or node.attrs.get("kernel") != KERNEL or "B" not in node.operands:
        return False
    quant = node.operands["B"].type.quant
    if quant is None or quant.storage.bits != 8:
        return False
    return quant.has_float_zero or (
        quant.granularity is not None and quant.granularity.by is not None
    )


def use_matmul_nbits(graph: Graph, ledger: Ledger, *, standard: bool) -> tuple[int, list[str]]:
    """Groups the products that the kernel computes; with `standard`, leaves them dequantized.

    Returns how many products have that form, and for each other product with low-bit weights why
    not.
    """
    unchanged: list[str] = []
    kernels = (KERNEL, bnb4.KERNEL)
    count = sum(1 for n in graph if n.op == "fused" and n.attrs["kernel"] in kernels)
    if not standard:  # what is kept has that form already
        count += sum(1 for n in graph if n.op == "foreign" and n.attrs["op"] in _KERNEL_OPERATORS)
    for node in list(graph):
        if node.op not in MATRIX_PRODUCTS:
            continue
        if table := bnb4.weights(node):
            packed = _LOOKUP_TABLE if standard else table
            if isinstance(packed, bnb4.Bnb4Weights):
                bnb4.group(graph, node, packed, ledger)
                count += 1
            else:
                _report_unchanged(node, packed, unchanged, ledger)
            continue
        slot = spec(node.op).traits.weight or ""
        weight = node.operands[slot]
        transposed = node.op == "linear" or node.attrs.get("trans_b") is True
        # A transposed constant is unwrapped: the kernel wants rows, so it is transposed once only.
        if weight.node.op == "transpose" and weight.node.attrs["perm"] == (1, 0):
            weight, transposed = weight.node.operands["x"], not transposed
        array = weight.node.operands["x"].constant if weight.node.op == "dequantize" else None
        if array is None or len(weight.node.operands) > 1:
            continue
        rows = (
            _low_bit_weights(array)
            if standard
            else _kernel_weights(array, node, by_rows=transposed)
        )
        if isinstance(rows, str):
            _report_unchanged(node, rows, unchanged, ledger)
            continue
        count += 1
        if not standard:
            _group(graph, node, rows, weight)
            ledger.add(Change.REGROUPED, STEP, node.name, _WRITTEN_AT_LEVEL_0)
    graph.prune()
    return count, unchanged


def _report_unchanged(node: Node, why: str, unchanged: list[str], ledger: Ledger) -> None:
    unchanged.append(f"{node.name} stays as it is: {why}")
    ledger.add(Change.EXACT, STEP, node.name, f"stays as it is: {why}")


def _low_bit_weights(array: Array) -> Array | str:
    """Returns weights whose type DequantizeLinear supports, or why they are no low-bit weights."""
    quant = array.type.quant
    assert quant is not None
    is_low_bit = quant.storage.name in _BITS and quant.kind == "uniform" and quant.plus is None
    return (
        array
        if is_low_bit
        else (f"quantized values of {quant.storage} with such parameters are not low-bit weights")
    )


def _kernel_weights(array: Array, node: Node, *, by_rows: bool) -> Array | str:
    """Returns the weights as rows of unsigned integers in blocks, or why the kernel does not
    fit."""
    quant, data = array.type.quant, array.contents
    assert quant is not None
    if node.attrs.get("trans_a") is True or node.attrs.get("alpha", 1.0) != 1.0:
        return "the kernel neither turns its left side nor multiplies"
    if node.operands.keys() & {"c", "bias"} and node.attrs.get("beta", 1.0) != 1.0:
        return "the kernel does not multiply its bias"
    bits = _BITS.get(quant.storage.name)
    is_float32_uniform = quant.kind == "uniform" and quant.plus is None and quant.express == F32
    if bits is None or not is_float32_uniform or data.ndim != 2 or quant.dynamic:
        return f"quantized values of {quant.storage} with such parameters do not fit the kernel"
    # `deep` is the axis of the sum.
    sum_axis = 1 if by_rows else 0
    if bits == 8 and quant.has_float_zero and not _has_integer_zeros(quant):
        return _KERNEL_FAILS
    size = _block_size(quant, sum_axis, data.shape[sum_axis])
    if size is None:
        reason = f"the kernel takes blocks of {MIN_BLOCK}, 32 ... {MAX_BLOCK} quantized values"
        return f"{reason} along the sum"
    # The kernel's storage is unsigned, so signed integers and zero points move by half the range.
    is_signed = quant.storage.name.startswith("i")
    offset = 1 << (bits - 1) if is_signed else 0
    storage = dtype(f"u{bits}")
    quantized = add_offset(data, offset, storage.carrier)
    rows = quantized if by_rows else transposed(quantized, (1, 0))
    scales = _per_kernel_block(quant.scale, quant.scales, quant, data.shape, sum_axis, size)
    zeros = _per_kernel_block(quant.zero, quant.zeros, quant, data.shape, sum_axis, size)
    if not by_rows:
        scales, zeros = transposed(scales, (1, 0)), transposed(zeros, (1, 0))
    scale = _shifted_array(scales, 0, np.dtype(np.float32), f"{array.name}.scales")
    # A float zero point is supported for less than 8 bits, in the scale's type.
    if quant.has_float_zero and bits != 8:
        zero = Array.of((read_all(zeros) + offset).astype(np.float32), f"{array.name}.zeros")
    else:
        zero = _shifted_array(zeros, offset, np.dtype(np.uint8), f"{array.name}.zeros")
    kind = QuantType(storage, F32, scale, zero, Granularity(((0, 1), (1, size))))
    return Array(rows, TensorType(rows.shape, kind), array.name)


def _has_integer_zeros(quant: QuantType) -> bool:
    """Returns whether zero points that are stored as floats are integers all the same."""
    zeros = np.asarray(quant.zeros(), np.float64)
    low, high = quant.storage.bounds
    return bool(((zeros == np.rint(zeros)) & (zeros >= low) & (zeros <= high)).all())


def _per_kernel_block(
    param: Param,
    values: Callable[[], NDArray[np.generic]],
    quant: QuantType,
    shape: tuple[int, ...],
    sum_axis: int,
    size: int,
) -> ArrayData:
    """Repeats parameters so that each row or column has one for each block of the kernel's size."""
    sizes = dict(quant.granularity.blocks) if quant.granularity else {}
    grid = tuple(-(-d // sizes[i]) if i in sizes else 1 for i, d in enumerate(shape))
    blocks = grid[sum_axis] if sum_axis in sizes else 1
    target = (shape[0], blocks) if sum_axis else (blocks, shape[1])
    kernel_blocks = -(-shape[sum_axis] // size)
    # Each block of the type is split into several blocks of the kernel with the same parameters.
    if blocks not in (1, kernel_blocks):  # some of the kernel's share one of these
        expanded = np.broadcast_to(np.asarray(values()).reshape(grid), target)
        return expanded.repeat(sizes[sum_axis] // size, sum_axis).take(
            range(kernel_blocks), sum_axis
        )
    target = (shape[0], kernel_blocks) if sum_axis else (kernel_blocks, shape[1])
    if (
        isinstance(param, Array)
        and param.type.quant is None
        and param.contents.size == target[0] * target[1]
    ):
        return reshape(param.contents, target)
    if param == ():
        return np.broadcast_to(np.zeros((), np.int64), target)
    return np.broadcast_to(np.asarray(values()).reshape(grid), target)


def _shifted_array(values: ArrayData, offset: int, kind: np.dtype[np.generic], name: str) -> Array:
    """Returns integers plus a constant, as an array of the given type."""
    if values.dtype.kind == "f" and kind.kind == "u":
        values = read_all(values).astype(np.int64)
    if values.dtype.kind in "iu":
        values = add_offset(values, offset, kind)
    elif values.dtype != kind:
        values = read_all(values).astype(kind)
    shifted = values if isinstance(values, LazyArray) else np.asarray(values, order="C")
    return Array(shifted, TensorType(shifted.shape, dtype_of(np.empty(0, kind))), name)


def _block_size(quant: QuantType, sum_axis: int, depth: int) -> int | None:
    """Returns the largest block size of the kernel in which the values of a row share a scale."""
    # One scale per row: the smallest power of two that covers it, within the kernel's limits.
    row_size = max(MIN_BLOCK, min(MAX_BLOCK, 1 << max(depth - 1, 0).bit_length()))
    if quant.granularity is None:
        return row_size
    blocks = dict(quant.granularity.blocks)
    if quant.granularity.by is not None or blocks.get(1 - sum_axis, 1) != 1:
        return None
    shared = blocks.get(sum_axis, row_size)
    if shared >= depth:
        return row_size
    # The largest power of two that divides the block.
    size = min(MAX_BLOCK, shared & -shared)
    return size if size >= MIN_BLOCK else None


def _group(graph: Graph, node: Node, rows: Array, weight: Value) -> None:
    quantized = weight.node.operands["x"]
    packed = graph.constant(rows, name=graph.fresh(f"{rows.name}.rows"), before=node)
    graph.set_lineage(packed, quantized.lineage)
    traits = spec(node.op).traits
    data, bias = node.operands[traits.data], node.operands.get(traits.bias or "")
    quant = rows.type.quant
    assert quant is not None
    assert quant.granularity is not None
    (count, depth), size = rows.contents.shape, quant.granularity.blocks[1][1]
    # The kernel adds a bias of rank 1; any other is added after it.
    fuses_bias = bias is not None and bias.type.rank == 1
    operands = {
        "A": data,
        "B": packed,
        **({"bias": bias} if bias is not None and fuses_bias else {}),
    }
    # The body says what the kernel computes: dequantize, transpose, multiply, add the bias.
    body = Graph("body", "")
    ins = {s: body.add("input", types=[v.type], name=s).result for s, v in operands.items()}
    dequantized = body.add("dequantize", {"x": ins["B"]}).result
    product_operands = {
        "a": ins["A"],
        "b": dequantized,
        **({"bias": ins["bias"]} if fuses_bias else {}),
    }
    product = body.add("matmul", product_operands, {"trans_b": True}).result
    body.add("output", {"output": product})
    kernel_attrs = (("K", depth), ("N", count), ("bits", quant.storage.bits), ("block_size", size))
    group = graph.add(
        "fused",
        operands,
        {
            "kernel": KERNEL,
            "slots": ((0, 1, 5) if fuses_bias else (0, 1), (0,)),
            "attrs": kernel_attrs,
        },
        types=[product.type],
        name=graph.fresh(f"{node.name}.nbits"),
        before=node,
        profile=node.profile,
        bodies={"body": body},
    )
    result = group.result
    if bias is not None and not fuses_bias:
        result = graph.add("add", {"a": result, "b": bias}, before=node).result
    graph.substitute(node, result)

"""Rules on integer products: weights that never change, sums of one scale, sums that fit."""

from __future__ import annotations

from collections.abc import Iterator

from qir.ir.quantized_ops import PLAIN_INTEGER_PRODUCTS
from qir.ir.verify.accumulators import (
    INT32,
    MATRICES,
    data_sum_axis,
    fits_int32_by_types,
    products,
    signed_bits,
    sliding_axes,
    sum_bounds,
    summed_axes,
)
from qir.ir.verify.rule import Fault, NodeContext
from qir.ir.verify.step import SLOTS, Product


def static_weights(context: NodeContext) -> Iterator[Fault]:
    """The weights of an integer product are constants, or computed from constants.

    Kernels pack weights once, and a proof about sums needs them. An input of a body that is always
    one constant outside counts as that constant. Batches of matrices with one scale may be
    computed: that is a product of two activations, as in attention.
    """
    for product in products(context):
        step, slot = product.step, SLOTS[product.step.spec.name][1]
        value = step.operands.get(slot)
        if product.weights is not None or (value is not None and context.look.static(value)):
            continue
        if (
            step.spec.name in MATRICES
            and len(step.call.shape("b")) > 2
            and not product.w.granularity
        ):
            continue
        source = f"%{value.name}" if value is not None else "what the stage before makes"
        message = f"the weights of {step.spec.name}, {step.prefix}{slot}, are computed: {source}"
        yield Fault(message, step.prefix + slot, value.name if value is not None else "")


def summed_axis(context: NodeContext) -> Iterator[Fault]:
    """The scales of a product's operands do not vary along a summed axis.

    If each index of a summed axis has a scale of its own, no integer accumulator can hold the sum.
    Blocks of several indices are a sum each.
    """
    for product in products(context):
        if product.why_type_unknown:
            continue
        weight_slot, data_slot = product.slots
        for slot, quant, axes in (
            (weight_slot, product.w, summed_axes(product)),
            (data_slot, product.x, (data_sum_axis(product), *sliding_axes(product))),
        ):
            if (
                quant.axis in axes
                and quant.axis is not None
                and _has_several(product, slot, quant.axis)
            ):
                message = (
                    f"{slot} has a scale for each index of axis {quant.axis}, which is summed up"
                )
                yield Fault(message, product.step.prefix + slot)


def _has_several(product: Product, slot: str, axis: int) -> bool:
    return product.step.call.shape(slot)[axis] != 1


def overflow(context: NodeContext) -> Iterator[Fault]:
    """No input makes the 32-bit sum of an integer product wrap.

    This is proved from the weights, zero points, bias and bounds: some input reaches the greatest
    sum. In QDQ form, operands wider than 8 bits are not checked: runtimes sum those as floats, or
    in 64 bits. `qir verify MODEL --overflow` shows the bits of every layer, and where 16-bit sums
    of pairs, as on CPUs without VNNI, can saturate.
    """
    for product in products(context):
        # The cheap proof first: most products of 8-bit types need no look at their weights.
        if fits_int32_by_types(product) or _sums_floats(product):
            continue
        bounds = sum_bounds(product)
        if isinstance(bounds, str):
            continue
        _, least, greatest, channel = bounds
        if INT32[0] <= least and greatest <= INT32[1]:
            continue
        step = product.step
        stage = f"{step.spec.name} in {step.prefix}: " if step.prefix else ""
        where = f" in channel {channel}" if product.weights is not None else ""
        size = signed_bits(least, greatest)
        message = f"{stage}sums come to {least}..{greatest}{where}: {size} bits, and 32 wrap"
        value = step.operands.get(product.slots[0])
        yield Fault(
            message, step.prefix + product.slots[0], value.name if value is not None else ""
        )


def _sums_floats(product: Product) -> bool:
    """Whether it sums float values, of quantized values that no runtime sums in 32 bits."""
    step = product.step
    if (
        step.spec.name in PLAIN_INTEGER_PRODUCTS
        or max(product.x.storage.bits, product.w.storage.bits) <= 8
    ):
        return False
    return all(step.call.types[slot].quant is None for slot in product.slots)

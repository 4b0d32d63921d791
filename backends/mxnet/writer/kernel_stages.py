"""The ops that one of MXNet's kernels computes, with their operands and padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import U8
from qir.ir.node import Node, Value
from qir.ir.types import Array, QuantType

from .weights import RANGE_DIVISORS, declared_range
from .writer import int_tuple


@dataclass(frozen=True)
class KernelStage:
    """One op of a kernel, with its operands from outside the kernel."""

    op: str
    attrs: Mapping[str, Attr]
    operands: Mapping[str, Value]
    transposed: bool = False
    """Whether the weights are columns."""


def fused_stages(node: Node) -> list[KernelStage]:
    """Returns the ops of a kernel in order; a single op is a kernel of one."""
    if not node.stages:
        return [_as_linear(KernelStage(node.op, node.attrs, node.operands))]
    stages = []
    for index, stage in enumerate(node.stages):
        names = zip(stage.slots, stage.group_slots(index), strict=True)
        stages.append(KernelStage(stage.op, stage.attrs, {s: node.operands[g] for s, g in names}))
    return [_as_linear(stages[0]), *stages[1:]]


def _as_linear(stage: KernelStage) -> KernelStage:
    """Returns a product of constant weights as the linear layer that it is."""
    attrs = stage.attrs
    # A transposed left operand has no FullyConnected form.
    if stage.op not in ("gemm", "matmul") or attrs["trans_a"] or "b" not in stage.operands:
        return stage
    if stage.op == "gemm" and (attrs["alpha"], attrs["beta"]) != (1.0, 1.0):
        return stage
    names = {"a": "x", "b": "w", "c": "bias", "bias": "bias"}
    operands = {names[slot]: value for slot, value in stage.operands.items() if slot in names}
    return KernelStage("linear", attrs, operands, transposed=not attrs["trans_b"])


def pads(stage: KernelStage) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the padding before and after, by axis."""
    pad = int_attr_tuple(stage, "pad")
    return pad[: len(pad) // 2], pad[len(pad) // 2 :]


def int_attr_tuple(stage: KernelStage, name: str) -> tuple[int, ...]:
    """Returns an attribute of several integers; none where the op has no such attribute."""
    return int_tuple(stage.attrs, name) if name in stage.attrs else ()


def range_of(kind: QuantType) -> tuple[float, float]:
    """Returns the range that a type declares, else the one from which MXNet computes its scale."""
    if (declared := declared_range(kind)) is not None:
        low, high = (np.asarray(_end_data(e)) for e in (declared.low, declared.high))
        return float(low.reshape(-1)[0]), float(high.reshape(-1)[0])
    scale, level = np.asarray(kind.scales(), np.float32), np.float32(RANGE_DIVISORS[kind.storage])
    maximum = np.float32(scale * level)
    # scale * level may round: try the float32 neighbours for one that gives the scale again.
    candidates = (
        maximum,
        np.nextafter(maximum, np.float32(0)),
        np.nextafter(maximum, np.float32(np.inf)),
    )
    maximum = next((r for r in candidates if np.float32(r / level) == scale), maximum)
    return (0.0 if kind.storage == U8 else -float(maximum)), float(maximum)


def _end_data(end: object) -> object:
    return end.data if isinstance(end, Array) else end

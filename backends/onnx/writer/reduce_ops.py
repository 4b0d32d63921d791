"""Writes reductions, ops along an axis, and normalizations."""

from __future__ import annotations

import numpy as np

from .operator_table import OperatorWriter, operator
from .shape_ops import int_list_operand, source_operand_names
from .writer import AttrValue, OnnxWriter, OpToWrite


def _reduce(onnx_op: str, axes_opset: int = 18) -> OperatorWriter:
    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        operands, axes = [ins["x"]], work.int_tuple("axes")
        attrs: dict[str, AttrValue] = {"keepdims": 1 if work.attrs["keep"] else 0}
        # ReduceSum takes axes as an operand since opset 13, the other reductions since 18.
        if axes and writer.opset < axes_opset:
            attrs["axes"] = axes
        elif axes:
            operands.append(int_list_operand(writer, work, "axes", onnx_op))
        writer.emit(onnx_op, operands, [work.out], attrs, origins=work.origins)

    return write


def _arg_extreme(onnx_op: str) -> OperatorWriter:
    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        attrs: dict[str, AttrValue] = {
            "axis": work.int_attr("axis"),
            "keepdims": 1 if work.attrs["keep"] else 0,
        }
        if work.attrs["last"]:
            attrs["select_last_index"] = 1
        writer.emit(onnx_op, [ins["x"]], [work.out], attrs, origins=work.origins)

    return write


def _cumulative(onnx_op: str) -> OperatorWriter:
    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        name = source_operand_names(work, onnx_op).get("axis")
        axis = writer.parameter(np.array(work.int_attr("axis"), np.int64), f"{work.out}_axis", name)
        attrs: dict[str, AttrValue] = {n: 1 for n in ("exclusive", "reverse") if work.attrs[n]}
        writer.emit(onnx_op, [ins["x"], axis], [work.out], attrs, origins=work.origins)

    return write


def _top_k(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    name = source_operand_names(work, "TopK").get("K")
    k = writer.parameter(np.array([work.int_attr("k")], np.int64), f"{work.out}_k", name)
    outs = [writer.name(value) for value in work.node.results]
    attrs: dict[str, AttrValue] = {"axis": work.int_attr("axis")}
    attrs |= {n: 0 for n in ("largest", "sorted") if not work.attrs[n]}
    writer.emit("TopK", [ins["x"], k], outs, attrs, origins=work.origins)


OPS: dict[str, OperatorWriter] = {
    "reduce_mean": _reduce("ReduceMean"),
    "reduce_sum": _reduce("ReduceSum", 13),
    "reduce_prod": _reduce("ReduceProd"),
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_l1": _reduce("ReduceL1"),
    "reduce_l2": _reduce("ReduceL2"),
    "reduce_log_sum": _reduce("ReduceLogSum"),
    "reduce_log_sum_exp": _reduce("ReduceLogSumExp"),
    "reduce_sum_square": _reduce("ReduceSumSquare"),
    "arg_max": _arg_extreme("ArgMax"),
    "arg_min": _arg_extreme("ArgMin"),
    "cumsum": _cumulative("CumSum"),
    "cumprod": _cumulative("CumProd"),
    "top_k": _top_k,
    "layer_norm": operator("LayerNormalization", axis="axis", epsilon="eps"),
    "rms_norm": operator("RMSNormalization", axis="axis", epsilon="eps"),
    "instance_norm": operator("InstanceNormalization", epsilon="eps"),
    "group_norm": operator("GroupNormalization", num_groups="groups", epsilon="eps"),
    "lp_normalize": operator("LpNormalization", axis="axis", p="p"),
    "lrn": operator("LRN", size="size", alpha="alpha", beta="beta", bias="bias"),
}

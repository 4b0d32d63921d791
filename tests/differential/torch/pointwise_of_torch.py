"""The kernels of oneDNN that inductor puts in an exported program, with what they do after sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Stage
from qir.ir.ops import spec
from qir.reference.interpreter import run
from tests.differential.torch.kernels import (
    Array,
    Held,
    Map,
    Product,
    element,
    engine,
    kind_of,
    taken,
    tensor,
)

_KINDS = {"u8": torch.uint8, "i8": torch.int8}


@dataclass(frozen=True)
class Tail:
    """An activation by torch's name and by ours."""

    name: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""
    op: str = ""
    attrs: Mapping[str, Attr] = field(default_factory=dict)


ACTIVATIONS = {
    "relu": Tail("relu", op="relu"),
    "relu6": Tail("hardtanh", (0.0, 6.0), op="clip", attrs={"min": 0.0, "max": 6.0}),
    "hard_swish": Tail("hardswish", op="hard_swish"),
    "silu": Tail("swish", (1.0,), op="silu"),
    "gelu": Tail("gelu", (), "none", op="gelu"),
    "gelu_tanh": Tail("gelu", (), "tanh", op="gelu", attrs={"approximate": "tanh"}),
    "leaky_relu": Tail("leaky_relu", (0.25,), op="leaky_relu", attrs={"alpha": 0.25}),
    "tanh": Tail("tanh", op="tanh"),
    "sigmoid": Tail("sigmoid", op="sigmoid"),
}


@dataclass(frozen=True, eq=False)
class Form:
    """A product with its summand, a tail by its name, and whether the result is real."""

    case: Product
    tail: str = ""
    real: bool = False


def made(forms: Sequence[Form]) -> list[Array]:
    """What the kernels make of each."""
    torch.set_num_threads(1)
    return [_made(form) for form in forms]


def _made(form: Form) -> Array:
    case, ops = form.case, torch.ops.onednn
    x_map, w_map = _map(case.x), _map(case.w)
    x, w = torch.from_numpy(case.x.data), torch.from_numpy(case.w.data)
    scales = torch.from_numpy(np.broadcast_to(w_map.scale, len(case.w.data)).copy())
    zeros = torch.zeros(len(case.w.data), dtype=torch.long)
    bias = None if case.bias is None else torch.from_numpy(case.bias)
    x_numbers = float(x_map.scale), int(x_map.zero)
    result_numbers: tuple[Any, ...] = (
        float(case.out.scale),
        int(case.out.zero),
        _KINDS[case.out.storage],
    )
    result_numbers = (1.0, 0, torch.float32) if form.real else result_numbers
    tail = ACTIVATIONS[form.tail] if form.tail else Tail("none")
    tail_arguments = (tail.name, list(tail.scalars), tail.algorithm)
    is_linear = case.op == "linear"
    geometry = ([case.stride] * 2, [case.pad] * 2, [case.dilation] * 2, case.groups)
    if case.summand is None:
        if is_linear:
            packed = ops.qlinear_prepack(w, None)
            result = ops.qlinear_pointwise(
                x, *x_numbers, packed, scales, zeros, bias, *result_numbers, *tail_arguments
            )
        else:
            packed = ops.qconv_prepack(w, scales, *x_numbers, *geometry, list(x.shape))
            result = ops.qconv_pointwise(
                x,
                *x_numbers,
                packed,
                scales,
                zeros,
                bias,
                *geometry,
                *result_numbers,
                *tail_arguments,
            )
        return taken(result)
    summand_map = case.summand.map
    summand = torch.from_numpy(case.summand.data.copy())
    summand_numbers = (float(summand_map.scale), int(summand_map.zero)) if summand_map else (1.0, 0)
    if is_linear:
        packed = ops.qlinear_prepack(w, None)
        combination = ("sum" if summand_map or not form.real else "add", 1.0)
        result = ops.qlinear_pointwise.binary(
            x,
            *x_numbers,
            packed,
            scales,
            zeros,
            summand,
            bias,
            *result_numbers,
            *summand_numbers,
            *combination,
            *tail_arguments,
        )
        return taken(result)
    packed = ops.qconv_prepack(w, scales, *x_numbers, *geometry, list(x.shape))
    summand = summand.contiguous(memory_format=torch.channels_last)
    result = ops.qconv2d_pointwise.binary(
        x,
        *x_numbers,
        packed,
        scales,
        zeros,
        summand,
        bias,
        *geometry,
        *result_numbers,
        *summand_numbers,
        "sum",
        1.0,
        *tail_arguments,
    )
    return taken(result)


def in_engine(forms: Sequence[Form]) -> list[Array]:
    """What engine onednn makes of a linear layer and a tail that only it has."""
    ops, results = torch.ops.quantized, []
    with engine("onednn"):
        for form in forms:
            case = form.case
            bias = None if case.bias is None else torch.from_numpy(case.bias)
            packed = ops.linear_prepack(tensor(case.w), bias)
            result_numbers = (float(case.out.scale), int(case.out.zero))
            tail_arguments = (0.25,) if form.tail == "leaky_relu" else ()
            kernel = getattr(ops, f"linear_{form.tail}")
            results.append(taken(kernel(tensor(case.x), packed, *result_numbers, *tail_arguments)))
    return results


def _map(operand: Held) -> Map:
    assert operand.map is not None
    return operand.map


def predicted(form: Form, profile: str) -> Array:
    """Returns what QIR computes for a form."""
    case, graph = form.case, Graph(profile=profile)
    by_slot = {"x": case.x, "w": case.w}
    if case.bias is not None:
        by_slot["bias"] = Held(case.bias)
    stages = [Stage(case.op, spec(case.op).complete_attrs(case.attrs), tuple(by_slot))]
    if case.summand is not None:
        by_slot["1.b"] = case.summand
        stages.append(Stage("add", {}, ("b",), "a"))
    if form.tail:
        tail = ACTIVATIONS[form.tail]
        stages.append(Stage(tail.op, spec(tail.op).complete_attrs(dict(tail.attrs)), (), "x"))
    operands = {
        slot: graph.add("input", types=[kind_of(h)], name=slot.replace("1.", "")).result
        for slot, h in by_slot.items()
    }
    float_graph = Graph(profile=profile)
    inputs = {
        slot: float_graph.add("input", types=[kind_of(h)], name=slot).result
        for slot, h in by_slot.items()
        if slot != "1.b"
    }
    float_values = {
        slot: float_graph.add("dequantize", {"x": v}).result if v.type.quant else v
        for slot, v in inputs.items()
    }
    kind = float_graph.add(case.op, float_values, dict(case.attrs)).result.type
    kind = kind if form.real else kind.with_element(element(case.out))
    if len(stages) > 1:
        node = graph.add_chain(stages, operands, kind)
    else:
        node = graph.add(case.op, operands, dict(case.attrs), types=[kind])
    graph.add("output", {"y": node.result})
    return run(graph, {slot.replace("1.", ""): h.data for slot, h in by_slot.items()})["y"]

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
from tests.differential.kernels_of_torch import (
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
    given = float(x_map.scale), int(x_map.zero)
    out: tuple[Any, ...] = (float(case.out.scale), int(case.out.zero), _KINDS[case.out.storage])
    out = (1.0, 0, torch.float32) if form.real else out
    tail = ACTIVATIONS[form.tail] if form.tail else Tail("none")
    after = (tail.name, list(tail.scalars), tail.algorithm)
    flat = case.op == "linear"
    sides = ([case.stride] * 2, [case.pad] * 2, [case.dilation] * 2, case.groups)
    if case.summand is None:
        if flat:
            packed = ops.qlinear_prepack(w, None)
            found = ops.qlinear_pointwise(x, *given, packed, scales, zeros, bias, *out, *after)
        else:
            packed = ops.qconv_prepack(w, scales, *given, *sides, list(x.shape))
            found = ops.qconv_pointwise(
                x, *given, packed, scales, zeros, bias, *sides, *out, *after
            )
        return taken(found)
    m = case.summand.map
    other = torch.from_numpy(case.summand.data.copy())
    theirs = (float(m.scale), int(m.zero)) if m else (1.0, 0)
    if flat:
        packed = ops.qlinear_prepack(w, None)
        how = ("sum" if m or not form.real else "add", 1.0)
        found = ops.qlinear_pointwise.binary(
            x, *given, packed, scales, zeros, other, bias, *out, *theirs, *how, *after
        )
        return taken(found)
    packed = ops.qconv_prepack(w, scales, *given, *sides, list(x.shape))
    other = other.contiguous(memory_format=torch.channels_last)
    found = ops.qconv2d_pointwise.binary(
        x, *given, packed, scales, zeros, other, bias, *sides, *out, *theirs, "sum", 1.0, *after
    )
    return taken(found)


def in_engine(forms: Sequence[Form]) -> list[Array]:
    """What engine onednn makes of a linear layer and a tail that only it has."""
    ops, found = torch.ops.quantized, []
    with engine("onednn"):
        for form in forms:
            case = form.case
            bias = None if case.bias is None else torch.from_numpy(case.bias)
            packed = ops.linear_prepack(tensor(case.w), bias)
            at = (float(case.out.scale), int(case.out.zero))
            more = (0.25,) if form.tail == "leaky_relu" else ()
            kernel = getattr(ops, f"linear_{form.tail}")
            found.append(taken(kernel(tensor(case.x), packed, *at, *more)))
    return found


def _map(held: Held) -> Map:
    assert held.map is not None
    return held.map


def predicted(form: Form, profile: str) -> Array:
    """What QIR computes for a form."""
    case, graph = form.case, Graph(profile=profile)
    held = {"x": case.x, "w": case.w}
    if case.bias is not None:
        held["bias"] = Held(case.bias)
    stages = [Stage(case.op, spec(case.op).complete_attrs(case.attrs), tuple(held))]
    if case.summand is not None:
        held["1.b"] = case.summand
        stages.append(Stage("add", {}, ("b",), "a"))
    if form.tail:
        tail = ACTIVATIONS[form.tail]
        stages.append(Stage(tail.op, spec(tail.op).complete_attrs(dict(tail.attrs)), (), "x"))
    operands = {
        slot: graph.add("input", types=[kind_of(h)], name=slot.replace("1.", "")).result
        for slot, h in held.items()
    }
    plain = Graph(profile=profile)
    given = {
        slot: plain.add("input", types=[kind_of(h)], name=slot).result
        for slot, h in held.items()
        if slot != "1.b"
    }
    reals = {
        slot: plain.add("dequantize", {"x": v}).result if v.type.quant else v
        for slot, v in given.items()
    }
    kind = plain.add(case.op, reals, dict(case.attrs)).result.type
    kind = kind if form.real else kind.with_element(element(case.out))
    if len(stages) > 1:
        node = graph.add_chain(stages, operands, kind)
    else:
        node = graph.add(case.op, operands, dict(case.attrs), types=[kind])
    graph.add("output", {"y": node.result})
    return run(graph, {slot.replace("1.", ""): h.data for slot, h in held.items()})["y"]

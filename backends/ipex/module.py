"""A graph as a module of PyTorch that quantizes where the extension fuses it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.open_groups import OpenGroups
from qir.rewrite import run_passes
from qir.target import target

from .edges import is_dynamic, only_read_by_layers

_WRITER = "pt2e"
"""The target whose float modules have `quantized_decomposed` between their operators."""
_DYNAMIC = "pytorch-x86"
"""The target whose dynamic layers the extension takes from torch as they are."""
_KINDS = {torch.uint8: torch.quint8, torch.int8: torch.qint8}
_BOUNDS = {torch.uint8: (0, 255), torch.int8: (-128, 127)}


def module(graph: Graph, ledger: Ledger, *, lossy: bool) -> nn.Module:
    """Returns a module for `torch.jit.trace` and `torch.jit.freeze` with the extension loaded.

    Its data go through `aten::quantize_per_tensor` and `aten::dequantize`, its weights are
    quantized tensors that are dequantized. Layers whose data are quantized while the model runs
    call `quantized::linear_dynamic`, as those of `ipex.quantization.convert` do. Refused for what
    PyTorch or the extension lacks.
    """
    if is_dynamic(graph):
        return _dynamic(graph, ledger, lossy=lossy)
    qdq = only_read_by_layers(
        run_passes(graph, [ExpandQdq(), OpenGroups(chains=True)], ledger), ledger
    )
    model: Any = target(_WRITER).build(qdq, ledger, format="fx", lossy=lossy)
    program = _program(model)
    # The calls of quantized_decomposed are on plain integers; IPEX fuses those on quantized
    # tensors.
    for node in list(program.graph.nodes):
        op = str(node.target).partition("quantized_decomposed.")[2]
        if op:
            with program.graph.inserting_before(node):
                node.replace_all_uses_with(_quantized_tensor_call(program, node, op))
            program.graph.erase_node(node)
    return _without_dead_code(model)


def _dynamic(graph: Graph, ledger: Ledger, *, lossy: bool) -> nn.Module:
    for node in graph:
        quant = node.result.type.quant if node.op == "quantize" else None
        if quant is not None and not quant.dynamic:
            reason = "is quantized by calibration, other data while the model runs"
            raise Refused(f"{node.name}: {reason}; IPEX converts a module for one of both")
    return _without_dead_code(target(_DYNAMIC).build(graph, ledger, format="fx", lossy=lossy))


def _program(made: Any) -> Any:
    """Returns the program of plain tensors, which may be within a module with nested arguments."""
    return next(part for part in made.modules() if isinstance(part, fx.GraphModule))


def _without_dead_code(made: Any) -> nn.Module:
    program = _program(made)
    program.graph.eliminate_dead_code()
    program.delete_all_unused_submodules()
    program.recompile()
    cleaned: nn.Module = made
    return cleaned


def _quantized_tensor_call(made: Any, node: fx.Node, op: str) -> fx.Node:
    """Returns the call on quantized tensors that stands for one on plain integers."""
    arguments: Any = node.args
    low, high, kind = arguments[-3:]
    data = arguments[0]
    if (low, high) != _BOUNDS.get(kind):
        raise Refused(f"{node.name}: IPEX has quint8 and qint8 and no integers {low}..{high}")
    graph: Any = made.graph
    if op.startswith("quantize_per_tensor"):
        quantize_arguments = (data, *node.args[1:3], _KINDS[kind])
        made_call: fx.Node = graph.call_function(torch.quantize_per_tensor, quantize_arguments)
        return made_call
    if data.op == "get_attr":
        _set_quantized_weight(made, data.target, node.args, kind)
    call: fx.Node = graph.call_method("dequantize", (data,))
    return call


def _set_quantized_weight(made: Any, name: str, arguments: Any, kind: torch.dtype) -> None:
    """Makes the integers of a weight a quantized tensor."""
    integers = getattr(made, name)
    if integers.is_quantized:
        return
    # Per tensor: data, scale, zero point, low, high and type; per channel an axis more.
    if len(arguments) == 6:
        weight = torch._make_per_tensor_quantized_tensor(
            integers.view(kind), arguments[1], arguments[2]
        )
    else:
        scales, zeros = (getattr(made, place.target) for place in arguments[1:3])
        weight = torch._make_per_channel_quantized_tensor(
            integers.view(kind), scales.double(), zeros.long(), arguments[3]
        )
    delattr(made, name)
    made.register_buffer(name, weight)

"""A module of eager mode: the user's own, with quantized submodules by the numbers of a graph.

torch.ao fuses, prepares and converts a copy of the module, so that its classes and the keys of its
state dict are those of `torch.ao.quantization.convert`. Scales, zero points, weights and biases are
the graph's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.nn.quantized import FloatFunctional
from torch.utils._pytree import tree_leaves

from qir.capability import Capability
from qir.errors import Refused, UsageError
from qir.ir.call_signature import CallSignature
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import LAYERS
from qir.ir.scheme import RESULT
from qir.ir.types import QuantType

from .writer import exported
from .writer.elements import array, fits, parameters, quantized, tensor

AO: Any = quantization
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_OTHERWISE = "formats torchscript and fx write it"


@dataclass
class ModuleTree:
    """What a graph says of modules, by their paths."""

    scales: dict[str, QuantType] = field(default_factory=dict)
    """The quantized type of the result."""
    inputs: list[QuantType] = field(default_factory=list)
    """Those of what the model is given."""
    weights: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=dict)
    """Quantized weights and bias."""
    rows: list[list[str]] = field(default_factory=list)
    """Modules that one kernel computes."""
    twice: set[str] = field(default_factory=set)
    """Modules that are called more than once, with other quantized types."""
    makers: dict[str, list[str]] = field(default_factory=dict)
    """By value with a scale of its own: the modules of which one has to give it."""


def converted(graph: Graph, module: object, table: Capability) -> nn.Module:
    """Returns a quantized copy of a module that a graph in QDQ form was read from.

    Raises UsageError for what is no such module, Refused for what eager mode cannot compute.
    """
    if not isinstance(module, nn.Module):
        said = "format eager converts the module that the graph was read from: qir.build(..., "
        raise UsageError(f'{graph.name}: {said}format="eager", module=m)')
    found = _found(graph, module, table)
    stubs = [path for path, part in module.named_modules() if isinstance(part, AO.QuantStub)]
    whole: nn.Module = copy.deepcopy(module).eval()
    if found.rows:
        whole = AO.fuse_modules(whole, found.rows)
    scales, prefix = dict(found.scales), ""
    if not stubs:
        whole, prefix, stubs = AO.QuantWrapper(whole), "module.", ["quant"]
        scales = {prefix + path: quant for path, quant in scales.items()}
    if len(found.inputs) != 1 or len(stubs) != 1 or (prefix and len(graph.inputs) != 1):
        said = f"{len(stubs)} QuantStubs for {len(found.inputs)} quantized inputs"
        raise Refused(f"{graph.name}: {said}: format eager takes one of each; {_OTHERWISE}")
    scales[stubs[0]] = found.inputs[0]
    whole.qconfig = AO.QConfig(AO.default_observer, AO.default_per_channel_weight_observer)
    prepared = AO.prepare(whole)
    _require_places(graph, prepared, found, prefix)
    made = _with_scales(graph, prepared, scales)
    for path, held in found.weights.items():
        layer: Any = made.get_submodule(prefix + path)
        layer.set_weight_bias(*held)
    return made


def _watched(prepared: nn.Module) -> list[str]:
    """Returns the modules whose results eager mode quantizes by a scale of their own."""
    return [p for p, m in prepared.named_modules() if hasattr(m, "activation_post_process")]


def _require_places(graph: Graph, prepared: nn.Module, found: ModuleTree, prefix: str) -> None:
    """Raises Refused for a value whose scale eager mode keeps nowhere."""
    known = {path.removeprefix(prefix) for path in _watched(prepared)}
    if called := sorted(known & found.twice):
        said = f"module {called[0]} is called twice with scales of its own"
        raise Refused(f"{graph.name}: {said}; {_OTHERWISE}")
    for value, paths in found.makers.items():
        if known.isdisjoint(paths):
            where = f"module {paths[0]} keeps no scale" if paths else "it is no module of its own"
            raise Refused(
                f"{graph.name}: {value} has a scale of its own, and in eager mode {where}: call it "
                f"by torch.ao.nn.quantized.FloatFunctional, where that has it; {_OTHERWISE}"
            )


def _with_scales(graph: Graph, prepared: nn.Module, scales: Mapping[str, QuantType]) -> nn.Module:
    """Converts a module by scales and zero points that no data have to be seen for."""
    watched = _watched(prepared)
    unknown = [p for p in watched if p not in scales]
    for path in watched:
        scale, zero = parameters(scales[path]) if path in scales else (1.0, 0)
        fixed = AO.FixedQParamsObserver(scale, zero, dtype=torch.quint8)
        prepared.get_submodule(path).activation_post_process = fixed
    idle = _never_called(prepared, unknown, examples(graph))
    made: nn.Module = AO.convert(prepared)
    for path in [path for path in unknown if path not in idle]:
        if any(hasattr(made.get_submodule(path), name) for name in ("scale", "output_scale")):
            said = "is float in the graph, and eager mode would quantize it"
            raise Refused(f"{graph.name}: module {path} {said}; {_OTHERWISE}")
    return made


def _never_called(
    prepared: nn.Module, paths: Sequence[str], inputs: Sequence[torch.Tensor]
) -> set[str]:
    """Returns those of some modules that a model has and never calls, such as unused sums."""
    idle = set(paths)
    hooks = []
    for path in paths:
        observer: Any = prepared.get_submodule(path).activation_post_process

        def seen(*_: object, path: str = path) -> None:
            idle.discard(path)

        hooks.append(observer.register_forward_hook(seen))
    if hooks:
        with torch.no_grad():
            prepared(*inputs)
    for hook in hooks:
        hook.remove()
    return idle


def examples(graph: Graph) -> list[torch.Tensor]:
    """Returns inputs that a graph takes, for a run."""
    drawn = torch.Generator().manual_seed(0)
    found = []
    for value in graph.inputs:
        zeros = exported.example(value.type, {})
        real = torch.rand(zeros.shape, generator=drawn) * 4 - 2
        found.append(real.to(zeros.dtype) if zeros.is_floating_point() else zeros)
    return found


def require_same(
    graph: Graph, module: nn.Module, inputs: Sequence[torch.Tensor], wanted: Sequence[object]
) -> None:
    """Raises Refused unless a module gives the bytes that the graph's kernels give."""
    try:
        with torch.no_grad():
            args, kwargs = CallSignature.of(graph).arguments(inputs)
            made = module(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "it fails")
        raise Refused(
            f"{graph.name}: eager mode cannot run it: {said[:160]}; {_OTHERWISE}"
        ) from error
    flat: list[torch.Tensor] = tree_leaves(made)
    pairs = zip(map(array, flat), map(np.asarray, wanted), strict=False)
    if len(flat) != len(wanted) or not all(np.array_equal(a, b) for a, b in pairs):
        raise Refused(f"{graph.name}: eager mode computes something else; {_OTHERWISE}")


# -- what the graph says --------------------------------------------------------------------------


def _found(graph: Graph, module: nn.Module, table: Capability) -> ModuleTree:
    found = ModuleTree()
    for node in graph:
        if node.op in LAYERS and node.operands["x"].node.op == "dequantize":
            _layer(graph, node, module, found)
    for node in graph:
        if node.op == "choose_qparams":
            raise Refused(f"{graph.name}: {node.name} chooses scales at run time; {_OTHERWISE}")
        if node.op == "quantize" and node.operands["x"].constant is None:
            _scale(graph, node, module, found, table)
    return found


def _scale(
    graph: Graph, node: Node, module: nn.Module, found: ModuleTree, table: Capability
) -> None:
    """Notes the type of a quantized value for the module that makes it.

    A relu keeps the scale, so what is before it gets the same: zero is its least integer.
    """
    value, quant = node.operands["x"], node.result.type.quant
    if quant is None or not fits(quant) or quant.axis is not None:
        raise Refused(f"{graph.name}: eager mode has no quantized tensor of type {quant}")
    if value.node.op == "input":
        found.inputs.append(quant)
        return
    paths = [path for path in map(_path, _makers(value)) if path]
    paths = [path for path in paths if _is_part(module.get_submodule(path))]
    for path in paths:
        if not found.scales.setdefault(path, quant).has_same_mapping(quant):
            found.twice.add(path)
    if not _keeps(value.node, quant) and not _is_fixed(value.node, table):
        found.makers[f"{value.node.name} ({value.node.op})"] = paths


def _is_part(module: nn.Module) -> bool:
    """Returns whether eager mode quantizes the result of a module as that of one kernel."""
    return isinstance(module, FloatFunctional) or not list(module.children())


def _makers(value: Value) -> Iterator[Node]:
    """Yields what makes a value, through relus that one kernel computes with it."""
    node = value.node
    yield node
    while node.op == "relu" and len(node.operands["x"].uses) == 1:
        node = node.operands["x"].node
        if node.op in ("dequantize", "input"):
            return
        yield node


def _keeps(node: Node, quant: QuantType) -> bool:
    """Returns whether a result has the scale and zero point of the data, as eager mode keeps it."""
    data = next(iter(node.operands.values())).node
    held = data.operands["x"].type.quant if data.op == "dequantize" else None
    return held is not None and held.has_same_mapping(quant)


def _is_fixed(node: Node, table: Capability) -> bool:
    """Returns whether the kernel of an op gives one scale, whatever it reads."""
    row = table.ops.get(node.op)
    return row is not None and any(s.scale is not None for s in row.slots.get(RESULT, ()))


def _path(node: Node) -> str:
    return node.origins[0].path if node.origins else ""


def _layer(graph: Graph, node: Node, module: nn.Module, found: ModuleTree) -> None:
    """Notes weights and bias of a layer, and the modules that are fused into it."""
    path, held = _path(node), node.operands["w"].node
    codes = held.operands["x"] if held.op == "dequantize" else node.operands["w"]
    if not path or not isinstance(module.get_submodule(path), _LAYERS):
        said = f"{node.name} ({node.op}) is called in forward and is no module of its own"
        raise Refused(f"{graph.name}: {said}; {_OTHERWISE}")
    array, quant, bias = codes.constant, codes.type.quant, node.operands.get("bias")
    if array is None or quant is None or not fits(quant):
        raise Refused(f"{graph.name}: {node.name} has float weights; {_OTHERWISE}")
    data = bias.constant if bias is not None else None
    weight = quantized(tensor(array.data), quant)
    found.weights[path] = weight, None if data is None else tensor(data.data)
    paths = dict.fromkeys(origin.path for origin in node.origins if origin.path)
    row = [p for p in paths if p == path or isinstance(module.get_submodule(p), _NORMS)]
    use = node.result.only_use
    if use is not None and use.node.op == "relu":
        after = _path(use.node)
        calls = sum(_path(each) == after for each in graph)  # fusing leaves an identity there
        if after and calls == 1 and isinstance(module.get_submodule(after), nn.ReLU):
            row.append(after)
    if len(row) > 1:
        found.rows.append(row)

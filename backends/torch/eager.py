"""Builds quantized modules of eager mode: a copy of the user's module, with the graph's parameters.

torch.ao fuses, prepares and converts the copy, so that classes and state-dict keys are those of
`torch.ao.quantization.convert`. Scales, zero points, weights and biases are the graph's.
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
_ALTERNATIVE = "formats torchscript and fx write it"


@dataclass
class ModuleParameters:
    """What a graph determines of a module's submodules, by their paths."""

    scales: dict[str, QuantType] = field(default_factory=dict)
    """The quantized type of a submodule's result."""
    inputs: list[QuantType] = field(default_factory=list)
    """The quantized types of the model's inputs."""
    weights: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=dict)
    """Quantized weights and bias of a layer."""
    fused: list[list[str]] = field(default_factory=list)
    """Submodules that one kernel computes."""
    conflicting: set[str] = field(default_factory=set)
    """Submodules that are called more than once, with different quantized types."""
    producers: dict[str, list[str]] = field(default_factory=dict)
    """For each value with a scale of its own: the submodules of which one must hold that scale."""


def quantized_copy(graph: Graph, module: object, table: Capability) -> nn.Module:
    """Returns a quantized copy of the module that a graph in QDQ form was read from.

    Raises UsageError for anything else than a module, Refused for what eager mode cannot compute.
    """
    if not isinstance(module, nn.Module):
        reason = "format eager converts the module that the graph was read from: qir.build(..., "
        raise UsageError(f'{graph.name}: {reason}format="eager", module=m)')
    parameters_of = _module_tree(graph, module, table)
    stubs = [path for path, part in module.named_modules() if isinstance(part, AO.QuantStub)]
    wrapped: nn.Module = copy.deepcopy(module).eval()
    if parameters_of.fused:
        wrapped = AO.fuse_modules(wrapped, parameters_of.fused)
    scales, prefix = dict(parameters_of.scales), ""
    # A module without stubs gets both by a wrapper, which adds a prefix to all paths.
    if not stubs:
        wrapped, prefix, stubs = AO.QuantWrapper(wrapped), "module.", ["quant"]
        scales = {prefix + path: quant for path, quant in scales.items()}
    if len(parameters_of.inputs) != 1 or len(stubs) != 1 or (prefix and len(graph.inputs) != 1):
        reason = f"{len(stubs)} QuantStubs for {len(parameters_of.inputs)} quantized inputs"
        raise Refused(f"{graph.name}: {reason}: format eager takes one of each; {_ALTERNATIVE}")
    scales[stubs[0]] = parameters_of.inputs[0]
    wrapped.qconfig = AO.QConfig(AO.default_observer, AO.default_per_channel_weight_observer)
    prepared = AO.prepare(wrapped)
    _require_scale_holders(graph, prepared, parameters_of, prefix)
    converted = _convert_with_scales(graph, prepared, scales)
    # convert quantizes the float weights of the copy; the graph's replace them.
    for path, weight_and_bias in parameters_of.weights.items():
        layer: Any = converted.get_submodule(prefix + path)
        layer.set_weight_bias(*weight_and_bias)
    return converted


def _observed_modules(prepared: nn.Module) -> list[str]:
    """Returns the submodules whose results eager mode quantizes by a scale of their own."""
    return [p for p, m in prepared.named_modules() if hasattr(m, "activation_post_process")]


def _require_scale_holders(
    graph: Graph, prepared: nn.Module, module_parameters: ModuleParameters, prefix: str
) -> None:
    """Raises Refused for a value whose scale no submodule would hold."""
    observed = {path.removeprefix(prefix) for path in _observed_modules(prepared)}
    if conflicts := sorted(observed & module_parameters.conflicting):
        reason = f"module {conflicts[0]} is called twice with scales of its own"
        raise Refused(f"{graph.name}: {reason}; {_ALTERNATIVE}")
    for value, paths in module_parameters.producers.items():
        if observed.isdisjoint(paths):
            where = f"module {paths[0]} keeps no scale" if paths else "it is no module of its own"
            raise Refused(
                f"{graph.name}: {value} has a scale of its own, and in eager mode {where}: call it "
                f"by torch.ao.nn.quantized.FloatFunctional, where that has it; {_ALTERNATIVE}"
            )


def _convert_with_scales(
    graph: Graph, prepared: nn.Module, scales: Mapping[str, QuantType]
) -> nn.Module:
    """Converts a module by known scales and zero points, without a calibration run."""
    observed = _observed_modules(prepared)
    unknown = [p for p in observed if p not in scales]
    for path in observed:
        scale, zero = parameters(scales[path]) if path in scales else (1.0, 0)
        # `convert` takes scale and zero point from the observer, so that no data have to pass it.
        observer = AO.FixedQParamsObserver(scale, zero, dtype=torch.quint8)
        prepared.get_submodule(path).activation_post_process = observer
    # Modules that are never called, such as unused FloatFunctionals, need no scale.
    uncalled = _uncalled_modules(prepared, unknown, example_inputs(graph))
    converted: nn.Module = AO.convert(prepared)
    for path in [path for path in unknown if path not in uncalled]:
        if any(hasattr(converted.get_submodule(path), name) for name in ("scale", "output_scale")):
            reason = "is float in the graph, and eager mode would quantize it"
            raise Refused(f"{graph.name}: module {path} {reason}; {_ALTERNATIVE}")
    return converted


def _uncalled_modules(
    prepared: nn.Module, paths: Sequence[str], inputs: Sequence[torch.Tensor]
) -> set[str]:
    """Returns those of some submodules that the model never calls, such as unused sums."""
    uncalled = set(paths)
    hooks = []
    for path in paths:
        observer: Any = prepared.get_submodule(path).activation_post_process

        def mark_called(*_: object, path: str = path) -> None:
            uncalled.discard(path)

        hooks.append(observer.register_forward_hook(mark_called))
    if hooks:
        with torch.no_grad():
            prepared(*inputs)
    for hook in hooks:
        hook.remove()
    return uncalled


def example_inputs(graph: Graph) -> list[torch.Tensor]:
    """Returns random inputs that a graph accepts."""
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for value in graph.inputs:
        example = exported.example(value.type, {})
        values = torch.rand(example.shape, generator=generator) * 4 - 2
        tensors.append(values.to(example.dtype) if example.is_floating_point() else example)
    return tensors


def require_same_results(
    graph: Graph, module: nn.Module, inputs: Sequence[torch.Tensor], expected: Sequence[object]
) -> None:
    """Raises Refused unless a module gives the same bytes as the graph's kernels."""
    try:
        with torch.no_grad():
            args, kwargs = CallSignature.of(graph).arguments(inputs)
            outputs = module(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        message = next((line for line in str(error).splitlines() if line.strip()), "it fails")
        raise Refused(
            f"{graph.name}: eager mode cannot run it: {message[:160]}; {_ALTERNATIVE}"
        ) from error
    results: list[torch.Tensor] = tree_leaves(outputs)
    pairs = zip(map(array, results), map(np.asarray, expected), strict=False)
    if len(results) != len(expected) or not all(np.array_equal(a, b) for a, b in pairs):
        raise Refused(f"{graph.name}: eager mode computes something else; {_ALTERNATIVE}")


# -- parameters of the graph ----------------------------------------------------------------------


def _module_tree(graph: Graph, module: nn.Module, table: Capability) -> ModuleParameters:
    """Returns the parameters of a graph, by the submodules they belong to."""
    module_parameters = ModuleParameters()
    for node in graph:
        if node.op in LAYERS and node.operands["x"].node.op == "dequantize":
            _record_layer(graph, node, module, module_parameters)
    for node in graph:
        if node.op == "choose_qparams":
            raise Refused(f"{graph.name}: {node.name} chooses scales at run time; {_ALTERNATIVE}")
        if node.op == "quantize" and node.operands["x"].constant is None:
            _record_scale(graph, node, module, module_parameters, table)
    return module_parameters


def _record_scale(
    graph: Graph,
    node: Node,
    module: nn.Module,
    module_parameters: ModuleParameters,
    table: Capability,
) -> None:
    """Records the type of a quantized value for the submodule that computes it.

    A relu keeps the scale, so the module before it gets the same one: its least integer means zero.
    """
    value, quant = node.operands["x"], node.result.type.quant
    if quant is None or not fits(quant) or quant.axis is not None:
        raise Refused(f"{graph.name}: eager mode has no quantized tensor of type {quant}")
    if value.node.op == "input":
        module_parameters.inputs.append(quant)
        return
    # A result belongs to the module that computes it, or to the one before a fused relu.
    paths = [path for path in map(_module_path, _producers(value)) if path]
    paths = [path for path in paths if _is_quantized_as_one(module.get_submodule(path))]
    for path in paths:
        if not module_parameters.scales.setdefault(path, quant).has_same_mapping(quant):
            module_parameters.conflicting.add(path)
    if not _keeps_scale(value.node, quant) and not _has_fixed_scale(value.node, table):
        module_parameters.producers[f"{value.node.name} ({value.node.op})"] = paths


def _is_quantized_as_one(module: nn.Module) -> bool:
    """Returns whether eager mode quantizes a submodule's result as that of one kernel."""
    return isinstance(module, FloatFunctional) or not list(module.children())


def _producers(value: Value) -> Iterator[Node]:
    """Yields the producer of a value, and that before a relu that is fused to it."""
    node = value.node
    yield node
    while node.op == "relu" and len(node.operands["x"].uses) == 1:
        node = node.operands["x"].node
        if node.op in ("dequantize", "input"):
            return
        yield node


def _keeps_scale(node: Node, quant: QuantType) -> bool:
    """Returns whether a result has the scale and zero point of the data, as eager mode keeps
    them."""
    data = next(iter(node.operands.values())).node
    data_type = data.operands["x"].type.quant if data.op == "dequantize" else None
    return data_type is not None and data_type.has_same_mapping(quant)


def _has_fixed_scale(node: Node, table: Capability) -> bool:
    """Returns whether the kernel of an op gives one scale, whatever it reads."""
    entry = table.ops.get(node.op)
    return entry is not None and any(s.scale is not None for s in entry.slots.get(RESULT, ()))


def _module_path(node: Node) -> str:
    return node.origins[0].path if node.origins else ""


def _record_layer(
    graph: Graph, node: Node, module: nn.Module, module_parameters: ModuleParameters
) -> None:
    """Records weights and bias of a layer, and the submodules that are fused to it."""
    path, weight_node = _module_path(node), node.operands["w"].node
    quantized_weight = (
        weight_node.operands["x"] if weight_node.op == "dequantize" else node.operands["w"]
    )
    if not path or not isinstance(module.get_submodule(path), _LAYERS):
        reason = f"{node.name} ({node.op}) is called in forward and is no module of its own"
        raise Refused(f"{graph.name}: {reason}; {_ALTERNATIVE}")
    array, quant, bias = (
        quantized_weight.constant,
        quantized_weight.type.quant,
        node.operands.get("bias"),
    )
    if array is None or quant is None or not fits(quant):
        raise Refused(f"{graph.name}: {node.name} has float weights; {_ALTERNATIVE}")
    data = bias.constant if bias is not None else None
    weight = quantized(tensor(array.data), quant)
    module_parameters.weights[path] = weight, None if data is None else tensor(data.data)
    paths = dict.fromkeys(origin.path for origin in node.origins if origin.path)
    fused = [p for p in paths if p == path or isinstance(module.get_submodule(p), _NORMS)]
    use = node.result.only_use
    if use is not None and use.node.op == "relu":
        relu_path = _module_path(use.node)
        # Fusing replaces the relu by an identity, which would be wrong for its other calls.
        calls = sum(
            _module_path(each) == relu_path for each in graph
        )  # fusing leaves an identity there
        if relu_path and calls == 1 and isinstance(module.get_submodule(relu_path), nn.ReLU):
            fused.append(relu_path)
    if len(fused) > 1:
        module_parameters.fused.append(fused)

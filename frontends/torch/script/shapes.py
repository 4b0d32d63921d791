"""Example inputs for TorchScript: from the types that a file of QIR states, else from its layers.

TorchScript states no shapes. A convolution's weights give rank and channels of its data; other
sizes are open, and several image sizes are tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qir.errors import InputError, QirError, ShapesNeeded
from qir.ir.text import parse_type

from ..elements import torch_dtype

_SHAPE_KEEPING = frozenset(
    f"aten::{name}"
    for name in (
        "quantize_per_tensor dequantize relu relu_ contiguous to detach clone mul add sub div"
        " dropout hardtanh float quantize_per_tensor_dynamic pad constant_pad_nd reflection_pad2d"
        " replication_pad2d max_pool2d avg_pool2d upsample_bilinear2d upsample_nearest2d"
    ).split()
)
"""Operators whose result has the rank and channels of their first operand."""
_IMAGE_SIZES = (224, 64, 32, 28, 96, 128, 256, 299)
"""Heights and widths to try, in order."""
_BATCH, _LENGTH = 2, 16
HOW_TO_GIVE_SHAPES = "--shape n,3,224,224, --data, or qir.load(..., inputs=[('n', 3, 224, 224)])"
"""The remedy in errors about unknown shapes."""


@dataclass(frozen=True)
class Example:
    """An example input."""

    tensor: torch.Tensor
    open_axes: frozenset[int] = frozenset()
    """Axes whose sizes are symbolic."""


def stated_examples(text: str, name: str) -> list[Example]:
    """Returns examples for the types that `qir.json` of a file states."""
    try:
        types = [parse_type(stated_type) for stated_type in json.loads(text)["inputs"].values()]
        return [
            example_of_shape(stated_type.shape, torch_dtype(stated_type.dtype))
            for stated_type in types
        ]
    except (ValueError, TypeError, LookupError, AttributeError, QirError) as error:
        raise InputError(f"{name}: its inputs are not stated as types: {error}") from error


def example_of_shape(shape: Sequence[object], dtype: torch.dtype = torch.float32) -> Example:
    """Returns an example for a shape; axes without an integer are open."""
    sizes = [
        size if isinstance(size, int) else _IMAGE_SIZES[1] if axis else _BATCH
        for axis, size in enumerate(shape)
    ]
    open_axes = frozenset(axis for axis, size in enumerate(shape) if not isinstance(size, int))
    return Example(torch.zeros(sizes, dtype=dtype), open_axes)


def guessed_examples(module: torch.jit.ScriptModule, name: str) -> Iterator[list[Example]]:
    """Yields possible inputs of a module, as its first layers require.

    Raises ShapesNeeded if no layer determines the shape of an input.
    """
    if not hasattr(module, "forward"):
        raise InputError(f"{name}: has no method forward; wrap it in a module that has one")
    graph: Any = module.forward.graph.copy()  # type: ignore[attr-defined]
    torch._C._jit_pass_inline(graph)
    owner, *values = graph.inputs()
    values = values[: len(values) - len(stated_defaults(module))]
    search = _LayerSearch(module, owner, _branch_results(graph))
    layers = [search.find_layer(value) for value in values]
    for value, layer in zip(values, layers, strict=True):
        if layer is None:
            raise ShapesNeeded(
                f"{name}: does not say the shape of {value.debugName().partition('.')[0]};"
                f" give it: {HOW_TO_GIVE_SHAPES}"
            )
    # Layers after a flatten fix the image size, so common sizes are tried until one fits.
    for side in _IMAGE_SIZES:
        yield [_example_for_layer(*layer, side) for layer in layers if layer is not None]


def stated_defaults(module: torch.jit.ScriptModule) -> list[Any]:
    """Returns the values of the arguments at the end of `forward` that have a default."""
    arguments = module.forward.schema.arguments  # type: ignore[attr-defined]
    return [a.default_value for a in arguments if a.has_default_value()]


def _example_for_layer(kind: str, rank: int, channels: int, side: int) -> Example:
    """Returns data for a layer; all sizes but the channels are open."""
    if kind == "embedding":
        return Example(torch.zeros(_BATCH, _LENGTH, dtype=torch.int64), frozenset((0, 1)))
    if kind == "linear":
        return Example(torch.zeros(_BATCH, channels), frozenset((0,)))
    if kind == "recurrent":
        return Example(torch.zeros(_LENGTH, _BATCH, channels), frozenset((0, 1)))
    sizes = (_BATCH, channels, *[side] * (rank - 2))
    return Example(torch.zeros(sizes), frozenset(range(rank)) - {1})


def _branch_results(block: Any) -> dict[int, list[Any]]:
    """Returns the results of `prim::If` nodes, by the values that their blocks return."""
    results_by_block_result: dict[int, list[Any]] = {}
    for node in block.nodes():
        for inner in node.blocks():
            for unique, values in _branch_results(inner).items():
                results_by_block_result.setdefault(unique, []).extend(values)
            if node.kind() == "prim::If":
                for value, result in zip(inner.outputs(), node.outputs(), strict=True):
                    results_by_block_result.setdefault(value.unique(), []).append(result)
    return results_by_block_result


@dataclass(frozen=True)
class _LayerSearch:
    """Finds the first layer that consumes a value."""

    module: Any
    owner: Any
    branch_results: Mapping[int, list[Any]]

    def find_layer(self, value: Any) -> tuple[str, int, int] | None:
        """Returns (kind, rank of its data, channels) of the first layer that consumes a value."""
        for use in value.uses():
            node = use.user
            kind = node.kind()
            keeps_shape = kind in _SHAPE_KEEPING and use.offset == 0
            layer = (
                self.find_layer(node.output()) if keeps_shape else self._layer_of_node(node, kind)
            )
            if layer:
                return layer
        # The result of a branch is consumed where the `prim::If` node's result is.
        layers_after = (
            self.find_layer(result) for result in self.branch_results.get(value.unique(), ())
        )
        return next((layer for layer in layers_after if layer), None)

    def _layer_of_node(self, node: Any, kind: str) -> tuple[str, int, int] | None:
        inputs = list(node.inputs())
        base = kind.partition("::")[2]
        if kind.startswith("quantized::conv") or kind.startswith("quantized::linear"):
            packed = next(
                (
                    attribute
                    for v in inputs[1:3]
                    if (attribute := self._attribute_of(v)) is not None
                ),
                None,
            )
            if packed is None:
                return None
            if base.startswith("linear"):
                weight = torch.ops.quantized.linear_unpack(packed)[0]
                return "linear", 2, int(weight.shape[1])
            axes = int(next(c for c in base if c.isdigit()))
            stem = f"conv{'_transpose' if 'transpose' in base else ''}{axes}d"
            weight = getattr(torch.ops.quantized, f"{stem}_unpack")(packed)[0]
            groups = int(getattr(torch.ops.quantized, f"{stem.replace('1d', '2d')}_groups")(packed))
            # Weights are [out, in / groups, ...], and [in, out / groups, ...] of transposed
            # convolutions.
            channels = weight.shape[0] if "transpose" in base else weight.shape[1] * groups
            return "conv", axes + 2, int(channels)
        if base in ("_convolution", "convolution", "conv1d", "conv2d", "conv3d"):
            weight = self._attribute_of(inputs[1])
            groups = inputs[8 if base in ("_convolution", "convolution") else 6].toIValue()
            if isinstance(weight, torch.Tensor) and isinstance(groups, int):
                return "conv", weight.dim(), int(weight.shape[1]) * groups
        if base == "linear":
            weight = self._attribute_of(inputs[1])
            if isinstance(weight, torch.Tensor):
                return "linear", 2, int(weight.shape[1])
        if base == "embedding":
            return "embedding", 2, 0
        return None

    def _attribute_of(self, value: Any) -> Any:
        """Returns the module attribute that a value is; None for a computed value."""
        names: list[str] = []
        while value.unique() != self.owner.unique():
            node = value.node()
            if node.kind() == "prim::Constant" and not names:  # frozen modules have constants
                return value.toIValue()
            if node.kind() != "prim::GetAttr":
                return None
            names.append(node.s("name"))
            value = next(iter(node.inputs()))
        module = self.module
        for name in reversed(names):
            module = getattr(module, name)
        return module

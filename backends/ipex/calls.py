"""The calls of a module that the extension quantizes, in the order in which it traces them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from qir.errors import Refused
from qir.ir.dims import known_shape
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.quantized_ops import STRUCTURAL_OPS
from qir.ir.types import QuantType

LAYERS: Mapping[str, str] = MappingProxyType(
    {
        f"torch.nn.modules.{module}.{name}": f"<class 'torch.nn.modules.{module}.{name}'>"
        for module, names in {
            "activation": ("ReLU",),
            "conv": ("Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d"),
            "flatten": ("Flatten",),
            "linear": ("Linear",),
            "pooling": (
                "MaxPool2d",
                "MaxPool3d",
                "AvgPool2d",
                "AvgPool3d",
                "AdaptiveAvgPool2d",
                "AdaptiveAvgPool3d",
            ),
            "rnn": ("LSTM",),
            "sparse": ("EmbeddingBag",),
        }.items()
        for name in names
    }
)
"""Layers of torch.nn that recipes number (`module_types_supported_by_quantization`), and how they
name them."""
_TYPE, _METHODS = (
    "<built-in method {} of type object>",
    "<method '{}' of 'torch._C.TensorBase' objects>",
)
FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "aten.add.Tensor": _METHODS.format("add"),
        "aten.add_.Tensor": _METHODS.format("add"),
        "aten.flatten.using_ints": _TYPE.format("flatten"),
        "aten.relu.default": _TYPE.format("relu"),
        "aten.matmul.default": _TYPE.format("matmul"),
        "aten.bmm.default": _TYPE.format("bmm"),
        "aten.conv2d.default": _TYPE.format("conv2d"),
        "aten.conv3d.default": _TYPE.format("conv3d"),
        "aten.conv_transpose2d.input": _TYPE.format("conv_transpose2d"),
        "aten.conv_transpose3d.input": _TYPE.format("conv_transpose3d"),
        "aten.linear.default": "<built-in function linear>",
        "aten.adaptive_avg_pool2d.default": "<function adaptive_avg_pool2d>",
        "aten.avg_pool2d.default": "<built-in function avg_pool2d>",
        "aten.avg_pool3d.default": "<built-in function avg_pool3d>",
        "aten.max_pool2d.default": "<function max_pool2d>",
        "aten.max_pool3d.default": "<function max_pool3d>",
        "aten.embedding_bag.padding_idx": "<function embedding_bag>",
    }
)
"""Functions that recipes number (`functions_supported_by_quantization`), and how they name them;
the address that the extension writes after some of them means nothing."""
_BAG = "torch.nn.modules.sparse.EmbeddingBag"
_TRACED_FUNCTIONS = frozenset({"aten.add_.Tensor"})
"""Functions numbered where torch.fx traces alone, which takes `x += y` for `x = x + y`."""
WEIGHTED = frozenset(
    "aten.conv2d.default aten.conv3d.default aten.linear.default aten.conv_transpose2d.input"
    " aten.conv_transpose3d.input".split()
)
"""Operators whose second operand is a weight."""
_NOT_CALLED = STRUCTURAL_OPS | {"quantize", "dequantize"}


@dataclass
class RecipeCall:
    """One call that a recipe numbers, or one that it only counts tensors of."""

    origin: Origin
    numbered: bool
    """Whether a recipe numbers it, and so may quantize what it reads."""
    operands: list[Value]
    """The tensors that it reads, without weights and biases of layers."""
    result: Value
    weight: Value | None = None
    nodes: tuple[Node, ...] = ()

    @property
    def layer(self) -> bool:
        """Whether a layer of torch.nn is called, and no function."""
        return self.origin.layer in LAYERS

    @property
    def kind(self) -> str:
        """The name of what is called, as recipes have it."""
        return LAYERS.get(self.origin.layer) or FUNCTIONS[self.origin.op]

    @property
    def floats(self) -> int:
        """How many weights the layer has that are never quantized."""
        if self.origin.layer == _BAG:
            return 1
        count = 0
        for node in self.nodes:
            # An LSTM has two weights for each direction, and two biases where it has them.
            if node.op == "lstm" and (sizes := known_shape(node.operands["w"].type.shape or ())):
                count += sizes[0] * (4 if "bias" in node.operands else 2)
        return count

    def owner(self, *, nested: bool) -> str:
        """Returns the path of the module whose calls it is numbered among."""
        # torch.fx traces the whole module: all calls are those of the outermost one.
        if not nested:
            return ""
        return self.origin.path.rpartition(".")[0] if self.origin.layer else self.origin.path

    def name(self, *, nested: bool) -> str:
        """Returns the module that recipes name: the layer itself, or the caller of a function."""
        return self.origin.path if self.layer or nested else ""


def calls(graph: Graph, *, nested: bool) -> list[RecipeCall]:
    """Returns the calls of the module that a graph in QDQ form was read from.

    `nested`: as they are where torch.fx does not trace the module. Refused for a graph that was
    read from something else than a module.
    """
    nodes_by_origin: dict[Origin, list[Node]] = {}
    for node in graph:
        # Quantizes and dequantizes belong to the edges between calls, constants to their readers.
        if node.op in _NOT_CALLED:
            continue
        torch_origins = [origin for origin in node.origins if origin.framework == "torch"]
        if not torch_origins:
            raise Refused(
                f"{node.name}: {node.op} stems from no module of PyTorch, which recipes are for;"
                " qir.build(graph, target='ipex-onednn', format='module') makes a module"
            )
        # Several nodes of one origin are one call, such as the parts of a decomposed function.
        nodes_by_origin.setdefault(_named_origin(torch_origins, nested=nested), []).append(node)
    return [_call(origin, nodes, nested=nested) for origin, nodes in nodes_by_origin.items()]


def _named_origin(origins: list[Origin], *, nested: bool) -> Origin:
    """Returns the origin that a recipe may name; a batch normalization next to it was folded."""
    return next((origin for origin in origins if _is_numbered(origin, nested=nested)), origins[0])


def _is_numbered(origin: Origin, *, nested: bool) -> bool:
    if origin.layer == _BAG:  # it counts rows too
        return "embedding_bag" in origin.op
    if origin.layer:
        return origin.layer in LAYERS
    return origin.op in FUNCTIONS and not (nested and origin.op in _TRACED_FUNCTIONS)


def _call(origin: Origin, nodes: list[Node], *, nested: bool) -> RecipeCall:
    operands = list(_operands(nodes))
    weight = nodes[0].operands.get("w") if nodes[0].op in LAYER_OPS else None
    numbered = _is_numbered(origin, nested=nested) and not _has_scalar_operand(origin, operands)
    return RecipeCall(origin, numbered, operands, nodes[-1].result, weight, tuple(nodes))


LAYER_OPS = frozenset({"conv2d", "conv3d", "linear", "conv_transpose2d", "conv_transpose3d"})


def _operands(nodes: list[Node]) -> Iterator[Value]:
    """Yields what a call reads that another one computes; of a layer, its data alone."""
    for node in nodes:
        weighted = node.op in LAYER_OPS
        for slot, value in node.operands.items():
            # A recipe lists a layer's weight apart, and never quantizes its bias.
            if weighted and slot != "x":
                continue
            # What a call computes itself is nothing that it reads, nor are numbers in the source.
            if value.node not in nodes and (weighted or float_source(value).constant is None):
                yield value


def _has_scalar_operand(origin: Origin, operands: list[Value]) -> bool:
    """Returns whether a sum has a number on one side, which the extension leaves alone."""
    return origin.op in ("aten.add.Tensor", "aten.add_.Tensor") and (
        len(operands) < 2 or any(value.type.rank == 0 for value in operands)
    )


def float_source(value: Value) -> Value:
    """Returns the float value that a dequantized one stands for; itself where it is none."""
    while value.node.op == "dequantize":
        integers = value.node.operands["x"]
        # Weights are stored as integers: there is no float value that they were made of.
        if integers.node.op != "quantize":
            break
        value = integers.node.operands["x"]
    return value


def quantized_type(value: Value) -> QuantType | None:
    """Returns the quantized type that a dequantized value has gone through; None for others."""
    return value.node.operands["x"].type.quant if value.node.op == "dequantize" else None


__all__ = [
    "FUNCTIONS",
    "LAYERS",
    "LAYER_OPS",
    "WEIGHTED",
    "RecipeCall",
    "calls",
    "float_source",
    "quantized_type",
]

"""The calls of a module that the extension quantizes, in the order in which it traces them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.origin import Origin
from qir.ir.quantized_ops import STRUCTURE
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
        }.items()
        for name in names
    }
)
"""Layers of torch.nn that are quantized (`module_types_supported_by_quantization`), and how
recipes name them."""
_TYPE, _METHODS = (
    "<built-in method {} of type object>",
    "<method '{}' of 'torch._C.TensorBase' objects>",
)
FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "aten.add.Tensor": _METHODS.format("add"),
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
    }
)
"""Functions that are quantized (`functions_supported_by_quantization`), and how recipes name them;
the address that the extension writes after some of them means nothing."""
WEIGHTED_OPERATORS = frozenset(
    "aten.conv2d.default aten.conv3d.default aten.linear.default aten.conv_transpose2d.input"
    " aten.conv_transpose3d.input".split()
)
"""Operators whose second operand is a weight."""
_NO_CALLS = STRUCTURE | {"quantize", "dequantize"}
"""Ops that stem from no call of the module."""


@dataclass
class RecipeCall:
    """A call that a recipe numbers, or whose tensors it only counts."""

    origin: Origin
    quantized: bool
    """Whether a recipe can quantize its operands."""
    operands: list[Value]
    """The tensors that it reads, except weights and biases of layers."""
    result: Value
    weight: Value | None = None
    nodes: tuple[Node, ...] = ()

    @property
    def layer(self) -> bool:
        """Whether it calls a layer of torch.nn, not a function."""
        return self.origin.layer in LAYERS

    @property
    def kind(self) -> str:
        """The name of the callee in recipes."""
        return LAYERS.get(self.origin.layer) or FUNCTIONS[self.origin.op]

    def owner(self, *, nested: bool) -> str:
        """Returns the path of the module among whose calls it is numbered."""
        if not nested:
            return ""
        return self.origin.path.rpartition(".")[0] if self.origin.layer else self.origin.path

    def name(self, *, nested: bool) -> str:
        """Returns the module that recipes name: the layer itself, or the caller of a function."""
        return self.origin.path if self.layer or nested else ""


def calls(graph: Graph) -> list[RecipeCall]:
    """Returns the calls of the module that a QDQ graph was read from.

    Raises Refused for a graph that was read from anything else.
    """
    found: dict[Origin, list[Node]] = {}
    for node in graph:
        if node.op in _NO_CALLS:
            continue
        known = [origin for origin in node.origins if origin.framework == "torch"]
        if not known:
            raise Refused(
                f"{node.name}: {node.op} stems from no module of PyTorch, which recipes are for;"
                " qir.build(graph, target='ipex-onednn', format='module') makes a module"
            )
        found.setdefault(_recipe_origin(known), []).append(node)
    return [_call(origin, nodes) for origin, nodes in found.items()]


def _recipe_origin(origins: list[Origin]) -> Origin:
    """Returns the origin that a recipe may name: a batch norm next to it was folded."""
    return next((origin for origin in origins if _is_quantizable(origin)), origins[0])


def _is_quantizable(origin: Origin) -> bool:
    if origin.layer:
        return origin.layer in LAYERS
    return origin.op in FUNCTIONS


def _call(origin: Origin, nodes: list[Node]) -> RecipeCall:
    operands = list(_operands(nodes))
    weight = nodes[0].operands.get("w") if nodes[0].op in _WEIGHTED_OPS else None
    quantized = _is_quantizable(origin) and not _has_scalar_operand(origin, operands)
    return RecipeCall(origin, quantized, operands, nodes[-1].result, weight, tuple(nodes))


_WEIGHTED_OPS = frozenset({"conv2d", "conv3d", "linear", "conv_transpose2d", "conv_transpose3d"})


def _operands(nodes: list[Node]) -> Iterator[Value]:
    """Yields the operands of a call that another call computes; of a layer, its data alone."""
    for node in nodes:
        weighted = node.op in _WEIGHTED_OPS
        for slot, value in node.operands.items():
            if weighted and slot != "x":
                continue
            if value.node not in nodes and (weighted or float_value(value).constant is None):
                yield value


def _has_scalar_operand(origin: Origin, operands: list[Value]) -> bool:
    """Returns whether a sum has a scalar operand: the extension does not quantize such."""
    return origin.op == "aten.add.Tensor" and (
        len(operands) < 2 or any(value.type.rank == 0 for value in operands)
    )


def float_value(value: Value) -> Value:
    """Returns the float value that a dequantized one stands for; other values themselves."""
    while value.node.op == "dequantize":
        codes = value.node.operands["x"]
        if codes.node.op != "quantize":
            break
        value = codes.node.operands["x"]
    return value


def quantized_type(value: Value) -> QuantType | None:
    """Returns the quantized type of a dequantized value; None for others."""
    return value.node.operands["x"].type.quant if value.node.op == "dequantize" else None


__all__ = [
    "FUNCTIONS",
    "LAYERS",
    "WEIGHTED_OPERATORS",
    "RecipeCall",
    "calls",
    "float_value",
    "quantized_type",
]

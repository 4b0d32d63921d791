"""Finds the inputs of a symbol, variables without parameters, and infers their types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qir.errors import InputError, QirError, ShapesNeeded
from qir.ir import dims
from qir.ir.dims import Dim
from qir.ir.dtype import F32, F64, DType, dtype_of
from qir.ir.types import TensorType

from . import parameters
from .attributes import Attributes, BadAttribute
from .symbol import Symbol, SymbolNode

_WITH_PARAMETERS = (
    "BatchNorm BatchNorm_v1 Convolution Deconvolution Embedding FullyConnected GroupNorm"
    " InstanceNorm LayerNorm LeakyReLU _sg_mkldnn_conv _sg_mkldnn_fully_connected"
    " _sg_onednn_conv _sg_onednn_fully_connected _contrib_quantized_conv"
    " _contrib_quantized_fully_connected _contrib_quantized_batch_norm"
).split()
"""Operators whose variables after the first operand are parameters."""
_WITH_LABELS = (
    "SoftmaxOutput Softmax LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput"
).split()
"""Operators whose second operand is a label, which inference does not use."""
_RANK_KEEPING = (
    "Activation BatchNorm Cast Dropout LeakyReLU _contrib_quantize_v2 _copy _div_scalar"
    " _minus_scalar _mul_scalar _plus_scalar cast clip elemwise_add identity relu sigmoid tanh"
    " Concat concat"
).split()
"""Operators whose result has the rank of their first operand."""


class Inputs:
    """The inputs of a symbol, with the types that are given, declared or inferred."""

    def __init__(
        self,
        path: Path,
        symbol: Symbol,
        parameter_arrays: Mapping[str, parameters.Array],
        store: str,
        stated: Sequence[object] | None,
    ) -> None:
        self.path, self.symbol, self.parameters, self.stated = (
            path,
            symbol,
            parameter_arrays,
            stated,
        )
        self.consumers: dict[int, list[tuple[int, int]]] = {}
        """By node: the consumers of its first result, as (node, operand) indices."""
        for index, node in enumerate(symbol.nodes):
            for slot, (producer, result) in enumerate(node.inputs):
                if result == 0:
                    self.consumers.setdefault(producer, []).append((index, slot))
        self.input_nodes: list[int] = []
        heads = {index for index, _ in symbol.heads}
        for index, node in enumerate(symbol.nodes):
            # A variable with an array is a parameter; a label has no effect in inference.
            if not node.is_variable or node.name in parameter_arrays or self._is_label(index):
                continue
            # A variable in the place of a weight is no input: the parameter file lacks it.
            for reader, slot in self.consumers.get(index, []):
                layer = symbol.nodes[reader]
                if slot and (layer.op in _WITH_PARAMETERS or (layer.op == "RNN" and slot == 1)):
                    message = f"{path}: parameter {node.label} of {layer.description}"
                    raise InputError(f"{message} is missing in {store}")
            if index in self.consumers or index in heads:
                self.input_nodes.append(index)
        if stated is not None and len(stated) != len(self.input_nodes):
            names = ", ".join(symbol.nodes[i].name for i in self.input_nodes) or "none"
            raise InputError(f"{path}: {len(stated)} inputs are given, the model has: {names}")

    def _is_label(self, index: int) -> bool:
        consumers = self.consumers.get(index, [])
        return bool(consumers) and all(
            slot == 1 and self.symbol.nodes[reader].op in _WITH_LABELS for reader, slot in consumers
        )

    def type_of(self, index: int) -> TensorType | None:
        """Returns the type of an input; None for a label. Raises ShapesNeeded if it is unknown."""
        if index not in self.input_nodes:
            return None
        node = self.symbol.nodes[index]
        guessed = self._guess_by_layers(index)
        if self.stated is not None:
            return self._type_of_stated(node, self.stated[self.input_nodes.index(index)], guessed)
        # A given shape wins over a declared one, and that over one that layers imply.
        declared = self._declared_shape(node)
        shape = declared if declared is not None else guessed[0] if guessed else None
        if shape is None:
            message = f"input {node.label} has no shape in the file, and no layer gives it"
            how_to = "--shape 1,3,224,224, --data, or inputs=[(1, 3, 224, 224)]"
            raise ShapesNeeded(f"{self.path}: {message}; give one shape per input: {how_to}")
        return TensorType(self._with_symbols(node, shape), guessed[1] if guessed else F32)

    def _with_symbols(self, node: SymbolNode, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """Returns a shape whose open sizes are symbols, named after the input and the axis."""
        stem = re.sub(r"\W", "_", node.name)
        stem = stem if re.match(r"[A-Za-z_]", stem) else f"_{stem}"
        return tuple(
            dims.symbol(f"{stem}_{axis}") if size is None else size
            for axis, size in enumerate(shape)
        )

    def _type_of_stated(
        self, node: SymbolNode, stated: Any, guessed: tuple[Sequence[Dim], DType] | None
    ) -> TensorType:
        guessed_dtype = guessed[1] if guessed else F32
        try:
            if isinstance(stated, (tuple, list)):
                return TensorType(
                    self._with_symbols(node, [dims.size(size) for size in stated]), guessed_dtype
                )
            data = np.asarray(stated)
            stated_dtype = dtype_of(data)
            # NumPy's default float64 is not meant: examples are often lists or drawn arrays.
            return TensorType(data.shape, guessed_dtype if stated_dtype == F64 else stated_dtype)
        except QirError as error:
            raise InputError(f"{self.path}: input {node.label}: {error}") from error

    def _declared_shape(self, node: SymbolNode) -> Sequence[Dim] | None:
        """Returns the shape that the file declares; 0 is an open size."""
        if "__shape__" not in node.attrs:
            return None
        try:
            sizes = Attributes(node.attrs).integers("__shape__")
        except BadAttribute as error:
            raise InputError(f"{self.path}: variable {node.label}: {error}") from error
        if not sizes:
            return None
        # -1 and 0 are open sizes; larger sizes than 2^40 are damage.
        if any(size < -1 or size >= 1 << 40 for size in sizes):
            raise InputError(f"{self.path}: variable {node.label} has the shape {sizes}")
        return [size if size > 0 else None for size in sizes]

    def _guess_by_layers(self, index: int) -> tuple[Sequence[Dim], DType] | None:
        """Returns shape and element type by the first layers that consume a variable."""
        waiting, visited = [index], {index}
        # Breadth first: the nearest layer decides.
        while waiting:
            for reader, slot in self.consumers.get(waiting.pop(0), []):
                node = self.symbol.nodes[reader]
                if guessed := self._type_by_layer(node, slot):
                    return guessed
                # Indices of an embedding before an RNN are [steps, batch].
                if node.op == "Embedding" and slot == 0 and self._feeds_rnn(reader):
                    return [None, None], F32
                if node.op in _RANK_KEEPING and slot == 0 and reader not in visited:
                    visited.add(reader)
                    waiting.append(reader)
        return None

    def _feeds_rnn(self, index: int) -> bool:
        """Returns whether an RNN consumes a node, directly or after dropout and transposes."""
        for reader, slot in self.consumers.get(index, []):
            node = self.symbol.nodes[reader]
            # Operands of an RNN are data, parameters and states.
            if node.op == "RNN" and slot == 0:
                return True
            passes_through = node.op in ("Dropout", "SwapAxis", "swapaxes", "transpose")
            if passes_through and self._feeds_rnn(reader):
                return True
        return False

    def _type_by_layer(self, node: SymbolNode, slot: int) -> tuple[Sequence[Dim], DType] | None:
        """Returns the shape and element type that a layer requires of an operand."""
        attrs = Attributes(node.attrs)
        if node.op == "RNN" and slot in (0, 2, 3):
            return [None] * 3, F32
        if slot != 0:
            return None
        # Fused layers have the convolution or product in their subgraph.
        inner_nodes = node.subgraphs[0].nodes if node.subgraphs else (node,)
        inner = next((n for n in inner_nodes if n.op in ("Convolution", "FullyConnected")), node)
        attrs = Attributes(inner.attrs)
        weight = self._weight(node)
        try:
            if inner.op in ("Convolution", "Deconvolution") and weight is not None:
                # Deconvolution has its input channels on axis 0 of the weight.
                is_deconvolution = inner.op == "Deconvolution"
                channels = weight.shape[0 if is_deconvolution else 1] * (
                    1 if is_deconvolution else attrs.integer("num_group", 1)
                )
                return [None, channels, *[None] * (weight.ndim - 2)], _float_dtype(weight)
            if inner.op == "FullyConnected" and weight is not None and attrs.flag("flatten", True):
                return [None, weight.shape[-1]], _float_dtype(weight)
            if inner.op == "Pooling" and attrs.is_given("kernel"):
                return [None] * (len(attrs.integers("kernel")) + 2), F32
        except BadAttribute as error:
            raise InputError(f"{self.path}: {node.description}: {error}") from error
        return None

    def _weight(self, node: SymbolNode) -> parameters.Array | None:
        if len(node.inputs) < 2:
            return None
        array = self.parameters.get(self.symbol.nodes[node.inputs[1][0]].name)
        return array if array is not None and array.ndim >= 2 else None


def _float_dtype(weight: parameters.Array) -> DType:
    dtype = dtype_of(weight)
    return dtype if dtype.is_float else F32

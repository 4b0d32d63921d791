"""Foreign nodes: operators without a form, kept with their attributes and run by MXNet.

Operators that consume a result of unknown shape are kept as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError, PluginError
from qir.inspect.child_probes import OtherRuntime
from qir.inspect.pipe import Plain
from qir.inspect.runtimes import probes
from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dims import Dim
from qir.ir.dtype import opaque
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import TensorType
from qir.ledger import Change

from . import convolution
from .attributes import BadAttribute
from .call import SymbolCall
from .ranges import declared_range
from .reader import SymbolReader
from .results import RangeBound, Result, Unsupported
from .symbol import SymbolNode

Array = NDArray[np.generic]
UNKNOWN_TYPE = TensorType((), opaque("?[...]"))
"""The type of a result whose shape is unknown."""
RANGE_BOUNDS = {1: "low", 2: "high"}
"""By result index of a quantized operator: the bound of its range."""
AUXILIARY_STATE = "state"
_UNSAFE = frozenset(
    "Custom _CachedOp _CachedOpThreadSafe _CustomFunction _NDArray _Native _cvimread".split()
)
"""Operators that access files, addresses or code; a model must not be able to call them."""
_CHANCE = ("random_", "sample_", "shuffle", "normal", "uniform")
"""Prefixes of operators that draw random numbers, which are not run either."""


def has_untyped_operand(operands: Sequence[Result]) -> bool:
    """Returns whether an operand has an unknown shape."""
    return any(isinstance(operand, Value) and operand.type.dtype.is_loose for operand in operands)


def keep(reader: SymbolReader, node: SymbolNode, results: int) -> list[Result]:
    """Adds a node as a foreign op; raises Unsupported where an operand is not a tensor."""
    pairs = [_operand(reader, node, slot) for slot in range(len(node.inputs))]
    values = [value for value, _ in pairs]
    attrs: list[Attr] = [(name, text) for name, text in node.attrs.items()]
    names = [node.name, *(f"{node.name}_output{number}" for number in range(1, results))]
    attributes: dict[str, Attr] = {
        "framework": "mxnet",
        "op": node.op,
        "slots": tuple(role for _, role in pairs),
        "attrs": (("attrs", tuple(attrs)), ("subgraphs", node.subgraphs_json)),
    }
    foreign = reader.graph.add(
        "foreign",
        {f"xs.{i}": value for i, value in enumerate(values)},
        attributes,
        types=_result_types(reader, node, values, results),
        name=[reader.graph.fresh(name) for name in names],
        origins=[reader.origin(node)],
    )
    message = f"kept as MXNet's {node.op}, which MXNet alone can run"
    reader.ledger.add(Change.EXACT, "read mxnet", node.name, message)
    return list(foreign.results)


def _operand(reader: SymbolReader, node: SymbolNode, slot: int) -> tuple[Value, str]:
    """Returns an operand, and its role: a tensor (""), a bound of a range, or an auxiliary
    state."""
    index, result_index = node.inputs[slot]
    operand = reader.result((index, result_index))
    if isinstance(operand, Value):
        name = reader.symbol.nodes[index].name
        return (
            operand,
            AUXILIARY_STATE
            if operand.constant is not None and name in reader.auxiliary_states
            else "",
        )
    # A range bound is no tensor of the graph: it follows from the type of the quantized tensor.
    integers = reader.results[index][0]
    if (
        isinstance(operand, RangeBound)
        and isinstance(integers, Value)
        and result_index in RANGE_BOUNDS
    ):
        return integers, RANGE_BOUNDS[result_index]
    raise Unsupported(f"operand {slot} is no tensor, and the operator is kept as it is")


# -- running it -----------------------------------------------------------------------------------


def run(node: Node, operands: Mapping[str, Array]) -> tuple[Array, ...]:
    """Computes a foreign node by MXNet; raises PluginError if MXNet is missing or fails."""
    op, slots = str(node.attrs["op"]), node.attrs["slots"]
    stored: Any = node.attrs["attrs"]
    if op in _UNSAFE or op.lstrip("_").startswith(_CHANCE):
        raise PluginError(f"MXNet's {op} is not run: it reaches beyond its operands")
    # MXNet 1.9 needs an older Python, so it runs in a process of its own.
    mxnet = next((p for p in probes() if p.name == "mxnet" and isinstance(p, OtherRuntime)), None)
    if mxnet is None or mxnet.version is None:
        message = "QIR_MXNET names no Python that has mxnet 1.9"
        raise PluginError(f"MXNet's {op} is kept as it is, and MXNet alone can run it: {message}")
    try:
        assert isinstance(slots, tuple)
        (_, attrs), (_, subgraphs) = stored
        arrays: list[Plain] = [
            _operand_array(value, np.asarray(operands[f"xs.{i}"]), str(role))
            for i, (value, role) in enumerate(zip(node.variadic("xs"), slots, strict=True))
        ]
        count = len(node.results)
        texts: dict[str, Plain] = {str(name): str(text) for name, text in attrs}
        answer = mxnet.answer(("alone", op, texts, str(subgraphs), arrays, count))
    except (AssertionError, TypeError, ValueError, OpError) as error:
        raise PluginError(f"MXNet does not run {op}: {error}") from error
    assert isinstance(answer, list)
    results = tuple(np.asarray(array) for array in answer)
    for value, array in zip(node.results, results, strict=True):
        if not _matches_type(value.type, array):
            message = f"gives {array.dtype} {array.shape}, the graph has {value.type}"
            raise PluginError(f"MXNet's {op} {message}")
    return results


def _matches_type(expected: TensorType, data: Array) -> bool:
    """Returns whether a result has the expected type."""
    if expected.dtype.is_loose:
        return True
    pairs = zip(expected.shape, data.shape, strict=False)
    sizes = all(
        not isinstance(size, int) or size == size_of_result for size, size_of_result in pairs
    )
    return expected.rank == data.ndim and expected.dtype.carrier == data.dtype and sizes


def _operand_array(value: Value, data: Array, role: str) -> Array:
    """Returns an operand's elements, or a bound of its range."""
    if role not in RANGE_BOUNDS.values():
        return np.ascontiguousarray(data)
    low, high = declared_range(value)
    return np.asarray([low if role == "low" else high], np.float32)


# -- what it gives --------------------------------------------------------------------------------


def _result_types(
    reader: SymbolReader, node: SymbolNode, values: Sequence[Value], results: int
) -> list[TensorType]:
    """Returns the types of the results; for some operators the first one is known."""
    rule = _TYPE_RULES.get(node.op)
    are_typed = values and not has_untyped_operand(values) and values[0].type.quant is None
    types = [UNKNOWN_TYPE] * results
    if rule is not None and are_typed:
        try:
            types[0] = rule(SymbolCall(reader, node, values))
        except (BadAttribute, LookupError):
            return types
    return types


def _type_of_first(call: SymbolCall) -> TensorType:
    return call.value(0).type


def _roi_pooling_type(call: SymbolCall) -> TensorType:
    """Returns the result type of ROIPooling and ROIAlign."""
    data, rows = call.value(0).type, call.value(1).type
    sizes: tuple[Dim, ...] = call.attrs.integers("pooled_size")
    return data.with_shape((rows.shape[0], data.shape[1], *sizes))


def _deformable_type(call: SymbolCall) -> TensorType:
    """Returns the result type of a deformable convolution, that of a plain one."""
    weight_index = 3 if call.node.op.startswith("_contrib_Modulated") else 2
    plain_node = SymbolNode("Convolution", call.node.name, call.node.attrs, ())
    _, attrs = convolution.layer_attrs(SymbolCall(call.reader, plain_node, ()))
    operands = {"x": call.value(0), "w": call.value(weight_index)}
    (result_type,) = infer_result_types("conv2d", operands, spec("conv2d").complete_attrs(attrs))
    return result_type


def _prior_boxes_type(call: SymbolCall) -> TensorType:
    """Returns the result type of MultiBoxPrior: boxes around each pixel."""
    data = call.value(0).type
    texts = [call.attrs.text(name, "1").strip("()[] ").split(",") for name in ("sizes", "ratios")]
    # All sizes with the first ratio, and the first size with all other ratios.
    boxes_per_pixel = sum(bool(item.strip()) for text in texts for item in text) - 1
    height, width = data.shape[2:]
    if not (isinstance(height, int) and isinstance(width, int)):
        return data.with_shape((1, None, 4))
    return data.with_shape((1, height * width * boxes_per_pixel, 4))


def _detections_type(call: SymbolCall) -> TensorType:
    """Returns the result type of MultiBoxDetection: class, score and box for each prior."""
    classes = call.value(0).type
    # Class scores are [batch, classes, priors].
    return classes.with_shape((classes.shape[0], classes.shape[2], 6))


_TYPE_RULES: dict[str, Callable[[SymbolCall], TensorType]] = {
    **dict.fromkeys(
        "IdentityAttachKLSparseReg SVMOutput _contrib_BatchNormWithReLU _contrib_box_nms"
        " _contrib_div_sqrt_dim _contrib_gradientmultiplier _contrib_quadratic _contrib_round_ste"
        " _contrib_sign_ste _hypot_scalar _shuffle cbrt cumsum degrees erfinv gamma gammaln"
        " radians rcbrt sort".split(),
        _type_of_first,
    ),
    **dict.fromkeys(("ROIPooling", "_contrib_ROIAlign"), _roi_pooling_type),
    "_contrib_DeformableConvolution": _deformable_type,
    "_contrib_ModulatedDeformableConvolution": _deformable_type,
    "_contrib_MultiBoxDetection": _detections_type,
    "_contrib_MultiBoxPrior": _prior_boxes_type,
}
"""Type rules of the first result, by operator."""

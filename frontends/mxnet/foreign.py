"""Foreign nodes: operators without a form, kept with their attributes and run by MXNet.

Operators that consume a result of unknown shape are kept as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError, PluginError
from qir.inspect.elsewhere import OtherRuntime
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
from .call import RangeBound, Result, SymbolCall, Unsupported
from .ranges import declared_range
from .symbol import SymbolNode

if TYPE_CHECKING:
    from .reader import SymbolReader

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
    return any(isinstance(held, Value) and held.type.dtype.is_loose for held in operands)


def keep(reader: SymbolReader, node: SymbolNode, results: int) -> list[Result]:
    """Adds a node as a foreign op; raises Unsupported where an operand is not a tensor."""
    pairs = [_operand(reader, node, slot) for slot in range(len(node.inputs))]
    values = [value for value, _ in pairs]
    attrs: list[Attr] = [(name, text) for name, text in node.attrs.items()]
    names = [node.name, *(f"{node.name}_output{number}" for number in range(1, results))]
    held: dict[str, Attr] = {
        "framework": "mxnet",
        "op": node.op,
        "slots": tuple(kind for _, kind in pairs),
        "attrs": (("attrs", tuple(attrs)), ("subgraphs", node.subgraphs_json)),
    }
    made = reader.graph.add(
        "foreign",
        {f"xs.{i}": value for i, value in enumerate(values)},
        held,
        types=_result_types(reader, node, values, results),
        name=[reader.graph.fresh(name) for name in names],
        origins=[reader.origin(node)],
    )
    said = f"kept as MXNet's {node.op}, which MXNet alone can run"
    reader.ledger.add(Change.EXACT, "read mxnet", node.name, said)
    return list(made.results)


def _operand(reader: SymbolReader, node: SymbolNode, slot: int) -> tuple[Value, str]:
    """Returns an operand, and its role: a tensor (""), a bound of a range, or an auxiliary
    state."""
    index, which = node.inputs[slot]
    made = reader.result((index, which))
    if isinstance(made, Value):
        name = reader.symbol.nodes[index].name
        return (
            made,
            AUXILIARY_STATE
            if made.constant is not None and name in reader.auxiliary_states
            else "",
        )
    whole = reader.results[index][0]
    if isinstance(made, RangeBound) and isinstance(whole, Value) and which in RANGE_BOUNDS:
        return whole, RANGE_BOUNDS[which]
    raise Unsupported(f"operand {slot} is no tensor, and the operator is kept as it is")


# -- running it -----------------------------------------------------------------------------------


def run(node: Node, operands: Mapping[str, Array]) -> tuple[Array, ...]:
    """Computes a foreign node by MXNet; raises PluginError if MXNet is missing or fails."""
    op, slots = str(node.attrs["op"]), node.attrs["slots"]
    held: Any = node.attrs["attrs"]
    if op in _UNSAFE or op.lstrip("_").startswith(_CHANCE):
        raise PluginError(f"MXNet's {op} is not run: it reaches beyond its operands")
    mxnet = next((p for p in probes() if p.name == "mxnet" and isinstance(p, OtherRuntime)), None)
    if mxnet is None or mxnet.version is None:
        said = "QIR_MXNET names no Python that has mxnet 1.9"
        raise PluginError(f"MXNet's {op} is kept as it is, and MXNet alone can run it: {said}")
    try:
        assert isinstance(slots, tuple)
        (_, attrs), (_, inner) = held
        arrays: list[Plain] = [
            _operand_array(value, np.asarray(operands[f"xs.{i}"]), str(kind))
            for i, (value, kind) in enumerate(zip(node.variadic("xs"), slots, strict=True))
        ]
        count = len(node.results)
        texts: dict[str, Plain] = {str(name): str(text) for name, text in attrs}
        found = mxnet.answer(("alone", op, texts, str(inner), arrays, count))
    except (AssertionError, TypeError, ValueError, OpError) as error:
        raise PluginError(f"MXNet does not run {op}: {error}") from error
    assert isinstance(found, list)
    made = tuple(np.asarray(each) for each in found)
    for value, each in zip(node.results, made, strict=True):
        if not _matches_type(value.type, each):
            said = f"gives {each.dtype} {each.shape}, the graph has {value.type}"
            raise PluginError(f"MXNet's {op} {said}")
    return made


def _matches_type(kind: TensorType, data: Array) -> bool:
    """Returns whether a result has the expected type."""
    if kind.dtype.is_loose:
        return True
    pairs = zip(kind.shape, data.shape, strict=False)
    sizes = all(not isinstance(size, int) or size == found for size, found in pairs)
    return kind.rank == data.ndim and kind.dtype.carrier == data.dtype and sizes


def _operand_array(value: Value, data: Array, kind: str) -> Array:
    """Returns an operand's elements, or a bound of its range."""
    if kind not in RANGE_BOUNDS.values():
        return np.ascontiguousarray(data)
    low, high = declared_range(value)
    return np.asarray([low if kind == "low" else high], np.float32)


# -- what it gives --------------------------------------------------------------------------------


def _result_types(
    reader: SymbolReader, node: SymbolNode, values: Sequence[Value], results: int
) -> list[TensorType]:
    """Returns the types of the results; for some operators the first one is known."""
    rule = _TYPE_RULES.get(node.op)
    known = values and not has_untyped_operand(values) and values[0].type.quant is None
    made = [UNKNOWN_TYPE] * results
    if rule is not None and known:
        try:
            made[0] = rule(SymbolCall(reader, node, values))
        except (BadAttribute, LookupError):
            return made
    return made


def _type_of_first(call: SymbolCall) -> TensorType:
    return call.value(0).type


def _roi_pooling_type(call: SymbolCall) -> TensorType:
    """Returns the result type of ROIPooling and ROIAlign."""
    data, rows = call.value(0).type, call.value(1).type
    sizes: tuple[Dim, ...] = call.attrs.integers("pooled_size")
    return data.with_shape((rows.shape[0], data.shape[1], *sizes))


def _deformable_type(call: SymbolCall) -> TensorType:
    """Returns the result type of a deformable convolution, that of a plain one."""
    weight = 3 if call.node.op.startswith("_contrib_Modulated") else 2
    plain = SymbolNode("Convolution", call.node.name, call.node.attrs, ())
    _, attrs = convolution.layer_attrs(SymbolCall(call.reader, plain, ()))
    operands = {"x": call.value(0), "w": call.value(weight)}
    (made,) = infer_result_types("conv2d", operands, spec("conv2d").complete_attrs(attrs))
    return made


def _prior_boxes_type(call: SymbolCall) -> TensorType:
    """Returns the result type of MultiBoxPrior: boxes around each pixel."""
    data = call.value(0).type
    texts = [call.attrs.text(name, "1").strip("()[] ").split(",") for name in ("sizes", "ratios")]
    each = sum(bool(item.strip()) for text in texts for item in text) - 1
    height, width = data.shape[2:]
    if not (isinstance(height, int) and isinstance(width, int)):
        return data.with_shape((1, None, 4))
    return data.with_shape((1, height * width * each, 4))


def _detections_type(call: SymbolCall) -> TensorType:
    """Returns the result type of MultiBoxDetection: class, score and box for each prior."""
    classes = call.value(0).type
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

"""Gather and scatter, OneHot, Unique, Einsum, Col2Im, and operators on whole matrices."""

from __future__ import annotations

from collections.abc import Callable

from qir.errors import GraphError, OpError, ParseError, TypeRuleError
from qir.ir.attrs import Attr

from .elements import dtype_of_number
from .elementwise_ops import WRAPPING_DTYPES, keep_unless_floats
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

Handler = Callable[[OnnxReader, OnnxOp], None]


def _scalar_operand(reader: OnnxReader, op: OnnxOp, index: int, default: int = 0) -> int:
    """Returns a constant operand of one integer, `default` if it is absent."""
    if not op.input(index):
        return default
    data = reader.constant_data(op.input(index)).reshape(-1)
    if data.size != 1:
        raise op.error(f"operand {index} has {data.size} numbers, it takes 1")
    return int(data[0])


def _ints_operand(reader: OnnxReader, op: OnnxOp, index: int) -> tuple[int, ...]:
    return tuple(int(v) for v in reader.constant_data(op.input(index)).reshape(-1))


def _op_of_tensors(kind: str, *slots: str, **attrs: tuple[str, int]) -> Handler:
    """Returns the handler of an op of tensors and integer attributes.

    `attrs` has ONNX's name and default by the language's name.
    """

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        attr_values: dict[str, Attr] = {
            attr: op.integer(*onnx_attr) for attr, onnx_attr in attrs.items()
        }
        operands = {s: reader.value(op, n) for s, n in zip(slots, op.inputs, strict=True)}
        reader.add(op, kind, operands, attr_values)

    return read


def _scatter(kind: str) -> Handler:
    def read(reader: OnnxReader, op: OnnxOp) -> None:
        attrs: dict[str, Attr] = {"reduction": op.text("reduction", "none")}
        if kind == "scatter_elements":
            attrs["axis"] = op.integer("axis", 0)
        dtype = reader.type_of(op, op.input(0)).dtype
        # Only types whose sums wrap alike in NumPy and in onnxruntime are read.
        if attrs["reduction"] != "none" and not (dtype.is_float or dtype.name in WRAPPING_DTYPES):
            raise KeepOperator
        slots = zip(("x", "indices", "updates"), op.inputs, strict=True)
        reader.add(op, kind, {s: reader.value(op, n) for s, n in slots}, attrs)

    return read


def _with_known_index_depth(handler: Handler) -> Handler:
    """Adds a check: the last axis of the indices, their depth, must have a known size."""

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        shape = reader.type_of(op, op.input(1)).shape
        if not shape or not isinstance(shape[-1], int):
            raise KeepOperator
        handler(reader, op)

    return read


def _one_hot(reader: OnnxReader, op: OnnxOp) -> None:
    # ONNX has indices, depth, and [off value, on value].
    attrs: dict[str, Attr] = {
        "depth": _scalar_operand(reader, op, 1),
        "axis": op.integer("axis", -1),
    }
    operands = {"indices": reader.value(op, op.input(0)), "values": reader.value(op, op.input(2))}
    reader.add(op, "one_hot", operands, attrs)


def _unique(reader: OnnxReader, op: OnnxOp) -> None:
    element_type = reader.type_of(op, op.input(0)).dtype
    if not (element_type.is_float or element_type.is_integer):
        raise KeepOperator
    attrs: dict[str, Attr] = {
        "axis": op.integer("axis", 0) if op.attribute("axis") else None,
        "sorted": op.integer("sorted", 1) != 0,
    }
    # The node has all four results; those that the file leaves out get names of their own.
    file_names = [*op.outputs, *[""] * (4 - len(op.outputs))]
    names = [
        n or reader.unused_name(f"{op.outputs[0]}.unused{i}") for i, n in enumerate(file_names)
    ]
    operands = {"x": reader.value(op, op.input(0))}
    try:
        # Not by `reader.add`, which binds every result to a name of the file.
        node = reader.graph.add("unique", operands, attrs, name=names, origins=[op.origin()])
    except (TypeRuleError, GraphError, OpError, ParseError) as error:
        raise op.error(str(error)) from error
    for name, value in zip(file_names, node.results, strict=True):
        if name:
            reader.bind(name, value)


def _trilu(reader: OnnxReader, op: OnnxOp) -> None:
    attrs: dict[str, Attr] = {
        # The diagonal is an operand in ONNX, 0 if absent.
        "k": _scalar_operand(reader, op, 1),
        "upper": op.integer("upper", 1) != 0,
    }
    reader.add(op, "trilu", {"x": reader.value(op, op.input(0))}, attrs)


def _eye(reader: OnnxReader, op: OnnxOp) -> None:
    number = op.integer("dtype", 0)
    attrs: dict[str, Attr] = {
        "dtype": dtype_of_number(number) if number else None,
        "k": op.integer("k", 0),
    }
    reader.add(op, "eye_like", {"x": reader.value(op, op.input(0))}, attrs)


def _compress(reader: OnnxReader, op: OnnxOp) -> None:
    attrs: dict[str, Attr] = {"axis": op.integer("axis", 0) if op.attribute("axis") else None}
    slots = zip(("x", "condition"), op.inputs, strict=True)
    reader.add(op, "compress", {s: reader.value(op, n) for s, n in slots}, attrs)


def _hardmax(reader: OnnxReader, op: OnnxOp) -> None:
    keep_unless_floats(reader, op)
    x = reader.value(op, op.input(0))
    axis = op.integer("axis", -1 if op.opset >= 13 else 1)
    sizes_after = x.type.shape[axis % x.type.rank + 1 :] if x.type.rank else ()
    if op.opset < 13 and any(d != 1 for d in sizes_after):
        raise KeepOperator  # it works on the tensor flattened at the axis
    reader.add(op, "hardmax", {"x": x}, {"axis": axis})


def _einsum(reader: OnnxReader, op: OnnxOp) -> None:
    element_types = [reader.type_of(op, n).dtype for n in op.inputs]
    if not all(
        element_type.is_float or element_type.name in WRAPPING_DTYPES
        for element_type in element_types
    ):
        raise KeepOperator
    operands = {f"xs.{i}": reader.value(op, n) for i, n in enumerate(op.inputs)}
    reader.add(op, "einsum", operands, {"equation": op.text("equation", "")})


def _fold(reader: OnnxReader, op: OnnxOp) -> None:
    if not reader.type_of(op, op.input(0)).dtype.is_float:
        raise KeepOperator
    size, kernel = _ints_operand(reader, op, 1), _ints_operand(reader, op, 2)
    axes = len(kernel)
    attrs: dict[str, Attr] = {
        "size": size,
        "kernel": kernel,
        "stride": op.integers("strides", (1,) * axes),
        "pad": op.integers("pads", (0,) * 2 * axes),
        "dilation": op.integers("dilations", (1,) * axes),
    }
    reader.add(op, "fold", {"x": reader.value(op, op.input(0))}, attrs)


def _float_op(kind: str, **attrs: tuple[str, int]) -> Handler:
    def read(reader: OnnxReader, op: OnnxOp) -> None:
        keep_unless_floats(reader, op)
        attr_values: dict[str, Attr] = {
            attr: op.integer(*onnx_attr) for attr, onnx_attr in attrs.items()
        }
        reader.add(op, kind, {"x": reader.value(op, op.input(0))}, attr_values)

    return read


inverse = _float_op("inverse")

OPS: dict[str, Handler] = {
    "GatherElements": _op_of_tensors("gather_elements", "x", "indices", axis=("axis", 0)),
    "GatherND": _with_known_index_depth(
        _op_of_tensors("gather_nd", "x", "indices", batch=("batch_dims", 0))
    ),
    "Scatter": _scatter("scatter_elements"),
    "ScatterElements": _scatter("scatter_elements"),
    "ScatterND": _with_known_index_depth(_scatter("scatter_nd")),
    "OneHot": _one_hot,
    "NonZero": _op_of_tensors("nonzero", "x"),
    "Unique": _unique,
    "Trilu": _trilu,
    "EyeLike": _eye,
    "ReverseSequence": _op_of_tensors(
        "reverse_sequence", "x", "lengths", batch=("batch_axis", 1), time=("time_axis", 0)
    ),
    "Compress": _compress,
    "Hardmax": _hardmax,
    "Einsum": _einsum,
    "Col2Im": _fold,
    "Det": _float_op("det"),
    "LpNormalization": _float_op("lp_normalize", axis=("axis", -1), p=("p", 2)),
}

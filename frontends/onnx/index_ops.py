"""Ops that pick and place elements by indices, einsum, columns, and matrices as a whole."""

from __future__ import annotations

from collections.abc import Callable

from qir.errors import GraphError, OpError, ParseError, TypeRuleError
from qir.ir.attrs import Attr

from .elements import element
from .elementwise_ops import floats
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

Handler = Callable[[OnnxReader, OnnxOp], None]
_WRAPPING = ("i32", "i64")


def _number(reader: OnnxReader, op: OnnxOp, index: int, default: int = 0) -> int:
    """Returns an operand of one whole number; Keep where it is computed."""
    if not op.input(index):
        return default
    data = reader.numbers(op.input(index)).reshape(-1)
    if data.size != 1:
        raise op.fail(f"operand {index} has {data.size} numbers, it takes 1")
    return int(data[0])


def _row(reader: OnnxReader, op: OnnxOp, index: int) -> tuple[int, ...]:
    return tuple(int(v) for v in reader.numbers(op.input(index)).reshape(-1))


def _picks(kind: str, *slots: str, **attrs: tuple[str, int]) -> Handler:
    """Returns an op whose operands are all tensors; attributes are whole numbers, ours by
    theirs."""

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        given: dict[str, Attr] = {ours: op.integer(*theirs) for ours, theirs in attrs.items()}
        operands = {s: reader.value(op, n) for s, n in zip(slots, op.inputs, strict=True)}
        reader.add(op, kind, operands, given)

    return read


def _scatter(kind: str) -> Handler:
    def read(reader: OnnxReader, op: OnnxOp) -> None:
        attrs: dict[str, Attr] = {"reduction": op.text("reduction", "none")}
        if kind == "scatter_elements":
            attrs["axis"] = op.integer("axis", 0)
        dtype = reader.type_of(op, op.input(0)).dtype
        if attrs["reduction"] != "none" and not (dtype.is_float or dtype.name in _WRAPPING):
            raise KeepOperator
        slots = zip(("x", "indices", "updates"), op.inputs, strict=True)
        reader.add(op, kind, {s: reader.value(op, n) for s, n in slots}, attrs)

    return read


def _tuples(handler: Handler) -> Handler:
    """Keep where nobody knows how long the tuples of indices are."""

    def read(reader: OnnxReader, op: OnnxOp) -> None:
        shape = reader.type_of(op, op.input(1)).shape
        if not shape or not isinstance(shape[-1], int):
            raise KeepOperator
        handler(reader, op)

    return read


def _one_hot(reader: OnnxReader, op: OnnxOp) -> None:
    attrs: dict[str, Attr] = {"depth": _number(reader, op, 1), "axis": op.integer("axis", -1)}
    operands = {"indices": reader.value(op, op.input(0)), "values": reader.value(op, op.input(2))}
    reader.add(op, "one_hot", operands, attrs)


def _unique(reader: OnnxReader, op: OnnxOp) -> None:
    kind = reader.type_of(op, op.input(0)).dtype
    if not (kind.is_float or kind.is_integer):
        raise KeepOperator
    attrs: dict[str, Attr] = {
        "axis": op.integer("axis", 0) if op.attribute("axis") else None,
        "sorted": op.integer("sorted", 1) != 0,
    }
    given = [*op.outputs, *[""] * (4 - len(op.outputs))]
    names = [n or reader.spare(f"{op.outputs[0]}.unused{i}") for i, n in enumerate(given)]
    operands = {"x": reader.value(op, op.input(0))}
    try:
        node = reader.graph.add("unique", operands, attrs, name=names, origins=[op.origin()])
    except (TypeRuleError, GraphError, OpError, ParseError) as error:
        raise op.fail(str(error)) from error
    for name, value in zip(given, node.results, strict=True):
        if name:
            reader.bind(name, value)


def _trilu(reader: OnnxReader, op: OnnxOp) -> None:
    attrs: dict[str, Attr] = {"k": _number(reader, op, 1), "upper": op.integer("upper", 1) != 0}
    reader.add(op, "trilu", {"x": reader.value(op, op.input(0))}, attrs)


def _eye(reader: OnnxReader, op: OnnxOp) -> None:
    number = op.integer("dtype", 0)
    attrs: dict[str, Attr] = {
        "dtype": element(number) if number else None,
        "k": op.integer("k", 0),
    }
    reader.add(op, "eye_like", {"x": reader.value(op, op.input(0))}, attrs)


def _compress(reader: OnnxReader, op: OnnxOp) -> None:
    attrs: dict[str, Attr] = {"axis": op.integer("axis", 0) if op.attribute("axis") else None}
    slots = zip(("x", "condition"), op.inputs, strict=True)
    reader.add(op, "compress", {s: reader.value(op, n) for s, n in slots}, attrs)


def _hardmax(reader: OnnxReader, op: OnnxOp) -> None:
    floats(reader, op)
    x = reader.value(op, op.input(0))
    axis = op.integer("axis", -1 if op.opset >= 13 else 1)
    rest = x.type.shape[axis % x.type.rank + 1 :] if x.type.rank else ()
    if op.opset < 13 and any(d != 1 for d in rest):
        raise KeepOperator  # it works on the tensor flattened at the axis
    reader.add(op, "hardmax", {"x": x}, {"axis": axis})


def _einsum(reader: OnnxReader, op: OnnxOp) -> None:
    kinds = [reader.type_of(op, n).dtype for n in op.inputs]
    if not all(k.is_float or k.name in _WRAPPING for k in kinds):
        raise KeepOperator
    operands = {f"xs.{i}": reader.value(op, n) for i, n in enumerate(op.inputs)}
    reader.add(op, "einsum", operands, {"equation": op.text("equation", "")})


def _fold(reader: OnnxReader, op: OnnxOp) -> None:
    if not reader.type_of(op, op.input(0)).dtype.is_float:
        raise KeepOperator
    size, kernel = _row(reader, op, 1), _row(reader, op, 2)
    n = len(kernel)
    attrs: dict[str, Attr] = {
        "size": size,
        "kernel": kernel,
        "stride": op.integers("strides", (1,) * n),
        "pad": op.integers("pads", (0,) * 2 * n),
        "dilation": op.integers("dilations", (1,) * n),
    }
    reader.add(op, "fold", {"x": reader.value(op, op.input(0))}, attrs)


def _float(kind: str, **attrs: tuple[str, int]) -> Handler:
    def read(reader: OnnxReader, op: OnnxOp) -> None:
        floats(reader, op)
        given: dict[str, Attr] = {ours: op.integer(*theirs) for ours, theirs in attrs.items()}
        reader.add(op, kind, {"x": reader.value(op, op.input(0))}, given)

    return read


inverse = _float("inverse")

OPS: dict[str, Handler] = {
    "GatherElements": _picks("gather_elements", "x", "indices", axis=("axis", 0)),
    "GatherND": _tuples(_picks("gather_nd", "x", "indices", batch=("batch_dims", 0))),
    "Scatter": _scatter("scatter_elements"),
    "ScatterElements": _scatter("scatter_elements"),
    "ScatterND": _tuples(_scatter("scatter_nd")),
    "OneHot": _one_hot,
    "NonZero": _picks("nonzero", "x"),
    "Unique": _unique,
    "Trilu": _trilu,
    "EyeLike": _eye,
    "ReverseSequence": _picks(
        "reverse_sequence", "x", "lengths", batch=("batch_axis", 1), time=("time_axis", 0)
    ),
    "Compress": _compress,
    "Hardmax": _hardmax,
    "Einsum": _einsum,
    "Col2Im": _fold,
    "Det": _float("det"),
    "LpNormalization": _float("lp_normalize", axis=("axis", -1), p=("p", 2)),
}

"""Convolutions, products, arithmetic, softmax, batch norm and casts, on floats."""

from __future__ import annotations

import numpy as np

from qir.errors import Refused
from qir.ir.attrs import Attr
from qir.ir.dims import Shape
from qir.ir.dtype import DType
from qir.ir.types import Array
from qir.ledger import Change

from .elements import FLOATS, dtype_of_number
from .elementwise_ops import keep_unless_floats
from .faults import refused_error
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader
from .windows import explicit_pads

_INTEGER_DTYPES = frozenset(("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"))
_SOFTMAX_OPS = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


def conv(reader: OnnxReader, op: OnnxOp) -> None:
    """Conv along one, two or three axes."""
    x, w = (reader.type_of(op, op.input(i)).shape for i in (0, 1))
    # The rank of the weights is the count of spatial axes plus 2; the language has conv1d to
    # conv3d.
    if not 3 <= len(x) == len(w) <= 5:
        raise KeepOperator
    operands = {s: reader.value(op, n) for s, n in zip(("x", "w", "bias"), op.inputs, strict=False)}
    reader.add(op, f"conv{len(x) - 2}d", operands, conv_attrs(op, x[2:], w))


def conv_attrs(op: OnnxOp, size: Shape, w: Shape) -> dict[str, Attr]:
    """Returns the attributes of a convolution.

    Raises KeepOperator for `auto_pad` of open sizes, InputError where kernel_shape and w differ.
    """
    axes, stated_kernel = len(w) - 2, op.integers("kernel_shape", ())
    kernel = tuple(d for d in w[2:] if isinstance(d, int))
    if stated_kernel and len(kernel) == axes and stated_kernel != kernel:
        raise op.error(
            f"kernel_shape is {'x'.join(map(str, stated_kernel))}, but w {'x'.join(map(str, w))}"
        )
    # The kernel's size is open, and SAME padding depends on it.
    if len(kernel) != axes and op.text("auto_pad", "NOTSET").startswith("SAME"):
        raise KeepOperator
    stride, dilation = (op.integers(n, (1,) * axes) for n in ("strides", "dilations"))
    return {
        "stride": stride,
        "pad": explicit_pads(op, size, kernel, stride, dilation, axes),
        "dilation": dilation,
        "groups": op.integer("group", 1),
    }


def conv_transpose(reader: OnnxReader, op: OnnxOp) -> None:
    """ConvTranspose along one to three axes with explicit padding; automatic padding is kept."""
    x, w = (reader.type_of(op, op.input(i)).shape for i in (0, 1))
    is_explicit = op.text("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if not 3 <= len(x) == len(w) <= 5 or op.attribute("output_shape") or not is_explicit:
        raise KeepOperator
    # output_shape would determine the padding, as automatic padding does; such an operator is kept.
    output_padding = op.integers("output_padding", (0,) * (len(x) - 2))
    operands = {s: reader.value(op, n) for s, n in zip(("x", "w", "bias"), op.inputs, strict=False)}
    attrs = {**conv_attrs(op, x[2:], w), "output_pad": output_padding}
    reader.add(op, f"conv_transpose{len(x) - 2}d", operands, attrs)


def matmul(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMul."""
    keep_unless_floats(reader, op)
    a, b = (reader.value(op, n) for n in op.inputs)
    reader.add(op, "matmul", {"a": a, "b": b})


def gemm(reader: OnnxReader, op: OnnxOp) -> None:
    """Gemm."""
    keep_unless_floats(reader, op)
    operands = {s: reader.value(op, n) for s, n in zip("abc", op.inputs, strict=False)}
    attrs: dict[str, Attr] = {
        "alpha": op.floating("alpha", 1.0),
        "beta": op.floating("beta", 1.0),
        "trans_a": op.integer("transA", 0) != 0,
        "trans_b": op.integer("transB", 0) != 0,
    }
    reader.add(op, "gemm", operands, attrs)


def binary(reader: OnnxReader, op: OnnxOp) -> None:
    """Add, Sub, Mul and Div; integers wrap, and Div truncates them toward zero."""
    element_types = {reader.type_of(op, n).dtype.name for n in op.inputs}
    if not element_types <= FLOATS and not element_types <= _INTEGER_DTYPES:
        raise KeepOperator
    # Floats and integers are not mixed: ONNX requires one type of both operands.
    a, b = [reader.value(op, n) for n in op.inputs]
    reader.add(op, op.type.lower(), {"a": a, "b": b})


def unary(reader: OnnxReader, op: OnnxOp) -> None:
    """Relu and Sigmoid."""
    keep_unless_floats(reader, op)
    reader.add(op, op.type.lower(), {"x": reader.value(op, op.input(0))})


def clip(reader: OnnxReader, op: OnnxOp) -> None:
    """Clip; its bounds are attributes before opset 11 and operands since."""
    if reader.type_of(op, op.input(0)).dtype.name in _INTEGER_CLIP_DTYPES:
        _clip_integers(reader, op)
        return
    keep_unless_floats(reader, op)
    # Before opset 11 an absent attribute is no bound.
    if op.opset < 11:
        limits = [op.floating(n, 0.0) if op.attribute(n) else None for n in ("min", "max")]
    else:
        limits = [_clip_bound(reader, op.input(1)), _clip_bound(reader, op.input(2))]
    bounds: dict[str, Attr] = {n: v for n, v in zip(("min", "max"), limits, strict=True)}
    reader.add(op, "clip", {"x": reader.value(op, op.input(0))}, bounds)


_INTEGER_CLIP_DTYPES = frozenset("i32 i64 u32 u64".split())
"""Integer types for which onnxruntime has Min and Max kernels, as which such a Clip is written."""


def _clip_integers(reader: OnnxReader, op: OnnxOp) -> None:
    """Clip of integers as max, then min: the bounds of `clip` are floats."""
    bounds = {
        k: reader.value(op, n) for k, n in zip(("max", "min"), op.inputs[1:], strict=False) if n
    }
    # Clip requires scalar bounds.
    if not bounds or any(v.type.rank for v in bounds.values()):
        raise KeepOperator
    value, last_op = reader.value(op, op.input(0)), list(bounds)[-1]
    for op_name, bound in bounds.items():
        name = (
            op.outputs[0]
            if op_name == last_op
            else reader.unused_name(f"{op.outputs[0]}.{op_name}")
        )
        value = reader.add(op, op_name, {"xs.0": value, "xs.1": bound}, names=[name]).result


def _clip_bound(reader: OnnxReader, name: str) -> float | None:
    if not name:
        return None
    data = reader.constant_data(name)
    # The result of a clip to NaN depends on the order of its comparisons.
    if data.size != 1 or data.dtype.kind == "O" or np.isnan(data.astype(np.float64)).any():
        raise KeepOperator
    return float(data.astype(np.float64).reshape(()))


def softmax(reader: OnnxReader, op: OnnxOp) -> None:
    """Softmax and LogSoftmax.

    Before opset 13 they work on the tensor flattened to a matrix at `axis`.
    """
    x = reader.value(op, op.input(0))
    rank = x.type.rank
    axis = op.integer("axis", -1 if op.opset >= 13 else 1)
    if not -rank <= axis < rank:
        raise op.error(f"axis {axis}, but its operand has {rank} axes")
    axis %= rank
    if op.opset >= 13 or all(d == 1 for d in x.type.shape[axis + 1 :]):
        reader.add(op, _SOFTMAX_OPS[op.type], {"x": x}, {"axis": axis})
        return
    shape = x.type.shape
    # A reshape cannot restore an empty tensor: 0 in its shape copies a size.
    if 0 in shape:
        raise KeepOperator
    _flat_softmax(reader, op, axis)


def _flat_softmax(reader: OnnxReader, op: OnnxOp, axis: int) -> None:
    graph, origin, name = reader.graph, [op.origin()], op.outputs[0]
    x = reader.value(op, op.input(0))
    flattened = graph.add(
        "flatten", {"x": x}, {"axis": axis}, name=reader.unused_name(f"{name}.flat"), origins=origin
    )
    softmax_node = graph.add(
        _SOFTMAX_OPS[op.type],
        {"x": flattened.result},
        name=reader.unused_name(f"{name}.rows"),
        origins=origin,
    )
    # The shape to restore: a constant with at most one -1, else the shape of x at run time.
    sizes, shape_name = (
        [d if isinstance(d, int) else -1 for d in x.type.shape],
        reader.unused_name(f"{name}.shape"),
    )
    if axis == 1 and sizes[0] == -1:
        sizes[0] = 0  # 0 copies the size of the matrix, whose rows are the first axis
    if sizes.count(-1) > 1:
        shape = graph.add("shape", {"x": x}, name=shape_name, origins=origin).result
    else:
        shape = graph.constant(Array.of(np.array(sizes, np.int64)), name=shape_name)
    reader.add(op, "reshape", {"x": softmax_node.result, "shape": shape}, types=[x.type])


def batch_norm(reader: OnnxReader, op: OnnxOp) -> None:
    """BatchNormalization in inference mode; Refused in training mode."""
    training = op.integer("training_mode", 0) != 0
    # More results are the running statistics, which training updates.
    if training or len(op.outputs) > 1:
        raise training_refusal(op)
    # spatial = 0 normalizes each element of a plane by statistics of its own.
    if op.opset < 9 and op.integer("spatial", 1) != 1:
        raise KeepOperator
    if abs(op.floating("momentum", 0.9) - 0.9) > 1e-6:
        reader.note(Change.DROPPED, op.outputs[0], "momentum, which only training uses")
    slots = ("x", "gamma", "beta", "mean", "var")
    operands = {s: reader.value(op, n) for s, n in zip(slots, op.inputs, strict=True)}
    reader.add(op, "batch_norm", operands, {"eps": op.floating("epsilon", 1e-5)})


def training_refusal(op: OnnxOp) -> Refused:
    """Returns the error for an op in training mode."""
    return refused_error(
        op.path, op.location, "is in training mode; export the model for inference"
    )


def _cast_types(reader: OnnxReader, op: OnnxOp) -> tuple[DType, DType]:
    """Returns the element types before and after a cast."""
    is_like = op.type == "CastLike"
    to = reader.type_of(op, op.input(1)).dtype if is_like else dtype_of_number(op.integer("to", 0))
    return reader.type_of(op, op.input(0)).dtype, to


def is_identity_cast(reader: OnnxReader, op: OnnxOp) -> bool:
    """Returns whether it is a cast to the element type of its operand, quantized or not."""
    if op.type not in ("Cast", "CastLike"):
        return False
    from_type, to = _cast_types(reader, op)
    return from_type == to


def cast(reader: OnnxReader, op: OnnxOp) -> None:
    """Cast and CastLike between numbers, which NumPy converts alike.

    A cast to its operand's own type is an alias, also of quantized values.
    """
    from_type, to = _cast_types(reader, op)
    # float8 and float4 casts saturate by an attribute, and strings parse numbers: both are kept.
    convertible = ("f16", "f32", "f64", "bf16", "bool", "i4", "u4", "i2", "u2", *_INTEGER_DTYPES)
    if to.name not in convertible or from_type.name not in convertible:
        raise KeepOperator
    if to == from_type:
        reader.alias(op.outputs[0], op.input(0))
        message = f"{op.type} of {op.input(0)} to the type that it has, taken out"
        reader.note(Change.EXACT, op.outputs[0], message)
        return
    reader.add(op, "cast", {"x": reader.value(op, op.input(0))}, {"to": to})


OPS = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MatMul": matmul,
    "Gemm": gemm,
    "Add": binary,
    "Sub": binary,
    "Mul": binary,
    "Div": binary,
    "Relu": unary,
    "Sigmoid": unary,
    "Clip": clip,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "BatchNormalization": batch_norm,
    "Cast": cast,
    "CastLike": cast,
}

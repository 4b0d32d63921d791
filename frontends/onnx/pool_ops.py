"""Pools along one to three axes, global pools, and MaxUnpool."""

from __future__ import annotations

from collections.abc import Callable

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dims import Shape

from .elementwise_ops import keep_unless_floats
from .moving_ops import add_moving_op
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader
from .windows import check_window_fits, explicit_pads

Handler = Callable[[OnnxReader, OnnxOp], None]
Ints = tuple[int, ...]


def _spatial_sizes(reader: OnnxReader, op: OnnxOp) -> Shape:
    """Returns the one to three spatial sizes; raises KeepOperator for other ranks."""
    shape = reader.type_of(op, op.input(0)).shape
    if not 3 <= len(shape) <= 5:
        raise KeepOperator
    return shape[2:]


def _window_attrs(op: OnnxOp, sizes: Shape, *, allows_dilation: bool) -> dict[str, Attr]:
    axes = len(sizes)
    kernel, stride = op.integers("kernel_shape", ()), op.integers("strides", (1,) * axes)
    dilation = op.integers("dilations", (1,) * axes)
    if not allows_dilation and set(dilation) != {1}:
        raise KeepOperator
    # onnxruntime has a newer kernel for these, whose windows may begin inside the data.
    has_newer_kernel = op.type == "LpPool" or (op.type == "AveragePool" and op.opset >= 19)
    shifts = has_newer_kernel or set(dilation) != {1}
    pad = explicit_pads(op, sizes, kernel, stride, dilation, axes, pool=True, shifts=shifts)
    ceil = op.integer("ceil_mode", 0) != 0
    if not ceil:
        check_window_fits(sizes, kernel, stride, pad, dilation)
    return {
        "kernel": kernel,
        "stride": stride,
        "pad": pad,
        **({"dilation": dilation} if allows_dilation else {}),
        "ceil": ceil,
    }


def _max(reader: OnnxReader, op: OnnxOp) -> None:
    """MaxPool; with indices as `max_pool_places`, if they count in row-major order."""
    sizes = _spatial_sizes(reader, op)
    attrs = _window_attrs(op, sizes, allows_dilation=True)
    if len(op.outputs) == 1:
        x = reader.value_to_move(op, op.input(0))
        add_moving_op(reader, op, f"max_pool{len(sizes)}d", {"x": x}, attrs)
        return
    x = reader.value(op, op.input(0))
    if x.type.quant or any(map(reader.has_qparams, op.outputs)) or not all(op.outputs):
        raise KeepOperator
    # Indices in column-major order.
    if op.integer("storage_order", 0):
        raise KeepOperator
    reader.add(op, "max_pool_places", {"x": x}, attrs)


def _average(reader: OnnxReader, op: OnnxOp) -> None:
    sizes = _spatial_sizes(reader, op)
    attrs = _window_attrs(op, sizes, allows_dilation=False)
    attrs["count_pad"] = op.integer("count_include_pad", 0) != 0
    reader.add(op, f"avg_pool{len(sizes)}d", {"x": reader.value(op, op.input(0))}, attrs)


def _lp(reader: OnnxReader, op: OnnxOp) -> None:
    keep_unless_floats(reader, op)
    sizes = _spatial_sizes(reader, op)
    attrs = {**_window_attrs(op, sizes, allows_dilation=True), "p": op.integer("p", 2)}
    reader.add(op, f"lp_pool{len(sizes)}d", {"x": reader.value(op, op.input(0))}, attrs)


def _global(op_name: str) -> Handler:
    def read(reader: OnnxReader, op: OnnxOp) -> None:
        keep_unless_floats(reader, op)
        _spatial_sizes(reader, op)
        attrs: dict[str, Attr] = {"p": op.integer("p", 2)} if op_name == "global_lp_pool" else {}
        reader.add(op, op_name, {"x": reader.value(op, op.input(0))}, attrs)

    return read


def _unpool(reader: OnnxReader, op: OnnxOp) -> None:
    """MaxUnpool; its sizes are the third operand or follow from the pool's window."""
    floats_of_x = reader.type_of(op, op.input(0)).dtype.is_float
    sizes = dims.known_shape(_spatial_sizes(reader, op))
    if not floats_of_x:
        raise KeepOperator
    if op.input(2):
        size = tuple(int(s) for s in reader.constant_data(op.input(2)).reshape(-1))[2:]
    elif sizes is None:
        raise KeepOperator
    else:
        axes = len(sizes)
        kernel, stride = op.integers("kernel_shape", ()), op.integers("strides", (1,) * axes)
        pad = op.integers("pads", (0,) * 2 * axes)
        if (len(kernel), len(stride), len(pad)) != (axes, axes, 2 * axes):
            raise op.error(f"kernel_shape, strides and pads are not for {axes} axes")
        axis_windows = zip(sizes, stride, kernel, pad[:axes], pad[axes:], strict=True)
        # The size of the image whose pool has these sizes.
        size = tuple((s - 1) * step + k - low - high for s, step, k, low, high in axis_windows)
    operands = {"x": reader.value(op, op.input(0)), "places": reader.value(op, op.input(1))}
    reader.add(op, "max_unpool", operands, {"size": size})


OPS: dict[str, Handler] = {
    "MaxPool": _max,
    "AveragePool": _average,
    "LpPool": _lp,
    "GlobalAveragePool": _global("global_avg_pool"),
    "GlobalMaxPool": _global("global_max_pool"),
    "GlobalLpPool": _global("global_lp_pool"),
    "MaxUnpool": _unpool,
}

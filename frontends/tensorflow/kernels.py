"""TensorFlow's own int8 kernels: QuantizeV2, Dequantize, fused convolutions and products.

Values carry ranges in TensorFlow. Here a range that is constant becomes the scale of a quantized
type that declares the range, and fused kernels become groups under the profile of oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.calls import infer
from qir.ir.dtype import F32, dtype
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array, Declared, Grain, QuantType, TensorType

from .call import Call, Keep
from .elements import CODES
from .windows import images, pads

F = np.float32
Reals = NDArray[np.float32]
PROFILE = "tf-2.21.onednn"
_LEVELS = {"u8": 255.0, "i8": 127.0, "i32": 2.0**31}
"""What the greatest reach of a range is divided by, by storage."""
_ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Attr]]] = {
    "Relu": ("relu", {}),
    "Relu6": ("clip", {"min": 0.0, "max": 6.0}),
    "Elu": ("elu", {}),
    "Tanh": ("tanh", {}),
    "Sigmoid": ("sigmoid", {}),
    "GeluExact": ("gelu", {}),
    "GeluApproximate": ("gelu", {"approximate": "tanh"}),
}


@dataclass(frozen=True)
class Range:
    """The ends of a range, one each or one a channel."""

    low: Reals
    high: Reals

    @property
    def reach(self) -> Reals:
        """The greater distance from zero."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    def type(self, storage: str, axis: int | None = None) -> QuantType:
        """Returns the type of quantized values that declares this range."""
        level = _LEVELS[storage]
        scales = (self.reach / F(level)).astype(F)
        ends = [tuple(float(v) for v in end) for end in (self.low, self.high)]
        if self.low.size > 8:
            held = [Array(end, TensorType(end.shape, F32)) for end in (self.low, self.high)]
            declared = Declared(held[0], held[1], level)
        else:
            declared = Declared(ends[0], ends[1], level)
        if axis is None or scales.size == 1:
            return QuantType(dtype(storage), F32, (float(scales[0]),), declared=declared)
        held_scales = Array(scales, TensorType(scales.shape, F32))
        grain = Grain(((axis, 1),))
        return QuantType(dtype(storage), F32, held_scales, (), grain, declared=declared)


def _range(call: Call, at: int) -> Range:
    low, high = (np.atleast_1d(call.known(i)).astype(F).reshape(-1) for i in (at, at + 1))
    if not (np.isfinite(low) & np.isfinite(high)).all() or not np.maximum(-low, high).all():
        raise Keep("one of its ranges is empty")
    return Range(low, high)


def _storage(call: Call, name: str) -> str:
    found = CODES.get(call.attr(name).type)
    if found not in _LEVELS:
        raise Keep(f"its {name} is no type of quantized values that is read")
    return found


def _ends(call: Call, found: Range) -> list[Value]:
    """Returns the two results that state the range of the first one."""
    single = found.low.size == 1
    ends = [(end[0] if single else end) for end in (found.low, found.high)]
    return [call.constant(np.asarray(end, F), "range") for end in ends]


def _quantize(call: Call) -> Sequence[Value]:
    call.reader.graph.profile = PROFILE
    mode, rounding = (
        call.text("mode", "MIN_COMBINED"),
        call.text("round_mode", "HALF_AWAY_FROM_ZERO"),
    )
    storage = _storage(call, "T")
    if mode != "SCALED":
        raise Keep(f"it is {mode}; SCALED is read")
    if call.whole("axis", -1) != -1:
        raise Keep("it has ranges along an axis")
    given, narrow = _range(call, 1), call.flag("narrow_range") and storage == "i8"
    reach, away = given.reach, rounding == "HALF_AWAY_FROM_ZERO"
    found = Range(-reach if storage == "i8" else F(0) * reach, reach)
    stated, attrs = found, {}
    if away or narrow:
        if (given.low != found.low).any() or (given.high != found.high).any():
            raise Keep("its range is not even; only HALF_TO_EVEN without narrow_range reads others")
        if (given.high - given.low < F(0.01) * np.maximum(F(1), reach)).any():
            raise Keep("its range is so small that TensorFlow widens it")
        attrs = {"round": "away"} if away else {}
    if away and storage == "i8" and not narrow:  # the range of -128 is stated
        gain = F(127) / reach
        stated = Range(F(-128) / gain, F(127) / gain)
    of = found.type(storage)
    kind = call[0].type.with_element(replace(of, bounds=(-127, 127)) if narrow else of)
    made = call.add_typed("quantize", {"x": call[0]}, dict(attrs), kind)
    return [made, *_ends(call, stated)]


def _read(call: Call, x: Value, stated: Range) -> Value:
    """Returns a quantized value as its reader takes it, by the range that this is given."""
    held = x.type.quant
    if held is None or str(held.storage) not in _LEVELS:
        raise Keep("its data are not quantized by constant ranges")
    said = replace(stated.type(str(held.storage)), bounds=held.bounds)
    if held.same_map(said):
        return x
    return call.add_typed("recode", {"x": x}, {}, x.type.with_element(said))


def _dequantize(call: Call) -> Value:
    call.reader.graph.profile = PROFILE
    if call.text("mode", "MIN_COMBINED") != "SCALED" or call.whole("axis", -1) != -1:
        raise Keep("only SCALED ranges of whole tensors are read")
    if call.has("dtype") and call.kind("dtype") != F32:
        raise Keep("its result is not float32")
    found, storage = _range(call, 1), _storage(call, "T")
    if storage == "i8" and (-found.low > found.high).any():  # Dequantize reads the end of -128
        reach = np.maximum(found.low / F(-128), found.high / F(127)) * F(127)
        found = Range(-reach, reach)
    return call.add("dequantize", {"x": _read(call, call[0], found)})


def _pool(op: str) -> Callable[[Call], Sequence[Value]]:
    def read(call: Call) -> Sequence[Value]:
        call.reader.graph.profile = PROFILE
        stated, where = _range(call, 1), images(call)
        x = _read(call, call[0], stated)
        kernel, stride = where.sides(call, "ksize"), where.sides(call, "strides")
        attrs: dict[str, Attr] = {
            "kernel": kernel,
            "stride": stride,
            "pad": pads(call, where, x.type.shape[1:3], kernel, stride),
            "layout": "NHWC",
        }
        (real,) = infer(op, {"x": x}, spec(op).complete(attrs), {})
        made = call.add_typed(op, {"x": x}, attrs, real.with_element(x.type.element))
        return [made, *_ends(call, stated)]

    return read


def _concat(call: Call) -> Sequence[Value]:
    call.reader.graph.profile = PROFILE
    count = call.whole("N")
    ends = [call.known(i).astype(F).reshape(-1) for i in range(count + 1, 3 * count + 1)]
    ranges = [Range(ends[i], ends[i + count]) for i in range(count)]
    parts = [_read(call, call[i], ranges[i]) for i in range(count)]
    axis = call.axis(count, parts[0].type.rank)
    low = np.min([r.low for r in ranges], axis=0)
    found = Range(low, np.max([r.high for r in ranges], axis=0))
    given = {f"xs.{i}": part for i, part in enumerate(parts)}
    attrs: dict[str, Attr] = {"axis": axis}
    (real,) = infer("concat", given, spec("concat").complete(attrs), {})
    kind = found.type(_storage(call, "T"))
    held = parts[0].type.quant
    if held is not None and held.same_map(kind):
        kind = held
    return [call.add_typed("concat", given, attrs, real.with_element(kind)), *_ends(call, found)]


@dataclass(frozen=True)
class _Form:
    """Where a fused op has its operands, and what it does after the sums."""

    stages: tuple[str, ...]
    legacy: bool = False

    def places(self) -> dict[str, int]:
        """Returns the index of each operand; ranges by their first end."""
        whole = ["x", "w", *(["bias"] if "BiasAdd" in self.stages else [])]
        summed = next((s for s in ("Sum", "Add") if s in self.stages), "")
        ends = ["x.range", "w.range"]
        out = ["result.range"] if "Requantize" in self.stages else []
        if self.legacy:
            order = [*whole, *ends, *out, *(["summand", "summand.range"] if summed else [])]
        else:
            mid = ["summand"] if summed else []
            more = ["summand.range"] if summed == "Sum" else []
            order = [*whole, *mid, *ends, *more, *out]
        found, at = {}, 0
        for name in order:
            found[name] = at
            at += 2 if name.endswith(".range") else 1
        return found


def _weights(call: Call, at: int, found: Range, perm: tuple[int, ...]) -> Value:
    """Returns constant weights with output channels first."""
    held = call[at].constant
    if held is None or held.type.dtype != dtype("i8") or held.type.quant:
        raise Keep("its filter is no constant of qint8")
    data = np.ascontiguousarray(held.data.transpose(perm))
    if "Depthwise" in call.node.op:
        data = data.reshape(-1, 1, *data.shape[2:])
    kind = TensorType(data.shape, found.type("i8", 0))
    array = Array(data, kind, call.reader.names(call.node, "weights"))
    return call.reader.graph.constant(array)


def _bias(call: Call, at: int, x: Range, w: Range, level: float) -> Value:
    """Returns the bias; a qint32 one has the scale of the sums."""
    bias = call[at]
    if bias.type.dtype == F32:
        return bias
    if bias.constant is None or bias.type.dtype != dtype("i32"):
        raise Keep("its bias is neither float32 nor a constant of qint32")
    step = F(1) / (F(level * 127) / (x.reach * w.reach)).astype(F)
    scale: tuple[float, ...] | Array = (float(step[0]),)
    if step.size > 1:
        scale = Array(step, TensorType(step.shape, F32))
    grain = Grain(((0, 1),)) if step.size > 1 else None
    kind = TensorType(bias.type.shape, QuantType(dtype("i32"), F32, scale, (), grain))
    held = Array(bias.constant.data, kind, call.reader.names(call.node, "bias"))
    return call.reader.graph.constant(held)


def _stages(
    call: Call, form: _Form, places: Mapping[str, int]
) -> Iterator[tuple[Stage, Value | None]]:
    """Yields what follows the sums, with the operand of a sum."""
    for name in form.stages:
        if name in ("BiasAdd", "Requantize", "Dequantize"):
            continue
        if name in ("Sum", "Add"):
            other = call[places["summand"]]
            if name == "Sum":
                other = _read(call, other, _range(call, places["summand.range"]))
            yield Stage("add", spec("add").complete({}), ("b",), flow="a"), other
        elif name == "LeakyRelu":
            alpha = call.real("leakyrelu_alpha", 0.2)
            attrs = spec("leaky_relu").complete({"alpha": alpha})
            yield Stage("leaky_relu", attrs, (), flow="x"), None
        elif name in _ACTIVATIONS:
            op, more = _ACTIVATIONS[name]
            yield Stage(op, spec(op).complete(dict(more)), (), flow="x"), None
        else:
            raise Keep(f"its stage {name} is not read")


def _kernel(
    call: Call,
    form: _Form,
    op: str,
    slots: tuple[str, str, str],
    attrs: dict[str, Attr],
    perm: tuple[int, ...],
) -> Sequence[Value]:
    """Adds a fused kernel; returns its result and the ends of the result's range."""
    graph, places = call.reader.graph, form.places()
    graph.profile = PROFILE
    data = call[places["x"]].type.quant
    if data is None or str(data.storage) not in ("u8", "i8"):
        raise Keep("its data are not quantized by constant ranges")
    x = _read(call, call[places["x"]], _range(call, places["x.range"]))
    of_x, of_w = _range(call, places["x.range"]), _range(call, places["w.range"])
    w = _weights(call, places["w"], of_w, perm)
    level = _LEVELS[str(data.storage)]
    operands = {slots[0]: x, slots[1]: w}
    if "bias" in places:
        operands[slots[2]] = _bias(call, places["bias"], of_x, of_w, level)
    if op == "conv2d":
        attrs["groups"] = _groups(x.type.shape[3], w)
    full = spec(op).complete(attrs)
    (real,) = infer(op, operands, full, {})
    found = _result_range(call, form, places, of_x, of_w, level)
    kind = real if found is None else real.with_element(found[1])
    stages, given = [Stage(op, full, tuple(operands))], dict(operands)
    for i, (stage, other) in enumerate(_stages(call, form, places), 1):
        stages.append(stage)
        if other is not None:
            given[f"{i}.b"] = other
    made = call.add_group(stages, given, kind)
    return [made] if found is None else [made, *_ends(call, found[0])]


def _groups(channels: object, w: Value) -> int:
    each = w.type.shape[1]
    if not isinstance(channels, int) or not isinstance(each, int):
        raise Keep("the number of its channels is not known")
    return channels // each


def _result_range(
    call: Call, form: _Form, places: Mapping[str, int], x: Range, w: Range, level: float
) -> tuple[Range, QuantType] | None:
    if "Dequantize" in form.stages:
        return None
    if "Requantize" in form.stages:
        found = _range(call, places["result.range"])
        return found, found.type(_storage(call, _OUT[call.node.op]))
    unit = ((x.reach / F(level)).astype(F) * (w.reach / F(127)).astype(F)).astype(F)
    most = np.asarray([unit.max()], F)
    whole = Range(-most * F(2.0**31), most * F(2.0**31))
    return whole, whole.type("i32")


def _convolution(form: Callable[[Call], _Form]) -> Callable[[Call], Sequence[Value]]:
    def read(call: Call) -> Sequence[Value]:
        where = images(call)
        if where.layout != "NHWC":
            raise Keep("its data_format is not NHWC")
        stride = where.sides(call, "strides")
        dilation = where.sides(call, "dilations", (1, 1, 1, 1))
        kernel = [size for size in call.shape(1)[:2] if isinstance(size, int)]
        sizes = call.shape(0)[1:3]
        attrs: dict[str, Attr] = {
            "stride": stride,
            "pad": pads(call, where, sizes, kernel, stride, dilation),
            "dilation": dilation,
            "layout": "NHWC",
        }
        perm = (2, 3, 0, 1) if "Depthwise" in call.node.op else (3, 2, 0, 1)
        return _kernel(call, form(call), "conv2d", ("x", "w", "bias"), attrs, perm)

    return read


def _product(call: Call) -> Sequence[Value]:
    modes = {call.text(name, "SCALED") for name in ("input_quant_mode", "output_quant_mode")}
    if modes != {"SCALED"} or call.flag("transpose_a"):
        raise Keep("only SCALED modes and data that are not transposed are read")
    form = _Form(call.texts("fused_ops"))
    if "BiasAdd" not in form.stages or not {"Requantize", "Dequantize"} & set(form.stages):
        raise Keep("TensorFlow computes it right with BiasAdd and Requantize or Dequantize alone")
    if call[2].type.dtype != F32:
        raise Keep("TensorFlow takes its qint32 bias as if the scale were 1; use a float bias")
    perm = (0, 1) if call.flag("transpose_b") else (1, 0)
    return _kernel(call, form, "linear", ("x", "w", "bias"), {}, perm)


def _stated(call: Call) -> _Form:
    return _Form(call.texts("fused_ops"))


_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "": (),
    "PerChannel": (),
    "AndRelu": ("Relu",),
    "AndRequantize": ("Requantize",),
    "AndReluAndRequantize": ("Relu", "Requantize"),
    "WithBias": ("BiasAdd",),
    "WithBiasAndRelu": ("BiasAdd", "Relu"),
    "WithBiasAndRequantize": ("BiasAdd", "Requantize"),
    "WithBiasAndReluAndRequantize": ("BiasAdd", "Relu", "Requantize"),
    "WithBiasSumAndReluAndRequantize": ("BiasAdd", "Sum", "Relu", "Requantize"),
    "WithBiasSignedSumAndReluAndRequantize": ("BiasAdd", "Sum", "Relu", "Requantize"),
}
LEGACY = {
    f"{stem}{suffix}": _Form(stages, legacy=True)
    for stem in ("QuantizedConv2D", "QuantizedDepthwiseConv2D")
    for suffix, stages in _SUFFIXES.items()
    if stem == "QuantizedConv2D"
    or suffix in ("", "WithBias", "WithBiasAndRelu", "WithBiasAndReluAndRequantize")
}
_OUT = {
    **dict.fromkeys(LEGACY, "out_type"),
    "_FusedQuantizedConv2D": "out_type",
    "_FusedQuantizedDepthwiseConv2D": "out_type",
    "_QuantizedMatMul": "Tout",
}
"""The attribute that names the type of the result."""
OPS: dict[str, Callable[[Call], Value | Sequence[Value]]] = {
    "QuantizeV2": _quantize,
    "Dequantize": _dequantize,
    "QuantizedMaxPool": _pool("max_pool2d"),
    "QuantizedAvgPool": _pool("avg_pool2d"),
    "QuantizedConcatV2": _concat,
    "_FusedQuantizedConv2D": _convolution(_stated),
    "_FusedQuantizedDepthwiseConv2D": _convolution(_stated),
    "_QuantizedMatMul": _product,
    **{name: _convolution(lambda call: LEGACY[call.node.op]) for name in LEGACY},
}

"""Writes ops whose scales and zero points are computed at run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, U8, DType
from qir.ir.node import Node, Use, Value
from qir.ir.ops import spec
from qir.ir.ops.graph import FREE_SLOT_OPS
from qir.ir.types import QuantType, TensorType
from qir.ledger import Change

from ..preparation.low_bit_weights import needs_fence
from . import chosen_ops, float_ops
from .elements import ELEMENT_TYPES, QUANTIZABLE
from .writer import STEP, AttrValue, OnnxWriter, OpToWrite

_KEPT_DEQUANTIZED = (
    "weights are dequantized before their product: a Max of one operand in between keeps "
    "onnxruntime's optimizer from replacing it by its integer kernel, which refuses many zero "
    "points "
    "of data"
)
_KEPT_16_BITS = (
    "weights are dequantized before their product: a Max of one operand in between keeps "
    "onnxruntime's optimizer, since 1.32, from rounding data of 16 bits to 8"
)


def parameter_operands(node: Node) -> dict[str, Value]:
    """Returns the operands that are parameters of a node's types: its companion slots."""
    if node.op in FREE_SLOT_OPS:
        return {}
    op_spec = spec(node.op)
    return {s: v for s, v in node.operands.items() if op_spec.is_companion(s)}


# -- ranges that a run finds ----------------------------------------------------------------------


def write_choose_qparams(writer: OnnxWriter, node: Node) -> None:
    """Writes DynamicQuantizeLinear, which also quantizes; other rules as primitive operators."""
    attrs = node.attrs
    scale, zero = node.results
    x = node.operands["x"]
    # DynamicQuantizeLinear: per tensor, asymmetric, u8 from float32 with the full range.
    is_full_range = not (attrs["symmetric"] or attrs["keep"] or attrs["bounds"])
    types = (attrs["storage"], zero.type.element, scale.type.element, x.type.element)
    if attrs["rule"] != "onnx.dynamic" or not is_full_range or types != (U8, U8, F32, F32):
        chosen_ops.write(writer, node)
        return
    # The operator quantizes too: quantizes of the same x by its results become aliases of y.
    quantizes = [use.node for use in scale.uses if _is_same_quantize(use.node, x, scale, zero)]
    quantized = (
        _integers_name(writer, quantizes[0]) if quantizes else writer.fresh(f"{scale.name}_codes")
    )
    outputs = [quantized, writer.name(scale), writer.name(zero)]
    writer.emit("DynamicQuantizeLinear", [writer.name(x)], outputs, origins=node.origins)
    for each in quantizes:
        writer.alias(each.result, quantized)


def _is_same_quantize(node: Node, x: Value, scale: Value, zero: Value) -> bool:
    """Returns whether a quantize makes the integers that DynamicQuantizeLinear makes."""
    if node.op != "quantize" or node.attrs["round"] not in ("", "even"):
        return False
    quant = node.result.type.quant
    expected = QuantType(U8, F32, None, None)
    return dict(node.operands) == {"x": x, "scale": scale, "zero": zero} and quant == expected


def _integers_name(writer: OnnxWriter, node: Node) -> str:
    """Returns the tensor name for DynamicQuantizeLinear's integers.

    It is that of an output, or of the raw integers that `recode` gives, so that no Identity is
    needed.
    """
    value = node.result
    if any(value is v for v in writer.graph.outputs.values()):
        return writer.name(value)
    raw = (u for u in value.users if u.op == "recode" and u.result.type.element == U8)
    return next((writer.name(u.result) for u in raw), writer.name(value))


# -- quantize and dequantize ----------------------------------------------------------------------


def quantize(writer: OnnxWriter, node: Node) -> None:
    """Writes QuantizeLinear with parameters from operands; nothing where DynamicQuantizeLinear
    did it."""
    value = node.result
    if not writer.is_alias(value):
        _write_quantize(writer, node, writer.name(node.operands["x"]), writer.name(value))


def _write_quantize(writer: OnnxWriter, node: Node, source: str, out: str) -> None:
    value = node.result
    quant = _checked_type(writer, node, value)
    writer.check_quantizable(node, quant)
    parameters = parameter_tensors(writer, node, "", value.type, node.op == "quantize")
    attrs = writer.scale_attrs(quant, value.type.shape, node)
    writer.emit("QuantizeLinear", [source, *parameters], [out], attrs, origins=node.origins)


def dequantize(writer: OnnxWriter, node: Node) -> None:
    """Writes DequantizeLinear with parameters from operands."""
    with with_barrier(writer, node) as out:
        _write_dequantize(writer, node, "x", out)


@contextmanager
def with_barrier(writer: OnnxWriter, node: Node) -> Iterator[str]:
    """Yields the output name for a dequantize, and adds a barrier after it where one is needed."""
    out = writer.name(node.result)
    reason = _KEPT_DEQUANTIZED if any(map(_would_be_fused, node.result.uses)) else ""
    if not reason and any(use.slot == "b" and needs_fence(use.node) for use in node.result.uses):
        reason = _KEPT_16_BITS
    if not reason:
        yield out
        return
    dequantized = writer.fresh(f"{out}_not_fused")
    yield dequantized
    _write_barrier(writer, dequantized, out, node.operands["x"], reason)


def _write_barrier(
    writer: OnnxWriter, source: str, out: str, quantized: Value, reason: str = _KEPT_DEQUANTIZED
) -> None:
    """Writes Max of one operand: an identity that the optimizer keeps."""
    writer.emit("Max", [source], [out])
    writer.ledger.add(Change.EXACT, STEP, quantized.name, reason)


def _would_be_fused(use: Use) -> bool:
    """Returns whether the optimizer would fuse an integer product whose kernel then fails.

    The kernel checks at load that the left side has one zero point. A barrier after the data would
    not do: weights alone make it MatMulNBits, which rounds data.
    """
    node = use.node
    if node.op in FREE_SLOT_OPS or spec(node.op).traits.weight != use.slot:
        return False
    data = node.operands[spec(node.op).traits.data]
    # With a source node, onnxruntime met this pattern in the user's model too: it is kept as it
    # was.
    is_dequantized = data.node.op == "dequantize"
    return not (is_dequantized and data.node.origins) and _has_many_computed_scales(
        data.node.operands["x"] if is_dequantized else data
    )


def _has_many_computed_scales(value: Value) -> bool:
    """Returns whether a value has several scales that are computed."""
    quant = value.type.quant
    return quant is not None and quant.dynamic and quant.granularity is not None


def requantize(writer: OnnxWriter, node: Node) -> None:
    """Writes DequantizeLinear and QuantizeLinear, with parameters from operands or types."""
    x, value = node.operands["x"], node.result
    out, quant = writer.name(value), value.type.quant
    assert quant is not None
    if x.type.quant is not None and x.type.quant.dynamic:
        floats = writer.fresh(f"{out}_QuantizeLinear_Input")
        _write_dequantize(writer, node, "x", floats)
    else:
        floats = writer.float_tensor(x, node)
    if quant.dynamic:
        _write_quantize(writer, node, floats, out)
    else:
        writer.quantize(floats, value.type, out, node, value.lineage.tensor)


def _write_dequantize(writer: OnnxWriter, node: Node, slot: str, out: str) -> None:
    value = node.operands[slot]
    quant = _checked_type(writer, node, value)
    parameters = parameter_tensors(writer, node, slot, value.type, False)
    attrs = writer.scale_attrs(quant, value.type.shape, node)
    origins = node.origins if node.op == "dequantize" else node.slot_origins.get(slot, ())
    writer.emit(
        "DequantizeLinear", [writer.name(value), *parameters], [out], attrs, origins=origins
    )


def _checked_type(writer: OnnxWriter, node: Node, value: Value) -> QuantType:
    """Returns a type whose parameters are operands; raises Refused for what ONNX cannot express."""
    quant = value.type.quant
    assert quant is not None
    unsupported = (
        quant.kind != "uniform" or quant.plus is not None or quant.storage.name not in QUANTIZABLE
    )
    if unsupported or quant.express.name not in ("f32", "f16"):
        raise writer.refuse(node, f"ONNX has no form here for quantized values of {quant}")
    if quant.bounds and value.constant is None:
        raise writer.refuse(
            node, f"ONNX types use the whole range of their storage; {quant} is narrower"
        )
    return quant


def parameter_tensors(
    writer: OnnxWriter, node: Node, slot: str, kind: TensorType, first_is_u8: bool
) -> list[str]:
    """Returns the tensors of scale and zero point, operands or constants of the type."""
    quant = kind.quant
    assert quant is not None
    prefix = f"{slot}." if slot else ""
    companions = {n: node.operands.get(f"{prefix}{n}") for n in ("scale", "zero", "min", "max")}
    if companions["min"] is not None or companions["max"] is not None:
        raise writer.refuse(node, "its parameters are a range; ONNX takes scale and zero point")
    scale = _parameter_tensor(writer, node, companions["scale"], quant, "scale", quant.express)
    # An absent zero point means u8 for QuantizeLinear: other storages need an explicit zero.
    if quant.zero == () and (not first_is_u8 or quant.storage == U8):
        return [scale]
    if quant.zero == ():
        scale_shape = companions["scale"].type.shape if companions["scale"] is not None else ()
        sizes = [d for d in scale_shape if isinstance(d, int)]
        if len(sizes) < len(scale_shape):
            raise writer.refuse(
                node, f"a zero point of {quant.storage} for scales of unknown count"
            )
        zeros = np.zeros(sizes, quant.storage.carrier)
        return [scale, writer.parameter(zeros, f"{node.name}_zero_point", None, quant.storage)]
    return [
        scale,
        _parameter_tensor(writer, node, companions["zero"], quant, "zero", quant.storage),
    ]


def _parameter_tensor(
    writer: OnnxWriter,
    node: Node,
    value: Value | None,
    quant: QuantType,
    name: str,
    required: DType,
) -> str:
    """Returns the tensor of one parameter, in the type and shape that ONNX requires."""
    if value is None:
        constants: NDArray[np.generic] = quant.scales() if name == "scale" else quant.zeros()
        return writer.parameter(
            np.asarray(constants).astype(required.carrier), f"{node.name}_{name}", None, required
        )
    source = writer.name(value)
    expected_rank = 0 if quant.granularity is None else 1
    # onnxruntime takes a list of one for a number, and does not reshape quantized values under a
    # byte.
    is_packed_scalar = value.type.dtype.bits < 8 and value.type.shape == (1,)
    if (
        (quant.granularity is None or quant.axis is not None)
        and value.type.rank > expected_rank
        and not is_packed_scalar
    ):
        shape = writer.constant(np.array([-1] * expected_rank, np.int64), f"{source}_shape")
        out = writer.fresh(f"{source}_flat")
        writer.emit("Reshape", [source, shape], [out])
        source = out
    if value.type.dtype == required:
        return source
    # Only an integer zero point may be cast: any other cast could change the value.
    if name == "scale" or not value.type.dtype.is_integer:
        raise writer.refuse(node, f"its {name} is {value.type.dtype}, ONNX takes {required} here")
    out = writer.fresh(f"{source}_{required}")
    writer.emit("Cast", [source], [out], {"to": ELEMENT_TYPES[required.name]})
    return out


# -- in float -------------------------------------------------------------------------------------


def write_in_float(writer: OnnxWriter, node: Node) -> None:
    """Writes a quantized op with computed parameters as dequantize, the op in float, quantize."""
    parameters = parameter_operands(node)
    operands = {s: v for s, v in node.operands.items() if s not in parameters}
    if node.inner:
        names = ", ".join(sorted(node.inner))
        raise writer.refuse(node, f"ONNX has no {node.op} that rounds {names} by computed numbers")
    if len(node.results) != 1:
        raise writer.refuse(
            node, f"{node.op} on quantized values whose parameters are computed has no form"
        )
    value = node.result
    out, quant = writer.name(value), value.type.quant
    ins: dict[str, str] = {}
    for slot, operand in operands.items():
        if operand.type.quant is not None and operand.type.quant.dynamic:
            ins[slot] = writer.fresh(f"{operand.name}_DequantizeLinear_Output")
            _write_dequantize(writer, node, slot, ins[slot])
        # A bias of int32 counts integer sums, so it is scaled; a float one is added as it is.
        elif operand.type.quant is None and slot == spec(node.op).traits.bias:
            is_integer = operand.type.dtype.is_integer
            work = OpToWrite.of(node.op, node.attrs, operands, value.type, out, node, node.origins)
            ins[slot] = dequantized_bias(writer, work, slot) if is_integer else writer.name(operand)
        else:
            ins[slot] = writer.float_tensor(operand, node)
        if operand.type.quant is not None and _would_be_fused(Use(node, slot)):
            unfenced, ins[slot] = ins[slot], writer.fresh(f"{ins[slot]}_fenced")
            _write_barrier(writer, unfenced, ins[slot], operand)
    float_result = out if quant is None else writer.fresh(f"{out}_QuantizeLinear_Input")
    kind = value.type.with_element(value.type.express)
    work = OpToWrite.of(node.op, node.attrs, operands, kind, float_result, node, node.origins)
    float_ops.write(writer, work, {s: ins[s] for s in work.operands})
    if quant is not None and quant.dynamic:
        _write_quantize(writer, node, float_result, out)
    elif quant is not None:
        writer.quantize(float_result, value.type, out, node, value.lineage.tensor)
    writer.report_float_form(node.op, node, out)


def dequantized_bias(writer: OnnxWriter, work: OpToWrite, slot: str) -> str:
    """Returns an int32 bias as floats: times the product of both scales, and alpha."""
    traits = spec(work.op).traits
    bias = work.operands[slot]
    out = writer.fresh(f"{bias.name}_real")
    casted = writer.fresh(f"{bias.name}_Cast")
    writer.emit("Cast", [writer.name(bias)], [casted], {"to": ELEMENT_TYPES["f32"]})
    # bias = integers * scale(data) * scale(weight) * alpha, the unit of the accumulator.
    unit = ""
    for side in (traits.data, traits.weight or ""):
        kind = work.operands[side].type
        if kind.quant is None or kind.quant.express != F32:
            reason = f"its bias counts integer sums, and its {side} is {kind.element}"
            raise writer.refuse(work.node, f"{reason}; give it a bias of {kind.express}")
        scale = parameter_tensors(writer, work.node, side, kind, False)[0]
        unit = _write_mul(writer, unit, scale, f"{bias.name}_unit") if unit else scale
    alpha = work.attrs.get("alpha", 1.0)
    if isinstance(alpha, float) and alpha != 1.0:
        gain = writer.constant(np.asarray(alpha, np.float32), f"{bias.name}_gain")
        unit = _write_mul(writer, unit, gain, f"{bias.name}_gained")
    writer.emit("Mul", [casted, unit], [out])
    return out


def _write_mul(writer: OnnxWriter, a: str, b: str, name: str) -> str:
    out = writer.fresh(name)
    writer.emit("Mul", [a, b], [out])
    return out


# -- types ----------------------------------------------------------------------------------------


def recode(writer: OnnxWriter, node: Node) -> None:
    """Writes at most an Identity: integers have no type in ONNX."""
    x, value = node.operands["x"], node.result
    if x.type.dtype != value.type.dtype:
        raise writer.refuse(
            node, f"ONNX has no form for the bits of {x.type.dtype} as {value.type.dtype}"
        )
    _alias(writer, writer.name(x), value)


def _alias(writer: OnnxWriter, source: str, value: Value) -> None:
    """Makes a value another tensor; an output of the model is a copy of it."""
    if writer.name(value) == source:
        return
    if any(value is v for v in writer.graph.outputs.values()):
        writer.emit("Identity", [source], [writer.name(value)])
    else:
        writer.alias(value, source)


def qparams(writer: OnnxWriter, node: Node) -> None:
    """Writes the parameters of a type: companion tensors, or constants."""
    quant = node.operands["x"].type.quant
    assert quant is not None
    names = ("scale", "zero") if node.attrs["give"] == "numbers" else ("min", "max")
    for name, value in zip(names, node.results, strict=True):
        if (companion := node.operands.get(f"x.{name}")) is not None:
            _alias(writer, writer.name(companion), value)
        elif name in ("min", "max"):
            raise writer.refuse(
                node, "ONNX has no form for the range of a type; read scale and zero"
            )
        else:
            parameters = np.asarray(quant.scales() if name == "scale" else quant.zeros())
            data = parameters.astype(value.type.dtype.carrier)
            _alias(writer, writer.constant(data, f"{value.name}_held"), value)


def fake_quantize(writer: OnnxWriter, node: Node) -> None:
    """Writes QuantizeLinear and DequantizeLinear by the type of the inner slot; how to train is
    dropped."""
    source, value = writer.name(node.operands["x"]), node.result
    quantized_type = node.inner.get("code")
    if node.attrs["enabled"] is not True:
        _alias(writer, source, value)
        return
    if not isinstance(quantized_type, QuantType):
        raise writer.refuse(node, "its inner slot code says no quantized type")
    out, quantized = writer.name(value), writer.fresh(f"{writer.name(value)}_codes")
    kind = value.type.with_element(quantized_type)
    if quantized_type.bounds:
        raise writer.refuse(
            node, f"ONNX types use the whole range of their storage; {quantized_type} is narrower"
        )
    if quantized_type.dynamic:
        parameters = parameter_tensors(writer, node, "code", kind, True)
    else:
        writer.check(node, quantized_type, constant=False)
        parameters = list(
            writer.parameter_names(quantized_type, f"{value.lineage.tensor}_code", node)
        )
    attrs: dict[str, AttrValue] = (
        {} if quantized_type.axis is None else {"axis": quantized_type.axis}
    )
    writer.emit("QuantizeLinear", [source, *parameters], [quantized], attrs)
    writer.emit("DequantizeLinear", [quantized, *parameters], [out], attrs)
    # QuantizeLinear and DequantizeLinear have no gradient rule.
    if node.attrs["learn"]:
        reason = f"{node.attrs['learn']!s}: how training changes scale and zero point"
        writer.ledger.add(Change.DROPPED, STEP, out, reason)


# -- integer sums ---------------------------------------------------------------------------------


def write_integer_product(writer: OnnxWriter, node: Node) -> None:
    """Writes MatMulInteger or ConvInteger; a missing zero point before another is an empty name."""
    slots = ("a", "b") if node.op == "matmul_integer" else ("x", "w")
    names = [*slots, *(f"{s}.zero" for s in slots)]
    inputs = [writer.name(node.operands[n]) if n in node.operands else "" for n in names]
    # Trailing optional operands are left out; one in between stays as an empty name.
    while not inputs[-1]:
        inputs.pop()
    if node.op == "matmul_integer":
        op, attrs = "MatMulInteger", dict[str, AttrValue]()
    else:
        op, attrs = "ConvInteger", _conv_attrs(node)
    writer.emit(op, inputs, [writer.name(node.result)], attrs, origins=node.origins)


def _conv_attrs(node: Node) -> dict[str, AttrValue]:
    kernel = node.operands["w"].type.shape[2:]
    sizes = tuple(k for k in kernel if isinstance(k, int))
    attrs: dict[str, AttrValue] = {"group": _groups(node.attrs)}
    for theirs, ours in (("dilations", "dilation"), ("pads", "pad"), ("strides", "stride")):
        value = node.attrs[ours]
        assert isinstance(value, tuple)
        if value:
            attrs[theirs] = tuple(v for v in value if isinstance(v, int))
    return {**attrs, **({"kernel_shape": sizes} if len(sizes) == len(kernel) else {})}


def _groups(attrs: Mapping[str, object]) -> int:
    value = attrs["groups"]
    assert isinstance(value, int)
    return value


OPS = {
    "choose_qparams": write_choose_qparams,
    "recode": recode,
    "qparams": qparams,
    "fake_quantize": fake_quantize,
    "matmul_integer": write_integer_product,
    "conv_integer": write_integer_product,
}
"""Ops that are written here whatever their operands are."""

"""If, Loop and Scan: their subgraphs become bodies, which are closed.

A tensor that a subgraph captures becomes an operand of the node and an input of the body; a
captured constant is copied into it. Quantized values keep their type across the boundary where
both sides state it, and are plain integers otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx

from qir.errors import GraphError, TypeRuleError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.calls import infer_result_types
from qir.ir.dtype import BOOL, I64, DType, join_dtypes
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Element, QuantType, TensorType
from qir.ledger import Ledger

from . import dynamic_ops
from .op import KeepOperator, OnnxOp, captured_names
from .reader import OnnxReader

_MAX_TYPE_ROUNDS = 8


def _if(reader: OnnxReader, op: OnnxOp) -> None:
    branches = {"then": op.graph("then_branch"), "else": op.graph("else_branch")}
    captured = _captured_values(reader, op, *branches.values())
    inputs = [(name, value.type) for name, value in captured.items()]
    bodies = {}
    for name, proto in branches.items():
        if proto.input:
            raise op.error(f"{name} takes inputs; a branch has none")
        bodies[name] = reader.read_body(reader, proto, inputs, reader.ledger)
    _unify_branch_outputs(reader, op, list(bodies.values()))
    outputs = [list(body.outputs.values()) for body in bodies.values()]
    if any(a.type.rank != b.type.rank for a, b in zip(*outputs, strict=False)):
        raise KeepOperator  # branches of different ranks: that of the result is unknown
    operands = {"cond": reader.value(op, op.input(0)), **_numbered_slots("xs", captured.values())}
    _add(reader, op, "if", operands, {}, bodies)


def _loop(reader: OnnxReader, op: OnnxOp) -> None:
    proto = op.graph("body")
    captured = _captured_values(reader, op, proto)
    carried = _loop_carried_values(reader, op, op.inputs[2:])
    if len(proto.input) != len(carried) + 2:
        raise op.error(f"carries {len(carried)} values, its body takes {len(proto.input)}")
    # The iteration count and the condition are the first two inputs of a body.
    input_types = [TensorType((), I64), TensorType((), BOOL), *(value.type for value in carried)]
    body = _body_of_stable_types(
        reader, op, proto, input_types, captured, first_input=2, first_output=1, count=len(carried)
    )
    _retype_stacked_outputs(reader, op, body, first_output=1, count=len(carried))
    operands = {**_numbered_slots("vs", carried), **_numbered_slots("xs", captured.values())}
    for slot, name in zip(("count", "cond"), op.inputs[:2], strict=False):
        if name:
            operands[slot] = reader.value(op, name)
    _add(reader, op, "loop", operands, {}, {"body": body})


def _scan(reader: OnnxReader, op: OnnxOp) -> None:
    if op.opset < 9:
        raise KeepOperator(
            "Scan of opset 8 has an axis of batches; convert the model to opset 9 or newer"
        )
    proto, count = op.graph("body"), op.integer("num_scan_inputs", 1)
    state_count = len(op.inputs) - count
    if not 0 < count <= len(op.inputs) or len(proto.input) != len(op.inputs):
        raise op.error(f"has {len(op.inputs)} operands, its body takes {len(proto.input)}")
    values = _loop_carried_values(reader, op, op.inputs[:state_count])
    values += [
        _as_passed_to_body(reader, op, reader.value(op, name), sliced=True)
        for name in op.inputs[state_count:]
    ]
    captured = _captured_values(reader, op, proto)
    axes = op.integers("scan_input_axes", ()) or (0,) * count
    element_types = []
    for value, axis in zip(values[state_count:], axes, strict=True):
        # The body sees one element of the scanned axis, without that axis.
        shape, rank = value.type.shape, value.type.rank
        if not -rank <= axis < rank:
            raise KeepOperator
        element_types.append(
            value.type.with_shape((*shape[: axis % rank], *shape[axis % rank + 1 :]))
        )
    input_types = [*(value.type for value in values[:state_count]), *element_types]
    body = _body_of_stable_types(
        reader, op, proto, input_types, captured, first_input=0, first_output=0, count=state_count
    )
    _retype_stacked_outputs(reader, op, body, first_output=0, count=state_count)
    attrs: dict[str, Attr] = {
        "axes": op.integers("scan_input_axes", ()),
        "reverse": op.integers("scan_input_directions", ()),
        "out_axes": op.integers("scan_output_axes", ()),
        "out_reverse": op.integers("scan_output_directions", ()),
    }
    operands = {
        **_numbered_slots("vs", values[:state_count]),
        **_numbered_slots("ss", values[state_count:]),
        **_numbered_slots("xs", captured.values()),
    }
    _add(reader, op, "scan", operands, attrs, {"body": body})


OPS: dict[str, Callable[[OnnxReader, OnnxOp], None]] = {"If": _if, "Loop": _loop, "Scan": _scan}


def _captured_values(reader: OnnxReader, op: OnnxOp, *graphs: onnx.GraphProto) -> dict[str, Value]:
    """Returns the computed tensors that subgraphs capture, by name."""
    names = dict.fromkeys(name for graph in graphs for name in captured_names(graph))
    computed = [name for name in names if not reader.is_constant(name)]
    return {name: _as_passed_to_body(reader, op, reader.value(op, name)) for name in computed}


# -- quantized values -----------------------------------------------------------------------------


def _as_passed_to_body(
    reader: OnnxReader, op: OnnxOp, value: Value, *, sliced: bool = False
) -> Value:
    """Returns a value as it enters a body: plain integers for types that cannot cross.

    Those are types with computed parameters, whose operands would stay outside, and per-channel
    types of a value that Scan slices.
    """
    quant = value.type.quant
    if quant is None or not (quant.dynamic or (sliced and quant.granularity)):
        return value
    return dynamic_ops.recode_once(reader, op, value, value.type.with_element(quant.storage), "raw")


def _loop_carried_values(reader: OnnxReader, op: OnnxOp, names: Sequence[str]) -> list[Value]:
    """Returns the initial values of what a loop carries.

    Plain integers take the quantized type with which consumers read the final ones.
    """
    values = []
    for name, output in zip(names, [*op.outputs, *("" for _ in names)], strict=False):
        value = _as_passed_to_body(reader, op, reader.value(op, name))
        quant = reader.inferred_quant_type(output, value.type)
        values.append(dynamic_ops.as_quantized(reader, op, name, quant) if quant else value)
    return values


def _retype_stacked_outputs(
    reader: OnnxReader, op: OnnxOp, body: Graph, first_output: int, count: int
) -> None:
    """Gives the stacked outputs of a body the quantized type that their consumers state."""
    slots = list(body.outputs)[first_output + count :]
    for slot, output in zip(slots, op.outputs[count:], strict=False):
        _retype_output(body, slot, reader.inferred_quant_type(output, body.outputs[slot].type))


def _unify_branch_outputs(reader: OnnxReader, op: OnnxOp, bodies: Sequence[Graph]) -> None:
    """Gives the outputs of branches one type: their common one, else that of the consumers."""
    slots = [list(body.outputs) for body in bodies]
    for output, *slot_pair in zip(op.outputs, *slots, strict=False):
        types = [body.outputs[slot].type for body, slot in zip(bodies, slot_pair, strict=True)]
        elements = {kind.element for kind in types}
        common = elements.pop() if len(elements) == 1 else None
        # Branches of different quantized types, or of computed parameters, return plain integers.
        if common is None or (isinstance(common, QuantType) and common.dynamic):
            common = types[0].dtype
        if isinstance(common, DType):
            common = (
                reader.inferred_quant_type(output, TensorType(types[0].shape, common)) or common
            )
        for body, slot in zip(bodies, slot_pair, strict=True):
            _retype_output(body, slot, common)


def _retype_output(body: Graph, slot: str, element: Element | None) -> None:
    """Recodes an output of a body to another type of the same bits; leaves other types alone."""
    value = body.outputs[slot]
    value_type = value.type
    old_quant, new_quant = value_type.quant, element if isinstance(element, QuantType) else None
    if element is None or value_type.element == element or not (old_quant or new_quant):
        return
    if value_type.dtype != (new_quant.storage if new_quant else element):
        return
    # A recode back to the type of its operand is left out: the operand itself is returned.
    source = value.node.operands.get("x") if value.node.op == "recode" else None
    if source is None or source.type.element != element:
        name = body.fresh(f"{value.name}_{'meant' if new_quant else 'raw'}")
        recoded = body.add(
            "recode", {"x": value}, types=[value_type.with_element(element)], name=name
        )
        source = recoded.result
    body.set_operand(body.output, slot, source)


# -- the node -------------------------------------------------------------------------------------


def _numbered_slots(prefix: str, values: Iterable[Value]) -> dict[str, Value]:
    return {f"{prefix}.{i}": value for i, value in enumerate(values)}


def _body_of_stable_types(
    reader: OnnxReader,
    op: OnnxOp,
    proto: onnx.GraphProto,
    input_types: Sequence[TensorType],
    captured: Mapping[str, Value],
    *,
    first_input: int,
    first_output: int,
    count: int,
) -> Graph:
    """Returns the body with types of the carried values that hold in every iteration.

    `count` values are carried: from input `first_input` on, and from output `first_output` on. The
    body is read again with the union of the types before and after an iteration, until nothing
    changes; a size that changes becomes open.
    """
    input_types = [
        _declared_input_type(reader, op, info, operand_type)
        for info, operand_type in zip(proto.input, input_types, strict=True)
    ]
    names = [info.name for info in proto.input]
    captured_types = [(name, value.type) for name, value in captured.items()]
    for _ in range(_MAX_TYPE_ROUNDS):
        ledger = Ledger()  # of the last reading only, so that no line is there twice
        inputs = [*zip(names, input_types, strict=True), *captured_types]
        body = reader.read_body(reader, proto, inputs, ledger)
        slots = list(body.outputs)[first_output : first_output + count]
        if len(slots) < count:
            raise op.error(f"carries {count} values, its body gives {len(body.outputs)}")
        # An output may state no quantized type though the input has one: the integers are the same.
        for slot, kind in zip(slots, input_types[first_input : first_input + count], strict=True):
            _retype_output(body, slot, kind.element)
        output_types = [body.outputs[slot].type for slot in slots]
        common = [
            _common_type(op, a, b)
            for a, b in zip(
                input_types[first_input : first_input + count], output_types, strict=True
            )
        ]
        if common == input_types[first_input : first_input + count]:
            reader.ledger.extend(ledger)
            return body
        input_types = [*input_types[:first_input], *common, *input_types[first_input + count :]]
    raise op.error("its carried values find no shape that holds in every round")


def _declared_input_type(
    reader: OnnxReader, op: OnnxOp, info: onnx.ValueInfoProto, operand_type: TensorType
) -> TensorType:
    """Returns the type of a body's input: as the file declares it, else as its operand has it."""
    stated = reader.dims.tensor_type(info.type)
    if stated is None:
        return operand_type
    if operand_type.dtype.is_opaque:
        return operand_type
    if stated.dtype != operand_type.dtype or (
        stated.rank != operand_type.rank and operand_type.rank
    ):
        raise op.error(f"its body takes {stated} as {info.name!r}, it gets {operand_type}")
    # A scalar may be declared as a list of one element.
    if not operand_type.rank:
        return stated.with_element(operand_type.element) if stated.rank <= 1 else operand_type
    sizes = zip(stated.shape, operand_type.shape, strict=True)
    return operand_type.with_shape(tuple(b if a is None else a for a, b in sizes))


def _common_type(op: OnnxOp, a: TensorType, b: TensorType) -> TensorType:
    element = a.element if a.element == b.element else None
    if element is None and not (a.quant or b.quant):
        # Opaque types differ in shapes that they state: their union is less specific.
        element = join_dtypes(a.dtype, b.dtype)
    if element is None and (a.dtype.is_opaque or b.dtype.is_opaque):
        raise KeepOperator
    if a.rank != b.rank:
        raise KeepOperator  # the rank changes from iteration to iteration
    if element is None:
        raise op.error(f"a carried value is {a} before a round and {b} after it")
    sizes = zip(a.shape, b.shape, strict=True)
    return TensorType(tuple(x if x == y else None for x, y in sizes), element)


def _add(
    reader: OnnxReader,
    op: OnnxOp,
    op_name: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    bodies: Mapping[str, Graph],
) -> None:
    try:
        types = infer_result_types(op_name, operands, attrs, bodies)
    except (TypeRuleError, GraphError) as error:
        raise op.error(str(error)) from error
    # Results that the file leaves out have names too, since the node has all of them.
    outputs = [*op.proto.output, *("" for _ in types)][: len(types)]
    if len(op.outputs) > len(types):
        raise op.error(f"names {len(op.outputs)} results, its body makes {len(types)}")
    names = [name or reader.unused_name(f"{op.outputs[0]}.{i}") for i, name in enumerate(outputs)]
    refined = [
        _with_declared_sizes(result_type, reader.declared_types.get(n))
        for result_type, n in zip(types, names, strict=True)
    ]
    reader.add(op, op_name, operands, attrs, types=refined, names=names, bodies=bodies)


def _with_declared_sizes(inferred: TensorType, stated: TensorType | None) -> TensorType:
    """Returns a type whose open sizes are those that the file declares."""
    if stated is None or stated.rank != inferred.rank:
        return inferred
    pairs = zip(inferred.shape, stated.shape, strict=True)
    if not all(dims.may_be_equal(a, b) for a, b in zip(inferred.shape, stated.shape, strict=True)):
        return inferred
    return inferred.with_shape(tuple(b if a is None else a for a, b in pairs))

"""If, Loop and Scan: their graphs become bodies, which see their own inputs alone.

What a graph uses from outside comes in as an operand of the node; a constant is seen through.
Quantized values come in and go out with their map where both sides have one, else as the bits they
are.
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
from .op import KeepOperator, OnnxOp, free_names
from .reader import OnnxReader

_MOST_ROUNDS = 8


def _if(reader: OnnxReader, op: OnnxOp) -> None:
    branches = {"then": op.graph("then_branch"), "else": op.graph("else_branch")}
    given = _captured(reader, op, *branches.values())
    takes = [(name, value.type) for name, value in given.items()]
    bodies = {}
    for name, proto in branches.items():
        if proto.input:
            raise op.fail(f"{name} takes inputs; a branch has none")
        bodies[name] = reader.read_body(reader, proto, takes, reader.ledger)
    _alike(reader, op, list(bodies.values()))
    made = [list(body.outputs.values()) for body in bodies.values()]
    if any(a.type.rank != b.type.rank for a, b in zip(*made, strict=False)):
        raise KeepOperator  # nobody knows then how many axes the result has
    operands = {"cond": reader.value(op, op.input(0)), **_slots("xs", given.values())}
    _add(reader, op, "if", operands, {}, bodies)


def _loop(reader: OnnxReader, op: OnnxOp) -> None:
    proto = op.graph("body")
    given = _captured(reader, op, proto)
    carried = _carried(reader, op, op.inputs[2:])
    if len(proto.input) != len(carried) + 2:
        raise op.fail(f"carries {len(carried)} values, its body takes {len(proto.input)}")
    kinds = [TensorType((), I64), TensorType((), BOOL), *(value.type for value in carried)]
    body = _settled(reader, op, proto, kinds, given, first=2, made=1, count=len(carried))
    _told(reader, op, body, made=1, count=len(carried))
    operands = {**_slots("vs", carried), **_slots("xs", given.values())}
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
    n = len(op.inputs) - count
    if not 0 < count <= len(op.inputs) or len(proto.input) != len(op.inputs):
        raise op.fail(f"has {len(op.inputs)} operands, its body takes {len(proto.input)}")
    values = _carried(reader, op, op.inputs[:n])
    values += [_crossing(reader, op, reader.value(op, name), cut=True) for name in op.inputs[n:]]
    given = _captured(reader, op, proto)
    axes = op.integers("scan_input_axes", ()) or (0,) * count
    entries = []
    for value, axis in zip(values[n:], axes, strict=True):
        shape, rank = value.type.shape, value.type.rank
        if not -rank <= axis < rank:
            raise KeepOperator
        entries.append(value.type.with_shape((*shape[: axis % rank], *shape[axis % rank + 1 :])))
    kinds = [*(value.type for value in values[:n]), *entries]
    body = _settled(reader, op, proto, kinds, given, first=0, made=0, count=n)
    _told(reader, op, body, made=0, count=n)
    attrs: dict[str, Attr] = {
        "axes": op.integers("scan_input_axes", ()),
        "reverse": op.integers("scan_input_directions", ()),
        "out_axes": op.integers("scan_output_axes", ()),
        "out_reverse": op.integers("scan_output_directions", ()),
    }
    operands = {
        **_slots("vs", values[:n]),
        **_slots("ss", values[n:]),
        **_slots("xs", given.values()),
    }
    _add(reader, op, "scan", operands, attrs, {"body": body})


OPS: dict[str, Callable[[OnnxReader, OnnxOp], None]] = {"If": _if, "Loop": _loop, "Scan": _scan}


def _captured(reader: OnnxReader, op: OnnxOp, *graphs: onnx.GraphProto) -> dict[str, Value]:
    """Returns what graphs use from outside and is computed there, by the name they use."""
    names = dict.fromkeys(name for graph in graphs for name in free_names(graph))
    computed = [name for name in names if not reader.is_constant(name)]
    return {name: _crossing(reader, op, reader.value(op, name)) for name in computed}


# -- quantized values -----------------------------------------------------------------------------


def _crossing(reader: OnnxReader, op: OnnxOp, value: Value, *, cut: bool = False) -> Value:
    """Returns a value as graphs take it: quantized values whose numbers are next to them are their
    bits.

    So are those with several scales where one entry after the other is cut off.
    """
    quant = value.type.quant
    if quant is None or not (quant.dynamic or (cut and quant.granularity)):
        return value
    return dynamic_ops.recoded(reader, op, value, value.type.with_element(quant.storage), "raw")


def _carried(reader: OnnxReader, op: OnnxOp, names: Sequence[str]) -> list[Value]:
    """What is carried: raw integers have the quantized type that the last ones are read with."""
    values = []
    for name, out in zip(names, [*op.outputs, *("" for _ in names)], strict=False):
        value = _crossing(reader, op, reader.value(op, name))
        meaning = reader.meaning(out, value.type)
        values.append(dynamic_ops.meant(reader, op, name, meaning) if meaning else value)
    return values


def _told(reader: OnnxReader, op: OnnxOp, body: Graph, made: int, count: int) -> None:
    """Lets a body give parts as quantized values of the quantized type that all of them are read
    with."""
    slots = list(body.outputs)[made + count :]
    for slot, out in zip(slots, op.outputs[count:], strict=False):
        _give(body, slot, reader.meaning(out, body.outputs[slot].type))


def _alike(reader: OnnxReader, op: OnnxOp, bodies: Sequence[Graph]) -> None:
    """Lets branches give integers of one quantized type: the one that both have, else that of who
    reads them."""
    slots = [list(body.outputs) for body in bodies]
    for out, *pair in zip(op.outputs, *slots, strict=False):
        kinds = [body.outputs[slot].type for body, slot in zip(bodies, pair, strict=True)]
        held = {kind.element for kind in kinds}
        one = held.pop() if len(held) == 1 else None
        if one is None or (isinstance(one, QuantType) and one.dynamic):
            one = kinds[0].dtype
        if isinstance(one, DType):
            one = reader.meaning(out, TensorType(kinds[0].shape, one)) or one
        for body, slot in zip(bodies, pair, strict=True):
            _give(body, slot, one)


def _give(body: Graph, slot: str, element: Element | None) -> None:
    """Lets a body give the bits of a result as another type; only quantized values are read so."""
    value = body.outputs[slot]
    kind = value.type
    old, new = kind.quant, element if isinstance(element, QuantType) else None
    if element is None or kind.element == element or not (old or new):
        return
    if kind.dtype != (new.storage if new else element):
        return
    source = value.node.operands.get("x") if value.node.op == "recode" else None
    if source is None or source.type.element != element:
        name = body.fresh(f"{value.name}_{'meant' if new else 'raw'}")
        made = body.add("recode", {"x": value}, types=[kind.with_element(element)], name=name)
        source = made.result
    body.set_operand(body.output, slot, source)


# -- the node -------------------------------------------------------------------------------------


def _slots(prefix: str, values: Iterable[Value]) -> dict[str, Value]:
    return {f"{prefix}.{i}": value for i, value in enumerate(values)}


def _settled(
    reader: OnnxReader,
    op: OnnxOp,
    proto: onnx.GraphProto,
    kinds: Sequence[TensorType],
    given: Mapping[str, Value],
    *,
    first: int,
    made: int,
    count: int,
) -> Graph:
    """Returns the body under types of the carried values that hold in every round.

    `count` values are carried: from input `first` on, and from output `made` on. A size that
    changes from round to round is unknown.
    """
    kinds = [_stated(reader, op, info, k) for info, k in zip(proto.input, kinds, strict=True)]
    names = [info.name for info in proto.input]
    outside = [(name, value.type) for name, value in given.items()]
    for _ in range(_MOST_ROUNDS):
        ledger = Ledger()
        takes = [*zip(names, kinds, strict=True), *outside]
        body = reader.read_body(reader, proto, takes, ledger)
        slots = list(body.outputs)[made : made + count]
        if len(slots) < count:
            raise op.fail(f"carries {count} values, its body gives {len(body.outputs)}")
        for slot, kind in zip(slots, kinds[first : first + count], strict=True):
            _give(body, slot, kind.element)
        gives = [body.outputs[slot].type for slot in slots]
        met = [_meet(op, a, b) for a, b in zip(kinds[first : first + count], gives, strict=True)]
        if met == kinds[first : first + count]:
            reader.ledger.extend(ledger)
            return body
        kinds = [*kinds[:first], *met, *kinds[first + count :]]
    raise op.fail("its carried values find no shape that holds in every round")


def _stated(
    reader: OnnxReader, op: OnnxOp, info: onnx.ValueInfoProto, kind: TensorType
) -> TensorType:
    """Returns what a body takes: as the file declares it where it does, else as it is given."""
    stated = reader.dims.tensor_type(info.type)
    if stated is None:
        return kind
    if kind.dtype.is_opaque:
        return kind
    if stated.dtype != kind.dtype or (stated.rank != kind.rank and kind.rank):
        raise op.fail(f"its body takes {stated} as {info.name!r}, it gets {kind}")
    if not kind.rank:
        return stated.with_element(kind.element) if stated.rank <= 1 else kind
    sizes = zip(stated.shape, kind.shape, strict=True)
    return kind.with_shape(tuple(b if a is None else a for a, b in sizes))


def _meet(op: OnnxOp, a: TensorType, b: TensorType) -> TensorType:
    element = a.element if a.element == b.element else None
    if element is None and not (a.quant or b.quant):
        element = join_dtypes(a.dtype, b.dtype)
    if element is None and (a.dtype.is_opaque or b.dtype.is_opaque):
        raise KeepOperator
    if a.rank != b.rank:
        raise KeepOperator  # nobody knows then how many axes it has
    if element is None:
        raise op.fail(f"a carried value is {a} before a round and {b} after it")
    sizes = zip(a.shape, b.shape, strict=True)
    return TensorType(tuple(x if x == y else None for x, y in sizes), element)


def _add(
    reader: OnnxReader,
    op: OnnxOp,
    kind: str,
    operands: Mapping[str, Value],
    attrs: Mapping[str, Attr],
    bodies: Mapping[str, Graph],
) -> None:
    try:
        types = infer_result_types(kind, operands, attrs, bodies)
    except (TypeRuleError, GraphError) as error:
        raise op.fail(str(error)) from error
    given = [*op.proto.output, *("" for _ in types)][: len(types)]
    if len(op.outputs) > len(types):
        raise op.fail(f"names {len(op.outputs)} results, its body makes {len(types)}")
    names = [name or reader.spare(f"{op.outputs[0]}.{i}") for i, name in enumerate(given)]
    refined = [_refined(t, reader.declared.get(n)) for t, n in zip(types, names, strict=True)]
    reader.add(op, kind, operands, attrs, types=refined, names=names, bodies=bodies)


def _refined(found: TensorType, stated: TensorType | None) -> TensorType:
    """Sizes that the file declares, where they are unknown otherwise."""
    if stated is None or stated.rank != found.rank:
        return found
    pairs = zip(found.shape, stated.shape, strict=True)
    if not all(dims.may_be_equal(a, b) for a, b in zip(found.shape, stated.shape, strict=True)):
        return found
    return found.with_shape(tuple(b if a is None else a for a, b in pairs))

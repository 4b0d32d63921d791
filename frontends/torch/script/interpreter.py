"""Evaluates the methods of a TorchScript module: what is known at once, calls of tensors later.

Nothing of Python that a model brings is run. Branches and loops are taken as far as their
conditions are known; a condition that depends on data is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from qir.errors import InputError

from ..attempts import BY_DATA
from ..quantization import STATED
from . import quantized
from .builder import ScriptBuilder, is_tensor
from .cells import CELLS
from .quantized import Packed, QuantizedCall, QuantizedTensor
from .scalars import COMPARED, DTYPES, FORMATS, NUMBERS, SAME, SCALARS, SYMBOLIC

_MOST_TURNS = 10_000
_MOST_DEPTH = 200
Env = dict[int, Any]


@dataclass(frozen=True, eq=False)
class Module:
    """A module of the archive, and its path."""

    path: str
    object: Any

    def method(self, name: str) -> Any:
        """Returns the graph of a method."""
        return self.object._c._get_method(name).graph


class Interpreter:
    """Walks the graphs of methods, and emits calls into a builder."""

    def __init__(self, builder: ScriptBuilder) -> None:
        self.builder = builder
        self.depth = 0
        self.attributes: dict[str, Any] = {}
        """What attributes of modules hold by now, by their paths."""
        self.updated: dict[str, str] = {}
        """What to say of attributes that are set, by their paths."""
        self.quantizes = False
        """Whether something is quantized."""
        self.kernels = False
        """Whether kernels of a quantized engine are called."""

    def fail(self, what: str) -> InputError:
        """Returns the error for the node that is read."""
        return self.builder.fail(what)

    def call(self, module: Module, name: str, given: Sequence[Any]) -> Any:
        """Returns what a method gives back for a module and arguments."""
        graph = module.method(name)
        if any(node.kind() == "prim::CallFunction" for node in graph.nodes()):
            graph = graph.copy()
            torch._C._jit_pass_inline(graph)
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise self.fail(f"its methods call each other more than {_MOST_DEPTH} deep")
        before, self.builder.path = self.builder.path, module.path
        env: Env = {}
        for value, held in zip(graph.inputs(), [module, *given], strict=True):
            env[value.unique()] = held
        (made,) = self.block(graph, env)
        self.builder.path = before
        self.depth -= 1
        return made

    def block(self, block: Any, env: Env) -> list[Any]:
        """Runs the nodes of a block; returns what it gives back."""
        for node in block.nodes():
            self.node(node, env)
        return [env[value.unique()] for value in block.outputs()]

    def node(self, node: Any, env: Env) -> None:
        """Runs one node."""
        kind = node.kind()
        given = [env[value.unique()] for value in node.inputs()]
        self.builder.line = _line(node)
        special = _SPECIAL.get(kind)
        try:
            made = special(self, node, given, env) if special else self.op(node, kind, given)
        except GuardOnDataDependentSymNode as error:
            raise self.fail(BY_DATA) from error
        values = list(node.outputs())
        if len(values) == 1:
            env[values[0].unique()] = made
        elif values:
            for value, part in zip(values, made, strict=True):
                env[value.unique()] = part

    # -- operators --------------------------------------------------------------------------------

    def op(self, node: Any, kind: str, given: list[Any]) -> Any:
        """Runs an operator on what is known, or emits its call."""
        if kind in SCALARS:
            given = _numbers(given)
        tensors = [held for held in _flat(given) if is_tensor(held) or isinstance(held, _KINDS)]
        if tensors and kind in _QUESTIONS:
            return _QUESTIONS[kind](self, *given)
        if kind in SAME and len(given) == 1 and not tensors:
            return given[0]
        if not tensors or kind in _OF_LISTS:
            sizes = [held for held in _flat(given) if isinstance(held, fx.Node)]
            listed = kind in _OF_LISTS or (
                bool(given) and isinstance(given[0], (list, tuple, dict))
            )
            computed = kind in _TURNED or (kind in SYMBOLIC and not listed)
            if sizes and kind not in _OF_LISTS and (computed or kind in COMPARED):
                return self._of_sizes(kind, given)
            if kind in SCALARS and (listed or not sizes):
                return self._scalar(kind, given)
        if kind.startswith("quantized::"):
            return self._kernel(node, kind, given)
        if kind.startswith("aten::"):
            return self._tensors(node, kind, given)
        raise self.fail(f"calls {kind}, which is not read")

    def _scalar(self, kind: str, given: list[Any]) -> Any:
        try:
            return SCALARS[kind](*given)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise self.fail(f"{kind} is given what it does not take: {error}") from error

    def _of_sizes(self, kind: str, given: list[Any]) -> Any:
        """Computes with sizes that are not known."""
        if kind == "aten::rsub":
            kind, given = "aten::sub", [given[1], given[0]]
        elif kind == "aten::neg":
            kind, given = "aten::sub", [0, given[0]]
        elif kind == "aten::div":
            if given[2:] not in (["trunc"], ["floor"]):
                raise self.fail("divides a size that is not known, and does not round; fix it")
            kind = "aten::floordiv"
        if kind in SYMBOLIC:
            return self.builder.call(SYMBOLIC[kind], *given[:2])
        held = [_of_example(g) for g in given]
        return self.builder.decide(lambda: SCALARS[kind](*held))

    def _arguments(self, node: Any, given: list[Any]) -> tuple[Any, dict[str, Any]]:
        """Returns an overload, and the arguments by the names of its schema."""
        text = node.schema()
        named = text.partition("(")[0]
        namespace, _, rest = named.partition("::")
        name, _, overload = rest.partition(".")
        overload = overload.removesuffix(_TWIN).removesuffix("_")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        target = getattr(packet, overload or "default", None)
        if not isinstance(target, torch._ops.OpOverload):
            raise self.fail(f"calls {named}, which PyTorch {torch.__version__} does not have")
        formals = target._schema.arguments
        named_arguments = {}
        for formal, held in zip(formals, given, strict=True):
            named_arguments[formal.name] = _typed(formal, held)
        return target, named_arguments

    def _kernel(self, node: Any, kind: str, given: list[Any]) -> Any:
        overload = node.schema().partition("(")[0]
        read = quantized.KERNELS.get(overload) or quantized.KERNELS.get(kind) or CELLS.get(kind)
        if read is None or overload.endswith("out"):
            raise self.fail(f"calls {overload}, which is not read")
        _, named = self._arguments(node, given)
        self.kernels = True
        return read(QuantizedCall(self.builder, kind, named))

    def _tensors(self, node: Any, kind: str, given: list[Any]) -> Any:
        target, named = self._arguments(node, given)
        plain, in_place = (kind[:-1], True) if target._schema.is_mutable else (kind, False)
        if any(isinstance(held, QuantizedTensor) for held in _flat(given)):
            made = self._quantized(plain, target, named)
            if in_place and isinstance(made, QuantizedTensor):
                return self._put(given[0], made)
            return made
        if plain == "aten::_convolution":
            target = torch.ops.aten.convolution.default
            named = dict(list(named.items())[:9])
        positional = [named[f.name] for f in target._schema.arguments if not f.kwarg_only]
        more = {
            f.name: named[f.name]
            for f in target._schema.arguments
            if f.kwarg_only and named[f.name] is not None
        }
        return self.builder.call(target, *positional, **more)

    def _put(self, first: Any, made: QuantizedTensor) -> QuantizedTensor:
        """Gives the operand of an op in place the integers of its result."""
        first.node, first.scale, first.zero = made.node, made.scale, made.zero
        held: QuantizedTensor = first
        return held

    def _quantized(self, kind: str, target: Any, named: dict[str, Any]) -> Any:
        """Reads an operator of PyTorch's own that is given quantized tensors."""
        builder = self.builder
        self.kernels = True
        formals = target._schema.arguments
        if target._schema.is_mutable:
            packet = getattr(torch.ops.aten, kind.removeprefix("aten::"))
            overload = target._overloadname
            target = getattr(packet, overload)
            formals = target._schema.arguments
        arguments = list(named.values())
        first = next(held for held in _flat(arguments) if isinstance(held, QuantizedTensor))
        if kind in quantized.FIXED:
            return quantized.FIXED[kind](builder, *arguments)
        if kind in quantized.MOVED:
            raw = [_raw(held) for held in arguments]
            made = builder.call(target, *_positional(formals, raw), **_named(formals, raw))
            if isinstance(made, list):
                return [first.with_node(part) for part in made]
            return first.with_node(made)
        if kind in quantized.KEPT or kind in _REDUCED:
            real = [_over(held, builder) for held in arguments]
            made = builder.call(target, *_positional(formals, real), **_named(formals, real))
            if isinstance(made, list):  # values and the places of them
                same = first.scale, first.zero, first.kind
                kept = quantized.quantize(builder, made[0], *same, kind)
                return [kept, *made[1:]]
            return quantized.quantize(builder, made, first.scale, first.zero, first.kind, kind)
        if kind in _COMPARES:
            real = [_over(held, builder) for held in arguments]
            return builder.call(target, *_positional(formals, real), **_named(formals, real))
        raise self.fail(f"calls {kind} of a quantized tensor, which is not read; dequantize first")


_TWIN = "hacked_twin"
"""The overload of an operator of optional tensors that TorchScript has where none is left out."""
_TURNED = frozenset(("aten::rsub", "aten::neg", "aten::div"))
"""Operators of sizes that others say."""
_KINDS = (QuantizedTensor, quantized.Channels)
_REDUCED = frozenset(("aten::max", "aten::min", "aten::topk", "aten::sort"))
"""Operators that give elements of what they read, some with the places of these."""
_COMPARES = COMPARED | {"aten::argmax", "aten::argmin"}
_OF_LISTS = frozenset(
    f"aten::{name}"
    for name in (
        "append extend insert pop reverse __is__ __isnot__ list dict keys values items get warn"
        " copy _set_item _unwrap_optional"
    ).split()
) | {"prim::unchecked_cast", "prim::unchecked_unwrap_optional", "prim::TupleIndex", "prim::Print"}
"""Ops that hold tensors and do not look at them."""


def _line(node: Any) -> str:
    """Returns where a node is in the user's files; empty where the archive does not say."""
    try:
        return str(node.sourceRange())
    except RuntimeError:  # its record in the archive is damaged
        return ""


def _numbers(given: list[Any]) -> list[Any]:
    """Returns operands of which some are sizes: tracing states the others as tensors."""
    single = [isinstance(held, torch.Tensor) and not held.dim() for held in given]
    sizes = [
        held is None
        or isinstance(held, (int, float, str))
        or (isinstance(held, fx.Node) and not is_tensor(held))
        for held in given
    ]
    if not any(single) or not all(a or b for a, b in zip(single, sizes, strict=True)):
        return given
    return [held.item() if one else held for held, one in zip(given, single, strict=True)]


def _of_example(given: Any) -> Any:
    """Returns sizes, or lists of them, as the example has them."""
    if isinstance(given, (list, tuple)):
        return [_of_example(held) for held in given]
    return given.meta["val"] if isinstance(given, fx.Node) else given


def _flat(given: Any) -> list[Any]:
    out = []
    for held in given:
        out += _flat(held) if isinstance(held, (list, tuple)) else [held]
    return out


def _typed(formal: Any, held: Any) -> Any:
    """Converts the number of an element type or memory format."""
    text = str(formal.real_type)
    if isinstance(held, int) and not isinstance(held, bool):
        if "ScalarType" in text:
            if held not in DTYPES:
                raise InputError(f"element type number {held} of TorchScript is not read")
            return DTYPES[held]
        if "MemoryFormat" in text:
            return FORMATS[held]
        if "Layout" in text:
            return torch.strided
    return held


def _raw(held: Any) -> Any:
    if isinstance(held, (list, tuple)):
        return [_raw(item) for item in held]
    return held.node if isinstance(held, QuantizedTensor) else held


def _over(held: Any, builder: ScriptBuilder) -> Any:
    if isinstance(held, (list, tuple)):
        return [_over(item, builder) for item in held]
    return quantized.dequantize(builder, held)


def _positional(formals: Sequence[Any], held: list[Any]) -> list[Any]:
    return [h for f, h in zip(formals, held, strict=True) if not f.kwarg_only]


def _named(formals: Sequence[Any], held: list[Any]) -> dict[str, Any]:
    pairs = zip(formals, held, strict=True)
    return {f.name: h for f, h in pairs if f.kwarg_only and h is not None}


# -- what a program asks of tensors ---------------------------------------------------------------


def _fake(reader: Interpreter, held: Any) -> Any:
    held = held.node if isinstance(held, QuantizedTensor) else reader.builder.node(held)
    return held.meta["val"]


def _size(reader: Interpreter, held: Any, axis: int | None = None) -> Any:
    node = held.node if isinstance(held, QuantizedTensor) else reader.builder.node(held)
    if axis is not None:
        return reader.builder.size(node, axis)
    return [reader.builder.size(node, i) for i in range(node.meta["val"].dim())]


def _length(reader: Interpreter, held: Any) -> Any:
    return len(held) if isinstance(held, (list, tuple, dict)) else _size(reader, held, 0)


def _number(reader: Interpreter, held: Any, *rest: Any) -> Any:
    """Returns the number that a stored tensor of one element holds."""
    data = reader.builder.known(held)
    if isinstance(data, torch.Tensor) and data.numel() == 1:
        return data.item()
    raise reader.fail(f"takes a number out of a tensor that is computed: it {BY_DATA}")


def _item(reader: Interpreter, held: Any, at: Any) -> Any:
    if isinstance(held, (list, tuple, dict)):
        return held[at]
    raise reader.fail("indexes a tensor by a number that is computed")


def _listed(reader: Interpreter, held: Any, *rest: Any) -> Any:
    """Slices a list of tensors, or a tensor."""
    if isinstance(held, (list, tuple)):
        return SCALARS["aten::slice"](held, *rest)
    if isinstance(held, QuantizedTensor):
        made = reader.builder.call(torch.ops.aten.slice.Tensor, held.node, *rest)
        reader.kernels = True
        return held.with_node(made)
    return reader.builder.call(torch.ops.aten.slice.Tensor, held, *rest)


def _kind(reader: Interpreter, held: Any) -> int:
    return NUMBERS[held.kind if isinstance(held, QuantizedTensor) else _fake(reader, held).dtype]


def _quantize(reader: Interpreter, x: Any, scale: Any, zero: Any, kind: int) -> Any:
    reader.quantizes = True
    scale, zero = (_number(reader, h) if is_tensor(h) else h for h in (scale, zero))
    if isinstance(x, (list, tuple)) or isinstance(scale, (list, tuple)):
        raise reader.fail("quantizes lists of tensors, which are not read")
    made = quantized.quantize(reader.builder, x, scale, zero, DTYPES[kind])
    made.node.meta[STATED] = isinstance(x, fx.Node) and x.op != "placeholder"
    return made


def _quantize_channels(reader: Interpreter, x: Any, *rest: Any) -> Any:
    reader.quantizes = True
    scales, zeros, axis, kind = rest
    return quantized.quantize_channels(reader.builder, x, scales, zeros, axis, DTYPES[kind])


def _dequantize(reader: Interpreter, held: Any) -> Any:
    if isinstance(held, (list, tuple)):
        return [quantized.dequantize(reader.builder, item) for item in held]
    return quantized.dequantize(reader.builder, held)


def _integers(reader: Interpreter, held: QuantizedTensor) -> fx.Node:
    return held.node


def _recurrent(layer: str) -> Callable[..., Any]:
    """Returns the reader of a dynamic recurrent layer."""

    def read(reader: Interpreter, x: Any, states: Any, cells: Any, *rest: Any) -> Any:
        reader.kernels = True
        return quantized.recurrent(reader.builder, layer, x, states, cells, rest[:6])

    return read


def _added(reader: Interpreter, a: Any, b: Any, *rest: Any) -> Any:
    """Joins lists, or adds tensors."""
    if isinstance(a, list) and isinstance(b, list):
        return a + b
    numbers = [held for held in (a, b) if isinstance(held, (int, float))]
    if any(isinstance(held, QuantizedTensor) for held in (a, b)):
        raise reader.fail("adds quantized tensors as if they were not; dequantize first")
    target = torch.ops.aten.add.Scalar if numbers else torch.ops.aten.add.Tensor
    return reader.builder.call(target, a, b, **({"alpha": rest[0]} if rest else {}))


_QUESTIONS: dict[str, Callable[..., Any]] = {
    "aten::size": _size,
    "aten::len": _length,
    "aten::dim": lambda reader, held: _fake(reader, held).dim(),
    "aten::numel": lambda reader, held: int(_fake(reader, held).numel()),
    "aten::is_floating_point": lambda reader, held: _fake(reader, held).is_floating_point(),
    "aten::is_complex": lambda reader, held: False,
    "aten::Int": _number,
    "aten::Float": _number,
    "aten::Bool": _number,
    "aten::IntImplicit": _number,
    "aten::FloatImplicit": _number,
    "aten::ScalarImplicit": _number,
    "aten::item": _number,
    "aten::__getitem__": _item,
    "aten::slice": _listed,
    "aten::add": _added,
    "aten::quantize_per_tensor": _quantize,
    "aten::quantized_lstm": _recurrent("lstm"),
    "aten::quantized_gru": _recurrent("gru"),
    "aten::quantize_per_channel": _quantize_channels,
    "aten::dequantize": _dequantize,
    "aten::int_repr": _integers,
    "aten::q_scale": lambda reader, held: held.scale,
    "aten::q_zero_point": lambda reader, held: held.zero,
    "prim::dtype": _kind,
    "prim::device": lambda reader, held: torch.device("cpu"),
    "prim::layout": lambda reader, held: 0,
    "prim::is_cuda": lambda reader, held: False,
    "prim::is_quantized": lambda reader, held: isinstance(held, QuantizedTensor),
    "prim::requires_grad": lambda reader, held: False,
    "prim::shape": _size,
}
"""What is answered at once of a tensor, or done in a way of its own."""


# -- nodes that are no operators ------------------------------------------------------------------


def _constant(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    return node.output().toIValue() if not node.mustBeNone() else None


def _attribute(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    (owner,), name = given, node.s("name")
    if not isinstance(owner, Module):
        raise reader.fail(f"reads {name} of an object that is no module")
    path = f"{owner.path}.{name}".removeprefix(".")
    if path not in reader.attributes:
        reader.attributes[path] = _held(reader, path, getattr(owner.object, name))
    return reader.attributes[path]


def _held(reader: Interpreter, path: str, found: Any) -> Any:
    if isinstance(found, torch.jit.ScriptModule):
        return Module(path, found)
    if isinstance(found, torch.Tensor):
        return quantized.stored(reader.builder, path, found.detach())
    if isinstance(found, torch._C.ScriptObject):
        return Packed(path, found)
    return found


def _set(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    owner, held = given
    if not isinstance(owner, Module):
        raise reader.fail(f"sets {node.s('name')} of an object that is no module")
    path = f"{owner.path}.{node.s('name')}".removeprefix(".")
    reader.attributes[path] = held
    reader.updated[path] = f"{path} is not updated: a graph has no state"


def _method(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    owner, name = given[0], node.s("name")
    if not isinstance(owner, Module):
        raise reader.fail(f"calls {name} of an object that is no module")
    return reader.call(owner, name, given[1:])


def _if(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    (condition,) = given
    if not isinstance(condition, bool):
        raise reader.fail(BY_DATA)
    then, other = node.blocks()
    made = reader.block(then if condition else other, env)
    return made[0] if len(made) == 1 else made


def _loop(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    most, condition, *carried = given
    (block,) = node.blocks()
    slots = [value.unique() for value in block.inputs()]
    turn = 0
    while condition and turn < most if isinstance(most, int) and _is_bool(condition) else None:
        if turn >= _MOST_TURNS:
            raise reader.fail(f"goes round a loop more than {_MOST_TURNS} times")
        env.update(zip(slots, [turn, *carried], strict=True))
        condition, *carried = reader.block(block, env)
        turn += 1
    if not isinstance(most, int) or not _is_bool(condition):
        raise reader.fail(BY_DATA)
    return carried[0] if len(carried) == 1 else carried


def _is_bool(held: Any) -> bool:
    return isinstance(held, bool)


def _raise(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    said = str(given[0]).strip() if given else ""
    raise reader.fail(f"refuses what it is given: {said or 'an error without a message'}")


def _unpacked(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    made = list(given[0])
    return made[0] if len(made) == 1 else made


def _chunks(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    count, axis = node.i("chunks"), node.i("dim")
    (x,) = given
    made = reader.builder.call(torch.ops.aten.chunk.default, _raw(x), count, axis)
    return [x.with_node(part) for part in made] if isinstance(x, QuantizedTensor) else made


def _dictionary(reader: Interpreter, node: Any, given: list[Any], env: Env) -> Any:
    return dict(zip(given[::2], given[1::2], strict=True))


_SPECIAL: dict[str, Callable[[Interpreter, Any, list[Any], Env], Any]] = {
    "prim::Constant": _constant,
    "prim::GetAttr": _attribute,
    "prim::SetAttr": _set,
    "prim::CallMethod": _method,
    "prim::If": _if,
    "prim::Loop": _loop,
    "prim::RaiseException": _raise,
    "prim::ListConstruct": lambda reader, node, given, env: list(given),
    "prim::TupleConstruct": lambda reader, node, given, env: tuple(given),
    "prim::DictConstruct": _dictionary,
    "prim::ListUnpack": _unpacked,
    "prim::TupleUnpack": _unpacked,
    "prim::ConstantChunk": _chunks,
    "prim::Uninitialized": lambda reader, node, given, env: None,
}
"""Nodes that are no operators."""

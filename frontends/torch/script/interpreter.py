"""Interprets the methods of a TorchScript module into a graph of operator calls.

Numbers, strings, lists and attributes are evaluated at once; operators on tensors become calls in
a `ScriptBuilder`. No Python code of the model runs. Branches and loops are followed as far as their
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

from ..export_errors import DATA_DEPENDENT_CONTROL_FLOW
from . import quantized, quantized_tensors
from .builder import ScriptBuilder, is_tensor
from .cells import CELLS
from .quantized_tensors import (
    ChannelQuantizedTensor,
    PackedWeights,
    QuantizedCall,
    QuantizedTensor,
)
from .read_time_operators import ANSWERS
from .scalars import (
    COMPARISONS,
    DTYPES,
    IDENTITY,
    MEMORY_FORMATS,
    SCALARS,
    SYMBOLIC_SCALARS,
)

_MAX_ITERATIONS = 10_000
_MAX_CALL_DEPTH = 200
Env = dict[int, Any]


@dataclass(frozen=True, eq=False)
class ScriptModule:
    """A submodule of the archive, and its path."""

    path: str
    object: Any

    def method(self, name: str) -> Any:
        """Returns the graph of a method."""
        return self.object._c._get_method(name).graph


class Interpreter:
    """Runs the graphs of methods, and adds calls to a builder."""

    def __init__(self, builder: ScriptBuilder) -> None:
        self.builder = builder
        self.depth = 0
        self.attributes: dict[str, Any] = {}
        """Current values of module attributes, by path."""
        self.state_updates: dict[str, str] = {}
        """Lines for the ledger about attributes that are set, by path."""

    def error(self, what: str) -> InputError:
        """Returns an error for the current node."""
        return self.builder.error(what)

    def call_method(self, module: ScriptModule, name: str, arguments: Sequence[Any]) -> Any:
        """Runs a method of a module; returns its result."""
        graph = module.method(name)
        # Script functions belong to no module, so calls of them are inlined.
        if any(node.kind() == "prim::CallFunction" for node in graph.nodes()):
            graph = graph.copy()
            torch._C._jit_pass_inline(graph)
        # A damaged archive could have methods that call each other for ever.
        self.depth += 1
        if self.depth > _MAX_CALL_DEPTH:
            raise self.error(f"its methods call each other more than {_MAX_CALL_DEPTH} deep")
        caller_path, self.builder.path = self.builder.path, module.path
        env: Env = {}
        for value, argument in zip(graph.inputs(), [module, *arguments], strict=True):
            env[value.unique()] = argument
        (result,) = self.run_block(graph, env)
        self.builder.path = caller_path
        self.depth -= 1
        return result

    def run_block(self, block: Any, env: Env) -> list[Any]:
        """Runs the nodes of a block; returns its results."""
        for node in block.nodes():
            self.run_node(node, env)
        return [env[value.unique()] for value in block.outputs()]

    def run_node(self, node: Any, env: Env) -> None:
        """Runs one node."""
        kind = node.kind()
        operands = [env[value.unique()] for value in node.inputs()]
        self.builder.line = _source_range(node)
        structural = _STRUCTURAL.get(kind)
        try:
            results = (
                structural(self, node, operands, env)
                if structural
                else self.run_operator(node, kind, operands)
            )
        except GuardOnDataDependentSymNode as error:
            raise self.error(DATA_DEPENDENT_CONTROL_FLOW) from error
        values = list(node.outputs())
        if len(values) == 1:
            env[values[0].unique()] = results
        elif values:
            for value, part in zip(values, results, strict=True):
                env[value.unique()] = part

    # -- operators --------------------------------------------------------------------------------

    def run_operator(self, node: Any, kind: str, arguments: list[Any]) -> Any:
        """Evaluates an operator on known values, or adds its call.

        The order matters: an operator such as `aten::add` exists for numbers, symbolic sizes,
        lists, tensors and quantized tensors.
        """
        if kind in SCALARS:
            arguments = _items_of_scalars(arguments)
        tensors = [
            argument
            for argument in _flattened(arguments)
            if is_tensor(argument) or isinstance(argument, _QUANTIZED_KINDS)
        ]
        # First what is known of tensors without computing: sizes, element types, scales.
        if tensors and kind in ANSWERS:
            return ANSWERS[kind](self.builder, *arguments)
        if kind in IDENTITY and len(arguments) == 1 and not tensors:
            return arguments[0]
        # Containers hold tensors without computing on them.
        if not tensors or kind in _CONTAINER_OPS:
            sizes = [
                argument for argument in _flattened(arguments) if isinstance(argument, fx.Node)
            ]
            on_containers = kind in _CONTAINER_OPS or (
                bool(arguments) and isinstance(arguments[0], (list, tuple, dict))
            )
            on_sizes = kind in _REWRITTEN_FOR_SIZES or (
                kind in SYMBOLIC_SCALARS and not on_containers
            )
            if sizes and kind not in _CONTAINER_OPS and (on_sizes or kind in COMPARISONS):
                return self._of_sizes(kind, arguments)
            if kind in SCALARS and (on_containers or not sizes):
                return self._scalar(kind, arguments)
        # Then kernels of the quantized engine, and last plain operators on tensors.
        if kind.startswith("quantized::"):
            return self._kernel(node, kind, arguments)
        if kind.startswith("aten::"):
            return self._tensors(node, kind, arguments)
        raise self.error(f"calls {kind}, which is not read")

    def _scalar(self, kind: str, arguments: list[Any]) -> Any:
        try:
            return SCALARS[kind](*arguments)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise self.error(f"{kind} is given what it does not take: {error}") from error

    def _of_sizes(self, kind: str, arguments: list[Any]) -> Any:
        """Computes with symbolic sizes; comparisons are decided by the example."""
        if kind == "aten::rsub":
            kind, arguments = "aten::sub", [arguments[1], arguments[0]]
        elif kind == "aten::neg":
            kind, arguments = "aten::sub", [0, arguments[0]]
        elif kind == "aten::div":
            # Only a rounded quotient of sizes is a size again.
            if arguments[2:] not in (["trunc"], ["floor"]):
                raise self.error("divides a size that is not known, and does not round; fix it")
            kind = "aten::floordiv"
        if kind in SYMBOLIC_SCALARS:
            return self.builder.add_call(SYMBOLIC_SCALARS[kind], *arguments[:2])
        # What remains compares: the examples decide, and the guard is recorded.
        sizes = [_example_sizes(argument) for argument in arguments]
        return self.builder.decide_branch(lambda: SCALARS[kind](*sizes))

    def _arguments(self, node: Any, arguments: list[Any]) -> tuple[Any, dict[str, Any]]:
        """Returns the overload, and its arguments by name."""
        text = node.schema()
        qualified_name = text.partition("(")[0]
        namespace, _, name_and_overload = qualified_name.partition("::")
        name, _, overload = name_and_overload.partition(".")
        # A hacked twin has the arguments of the overload it is named after.
        overload = overload.removesuffix(_HACKED_TWIN).removesuffix("_")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        target = getattr(packet, overload or "default", None)
        if not isinstance(target, torch._ops.OpOverload):
            raise self.error(
                f"calls {qualified_name}, which PyTorch {torch.__version__} does not have"
            )
        parameters = target._schema.arguments
        named_arguments = {}
        for parameter, argument in zip(parameters, arguments, strict=True):
            named_arguments[parameter.name] = _enum_argument(parameter, argument)
        return target, named_arguments

    def _kernel(self, node: Any, kind: str, arguments: list[Any]) -> Any:
        overload = node.schema().partition("(")[0]
        read = quantized.KERNELS.get(overload) or quantized.KERNELS.get(kind) or CELLS.get(kind)
        if read is None or overload.endswith("out"):
            raise self.error(f"calls {overload}, which is not read")
        _, named_arguments = self._arguments(node, arguments)
        self.builder.uses_quantized_kernels = True
        return read(QuantizedCall(self.builder, kind, named_arguments))

    def _tensors(self, node: Any, kind: str, arguments: list[Any]) -> Any:
        target, named_arguments = self._arguments(node, arguments)
        functional_kind, in_place = (
            (kind[:-1], True) if target._schema.is_mutable else (kind, False)
        )
        if any(isinstance(argument, QuantizedTensor) for argument in _flattened(arguments)):
            result = self._quantized(functional_kind, target, named_arguments)
            # Unlike a float operand, a quantized one is no fx node that the reader could follow.
            if in_place and isinstance(result, QuantizedTensor):
                return self._write_in_place(arguments[0], result)
            return result
        # After the nine arguments of `convolution`, `_convolution` has flags of cuDNN.
        if functional_kind == "aten::_convolution":
            target = torch.ops.aten.convolution.default
            named_arguments = dict(list(named_arguments.items())[:9])
        positional = [
            named_arguments[parameter.name]
            for parameter in target._schema.arguments
            if not parameter.kwarg_only
        ]
        keywords = {
            parameter.name: named_arguments[parameter.name]
            for parameter in target._schema.arguments
            if parameter.kwarg_only and named_arguments[parameter.name] is not None
        }
        return self.builder.add_call(target, *positional, **keywords)

    def _write_in_place(self, operand: Any, result: QuantizedTensor) -> QuantizedTensor:
        """Updates the operand of an in-place op, so that all its aliases see the result."""
        operand.node, operand.scale, operand.zero = result.node, result.scale, result.zero
        updated: QuantizedTensor = operand
        return updated

    def _quantized(self, kind: str, target: Any, named_arguments: dict[str, Any]) -> Any:
        """Reads an aten operator that is given quantized tensors."""
        builder = self.builder
        self.builder.uses_quantized_kernels = True
        parameters = target._schema.arguments
        # The functional variant has the same arguments.
        if target._schema.is_mutable:
            packet = getattr(torch.ops.aten, kind.removeprefix("aten::"))
            overload = target._overloadname
            target = getattr(packet, overload)
            parameters = target._schema.arguments
        arguments = list(named_arguments.values())
        first = next(
            argument for argument in _flattened(arguments) if isinstance(argument, QuantizedTensor)
        )
        # The tables say how PyTorch chooses the scale of the result.
        if kind in quantized.FIXED_SCALE:
            return quantized.FIXED_SCALE[kind](builder, *arguments)
        if kind in quantized.RESTRIDES:
            moved = quantized.RESTRIDES[kind](builder, *arguments)
            if moved is not None:
                return moved
        if kind in quantized.MOVES_INTEGERS:
            integers = [_integers_of(argument) for argument in arguments]
            result = builder.add_call(
                target, *_positional(parameters, integers), **_named(parameters, integers)
            )
            if isinstance(result, list):
                return [first.with_node(part) for part in result]
            return first.with_node(result)
        if kind in quantized.SAME_SCALE or kind in _SELECTING:
            floats = [_dequantize_all(argument, builder) for argument in arguments]
            result = builder.add_call(
                target, *_positional(parameters, floats), **_named(parameters, floats)
            )
            if isinstance(result, list):  # values and their indices, as of max and sort
                qparams = first.scale, first.zero, first.kind
                values = quantized_tensors.quantize(builder, result[0], *qparams, kind)
                return [values, *result[1:]]
            return quantized_tensors.quantize(
                builder, result, first.scale, first.zero, first.kind, kind
            )
        # Booleans and indices have no scale.
        if kind in _COMPARING:
            floats = [_dequantize_all(argument, builder) for argument in arguments]
            return builder.add_call(
                target, *_positional(parameters, floats), **_named(parameters, floats)
            )
        raise self.error(f"calls {kind} of a quantized tensor, which is not read; dequantize first")


_HACKED_TWIN = "hacked_twin"
"""Overload of operators of optional tensors that TorchScript uses where all are given."""
_REWRITTEN_FOR_SIZES = frozenset(("aten::rsub", "aten::neg", "aten::div"))
"""Operators on symbolic sizes that are rewritten by others."""
_QUANTIZED_KINDS = (QuantizedTensor, ChannelQuantizedTensor)
_SELECTING = frozenset(("aten::max", "aten::min", "aten::topk", "aten::sort"))
"""Operators that select elements of their operand, some with the indices of these."""
_COMPARING = COMPARISONS | {"aten::argmax", "aten::argmin"}
_CONTAINER_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "append extend insert pop reverse __is__ __isnot__ list dict keys values items get warn"
        " copy _set_item _unwrap_optional"
    ).split()
) | {"prim::unchecked_cast", "prim::unchecked_unwrap_optional", "prim::TupleIndex", "prim::Print"}
"""Operators on lists and dictionaries, which may hold tensors and do not look at them."""


def _source_range(node: Any) -> str:
    """Returns the source range of a node; empty where the archive has none."""
    try:
        return str(node.sourceRange())
    except RuntimeError:  # the debug record in the archive is damaged
        return ""


def _items_of_scalars(arguments: list[Any]) -> list[Any]:
    """Returns operands with scalar tensors as numbers if the others are sizes.

    Tracing records a Python number next to a size as a tensor.
    """
    are_scalars = [
        isinstance(argument, torch.Tensor) and not argument.dim() for argument in arguments
    ]
    are_sizes = [
        argument is None
        or isinstance(argument, (int, float, str))
        or (isinstance(argument, fx.Node) and not is_tensor(argument))
        for argument in arguments
    ]
    if not any(are_scalars) or not all(a or b for a, b in zip(are_scalars, are_sizes, strict=True)):
        return arguments
    return [
        argument.item() if is_scalar else argument
        for argument, is_scalar in zip(arguments, are_scalars, strict=True)
    ]


def _example_sizes(argument: Any) -> Any:
    """Returns symbolic sizes, or lists of them, which compare by the example."""
    if isinstance(argument, (list, tuple)):
        return [_example_sizes(item) for item in argument]
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def _flattened(arguments: Any) -> list[Any]:
    flat = []
    for argument in arguments:
        flat += _flattened(argument) if isinstance(argument, (list, tuple)) else [argument]
    return flat


def _enum_argument(parameter: Any, argument: Any) -> Any:
    """Converts the enum value of a dtype, memory format or layout."""
    type_name = str(parameter.real_type)
    if isinstance(argument, int) and not isinstance(argument, bool):
        if "ScalarType" in type_name:
            if argument not in DTYPES:
                raise InputError(f"element type number {argument} of TorchScript is not read")
            return DTYPES[argument]
        if "MemoryFormat" in type_name:
            return MEMORY_FORMATS[argument]
        if "Layout" in type_name:
            return torch.strided
    return argument


def _integers_of(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_integers_of(item) for item in argument]
    return argument.node if isinstance(argument, QuantizedTensor) else argument


def _dequantize_all(argument: Any, builder: ScriptBuilder) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_dequantize_all(item, builder) for item in argument]
    return quantized_tensors.dequantize(builder, argument)


def _positional(parameters: Sequence[Any], arguments: list[Any]) -> list[Any]:
    return [
        argument
        for parameter, argument in zip(parameters, arguments, strict=True)
        if not parameter.kwarg_only
    ]


def _named(parameters: Sequence[Any], arguments: list[Any]) -> dict[str, Any]:
    pairs = zip(parameters, arguments, strict=True)
    return {
        parameter.name: argument
        for parameter, argument in pairs
        if parameter.kwarg_only and argument is not None
    }


# -- attributes, calls, branches, loops and containers --------------------------------------------


def _constant(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    return node.output().toIValue() if not node.mustBeNone() else None


def _attribute(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    (owner,), name = operands, node.s("name")
    if not isinstance(owner, ScriptModule):
        raise reader.error(f"reads {name} of an object that is no module")
    path = f"{owner.path}.{name}".removeprefix(".")
    # Each attribute is wrapped once, so that every read of it sees its updates.
    if path not in reader.attributes:
        reader.attributes[path] = _wrap_attribute(reader, path, getattr(owner.object, name))
    return reader.attributes[path]


def _wrap_attribute(reader: Interpreter, path: str, attribute: Any) -> Any:
    if isinstance(attribute, torch.jit.ScriptModule):
        return ScriptModule(path, attribute)
    if isinstance(attribute, torch.Tensor):
        return quantized_tensors.stored_tensor(reader.builder, path, attribute.detach())
    if isinstance(attribute, torch._C.ScriptObject):
        return PackedWeights(path, attribute)
    return attribute


def _set_attribute(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    owner, value = operands
    if not isinstance(owner, ScriptModule):
        raise reader.error(f"sets {node.s('name')} of an object that is no module")
    path = f"{owner.path}.{node.s('name')}".removeprefix(".")
    # Later reads of this call see the update, as the running program would.
    reader.attributes[path] = value
    reader.state_updates[path] = f"{path} is not updated: a graph has no state"


def _method(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    owner, name = operands[0], node.s("name")
    if not isinstance(owner, ScriptModule):
        raise reader.error(f"calls {name} of an object that is no module")
    return reader.call_method(owner, name, operands[1:])


def _if(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    (condition,) = operands
    if not isinstance(condition, bool):
        raise reader.error(DATA_DEPENDENT_CONTROL_FLOW)
    then, otherwise = node.blocks()
    # Only the branch that is taken is read: the other may hold what the examples do not fit.
    results = reader.run_block(then if condition else otherwise, env)
    return results[0] if len(results) == 1 else results


def _loop(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    limit, condition, *carried = operands
    # A block's inputs are the iteration and the carried values; its results the condition and
    # these.
    (block,) = node.blocks()
    slots = [value.unique() for value in block.inputs()]
    iteration = 0
    # The loop is unrolled, so both its count and its condition have to be known.
    while (
        condition and iteration < limit if isinstance(limit, int) and _is_bool(condition) else None
    ):
        if iteration >= _MAX_ITERATIONS:
            raise reader.error(f"goes round a loop more than {_MAX_ITERATIONS} times")
        env.update(zip(slots, [iteration, *carried], strict=True))
        condition, *carried = reader.run_block(block, env)
        iteration += 1
    if not isinstance(limit, int) or not _is_bool(condition):
        raise reader.error(DATA_DEPENDENT_CONTROL_FLOW)
    return carried[0] if len(carried) == 1 else carried


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _raise(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    message = str(operands[0]).strip() if operands else ""
    raise reader.error(f"refuses what it is given: {message or 'an error without a message'}")


def _unpack(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    items = list(operands[0])
    return items[0] if len(items) == 1 else items


def _chunks(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    count, axis = node.i("chunks"), node.i("dim")
    (x,) = operands
    parts = reader.builder.add_call(torch.ops.aten.chunk.default, _integers_of(x), count, axis)
    return [x.with_node(part) for part in parts] if isinstance(x, QuantizedTensor) else parts


def _dictionary(reader: Interpreter, node: Any, operands: list[Any], env: Env) -> Any:
    return dict(zip(operands[::2], operands[1::2], strict=True))


_STRUCTURAL: dict[str, Callable[[Interpreter, Any, list[Any], Env], Any]] = {
    "prim::Constant": _constant,
    "prim::GetAttr": _attribute,
    "prim::SetAttr": _set_attribute,
    "prim::CallMethod": _method,
    "prim::If": _if,
    "prim::Loop": _loop,
    "prim::RaiseException": _raise,
    "prim::ListConstruct": lambda reader, node, operands, env: list(operands),
    "prim::TupleConstruct": lambda reader, node, operands, env: tuple(operands),
    "prim::DictConstruct": _dictionary,
    "prim::ListUnpack": _unpack,
    "prim::TupleUnpack": _unpack,
    "prim::ConstantChunk": _chunks,
    "prim::Uninitialized": lambda reader, node, operands, env: None,
}
"""Functions for `prim::` nodes that structure a program, by kind."""

"""Builds a graph from the nodes of a `TorchProgram`.

A call is read by the converter of its overload (`operators`). Without one, the call is read as its
decomposition in PyTorch (`decomposition`); if that is unknown too, it becomes a foreign node.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from qir.errors import TypeRuleError
from qir.ir import dims
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Origin
from qir.ledger import Change, Ledger

from . import decomposition, foreign
from .call import OverloadCall, type_of
from .control import CONTROL
from .elements import dtype_of
from .operators import KEEPS_QUANTIZED_TYPE, OPS
from .program import TorchProgram, returns_its_operand, written_operand
from .reader import KeepCall, ProgramReader
from .sizes import is_size
from .symbols import shape_of

STEP = "read torch"
_ASSERTIONS = ("_assert", "sym_constrain_range", "_check")
"""Prefixes of operators that check sizes and compute nothing."""


def read(program: TorchProgram, name: str, ledger: Ledger, *, shares_memory: bool) -> Graph:
    """Returns the graph of a program; raises InputError for what it cannot read.

    With `shares_memory`, constants share the memory of the program, which nobody writes to then.
    """
    reader = ProgramReader(program, name, ledger, shares_memory, read_node)
    for node in program.graph.nodes:
        reader.read(node)
    reader.graph.prune()
    _type_inputs(reader.graph)
    return reader.graph


def _type_inputs(graph: Graph) -> None:
    """Gives inputs of integers the one quantized type that all their readers take them as."""
    for value in graph.inputs:
        readers = [use.node for use in value.uses]
        types = {node.result.type for node in readers if node.op == "recode"}
        if readers and len(types) == 1 and all(node.op == "recode" for node in readers):
            graph.set_type(value, *types)
            for node in readers:
                graph.replace(node.result, value)
                graph.remove(node)


def read_node(reader: ProgramReader, node: fx.Node) -> None:
    """Reads one node of the program."""
    if node.op == "placeholder":
        _read_placeholder(reader, node)
    elif node.op == "output":
        _read_output(reader, node)
    elif node.op == "get_attr":
        _read_attribute(reader, node)
    elif node.op == "call_function":
        _read_call(reader, node)
    else:
        raise reader.error(node, f"is {node.op} {node.target}, which exporting leaves to nobody")


def _read_placeholder(reader: ProgramReader, node: fx.Node) -> None:
    if node.name in reader.stored_tensors:
        return  # a parameter, which becomes a constant when it is first used
    fake = node.meta.get("val")
    # Export keeps numbers and None among the arguments as placeholders, usually without users.
    if not isinstance(fake, torch.Tensor):
        if node.users:
            raise reader.error(node, f"is {type(fake).__name__}, inputs must be tensors")
        return
    node_added = reader.graph.add(
        "input",
        types=[type_of(fake, f"input {node.name}")],
        name=node.name,
        origins=[Origin("torch", "Input", node.name)],
    )
    reader.results[node.name] = node_added.result


def _read_attribute(reader: ProgramReader, node: fx.Node) -> None:
    attribute = reader.program.attribute(str(node.target))
    if isinstance(attribute, torch.Tensor):  # else a submodule, which `control` reads
        reader.stored_tensors[node.name] = str(node.target), attribute


def _read_output(reader: ProgramReader, node: fx.Node) -> None:
    operands: dict[str, Value] = {}
    updated = reader.program.state_updates
    results: Any = node.args[0]
    for i, result in enumerate(results):
        # Export appends updated buffers (such as BatchNorm's running mean) to the outputs of
        # the user.
        if i in updated:
            message = f"{updated[i]} is not updated: a graph has no state"
            reader.ledger.add(Change.DROPPED, STEP, updated[i], message)
            continue
        if result is None:
            continue
        if not isinstance(result, fx.Node):
            raise reader.error(node, f"gives back {result!r}, results must be tensors")
        name = result.name if result.name not in operands else reader.graph.fresh(result.name)
        operands[name] = reader.tensor(result)
    reader.graph.add("output", operands, {"call": reader.program.call_signature})


def _read_call(reader: ProgramReader, node: fx.Node) -> None:
    # `getitem` picks one result of an operator that returns several.
    if node.target is operator.getitem:
        outcome: Any = node.args[0]
        value = reader.results[outcome.name][node.args[1]]
        reader.results[node.name] = value
        _rename_to(reader, value, node.name)
        return
    if is_size(node):
        return  # sizes are computed only where something uses them, by `size_value`
    target: Any = node.target
    # Higher-order operators (`cond`, `while_loop`) have subgraphs as arguments, and no schema.
    if target in CONTROL:
        reader.results[node.name] = CONTROL[target](reader, node)
        return
    if not isinstance(target, torch._ops.OpOverload):
        name = getattr(target, "__name__", str(target))
        raise reader.error(node, f"calls {name}; which is not read; export a part without it")
    if str(target).removeprefix("aten.").startswith(_ASSERTIONS):
        return
    call = OverloadCall(reader, node, moves=_functional_name(target) in KEEPS_QUANTIZED_TYPE)
    # A converter may add nodes before it finds that it cannot express the call: these are
    # removed.
    count = len(reader.graph)
    try:
        outcome = _convert(reader, call, str(target))
    except (KeepCall, TypeRuleError) as why:
        _remove_added(reader, count)
        outcome = _decompose_or_keep(reader, call, str(why))
    reader.results[node.name] = outcome
    # Later nodes may still name the operand of an in-place op: they read its result.
    operand = node.args[0] if returns_its_operand(node) else written_operand(node)
    if isinstance(operand, fx.Node):
        _record_in_place(reader, operand.name, node.name, outcome)
    if isinstance(outcome, Value):
        _rename_to(reader, outcome, node.name)


def _decompose_or_keep(reader: ProgramReader, call: OverloadCall, why: str) -> Any:
    """Reads an unknown operator as its decomposition in PyTorch, else keeps it as foreign.

    Inside another decomposition it raises KeepCall instead, so that the outer operator is kept.
    """
    count = len(reader.graph)
    try:
        results = decomposition.read(reader, call.node)
        _check_results(reader, call.node, results)
    except (KeepCall, TypeRuleError):
        _remove_added(reader, count)
        if reader.depth:
            raise
        return foreign.keep(call, why)
    return results


def _record_in_place(reader: ProgramReader, operand: str, result: str, value: Any) -> None:
    """Lets later uses of a tensor, by any of its names, see the result of an in-place op."""
    if operand in reader.stored_tensors and operand not in reader.aliases:
        name = reader.stored_tensors[operand][0]
        message = f"{name} is not updated: a graph has no state"
        reader.ledger.add(Change.DROPPED, STEP, name, message)
    # All names share one list, so that a later in-place op updates every earlier alias at once.
    names = reader.aliases.setdefault(operand, [operand])
    names.append(result)
    reader.aliases[result] = names
    reader.results.update(dict.fromkeys(names, value))


def _convert(reader: ProgramReader, call: OverloadCall, name: str) -> Any:
    """Returns the values of a call by its converter; raises KeepCall without one."""
    handler = OPS.get(_functional_name(call.node.target))
    if handler is None:
        raise KeepCall(f"{name} is no operator of the language")
    values = handler(call)
    _check_results(reader, call.node, values)
    return values


def _check_results(reader: ProgramReader, node: fx.Node, results: Any) -> None:
    """Checks that converted results have the types that PyTorch inferred."""
    fakes = node.meta["val"]
    for value, fake in zip(
        results if isinstance(results, (list, tuple)) else [results],
        fakes if isinstance(fakes, (list, tuple)) else [fakes],
        strict=True,
    ):
        # None stands for a result that nothing uses, such as the indices of a max pool.
        if value is not None:
            _check_type(reader, value, fake)


def _check_type(reader: ProgramReader, value: Value, fake: torch.Tensor) -> None:
    """Checks a value against PyTorch's type, and takes over sizes that were open.

    Raises KeepCall where they disagree: the converter does not cover this case then.
    """
    value_type, shape = value.type, shape_of(fake.shape)
    if value_type.dtype != dtype_of(fake.dtype) or value_type.rank != len(shape):
        raise KeepCall
    if not all(map(dims.may_be_equal, value_type.shape, shape)):
        raise KeepCall
    # Where the type rule leaves a size open, PyTorch may know it.
    refined = tuple(b if a is None else a for a, b in zip(value_type.shape, shape, strict=True))
    if refined != value_type.shape:
        reader.graph.set_type(value, value_type.with_shape(refined))


def _remove_added(reader: ProgramReader, count: int) -> None:
    """Removes what a converter added before it gave up; computed sizes stay for other uses."""
    size_nodes = {value.node for value in reader.size_values.values()}
    # From the last to the first, so that consumers go before their producers.
    for node in reversed(list(reader.graph)[count:]):
        used = node in size_nodes or any(value.uses for value in node.results)
        if not used and node.op != "constant":
            reader.graph.remove(node)


def _rename_to(reader: ProgramReader, value: Value, name: str) -> None:
    """Names a value after its fx node, unless it has a name of the model already."""
    if value in reader.unnamed and not reader.graph.has(name):
        reader.unnamed.discard(value)
        reader.graph.rename(value, name)


def _functional_name(target: Any) -> str:
    """Returns the name of an operator, for in-place ones that of the functional variant."""
    name = str(target)
    return name.replace("_.", ".") if target._schema.is_mutable else name

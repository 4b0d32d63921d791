"""Reads operators without a converter as the operators that PyTorch decomposes them into."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from qir.errors import InputError

from .program import TorchProgram
from .reader import KeepCall, ProgramReader
from .sizes import is_size

_MAX_DEPTH = 8
"""Nesting of decompositions inside decompositions."""


def read(reader: ProgramReader, node: fx.Node) -> Any:
    """Reads a call as its decomposition; raises KeepCall if some operator in it is unknown too."""
    if reader.depth >= _MAX_DEPTH or not str(node.target).startswith("aten."):
        raise KeepCall
    # The tree is flattened, since operands may be inside lists (as those of `cat`).
    leaves, tree = tree_flatten((node.args, node.kwargs))
    node_places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, fx.Node)]
    operands = [leaves[i] for i in node_places]
    function, before_dispatch = _decomposition_of(node.target)

    def called(*tensors: Any) -> Any:
        arguments = list(leaves)
        for place, value in zip(node_places, tensors, strict=True):
            arguments[place] = value
        args, kwargs = tree_unflatten(arguments, tree)
        return function(*args, **kwargs)

    module = _trace(called, [operand.meta["val"] for operand in operands], before_dispatch)
    return _inline(reader, node, module, operands)


def _decomposition_of(target: Any) -> tuple[Callable[..., Any], bool]:
    """Returns the decomposition of an operator, and whether to trace it before dispatch.

    Functions of the decomposition table call composite operators, which stay composite that way.
    Raises KeepCall for an operator that PyTorch does not decompose.
    """
    plain = _functional_overload(target) if target._schema.is_mutable else target
    if plain._can_decompose():
        return plain, False
    # `decomposition_table` holds Python functions for operators that are not composite in C++.
    if plain not in decomposition_table:
        raise KeepCall
    return decomposition_table[plain], True


def _functional_overload(target: Any) -> Any:
    """Returns the functional variant of an in-place operator."""
    packet = getattr(torch.ops.aten, target._schema.name.partition("::")[2].removesuffix("_"), None)
    overload = getattr(packet, target._overloadname, None)
    if overload is None:
        raise KeepCall
    return overload


def _trace(
    function: Callable[..., Any], fakes: Sequence[Any], before_dispatch: bool
) -> fx.GraphModule:
    """Returns the calls of a function; raises KeepCall if it cannot be traced or fixes sizes."""
    mode: Any = next((fake.fake_mode for fake in fakes if hasattr(fake, "fake_mode")), None)
    # Without an operand that is a fake tensor, sizes of the program are not known to the trace.
    if mode is None:
        raise KeepCall
    guard_count = len(mode.shape_env.guards) if mode.shape_env else 0
    trace: Any = make_fx(function, pre_dispatch=before_dispatch, tracing_mode="real")
    try:
        with torch.no_grad(), mode:
            module: fx.GraphModule = trace(*fakes)
    except Exception as error:  # PyTorch raises what it likes
        raise KeepCall from error
    # An equality guard means that the trace holds for one size only.
    new_guards = mode.shape_env.guards[guard_count:] if mode.shape_env else []
    if any(getattr(guard.expr, "rel_op", "") == "==" for guard in new_guards):
        raise KeepCall
    return module


def _inline(
    reader: ProgramReader, node: fx.Node, module: fx.GraphModule, operands: Sequence[fx.Node]
) -> Any:
    """Reads the calls of a traced decomposition in place of a call."""
    placeholders = [operand for operand in module.graph.nodes if operand.op == "placeholder"]
    operand_of = dict(zip(placeholders, operands, strict=True))
    stored = {
        placeholder.name: tensor
        for placeholder, operand in operand_of.items()
        if (tensor := reader.stored_tensor(operand)) is not None
    }
    program = TorchProgram(module.graph, stored, lambda name: operator.attrgetter(name)(module))
    inner = reader.nested(program, reader.graph, reader.depth + 1)
    for place, operand in operand_of.items():
        if is_size(operand):
            inner.size_values[place.name] = reader.size_value(operand)
        elif place.name not in stored:
            inner.results[place.name] = reader.tensor(operand)
    try:
        # Nodes of the decomposition inherit where the call stands in the user's model.
        for call in module.graph.nodes:
            if call.op == "output":
                return _results(inner, call.args[0])
            if call.op != "placeholder":
                call.meta.update(
                    {k: node.meta[k] for k in ("nn_module_stack", "stack_trace") if k in node.meta}
                )
                inner.read(call)
    except InputError as error:
        # The outer call is kept as foreign then, which says more than an error about its parts.
        raise KeepCall from error
    raise KeepCall


def _results(inner: ProgramReader, results: Any) -> Any:
    """Returns the values of results; None for a result that is None."""
    if isinstance(results, (list, tuple)):
        return [None if result is None else inner.tensor(result) for result in results]
    return inner.tensor(results)

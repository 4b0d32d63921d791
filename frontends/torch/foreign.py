"""Foreign nodes: aten operators without a form, kept with their arguments and run by PyTorch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from qir.errors import InputError, PluginError
from qir.ir.node import Node, Value
from qir.ledger import Change

from .call import OverloadCall, type_of
from .elements import array_of, dtype_of, tensor_of

_NAMESPACE = "aten"
_UNSAFE = frozenset({"from_file", "save", "load"})
"""Operators that access files; a model must not be able to call them."""


def keep(call: OverloadCall, why: str = "") -> Value | list[Value]:
    """Adds a call as a foreign node.

    Raises InputError for results or arguments that no node has.
    """
    node, reader = call.node, call.reader
    target: Any = node.target
    if target.namespace != _NAMESPACE:
        message = why or "an operator that only its library can run"
        raise reader.error(node, f"calls {target}: {message}")
    fakes: Any = node.meta.get("val")
    has_many = isinstance(fakes, (list, tuple))
    results: list[Any] = list(fakes) if has_many else [fakes]
    if not results or not all(isinstance(fake, torch.Tensor) for fake in results):
        raise reader.error(node, f"calls {target}, whose results are no tensors")
    if unknown := next((f.dtype for f in results if dtype_of(f.dtype) is None), None):
        message = f"gives {str(unknown).removeprefix('torch.')}, which is no element type of QIR"
        raise reader.error(node, f"{message}; leave that part out of the model")
    types = [type_of(fake, f"{reader.graph.name}: {node.name}") for fake in results]
    operands: list[Value] = []
    try:
        text = json.dumps(
            {n: _argument_to_json(call, v, operands) for n, v in call.arguments.items()}
        )
    except TypeError as error:
        raise reader.error(node, f"calls {target} with {error}") from error
    foreign = reader.graph.add(
        "foreign",
        {f"xs.{i}": value for i, value in enumerate(operands)},
        {"framework": "torch", "op": str(target), "attrs": (("arguments", text),), "why": why},
        types=types,
        name=[reader.graph.fresh(node.name) for _ in types],
        origins=[reader.origin(node)],
    )
    message = f"kept as torch {target}{f': {why}' if why else ''}; PyTorch runs it"
    reader.ledger.add(Change.EXACT, "read torch", node.name, message)
    return list(foreign.results) if has_many else foreign.result


def _argument_to_json(call: OverloadCall, argument: Any, operands: list[Value]) -> Any:
    """Returns an argument as JSON; tensors and sizes are operands by number."""
    if isinstance(argument, fx.Node):
        value = call.reader.tensor(argument)
        is_size = not isinstance(argument.meta["val"], torch.Tensor)
        operands.append(value)
        return {"size" if is_size else "operand": len(operands) - 1}
    if isinstance(argument, (list, tuple)):
        return [_argument_to_json(call, item, operands) for item in argument]
    # JSON has no infinities and NaN.
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    if isinstance(argument, torch.dtype):
        return {"dtype": str(argument).removeprefix("torch.")}
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    if isinstance(argument, (torch.device, torch.layout, torch.memory_format)):
        return None  # the default: CPU memory, strided layout
    raise TypeError(f"an argument of type {type(argument).__name__}")


def run(node: Node, operands: Mapping[str, NDArray[np.generic]]) -> tuple[NDArray[np.generic], ...]:
    """Computes a foreign node; raises PluginError if PyTorch lacks the operator or fails."""
    name = str(node.attrs["op"])
    namespace, _, packet_and_overload = name.partition(".")
    packet, _, overload = packet_and_overload.partition(".")
    overload_found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    # A model file names the operator, so only aten's own and harmless ones are run.
    if (
        namespace != _NAMESPACE
        or packet in _UNSAFE
        or not isinstance(overload_found, torch._ops.OpOverload)
    ):
        raise PluginError(f"{node.name}: PyTorch {torch.__version__} has no operator {name}")
    tensors = [tensor_of(operands[f"xs.{i}"]) for i in range(len(operands))]
    stored: Any = node.attrs["attrs"]
    try:
        arguments = json.loads(str(dict(stored)["arguments"]))
        values = {n: _argument_from_json(v, tensors) for n, v in arguments.items()}
        for parameter in overload_found._schema.arguments:
            is_written = parameter.alias_info is not None and parameter.alias_info.is_write
            if is_written and isinstance(values[parameter.name], torch.Tensor):
                # In-place operators write to a copy: the arrays belong to the caller.
                values[parameter.name] = values[parameter.name].clone()
        positional = [values[a.name] for a in overload_found._schema.arguments if not a.kwarg_only]
        keywords = {
            a.name: values[a.name] for a in overload_found._schema.arguments if a.kwarg_only
        }
        with torch.no_grad():
            returned = overload_found(*positional, **keywords)
    except InputError:
        raise
    except Exception as error:  # PyTorch raises what it likes
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise PluginError(f"{node.name}: PyTorch does not run {name}: {message}") from error
    results = returned if isinstance(returned, (list, tuple)) else [returned]
    return tuple(array_of(result) for result in results)


def _argument_from_json(argument: Any, tensors: list[torch.Tensor]) -> Any:
    match argument:
        case {"operand": int(index)}:
            return tensors[index]
        case {"size": int(index)}:
            return int(tensors[index].reshape(()).item())
        case {"float": str(text)} if text in ("inf", "-inf", "nan"):
            return float(text)
        case {"dtype": str(name)} if isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        case list():
            return [_argument_from_json(item, tensors) for item in argument]
        case dict():
            raise PluginError(f"an argument is {argument}, which is none that QIR writes")
    return argument

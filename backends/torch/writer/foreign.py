"""Operators of PyTorch that QIR does not know, written back as they were read."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import fx

from qir.ir.node import Node

from .program import FxProgram, Handler

_UNSAFE = frozenset({"from_file", "save", "load"})
"""Operators that reach beyond their operands, and are never called for a file."""


def _foreign(program: FxProgram, node: Node) -> fx.Node | list[fx.Node]:
    name, framework = str(node.attrs["op"]), str(node.attrs["framework"])
    held: Any = node.attrs["attrs"]
    target = _overload(name)
    if framework != "torch" or target is None:
        said = f"it is an operator of {framework} that QIR does not know"
        raise program.refuse(node, f"{said}; cut the model before it")
    if target._schema.is_mutable:  # PyTorch has the same that changes nothing
        target = _overload(name.replace("_.", ".", 1))
        if target is None:
            raise program.refuse(node, "it changes its operand; write the step without it")
    given: dict[str, Any] = json.loads(str(dict(held)["arguments"]))
    named = {key: _argument(program, node, value) for key, value in given.items()}
    formals = target._schema.arguments
    positional = [named[f.name] for f in formals if not f.kwarg_only]
    more = {f.name: named[f.name] for f in formals if f.kwarg_only and named[f.name] is not None}
    made = program.call(f"aten.{target._schema.name.partition('::')[2]}", *positional, **more)
    returns = target._schema.returns
    if len(returns) == 1 and str(returns[0].type) == "Tensor":
        return made
    return [program.item(made, index) for index in range(len(node.results))]


def _overload(name: str) -> Any:
    """Returns the operator of a name such as `aten.sort.default`; None where there is none."""
    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    known = space == "aten" and packet not in _UNSAFE and isinstance(found, torch._ops.OpOverload)
    return found if known else None


def _argument(program: FxProgram, node: Node, held: Any) -> Any:
    """Returns an argument as it is called with, which the frontend stated as JSON."""
    match held:
        case {"operand": int(index)}:
            return program.operand(node, f"xs.{index}")
        case {"size": int(index)}:
            value = node.operands[f"xs.{index}"]
            if value.constant is None:
                raise program.refuse(node, "it takes a size that is computed; fix that size")
            return int(value.constant.data.reshape(()))
        case {"float": str(text)}:
            return float(text)
        case {"dtype": str(kind)}:
            return getattr(torch, kind)
        case list():
            return [_argument(program, node, item) for item in held]
    return held


OPS: dict[str, Handler] = {"foreign": _foreign}

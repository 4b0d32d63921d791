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
    attributes: Any = node.attrs["attrs"]
    target = _overload(name)
    if framework != "torch" or target is None:
        reason = f"it is an operator of {framework} that QIR does not know"
        raise program.refuse(node, f"{reason}; cut the model before it")
    if target._schema.is_mutable:  # PyTorch has the same that changes nothing
        # `aten.add_.Tensor` -> `aten.add.Tensor`: the functional overload computes the same.
        target = _overload(name.replace("_.", ".", 1))
        if target is None:
            raise program.refuse(node, "it changes its operand; write the step without it")
    stated: dict[str, Any] = json.loads(str(dict(attributes)["arguments"]))
    arguments = {key: _argument(program, node, value) for key, value in stated.items()}
    formals = target._schema.arguments
    # Keyword-only arguments that are None are left out: the schema's default is None.
    positional = [arguments[f.name] for f in formals if not f.kwarg_only]
    keywords = {
        f.name: arguments[f.name] for f in formals if f.kwarg_only and arguments[f.name] is not None
    }
    result = program.call(f"aten.{target._schema.name.partition('::')[2]}", *positional, **keywords)
    returns = target._schema.returns
    if len(returns) == 1 and str(returns[0].type) == "Tensor":
        return result
    return [program.item(result, index) for index in range(len(node.results))]


def _overload(name: str) -> Any:
    """Returns the operator of a name such as `aten.sort.default`; None where there is none."""
    namespace, _, qualified = name.partition(".")
    packet, _, overload = qualified.partition(".")
    target = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    is_safe = (
        namespace == "aten" and packet not in _UNSAFE and isinstance(target, torch._ops.OpOverload)
    )
    return target if is_safe else None


def _argument(program: FxProgram, node: Node, stated: Any) -> Any:
    """Returns an argument as it is called with, which the frontend stated as JSON."""
    match stated:
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
            return [_argument(program, node, item) for item in stated]
    return stated


OPS: dict[str, Handler] = {"foreign": _foreign}

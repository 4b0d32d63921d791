"""Reads the call signature of an exported program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument

from qir.ir.call_signature import LEAF, CallSignature, Tree

_LITERALS = (int, float, bool, str, type(None))


def call_signature_of(exported: ExportedProgram) -> str:
    """Returns the text of a call signature; empty for plain arguments and results.

    Classes that PyTorch flattens to named parts (dataclasses, named tuples) become dicts. Arguments
    that are not tensors have the values of the example inputs.
    """
    signature, spec = exported.graph_signature, exported.call_spec
    arguments = [
        spec_of.arg for spec_of in signature.input_specs if spec_of.kind.name == "USER_INPUT"
    ]
    output_kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    results = [spec_of.arg for spec_of in signature.output_specs if spec_of.kind in output_kinds]
    if spec.in_spec is None or spec.out_spec is None:
        return ""
    try:
        arguments_tree: Any = _tree(spec.in_spec, iter(map(_leaf, arguments)))
        signature_found = CallSignature(
            arguments_tree[0], arguments_tree[1], _tree(spec.out_spec, iter(map(_leaf, results)))
        )
    except (TypeError, ValueError, StopIteration):
        return ""
    return "" if signature_found.plain else str(signature_found)


def _leaf(argument: Any) -> Tree:
    if isinstance(argument, TensorArgument):
        return LEAF
    if isinstance(argument, ConstantArgument) and isinstance(argument.value, _LITERALS):
        return argument.value
    raise ValueError("an argument is neither a tensor nor a literal")


def _tree(spec: Any, leaves: Iterator[Tree]) -> Tree:
    """Converts a TreeSpec of PyTorch; raises ValueError for a class without named parts."""
    if spec.is_leaf():
        return next(leaves)
    parts = [_tree(part, leaves) for part in spec.children()]
    kind, context = spec.type, spec.context
    if kind in (tuple, torch.Size):
        return tuple(parts)
    if kind is list:
        return parts
    # The context of a named tuple is its class; that of a dict is its keys.
    if isinstance(context, type) and hasattr(context, "_fields"):
        context = context._fields
    names = context[0] if _is_names_and_more(context) else context
    if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
        return dict(zip(names, parts, strict=True))
    raise ValueError(f"{kind} has no named parts")


def _is_names_and_more(context: Any) -> bool:
    """Returns whether a context has the names first and more after, as that of dataclasses."""
    return isinstance(context, (list, tuple)) and len(context) > 0 and isinstance(context[0], list)

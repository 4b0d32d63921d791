"""The form in which programs are read: an fx graph of operator calls without visible mutation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from qir.ir.garbage_collection import pause_garbage_collection

from .calls import call_signature_of
from .suppressed_logs import stack_traces_of_models_only

_ALLOCATING = frozenset(
    f"aten.{name}"
    for name in (
        "batch_norm.default conv1d.default conv2d.default conv3d.default conv_transpose1d.default"
        " conv_transpose2d.input conv_transpose3d.input group_norm.default instance_norm.default"
        " layer_norm.default linear.default max_pool1d.default max_pool2d.default"
        " max_pool3d.default"
    ).split()
)
"""Composite operators whose results never alias an operand."""

COPIES = frozenset(
    f"aten.{name}.default" for name in ("clone", "detach", "detach_", "lift_fresh_copy", "alias")
)
"""Operators whose result has the elements of their operand, which exporting inserts."""

_DROPOUTS_BY_NAME = frozenset(
    f"aten.{name}{place}.default"
    for name in ("alpha_dropout", "dropout", "feature_dropout")
    for place in ("", "_")
)


@dataclass(frozen=True)
class TorchProgram:
    """Operator calls, and the stored tensors that they use."""

    graph: fx.Graph
    stored_tensors: Mapping[str, tuple[str, torch.Tensor]]
    """By placeholder: name and tensor of a parameter, buffer or constant."""
    attribute: Callable[[str], object]
    """Resolves the target of a `get_attr` node."""
    state_updates: Mapping[int, str] = field(default_factory=dict)
    """By index of an output: the buffer that it updates; such outputs are dropped."""
    call_signature: str = ""
    """How arguments and results nest, as text; empty for plain ones."""


def as_program(exported: ExportedProgram) -> TorchProgram:
    """Returns an exported program in that form."""
    stored = {}
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            continue
        target = spec.target or ""
        # Parameters and persistent buffers are in the state dict; other buffers and lifted
        # constants are not.
        tensor = exported.state_dict.get(target)
        tensor = exported.constants.get(target) if tensor is None else tensor
        if isinstance(tensor, torch.Tensor):
            stored[spec.arg.name] = target, tensor
    user_outputs = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    specs = enumerate(exported.graph_signature.output_specs)
    updated = {i: str(spec.target) for i, spec in specs if spec.kind not in user_outputs}

    def attribute(name: str) -> object:
        return operator.attrgetter(name)(exported.graph_module)

    return TorchProgram(exported.graph, stored, attribute, updated, call_signature_of(exported))


def returns_its_operand(node: torch.fx.Node) -> bool:
    """Returns whether a call returns its operand itself, as dropout does in inference."""
    return str(node.target) in _DROPOUTS_BY_NAME and node.args[2:] == (False,)


def functionalized_if_needed(program: ExportedProgram) -> ExportedProgram:
    """Returns a program whose in-place ops can be read as functional ones.

    An in-place op whose operand has no live view is a rename, which the reader follows. PyTorch's
    functionalization rewrites other programs. It is not run on all, since it also decomposes layers
    such as batch norm.
    """
    return _functionalized(program) if mutates_views(program.graph) else program


def mutates_views(graph: fx.Graph) -> bool:
    """Returns whether an in-place op changes memory that a view, used later, shares."""
    last = _last_uses(graph)
    views: dict[str, set[str]] = {}  # by name: all tensors that may share its memory
    aliases: dict[str, str] = {}  # by call that returns its operand: that operand
    for index, node in enumerate(graph.nodes):
        operands = [aliases.get(operand.name, operand.name) for operand in node.all_input_nodes]
        if node.target is operator.getitem and operands[0] in views:
            _note_shared_memory(views, node.name, *operands)
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        if returns_its_operand(node):
            aliases[node.name] = operands[0]
        elif not node.target._schema.is_mutable:
            if _may_alias(node.target):
                _note_shared_memory(views, node.name, *operands)
        elif (changed := written_operand(node)) is not None:
            root = aliases[node.name] = aliases.get(changed.name, changed.name)
            other_views = views.get(root, set()) - {root}
            used_later = other_views and any(
                last[n] > index for n in last if aliases.get(n, n) in other_views
            )
            # An input that changes is visible to the caller; a view that is read later would see
            # the change.
            if changed.op == "placeholder" or used_later:
                return True
        else:
            return True
    return False


def _last_uses(graph: fx.Graph) -> dict[str, int]:
    """Returns the index of the last use by name; the caller may use inputs at any time."""
    places = {node: i for i, node in enumerate(graph.nodes)}
    return {
        node.name: len(places)
        if node.op in ("placeholder", "get_attr")
        else max((places[user] for user in node.users), default=-1)
        for node in graph.nodes
    }


def _note_shared_memory(views: dict[str, set[str]], *names: str) -> None:
    """Records that tensors may share memory."""
    joined = set(names).union(*(views.get(name, ()) for name in names))
    views.update(dict.fromkeys(joined, joined))


@pause_garbage_collection()
def _functionalized(program: ExportedProgram) -> ExportedProgram:
    with stack_traces_of_models_only():
        rewritten: ExportedProgram = program.run_decompositions({})
    return rewritten


def _may_alias(target: torch._ops.OpOverload) -> bool:
    """Returns whether a result may be a view of an operand.

    The schema of a composite operator does not say: `reshape` decides at run time.
    """
    return target.is_view or (target._can_decompose() and str(target) not in _ALLOCATING)


def written_operand(node: fx.Node) -> fx.Node | None:
    """Returns the operand that a call changes and returns, as `relu_` does.

    None for calls that change nothing, and for `add.out` or `_foreach_add_`.
    """
    target: Any = node.target
    formals = target._schema.arguments
    written_indices = [
        i
        for i, formal in enumerate(formals)
        if formal.alias_info is not None and formal.alias_info.is_write
    ]
    if (
        len(written_indices) != 1
        or written_indices[0] >= len(node.args)
        or len(target._schema.returns) != 1
    ):
        return None
    operand = node.args[written_indices[0]]
    return operand if isinstance(operand, fx.Node) else None

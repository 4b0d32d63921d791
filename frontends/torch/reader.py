"""Builds a graph from the nodes of an exported program."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from qir.errors import InputError, TypeRuleError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.origin import Origin
from qir.ir.types import Array, QuantType, TensorType
from qir.ledger import Change, Ledger

from . import decomposition, foreign, sizes
from .call import KeepCall, OverloadCall, type_of
from .control import CONTROL
from .elements import array, element
from .operators import MOVES, OPS
from .program import TorchProgram, gives_back, written
from .symbols import shape_of

STEP = "read torch"
_SAME = frozenset(
    f"aten.{name}.default" for name in ("clone", "detach", "detach_", "lift_fresh_copy", "alias")
)
_CONTAINERS = frozenset({"ModuleDict", "ModuleList", "Sequential"})
_ASSERTIONS = ("_assert", "sym_constrain_range", "_check")
"""How the names of operators begin that check sizes and compute nothing."""


def read(program: TorchProgram, name: str, ledger: Ledger, *, share: bool) -> Graph:
    """Returns the graph of a program; InputError names what it cannot read.

    Parameters share the program's memory where `share` says that nobody writes to it any more.
    """
    reader = ProgramReader(program, name, ledger, share)
    for node in program.graph.nodes:
        reader.read(node)
    reader.graph.prune()
    return reader.graph


class ProgramReader:
    """The graph that is built, and what each node of the program has become in it."""

    def __init__(
        self,
        program: TorchProgram,
        name: str,
        ledger: Ledger,
        share: bool,
        *,
        graph: Graph | None = None,
        depth: int = 0,
    ) -> None:
        self.program = program
        self.depth = depth
        """How many operators are being read as what PyTorch makes of them; 0 keeps unknown ones."""
        self.share = share
        self.graph = Graph(name) if graph is None else graph
        self.ledger = ledger
        self.found: dict[str, Any] = {}
        """By node: a value, a list of them, or None for a node that computes nothing."""
        self.sizes: dict[str, Value] = {}
        """By node that is a size: the i64 tensor of one element that holds it."""
        self.quantized: dict[str, list[Value]] = {}
        """By stored tensor: the constants of quantized types that it became."""
        self.unnamed: set[Value] = set()
        """Values that may still take the name of the node whose result they are."""
        self.same: dict[str, list[str]] = {}
        """By node: those that are the same tensor, as ops in place give back their operand."""
        self.stored = dict(program.stored)
        """By placeholder or attribute: the tensor of the program that it stands for, and its
        name there."""

    # -- nodes ----------------------------------------------------------------------------------

    def read(self, node: fx.Node) -> None:
        """Reads one node of the program."""
        if node.op == "placeholder":
            self._placeholder(node)
        elif node.op == "output":
            self._output(node)
        elif node.op == "get_attr":
            self._attribute(node)
        elif node.op == "call_function":
            self._call(node)
        else:
            raise self.fail(node, f"is {node.op} {node.target}, which exporting leaves to nobody")

    def _placeholder(self, node: fx.Node) -> None:
        if node.name in self.stored:
            return  # a constant, made when something reads it
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            if node.users:
                raise self.fail(node, f"is {type(fake).__name__}, inputs must be tensors")
            return
        made = self.graph.add(
            "input",
            types=[type_of(fake, f"input {node.name}")],
            name=node.name,
            origins=[Origin("torch", "Input", node.name)],
        )
        self.found[node.name] = made.result

    def _attribute(self, node: fx.Node) -> None:
        held = self.program.attribute(str(node.target))
        if isinstance(held, torch.Tensor):  # else a body, which its call is refused for
            self.stored[node.name] = str(node.target), held

    def constant(self, name: str, held: torch.Tensor, quant: QuantType | None = None) -> Value:
        """Adds a stored tensor as a constant; raises InputError for one that no array holds."""
        kind = element(held.dtype)
        if kind is None or held.layout != torch.strided:
            said = f"{held.dtype}, {str(held.layout).removeprefix('torch.')}"
            raise InputError(f"{self.graph.name}: parameter {name} is {said}, which is not read")
        data = array(held)
        if self.share:
            data.flags.writeable = False
        made = Array(data, TensorType(data.shape, quant or kind), name)
        return self.graph.constant(made, name=name)

    def _output(self, node: fx.Node) -> None:
        operands: dict[str, Value] = {}
        updated = self.program.updated
        results: Any = node.args[0]
        for i, held in enumerate(results):
            if i in updated:
                said = f"{updated[i]} is not updated: a graph has no state"
                self.ledger.add(Change.DROPPED, STEP, updated[i], said)
                continue
            if held is None:
                continue
            if not isinstance(held, fx.Node):
                raise self.fail(node, f"gives back {held!r}, results must be tensors")
            name = held.name if held.name not in operands else self.graph.fresh(held.name)
            operands[name] = self.tensor(held)
        self.graph.add("output", operands, {"call": self.program.call})

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            made: Any = node.args[0]
            value = self.found[made.name][node.args[1]]
            self.found[node.name] = value
            self._name(value, node.name)
            return
        if sizes.is_size(node):
            return  # computed where something reads it
        target: Any = node.target
        if target in CONTROL:
            self.found[node.name] = CONTROL[target](self, node)
            return
        if not isinstance(target, torch._ops.OpOverload):
            name = getattr(target, "__name__", str(target))
            raise self.fail(node, f"calls {name}; which is not read; export a part without it")
        if str(target).removeprefix("aten.").startswith(_ASSERTIONS):
            return
        call = OverloadCall(self, node, moves=_plain(target) in MOVES)
        before = len(self.graph)
        try:
            made = self._converted(call, str(target))
        except (KeepCall, TypeRuleError) as why:
            self._undo(before)
            made = self._decomposed(call, str(why))
        self.found[node.name] = made
        first = node.args[0] if gives_back(node) else written(node)
        if isinstance(first, fx.Node):
            self._changed(first.name, node.name, made)
        if isinstance(made, Value):
            self._name(made, node.name)

    def _decomposed(self, call: OverloadCall, why: str) -> Any:
        """Returns what PyTorch makes of an unknown operator, in ops of the language, or keeps it.

        Raises Keep within another one, which is then kept instead.
        """
        before = len(self.graph)
        try:
            made = decomposition.read(self, call.node)
            self._agree(call.node, made)
        except (KeepCall, TypeRuleError):
            self._undo(before)
            if self.depth:
                raise
            return foreign.keep(call, why)
        return made

    def _changed(self, operand: str, result: str, made: Any) -> None:
        """Makes whatever reads a tensor later see what an op in place made of it."""
        if operand in self.stored and operand not in self.same:
            name = self.stored[operand][0]
            said = f"{name} is not updated: a graph has no state"
            self.ledger.add(Change.DROPPED, STEP, name, said)
        names = self.same.setdefault(operand, [operand])
        names.append(result)
        self.same[result] = names
        self.found.update(dict.fromkeys(names, made))

    def _converted(self, call: OverloadCall, name: str) -> Any:
        """Returns what a known operator becomes; Keep for one that is not known."""
        handler = OPS.get(_plain(call.node.target))
        if handler is None:
            raise KeepCall(f"{name} is no operator of the language")
        made = handler(call)
        self._agree(call.node, made)
        return made

    def _agree(self, node: fx.Node, made: Any) -> None:
        """Holds what a call has become to the types of its results."""
        fakes = node.meta["val"]
        for value, fake in zip(
            made if isinstance(made, (list, tuple)) else [made],
            fakes if isinstance(fakes, (list, tuple)) else [fakes],
            strict=True,
        ):
            if value is not None:
                self._check(value, fake)

    def _check(self, value: Value, fake: torch.Tensor) -> None:
        """Holds a value to the type that PyTorch has for it, and refines sizes that were unknown.

        Keep where the two disagree: then the converter does not know this case.
        """
        kind, shape = value.type, shape_of(fake.shape)
        if kind.dtype != element(fake.dtype) or kind.rank != len(shape):
            raise KeepCall
        if not all(map(dims.may_be_equal, kind.shape, shape)):
            raise KeepCall
        refined = tuple(b if a is None else a for a, b in zip(kind.shape, shape, strict=True))
        if refined != kind.shape:
            self.graph.set_type(value, kind.with_shape(refined))

    def _undo(self, count: int) -> None:
        """Removes what a converter added before it gave up, but sizes, which others may read."""
        kept = {value.node for value in self.sizes.values()}
        for node in reversed(list(self.graph)[count:]):
            used = node in kept or any(value.uses for value in node.results)
            if not used and node.op != "constant":
                self.graph.remove(node)

    def _name(self, value: Value, name: str) -> None:
        """Gives a value the name of the node that makes it, unless it has a name of the model."""
        if value in self.unnamed and not self.graph.has(name):
            self.unnamed.discard(value)
            self.graph.rename(value, name)

    # -- what converters ask for ----------------------------------------------------------------

    def add(
        self,
        node: fx.Node,
        op: str,
        operands: Mapping[str, Value],
        attrs: Mapping[str, Attr],
        kind: TensorType | None = None,
    ) -> Node:
        """Adds an op that stems from a node of the program; `kind` is its only result's type."""
        origins, name = [self.origin(node)], self.names(node, op)
        types = None if kind is None else [kind]
        made = self.graph.add(op, operands, attrs, types=types, name=name, origins=origins)
        self.unnamed.update(made.results)
        return made

    def add_group(
        self,
        node: fx.Node,
        stages: Sequence[Stage],
        operands: Mapping[str, Value],
        kind: TensorType,
    ) -> Value:
        """Adds a group of ops that stems from a node of the program."""
        origins, name = [self.origin(node)], self.names(node, stages[0].op)
        made = self.graph.add_chain(stages, operands, kind, name=name, origins=origins).result
        self.unnamed.add(made)
        return made

    def names(self, node: fx.Node, op: str) -> str:
        """Returns a name for a value that the program does not name."""
        return self.graph.fresh(f"{node.name}.{op}")

    def origin(self, node: fx.Node) -> Origin:
        """Returns where a node came from: its overload, and path and class of the caller."""
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        operands = tuple(
            (f"{i}", a.name) for i, a in enumerate(node.args) if isinstance(a, fx.Node)
        )
        module = path.removeprefix("L['self'].").removeprefix("L['self']")
        layer = next((str(c) for _, c in stack.values() if _is_layer(str(c))), "")
        return Origin("torch", _called(node), node.name, module, 0, operands, layer)

    def tensor(self, node: fx.Node) -> Value:
        """Returns the value of a node; a parameter becomes a constant when it is first read."""
        if not isinstance(node, fx.Node):
            raise KeepCall
        if sizes.is_size(node):
            return self.size(node)
        if node.name not in self.found:
            if node.name not in self.stored:
                raise KeepCall
            self.found[node.name] = self.constant(*self.stored[node.name])
        found = self.found[node.name]
        if not isinstance(found, Value):
            raise KeepCall
        return found

    def held(self, node: Any) -> tuple[str, torch.Tensor] | None:
        """Returns the name and the elements of a tensor that the program stores; None for others.

        One that is cloned or detached is still the stored one.
        """
        while isinstance(node, fx.Node) and str(node.target) in _SAME:
            node = node.args[0]
        return self.stored.get(node.name) if isinstance(node, fx.Node) else None

    def integers(self, node: fx.Node, quant: QuantType) -> Value:
        """Returns a stored tensor as a constant of a quantized type.

        Raises Keep where its elements are of another type.
        """
        found = self.held(node)
        if found is None or element(found[1].dtype) != quant.storage:
            raise KeepCall(f"its data are not stored as {quant.storage}")
        same = [v for v in self.quantized.get(found[0], []) if v.type.quant == quant]
        if not same:
            same = [self.constant(*found, quant)]
            self.quantized.setdefault(found[0], []).extend(same)
        return same[0]

    def size(self, held: int | fx.Node) -> Value:
        """Returns a size as an i64 tensor of one element."""
        return sizes.value(self, held)

    def number(self, node: fx.Node, held: object, kind: DType) -> Value:
        """Returns a number as a constant of an element type."""
        if not isinstance(held, (bool, int, float)):
            raise KeepCall
        with np.errstate(all="ignore"):
            data = np.asarray(held).astype(kind.carrier)
        return self.graph.constant(
            Array(data, TensorType((), kind)), name=self.names(node, "number")
        )

    def fail(self, node: fx.Node, what: str) -> InputError:
        """Returns the error for a node, with the line of the user's code that made it."""
        trace = (node.meta.get("stack_trace") or "").strip().splitlines()
        line = next((s.strip() for s in reversed(trace) if s.strip().startswith("File")), "")
        where = f" ({line})" if line else ""
        return InputError(f"{self.graph.name}: {node.name} {what}{where}")


def _called(node: fx.Node) -> str:
    """Returns the overload that a module called: of `relu(x, inplace=True)` that of `relu`."""
    _, _, function = (node.meta.get("torch_fn") or ("", ""))[1].rpartition(".")
    place = f"aten.{function}_."
    return str(node.target).replace(place, f"aten.{function}.", 1) if function else str(node.target)


def _is_layer(name: str) -> bool:
    """Returns whether a module's class is a layer of PyTorch; its containers only hold others."""
    return name.startswith("torch.nn.") and name.rpartition(".")[2] not in _CONTAINERS


def _plain(target: Any) -> str:
    """Returns an operator's name; an op in place has that of the functional one."""
    name = str(target)
    return name.replace("_.", ".") if target._schema.is_mutable else name

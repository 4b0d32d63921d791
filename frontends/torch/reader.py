"""Builds a graph from the nodes of a `TorchProgram`.

A call is read by the converter of its overload (`operators`). Without one, the call is read as its
decomposition in PyTorch (`decomposition`); if that is unknown too, it becomes a foreign node.
"""

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
from .elements import array_of, dtype_of
from .operators import KEEPS_QUANTIZED_TYPE, OPS
from .program import COPIES, TorchProgram, returns_its_operand, written_operand
from .symbols import shape_of

STEP = "read torch"
_CONTAINERS = frozenset({"ModuleDict", "ModuleList", "Sequential"})
_ASSERTIONS = ("_assert", "sym_constrain_range", "_check")
"""Prefixes of operators that check sizes and compute nothing."""


def read(program: TorchProgram, name: str, ledger: Ledger, *, shares_memory: bool) -> Graph:
    """Returns the graph of a program; raises InputError for what it cannot read.

    With `shares_memory`, constants share the memory of the program, which nobody writes to then.
    """
    reader = ProgramReader(program, name, ledger, shares_memory)
    for node in program.graph.nodes:
        reader.read(node)
    reader.graph.prune()
    return reader.graph


class ProgramReader:
    """The graph under construction, and the value of each node of the program in it."""

    def __init__(
        self,
        program: TorchProgram,
        name: str,
        ledger: Ledger,
        shares_memory: bool,
        *,
        graph: Graph | None = None,
        depth: int = 0,
    ) -> None:
        self.program = program
        self.depth = depth
        """Nesting of decompositions. At 0, unknown operators are kept; inside, the outer one is."""
        self.shares_memory = shares_memory
        self.graph = Graph(name) if graph is None else graph
        self.ledger = ledger
        self.results: dict[str, Any] = {}
        """By node: a value, a list of values, or None for a node that computes nothing."""
        self.size_values: dict[str, Value] = {}
        """By node that is a size: an i64 tensor of one element."""
        self.quantized_constants: dict[str, list[Value]] = {}
        """By stored tensor: the constants of quantized types that were made of it."""
        self.unnamed: set[Value] = set()
        """Values that may still take the name of the node that returns them."""
        self.aliases: dict[str, list[str]] = {}
        """By node: the nodes that are the same tensor, since in-place ops return their operand."""
        self.stored_tensors = dict(program.stored_tensors)
        """By placeholder or attribute: the name and the tensor that the program stores."""

    # -- nodes ----------------------------------------------------------------------------------

    def read(self, node: fx.Node) -> None:
        """Reads one node of the program."""
        if node.op == "placeholder":
            self._read_placeholder(node)
        elif node.op == "output":
            self._read_output(node)
        elif node.op == "get_attr":
            self._read_attribute(node)
        elif node.op == "call_function":
            self._read_call(node)
        else:
            raise self.error(node, f"is {node.op} {node.target}, which exporting leaves to nobody")

    def _read_placeholder(self, node: fx.Node) -> None:
        if node.name in self.stored_tensors:
            return  # a parameter, which becomes a constant when it is first used
        fake = node.meta.get("val")
        # Export keeps numbers and None among the arguments as placeholders, usually without users.
        if not isinstance(fake, torch.Tensor):
            if node.users:
                raise self.error(node, f"is {type(fake).__name__}, inputs must be tensors")
            return
        node_added = self.graph.add(
            "input",
            types=[type_of(fake, f"input {node.name}")],
            name=node.name,
            origins=[Origin("torch", "Input", node.name)],
        )
        self.results[node.name] = node_added.result

    def _read_attribute(self, node: fx.Node) -> None:
        attribute = self.program.attribute(str(node.target))
        if isinstance(attribute, torch.Tensor):  # else a submodule, which `control` reads
            self.stored_tensors[node.name] = str(node.target), attribute

    def constant(self, name: str, tensor: torch.Tensor, quant: QuantType | None = None) -> Value:
        """Adds a stored tensor as a constant; raises InputError for one that no array holds."""
        dtype = dtype_of(tensor.dtype)
        if dtype is None or tensor.layout != torch.strided:
            message = f"{tensor.dtype}, {str(tensor.layout).removeprefix('torch.')}"
            raise InputError(f"{self.graph.name}: parameter {name} is {message}, which is not read")
        data = array_of(tensor)
        if self.shares_memory:
            data.flags.writeable = False
        array = Array(data, TensorType(data.shape, quant or dtype), name)
        return self.graph.constant(array, name=name)

    def _read_output(self, node: fx.Node) -> None:
        operands: dict[str, Value] = {}
        updated = self.program.state_updates
        results: Any = node.args[0]
        for i, result in enumerate(results):
            # Export appends updated buffers (such as BatchNorm's running mean) to the outputs of
            # the user.
            if i in updated:
                message = f"{updated[i]} is not updated: a graph has no state"
                self.ledger.add(Change.DROPPED, STEP, updated[i], message)
                continue
            if result is None:
                continue
            if not isinstance(result, fx.Node):
                raise self.error(node, f"gives back {result!r}, results must be tensors")
            name = result.name if result.name not in operands else self.graph.fresh(result.name)
            operands[name] = self.tensor(result)
        self.graph.add("output", operands, {"call": self.program.call_signature})

    def _read_call(self, node: fx.Node) -> None:
        # `getitem` picks one result of an operator that returns several.
        if node.target is operator.getitem:
            outcome: Any = node.args[0]
            value = self.results[outcome.name][node.args[1]]
            self.results[node.name] = value
            self._rename_to(value, node.name)
            return
        if sizes.is_size(node):
            return  # sizes are computed only where something uses them, by `sizes.size_value`
        target: Any = node.target
        # Higher-order operators (`cond`, `while_loop`) have subgraphs as arguments, and no schema.
        if target in CONTROL:
            self.results[node.name] = CONTROL[target](self, node)
            return
        if not isinstance(target, torch._ops.OpOverload):
            name = getattr(target, "__name__", str(target))
            raise self.error(node, f"calls {name}; which is not read; export a part without it")
        if str(target).removeprefix("aten.").startswith(_ASSERTIONS):
            return
        call = OverloadCall(self, node, moves=_functional_name(target) in KEEPS_QUANTIZED_TYPE)
        # A converter may add nodes before it finds that it cannot express the call: these are
        # removed.
        count = len(self.graph)
        try:
            outcome = self._convert(call, str(target))
        except (KeepCall, TypeRuleError) as why:
            self._remove_added(count)
            outcome = self._decompose_or_keep(call, str(why))
        self.results[node.name] = outcome
        # Later nodes may still name the operand of an in-place op: they read its result.
        operand = node.args[0] if returns_its_operand(node) else written_operand(node)
        if isinstance(operand, fx.Node):
            self._record_in_place(operand.name, node.name, outcome)
        if isinstance(outcome, Value):
            self._rename_to(outcome, node.name)

    def _decompose_or_keep(self, call: OverloadCall, why: str) -> Any:
        """Reads an unknown operator as its decomposition in PyTorch, else keeps it as foreign.

        Inside another decomposition it raises KeepCall instead, so that the outer operator is kept.
        """
        count = len(self.graph)
        try:
            results = decomposition.read(self, call.node)
            self._check_results(call.node, results)
        except (KeepCall, TypeRuleError):
            self._remove_added(count)
            if self.depth:
                raise
            return foreign.keep(call, why)
        return results

    def _record_in_place(self, operand: str, result: str, value: Any) -> None:
        """Lets later uses of a tensor, by any of its names, see the result of an in-place op."""
        if operand in self.stored_tensors and operand not in self.aliases:
            name = self.stored_tensors[operand][0]
            message = f"{name} is not updated: a graph has no state"
            self.ledger.add(Change.DROPPED, STEP, name, message)
        # All names share one list, so that a later in-place op updates every earlier alias at once.
        names = self.aliases.setdefault(operand, [operand])
        names.append(result)
        self.aliases[result] = names
        self.results.update(dict.fromkeys(names, value))

    def _convert(self, call: OverloadCall, name: str) -> Any:
        """Returns the values of a call by its converter; raises KeepCall without one."""
        handler = OPS.get(_functional_name(call.node.target))
        if handler is None:
            raise KeepCall(f"{name} is no operator of the language")
        values = handler(call)
        self._check_results(call.node, values)
        return values

    def _check_results(self, node: fx.Node, results: Any) -> None:
        """Checks that converted results have the types that PyTorch inferred."""
        fakes = node.meta["val"]
        for value, fake in zip(
            results if isinstance(results, (list, tuple)) else [results],
            fakes if isinstance(fakes, (list, tuple)) else [fakes],
            strict=True,
        ):
            # None stands for a result that nothing uses, such as the indices of a max pool.
            if value is not None:
                self._check_type(value, fake)

    def _check_type(self, value: Value, fake: torch.Tensor) -> None:
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
            self.graph.set_type(value, value_type.with_shape(refined))

    def _remove_added(self, count: int) -> None:
        """Removes what a converter added before it gave up; computed sizes stay for other uses."""
        size_nodes = {value.node for value in self.size_values.values()}
        # From the last to the first, so that consumers go before their producers.
        for node in reversed(list(self.graph)[count:]):
            used = node in size_nodes or any(value.uses for value in node.results)
            if not used and node.op != "constant":
                self.graph.remove(node)

    def _rename_to(self, value: Value, name: str) -> None:
        """Names a value after its fx node, unless it has a name of the model already."""
        if value in self.unnamed and not self.graph.has(name):
            self.unnamed.discard(value)
            self.graph.rename(value, name)

    # -- for converters -------------------------------------------------------------------------

    def add(
        self,
        node: fx.Node,
        op: str,
        operands: Mapping[str, Value],
        attrs: Mapping[str, Attr],
        result_type: TensorType | None = None,
    ) -> Node:
        """Adds an op with the origin of an fx node; `result_type` is that of its single result."""
        origins, name = [self.origin(node)], self.names(node, op)
        types = None if result_type is None else [result_type]
        node_added = self.graph.add(op, operands, attrs, types=types, name=name, origins=origins)
        self.unnamed.update(node_added.results)
        return node_added

    def add_group(
        self,
        node: fx.Node,
        stages: Sequence[Stage],
        operands: Mapping[str, Value],
        result_type: TensorType,
    ) -> Value:
        """Adds a group of ops that stems from a node of the program."""
        origins, name = [self.origin(node)], self.names(node, stages[0].op)
        value = self.graph.add_chain(
            stages, operands, result_type, name=name, origins=origins
        ).result
        self.unnamed.add(value)
        return value

    def names(self, node: fx.Node, op: str) -> str:
        """Returns a name for a value that the program does not name."""
        return self.graph.fresh(f"{node.name}.{op}")

    def origin(self, node: fx.Node) -> Origin:
        """Returns the origin of a node: its overload, and the module path and layer class."""
        # The stack lists the modules around a node, outermost first: the last is the node's own,
        # and the first layer of torch.nn names the layer that the user wrote.
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        operands = tuple(
            (f"{i}", a.name) for i, a in enumerate(node.args) if isinstance(a, fx.Node)
        )
        module = path.removeprefix("L['self'].").removeprefix("L['self']")
        layer = next(
            (
                str(layer_class)
                for _, layer_class in stack.values()
                if _is_pytorch_layer(str(layer_class))
            ),
            "",
        )
        return Origin("torch", _called_overload(node), node.name, module, 0, operands, layer)

    def tensor(self, node: fx.Node) -> Value:
        """Returns the value of a node; a parameter becomes a constant on first use."""
        if not isinstance(node, fx.Node):
            raise KeepCall
        if sizes.is_size(node):
            return self.size_value(node)
        if node.name not in self.results:
            if node.name not in self.stored_tensors:
                raise KeepCall
            self.results[node.name] = self.constant(*self.stored_tensors[node.name])
        value = self.results[node.name]
        if not isinstance(value, Value):
            raise KeepCall
        return value

    def stored_tensor(self, node: Any) -> tuple[str, torch.Tensor] | None:
        """Returns name and tensor of a parameter or buffer; None for other nodes.

        Looks through clone and detach, which exporting inserts.
        """
        while isinstance(node, fx.Node) and str(node.target) in COPIES:
            node = node.args[0]
        return self.stored_tensors.get(node.name) if isinstance(node, fx.Node) else None

    def quantized_constant(self, node: fx.Node, quant: QuantType) -> Value:
        """Returns a stored tensor as a constant of a quantized type.

        Raises KeepCall where it is stored in another element type.
        """
        stored = self.stored_tensor(node)
        if stored is None or dtype_of(stored[1].dtype) != quant.storage:
            raise KeepCall(f"its data are not stored as {quant.storage}")
        # Layers that share a tensor may read it by different quantized types.
        constants = [
            v for v in self.quantized_constants.get(stored[0], []) if v.type.quant == quant
        ]
        if not constants:
            constants = [self.constant(*stored, quant)]
            self.quantized_constants.setdefault(stored[0], []).extend(constants)
        return constants[0]

    def size_value(self, size: int | fx.Node) -> Value:
        """Returns a size as an i64 tensor of one element."""
        return sizes.size_value(self, size)

    def number(self, node: fx.Node, number: object, dtype: DType) -> Value:
        """Returns a number as a constant of an element type."""
        if not isinstance(number, (bool, int, float)):
            raise KeepCall
        with np.errstate(all="ignore"):
            data = np.asarray(number).astype(dtype.carrier)
        return self.graph.constant(
            Array(data, TensorType((), dtype)), name=self.names(node, "number")
        )

    def error(self, node: fx.Node, what: str) -> InputError:
        """Returns an error for a node, with the line of the user's code it comes from."""
        # The last "File" line of the trace is the innermost call in the user's code.
        trace = (node.meta.get("stack_trace") or "").strip().splitlines()
        line = next((s.strip() for s in reversed(trace) if s.strip().startswith("File")), "")
        where = f" ({line})" if line else ""
        return InputError(f"{self.graph.name}: {node.name} {what}{where}")


def _called_overload(node: fx.Node) -> str:
    """Returns the overload that a module called: of `relu(x, inplace=True)` that of `relu`."""
    _, _, function = (node.meta.get("torch_fn") or ("", ""))[1].rpartition(".")
    place = f"aten.{function}_."
    return str(node.target).replace(place, f"aten.{function}.", 1) if function else str(node.target)


def _is_pytorch_layer(name: str) -> bool:
    """Returns whether a class is a layer of PyTorch, and not one of its containers."""
    return name.startswith("torch.nn.") and name.rpartition(".")[2] not in _CONTAINERS


def _functional_name(target: Any) -> str:
    """Returns the name of an operator, for in-place ones that of the functional variant."""
    name = str(target)
    return name.replace("_.", ".") if target._schema.is_mutable else name

"""The state of reading a `TorchProgram`: its graph under construction, and the value of each node.

Converters of operators (`elementwise`, `movement`, ...) add nodes by it. Which converter reads a
node is decided in `dispatch`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from qir.errors import InputError
from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.origin import Origin
from qir.ir.types import Array, QuantType, TensorType
from qir.ledger import Ledger

from .elements import array_of, dtype_of
from .program import COPIES, TorchProgram
from .sizes import Size, int64_array, is_size

_CONTAINERS = frozenset({"ModuleDict", "ModuleList", "Sequential"})
_ARITHMETIC: dict[Callable[..., object], str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floor_div",
    operator.mod: "mod",
    torch.sym_max: "max",
    torch.sym_min: "min",
}
"""Arithmetic on sizes: the op of the language by the function of the program."""


class KeepCall(Exception):
    """Raised where a call has no exact form in the language.

    The call is decomposed, or kept as foreign.
    """


class ProgramReader:
    """The graph under construction, and the value of each node of the program in it."""

    def __init__(
        self,
        program: TorchProgram,
        name: str,
        ledger: Ledger,
        shares_memory: bool,
        read_node: Callable[[ProgramReader, fx.Node], None],
        *,
        graph: Graph | None = None,
        depth: int = 0,
    ) -> None:
        self.program = program
        self.depth = depth
        """Nesting of decompositions. At 0, unknown operators are kept; inside, the outer one is."""
        self.shares_memory = shares_memory
        self._read_node = read_node
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

    def read(self, node: fx.Node) -> None:
        """Reads one node of the program."""
        self._read_node(self, node)

    def nested(self, program: TorchProgram, graph: Graph, depth: int = 0) -> ProgramReader:
        """Returns a reader for a program inside this one, such as a branch or a decomposition."""
        return ProgramReader(
            program,
            self.graph.name,
            self.ledger,
            self.shares_memory,
            self._read_node,
            graph=graph,
            depth=depth,
        )

    # -- values ---------------------------------------------------------------------------------

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
        if is_size(node):
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

    def size_value(self, size: Size) -> Value:
        """Returns a size as an i64 tensor of one element; one node serves all uses."""
        if isinstance(size, int):
            return self.graph.constant(int64_array([size]))
        if size.name not in self.size_values:
            self.size_values[size.name] = self._compute_size(size)
        return self.size_values[size.name]

    def _compute_size(self, node: fx.Node) -> Value:
        target = node.target
        if str(target) in ("aten.sym_size.int", "aten.size.int"):
            x, axis = self.tensor(node.args[0]), node.args[1]  # type: ignore[arg-type]
            if not isinstance(axis, int):
                raise KeepCall
            axis += x.type.rank if axis < 0 else 0
            attrs = {"start": axis, "end": axis + 1}
            return self.add(node, "shape", {"x": x}, attrs).result
        if str(target) in ("aten.sym_numel.default", "aten.numel.default"):
            extents = self.add(node, "shape", {"x": self.tensor(node.args[0])}, {})  # type: ignore[arg-type]
            return self.add(node, "reduce_prod", {"x": extents.result}, {}).result
        if target not in _ARITHMETIC:
            raise self.error(node, f"{target} computes a size, which is not read")
        op = _ARITHMETIC[target]
        a, b = (self.size_value(size) for size in node.args)  # type: ignore[arg-type]
        # `max` and `min` of the language take any number of operands.
        slots = ("xs.0", "xs.1") if op in ("max", "min") else ("a", "b")
        return self.add(node, op, dict(zip(slots, (a, b), strict=True)), {}).result

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

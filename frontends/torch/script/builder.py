"""Emits calls of operators, with the shapes and element types that PyTorch infers for them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from qir.errors import InputError

_COPIES = frozenset(
    f"aten.{name}.default" for name in ("clone", "detach", "detach_", "lift_fresh_copy", "alias")
)


def _infer_recurrent(
    x: torch.Tensor, states: Any, weights: Any, *rest: Any
) -> tuple[torch.Tensor, ...]:
    """Returns empty results of an LSTM, GRU or RNN layer, of the right shapes."""
    held = states if isinstance(states, (list, tuple)) else (states,)
    directions = 2 if rest[-2] else 1
    made = x.new_empty((*x.shape[:-1], directions * held[0].shape[-1]))
    return (made, *(torch.empty_like(state) for state in held))


def _infer_pad(
    x: torch.Tensor, pads: Sequence[Any], mode: str = "constant", value: object = None
) -> torch.Tensor:
    """Returns an empty tensor with elements added around, pairs from the last axis on."""
    shape = list(x.shape)
    for i, (first, last) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        shape[-1 - i] = shape[-1 - i] + first + last
    return x.new_empty(shape)


def _scaled_size(size: Any, factor: float) -> Any:
    """Returns a size times a factor, rounded down; it stays a symbol where it is one."""
    if float(factor).is_integer():
        return size * int(factor)
    return torch.sym_int(size * factor)  # type: ignore[no-untyped-call]


def _infer_resize(name: str) -> Callable[..., torch.Tensor]:
    """Returns the shape rule of an interpolation, of which some sizes may be symbols."""
    target: Any = getattr(torch.ops.aten, name)

    def infer(x: torch.Tensor, sizes: Sequence[Any] | None, *rest: Any) -> torch.Tensor:
        if sizes is None:  # then the factors are last
            made = [_scaled_size(size, by) for size, by in zip(x.shape[2:], rest[-1], strict=True)]
            return x.new_empty((*x.shape[:2], *made))
        if not any(isinstance(size, torch.SymInt) for size in (*x.shape, *sizes)):
            result: torch.Tensor = target(x, sizes, *rest)
            return result
        return x.new_empty((*x.shape[:2], *sizes))

    return infer


_RESIZES = (
    *(f"upsample_{name}" for name in "linear1d bilinear2d trilinear3d bicubic2d".split()),
    *(
        f"{name}{axes}d"
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for axes in (1, 2, 3)
    ),
)
PYTHON_SHAPE_RULES: Mapping[str, Callable[..., Any]] = {
    "aten.constant_pad_nd.default": torch._refs.constant_pad_nd,
    "aten.pad.default": _infer_pad,
    **{
        f"aten.{name}.{form}": _infer_resize(name)
        for name in _RESIZES
        for form in ("vec", "default")
    },
    **{f"aten.{name}.input": _infer_recurrent for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
"""Operators whose C++ code turns symbolic sizes into numbers, and the same in Python."""
_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)


@dataclass(frozen=True, eq=False)
class ArchiveTensor:
    """A tensor of the archive that is not quantized, and its name there."""

    name: str
    data: torch.Tensor


class ScriptBuilder:
    """The graph of calls, and where in the user's model the present call comes from."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.graph = fx.Graph()
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.tensors: dict[str, torch.Tensor] = {}
        """The stored tensors that are read, by the name of their node's target."""
        self.path = ""
        """The module whose code is read."""
        self.line = ""
        """Where in the user's files the present call stands."""
        self.label = ""
        """What the next call is named after, where that is not its operator."""
        self.open_axes: dict[str, frozenset[int]] = {}
        """By input: the axes whose sizes are examples."""
        self.branch_guards: list[Any] = []
        """What was found of open sizes where the program branches by them."""
        self._nodes: dict[int, fx.Node] = {}

    @property
    def guards(self) -> Sequence[Any]:
        """What PyTorch has found of open sizes so far: it holds for the examples."""
        environment: Any = self.mode.shape_env
        found: Sequence[Any] = environment.guards
        return found

    def decide_branch(self, ask: Callable[[], object]) -> bool:
        """Returns whether something holds of sizes, and notes what was found of open ones."""
        before = len(self.guards)
        held = bool(ask())
        self.branch_guards += self.guards[before:]
        return held

    def error(self, what: str) -> InputError:
        """Returns the error for the present call."""
        known = (s.strip() for s in self.line.splitlines() if s.strip().startswith("File"))
        lines = [line for line in known if not line.startswith('File ""')]
        where = f" in {self.path}" if self.path else ""
        return InputError(f"{self.name}{where}: {what}{f' ({lines[0]})' if lines else ''}")

    def input(self, name: str, like: torch.Tensor, open_axes: Collection[int]) -> fx.Node:
        """Adds an input; the sizes along open axes are examples, and become symbols."""
        node = self.graph.placeholder(name)
        self.open_axes[node.name] = frozenset(open_axes)
        context: Any = None
        if open_axes:
            sizes = [
                DimDynamic.DYNAMIC if axis in open_axes else DimDynamic.STATIC
                for axis in range(like.dim())
            ]
            context = StatelessSymbolicContext(dynamic_sizes=sizes)
        source = ConstantSource(f"__{node.name}")
        node.meta["val"] = self.mode.from_tensor(
            like, static_shapes=not open_axes, symbolic_context=context, source=source
        )
        return node

    def constant(self, name: str, data: torch.Tensor) -> fx.Node:
        """Returns the node of a stored tensor."""
        if id(data) in self._nodes:
            return self._nodes[id(data)]
        target, count = name, 0
        while target in self.tensors:
            count += 1
            target = f"{name}_{count}"
        self.tensors[target] = data  # keeps it alive, so its id stays its own
        node = self.graph.get_attr(target)
        node.meta["val"] = self.mode.from_tensor(data, static_shapes=True)
        self._nodes[id(data)] = node
        return node

    def as_node(self, held: Any) -> Any:
        """Returns what a call is given: tensors as nodes, also in lists."""
        if isinstance(held, ArchiveTensor):
            return self.constant(held.name, held.data)
        if isinstance(held, torch.Tensor):
            return self.constant(f"{self.path}.constant".removeprefix("."), held)
        if isinstance(held, (list, tuple)):
            return [self.as_node(item) for item in held]
        return held

    def add_call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Adds a call; returns its node, a list of them, or the number that it comes to."""
        args = tuple(self.as_node(held) for held in args)
        kwargs = {name: self.as_node(held) for name, held in kwargs.items()}
        fakes = fx.map_arg(args, lambda n: n.meta["val"])
        more = fx.map_arg(kwargs, lambda n: n.meta["val"])
        try:
            with self.mode, torch.no_grad():
                made = PYTHON_SHAPE_RULES.get(str(target), target)(*fakes, **more)
        except Exception as error:  # PyTorch raises what it likes
            said = next((s for s in str(error).splitlines() if s.strip()), type(error).__name__)
            raise self.error(f"{_full_name(target)} does not take its operands: {said}") from error
        if isinstance(made, _SYMBOLIC) and made.node.expr.is_number:
            made = made.node.expr
            return bool(made) if made.is_Boolean else int(made) if made.is_Integer else float(made)
        if not isinstance(made, (torch.Tensor, list, tuple, *_SYMBOLIC)):
            return made
        return self.add_call_of_type(target, args, kwargs, made)

    def add_call_of_type(
        self, target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], made: Any
    ) -> Any:
        """Adds a call whose results are known; returns its node, or a list of them."""
        label = f"{self.path}_{self.label or _short_name(target)}".strip("_").replace(".", "_")
        node = self.graph.create_node("call_function", target, tuple(args), kwargs, name=label)
        self._describe(node, made)
        if not isinstance(made, (list, tuple)):
            return node
        parts = []
        for i, part in enumerate(made):
            item = self.graph.call_function(operator.getitem, (node, i))
            self._describe(item, part)
            parts.append(item)
        return parts

    def _describe(self, node: fx.Node, made: Any) -> None:
        node.meta["val"] = made
        node.meta["nn_module_stack"] = {self.path: (self.path, None)}
        node.meta["stack_trace"] = self.line

    def stored_data(self, held: Any) -> torch.Tensor | None:
        """Returns the elements of a stored tensor, also of a copy of it; None for others."""
        while isinstance(held, fx.Node) and _is_copy(held):
            held = held.args[0]
        if isinstance(held, fx.Node):
            return self.tensors.get(str(held.target)) if held.op == "get_attr" else None
        return held.data if isinstance(held, ArchiveTensor) else held

    def size(self, held: fx.Node, axis: int) -> Any:
        """Returns a size of a tensor: an integer, or the node of one that is not known."""
        shape = held.meta["val"].shape
        found = shape[axis]
        if isinstance(found, int):
            return int(found)
        return self.add_call(torch.ops.aten.sym_size.int, held, axis % len(shape))


def _is_copy(node: fx.Node) -> bool:
    """Returns whether a call only copies its operand."""
    if str(node.target) in _COPIES:
        return True
    first: Any = node.args[0] if node.args else None
    if not str(node.target).startswith("aten.to.") or not isinstance(first, fx.Node):
        return False
    return bool(first.meta["val"].dtype == node.meta["val"].dtype)


def _short_name(target: Callable[..., Any]) -> str:
    """Returns an operator's name without its namespace and overload."""
    return (
        _full_name(target)
        .removeprefix("quantized_decomposed.")
        .removeprefix("aten.")
        .partition(".")[0]
    )


def _full_name(target: Callable[..., Any]) -> str:
    return str(target) if isinstance(target, torch._ops.OpOverload) else target.__name__


def is_tensor(held: Any) -> bool:
    """Returns whether it is a tensor that is not quantized."""
    if isinstance(held, fx.Node):
        return isinstance(held.meta["val"], torch.Tensor)
    return isinstance(held, (ArchiveTensor, torch.Tensor))

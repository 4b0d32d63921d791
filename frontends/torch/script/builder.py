"""Builds the fx graph of a TorchScript program; PyTorch's fake tensors infer shapes and types."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from qir.errors import InputError

from ..program import COPIES


def _infer_recurrent(
    x: torch.Tensor, states: Any, weights: Any, *rest: Any
) -> tuple[torch.Tensor, ...]:
    """Returns empty results of an LSTM, GRU or RNN layer with the inferred shapes."""
    state_list = states if isinstance(states, (list, tuple)) else (states,)
    # The last arguments are `bidirectional` and `batch_first`.
    directions = 2 if rest[-2] else 1
    output = x.new_empty((*x.shape[:-1], directions * state_list[0].shape[-1]))
    return (output, *(torch.empty_like(state) for state in state_list))


def _infer_pad(
    x: torch.Tensor, pads: Sequence[Any], mode: str = "constant", value: object = None
) -> torch.Tensor:
    """Returns an empty tensor of the padded shape; `pads` are pairs from the last axis on."""
    shape = list(x.shape)
    for i, (first, last) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        shape[-1 - i] = shape[-1 - i] + first + last
    return x.new_empty(shape)


def _scaled_size(size: Any, factor: float) -> Any:
    """Returns a size times a factor, rounded down; a symbolic size stays symbolic."""
    if float(factor).is_integer():
        return size * int(factor)
    sym_int: Any = torch.sym_int  # typed in some releases of torch only
    return sym_int(size * factor)


def _infer_resize(name: str) -> Callable[..., torch.Tensor]:
    """Returns the shape rule of an interpolation, for symbolic sizes too."""
    target: Any = getattr(torch.ops.aten, name)

    def infer(x: torch.Tensor, sizes: Sequence[Any] | None, *rest: Any) -> torch.Tensor:
        if sizes is None:  # the scale factors are the last argument then
            scaled = [
                _scaled_size(size, factor)
                for size, factor in zip(x.shape[2:], rest[-1], strict=True)
            ]
            return x.new_empty((*x.shape[:2], *scaled))
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
"""Shape rules in Python, of operators whose C++ code would turn symbolic sizes into numbers."""
_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)


_TRACED_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): \S+")
"""A frame of the stack that tracing notes, innermost first."""
_PYTORCH_FOLDER = "/site-packages/torch/"
_TRACER = "/site-packages/torch/jit/_trace.py"
"""The caller of the model: frames after it are no part of the model."""


def _user_line(source_range: str) -> str:
    """Returns the line of the user's code in the source range of a call; empty without one."""
    for frame in map(str.strip, source_range.splitlines()):
        # Code that TorchScript generated itself has an empty file name.
        if frame.startswith("File") and not frame.startswith('File ""'):
            return frame
        traced = _TRACED_FRAME.fullmatch(frame)
        if traced and traced["file"].endswith(_TRACER):
            return ""
        if traced and _PYTORCH_FOLDER not in traced["file"]:
            return f'File "{traced["file"]}", line {traced["line"]}'
    return ""


@dataclass(frozen=True, eq=False)
class ArchiveTensor:
    """A float or integer tensor of the archive, and its name."""

    name: str
    data: torch.Tensor


class ScriptBuilder:
    """The fx graph under construction, and where in the user's model the current call is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.graph = fx.Graph()
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.tensors: dict[str, torch.Tensor] = {}
        """Stored tensors that are used, by the target of their `get_attr` node."""
        self.path = ""
        """The path of the module whose code is being read."""
        self.line = ""
        """The source range of the current call in the user's files."""
        self.label = ""
        """The name of the next call, if it is not that of its operator."""
        self.open_axes: dict[str, frozenset[int]] = {}
        """By input: the axes with symbolic sizes."""
        self.branch_guards: list[Any] = []
        """Guards on open sizes that branches of the program have added."""
        self.quantizes = False
        """Whether the program quantizes something."""
        self.uses_quantized_kernels = False
        """Whether the program calls kernels of a quantized engine."""
        self._nodes: dict[int, fx.Node] = {}

    @property
    def guards(self) -> Sequence[Any]:
        """Conditions on open sizes that PyTorch has recorded; the examples satisfy them."""
        environment: Any = self.mode.shape_env
        recorded: Sequence[Any] = environment.guards
        return recorded

    def decide_branch(self, compare: Callable[[], object]) -> bool:
        """Returns a condition on sizes by the examples, and records the guards it adds."""
        before = len(self.guards)
        answer = bool(compare())
        self.branch_guards += self.guards[before:]
        return answer

    def error(self, what: str) -> InputError:
        """Returns an error for the current call."""
        where = f" in {self.path}" if self.path else ""
        line = _user_line(self.line)
        return InputError(f"{self.name}{where}: {what}{f' ({line})' if line else ''}")

    def input(self, name: str, like: torch.Tensor, open_axes: Collection[int]) -> fx.Node:
        """Adds an input; sizes along open axes become symbols."""
        node = self.graph.placeholder(name)
        self.open_axes[node.name] = frozenset(open_axes)
        context: Any = None
        if open_axes:
            sizes = [
                DimDynamic.DYNAMIC if axis in open_axes else DimDynamic.STATIC
                for axis in range(like.dim())
            ]
            context = StatelessSymbolicContext(dynamic_sizes=sizes)
        # Symbols are keyed by their source: a unique name keeps those of two inputs apart.
        source = ConstantSource(f"__{node.name}")
        node.meta["val"] = self.mode.from_tensor(
            like, static_shapes=not open_axes, symbolic_context=context, source=source
        )
        return node

    def constant(self, name: str, data: torch.Tensor) -> fx.Node:
        """Returns the node of a stored tensor."""
        if id(data) in self._nodes:
            return self._nodes[id(data)]
        # Two tensors may have one name, as constants of traced code do.
        target, count = name, 0
        while target in self.tensors:
            count += 1
            target = f"{name}_{count}"
        self.tensors[target] = data  # kept alive, so that no other tensor gets its id
        node = self.graph.get_attr(target)
        node.meta["val"] = self.mode.from_tensor(data, static_shapes=True)
        self._nodes[id(data)] = node
        return node

    def as_node(self, argument: Any) -> Any:
        """Returns an argument with stored tensors as nodes, also in lists."""
        if isinstance(argument, ArchiveTensor):
            return self.constant(argument.name, argument.data)
        if isinstance(argument, torch.Tensor):
            return self.constant(f"{self.path}.constant".removeprefix("."), argument)
        if isinstance(argument, (list, tuple)):
            return [self.as_node(item) for item in argument]
        return argument

    def add_call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Adds a call; returns its node, a list of nodes, or a number if it evaluates to one."""
        args = tuple(self.as_node(argument) for argument in args)
        kwargs = {name: self.as_node(argument) for name, argument in kwargs.items()}
        fakes = fx.map_arg(args, lambda n: n.meta["val"])
        keyword_fakes = fx.map_arg(kwargs, lambda n: n.meta["val"])
        try:
            with self.mode, torch.no_grad():
                # The operator runs on fake tensors, which have shapes and types and no data.
                result = PYTHON_SHAPE_RULES.get(str(target), target)(*fakes, **keyword_fakes)
        except Exception as error:  # PyTorch raises what it likes
            message = next((s for s in str(error).splitlines() if s.strip()), type(error).__name__)
            raise self.error(
                f"{_full_name(target)} does not take its operands: {message}"
            ) from error
        # A symbolic result without free symbols is a plain number: the program goes on with that.
        if isinstance(result, _SYMBOLIC) and result.node.expr.is_number:
            result = result.node.expr
            return (
                bool(result)
                if result.is_Boolean
                else int(result)
                if result.is_Integer
                else float(result)
            )
        if not isinstance(result, (torch.Tensor, list, tuple, *_SYMBOLIC)):
            return result
        return self.add_call_of_type(target, args, kwargs, result)

    def add_call_of_type(
        self, target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], fakes: Any
    ) -> Any:
        """Adds a call whose result types are given; returns its node, or a list of nodes."""
        label = f"{self.path}_{self.label or _short_name(target)}".strip("_").replace(".", "_")
        node = self.graph.create_node("call_function", target, tuple(args), kwargs, name=label)
        self._describe(node, fakes)
        if not isinstance(fakes, (list, tuple)):
            return node
        parts = []
        for i, part in enumerate(fakes):
            item = self.graph.call_function(operator.getitem, (node, i))
            self._describe(item, part)
            parts.append(item)
        return parts

    def _describe(self, node: fx.Node, fake: Any) -> None:
        node.meta["val"] = fake
        node.meta["nn_module_stack"] = {self.path: (self.path, None)}
        node.meta["stack_trace"] = self.line

    def stored_data(self, argument: Any) -> torch.Tensor | None:
        """Returns a stored tensor, looking through copies; None for a computed one."""
        while isinstance(argument, fx.Node) and _is_copy(argument):
            argument = argument.args[0]
        if isinstance(argument, fx.Node):
            return self.tensors.get(str(argument.target)) if argument.op == "get_attr" else None
        return argument.data if isinstance(argument, ArchiveTensor) else argument

    def size(self, node: fx.Node, axis: int) -> Any:
        """Returns a size of a tensor: an integer, or a node for a symbolic one."""
        shape = node.meta["val"].shape
        size = shape[axis]
        if isinstance(size, int):
            return int(size)
        # A symbolic size becomes a call, so that the reader can compute it from the tensor.
        return self.add_call(torch.ops.aten.sym_size.int, node, axis % len(shape))


def _is_copy(node: fx.Node) -> bool:
    """Returns whether a call only copies its operand."""
    if str(node.target) in COPIES:
        return True
    first: Any = node.args[0] if node.args else None
    if not str(node.target).startswith("aten.to.") or not isinstance(first, fx.Node):
        return False
    return bool(first.meta["val"].dtype == node.meta["val"].dtype)


def _short_name(target: Callable[..., Any]) -> str:
    """Returns an operator's name without namespace and overload."""
    return (
        _full_name(target)
        .removeprefix("quantized_decomposed.")
        .removeprefix("aten.")
        .partition(".")[0]
    )


def _full_name(target: Callable[..., Any]) -> str:
    return str(target) if isinstance(target, torch._ops.OpOverload) else target.__name__


def is_tensor(argument: Any) -> bool:
    """Returns whether it is a tensor that is not quantized, stored or computed."""
    if isinstance(argument, fx.Node):
        return isinstance(argument.meta["val"], torch.Tensor)
    return isinstance(argument, (ArchiveTensor, torch.Tensor))

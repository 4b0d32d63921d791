"""Runs a graph in the reference: float ops in NumPy, quantized ops by the profile's rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import DataError, OpError, QirError
from qir.frontend import frontend
from qir.ir import dims
from qir.ir.dims import Dim
from qir.ir.dtype import box_object, decode_texts, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import GraphLike, Node, Value
from qir.ir.origin import default_input_names
from qir.ir.quantized_ops import INNER_ROUNDING_OPS
from qir.ir.types import TensorType
from qir.profiles import NamedProfile, ProfileLibrary, RuleSource, library_of
from qir.records import record
from qir.reference import companions, control, dynamic, inner_slots
from qir.reference.chains import run_chain
from qir.reference.operands import contiguous, wrap_to_width
from qir.reference.quantized import run_quantized
from qir.reference.table import Operands, compute_all

Tensor = NDArray[np.generic]
"""Elements of any type."""
ValueObserver: TypeAlias = "Callable[[Value, Tensor], Tensor | None]"
"""Is called with each computed value; may return other elements to continue with."""
SHAPE_OPS = frozenset({"shape", "size"})
"""Ops that read the shape of a tensor only, so that a quantized one needs no dequantize."""


def profile_name_of(graph: Graph, node: Node) -> str:
    """Returns the profile of a node: its own, else the graph's, else that of the enclosing node."""
    if (own_profile := node.profile or graph.profile) or graph.holder is None:
        return own_profile
    return profile_name_of(*graph.holder)


def rules_of(graph: Graph, node: Node) -> NamedProfile:
    """Returns the profile of a node as `profile_name_of` names it, which the graph may carry."""
    return library_of(graph).named(profile_name_of(graph, node))


@record
class RunContext:
    """What all nodes of one run share, those of bodies included."""

    library: ProfileLibrary
    forced: str | None = None
    """A profile that takes the place of every one that graphs and nodes name."""
    inside: ValueObserver | None = None
    """Sees the values of bodies."""


@np.errstate(all="ignore")  # infinities and NaNs are numbers here, and need no warnings
def run(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    *,
    values: Iterable[str] | None = None,
    profile: str | None = None,
    profiles: ProfileLibrary | None = None,
    observe: ValueObserver | None = None,
) -> dict[str, Tensor]:
    """Runs a graph; gives its outputs by name, or the named values.

    A value of a body is named by its path, `y/body/h`; it is that of the last round. `profile`
    replaces the graph's, `profiles` say what names of profiles mean, by default as the graph does;
    `observe` sees every value of the graph itself as it is made. Values are
    dropped after their last use. An optional input may be left out. Raises DataError for inputs
    that do not fit and for values that this run did not come to, OpError where an op cannot
    compute, naming the node.
    """
    input_types = {value.name: value.type.dtype for value in graph.inputs}
    # Values of a framework's own (sequences, optionals) stand in arrays of one object, so that
    # NumPy does not look inside.
    opaque_inputs = {n for n, kind in input_types.items() if kind.is_opaque and not kind.is_loose}
    inputs = {
        n: box_object(data) if n in opaque_inputs else _to_native(data)
        for n, data in inputs.items()
    }
    inputs |= {
        n: box_object(None)
        for n, kind in input_types.items()
        if kind.is_optional and n not in inputs
    }
    bind_inputs(graph, inputs)
    context = RunContext(library_of(graph) if profiles is None else profiles, profile)
    if values is None:
        results = _run(graph, inputs, profile or graph.profile, context, observe)
        return {name: results[name] for name in graph.outputs}
    requested = {name: find_value(graph, name) for name in values}
    kept_values: dict[Value, Tensor | None] = dict.fromkeys(requested.values())

    def keep(value: Value, data: Tensor) -> None:
        if value in kept_values:
            kept_values[value] = data

    def see(value: Value, data: Tensor) -> Tensor | None:
        keep(value, data)
        return None if observe is None else observe(value, data)

    _run(graph, inputs, profile or graph.profile, replace(context, inside=keep), see)
    computed = {name: kept_values[value] for name, value in requested.items()}
    for name, data in computed.items():
        if data is None:
            raise DataError(f"{name!r} was not computed: no branch or round of this run made it")
    return {name: data for name, data in computed.items() if data is not None}


def find_value(graph: Graph, name: str) -> Value:
    """Returns the value of a name, or of a path into a body; raises GraphError if there is none."""
    if not graph.has(name):
        for path, body in graph.walk():
            inside = f"{path.partition('/')[2]}/"
            if name.startswith(inside) and body.has(name[len(inside) :]):
                return body[name[len(inside) :]]
    return graph[name]


def _run(
    graph: GraphLike,
    inputs: Mapping[str, Tensor],
    default: str,
    context: RunContext,
    observe: ValueObserver | None,
) -> dict[str, Tensor]:
    """Runs a graph or a body; nodes that name no profile follow the default.

    `observe` sees its values, but not those of bodies within it.
    """
    # Values are dropped after their last use: large models would not fit otherwise.
    live: dict[Value, Tensor] = {}
    uses_left: dict[Value, int] = {}
    outputs: dict[str, Tensor] = {}
    for node in graph:
        if node.op == "output":
            outputs = {slot: live[value] for slot, value in node.operands.items()}
            continue
        operands = {slot: live[value] for slot, value in node.operands.items()}
        uses_left.update((value, len(value.uses)) for value in node.results)
        profile_name = context.forced or node.profile or default
        results = _node_results(node, operands, inputs, profile_name, context)
        for value, data in zip(node.results, results, strict=True):
            replacement = None if observe is None else observe(value, data)
            live[value] = data if replacement is None else replacement
        for value in node.operands.values():
            uses_left[value] -= 1
            if not uses_left[value]:
                del live[value]
    return outputs


def _node_results(
    node: Node,
    operands: Operands,
    inputs: Mapping[str, Tensor],
    profile: str,
    context: RunContext,
) -> tuple[Tensor, ...]:
    # A constant that is also named in the inputs has a default in the model, which a caller may
    # replace.
    if node.op == "input" or (node.op == "constant" and node.name in inputs):
        return (np.asarray(inputs[node.name]),)
    try:
        return run_node(node, operands, context.library.named(profile), context)
    except QirError as error:
        where = f" ({node.origins[0]})" if node.origins else ""
        raise type(error)(f"{node.name}{where}: {error}") from error
    except (MemoryError, ValueError) as error:
        # NumPy raises ValueError, not MemoryError, for shapes that no address space holds.
        if isinstance(error, ValueError) and not _SIZE_ERROR.search(str(error)):
            raise
        raise OpError(f"{node.name}: what it makes does not fit into the memory") from error


_SIZE_ERROR = re.compile("array is too big|[Mm]aximum allowed")
"""NumPy's messages of ValueError for arrays that are too large."""


def run_node(
    node: Node, operands: Operands, rules: NamedProfile, context: RunContext | None = None
) -> tuple[Tensor, ...]:
    """Returns one node on arrays by slot: float values as floats, quantized values as quantized
    values, integers wrapped to their width.

    `context` is that of the run that it is part of; without one, nodes within bodies mean the
    profiles that they name as `rules` does.
    """
    if node.op == "constant":
        data = node.result.constant
        assert data is not None
        return (data.data,)
    # NumPy's sums depend on strides in the last bits; contiguous operands make results depend on
    # the elements alone.
    contiguous_operands = {s: contiguous(x) for s, x in operands.items()}
    context = context or RunContext(rules.library)
    results = _compute_node(node, contiguous_operands, rules, context)
    types = [value.type for value in node.results]
    if not any(kind.dtype.is_integer and kind.quant is None for kind in types):
        return results
    pairs = zip(results, types, strict=True)
    return tuple(data if kind.quant else wrap_to_width(data, kind.dtype) for data, kind in pairs)


def _compute_node(
    node: Node, operands: Operands, rules: RuleSource, context: RunContext
) -> tuple[Tensor, ...]:
    # From the ops with a way of their own down to the plain float ops.
    if node.bodies and node.op != "foreign":
        return _run_bodies(node, operands, rules.name, context)
    if node.op == "foreign":
        return frontend(str(node.attrs["framework"])).run_foreign(node, operands)
    if node.stages:
        return (run_chain(node, operands, rules),)
    if node.op in dynamic.OPS:
        return dynamic.run(node, operands, rules)
    types = [v.type for v in (*node.operands.values(), *node.results)]
    if node.op in INNER_ROUNDING_OPS and (node.inner or any(t.quant for t in types)):
        return inner_slots.run(node, operands, rules)
    companion_names = companions.companion_slots(node.op, operands)
    if node.op in SHAPE_OPS:
        return compute_all(
            node.op, {s: operands[s] for s in operands if s not in companion_names}, node.attrs
        )
    # A companion alone shows that a value is quantized, even if its type is seen elsewhere.
    if companion_names or any(t.quant for t in types):
        return run_quantized(node, operands, rules)
    return compute_all(node.op, operands, node.attrs)


@record
class _Body:
    """A body under a profile."""

    graph: GraphLike
    profile: str
    context: RunContext

    @property
    def takes(self) -> list[TensorType]:
        return [value.type for value in self.graph.inputs]

    @property
    def kinds(self) -> list[TensorType]:
        return [value.type for value in self.graph.outputs.values()]

    def __call__(self, given: Sequence[Tensor]) -> list[Tensor]:
        names = [value.name for value in self.graph.inputs]
        inputs = dict(zip(names, given, strict=True))
        default = self.graph.profile or self.profile
        made = _run(self.graph, inputs, default, self.context, self.context.inside)
        return [made[name] for name in self.graph.outputs]


def _run_bodies(
    node: Node, operands: Operands, profile: str, context: RunContext
) -> tuple[Tensor, ...]:
    """Returns a node that holds graphs: a group's body once, control as often as it says."""
    bodies = {name: _Body(body, profile, context) for name, body in node.bodies.items()}
    if node.op == "fused":
        body = bodies["body"]
        return tuple(body([operands[value.name] for value in body.graph.inputs]))
    return tuple(control.FUNCTIONS[node.op](operands, node.attrs, bodies))


def bind_inputs(graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """Returns the sizes that inputs give to named dimensions; raises DataError for inputs that do
    not fit."""
    sizes: dict[str, int] = {}
    required = {value.name: value for value in graph.inputs}
    given_defaults = {value.name: value for value in graph.defaults if value.name in inputs}
    for name in inputs:
        if name not in required and name not in given_defaults:
            if name in default_input_names(graph.output.origins):
                reason = "has a default in its file and is that constant here"
                raise DataError(f"input {name!r} {reason}; take the default out to give it")
            raise DataError(f"no input {name!r}; the model takes {', '.join(required) or 'none'}")
    for name, value in {**required, **given_defaults}.items():
        if name not in inputs:
            raise DataError(f"input {name!r} is missing")
        if value.type.dtype.is_opaque:
            continue  # its framework looks at it
        _check(value, _to_native(inputs[name]), sizes)
    return sizes


def _to_native(data: Tensor) -> Tensor:
    """Elements in this machine's order of bytes, texts as objects."""
    data = np.asarray(data)
    if data.dtype.kind in "OUST":
        return decode_texts(data)
    return data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))


def _check(value: Value, data: Tensor, sizes: dict[str, int]) -> None:
    kind = value.type
    expected = "x".join("?" if d is None else str(d) for d in kind.shape)
    if data.dtype != kind.dtype.carrier:
        raise DataError(
            f"input {value.name!r} is {data.dtype}, the model takes {kind.dtype}"
            f"{_quantize_remedy(value, data)}"
        )
    if data.ndim != kind.rank:
        raise DataError(f"input {value.name!r} is {list(data.shape)}, the model takes {expected}")
    for dim, size in zip(kind.shape, data.shape, strict=True):
        if not _fits(dim, size, sizes):
            raise DataError(
                f"input {value.name!r} is {list(data.shape)}, the model takes {expected}"
            )
    if kind.dtype.is_integer and data.size:
        _check_integer_bounds(value, data)


def _quantize_remedy(value: Value, data: Tensor) -> str:
    """Returns how floats for a quantized input are to be quantized, after a semicolon."""
    from qir.numerics.formulas import quantize_formula  # only an error needs it

    quant = value.type.quant
    formula = quantize_formula(quant) if quant is not None and data.dtype.kind == "f" else ""
    return f"; quantize x: {formula}, or use pass float-io" if formula else ""


def _check_integer_bounds(value: Value, data: Tensor) -> None:
    kind = value.type
    low, high = kind.bounds
    least, most = dtype_of(data).bounds
    if low <= least and most <= high:
        return  # there is nothing to look at
    least, most = int(data.min()), int(data.max())
    if least < low or most > high:
        noun = "quantized values" if kind.quant else "numbers"
        message = f"input {value.name!r} holds {least if least < low else most}"
        raise DataError(f"{message}; its {noun}, {kind.dtype}, are in {low}..{high}")


def _fits(dim: Dim, size: int, sizes: dict[str, int]) -> bool:
    bound = dims.bind(dim, sizes)
    if isinstance(bound, dims.Sym) and str(bound).isidentifier():
        # The first input that has a named size decides it for all that follow.
        sizes[str(bound)] = size
        return True
    return not isinstance(bound, int) or bound == size

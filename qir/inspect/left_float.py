"""What grouping leaves in float, op by op, and what of the profile's groups it does not meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qir.analysis.activations import fused_activations
from qir.analysis.group_conditions import has_zero_point
from qir.analysis.kernel_groups import (
    KernelGroup,
    find_kernel_groups,
    is_float,
    is_float_group,
    no_kernel_reason,
)
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.origin import Origin
from qir.ir.quantized_ops import STRUCTURAL_OPS
from qir.passes.forms.group import kernel_text
from qir.profiles import Profile, profile_in
from qir.profiles.conditions import conditions
from qir.profiles.profile import GroupEntry as Row
from qir.profiles.profile import When
from qir.rewrite.fusing import ChainMatch, match_chain, quantized_source

_NON_COMPUTE_OPS = STRUCTURAL_OPS | {"quantize", "dequantize"}


@dataclass(frozen=True, slots=True)
class FloatOp:
    """An op that stays float."""

    node: str
    """Its name, with the path of the body that it is in."""
    op: str
    reason: str
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True)
class PredictedKernel:
    """What would be one kernel of a float graph, were its edges quantized values."""

    node: str
    """What its last op is called."""
    rewrite: str
    """The ops as the profile names them, and the row that says they are one kernel."""
    origins: tuple[Origin, ...] = ()


def predicted_kernels(graph: Graph, own_profile: Profile) -> list[PredictedKernel]:
    """Returns the kernels that a profile's runtime would make of a float graph; of other graphs
    none."""
    kernels = find_kernel_groups(graph, own_profile) if is_float(graph) else []
    return [PredictedKernel(k.last.name, kernel_text(k, own_profile), _origins(k)) for k in kernels]


def _origins(kernel: KernelGroup) -> tuple[Origin, ...]:
    return tuple(origin for node in kernel.ops for origin in node.origins)


def ops_left_float(graph: Graph) -> Iterator[FloatOp]:
    """Yields the ops of a grouped graph that compute with floats, each with the reason.

    Of a float graph these are the ops that are in no kernel.
    """
    own_profile = profile_in(graph, graph.profile)
    is_float_graph = is_float(graph)
    in_kernels = (
        {n for k in find_kernel_groups(graph, own_profile) for n in k.ops}
        if is_float_graph
        else set()
    )
    for path, body in graph.walk():
        for node in body:
            if node.op in _NON_COMPUTE_OPS or node.bodies or not _computes_on_floats(node):
                continue
            is_in_body = body is not graph
            if not is_in_body and (node in in_kernels or (is_float_graph and is_float_group(node))):
                continue
            name = f"{path.partition('/')[2]}/{node.name}" if is_in_body else node.name
            reason = (
                _BODY if is_in_body else _reason(node, own_profile, is_float_graph=is_float_graph)
            )
            yield FloatOp(name, _title(node), reason, tuple(node.origins))


_BODY = "what bodies hold is not grouped"


def _title(node: Node) -> str:
    return " |> ".join(stage.op for stage in node.stages) or node.op


def _computes_on_floats(node: Node) -> bool:
    """Returns whether an op computes with floats alone."""
    types = [v.type for v in (*node.operands.values(), *node.results)]
    return not any(t.quant for t in types) and any(t.dtype.is_float for t in types)


def _reason(node: Node, own_profile: Profile, *, is_float_graph: bool) -> str:
    groups = own_profile.groups
    # From the most general reason to the most particular.
    if not groups:
        return f"{own_profile.name} groups nothing"
    if is_float_graph:
        return no_kernel_reason(node, own_profile)
    op = node.op
    if op not in {g.chain[0] for g in groups}:
        chain = next((g.chain for g in groups if op in g.chain), ())
        where = f" but after another op, as {' |> '.join(chain)}" if chain else ""
        return f"no group of {own_profile.name} takes it{where}"
    for slot, value in node.operands.items():
        if quantized_source(node, slot, value) is None:
            if value.node.op == "dequantize":
                quant = value.node.operands["x"].type.quant
                if quant is not None and quant.dynamic:
                    return (
                        f"the quantization parameters of {slot} are computed at run time: "
                        "its kernel is not predicted"
                    )
                return f"no kernel supports the quantization parameters of {slot}"
            return f"{slot} is float, not a dequantized value"
    ops, end = _epilogue_chain(node, fused_activations(own_profile))
    if end is None and not any(g.chain == (op,) and g.result == "real" for g in groups):
        return _reader_text(ops[-1])
    match = match_chain(ops, end)
    if match is None:
        return "no kernel has the quantization parameters of its result"
    return _unmet_condition(match, own_profile)


def _epilogue_chain(
    node: Node, activations: frozenset[str]
) -> tuple[tuple[Node, ...], Node | None]:
    """Returns a node, the activations after it, and the quantize that ends them."""
    ops = [node]
    while (use := ops[-1].result.only_use) is not None and use.node.op in activations:
        ops.append(use.node)
    is_quantized = use is not None and use.node.op == "quantize"
    return (tuple(ops), use.node) if use and is_quantized else ((node,), None)


def _reader_text(node: Node) -> str:
    """Who reads a result that no quantize alone reads."""
    readers = [use.node.op for use in node.result.uses]
    if len(readers) > 1:
        return f"its result has {len(readers)} readers"
    if not readers:
        return "its result is not used"
    return f"its result goes to {readers[0]}, not to a quantize"


def _unmet_condition(match: ChainMatch, own_profile: Profile) -> str:
    chain = tuple(n.op for n in match.ops)
    query = own_profile.asked(match.query)
    result_kind = "real" if match.result is None else "codes"
    candidates = [g for g in own_profile.groups if (g.chain, g.result) == (chain, result_kind)]
    if not candidates:
        result_text = "" if result_kind == "codes" else ", its result float"
        return f"no group of {own_profile.name} is {' |> '.join(chain)}{result_text}"
    entry = next((g for g in candidates if g.when.holds(query)), None)
    if entry is None:
        return _condition(candidates[0].when, match)
    if has_zero_point(match, own_profile):
        return f"its quantized values have a zero point, and those of {own_profile.name} have none"
    return _need(entry, match)


def _condition(when: When, match: ChainMatch) -> str:
    query = match.query
    for slot, kinds in when.storage.items():
        actual = query.data if slot == "data" else query.storage.get(slot, "real")
        if actual not in kinds:
            slot_text = "" if slot == "data" else f" of {slot}"
            return f"storage {actual or 'real'}{slot_text}, not {' or '.join(kinds)}"
    for name, value in when.attrs.items():
        if query.attrs.get(name) != value:
            return f"{name} is not {value!r}"
    if when.grain and query.grain not in when.grain:
        return f"one scale a {query.grain}"
    return "the profile's condition on processor or bounds is not met"


def _need(entry: Row, match: ChainMatch) -> str:
    needs = (conditions()[need] for need in entry.needs)
    unmet = [one for one in needs if not one.met(match)]
    return f"needs that {unmet[0].description}" if unmet else "a larger group took what it reads"

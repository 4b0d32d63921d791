"""Chains of float ops that a target computes as one kernel, by its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from qir.analysis.kernel_groups import KernelGroup
from qir.analysis.signs import never_negative
from qir.capability import Capability, ChainCapability
from qir.ir.attrs import same
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.rewrite.linear_layers import adds_row


def target_chains(
    graph: Graph, table: Capability, stays_out: Callable[[Node], bool]
) -> Iterator[KernelGroup]:
    """Yields the longest chain of a target's table that begins with each op, in graph order.

    A chain ends where another op reads an inner value, and before an op for which `stays_out`. If
    a sum could join two chains, it joins the first.
    """
    used: set[Node] = set()
    for node in graph:
        if node in used or not table.leads((node.op,)):
            continue
        found = _longest_chain(node, table, lambda n: n in used or stays_out(n), graph)
        if found:
            used.update(found)
            names = tuple(n.op for n in found)
            yield KernelGroup(found, (names[0], *names[2:]) if _adds_bias(*found[:2]) else names)


def _longest_chain(
    head: Node, table: Capability, stays: Callable[[Node], bool], graph: Graph
) -> tuple[Node, ...]:
    ops: tuple[Node, ...] = (head,)
    found: tuple[Node, ...] = ()
    while len(ops[-1].results) == 1 and (use := ops[-1].result.only_use) is not None:
        if not use.node.results or stays(use.node):
            break
        ops = (*ops, use.node)
        names = tuple(n.op for n in ops)
        if not table.leads(names):
            break
        if (row := table.chain_row(names)) is not None and _fits_entry(row, ops, graph):
            found = ops
    return found


def _fits_entry(row: ChainCapability, ops: tuple[Node, ...], graph: Graph) -> bool:
    """Reports whether attributes and summands of ops in a row are what a chain asks for."""
    for name, allowed in row.when.items():
        held = [n.attrs[name] for n in ops if name in n.attrs]
        if not all(any(same(value, each) for each in allowed) for value in held):
            return False
    for before, node in pairwise(ops):
        if before is ops[0] and _adds_bias(before, node):
            continue
        flowing = [slot for slot, v in node.operands.items() if v is before.result]
        others = [v for v in node.operands.values() if v is not before.result]
        if len(flowing) != 1 or (not others and not spec(node.op).traits.elementwise):
            return False
        if not all(
            _accepts_summand(row, v, node) and _may_be_overwritten(row, v, node, ops[0], graph)
            for v in others
        ):
            return False
    return True


def _adds_bias(product: Node, node: Node) -> bool:
    """Reports whether a sum adds the bias of the product before it, a constant row."""
    if product.op != "matmul" or node.op != "add":
        return False
    return adds_row(product, real=True) is node


def _accepts_summand(row: ChainCapability, value: Value, node: Node) -> bool:
    """Reports whether a chain takes a value next to what flows through it."""
    if not row.summand or value.constant is not None or value.type != node.result.type:
        return False
    signs = {kind.bounds[0] < 0 for scheme in row.summand for kind in scheme.storages}
    return (not never_negative(value)) in signs


def _may_be_overwritten(
    row: ChainCapability, value: Value, node: Node, head: Node, graph: Graph
) -> bool:
    """Reports whether the kernel of a chain may write its sum over a summand.

    Some kernels reuse the memory of the summand for the result (`last_reader` in a target file), so
    all other readers of it must have run before the kernel starts.
    """
    others = {use.node for use in value.uses} - {node}
    if not (row.last_reader and others):
        return True
    import networkx as nx

    return bool(others <= nx.ancestors(graph.nx, head))


__all__ = ["target_chains"]

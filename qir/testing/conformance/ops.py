"""What every op is held to: its rule and its reference agree, and neither knows anything else."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import OpError, QirError
from qir.ir import dims
from qir.ir.calls import infer_result_types
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import OPS, PluginOp
from qir.ir.text import array_table, parse, print_graph
from qir.ir.types import Array, TensorType
from qir.reference.interpreter import run
from qir.testing.conformance.checklist import Broken, Check, Checklist, demand
from qir.testing.op_samples import feed

COUNT = 40
"""So many calls are looked for."""
Tensors = Mapping[str, NDArray[np.generic]]


def check_op(given: PluginOp) -> tuple[Check, ...]:
    """Holds an op to its contract, on its examples and on calls that are guessed."""
    checks = Checklist()
    with ExitStack() as stack:
        if given.spec.name not in registry.names("qir.ops") and not OPS.own(given.spec.name):
            stack.enter_context(registry.offer("qir.ops", given.spec.name, given))
        checks.check("its row is whole and explained", partial(_row, given))
        checks.check("its reference takes its slots and attributes", partial(_signature, given))
        calls: list[Graph] = []

        def found() -> str:
            made = list(_calls(given))
            demand(made, "no guess fits its rule: give it examples")
            calls.extend(graph for graph in made if _takes(graph))
            demand(calls, "its reference refuses all of them: give it examples")
            return f"{len(made)} calls, {len(made) - len(calls)} refused for what they hold"

        if checks.check("there are calls that its rule takes", found):
            checks.check("rule and reference agree on types and shapes", partial(_agree, calls))
            checks.check("same operands, same bytes; they stay as they are", partial(_pure, calls))
            checks.check("its rule is right where sizes have names", partial(_symbols, calls))
            checks.check("it prints and parses back", partial(_prints, calls))
    return checks.told()


def _row(given: PluginOp) -> str:
    row = given.spec
    if not OPS.own(row.name):
        assert OPS[row.name] is row  # PluginError says what is wrong with it
    demand(row.doc, "doc is empty; the page of ops says it in a phrase")
    demand(row.operands, "it has no operand; such an op is a constant")
    names = [slot.name for slot in row.operands] + [attr.name for attr in row.attrs]
    again = next((name for name in names if names.count(name) > 1), None)
    demand(again is None, f"{again} is there twice among slots and attributes")
    required = {attr.name for attr in row.attrs if attr.required}
    for attr in row.attrs:
        fits = attr.name in required or attr.accepts(attr.default)
        demand(fits, f"the default of {attr.name}, {attr.default!r}, is not {attr.kind}")
    return row.doc


def _signature(given: PluginOp) -> str:
    row = given.spec
    named = {attr.name: None for attr in row.attrs}
    variadic = any(slot.variadic for slot in row.operands)
    slots = {} if variadic else {s.name: None for s in row.operands if not s.optional}
    every = {} if variadic else {s.name: None for s in row.operands}
    signature = inspect.signature(given.reference)
    for operands in (slots, every):
        try:
            signature.bind(*([[]] if variadic else []), **operands, **named)
        except TypeError as error:
            said = ", ".join([*(["[xs]"] if variadic else []), *operands, *named])
            raise Broken(f"called with {said}: {error}") from error
    return str(signature)


def _calls(given: PluginOp) -> Iterator[Graph]:
    """Graphs of one op on constants."""
    for operands, attrs in given.examples:
        graph = Graph("main")
        made = {s: graph.constant(Array.of(np.asarray(a)), name="k") for s, a in operands.items()}
        yield _ended(graph, graph.add(given.spec.name, made, attrs))
    for seed in range(COUNT):
        graph = Graph("main")
        node = feed(random.Random(seed).randrange, graph, given.spec.name, [])
        if node is not None:
            yield _ended(graph, node)


def _ended(graph: Graph, node: Node) -> Graph:
    graph.add("output", {f"y{i}": value for i, value in enumerate(node.results)})
    return graph


def _node(graph: Graph) -> Node:
    return next(node for node in graph if node.op not in ("constant", "output"))


def _said(graph: Graph) -> str:
    node = _node(graph)
    operands = ", ".join(f"{slot} {value.type}" for slot, value in node.operands.items())
    attrs = ", ".join(f"{name} = {value!r}" for name, value in node.attrs.items())
    return f"{node.op}({operands}) {{{attrs}}}"


def _agree(calls: list[Graph]) -> str:
    for graph in calls:
        made = run(graph, {})
        for name, value in graph.outputs.items():
            data, kind = made[name], value.type
            shape = dims.known_shape(kind.shape)
            wanted = f"the rule says {kind}"
            given = f"the reference makes {data.dtype} {list(data.shape)}"
            demand(data.dtype == kind.dtype.carrier, f"{_said(graph)}: {wanted}, {given}")
            demand(data.ndim == kind.rank, f"{_said(graph)}: {wanted}, {given}")
            if shape is not None:
                demand(data.shape == shape, f"{_said(graph)}: {wanted}, {given}")
    return f"{len(calls)} calls"


def _takes(graph: Graph) -> bool:
    """Returns whether the reference takes what a call holds; no op divides by zero."""
    try:
        run(graph, {})
    except OpError:
        return False
    return True


def _bytes(arrays: Tensors) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}


def _pure(calls: list[Graph]) -> None:
    for graph in calls:
        node = _node(graph)
        held = {s: v.constant.data for s, v in node.operands.items() if v.constant is not None}
        before = _bytes(held)
        first, second = (_bytes(run(graph, {})) for _ in range(2))
        demand(first == second, f"{_said(graph)}: other bytes the second time")
        demand(_bytes(held) == before, f"{_said(graph)}: an operand has changed")


def _symbols(calls: list[Graph]) -> str:
    """Returns the rule on a first axis that is called N, where it takes such a one."""
    tried = 0
    for graph in calls:
        node = _node(graph)
        first = next(iter(node.operands.values()))
        if not first.type.rank:
            continue
        size = first.type.shape[0]
        named = Graph("main")
        operands = {}
        for slot, value in node.operands.items():
            shape = value.type.shape
            if shape[:1] == (size,):
                shape = (dims.symbol("N"), *shape[1:])
            kind = TensorType(shape, value.type.element)
            operands[slot] = named.add("input", types=[kind], name=slot.replace(".", "_")).result
        try:
            types = infer_result_types(node.op, operands, node.attrs)
        except QirError:
            continue  # it may need to know the size
        tried += 1
        assert isinstance(size, int)
        for kind, value in zip(types, node.results, strict=True):
            bound = [None if d is None else dims.bind(d, {"N": size}) for d in kind.shape]
            fits = len(bound) == value.type.rank and all(
                a is None or a == b for a, b in zip(bound, value.type.shape, strict=True)
            )
            said = f"{kind} with N, {value.type} with N = {size}"
            demand(fits and kind.element == value.type.element, f"{_said(graph)}: {said}")
    return f"{tried} calls"


def _prints(calls: list[Graph]) -> None:
    for graph in calls:
        text = print_graph(graph)
        held = {name: array.data for name, array in array_table(graph).items()}
        demand(print_graph(parse(text, held)) == text, f"{_said(graph)}: reads as another graph")


__all__ = ["check_op"]

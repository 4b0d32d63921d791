"""Decoration: odd names, constants, origins, lineage, plans and profiles."""

from __future__ import annotations

from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I8, I32, U8, dtype
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Lineage, Origin
from qir.ir.scheme import RESULT, Scheme
from qir.ir.types import Array, TensorType
from qir.testing.edge_cases import DTYPES, odd_array, odd_name, odd_number, odd_type
from qir.testing.random_source import Pick


def decorate(pick: Pick, graph: Graph) -> None:
    graph.name = odd_name(pick)
    graph.profile = ("native", "ort-1.31", odd_name(pick) or "x")[pick(3)]
    _odd_constants(pick, graph)
    for node in list(graph):
        if pick(3) == 0:
            graph.set_origins(node, [_origin(pick) for _ in range(1 + pick(2))])
        if node.operands and pick(3) == 0:
            slots = [*node.operands, RESULT]
            slot = slots[pick(len(slots))]
            graph.set_scheme(node, slot, _scheme(pick))
            graph.set_slot_origins(node, slot, [_origin(pick)])
        if pick(5) == 0:
            graph.set_profile(node, odd_name(pick) or "p")
        for value in node.results:
            if pick(3) == 0 and not graph.has(name := odd_name(pick)):
                graph.rename(value, name)
            if pick(3) == 0:
                graph.set_lineage(value, Lineage(odd_name(pick), ("coded", odd_name(pick))))


def _odd_constants(pick: Pick, graph: Graph) -> None:
    parts: dict[str, Value] = {}
    for _ in range(pick(4)):
        kind = dtype(DTYPES[pick(len(DTYPES))])
        shape = tuple(pick(4) for _ in range(pick(3)))
        array = Array.of(odd_array(pick, kind, shape), odd_name(pick))
        typed = Array(array.data, TensorType(shape, kind), array.name)
        parts[odd_name(pick)] = graph.constant(typed)
    attrs: dict[str, Attr] = {"framework": odd_name(pick), "op": odd_name(pick)}
    attrs["attrs"] = (("f", odd_number(pick)), ("b", b"\x00\xff"), ("t", (True, None, F32, ())))
    graph.add("foreign", parts, attrs, types=[odd_type(pick) for _ in range(pick(3))])


def _origin(pick: Pick) -> Origin:
    pairs = tuple((odd_name(pick), odd_name(pick)) for _ in range(pick(3)))
    return Origin(odd_name(pick), "Conv", odd_name(pick), odd_name(pick), pick(3), pairs)


def _scheme(pick: Pick) -> Scheme:
    return Scheme(
        (U8, I8, I32)[pick(3)],
        symmetric=pick(2) == 0,
        granularity="channel" if pick(2) else "tensor",
        bounds=(0, 100) if pick(2) else None,
        range=("minmax", "percentile:99.9")[pick(2)],
        zero=(None, 3)[pick(2)],
        scale=(None, None, 0.1)[pick(3)],
        share=odd_name(pick),
    )

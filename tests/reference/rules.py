"""Whether an op's type-and-shape rule says what its reference gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.dtype import dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array as Stored
from qir.ir.types import TensorType
from qir.reference.interpreter import rules_of, run_node
from tests.reference.oracles import Array


def _dim(size: int) -> Dim:
    return dims.symbol(f"n{size}") if size > 1 else size


def assert_rule_agrees(
    op: str,
    operands: Mapping[str, Array],
    attrs: Mapping[str, Attr] | None = None,
    *,
    constant: Collection[str] = (),
    unknown: bool = False,
    note: str = "",
) -> tuple[Array, ...]:
    """Infers types from plain sizes, and again from named ones; gives what the reference made.

    Operands listed as `constant` are constants of the graph; the others are inputs, of named
    sizes but for one called `shape`. `unknown` says that sizes may
    hang on the elements of an input.
    """
    made: tuple[Array, ...] = ()
    for named in (False, True):
        graph, given = Graph("rule"), dict[str, Value]()
        for slot, data in operands.items():
            if slot in constant:
                given[slot] = graph.constant(Stored.of(data, slot.replace(".", "_")))
                continue
            shape = tuple(_dim(d) if named and slot != "shape" else d for d in data.shape)
            kind = TensorType(shape, dtype_of(data))
            given[slot] = graph.add("input", types=[kind]).result
        node = graph.add(op, given, attrs or {})
        made = run_node(node, operands, rules_of(graph, node))
        assert len(made) == len(node.results), f"{op} {note}: {len(made)} results"
        sizes = {f"n{d}": d for x in operands.values() for d in x.shape}
        for data, value in zip(made, node.results, strict=True):
            where = f"{op} {dict(attrs or {})} {note}: {value.type}, it is {list(data.shape)}"
            assert isinstance(data, np.ndarray), where
            assert value.type.dtype == dtype_of(data), f"{where} of {data.dtype}"
            assert value.type.rank == data.ndim, where
            for dim, size in zip(value.type.shape, data.shape, strict=True):
                bound = dims.bind(dim, sizes)
                assert bound == size or ((named or unknown) and bound is None), where
    return made

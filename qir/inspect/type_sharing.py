"""Which values hold one quantized type, so that their quantized values mean the same."""

from __future__ import annotations

from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.query.facts import value_quant_type


def sharing(graph: Graph, name: str) -> tuple[Value, ...]:
    """Returns the values that share quantization parameters with a value, itself included.

    In QDQ form the quantized type of a float value is that of the quantized values it is read from
    or stored as. Empty where the value has none; GraphError where there is no such value.
    """
    own_type = value_quant_type(graph[name])
    if own_type is None:
        return ()
    typed_values = ((value, value_quant_type(value)) for value in graph.values.values())
    return tuple(
        v for v, quant in typed_values if quant is not None and quant.has_same_mapping(own_type)
    )

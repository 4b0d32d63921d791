"""Preparation step of TensorFlow's profiles: what its graph optimizer does to float ops."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change
from qir.profiles.preparation import PreparationStep
from qir.rewrite.preparation import Preparation


def _multiply_by_reciprocals(graph: Graph, prepared: Preparation) -> int:
    """Replaces divisions by constants, as `ConstantFolding::ReduceDivToReciprocalMul` does."""
    count = 0
    for node in list(graph):
        if node.op != "div" or not _divides_by_constant(node):
            continue
        divisor = node.operands["b"]
        assert divisor.constant is not None
        with np.errstate(divide="ignore", over="ignore"):  # as TensorFlow, which folds them too
            numbers = np.reciprocal(divisor.constant.data)
        name = graph.fresh(f"{node.name}.reciprocal")
        reciprocal = graph.constant(numbers, name=name, before=node)
        graph.set_origins(reciprocal.node, [*divisor.node.origins, *node.origins])
        operands = {"a": node.operands["a"], "b": reciprocal}
        product = graph.add("mul", operands, before=node, origins=node.origins)
        graph.substitute(node, product.result)
        reason = "multiplied by the reciprocal of its divisor, as TensorFlow's optimizer does"
        prepared.ledger.add(Change.REGROUPED, prepared.name, product.name, reason)
        count += 1
    return count


def _divides_by_constant(node: Node) -> bool:
    """Returns whether an op is on floats of numpy's own types, and divides by a constant."""
    values = (*node.operands.values(), node.result)
    if node.stages or any(value.type.quant is not None for value in values):
        return False
    divisor = node.operands["b"].constant
    return divisor is not None and divisor.data.dtype in (np.float32, np.float64)


STEPS: Mapping[str, PreparationStep] = {
    "reciprocals_of_divisors": PreparationStep(
        "Divisions of floats by constants become products with their reciprocals.",
        _multiply_by_reciprocals,
    )
}
"""The steps that profiles of TensorFlow name."""

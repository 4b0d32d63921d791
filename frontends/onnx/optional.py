"""Evaluates operators of optional values: ONNX's evaluator expects lists for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir.errors import PluginError


def _make_optional(operands: Sequence[object]) -> object:
    return operands[0] if operands else None


def _get_element(operands: Sequence[object]) -> object:
    if not operands or operands[0] is None:
        raise PluginError("there is no element to get")
    return operands[0]


def _has_element(operands: Sequence[object]) -> object:
    return np.array(bool(operands) and operands[0] is not None)


FUNCTIONS: Mapping[str, Callable[[Sequence[object]], object]] = {
    "Optional": _make_optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
}
"""Functions by operator, applied to the operands that are present."""

"""Evaluates optional values here, since ONNX's evaluator expects lists for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir.errors import PluginError


def _made(given: Sequence[object]) -> object:
    return given[0] if given else None


def _taken(given: Sequence[object]) -> object:
    if not given or given[0] is None:
        raise PluginError("there is no element to get")
    return given[0]


def _there(given: Sequence[object]) -> object:
    return np.array(bool(given) and given[0] is not None)


FUNCTIONS: Mapping[str, Callable[[Sequence[object]], object]] = {
    "Optional": _made,
    "OptionalGetElement": _taken,
    "OptionalHasElement": _there,
}
"""Operators by name, each of the operands that are there."""

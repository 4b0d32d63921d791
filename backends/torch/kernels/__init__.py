"""Quantized kernels of torch that are not "accumulate and round once"."""

from __future__ import annotations

from collections.abc import Mapping

from qir.profiles.methods import PluginMethod

from . import elements, layers, means, tables

METHODS: Mapping[str, PluginMethod] = {
    **elements.METHODS,
    **layers.METHODS,
    **means.METHODS,
    **tables.METHODS,
}
"""All methods that profiles of this runtime alone name."""

__all__ = ["METHODS"]

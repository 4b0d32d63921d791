"""Kernels of Intel's extension for PyTorch that are not "accumulate and round once"."""

from __future__ import annotations

from collections.abc import Mapping

from qir.profiles.methods import PluginMethod

from . import lstm, products

METHODS: Mapping[str, PluginMethod] = {
    **lstm.METHODS,
    **products.METHODS,
}
"""All methods that profiles of this runtime alone name."""

__all__ = ["METHODS"]

"""Kernels of TensorFlow Lite that are not "accumulate and round once"."""

from __future__ import annotations

from collections.abc import Mapping

from qir.profiles.methods import PluginMethod

from . import curves, dynamic, elements, fixed_point, lstm, resizing, sums_and_means, vectors

METHODS: Mapping[str, PluginMethod] = {
    **curves.METHODS,
    **dynamic.METHODS,
    **elements.METHODS,
    **fixed_point.METHODS,
    **lstm.METHODS,
    **resizing.METHODS,
    **sums_and_means.METHODS,
    **vectors.METHODS,
}
"""All methods that profiles of this runtime alone name."""

__all__ = ["METHODS"]

"""Sizes of a program: integers, or nodes that compute integers at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import fx

Size: TypeAlias = "int | fx.Node"


def is_size(node: fx.Node) -> bool:
    """Returns whether a node is a number and not a tensor."""
    return isinstance(node.meta.get("val"), (int, torch.SymInt, torch.SymBool, torch.SymFloat))


def are_known(sizes: Sequence[Size]) -> bool:
    """Returns whether all sizes are integers, none symbolic."""
    return all(isinstance(size, int) for size in sizes)


def int64_array(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns integers as a one-dimensional array of i64."""
    return np.asarray(values, np.int64)

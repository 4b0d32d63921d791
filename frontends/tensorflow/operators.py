"""The table of converters, by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import (
    convolution,
    creation,
    elementwise,
    indexing,
    kernels,
    loops,
    movement,
    normalization,
    products,
    quantization,
    reduction,
    resizing,
    slicing,
    spectra,
)
from .call import NodeCall
from .results import ValueOrList

OPS: dict[str, Callable[[NodeCall], ValueOrList | Sequence[ValueOrList]]] = {
    **convolution.OPS,
    **creation.OPS,
    **elementwise.OPS,
    **indexing.OPS,
    **kernels.OPS,
    **loops.OPS,
    **movement.OPS,
    **normalization.OPS,
    **products.OPS,
    **quantization.OPS,
    **reduction.OPS,
    **resizing.OPS,
    **slicing.OPS,
    **spectra.OPS,
}

"""Stage functions: what kernels of a runtime do after a layer's sums, by the words of profiles.

A rule names one for each field of `stage`. They are found by the entry point `qir.stages`, under
names such as `ends.quantize`: those of one runtime are in its backend's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import ProfileError
from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.numerics.affine import Affine
from qir.numerics.fields import Rule
from qir.records import record

KIND = "qir.stages"
"""The entry points of stage functions; each names a `StageFunction` or a table of them by name."""
Floats: TypeAlias = NDArray[np.floating]
Float32s: TypeAlias = NDArray[np.float32]


@record
class StageFunction:
    """A function that a profile names by a word, as `ends = "up"` names `ends.up`.

    Each field of `stage` has a class of its own, since each is called with other arguments.
    """

    stage_field: ClassVar[str] = ""
    """The field of `stage` whose words name such functions."""
    description: str
    """What it does, as a phrase of the manual."""


@record
class ReluStage(StageFunction):
    """Where activations that follow a layer are computed."""

    stage_field: ClassVar[str] = "relu"
    apart: Callable[[Rule], Rule] | None = None
    """Gives the rule of a layer whose activations are a step of their own, on floats; it then has
    `requant.multiplier = "divide"`. None: an activation bounds the quantized values."""


@record
class SumStage(StageFunction):
    """How the quantized values of a summand are added."""

    stage_field: ClassVar[str] = "sum"
    add: Callable[[Floats, Floats, Floats], Floats]
    """`add(sums, steps, factor)`: sums and the products of steps and factor, of one float type.
    Steps are the summand's quantized values less its zero point."""
    in_result_units: bool = False
    """Whether sums are in units of the result and the factor is the ratio of two scales; else sums
    are dequantized, and the factor is the summand's scale."""


@record
class SumBufferStage(StageFunction):
    """What a summand and a sum lose in the memory that they share."""

    stage_field: ClassVar[str] = "sum_reads"
    storage: Callable[[DType, DType], DType] | None = None
    """The storage in which a sum is written, of the summand's and the result's; its bytes are the
    result's. None: the result's."""
    most_read: Callable[[DType, DType], int | None] | None = None
    """The highest quantized value of the summand that is read, of the same two; None: all are."""
    most_written: Callable[[DType, DType], int | None] | None = None
    """The highest quantized value that is written."""

    def read_limit(self, summand: DType, result: DType) -> int | None:
        """Returns the highest quantized value of the summand that is read; None: all are."""
        return None if self.most_read is None else self.most_read(summand, result)

    def write_limit(self, summand: DType, result: DType) -> int | None:
        """Returns the highest quantized value that is written; None: all are."""
        return None if self.most_written is None else self.most_written(summand, result)

    def written_as(self, summand: DType, result: DType) -> DType:
        """Returns the storage in which a sum is written."""
        return result if self.storage is None else self.storage(summand, result)


@record
class BoundsStage(StageFunction):
    """How the bounds of a clamping activation become quantized values."""

    stage_field: ClassVar[str] = "ends"
    quantize: Callable[[Float32s, Affine, Rule], NDArray[np.generic]]
    """`quantize(bounds, quantized type of the result, rule by which floats are quantized)`: whole
    numbers, which are clamped to the quantized values after it."""


@record
class CurvesStage(StageFunction):
    """How activations that are no bounds are computed on dequantized sums."""

    stage_field: ClassVar[str] = "curves"
    functions: Mapping[str, Callable[[Float32s, Mapping[str, Attr]], Float32s]] = field(
        default_factory=dict
    )
    """By op: `function(sums, attributes)`. Others are computed exactly, and rounded once."""


_S = TypeVar("_S", bound=StageFunction)


def stage_functions() -> Mapping[str, StageFunction]:
    """Returns all functions that profiles may name, as `FIELD.WORD`."""
    return registry.entries(KIND, StageFunction)


def stage_function(kind: type[_S], word: str) -> _S:
    """Returns what a word of a field means; raises ProfileError for a word that means nothing."""
    found = registry.entry(KIND, kind, f"{kind.stage_field}.{word}")
    if found is None:
        raise ProfileError(f"no stage function of {KIND} is stage.{kind.stage_field} = {word!r}")
    return found

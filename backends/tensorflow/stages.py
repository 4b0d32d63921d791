"""What TensorFlow's kernels do after a layer's sums, where no other runtime does so."""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir.dtype import I8, U8, DType
from qir.numerics.stages import StageFunction, SumBufferStage


def _most_read(summand: DType, result: DType) -> int | None:
    return 127 if (summand, result) == (U8, I8) else None


def _most_written(summand: DType, result: DType) -> int | None:
    return 127 if (summand, result) == (I8, U8) else None


STAGES: Mapping[str, StageFunction] = {
    "sum_reads.i8_saturated": SumBufferStage(
        "where one of summand and result is i8, the unsigned one ends at 127: both are in one i8 "
        "buffer",
        most_read=_most_read,
        most_written=_most_written,
    ),
}
"""The stage functions that profiles of TensorFlow name."""

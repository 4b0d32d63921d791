"""What calibration saw: the ranges of the tensors, in rows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from qir.calibration import Statistics


@dataclass(frozen=True, slots=True)
class TensorRange:
    """One tensor over all batches; `to_json` has the keys of the fields."""

    tensor: str
    count: int
    low: float | None
    high: float | None
    """None where nothing finite was seen."""
    mean: float | None
    deviation: float | None
    zeros: int
    nan: int
    infinite: int
    channels: int
    """How many channels have a range of their own; 0 where none are kept apart."""

    def to_json(self) -> dict[str, object]:
        """Returns the fields as JSON takes them."""
        return asdict(self)


def ranges(statistics: Statistics) -> tuple[TensorRange, ...]:
    """Returns a row for every tensor that was watched, in the order of their names."""
    channels = {k.tensor: s.channel_low.size for k, s in statistics.items() if k.axis is not None}
    by_tensor = {k.tensor: s for k, s in statistics.items() if k.axis is None}
    # Some tensors are watched by channel alone: the summary of these covers the whole too.
    per_channel = {k.tensor: s for k, s in statistics.items() if k.tensor not in by_tensor}
    out = []
    for tensor, summary in sorted({**by_tensor, **per_channel}.items()):
        has_values = summary.finite > 0
        out.append(
            TensorRange(
                tensor,
                summary.count,
                float(summary.low) if has_values else None,
                float(summary.high) if has_values else None,
                _finite(summary.mean) if has_values else None,
                _finite(math.sqrt(max(summary.variance, 0.0))) if has_values else None,
                summary.zeros,
                summary.nan,
                summary.above + summary.below,
                channels.get(tensor, 0),
            )
        )
    return tuple(out)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

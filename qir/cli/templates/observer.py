"""A new observer."""

from __future__ import annotations

from collections.abc import Mapping

FILES: Mapping[str, str] = {
    "=points": """\
[project.entry-points."qir.observers"]
$name = "$module:$Class"
""",
    "=about": """\
An observer for QIR: a range rule, which says what part of a tensor's values the quantized type
covers. This one covers the mean and so many standard deviations.""",
    "=use": """\
Then quantize with it; the number after the colon is its parameter:

```text
qir quantize model.onnx --data samples.npy --range $name:4 -o int8.onnx
```""",
    "$module/__init__.py": '''\
"""A range of so many standard deviations around the mean."""

from __future__ import annotations

import numpy as np
from qir.calibration import Observer, Parameter, Range, Seen
from qir.errors import DataError, UsageError

qir_api = 1


class $Class(Observer):
    """The mean and so many standard deviations, no wider than what was seen."""

    name = "$name"
    parameter = Parameter(default=3.0, most=100.0)

    def range(self, seen: Seen) -> Range:
        """The range of a tensor, of its statistics alone: so any order of batches gives it."""
        summary = seen.summary
        if not summary.finite:
            raise DataError("no finite value was seen, so there is no range")
        if summary.axis is not None:
            raise UsageError(f"range rule {self.name} is for whole tensors, not for channels")
        reach = seen.parameter * summary.variance**0.5
        if seen.symmetric:
            reach += abs(summary.mean)
            low, high = -reach, reach
        else:
            low, high = summary.mean - reach, summary.mean + reach
        least, most = summary.extremes
        ends = np.clip(np.array([low, high]), least, most).astype(np.float32)
        return Range(ends[0], ends[1])
''',
    "tests/test_$module.py": '''\
"""The observer does what it says, and keeps the contract of observers."""

import numpy as np
from qir.calibration import Seen, Summary
from qir.testing import check_observer, require

from $module import $Class


def test_it_covers_the_mean_and_its_deviations() -> None:
    values = np.random.default_rng(0).normal(5, 2, 10_000).astype(np.float32)
    summary = Summary()
    summary.update(values)
    low, high = $Class().range(Seen(summary, parameter=2.0))
    wide = values.astype(np.float64)
    assert abs(low - (wide.mean() - 2 * wide.std())) < 1e-3
    assert abs(high - (wide.mean() + 2 * wide.std())) < 1e-3


def test_it_keeps_the_contract_of_observers() -> None:
    require(check_observer($Class))
''',
}

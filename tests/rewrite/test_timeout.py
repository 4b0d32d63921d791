"""What takes too long is stopped."""

from __future__ import annotations

import time

import numpy as np
import pytest

from qir.rewrite.runner.timeout import TooLong, within


@pytest.mark.parametrize("number", [float, np.float32, np.float64])
def test_a_limit_may_be_any_number(number: type) -> None:
    with pytest.raises(TooLong), within(number(0.05)):
        wait(20)


def wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

"""Scales by TensorFlow: the range that QuantizeV2 gives out for the one that it is given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.ir.dtype import I8
from qir.ir.scheme import Scheme
from qir.profiles import parameters_for_range, profile
from tests.differential.tensorflow.kernels import Asked, Kind, TensorFlow

from .test_tensorflow_codes import widened

F = np.float32


def test_scales_are_those_of_the_ranges_that_quantize_v2_gives_out(
    runtimes: Mapping[str, TensorFlow],
) -> None:
    """The kernel makes a gain of the range and gives out what that gain spans: one ulp may go."""
    rng = np.random.default_rng(11)
    ends = np.sort(rng.normal(size=(60, 2)) * np.exp2(rng.uniform(-9, 9, (60, 1))), axis=1)
    ends = ends.astype(F)
    asked = Asked()
    fetches: list[str] = []
    x = asked.fed(np.zeros(3, F))
    for low, high in ends:
        given = [x, asked.constant(low), asked.constant(high)]
        node = asked.node("QuantizeV2", given, T=Kind("qint8"), mode="SCALED")
        fetches += [f"{node}:1", f"{node}:2"]
    made = [float(v) for v in runtimes["tf-2.21.core"].run(asked, *fetches)]
    low, high = np.array(made[::2], F), np.array(made[1::2], F)
    scheme = Scheme(I8, symmetric=True)
    found, zero = parameters_for_range(profile("tf-2.21.core"), ends[:, 0], ends[:, 1], scheme)
    with np.errstate(divide="ignore"):
        least, most = np.array([widened(*pair) for pair in ends], F).T
        gain = np.minimum(F(127) / most, np.where(least, F(-128) / least, F(np.inf)))
    assert np.array_equal(high, F(127) / gain)
    assert np.array_equal(low, F(-128) / gain)
    assert np.array_equal(found, np.maximum(most / F(127), least / F(-128)))
    assert (np.abs(found - high / F(127)) <= np.spacing(found)).all()
    assert not zero.any()

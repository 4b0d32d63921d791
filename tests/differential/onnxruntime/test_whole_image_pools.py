"""An average pool whose window is the whole image: in onnxruntime it is the global pool's."""

from __future__ import annotations

import numpy as np
import pytest

from qir.reference import methods
from tests.differential.onnxruntime.kernels import MS, numbers, run_operator

from .test_ort_methods import any_integers, any_map, rng, same

WINDOWS = [(1, 1), (2, 1), (3, 3), (7, 7), (1, 5), (4, 2)]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_window_that_is_the_whole_image_is_onnxruntimes(
    window: tuple[int, int], kind: str, layout: str
) -> None:
    for number in range(40):
        seed = rng(number)
        of = any_map(seed, kind)
        ratio = (0.5, 1.0, 2.0, 0.25, 1 / 3, 1 / 49)[number % 6]
        out = any_map(seed, kind, float(np.float32(of.scale) * np.float32(ratio)))
        x = any_integers(seed, kind, 2, 33, *window)
        if layout == "NHWC":
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        stride = (1, 1) if number % 2 else (2, 3)
        wanted = run_operator(
            "QLinearAveragePool",
            [x, *numbers(of), *numbers(out)],
            out.carrier,
            domain=MS,
            kernel_shape=window,
            strides=stride,
            channels_last=int(layout == "NHWC"),
        )
        found = methods.mean_of_reals(
            x, of, out, kernel=window, stride=stride, count_pad=bool(number % 3), layout=layout
        )
        same(found, wanted, (number, window))

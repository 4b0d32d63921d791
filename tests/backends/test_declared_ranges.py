"""Ranges of MXNet and TensorFlow have other numbers of steps: each writes its own of a scale."""

from dataclasses import replace

import numpy as np
import pytest

from qir.backends.mxnet.writer.quantized import range_of as mxnet_range
from qir.backends.tensorflow.writer.nodes import range_from_type as tensorflow_range
from qir.ir.dtype import I8, U8, DType
from qir.ir.types import DeclaredBounds, uniform


@pytest.mark.parametrize(
    ("storage", "mxnet", "tensorflow"), [(I8, 127.5, 127.0), (U8, 255.5, 255.0)]
)
def test_a_range_of_another_runtime_is_made_of_its_scale(
    storage: DType, mxnet: float, tensorflow: float
) -> None:
    scale = np.float32(0.03125)
    for level in (mxnet, tensorflow):
        high = float(scale * np.float32(level))
        low = 0.0 if storage == U8 else -high
        kind = replace(uniform(storage, scale), declared=DeclaredBounds((low,), (high,), level))
        assert mxnet_range(kind)[1] == scale * np.float32(mxnet)
        assert tensorflow_range(kind)[1] == scale * np.float32(tensorflow)

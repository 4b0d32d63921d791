"""Preparation steps of PyTorch's profiles: where its kernels put channels last in memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from qir.profiles.preparation import PreparationStep

from .channels_last.inference import lay_out

STEPS: Mapping[str, PreparationStep] = {
    "channels_last": PreparationStep(
        "Convolutions give channels_last tensors; they and what is computed of them become NHWC.",
        partial(lay_out, misplaced_clips=False),
    ),
    "channels_last_moved_clips": PreparationStep(
        "As `channels_last`; a clip of u8 values in channels_last memory writes them in that order "
        "to a channels-first tensor.",
        partial(lay_out, misplaced_clips=True),
    ),
}
"""The steps that profiles of PyTorch name."""

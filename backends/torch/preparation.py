"""Preparation steps of PyTorch's profiles: which tensors its kernels return as channels_last."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from qir.profiles.preparation import PreparationStep

from .channels_last.inference import apply_layout

STEPS: Mapping[str, PreparationStep] = {
    "channels_last": PreparationStep(
        "Convolutions give channels_last tensors; they and what is computed of them become NHWC.",
        partial(apply_layout, misplaced_clips=False),
    ),
    "channels_last_moved_clips": PreparationStep(
        "As `channels_last`; a clip of u8 values in channels_last memory writes them in that order "
        "to a channels-first tensor.",
        partial(apply_layout, misplaced_clips=True),
    ),
}
"""The steps that profiles of PyTorch name."""

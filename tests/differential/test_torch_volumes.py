"""Torch's means of whole volumes, which pass through reals where channels lie last in memory."""

from __future__ import annotations

import numpy as np
import pytest

from .draws_of_torch import KINDS
from .kernels_of_torch import Held, Tally, engine, of, tensor
from .test_torch_elements import pytestmark as pytestmark
from .test_torch_means import Case, Rng, hold, nf, tied

SIDES = ((1, 2, 2), (2, 2, 2), (2, 3, 1), (3, 4, 5), (2, 7, 9), (4, 7, 7), (6, 10, 9), (9, 16, 16))
"""Fewer elements than runs of 16 have, runs of runs, and what is left over of four."""


def volume(rng: Rng, kind: str, channels: int, sides: tuple[int, int, int]) -> Held:
    """Volumes of which each mean lies half way between two codes, or any."""
    zero = int(rng.integers(20, 200)) | 1 if kind == "u8" else int(rng.integers(-60, 60)) | 1
    count = int(np.prod(sides))
    scale = rng.choice([0.05, 0.1, 0.0371, 0.25]) if rng.random() < 0.6 else rng.uniform(0.01, 2)
    data = tied(rng, kind, zero, 2, channels, count)
    if rng.random() < 0.4:
        low = 0 if kind == "u8" else -128
        data = rng.integers(low, low + 256, data.shape).astype(data.dtype)
    return Held(data.reshape(2, channels, *sides), of(kind, np.float32(scale), zero))


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack", "onednn", "x86"])
def test_means_of_volumes_are_torchs(name: str, kind: str, *, last: bool) -> None:
    tally = Tally()
    for seed, sides in enumerate(SIDES):
        rng = np.random.default_rng(seed)
        for channels in (1, 3, 7, int(rng.integers(8, 40)), int(rng.integers(40, 110))):
            x = volume(rng, kind, channels, sides)
            with engine(name):
                made = nf.adaptive_avg_pool3d(tensor(x, last=last), 1)
            case: Case = ("global_avg_pool", made, {})
            assert hold(tally, f"torch-2.13.{name}", x, case, last=last) == "exact"
    tally.exact()

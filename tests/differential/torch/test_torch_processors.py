"""Torch's layers on processors before VNNI, which its libraries take this one for."""

from __future__ import annotations

import numpy as np
import pytest

from qir.profiles import Query, profile
from tests.differential.torch.kernels import Tally, processor, product_of
from tests.differential.torch.profile_in_use import named
from tests.overriding import override_profile

from . import draws_of_torch as draws
from .test_torch_products import conv, linear, made_by
from .test_torch_products import pytestmark as pytestmark

_LATER = [
    ("x86", "avx512", "FBGEMM_ENABLE_INSTRUCTIONS", "AVX512"),
    ("onednn", "avx512", "ONEDNN_MAX_CPU_ISA", "AVX512_CORE"),
    ("pt2e", "avx512", "ONEDNN_MAX_CPU_ISA", "AVX512_CORE"),
    ("qnnpack", "avx2", "FBGEMM_ENABLE_INSTRUCTIONS", "AVX2"),
]
SWITCHES = [
    ("fbgemm", "avx2", "FBGEMM_ENABLE_INSTRUCTIONS", "AVX2"),
    ("onednn", "avx2", "ONEDNN_MAX_CPU_ISA", "AVX2"),
    *(pytest.param(*one, marks=pytest.mark.slow) for one in _LATER),
]
"""An engine, what its profile calls the processor, and the variable that makes it that one."""
EXACT = {("torch-2.15.onednn", "avx512")} | {(named("qnnpack"), isa) for isa in ("avx2", "avx512")}
"""Profiles, and processors on which their linear layers add pairs of terms that do not saturate."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("engine", "isa", "name", "value"), SWITCHES)
def test_pairs_of_terms_saturate_in_linear_layers(
    engine: str, isa: str, name: str, value: str
) -> None:
    held, tally, apart = profile(named(engine)), Tally(), 0
    many = (True,) if engine == "pt2e" else (False, True)
    cases = [linear(seed, one) for seed in range(8) for one in many]
    cases += [draws.wider(case) for case in cases]
    with processor(value, name) as pool:
        made = made_by(pool, engine, cases)
    for case, wanted in zip(cases, made, strict=True):
        apart += int(np.count_nonzero(product_of(case, held.name) != wanted))
        with override_profile(held.on(isa)):
            tally.add(product_of(case, held.name), wanted, f"{case.w.data.shape}")
    assert held.resolve(Query("linear", isa=isa)).claim == "exact"
    tally.exact()
    saturated = apart > 0.01 * tally.total
    assert saturated == ((held.name, isa) not in EXACT), "pairs that are exact would do"


def test_convolutions_of_small_codes_need_no_vnni() -> None:
    """Pairs of others saturate."""
    tally, apart, held = Tally(), 0, profile(named("fbgemm"))
    plain = [conv(seed, one, 2) for seed in range(8) for one in (False, True)]
    cases = [*plain, *(draws.wider(case) for case in plain)]
    with processor("AVX2", "FBGEMM_ENABLE_INSTRUCTIONS") as pool:
        made = list(made_by(pool, "fbgemm", cases))
    for number, (case, wanted) in enumerate(zip(cases, made, strict=True)):
        off = int(np.count_nonzero(product_of(case, held.name) != wanted))
        assert number >= len(plain) or not off
        apart += off
        with override_profile(held.on("avx2")):
            tally.add(product_of(case, held.name), wanted, f"{case.w.data.shape}")
    tally.exact()
    assert apart > 0.01 * tally.total

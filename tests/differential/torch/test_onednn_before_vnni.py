"""Convolutions of oneDNN on processors before VNNI, for which it takes this one: pairs of channels
are added in 16 bits that saturate, of the taps that meet data; padding is left out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from qir.profiles import Profile, profile
from tests.differential.torch.kernels import Held, Product, Tally, processor, product_of
from tests.differential.torch.profile_in_use import named
from tests.overriding import override_profile

from . import draws_of_torch as draws
from .test_torch_pointwise import claimed_of
from .test_torch_products import exact_floats, made_by
from .test_torch_products import pytestmark as pytestmark

ISAS = {"avx2": "AVX2", "avx512": "AVX512_CORE"}


def layer(seed: int, rank: int) -> Product:
    """A convolution of integers and weights of all sizes, of few channels and of many."""
    rng = np.random.default_rng([7, seed, rank])
    groups = int(rng.choice([1, 1, 1, 2, 4, 8]))
    wide = [32] if groups == 1 else []
    into = int(rng.choice([1, 1, 2, 3, 4, 5, 8, 16, 17, *wide]))
    outof = int(rng.choice([1, 2, 4, 7, 8, 16, *wide]))
    taps = [int(rng.integers(1, 4))] * rank
    sizes = [int(v) for v in rng.integers(5, 9, rank)]
    x, w = draws.maps(rng, groups * outof, many=True)
    few, step = [(1, 1), (8, 32), (16, 64), (16, 64)][rng.integers(4)]
    reach = 128 // step
    weights = step * rng.integers(-reach, reach, (groups * outof, into, *taps))
    case = Product(
        f"conv{rank}d",
        draws.multiples(rng, x, few, 2, groups * into, *sizes),
        Held(weights.astype(np.int8), w),
        None,
        x,
        stride=int(rng.integers(1, 3)),
        pad=int(rng.integers(0, taps[0])),
        dilation=int(rng.integers(1, 3)),
        groups=groups,
        relu=bool(seed & 1),
    )
    return draws.fitted(rng, case, few * step)


def layers(rank: int, count: int) -> list[Product]:
    """Those whose windows fit the data."""
    found = []
    for seed in range(count):
        try:
            found.append(layer(seed, rank))
        except RuntimeError:  # no window fits
            continue
    return found


def without(held: Profile, name: str, value: str, isa: str = "") -> Profile:
    """The profile with a field of its rules for that processor changed, inherited ones too."""
    isa = isa or held.isa
    rules = tuple(
        replace(r, fields={**r.fields, ("acc", name): value}) if isa in r.when.isa else r
        for r in held.rules
    )
    base = held.base and without(held.base, name, value, isa)
    return replace(held, rules=rules, base=base)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("engine", ["pt2e", pytest.param("onednn", marks=pytest.mark.slow)])
def test_pairs_of_channels_saturate_of_taps_that_meet_data(engine: str, isa: str) -> None:
    name = named(engine)
    held, cases = profile(name).on(isa), [*layers(1, 40), *layers(2, 40)]
    tallies: dict[str, Tally] = defaultdict(Tally)
    others = {"pad": "zero_point", "pairs": "exact"}
    apart = dict.fromkeys(others, 0)
    with processor(ISAS[isa]) as pool:
        made = made_by(pool, engine, cases)
    for case, wanted in zip(cases, made, strict=True):
        said = claimed_of(held, case)
        with override_profile(held):
            found = product_of(case, name)
        tallies[said].see(exact_floats(case), case.out)
        tallies[said].add(found, wanted, f"{case.w.data.shape} in {case.groups}")
        for field, value in others.items() if said == "exact" and engine == "pt2e" else ():
            with override_profile(without(held, field, value)):
                apart[field] += int(np.count_nonzero(product_of(case, name) != wanted))
    assert set(tallies) == {"exact", "unknown"}
    tallies["exact"].rich()
    tallies["exact"].exact()
    if engine == "pt2e":
        assert apart["pad"] > 100
        assert apart["pairs"] > 0.1 * tallies["exact"].total
    assert tallies["exact"].total > 10_000

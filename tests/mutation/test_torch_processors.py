"""One field of a rule for another processor changed: who takes this one for it finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pytest

from qir.errors import QirError
from qir.profiles import profile
from tests.differential.torch import draws_of_torch as draws
from tests.differential.torch import pointwise_of_torch as pointwise
from tests.differential.torch import test_torch_older as older
from tests.differential.torch.kernels import (
    F,
    Held,
    Product,
    computed,
    of,
    processor,
    product_of,
)
from tests.differential.torch.kernels import older as older_processor
from tests.differential.torch.profile_in_use import named
from tests.differential.torch.test_onednn_before_vnni import layers
from tests.differential.torch.test_torch_amx import open_rows, sized
from tests.differential.torch.test_torch_depthwise import full
from tests.differential.torch.test_torch_layers import torchs_many, transposed
from tests.differential.torch.test_torch_pointwise import ISAS, claimed_of, plain, with_summand
from tests.differential.torch.test_torch_products import conv, linear, made_by
from tests.differential.torch.test_torch_products import pytestmark as here
from tests.mutation.fields import mutants
from tests.overriding import override_profile

pytestmark = [here, pytest.mark.slow]
Compared = tuple[pointwise.Form, np.ndarray]
T = TypeVar("T")

_GAIN = "1 / s is the gain of a type without a declared range"
_TAPS = "a row of a matrix has one tap"
_FEW = "those of few channels take it, as many as do not"
_ALONE = "no sum is added to what is compared"
_SIGNED = "data of exported programs are unsigned here, and weights are halved for signed data"
SAME: Mapping[str, Mapping[str, str]] = {
    "torch-2.13.pt2e amx": {
        "conv1d requant.order = (x*w)*gy": _GAIN,
        "conv1d requant.order = x*w*(1/y)": _FEW,
        "linear (known_rows) requant.order = (x*w)*gy": _GAIN,
        "linear requant.order = (x*w)*gy": _GAIN,
        "linear stage.sum = real": _ALONE,
        "conv2d requant.order = (x*w)*gy": _GAIN,
    },
    "torch-2.13.pt2e avx2": {
        "conv1d acc.pairs = halve_signed": _SIGNED,
        "conv1d requant.order = (x*w)*gy": _GAIN,
        "conv2d acc.pairs = halve_signed": _SIGNED,
        "conv2d requant.order = (x*w)*gy": _GAIN,
        "linear acc.pairs = halve_signed": _SIGNED,
        "linear acc.pairs = saturate_rows": _TAPS,
        "linear acc.pairs = saturate_taps": _TAPS,
        "linear requant.order = (x*w)*gy": _GAIN,
    },
    "torch-2.13.pt2e avx512": {
        "conv1d acc.pairs = halve_signed": _SIGNED,
        "conv2d acc.pairs = halve_signed": _SIGNED,
        "linear acc.pairs = halve_signed": _SIGNED,
        "linear acc.pairs = saturate_rows": _TAPS,
        "linear acc.pairs = saturate_taps": _TAPS,
    },
    "torch-2.13.onednn avx512": {
        "conv1d acc.pairs = halve_signed": _SIGNED,
        "conv2d acc.pairs = halve_signed": _SIGNED,
        "conv2d stage.sum = real": _ALONE,
        "linear acc.pairs = halve_signed": _SIGNED,
        "linear acc.pairs = saturate_rows": _TAPS,
        "linear acc.pairs = saturate_taps": _TAPS,
    },
    "torch-2.13.onednn amx": {
        "linear (known_rows) requant.order = (x*w)*gy": _GAIN,
        "linear requant.order = (x*w)*gy": _GAIN,
    },
    "torch-2.13.onednn avx2": {
        "conv1d acc.pairs = halve_signed": _SIGNED,
        "conv1d requant.order = (x*w)*gy": _GAIN,
        "conv2d acc.pairs = halve_signed": _SIGNED,
        "conv2d requant.order = (x*w)*gy": _GAIN,
        "conv2d stage.sum = real": _ALONE,
        "linear acc.pairs = halve_signed": _SIGNED,
        "linear acc.pairs = saturate_rows": _TAPS,
        "linear acc.pairs = saturate_taps": _TAPS,
        "linear requant.order = (x*w)*gy": _GAIN,
    },
    **{
        "torch-2.15.onednn avx2": {
            "linear acc.pairs = halve_signed": _SIGNED,
            "linear acc.pairs = saturate_rows": _TAPS,
            "linear acc.pairs = saturate_taps": _TAPS,
            "linear requant.order = (x*w)*gy": _GAIN,
        }
    },
    **{
        f"torch-2.13.fbgemm {isa}": {
            "linear acc.pairs = halve_signed": _SIGNED,
            "linear acc.pairs = saturate_rows": _TAPS,
            "linear acc.pairs = saturate_taps": _TAPS,
            "linear (channel) acc.pairs = halve_signed": _SIGNED,
            "linear (channel) acc.pairs = saturate_rows": _TAPS,
            "linear (channel) acc.pairs = saturate_taps": _TAPS,
        }
        for isa in ("avx2", "avx512")
    },
    "torch-2.13.x86 amx": {
        "conv1d requant.order = (x*w)*gy": _GAIN,
        "conv1d requant.order = x*w*(1/y)": _FEW,
        "conv2d requant.order = (x*w)*gy": _GAIN,
    },
}
"""Changes that nothing finds, with the reason: of `profile isa`, the change."""


@pytest.fixture(scope="module", params=ISAS)
def there(request: pytest.FixtureRequest) -> Iterator[tuple[str, ProcessPoolExecutor]]:
    with processor(ISAS[request.param]) as pool:
        yield request.param, pool


def wide(op: str, seed: int) -> Product:
    """A product whose pairs of terms 16 bits do not hold."""
    flat = op in ("linear", "conv2d")
    case = plain(op, seed) if flat else replace(conv(seed, True, int(op[4])), relu=False)
    return draws.wider(case)


@dataclass(frozen=True, eq=False)
class Open(Product):
    """A linear layer whose rows are not known before it runs."""


def opened(seed: int) -> Open:
    case = sized(seed, 20 + seed, 60, 20)
    if seed % 2:  # 16 bits do not hold its pairs
        weights = np.random.default_rng(seed).integers(-127, 128, case.w.data.shape)
        out = of("u8", F(case.out.scale * 16), int(case.out.zero))
        case = replace(case, w=Held(weights.astype(np.int8), case.w.map), out=out)
    return Open("linear", case.x, case.w, case.bias, case.out)


def cases(engine: str, op: str, isa: str) -> list[Product]:
    if op == "linear":
        found = [linear(seed, True) for seed in range(16)]
    else:
        many = {"conv1d": 60, "conv2d": 60, "conv3d": 8}[op]
        found = [conv(seed, True, int(op[4])) for seed in range(many)]
        found += [full(seed, int(op[4])) for seed in range(4)]
    if (engine, op) == ("pt2e", "conv3d"):  # no activation follows those
        found = [replace(case, relu=False) for case in found]
    if engine == "pt2e" or (engine, op) == ("onednn", "linear"):
        found += [wide(op, seed) for seed in range(12)]
    if op == "linear" and isa == "amx":
        found += [opened(seed) for seed in range(40)]
        found += [sized(seed, 12, 9 + seed % 8, 40) for seed in range(40)]
    if op in ("conv1d", "conv2d") and isa != "amx":
        found += [replace(case, relu=False) for case in layers(int(op[4]), 40)]
    known = profile(named(engine)).on(isa)  # nothing is claimed of some shapes
    return [case for case in found if claimed_of(known, case) != "unknown"]


def compared(engine: str, op: str, isa: str, pool: ProcessPoolExecutor) -> list[Compared]:
    """Programs and what the engine made of each."""
    plain_ones = cases(engine, op, isa)
    made = list(made_by(pool, engine, plain_ones))
    found = [(pointwise.Form(case), wanted) for case, wanted in zip(plain_ones, made, strict=True)]
    if engine == "pt2e" and op in ("conv2d", "linear"):
        both = [with_summand(op, seed) for seed in range(24)]
        known = profile(named(engine)).on(isa)
        forms = [pointwise.Form(case) for case in both if claimed_of(known, case) != "unknown"]
        found += zip(forms, pool.submit(pointwise.made, forms).result(), strict=True)
    return found


def missed(name: str, every: list[Compared], most: int) -> int:
    """How many elements differ, counted until they are more than `most`."""
    count = 0
    for form, wanted in every:
        case = form.case
        if isinstance(case, Open):
            ours = open_rows(case, name)
        else:
            ours = pointwise.predicted(form, name) if case.summand else product_of(case, name)
        count += int(np.count_nonzero(ours != wanted))
        if count > most:
            break
    return count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["pt2e", "x86", "onednn"])
def test_a_changed_field_is_found_or_listed(
    engine: str, there: tuple[str, ProcessPoolExecutor]
) -> None:
    isa, pool = there
    if (engine, isa) in (("x86", "avx2"), ("x86", "avx512")):
        return  # asks fbgemm there: the next test
    all_found(named(engine), isa, lambda op: compared(engine, op, isa, pool), missed)


def all_found(
    name: str,
    isa: str,
    compare: Callable[[str], list[T]],
    count: Callable[[str, list[T], int], int],
) -> None:
    """AssertionError for changes of rules for a processor that are found and listed, or neither."""
    held, left = profile(name), []
    every: dict[str, list[T]] = {}
    right: dict[str, int] = {}
    for mutant in mutants(held, isa=isa):
        shown = False
        for op in mutant.ops:
            if op not in every:
                every[op] = compare(op)
                with override_profile(held.on(isa)):
                    right[op] = count(name, every[op], 10**9)
            with override_profile(mutant.profile.on(isa)):
                try:
                    shown = count(name, every[op], right[op]) > right[op]
                except (QirError, ValueError):
                    shown = True
            if shown:
                break
        if not shown:
            left.append(mutant.said)
    listed = SAME.get(f"{name} {isa}", {})
    assert set(left) == set(listed), sorted(set(left) ^ set(listed))


Predicted = tuple[Callable[[str], np.ndarray], np.ndarray]
"""What a profile makes of a layer, and what the engine made."""


def before_vnni(engine: str, op: str, pool: ProcessPoolExecutor) -> list[Predicted]:
    """Layers of one op and what an engine made of each on a processor before VNNI."""
    if op.startswith("conv_transpose"):
        rank = int(op[14])
        rngs = [np.random.default_rng(seed) for seed in range((400, 48, 96)[rank - 1])]
        asked = [older.wide(seed, rank) for seed in range(24)]
        asked += [transposed(rng, rank, False, False) for rng in rngs]
        made = pool.submit(torchs_many, engine, asked).result()
        return [(partial(computed, one), w) for (one, _), w in zip(asked, made, strict=True)]
    both = (False, True)
    if op == "linear":
        plain_ones = [linear(seed, many) for seed in range(8) for many in both]
        plain_ones += [draws.wider(case) for case in plain_ones]
    else:
        rank = int(op[4])
        plain_ones = [conv(seed, many, rank) for seed in range(24) for many in both]
        plain_ones += [replace(case, pad=5) for case in plain_ones]  # onednn_amiss
        plain_ones += [older.layer(seed, rank, many) for seed in range(48) for many in both]
    found = zip(plain_ones, made_by(pool, engine, plain_ones), strict=True)
    return [(partial(product_of, case), wanted) for case, wanted in found]


def mistaken(name: str, every: list[Predicted], most: int) -> int:
    """How many elements differ, counted until they are more than `most`."""
    count = 0
    for foresee, wanted in every:
        count += int(np.count_nonzero(foresee(name) != wanted))
        if count > most:
            break
    return count


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("engine", ["fbgemm", "x86"])
def test_a_changed_field_is_found_before_vnni_or_listed(engine: str, isa: str) -> None:
    with older_processor(isa) as pool:
        all_found(named(engine), isa, lambda op: before_vnni(engine, op, pool), mistaken)

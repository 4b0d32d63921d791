"""Kernels of oneDNN that take integers as plain tensors of u8, beside the products of inductor."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from qir.profiles import Query, profile
from tests.differential.torch.kernels import (
    Array,
    Asked,
    F,
    Held,
    Map,
    Product,
    Tally,
    claim,
    computed,
    of,
    processor,
    product_of,
)
from tests.differential.torch.profile_in_use import named
from tests.overriding import override_profile

from .draws_of_torch import LENGTHS, exactly, image, odd, pair
from .test_torch_depthwise import full
from .test_torch_products import conv
from .test_torch_products import pytestmark as pytestmark

NAME = named("pt2e")
OPS = torch.ops.onednn


def numbers(m: Map | None) -> tuple[float, int]:
    assert m is not None
    return float(m.scale), int(m.zero)


def plain(held: Held) -> tuple[torch.Tensor, float, int]:
    """The integers and what they mean, as the kernels take them."""
    return torch.from_numpy(np.ascontiguousarray(held.data)), *numbers(held.map)


@pytest.mark.parametrize("kernel", ["qadd", "qadd_relu", "qmul"])
def test_sums_and_products_of_plain_tensors_are_onednns(kernel: str) -> None:
    tally, tails = Tally(), ("relu",) if kernel.endswith("_relu") else ()
    for length in LENGTHS:
        rng = np.random.default_rng(length)
        shape = (length,) if length % 2 else (2, length // 2)
        asked = pair(rng, kernel[1:4], "u8", shape, shape)
        assert asked.out is not None
        a, b = (plain(asked.operands[s]) for s in "ab")
        made = getattr(OPS, kernel).tensor(*a, *b, *numbers(asked.out), torch.uint8)
        tally.see(exactly(asked), asked.out)
        full = Asked(asked.op, asked.operands, asked.out, tails=tails)
        tally.add(computed(full, NAME), made.numpy(), f"{kernel} {length}")
    tally.rich()
    assert claim(NAME, full) == "exact"
    tally.exact()


def test_batch_norms_of_plain_tensors_are_onednns() -> None:
    tally = Tally()
    for number in range(40):
        rng = np.random.default_rng(number)
        channels = int(rng.integers(1, 70))
        x = image(rng, "u8", 2, channels, *(int(v) for v in rng.integers(1, 7, 2)))
        parts = {s: rng.normal(size=channels).astype(F) for s in ("gamma", "beta", "mean")}
        parts["var"] = rng.uniform(0.1, 2, channels).astype(F)
        out = of("u8", F(rng.uniform(0.005, 0.05)), odd(rng, "u8"))
        given = [torch.from_numpy(parts[s]) for s in ("gamma", "beta", "mean", "var")]
        made = OPS.qbatch_norm2d(*plain(x), *given, 1e-5, *numbers(out), torch.uint8)
        operands = {"x": x} | {s: Held(v) for s, v in parts.items()}
        asked = Asked("batch_norm", operands, out, {"eps": float(F(1e-5))})
        tally.add(computed(asked, NAME), made.numpy(), f"case {number}")
    tally.within(claim(NAME, asked))


def run_along(cases: list[Product]) -> list[Array]:
    """What the kernels for lines and volumes make of each; torch lays volumes channels last."""
    torch.set_num_threads(1)
    return [_run_along(case) for case in cases]


def _run_along(case: Product) -> Array:
    rank = case.x.data.ndim - 2
    x = plain(case.x)
    assert case.w.map is not None
    scales = torch.from_numpy(np.broadcast_to(case.w.map.scale, len(case.w.data)).copy())
    zeros = torch.zeros(len(case.w.data), dtype=torch.long)
    sides = ([case.stride] * rank, [case.pad] * rank, [case.dilation] * rank, case.groups)
    bias = None if case.bias is None else torch.from_numpy(case.bias)
    packed = OPS.qconv_prepack(
        torch.from_numpy(case.w.data), scales, *x[1:], *sides, list(x[0].shape)
    )
    end: tuple[Any, ...] = (
        *numbers(case.out),
        torch.uint8,
        "relu" if case.relu else "none",
        [],
        "",
    )
    made = OPS.qconv_pointwise(*x, packed, scales, zeros, bias, *sides, *end)
    return np.ascontiguousarray(made.numpy())


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_lines_and_volumes_are_onednns(
    rank: int, vnni: ProcessPoolExecutor
) -> None:
    tally = Tally()
    cases = [conv(seed, True, rank) for seed in range(24 if rank == 1 else 10)]
    cases += [full(seed, rank) for seed in range(4)]
    if rank == 3:  # no activation follows those
        cases = [replace(case, relu=False) for case in cases]
    for seed, (case, wanted) in enumerate(
        zip(cases, vnni.submit(run_along, cases).result(), strict=True)
    ):
        tally.add(product_of(case, NAME), wanted, f"seed {seed}")
    asked = Asked(case.op, {"x": case.x, "w": case.w}, case.out, case.attrs)
    tally.within(claim(NAME, asked))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_lines_and_volumes_are_onednns_with_amx(rank: int) -> None:
    tally, held = Tally(), profile(NAME).on("amx")
    cases = [conv(seed, True, rank) for seed in range(60 if rank == 1 else 16)]
    if rank == 3:
        cases = [replace(case, relu=False) for case in cases]
    with processor("AVX512_CORE_AMX") as pool:
        made = pool.submit(run_along, cases).result()
    with override_profile(held):
        for seed, (case, wanted) in enumerate(zip(cases, made, strict=True)):
            tally.add(product_of(case, NAME), wanted, f"seed {seed}")
    tally.within(held.resolve(Query(cases[0].op, {"x": "u8", "w": "i8"}, "channel")).claim)

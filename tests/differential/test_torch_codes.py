"""How torch makes codes of reals and chooses scales, against its profiles: every byte."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qir.ir.dtype import dtype
from qir.numerics import Query, affine, choose, convert, dequantize, profile, quantize
from tests.counting import note

from .kernels_of_torch import BOUNDS, F, Tally, codes, of

FBGEMM, PT2E = "torch-2.13.fbgemm", "torch-2.13.pt2e"
Real: TypeAlias = "np.floating | NDArray[np.float32]"
KINDS = ("u8", "i8", "i32")
_TORCH = {"u8": torch.quint8, "i8": torch.qint8, "i32": torch.qint32}
_PLAIN = {"u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32}

SPECIAL = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, 0.0, -0.0, 2.0**31, 2.0**40], F)


def halves(rng: np.random.Generator, scale: Real, *shape: int) -> NDArray[np.float32]:
    """Reals half of which lie on ties of the scale, and beyond both ends."""
    return np.asarray(rng.integers(-700, 700, shape) * F(0.5) * scale, F)


def odd_zero(rng: np.random.Generator, kind: str) -> int:
    low, high = BOUNDS[kind] if kind != "i32" else (-99, 99)
    return int(rng.integers(low, high)) | 1


def asked(kind: str, grain: str = "tensor", op: str = "quantize") -> Query:
    return Query(op, {"result": kind}, grain)


@pytest.mark.parametrize("kind", KINDS)
def test_quantize_per_tensor_is_torchs_for_every_length_and_special_value(kind: str) -> None:
    rule, tally = profile(FBGEMM).resolve(asked(kind)), Tally()
    for length in (*range(1, 71), 4000):
        rng = np.random.default_rng(length)
        for scale in (F(0.5), F(rng.uniform(0.001, 2)), F(rng.uniform(0.001, 2)), F(1e-38)):
            zero = odd_zero(rng, kind)
            x = halves(rng, scale, length)
            tally.see(x.astype(np.float64) / float(scale), of(kind, scale, zero))
            few = int(rng.integers(0, min(length, len(SPECIAL)) + 1))
            x[:few] = SPECIAL[:few]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = torch.quantize_per_tensor(
                    torch.from_numpy(x), float(scale), zero, _TORCH[kind]
                )
            found = quantize(x, affine(kind, float(scale), zero), rule)
            tally.add(found, made.int_repr().numpy(), f"length {length} scale {scale}")
    if kind != "i32":
        tally.rich()
    tally.within(rule.claim)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_quantize_per_channel_is_torchs(kind: str, axis: int) -> None:
    rule, tally = profile(FBGEMM).resolve(asked(kind, "channel")), Tally()
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        shape = [3, 4, 2]
        shape[axis] = length
        scales = rng.uniform(0.001, 2, length).astype(F)
        zeros = np.array([odd_zero(rng, kind) for _ in range(length)])
        side = [1, 1, 1]
        side[axis] = -1
        x = halves(rng, scales.reshape(side), *shape)
        x.flat[0] = np.nan if length % 7 == 0 and kind == "u8" else 0.0
        made = torch.quantize_per_channel(
            torch.from_numpy(x),
            torch.from_numpy(scales.astype(np.float64)),
            torch.from_numpy(zeros),
            axis,
            _TORCH[kind],
        )
        found = quantize(x, affine(kind, scales, zeros, axis=axis), rule)
        tally.add(found, made.int_repr().numpy(), f"length {length}")
    tally.within(rule.claim)


@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_dequantize_is_torchs(kind: str, many: bool) -> None:
    rule, tally = profile(FBGEMM).resolve(Query("dequantize", {"x": kind})), Tally()
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        x = codes(rng, kind, 3, length)
        if many:
            scales = rng.uniform(0.001, 2, length).astype(F)
            zeros = np.array([odd_zero(rng, kind) for _ in range(length)])
            t = torch._make_per_channel_quantized_tensor(
                torch.from_numpy(x),
                torch.from_numpy(scales.astype(np.float64)),
                torch.from_numpy(zeros),
                1,
            )
            a = affine(kind, scales, zeros, axis=1)
        else:
            scale, zero = float(F(rng.uniform(0.001, 2))), odd_zero(rng, kind)
            t = torch._make_per_tensor_quantized_tensor(torch.from_numpy(x), scale, zero)
            a = affine(kind, scale, zero)
        tally.add(dequantize(x, a, rule), t.dequantize().numpy(), f"length {length}")
    tally.within(rule.claim)


@pytest.mark.parametrize("name", [FBGEMM, PT2E])
@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
def test_fake_quantize_is_torchs(many: bool, name: str) -> None:
    rule = profile(name).resolve(asked("i8", "channel" if many else "tensor", "fake_quantize"))
    tally = Tally()
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        if many:
            scales = rng.uniform(0.001, 2, length).astype(F)
            zeros = np.array([odd_zero(rng, "i8") for _ in range(length)])
            x = halves(rng, scales, 3, length)
            made = torch.fake_quantize_per_channel_affine(
                torch.from_numpy(x),
                torch.from_numpy(scales),
                torch.from_numpy(zeros.astype(np.int32)),
                1,
                -128,
                127,
            )
            a = affine("i8", scales, zeros, axis=1)
        else:
            scale, zero = F(rng.uniform(0.001, 2)), odd_zero(rng, "i8")
            x = halves(rng, scale, 3, length)
            made = torch.fake_quantize_per_tensor_affine(
                torch.from_numpy(x), float(scale), zero, -128, 127
            )
            a = affine("i8", float(scale), zero)
        found = dequantize(quantize(x, a, rule), a, rule)
        tally.add(found, made.numpy(), f"length {length}")
    tally.within(rule.claim)


# -- quantized_decomposed -------------------------------------------------------------------------


def decomposed(name: str) -> Callable[..., torch.Tensor]:
    import torch.ao.quantization.fx._decomposed

    found: Callable[..., torch.Tensor] = getattr(torch.ops.quantized_decomposed, name)
    return found


@pytest.mark.parametrize("kind", ["u8", "i8", "i16", "i32"])
def test_decomposed_quantize_and_dequantize_are_torchs(kind: str) -> None:
    rule = profile(PT2E).resolve(asked(kind))
    back, tally = profile(PT2E).resolve(Query("dequantize", {"x": kind})), Tally()
    low, high = affine(kind, 1.0).storage.bounds
    into, out = decomposed("quantize_per_tensor"), decomposed("dequantize_per_tensor")
    assert callable(into)
    assert callable(out)
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        for scale in (F(0.5), F(rng.uniform(0.001, 2)), F(rng.uniform(0.001, 2))):
            zero = int(rng.integers(-99, 99)) | 1 if kind != "u8" else odd_zero(rng, "u8")
            x = halves(rng, scale, length)
            made = into(torch.from_numpy(x), float(scale), zero, low, high, _PLAIN[kind])
            a = affine(kind, float(scale), zero)
            found = quantize(x, a, rule)
            tally.add(found, made.numpy(), f"length {length}")
            reals = out(made, float(scale), zero, low, high, _PLAIN[kind])
            tally.add(dequantize(found, a, back), reals.numpy(), f"back, length {length}")
    tally.within(rule.claim)


@pytest.mark.parametrize("axis", [0, 1])
def test_decomposed_quantize_per_channel_is_torchs(axis: int) -> None:
    rule, tally = profile(PT2E).resolve(asked("i8", "channel")), Tally()
    into = decomposed("quantize_per_channel")
    assert callable(into)
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        shape = (5, length) if axis else (length, 5)
        scales = rng.uniform(0.001, 2, length).astype(F)
        zeros = np.array([odd_zero(rng, "i8") for _ in range(length)])
        x = halves(rng, scales if axis else scales[:, None], *shape)
        made = into(
            torch.from_numpy(x),
            torch.from_numpy(scales),
            torch.from_numpy(zeros),
            axis,
            -128,
            127,
            torch.int8,
        )
        found = quantize(x, affine("i8", scales, zeros, axis=axis), rule)
        tally.add(found, made.numpy(), f"length {length}")
    tally.within(rule.claim)


@pytest.mark.parametrize("name", [FBGEMM, PT2E])
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_codes_pass_to_another_map_by_way_of_reals_as_torchs_do(kind: str, name: str) -> None:
    """Torch has no kernel from codes to codes: it dequantizes and quantizes."""
    rule, tally = profile(name).resolve(asked(kind, op="requantize")), Tally()
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        one = F(rng.uniform(0.01, 0.3))
        two, zeros = F(one * F(rng.choice([0.5, 1, 2, 4]))), [odd_zero(rng, kind) for _ in range(2)]
        data = codes(rng, kind, 4 * length)
        if name == FBGEMM:
            held = torch._make_per_tensor_quantized_tensor(
                torch.from_numpy(data), float(one), zeros[0]
            )
            made = torch.quantize_per_tensor(
                held.dequantize(), float(two), zeros[1], _TORCH[kind]
            ).int_repr()
        else:
            low, high = BOUNDS[kind]
            plain = _PLAIN[kind]
            back, there = (decomposed(f"{n}_per_tensor") for n in ("dequantize", "quantize"))
            real = back(torch.from_numpy(data), float(one), zeros[0], low, high, plain)
            made = there(real, float(two), zeros[1], low, high, plain)
        first, second = affine(kind, float(one), zeros[0]), affine(kind, float(two), zeros[1])
        steps = (data.astype(np.float64) - zeros[0]) * float(one) / float(two)
        tally.see(steps, of(kind, two, zeros[1]))
        tally.add(convert(data, first, second, rule), made.numpy(), f"length {length}")
    assert tally.ties >= 0.05 * tally.total
    tally.within(rule.claim)


# -- ranges ---------------------------------------------------------------------------------------


def ranges(count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(count)
    ends = np.sort(rng.normal(size=(2, count)).astype(F) * F(3), 0)
    ends[:, :4] = [[0, -1e-9, 2, -5], [0, 1e-9, 3, -1]]
    for i, levels in enumerate((127, 255) * 12, 4):  # zero lies between two codes
        step = F(2.0 ** -int(rng.integers(3, 9)))
        ends[0, i] = -(int(rng.integers(0, levels)) + 0.5) * step
        ends[1, i] = ends[0, i] + levels * step
    return ends[0], ends[1]


SCHEMES = {
    "affine": (torch.per_tensor_affine, False),
    "symmetric": (torch.per_tensor_symmetric, True),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("engine", ["fbgemm", "onednn", "qnnpack"])
def test_scales_and_zero_points_are_those_of_torchs_observers(
    engine: str, kind: str, scheme: str
) -> None:
    """The observers that the engine's default configuration names."""
    from torch.ao.quantization import get_default_qconfig
    from torch.ao.quantization.observer import MinMaxObserver

    found = profile(f"torch-2.13.{engine}").resolve(asked(kind)).choose
    qscheme, symmetric = SCHEMES[scheme]
    short = engine == "fbgemm"
    if short and (kind, symmetric) == ("u8", True):
        pytest.skip("torch's observers reduce no symmetric u8")
    low, high = ranges(300)
    config = get_default_qconfig(engine)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for least, most in zip(low, high, strict=True):
            watcher = MinMaxObserver(
                dtype=_TORCH[kind],
                qscheme=qscheme,
                reduce_range=short,
                eps=float(config.activation().eps),
            )
            watcher(torch.tensor([least, most]))
            scale, zero = watcher.calculate_qparams()
            mine = choose(least, most, dtype(kind), found, symmetric=symmetric)
            assert (float(scale), int(zero)) == (float(mine[0]), int(mine[1])), (least, most)


def test_scales_of_weights_are_those_of_torchs_observers() -> None:
    """Weights keep all their codes, whatever activations do."""
    from torch.ao.quantization.observer import MinMaxObserver

    found = replace(profile(FBGEMM).resolve(asked("i8")).choose, reduce="none")
    low, high = ranges(300)
    for least, most in zip(low, high, strict=True):
        watcher = MinMaxObserver(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
        watcher(torch.tensor([least, most]))
        scale, zero = watcher.calculate_qparams()
        mine = choose(least, most, dtype("i8"), found, symmetric=True)
        assert (float(scale), int(zero)) == (float(mine[0]), int(mine[1])), (least, most)


@pytest.mark.parametrize("short", [False, True])
def test_the_numbers_of_dynamic_layers_are_torchs(short: bool) -> None:
    """The codes of linear_dynamic's data, told by a layer that hands them on."""
    rule = profile(FBGEMM).resolve(Query("choose_qparams", {"result": "u8"})).choose
    rule = replace(rule, reduce="activations7" if short else "none")
    low, high = ranges(2000)
    for least, most in zip(low, high, strict=True):
        scale, zero = torch._choose_qparams_per_tensor(torch.tensor([least, most]), short)
        mine = choose(least, most, dtype("u8"), rule)
        note(np.array([mine[0], mine[1]], F), np.array([scale, zero], F))
        assert (F(scale), int(zero)) == (F(mine[0]), int(mine[1])), (least, most)

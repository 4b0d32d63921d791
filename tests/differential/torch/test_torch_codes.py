"""How torch makes integers of floats and chooses scales, against its profiles: every byte."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.numerics import affine, choose, dequantize, quantize
from qir.profiles import Query, profile
from qir.reference.interpreter import run
from tests.counting import note
from tests.differential.torch.kernels import (
    BOUNDS,
    F,
    Held,
    Map,
    Tally,
    element,
    kind_of,
    of,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named

FBGEMM, PT2E = named("fbgemm"), named("pt2e")
Real: TypeAlias = "np.floating | NDArray[np.float32]"
Codes: TypeAlias = NDArray[np.integer]
Array: TypeAlias = NDArray[np.generic]
Scales: TypeAlias = NDArray[np.float32]
Zeros: TypeAlias = NDArray[np.int64]
_READ = profile(FBGEMM), profile(PT2E)  # reading asks for rules, which no comparison did
KINDS = ("u8", "i8", "i32")
_TORCH = {"u8": torch.quint8, "i8": torch.qint8, "i32": torch.qint32}
_PLAIN = {"u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32}
_NUMPY = {"u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32}

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, 0.0, -0.0, 2.0**31, 2.0**40, 2.0**62, -(2.0**63)],
    F,
)


def halves(rng: np.random.Generator, kind: str, scale: Real, *shape: int) -> NDArray[np.float32]:
    """Floats half of which lie on ties of the scale, and beyond both ends; of 32 bits most are
    long, and a third of these beyond."""
    far = 180_000 if kind == "i16" else 700
    steps = np.asarray(rng.integers(-far, far, shape) * F(0.5), F)
    if kind == "i32":
        steps = np.where(rng.random(shape) < 0.6, rng.uniform(-(2.0**32), 2.0**32, shape), steps)
    return np.asarray(steps.astype(F) * scale, F)


def some_zero(rng: np.random.Generator, kind: str) -> int:
    """A zero point: odd, even, or at an end of the integers."""
    low, high = BOUNDS[kind] if kind != "i32" else (-100_001, 100_000)
    inside = int(rng.integers(low, high))
    return int(rng.choice([low, high, inside | 1, inside & ~1]))


def specials(rng: np.random.Generator, x: NDArray[np.float32]) -> None:
    """Puts what is no number, or hardly one, in a few places."""
    few = int(rng.integers(0, min(x.size // 8, len(SPECIAL)) + 1))
    x.reshape(-1)[:few] = rng.permutation(SPECIAL)[:few]


def along(rng: np.random.Generator, kind: str, length: int) -> tuple[Scales, Zeros]:
    """Scales of any kind, a quarter of them powers of two, and zero points, one a channel."""
    scales = rng.uniform(0.001, 2, length).astype(F)
    scales = np.where(rng.random(length) < 0.25, F(2.0) ** np.rint(np.log2(scales)), scales)
    return scales.astype(F), np.array([some_zero(rng, kind) for _ in range(length)])


def see(tally: Tally, kind: str, x: Scales, scale: Real, zero: Zeros | int) -> None:
    """Counts ties and saturation of floats that become integers."""
    with np.errstate(all="ignore"):
        tally.see(x / np.float64(scale) + zero, of(kind, 1.0))


def asked(kind: str, grain: str = "tensor", op: str = "quantize") -> Query:
    return Query(op, {"result": kind}, grain)


def recoded(name: str, x: Held, out: Map | None) -> Array:
    """What QIR makes of floats or integers: integers of a map, or floats."""
    graph = Graph(profile=name)
    given = graph.add("input", types=[kind_of(x)], name="x").result
    op = "quantize" if x.map is None else "dequantize" if out is None else "requantize"
    made = graph.add(
        op, {"x": given}, types=[given.type.with_element(element(out) if out else F32)]
    )
    graph.add("output", {"y": made.result})
    return run(graph, {"x": x.data})["y"]


@pytest.mark.parametrize("kind", KINDS)
def test_quantize_per_tensor_is_torchs_for_every_length_and_special_value(kind: str) -> None:
    rule, tally = profile(FBGEMM).resolve(asked(kind)), Tally()
    for length in (*range(1, 71), 4000):
        rng = np.random.default_rng(length)
        for scale in (F(0.5), F(rng.uniform(0.001, 2)), F(rng.uniform(0.001, 2)), F(1e-38)):
            zero = some_zero(rng, kind)
            x = halves(rng, kind, scale, length)
            see(tally, kind, x, scale, zero)
            specials(rng, x)
            made = torch.quantize_per_tensor(torch.from_numpy(x), float(scale), zero, _TORCH[kind])
            found = recoded(FBGEMM, Held(x), of(kind, scale, zero))
            tally.add(found, made.int_repr().numpy(), f"length {length} scale {scale}")
    tally.rich()
    tally.within(rule.claim)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_quantize_per_channel_is_torchs(kind: str, axis: int) -> None:
    rule, tally = profile(FBGEMM).resolve(asked(kind, "channel")), Tally()
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        shape, side = [3, 4, 2], [1, 1, 1]
        shape[axis], side[axis] = length, -1
        scales, zeros = along(rng, kind, length)
        x = halves(rng, kind, scales.reshape(side), *shape)
        see(tally, kind, x, scales.reshape(side), zeros.reshape(side))
        specials(rng, x)
        made = torch.quantize_per_channel(
            torch.from_numpy(x), *given(scales, zeros), axis, _TORCH[kind]
        )
        found = recoded(FBGEMM, Held(x), of(kind, scales, zeros, axis))
        tally.add(found, made.int_repr().numpy(), f"length {length}")
    tally.rich()
    tally.within(rule.claim)


def given(scales: Scales, zeros: Zeros) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points as torch's tensors of many have them."""
    return torch.from_numpy(scales.astype(np.float64)), torch.from_numpy(zeros)


def any_integers(rng: np.random.Generator, kind: str, *shape: int) -> Codes:
    """Any integers of a storage type; half of those of 32 bits below 2^28."""
    low, high = BOUNDS[kind]
    found = rng.integers(low, high, shape, endpoint=True)
    if kind == "i32":
        found = np.where(rng.random(shape) < 0.5, found >> 4, found)
    return found.astype(_NUMPY[kind])


@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("kind", KINDS)
def test_dequantize_is_torchs(kind: str, many: bool) -> None:
    grain = "channel" if many else "tensor"
    rule, tally = profile(FBGEMM).resolve(Query("dequantize", {"x": kind}, grain)), Tally()
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        x = any_integers(rng, kind, 3, length)
        if many:
            scales, zeros = along(rng, kind, length)
            t = torch._make_per_channel_quantized_tensor(
                torch.from_numpy(x), *given(scales, zeros), 1
            )
            m = of(kind, scales, zeros, 1)
        else:
            scale, zero = float(F(rng.uniform(0.001, 2))), some_zero(rng, kind)
            t = torch._make_per_tensor_quantized_tensor(torch.from_numpy(x), scale, zero)
            m = of(kind, scale, zero)
        tally.add(recoded(FBGEMM, Held(x, m), None), t.dequantize().numpy(), f"length {length}")
    tally.within(rule.claim)


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("name", [FBGEMM, PT2E])
@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
def test_fake_quantize_is_torchs(many: bool, name: str, kind: str) -> None:
    rule = profile(name).resolve(asked(kind, "channel" if many else "tensor", "fake_quantize"))
    tally, ends = Tally(), BOUNDS[kind]
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        scales, zeros = along(rng, kind, length if many else 1)
        x = halves(rng, kind, scales, 3, length)
        see(tally, kind, x, scales, zeros)
        specials(rng, x)
        given = torch.from_numpy(x)
        if many:
            numbers = torch.from_numpy(scales), torch.from_numpy(zeros.astype(np.int32))
            made = torch.fake_quantize_per_channel_affine(given, *numbers, 1, *ends)
            a = affine(kind, scales, zeros, axis=1)
        else:
            scale, zero = float(scales[0]), int(zeros[0])
            made = torch.fake_quantize_per_tensor_affine(given, scale, zero, *ends)
            a = affine(kind, scale, zero)
        found = dequantize(quantize(x, a, rule), a, rule)
        tally.add(found, made.numpy(), f"length {length}")
    tally.rich()
    tally.within(rule.claim)


# -- quantized_decomposed -------------------------------------------------------------------------


def decomposed(name: str) -> Callable[..., torch.Tensor]:
    import torch.ao.quantization.fx._decomposed

    found: Callable[..., torch.Tensor] = getattr(torch.ops.quantized_decomposed, name)
    return found


@pytest.mark.parametrize("kind", _PLAIN)
def test_decomposed_quantize_and_dequantize_are_torchs(kind: str) -> None:
    rule = profile(PT2E).resolve(asked(kind))
    back, tally = profile(PT2E).resolve(Query("dequantize", {"x": kind})), Tally()
    rest, (low, high) = Tally(), BOUNDS[kind]
    into, out = decomposed("quantize_per_tensor"), decomposed("dequantize_per_tensor")
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        for scale in (F(0.5), F(rng.uniform(0.001, 2)), F(rng.uniform(0.001, 2))):
            zero = some_zero(rng, kind)
            x = halves(rng, kind, scale, length)
            see(tally, kind, x, scale, zero)
            specials(rng, x)
            made = into(torch.from_numpy(x), float(scale), zero, low, high, _PLAIN[kind])
            m = of(kind, scale, zero)
            tally.add(recoded(PT2E, Held(x), m), made.numpy(), f"length {length}")
            given = any_integers(rng, kind, length)
            floats = out(torch.from_numpy(given), float(scale), zero, low, high, _PLAIN[kind])
            rest.add(recoded(PT2E, Held(given, m), None), floats.numpy(), f"back, length {length}")
    tally.rich()
    tally.within(rule.claim)
    rest.within(back.claim)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", _PLAIN)
def test_decomposed_quantize_and_dequantize_per_channel_are_torchs(kind: str, axis: int) -> None:
    rule, tally = profile(PT2E).resolve(asked(kind, "channel")), Tally()
    back, rest = profile(PT2E).resolve(Query("dequantize", {"x": kind}, "channel")), Tally()
    into, out = decomposed("quantize_per_channel"), decomposed("dequantize_per_channel")
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        shape, side = ((5, length), (1, -1)) if axis else ((length, 5), (-1, 1))
        scales, zeros = along(rng, kind, length)
        x = halves(rng, kind, scales.reshape(side), *shape)
        see(tally, kind, x, scales.reshape(side), zeros.reshape(side))
        specials(rng, x)
        numbers = (torch.from_numpy(scales), torch.from_numpy(zeros), axis, *BOUNDS[kind])
        made = into(torch.from_numpy(x), *numbers, _PLAIN[kind])
        m = of(kind, scales, zeros, axis)
        tally.add(recoded(PT2E, Held(x), m), made.numpy(), f"length {length}")
        given = any_integers(rng, kind, *shape)
        floats = out(torch.from_numpy(given), *numbers, _PLAIN[kind])
        rest.add(recoded(PT2E, Held(given, m), None), floats.numpy(), f"back, length {length}")
    tally.rich()
    tally.within(rule.claim)
    rest.within(back.claim)


def back(name: str, x: Held) -> torch.Tensor:
    """What torch makes of integers."""
    m = x.map
    assert m is not None
    if name == FBGEMM:
        return tensor(x).dequantize()
    plain = torch.from_numpy(x.data)
    ends = (*BOUNDS[m.storage], _PLAIN[m.storage])
    if m.axis is None:
        return decomposed("dequantize_per_tensor")(plain, float(m.scale), int(m.zero), *ends)
    numbers = torch.from_numpy(m.scale), torch.tensor(m.zero)
    return decomposed("dequantize_per_channel")(plain, *numbers, m.axis, *ends)


def there(name: str, x: torch.Tensor, m: Map) -> Array:
    """What integers torch makes."""
    ends = (*BOUNDS[m.storage], _PLAIN[m.storage])
    if m.axis is None:
        scale, zero = float(m.scale), int(m.zero)
        if name == FBGEMM:
            return taken(torch.quantize_per_tensor(x, scale, zero, _TORCH[m.storage]))
        return taken(decomposed("quantize_per_tensor")(x, scale, zero, *ends))
    zeros = torch.tensor(m.zero)
    if name == FBGEMM:
        scales = torch.from_numpy(m.scale.astype(np.float64))
        return taken(torch.quantize_per_channel(x, scales, zeros, m.axis, _TORCH[m.storage]))
    scales = torch.from_numpy(m.scale)
    return taken(decomposed("quantize_per_channel")(x, scales, zeros, m.axis, *ends))


@pytest.mark.parametrize("name", [FBGEMM, PT2E])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", KINDS)
def test_codes_pass_to_another_map_by_way_of_reals_as_torchs_do(
    to: str, kind: str, name: str
) -> None:
    """Torch has no kernel from integers to integers: it dequantizes and quantizes."""
    rule, tally = profile(name).resolve(asked(to, op="requantize")), Tally()
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        many = rng.random(2) < 0.5
        scales, zeros = along(rng, kind, length)
        one = of(kind, scales, zeros, 1) if many[0] else of(kind, scales[0], zeros[0])
        ends, others = along(rng, to, length)
        if rng.random() < 0.6:
            ends = np.asarray(scales * F(rng.choice([0.5, 1, 2, 2, 4, 2 / 3])), F)
        two = of(to, ends, others, 1) if many[1] else of(to, ends[0], others[0])
        x = Held(any_integers(rng, kind, 4, length), one)
        steps = (x.data.astype(np.float64) - one.zero) * one.scale / two.scale
        tally.see(steps + two.zero, of(to, 1.0))
        tally.add(recoded(name, x, two), there(name, back(name, x), two), f"length {length}")
    assert to == "i32" or kind == "i32" or tally.ties >= 0.05 * tally.total
    assert to == "i32" or min(tally.low, tally.high) >= 0.05 * tally.total
    tally.within(rule.claim)


# -- ranges ---------------------------------------------------------------------------------------


def ranges(count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(count)
    ends = np.sort(rng.normal(size=(2, count)).astype(F) * F(3), 0)
    ends[:, :4] = [[0, -1e-9, 2, -5], [0, 1e-9, 3, -1]]
    for i, levels in enumerate((127, 255) * 12, 4):  # zero lies between two integers
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

    found = profile(named(engine)).resolve(asked(kind)).choose
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
    """Weights keep all their integers, whatever activations do."""
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
    """The integers of linear_dynamic's data, told by a layer that hands them on."""
    rule = profile(FBGEMM).resolve(Query("choose_qparams", {"result": "u8"})).choose
    rule = replace(rule, reduce="activations7" if short else "none")
    low, high = ranges(2000)
    for least, most in zip(low, high, strict=True):
        scale, zero = torch._choose_qparams_per_tensor(torch.tensor([least, most]), short)
        mine = choose(least, most, dtype("u8"), rule)
        note(np.array([mine[0], mine[1]], F), np.array([scale, zero], F))
        assert (F(scale), int(zero)) == (F(mine[0]), int(mine[1])), (least, most)

"""Later stages of a kernel and weights given as floats, against plain float arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from .profiles import F, Tensor, computed, linear, operands, sums

SEED = 77
CODE = "64x8x!quant.uniform<u8:f32, 0.9:3>"
REALS = {"0.25:7": "0.3:7", "0.125": "0.07", "0.5:3": "0.9:3"}


def body(summand: str, tail: str = "", result: str = "!quant.uniform<u8:f32, 0.9:3>") -> str:
    text = linear("f32", result, f" |> add(., %r){tail}")
    for old, new in REALS.items():
        text = text.replace(old, new)
    return f"%r = input() : 64x8x{summand}\n{text}"


def given(kind: str) -> dict[str, Tensor]:
    rng = np.random.default_rng(SEED)
    b = np.where(rng.random(8) < 0.5, (np.arange(8) - 3.5) * 0.9, rng.normal(size=8)).astype(F)
    info = np.iinfo(kind)
    summand = rng.integers(info.min, info.max + 1, (64, 8)).astype(kind)
    return {**operands(SEED), "b": b, "r": summand}


def fused(steps: Tensor, unit: np.float32, added: Tensor) -> Tensor:
    """One rounding of a product of 8 by 24 bits and a sum: exact in float64 first."""
    exact = steps.astype(np.longdouble) * np.longdouble(unit) + added.astype(np.longdouble)
    return np.asarray(exact.astype(F))


AFTER = 'bias = {domain = "real_after"}\n'
IPEX = AFTER + 'requant = {multiplier = "divide", order = "(x*w)*(1/y)", zero = "before"}\n'


@pytest.mark.parametrize("tail", ["", " |> relu"])
@pytest.mark.parametrize("how", ["real", "fma", "ratio"])
def test_a_summand_is_added_to_reals_or_in_units_of_the_result(how: str, tail: str) -> None:
    arrays = given("u1")
    sx, sw, sy, sz = F(0.3), F(0.07), F(0.9), F(0.013)
    acc = sums(arrays["x"], arrays["w"]).astype(F)
    steps = arrays["r"].astype(F) - F(9)
    real = acc * (sx * sw) + arrays["b"]
    if how == "ratio":
        scaled = fused(steps, sz / sy, acc * ((sx * sw) / sy) + arrays["b"] / sy)
        wanted = np.rint(scaled) + 3
        fields = AFTER
    else:
        total = fused(steps, sz, real) if how == "fma" else real + steps * sz
        wanted = np.rint(total * (F(1) / sy) + F(3))
        fields = IPEX
    if tail:
        wanted = np.maximum(wanted, 3)
    text = body("!quant.uniform<u8:f32, 0.013:9>", tail)
    for relu in ("real", "zero_code"):
        said = f'{fields}stage = {{sum = "{how}", relu = "{relu}"}}'
        found = computed(said, text, **arrays)
        assert np.array_equal(found, np.clip(wanted, 0, 255)), f"seed {SEED}"


@pytest.mark.parametrize("how", ["real", "ratio"])
@pytest.mark.parametrize("reads", ["as_is", "i8_saturated", "summand_type"])
@pytest.mark.parametrize(("kind", "result"), [("u1", "i8"), ("i1", "u8"), ("u1", "u8")])
def test_summand_and_result_of_two_kinds_lie_in_one_buffer(
    kind: str, result: str, reads: str, how: str
) -> None:
    arrays = given(kind)
    acc = sums(arrays["x"], arrays["w"]).astype(F)
    sx, sw, sy, sz = F(0.3), F(0.07), F(0.9), F(1.25)
    storage = "u8" if kind == "u1" else "i8"
    cut = reads == "i8_saturated" and storage != result
    quantized = np.minimum(arrays["r"], 127) if cut and storage == "u8" else arrays["r"]
    if how == "ratio":
        scaled = fused(quantized, sz / sy, acc * ((sx * sw) / sy) + arrays["b"] / sy)
        fields = AFTER
    else:
        scaled = (acc * (sx * sw) + arrays["b"] + quantized.astype(F) * sz) / sy
        fields = f'{AFTER}requant = {{multiplier = "divide"}}\n'
    buffer = storage if reads == "summand_type" else result
    least, most = (0, 255) if buffer == "u8" else (-128, 127)
    wanted = np.clip(np.rint(scaled), least, most)
    wanted = np.minimum(wanted, 127) if cut else wanted
    wanted = wanted.astype(np.uint8 if buffer == "u8" else np.int8).view(f"{result[0]}1")
    said = f'{fields}stage = {{sum = "{how}", sum_reads = "{reads}"}}'
    text = body(f"!quant.uniform<{storage}:f32, 1.25>", "", f"!quant.uniform<{result}:f32, 0.9>")
    found = computed(said, text, **arrays)
    assert np.array_equal(found, wanted), f"seed {SEED}"
    if storage == "i8" and result == "u8":
        assert (np.clip(np.rint(scaled), 0, 255) > 127).mean() > 0.05


@pytest.mark.parametrize("other", ["float", "table"])
def test_another_activation_works_on_reals_or_on_codes(other: str) -> None:
    arrays = operands(SEED)
    text = linear("", "!quant.uniform<u8:f32, 0.05:60>", " |> hard_swish")
    floats = (sums(**arrays) / 32).astype(np.float64)
    if other == "table":
        floats = (np.clip(np.rint(floats.astype(F) / F(0.05)) + 60, 0, 255) - 60) * float(F(0.05))
    made = (floats * np.clip(floats / 6 + 0.5, 0, 1)).astype(F)
    wanted = np.clip(np.rint(made / F(0.05)) + 60, 0, 255)
    found = computed(f'stage = {{other = "{other}"}}', text, **arrays)
    assert np.array_equal(found, wanted)


def test_another_activation_works_as_its_own_rule_says() -> None:
    arrays = operands(SEED)
    text = linear("", "!quant.uniform<u8:f32, 0.05:60>", " |> sigmoid")
    alone = linear("", "!quant.uniform<u8:f32, 0.05:60>").replace("%y", "%z")
    alone += "\n%y = sigmoid(%z) : 64x8x!quant.uniform<u8:f32, 0.05:60>"
    assert np.array_equal(
        computed('stage = {other = "method"}', text, **arrays), computed("", alone, **arrays)
    )


# -- weights --------------------------------------------------------------------------------------

MXNET = """
choose = {zero = "none", levels = {i8 = 127.5, u8 = 255.5}, compute = "f32"}
quantize = {by = "gain", zero = "none", clip = "codes"}
requant = {order = "gy/gx/gw", zero = "none"}
"""
LAYER = """%x = input() : 64x24x!quant.uniform<u8:f32, 0.01, from 0.0..2.5 / 255.5>
%w = input() : 8x24xf32
%b = input() : 8xf32
%y = linear(%x, %w, bias=%b) : 64x8x!quant.uniform<i8:f32, 0.05, from -6.0..5.5 / 127.5>"""


@pytest.mark.parametrize("grain", ["channel", "tensor"])
@pytest.mark.parametrize("large", [False, True])
def test_real_weights_are_quantized_by_the_kernel_and_leave_room_for_the_bias(
    large: bool, grain: str
) -> None:
    """MXNet's fused kernels: 127.5 / max|w|, capped at 2^31 / 2 / bias / gain of the data."""
    rng = np.random.default_rng(SEED)
    x = rng.integers(0, 256, (64, 24)).astype(np.uint8)
    w = (rng.normal(size=(8, 24)) * 0.1).astype(F)
    b = rng.normal(size=8).astype(F) * F(20000 if large else 1)
    b[3] = 0
    data, out = F(255.5) / F(2.5), F(127.5) / F(6)
    most = np.abs(w).max(1 if grain == "channel" else None)
    weights = np.broadcast_to(F(127.5) / most, (8,)).astype(F)
    with np.errstate(divide="ignore"):
        room = (F(2.0**31) / F(2) / np.abs(b) / data).astype(F)
    room = room if grain == "channel" else np.broadcast_to(room.min(), (8,))
    assert (room < weights).any() == large
    weights = np.minimum(weights, room)
    quantized = np.clip(np.rint(w * weights[:, None]), -128, 127).astype(np.int64)
    bias = np.rint(b * (data * weights)).astype(np.int64)
    acc = x.astype(np.int64) @ quantized.T + bias
    scaled = acc.astype(F) * (out / data / weights)
    said = f"""{MXNET}
weights = {{given = "float", grain = "{grain}"}}
bias = {{domain = "rounded_acc", overflow = "shrink_weights", compute = "f32"}}"""
    found = computed(said, LAYER, x=x, w=w, b=b)
    assert np.array_equal(found, np.clip(np.rint(scaled), -128, 127)), f"seed {SEED}"


@pytest.mark.parametrize("large", [False, True])
def test_weight_codes_shrink_where_a_rescaled_bias_has_no_room(large: bool) -> None:
    """MXNet's fully connected layer on integers made before: 2^30 / reach of the bias / its
    gain."""
    rng = np.random.default_rng(SEED)
    x = rng.integers(0, 256, (64, 24)).astype(np.uint8)
    w = rng.integers(-128, 128, (8, 24)).astype(np.int8)
    b = rng.integers(-128, 128, 8).astype(np.int8)
    reach = F(40000 if large else 3)
    gx, gw, gb, gy = F(255.5) / F(2.5), F(127.5) / F(0.01), F(127.5) / reach, F(127.5) / F(6)
    most = F(2.0**30) / reach / gx
    assert (gw > most) == large
    held = min(gw, most)
    quantized = np.clip(np.rint(w.astype(F) * (held / gw)), -128, 127).astype(np.int64)
    ratio = gx * held / gb
    steps = b.astype(F) * ratio
    whole = np.trunc(steps + np.copysign(F(0.5), steps).astype(np.float64)).astype(np.int64)
    acc = x.astype(np.int64) @ quantized.T + whole
    assert (np.abs(acc) < 2**31).all()
    wanted = np.clip(np.rint(acc.astype(F) * (gy / gx / held)), -128, 127)
    said = f"""{MXNET}
bias = {{domain = "rescaled_acc", overflow = "shrink_weights", round = "away", compute = "f32"}}"""
    text = f"""%x = input() : 64x24x!quant.uniform<u8:f32, 0.01, from 0.0..2.5 / 255.5>
%w = input() : 8x24x!quant.uniform<i8:f32, 0.0001, from -0.01..0.01 / 127.5>
%b = input() : 8x!quant.uniform<i8:f32, 0.1, from -{reach}..{reach} / 127.5>
%y = linear(%x, %w, bias=%b) : 64x8x!quant.uniform<i8:f32, 0.05, from -6.0..5.5 / 127.5>"""
    found = computed(said, text, x=x, w=w, b=b)
    assert np.array_equal(found, wanted), f"seed {SEED}"


def test_packing_rounds_the_scales_of_weights() -> None:
    arrays = operands(SEED)
    text = linear("", "f32").replace("0.125", "0.0701")
    unit = F(0.25) * F(np.float16(0.0701))
    found = computed('params = {round = "f16"}', text, **arrays)
    assert np.array_equal(found, sums(**arrays).astype(F) * unit)


# -- sums -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ('bias = {domain = "real_after"}\nrequant = {multiplier = "divide"}', "divide"),
        ('bias = {domain = "real_after"}', "factor"),
        ('bias = {domain = "real_after"}\nrequant = {input = "acc_then_bias"}', "floats"),
    ],
)
def test_scales_of_rows_go_with_a_real_bias_in_each_way(fields: str, form: str) -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(0, 256, (5, 24)).astype(np.uint8)
    w = rng.integers(-127, 128, (8, 24)).astype(np.int8)
    rows, b = rng.uniform(0.01, 0.03, 5).astype(F), rng.normal(size=8).astype(F)
    listed = ", ".join(repr(float(v)) for v in rows)
    text = (
        f"%x = input() : 5x24x!quant.uniform<u8:f32:0, {{{listed}}}>\n"
        "%w = input() : 8x24x!quant.uniform<i8:f32, 0.07>\n%b = input() : 8xf32\n"
        "%y = linear(%x, %w, bias=%b) : 5x8x!quant.uniform<u8:f32, 0.9:3>"
    )
    acc = (x.astype(np.int64) @ w.astype(np.int64).T).astype(F)
    unit, sy = (rows * F(0.07))[:, None], F(0.9)
    scaled = {
        "divide": (acc * unit + b) / sy,
        "factor": acc * (unit / sy) + b / sy,
        "floats": (acc + b / unit) * (unit / sy),
    }[form]
    found = computed(fields, text, x=x, w=w, b=b)
    assert np.array_equal(found, np.clip(np.rint(scaled) + 3, 0, 255)), f"seed {SEED}"


def test_sums_are_held_as_the_profile_says_under_each_multiplier() -> None:
    """2^16 terms of 16-bit integers: 32 bits wrap or saturate, 64 hold them, floats round them."""
    rng = np.random.default_rng(SEED)
    x = rng.integers(-32768, 32768, (6, 300)).astype(np.int16)
    w = rng.integers(-32768, 32768, (4, 300)).astype(np.int16)
    text = (
        "%x = input() : 6x300x!quant.uniform<i16:f32, 0.5>\n"
        "%w = input() : 4x300x!quant.uniform<i16:f32, 0.25>\n"
        "%y = linear(%x, %w) : 6x4x!quant.uniform<i16:f32, 262144.0>"
    )
    exact = x.astype(np.int64) @ w.astype(np.int64).T
    assert (np.abs(exact) > 2.0**31).any()
    m = 2.0**-21
    forms = {
        'acc = {type = "i64"}\nrequant = {multiplier = "q15"}': exact * m,
        'acc = {type = "i64"}\nrequant = {multiplier = "exact"}': exact * m,
        'acc = {type = "f32"}': exact.astype(F) * F(m),
        'acc = {overflow = "saturate"}': np.clip(exact, -(2**31), 2**31 - 1) * m,
        'acc = {overflow = "wrap"}': exact.astype(np.int32) * m,
    }
    for fields, scaled in forms.items():
        found = computed(fields, text, x=x, w=w)
        assert np.array_equal(found, np.clip(np.rint(scaled), -32768, 32767)), fields

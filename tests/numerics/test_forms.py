"""The forms of convolutions: which layers have them, and what a profile makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qir.errors import ProfileError
from qir.ir.attrs import Attr
from qir.ir.dims import Shape, symbol
from qir.ir.dtype import F32, I8, dtype
from qir.ir.types import DeclaredBounds, Granularity, QuantType, TensorType, make_param, uniform
from qir.profiles import Query, dumps, parse
from qir.profiles.kernel_forms import forms as all_forms
from qir.profiles.kernel_forms import forms_of

U8 = uniform(dtype("u8"), np.float32(1))


def forms(x: tuple[int, ...], w: tuple[int, ...], **attrs: int | str | tuple[int, ...]) -> set[str]:
    zero = attrs.pop("zero", 0)
    assert isinstance(zero, int)
    n = len(w) - 2
    op = attrs.pop("op", f"conv{n}d")
    assert isinstance(op, str)
    plain: dict[str, Attr] = {"stride": (1,) * n, "pad": (1,) * 2 * n, "dilation": (1,) * n}
    kind = uniform(dtype("i8"), np.float32(1), zero)
    types = {"x": TensorType(x, U8), "w": TensorType(w, kind)}
    return set(forms_of(op, types, plain | {"groups": 1} | attrs))


IMAGE = (1, 8, 9, 9)


@pytest.mark.parametrize(
    ("w", "attrs", "has"),
    [
        ((8, 1, 3, 3), {}, True),
        ((16, 1, 3, 3), {}, True),
        ((8, 1, 3, 3), {"stride": (2, 1)}, True),
        ((8, 1, 5, 5), {"pad": (2,) * 4}, True),
        ((8, 1, 7, 7), {"pad": (3,) * 4}, True),
        ((24, 1, 3, 3), {}, False),
        ((8, 1, 3, 5), {"pad": (1, 2, 1, 2)}, False),
        ((8, 1, 3, 3), {"pad": (0,) * 4}, False),
        ((8, 1, 3, 3), {"pad": (1, 1, 1, 0)}, False),
        ((8, 1, 3, 3), {"stride": (3, 1)}, False),
        ((8, 1, 3, 3), {"dilation": (2, 2), "pad": (1,) * 4}, False),
        ((8, 1, 9, 9), {"pad": (4,) * 4}, False),
    ],
)
def test_a_depthwise_layer_has_a_kernel_of_its_own(
    w: tuple[int, ...], attrs: dict[str, tuple[int, ...]], has: bool
) -> None:
    assert ("depthwise" in forms(IMAGE, w, groups=8, **attrs)) == has


def test_four_channels_or_one_axis_make_none() -> None:
    assert "depthwise" not in forms((1, 4, 9, 9), (4, 1, 3, 3), groups=4)
    assert "depthwise" not in forms((1, 8, 9), (8, 1, 3), groups=8)
    assert "depthwise" in forms((1, 8, 9, 9, 9), (8, 1, 3, 3, 3), groups=8)
    assert "depthwise" in forms((1, 9, 9, 8), (8, 1, 3, 3), groups=8, layout="NHWC")


def test_windows_of_which_onednn_sums_what_is_beyond_are_told() -> None:
    assert "onednn_amiss" in forms((1, 1, 5, 5), (1, 1, 2, 2), pad=(2,) * 4)
    assert "onednn_amiss" not in forms((1, 1, 5, 5), (1, 1, 3, 3), pad=(2,) * 4)
    assert "onednn_amiss" in forms((1, 1, 1, 5), (1, 1, 2, 2), pad=(1,) * 4, dilation=(2, 2))
    assert "onednn_amiss" in forms((1, 1, 1, 5, 5), (1, 1, 3, 3, 3))
    assert "onednn_amiss" not in forms((1, 1, 2, 5, 5), (1, 1, 3, 3, 3))
    assert "one_column" in forms((1, 1, 5, 5, 4), (1, 1, 3, 3, 3), pad=(0,) * 6, stride=(2,) * 3)
    assert "one_column" not in forms(
        (1, 1, 5, 5, 5), (1, 1, 3, 3, 3), pad=(0,) * 6, stride=(2,) * 3
    )


@pytest.mark.parametrize(
    ("x", "w", "attrs", "has"),
    [
        ((10, 2), (8, 4, 3, 3), {}, True),
        ((8, 2), (8, 4, 3, 3), {}, False),
        ((10, 3), (8, 4, 3, 3), {}, False),
        ((10, 2), (8, 4, 3, 3), {"stride": (2, 1), "pad": (1, 1, 1, 0)}, False),
        ((10, 2), (8, 4, 3, 3), {"stride": (1, 2)}, True),
        ((10, 2), (8, 4, 3, 1), {"pad": (1, 0, 1, 0)}, False),
        ((5, 2), (8, 4, 2, 2), {"dilation": (2, 1), "pad": (0,) * 4}, True),
        ((10, 2), (4, 1, 3, 3), {"groups": 4}, False),
        ((10, 2), (8, 1, 3, 3), {"groups": 4}, True),
    ],
)
def test_columns_of_images_in_steps_are_told(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, int | tuple[int, ...]], has: bool
) -> None:
    given = {"stride": (2, 2), "pad": (1,) * 4} | attrs
    assert ("one_column" in forms((1, 4, *x), w, **given)) == has


def test_other_forms_are_told() -> None:
    assert "volumes_apart" in forms((1, 2, 5, 5, 5), (2, 1, 3, 3, 3), groups=2)
    assert "volumes_apart" not in forms((1, 1, 5, 5, 5), (1, 1, 3, 3, 3), groups=1)
    assert "volumes_apart" not in forms((1, 2, 5, 5, 5), (4, 1, 3, 3, 3), groups=2)
    assert "beyond_onednn" in forms((1, 101, 5, 5), (101, 1, 3, 3), groups=101)
    assert "beyond_onednn" not in forms((1, 100, 5, 5), (100, 1, 3, 3), groups=100)
    assert "beyond_onednn" in forms((1, 2, 5, 5), (2, 2, 3, 3), zero=3)
    for groups, into in ((1, 1), (1, 3), (2, 1), (4, 2)):
        found = forms((1, groups * into, 5, 5), (4, into, 3, 3), groups=groups)
        assert found & {"grouped", "single_channels"} == {
            *(["grouped"] if groups > 1 else []),
            *(["single_channels"] if into == 1 else []),
        }
    assert "groups_left_over" in forms((1, 18, 5, 5), (18, 2, 3, 3), groups=9)
    assert "groups_left_over" not in forms((1, 16, 5, 5), (16, 2, 3, 3), groups=8)
    assert "groups_left_over" in forms((1, 20, 5, 5), (20, 4, 3, 3), groups=5)
    wide = {"pad": (2,) * 6, "stride": (2,) * 3}
    assert "short_result" in forms((1, 8, 2, 6, 6), (8, 1, 5, 5, 5), groups=8, **wide)
    assert "short_result" not in forms((1, 8, 3, 6, 6), (8, 1, 5, 5, 5), groups=8, **wide)


@pytest.mark.parametrize(
    ("w", "attrs", "has"),
    [
        ((8, 16, 2, 2), {}, True),
        ((64, 8, 2, 6), {"stride": (1, 2)}, True),
        ((8, 8, 2, 1), {"output_pad": (1, 0)}, True),
        ((8, 8, 2, 7), {}, False),
        ((8, 8, 3, 2), {}, False),
        ((8, 4, 2, 2), {}, False),
        ((4, 8, 2, 2), {}, False),
        ((8, 8, 2, 2), {"stride": (3, 1)}, False),
        ((8, 8, 2, 2), {"pad": (0, 1, 0, 1)}, False),
        ((8, 8, 2, 2), {"dilation": (1, 2)}, False),
        ((16, 8, 2, 2), {"groups": 2}, False),
    ],
)
def test_rows_that_fbgemm_scatters_two_at_a_time_are_told(
    w: tuple[int, ...], attrs: dict[str, int | tuple[int, ...]], has: bool
) -> None:
    given = {"stride": (2, 2), "pad": (0,) * 4} | attrs
    found = forms((1, w[0], 5, 5), w, op="conv_transpose2d", **given)
    assert ("scattered_rows" in found) == has
    assert "scattered_rows" not in forms((1, w[1], 5, 5), w, **given)


@pytest.mark.parametrize(
    ("x", "w", "small"),
    [
        ((64, 16), (64, 16), True),
        ((64, 17), (64, 17), False),
        ((32, 17), (8, 17), True),
        ((32, 17), (9, 17), False),
        ((2, 16, 17), (8, 17), True),
        ((33, 17), (7, 17), False),
        ((1, 256), (300, 256), True),
        ((1, 257), (300, 257), False),
        ((symbol("N"), 16), (8, 16), None),
    ],
)
def test_linear_layers_that_are_no_work_for_tiles_are_told(
    x: Shape, w: tuple[int, int], small: bool | None
) -> None:
    types = {"x": TensorType(x, F32), "w": TensorType(w, F32)}
    found = forms_of("linear", types, {})
    assert ("known_rows" in found, "small_product" in found) == (small is not None, bool(small))


TEXT = """name = "p"
[[rule]]
op = "conv2d"
when = {grain = "channel"}
requant = {round = "away"}

[[rule]]
op = "conv2d"
when = {form = "depthwise"}
requant = {round = "half_up"}

[[rule]]
op = "conv2d"
when = {form = ["depthwise", "beyond_onednn"]}
requant = {zero = "before"}
"""


def test_a_rule_speaks_of_layers_that_have_all_forms_it_names() -> None:
    found = parse(TEXT, "p")
    assert parse(dumps(found), "p").rules == found.rules
    one = found.resolve(Query("conv2d", grain="channel", forms=("depthwise",)))
    assert (one.requant.round, one.requant.zero) == ("half_up", "after")
    both = found.resolve(Query("conv2d", forms=tuple(all_forms())))
    assert (both.requant.round, both.requant.zero) == ("even", "before")
    assert found.resolve(Query("conv2d", grain="channel")).requant.round == "away"


def test_a_form_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ProfileError, match=r"line 9: no form 'depthwize'; did you mean 'depthwise'"
    ):
        parse(TEXT.replace('form = "depthwise"', 'form = "depthwize"'), "p")


def test_the_page_of_profiles_names_every_form() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "profiles.md").read_text("utf-8")
    for name, form in all_forms().items():
        assert f"| `{name}` | {form.description} |" in page


@pytest.mark.parametrize(("zero", "pad", "has"), [(129, 1, True), (128, 1, False), (255, 0, False)])
def test_padding_beside_a_high_zero_point_is_told(zero: int, pad: int, has: bool) -> None:
    data = uniform(dtype("u8"), np.float32(1), zero)
    types = {"x": TensorType((1, 2, 5, 5), data), "w": TensorType((3, 2, 3, 3), U8)}
    attrs: dict[str, Attr] = {"stride": (1, 1), "dilation": (1, 1), "pad": (pad,) * 4, "groups": 1}
    assert ("padded_high" in forms_of("conv2d", types, attrs)) == has


def test_windows_beyond_the_data_are_those_that_looking_at_each_finds() -> None:
    rng = np.random.default_rng(1)
    for _ in range(3_000):
        taps, stride, dilation, size = (int(rng.integers(1, n)) for n in (6, 5, 7, 9))
        before, after = (int(n) for n in rng.integers(0, 10, 2))
        if size + before + after < (taps - 1) * dilation + 1:
            continue
        names = forms_of(
            "conv1d",
            {"x": TensorType((1, 1, size), U8), "w": TensorType((1, 1, taps), U8)},
            {
                "stride": (stride,),
                "dilation": (dilation,),
                "pad": (before, after),
                "groups": 1,
            },
        )
        count = (size + before + after - (taps - 1) * dilation - 1) // stride + 1
        at = np.arange(count)[:, None] * stride - before + np.arange(taps) * dilation
        beyond = bool(np.any(~np.any((at >= 0) & (at < size), axis=1)))
        assert ("onednn_amiss" in names) == beyond, (taps, stride, dilation, size, before, after)
    sizes = 1 << 40
    kinds = {"x": TensorType((1, 1, sizes), U8), "w": TensorType((1, 1, 3), U8)}
    attrs: dict[str, Attr] = {"stride": (1,), "dilation": (1,), "pad": (1, 1), "groups": 1}
    assert forms_of("conv1d", kinds, attrs) == ("single_channels",)


@pytest.mark.parametrize("op", ["add", "sub"])
def test_a_scale_far_below_the_results_is_told(op: str) -> None:
    def names(a: float, b: float, made: float | None) -> tuple[str, ...]:
        kinds = {
            s: TensorType((3,), uniform(I8, np.float32(v), 1)) for s, v in (("a", a), ("b", b))
        }
        out = None if made is None else uniform(I8, np.float32(made), 1)
        return forms_of(op, kinds, {}, out)

    assert names(1.0, 2.0**-11, 1.0) == names(2.0**-11, 1.0, 1.0) == ("far_operand",)
    assert names(1.0, 2.0**-10, 1.0) == names(1.0, 2.0**-11, 0.5) == names(1.0, 1e-9, None) == ()


def test_maps_and_ranges_of_what_is_joined_are_told() -> None:
    def names(made: QuantType | None, *joined: QuantType) -> set[str]:
        kinds = {f"xs.{i}": TensorType((3,), one) for i, one in enumerate(joined)}
        return set(forms_of("concat", kinds, {"axis": 0}, made))

    one, other, wide = (uniform(I8, np.float32(v), 1) for v in (0.5, 0.25, 2.0))
    assert names(one, one, one) == {"one_map", "held_ranges"}
    assert names(wide, one, other) == {"held_ranges"}
    assert names(one, one, wide) == names(None, one) == set()
    lower = uniform(I8, np.float32(0.5), 2)
    assert names(one, lower) == names(lower, one) == set()
    said = replace(lower, declared=DeclaredBounds((-100.0,), (100.0,)))
    assert names(said, one, other) == {"held_ranges"}


def test_windows_and_rows_that_xnnpack_leaves_to_others_are_told() -> None:
    x = TensorType((1, 6, 6, 2), uniform(I8, np.float32(1), 1))
    for kernel, stride, has in (((2, 2), (2, 2), 0), ((2, 2), (3, 1), 1), ((1, 3), (1, 2), 0)):
        attrs: dict[str, Attr] = {"kernel": kernel, "stride": stride}
        assert forms_of("max_pool2d", {"x": x}, attrs) == ("steps_beyond_window",) * has
    for size in range(1, 6):
        kinds = {"x": TensorType((2, size), I8), "w": TensorType((3, size), I8)}
        assert ("odd_rows" in forms_of("linear", kinds, {})) == bool(size % 2)


def test_weights_with_scales_in_blocks_are_told() -> None:
    x = TensorType((2, 64), F32)
    scale = np.full((3, 2), 0.5, np.float32)
    for blocks, axis, has in ((((0, 1), (1, 32)), None, True), (((0, 1),), 0, False)):
        grain = Granularity(blocks)
        held = make_param(scale if has else scale[:, 0], grain, "s")
        kind = QuantType(dtype("i4"), F32, held, granularity=grain, scale_dtype=F32)
        assert kind.axis == axis
        found = forms_of("linear", {"x": x, "w": TensorType((3, 64), kind)}, {})
        assert ("weight_blocks" in found) is has

"""Float32 images channels last: the bytes of the kernels for images channels first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qir._kernels._cpu import EXTERNAL, Plan

from .one import ISAS
from .test_floats import F32, Floats, cases, everywhere, normal

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def last(x: Floats) -> Floats:
    return np.ascontiguousarray(x.transpose(LAST))


MORE: list[tuple[int, ...]] = [
    # as test_floats.cases: blocks of lines and of channels, runs of pixels, wide windows
    (1, 1, 40, 96, 20, 21, 1, 1, 1, 1, 1, 1, 0),
    (3, 1, 300, 200, 3, 3, 1, 1, 1, 1, 1, 1, 0),
    (1, 1, 20, 30, 31, 32, 3, 3, 1, 1, 1, 1, 1),
    (1, 1, 9, 70, 40, 40, 5, 5, 2, 2, 1, 1, 2),
    (2, 33, 1, 1, 17, 23, 3, 3, 1, 1, 1, 1, 1),
    (1, 150, 1, 1, 14, 14, 5, 5, 1, 1, 1, 1, 2),
    (1, 64, 1, 1, 33, 31, 5, 5, 2, 2, 1, 1, 2),
    (1, 20, 1, 1, 9, 12, 7, 7, 1, 1, 1, 1, 3),
    (1, 20, 1, 1, 3, 3, 3, 3, 1, 1, 1, 1, 1),
    (1, 17, 1, 1, 18, 19, 3, 3, 1, 1, 2, 2, 2),
    (1, 1, 3, 4, 2, 2, 1, 1, 7, 7, 1, 1, 5),
    # depthwise, with more pixels than a near cache holds
    (2, 24, 1, 1, 40, 44, 3, 3, 2, 2, 1, 1, 1),
    (1, 40, 1, 1, 24, 25, 7, 7, 1, 1, 1, 1, 3),
    (1, 18, 1, 1, 30, 29, 3, 5, 3, 2, 1, 1, 4),
]


@pytest.mark.parametrize("case", cases(61, 25) + MORE, ids=str)
def test_convolutions_have_the_bytes_of_those_channels_first(case: tuple[int, ...]) -> None:
    n, groups, c, o, h, w, kh, kw, sh, sw, dh, dw, pad = (int(v) for v in case)
    rng = np.random.default_rng([62, *case])
    x, weight = normal(rng, n, groups * c, h, w), normal(rng, groups * o, c, kh, kw)
    bias = normal(rng, groups * o)
    more: dict[str, Any] = {
        "shape": x.shape, "kernel": (groups * o, kh, kw), "stride": (sh, sw),
        "dilation": (dh, dw), "pad": (pad, 0, pad, pad), "groups": groups,
    }  # fmt: skip
    oh = (h + 2 * pad - dh * (kh - 1) - 1) // sh + 1
    ow = (w + pad - dw * (kw - 1) - 1) // sw + 1
    made = (n, groups * o, oh, ow)
    shape, row = (n, oh, ow, groups * o), weight.reshape(-1)
    for shift, ends in ((bias, {}), (None, {"low": -0.25, "high": 1.5})):
        wanted = everywhere("float_conv2d", [x, weight], made, shift, **more, **ends)
        got = everywhere("float_last_conv2d", [last(x)], shape, row, shift, **more, **ends)
        assert got.tobytes() == last(wanted).tobytes()
    read = everywhere("float_last_conv2d", [x], shape, row, bias, **more, first=True)
    wanted = everywhere("float_conv2d", [x, weight], made, bias, **more)
    assert read.tobytes() == last(wanted).tobytes()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, -0.0, 1e-45])
@pytest.mark.parametrize("groups", [1, 6])
def test_extremes_have_the_bytes_of_those_channels_first(value: float, groups: int) -> None:
    rng = np.random.default_rng([63, groups])
    x, weight = normal(rng, 1, 6, 9, 10), normal(rng, 6, 6 // groups, 3, 3)
    x[0, 2, 0, 0] = x[0, 5, 8, 9] = value
    weight[3, 0, 0, 1] = value
    more: dict[str, Any] = {
        "shape": x.shape, "kernel": (6, 3, 3), "pad": (1, 1, 1, 1), "groups": groups,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        wanted = last(everywhere("float_conv2d", [x, weight], (1, 6, 9, 10), None, **more))
        row = weight.reshape(-1)
        got = everywhere("float_last_conv2d", [last(x)], (1, 9, 10, 6), row, None, **more)
    assert np.array_equal(got, wanted, equal_nan=True)


@pytest.mark.parametrize(
    "shape", [(2, 7, 13, 15, 5, 1, 3), (1, 40, 6, 6, 40, 40, 3), (1, 200, 4, 5, 260, 1, 1)], ids=str
)
@pytest.mark.parametrize("op", [None, "sigmoid", "hard_swish", "leaky_relu", "gelu"])
@pytest.mark.parametrize("times", [False, True])
def test_what_follows_has_the_bytes_of_its_steps(
    shape: tuple[int, ...], op: str | None, times: bool
) -> None:
    n, c, h, w, oc, groups, k = shape
    rng = np.random.default_rng([64, *shape])
    x, weight, bias = normal(rng, n, c, h, w), normal(rng, oc, c // groups, k, k), normal(rng, oc)
    other = normal(rng, n, h, w, oc)
    more: dict[str, Any] = {
        "shape": x.shape, "kernel": (oc, k, k), "pad": (k // 2,) * 4, "groups": groups,
    }  # fmt: skip
    row = weight.reshape(-1)
    plain = everywhere("float_last_conv2d", [last(x)], other.shape, row, bias, **more)
    value = plain
    if op is not None:
        value = everywhere("float_unary", [plain], plain.shape, op=op, size=plain.size, a=0.1)
        value = plain * value if times else value
    wanted = np.clip(value + other, F32(0), F32(4))
    for isa in ISAS:
        for threads in (1, 2):
            got = np.full_like(other, np.nan)
            arrays = [last(x), got, other]
            plan = Plan(0, [(EXTERNAL, array.nbytes) for array in arrays], isa=isa)
            plan.float_last_conv2d(
                "step", 0, 1, row, bias, **more, op=op, a=0.1, times=times, added=2, low=0.0,
                high=4.0,
            )  # fmt: skip
            plan.run(arrays, threads=threads)
            assert got.tobytes() == wanted.tobytes()


Part = tuple[Floats, Floats | None, list[tuple[str, Any]]]


def chain_of(case: tuple[int, ...], rng: np.random.Generator) -> tuple[Floats, list[Part]]:
    """An image and three convolutions: any one, a depthwise one, and one of one tap."""
    n, c, h, w, size, wide, window, stride, oc = case
    x, pad = normal(rng, n, h, w, c), (window // 2,) * 4

    def part(o: int, i: int, k: int, **how: Any) -> Part:
        shape = (n, how.pop("c"), how.pop("h"), how.pop("w"))
        options = {"shape": shape, "kernel": (o, k, k), **how}
        return normal(rng, o * i * k * k), normal(rng, o), [*options.items()]

    before = part(wide, c, size, c=c, h=h, w=w, pad=(size // 2,) * 4, low=0.0, high=6.0)
    middle = part(wide, 1, window, c=wide, h=h, w=w, pad=pad, stride=(stride, stride),
                  groups=wide, op="silu")  # fmt: skip
    h, w = ((side - 1) // stride + 1 for side in (h, w))
    return x, [before, middle, part(oc, wide, 1, c=wide, h=h, w=w)]


CHAINS = [
    # images, channels, height, width, taps; of the depthwise one: channels, taps, stride; channels
    (1, 5, 9, 11, 1, 20, 3, 1, 7),
    (3, 4, 13, 12, 3, 33, 3, 2, 40),
    (1, 16, 56, 56, 1, 70, 5, 2, 24),
    (2, 3, 70, 75, 1, 48, 3, 1, 16),  # the ring is far smaller than the image
    (1, 3, 2, 3, 1, 4, 5, 1, 3),
    (9, 6, 8, 7, 1, 24, 5, 1, 6),
]


@pytest.mark.parametrize("case", CHAINS, ids=str)
@pytest.mark.parametrize("there", [(0, 1, 2), (0, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("residual", [False, True])
def test_a_chain_has_the_bytes_of_its_convolutions(
    case: tuple[int, ...], there: tuple[int, ...], residual: bool
) -> None:
    rng = np.random.default_rng([67, *case])
    x, parts = chain_of(case, rng)
    if 0 not in there:
        n, c, h, w = dict(parts[1][2])["shape"]
        x = normal(rng, n, h, w, c)
    wanted, other = x, None
    for i in there:
        weight, bias, options = parts[i]
        how = dict(options)
        n, _, h, w = how["shape"]
        step = how.get("stride", (1, 1))[0]
        made = (n, (h - 1) // step + 1, (w - 1) // step + 1, how["kernel"][0])
        wanted = everywhere("float_last_conv2d", [wanted], made, weight, bias, **how)
    if residual:
        other = normal(rng, *wanted.shape)
        wanted = wanted + other
    for isa in ISAS:
        for threads in (1, 2):
            got = np.full_like(wanted, np.nan)
            arrays = [x, got, *([] if other is None else [other])]
            plan = Plan(0, [(EXTERNAL, array.nbytes) for array in arrays], isa=isa)
            plan.float_last_chain(
                "step", 0, 1, [parts[i] if i in there else None for i in range(3)],
                added=2 if residual else None,
            )  # fmt: skip
            plan.run(arrays, threads=threads)
            assert got.tobytes() == wanted.tobytes()


def test_convolutions_that_do_not_follow_each_other_are_no_chain() -> None:
    _, (before, middle, after) = chain_of(CHAINS[0], np.random.default_rng(68))
    plan = Plan(0, [(EXTERNAL, 1 << 20), (EXTERNAL, 1 << 20)])
    with pytest.raises(ValueError, match="wants one before or after it"):
        plan.float_last_chain("step", 0, 1, [None, middle, None])
    for parts in ([middle, before, after], [before, after, None], [after, middle, None]):
        with pytest.raises(ValueError, match="do not follow each other"):
            plan.float_last_chain("step", 0, 1, parts)
    shifted = (*after[:2], [*after[2], ("stride", (2, 2))])
    with pytest.raises(ValueError, match="do not follow each other"):
        plan.float_last_chain("step", 0, 1, [None, middle, shifted])


@pytest.mark.parametrize("size", [(1, 3, 1, 1), (2, 16, 7, 7), (1, 37, 5, 9), (3, 70, 33, 1)],
                         ids=str)  # fmt: skip
def test_means_have_the_bytes_of_those_of_lines(size: tuple[int, int, int, int]) -> None:
    n, c, h, w = size
    x = normal(np.random.default_rng([65, *size]), *size)
    wanted = everywhere("float_mean", [x], (n, c), rows=n * c, width=h * w)
    got = everywhere("float_last_mean", [last(x)], (n, c), images=n, pixels=h * w, channels=c)
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("case", [
    ((2, 5, 9, 11), (3, 3), (2, 2), (1, 1, 1, 1)),
    ((1, 33, 8, 8), (2, 2), (2, 2), (0, 0, 0, 0)),
    ((1, 3, 7, 30), (3, 5), (1, 2), (0, 2, 1, 0)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("value", [0.5, np.nan, -0.0])
def test_pools_have_the_bytes_of_those_channels_first(case: Any, value: float) -> None:
    shape, kernel, stride, pad = case
    x = normal(np.random.default_rng([66, *shape]), *shape)
    x[0, 1, 3, 3] = value
    oh = (shape[2] + pad[0] + pad[2] - kernel[0]) // stride[0] + 1
    ow = (shape[3] + pad[1] + pad[3] - kernel[1]) // stride[1] + 1
    how: dict[str, Any] = {"shape": shape, "kernel": kernel, "stride": stride, "pad": pad}
    made, turned = (*shape[:2], oh, ow), (shape[0], oh, ow, shape[1])
    most = everywhere("float_max_pool2d", [x], made, **how)
    assert (
        everywhere("float_last_pool2d", [last(x)], turned, **how).tobytes() == last(most).tobytes()
    )
    for counted in (False, True):
        mean = everywhere("float_avg_pool2d", [x], made, **how, count_pad=counted)
        got = everywhere(
            "float_last_pool2d", [last(x)], turned, **how, average=True, count_pad=counted
        )  # fmt: skip
        assert got.tobytes() == last(mean).tobytes()

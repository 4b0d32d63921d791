"""Sums of products against plain loops in Python's whole numbers."""

import itertools
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError, ProfileError
from qir.numerics.accumulate import add_bias, check, conv2d, matmul
from qir.numerics.fields import Acc, MethodField, Rule

Codes = NDArray[np.generic]


def wrapped(total: int) -> int:
    """A whole number as 32 bits hold it."""
    return (total + 2**31) % 2**32 - 2**31


def loops(
    x: Codes,
    w: Codes,
    zeros: tuple[int, NDArray[np.int64]],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> NDArray[np.int64]:
    height, width = x.shape[2:]
    per, kh, kw = w.shape[1:]
    oh = (height + pad[0] + pad[2] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (width + pad[1] + pad[3] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    out = np.zeros((len(x), w.shape[0], oh, ow), np.int64)
    for b, o, i, j in itertools.product(*(range(s) for s in out.shape)):
        total = 0
        for c, p, q in itertools.product(range(per), range(kh), range(kw)):
            row = i * stride[0] - pad[0] + p * dilation[0]
            column = j * stride[1] - pad[1] + q * dilation[1]
            if 0 <= row < height and 0 <= column < width:
                channel = o // (w.shape[0] // groups) * per + c
                code = int(x[b, channel, row, column]) - zeros[0]
                total += code * (int(w[o, c, p, q]) - int(zeros[1][o]))
        out[b, o, i, j] = wrapped(total)
    return out


@pytest.mark.parametrize("seed", range(25))
def test_convolution_sums_are_those_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(1, 4))
    per, into = (int(v) for v in rng.integers(1, 4, 2))
    kernel, stride, dilation = (tuple(int(v) for v in rng.integers(1, 4, 2)) for _ in range(3))
    pad = tuple(int(v) for v in rng.integers(0, 3, 4))
    sizes = tuple(int(v) for v in rng.integers(7, 10, 2))
    x = rng.integers(0, 256, (2, groups * per, *sizes)).astype(np.uint8)
    w = rng.integers(-128, 128, (groups * into, per, *kernel)).astype(np.int8)
    zeros = (int(rng.integers(0, 256)), rng.integers(-5, 6, groups * into))
    wanted = loops(x, w, zeros, stride, pad, dilation, groups)
    for layout in ("NCHW", "NHWC"):
        image = x if layout == "NCHW" else x.transpose(0, 2, 3, 1)
        found = conv2d(
            image,
            w,
            zeros[0],
            zeros[1],
            stride=stride,
            pad=pad,
            dilation=dilation,
            groups=groups,
            layout=layout,
        )
        found = found if layout == "NCHW" else found.transpose(0, 3, 1, 2)
        assert found.dtype == np.int32
        assert np.array_equal(found, wanted), f"seed {seed}, {layout}"


@pytest.mark.parametrize("seed", range(10))
def test_products_of_matrices_are_exact_and_wrap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = [((3, 5), (5, 7)), ((2, 3, 5), (5, 4)), ((2, 1, 3, 5), (4, 5, 2)), ((5,), (5, 3))]
    for a_shape, b_shape in shapes:
        a = rng.integers(0, 256, a_shape).astype(np.uint8)
        b = rng.integers(-128, 128, b_shape).astype(np.int8)
        zeros = rng.integers(-5, 6, b_shape[-1])
        wanted = (a.astype(object) - 77) @ (b.astype(object) - zeros.astype(object))
        assert (matmul(a, b, 77, zeros) == wanted).all(), f"seed {seed}"
    long = matmul(np.full((1, 70000), 255, np.uint8), np.full((70000, 1), 127, np.int8))
    assert int(long[0, 0]) == wrapped(70000 * 255 * 127)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, w = np.zeros((1, 3, 4, 4), np.uint8), np.zeros((2, 4, 1, 1), np.int8)
    with pytest.raises(OpError, match=r"x has 3 channels, w .* in 1 groups wants 4"):
        conv2d(x, w)
    with pytest.raises(OpError, match="does not fit a padded image"):
        conv2d(x, np.zeros((2, 3, 5, 1), np.int8))


def test_a_product_by_a_method_is_refused() -> None:
    with pytest.raises(ProfileError, match="profile p: no method reals computes integer products"):
        check(Rule("p", method=MethodField("reals")))


def test_sums_saturate_or_are_held_in_more_bits_or_in_floats() -> None:
    a = np.full((3, 70000), 255, np.uint8)
    b = np.stack([np.full(70000, 127), np.full(70000, -128), np.arange(70000) % 3], 1)
    exact = a.astype(object) @ b.astype(object)
    quantized = b.astype(np.int8)
    assert (matmul(a, quantized, how=Acc(type="i64")) == exact).all()
    held = matmul(a, quantized, how=Acc(overflow="saturate"))
    assert (held == np.clip(exact.astype(float), -(2.0**31), 2.0**31 - 1)).all()
    floats = matmul(a, quantized, how=Acc(type="f32"))
    assert floats.dtype == np.float32
    assert (floats == exact.astype(np.float32)).all()
    most = np.array([2**31 - 1, -(2**31)], np.int32)
    more = np.array([5, -5])
    assert add_bias(most, more, Acc()).tolist() == [-(2**31) + 4, 2**31 - 5]
    assert add_bias(most, more, Acc(overflow="saturate")).tolist() == most.tolist()
    assert add_bias(most.astype(np.int64), more, Acc(type="i64")).tolist() == [
        2**31 + 4,
        -(2**31) - 5,
    ]


Padding: TypeAlias = Literal["zero_point", "zero_code", "left_out"]


def cut(value: int) -> int:
    return max(-32768, min(32767, value))


@pytest.mark.parametrize("kind", ["u1", "i1"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("pad", get_args(Padding))
def test_pairs_of_channels_saturate_and_padding_is_a_code_or_left_out(
    kind: str, groups: int, pad: Padding
) -> None:
    """vpmaddubsw: unsigned bytes times signed ones, channels 2i and 2i + 1 of a tap in 16 bits."""
    rng = np.random.default_rng(3)
    info = np.iinfo(kind)
    channels, moved, zero = 5, -info.min, 3
    x = rng.choice([info.min, info.max, 7], (1, groups * channels, 4, 4)).astype(kind)
    w = rng.choice([-128, 127, 100, 1], (4, channels, 3, 3)).astype(np.int8)
    how = Acc(pairs="saturate_i16", pad=pad)
    found = conv2d(x, w, zero, 0, pad=(1, 1, 1, 1), groups=groups, how=how)
    border = 0 if pad == "zero_code" else zero
    image = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=border).astype(int)
    kernel, lost = w.astype(int), 0
    for o, i, j in itertools.product(range(4), range(4), range(4)):
        first = o // (4 // groups) * channels
        total = plain = 0
        for p, q in itertools.product(range(3), range(3)):
            tap = image[0, first : first + channels, i + p, j + q] + moved
            terms = [int(a) * int(b) for a, b in zip(tap, kernel[o, :, p, q], strict=True)]
            summed = pad != "left_out" or {i + p, j + q} <= {1, 2, 3, 4}
            pairs = [sum(terms[k : k + 2]) for k in range(0, channels, 2)]
            total += sum(cut(pair) for pair in pairs) if summed else sum(pairs)
            plain += sum(terms)
        lost += total != plain
        assert found[0, o, i, j] == total - (zero + moved) * kernel[o].sum()
    assert lost > 20
    rows = rng.choice([info.min, info.max], (3, 9)).astype(kind)
    product = matmul(rows, w[:, :, 0, 0].T[[0, 1, 2, 3, 4, 0, 1, 2, 3]], zero, 0, how=how)
    weights = w[:, :, 0, 0].T[[0, 1, 2, 3, 4, 0, 1, 2, 3]].astype(int)
    raw = rows.astype(int) + moved
    for i, j in itertools.product(range(3), range(4)):
        terms = (raw[i] * weights[:, j]).tolist()
        wanted = sum(cut(sum(terms[k : k + 2])) for k in range(0, 9, 2))
        assert product[i, j] == wanted - (zero + moved) * weights[:, j].sum()

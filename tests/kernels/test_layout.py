"""Steps that move bytes."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from qir._kernels._cpu import EXTERNAL, Plan, transposed

from .one import ISAS, one, random_integers


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.int64])
@pytest.mark.parametrize("shape", [(5,), (4, 7), (2, 3, 70), (33, 1, 18), (2, 3, 4, 5), (0, 2)])
def test_transpose_orders_axes_as_numpy_does(
    dtype: type[np.generic], shape: tuple[int, ...]
) -> None:
    x = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    for perm in permutations(range(len(shape))):
        expected = x.transpose(perm)
        got = one(
            "transpose",
            [x],
            expected.shape,
            dtype,
            threads=2,
            shape=shape,
            perm=perm,
            itemsize=x.itemsize,
        )
        assert np.array_equal(got, expected), perm


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 63, 64, 65, 200])
@pytest.mark.parametrize("columns", [0, 1, 8, 15, 64, 72, 131])
def test_a_matrix_of_bytes_is_transposed_whatever_its_size(rows: int, columns: int) -> None:
    x = np.random.default_rng(rows).integers(0, 256, (rows, columns), np.uint8)
    got = transposed(x)
    assert got.flags.c_contiguous
    assert np.array_equal(got, x.T)


def test_transpose_takes_eight_axes() -> None:
    shape, perm = (2, 3, 1, 2, 2, 1, 3, 2), (7, 5, 3, 1, 6, 4, 2, 0)
    x = random_integers(np.random.default_rng(1), "u8", shape)
    expected = x.transpose(perm)
    got = one("transpose", [x], expected.shape, np.uint8, shape=shape, perm=perm)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_concatenation_is_a_copy_for_each_operand(isa: str) -> None:
    rng = np.random.default_rng(2)
    table = random_integers(rng, "u8", (256,))
    for widths in ((1, 1), (3, 64, 5), (16, 31, 65, 128)):
        parts = [random_integers(rng, "u8", (50, width)) for width in widths]
        y = np.zeros((50, sum(widths)), np.uint8)
        arrays = [*parts, y]
        plan = Plan(0, [(EXTERNAL, array.nbytes) for array in arrays], isa=isa)
        at = 0
        for i, width in enumerate(widths):
            plan.copy(
                f"part {i}",
                i,
                len(parts),
                rows=50,
                width=width,
                y_stride=sum(widths),
                y_offset=at,
                table=table if i == 1 else None,
            )
            at += width
        plan.run(arrays, threads=2)
        parts[1] = table[parts[1]]
        assert np.array_equal(y, np.concatenate(parts, axis=1))


def test_slices_and_padding_are_copies_and_fills() -> None:
    x = random_integers(np.random.default_rng(3), "i8", (9, 12))
    y = np.zeros((7, 8), np.int8)
    plan = Plan(0, [(EXTERNAL, x.nbytes), (EXTERNAL, y.nbytes)])
    plan.fill("border", 1, size=y.nbytes, value=0xFD)
    plan.copy(
        "inside",
        0,
        1,
        rows=5,
        width=6,
        x_stride=12,
        y_stride=8,
        x_offset=2 * 12 + 3,
        y_offset=8 + 1,
    )
    plan.run([x, y])
    assert np.array_equal(y, np.pad(x[2:7, 3:9], 1, constant_values=-3))


@pytest.mark.parametrize("item", [np.uint8, np.float16, np.float32, np.int64])
def test_elements_at_any_steps_are_copied_in_order(item: type[np.generic]) -> None:
    rng = np.random.default_rng(61)
    x = rng.integers(0, 100, (4, 5, 6, 7)).astype(item)
    views = [
        x[1:3], x[:, 2:5:2, ::3], x[3, :, 1], x.transpose(3, 1, 0, 2)[2:, :, 1], x[2:3, 1:2, 3:4],
        np.broadcast_to(x[1, 1:2], (3, 5, 6, 7)), x[..., 6], x, x[3:4, 4, 5, 6], x[3:4, 4:5],
    ]  # fmt: skip
    for view in views:
        steps = tuple(step // x.itemsize for step in view.strides)
        offset = (view.__array_interface__["data"][0] - x.ctypes.data) // x.itemsize
        got = one("strided", [x], view.shape, item, threads=2, shape=view.shape, steps=steps,
                  offset=offset, itemsize=x.itemsize)  # fmt: skip
        assert np.array_equal(got, view)


def test_elements_beyond_the_buffer_are_refused() -> None:
    x = np.zeros(24, np.uint8)
    good: dict[str, Any] = {"shape": (2, 3), "steps": (12, 4), "offset": 3}
    one("strided", [x], (2, 3), np.uint8, **good)
    for wrong, message in (
        ({"offset": 4}, "step: x is buffer 0 of 24 bytes, 25 are needed"),
        ({"steps": (12, 6)}, "step: x is buffer 0 of 24 bytes, 28 are needed"),
        ({"steps": (12,)}, "step: 1 steps for 2 axes"),
        ({"steps": (12, -4)}, r"step: steps is \(12, -4\); 0 is the least possible"),
        ({"itemsize": 3}, "step: itemsize is 3, not 1, 2, 4 or 8"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            one("strided", [x], (2, 3), np.uint8, **{**good, **wrong})

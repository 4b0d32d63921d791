"""What _products.pxi adds to a plan: products of integers, and what other runtimes do to integers.

`_cpu` has it.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qir._kernels._floats import Floats

_Codes = Literal["u8", "i8"]
_Epilogue = Sequence[tuple[str, object]]

class Products(Floats):
    """The steps of a plan on sums of integers."""

    def conv2d(
        self,
        name: str,
        x: int,
        y: int,
        weight: NDArray[np.int8],
        bias: NDArray[np.int32] | None,
        multiplier: NDArray[np.float32],
        *,
        shape: tuple[int, int, int, int],
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] = (0, 0, 0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        x_type: _Codes = "u8",
        x_zero: int = 0,
        y_type: _Codes | Literal["f32"] = "u8",
        y_zero: int = 0,
        low: int | None = None,
        high: int | None = None,
        epilogue: _Epilogue | None = None,
        pairs: bool = False,
        offset: NDArray[np.int32] | None = None,
    ) -> None:
        """Convolves x of `shape` (n, h, w, c) with weight (out, c / groups, kh, kw), zero point 0.

        multiplier has one value, or one for each output channel. pad is top, left, bottom, right
        and contributes x_zero. Depthwise convolutions (groups == c == out) take a kernel of their
        own.
        y_type "f32" gives f32(acc + bias) * multiplier and has no y_zero, low, high.
        An epilogue, of `qir/_kernels/epilogue/epilogue.h`, computes with the sums in place of the
        multiplier: pairs of a name and a number, or an array of one or as many as channels. With
        `pairs`, products of two taps of a depthwise convolution are added in 16 bits that saturate.
        An offset, one for each output channel, from -128 to 128, is added to its weights.
        """

    def linear(
        self,
        name: str,
        x: int,
        y: int,
        weight: NDArray[np.int8],
        bias: NDArray[np.int32] | None,
        multiplier: NDArray[np.float32],
        *,
        rows: int,
        x_type: _Codes = "u8",
        x_zero: int = 0,
        y_type: _Codes | Literal["f32"] = "u8",
        y_zero: int = 0,
        low: int | None = None,
        high: int | None = None,
        epilogue: _Epilogue | None = None,
        offset: NDArray[np.int32] | None = None,
    ) -> None:
        """x (rows, k) times weight (n, k) transposed; otherwise as conv2d."""

    def dynamic_linear(
        self,
        name: str,
        x: int,
        y: int,
        weight: NDArray[np.int8],
        bias: NDArray[np.float32] | None = None,
        *,
        rows: int,
        scale: int,
        scales: int = 1,
        x_type: str = "u8",
        zero: int | None = None,
        offset: NDArray[np.int32] | None = None,
    ) -> None:
        """y = f32(sum of (x - zero) * (weight + offset)) * scale + bias, the sum exact.

        Weight is (n, k), and each operation is rounded. The zero, one code of x, and the scales,
        1 or n float32, are buffers.
        """

    def dynamic_conv2d(
        self,
        name: str,
        x: int,
        y: int,
        weight: NDArray[np.int8],
        bias: NDArray[np.float32] | None = None,
        *,
        shape: tuple[int, int, int, int],
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] = (0, 0, 0, 0),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
        scale: int,
        scales: int = 1,
        x_type: str = "u8",
        zero: int | None = None,
        offset: NDArray[np.int32] | None = None,
    ) -> None:
        """The same of a convolution of images, as conv2d takes them; padding is the zero."""

    def matmul(
        self,
        name: str,
        a: int,
        b: int,
        y: int,
        *,
        sizes: tuple[int, ...],
        a_at: ArrayLike,
        b_at: ArrayLike,
        y_at: ArrayLike,
        a_row: int,
        b_steps: tuple[int, ...],
        y_row: int,
        multiplier: float,
        a_type: _Codes = "u8",
        a_zero: int = 0,
        b_type: _Codes = "u8",
        b_zero: int = 0,
        y_type: _Codes | Literal["f32"] = "u8",
        y_zero: int = 0,
        low: int | None = None,
        high: int | None = None,
    ) -> None:
        """Products of matrices that are both computed: sizes are (m, k, n) of each.

        Matrix t has element (i, p) of a at `a_at[t] + i * a_row + p`, (p, j) of b at
        `b_at[t] + p * b_steps[0] + j * b_steps[1]`, and (i, j) of y at `y_at[t] + i * y_row + j`.

        y = clamp(rne(f32(sum of (a - a_zero) * (b - b_zero)) * multiplier) + y_zero, low, high);
        where y_type is f32 it is the product alone.
        """

    def quantize_by(
        self,
        name: str,
        x: int,
        y: int,
        *,
        size: int,
        factor: float,
        y_type: _Codes = "u8",
        zero: int = 0,
        low: int | None = None,
        high: int | None = None,
        divide: bool = False,
        fused: bool = False,
        before: float = 0.0,
        least: float = ...,
        most: float = ...,
        away: bool = False,
        wraps: bool = False,
        nan: int | Literal["far"] | None = None,
    ) -> None:
        """Quantizes f32 as other runtimes do: see `qir/_kernels/quantizers/quantizers.h`.

        A NaN becomes `nan`; where that is None, a run raises DataFault.
        """

    def lookup_runs(
        self,
        name: str,
        x: int,
        y: int,
        *,
        size: int,
        table: NDArray[np.uint8 | np.int8],
        tail: NDArray[np.uint8 | np.int8],
        run: int,
        body: int,
    ) -> None:
        """y[i] = table[x[i]] where i % run < body, else tail[x[i]]; tables of 256 bytes."""

    def lookup_pairs(
        self,
        name: str,
        a: int,
        b: int,
        y: int,
        *,
        shape: tuple[int, int, int],
        table: NDArray[np.uint8 | np.int8],
        tail: NDArray[np.uint8 | np.int8],
        run: int,
        body: int,
        broadcast: Literal["a", "b"] | None = None,
    ) -> None:
        """The same of pairs of bytes: entry 256 * a + b of 65536. Shapes are those of `add`."""

    def code_means(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: tuple[int, int, int, int],
        kernel: tuple[int, int],
        stride: tuple[int, int],
        pad: tuple[int, int],
        out: tuple[int, int],
        factor: ArrayLike,
        body: int,
        ends: Sequence[tuple[float, bool, int, bool, float]],
        x_zero: int = 0,
        x_type: _Codes = "u8",
        y_type: _Codes = "u8",
        low: int | None = None,
        high: int | None = None,
    ) -> None:
        """Means of windows of x (n, h, w, c): f32(sum of q - x_zero) times the pixel's factor.

        `ends` are of the first `body` channels and of the others: what is added then, whether
        in one rounding, the zero point that is added to the rounded number, and what is divided
        by (True) or multiplied with before that.
        """

    def lookup_sums(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: tuple[int, int, int, int],
        kernel: tuple[int, int],
        stride: tuple[int, int],
        pad: tuple[int, int],
        out: tuple[int, int],
        levels: ArrayLike,
        kinds: ArrayLike,
        x_type: _Codes = "u8",
        y_type: _Codes = "u8",
    ) -> None:
        """Sums of windows of x (n, h, w, c), in integers from 0 to 255 in the order of the type.

        A result is how many of 255 levels are not above its sum, in that order too: those of row
        `kinds[pixel]` of `levels`, which ascend.
        """

    def resize_linear(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: tuple[int, int, int, int],
        rows: Sequence[ArrayLike],
        columns: Sequence[ArrayLike],
        shift: int,
        away: bool = False,
        x_type: _Codes = "u8",
    ) -> None:
        """Images x (n, h, w, c) between the pixels of two rows and two columns.

        `rows` and `columns` have four integers for each result: both neighbours, both weights. A
        result is the sum of four weighted integers / 2^shift, halves up, or away from zero.
        """

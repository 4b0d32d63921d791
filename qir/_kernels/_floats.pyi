"""What _floats.pxi adds to a plan: steps that compute with float32 alone. `_cpu` has it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qir._kernels._tensors import Tensors

UNARY: tuple[str, ...]
"""What `Plan.float_unary` computes."""

class Floats(Tensors):
    """The steps on float32 of a plan."""

    def float_linear(
        self,
        name: str,
        x: int,
        y: int,
        weight: ArrayLike,
        bias: ArrayLike | None,
        *,
        rows: int,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        """y = x @ weight.T + bias in float32, between low and high; weight is (n, k).

        All products of float32 add as said in `qir/_kernels/floats/sgemm.h`: blocks of 256 values,
        each by one fused multiply-add a value from 0 on; then the blocks, then the bias.
        """

    def pointwise(
        self,
        name: str,
        inputs: Sequence[int],
        y: int,
        *,
        constants: Sequence[float],
        ops: Sequence[tuple[str, str, int, int, float, float]],
        size: int,
    ) -> None:
        """Computes ops on each float by itself, with the bytes of a step for each.

        An op is its kind ("real", "function" or "unary"), its name in `REALS`, `FUNCTIONS` or
        `UNARY`, the numbers of the values a and b, of which the latter two kinds read a, and the
        options a and b of such a step. Values are numbered: inputs, constants, results of ops.
        """

    def float_matmul(
        self,
        name: str,
        a: int,
        b: int,
        y: int,
        *,
        sizes: Sequence[int],
        a_at: ArrayLike,
        b_at: ArrayLike,
        y_at: ArrayLike,
        a_row: int,
        b_steps: Sequence[int],
        y_row: int,
    ) -> None:
        """y[t] = a[t] @ b[t] in float32; operands as `matmul` has them, in floats."""

    def float_conv2d(
        self,
        name: str,
        x: int,
        weight: int,
        y: int,
        bias: ArrayLike | None,
        *,
        shape: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int] = (1, 1),
        pad: Sequence[int] = (0, 0, 0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        low: float | None = None,
        high: float | None = None,
        constant: NDArray[np.float32] | None = None,
    ) -> None:
        """A convolution of float32; shape is NCHW, kernel (output channels, height, width).

        The weights are a buffer, (output channels, channels of a group, height, width); `constant`
        is what it holds, in one row, where that is known. Padding is zeros that take part.
        """

    def float_last_conv2d(
        self,
        name: str,
        x: int,
        y: int,
        weight: NDArray[np.float32],
        bias: ArrayLike | None,
        *,
        shape: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int] = (1, 1),
        pad: Sequence[int] = (0, 0, 0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        first: bool = False,
        op: str | None = None,
        a: float = 0.0,
        b: float = 0.0,
        times: bool = False,
        added: int | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        """The bytes of `float_conv2d` for images held channels last; shape is NCHW as there.

        Weights are constants in one row. `first` says that x is held channels first. Of a result v,
        y = bound(f(v) + added), f being `op` as in `float_unary`; with `times` it is v * f(v).
        """

    def float_last_chain(
        self,
        name: str,
        x: int,
        y: int,
        parts: Sequence[
            tuple[NDArray[np.float32], ArrayLike | None, Sequence[tuple[str, object]]] | None
        ],
        *,
        added: int | None = None,
    ) -> None:
        """The bytes of two or three `float_last_conv2d`, each of which reads what the one before
        it writes: a depthwise one, one before it, and one of one tap after it; one may be None.

        A part is weights, bias and options by name. What is added is added to the last result.
        """

    def float_last_pool2d(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int] = (1, 1),
        pad: Sequence[int] = (0, 0, 0, 0),
        dilation: Sequence[int] = (1, 1),
        out: Sequence[int] | None = None,
        average: bool = False,
        count_pad: bool = False,
    ) -> None:
        """The bytes of `float_max_pool2d` or `float_avg_pool2d` for images held channels last."""

    def float_last_mean(
        self, name: str, x: int, y: int, *, images: int, pixels: int, channels: int
    ) -> None:
        """The bytes of `float_mean` over the pixels of images held channels last."""

    def float_unary(
        self, name: str, x: int, y: int, *, op: str, size: int, a: float = 0.0, b: float = 0.0
    ) -> None:
        """A function of each float32, one of UNARY; computed in float64 and rounded once.

        `a` and `b` are the bounds of `bound` and alpha and beta of `hard_sigmoid`; `a` is the
        slope of `leaky_relu` below 0.
        """

    def float_max_pool2d(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int] = (1, 1),
        pad: Sequence[int] = (0, 0, 0, 0),
        dilation: Sequence[int] = (1, 1),
        out: Sequence[int] | None = None,
    ) -> None:
        """The greatest float32 of each window, NCHW; NaN wins, padding never does."""

    def float_avg_pool2d(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int] = (1, 1),
        pad: Sequence[int] = (0, 0, 0, 0),
        out: Sequence[int] | None = None,
        count_pad: bool = False,
    ) -> None:
        """The mean of each window, NCHW; added in float64, one tap after the other."""

    def float_batch_norm(
        self, name: str, x: int, y: int, *, outer: int, inner: int, numbers: ArrayLike
    ) -> None:
        """(x - mean) * slope + shift in float64, rounded once; numbers is (channels, these 3).

        x is (outer, channels, inner).
        """

    def float_mean(self, name: str, x: int, y: int, *, rows: int, width: int) -> None:
        """The mean of each row of float32, added in sixteen lanes of float64."""

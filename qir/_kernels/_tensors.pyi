"""What _tensors.pxi adds to a plan: steps on tensors of any element type. `_cpu` has it."""

from collections.abc import Sequence

from numpy.typing import ArrayLike

KINDS: dict[str, int]
"""Element types of the steps on tensors, and bytes of an element."""
OPERATIONS: tuple[str, ...]
"""What `Plan.apply` computes."""
FUNCTIONS: tuple[str, ...]
"""What `Plan.function` computes."""
REDUCTIONS: tuple[str, ...]
"""What `Plan.reduce` computes."""
ORDERED: tuple[str, ...]
"""Kinds of numbers that `reduce`, `place` and `top_k` take."""

def applied() -> dict[str, list[str]]:
    """The kinds of elements for which `Plan.apply` has a loop, by operation."""

class Tensors:
    """The steps on tensors of a plan."""

    def apply(
        self,
        name: str,
        a: int,
        b: int,
        y: int,
        *,
        op: str,
        kind: str,
        shape: Sequence[int],
        a_steps: Sequence[int],
        b_steps: Sequence[int],
    ) -> None:
        """One of OPERATIONS on each element of a and b, which are `kind`; comparisons give bool.

        An element of an operand is found by a step for each axis: 0 repeats it. Integers wrap;
        a quotient by 0 is 0. NaN wins in min and max.
        """

    def where(
        self,
        name: str,
        condition: int,
        a: int,
        b: int,
        y: int,
        *,
        shape: Sequence[int],
        condition_steps: Sequence[int],
        a_steps: Sequence[int],
        b_steps: Sequence[int],
        itemsize: int = 4,
    ) -> None:
        """a where the condition, bytes of bool, is not 0, else b; steps as `apply` has them."""

    def function(
        self, name: str, x: int, y: int, *, op: str, size: int, a: float = 0.0, b: float = 0.0
    ) -> None:
        """One of FUNCTIONS of each float32, by the C library in float64, rounded once.

        `a` and `b` are alpha, and gamma of `selu` or beta of `hard_sigmoid`.
        """

    def cast(self, name: str, x: int, y: int, *, size: int, x_kind: str, y_kind: str) -> None:
        """Elements as another kind: floats are cut toward zero, integers keep their low bits."""

    def reduce(
        self, name: str, x: int, y: int, *, op: str, shape: Sequence[int], kind: str = "f32"
    ) -> None:
        """One of REDUCTIONS over the rows of (outer, rows, inner).

        Floats are computed in float64 and rounded once; integers wrap, and know the first four.
        """

    def place(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: Sequence[int],
        kind: str = "f32",
        least: bool = False,
        last: bool = False,
    ) -> None:
        """Where the greatest row of (outer, rows, inner) is, as int64; NaN comes first."""

    def top_k(
        self,
        name: str,
        x: int,
        y: int,
        places: int,
        *,
        shape: Sequence[int],
        k: int,
        kind: str = "f32",
        least: bool = False,
    ) -> None:
        """The k greatest rows of (outer, rows, inner) and their places, in order.

        Of equal ones the first comes first; NaN is greater than everything.
        """

    def encode(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: Sequence[int],
        kind: str,
        low: int,
        high: int,
        scale: ArrayLike | None = None,
        zero: ArrayLike | None = None,
        scale_at: int | None = None,
        zero_at: int | None = None,
        away: bool = False,
    ) -> None:
        """clamp(round(x / scale) + zero, low, high) in 8 or 16 bits; NaN gives low.

        Halves are rounded to even, or away from zero.

        x is (outer, channels, inner), with a scale and a zero for each channel; or one of each,
        from the buffers `scale_at` and `zero_at`.
        """

    def decode(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: Sequence[int],
        kind: str,
        scale: ArrayLike | None = None,
        zero: ArrayLike | None = None,
        scale_at: int | None = None,
        zero_at: int | None = None,
    ) -> None:
        """(x - zero) * scale, as float32; operands as `encode` has them, and i32 too."""

    def choose(
        self, name: str, x: int, scale: int, zero: int, *, size: int, kind: str = "u8"
    ) -> None:
        """Scale and zero for the range of x, as DynamicQuantizeLinear; DataFault for NaN."""

    def wide_product(
        self,
        name: str,
        a: int,
        b: int,
        y: int,
        bias: ArrayLike | None = None,
        *,
        sizes: Sequence[int],
        a_at: ArrayLike,
        b_at: ArrayLike,
        y_at: ArrayLike,
        a_row: int,
        b_steps: Sequence[int],
        y_row: int,
        to_whole: bool = False,
        codes: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        zero: ArrayLike | None = None,
        bits: int = 8,
        block: int = 1,
    ) -> None:
        """y[t] = a[t] @ b[t] + bias of float32, summed in float64 and rounded once, or to int32.

        Operands as `float_matmul` has them. `codes` take the place of b: a row of integers of
        `bits` bits for each column (of 4 bits two a byte, low first), and a scale and a zero for
        each `block` of them.
        """

    def wide_conv(
        self,
        name: str,
        x: int,
        weight: int,
        y: int,
        bias: ArrayLike | None = None,
        *,
        shape: Sequence[int],
        kernel: Sequence[int],
        out: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
        transposed: bool = False,
        to_whole: bool = False,
    ) -> None:
        """A convolution of three axes, summed in float64 and rounded once, or to int32.

        shape is (n, channels, ...), kernel (output channels, ...), pad that in front; weights are
        (output, input / groups, ...), transposed (input, output / groups, ...).
        """

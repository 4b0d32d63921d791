"""Int8 kernels for processors, and plans that run a whole network of them in one call.

A `Plan` is a list of steps over numbered buffers. Activations inside are NHWC, one byte a code:
`u8` or `i8`. Every step is data-parallel and gives the same bytes for any number of threads and
any instruction set. All geometry is fixed when a step is added; the batch is its first dimension.

    plan = Plan(arena, [(-1, 12288), (0, 4096), (-1, 40)])    # external, arena, external
    plan.quantize("x_q", 0, 1, shape=(1, 3, 32, 32), scale=0.02, zero=128, nhwc=True)
    ...
    plan.run([x, y], threads=2)                                # fills y

A step raises ValueError when its operands do not fit the buffers or each other, naming the step;
the plan stays as it was. Sizes may be any integers, in any sequence, array or iterator.
Requantization is everywhere `clamp(rne(f32(acc + bias) * multiplier[c]) + zero, low, high)`, where
acc and bias are added modulo 2^32, rne rounds halves to even, and low and high are codes (default:
the bounds of the storage type), so that relu and clip cost nothing.

add, mul, copy and lookup of single bytes may write over an operand of the same place; other steps
may not.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qir._kernels._environment import InstructionSets
from qir._kernels._environment import SettingError as SettingError
from qir._kernels._environment import default_threads as default_threads
from qir._kernels._floats import UNARY as UNARY
from qir._kernels._products import Products as Products
from qir._kernels._tensors import FUNCTIONS as FUNCTIONS
from qir._kernels._tensors import KINDS as KINDS
from qir._kernels._tensors import OPERATIONS as OPERATIONS
from qir._kernels._tensors import ORDERED as ORDERED
from qir._kernels._tensors import REDUCTIONS as REDUCTIONS
from qir._kernels._tensors import applied as applied

_Codes = Literal["u8", "i8"]
EXTERNAL: int
"""As offset of a buffer: the caller gives its memory at each run."""

REALS: tuple[str, ...]
"""What `Plan.real` computes."""

SETS: InstructionSets
"""The instruction sets that QIR knows, and those of this processor."""

def cpu_features() -> list[str]:
    """The instruction sets this processor and system allow, of those that QIR knows."""

def isa(cap: str | None = None) -> list[str]:
    """The instruction sets in use, best first, to scalar; QIR_ISA in the environment caps them, and
    `cap` where it is given.

    Raises SettingError where QIR_ISA is the name of none, ValueError where `cap` is.
    """

def caps() -> list[str]:
    """The names that cap something here, best first: sets that QIR_ISA allows, also those that are
    used only where they are named.

    Raises SettingError where QIR_ISA is the name of none.
    """

def checksum(data: bytes | memoryview) -> int:
    """A 64-bit sum of bytes, as fast as memory; any change of one word changes it."""

def transposed(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The transpose of a matrix of bytes, contiguous as the matrix is."""

class DataFault(ValueError):
    """A step met data that it cannot take, such as an index outside of an axis."""

class Plan(Products):
    """A compiled sequence of steps over buffers in one arena."""

    def __init__(
        self,
        arena: int,
        buffers: Sequence[tuple[int, int]],
        *,
        isa: str | None = None,
    ) -> None:
        """Takes `arena` bytes; a buffer is (offset, size) in it, or (EXTERNAL, size).

        `isa` caps the instruction sets of this plan, as one of `isa()`. Offsets are best multiples
        of 64. Buffers may overlap where their values are not alive together, and alias for
        reshapes.
        Raises ValueError for a buffer outside the arena and for an unknown isa.
        """

    def quantize(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: Sequence[int],
        scale: float,
        zero: int,
        y_type: _Codes = "u8",
        low: int | None = None,
        high: int | None = None,
        nhwc: bool = False,
    ) -> None:
        """y = clamp(rne(x / scale) + zero), x f32; a NaN becomes `low`, as in onnxruntime.

        With nhwc, x of `shape` (n, c, h, w) is written as n, h, w, c.
        """

    def dequantize(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: Sequence[int],
        scale: float,
        zero: int,
        x_type: _Codes = "u8",
        nchw: bool = False,
    ) -> None:
        """y = (x - zero) * scale in f32.

        With nchw, x of `shape` (n, h, w, c) is written as n, c, h, w.
        """

    def add(
        self,
        name: str,
        a: int,
        b: int,
        y: int,
        *,
        shape: tuple[int, int, int],
        a_gain: float,
        b_gain: float,
        offset: float,
        a_type: _Codes = "u8",
        b_type: _Codes = "u8",
        y_type: _Codes = "u8",
        low: int | None = None,
        high: int | None = None,
        broadcast: Literal["a", "b"] | None = None,
    ) -> None:
        """y = clamp(rne(fma(a, a_gain, fma(b, b_gain, offset)))), all f32, a and b raw integers.

        `shape` is (outer, rows, inner); the operand named by `broadcast` is (outer, 1, inner).
        """

    def mul(
        self,
        name: str,
        a: int,
        b: int,
        y: int,
        *,
        shape: tuple[int, int, int],
        a_zero: int,
        b_zero: int,
        multiplier: float,
        y_zero: int,
        a_type: _Codes = "u8",
        b_type: _Codes = "u8",
        y_type: _Codes = "u8",
        low: int | None = None,
        high: int | None = None,
        broadcast: Literal["a", "b"] | None = None,
        after: bool = False,
    ) -> None:
        """y = clamp(rne((a - a_zero) * (b - b_zero) * multiplier + y_zero)); shape as add's.

        The zero point is added in f32, before rounding, or `after` it.
        """

    def whole_add(
        self,
        name: str,
        a: int,
        b: int,
        y: int,
        *,
        shape: tuple[int, int, int],
        a_factor: int,
        b_factor: int,
        offset: int,
        shift: int,
        y_zero: int,
        a_type: _Codes = "u8",
        b_type: _Codes = "u8",
        y_type: _Codes = "u8",
        low: int | None = None,
        high: int | None = None,
        broadcast: Literal["a", "b"] | None = None,
    ) -> None:
        """y = clamp(((a * a_factor + b * b_factor + offset) >> shift) + y_zero); shape as add's."""

    def real(
        self,
        name: str,
        a: int,
        b: int,
        y: int,
        *,
        op: Literal["add", "sub", "mul", "div"],
        shape: tuple[int, int, int],
        broadcast: Literal["a", "b"] | None = None,
    ) -> None:
        """y = a + b, a - b, a * b or a / b of float32; shape and broadcast as in add."""

    def lookup(self, name: str, x: int, y: int, *, size: int, table: NDArray[np.generic]) -> None:
        """y = table[x]; the table has 256 entries, indexed by the byte of x (i8 -1 is 255).

        An entry has 1, 2, 4 or 8 bytes.
        """

    def max_pool2d(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: tuple[int, int, int, int],
        kernel: tuple[int, int],
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] = (0, 0, 0, 0),
        dilation: tuple[int, int] = (1, 1),
        out: tuple[int, int] | None = None,
        x_type: _Codes = "u8",
    ) -> None:
        """The largest code of each window of x (n, h, w, c); padding never wins.

        `out` is (oh, ow) where it is not the floor formula's, as in ceil mode. A window without any
        element gives the lowest code.
        """

    def avg_pool2d(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: tuple[int, int, int, int],
        kernel: tuple[int, int],
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int, int, int] = (0, 0, 0, 0),
        out: tuple[int, int] | None = None,
        count_pad: bool = False,
        x_scale: float,
        x_zero: int,
        y_scale: float,
        y_zero: int,
        x_type: _Codes = "u8",
        y_type: _Codes = "u8",
    ) -> None:
        """The mean of each window, as QLinearAveragePool computes it; see pooling/pooling.h.

        Without count_pad a mean is of the elements inside of x, with it of kh * kw, always.
        """

    def global_avg_pool(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: tuple[int, int, int, int],
        x_scale: float,
        x_zero: int,
        y_scale: float,
        y_zero: int,
        x_type: _Codes = "u8",
        y_type: _Codes = "u8",
    ) -> None:
        """The mean over h and w of x (n, h, w, c) as QLinearGlobalAveragePool computes it."""

    def mean(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: tuple[int, int, int],
        x_scale: float = 1,
        x_zero: int = 0,
        x_type: _Codes = "u8",
        table: NDArray[np.generic] | None = None,
    ) -> None:
        """y[o, i] = the mean over r of f32(x[o, r, i] - x_zero) * x_scale, or of table[x].

        shape is (o, r, i), y is float32. The numbers are added in float64, where their sum has to
        be exact, then divided and rounded once. Without a table it is exact.
        """

    def softmax(
        self,
        name: str,
        x: int,
        y: int,
        *,
        rows: int,
        width: int,
        y_scale: float,
        y_zero: int,
        x_scale: float = 1,
        x_type: _Codes = "u8",
        y_type: _Codes = "u8",
        wide: bool = False,
        powers: ArrayLike | None = None,
    ) -> None:
        """Softmax of each row of `width` integers, as QLinearSoftmax computes it by a table.

        `wide`: shares are divided in float64, as onnxruntime 1.32 does, else in float32.
        `powers`: the table, whose last entry is of a row's greatest integer; shares are then terms
        times 1 / (sum * y_scale), rounded halves up, as XNNPACK computes them.
        """

    def layer_norm(
        self,
        name: str,
        x: int,
        y: int,
        *,
        rows: int,
        gamma: NDArray[np.float32],
        beta: NDArray[np.float32] | None = None,
        eps: float,
    ) -> None:
        """y = (x - mean) / sqrt(variance + eps) * gamma + beta for rows of float32.

        Computed in float64 and rounded once; sums are added in 16 lanes, as
        `qir.reference.sum_order` says.
        """

    def real_softmax(
        self, name: str, x: int, y: int, *, rows: int, width: int, in_f32: bool = False
    ) -> None:
        """y = exp(x - max) / sum of these for rows of float32, whose exponentials are `in_f32`.

        Computed in float64 and rounded once; within one unit of the last place of the exact result.
        """

    def copy(
        self,
        name: str,
        x: int,
        y: int,
        *,
        rows: int,
        width: int,
        x_stride: int | None = None,
        y_stride: int | None = None,
        x_offset: int = 0,
        y_offset: int = 0,
        table: NDArray[np.uint8 | np.int8] | None = None,
    ) -> None:
        """Copies `rows` rows of `width` bytes, through a table of 256 bytes if one is given.

        Strides and offsets are bytes; a stride that is not given is the width. Concatenation is
        one copy an operand, with y_offset; slicing and padding are copies too.
        """

    def fill(self, name: str, y: int, *, size: int, value: int, offset: int = 0) -> None:
        """Sets `size` bytes to one value, 0 to 255."""

    def strided(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: tuple[int, ...],
        steps: tuple[int, ...],
        offset: int = 0,
        itemsize: Literal[1, 2, 4, 8] | int = 1,
    ) -> None:
        """y[i, j ...] = x[offset + i * steps[0] + j * steps[1] ...], all in elements."""

    def transpose(
        self,
        name: str,
        x: int,
        y: int,
        *,
        shape: Sequence[int],
        perm: Sequence[int],
        itemsize: int = 1,
    ) -> None:
        """Permutes the axes of x, at most 8, of elements of 1, 2, 4 or 8 bytes."""

    def gather(
        self,
        name: str,
        x: int,
        indices: int,
        y: int,
        *,
        outer: int,
        rows: int,
        width: int,
        count: int,
        itemsize: Literal[4, 8] | int = 8,
    ) -> None:
        """y[o, i] = x[o, indices[i]]: rows of `width` bytes by signed indices of 4 or 8 bytes.

        An index below zero counts from the end. One outside of `rows` makes `run` raise DataFault.
        """

    def recurrent(
        self,
        name: str,
        x: int,
        y: int,
        h: int,
        c: int | None,
        w: NDArray[np.float32],
        r: NDArray[np.float32],
        bias: NDArray[np.float32],
        *,
        op: Literal["lstm", "gru"] | str,
        steps: int,
        batch: int,
        h0: int | None = None,
        c0: int | None = None,
        back: bool = False,
        batch_first: bool = False,
        reset_after: bool = False,
        peephole: NDArray[np.float32] | None = None,
    ) -> None:
        """An LSTM or GRU as ONNX has it, in float64, results rounded once; a GRU has no `c`."""

    def call(
        self,
        name: str,
        function: Callable[..., None],
        inputs: Sequence[tuple[int, np.dtype[np.generic], Sequence[int]]],
        outputs: Sequence[tuple[int, np.dtype[np.generic], Sequence[int]]],
    ) -> None:
        """Calls function(*inputs, *outputs) with arrays over the buffers; it fills the outputs.

        An operand is (buffer, dtype, shape). Inputs are read-only. What it raises, run raises.
        """

    def run(
        self, arrays: Sequence[NDArray[np.generic]], *, threads: int = 1, profile: bool = False
    ) -> None:
        """Runs all steps; `arrays` are the external buffers in their order, inputs and outputs.

        Arrays are C-contiguous and of the buffer's size in bytes; those that steps write to are
        writeable: anything else raises ValueError. One run at a time: other threads that run or
        extend the plan wait, and a step that does raises ValueError. No more threads are used than
        there are usable cores. With profile, times are added up for `profile()`.
        """

    def profile(self) -> list[tuple[str, str, float, int]]:
        """(step, kind, seconds in all profiled runs, bytes read and written) for each step."""

    @property
    def work(self) -> list[int]:
        """The multiply-adds of every step."""

    @property
    def steps(self) -> list[tuple[str, str]]:
        """(name, kind) of each step in order: kind is the method that added it, "depthwise" or
        "grouped"."""

# cython: language_level=3
# cython: boundscheck=False, wraparound=False, initializedcheck=False
# cython: binding=True, freethreading_compatible=True
"""Int8 kernels, chosen at run time from what the processor has, and plans of them."""

import math
import os
import threading
from weakref import WeakSet

import numpy as np

from qir._kernels._calls import call_of
from qir._kernels._checks import (
    LARGEST_CODE_MEAN, LARGEST_MEAN, LARGEST_STEP, LARGEST_WINDOW, WHOLE_FACTORS, code_in,
    entries_of, epilogue_of, external_of, flip_of, floats_of, integer, integers_of, item_of, joined,
    limits, number_of, of_length, offsets_of, pairs_of, permutation, real_of, reals_of, scale_of,
    split_planes, table_of, taps_of, weights_of, whole, windows,
)
from qir._kernels._environment import (
    InstructionSets, SettingError, default_threads, usable_cores,
)

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pythread cimport PyThread_get_thread_ident
from libc.float cimport FLT_MAX
from libc.math cimport exp, floorf, logf
from libc.stdint cimport int8_t, int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

__all__ = ["EXTERNAL", "DataFault", "Plan", "SettingError", "applied", "caps", "checksum",
           "cpu_features", "default_threads", "isa", "transposed"]

EXTERNAL = -1
REALS = ("add", "sub", "mul", "div")  # as enum qir_real has them


# ---- instruction sets ------------------------------------------------------------------------


SETS = InstructionSets(
    {qir_isa_names[i].name.decode(): qir_isa_names[i].bit for i in range(qir_isa_name_count)},
    qir_isa_detect(),
    {qir_isa_names[i].name.decode() for i in range(qir_isa_name_count) if qir_isa_names[i].asked},
)


def cpu_features():
    return SETS.names(SETS.detected)


def isa(cap=None):
    return SETS.names(SETS.allowed(cap))


def caps():
    return SETS.caps()


class DataFault(ValueError):
    """A step met data that it cannot take, such as an index outside of an axis."""


def checksum(data):
    """Returns a 64-bit sum of bytes; any change of one word changes it."""
    cdef const uint8_t[::1] view = data
    cdef size_t size = view.shape[0]
    cdef uint64_t found
    with nogil:
        found = qir_checksum(&view[0] if size else NULL, size)
    return found


def transposed(const uint8_t[:, ::1] x not None):
    """Returns a matrix of bytes transposed."""
    out = np.empty((x.shape[1], x.shape[0]), np.uint8)
    cdef uint8_t[:, ::1] y = out
    cdef size_t rows = x.shape[0], columns = x.shape[1]
    if rows and columns:
        with nogil:
            qir_transpose_bytes(&x[0, 0], rows, columns, &y[0, 0])
    return out


# ---- parameters of steps ---------------------------------------------------------------------


cdef qir_code code_of(str name, str codes, zero, low, high) except *:
    cdef qir_code code
    code.low, code.high = limits(name, codes, low, high)
    code.zero = code_in(name, "zero", codes, zero)
    code.flip = flip_of(name, codes)
    return code


cdef qir_planes planes_of(str name, tuple shape, bint moved, Py_ssize_t axis) except *:
    """Planes of an array whose channels are `axis` of 4 and change place, or of one that stays."""
    cdef qir_planes result
    result.n, result.channels, result.pixels = split_planes(name, shape, moved, axis)
    return result


cdef qir_average average_of(
    str name, x_scale, x_zero, str x_type, y_scale, y_zero, str y_type, bint count_pad
) except *:
    cdef qir_average how
    how.x_scale = scale_of(name, "x_scale", x_scale)
    how.y_scale = scale_of(name, "y_scale", y_scale)
    how.x_zero = code_in(name, "x_zero", x_type, x_zero)
    how.x_flip = flip_of(name, x_type)
    how.code = code_of(name, y_type, y_zero, None, None)
    how.count_pad = count_pad
    return how


include "_running.pxi"
include "_tensors.pxi"
include "_floats.pxi"
include "_products.pxi"


# ---- plans -----------------------------------------------------------------------------------


cdef class Plan(Products):
    # ---- quantize and dequantize ----

    def quantize(
        self, str name, x, y, *, shape, scale, zero,
        str y_type="u8", low=None, high=None, nhwc=False,
    ):
        cdef qir_affine to
        cdef qir_step step
        shape = whole(name, "shape", shape, 0)
        size = math.prod(shape)
        x, y = self.needs(name, "x", x, 4 * size), self.needs(name, "y", y, size)
        cdef qir_planes planes = planes_of(name, shape, nhwc, 1)
        to.scale = scale_of(name, "scale", scale)
        to.code = code_of(name, y_type, zero, low, high)
        made = qir_quantize_make(self.bits, &planes, &to, x, y, &step)
        self.append(name, "quantize", step, made, 5 * size, (y,))

    def dequantize(
        self, str name, x, y, *, shape, scale, zero, str x_type="u8", nchw=False
    ):
        cdef qir_affine source
        cdef qir_step step
        shape = whole(name, "shape", shape, 0)
        size = math.prod(shape)
        x, y = self.needs(name, "x", x, size), self.needs(name, "y", y, 4 * size)
        cdef qir_planes planes = planes_of(name, shape, nchw, 3)
        source.scale = scale_of(name, "scale", scale)
        source.code = code_of(name, x_type, zero, None, None)
        made = qir_dequantize_make(self.bits, &planes, &source, x, y, &step)
        self.append(name, "dequantize", step, made, 5 * size, (y,))

    # ---- elementwise ----

    def add(
        self, str name, a, b, y, *, shape, a_gain, b_gain, offset,
        str a_type="u8", str b_type="u8", str y_type="u8", low=None, high=None, broadcast=None,
    ):
        cdef qir_binary op
        cdef qir_step step
        cdef qir_binary_shape s = self.pair(name, a, b, y, shape, broadcast)
        op.a_gain, op.b_gain = real_of(name, "a_gain", a_gain), real_of(name, "b_gain", b_gain)
        op.offset = real_of(name, "offset", offset)
        op.a_flip, op.b_flip = flip_of(name, a_type), flip_of(name, b_type)
        op.code = code_of(name, y_type, 0, low, high)
        made = qir_add_make(self.bits, &s, &op, a, b, y, &step)
        self.append(name, "add", step, made, 3 * s.outer * s.rows * s.inner, (y,))

    def mul(
        self, str name, a, b, y, *, shape, a_zero, b_zero, multiplier, y_zero,
        str a_type="u8", str b_type="u8", str y_type="u8", low=None, high=None, broadcast=None,
        bint after=False,
    ):
        cdef qir_binary op
        cdef qir_step step
        cdef qir_binary_shape s = self.pair(name, a, b, y, shape, broadcast)
        op.a_zero = code_in(name, "a_zero", a_type, a_zero)
        op.b_zero = code_in(name, "b_zero", b_type, b_zero)
        op.multiplier = real_of(name, "multiplier", multiplier)
        op.zero = 0 if after else code_in(name, "y_zero", y_type, y_zero)
        op.a_flip, op.b_flip = flip_of(name, a_type), flip_of(name, b_type)
        op.code = code_of(name, y_type, 0, low, high)
        if after:
            op.code.zero = code_in(name, "y_zero", y_type, y_zero)
        made = qir_mul_make(self.bits, &s, &op, a, b, y, &step)
        self.append(name, "mul", step, made, 3 * s.outer * s.rows * s.inner, (y,))

    def whole_add(
        self, str name, a, b, y, *, shape, a_factor, b_factor, offset, shift, y_zero,
        str a_type="u8", str b_type="u8", str y_type="u8", low=None, high=None, broadcast=None,
    ):
        cdef qir_binary op
        cdef qir_step step
        cdef qir_binary_shape s = self.pair(name, a, b, y, shape, broadcast)
        op.a_factor = integer(name, "a_factor", a_factor, -WHOLE_FACTORS, WHOLE_FACTORS)
        op.b_factor = integer(name, "b_factor", b_factor, -WHOLE_FACTORS, WHOLE_FACTORS)
        integer(name, "sum of the factors", abs(a_factor) + abs(b_factor), 0, WHOLE_FACTORS)
        op.whole_offset = integer(name, "offset", offset, -(1 << 30), 1 << 30)
        op.shift = integer(name, "shift", shift, 0, 31)
        op.a_flip, op.b_flip = flip_of(name, a_type), flip_of(name, b_type)
        op.code = code_of(name, y_type, 0, low, high)
        op.code.zero = code_in(name, "y_zero", y_type, y_zero)
        made = qir_whole_make(self.bits, &s, &op, a, b, y, &step)
        self.append(name, "whole_add", step, made, 3 * s.outer * s.rows * s.inner, (y,))

    def real(self, str name, a, b, y, *, str op, shape, broadcast=None):
        cdef qir_step step
        if op not in REALS:
            raise ValueError(f"{name}: no op {op!r} on floats; known are {', '.join(REALS)}")
        cdef qir_binary_shape s = self.pair(name, a, b, y, shape, broadcast, 4)
        made = qir_real_make(self.bits, REALS.index(op), &s, a, b, y, &step)
        self.append(name, "real", step, made, 12 * s.outer * s.rows * s.inner, (y,))

    cdef qir_binary_shape pair(self, str name, a, b, y, shape, broadcast, size=1) except *:
        cdef qir_binary_shape s
        outer, rows, inner = of_length(name, "shape", shape, 3, 0)
        if broadcast is not None and broadcast not in ("a", "b"):
            raise ValueError(f"{name}: broadcast is {broadcast!r}, not None, 'a' or 'b'")
        some = outer * rows * inner > 0  # else no tasks
        s.outer, s.rows, s.inner = (outer, rows, inner) if some else (0, 0, 0)
        s.a_shared, s.b_shared = broadcast == "a", broadcast == "b"
        self.needs(name, "a", a, outer * inner * (1 if s.a_shared else rows) * size)
        self.needs(name, "b", b, outer * inner * (1 if s.b_shared else rows) * size)
        self.needs(name, "y", y, outer * rows * inner * size)
        return s

    def lookup(self, str name, x, y, *, size, table):
        cdef qir_step step
        cdef const uint8_t[::1] entries
        cdef size_t entry
        bytes, entry = entries_of(name, table)
        entries = bytes
        size = integer(name, "size", size, 0)
        x, y = self.needs(name, "x", x, size), self.needs(name, "y", y, size * entry)
        made = qir_lookup_make(self.bits, size, &entries[0], entry, x, y, &step)
        self.append(name, "lookup", step, made, size * (1 + entry), (y,))

    # ---- pooling ----

    def max_pool2d(
        self, str name, x, y, *, shape, kernel,
        stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1), out=None, str x_type="u8",
    ):
        cdef qir_step step
        cdef qir_window s = self.window(name, x, y, shape, kernel, stride, pad, dilation, out)
        made = qir_max_pool_make(self.bits, &s, flip_of(name, x_type), x, y, &step)
        self.append(name, "max_pool2d", step, made, s.n * s.c * (s.h * s.w + s.oh * s.ow), (y,))

    def avg_pool2d(
        self, str name, x, y, *, shape, kernel,
        stride=(1, 1), pad=(0, 0, 0, 0), out=None, count_pad=False,
        x_scale, x_zero, y_scale, y_zero, str x_type="u8", str y_type="u8",
    ):
        cdef qir_step step
        cdef qir_window s = self.window(name, x, y, shape, kernel, stride, pad, (1, 1), out)
        cdef qir_average how = average_of(
            name, x_scale, x_zero, x_type, y_scale, y_zero, y_type, count_pad
        )
        made = qir_average_pool_make(self.bits, &s, &how, x, y, &step)
        self.append(name, "avg_pool2d", step, made, s.n * s.c * (s.h * s.w + s.oh * s.ow), (y,))

    def global_avg_pool(
        self, str name, x, y, *, shape, x_scale, x_zero, y_scale, y_zero,
        str x_type="u8", str y_type="u8",
    ):
        cdef qir_step step
        cdef qir_average how = average_of(
            name, x_scale, x_zero, x_type, y_scale, y_zero, y_type, False
        )
        n, h, w, c = of_length(name, "shape", shape, 4, 0)
        x, y = self.needs(name, "x", x, n * h * w * c), self.needs(name, "y", y, n * c)
        n = n if c else 0  # an empty result has no tasks
        made = qir_global_average_make(self.bits, n, h * w if n else 0, c, &how, x, y, &step)
        self.append(name, "global_avg_pool", step, made, n * c * (h * w + 1), (y,))

    def mean(self, str name, x, y, *, shape, x_scale=1, x_zero=0, str x_type="u8", table=None):
        cdef qir_mean how
        cdef qir_step step
        how.x_scale = scale_of(name, "x_scale", x_scale)
        how.x_zero = code_in(name, "x_zero", x_type, x_zero)
        how.x_flip, how.tabled = flip_of(name, x_type), table is not None
        for i, number in enumerate(reals_of(name, table) if how.tabled else ()):
            how.table[i] = number
        outer, rows, inner = of_length(name, "shape", shape, 3, 0)
        if rows > LARGEST_MEAN:
            raise ValueError(f"{name}: a mean of {rows}; {LARGEST_MEAN} is the most possible")
        size = outer * inner
        x, y = self.needs(name, "x", x, size * rows), self.needs(name, "y", y, 4 * size)
        made = qir_mean_make(self.bits, outer if inner else 0, rows, inner, &how, x, y, &step)
        self.append(name, "mean", step, made, size * (rows + 4), (y,))

    cdef qir_window window(
        self, str name, x, y, shape, kernel, stride, pad, dilation, out
    ) except *:
        cdef qir_window s
        n, h, w, c = of_length(name, "shape", shape, 4, 0)
        kernel = of_length(name, "kernel", kernel, 2, 1, LARGEST_STEP)
        stride = of_length(name, "stride", stride, 2, 1, LARGEST_STEP)
        pad = of_length(name, "pad", pad, 4, 0, LARGEST_STEP)
        dilation = of_length(name, "dilation", dilation, 2, 1, LARGEST_STEP)
        integer(name, "size of the kernel", kernel[0] * kernel[1], 1, LARGEST_WINDOW)
        if out is None:
            out = windows(name, (h, w), kernel, stride, pad, dilation)
        oh, ow = of_length(name, "out", out, 2, 0, LARGEST_STEP)
        self.needs(name, "x", x, n * h * w * c)
        self.needs(name, "y", y, n * oh * ow * c)
        s.n, s.h, s.w, s.c, s.oh, s.ow = n if oh * ow * c else 0, h, w, c, oh, ow
        (s.kh, s.kw), (s.sh, s.sw), (s.dh, s.dw) = kernel, stride, dilation
        s.pt, s.pl = pad[:2]
        return s

    # ---- rows ----

    def softmax(
        self, str name, x, y, *, rows, width, y_scale, y_zero, x_scale=1,
        str x_type="u8", str y_type="u8", bint wide=False, powers=None,
    ):
        cdef qir_softmax s
        cdef qir_step step
        cdef const float[::1] given
        rows, width = whole(name, "rows and width", (rows, width), 0)
        x = self.needs(name, "x", x, rows * width)
        y = self.needs(name, "y", y, rows * width)
        s.rows, s.width = rows if width else 0, width
        x_scale = float(scale_of(name, "x_scale", x_scale))  # float64 from here on
        s.gain = scale_of(name, "y_scale", y_scale)
        if powers is not None:
            given = reals_of(name, powers)
            for i in range(256):
                s.table[i] = given[i]
        else:
            # Exponents are shifted up so far that a row of the largest does not overflow.
            room = <double>logf(FLT_MAX / <float>width) - 5 if width else 0
            shift = max(0.0, room) / x_scale
            for i in range(256):
                s.table[i] = <float>exp((i - 255 + shift) * x_scale)
            s.gain = floorf(<float>1 / s.gain)
        s.x_flip, s.wide, s.inverse = flip_of(name, x_type), wide, powers is not None
        s.code = code_of(name, y_type, y_zero, None, None)
        made = qir_softmax_make(self.bits, &s, x, y, &step)
        self.append(name, "softmax", step, made, 2 * rows * width, (y,))

    def layer_norm(self, str name, x, y, *, rows, gamma, beta=None, eps):
        cdef qir_layer_norm s
        cdef qir_step step
        cdef const float[::1] slopes, shifts
        slopes = floats_of(name, "gamma", gamma)
        width, rows = slopes.shape[0], integer(name, "rows", rows, 0)
        s.width, s.eps = width, float(eps)
        s.gamma = &slopes[0] if width else NULL
        s.beta = NULL
        if beta is not None:
            shifts = floats_of(name, "beta", beta)
            if shifts.shape[0] != width:
                raise ValueError(f"{name}: {shifts.shape[0]} numbers of beta, {width} of gamma")
            s.beta = &shifts[0] if width else NULL
        size = 4 * rows * width
        x, y = self.needs(name, "x", x, size), self.needs(name, "y", y, size)
        made = qir_layer_norm_make(self.bits, rows, &s, x, y, &step)
        self.append(name, "layer_norm", step, made, 2 * size, (y,))

    def real_softmax(self, str name, x, y, *, rows, width, in_f32=False):
        cdef qir_step step
        rows, width = whole(name, "rows and width", (rows, width), 0)
        size = 4 * rows * width
        x, y = self.needs(name, "x", x, size), self.needs(name, "y", y, size)
        made = qir_row_softmax_make(self.bits, rows, width, bool(in_f32), x, y, &step)
        self.append(name, "real_softmax", step, made, 2 * size, (y,))

    # ---- bytes ----

    def copy(
        self, str name, x, y, *, rows, width, x_stride=None, y_stride=None,
        x_offset=0, y_offset=0, table=None,
    ):
        cdef qir_copy s
        cdef qir_step step
        cdef const uint8_t[::1] entries
        cdef const uint8_t *through = NULL
        if table is not None:
            entries = table_of(name, table)
            through = &entries[0]
        x_stride = width if x_stride is None else x_stride
        y_stride = width if y_stride is None else y_stride
        sizes = (rows, width, x_stride, y_stride, x_offset, y_offset)
        sizes = whole(name, "rows, width, strides and offsets", sizes, 0)
        rows, width, x_stride, y_stride, x_offset, y_offset = sizes
        if rows and y_stride < width:
            raise ValueError(f"{name}: rows of {width} bytes overlap at a stride of {y_stride}")
        rows, last = (rows, rows - 1) if rows and width else (0, 0)
        x = self.needs(name, "x", x, x_offset + last * x_stride + width if rows else 0)
        y = self.needs(name, "y", y, y_offset + last * y_stride + width if rows else 0)
        s.rows, s.width, s.x_stride, s.y_stride = rows, width, x_stride, y_stride
        s.x_offset, s.y_offset = x_offset, y_offset
        made = qir_copy_make(self.bits, &s, through, x, y, &step)
        self.append(name, "copy", step, made, 2 * rows * width, (y,))

    def fill(self, str name, y, *, size, value, offset=0):
        cdef qir_step step
        size, offset = whole(name, "size and offset", (size, offset), 0)
        value = integer(name, "value", value, 0, 255)
        y = self.needs(name, "y", y, offset + size)
        made = qir_fill_make(offset, size, value, y, &step)
        self.append(name, "fill", step, made, size, (y,))

    def strided(self, str name, x, y, *, shape, steps, offset=0, itemsize=1):
        cdef qir_strided s
        cdef qir_step step
        shape, steps = whole(name, "shape", shape, 0), whole(name, "steps", steps, 0)
        offset, item = integer(name, "offset", offset, 0), item_of(name, itemsize)
        if len(shape) != len(steps):
            raise ValueError(f"{name}: {len(steps)} steps for {len(shape)} axes")
        size = math.prod(shape) * item
        last = offset + sum((n - 1) * by for n, by in zip(shape, steps))
        x = self.needs(name, "x", x, (last + 1) * item if size else 0)
        y = self.needs(name, "y", y, size)
        shape, steps = joined(shape, steps)
        if len(shape) > QIR_MAX_RANK:
            raise ValueError(f"{name}: {len(shape)} axes, {QIR_MAX_RANK} are possible")
        s.rank, s.offset, s.itemsize = len(shape), offset, item
        for i in range(len(shape)):
            s.shape[i], s.steps[i] = shape[i], steps[i]
        made = qir_strided_make(&s, x, y, &step)
        self.append(name, "strided", step, made, 2 * size, (y,))

    def transpose(self, str name, x, y, *, shape, perm, itemsize=1):
        cdef qir_permutation p
        cdef qir_step step
        shape = whole(name, "shape", shape, 0)
        itemsize = item_of(name, itemsize)
        size = math.prod(shape) * itemsize
        x, y = self.needs(name, "x", x, size), self.needs(name, "y", y, size)
        shape, perm = permutation(name, shape, perm)
        if len(shape) > QIR_MAX_RANK:
            raise ValueError(f"{name}: {len(shape)} axes, {QIR_MAX_RANK} are possible")
        p.rank, p.itemsize = len(shape), itemsize
        for i in range(len(shape)):
            p.shape[i], p.perm[i] = shape[i], perm[i]
        made = qir_transpose_make(&p, x, y, &step)
        self.append(name, "transpose", step, made, 2 * size, (y,))

    # ---- by indices that are computed ----

    def gather(self, str name, x, indices, y, *, outer, rows, width, count, itemsize=8):
        cdef qir_gather g
        cdef qir_step step
        sizes = (outer, rows, width, count)
        outer, rows, width, count = whole(name, "outer, rows, width and count", sizes, 0)
        if itemsize not in (4, 8):
            raise ValueError(f"{name}: indices of {itemsize} bytes; they have 4 or 8")
        x = self.needs(name, "x", x, outer * rows * width)
        indices = self.needs(name, "indices", indices, count * itemsize)
        y = self.needs(name, "y", y, outer * count * width)
        g.outer, g.rows, g.width, g.count = outer if count else 0, rows, width, count
        g.wide = itemsize == 8
        made = qir_gather_make(&g, x, indices, y, &step)
        self.append(name, "gather", step, made, 2 * outer * count * width, (y,))
        self.list[self.count - 1].fault = qir_gather_fault(step.params)

    # ---- recurrent layers ----

    def recurrent(
        self, str name, x, y, h, c, w, r, bias, *, str op, steps, batch, h0=None, c0=None,
        bint back=False, bint batch_first=False, bint reset_after=False, peephole=None,
    ):
        cdef qir_recurrent s
        cdef qir_step step
        cdef const float[::1] weights, recurrences, biases, peepholes
        if op not in ("lstm", "gru"):
            raise ValueError(f"{name}: no recurrent layer {op!r}; known are lstm, gru")
        gates = 4 if op == "lstm" else 3
        w, r, bias = np.asarray(w), np.asarray(r), np.asarray(bias)
        if any(a.dtype != np.float32 or 0 in a.shape for a in (w, r, bias)):
            raise ValueError(f"{name}: w, r and bias are float32 with elements")
        if w.ndim != 3 or r.ndim != 3 or w.shape[0] not in (1, 2):
            raise ValueError(f"{name}: w {w.shape} and r {r.shape} are not (directions, rows, k)")
        ways, hidden, width = w.shape[0], r.shape[2], w.shape[2]
        total = gates * hidden
        if w.shape[1] != total or r.shape != (ways, total, hidden) or bias.shape != (
            ways, 2 * total
        ):
            raise ValueError(
                f"{name}: w {w.shape}, r {r.shape} and bias {bias.shape} do not fit {gates} gates"
            )
        steps, batch = whole(name, "steps and batch", (steps, batch), 1)
        weights = np.ascontiguousarray(w).reshape(-1)
        recurrences = np.ascontiguousarray(r).reshape(-1)
        biases = np.ascontiguousarray(bias).reshape(-1)
        s.gates, s.reset_after, s.back, s.ways = gates, reset_after, back, ways
        s.batch_first, s.steps, s.batch, s.width = batch_first, steps, batch, width
        s.hidden, s.w, s.r, s.bias = hidden, &weights[0], &recurrences[0], &biases[0]
        s.peephole = NULL
        if peephole is not None:
            if gates == 3:
                raise ValueError(f"{name}: a gru has no peepholes")
            peephole = row_of(name, "peephole", peephole, 3 * ways * hidden)
            peepholes = peephole
            s.peephole = &peepholes[0]
        state = 4 * ways * batch * hidden
        s.x = self.needs(name, "x", x, 4 * steps * batch * width)
        s.h0 = -1 if h0 is None else self.needs(name, "h0", h0, state)
        s.c0 = -1 if c0 is None or gates == 3 else self.needs(name, "c0", c0, state)
        s.y, s.h = self.needs(name, "y", y, state * steps), self.needs(name, "h", h, state)
        s.c = self.needs(name, "c", c, state) if gates == 4 else -1
        made = qir_recurrent_make(self.bits, &s, &step)
        writes = [s.y, s.h, s.c][:gates - 1]
        traffic = 4 * steps * batch * (width + ways * hidden) + w.nbytes + r.nbytes
        work = steps * batch * (w.size + r.size)
        self.append(name, "recurrent", step, made, traffic, writes, None, work)

    # ---- everything else ----

    def call(self, str name, function, inputs, outputs):
        cdef qir_step step
        call = call_of(name, function, inputs, outputs)
        for i, operand in enumerate(call.operands):
            self.needs(name, f"operand {i}", operand.buffer, operand.size)
        traffic = sum(operand.size for operand in call.operands)
        writes = [operand.buffer for operand in call.operands if operand.written]
        step.run, step.params, step.tasks, step.scratch = NULL, NULL, 0, 0
        self.append(name, "call", step, 1, traffic, writes, call)

# Steps on tensors of any element type: _cpu.pyx includes this, and its Plan has them too.


KINDS = {
    "f32": 4, "f64": 8, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8,
    "bool": 1,
}  # bytes of an element; in the order of enum qir_kind
OPERATIONS = (
    "add", "sub", "mul", "div", "min", "max", "pow", "squared_difference", "prelu", "equal",
    "not_equal", "less", "less_equal", "greater", "greater_equal", "and", "or", "xor",
)  # as enum qir_operation has them
FUNCTIONS = (
    "exp", "log", "sqrt", "reciprocal", "floor", "ceil", "round", "trunc", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "exp2", "expm1", "log1p",
    "log2", "log10", "rsqrt", "erf", "erfc", "sign", "neg", "abs", "square", "sigmoid", "tanh",
    "softplus", "softsign", "log_sigmoid", "mish", "silu", "gelu", "gelu_tanh", "elu", "selu",
    "hard_sigmoid", "hard_swish",
)  # as TABLE of tensors/elements.c has them
REDUCTIONS = (
    "sum", "prod", "max", "min", "l1", "l2", "log_sum", "log_sum_exp", "sum_square", "mean",
)  # as enum qir_reduction has them
COMPARISONS = OPERATIONS[9:15]
ORDERED = ("f32", "i32", "i64")
"""Kinds whose numbers along an axis are put together."""


LARGEST_ZERO = 1 << 30
"""Largest zero point: what 16 bits add to it fits 32."""


def applied():
    return {
        op: [
            kind for j, kind in enumerate(KINDS)
            if qir_apply_known(<qir_operation><int>i, <qir_kind><int>j)
        ]
        for i, op in enumerate(OPERATIONS)
    }


def one_of(str name, str what, value, known):
    """Returns the place of a name among those that are known."""
    if value not in known:
        raise ValueError(f"{name}: no {what} {value!r}; known are {', '.join(known)}")
    return list(known).index(value)


cdef class Tensors(Running):
    def apply(self, str name, a, b, y, *, str op, str kind, shape, a_steps, b_steps):
        cdef qir_step step
        which, of = one_of(name, "operation", op, OPERATIONS), one_of(name, "kind", kind, KINDS)
        if not qir_apply_known(which, of):
            raise ValueError(f"{name}: no loop for {op} of {kind}")
        size, shape = KINDS[kind], whole(name, "shape", shape, 0)
        cdef qir_apply how = self.operands(
            name, shape, (("a", a, a_steps, size), ("b", b, b_steps, size)),
            y, 1 if op in COMPARISONS else size,
        )
        made = qir_apply_make(which, of, &how, a, b, y, &step)
        self.append(name, "apply", step, made, 3 * size * math.prod(shape), (y,))

    def where(
        self, str name, condition, a, b, y, *, shape, condition_steps, a_steps, b_steps, itemsize=4,
    ):
        cdef qir_step step
        item, shape = item_of(name, itemsize), whole(name, "shape", shape, 0)
        given = (
            ("condition", condition, condition_steps, 1), ("a", a, a_steps, item),
            ("b", b, b_steps, item),
        )
        cdef qir_apply how = self.operands(name, shape, given, y, item)
        made = qir_where_make(item, &how, condition, a, b, y, &step)
        self.append(name, "where", step, made, (1 + 3 * item) * math.prod(shape), (y,))

    cdef qir_apply operands(self, str name, shape, given, y, y_size) except *:
        cdef qir_apply how
        shape = whole(name, "shape", shape, 0)
        if not 1 <= len(shape) <= QIR_TENSOR_RANK:
            raise ValueError(f"{name}: {len(shape)} axes, 1 to {QIR_TENSOR_RANK} are possible")
        size = math.prod(shape)
        how.rank = len(shape)
        for i in range(len(shape)):
            how.shape[i] = shape[i]
            for o in range(3):
                how.steps[o][i] = 0
        for o, (slot, buffer, steps, item) in enumerate(given):
            steps = of_length(name, f"steps of {slot}", steps, len(shape), 0)
            last = sum((n - 1) * by for n, by in zip(shape, steps)) if size else -1
            self.needs(name, slot, buffer, (last + 1) * item)
            for i in range(len(shape)):
                how.steps[o][i] = steps[i]
        self.needs(name, "y", y, size * y_size)
        return how

    def function(self, str name, x, y, *, str op, size, a=0.0, b=0.0):
        cdef qir_function how
        cdef qir_step step
        how.which = one_of(name, "function", op, FUNCTIONS)
        size = integer(name, "size", size, 0)
        how.a, how.b = number_of(name, "a", a), number_of(name, "b", b)
        x, y = self.needs(name, "x", x, 4 * size), self.needs(name, "y", y, 4 * size)
        made = qir_function_make(self.bits, &how, size, x, y, &step)
        self.append(name, "function", step, made, 8 * size, (y,))

    def cast(self, str name, x, y, *, size, str x_kind, str y_kind):
        cdef qir_step step
        source, to = one_of(name, "kind", x_kind, KINDS), one_of(name, "kind", y_kind, KINDS)
        size = integer(name, "size", size, 0)
        x = self.needs(name, "x", x, size * KINDS[x_kind])
        y = self.needs(name, "y", y, size * KINDS[y_kind])
        made = qir_cast_make(source, to, size, x, y, &step)
        self.append(name, "cast", step, made, size * (KINDS[x_kind] + KINDS[y_kind]), (y,))

    def reduce(self, str name, x, y, *, str op, shape, str kind="f32"):
        cdef qir_step step
        which = one_of(name, "reduction", op, REDUCTIONS)
        if kind != "f32" and which > 3:
            raise ValueError(f"{name}: no {op} of {kind}")
        cdef qir_along s = self.along(name, x, shape, kind)
        y = self.needs(name, "y", y, s.outer * s.inner * KINDS[kind])
        made = qir_reduce_make(which, one_of(name, "kind", kind, KINDS), &s, x, y, &step)
        self.append(name, "reduce", step, made, KINDS[kind] * s.outer * (s.rows + 1) * s.inner, (y,))

    def place(self, str name, x, y, *, shape, str kind="f32", bint least=False, bint last=False):
        cdef qir_step step
        cdef qir_along s = self.along(name, x, shape, kind)
        if not s.rows and s.outer * s.inner:
            raise ValueError(f"{name}: an axis without elements has no greatest")
        y = self.needs(name, "y", y, 8 * s.outer * s.inner)
        made = qir_place_make(one_of(name, "kind", kind, KINDS), least, last, &s, x, y, &step)
        self.append(name, "place", step, made, s.outer * s.inner * (s.rows * KINDS[kind] + 8), (y,))

    def top_k(self, str name, x, y, places, *, shape, k, str kind="f32", bint least=False):
        cdef qir_step step
        cdef qir_along s = self.along(name, x, shape, kind)
        k = integer(name, "k", k, 0, s.rows)
        size = s.outer * k * s.inner
        s.outer = s.outer if size else 0  # an empty result has no tasks
        y = self.needs(name, "y", y, size * KINDS[kind])
        places = self.needs(name, "places", places, 8 * size)
        made = qir_top_k_make(one_of(name, "kind", kind, KINDS), least, k, &s, x, y, places, &step)
        self.append(name, "top_k", step, made, s.outer * s.rows * s.inner * KINDS[kind], (y, places))

    cdef qir_along along(self, str name, x, shape, str kind) except *:
        cdef qir_along s
        one_of(name, "kind of numbers along an axis,", kind, ORDERED)
        outer, rows, inner = of_length(name, "shape", shape, 3, 0)
        self.needs(name, "x", x, outer * rows * inner * KINDS[kind])
        s.outer, s.rows, s.inner = outer, rows, inner
        return s

    # ---- quantized values ----

    def encode(
        self, str name, x, y, *, shape, str kind, low, high, scale=None, zero=None, scale_at=None,
        zero_at=None, bint away=False,
    ):
        cdef qir_step step
        low, high = integer(name, "low", low, -65536, 65536), integer(name, "high", high, low, 65536)
        self.coded(name, kind, ("i8", "u8", "i16", "u16"), shape, x, 4, y, KINDS.get(kind, 1))
        cdef float[::1] scales
        cdef int32_t[::1] zeros
        cdef qir_codes_shape s
        s.low, s.high, s.away = low, high, away
        s.outer, s.channels, s.inner = of_length(name, "shape", shape, 3, 0)
        s.scale, s.zero = NULL, NULL
        s.scale_at, s.zero_at = self.given(name, scale_at, zero_at, s.channels, KINDS[kind])
        if scale_at is None:
            scales, zeros = maps_of(name, scale, zero, s.channels)
            if s.channels:
                s.scale, s.zero = &scales[0], &zeros[0]
        made = qir_encode_make(self.bits, one_of(name, "kind", kind, KINDS), &s, x, y, &step)
        size = s.outer * s.channels * s.inner
        self.append(name, "encode", step, made, size * (4 + KINDS[kind]), (y,))

    def decode(
        self, str name, x, y, *, shape, str kind, scale=None, zero=None, scale_at=None, zero_at=None,
    ):
        cdef qir_step step
        self.coded(name, kind, ("i8", "u8", "i16", "u16", "i32"), shape, x, KINDS.get(kind, 1), y, 4)
        cdef float[::1] scales
        cdef int32_t[::1] zeros
        cdef qir_codes_shape s
        s.low = s.high = s.away = 0
        s.outer, s.channels, s.inner = of_length(name, "shape", shape, 3, 0)
        s.scale, s.zero = NULL, NULL
        s.scale_at, s.zero_at = self.given(name, scale_at, zero_at, s.channels, KINDS[kind])
        if scale_at is None:
            scales, zeros = maps_of(name, scale, zero, s.channels)
            if s.channels:
                s.scale, s.zero = &scales[0], &zeros[0]
        made = qir_decode_make(one_of(name, "kind", kind, KINDS), &s, x, y, &step)
        size = s.outer * s.channels * s.inner
        self.append(name, "decode", step, made, size * (4 + KINDS[kind]), (y,))

    cdef int coded(self, str name, str kind, known, shape, x, x_size, y, y_size) except -1:
        one_of(name, "kind of integers,", kind, known)
        size = math.prod(of_length(name, "shape", shape, 3, 0))
        self.needs(name, "x", x, size * x_size)
        self.needs(name, "y", y, size * y_size)
        return 0

    cdef given(self, str name, scale_at, zero_at, channels, size):
        """Buffers of one scale and one zero, which a step before computes."""
        if scale_at is None:
            return -1, -1
        if channels != 1:
            raise ValueError(f"{name}: {channels} channels; a computed scale is for one")
        scale = self.needs(name, "scale", scale_at, 4)
        return scale, -1 if zero_at is None else self.needs(name, "zero", zero_at, size)

    def choose(self, str name, x, scale, zero, *, size, str kind="u8"):
        cdef qir_step step
        one_of(name, "kind of integers,", kind, ("u8", "i8"))
        size = integer(name, "size", size, 0)
        x = self.needs(name, "x", x, 4 * size)
        scale, zero = self.needs(name, "scale", scale, 4), self.needs(name, "zero", zero, 1)
        which = one_of(name, "kind", kind, KINDS)
        made = qir_choose_make(self.bits, which, size, x, scale, zero, &step)
        self.append(name, "choose", step, made, 4 * size, (scale, zero))
        self.list[self.count - 1].fault = qir_choose_fault(step.params)

    # ---- products in float64 ----

    def wide_product(
        self, str name, a, b, y, bias=None, *, sizes, a_at, b_at, y_at, a_row, b_steps, y_row,
        bint to_whole=False, codes=None, scale=None, zero=None, bits=8, block=1,
    ):
        cdef qir_wide_product o
        cdef qir_step step
        cdef const size_t[::1] offsets
        cdef const float[::1] biases, scales
        cdef const uint8_t[::1] bytes
        cdef const int32_t[::1] zeros
        m, k, n = of_length(name, "sizes", sizes, 3, 0)
        integer(name, "values of a sum", k, 1)
        a_row, y_row = integer(name, "a_row", a_row, 0), integer(name, "y_row", y_row, 0)
        value, column = of_length(name, "b_steps", b_steps, 2, 0)
        if m > 1 and y_row < n:
            raise ValueError(f"{name}: rows of {n} results overlap at a stride of {y_row}")
        at = offsets_of(name, a_at, b_at, y_at)
        o.s.m, o.s.k, o.s.n, o.s.batches = m, k, n, at.shape[1] if m * n else 0  # else no tasks
        o.s.a_row, o.s.b_value, o.s.b_column, o.s.y_row = a_row, value, column, y_row
        offsets = at.reshape(-1)
        o.s.a_at = o.s.b_at = o.s.y_at = NULL
        o.a, o.y, o.to_whole = a, y, to_whole
        o.b = -1 if codes is not None else b
        o.bias, o.codes, o.scale, o.zero = NULL, NULL, NULL, NULL
        o.bits, o.block = 8, 1
        if codes is not None:
            bits, block = integer(name, "bits", bits, 4, 8), integer(name, "block", block, 1)
            if bits not in (4, 8):
                raise ValueError(f"{name}: integers of {bits} bits; they have 4 or 8")
            o.bits, o.block = bits, block
            bytes = integers_of(name, "codes", codes, np.uint8)
            scales = floats_of(name, "scale", scale)
            zeros = integers_of(name, "zero", zero, np.int32)
            count = n * -(-k // block)
            if bytes.shape[0] != n * (-(-k * bits // 8)) or not (
                scales.shape[0] == zeros.shape[0] == count
            ):
                raise ValueError(f"{name}: codes, scales and zeros do not fit {n} columns of {k}")
            if n:
                o.codes, o.scale, o.zero = &bytes[0], &scales[0], &zeros[0]
        if bias is not None:
            biases = floats_of(name, "bias", bias)
            if biases.shape[0] != n:
                raise ValueError(f"{name}: bias has {biases.shape[0]} numbers for {n} columns")
            o.bias = &biases[0] if n else NULL
        if o.s.batches:
            starts = at.max(axis=1).tolist()
            o.a = self.needs(name, "a", a, 4 * (starts[0] + (m - 1) * a_row + k))
            if codes is None:
                b_end = starts[1] + (k - 1) * value + (n - 1) * column + 1
                o.b = self.needs(name, "b", b, 4 * b_end)
            o.y = self.needs(name, "y", y, 4 * (starts[2] + (m - 1) * y_row + n))
            o.s.a_at, o.s.b_at = &offsets[0], &offsets[o.s.batches]
            o.s.y_at = &offsets[2 * o.s.batches]
        made = qir_wide_product_make(self.bits, &o, &step)
        held = k * n * (4 if codes is None else bits / 8)
        traffic = int(o.s.batches * (4 * (m * k + m * n) + held))
        work = o.s.batches * m * k * n
        self.append(name, "wide_product", step, made, traffic, (y,), None, work)

    def wide_conv(
        self, str name, x, weight, y, bias=None, *, shape, kernel, out, stride, pad, dilation,
        groups=1, bint transposed=False, bint to_whole=False,
    ):
        cdef qir_wide_conv o
        cdef qir_step step
        cdef const float[::1] biases
        n, c, *inside = of_length(name, "shape", shape, 5, 0)
        integer(name, "channels", c, 1)
        oc, *kernel = of_length(name, "kernel", kernel, 4, 1, LARGEST_STEP)
        out = of_length(name, "out", out, 3, 0, LARGEST_STEP)
        stride = of_length(name, "stride", stride, 3, 1, LARGEST_STEP)
        dilation = of_length(name, "dilation", dilation, 3, 1, LARGEST_STEP)
        pad = of_length(name, "pad", pad, 3, 0, LARGEST_STEP)
        groups = integer(name, "groups", groups, 1)
        if c % groups or oc % groups:
            raise ValueError(f"{name}: {c} and {oc} channels do not split into {groups} groups")
        weights = (c * (oc // groups) if transposed else oc * (c // groups)) * math.prod(kernel)
        read, wrote = n * c * math.prod(inside), n * oc * math.prod(out)
        o.x, o.y = self.needs(name, "x", x, 4 * read), self.needs(name, "y", y, 4 * wrote)
        o.w = self.needs(name, "weight", weight, 4 * weights)
        o.n, o.c, o.oc, o.groups = n if wrote else 0, c, oc, groups
        o.transposed, o.to_whole, o.bias = transposed, to_whole, NULL
        for i in range(3):
            o.out[i], o.kernel[i], o.stride[i] = out[i], kernel[i], stride[i]
            o.dilation[i], o.front[i] = dilation[i], pad[i]
            integer(name, "size", inside[i], 0, LARGEST_STEP)
            o.inside[i] = inside[i]
        if bias is not None:
            biases = floats_of(name, "bias", bias)
            if biases.shape[0] != oc:
                raise ValueError(f"{name}: bias has {biases.shape[0]} numbers for {oc} channels")
            o.bias = &biases[0]
        made = qir_wide_conv_make(self.bits, &o, &step)
        work = n * weights * math.prod(inside if transposed else out)
        traffic = 4 * (read + wrote + weights)
        self.append(name, "wide_conv", step, made, traffic, (y,), None, work)


def maps_of(str name, scale, zero, channels):
    """Returns scales and zeros, one for each channel."""
    scales = floats_of(name, "scale", scale).copy()
    zeros = integers_of(name, "zero", zero, np.int32).copy()
    if len(scales) != channels or len(zeros) != channels:
        raise ValueError(f"{name}: {len(scales)} scales and {len(zeros)} zeros, {channels} channels")
    if np.any((zeros > LARGEST_ZERO) | (zeros < -LARGEST_ZERO)):
        raise ValueError(f"{name}: a zero is beyond {LARGEST_ZERO}")
    return scales, zeros

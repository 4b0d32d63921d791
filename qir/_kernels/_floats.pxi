# Steps that compute with float32 alone: _cpu.pyx includes this, and its Plan has them too.


UNARY = (
    "bound", "sigmoid", "tanh", "erf", "gelu", "silu", "sqrt", "square", "hard_sigmoid",
    "hard_swish", "leaky_relu", "abs",
)  # as enum qir_unary_op has them


LARGEST_FRAME = 1 << 28
"""Most floats of an image with its padding."""
LARGEST_IMAGE = 1 << 31
"""Most floats of all channels of one: windows are read by offsets of 32 bits."""


POINTWISE = {"real": REALS, "function": FUNCTIONS, "unary": UNARY}
"""Ops of a chain on each float by itself, in the order of enum qir_pointwise_kind."""


cdef qir_bounds bounds_of(str name, low, high) except *:
    cdef qir_bounds bounds
    bounds.bounded = low is not None or high is not None
    bounds.low = -math.inf if low is None else real_of(name, "low", low)
    bounds.high = math.inf if high is None else real_of(name, "high", high)
    return bounds


cdef qir_conv_shape conv_of(
    str name, shape, kernel, stride, pad, dilation, groups
) except *:
    """A convolution of images, whose shape is NCHW however they are held."""
    cdef qir_conv_shape s
    n, c, h, w = of_length(name, "shape", shape, 4, 1)
    oc, kh, kw = of_length(name, "kernel", kernel, 3, 1, LARGEST_STEP)
    stride = of_length(name, "stride", stride, 2, 1, LARGEST_STEP)
    pad = of_length(name, "pad", pad, 4, 0, LARGEST_STEP)
    dilation = of_length(name, "dilation", dilation, 2, 1, LARGEST_STEP)
    groups = integer(name, "groups", groups, 1)
    if c % groups or oc % groups:
        raise ValueError(f"{name}: {c} and {oc} channels do not split into {groups} groups")
    oh, ow = windows(name, (h, w), (kh, kw), stride, pad, dilation)
    if not oh * ow:
        raise ValueError(f"{name}: no window fits")
    frame = (h + pad[0] + pad[2]) * (w + pad[1] + pad[3])
    integer(name, "size of an image with its padding", frame, 1, LARGEST_FRAME)
    stride = [by if count > 1 else 1 for by, count in zip(stride, (oh, ow))]
    s.n, s.h, s.w, s.c, s.oh, s.ow, s.oc = n, h, w, c, oh, ow, oc
    s.kh, s.kw, s.groups = kh, kw, groups
    (s.sh, s.sw), (s.dh, s.dw), (s.pt, s.pl) = stride, dilation, pad[:2]
    return s


cdef row_of(str name, str what, given, count):
    """A row of so many float32."""
    row = floats_of(name, what, given)
    if row.shape[0] != count:
        raise ValueError(f"{name}: {what} has {row.shape[0]} numbers, not {count}")
    return row


def last_conv_options(
    *, shape, kernel, stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1), groups=1, first=False,
    op=None, a=0.0, b=0.0, times=False, low=None, high=None,
):
    """Returns what a convolution is told by name."""
    return (shape, kernel, stride, pad, dilation, groups), (first, op, a, b, times), (low, high)


cdef tuple last_conv_of(str name, qir_last_conv *o, weight, bias, dict how):
    """Fills o, but for its buffers; returns the arrays that it points to."""
    cdef const float[::1] biases, weights
    cdef bint first, times
    shaped, (first, op, a, b, times), (low, high) = last_conv_options(**how)
    shape, kernel, stride, pad, dilation, groups = shaped
    o.s = conv_of(name, shape, kernel, stride, pad, dilation, groups)
    lines = max(o.s.h, (o.s.oh - 1) * o.s.sh + (o.s.kh - 1) * o.s.dh + 1)
    across = max(o.s.w, (o.s.ow - 1) * o.s.sw + (o.s.kw - 1) * o.s.dw + 1)
    integer(name, "size of an image with its channels", o.s.c * lines * across, 1, LARGEST_IMAGE)
    weight = row_of(name, "weight", weight, o.s.oc * (o.s.c // o.s.groups) * o.s.kh * o.s.kw)
    weights = weight
    o.weight, o.bias = &weights[0], NULL
    if bias is not None:
        bias = row_of(name, "bias", bias, o.s.oc)
        biases = bias
        o.bias = &biases[0]
    o.first = first
    if op is not None and op not in UNARY:
        raise ValueError(f"{name}: no op {op!r} on a float; known are {', '.join(UNARY)}")
    o.after.op, o.after.times = -1 if op is None else UNARY.index(op), times
    o.after.how.a, o.after.how.b = number_of(name, "a", a), number_of(name, "b", b)
    o.after.added = -1
    o.after.bounds = bounds_of(name, low, high)
    return weight, bias


cdef bint is_last_depthwise(const qir_last_conv *o) noexcept:
    taps = o.s.kh * o.s.kw
    return o.s.groups == o.s.c == o.s.oc > 1 and taps <= QIR_SGEMM_DEPTH and not o.first


cdef bint follows(const qir_last_conv *x, const qir_last_conv *y) noexcept:
    """Whether y reads what x writes."""
    same = x.s.n == y.s.n and x.s.oc == y.s.c and x.s.oh == y.s.h and x.s.ow == y.s.w
    return same and not y.first


cdef bint is_chain(const qir_last_chain *s) noexcept:
    if not is_last_depthwise(s.middle) or s.before != NULL and not follows(s.before, s.middle):
        return False
    if s.after == NULL:
        return True
    single = s.after.s.kh * s.after.s.kw * s.after.s.sh * s.after.s.sw * s.after.s.groups == 1
    whole = s.after.s.oh == s.after.s.h and s.after.s.ow == s.after.s.w
    return follows(s.middle, s.after) and single and whole and not s.after.s.pt | s.after.s.pl


cdef class Floats(Tensors):
    def float_linear(self, str name, x, y, weight, bias, *, rows, low=None, high=None):
        cdef qir_float_linear s
        cdef qir_step step
        cdef const float[::1] weights, biases
        weight = np.asarray(weight)
        if weight.ndim != 2 or weight.dtype != np.float32 or 0 in weight.shape:
            raise ValueError(
                f"{name}: weight is {weight.dtype} {weight.shape}, not float32 (n, k)"
            )
        n, k = weight.shape
        s.n, s.k, s.rows = n, k, integer(name, "rows", rows, 0)
        weights = np.ascontiguousarray(weight).reshape(-1)
        s.weight, s.bias = &weights[0], NULL
        if bias is not None:
            biases = floats_of(name, "bias", bias)
            if biases.shape[0] != n:
                raise ValueError(f"{name}: bias has {biases.shape[0]} numbers, weight makes {n}")
            s.bias = &biases[0]
        s.bounds = bounds_of(name, low, high)
        s.x = self.needs(name, "x", x, 4 * s.rows * k)
        s.y = self.needs(name, "y", y, 4 * s.rows * n)
        made = qir_float_linear_make(self.bits, &s, &step)
        traffic, work = 4 * (s.rows * (k + n) + n * k), s.rows * n * k
        self.append(name, "float_linear", step, made, traffic, (y,), None, work)

    def pointwise(self, str name, inputs, y, *, constants, ops, size):
        cdef qir_pointwise s
        cdef qir_step step
        size = integer(name, "size", size, 0)
        inputs, constants, ops = list(inputs), list(constants), list(ops)
        for what, given, most in (
            ("inputs", inputs, QIR_POINTWISE_INPUTS),
            ("constants", constants, QIR_POINTWISE_CONSTANTS),
            ("ops", ops, QIR_POINTWISE_OPS),
        ):
            integer(name, f"number of {what}", len(given), what == "ops", most)
        s.size, s.inputs, s.constants, s.ops = size, len(inputs), len(constants), len(ops)
        for i, x in enumerate(inputs):
            s.x[i] = self.needs(name, "x", x, 4 * size)
        for i, constant in enumerate(constants):
            s.constant[i] = real_of(name, "constant", constant)
        for i, op in enumerate(ops):
            kind, which, a, b, low, high = op
            number = one_of(name, "kind of op,", kind, POINTWISE)
            before = len(inputs) + len(constants) + i - 1  # the last value there is by then
            s.op[i].kind = <qir_pointwise_kind><int>number
            s.op[i].which = one_of(name, kind, which, POINTWISE[kind])
            s.op[i].a, s.op[i].b = integer(name, "a", a, 0, before), integer(name, "b", b, 0, before)
            s.op[i].low, s.op[i].high = float(low), float(high)
        s.y = self.needs(name, "y", y, 4 * size)
        made = qir_pointwise_make(self.bits, &s, &step)
        self.append(name, "pointwise", step, made, 4 * size * (len(inputs) + 1), (y,))

    def float_matmul(
        self, str name, a, b, y, *, sizes, a_at, b_at, y_at, a_row, b_steps, y_row,
    ):
        cdef qir_float_matmul o
        cdef qir_step step
        cdef const size_t[::1] offsets
        m, k, n = of_length(name, "sizes", sizes, 3, 0)
        integer(name, "values of a sum", k, 1)
        a_row = integer(name, "a_row", a_row, 0)
        value, column = of_length(name, "b_steps", b_steps, 2, 0)
        y_row = integer(name, "y_row", y_row, 0)
        if m > 1 and y_row < n:
            raise ValueError(f"{name}: rows of {n} results overlap at a stride of {y_row}")
        at = offsets_of(name, a_at, b_at, y_at)
        o.s.m, o.s.k, o.s.n, o.s.batches = m, k, n, at.shape[1] if m * n else 0  # else no tasks
        o.s.a_row, o.s.b_value, o.s.b_column, o.s.y_row = a_row, value, column, y_row
        offsets = at.reshape(-1)
        o.s.a_at = o.s.b_at = o.s.y_at = NULL
        o.a, o.b, o.y = a, b, y
        if o.s.batches:
            starts = at.max(axis=1).tolist()
            a_end = starts[0] + (m - 1) * a_row + k
            b_end = starts[1] + (k - 1) * value + (n - 1) * column + 1
            o.a, o.b = self.needs(name, "a", a, 4 * a_end), self.needs(name, "b", b, 4 * b_end)
            o.y = self.needs(name, "y", y, 4 * (starts[2] + (m - 1) * y_row + n))
            o.s.a_at, o.s.b_at = &offsets[0], &offsets[o.s.batches]
            o.s.y_at = &offsets[2 * o.s.batches]
        made = qir_float_matmul_make(self.bits, &o, &step)
        traffic = 4 * o.s.batches * (m * k + k * n + m * n)
        self.append(name, "float_matmul", step, made, traffic, (y,), None, o.s.batches * m * k * n)

    def float_conv2d(
        self, str name, x, weight, y, bias, *, shape, kernel,
        stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1), groups=1, low=None, high=None, constant=None,
    ):
        cdef qir_float_conv o
        cdef qir_step step
        cdef const float[::1] biases, known
        o.s = conv_of(name, shape, kernel, stride, pad, dilation, groups)
        weights = o.s.oc * (o.s.c // o.s.groups) * o.s.kh * o.s.kw
        pixels = o.s.n * o.s.oh * o.s.ow
        read, wrote = o.s.n * o.s.c * o.s.h * o.s.w, pixels * o.s.oc
        o.x, o.y = self.needs(name, "x", x, 4 * read), self.needs(name, "y", y, 4 * wrote)
        o.weight = self.needs(name, "weight", weight, 4 * weights)
        o.bias = NULL
        if bias is not None:
            biases = row_of(name, "bias", bias, o.s.oc)
            o.bias = &biases[0]
        o.constant = NULL
        if constant is not None:
            known = row_of(name, "constant", constant, weights)
            o.constant = &known[0]
        o.bounds = bounds_of(name, low, high)
        kind = "float_conv2d"
        if o.s.groups == o.s.c > 1 and o.s.kh * o.s.kw <= QIR_SGEMM_DEPTH:
            kind = "float_depthwise"
            made = qir_float_depthwise_make(self.bits, &o, &step)
        else:
            made = qir_float_conv_make(self.bits, &o, &step)
        traffic = 4 * (read + wrote + weights)
        self.append(name, kind, step, made, traffic, (y,), None, pixels * weights)

    def float_last_conv2d(self, str name, x, y, weight, bias, *, added=None, **how):
        cdef qir_last_conv o
        cdef qir_step step
        kept = last_conv_of(name, &o, weight, bias, how)
        pixels, count = o.s.n * o.s.oh * o.s.ow, len(kept[0])
        read, wrote = o.s.n * o.s.c * o.s.h * o.s.w, pixels * o.s.oc
        o.x, o.y = self.needs(name, "x", x, 4 * read), self.needs(name, "y", y, 4 * wrote)
        if added is not None:
            o.after.added = self.needs(name, "added", added, 4 * wrote)
        kind = "float_conv2d"
        if is_last_depthwise(&o):
            kind = "float_depthwise"
            made = qir_last_depthwise_make(self.bits, &o, &step)
        else:
            made = qir_last_conv_make(self.bits, &o, &step)
        traffic = 4 * (read + wrote + count)
        self.append(name, kind, step, made, traffic, (y,), None, pixels * count)

    def float_last_chain(self, str name, x, y, parts, *, added=None):
        cdef qir_last_conv[3] o
        cdef qir_last_chain s
        cdef qir_step step
        parts = [*parts]
        if len(parts) != 3 or parts[1] is None or parts[0] is parts[2] is None:
            raise ValueError(f"{name}: a depthwise convolution wants one before or after it")
        there = [i for i in range(3) if parts[i] is not None]
        kept, work, traffic = [], 0, 0
        for i in there:
            weight, bias, how = parts[i]
            arrays = last_conv_of(name, &o[i], weight, bias, dict(how))
            kept.append(arrays)
            count = len(arrays[0])
            traffic, work = traffic + count, work + o[i].s.n * o[i].s.oh * o[i].s.ow * count
        s.before = &o[0] if parts[0] is not None else NULL
        s.middle, s.after = &o[1], &o[2] if parts[2] is not None else NULL
        if not is_chain(&s):
            raise ValueError(f"{name}: its convolutions do not follow each other")
        first, last = min(there), max(there)
        read = o[first].s.n * o[first].s.c * o[first].s.h * o[first].s.w
        wrote = o[last].s.n * o[last].s.oh * o[last].s.ow * o[last].s.oc
        o[first].x = self.needs(name, "x", x, 4 * read)
        o[last].y = self.needs(name, "y", y, 4 * wrote)
        if added is not None:
            o[last].after.added = self.needs(name, "added", added, 4 * wrote)
        made = qir_last_chain_make(self.bits, &s, &step)
        traffic = 4 * (traffic + read + wrote)
        self.append(name, "float_chain", step, made, traffic, (y,), None, work)

    def float_last_pool2d(
        self, str name, x, y, *, shape, kernel, stride=(1, 1), pad=(0, 0, 0, 0),
        dilation=(1, 1), out=None, bint average=False, bint count_pad=False,
    ):
        cdef qir_last_pool o
        cdef qir_step step
        n, c, h, w = of_length(name, "shape", shape, 4, 0)
        o.s = self.planes(name, x, y, shape, kernel, stride, pad, dilation, out)
        if average and (o.s.dh, o.s.dw) != (1, 1):
            raise ValueError(f"{name}: a mean of windows with a dilation")
        o.s.planes, o.channels = n if o.s.oh * o.s.ow * c else 0, c
        o.pb, o.pr = of_length(name, "pad", pad, 4, 0, LARGEST_STEP)[2:]
        o.average, o.count_pad, o.x, o.y = average, count_pad, x, y
        made = qir_last_pool_make(self.bits, &o, &step)
        traffic = 4 * o.s.planes * c * (o.s.h * o.s.w + o.s.oh * o.s.ow)
        kind = "float_avg_pool2d" if average else "float_max_pool2d"
        self.append(name, kind, step, made, traffic, (y,))

    def float_last_mean(self, str name, x, y, *, images, pixels, channels):
        cdef qir_step step
        n, size, c = whole(name, "images, pixels and channels", (images, pixels, channels), 0)
        x, y = self.needs(name, "x", x, 4 * n * size * c), self.needs(name, "y", y, 4 * n * c)
        made = qir_last_mean_make(self.bits, n, size, c, x, y, &step)
        self.append(name, "float_mean", step, made, 4 * n * c * (size + 1), (y,))

    def float_unary(self, str name, x, y, *, str op, size, a=0.0, b=0.0):
        cdef qir_unary how
        cdef qir_step step
        if op not in UNARY:
            raise ValueError(f"{name}: no op {op!r} on a float; known are {', '.join(UNARY)}")
        size = integer(name, "size", size, 0)
        how.a, how.b = number_of(name, "a", a), number_of(name, "b", b)
        x, y = self.needs(name, "x", x, 4 * size), self.needs(name, "y", y, 4 * size)
        made = qir_float_unary_make(self.bits, UNARY.index(op), &how, size, x, y, &step)
        self.append(name, f"float_{op}", step, made, 8 * size, (y,))

    def float_max_pool2d(
        self, str name, x, y, *, shape, kernel,
        stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1), out=None,
    ):
        cdef qir_step step
        cdef qir_float_window s = self.planes(name, x, y, shape, kernel, stride, pad, dilation, out)
        made = qir_float_max_pool_make(self.bits, &s, x, y, &step)
        traffic = 4 * s.planes * (s.h * s.w + s.oh * s.ow)
        self.append(name, "float_max_pool2d", step, made, traffic, (y,))

    def float_avg_pool2d(
        self, str name, x, y, *, shape, kernel,
        stride=(1, 1), pad=(0, 0, 0, 0), out=None, bint count_pad=False,
    ):
        cdef qir_step step
        cdef qir_float_window s = self.planes(name, x, y, shape, kernel, stride, pad, (1, 1), out)
        bottom, right = of_length(name, "pad", pad, 4, 0, LARGEST_STEP)[2:]
        made = qir_float_avg_pool_make(self.bits, &s, bottom, right, count_pad, x, y, &step)
        traffic = 4 * s.planes * (s.h * s.w + s.oh * s.ow)
        self.append(name, "float_avg_pool2d", step, made, traffic, (y,))

    cdef qir_float_window planes(
        self, str name, x, y, shape, kernel, stride, pad, dilation, out
    ) except *:
        cdef qir_float_window s
        n, c, h, w = of_length(name, "shape", shape, 4, 0)
        kernel = of_length(name, "kernel", kernel, 2, 1, LARGEST_STEP)
        stride = of_length(name, "stride", stride, 2, 1, LARGEST_STEP)
        pad = of_length(name, "pad", pad, 4, 0, LARGEST_STEP)
        dilation = of_length(name, "dilation", dilation, 2, 1, LARGEST_STEP)
        if out is None:
            out = windows(name, (h, w), kernel, stride, pad, dilation)
        oh, ow = of_length(name, "out", out, 2, 0, LARGEST_STEP)
        s.planes, s.h, s.w, s.oh, s.ow = n * c if oh * ow else 0, h, w, oh, ow
        (s.kh, s.kw), (s.sh, s.sw), (s.dh, s.dw) = kernel, stride, dilation
        s.pt, s.pl = pad[:2]
        self.needs(name, "x", x, 4 * n * c * h * w)
        self.needs(name, "y", y, 4 * n * c * oh * ow)
        return s

    def float_batch_norm(self, str name, x, y, *, outer, inner, numbers):
        cdef qir_step step
        cdef const double[:, ::1] rows
        table = np.ascontiguousarray(numbers, np.float64)
        if table.ndim != 2 or table.shape[1] != 3:
            raise ValueError(f"{name}: numbers of shape {table.shape} are not (channels, 3)")
        outer, inner = whole(name, "outer and inner", (outer, inner), 0)
        rows, channels = table, len(table)
        size = 4 * outer * channels * inner
        x, y = self.needs(name, "x", x, size), self.needs(name, "y", y, size)
        cdef const qir_channel *first = <const qir_channel *>&rows[0, 0] if channels else NULL
        made = qir_float_batch_norm_make(self.bits, outer, channels, inner, first, x, y, &step)
        self.append(name, "float_batch_norm", step, made, 2 * size, (y,))

    def float_mean(self, str name, x, y, *, rows, width):
        cdef qir_step step
        rows, width = whole(name, "rows and width", (rows, width), 0)
        x, y = self.needs(name, "x", x, 4 * rows * width), self.needs(name, "y", y, 4 * rows)
        made = qir_float_mean_make(self.bits, rows, width, x, y, &step)
        self.append(name, "float_mean", step, made, 4 * rows * (width + 1), (y,))

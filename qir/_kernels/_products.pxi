# Products of integers, and what other runtimes do to integers: _cpu.pyx includes this.


cdef const int32_t[::1] weight_offsets(str name, offset, channels):
    """What is added to the weights of each channel, or None."""
    if offset is None:
        return None
    found = np.asarray(offset)
    if found.dtype != np.int32 or found.shape != (channels,):
        raise ValueError(
            f"{name}: offset is {found.dtype} {found.shape}, not {channels} int32"
        )
    if found.min() < -128 or found.max() > 128:
        raise ValueError(f"{name}: offsets of weights are from -128 to 128")
    return np.ascontiguousarray(found)


cdef class Products(Floats):
    def conv2d(
        self, str name, x, y, weight, bias, multiplier, *, shape,
        stride=(1, 1), pad=(0, 0, 0, 0), dilation=(1, 1), groups=1,
        str x_type="u8", x_zero=0, str y_type="u8", y_zero=0, low=None, high=None, epilogue=None,
        pairs=False, offset=None,
    ):
        self.convolve(
            name, "conv2d", x, y, weight, bias, multiplier, shape, stride, pad, dilation, groups,
            x_type, x_zero, y_type, y_zero, low, high, epilogue, pairs, offset,
        )

    def linear(
        self, str name, x, y, weight, bias, multiplier, *, rows,
        str x_type="u8", x_zero=0, str y_type="u8", y_zero=0, low=None, high=None, epilogue=None,
        offset=None,
    ):
        weight = np.asarray(weight)
        rows = integer(name, "rows", rows, 0)
        if weight.ndim != 2:
            raise ValueError(f"{name}: weight of shape {weight.shape} is not (n, k)")
        self.convolve(
            name, "linear", x, y, weight.reshape(*weight.shape, 1, 1), bias, multiplier,
            (rows, 1, 1, weight.shape[1]), (1, 1), (0, 0, 0, 0), (1, 1), 1,
            x_type, x_zero, y_type, y_zero, low, high, epilogue, False, offset,
        )

    cdef int convolve(
        self, str name, str kind, x, y, weight, bias, multiplier, shape, stride, pad,
        dilation, groups, str x_type, x_zero, str y_type, y_zero, low, high, epilogue, bint pairs, offset,
    ) except -1:
        cdef qir_epilogue finish
        cdef qir_conv_shape s
        cdef qir_conv_operands o
        cdef qir_step step
        cdef const int8_t[::1] weights
        cdef const int32_t[::1] biases, offsets
        cdef const float[::1] multipliers
        n, h, w, c = of_length(name, "shape", shape, 4, 0)
        stride = of_length(name, "stride", stride, 2, 1, LARGEST_STEP)
        pad = of_length(name, "pad", pad, 4, 0, LARGEST_STEP)
        dilation = of_length(name, "dilation", dilation, 2, 1, LARGEST_STEP)
        groups = integer(name, "groups", groups, 1)
        weight = self.conv_weight(name, weight, c, groups)
        oc, cg, kh, kw = weight.shape
        oh, ow = windows(name, (h, w), (kh, kw), stride, pad, dilation)
        o.to_float = y_type == "f32"
        read, wrote = n * h * w * c, n * oh * ow * oc * (4 if o.to_float else 1)
        x, y = self.needs(name, "x", x, read), self.needs(name, "y", y, wrote)
        s.n, s.h, s.w, s.c, s.oh, s.ow, s.oc, s.kh, s.kw = n, h, w, c, oh, ow, oc, kh, kw
        (s.sh, s.sw), (s.dh, s.dw), (s.pt, s.pl) = stride, dilation, pad[:2]
        s.groups = groups
        weights = weight.reshape(-1)
        multipliers = floats_of(name, "multiplier", multiplier)
        if multipliers.shape[0] not in (1, oc):
            raise ValueError(f"{name}: {multipliers.shape[0]} multipliers for {oc} output channels")
        offsets = weight_offsets(name, offset, oc)
        o.offset = NULL
        if offsets is not None:
            o.offset = &offsets[0]
        o.bias = NULL
        if bias is not None:
            bias = np.asarray(bias)
            if bias.dtype != np.int32 or bias.size != oc:
                raise ValueError(f"{name}: bias is {bias.size} {bias.dtype}, not {oc} int32")
            biases = np.ascontiguousarray(bias).reshape(-1)
            o.bias = &biases[0]
        o.x, o.y = x, y
        o.weight = &weights[0]
        o.multiplier, o.multiplier_count = &multipliers[0], multipliers.shape[0]
        o.x_zero = code_in(name, "x_zero", x_type, x_zero)
        o.x_flip = flip_of(name, x_type)
        o.code = code_of(name, "u8" if o.to_float else y_type, y_zero, low, high)
        o.epilogue, o.pairs = NULL, pairs
        if epilogue is not None:
            given = epilogue_of(name, epilogue, oc)
            finish = self.epilogue(name, given, n * oh * ow * oc)
            finish.code, finish.to_float = o.code, o.to_float
            o.epilogue = &finish
        if pairs and not groups == c == oc:
            raise ValueError(f"{name}: pairs of taps are those of one channel a group")
        if pairs and offset is not None:
            raise ValueError(f"{name}: weights whose products saturate have no offset")
        if groups == c == oc and read and (groups > 1 or pairs):
            kind = "depthwise"
            made = qir_depthwise_make(self.bits, &s, &o, &step)
        elif offset is None and qir_grouped_fits(self.bits, &s):
            kind = "grouped"
            made = qir_grouped_make(self.bits, &s, &o, &step)
        else:
            made = qir_conv_make(self.bits, &s, &o, &step)
        size, traffic = weights.shape[0], read + wrote + weights.shape[0]
        return self.append(name, kind, step, made, traffic, (y,), None, n * oh * ow * size)

    def dynamic_linear(
        self, str name, x, y, weight, bias=None, *, rows, scale, scales=1, str x_type="u8",
        zero=None, offset=None,
    ):
        weight = np.asarray(weight)
        if weight.ndim != 2 or weight.dtype != np.int8 or 0 in weight.shape:
            raise ValueError(f"{name}: weight is {weight.dtype} {weight.shape}, not int8 (n, k)")
        rows = integer(name, "rows", rows, 0)
        self.convolve_dynamic(
            name, "dynamic_linear", x, y, weight.reshape(*weight.shape, 1, 1), bias,
            (rows, 1, 1, weight.shape[1]), (1, 1), (0, 0, 0, 0), (1, 1), 1,
            scale, scales, x_type, zero, offset,
        )

    def dynamic_conv2d(
        self, str name, x, y, weight, bias=None, *, shape, stride=(1, 1), pad=(0, 0, 0, 0),
        dilation=(1, 1), groups=1, scale, scales=1, str x_type="u8", zero=None, offset=None,
    ):
        self.convolve_dynamic(
            name, "dynamic_conv2d", x, y, weight, bias, shape, stride, pad, dilation, groups,
            scale, scales, x_type, zero, offset,
        )

    cdef int convolve_dynamic(
        self, str name, str kind, x, y, weight, bias, shape, stride, pad, dilation, groups,
        scale, scales, str x_type, zero, offset,
    ) except -1:
        cdef qir_conv_shape s
        cdef qir_conv_operands o
        cdef qir_dynamic d
        cdef qir_epilogue finish
        cdef qir_step step
        cdef const int8_t[::1] weights
        cdef const int32_t[::1] offsets
        cdef const float[::1] biases
        cdef float one = 1
        n, h, w, c = of_length(name, "shape", shape, 4, 0)
        stride = of_length(name, "stride", stride, 2, 1, LARGEST_STEP)
        pad = of_length(name, "pad", pad, 4, 0, LARGEST_STEP)
        dilation = of_length(name, "dilation", dilation, 2, 1, LARGEST_STEP)
        groups = integer(name, "groups", groups, 1)
        weight = self.conv_weight(name, weight, c, groups)
        oc, cg, kh, kw = weight.shape
        scales = integer(name, "scales", scales, 1)
        if scales not in (1, oc):
            raise ValueError(f"{name}: {scales} scales for {oc} columns")
        oh, ow = windows(name, (h, w), (kh, kw), stride, pad, dilation)
        s.n, s.h, s.w, s.c, s.oh, s.ow, s.oc, s.kh, s.kw = n, h, w, c, oh, ow, oc, kh, kw
        (s.sh, s.sw), (s.dh, s.dw), (s.pt, s.pl) = stride, dilation, pad[:2]
        s.groups = groups
        weights = weight.reshape(-1)
        offsets = weight_offsets(name, offset, oc)
        o.offset = NULL
        if offsets is not None:
            o.offset = &offsets[0]
        o.weight, o.bias, o.multiplier_count, o.to_float = &weights[0], NULL, 1, True
        o.epilogue, o.pairs = NULL, 0
        o.multiplier = &one
        read, wrote = n * h * w * c, 4 * n * oh * ow * oc
        o.x, o.y = self.needs(name, "x", x, read), self.needs(name, "y", y, wrote)
        o.x_zero, o.x_flip = 0, flip_of(name, x_type)
        o.code = code_of(name, "u8", 0, None, None)
        d.scale, d.count = self.needs(name, "scale", scale, 4 * scales), scales
        d.zero = -1 if zero is None else self.needs(name, "zero", zero, 1)
        d.plus = NULL
        if bias is not None:
            bias = row_of(name, "bias", bias, oc)
            biases = bias
            d.plus = &biases[0]
        if groups == c == oc and groups > 1 and read:
            if bias is not None:  # what is added to floats is the epilogue of such a kernel
                given = epilogue_of(name, (("factor", (1.0,)), ("bias", bias)), oc)
                finish = self.epilogue(name, given, 0)
                finish.code, finish.to_float = o.code, True
                o.epilogue = &finish
            made = qir_dynamic_depthwise_make(self.bits, &s, &o, &d, &step)
        else:
            made = qir_dynamic_conv_make(self.bits, &s, &o, &d, &step)
        size = weights.shape[0]
        return self.append(
            name, kind, step, made, read + wrote + size, (y,), None, n * oh * ow * size
        )

    cdef conv_weight(self, str name, weight, c, groups):
        """Weights of a convolution, which are checked."""
        weight = np.asarray(weight)
        if weight.ndim != 4 or weight.dtype != np.int8 or 0 in weight.shape:
            raise ValueError(
                f"{name}: weight is {weight.dtype} {weight.shape}, not int8 (out, in, kh, kw)"
            )
        oc, cg, _, _ = weight.shape
        if c != cg * groups or oc % groups:
            raise ValueError(
                f"{name}: x has {c} channels, weight {weight.shape} in {groups} groups"
                f" takes {cg * groups}"
            )
        return np.ascontiguousarray(weight)

    def matmul(
        self, str name, a, b, y, *, sizes, a_at, b_at, y_at, a_row, b_steps, y_row, multiplier,
        str a_type="u8", a_zero=0, str b_type="u8", b_zero=0,
        str y_type="u8", y_zero=0, low=None, high=None,
    ):
        cdef qir_matmul_shape s
        cdef qir_matmul_operands o
        cdef qir_step step
        cdef const size_t[::1] offsets
        s.m, s.k, s.n = m, k, n = of_length(name, "sizes", sizes, 3, 0)
        a_row = integer(name, "a_row", a_row, 0)
        value, column = of_length(name, "b_steps", b_steps, 2, 0)
        y_row = integer(name, "y_row", y_row, 0)
        if m > 1 and y_row < n:
            raise ValueError(f"{name}: rows of {n} results overlap at a stride of {y_row}")
        at = offsets_of(name, a_at, b_at, y_at)
        some = m * n > 0  # else no tasks
        s.batches = at.shape[1] if some else 0
        starts = at.max(axis=1).tolist() if s.batches else None
        o.to_float = y_type == "f32"
        o.a, o.b, o.y = a, b, y
        if starts is not None:
            a_end = starts[0] + (m - 1) * a_row + k
            b_end = starts[1] + (k - 1) * value + (n - 1) * column + 1 if k else 0
            y_end = (starts[2] + (m - 1) * y_row + n) * (4 if o.to_float else 1)
            o.a, o.b = self.needs(name, "a", a, a_end), self.needs(name, "b", b, b_end)
            o.y = self.needs(name, "y", y, y_end)
            s.a_end = a_end
        offsets = at.reshape(-1)
        s.a_at = s.b_at = s.y_at = NULL
        if s.batches:
            s.a_at, s.b_at = &offsets[0], &offsets[s.batches]
            s.y_at = &offsets[2 * s.batches]
        s.a_row, s.b_value, s.b_column, s.y_row = a_row, value, column, y_row
        o.a_zero, o.a_flip = code_in(name, "a_zero", a_type, a_zero), flip_of(name, a_type)
        o.b_zero, o.b_flip = code_in(name, "b_zero", b_type, b_zero), flip_of(name, b_type)
        o.multiplier = real_of(name, "multiplier", multiplier)
        o.code = code_of(name, "u8" if o.to_float else y_type, y_zero, low, high)
        made = qir_matmul_make(self.bits, &s, &o, &step)
        read, work = s.batches * (m * k + k * n + m * n), s.batches * m * k * n
        self.append(name, "matmul", step, made, read, (y,), None, work)


    cdef qir_epilogue epilogue(self, str name, dict given, size) except *:
        """What `epilogue_of` found, its arrays as pointers."""
        cdef qir_epilogue e
        cdef const float[::1] factor = given["factor"]
        cdef const float[::1] array
        cdef const int32_t[::1] fixed, shift, away
        e.factor = &factor[0]
        e.fixed = e.shift = e.away = NULL
        e.once = given["once"]
        if given["fixed"] is not None:
            fixed, shift, away = given["fixed"], given["shift"], given["away"]
            e.fixed, e.shift, e.away = &fixed[0], &shift[0], &away[0]
        e.steps = e.share = e.bias = NULL
        for what in ("steps", "share", "bias"):
            if given[what] is None:
                continue
            array = given[what]
            if what == "steps":
                e.steps = &array[0]
            elif what == "share":
                e.share = &array[0]
            else:
                e.bias = &array[0]
        e.bias_fused, e.summand_fused = given["bias_fused"], given["summand_fused"]
        e.unit, e.last, e.divide = given["unit"], given["last"], given["divide"]
        e.offset, e.shifted = given["offset"], given["offset"] != 0
        e.least, e.most = given["least"], given["most"]
        e.bounded = given["least"] > -math.inf or given["most"] < math.inf
        e.summand, e.summand_zero, e.summand_most, e.summand_flip = -1, 0, 0, 0
        e.summand_scale = given["summand_scale"]
        if given["summand"] is not None:
            e.summand = self.needs(name, "summand", given["summand"], size)
            e.summand_zero = code_in(name, "summand_zero", given["summand_type"], given["summand_zero"])
            e.summand_most = code_in(name, "summand_most", given["summand_type"], given["summand_most"])
            e.summand_flip = flip_of(name, given["summand_type"])
        return e

    # ---- as other runtimes round ----

    def quantize_by(
        self, str name, x, y, *, size, factor, str y_type="u8", zero=0, low=None, high=None,
        bint divide=False, bint fused=False, before=0.0, least=-math.inf, most=math.inf,
        bint away=False, bint wraps=False, nan=None,
    ):
        cdef qir_quantizer q
        cdef qir_step step
        cdef int *fault = NULL
        size = integer(name, "size", size, 0)
        q.x, q.y = self.needs(name, "x", x, 4 * size), self.needs(name, "y", y, size)
        q.size, q.factor = size, real_of(name, "factor", factor)
        q.before, q.shifted = real_of(name, "before", before), not fused and before != 0
        q.least, q.most = real_of(name, "least", least), real_of(name, "most", most)
        q.bounded = q.least > -math.inf or q.most < math.inf
        q.divide, q.fused, q.away, q.wraps = divide, fused, away, wraps
        q.low, q.high = limits(name, y_type, low, high)
        q.zero = code_in(name, "zero", y_type, zero)
        q.nan_far, q.refuses = nan == "far", nan is None
        q.nan = q.low if q.nan_far or q.refuses else code_in(name, "nan", y_type, nan)
        if q.nan_far and not wraps:
            raise ValueError(f"{name}: a NaN is far where sums with the zero point wrap")
        made = qir_quantizer_make(self.bits, &q, &step, &fault)
        self.append(name, "quantize_by", step, made, 5 * size, (y,))
        self.list[self.count - 1].fault = fault

    def lookup_runs(self, str name, x, y, *, size, table, tail, run, body):
        cdef qir_runs runs
        cdef qir_step step
        cdef const uint8_t[::1] first = table_of(name, table), second = table_of(name, tail)
        size = integer(name, "size", size, 0)
        runs.run = integer(name, "run", run, 1)
        runs.body = integer(name, "body", body, 0, run)
        runs.table[0], runs.table[1] = &first[0], &second[0]
        x, y = self.needs(name, "x", x, size), self.needs(name, "y", y, size)
        made = qir_run_lookup_make(&runs, size, x, y, &step)
        self.append(name, "lookup_runs", step, made, 2 * size, (y,))

    def lookup_pairs(self, str name, a, b, y, *, shape, table, tail, run, body, broadcast=None):
        cdef qir_runs runs
        cdef qir_pair_shape s
        cdef qir_step step
        cdef const uint8_t[::1] first = pairs_of(name, table), second = pairs_of(name, tail)
        outer, rows, inner = of_length(name, "shape", shape, 3, 0)
        if broadcast is not None and broadcast not in ("a", "b"):
            raise ValueError(f"{name}: broadcast is {broadcast!r}, not None, 'a' or 'b'")
        some = outer * rows * inner > 0  # else no tasks
        s.outer, s.rows, s.inner = (outer, rows, inner) if some else (0, 1, 0)
        s.a_shared, s.b_shared = broadcast == "a", broadcast == "b"
        runs.run = integer(name, "run", run, 1)
        runs.body = integer(name, "body", body, 0, run)
        runs.table[0], runs.table[1] = &first[0], &second[0]
        size = outer * rows * inner
        a = self.needs(name, "a", a, outer * inner * (1 if s.a_shared else rows))
        b = self.needs(name, "b", b, outer * inner * (1 if s.b_shared else rows))
        y = self.needs(name, "y", y, size)
        made = qir_pair_lookup_make(&runs, &s, a, b, y, &step)
        self.append(name, "lookup_pairs", step, made, 3 * size, (y,))

    def code_means(
        self, str name, x, y, *, shape, kernel, stride, pad, out, factor, body, ends,
        x_zero=0, str x_type="u8", str y_type="u8", low=None, high=None,
    ):
        cdef qir_means m
        cdef qir_step step
        n, h, w, c = of_length(name, "shape", shape, 4, 0)
        m.kh, m.kw = kernel = of_length(name, "kernel", kernel, 2, 1, LARGEST_STEP)
        m.sh, m.sw = of_length(name, "stride", stride, 2, 1, LARGEST_STEP)
        m.pt, m.pl = of_length(name, "pad", pad, 2, 0, LARGEST_STEP)
        oh, ow = of_length(name, "out", out, 2, 0, LARGEST_STEP)
        integer(name, "size of the kernel", kernel[0] * kernel[1], 1, LARGEST_CODE_MEAN)
        cdef const float[::1] factors = floats_of(name, "factor", factor)
        if factors.shape[0] != oh * ow:
            raise ValueError(f"{name}: {factors.shape[0]} factors for {oh * ow} pixels")
        m.n, m.h, m.w, m.c = n if oh * ow * c else 0, h, w, c
        m.oh, m.ow, m.body = oh, ow, integer(name, "body", body, 0, c)
        m.x, m.y = self.needs(name, "x", x, n * h * w * c), self.needs(name, "y", y, n * oh * ow * c)
        m.x_zero, m.x_flip = code_in(name, "x_zero", x_type, x_zero), flip_of(name, x_type)
        both = list(ends)
        if len(both) != 2:
            raise ValueError(f"{name}: ends are {len(both)}, one of vectors and one of the rest")
        for i, (bias, fused, zero, divides, last) in enumerate(both):
            m.ends[i] = self.epilogue(name, epilogue_of(name, (("factor", (1.0,)),), 1), 0)
            m.ends[i].factor = NULL
            m.ends[i].bias_fused, m.ends[i].to_float = bool(fused), False
            m.ends[i].divide, m.ends[i].last = bool(divides), real_of(name, "last", last)
            m.ends[i].code = code_of(name, y_type, zero, low, high)
            m.bias[i], m.biased[i] = real_of(name, "bias", bias), bias != 0
        if not m.n:  # no tasks
            m.oh, m.ow = 0, 0
        m.factor = &factors[0] if oh * ow else NULL
        made = qir_means_make(self.bits, &m, &step)
        self.append(name, "code_means", step, made, n * c * (h * w + oh * ow), (y,))

    def lookup_sums(
        self, str name, x, y, *, shape, kernel, stride, pad, out, levels, kinds,
        str x_type="u8", str y_type="u8",
    ):
        cdef qir_sums m
        cdef qir_step step
        n, h, w, c = of_length(name, "shape", shape, 4, 0)
        m.kh, m.kw = kernel = of_length(name, "kernel", kernel, 2, 1, LARGEST_STEP)
        m.sh, m.sw = of_length(name, "stride", stride, 2, 1, LARGEST_STEP)
        m.pt, m.pl = of_length(name, "pad", pad, 2, 0, LARGEST_STEP)
        oh, ow = of_length(name, "out", out, 2, 0, LARGEST_STEP)
        integer(name, "size of the kernel", kernel[0] * kernel[1], 1, LARGEST_CODE_MEAN)
        cdef const int32_t[::1] steps = integers_of(name, "levels", levels, np.int32)
        cdef const uint8_t[::1] of_pixels = integers_of(name, "kinds", kinds, np.uint8)
        m.kinds = steps.shape[0] // QIR_LEVELS
        if not m.kinds or steps.shape[0] % QIR_LEVELS:
            raise ValueError(f"{name}: {steps.shape[0]} levels, {QIR_LEVELS} are needed for each kind")
        if np.any(np.diff(np.asarray(steps).reshape(-1, QIR_LEVELS).astype(np.int64)) < 0):
            raise ValueError(f"{name}: the levels of a kind fall")
        if of_pixels.shape[0] != oh * ow:
            raise ValueError(f"{name}: {of_pixels.shape[0]} kinds for {oh * ow} pixels")
        if oh * ow and np.asarray(of_pixels).max() >= m.kinds:
            raise ValueError(f"{name}: a pixel has levels of no kind")
        m.n, m.h, m.w, m.c = n if oh * ow * c else 0, h, w, c
        m.oh, m.ow = (oh, ow) if m.n else (0, 0)  # no tasks
        m.x, m.y = self.needs(name, "x", x, n * h * w * c), self.needs(name, "y", y, n * oh * ow * c)
        m.x_flip, m.y_flip = flip_of(name, x_type), flip_of(name, y_type)
        m.levels, m.kind = &steps[0], &of_pixels[0] if oh * ow else NULL
        made = qir_sums_make(self.bits, &m, &step)
        self.append(name, "lookup_sums", step, made, n * c * (h * w + oh * ow), (y,))

    def resize_linear(
        self, str name, x, y, *, shape, rows, columns, shift, bint away=False, str x_type="u8"
    ):
        cdef qir_resize m
        cdef qir_step step
        n, h, w, c = of_length(name, "shape", shape, 4, 0)
        m.shift, m.away, m.flip = integer(name, "shift", shift, 1, 22), away, flip_of(name, x_type)
        cdef const int32_t[:, ::1] along_rows = taps_of(name, "rows", rows, h)
        cdef const int32_t[:, ::1] along_columns = taps_of(name, "columns", columns, w)
        m.oh, m.ow = along_rows.shape[1], along_columns.shape[1]
        weights_of(name, along_rows, along_columns, m.shift)
        m.n, m.h, m.w, m.c = n if h * w * c * m.oh * m.ow else 0, h, w, c
        m.x = self.needs(name, "x", x, n * h * w * c)
        m.y = self.needs(name, "y", y, n * m.oh * m.ow * c)
        if m.n:
            m.rows.low, m.rows.high = &along_rows[0, 0], &along_rows[1, 0]
            m.rows.low_weight, m.rows.high_weight = &along_rows[2, 0], &along_rows[3, 0]
            m.columns.low, m.columns.high = &along_columns[0, 0], &along_columns[1, 0]
            m.columns.low_weight = &along_columns[2, 0]
            m.columns.high_weight = &along_columns[3, 0]
        else:
            m.oh, m.ow = 0, 0  # no tasks
        made = qir_resize_make(self.bits, &m, &step)
        self.append(name, "resize_linear", step, made, n * c * (h * w + m.oh * m.ow), (y,))

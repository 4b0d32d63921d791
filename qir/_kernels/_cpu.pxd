# cython: language_level=3
"""The C functions that make steps, as _cpu.pyx calls them."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "isa.h" nogil:
    cdef struct qir_isa_name:
        const char *name
        uint32_t bit
        int asked
    const qir_isa_name qir_isa_names[]
    const size_t qir_isa_name_count
    uint32_t qir_isa_detect()

cdef extern from "requant.h" nogil:
    cdef struct qir_code:
        int32_t zero, low, high
        uint8_t flip

cdef extern from "pool.h" nogil:
    int QIR_POOL_MAX_THREADS

cdef extern from "step.h" nogil:
    cdef struct qir_step:
        void (*run)(const void *, void *const *, void *, long)
        void *params
        long tasks
        size_t scratch
    void qir_step_run(const qir_step *, void *const *buffers, void *scratch, int threads)
    size_t qir_round_up(size_t value, size_t to)

cdef extern from "quantizers/quantizers.h" nogil:
    cdef struct qir_quantizer:
        int bounded, divide, fused, shifted, away, wraps, nan_far
        float least, most, factor, before
        int32_t zero, low, high, nan
        int refuses
        size_t size
        int x, y
    int qir_quantizer_make(uint32_t isa, const qir_quantizer *, qir_step *, int **)

cdef extern from "tables/tables.h" nogil:
    cdef struct qir_runs:
        size_t run, body
        const uint8_t *table[2]
    cdef struct qir_pair_shape:
        size_t outer, rows, inner
        int a_shared, b_shared
    int qir_run_lookup_make(const qir_runs *, size_t size, int x, int y, qir_step *)
    int qir_pair_lookup_make(
        const qir_runs *, const qir_pair_shape *, int a, int b, int y, qir_step *
    )

cdef extern from "epilogue/epilogue.h" nogil:
    cdef struct qir_epilogue:
        const float *steps
        const float *share
        const float *factor
        const float *bias
        float unit
        int bias_fused, summand, summand_fused
        int32_t summand_zero, summand_most
        uint8_t summand_flip
        float summand_scale
        int bounded
        float least, most
        int divide
        float last
        int shifted
        float offset
        int to_float
        const int32_t *fixed
        const int32_t *shift
        const int32_t *away
        int once
        qir_code code

cdef extern from "means/means.h" nogil:
    cdef struct qir_means:
        size_t n, h, w, c, oh, ow, kh, kw, sh, sw, pt, pl
        int32_t x_zero
        uint8_t x_flip
        size_t body
        const float *factor
        qir_epilogue ends[2]
        float bias[2]
        int biased[2]
        int x, y
    int qir_means_make(uint32_t isa, const qir_means *, qir_step *)

cdef extern from "sums/sums.h" nogil:
    int QIR_LEVELS
    cdef struct qir_sums:
        size_t n, h, w, c, oh, ow, kh, kw, sh, sw, pt, pl
        uint8_t x_flip, y_flip
        size_t kinds
        const int32_t *levels
        const uint8_t *kind
        int x, y
    int qir_sums_make(uint32_t isa, const qir_sums *, qir_step *)

cdef extern from "resize/resize.h" nogil:
    cdef struct qir_resize_axis:
        const int32_t *low
        const int32_t *high
        const int32_t *low_weight
        const int32_t *high_weight
    cdef struct qir_resize:
        size_t n, h, w, c, oh, ow
        qir_resize_axis rows, columns
        int shift, away
        uint8_t flip
        int x, y
    int qir_resize_make(uint32_t isa, const qir_resize *, qir_step *)

cdef extern from "conv/conv.h" nogil:
    cdef struct qir_conv_shape:
        size_t n, h, w, c, oh, ow, oc, kh, kw, sh, sw, dh, dw, pt, pl, groups
    cdef struct qir_conv_operands:
        int x, y
        const int8_t *weight
        const int32_t *offset
        const int32_t *bias
        const float *multiplier
        size_t multiplier_count
        int32_t x_zero
        uint8_t x_flip
        qir_code code
        int to_float
        const qir_epilogue *epilogue
        int pairs
    int qir_conv_make(uint32_t isa, const qir_conv_shape *, const qir_conv_operands *, qir_step *)
    cdef struct qir_dynamic:
        int zero, scale
        size_t count
        const float *plus
    int qir_dynamic_conv_make(
        uint32_t isa, const qir_conv_shape *, const qir_conv_operands *, const qir_dynamic *,
        qir_step *
    )

cdef extern from "depthwise/depthwise.h" nogil:
    int qir_depthwise_make(
        uint32_t isa, const qir_conv_shape *, const qir_conv_operands *, qir_step *
    )

    int qir_dynamic_depthwise_make(
        uint32_t isa, const qir_conv_shape *, const qir_conv_operands *, const qir_dynamic *,
        qir_step *
    )

cdef extern from "grouped/grouped.h" nogil:
    bint qir_grouped_fits(uint32_t isa, const qir_conv_shape *)
    int qir_grouped_make(
        uint32_t isa, const qir_conv_shape *, const qir_conv_operands *, qir_step *
    )

cdef extern from "matmul/matmul.h" nogil:
    cdef struct qir_matmul_shape:
        size_t batches, m, k, n
        const size_t *a_at
        const size_t *b_at
        const size_t *y_at
        size_t a_row, b_value, b_column, y_row, a_end
    cdef struct qir_matmul_operands:
        int a, b, y
        int32_t a_zero, b_zero
        uint8_t a_flip, b_flip
        float multiplier
        qir_code code
        int to_float
    int qir_matmul_make(
        uint32_t isa, const qir_matmul_shape *, const qir_matmul_operands *, qir_step *
    )

cdef extern from "elementwise/elementwise.h" nogil:
    cdef struct qir_binary:
        float a_gain, b_gain, offset
        int32_t a_zero, b_zero
        float multiplier, zero
        int32_t a_factor, b_factor, whole_offset, shift
        uint8_t a_flip, b_flip
        qir_code code
    cdef struct qir_affine:
        float scale
        qir_code code
    cdef struct qir_binary_shape:
        size_t outer, rows, inner
        int a_shared, b_shared
    cdef struct qir_planes:
        size_t n, channels, pixels
    int qir_add_make(
        uint32_t isa, const qir_binary_shape *, const qir_binary *, int a, int b, int y, qir_step *
    )
    int qir_mul_make(
        uint32_t isa, const qir_binary_shape *, const qir_binary *, int a, int b, int y, qir_step *
    )
    int qir_whole_make(
        uint32_t isa, const qir_binary_shape *, const qir_binary *, int a, int b, int y, qir_step *
    )
    cdef enum qir_real:
        pass
    int qir_real_make(
        uint32_t isa, qir_real op, const qir_binary_shape *, int a, int b, int y, qir_step *
    )
    int qir_lookup_make(
        uint32_t isa, size_t size, const void *table, size_t entry, int x, int y, qir_step *
    )
    int qir_quantize_make(
        uint32_t isa, const qir_planes *, const qir_affine *, int x, int y, qir_step *
    )
    int qir_dequantize_make(
        uint32_t isa, const qir_planes *, const qir_affine *, int x, int y, qir_step *
    )

cdef extern from "pooling/pooling.h" nogil:
    cdef struct qir_window:
        size_t n, h, w, c, oh, ow, kh, kw, sh, sw, dh, dw, pt, pl
    cdef struct qir_average:
        float x_scale, y_scale
        int32_t x_zero
        uint8_t x_flip
        qir_code code
        int count_pad
    int qir_max_pool_make(
        uint32_t isa, const qir_window *, uint8_t flip, int x, int y, qir_step *
    )
    int qir_average_pool_make(
        uint32_t isa, const qir_window *, const qir_average *, int x, int y, qir_step *
    )
    int qir_global_average_make(
        uint32_t isa, size_t n, size_t pixels, size_t c, const qir_average *,
        int x, int y, qir_step *,
    )

    cdef struct qir_mean:
        float x_scale
        int32_t x_zero
        uint8_t x_flip, tabled
        float table[256]
    int qir_mean_make(
        uint32_t isa, size_t outer, size_t rows, size_t inner, const qir_mean *,
        int x, int y, qir_step *,
    )

cdef extern from "softmax/softmax.h" nogil:
    cdef struct qir_softmax:
        size_t rows, width
        float table[256]
        float gain
        uint8_t x_flip, wide, inverse
        qir_code code
    int qir_softmax_make(uint32_t isa, const qir_softmax *, int x, int y, qir_step *)

cdef extern from "rows/rows.h" nogil:
    cdef struct qir_layer_norm:
        size_t width
        const float *gamma
        const float *beta
        double eps
    int qir_layer_norm_make(
        uint32_t isa, size_t rows, const qir_layer_norm *, int x, int y, qir_step *
    )
    int qir_row_softmax_make(
        uint32_t isa, size_t rows, size_t width, int in_f32, int x, int y, qir_step *
    )

cdef extern from "layout/layout.h" nogil:
    int QIR_MAX_RANK
    void qir_transpose_bytes(const uint8_t *x, size_t rows, size_t columns, uint8_t *y)
    cdef struct qir_copy:
        size_t rows, width, x_stride, y_stride, x_offset, y_offset
    cdef struct qir_permutation:
        size_t rank
        size_t shape[8]
        size_t perm[8]
        size_t itemsize
    cdef struct qir_strided:
        size_t rank
        size_t shape[8]
        size_t steps[8]
        size_t offset, itemsize
    int qir_strided_make(const qir_strided *, int x, int y, qir_step *)
    int qir_copy_make(
        uint32_t isa, const qir_copy *, const uint8_t *table, int x, int y, qir_step *
    )
    int qir_fill_make(size_t offset, size_t size, uint8_t value, int y, qir_step *)
    int qir_transpose_make(const qir_permutation *, int x, int y, qir_step *)

cdef extern from "floats/product.h" nogil:
    int QIR_SGEMM_DEPTH
    cdef struct qir_bounds:
        int bounded
        float low, high
    cdef struct qir_float_linear:
        size_t rows, k, n
        const float *weight
        const float *bias
        qir_bounds bounds
        int x, y
    cdef struct qir_float_matmul:
        qir_matmul_shape s
        int a, b, y
    cdef struct qir_float_conv:
        qir_conv_shape s
        const float *bias
        const float *constant
        qir_bounds bounds
        int x, weight, y
    int qir_float_linear_make(uint32_t isa, const qir_float_linear *, qir_step *)
    int qir_float_matmul_make(uint32_t isa, const qir_float_matmul *, qir_step *)
    int qir_float_conv_make(uint32_t isa, const qir_float_conv *, qir_step *)
    int qir_float_depthwise_make(uint32_t isa, const qir_float_conv *, qir_step *)

cdef extern from "floats/unary.h" nogil:
    cdef enum qir_unary_op:
        pass
    cdef struct qir_unary:
        double a, b
    cdef struct qir_float_window:
        size_t planes, h, w, oh, ow, kh, kw, sh, sw, dh, dw, pt, pl
    int qir_float_unary_make(
        uint32_t isa, qir_unary_op op, const qir_unary *, size_t size, int x, int y, qir_step *
    )
    int qir_float_max_pool_make(
        uint32_t isa, const qir_float_window *, int x, int y, qir_step *
    )
    int qir_float_avg_pool_make(
        uint32_t isa, const qir_float_window *, size_t pb, size_t pr, int count_pad, int x, int y,
        qir_step *,
    )
    cdef struct qir_channel:
        double mean, slope, shift
    int qir_float_batch_norm_make(
        uint32_t isa, size_t outer, size_t channels, size_t inner, const qir_channel *,
        int x, int y, qir_step *,
    )
    int qir_float_mean_make(uint32_t isa, size_t rows, size_t width, int x, int y, qir_step *)

cdef extern from "floats/channels_last.h" nogil:
    cdef struct qir_after:
        int op, times, added
        qir_unary how
        qir_bounds bounds
    cdef struct qir_last_conv:
        qir_conv_shape s
        const float *weight
        const float *bias
        int first
        qir_after after
        int x, y
    cdef struct qir_last_pool:
        qir_float_window s
        size_t channels, pb, pr
        int average, count_pad, x, y
    int qir_last_conv_make(uint32_t isa, const qir_last_conv *, qir_step *)
    int qir_last_depthwise_make(uint32_t isa, const qir_last_conv *, qir_step *)
    cdef struct qir_last_chain:
        const qir_last_conv *before
        const qir_last_conv *middle
        const qir_last_conv *after
    int qir_last_chain_make(uint32_t isa, const qir_last_chain *, qir_step *)
    int qir_last_mean_make(
        uint32_t isa, size_t n, size_t pixels, size_t c, int x, int y, qir_step *
    )
    int qir_last_pool_make(uint32_t isa, const qir_last_pool *, qir_step *)

cdef extern from "tensors/tensors.h" nogil:
    int QIR_TENSOR_RANK
    cdef enum qir_kind:
        pass
    cdef enum qir_operation:
        pass
    cdef enum qir_reduction:
        pass
    cdef struct qir_apply:
        size_t rank
        size_t shape[8]
        size_t steps[3][8]
    cdef struct qir_function:
        int which
        double a, b
    cdef struct qir_along:
        size_t outer, rows, inner
    cdef struct qir_codes_shape:
        size_t outer, channels, inner
        const float *scale
        const int32_t *zero
        int scale_at, zero_at
        int32_t low, high
        int away
    int qir_apply_known(qir_operation op, qir_kind kind)
    int qir_apply_make(
        qir_operation op, qir_kind kind, const qir_apply *, int a, int b, int y, qir_step *
    )
    int qir_where_make(size_t size, const qir_apply *, int a, int b, int c, int y, qir_step *)
    int qir_function_make(
        uint32_t isa, const qir_function *, size_t size, int x, int y, qir_step *
    )
    int qir_cast_make(qir_kind x_kind, qir_kind y_kind, size_t size, int x, int y, qir_step *)
    int qir_reduce_make(
        qir_reduction op, qir_kind kind, const qir_along *, int x, int y, qir_step *
    )
    int qir_place_make(
        qir_kind kind, int least, int last, const qir_along *, int x, int y, qir_step *
    )
    int qir_top_k_make(
        qir_kind kind, int least, size_t k, const qir_along *, int x, int y, int places, qir_step *
    )
    int qir_encode_make(
        uint32_t isa, qir_kind kind, const qir_codes_shape *, int x, int y, qir_step *
    )
    int qir_decode_make(qir_kind kind, const qir_codes_shape *, int x, int y, qir_step *)
    int *qir_choose_fault(void *params)
    int qir_choose_make(
        uint32_t isa, qir_kind kind, size_t size, int x, int scale, int zero, qir_step *
    )

cdef extern from "pointwise/pointwise.h" nogil:
    int QIR_POINTWISE_OPS, QIR_POINTWISE_INPUTS, QIR_POINTWISE_CONSTANTS
    cdef enum qir_pointwise_kind:
        pass
    cdef struct qir_pointwise_op:
        qir_pointwise_kind kind
        int which, a, b
        double low, high
    cdef struct qir_pointwise:
        size_t inputs, constants, ops, size
        int x[8]
        int y
        float constant[8]
        qir_pointwise_op op[16]
    int qir_pointwise_make(uint32_t isa, const qir_pointwise *, qir_step *)

cdef extern from "wide/wide.h" nogil:
    cdef struct qir_wide_product:
        qir_matmul_shape s
        int a, b, y
        const float *bias
        int to_whole
        const uint8_t *codes
        size_t bits, block
        const float *scale
        const int32_t *zero
    cdef struct qir_wide_conv:
        size_t n, c, oc, groups
        size_t inside[3]
        size_t out[3]
        size_t kernel[3]
        size_t stride[3]
        size_t dilation[3]
        size_t front[3]
        int transposed, to_whole, x, w, y
        const float *bias
    int qir_wide_product_make(uint32_t isa, const qir_wide_product *, qir_step *)
    int qir_wide_conv_make(uint32_t isa, const qir_wide_conv *, qir_step *)

cdef extern from "gather/gather.h" nogil:
    cdef struct qir_gather:
        size_t outer, rows, width, count
        int wide
    int qir_gather_make(const qir_gather *, int x, int index, int y, qir_step *)
    int *qir_gather_fault(void *params)

cdef extern from "recurrent/recurrent.h" nogil:
    cdef struct qir_recurrent:
        int gates, reset_after, back
        size_t ways
        int batch_first
        size_t steps, batch, width, hidden
        const float *w
        const float *r
        const float *bias
        const float *peephole
        int x, h0, c0, y, h, c
    int qir_recurrent_make(uint32_t isa, const qir_recurrent *, qir_step *)

cdef extern from "checksum/checksum.h" nogil:
    uint64_t qir_checksum(const uint8_t *data, size_t size)

cdef struct timed_step:
    qir_step step
    int64_t nanoseconds  # of all profiled runs
    int *fault  # set by a step that met data it cannot take, or NULL

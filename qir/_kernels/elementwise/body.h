/*
 * The kernels of elementwise.h as plain loops, for the compiler to vectorize with the instructions
 * of the file that includes this; QIR_NAME(add) is the name of one there.
 */

#include <math.h>

#include "elementwise.h"

void QIR_NAME(add)(const struct qir_binary *op, const uint8_t *restrict a,
                   const uint8_t *restrict b, uint8_t *restrict y, size_t n) {
  const float a_gain = op->a_gain, b_gain = op->b_gain, offset = op->offset;
  const uint8_t a_flip = op->a_flip, b_flip = op->b_flip;
  const struct qir_code code = op->code;
  for (size_t i = 0; i < n; ++i) {
    const float left = (float)qir_decode(a[i], a_flip), right = (float)qir_decode(b[i], b_flip);
    y[i] = qir_encode_converted(fmaf(left, a_gain, fmaf(right, b_gain, offset)), &code);
  }
}

void QIR_NAME(mul)(const struct qir_binary *op, const uint8_t *restrict a,
                   const uint8_t *restrict b, uint8_t *restrict y, size_t n) {
  const float multiplier = op->multiplier, zero = op->zero;
  const int32_t a_zero = op->a_zero, b_zero = op->b_zero;
  const uint8_t a_flip = op->a_flip, b_flip = op->b_flip;
  const struct qir_code code = op->code;
  for (size_t i = 0; i < n; ++i) {
    const float left = (float)(qir_decode(a[i], a_flip) - a_zero);
    const float right = (float)(qir_decode(b[i], b_flip) - b_zero);
    y[i] = qir_encode_converted(left * right * multiplier + zero, &code); /* the product is exact */
  }
}

void QIR_NAME(whole)(const struct qir_binary *op, const uint8_t *restrict a,
                     const uint8_t *restrict b, uint8_t *restrict y, size_t n) {
  const int32_t a_factor = op->a_factor, b_factor = op->b_factor, offset = op->whole_offset;
  const int32_t shift = op->shift, zero = op->code.zero, low = op->code.low, high = op->code.high;
  const uint8_t a_flip = op->a_flip, b_flip = op->b_flip;
  for (size_t i = 0; i < n; ++i) {
    const int32_t left = qir_decode(a[i], a_flip), right = qir_decode(b[i], b_flip);
    int32_t code = ((left * a_factor + right * b_factor + offset) >> shift) + zero;
    code = code > low ? code : low;
    y[i] = (uint8_t)(code < high ? code : high);
  }
}

#define QIR_REAL(op, sign)                                                              \
  void QIR_NAME(real_##op)(const struct qir_binary *ignored, const uint8_t *restrict a, \
                           const uint8_t *restrict b, uint8_t *restrict y, size_t n) {  \
    (void)ignored;                                                                      \
    const float *restrict left = (const float *)a, *restrict right = (const float *)b;  \
    float *restrict to = (float *)y;                                                    \
    for (size_t i = 0; i < n; ++i) to[i] = left[i] sign right[i];                       \
  }
QIR_REAL(add, +)
QIR_REAL(sub, -)
QIR_REAL(mul, *)
QIR_REAL(div, /)
#undef QIR_REAL

void QIR_NAME(quantize)(const struct qir_affine *to, const float *restrict x, uint8_t *restrict y,
                        size_t n) {
  const float scale = to->scale;
  const struct qir_code code = to->code;
  for (size_t i = 0; i < n; ++i) y[i] = qir_encode(x[i] / scale, &code);
}

void QIR_NAME(dequantize)(const struct qir_affine *from, const uint8_t *restrict x,
                          float *restrict y, size_t n) {
  const float scale = from->scale;
  const int32_t zero = from->code.zero;
  const uint8_t flip = from->code.flip;
  for (size_t i = 0; i < n; ++i) y[i] = (float)(qir_decode(x[i], flip) - zero) * scale;
}

void QIR_NAME(interleave3)(const uint8_t *restrict x, size_t n, uint8_t *restrict y) {
  const uint8_t *restrict b = x + n, *restrict c = b + n;
  for (size_t i = 0; i < n; ++i) {
    y[3 * i] = x[i];
    y[3 * i + 1] = b[i];
    y[3 * i + 2] = c[i];
  }
}

#if !defined(QIR_OWN_LOOKUP)
void QIR_NAME(lookup)(const uint8_t *restrict table, const uint8_t *restrict x, uint8_t *restrict y,
                      size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = table[x[i]];
}
#endif

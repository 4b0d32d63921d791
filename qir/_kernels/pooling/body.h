/*
 * The kernels of pooling.h as plain loops, for the compiler to vectorize with the instructions of
 * the file that includes this; QIR_NAME(max) is the name of one there. Sums are of blocks of
 * channels, so that they stay in registers.
 */

#include <string.h>

#include "pooling.h"

enum { BLOCK = 64 };

#define QIR_INLINE_BODY static inline __attribute__((always_inline))

/* How many channels a last block takes of those that are left. */
static inline size_t last(size_t left) {
#if defined(QIR_FAULT_TAIL_POOLING) /* never in a build to use, as in gemm.c */
  return left - 1;
#endif
  return left;
}

static inline void max_row(const uint8_t *restrict row, uint8_t flip, uint8_t *restrict y,
                           size_t n) {
  for (size_t c = 0; c < n; ++c) {
    const uint8_t a = y[c] ^ flip, b = row[c] ^ flip;
    y[c] = (a > b ? a : b) ^ flip;
  }
}

void QIR_NAME(max)(const struct qir_pooling_rows *x, uint8_t flip, uint8_t *y) {
  memset(y, flip, x->c); /* the lowest code */
  for (size_t i = 0; i < x->count; ++i) max_row(x->rows[i], flip, y, last(x->c));
}

QIR_INLINE_BODY void average_block(const struct qir_pooling_rows *x, float count,
                                   const struct qir_average *how, uint8_t *restrict y, size_t first,
                                   size_t n) {
  const int32_t x_zero = how->x_zero;
  const float x_scale = how->x_scale, y_scale = how->y_scale, y_zero = (float)how->code.zero;
  const uint8_t flip = how->x_flip;
  struct qir_code code = how->code;
  code.zero = 0; /* it is added before rounding */
  float sum[BLOCK];
  memset(sum, 0, sizeof sum);
  for (size_t i = 0; i < x->count; ++i) {
    const uint8_t *restrict row = x->rows[i] + first;
    for (size_t c = 0; c < n; ++c) sum[c] += (float)(qir_decode(row[c], flip) - x_zero) * x_scale;
  }
  for (size_t c = 0; c < n; ++c)
    y[first + c] = qir_encode_converted(sum[c] / count / y_scale + y_zero, &code);
}

void QIR_NAME(average)(const struct qir_pooling_rows *x, float count, const struct qir_average *how,
                       uint8_t *y) {
  size_t first = 0;
  for (; first + BLOCK <= x->c; first += BLOCK) average_block(x, count, how, y, first, BLOCK);
  if (first < x->c) average_block(x, count, how, y, first, last(x->c - first));
}

QIR_INLINE_BODY void global_block(const uint8_t *restrict x, size_t pixels, size_t c,
                                  const struct qir_average *how, uint8_t *restrict y, size_t first,
                                  size_t n) {
  const uint8_t flip = how->x_flip;
  const uint32_t zeros = (uint32_t)(how->x_zero + flip) * (uint32_t)pixels;
  const float multiplier = how->x_scale / (how->y_scale * (float)pixels);
  uint32_t sum[BLOCK];
  memset(sum, 0, sizeof sum);
  for (size_t i = 0; i < pixels; ++i)
    for (size_t j = 0; j < n; ++j) sum[j] += x[i * c + first + j] ^ flip;
  for (size_t j = 0; j < n; ++j)
    y[first + j] = qir_encode((float)(int32_t)(sum[j] - zeros) * multiplier, &how->code);
}

void QIR_NAME(global)(const uint8_t *x, size_t pixels, size_t c, const struct qir_average *how,
                      uint8_t *y) {
  size_t first = 0;
  for (; first + BLOCK <= c; first += BLOCK) global_block(x, pixels, c, how, y, first, BLOCK);
  if (first < c) global_block(x, pixels, c, how, y, first, last(c - first));
}

/* Along the innermost axis, in lanes: the sum is exact, so any order will do. */
static inline double sum_of(const uint8_t *restrict x, size_t rows, const struct qir_mean *how) {
  const int32_t zero = how->x_zero;
  const float scale = how->x_scale;
  const uint8_t flip = how->x_flip;
  double lanes[16] = {0}, sum = 0;
  size_t i = 0;
  for (; !how->tabled && i + 16 <= rows; i += 16)
    for (size_t l = 0; l < 16; ++l)
      lanes[l] += (double)((float)(qir_decode(x[i + l], flip) - zero) * scale);
  for (; i < rows; ++i)
    sum += how->tabled ? (double)how->table[x[i]]
                       : (double)((float)(qir_decode(x[i], flip) - zero) * scale);
  for (size_t l = 0; l < 16; ++l) sum += lanes[l];
  return sum;
}

QIR_INLINE_BODY void mean_block(const uint8_t *restrict x, size_t rows, size_t inner,
                                const struct qir_mean *how, float *restrict y, size_t first,
                                size_t n) {
  const int32_t zero = how->x_zero;
  const float scale = how->x_scale;
  const float *restrict table = how->table;
  const uint8_t flip = how->x_flip;
  double sum[BLOCK];
  for (size_t j = 0; j < n; ++j) sum[j] = 0;
  if (how->tabled)
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < n; ++j) sum[j] += (double)table[x[i * inner + first + j]];
  else
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < n; ++j)
        sum[j] += (double)((float)(qir_decode(x[i * inner + first + j], flip) - zero) * scale);
  for (size_t j = 0; j < n; ++j) y[first + j] = (float)(sum[j] / (double)rows);
}

void QIR_NAME(mean)(const uint8_t *x, size_t rows, size_t inner, const struct qir_mean *how,
                    float *y) {
  if (inner == 1) {
    y[0] = (float)(sum_of(x, rows, how) / (double)rows);
    return;
  }
  size_t first = 0;
  for (; first + BLOCK <= inner; first += BLOCK) mean_block(x, rows, inner, how, y, first, BLOCK);
  if (first < inner) mean_block(x, rows, inner, how, y, first, last(inner - first));
}

/*
 * The kernels of pooling.h as plain loops, for the compiler to vectorize with the instructions of
 * the file that includes this; QIR_NAME(max) is the name of one there. Channels are taken in
 * blocks, whose sums stay in registers or near.
 */

#include "pooling.h"

enum { BLOCK = 64 };

static inline size_t block_at(size_t first, size_t c) {
  return c - first < BLOCK ? c - first : BLOCK;
}

void QIR_NAME(max)(const struct qir_pooling_rows *x, uint8_t flip, uint8_t *y) {
  for (size_t first = 0; first < x->c; first += BLOCK) {
    uint8_t most[BLOCK] = {0};
    const size_t n = block_at(first, x->c);
    for (size_t i = 0; i < x->count; ++i) {
      const uint8_t *row = x->rows[i] + first;
      for (size_t c = 0; c < n; ++c) {
        const uint8_t code = row[c] ^ flip;
        most[c] = code > most[c] ? code : most[c];
      }
    }
    for (size_t c = 0; c < n; ++c) y[first + c] = most[c] ^ flip;
  }
}

void QIR_NAME(average)(const struct qir_pooling_rows *x, float count, const struct qir_average *how,
                       uint8_t *y) {
  const int32_t x_zero = how->x_zero;
  const float x_scale = how->x_scale, y_scale = how->y_scale, y_zero = (float)how->code.zero;
  const uint8_t flip = how->x_flip;
  struct qir_code code = how->code;
  code.zero = 0;
  for (size_t first = 0; first < x->c; first += BLOCK) {
    float sum[BLOCK] = {0};
    const size_t n = block_at(first, x->c);
    for (size_t i = 0; i < x->count; ++i) {
      const uint8_t *row = x->rows[i] + first;
      for (size_t c = 0; c < n; ++c) sum[c] += (float)(qir_decode(row[c], flip) - x_zero) * x_scale;
    }
    for (size_t c = 0; c < n; ++c)
      y[first + c] = qir_encode(sum[c] / count / y_scale + y_zero, &code);
  }
}

void QIR_NAME(global)(const uint8_t *x, size_t pixels, size_t c, const struct qir_average *how,
                      uint8_t *y) {
  const uint8_t flip = how->x_flip;
  const uint32_t zeros = (uint32_t)(how->x_zero + flip) * (uint32_t)pixels;
  const float multiplier = how->x_scale / (how->y_scale * (float)pixels);
  for (size_t first = 0; first < c; first += BLOCK) {
    uint32_t sum[BLOCK] = {0};
    const size_t n = block_at(first, c);
    for (size_t i = 0; i < pixels; ++i)
      for (size_t j = 0; j < n; ++j) sum[j] += x[i * c + first + j] ^ flip;
    for (size_t j = 0; j < n; ++j)
      y[first + j] = qir_encode((float)(int32_t)(sum[j] - zeros) * multiplier, &how->code);
  }
}

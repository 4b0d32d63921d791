#include "gemm.h"

enum { NR = 8 };

static void finish(const struct qir_gemm_block *b, size_t i, const uint32_t *acc) {
  for (size_t j = 0; j < b->columns; ++j) {
    const float real = (float)(int32_t)acc[j] * b->multiplier[j];
    if (b->to_float)
      ((float *)b->y)[i * b->y_stride + j] = b->plus ? real + b->plus[j] : real;
    else
      ((uint8_t *)b->y)[i * b->y_stride + j] = qir_encode(real, &b->code);
  }
}

void qir_gemm_scalar(const struct qir_gemm_block *b) {
  for (size_t i = 0; i < b->count; ++i) {
    const int16_t *w = b->panel;
    uint32_t acc[NR];
    const uint32_t shift = b->shift ? (uint32_t)b->shift[i] : 0;
    for (size_t j = 0; j < NR; ++j)
      acc[j] = (uint32_t)b->bias[j] + (b->gain ? shift * (uint32_t)b->gain[j] : shift);
    for (size_t t = 0; t < b->taps; ++t) {
      const int16_t *a = b->rows[t * b->row_stride + i];
      for (size_t p = 0; p < b->depth; ++p, w += NR)
        for (size_t j = 0; j < NR; ++j) acc[j] += (uint32_t)(a[p] * w[j]);
    }
    finish(b, i, acc);
  }
}

#include <math.h>

#include "sgemm.h"

enum { NR = 8 };

void qir_sgemm_scalar(const struct qir_sgemm_block *b) {
  for (size_t i = 0; i < b->count; ++i) {
    const float *a = b->a + i * b->a_row, *w = b->panel;
    float acc[NR] = {0};
    for (size_t p = 0; p < b->depth; ++p, w += NR)
      for (size_t j = 0; j < NR; ++j) acc[j] = fmaf(a[p], w[j], acc[j]);
    float *y = b->y + i * b->y_row;
    for (size_t j = 0; j < b->columns; ++j) {
      float sum = b->first ? acc[j] : y[j] + acc[j];
      if (b->last && b->row_bias) sum += b->row_bias[i];
      if (b->last && b->column_bias) sum += b->column_bias[j];
      y[j] = b->last ? qir_bound(sum, &b->bounds) : sum;
    }
  }
}

void qir_taps_scalar(const struct qir_taps *how, float *y, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    float sum = 0;
    for (size_t t = 0; t < how->taps; ++t) sum = fmaf(how->weight[t], how->x[how->at[t] + i], sum);
    y[i] = qir_bound(sum + how->bias, &how->bounds);
  }
}

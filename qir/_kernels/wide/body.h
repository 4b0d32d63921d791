/* The kernels of wide.h as plain loops, for the compiler to vectorize with the instructions of the
 * file that includes this; QIR_NAME(tile) is the name of one there. */

#include <math.h>

#include "wide.h"

#if !defined(QIR_OWN_TILES)
void QIR_NAME(tile)(const double *restrict a, const double *restrict panel, size_t k,
                    double *restrict sums) {
  for (size_t part = 0; part < QIR_WIDE_COLUMNS; part += QIR_PART) {
    double s[QIR_TILE_ROWS][QIR_PART];
    for (size_t r = 0; r < QIR_TILE_ROWS; ++r)
      for (size_t j = 0; j < QIR_PART; ++j) s[r][j] = 0;
    for (size_t p = 0; p < k; ++p) {
      const double *restrict line = panel + p * QIR_WIDE_COLUMNS + part;
      for (size_t r = 0; r < QIR_TILE_ROWS; ++r)
        for (size_t j = 0; j < QIR_PART; ++j) s[r][j] = QIR_PLUS(a[r * k + p], line[j], s[r][j]);
    }
    for (size_t r = 0; r < QIR_TILE_ROWS; ++r)
      for (size_t j = 0; j < QIR_PART; ++j) sums[r * QIR_WIDE_COLUMNS + part + j] = s[r][j];
  }
}

void QIR_NAME(floats)(const double *a, const double *panel, size_t k,
                      const struct qir_wide_floats *to) {
  double sums[QIR_TILE_ROWS * QIR_WIDE_COLUMNS];
  QIR_NAME(tile)(a, panel, k, sums);
  for (size_t r = 0; r < to->rows; ++r) {
    const double *restrict row = sums + r * QIR_WIDE_COLUMNS, *restrict bias = to->bias;
    float *restrict y = to->y + r * to->y_row;
    for (size_t j = 0; j < to->columns; ++j) y[j] = (float)(row[j] + bias[j]);
  }
}
#endif

void QIR_NAME(taps)(const struct qir_wide_taps *how, double *restrict sums) {
  for (size_t part = 0; part < how->columns; part += QIR_PART) {
    double s[QIR_PART] = {0};
    for (size_t t = 0; t < how->taps; ++t) {
      const double by = (double)how->weight[t];
      const double *restrict from = how->from + how->places[t] + part;
      for (size_t j = 0; j < QIR_PART; ++j) s[j] = QIR_PLUS(by, from[j], s[j]);
    }
    for (size_t j = 0; j < QIR_PART; ++j) sums[part + j] = s[j];
  }
}

#undef QIR_PART
#undef QIR_TILE_ROWS
#undef QIR_OWN_TILES
#undef QIR_PLUS

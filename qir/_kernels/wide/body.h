/* The kernels of wide.h as plain loops, for the compiler to vectorize with the instructions of the
 * file that includes this; QIR_NAME(tile) is the name of one there. */

#include "wide.h"

void QIR_NAME(tile)(const float *const *a, const float *restrict panel, size_t k,
                    double *restrict sums) {
  const float *restrict first = a[0], *restrict second = a[1];
  const float *restrict third = a[2], *restrict fourth = a[3];
  for (size_t part = 0; part < QIR_WIDE_COLUMNS; part += QIR_PART) {
    double s[QIR_WIDE_ROWS][QIR_PART] = {{0}};
    for (size_t p = 0; p < k; ++p) {
      const float *restrict line = panel + p * QIR_WIDE_COLUMNS + part;
      const double u = first[p], v = second[p], w = third[p], z = fourth[p];
      for (size_t j = 0; j < QIR_PART; ++j) {
        const double b = line[j];
        s[0][j] += u * b;
        s[1][j] += v * b;
        s[2][j] += w * b;
        s[3][j] += z * b;
      }
    }
    for (size_t r = 0; r < QIR_WIDE_ROWS; ++r)
      for (size_t j = 0; j < QIR_PART; ++j) sums[r * QIR_WIDE_COLUMNS + part + j] = s[r][j];
  }
}

void QIR_NAME(taps)(const struct qir_wide_taps *how, double *restrict sums) {
  for (size_t part = 0; part < how->columns; part += QIR_PART) {
    double s[QIR_PART] = {0};
    for (size_t t = 0; t < how->taps; ++t) {
      const double by = (double)how->weight[t];
      const double *restrict from = how->from + how->places[t] + part;
      for (size_t j = 0; j < QIR_PART; ++j) s[j] += by * from[j];
    }
    for (size_t j = 0; j < QIR_PART; ++j) sums[part + j] = s[j];
  }
}

#undef QIR_PART

/*
 * The kernels of recurrent.h as plain loops, for the compiler to vectorize with the instructions of
 * the file that includes this; QIR_NAME(add) is the name of one there.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "recurrent.h"

enum { BLOCK = 32 };

void QIR_NAME(add)(const double *restrict x, size_t k, const float *restrict w, size_t n,
                   size_t columns, double *restrict sums) {
  size_t j = 0;
  for (; j + BLOCK <= columns; j += BLOCK) {
    double kept[BLOCK];
    for (size_t l = 0; l < BLOCK; ++l) kept[l] = sums[j + l];
    for (size_t i = 0; i < k; ++i)
      for (size_t l = 0; l < BLOCK; ++l) kept[l] = fma(x[i], (double)w[i * n + j + l], kept[l]);
    for (size_t l = 0; l < BLOCK; ++l) sums[j + l] = kept[l];
  }
  for (size_t i = 0; i < k; ++i)
    for (size_t l = j; l < columns; ++l) sums[l] = fma(x[i], (double)w[i * n + l], sums[l]);
}

/* exp(x) for x <= 0 or NaN, within 2^-50 of its value: 2^k * exp(r) with |r| <= ln(2) / 2; 0 below
 * -700. */
static inline __attribute__((always_inline)) double power(double x) {
  static const double terms[] = {
      1.0 / 479001600,
      1.0 / 39916800,
      1.0 / 3628800,
      1.0 / 362880,
      1.0 / 40320,
      1.0 / 5040,
      1.0 / 720,
      1.0 / 120,
      1.0 / 24,
      1.0 / 6,
      0.5,
      1.0,
      1.0,
  };
  const double shift = 6755399441055744.0; /* 1.5 * 2^52: numbers of this size have no fraction */
  const double kept = x < -700 ? -700 : x;
  const double shifted = fma(kept, 1.4426950408889634, shift), k = shifted - shift;
  const double r = fma(k, -0x1.abc9e3b39803fp-56, fma(k, -0x1.62e42fefa39efp-1, kept));
  double p = 1.0 / 6227020800;
  for (size_t i = 0; i < sizeof terms / sizeof *terms; ++i) p = fma(p, r, terms[i]);
  uint64_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 1023) << 52; /* the low bits of `shifted` are k */
  double scale;
  memcpy(&scale, &bits, sizeof scale);
  return x < -700 ? 0 : p * scale;
}

void QIR_NAME(sigmoid)(double *x, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double small = power(-fabs(x[i]));
    x[i] = (x[i] < 0 ? small : 1.0) / (1.0 + small);
  }
}

/* By three terms of the series where exp(-2 x) is nearly 1. */
void QIR_NAME(tanh)(double *x, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double v = x[i], size = fabs(v), small = power(-2 * size);
    const double square = size * size, far = (1 - small) / (1 + small);
    const double near = size * (1 - square * (1.0 / 3 - square * (2.0 / 15)));
    const double y = size < 0x1p-7 ? near : far;
    x[i] = v != v ? v : v < 0 ? -y : v > 0 ? y : v;
  }
}

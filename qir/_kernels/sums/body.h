/*
 * The kernel of sums.h as plain loops, for the compiler to vectorize with the instructions of the
 * file that includes this; QIR_SUMS_NAME is the function's name there. Sums are of blocks of
 * channels, so that they stay in registers.
 */

#include "sums.h"

enum { BLOCK = 64 };

#define QIR_INLINE_BODY static inline __attribute__((always_inline))

#if defined(QIR_FAULT_TAIL_SUMS) /* never in a build to use, as in gemm.c */
#define QIR_TAIL(n) ((n) - 1)
#else
#define QIR_TAIL(n) (n)
#endif

QIR_INLINE_BODY int32_t guessed(const struct qir_sum_levels *levels, uint32_t sum) {
  float near = (float)(int32_t)sum * levels->gain + levels->offset;
  near = near > 0 ? near : 0;
  near = near < QIR_LEVELS ? near : QIR_LEVELS;
  return (int32_t)near;
}

/* The bytes of n sums: from the table, or near the line's guess. */
QIR_INLINE_BODY void looked_up(const struct qir_sum_levels *levels, const uint32_t *restrict sums,
                               uint8_t flip, uint8_t *restrict y, size_t n) {
  const int32_t *restrict level = levels->level;
  const uint8_t *restrict bytes = levels->bytes;
  if (bytes) {
    for (size_t j = 0; j < n; ++j) y[j] = bytes[sums[j]];
    return;
  }
  for (size_t j = 0; j < n; ++j) {
    const int32_t sum = (int32_t)sums[j];
    int32_t byte = guessed(levels, sums[j]);
    while (level[byte + 1] <= sum) ++byte;
    while (level[byte] > sum) --byte;
    y[j] = (uint8_t)byte ^ flip;
  }
}

QIR_INLINE_BODY void block(const struct qir_sum_window *of, uint8_t x_flip,
                           const struct qir_sum_levels *levels, uint8_t y_flip, uint8_t *y,
                           size_t first, size_t n) {
  uint32_t sums[BLOCK] = {0};
  for (size_t r = 0; r < of->rows; ++r) {
    const uint8_t *restrict x = of->x + r * of->stride + first;
    for (size_t k = 0; k < of->columns; ++k)
      for (size_t j = 0; j < n; ++j) sums[j] += x[k * of->c + j] ^ x_flip;
  }
  looked_up(levels, sums, y_flip, y + first, n);
}

/* One channel: pixels are next to each other. */
QIR_INLINE_BODY uint32_t line_sum(const uint8_t *restrict x, uint8_t flip, size_t n) {
  uint32_t sum = 0;
  for (size_t k = 0; k < QIR_TAIL(n); ++k) sum += x[k] ^ flip;
  return sum;
}

void QIR_SUMS_NAME(const struct qir_sum_window *of, uint8_t x_flip,
                   const struct qir_sum_levels *levels, uint8_t y_flip, uint8_t *y) {
  if (of->c == 1) {
    uint32_t sum = 0;
    for (size_t r = 0; r < of->rows; ++r)
      sum += line_sum(of->x + r * of->stride, x_flip, of->columns);
    looked_up(levels, &sum, y_flip, y, 1);
    return;
  }
  size_t first = 0;
  for (; first + BLOCK <= of->c; first += BLOCK) block(of, x_flip, levels, y_flip, y, first, BLOCK);
  if (first < of->c) block(of, x_flip, levels, y_flip, y, first, QIR_TAIL(of->c - first));
}

#undef QIR_INLINE_BODY
#undef QIR_TAIL
#undef QIR_SUMS_NAME

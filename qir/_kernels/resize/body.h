/* The kernel of resize.h as plain loops, for the compiler to vectorize with the instructions of the
 * file that includes this; QIR_RESIZE_NAME is the function's name there. */

#include "requant.h"
#include "resize.h"

#define ALWAYS static inline __attribute__((always_inline))

#if defined(QIR_FAULT_TAIL_RESIZE) /* never in a build to use, as in gemm.c */
#define QIR_TAIL(n) ((n) % 16 ? (n) - 1 : (n))
#else
#define QIR_TAIL(n) (n)
#endif

ALWAYS void pixel(const struct qir_resize_row *row, const uint8_t *restrict const at[4],
                  int32_t left, int32_t right, int shift, int away, uint8_t flip,
                  uint8_t *restrict y, size_t n) {
  const int32_t a = row->above_weight * left, b = row->above_weight * right;
  const int32_t c = row->below_weight * left, d = row->below_weight * right;
  const uint8_t *restrict p = at[0], *restrict q = at[1], *restrict r = at[2], *restrict s = at[3];
  const int32_t half = 1 << (shift - 1);
  for (size_t j = 0; j < n; ++j) {
    const int32_t sum = qir_decode(p[j], flip) * a + qir_decode(q[j], flip) * b +
                        qir_decode(r[j], flip) * c + qir_decode(s[j], flip) * d;
    /* Away from zero: one less below zero, where the shift rounds down. */
    y[j] = (uint8_t)((sum + half - (away & (sum < 0))) >> shift);
  }
}

void QIR_RESIZE_NAME(const struct qir_resize *how, const struct qir_resize_row *row, uint8_t *y) {
  const struct qir_resize_axis *x = &how->columns;
  const size_t c = how->c;
  for (size_t i = 0; i < how->ow; ++i, y += c) {
    const size_t low = (size_t)x->low[i] * c, high = (size_t)x->high[i] * c;
    const uint8_t *const at[] = {row->above + low, row->above + high, row->below + low,
                                 row->below + high};
    pixel(row, at, x->low_weight[i], x->high_weight[i], how->shift, how->away, how->flip, y,
          QIR_TAIL(c));
  }
}

#undef ALWAYS
#undef QIR_TAIL
#undef QIR_RESIZE_NAME

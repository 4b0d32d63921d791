#ifndef QIR_MATMUL_H
#define QIR_MATMUL_H

/*
 * y[t, i, j] = requantize(sum over p of (a[t, i, p] - a_zero) * (b[t, p, j] - b_zero))
 *
 * Both operands are computed by the steps before, so B is packed while the step runs, a panel of
 * columns at a time, and the kernels of gemm.h do the rest. They multiply unsigned A by signed B,
 * so with a and b the bytes as these kernels see them, and zeros to match, the sum is
 *
 *   sum a*b  -  a_zero * sum over p of b[p, j]  -  b_zero * sum over p of a[i, p]
 *            +  k * a_zero * b_zero
 *
 * where the second and the last term are the bias of a column, and the third that of a row. All
 * sums are modulo 2^32, so every order gives the same bits.
 */

#include "requant.h"
#include "step.h"

/* Element (t, i, p) of A is at a_at[t] + i * a_row + p; (t, p, j) of B at b_at[t] + p * b_value +
 * j * b_column; (t, i, j) of Y at y_at[t] + i * y_row + j. */
struct qir_matmul_shape {
  size_t batches, m, k, n;
  const size_t *a_at, *b_at, *y_at;
  size_t a_row, b_value, b_column, y_row;
  size_t a_end; /* bytes of A that may be read */
};

struct qir_matmul_operands {
  int a, b, y; /* buffers */
  int32_t a_zero, b_zero;
  uint8_t a_flip, b_flip; /* 0x80 for i8, 0 for u8 */
  float multiplier;
  struct qir_code code;
  int to_float;
};

/* Makes a step; 0 if there is no memory. */
int qir_matmul_make(uint32_t isa, const struct qir_matmul_shape *shape,
                    const struct qir_matmul_operands *operands, struct qir_step *step);

#endif

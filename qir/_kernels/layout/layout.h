#ifndef QIR_LAYOUT_H
#define QIR_LAYOUT_H

/* Moving bytes: nothing here looks at what they mean, but for a table they may pass through. */

#include "step.h"

enum { QIR_MAX_RANK = 8 };

/* y[j, i] = x[i, j] for `rows` times `columns` bytes. */
void qir_transpose_bytes(const uint8_t *x, size_t rows, size_t columns, uint8_t *y);

struct qir_copy {
  size_t rows, width;                            /* bytes */
  size_t x_stride, y_stride, x_offset, y_offset; /* bytes */
};

/* y[axes permuted] = x: axis i of y is axis perm[i] of x. */
struct qir_permutation {
  size_t rank;
  size_t shape[QIR_MAX_RANK]; /* of x */
  size_t perm[QIR_MAX_RANK];
  size_t itemsize; /* 1, 2, 4 or 8 */
};

/* y[i, j ...] = x[offset + i * steps[0] + j * steps[1] ...]; all in elements. */
struct qir_strided {
  size_t rank; /* 2 or more */
  size_t shape[QIR_MAX_RANK], steps[QIR_MAX_RANK];
  size_t offset, itemsize; /* 1, 2, 4 or 8 */
};

/* Each makes a step; 0 if there is no memory. `table` may be NULL. */
int qir_copy_make(uint32_t isa, const struct qir_copy *copy, const uint8_t *table, int x, int y,
                  struct qir_step *step);
int qir_fill_make(size_t offset, size_t size, uint8_t value, int y, struct qir_step *step);
int qir_strided_make(const struct qir_strided *s, int x, int y, struct qir_step *step);
int qir_transpose_make(const struct qir_permutation *p, int x, int y, struct qir_step *step);

#endif

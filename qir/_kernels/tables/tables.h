#ifndef QIR_TABLES_H
#define QIR_TABLES_H

/*
 * Functions of one byte or two by tables, where the last elements of a run have another table:
 * kernels that compute vectors round the elements that fill none otherwise. Element i of the
 * result is one of a vector where i % run < body.
 */

#include "step.h"

struct qir_runs {
  size_t run, body;
  const uint8_t *table[2]; /* of vectors, and of the rest; of 256 bytes, or 65536 */
};

/* y[i] = table[x[i]]. */
int qir_run_lookup_make(const struct qir_runs *runs, size_t size, int x, int y,
                        struct qir_step *step);

/* y[o, r, i] = table[256 * a[o, r, i] + b[o, r, i]]; a shared operand has no axis r. */
struct qir_pair_shape {
  size_t outer, rows, inner;
  int a_shared, b_shared;
};
int qir_pair_lookup_make(const struct qir_runs *runs, const struct qir_pair_shape *shape, int a,
                         int b, int y, struct qir_step *step);

#endif

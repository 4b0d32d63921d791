#ifndef QIR_GATHER_H
#define QIR_GATHER_H

/*
 * y[o, i] = x[o, index[i]], each a row of `width` bytes; an index below zero counts from the end.
 * Where one lies outside, nothing is written for it and the step has a fault.
 */

#include "step.h"

struct qir_gather {
  size_t outer, rows, width; /* of x */
  size_t count;              /* of indices */
  int wide;                  /* indices are int64, else int32 */
};

int qir_gather_make(const struct qir_gather *g, int x, int index, int y, struct qir_step *step);

/* Where a step that was made says whether an index lay outside since it was last cleared. */
int *qir_gather_fault(void *params);

#endif

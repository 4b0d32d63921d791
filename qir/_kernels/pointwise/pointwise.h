#ifndef QIR_POINTWISE_H
#define QIR_POINTWISE_H

/*
 * A chain of ops on each float by itself, as one step: every op is the kernel that a step of its
 * own would call, on as many floats as stay in the nearest cache, so every byte is the same.
 *
 * Values are numbered: inputs first, then constants, then the results of the ops, the last of which
 * is y.
 */

#include "elementwise/elementwise.h"
#include "floats/unary.h"
#include "step.h"
#include "tensors/tensors.h"

enum { QIR_POINTWISE_OPS = 16, QIR_POINTWISE_INPUTS = 8, QIR_POINTWISE_CONSTANTS = 8 };

enum qir_pointwise_kind { QIR_POINTWISE_REAL, QIR_POINTWISE_FUNCTION, QIR_POINTWISE_UNARY };

struct qir_pointwise_op {
  enum qir_pointwise_kind kind;
  int which; /* enum qir_real, a function of tensors.h, or enum qir_unary_op */
  int a, b;  /* values; b of QIR_POINTWISE_REAL alone */
  double low, high;
};

struct qir_pointwise {
  size_t inputs, constants, ops, size;
  int x[QIR_POINTWISE_INPUTS], y; /* buffers */
  float constant[QIR_POINTWISE_CONSTANTS];
  struct qir_pointwise_op op[QIR_POINTWISE_OPS]; /* reads values of smaller numbers */
};

/* Makes a step; 0 if there is no memory. */
int qir_pointwise_make(uint32_t isa, const struct qir_pointwise *how, struct qir_step *step);

#endif

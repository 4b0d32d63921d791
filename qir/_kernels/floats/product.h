#ifndef QIR_FLOAT_PRODUCT_H
#define QIR_FLOAT_PRODUCT_H

/* Steps that compute products of float32 in the order of sgemm.h; x and y are buffers. */

#include "conv/conv.h"
#include "matmul/matmul.h"
#include "sgemm.h"

/* y[i, j] = bound(sum over p of x[i, p] * weight[j, p] + bias[j]); the weights are copied. */
struct qir_float_linear {
  size_t rows, k, n;
  const float *weight, *bias; /* bias may be NULL */
  struct qir_bounds bounds;
  int x, y;
};

/* y[t] = a[t] @ b[t]; how the matrices lie is said in matmul.h, in floats. */
struct qir_float_matmul {
  struct qir_matmul_shape s;
  int a, b, y;
};

/*
 * Channels first; padding is zeros that take part. The weights are a buffer, the bias is copied.
 * Weights that are known may be packed in another order, which is a copy.
 */
struct qir_float_conv {
  struct qir_conv_shape s;
  const float *bias, *constant; /* may be NULL; `constant` is what the weights are */
  struct qir_bounds bounds;
  int x, weight, y;
};

/* Each makes a step; 0 if there is no memory. */
int qir_float_linear_make(uint32_t isa, const struct qir_float_linear *how, struct qir_step *step);
int qir_float_matmul_make(uint32_t isa, const struct qir_float_matmul *how, struct qir_step *step);
int qir_float_conv_make(uint32_t isa, const struct qir_float_conv *how, struct qir_step *step);
/* One input channel a group, and no more than QIR_SGEMM_DEPTH taps. */
int qir_float_depthwise_make(uint32_t isa, const struct qir_float_conv *how, struct qir_step *step);

#endif

#ifndef QIR_CONV_H
#define QIR_CONV_H

/*
 * y[n, oy, ox, o] = requantize(bias[o] + sum over ky, kx, c of
 *     (x[n, oy * sh - pt + ky * dh, ox * sw - pl + kx * dw, c] - x_zero) * w[o, c, ky, kx])
 *
 * x and y are NHWC, w is OIHW, and what lies outside of x is x_zero, so adds nothing. With
 * groups, o and c run within one group. A matrix product is the case of one tap.
 */

#include "epilogue/epilogue.h"
#include "requant.h"
#include "step.h"

struct qir_conv_shape {
  size_t n, h, w, c;
  size_t oh, ow, oc;
  size_t kh, kw, sh, sw, dh, dw;
  size_t pt, pl;
  size_t groups;
};

struct qir_conv_operands {
  int x, y;                /* buffers */
  const int8_t *weight;    /* [oc, c / groups, kh, kw] */
  const int32_t *offset;   /* [oc]: added to each weight of a channel, in -128..128, or NULL */
  const int32_t *bias;     /* [oc] or NULL */
  const float *multiplier; /* [multiplier_count] */
  size_t multiplier_count; /* 1 or oc */
  int32_t x_zero;
  uint8_t x_flip;
  struct qir_code code;
  int to_float;
  /* Or NULL: what becomes of sums in place of multiplier, code and to_float. */
  const struct qir_epilogue *epilogue;
  /* Products of two taps of a channel, in the order of the weights, are added in 16 bits that
   * saturate, before x_zero is taken off; of depthwise convolutions alone. */
  int pairs;
};

/* Makes a step; 0 if there is no memory. */
int qir_conv_make(uint32_t isa, const struct qir_conv_shape *shape,
                  const struct qir_conv_operands *operands, struct qir_step *step);

/*
 * The same with a float result, where a run finds the numbers of x: x_zero is the code in buffer
 * `zero`, or the operands' where that is -1, and the multipliers are the `count` floats in buffer
 * `scale`, 1 or one a channel. Both are read when the step runs. `plus` is added to the floats, one
 * a channel, or NULL.
 */
struct qir_dynamic {
  int zero, scale;
  size_t count;
  const float *plus;
};
int qir_dynamic_conv_make(uint32_t isa, const struct qir_conv_shape *shape,
                          const struct qir_conv_operands *operands,
                          const struct qir_dynamic *dynamic, struct qir_step *step);

#endif

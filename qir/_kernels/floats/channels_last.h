#ifndef QIR_FLOAT_CHANNELS_LAST_H
#define QIR_FLOAT_CHANNELS_LAST_H

/*
 * Float32 images channels last. Each step gives the bytes of its twin for images channels first, in
 * product.h and unary.h: sums add the same values in the same order.
 *
 * Output pixels are rows of a matrix and output channels its columns, so constant weights are
 * packed once, and windows are read in place: offsets from the first value of a window to each
 * other one are the same for all pixels. Where windows reach into padding, a task copies its lines
 * to a frame.
 */

#include "sgemm.h"
#include "unary.h"

/* What is done to a result: y = bound(f(y) + added), or bound(y * f(y) + added). */
struct qir_after {
  int op;    /* f, an enum qir_unary_op, or -1 */
  int times; /* y * f(y) */
  struct qir_unary how;
  int added; /* a buffer of the result's shape, or -1 */
  struct qir_bounds bounds;
};

struct qir_last_conv {
  struct qir_conv_shape s;
  const float *weight, *bias; /* [oc, c / groups, kh, kw], copied; bias may be NULL */
  int first;                  /* x is channels first; y never is */
  struct qir_after after;
  int x, y;
};

/* Each makes a step; 0 if there is no memory. */
int qir_last_conv_make(uint32_t isa, const struct qir_last_conv *how, struct qir_step *step);
/* One input channel a group, and one output channel; no more than QIR_SGEMM_DEPTH taps. */
int qir_last_depthwise_make(uint32_t isa, const struct qir_last_conv *how, struct qir_step *step);
/*
 * A depthwise convolution and the convolutions before and after it, of which at least one is there:
 * each reads what the one before writes. `after` is of one tap. What is between has no buffer.
 */
struct qir_last_chain {
  const struct qir_last_conv *before, *middle, *after; /* the first and the last may be NULL */
};
int qir_last_chain_make(uint32_t isa, const struct qir_last_chain *how, struct qir_step *step);
/* y[n, c] = the mean over the pixels of x[n, pixels, c] */
int qir_last_mean_make(uint32_t isa, size_t n, size_t pixels, size_t c, int x, int y,
                       struct qir_step *step);

/* Windows of `planes` images of `channels` channels; the rest is as in unary.h. */
struct qir_last_pool {
  struct qir_float_window s;
  size_t channels, pb, pr;
  int average, count_pad, x, y;
};
int qir_last_pool_make(uint32_t isa, const struct qir_last_pool *how, struct qir_step *step);

#endif

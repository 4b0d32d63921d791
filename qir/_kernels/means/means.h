#ifndef QIR_MEANS_H
#define QIR_MEANS_H

/*
 * Means of codes over windows of images in NHWC as other runtimes round them: sums of q - zero are
 * whole; as float32 they go through an epilogue, that of vectors for the first `body` channels and
 * that of single elements for the others. What is outside of an image is not summed; `factor` of
 * the epilogues is one number for each pixel of the result, in place of one a column.
 */

#include "epilogue/epilogue.h"
#include "step.h"

struct qir_means {
  size_t n, h, w, c, oh, ow, kh, kw, sh, sw, pt, pl;
  int32_t x_zero;
  uint8_t x_flip;
  size_t body;
  const float *factor;         /* [oh * ow] */
  struct qir_epilogue ends[2]; /* without arrays: bias is in `bias` */
  float bias[2];               /* added after the factor, in one rounding if bias_fused */
  int biased[2];
  int x, y;
};

int qir_means_make(uint32_t isa, const struct qir_means *how, struct qir_step *step);

#endif

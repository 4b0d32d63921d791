#ifndef QIR_RESIZE_H
#define QIR_RESIZE_H

/*
 * Bilinear resizing of 8-bit integers in whole numbers, NHWC: of the four neighbours of a result,
 *
 *   sum = (a * left + b * right) * above + (c * left + d * right) * below
 *   y = sum / 2^shift, rounded halves up, or away from zero with `away`
 *
 * Weights of a result add up to at most 2^shift in both directions together, so that sums fit 32
 * bits and results are integers of the type.
 */

#include <stddef.h>
#include <stdint.h>

#include "isa.h"
#include "step.h"

/* Of each result along an axis, its neighbours and their weights. */
struct qir_resize_axis {
  const int32_t *low, *high, *low_weight, *high_weight;
};

struct qir_resize {
  size_t n, h, w, c, oh, ow;
  struct qir_resize_axis rows, columns;
  int shift, away;
  uint8_t flip;
  int x, y;
};

/* One row of results; `above` and `below` are rows of the image. */
struct qir_resize_row {
  const uint8_t *above, *below;
  int32_t above_weight, below_weight;
};

typedef void (*qir_resize_fn)(const struct qir_resize *how, const struct qir_resize_row *row,
                              uint8_t *y);

/* Makes a step; 0 if there is no memory. */
int qir_resize_make(uint32_t isa, const struct qir_resize *how, struct qir_step *step);

#endif

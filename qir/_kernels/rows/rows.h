#ifndef QIR_ROWS_H
#define QIR_ROWS_H

/*
 * Rows of numbers that are normalized together. All is computed in f64 and rounded once:
 *
 *   layer_norm  y = (x - mean) / sqrt(variance + eps) * gamma + beta
 *   softmax     y = exp(x - max) / sum of these
 *
 * Sums are of QIR_LANES lanes: lane l adds the numbers l, l + QIR_LANES ... in order; then halves
 * are added to halves, the upper to the lower, until one number is left. qir/reference/lanes.py
 * adds in this order too, so layer_norm gives its bytes. exp is a polynomial of this file, within
 * 2^-46, so softmax in f32 may differ from the C library's by one.
 * short_softmax has its exponentials in f32, within one unit too, for graphs in which nothing is
 * rounded to integers behind it.
 *
 * And the last step of softmax.h, for which the exponents are there already:
 *
 *   share       y = clamp(int32(rne(v * gain / sum)) + zero)
 */

#include "isa.h"
#include "requant.h"
#include "step.h"

enum { QIR_LANES = 16 };

struct qir_layer_norm {
  size_t width;
  const float *gamma, *beta; /* beta may be NULL */
  double eps;
};

struct qir_share {
  float gain, sum;
  struct qir_code code;
  uint8_t beyond; /* the code of what does not fit 32 bits */
};

typedef void (*qir_layer_norm_fn)(const struct qir_layer_norm *how, const float *x, float *y);
/* `powers` holds n numbers. */
typedef void (*qir_row_softmax_fn)(const float *x, size_t n, double *powers, float *y);
typedef void (*qir_short_softmax_fn)(const float *x, size_t n, float *powers, float *y);
/* v >= 0; `wide` multiplies and divides in f64, and saturates; `inverse` as softmax.h says. */
typedef void (*qir_share_fn)(const struct qir_share *how, const float *v, uint8_t *y, size_t n);

struct qir_rows_kernel {
  const char *name;
  uint32_t isa;
  qir_layer_norm_fn layer_norm;
  qir_row_softmax_fn softmax;
  qir_short_softmax_fn short_softmax;
  qir_share_fn share, share_wide, share_inverse;
};

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_rows_kernel qir_rows_kernels[];
extern const size_t qir_rows_kernel_count;

/* Each makes a step over `rows` rows of f32; 0 if there is no memory. gamma and beta are copied. */
int qir_layer_norm_make(uint32_t isa, size_t rows, const struct qir_layer_norm *how, int x, int y,
                        struct qir_step *step);
int qir_row_softmax_make(uint32_t isa, size_t rows, size_t width, int in_f32, int x, int y,
                         struct qir_step *step);

#endif

#ifndef QIR_SUMS_H
#define QIR_SUMS_H

/*
 * Sums of 8-bit integers over windows of images in NHWC, and the byte that each sum becomes.
 *
 * A sum is of bytes in the order of their values, from 0 to 255: those of i8 have their highest
 * bit flipped. What is outside of an image is not summed. The byte of a sum, in the same order,
 * is how many of the 255 levels of its pixel are not above it, so any function of sums that never
 * falls is computed, however it rounds.
 */

#include <stddef.h>
#include <stdint.h>

#include "isa.h"
#include "step.h"

enum { QIR_LEVELS = 255 };

struct qir_sums {
  size_t n, h, w, c, oh, ow, kh, kw, sh, sw, pt, pl;
  uint8_t x_flip, y_flip;
  size_t kinds;          /* of levels */
  const int32_t *levels; /* [kinds * QIR_LEVELS], each row ascends */
  const uint8_t *kind;   /* [oh * ow]: which levels a pixel has */
  int x, y;
};

/*
 * One row of levels between ends that no sum reaches, and a line near it: f32(sum) * gain + offset.
 * Where windows are small, `bytes` has the byte of each sum instead.
 */
struct qir_sum_levels {
  const uint8_t *bytes; /* or NULL */
  float gain, offset;
  int32_t level[QIR_LEVELS + 2];
};

/* A window: `rows` rows of `columns` pixels, each of c bytes. */
struct qir_sum_window {
  const uint8_t *x;
  size_t rows, stride, columns, c;
};

struct qir_sums_kernel {
  const char *name;
  uint32_t isa;
  void (*run)(const struct qir_sum_window *of, uint8_t x_flip, const struct qir_sum_levels *levels,
              uint8_t y_flip, uint8_t *y);
};

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_sums_kernel qir_sums_kernels[];

/* Makes a step; 0 if there is no memory. */
int qir_sums_make(uint32_t isa, const struct qir_sums *how, struct qir_step *step);

#endif

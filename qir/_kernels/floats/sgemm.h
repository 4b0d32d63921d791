#ifndef QIR_SGEMM_H
#define QIR_SGEMM_H

/*
 * Products of float32 matrices: y[i, j] = bound(sum over p of a[i, p] * b[p, j] + bias).
 *
 * The order of the sum is part of the result, and it is the same for every instruction set, number
 * of threads and batch:
 *
 *   - the values p are taken in blocks of QIR_SGEMM_DEPTH;
 *   - the sum of a block starts from 0 and takes one fused multiply-add a value, in order;
 *   - the sums of blocks are added in order, then the bias.
 *
 * A block of B is packed as a panel: for each p, `width` columns next to each other, zeros where
 * there are none. Rows of A are read in place.
 */

#include "isa.h"
#include "step.h"

enum { QIR_SGEMM_DEPTH = 256, QIR_SGEMM_WIDEST = 64 /* columns of a panel */ };

/* What a result is bounded by; NaN stays NaN, and -0 is not below 0. */
struct qir_bounds {
  int bounded;
  float low, high;
};

struct qir_sgemm_block {
  const float *a;
  size_t a_row, count; /* of rows */
  const float *panel;
  size_t width, depth;
  float *y;
  size_t y_row, columns;
  int first, last;          /* of the blocks of a sum */
  const float *row_bias;    /* one a row, or NULL */
  const float *column_bias; /* `columns` of them, or NULL */
  struct qir_bounds bounds;
};

/* A row of a depthwise convolution: y[i] = bound(sum over t of x[at[t] + i] * weight[t] + bias). */
struct qir_taps {
  const float *x; /* QIR_SGEMM_WIDEST more floats than are asked for can be read */
  const size_t *at;
  const float *weight;
  size_t taps;
  float bias;
  struct qir_bounds bounds;
};

struct qir_sgemm_kernel {
  const char *name;
  uint32_t isa;
  void (*run)(const struct qir_sgemm_block *block);
  void (*taps)(const struct qir_taps *how, float *y, size_t n);
  size_t nr, width; /* floats of a vector, and of a whole panel */
};

#define QIR_SGEMM_KERNEL(name, isa, nr, width)           \
  void qir_sgemm_##name(const struct qir_sgemm_block *); \
  void qir_taps_##name(const struct qir_taps *, float *, size_t);
#include "kernels.inc"
#undef QIR_SGEMM_KERNEL

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_sgemm_kernel qir_sgemm_kernels[];
extern const size_t qir_sgemm_kernel_count;

/* The width of the panel that begins at column j of n. */
static inline size_t qir_sgemm_width(const struct qir_sgemm_kernel *kernel, size_t n, size_t j) {
  return n - j < kernel->width ? qir_round_up(n - j, kernel->nr) : kernel->width;
}

static inline float qir_bound(float value, const struct qir_bounds *to) {
  if (!to->bounded) return value;
  value = value < to->low ? to->low : value;
  return value > to->high ? to->high : value;
}

/* Every value's block after block: sets depth, first and last. */
static inline size_t qir_sgemm_depth(size_t k, size_t p, struct qir_sgemm_block *block) {
  block->depth = k - p < QIR_SGEMM_DEPTH ? k - p : QIR_SGEMM_DEPTH;
  block->first = p == 0;
  block->last = p + block->depth == k;
  return block->depth;
}

#endif

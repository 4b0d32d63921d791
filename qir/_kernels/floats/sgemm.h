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
 * A block of B is packed as a panel: for each p, `width` columns next to each other; what lies past
 * the last column is read and never kept. Rows of A are read in place: a[i * a_row + p * a_value],
 * or, where `rows` is given, rows[i][offsets[p]].
 */

#include "conv/conv.h"
#include "isa.h"
#include "step.h"

enum {
  QIR_SGEMM_DEPTH = 256,
  QIR_SGEMM_WIDEST = 64, /* columns of a panel */
  QIR_SGEMM_SLOP = 16,   /* floats */
};

/* What a result is bounded by; NaN stays NaN, and -0 is not below 0. */
struct qir_bounds {
  int bounded;
  float low, high;
};

struct qir_sgemm_block {
  const float *a;
  size_t a_row, a_value, count; /* steps from row to row and from p to p + 1; rows */
  const float *const *rows;     /* or NULL */
  const uint32_t *offsets;
  const float *panel;
  size_t width, depth;
  float *y;
  size_t y_row, columns;
  int first, last;          /* of the blocks of a sum */
  const float *row_bias;    /* one a row, or NULL */
  const float *column_bias; /* `columns` of them, or NULL */
  const float *added;       /* to the sum and its bias; it lies as y does; or NULL */
  struct qir_bounds bounds;
};

/*
 * What the windows of some output pixels hold: the pixels j .. j + columns of a group of channels
 * that begins at x, values p .. p + depth of each window. Outside of x are zeros.
 */
struct qir_unfold {
  const struct qir_conv_shape *s;
  const float *x;
  size_t j, columns, width, p, depth;
};

/* A plane of a depthwise convolution, whose sum takes the taps in order. */
struct qir_plane {
  const struct qir_conv_shape *s;
  const float *x, *weight;
  float bias; /* -0 if there is none */
  struct qir_bounds bounds;
};

/*
 * Lines of a depthwise convolution of an image channels last: the channels from .. to of `count`
 * lines from `first` on. Weights are one row of `wide` channels a tap. Of the image, x holds the
 * last lines that were written, line l in place l % ring; `base` is the multiple of `ring` at or
 * below the first line that is seen.
 */
struct qir_lines {
  const struct qir_conv_shape *s;
  const float *x, *weight, *bias; /* one bias a channel, -0 if there is none */
  size_t wide, first, count, from, to;
  size_t ring, base;
  struct qir_bounds bounds;
};

static inline size_t qir_line_place(const struct qir_lines *how, size_t line) {
  const size_t place = line - how->base;
  return place < how->ring ? place : place - how->ring;
}

struct qir_sgemm_kernel {
  const char *name;
  uint32_t isa;
  void (*run)(const struct qir_sgemm_block *block);
  /* Writes `depth` rows of `width` floats, and up to QIR_SGEMM_SLOP more. */
  void (*unfold)(const struct qir_unfold *how, float *panel);
  void (*plane)(const struct qir_plane *how, float *y);
  void (*lines)(const struct qir_lines *how, float *y); /* y is the first of the lines */
  size_t nr, width; /* floats of a vector, and of a whole panel */
};

#define QIR_SGEMM_KERNEL(name, isa, nr, width)                \
  void qir_sgemm_##name(const struct qir_sgemm_block *);      \
  void qir_unfold_##name(const struct qir_unfold *, float *); \
  void qir_plane_##name(const struct qir_plane *, float *);   \
  void qir_lines_##name(const struct qir_lines *, float *);
#include "kernels.inc"
#undef QIR_SGEMM_KERNEL

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_sgemm_kernel qir_sgemm_kernels[];
extern const size_t qir_sgemm_kernel_count;

/* Columns in panels of nearly the same width: narrow ones are slow. */
struct qir_panels {
  size_t count, nr, columns, vectors;
};

struct qir_panel {
  size_t first, width, columns; /* the first column, floats of a row, and how many are columns */
};

static inline struct qir_panels qir_panels_of(const struct qir_sgemm_kernel *kernel, size_t n) {
  const size_t vectors = (n + kernel->nr - 1) / kernel->nr, most = kernel->width / kernel->nr;
  return (struct qir_panels){(vectors + most - 1) / most, kernel->nr, n, vectors};
}

static inline struct qir_panel qir_panel_at(const struct qir_panels *p, size_t index) {
  const size_t each = p->vectors / p->count, more = p->vectors % p->count;
  const size_t before = index * each + (index < more ? index : more);
  struct qir_panel panel = {before * p->nr, (each + (index < more)) * p->nr, 0};
  const size_t left = p->columns - panel.first;
  panel.columns = left < panel.width ? left : panel.width;
  return panel;
}

/* Floats of all panels of n rows of k weights. */
static inline size_t qir_packed_size(const struct qir_panels *panels, size_t k) {
  return panels->vectors * panels->nr * k;
}

/* Packs weights [n, k] as panels one after the other, whose columns are rows of the weights. */
void qir_pack_weights(const struct qir_panels *panels, const float *weight, size_t k, float *to);

/* Whether output pixels see one input pixel each, in order. */
static inline int qir_conv_plain(const struct qir_conv_shape *s) {
  return s->kh * s->kw == 1 && s->sh == 1 && s->sw == 1 && s->oh == s->h && s->ow == s->w &&
         !s->pt && !s->pl;
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

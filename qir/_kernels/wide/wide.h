#ifndef QIR_WIDE_H
#define QIR_WIDE_H

/*
 * Products of float32 whose sums are float64 and rounded once, as the reference makes them: for
 * float ops beside quantized values, which another float32 sum could move by a step. They also make
 * the exact sums of integers, as float32 that hold whole numbers below 2^24.
 *
 *   product   y[t, i, j] = sum over p of a[t, i, p] * b[t, p, j] + bias[j]
 *   blocks    the same, b being integers of 4 or 8 bits: (q - zero) * scale, rounded to f32, with a
 *             scale and a zero for each block of a column
 *   conv      of one to three axes, channels first; padding is zeros that take part
 *
 * A product of two float32 is exact in float64, so that adding it by fma changes nothing. Sums
 * start from 0 and take one product after the other, in order; the bias comes last. So every
 * instruction set gives the same bytes, and the reference's, whose sums have another order, where
 * the two do not lie on two sides of a tie of float32: sums that agree to some 50 bits do not, but
 * for one in millions.
 *
 * A result is f32, or i32: then the low bits of the whole number.
 */

#include "isa.h"
#include "matmul/matmul.h"
#include "step.h"

enum { QIR_WIDE_ROWS = 6 /* at most */, QIR_WIDE_COLUMNS = 32, QIR_WIDE_AXES = 3 };

/* Sums of some rows of A, [rows][k], by the columns of a panel [k][COLUMNS]. */
typedef void (*qir_wide_tile_fn)(const double *a, const double *panel, size_t k, double *sums);
/* The same with a bias, -0 where there is none, as that changes no sum; rounded to `rows` rows of
 * `columns` floats that are y_row from each other. */
struct qir_wide_floats {
  const double *bias;
  size_t rows, columns, y_row;
  float *y;
};
typedef void (*qir_wide_floats_fn)(const double *a, const double *panel, size_t k,
                                   const struct qir_wide_floats *to);

/* Sums of `columns` numbers, of COLUMNS a multiple: weight[t] times those from places[t] on. */
struct qir_wide_taps {
  const float *weight;
  const double *from;
  const size_t *places;
  size_t taps, columns;
};
typedef void (*qir_wide_taps_fn)(const struct qir_wide_taps *how, double *sums);

struct qir_wide_kernel {
  const char *name;
  uint32_t isa;
  size_t rows; /* of a tile */
  qir_wide_tile_fn tile;
  qir_wide_floats_fn floats;
  qir_wide_taps_fn taps;
};

extern const struct qir_wide_kernel qir_wide_kernels[];
extern const size_t qir_wide_kernel_count;

/* How the matrices lie is said in matmul.h, in elements. */
struct qir_wide_product {
  struct qir_matmul_shape s;
  int a, b, y;       /* buffers; b is -1 where the numbers are blocks */
  const float *bias; /* n of them, copied, or NULL */
  int to_whole;
  /* Blocks: rows of `k` integers for each column, in bytes or halves of bytes, low first. */
  const uint8_t *codes;
  size_t bits, block;
  const float *scale;  /* [n, blocks] */
  const int32_t *zero; /* the same */
};

/* w is (oc, c / groups, kernel); transposed: (c, oc / groups, kernel). */
struct qir_wide_conv {
  size_t n, c, oc, groups;
  size_t inside[QIR_WIDE_AXES], out[QIR_WIDE_AXES], kernel[QIR_WIDE_AXES];
  size_t stride[QIR_WIDE_AXES], dilation[QIR_WIDE_AXES], front[QIR_WIDE_AXES];
  int transposed, to_whole;
  int x, w, y;
  const float *bias; /* oc of them, copied, or NULL */
};

/* Each makes a step; 0 if there is no memory. */
int qir_wide_product_make(uint32_t isa, const struct qir_wide_product *how, struct qir_step *step);
int qir_wide_conv_make(uint32_t isa, const struct qir_wide_conv *how, struct qir_step *step);

#endif

#ifndef QIR_GEMM_H
#define QIR_GEMM_H

/*
 * acc[i, j] = bias[j] + shift[i] * gain[j] + sum over t, p of A[i, t, p] * B[t, p, j]
 *     modulo 2^32, without gain: bias[j] + shift[i] + ...
 * y[i, j]   = clamp(rne(f32(acc[i, j]) * multiplier[j]) + zero, low, high)
 *       or  = f32(acc[i, j]) * multiplier[j] + plus[j], each rounded
 *
 * A is never dense: rows[t * row_stride + i] points to the `depth` values of row i and
 * tap t, so a convolution is a product whose rows are pixels of the input. Values of A
 * are unsigned: u8 codes, or i8 codes with the highest bit flipped; the caller puts what
 * that and the zero point of x add to the sum into `bias` (see qir_gemm_pack). Kernels that
 * multiply signed bytes take the values less qir_isa_centre, which is in `bias` too.
 *
 * B is packed by qir_gemm_pack in panels of `nr` to `nr * nv` columns. In a panel, groups of
 * `kr` values of one column are neighbours in memory, then come the columns, then the groups.
 * Every kernel gives the same bits.
 */

#include <stddef.h>
#include <stdint.h>

#include "isa.h"
#include "requant.h"

/* A block of rows times one panel. */
struct qir_gemm_block {
  const void *const *rows;
  size_t row_stride, count; /* count of rows */
  size_t taps, depth;       /* depth in values, a multiple of kr */
  const void *panel;
  const int32_t *bias;  /* in panel order, like multiplier */
  const int32_t *shift; /* of each row, or NULL */
  const int32_t *gain;  /* of each column, in panel order, or NULL: 1 */
  const float *multiplier;
  int below_one;  /* all multipliers are known to be: no product leaves 32 bits */
  size_t width;   /* columns of the panel: a multiple of nr */
  size_t columns; /* of these, columns that exist */
  void *y;
  size_t y_stride; /* in values */
  struct qir_code code;
  uint8_t x_flip;    /* for kernels that read x as it is */
  int to_float;      /* y is f32, and code is not used */
  const float *plus; /* what is added to floats, `width` numbers, or NULL */
};

typedef void (*qir_gemm_fn)(const struct qir_gemm_block *block);

#define QIR_GEMM_KERNEL(name, isa, nr, nv, kr, widened) \
  void name(const struct qir_gemm_block *block);
#include "kernels.inc"
#undef QIR_GEMM_KERNEL

struct qir_gemm_kernel {
  const char *name;
  uint32_t isa; /* bits that must all be available */
  qir_gemm_fn run;
  size_t nr, nv, kr;
  int widened; /* A and B are 16-bit; else A is read in place where depth allows, and 8-bit */
};

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_gemm_kernel qir_gemm_kernels[];
extern const size_t qir_gemm_kernel_count;

/*
 * B as the caller has it: n columns; value (t, p, j) at data[j * column + t * tap + p * value].
 * In A, and so in packed B, `joined` taps follow each other; what is not a multiple of kr after
 * them is filled up with zeros.
 */
struct qir_gemm_weights {
  const int8_t *data;
  size_t n, taps, joined, depth;
  size_t column, tap, value;
};

/* Packed B, one allocation with whatever holds it: pointers into memory of packed_size bytes. */
struct qir_gemm_packed {
  size_t n, k; /* k: values of a column, padded to kr */
  char *panels;
  int32_t *bias;
  float *multiplier;
  int below_one; /* all multipliers, in magnitude */
};

/* Where column j of a panel of that width is stored. */
size_t qir_gemm_place(size_t width, int to_float, size_t j);

/* Columns of the panel that starts at column j. */
size_t qir_gemm_width(const struct qir_gemm_kernel *kernel, size_t n, size_t j);

size_t qir_gemm_packed_size(const struct qir_gemm_kernel *kernel, size_t n, size_t k);

/*
 * Lays out B, and folds into the bias what an input of zero point `x_zero` (as the unsigned
 * value that the kernel sees) adds to each sum. `bias` may be NULL; multiplier_count is 1 or n.
 * The memory is cleared.
 */
void qir_gemm_pack(const struct qir_gemm_kernel *kernel, const struct qir_gemm_weights *weights,
                   const int32_t *bias, int32_t x_zero, const float *multiplier,
                   size_t multiplier_count, int to_float, void *memory,
                   struct qir_gemm_packed *packed);

/* Points a block to the panel that starts at column j. */
void qir_gemm_point(const struct qir_gemm_kernel *kernel, const struct qir_gemm_packed *packed,
                    size_t j, struct qir_gemm_block *block);

#endif

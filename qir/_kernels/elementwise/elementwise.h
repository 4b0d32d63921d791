#ifndef QIR_ELEMENTWISE_H
#define QIR_ELEMENTWISE_H

/*
 * What is done to each number by itself, all in f32 and rounded to even:
 *
 *   add         y = clamp(rne(fma(a, a_gain, fma(b, b_gain, offset))), low, high)
 *   mul         y = clamp(rne((a - a_zero) * (b - b_zero) * multiplier + zero), low, high)
 *   whole       y = clamp((a * a_factor + b * b_factor + whole_offset) >> shift + zero), in int32
 *   real        y = a + b, a - b, a * b or a / b, of f32
 *   quantize    y = clamp(rne(x / scale) + zero, low, high)
 *   dequantize  y = (x - zero) * scale
 *   lookup      y = table[x]
 *
 * Where the rounded number of add or mul does not fit 32 bits, it counts as INT_MIN: y = low.
 *
 * The kernels are one text, body.h, compiled once for each set of instructions; the products of
 * mul are two roundings, as the C says, those of add one, as fmaf says.
 */

#include "isa.h"
#include "requant.h"
#include "step.h"

struct qir_binary {
  float a_gain, b_gain, offset; /* of add */
  int32_t a_zero, b_zero;       /* of mul */
  float multiplier, zero;
  int32_t a_factor, b_factor, whole_offset, shift; /* of whole: factors of 2^22 at most together */
  uint8_t a_flip, b_flip;
  struct qir_code code; /* its zero is 0 where that of the result is in `offset` or `zero` */
};

struct qir_affine {
  float scale;
  struct qir_code code;
};

enum qir_real { QIR_REAL_ADD, QIR_REAL_SUB, QIR_REAL_MUL, QIR_REAL_DIV };

typedef void (*qir_binary_fn)(const struct qir_binary *op, const uint8_t *a, const uint8_t *b,
                              uint8_t *y, size_t n);
typedef void (*qir_quantize_fn)(const struct qir_affine *to, const float *x, uint8_t *y, size_t n);
typedef void (*qir_dequantize_fn)(const struct qir_affine *from, const uint8_t *x, float *y,
                                  size_t n);
typedef void (*qir_interleave_fn)(const uint8_t *x, size_t n, uint8_t *y);
typedef void (*qir_lookup_fn)(const uint8_t *table, const uint8_t *x, uint8_t *y, size_t n);

struct qir_elementwise_kernel {
  const char *name;
  uint32_t isa;
  qir_binary_fn add, mul, whole;
  qir_binary_fn real[4]; /* by enum qir_real: a, b and y are f32, n of them, and op is not used */
  qir_quantize_fn quantize;
  qir_dequantize_fn dequantize;
  qir_lookup_fn lookup;
  qir_interleave_fn interleave3; /* three sequences of n bytes, one after the other */
};

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_elementwise_kernel qir_elementwise_kernels[];
extern const size_t qir_elementwise_kernel_count;

/* y[o, r, i] of a[o, r, i] and b[o, r, i]; a shared operand has one row for all r. */
struct qir_binary_shape {
  size_t outer, rows, inner;
  int a_shared, b_shared;
};

/* Each makes a step; 0 if there is no memory. `op` says how, a, b, x, y are buffers. */
int qir_add_make(uint32_t isa, const struct qir_binary_shape *shape, const struct qir_binary *op,
                 int a, int b, int y, struct qir_step *step);
int qir_mul_make(uint32_t isa, const struct qir_binary_shape *shape, const struct qir_binary *op,
                 int a, int b, int y, struct qir_step *step);
int qir_whole_make(uint32_t isa, const struct qir_binary_shape *shape, const struct qir_binary *op,
                   int a, int b, int y, struct qir_step *step);
int qir_real_make(uint32_t isa, enum qir_real op, const struct qir_binary_shape *shape, int a,
                  int b, int y, struct qir_step *step);
/* `table` has 256 entries of 1, 2, 4 or 8 bytes. */
int qir_lookup_make(uint32_t isa, size_t size, const void *table, size_t entry, int x, int y,
                    struct qir_step *step);

/*
 * `channels` planes of `pixels` floats, n times, against n times `pixels` groups of `channels`
 * codes; one channel is a plain sequence.
 */
struct qir_planes {
  size_t n, channels, pixels;
};
int qir_quantize_make(uint32_t isa, const struct qir_planes *planes, const struct qir_affine *to,
                      int x, int y, struct qir_step *step);
int qir_dequantize_make(uint32_t isa, const struct qir_planes *planes,
                        const struct qir_affine *from, int x, int y, struct qir_step *step);

#endif

#ifndef QIR_TENSORS_H
#define QIR_TENSORS_H

/*
 * Ops on tensors of any element type, as plain loops: what networks do beside their products.
 *
 *   apply       y = op(a, b) or where(a, b, c), operands broadcast by steps of 0
 *   function    y = f(x) of each float, computed in f64 by the C library and rounded once
 *   cast        y = x as another element type
 *   reduce      one number of all those along an axis; floats in f64 and rounded once
 *   place       where the greatest or least number along an axis is
 *   top_k       the k greatest or least numbers along an axis and their places
 *   encode      y = clamp(round(x / scale) + zero): a scale and zero for each channel
 *   decode      y = (x - zero) * scale
 *   choose      the scale and zero of a range, and of nothing else, by ONNX's dynamic rule
 *
 * Integers wrap. NaN wins in max and min, and is greater than everything in place and top_k.
 */

#include "floats/unary.h"
#include "step.h"

enum { QIR_TENSOR_RANK = 8 };

/* Element types, in the order of KINDS in _tensors.pxi. */
enum qir_kind {
  QIR_F32,
  QIR_F64,
  QIR_I8,
  QIR_U8,
  QIR_I16,
  QIR_U16,
  QIR_I32,
  QIR_U32,
  QIR_I64,
  QIR_BOOL,
  QIR_KINDS
};

/* In the order of OPERATIONS in _tensors.pxi; those from QIR_EQUAL to QIR_GREATER_EQUAL give bool,
 * and those after compute on bits. */
enum qir_operation {
  QIR_ADD,
  QIR_SUB,
  QIR_MUL,
  QIR_DIV,
  QIR_MIN,
  QIR_MAX,
  QIR_POW,
  QIR_SQUARED_DIFFERENCE,
  QIR_PRELU,
  QIR_EQUAL,
  QIR_NOT_EQUAL,
  QIR_LESS,
  QIR_LESS_EQUAL,
  QIR_GREATER,
  QIR_GREATER_EQUAL,
  QIR_AND,
  QIR_OR,
  QIR_XOR,
  QIR_OPERATIONS
};

/* y has no gaps; element i along an axis of an operand is i * steps[operand][axis] further. */
struct qir_apply {
  size_t rank, shape[QIR_TENSOR_RANK], steps[3][QIR_TENSOR_RANK];
};

/* 0 if there is no memory, or no loop for such elements. `c` of where; its `a` is bool. */
int qir_apply_make(enum qir_operation op, enum qir_kind kind, const struct qir_apply *how, int a,
                   int b, int y, struct qir_step *step);
int qir_where_make(size_t itemsize, const struct qir_apply *how, int a, int b, int c, int y,
                   struct qir_step *step);
/* Whether apply has a loop for such elements. */
int qir_apply_known(enum qir_operation op, enum qir_kind kind);

/* In the order of FUNCTIONS in _tensors.pxi; a and b are what their attributes say. */
enum { QIR_FUNCTIONS = 44 };
struct qir_function {
  int which;
  double a, b;
};
/* The same for kernels that have functions among other ops. */
struct qir_prepared_function {
  struct qir_function how;
  const struct qir_unary_kernel *kernel;
  qir_near_fn quick; /* or NULL */
  double room;       /* how far from the value it is at most, with some to spare */
};
struct qir_prepared_function qir_function_prepare(uint32_t isa, const struct qir_function *how);
void qir_function_apply(const struct qir_prepared_function *f, const float *x, float *y, size_t n);
int qir_function_make(uint32_t isa, const struct qir_function *how, size_t size, int x, int y,
                      struct qir_step *step);

int qir_cast_make(enum qir_kind from, enum qir_kind to, size_t size, int x, int y,
                  struct qir_step *step);

/* In the order of REDUCTIONS in _tensors.pxi. */
enum qir_reduction {
  QIR_SUM,
  QIR_PROD,
  QIR_REDUCE_MAX,
  QIR_REDUCE_MIN,
  QIR_L1,
  QIR_L2,
  QIR_LOG_SUM,
  QIR_LOG_SUM_EXP,
  QIR_SUM_SQUARE,
  QIR_MEAN_OF,
  QIR_REDUCTIONS
};

/* x is (outer, rows, inner), and y (outer, inner). */
struct qir_along {
  size_t outer, rows, inner;
};

/* Of f32, i32 and i64; of integers sum, product, greatest and least alone. */
int qir_reduce_make(enum qir_reduction op, enum qir_kind kind, const struct qir_along *how, int x,
                    int y, struct qir_step *step);
/* y is i64; `last` of equal ones, else the first. */
int qir_place_make(enum qir_kind kind, int least, int last, const struct qir_along *how, int x,
                   int y, struct qir_step *step);
/* y and places, which are i64, are (outer, k, inner). */
int qir_top_k_make(enum qir_kind kind, int least, size_t k, const struct qir_along *how, int x,
                   int y, int places, struct qir_step *step);

/* x and y are (outer, channels, inner); scales are f32 and zeros i32, one for each channel. */
struct qir_codes_shape {
  size_t outer, channels, inner;
  const float *scale; /* copied, or NULL: then the buffer `scale_at` has one */
  const int32_t *zero;
  int scale_at, zero_at; /* zeros are of the kind of the integers; -1: there is none */
  int32_t low, high;
  int away; /* halves are rounded away from zero, not to even */
};
int qir_encode_make(uint32_t isa, enum qir_kind to, const struct qir_codes_shape *how, int x, int y,
                    struct qir_step *step);
int qir_decode_make(enum qir_kind from, const struct qir_codes_shape *how, int x, int y,
                    struct qir_step *step);
/* Where a step that was made says whether x held NaN, as in gather.h. */
int *qir_choose_fault(void *params);
int qir_choose_make(uint32_t isa, enum qir_kind to, size_t size, int x, int scale, int zero,
                    struct qir_step *step);

#endif

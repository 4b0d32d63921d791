#ifndef QIR_EPILOGUE_H
#define QIR_EPILOGUE_H

/*
 * What a kernel of another runtime does to int32 sums, each step rounded to float32:
 *
 *   v = f32(sum)
 *   v = v + steps[c]                    or fma(steps[c], share[c], v)
 *   v = v * unit * factor[c] + bias[c]  or fma(v * unit, factor[c], bias[c])
 *   v = v + f32(summand - zero) * s     or fma(f32(summand - zero), s, v)
 *   v = clamp(v, least, most)           a NaN stays one
 *   v = v * last                        or v / last
 *   v = v + offset
 *   y = v                               or the code of v, as requant.h has it
 *
 * Steps whose array is NULL or whose flag is not set are left out, as unit and last of 1 are.
 * Kernels write float sums into scratch memory, a tile that stays in the nearest cache.
 *
 * Or, where `fixed` is set, whole sums of at most 2^24 times multipliers of 31 bits and a power of
 * two, as gemmlowp does, and nothing else:
 *
 *   v = i32(sum * 2^max(shift[c], 0))
 *   v = round(v * fixed[c] / 2^31)         halves up
 *   v = round(v / 2^max(-shift[c], 0))     halves up, or away from zero where away[c]
 *   y = clamp(v + zero, low, high)
 *
 * With `once`, v = floor(sum * fixed[c] / 2^(31 - shift[c]) + 1/2) in place of the first three.
 */

#include <stddef.h>
#include <stdint.h>

#include "isa.h"
#include "requant.h"

struct qir_epilogue {
  const float *steps, *share;
  const float *factor; /* never NULL */
  const float *bias;
  float unit;
  int bias_fused;
  int summand; /* a buffer of bytes laid out as y, or -1 */
  int summand_fused;
  int32_t summand_zero, summand_most; /* codes above `most` count as it */
  uint8_t summand_flip;
  float summand_scale;
  int bounded;
  float least, most;
  int divide;
  float last;
  int shifted;
  float offset;
  int to_float;
  const int32_t *fixed, *shift, *away; /* shift from -30 to 30; away is 0 or 1 */
  int once;
  struct qir_code code;
};

/* Rows of sums, which are overwritten, and where their results go. Strides are in elements. */
struct qir_epilogue_rows {
  float *sums;
  size_t stride, rows, columns;
  size_t first; /* column of the first sum */
  const uint8_t *summand;
  size_t summand_stride;
  void *y;
  size_t y_stride;
};

typedef void (*qir_epilogue_fn)(const struct qir_epilogue *how,
                                const struct qir_epilogue_rows *rows);

void qir_epilogue_scalar(const struct qir_epilogue *how, const struct qir_epilogue_rows *rows);
#if defined(QIR_X86)
void qir_epilogue_avx2(const struct qir_epilogue *how, const struct qir_epilogue_rows *rows);
void qir_epilogue_avx512(const struct qir_epilogue *how, const struct qir_epilogue_rows *rows);
#endif

/* The best that `isa` allows; all give the same bits. */
qir_epilogue_fn qir_epilogue_select(uint32_t isa);

/* Bytes that the arrays of so many columns take. */
size_t qir_epilogue_size(size_t columns);

/* The same epilogue, its arrays copied into that many bytes of aligned memory. */
struct qir_epilogue qir_epilogue_copy(const struct qir_epilogue *how, size_t columns, void *memory);

#endif

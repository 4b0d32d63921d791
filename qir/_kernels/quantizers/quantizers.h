#ifndef QIR_QUANTIZERS_H
#define QIR_QUANTIZERS_H

/*
 * Floats to codes of 8 bits as the kernels of other runtimes quantize, each step rounded to
 * float32; qir/numerics/definition.py says what each does:
 *
 *   v = clamp(x, least, most)
 *   v = v / factor, or v * factor, or fma(v, factor, before)
 *   v = v + before
 *   code = clamp(round(v) + zero, low, high)
 *
 * A NaN becomes the code `nan`. With `wraps`, floats beyond 32 bits become the nearest float32 that
 * these hold, as a NaN does where `nan_far` is set, and the sum with the zero point wraps.
 */

#include "isa.h"
#include "step.h"

struct qir_quantizer {
  int bounded, divide, fused, shifted, away, wraps, nan_far;
  float least, most, factor, before;
  int32_t zero, low, high, nan;
  int refuses; /* a NaN is a fault */
  size_t size;
  int x, y;
};

/* Returns whether there was a NaN. */
typedef int (*qir_quantizer_fn)(const struct qir_quantizer *how, const float *x, uint8_t *y,
                                size_t n);

int qir_quantizer_scalar(const struct qir_quantizer *, const float *, uint8_t *, size_t);
#if defined(QIR_X86)
int qir_quantizer_avx2(const struct qir_quantizer *, const float *, uint8_t *, size_t);
int qir_quantizer_avx512(const struct qir_quantizer *, const float *, uint8_t *, size_t);
#endif

/* Makes a step; 0 if there is no memory. `fault` is where it says that it met a NaN. */
int qir_quantizer_make(uint32_t isa, const struct qir_quantizer *how, struct qir_step *step,
                       int **fault);

#endif
